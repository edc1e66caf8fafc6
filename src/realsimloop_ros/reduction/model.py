"""The reduced model: vertices follow  x = W(g) + Q(g) V c(z),  and few weighted samples stand for the whole body.

W and Q are the grip warp, V (n, 3, R) a linear basis that vanishes on held vertices, c the decoder (the
identity for a linear subspace) and z (r,) the latent state. The basis is orthonormal in the mass metric divided
by the total mass, so that |c| is the mass-weighted rms displacement in m.

A step looks at strain samples (the energy) and mass points (inertia and gravity) alone, so that its cost does not
depend on the size of the mesh. The vertices that these need are the model's support.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import DTypeLike, NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import atomic_write, body_arrays, body_from_arrays
from realsimloop_ros.mechanics.contact import Contact
from realsimloop_ros.mechanics.elements import hung_masses, lumped_volumes, quadrature
from realsimloop_ros.mechanics.laws import MaterialLaw, StableNeoHookean
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.decoders import Decoder, IdentityDecoder, decoder_from_arrays
from realsimloop_ros.reduction.grip_warp import GripWarp, grip_warp, is_floating, warped
from realsimloop_ros.reduction.surroundings import (
    ReducedSurroundings,
    reduced_surroundings,
    surrounding_vertices,
)

_FORMAT = "realsimloop-reduced-1"


class InvalidModelError(ValueError):
    """A reduced model that does not fit its body or cannot be read."""


class ElasticSamples(eqx.Module):
    """Weighted strain samples. nodes: (c, a) places in the support; gradients: (c, a, 3) 1/m; basis: (c, 3a, R) of
    the nodes, gathered once; volume: (c,) m^3, cubature weight included; zone: (c,)."""

    nodes: Int[Array, "c a"]
    gradients: Float[Array, "c a 3"]
    basis: Float[Array, "c b R"]
    volume: Float[Array, " c"]
    zone: Int[Array, " c"]


class MassPoints(eqx.Module):
    """Weighted points that carry the body's inertia.

    nodes: (m,) places in the support; basis: (3m, R); volumes: (m, z) m^3 of each zone, cubature weight included;
    hung: (m,) kg of hung weights; metric: (z, R, R) m^3 and hung_metric: (R, R) kg, V^T diag V over all vertices;
    rest_metric: (z, R, R) m^3, what of metric the points do not sum up.
    """

    nodes: Int[Array, " m"]
    basis: Float[Array, "d R"]
    volumes: Float[Array, "m z"]
    hung: Float[Array, " m"]
    metric: Float[Array, "z R R"]
    hung_metric: Float[Array, "R R"]
    rest_metric: Float[Array, "z R R"]

    def masses(self, material: Material) -> Float[Array, " m"]:
        """Mass of each point, kg."""
        return self.volumes @ material.density + self.hung

    def matrix(self, material: Material) -> Float[Array, "R R"]:
        """Mass matrix of the coordinates, kg."""
        return jnp.tensordot(material.density, self.metric, axes=1) + self.hung_metric

    def rest(self, material: Material) -> Float[Array, "R R"]:
        """What of the mass matrix the points do not sum up, kg."""
        return jnp.tensordot(material.density, self.rest_metric, axes=1)


class ReducedModel(eqx.Module):
    """What a reduced step needs to know of a body. basis: (n, 3, R), dimensionless; support: the warp at the
    vertices that samples, mass points and surroundings need; floating: whether nobody holds the body, so that
    its frame is not given but follows from its motion.
    """

    warp: GripWarp
    basis: Float[Array, "n 3 R"]
    decoder: Decoder
    support: GripWarp
    samples: ElasticSamples
    points: MassPoints
    law: MaterialLaw
    surroundings: ReducedSurroundings | None = None
    floating: bool = eqx.field(static=True, default=False)

    @property
    def latent_size(self) -> int:
        return self.decoder.latent_size

    @property
    def dtype(self) -> jnp.dtype:
        """The precision in which it steps."""
        return self.basis.dtype


class Kinematics(eqx.Module):
    """The grip warp at one instant: base (n, 3), m, and turn (n, 3, 3)."""

    base: Float[Array, "n 3"]
    turn: Float[Array, "n 3 3"]

    def take(self, nodes: Int[Array, "*b"]) -> Kinematics:
        """The warp at some of the vertices."""
        return Kinematics(self.base[nodes], self.turn[nodes])


def kinematics(model: ReducedModel, grip_poses: Float[Array, "g 7"]) -> Kinematics:
    """The warp of all vertices for grip poses (g, 7)."""
    return Kinematics(*warped(model.warp, grip_poses))


def support_kinematics(model: ReducedModel, grip_poses: Float[Array, "g 7"]) -> Kinematics:
    """The warp of the support for grip poses (g, 7)."""
    return Kinematics(*warped(model.support, grip_poses))


def positions(model: ReducedModel, frame: Kinematics, latent: Float[Array, " r"]) -> Float[Array, "n 3"]:
    """Vertices (n, 3), m."""
    return _placed(frame, model.basis.reshape(-1, model.basis.shape[2]) @ model.decoder(latent))


def position_tangents(
    model: ReducedModel,
    frame: Kinematics,
    latent: Float[Array, " r"],
    latent_tangents: Float[Array, "r p"],
) -> Float[Array, "n 3 p"]:
    """Derivatives of the vertices along p directions of the latent state."""
    moves = coordinate_tangents(model, latent, latent_tangents)
    return jnp.einsum("nij,njp->nip", frame.turn, model.basis @ moves)


@eqx.filter_jit
def vertices(model: ReducedModel, grip_poses: Float[Array, "g 7"], latent: Float[Array, " r"]) -> Array:
    """Vertices (n, 3), m, at a latent state (r,) between grips at grip_poses (g, 7); compiled."""
    return positions(model, kinematics(model, jnp.asarray(grip_poses, model.dtype)), latent)


def point_positions(model: ReducedModel, frame: Kinematics, latent: Float[Array, " r"]) -> Float[Array, "m 3"]:
    """Mass points (m, 3), m; frame: of the support."""
    return _placed(frame.take(model.points.nodes), model.points.basis @ model.decoder(latent))


def coordinate_tangents(model: ReducedModel, latent: Array, tangents: Float[Array, "r p"]) -> Float[Array, "R p"]:
    """Derivatives of the basis' coordinates along p directions of the latent state."""
    if model.decoder.linear:
        return tangents
    _, linear = jax.linearize(model.decoder, latent)
    return jax.vmap(linear, in_axes=1, out_axes=1)(tangents)


