"""Linear subspaces of what the grip warp leaves over."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.reduction.grip_warp import grip_warp, warped
from realsimloop_ros.reduction.snapshots import Snapshots


def local_displacements(body: Body, snapshots: Sequence[Snapshots]) -> NDArray[np.float64]:
    """Q(g)^T (x - W(g)) of all kept snapshots, (k, n, 3), m; zero on held vertices."""
    warp = grip_warp(body)
    every = jax.jit(jax.vmap(lambda poses: warped(warp, poses)))
    parts = []
    for trajectory in snapshots:
        base, turn = every(jnp.asarray(trajectory.kept_poses))
        moved = np.einsum("knji,knj->kni", np.asarray(turn), trajectory.positions - np.asarray(base))
        moved[:, body.held_vertices] = 0.0
        parts.append(moved)
    return np.concatenate(parts)


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
    # the Gram matrix is small (snapshots x snapshots) where the body is large
    values, vectors = np.linalg.eigh(weighted @ weighted.T)
    order = np.argsort(values)[::-1]
    singular = np.sqrt(np.maximum(values[order], 0.0))
    directions = (weighted.T @ vectors[:, order[:latent_size]]) / singular[:latent_size]
    # a second orthogonalisation removes what the Gram matrix's squared condition lost
    directions, _ = np.linalg.qr(directions)
    basis = directions.reshape(n, 3, latent_size) / root[:, None, None]
    basis[body.held_vertices] = 0.0  # rounding of the orthogonalisation
    return basis, singular / np.sqrt(rows)
