"""Inertia cubature: few mass points that give the inertia of all vertices for states no fit has seen."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.reduction.grip_warp import grip_warp
from realsimloop_ros.reduction.inertia_cubature import (
    InertiaCubature,
    MassCandidates,
    fit_inertia_cubature,
    inertia_rows,
)
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from reduced_bodies import gripped_bar, smooth_reduced_body

BODY = gripped_bar()
BASIS = smooth_reduced_body(BODY).basis
WARP = grip_warp(BODY)
MASSES = lumped_masses(BODY)
R = BASIS.shape[2]
KINDS = ("past position", "gravity", "mass products")


def candidates(halves: bool = False) -> MassCandidates:
    """All vertices, each in one zone, or in one of two along the bar."""
    vertex = np.arange(len(MASSES))
    zone = (BODY.rest_positions[:, 0] > 0.0).astype(int) if halves else np.zeros(len(MASSES), int)
    return MassCandidates(vertex, zone, MASSES)


def pairs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth random motion: poses of each step and the one before (s, 2, g, 7), coordinates before (s, r)."""
    random = np.random.default_rng(seed)
    poses = random_grip_motion(BODY, SnapshotSettings(steps=60), random)
    phase, speed = random.uniform(0, 2 * np.pi, R), random.uniform(2.0, 8.0, R)
    coordinates = 3e-3 * np.sin(phase + np.linspace(0.0, 1.0, 60)[:, None] * speed)
    return np.stack([poses[1:], poses[:-1]], axis=1), coordinates[:-1]


@cache
def fitted(points: int, halves: bool = False, seed: int = 0) -> InertiaCubature:
    return fit_inertia_cubature(WARP, BASIS, candidates(halves), *pairs(1), points, states=60, seed=seed)


def errors(cubature: InertiaCubature, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Relative rms errors of the three sums over a motion that no fit has seen, of `chosen` vertices only."""
    poses, coordinates = pairs(77)
    random = np.random.default_rng(5)
    weighted = np.zeros(len(MASSES))
    weighted[cubature.index] = MASSES[cubature.index] * cubature.weight
    inside = np.zeros(len(MASSES))
    inside[chosen] = 1.0
    found, sizes = [], []
    for k in range(0, 59, 4):
        direction, vector = random.standard_normal(3), random.standard_normal(R)
        arrays = (poses[k], coordinates[k], direction, vector)
        each = np.asarray(inertia_rows(WARP, jnp.asarray(BASIS), *map(jnp.asarray, arrays)))
        exact = np.einsum("n,fnr->fr", inside * MASSES, each)
        found.append(np.einsum("n,fnr->fr", inside * weighted, each) - exact)
        sizes.append(exact)
    return np.sqrt((np.array(found) ** 2).sum(axis=(0, 2)) / (np.array(sizes) ** 2).sum(axis=(0, 2)))


def test_few_points_give_the_inertia_of_unseen_states() -> None:
    # a fifth of the vertices: so few directions need points for the fields of the grips beside their own
    cubature = fitted(6 * R)
    assert len(cubature.index) == 6 * R
    assert (cubature.weight > 0.0).all()
    for kind, error in zip(KINDS, errors(cubature), strict=True):
        # on the shipped bar one percent of what is not carried moves the body by a micrometre
        assert error < 0.005, kind


def test_more_points_err_less() -> None:
    few, some, more = (errors(fitted(points)).max() for points in (R, 2 * R, 6 * R))
    assert more < some < few
    assert more < 0.1 * some


def test_all_points_are_exact() -> None:
    moving = int((np.abs(BASIS).max(axis=(1, 2)) > 0.0).sum())
    # rounding of the normal equations: the root of 1e-16, and their ridge
    assert errors(fitted(moving)).max() < 1e-5


def test_points_that_do_not_move_are_not_chosen() -> None:
    assert not np.isin(fitted(3 * R).index, BODY.held_vertices).any()


def test_each_zone_is_right_by_itself() -> None:
    cubature = fitted(6 * R, True)
    for zone in (0, 1):
        assert errors(cubature, candidates(True).zone == zone).max() < 0.02
    # what is right as a whole need not be right in its parts
    assert errors(fitted(3 * R), candidates(True).zone == 0).max() > 0.02


def test_sums_are_what_they_are_said_to_be() -> None:
    # against a body that all grips carry as one: W' - W is the same shift everywhere, Q stays the identity
    rest = np.array([grip.rest_pose for grip in BODY.grips])
    shift = np.array([1e-3, -2e-3, 3e-3])
    moved = rest + np.concatenate([shift, np.zeros(4)])
    coordinates = 1e-3 * np.arange(1.0, R + 1.0)
    arrays = (np.stack([rest, moved]), coordinates, shift, coordinates)
    each = np.asarray(inertia_rows(WARP, jnp.asarray(BASIS), *map(jnp.asarray, arrays)))
    sums = np.einsum("n,fnr->fr", MASSES, each)
    pushed = np.einsum("n,nir,i->r", MASSES, BASIS, shift)
    # the basis is orthonormal in mass over total mass
    own = MASSES.sum() * coordinates
    for found, expected in zip(sums, (pushed, pushed, own), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(own).max())


def test_the_same_seed_gives_the_same_points() -> None:
    again = fit_inertia_cubature(WARP, BASIS, candidates(), *pairs(1), 2 * R, states=60, seed=0)
    np.testing.assert_array_equal(again.index, fitted(2 * R).index)
    np.testing.assert_array_equal(again.weight, fitted(2 * R).weight)


def test_a_body_that_is_held_everywhere_is_refused() -> None:
    with pytest.raises(ValueError, match="no candidate contributes anything; is the body held everywhere"):
        fit_inertia_cubature(WARP, np.zeros_like(BASIS), candidates(), *pairs(1), 10, states=2)