def _placed(frame: Kinematics, local: Float[Array, " d"]) -> Float[Array, "n 3"]:
    return frame.base + jnp.einsum("nij,nj->ni", frame.turn, local.reshape(-1, 3))


class StrainMap(NamedTuple):
    """Deformation gradients of the samples over the coordinates. base: (c, 3, 3) F at c = 0; lift: (c, 9, R)
    dF/dc.
    """

    base: Float[Array, "c 3 3"]
    lift: Float[Array, "c 9 R"]

    def at(self, coordinates: Float[Array, " R"]) -> Float[Array, "c 3 3"]:
        """F (c, 3, 3) at coordinates (R,)."""
        return self.base + (self.lift @ coordinates).reshape(-1, 3, 3)


def strain_map(model: ReducedModel, frame: Kinematics) -> StrainMap:
    """The strains of the samples; frame: of the support."""
    samples = model.samples
    base = jnp.einsum("cai,caj->cij", frame.base[samples.nodes], samples.gradients)
    local = jnp.einsum("cail,caj->cijal", frame.turn[samples.nodes], samples.gradients)
    return StrainMap(base, local.reshape(len(samples.volume), 9, -1) @ samples.basis)


def project_forces(model: ReducedModel, frame: Kinematics, forces: Float[Array, "m 3"]) -> Float[Array, " R"]:
    """Generalised forces (R,) of forces at the mass points; frame: of the support."""
    local = jnp.einsum("nji,nj->ni", frame.turn[model.points.nodes], forces)
    return local.reshape(-1) @ model.points.basis


