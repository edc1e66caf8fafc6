"""A reduced step: minima, energy, result codes, and that running compiles nothing."""

from __future__ import annotations

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import root

from realsimloop_ros.dynamics.newton import inverse_of, minimise, static_latent
from realsimloop_ros.dynamics.rollout import Trajectory, TwinState, no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import (
    CONVERGED,
    MAX_ITERATIONS,
    NON_FINITE,
    STALLED,
    Placement,
    StepProblem,
    StepSettings,
    gradient,
    gradient_and_hessian,
    no_surroundings,
    place,
    potential,
    static_problem,
)
from realsimloop_ros.mechanics.integrators import BDF2, IMPLICIT_EULER, Integrator
from realsimloop_ros.mechanics.laws import MaterialLaw
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import kinematics, positions
from reduced_bodies import REST_POSES, gripped_bar, smooth_reduced_body

MODEL = smooth_reduced_body(gripped_bar()).model()
# soft, so that the slowest mode, 50 ms, spans 25 steps
MATERIAL = Material(jnp.array([2e4]), jnp.array([0.45]), jnp.array([0.0]), jnp.array([1070.0]))
NONE = no_directions(1)
# one length and one step for all rollouts of this file: they are compiled once per integrator
STEPS, TIME_STEP = 50, 2e-3
GRAVITY = np.array([0.0, 0.0, -9.81])
HELD = jnp.asarray(np.tile(REST_POSES, (STEPS, 1, 1)))

compiled_minimise = eqx.filter_jit(minimise)
compiled_place = eqx.filter_jit(place)
compiled_static = eqx.filter_jit(static_problem)
compiled_gradient = eqx.filter_jit(gradient)
compiled_potential = eqx.filter_jit(potential)


def step_settings(integrator: Integrator = BDF2, gravity: np.ndarray = GRAVITY) -> StepSettings:
    return StepSettings(integrator, TIME_STEP, gravity=jnp.asarray(gravity), move_tolerance=1e-13)


def at_rest(settings: StepSettings) -> TwinState:
    state, result = rest_state(MODEL, settings, MATERIAL, NONE, HELD[0])
    assert int(result) == CONVERGED
    return state


def placed(poses: jax.Array) -> Placement:
    nothing = no_surroundings(MODEL.dtype)
    return compiled_place(MODEL, poses, nothing, nothing, TIME_STEP)


def problem_at(poses: np.ndarray, gravity: np.ndarray = GRAVITY) -> StepProblem:
    return compiled_static(MODEL, step_settings(gravity=gravity), placed(jnp.asarray(poses)), MATERIAL)


def pushed_together(distance: float) -> np.ndarray:
    poses = REST_POSES.copy()
    poses[:, 0] += [0.5 * distance, -0.5 * distance]
    return poses


# -- minima ----------------------------------------------------------------------------------------------------


def test_static_equilibrium_is_the_minimum_that_another_method_finds() -> None:
    problem, settings = problem_at(pushed_together(0.02)), step_settings()
    found = compiled_minimise(MODEL, settings, problem, MATERIAL, jnp.zeros(6))
    assert int(found.result) == CONVERGED

    def slope(z: np.ndarray) -> np.ndarray:
        return np.asarray(compiled_gradient(MODEL, settings, problem, MATERIAL, jnp.asarray(z)))

    # Powell's hybrid method on the forces alone, in mm, to its own tolerance of 1e-12
    other = root(lambda z: slope(1e-3 * z), np.zeros(6), tol=1e-12)
    np.testing.assert_allclose(found.latent, 1e-3 * other.x, atol=1e-13)
    # forces of some 10 N cancel to rounding
    assert np.abs(slope(found.latent)).max() < 1e-11 * np.abs(slope(np.zeros(6))).max()


def test_static_latent_agrees_with_a_motion_that_has_come_to_rest() -> None:
    settings = step_settings(IMPLICIT_EULER)
    sagging = eqx.filter_jit(static_latent)(MODEL, settings, MATERIAL, placed(HELD[0]), jnp.zeros(6))
    weightless = at_rest(step_settings(IMPLICIT_EULER, np.zeros(3)))
    # one step so long that inertia is nothing: 1e6 s
    slow = StepSettings(IMPLICIT_EULER, 1e6, gravity=jnp.asarray(GRAVITY))
    _, run = rollout(MODEL, slow, MATERIAL, NONE, weightless, HELD[:1])
    # inertia's share of the stiffness is 1e-12 * 0.2 / 3e3
    np.testing.assert_allclose(run.latents[0], sagging.latent, atol=1e-12)
    assert np.abs(sagging.latent).max() > 1e-5


# -- energy ----------------------------------------------------------------------------------------------------


