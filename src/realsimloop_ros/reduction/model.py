"""The reduced model: vertices follow  x = W(g) + Q(g) V z,  and the energy is that of a few weighted samples.

W and Q are the grip warp, V (n, 3, r) a linear basis that vanishes on held vertices, z (r,) the latent state. The
basis is orthonormal in the mass metric divided by the total mass, so that |z| is the mass-weighted rms
displacement in m and the reduced mass matrix is the total mass times the identity, whatever the grips do.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import atomic_write, body_arrays, body_from_arrays
from realsimloop_ros.mechanics.elements import lumped_masses, quadrature
from realsimloop_ros.mechanics.laws import MaterialLaw, StableNeoHookean
from realsimloop_ros.reduction.grip_warp import GripWarp, grip_warp, warped

_FORMAT = "realsimloop-reduced-1"


class InvalidModelError(ValueError):
    """A reduced model that does not fit its body or cannot be read."""


class ElasticSamples(eqx.Module):
    """Weighted strain samples. nodes: (c, a); gradients: (c, a, 3) 1/m; basis: (c, 3a, r) of the nodes, gathered
    once; volume: (c,) m^3, cubature weight included; zone: (c,)."""

    nodes: Int[Array, "c a"]
    gradients: Float[Array, "c a 3"]
    basis: Float[Array, "c b r"]
    volume: Float[Array, " c"]
    zone: Int[Array, " c"]


class ReducedModel(eqx.Module):
    """What a reduced step needs to know of a body. masses: (n,) kg; basis: (n, 3, r), dimensionless."""

    warp: GripWarp
    basis: Float[Array, "n 3 r"]
    masses: Float[Array, " n"]
    total_mass: float = eqx.field(static=True)
    samples: ElasticSamples
    law: MaterialLaw

    @property
    def latent_size(self) -> int:
        return self.basis.shape[2]


class Kinematics(eqx.Module):
    """The grip warp at one instant: base (n, 3), m, and turn (n, 3, 3)."""

    base: Float[Array, "n 3"]
    turn: Float[Array, "n 3 3"]


def kinematics(model: ReducedModel, grip_poses: Float[Array, "g 7"]) -> Kinematics:
    """The warp of all vertices for grip poses (g, 7)."""
    return Kinematics(*warped(model.warp, grip_poses))


def positions(model: ReducedModel, frame: Kinematics, latent: Float[Array, " r"]) -> Float[Array, "n 3"]:
    """Vertices (n, 3), m."""
    local = (model.basis.reshape(-1, model.latent_size) @ latent).reshape(-1, 3)
    return frame.base + jnp.einsum("nij,nj->ni", frame.turn, local)


def position_tangents(
    model: ReducedModel, frame: Kinematics, latent_tangents: Float[Array, "r p"]
) -> Float[Array, "n 3 p"]:
    """Derivatives of the vertices along p latent directions."""
    return jnp.einsum("nij,njp->nip", frame.turn, model.basis @ latent_tangents)


def strain_map(model: ReducedModel, frame: Kinematics) -> tuple[Array, Array]:
    """F at z = 0 (c, 3, 3) and dF/dz (c, 9, r) of the cubature samples."""
    samples = model.samples
    base = jnp.einsum("cai,caj->cij", frame.base[samples.nodes], samples.gradients)
    local = jnp.einsum("cail,caj->cijal", frame.turn[samples.nodes], samples.gradients)
    return base, local.reshape(len(samples.volume), 9, -1) @ samples.basis


def project_forces(model: ReducedModel, frame: Kinematics, forces: Float[Array, "n 3"]) -> Float[Array, " r"]:
    """Generalised forces (r,) of vertex forces (n, 3)."""
    local = jnp.einsum("nji,nj->ni", frame.turn, forces)
    return local.reshape(-1) @ model.basis.reshape(-1, model.latent_size)


@dataclass(frozen=True)
class ReducedBody:
    """A body with its basis and cubature, as it lies on disk.

    basis: (n, 3, r); sample_index: (c,) into the body's quadrature samples; sample_weight: (c,) factors of their
    volumes; card: how it was made and how well it does, JSON-compatible.
    """

    body: Body
    basis: NDArray[np.floating]
    sample_index: NDArray[np.int64]
    sample_weight: NDArray[np.float64]
    card: dict

    def __post_init__(self) -> None:
        n = len(self.body.rest_positions)
        if self.basis.ndim != 3 or self.basis.shape[:2] != (n, 3):
            raise InvalidModelError(f"basis: shape {self.basis.shape}, expected ({n}, 3, r)")
        if not np.isfinite(self.basis).all():
            raise InvalidModelError("basis: non-finite numbers")
        if np.abs(self.basis[self.body.held_vertices]).max(initial=0.0) > 0.0:
            raise InvalidModelError("basis: moves held vertices")
        if self.sample_index.shape != self.sample_weight.shape or not (self.sample_weight >= 0.0).all():
            raise InvalidModelError("sample_weight: expected one non-negative weight per sample")
        count = len(self.body.tets) * (4 if self.body.nodes_per_tet == 10 else 1)
        for index in self.sample_index[(self.sample_index < 0) | (self.sample_index >= count)]:
            raise InvalidModelError(f"sample_index: {index}, but the body has {count} samples")

    def model(self, law: MaterialLaw | None = None) -> ReducedModel:
        """The arrays a step works on; the law is stable neo-Hookean unless another is given."""
        every = quadrature(self.body)
        chosen = self.sample_index
        masses = lumped_masses(self.body)
        basis = jnp.asarray(self.basis, jnp.result_type(float))
        nodes = jnp.asarray(every.nodes[chosen])
        return ReducedModel(
            warp=grip_warp(self.body),
            basis=basis,
            masses=jnp.asarray(masses),
            total_mass=float(masses.sum()),
            samples=ElasticSamples(
                nodes,
                jnp.asarray(every.gradients[chosen]),
                basis[nodes].reshape(len(chosen), -1, basis.shape[2]),
                jnp.asarray(every.volume[chosen] * self.sample_weight),
                jnp.asarray(every.zone[chosen]),
            ),
            law=StableNeoHookean() if law is None else law,
        )


def every_sample(body: Body) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The cubature that leaves nothing out: all samples with weight one."""
    count = len(quadrature(body).volume)
    return np.arange(count), np.ones(count)


def save_reduced_body(path: Path, reduced: ReducedBody) -> None:
    """Write body, basis (float32: its rounding, 1e-7, is far below any reduction error), cubature and card."""
    arrays = {f"body_{key}": value for key, value in body_arrays(reduced.body).items()}
    arrays["basis"] = reduced.basis.astype(np.float32)
    arrays["sample_index"] = reduced.sample_index.astype(np.int32)
    arrays["sample_weight"] = reduced.sample_weight
    header = {"format": _FORMAT, "body_hash": reduced.body.content_hash, "card": reduced.card}
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
        body = body_from_arrays(
            {key.removeprefix("body_"): value for key, value in arrays.items() if key.startswith("body_")}
        )
        if body.content_hash != header["body_hash"]:
            raise InvalidModelError("the body does not match its hash: the file is damaged")
        return ReducedBody(
            body,
            arrays["basis"],
            arrays["sample_index"].astype(np.int64),
            arrays["sample_weight"],
            header["card"],
        )
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidModelError(f"reduced model: {path}: {error}; run `realsimloop reduce` anew") from error
