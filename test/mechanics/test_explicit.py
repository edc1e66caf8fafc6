"""Explicit stepping: its stability limit, its orders, what it does to energy, and how a run ends."""

from __future__ import annotations

import numpy as np
import pytest

from body.bodies import bar
from realsimloop_ros.mechanics.explicit import (
    ExplicitScheme,
    ExplicitSolver,
    MovingState,
    RunResult,
)
from realsimloop_ros.mechanics.full_order import FullOrderSolver, FullOrderState, SolveResult
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import Material, material_of

LAW = StableNeoHookean()
BEAM = bar(divisions=(2, 1, 1))
TIP = BEAM.rest_positions[:, 0] > 0.1 - 1e-9
SEMI_IMPLICIT, EXPLICIT = ExplicitScheme.SEMI_IMPLICIT_EULER, ExplicitScheme.EXPLICIT_EULER
UNDAMPED = material_of(BEAM, 264e3, 0.45)
DAMPED = material_of(BEAM, 264e3, 0.45, 200.0)


def solver(scheme: ExplicitScheme, time_step: float, **options: float) -> ExplicitSolver:
    return ExplicitSolver(BEAM, LAW, time_step=time_step, scheme=scheme, **options)


def limit(scheme: ExplicitScheme, material: Material) -> float:
    return solver(scheme, 1.0).stability_limit(material).time_step


@pytest.mark.parametrize(
    ("scheme", "material", "beyond"),
    [
        # without damping it is exact, but for what the swing stiffens: up to 3 %
        (SEMI_IMPLICIT, UNDAMPED, 1.04),
        # with damping a bound from below, since the stiffest mode need not be the one that is damped most
        (SEMI_IMPLICIT, DAMPED, 1.5),
        (EXPLICIT, DAMPED, 3.0),
    ],
)
def test_a_run_is_stable_below_the_limit_and_not_far_above(
    scheme: ExplicitScheme, material: Material, beyond: float
) -> None:
    step = limit(scheme, material)
    for factor, stable in ((0.96, True), (beyond, False)):
        stepping = solver(scheme, factor * step)
        states, result = stepping.run(stepping.rest_state(), material, 2000, 50)
        assert (result is RunResult.COMPLETED) == stable
        assert all(np.isfinite(state.positions).all() for state in states)


def test_explicit_euler_gains_energy_without_damping_at_any_step_and_says_so() -> None:
    assert limit(EXPLICIT, UNDAMPED) == 0.0
    stepping = solver(EXPLICIT, 0.1 * limit(SEMI_IMPLICIT, UNDAMPED))
    states, result = stepping.run(stepping.rest_state(), UNDAMPED, 20000, 20)
    assert result in (RunResult.UNSTABLE, RunResult.NON_FINITE)
    assert len(states) < 1000


def half_a_step_early(stepping: ExplicitSolver, share: float = 1.0) -> MovingState:
    """At rest now, with the velocity of half a step ago (a share of it), which makes it the leapfrog scheme."""
    start = stepping.rest_state()
    velocities = np.tile(-0.5 * share * stepping.time_step * stepping.gravity, (len(start.positions), 1))
    velocities[BEAM.held_vertices] = 0.0
    return MovingState(start.positions, velocities)


def swing(time_step: float, steps: int, early: float) -> tuple[np.ndarray, list[float]]:
    """Positions after a swing, m, and the mechanical energies on the way, J, relative to the motion's."""
    stepping = solver(SEMI_IMPLICIT, time_step)
    start = half_a_step_early(stepping, 2.0 * early)
    states, result = stepping.run(start, UNDAMPED, steps, steps // 20)
    assert result is RunResult.COMPLETED
    energies = [stepping.energies(state, UNDAMPED) for state in states]
    scale = max(kinetic for kinetic, _ in energies)
    begin = sum(stepping.energies(start, UNDAMPED))
    return states[-1].positions, [(sum(energy) - begin) / scale for energy in energies]


def test_semi_implicit_euler_has_order_one_and_begun_half_a_step_early_order_two() -> None:
    time, coarsest = 0.05, 400
    exact, _ = swing(time / (16 * coarsest), 16 * coarsest, early=0.5)
    for early, order in ((0.0, 1.0), (0.5, 2.0)):
        errors = []
        for steps in (coarsest, 2 * coarsest):
            found, _ = swing(time / steps, steps, early)
            errors.append(np.abs(found - exact)[TIP].max())
        # stiff modes, of periods of a few steps, are at their own phase and weigh little
        assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.3)


def test_semi_implicit_euler_keeps_the_energy_of_a_closed_system() -> None:
    drifts = []
    for steps in (800, 1600):
        _, energies = swing(0.1 / steps, steps, early=0.0)
        # it wavers to first order in the step, and does not drift
        drifts.append(np.abs(energies).max())
        assert abs(np.mean(energies[10:]) - np.mean(energies[:10])) < 0.5 * drifts[-1]
    assert drifts[0] < 0.02
    assert drifts[0] / drifts[1] == pytest.approx(2.0, abs=0.5)


def test_it_comes_to_what_the_implicit_solver_comes_to() -> None:
    stepping = solver(SEMI_IMPLICIT, 1.0 / 16000.0, mass_damping=3.0)
    start = half_a_step_early(stepping)
    states, _ = stepping.run(start, DAMPED, 1600, 1600)
    implicit = FullOrderSolver(BEAM, LAW, time_step=1.0 / 2000.0, integrator=BDF2, mass_damping=3.0)
    # a past that goes on with the acceleration of the first moment, without which BDF2 is of first order
    ages = implicit.time_step * np.arange(4)
    history = implicit.rest_state().history + 0.5 * implicit.gravity * ages[:, None, None] ** 2
    history[:, BEAM.held_vertices] = BEAM.rest_positions[BEAM.held_vertices]
    state = FullOrderState(history)
    for _ in range(200):
        state, report = implicit.step(state, DAMPED)
        assert report.result is SolveResult.CONVERGED
    # BDF2's error of phase, (2 pi f h)^2 / 3 a radian with f = 8 Hz, is 2e-4, five radians on 1e-3, of a swing of
    # +-6 mm
    assert np.abs(states[-1].positions - state.positions).max() < 1e-5


def test_input_that_is_not_finite_and_wrong_steps_are_told() -> None:
    stepping = solver(SEMI_IMPLICIT, 1e-5)
    start = stepping.rest_state()
    start.velocities[-1, 0] = np.nan
    assert stepping.run(start, UNDAMPED, 10, 10) == ([], RunResult.NON_FINITE)
    with pytest.raises(ValueError, match="every: 3, expected a divisor of 10 steps"):
        stepping.run(stepping.rest_state(), UNDAMPED, 10, 3)
    with pytest.raises(ValueError, match=r"time_step: -1\.0, expected a positive number"):
        solver(SEMI_IMPLICIT, -1.0)