def energies(settings: StepSettings, start: TwinState, run: Trajectory) -> np.ndarray:
    """Kinetic and elastic energy after each step, J: the basis is orthonormal in mass, the grips do not move."""
    weights = np.array(settings.integrator.rate)
    lags = len(weights) - 1
    before = np.repeat(np.asarray(start.latents[:1]), lags, axis=0)
    path = np.concatenate([before, np.asarray(run.latents)])
    velocity = sum(w * path[lags - k : len(path) - k] for k, w in enumerate(weights)) / settings.time_step
    matrix = np.asarray(MODEL.points.matrix(MATERIAL))
    kinetic = 0.5 * np.einsum("tr,rs,ts->t", velocity, matrix, velocity)
    weightless = problem_at(REST_POSES, np.zeros(3))

    @jax.jit
    @jax.vmap
    def elastic(latent: jax.Array) -> jax.Array:
        return potential(MODEL, settings, weightless, MATERIAL, latent)

    return kinetic + np.asarray(elastic(run.latents)) - float(elastic(jnp.zeros((1, 6)))[0])


def test_a_body_let_go_loses_energy_as_its_integrator_does() -> None:
    left = {}
    for integrator in (IMPLICIT_EULER, BDF2):
        start = at_rest(step_settings(integrator, 5.0 * GRAVITY))
        settings = step_settings(integrator, np.zeros(3))
        _, run = rollout(MODEL, settings, MATERIAL, NONE, start, HELD)
        assert (np.asarray(run.results) == CONVERGED).all()
        energy = energies(settings, start, run)
        if integrator is IMPLICIT_EULER:
            # implicit Euler never gains where energy is convex; rounding of the energy at rest, 1 J, shows
            assert np.diff(energy).max() < 1e-9 * energy[0]
        # BDF2's backward velocity lags by a term of second order, so that what counts as kinetic may rise a little
        assert energy.max() < 1.02 * energy[0]
        left[integrator.name] = energy[-1] / energy[0]
    # over a tenth of a second, two periods of the slowest mode
    assert left["implicit_euler"] < 0.5
    assert left["bdf2"] > 0.7


# -- result codes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["poses", "past", "material"])
def test_what_is_not_finite_is_a_result_and_stays_out_of_the_state(where: str) -> None:
    settings = step_settings()
    start, poses, material = at_rest(settings), HELD, MATERIAL
    if where == "poses":
        poses = poses.at[3, 0, 1].set(jnp.nan)
    elif where == "past":
        start = start._replace(past=start.past._replace(points=start.past.points.at[1, 40, 2].set(jnp.nan)))
    else:
        material = material._replace(youngs_modulus=jnp.array([jnp.inf]))
    end, run = rollout(MODEL, settings, material, NONE, start, poses)
    results = np.asarray(run.results)
    expected = np.full(STEPS, CONVERGED if where == "poses" else NON_FINITE)
    if where == "poses":
        expected[3] = NON_FINITE
        assert np.isfinite(np.asarray(end.past.points)).all()
        # the step that could not be made left the state where it was, and those after it went on from there
        np.testing.assert_array_equal(run.latents[3], run.latents[2])
    np.testing.assert_array_equal(results, expected)
    assert np.isfinite(np.asarray(run.latents)).all()
    assert np.isfinite(np.asarray(end.latents)).all()


