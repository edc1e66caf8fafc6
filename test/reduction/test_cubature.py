"""Cubature: few samples with non-negative weights that force and stiffness cannot tell from all of them."""

from __future__ import annotations

import json
from functools import cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.dynamics.stepper import (
    StepSettings,
    gradient_and_hessian,
    no_surroundings,
    place,
    static_problem,
)
from realsimloop_ros.mechanics.elements import quadrature
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.cubature import Cubature, fit_cubature, guard_weights
from realsimloop_ros.reduction.cubature_checks import FittedRange, fitted_range, stiffness_deviation
from realsimloop_ros.reduction.model import ReducedModel, every_sample
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from reduced_bodies import gripped_bar, smooth_reduced_body

REDUCED = smooth_reduced_body(gripped_bar())
EVERY = REDUCED.model()
RANDOM = np.random.default_rng(1)
POSES = random_grip_motion(REDUCED.body, SnapshotSettings(steps=40), RANDOM)
LATENTS = 3e-3 * RANDOM.standard_normal((40, 6))
WEIGHTLESS = StepSettings(BDF2, 0.02, gravity=jnp.zeros(3))
MATERIAL = Material(jnp.array([2e5]), jnp.array([0.46]), jnp.array([0.0]), jnp.array([1070.0]))
derivatives = eqx.filter_jit(gradient_and_hessian)
static, placed = eqx.filter_jit(static_problem), eqx.filter_jit(place)


@cache
def fitted(samples: int, seed: int = 0) -> Cubature:
    return fit_cubature(REDUCED, POSES, LATENTS, samples, states=30, seed=seed)


def model_of(cubature: Cubature) -> ReducedModel:
    body = REDUCED.body
    return type(REDUCED)(body, REDUCED.basis, cubature.index, cubature.weight, {}).model()


def errors(model: ReducedModel) -> tuple[float, float]:
    """Largest relative errors of force and stiffness over states that no fit has seen."""
    random = np.random.default_rng(99)
    found = []
    for k in range(12):
        poses = jnp.asarray(POSES[3 * k + 1])
        latent = jnp.asarray(3e-3 * random.standard_normal(6))
        both = []
        for m in (model, EVERY):
            nothing = no_surroundings(m.dtype)
            problem = static(m, WEIGHTLESS, placed(m, poses, nothing, nothing, 1.0), MATERIAL)
            both.append(derivatives(m, WEIGHTLESS, problem, MATERIAL, latent))
        found.append([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(*both, strict=True)])
    force, stiffness = np.max(found, axis=0)
    return float(force), float(stiffness)


def test_weights_are_positive_and_samples_are_chosen_once() -> None:
    cubature = fitted(40)
    assert (cubature.weight > 0.0).all()
    assert len(np.unique(cubature.index)) == len(cubature.index)
    assert (np.diff(cubature.index) > 0).all()
    assert len(cubature.index) == 40
    assert cubature.index.max() < 240


def test_force_and_stiffness_of_unseen_states_agree_with_those_of_all_samples() -> None:
    force, stiffness = errors(model_of(fitted(40)))
    # a sixth of the samples; six directions need at least 6 + 21 conditions
    assert force < 0.05
    assert stiffness < 0.05


def test_more_samples_fit_better() -> None:
    few, more = fitted(20), fitted(80)
    assert more.fit_error < 0.3 * few.fit_error
    assert max(errors(model_of(more))) < max(errors(model_of(few)))


def test_the_fit_error_is_the_size_of_the_errors_of_stiffness() -> None:
    cubature = fitted(40)
    _, stiffness = errors(model_of(cubature))
    # forces err more where those of many samples cancel
    assert 0.2 * cubature.fit_error < stiffness < 5.0 * cubature.fit_error


def test_weights_stand_for_the_volume_that_can_be_strained() -> None:
    body = REDUCED.body
    held = np.isin(body.tets, body.held_vertices).all(axis=1)
    volume = np.asarray(EVERY.samples.volume)
    strained = volume[~np.repeat(held, 4)].sum()
    cubature = fitted(80)
    # not asked of the fit, but what a stretched bar does is proportional to it
    assert (volume[cubature.index] * cubature.weight).sum() == pytest.approx(strained, rel=0.01)


def test_the_same_seed_gives_the_same_samples() -> None:
    again = fit_cubature(REDUCED, POSES, LATENTS, 40, states=30, seed=0)
    np.testing.assert_array_equal(again.index, fitted(40).index)
    np.testing.assert_array_equal(again.weight, fitted(40).weight)


# -- zones -----------------------------------------------------------------------------------------------------