def in_precision(model: ReducedModel, dtype: DTypeLike) -> ReducedModel:
    """The same model stepping in another floating-point precision."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, model)


@dataclass(frozen=True)
class PointWeights:
    """Which vertices carry the inertia of which zone. vertex, zone: (m,); weight: (m,) factors of the zone's
    volume that is lumped at the vertex. Hung weights are always carried by the vertices they hang from.
    """

    vertex: NDArray[np.int64]
    zone: NDArray[np.int64]
    weight: NDArray[np.float64]

    def check(self, body: Body) -> None:
        """Raises InvalidModelError where they do not fit a body."""
        if not (self.vertex.shape == self.zone.shape == self.weight.shape):
            raise InvalidModelError("points: expected one vertex, zone and weight for each")
        for label, index, limit in (
            ("vertex", self.vertex, len(body.rest_positions)),
            ("zone", self.zone, len(body.zones)),
        ):
            for wrong in index[(index < 0) | (index >= limit)]:
                raise InvalidModelError(f"points.{label}: {wrong}, but the body has {limit}")
        if not (np.isfinite(self.weight).all() and (self.weight >= 0.0).all()):
            raise InvalidModelError("points.weight: expected non-negative numbers")

    def gathered(self, body: Body) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Vertices (m,), the volume of each zone (m, z), m^3, and the hung mass (m,), kg, that each carries."""
        lumped, hung = lumped_volumes(body), hung_masses(body)
        carriers = np.union1d(self.vertex, np.flatnonzero(hung))
        volumes = np.zeros((len(carriers), len(body.zones)))
        place = np.searchsorted(carriers, self.vertex)
        np.add.at(volumes, (place, self.zone), self.weight * lumped[self.vertex, self.zone])
        return carriers, volumes, hung[carriers]


@dataclass(frozen=True)
class ReducedBody:
    """A body with its subspace and cubature, as it lies on disk.

    basis: (n, 3, R); sample_index: (c,) into the body's quadrature samples; sample_weight: (c,) factors of their
    volumes; card: how it was made and how well it does, JSON-compatible; decoder: where the subspace is curved;
    points: which vertices carry the inertia of all, where not every one does.
    """

    body: Body
    basis: NDArray[np.floating]
    sample_index: NDArray[np.int64]
    sample_weight: NDArray[np.float64]
    card: dict
    decoder: Decoder | None = None
    points: PointWeights | None = None

    def __post_init__(self) -> None:
        n = len(self.body.rest_positions)
        if self.basis.ndim != 3 or self.basis.shape[:2] != (n, 3):
            raise InvalidModelError(f"basis: shape {self.basis.shape}, expected ({n}, 3, R)")
        if not np.isfinite(self.basis).all():
            raise InvalidModelError("basis: non-finite numbers")
        if np.abs(self.basis[self.body.held_vertices]).max(initial=0.0) > 0.0:
            raise InvalidModelError("basis: moves held vertices")
        if self.sample_index.shape != self.sample_weight.shape or not (self.sample_weight >= 0.0).all():
            raise InvalidModelError("sample_weight: expected one non-negative weight per sample")
        count = len(self.body.tets) * (4 if self.body.nodes_per_tet == 10 else 1)
        for index in self.sample_index[(self.sample_index < 0) | (self.sample_index >= count)]:
            raise InvalidModelError(f"sample_index: {index}, but the body has {count} samples")
        coordinates = self.basis.shape[2]
        if self.decoder is not None and self.decoder.coordinate_count != coordinates:
            raise InvalidModelError(
                f"decoder: gives {self.decoder.coordinate_count} coordinates, but the basis has {coordinates}"
            )
        if self.points is not None:
            self.points.check(self.body)

    @property
    def latent_size(self) -> int:
        """r"""
        return self.basis.shape[2] if self.decoder is None else self.decoder.latent_size

    def model(
        self, law: MaterialLaw | None = None, *, contact: Contact | None = None, dtype: DTypeLike | None = None
    ) -> ReducedModel:
        """The arrays a step works on.

        law: stable neo-Hookean unless another is given; contact: what the body may touch; dtype: the precision
        of the steps, JAX's own unless given.
        """
        body, every, chosen = self.body, quadrature(self.body), self.sample_index
        points = every_point(body) if self.points is None else self.points
        carriers, volumes, hung = points.gathered(body)
        outside = surrounding_vertices(body, contact)
        support = np.unique(np.concatenate([every.nodes[chosen].ravel(), carriers, outside]))
        warp = grip_warp(body)
        count = self.basis.shape[2]
        basis = np.asarray(self.basis, np.float64)
        carried = basis[carriers]
        metric = np.einsum("nz,nir,nis->zrs", lumped_volumes(body), basis, basis, optimize=True)
        summed = np.einsum("mz,mir,mis->zrs", volumes, carried, carried, optimize=True)
        model = ReducedModel(
            warp=warp,
            basis=jnp.asarray(basis, jnp.result_type(float)),
            decoder=IdentityDecoder(count) if self.decoder is None else self.decoder,
            support=warp.take(support),
            samples=ElasticSamples(
                jnp.asarray(np.searchsorted(support, every.nodes[chosen])),
                jnp.asarray(every.gradients[chosen]),
                jnp.asarray(basis[every.nodes[chosen]].reshape(len(chosen), -1, count)),
                jnp.asarray(every.volume[chosen] * self.sample_weight),
                jnp.asarray(every.zone[chosen]),
            ),
            points=MassPoints(
                jnp.asarray(np.searchsorted(support, carriers)),
                jnp.asarray(carried.reshape(-1, count)),
                jnp.asarray(volumes),
                jnp.asarray(hung),
                jnp.asarray(metric),
                jnp.asarray(np.einsum("m,mir,mis->rs", hung, carried, carried)),
                jnp.asarray(metric - summed),
            ),
            law=StableNeoHookean() if law is None else law,
            surroundings=reduced_surroundings(body, contact, basis, support),
            floating=is_floating(body),
        )
        return model if dtype is None else in_precision(model, dtype)


