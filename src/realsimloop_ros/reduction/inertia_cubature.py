"""Inertia cubature: few mass points with non-negative weights that stand for the inertia of all vertices.

A step of the reduced model x = W(g) + Q(g) V c needs, of what it knows beforehand, sums over all vertices

    V^T Q^T M y,   y a field that past states and the present grips give,  M the masses,

at a cost that grows with the mesh. Points chosen here give the same sums for the fields that occur. A past state
x' = W' + Q' V c' (W' = W(g'), Q' = Q(g')) enters as

    V^T Q^T M (x' - W) = V^T M V c' + V^T Q^T M (W' - W + (Q' - Q) V c')

and the first term is known without any vertex. What the grips' motion adds, the second, vanishes while they rest.
Measured on the bar between two arms (r = 48, held-out motions, BDF2, what an error of the sum moves the predicted
body by, rms): summed over 96 points as a whole 50 um, in two terms 1.2 um; gravity 3 um. To the same end a model
takes V^T M V of the same points: both sides of a step's balance then err alike, and the rest is a share of the
acceleration. Products V^T M V v are fitted for that. Zones are summed apart, so that their densities may change.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray
from scipy.optimize import nnls

from realsimloop_ros.reduction.grip_warp import GripWarp, warped
from realsimloop_ros.reduction.nonnegative_fit import NormalEquations, fit_nonnegative

_SCALES = (0.0, 0.1, 0.4, 1.0)
# of what the grips add, gravity, products: gravity pulls in every step, the first all but cancels between pasts
_IMPORTANCE = (1.0, 3.0, 1.0)
# more candidates than this add nothing to the fit, and their Gram matrix would outgrow the memory
_MOST_CANDIDATES = 3000


@dataclass(frozen=True)
class MassCandidates:
    """Shares of the lumped masses: vertex (k,), zone (k,) and mass (k,), kg. A vertex between zones has several.

    Zones are any labels of what is summed apart: hung weights are one of their own.
    """

    vertex: NDArray[np.int64]
    zone: NDArray[np.int64]
    mass: NDArray[np.float64]


@dataclass(frozen=True)
class InertiaCubature:
    """index: (q,) ascending, of the candidates chosen; weight: (q,) > 0, factors of their masses; fit_error."""

    index: NDArray[np.int64]
    weight: NDArray[np.float64]
    fit_error: float


@eqx.filter_jit
def inertia_rows(
    warp: GripWarp,
    basis: Float[Array, "n 3 r"],
    poses: Float[Array, "2 g 7"],
    coordinates: Float[Array, " r"],
    direction: Float[Array, 3],
    vector: Float[Array, " r"],
) -> Float[Array, "3 n r"]:
    """V^T Q^T y per vertex, for unit masses and three kinds of field y.

    poses: (2, g, 7) of the present and of a past state; coordinates: (r,) c' of the past state; direction: of
    gravity; vector: (r,). In order: W' - W + (Q' - Q) V c', gravity, and Q V v.
    """
    (base, turn), (past_base, past_turn) = warped(warp, poses[0]), warped(warp, poses[1])
    local = basis @ coordinates
    moved = past_base + jnp.einsum("nij,nj->ni", past_turn, local) - base
    carried = jnp.einsum("nji,nj->ni", turn, moved) - local
    gravity = jnp.einsum("nji,j->ni", turn, direction)
    fields = jnp.stack([carried, gravity, basis @ vector])
    return jnp.einsum("fni,nir->fnr", fields, basis)


def fit_inertia_cubature(
    warp: GripWarp,
    basis: NDArray[np.floating],
    candidates: MassCandidates,
    pose_pairs: NDArray[np.float64],
    coordinates: NDArray[np.float64],
    points: int,
    *,
    states: int = 150,
    seed: int = 0,
) -> InertiaCubature:
    """Choose about `points` of the candidates.

    basis: (n, 3, r); pose_pairs: (s, 2, g, 7), present and past poses one or a few steps apart; coordinates:
    (s, r), c' of the past states. `states` of them are drawn, coordinates moved by up to their spread. About
    2 r points are worth their cost, and some 12 more where r is small: grips bring fields of their own.
    """
    random = np.random.default_rng(seed)
    r = basis.shape[2]
    spread = coordinates.std(axis=0) + 1e-12
    zones = np.unique(candidates.zone)
    moving = np.abs(basis[candidates.vertex]).max(axis=(1, 2)) > 0.0
    offered = np.flatnonzero(moving)
    if len(offered) == 0:
        raise ValueError("cubature: no candidate contributes anything; is the body held everywhere?")
    if len(offered) > _MOST_CANDIDATES:
        offered = np.sort(random.choice(offered, _MOST_CANDIDATES, replace=False))
    share = candidates.mass / candidates.mass.sum()
    drawn = []
    for _ in range(states):
        chosen = random.integers(len(pose_pairs))
        change = random.choice(_SCALES) * spread * random.standard_normal(r)
        direction = random.standard_normal(3)
        vector = spread * random.standard_normal(r)
        rows = inertia_rows(
            warp,
            jnp.asarray(basis),
            jnp.asarray(pose_pairs[chosen]),
            jnp.asarray(coordinates[chosen] + change),
            jnp.asarray(direction / np.linalg.norm(direction)),
            jnp.asarray(vector / np.linalg.norm(vector)),
        )
        each = np.asarray(rows)[:, candidates.vertex] * share[None, :, None]
        totals = np.stack([each[:, candidates.zone == zone].sum(axis=1) for zone in zones], axis=1)
        drawn.append((each[:, offered], totals))
    places = np.asarray(warp.rest_positions)[candidates.vertex[offered]]
    return _fitted(
        drawn, offered, candidates.zone[offered], zones, points, _moments(places) * share[offered, None]
    )


def _fitted(
    drawn: list[tuple[NDArray[np.float64], NDArray[np.float64]]],
    offered: NDArray[np.int64],
    zone: NDArray[np.int64],
    zones: NDArray[np.int64],
    points: int,
    moments: NDArray[np.float64],
) -> InertiaCubature:
    # each kind counts by its own size over all states: what is small in absolute terms may err in relative ones
    sizes = np.sqrt(np.mean([(totals.sum(axis=1) ** 2).sum(axis=1) for _, totals in drawn], axis=0))
    equations = NormalEquations(len(offered))
    for each, totals in drawn:
        for kind, size in enumerate(sizes / _IMPORTANCE):
            if size == 0.0:
                continue  # no grip moves: nothing is carried
            for k, label in enumerate(zones):
                rows = np.where((zone == label)[:, None], each[kind], 0.0).T
                equations.add(rows / size, totals[kind, k] / size)
    for label in zones:
        # weight and inertia as a whole, which the grips feel
        rows = np.where((zone == label)[:, None], moments, 0.0).T
        totals = rows.sum(axis=1)
        norm = np.linalg.norm(totals) / np.sqrt(len(drawn))
        if norm > 0.0:
            equations.add(rows / norm, totals / norm)
    fit = fit_nonnegative(equations, points)
    return InertiaCubature(offered[fit.index], fit.weight, fit.error)


def _moments(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """1, x and x x^T of places (k, 3) about their mean, in units of their size: (k, 10)."""
    centre, size = places.mean(axis=0), float(np.ptp(places, axis=0).max())
    x = (places - centre) / max(size, 1e-300)
    upper = np.triu_indices(3)
    return np.concatenate([np.ones((len(x), 1)), x, (x[:, :, None] * x[:, None, :])[:, *upper]], axis=1)


def rigid_points(places: NDArray[np.float64], mass: NDArray[np.float64]) -> InertiaCubature:
    """At most ten of the places (k, 3) that have the same mass, centre and inertia as all with mass (k,), kg.

    A part that moves rigidly, as what a grip holds, is equivalent to them in every respect.
    """
    rows = (_moments(places) * mass[:, None]).T / mass.sum()
    weight, residual = nnls(rows, rows.sum(axis=1), maxiter=100 * len(mass))
    chosen = np.flatnonzero(weight > 0.0)
    return InertiaCubature(chosen, weight[chosen], float(residual))
