"""Cubature: few samples with non-negative weights that force and stiffness cannot tell from all of them."""

from __future__ import annotations

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
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.cubature import Cubature, fit_cubature
from realsimloop_ros.reduction.model import ReducedModel
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
    assert 40 <= len(cubature.index) <= 44  # batches of a tenth are added
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
