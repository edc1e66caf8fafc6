"""Subspaces of what the grip warp leaves over, by name: principal, skinning_modes, autoencoder."""

from __future__ import annotations

import json
import time
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.reduction.autoencoder import Autoencoder, TrainingSettings, train_autoencoder
from realsimloop_ros.reduction.decoders import Decoder, NetworkDecoder
from realsimloop_ros.reduction.grip_warp import grip_warp, warped
from realsimloop_ros.reduction.skinning_modes import skinning_basis
from realsimloop_ros.reduction.snapshots import Snapshots

KINDS = ("principal", "skinning_modes", "autoencoder")
# coordinates of the autoencoder's principal basis per latent one, and their limit: a step's cost grows with them
_COORDINATES, _MOST_COORDINATES = 3.5, 120
# share of the trajectories to learn from on which training stops early
_VALIDATION = 0.15


@dataclass(frozen=True)
class Subspace:
    """basis: (n, 3, R), orthonormal in mass over total mass, zero on held vertices; latents: (k, r) of the
    snapshots it was learnt from; autoencoder: between latents and the basis' coordinates, none where they are the
    same; card: how it was made, JSON-compatible."""

    basis: NDArray[np.float64]
    latents: NDArray[np.float64]
    autoencoder: Autoencoder | None
    card: dict

    @property
    def decoder(self) -> Decoder | None:
        """From latents to coordinates, none where they are the same."""
        return None if self.autoencoder is None else self.autoencoder.decoder

    def coordinates(self) -> NDArray[np.float64]:
        """Coordinates (k, R) of the latent states."""
        if self.autoencoder is None:
            return self.latents
        return np.asarray(jax.vmap(self.autoencoder.decoder)(jnp.asarray(self.latents)))


@dataclass(frozen=True)
class ProjectionError:
    """Distance of vertices to the nearest shape of a subspace: rms, 99th percentile and maximum, m, over size,
    m."""

    rms: float
    p99: float
    maximum: float
    size: float

    def as_card(self) -> dict:
        """With shares of the size in percent."""
        shares = {f"{key}_percent": 100.0 * getattr(self, key) / self.size for key in ("rms", "p99", "maximum")}
        return {**asdict(self), **shares}


def local_displacements(body: Body, snapshots: Sequence[Snapshots]) -> NDArray[np.float64]:
    """Q(g)^T (x - W(g)) of all kept snapshots, (k, n, 3), m; zero on held vertices."""
    warp = grip_warp(body)
    every = jax.jit(jax.vmap(lambda poses: warped(warp, poses)))
    parts = [np.zeros((0, *body.rest_positions.shape))]
    for trajectory in snapshots:
        if len(trajectory.kept) == 0:
            continue
        base, turn = every(jnp.asarray(trajectory.kept_poses))
        moved = np.einsum("knji,knj->kni", np.asarray(turn), trajectory.positions - np.asarray(base))
        moved[:, body.held_vertices] = 0.0
        parts.append(moved)
    return np.concatenate(parts)