TWO_ZONES = gripped_bar(
    zones=[
        {"name": "left", "density": 1070.0},
        {"name": "right", "density": 1070.0, "region": {"minimum": [0.0, None, None]}},
    ]
)
ZONED = type(REDUCED)(TWO_ZONES, REDUCED.basis, REDUCED.sample_index, REDUCED.sample_weight, {})


@pytest.mark.parametrize("ratio", [0.01, 100.0])
def test_zones_of_any_moduli_are_each_right(ratio: float) -> None:
    cubature = fit_cubature(ZONED, POSES, LATENTS, 80, states=30)
    every = ZONED.model()
    chosen = type(ZONED)(TWO_ZONES, ZONED.basis, cubature.index, cubature.weight, {}).model()
    material = Material(jnp.array([2e5, 2e5 * ratio]), jnp.full(2, 0.46), jnp.zeros(2), jnp.full(2, 1070.0))
    latent = jnp.asarray(3e-3 * np.random.default_rng(4).standard_normal(6))
    nothing = no_surroundings(every.dtype)
    (force, stiffness), (force_of_all, stiffness_of_all) = (
        derivatives(
            m,
            WEIGHTLESS,
            static(m, WEIGHTLESS, placed(m, jnp.asarray(POSES[7]), nothing, nothing, 1.0), material),
            material,
            latent,
        )
        for m in (chosen, every)
    )
    # twice the samples of one zone for two: as exact as one zone alone
    assert np.linalg.norm(force - force_of_all) < 0.05 * np.linalg.norm(force_of_all)
    assert np.linalg.norm(stiffness - stiffness_of_all) < 0.05 * np.linalg.norm(stiffness_of_all)


# -- guards ----------------------------------------------------------------------------------------------------


def test_every_neighbourhood_keeps_some_weight() -> None:
    every = quadrature(REDUCED.body)
    # of two states, a handful of samples explains all
    cubature = fit_cubature(REDUCED, POSES[:2], LATENTS[:2], 40, states=2, scales=(0.0,))
    x = np.einsum("sa,sai->si", every.values, REDUCED.body.rest_positions[every.nodes])[:, 0]
    free = x[np.abs(x) < 0.08]
    for low in np.linspace(free.min(), free.max(), 5)[:-1]:
        inside = (x[cubature.index] >= low) & (x[cubature.index] <= low + 0.04)
        assert inside.any()
        # four fifths of the guards lie elsewhere; each stands for a tenth of its neighbourhood at the least
        held = (every.volume[cubature.index] * cubature.weight)[inside].sum()
        assert held > 0.05 * every.volume[(x >= low) & (x <= low + 0.04)].sum()


def test_the_guards_of_a_zone_are_its_own() -> None:
    every = quadrature(TWO_ZONES)
    least = guard_weights(TWO_ZONES, every, np.arange(len(every.volume)), 2)
    guards = np.flatnonzero(least)
    assert sorted(every.zone[guards]) == [0, 1]
    np.testing.assert_allclose(least[guards] * every.volume[guards], 0.1 * 0.5 * every.volume.sum())


# -- what a cubature does not see ------------------------------------------------------------------------------


def test_a_direction_without_resistance_is_found() -> None:
    # the right half is left out: what bends there alone costs nothing
    every = quadrature(REDUCED.body)
    x = np.einsum("sa,sai->si", every.values, REDUCED.body.rest_positions[every.nodes])[:, 0]
    left = np.flatnonzero(x < 0.0)
    half = Cubature(left, np.full(len(left), 2.0), 0.0)
    deviation = stiffness_deviation(REDUCED, half, POSES, 0.1 * LATENTS, states=4, scales=(0.1,))
    whole = stiffness_deviation(REDUCED, Cubature(*every_sample(REDUCED.body), 0.0), POSES, LATENTS, states=4)
    assert deviation.softest < -0.3
    assert deviation.stiffest > 0.3
    assert abs(whole.softest) < 1e-9  # rounding
    assert abs(whole.stiffest) < 1e-9


def test_states_outside_the_fitted_range_are_flagged() -> None:
    known = fitted_range(LATENTS)
    assert known.excess(LATENTS).max() == pytest.approx(1.0)
    assert known.excess(LATENTS.mean(axis=0)) == 0.0
    outside = LATENTS.mean(axis=0) + 2.0 * known.limit * np.eye(6) * known.spread
    np.testing.assert_allclose(known.excess(outside), 2.0)
    again = FittedRange.from_card(json.loads(json.dumps(known.as_card())))
    np.testing.assert_array_equal(again.excess(outside), known.excess(outside))
