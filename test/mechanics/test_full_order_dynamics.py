"""Motion in full space: free fall, orders of convergence, energy, damping, result codes, reuse of the factor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from body.bodies import bar
from mechanics.meshes import irregular_block
from realsimloop_ros.body.poses import IDENTITY_POSE, InvalidPoseError
from realsimloop_ros.mechanics.full_order import FullOrderSolver, FullOrderState, SolveResult
from realsimloop_ros.mechanics.integrators import (
    BDF2,
    IMPLICIT_EULER,
    INTEGRATORS,
    Integrator,
    ages_after,
    integrator_named,
    step_weights,
)
from realsimloop_ros.mechanics.laws import Elasticity, StableNeoHookean, energy
from realsimloop_ros.mechanics.material import Material, material_of
from realsimloop_ros.mechanics.sparse import ReusedFactor

LAW = StableNeoHookean()
E, NU = 264e3, 0.45
SCHEMES = pytest.mark.parametrize("scheme", [IMPLICIT_EULER, BDF2], ids=list(INTEGRATORS))
WEIGHTLESS = np.zeros(3)
# one mesh for all that moves: two cells, 45 vertices, compiled once
SMALL = bar(divisions=(2, 1, 1))
TIP = np.flatnonzero(SMALL.rest_positions[:, 0] > 0.1 - 1e-9)
FREE = irregular_block(quadratic=False)


def _tip_force(newton: float) -> NDArray[np.float64]:
    force = np.zeros_like(SMALL.rest_positions)
    force[TIP, 2] = -newton / len(TIP)
    return force


@SCHEMES
def test_free_fall_from_an_exact_past_is_exact(scheme: Integrator) -> None:
    h = 0.01
    solver = FullOrderSolver(FREE, LAW, time_step=h, integrator=scheme)
    start, velocity, gravity = FREE.rest_positions, np.array([0.3, -0.2, 1.0]), np.array([0.0, 0.0, -9.81])

    def at(time: float) -> NDArray[np.float64]:
        return start + velocity * time + 0.5 * gravity * time**2

    state = FullOrderState(np.stack([at(-k * h) for k in range(scheme.history)]))
    material = material_of(FREE, E, NU)
    for _ in range(10):
        state, report = solver.step(state, material)
        assert report.result == SolveResult.CONVERGED
    # second differences of a parabola are exact in both schemes; each step may leave 1e-8 of the size (60 mm), and
    # such errors grow with the square of the number of steps
    np.testing.assert_allclose(state.positions, at(10 * h), atol=1e-8 * 0.06 * 10**2 / 2)


def test_free_fall_from_rest_has_the_known_error_of_implicit_euler() -> None:
    h, n = 0.01, 10
    solver = FullOrderSolver(FREE, LAW, time_step=h, integrator=IMPLICIT_EULER)
    state = solver.rest_state()
    for _ in range(n):
        state, _ = solver.step(state, material_of(FREE, E, NU))
    fall = FREE.rest_positions[:, 2] - state.positions[:, 2]
    # the velocity of each step is that of its end: n (n + 1) / 2 in place of n^2 / 2; tolerance as above
    np.testing.assert_allclose(fall, 9.81 * h**2 * n * (n + 1) / 2, atol=3e-8)


def test_mass_damping_slows_a_free_body_as_its_integrator_says() -> None:
    h, damping, n = 0.01, 3.0, 10
    solver = FullOrderSolver(
        FREE, LAW, time_step=h, integrator=IMPLICIT_EULER, gravity=WEIGHTLESS, mass_damping=damping
    )
    velocity = np.array([0.5, 0.0, 0.0])
    state = FullOrderState(np.stack([FREE.rest_positions, FREE.rest_positions - h * velocity]))
    for _ in range(n):
        state, _ = solver.step(state, material_of(FREE, E, NU))
    found = (state.history[0] - state.history[1]) / h
    # v' = v / (1 + damping h) each step; positions good to 1e-8 of 60 mm, their difference over h: 1e-7 m/s
    np.testing.assert_allclose(found, np.broadcast_to(velocity / (1 + damping * h) ** n, found.shape), atol=1e-6)


def _tip_path(scheme: Integrator, steps: int) -> NDArray[np.float64]:
    """Mean tip position (20, 3) at 20 times within 0.1 s while a force swells smoothly."""
    h = 0.1 / steps
    solver = FullOrderSolver(SMALL, LAW, time_step=h, integrator=scheme, gravity=WEIGHTLESS)
    material = material_of(SMALL, E, 0.3)
    state, path = solver.rest_state(), []
    for k in range(1, steps + 1):
        # rises with the fourth power of time: the resting past is then exact to the order of the schemes
        force = _tip_force(2.0 * ((1 - np.cos(2 * np.pi * k * h / 0.2)) / 2) ** 2)
        state, report = solver.step(state, material, external_force=force)
        assert report.result == SolveResult.CONVERGED
        if k % (steps // 20) == 0:
            path.append(state.positions[TIP].mean(axis=0))
    return np.array(path)


def test_implicit_euler_converges_with_order_one_and_bdf2_with_order_two() -> None:
    paths = {steps: _tip_path(BDF2, steps) for steps in (40, 80, 160)}
    exact = (4 * paths[160] - paths[80]) / 3  # Richardson's: the error of second order cancels
    euler = {steps: _tip_path(IMPLICIT_EULER, steps) for steps in (40, 80)}
    for found, order in ((euler, 1.0), (paths, 2.0)):
        coarse, fine = (np.sqrt(np.mean(np.sum((found[n] - exact) ** 2, axis=1))) for n in (40, 80))
        # not yet at the limit: terms of the next order are a tenth as large at these steps
        assert np.log2(coarse / fine) == pytest.approx(order, abs=0.15)


@jax.jit
def _densities(F: jax.Array) -> jax.Array:
    return jax.vmap(lambda f: energy(LAW, f, Elasticity(jnp.asarray(E), jnp.asarray(NU))))(F)


def _vibrate(
    scheme: Integrator, h: float, viscosity: float = 0.0
) -> tuple[NDArray[np.float64], float, list[SolveResult]]:
    """Release from a bend: energies (t,), J, over 0.1 s, the energy the viscosity took, and result codes."""
    solver = FullOrderSolver(SMALL, LAW, time_step=h, integrator=scheme, gravity=WEIGHTLESS)
    material = material_of(SMALL, E, NU, viscosity)
    volume = solver.quadrature.volume
    state, _ = solver.static_state(material, external_force=_tip_force(1.0))

    def deformation(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return solver.quadrature.deformation_gradients(x)

    at_rest = float(volume @ np.asarray(_densities(deformation(SMALL.rest_positions))))
    energies, taken, results = [], 0.0, []
    for _ in range(round(0.1 / h)):
        velocity = sum(w * x for w, x in zip(scheme.rate, state.history, strict=False)) / h
        kinetic = 0.5 * float(np.sum(solver.masses(material)[:, None] * velocity**2))
        energies.append(kinetic + float(volume @ np.asarray(_densities(deformation(state.positions)))) - at_rest)
        past = state.history[: len(scheme.rate) - 1]
        state, report = solver.step(state, material)
        results.append(report.result)
        strains = [0.5 * np.einsum("ski,skj->sij", F, F) for F in map(deformation, [state.positions, *past])]
        strain_rate = sum(w * e for w, e in zip(scheme.rate, strains, strict=True)) / h
        taken += h * viscosity * float(volume @ np.sum(np.asarray(strain_rate) ** 2, axis=(1, 2)))
    return np.array(energies), taken, results


@SCHEMES
def test_a_closed_system_gains_no_energy_and_loses_less_with_smaller_steps(scheme: Integrator) -> None:
    losses = []
    for h in (4e-3, 2e-3):
        energies, _, results = _vibrate(scheme, h)
        assert set(results) == {SolveResult.CONVERGED}
        # implicit Euler loses in every step; BDF2's velocity lags by a term of second order, so that what is
        # counted as kinetic energy may rise for a moment: by less than 1e-3 of the whole at these steps
        gain = np.diff(energies).max() / energies[0]
        assert gain < (0.0 if scheme is IMPLICIT_EULER else 1e-3)
        assert energies.max() <= energies[0] * 1.001
        losses.append(1.0 - energies[-1] / energies[0])
    # smooth motion would lose half (implicit Euler) or an eighth (BDF2); a sudden release also holds motion that
    # no step resolves, and that both schemes damp whatever the step
    least = 1.3 if scheme is IMPLICIT_EULER else 2.0
    assert losses[0] > least * losses[1] > 0.0


def test_viscosity_takes_the_energy_it_should() -> None:
    h, viscosity = 2e-3, 200.0
    damped, taken, results = _vibrate(BDF2, h, viscosity)
    free, _, _ = _vibrate(BDF2, h)
    assert set(results) == {SolveResult.CONVERGED}
    assert np.diff(damped).max() < 0.0
    lost, lost_anyway = damped[0] - damped[-1], free[0] - free[-1]
    assert lost > 5.0 * lost_anyway
    # the integral of viscosity |dE/dt|^2; the integrator's own loss comes on top, and is smaller in damped motion
    assert lost == pytest.approx(taken, abs=lost_anyway)


def test_a_dear_factor_serves_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = FullOrderSolver(SMALL, LAW, time_step=5e-3)
    # as if the band were too large for a band factor, which would be made anew in every step
    monkeypatch.setattr(solver.newton, "factor", ReusedFactor(largest_band=0))
    material, state, made, iterations = material_of(SMALL, E, NU), solver.rest_state(), 0, 0
    for _ in range(20):
        state, report = solver.step(state, material)
        made += report.factorisations
        iterations += report.iterations
    assert iterations >= 20
    assert made <= 2


def _finite(value: float) -> NDArray[np.float64]:
    force = np.zeros_like(SMALL.rest_positions)
    force[TIP[0], 0] = value
    return force


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("what", ["force", "history", "material"])
def test_input_that_is_not_finite_is_a_result_and_not_an_exception(what: str, value: float) -> None:
    solver = FullOrderSolver(SMALL, LAW, time_step=5e-3)
    material, state, force = material_of(SMALL, E, NU), solver.rest_state(), _finite(0.0)
    if what == "force":
        force = _finite(value)
    elif what == "history":
        state.history[1, TIP[0], 0] = value
    else:
        material = Material(np.array([value]), np.array([NU]), np.array([0.0]), np.array([1070.0]))  # type: ignore[arg-type]
    with np.errstate(invalid="ignore"):
        after, report = solver.step(state, material, external_force=force)
    assert report.result == SolveResult.NON_FINITE
    if what != "history":
        assert np.isfinite(after.positions).all()
    # the solver is none the worse for it
    _, report = solver.step(solver.rest_state(), material_of(SMALL, E, NU))
    assert report.result == SolveResult.CONVERGED


def test_too_few_iterations_are_a_result() -> None:
    solver = FullOrderSolver(SMALL, LAW, time_step=5e-3, max_iterations=1)
    state, report = solver.step(solver.rest_state(), material_of(SMALL, E, NU), external_force=_tip_force(5.0))
    assert report.result == SolveResult.MAX_ITERATIONS
    assert report.iterations == 1 and report.last_move > 0.0
    assert np.isfinite(state.positions).all()


def test_a_direction_that_leads_nowhere_is_no_convergence(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = FullOrderSolver(SMALL, LAW, time_step=5e-3)
    monkeypatch.setattr(
        solver.newton, "direction", lambda objective, x, tangents, residual, renew: (1e-3 * residual, None)
    )
    state, report = solver.step(solver.rest_state(), material_of(SMALL, E, NU), external_force=_tip_force(5.0))
    assert report.result == SolveResult.STALLED
    # where the step began: the prediction from a resting past, to rounding
    np.testing.assert_allclose(state.positions, SMALL.rest_positions, atol=1e-15)


GRIPPED = bar(divisions=(2, 1, 1), holds="grips")


@pytest.mark.parametrize(
    ("poses", "error", "words"),
    [
        (None, ValueError, r"grip_poses: shape \(0, 7\), expected \(2, 7\) for \('left', 'right'\)"),
        (IDENTITY_POSE[None], ValueError, r"expected \(2, 7\)"),
        (np.full((2, 7), np.nan), InvalidPoseError, "grip_poses: non-finite"),
        (np.zeros((2, 7)), InvalidPoseError, "grip_poses: quaternion norm"),
    ],
)
def test_wrong_grip_poses_are_refused(
    poses: NDArray[np.float64] | None, error: type[Exception], words: str
) -> None:
    solver = FullOrderSolver(GRIPPED, LAW, time_step=5e-3)
    for call in (solver.step, solver.static_state):
        arguments = (solver.rest_state(),) if call == solver.step else ()
        with pytest.raises(error, match=words):
            call(*arguments, material_of(GRIPPED, E, NU), poses)  # type: ignore[operator]


@pytest.mark.parametrize("time_step", [0.0, -0.01, np.nan, np.inf])
def test_a_wrong_time_step_is_refused(time_step: float) -> None:
    with pytest.raises(ValueError, match=r"time_step: .* expected a positive number of seconds"):
        FullOrderSolver(SMALL, LAW, time_step=time_step)


def test_a_state_of_another_integrator_is_refused() -> None:
    euler = FullOrderSolver(SMALL, LAW, time_step=5e-3, integrator=IMPLICIT_EULER)
    bdf2 = FullOrderSolver(SMALL, LAW, time_step=5e-3, integrator=BDF2)
    with pytest.raises(ValueError, match=r"state\.history: shape \(2, 45, 3\), expected \(4, 45, 3\) for bdf2"):
        bdf2.step(euler.rest_state(), material_of(SMALL, E, NU))


def test_integrators_differentiate_polynomials_of_their_order_exactly() -> None:
    for scheme, order in ((IMPLICIT_EULER, 1), (BDF2, 2)):
        past = -np.arange(len(scheme.rate), dtype=float)
        for power in range(order + 1):
            slope_of_power = 1.0 if power == 1 else 0.0  # of t^power at t = 0
            assert np.dot(scheme.rate, past**power) == pytest.approx(slope_of_power, abs=1e-14)  # rounding
        # the same difference twice gives inertia and predictor
        twice = np.convolve(scheme.rate, scheme.rate)
        assert twice[0] == pytest.approx(scheme.inertia)
        np.testing.assert_allclose(-twice[1:] / twice[0], scheme.predictor, rtol=1e-14)


def test_integrators_are_found_by_name() -> None:
    assert integrator_named("bdf2") is BDF2
    with pytest.raises(ValueError, match=r"'rk4', expected one of \['bdf2', 'implicit_euler'\]"):
        integrator_named("rk4")


@SCHEMES
def test_uneven_steps_differentiate_polynomials_of_their_order_exactly(scheme: Integrator) -> None:
    ages = np.array([0.0, 0.004, 0.005, 0.009])[: scheme.history]
    weights = step_weights(scheme, 0.01, ages, 0.002)
    times = -np.concatenate([[0.0], 0.002 + ages])
    order = len(scheme.rate) - 1
    for power in range(order + 1):
        slope = weights.rate @ times[: order + 1] ** power
        assert slope == pytest.approx(1.0 if power == 1 else 0.0, abs=1e-12)
    # the difference of differences of a parabola is its second derivative; with implicit Euler that of a line
    for power in range(order + 1):
        missed = times[0] ** power - weights.predictor @ times[1:] ** power
        expected = 2.0 if power == 2 else 0.0
        assert weights.inertia * missed == pytest.approx(expected, abs=1e-9)


@SCHEMES
def test_even_steps_are_a_special_case_of_uneven_ones(scheme: Integrator) -> None:
    even, general = step_weights(scheme, 0.01), step_weights(scheme, 0.01, 0.01 * np.arange(scheme.history))
    assert general.inertia == pytest.approx(even.inertia, rel=1e-12)
    np.testing.assert_allclose(general.predictor, even.predictor, rtol=1e-12)
    np.testing.assert_allclose(general.rate, even.rate, rtol=1e-12)
    ages = None
    for _ in range(scheme.history):
        ages = ages_after(scheme, 0.01, ages, 0.005)
    assert ages is not None and ages[-1] == pytest.approx(0.005 * (scheme.history - 1))
    for _ in range(scheme.history):
        ages = ages_after(scheme, 0.01, ages, 0.01)
    assert ages is None