def coordinates_of(
    body: Body, basis: NDArray[np.floating], displacements: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Coordinates (k, R) of displacements (k, n, 3) in a basis (n, 3, R) that is orthonormal in mass."""
    masses = lumped_masses(body)
    weighted = (masses / masses.sum())[:, None, None] * np.asarray(basis, np.float64)
    return displacements.reshape(len(displacements), -1) @ weighted.reshape(-1, basis.shape[2])


def principal_basis(
    body: Body, displacements: NDArray[np.float64], latent_size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Leading principal directions of displacements (k, n, 3) in the mass metric.

    Returns basis (n, 3, r), orthonormal in mass over total mass, and all singular values as rms displacement, m.
    Raises ValueError where there are fewer snapshots than directions asked for.
    """
    rows, n = displacements.shape[:2]
    if latent_size > min(rows, 3 * n):
        raise ValueError(f"latent_size: {latent_size}, but {rows} snapshots span at most as many directions")
    shares = lumped_masses(body)
    root = np.sqrt(shares / shares.sum())
    weighted = (displacements * root[None, :, None]).reshape(rows, -1)
    # of both Gram matrices, the smaller
    across = rows <= 3 * n
    values, vectors = np.linalg.eigh(weighted @ weighted.T if across else weighted.T @ weighted)
    order = np.argsort(values)[::-1]
    singular = np.sqrt(np.maximum(values[order], 0.0))
    directions = vectors[:, order[:latent_size]]
    if across:
        # a second orthogonalisation removes what the Gram matrix's squared condition lost
        directions, _ = np.linalg.qr((weighted.T @ directions) / singular[:latent_size])
    basis = directions.reshape(n, 3, latent_size) / root[:, None, None]
    basis[body.held_vertices] = 0.0  # rounding of the orthogonalisation
    return basis, singular / np.sqrt(rows)


def make_subspace(
    kind: str,
    body: Body,
    learned: Sequence[Snapshots],
    held_out: Sequence[Snapshots],
    latent_size: int,
    *,
    seed: int = 0,
    poisson_ratio: float = 0.45,
    training: TrainingSettings | None = None,
) -> Subspace:
    """A subspace of a kind in KINDS, with its projection error on motions that it has not seen in its card.

    learned: trajectories to learn from (an autoencoder takes the last of them to stop its training); held_out:
    those that only judge; poisson_ratio: of the rest stiffness whose modes are skinned. Raises ValueError where
    the kind is unknown or the snapshots are too few.
    """
    if kind not in KINDS:
        raise ValueError(f"subspace: {kind!r}, expected one of {', '.join(KINDS)}")
    if latent_size < 1:
        raise ValueError(f"latent_size: {latent_size}, expected a positive number")
    began = time.perf_counter()
    displacements = local_displacements(body, learned)
    card: dict = {"subspace": kind, "latent_size": latent_size, "learned_from": len(displacements), "seed": seed}
    if kind == "autoencoder":
        made = _autoencoder(body, learned, displacements, latent_size, seed, training or TrainingSettings(), card)
    else:
        if kind == "principal":
            basis, singular = principal_basis(body, displacements, latent_size)
            card["singular_values"] = singular[: latent_size + 1].tolist()
        else:
            zones = len(body.zones)
            # only ratios of moduli matter, and those of the zones are what is to be estimated
            basis = skinning_basis(body, latent_size, np.ones(zones), np.full(zones, poisson_ratio))
        made = Subspace(basis, coordinates_of(body, basis, displacements), None, card)
    card["seconds"] = round(time.perf_counter() - began, 1)
    for label, shapes in (("learned", displacements[::3]), ("held_out", local_displacements(body, held_out))):
        if len(shapes):
            card[f"projection_{label}"] = projection_error(body, made, shapes).as_card()
    return made


def _autoencoder(
    body: Body,
    learned: Sequence[Snapshots],
    displacements: NDArray[np.float64],
    latent_size: int,
    seed: int,
    training: TrainingSettings,
    card: dict,
) -> Subspace:
    stopping = max(1, round(_VALIDATION * len(learned)))
    rows = sum(len(trajectory.kept) for trajectory in learned[:-stopping])
    if rows == 0:
        raise ValueError(
            f"snapshots: {len(learned)} trajectories to learn from, an autoencoder needs at least two"
        )
    size = min(max(latent_size + 1, round(_COORDINATES * latent_size)), max(_MOST_COORDINATES, latent_size + 1))
    size = min(size, rows)
    basis, singular = principal_basis(body, displacements[:rows], size)
    coordinates = coordinates_of(body, basis, displacements)
    trained, report = train_autoencoder(
        coordinates[:rows], coordinates[rows:], latent_size, seed=seed, settings=training
    )
    card["coordinates"] = size
    card["singular_values"] = singular[: size + 1].tolist()
    own = {**asdict(training), "hidden": list(training.hidden)}
    card["training"] = {**own, **asdict(report), "stopped_on": stopping}
    latents = np.asarray(trained.nearest(jnp.asarray(coordinates)))
    return Subspace(basis, latents, trained, card)


def projection_error(body: Body, subspace: Subspace, displacements: NDArray[np.float64]) -> ProjectionError:
    """How far the nearest shapes of a subspace are from displacements (k, n, 3)."""
    coordinates = coordinates_of(body, subspace.basis, displacements)
    if subspace.autoencoder is not None:
        latents = subspace.autoencoder.nearest(jnp.asarray(coordinates))
        coordinates = np.asarray(jax.vmap(subspace.autoencoder.decoder)(latents))
    flat = subspace.basis.reshape(-1, subspace.basis.shape[2])
    left = displacements - (coordinates @ flat.T).reshape(displacements.shape)
    distance = np.linalg.norm(left, axis=2)
    rms = float(np.sqrt(np.mean(distance**2)))
    return ProjectionError(rms, float(np.percentile(distance, 99)), float(distance.max()), body.size)


def save_subspace(path: Path, subspace: Subspace) -> None:
    """Write a subspace, as a stage of a run that may be resumed."""
    arrays = {"basis": subspace.basis, "latents": subspace.latents, "card": np.array(json.dumps(subspace.card))}
    if subspace.autoencoder is not None:
        arrays |= {f"decoder_{key}": value for key, value in subspace.autoencoder.decoder.arrays().items()}
        for k, (weight, bias) in enumerate(subspace.autoencoder.encoder_layers):
            arrays[f"encoder_weight_{k}"], arrays[f"encoder_bias_{k}"] = np.asarray(weight), np.asarray(bias)
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def load_subspace(path: Path) -> Subspace:
    """Read what save_subspace wrote. Raises ValueError naming the file where it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        autoencoder = None
        own = {key.removeprefix("decoder_"): value for key, value in arrays.items() if key.startswith("decoder_")}
        if own:
            count = sum(key.startswith("encoder_weight_") for key in arrays)
            layers = tuple(
                (jnp.asarray(arrays[f"encoder_weight_{k}"]), jnp.asarray(arrays[f"encoder_bias_{k}"]))
                for k in range(count)
            )
            autoencoder = Autoencoder(NetworkDecoder.from_arrays(own), layers)
        return Subspace(arrays["basis"], arrays["latents"], autoencoder, json.loads(str(arrays["card"])))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"subspace: {path}: {error}; delete the file, it will be made anew") from error