def every_sample(body: Body) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The cubature that leaves nothing out: all samples with weight one."""
    count = len(quadrature(body).volume)
    return np.arange(count), np.ones(count)


def every_point(body: Body) -> PointWeights:
    """The points that leave nothing out: every vertex that can move, with weight one."""
    vertex, zone = np.nonzero(lumped_volumes(body))
    return PointWeights(vertex, zone, np.ones(len(vertex)))


def save_reduced_body(path: Path, reduced: ReducedBody) -> None:
    """Write body, basis (float32: its rounding, 1e-7, is far below any reduction error), cubature and card."""
    arrays = {f"body_{key}": value for key, value in body_arrays(reduced.body).items()}
    arrays["basis"] = reduced.basis.astype(np.float32)
    arrays["sample_index"] = reduced.sample_index.astype(np.int32)
    arrays["sample_weight"] = reduced.sample_weight
    if reduced.points is not None:
        for key in ("vertex", "zone", "weight"):
            arrays[f"point_{key}"] = getattr(reduced.points, key)
    header = {"format": _FORMAT, "body_hash": reduced.body.content_hash, "card": reduced.card}
    if reduced.decoder is not None:
        header["decoder"] = reduced.decoder.kind
        arrays |= {f"decoder_{key}": value for key, value in reduced.decoder.arrays().items()}
    arrays["header"] = np.array(json.dumps(header))
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def load_reduced_body(path: Path) -> ReducedBody:
    """Read what save_reduced_body wrote. Raises InvalidModelError naming the file and the remedy."""
    if not Path(path).is_file():
        raise InvalidModelError(f"reduced model: {path} does not exist; make it with `realsimloop reduce`")
    try:
        with zipfile.ZipFile(path):
            pass  # numpy would take other formats too, and leaves a file open that it cannot read
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        header = json.loads(str(arrays["header"]))
        found = header.get("format") if isinstance(header, dict) else None
        if found != _FORMAT:
            raise InvalidModelError(f"format {found!r}, expected {_FORMAT!r}")
        body = body_from_arrays(_with_prefix(arrays, "body_"))
        if body.content_hash != header["body_hash"]:
            raise InvalidModelError("the body does not match its hash: the file is damaged")
        decoder = None
        if "decoder" in header:
            decoder = decoder_from_arrays(header["decoder"], _with_prefix(arrays, "decoder_"))
        points = None
        if "point_vertex" in arrays:
            points = PointWeights(arrays["point_vertex"], arrays["point_zone"], arrays["point_weight"])
        return ReducedBody(
            body,
            arrays["basis"],
            arrays["sample_index"].astype(np.int64),
            arrays["sample_weight"],
            header["card"],
            decoder,
            points,
        )
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidModelError(f"reduced model: {path}: {error}; run `realsimloop reduce` anew") from error


def _with_prefix(arrays: dict[str, NDArray], prefix: str) -> dict[str, NDArray]:
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