@pytest.mark.parametrize("modulus", [0.0, np.nan, np.inf])
def test_no_equilibrium_is_a_result_without_derivatives(modulus: float) -> None:
    along = Material(*(jnp.ones((1, 1)) for _ in Material._fields))
    state, result = rest_state(
        MODEL, step_settings(), MATERIAL._replace(youngs_modulus=jnp.array([modulus])), along, HELD[0]
    )
    assert int(result) != CONVERGED
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(np.asarray(leaf)).all()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("time_step", 0.0, "time_step: 0.0, expected a finite number > 0"),
        ("time_step", float("nan"), "time_step: nan"),
        ("mass_damping", -1.0, "mass_damping: -1.0, expected a finite number >= 0"),
        ("move_tolerance", float("inf"), "move_tolerance: inf"),
        ("max_iterations", 0, "max_iterations: 0, expected at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_named(field: str, value: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StepSettings(**{"integrator": BDF2, "time_step": TIME_STEP, field: value})


def test_a_material_of_other_zones_is_named() -> None:
    two = Material(*(jnp.repeat(values, 2) for values in MATERIAL))
    with pytest.raises(
        ValueError, match=r"material.youngs_modulus: shape \(2,\), expected \(1,\), one value per zone"
    ):
        rest_state(MODEL, step_settings(), two, NONE, HELD[0])


def test_too_few_iterations_are_a_result() -> None:
    settings = eqx.tree_at(
        lambda s: s.gravity, StepSettings(BDF2, TIME_STEP, max_iterations=1), jnp.asarray(GRAVITY)
    )
    problem = problem_at(pushed_together(0.08))
    found = compiled_minimise(MODEL, settings, problem, MATERIAL, jnp.zeros(6))
    assert (int(found.result), int(found.iterations)) == (MAX_ITERATIONS, 1)
    assert np.isfinite(np.asarray(found.latent)).all()


class Rugged(MaterialLaw):
    """An energy whose derivatives point uphill: what a wrong law would do to Newton's method."""

    def energy_density(self, invariant, volume_ratio, elasticity):
        smooth = elasticity.youngs_modulus * (invariant - 3.0)
        return jax.lax.stop_gradient(-2.0 * smooth) + smooth


def test_a_direction_along_which_nothing_falls_is_no_convergence() -> None:
    model = eqx.tree_at(lambda m: m.law, MODEL, Rugged())
    start = jnp.full(6, 1e-3)
    found = compiled_minimise(model, step_settings(), problem_at(REST_POSES, np.zeros(3)), MATERIAL, start)
    assert int(found.result) == STALLED
    np.testing.assert_array_equal(found.latent, start)


# -- indefinite Hessians ---------------------------------------------------------------------------------------


def test_a_bar_pushed_together_leaves_the_saddle_it_starts_from() -> None:
    settings, problem = step_settings(), problem_at(pushed_together(0.08), np.zeros(3))
    straight = jnp.zeros(6)
    _, hessian = eqx.filter_jit(gradient_and_hessian)(MODEL, settings, problem, MATERIAL, straight)
    assert np.linalg.eigvalsh(hessian)[0] < 0.0
    found = compiled_minimise(MODEL, settings, problem, MATERIAL, straight)
    assert int(found.result) == CONVERGED
    _, hessian = eqx.filter_jit(gradient_and_hessian)(MODEL, settings, problem, MATERIAL, found.latent)
    assert np.linalg.eigvalsh(hessian)[0] > 0.0
    values = [float(compiled_potential(MODEL, settings, problem, MATERIAL, z)) for z in (straight, found.latent)]
    assert values[1] < values[0]


@pytest.mark.parametrize("columns", [None, 3])
def test_an_indefinite_system_is_solved_with_the_magnitudes_of_its_eigenvalues(columns: int | None) -> None:
    random = np.random.default_rng(2)
    vectors, _ = np.linalg.qr(random.standard_normal((6, 6)))
    values = np.array([-3.0, -0.5, 1.0, 2.0, 4.0, 8.0])
    right = random.standard_normal(6 if columns is None else (6, columns))
    hessian = jnp.asarray(vectors * values @ vectors.T)
    expected = vectors / np.abs(values) @ vectors.T @ right
    np.testing.assert_allclose(inverse_of(hessian) @ right, expected, rtol=1e-12)  # rounding
    definite = jnp.asarray(vectors * np.abs(values) @ vectors.T)
    np.testing.assert_allclose(inverse_of(definite) @ right, expected, rtol=1e-12)


def test_a_hessian_that_is_not_finite_does_not_end_in_an_exception() -> None:
    assert inverse_of(jnp.full((6, 6), jnp.nan)).shape == (6, 6)


# -- compilation -----------------------------------------------------------------------------------------------


def first_seen_here(x: jax.Array) -> jax.Array:
    return x + 1.0


def test_running_compiles_nothing_whatever_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    settings = step_settings()
    start = at_rest(settings)
    state, _ = rollout(MODEL, settings, MATERIAL, NONE, start, HELD)
    moved = HELD.at[..., 2].add(1e-3)
    softer = MATERIAL._replace(youngs_modulus=jnp.array([1e5]))
    other_gravity = step_settings(gravity=np.array([0.0, 9.81, 0.0]))
    with jax.log_compiles(), caplog.at_level(logging.DEBUG, logger="jax"):
        for poses, material, chosen in (
            (HELD, softer, settings),
            (moved, MATERIAL, settings),
            (HELD.at[4].set(jnp.nan), MATERIAL, other_gravity),
        ):
            # numbers from numpy and from JAX are the same to a compiled function
            state, _ = rollout(MODEL, chosen, Material(*map(np.asarray, material)), NONE, state, np.asarray(poses))
        eqx.filter_jit(first_seen_here)(jnp.zeros(3))
    compiled = [record.message for record in caplog.records if "ompiling" in record.message]
    assert [line for line in compiled if "first_seen_here" in line]
    assert not [line for line in compiled if "rollout" in line]


def test_positions_of_held_vertices_are_where_the_grips_put_them() -> None:
    body = gripped_bar()
    poses = REST_POSES + np.array([[0.01, 0, 0, 0, 0, 0, 0], [0, 0.02, 0, 0, 0, 0, 0]])
    x = positions(MODEL, kinematics(MODEL, jnp.asarray(poses)), jnp.full(6, 1e-2))
    for grip, shift in zip(body.grips, ([0.01, 0, 0], [0, 0.02, 0]), strict=True):
        # the basis is zero there; what is left is the rounding of the warp
        np.testing.assert_allclose(x[grip.vertices], body.rest_positions[grip.vertices] + shift, atol=1e-15)
