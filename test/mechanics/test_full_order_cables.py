"""Bodies pulled by cables in full space: balance, both tension rules, derivatives, and the stiffness they add."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from body.bodies import bar
from realsimloop_ros.body.body import Body, Cable, bind_points
from realsimloop_ros.body.poses import IDENTITY_POSE
from realsimloop_ros.mechanics.colliders import Plane
from realsimloop_ros.mechanics.contact import Contact, ContactSettings
from realsimloop_ros.mechanics.element_forces import internal_forces_and_tangent
from realsimloop_ros.mechanics.full_order import FullOrderSolver, FullOrderState, SolveResult
from realsimloop_ros.mechanics.full_order_gradient import DifferentiableFullOrderSolver
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import Material, material_of
from realsimloop_ros.mechanics.newton import Objective
from realsimloop_ros.mechanics.surroundings import InvalidSurroundingsError, Surroundings

LAW = StableNeoHookean()
WEIGHTLESS = np.zeros(3)
BAR = bar(divisions=(4, 1, 1))
ANCHOR = np.array([0.0, 0.015, 0.07])


def _with_cable(points: NDArray[np.float64], anchor: NDArray[np.float64] = ANCHOR) -> Body:
    return replace(BAR, cables=(Cable("pull", "winch", anchor, bind_points(BAR, points), 500.0, 1e-4),))


# along the top from the tip, each point a vertex, to a winch above the fixed end
ON_TOP = np.array([[0.1, 0.015, 0.03], [0.05, 0.015, 0.03]])
REST_LENGTH = 0.05 + np.hypot(0.05, 0.04)
TOP = _with_cable(ON_TOP)
MATERIAL = material_of(TOP, 264e3, 0.45)


def _wound_up(shortened: float) -> Surroundings:
    return Surroundings(winch_lengths=np.array([REST_LENGTH - shortened]))


def test_a_bar_bent_by_a_cable_is_in_balance_with_its_tension() -> None:
    solver = FullOrderSolver(TOP, LAW, time_step=5e-3, gravity=WEIGHTLESS)
    state, report = solver.static_state(MATERIAL, surroundings=_wound_up(0.01), load_steps=2)
    assert report.result == SolveResult.CONVERGED
    points = TOP.cables[0].points.positions(state.positions, TOP.tets)
    legs = np.diff(np.concatenate([points, ANCHOR[None]]), axis=0)
    lengths = np.linalg.norm(legs, axis=1)
    (tension,) = solver.cable_tensions(state)
    assert tension == pytest.approx(500.0 * (lengths.sum() - REST_LENGTH + 0.01), rel=1e-9)
    assert points[0, 2] > 0.035 and tension > 0.5
    # what pulls at the anchor pulls at the fixed face: Newton ends within 1e-9 m, at 1e3 N/m
    reaction = solver.held_reactions(state, state, MATERIAL).sum(axis=0)
    np.testing.assert_allclose(reaction, -tension * legs[1] / lengths[1], atol=1e-6)
    # the nodal rule: T where it ends, 2 T sin(bend / 2) where it turns
    turn = np.linalg.norm(legs[1] / lengths[1] - legs[0] / lengths[0])
    (nodal,) = solver.nodal_cable_tensions(state, MATERIAL)
    assert nodal == pytest.approx(tension * (1.0 + turn), rel=1e-5)


def test_a_slack_cable_changes_nothing_and_a_taut_one_does() -> None:
    alone = FullOrderSolver(BAR, LAW, time_step=5e-3)
    pulled = FullOrderSolver(TOP, LAW, time_step=5e-3)
    states = [alone.rest_state(), pulled.rest_state(), pulled.rest_state()]
    for k in range(1, 6):
        states[0], _ = alone.step(states[0], MATERIAL)
        states[1], _ = pulled.step(states[1], MATERIAL, surroundings=_wound_up(-0.02))
        states[2], report = pulled.step(states[2], MATERIAL, surroundings=_wound_up(1e-3 * k))
        assert report.result == SolveResult.CONVERGED
    assert pulled.cable_tensions(states[1])[0] == 0.0
    # the same minimum, found with another order of the unknowns
    np.testing.assert_allclose(states[1].positions, states[0].positions, atol=1e-9)
    assert pulled.cable_tensions(states[2])[0] > 0.1
    assert np.abs(states[2].positions - states[0].positions).max() > 1e-4


def test_pulling_further_bends_further_as_the_stiffness_says() -> None:
    """Derivative of the static tip with respect to the winch's length, by differences and by the tangent."""
    solver = FullOrderSolver(TOP, LAW, time_step=5e-3, gravity=WEIGHTLESS, move_tolerance=1e-13)
    states = {
        s: solver.static_state(MATERIAL, surroundings=_wound_up(0.005 + s))[0].positions
        for s in (-1e-5, 0.0, 1e-5)
    }
    x = states[0.0]
    difference = (states[1e-5] - states[-1e-5]).ravel() / 2e-5
    newton, free = solver.newton, solver.newton.pattern.free
    instant = solver.outside.instant(_wound_up(0.005))
    situation = solver.outside.situation(x, instant, instant, 1.0)
    nothing = jnp.zeros((len(solver.quadrature.volume), 3, 3))
    objective = Objective(np.zeros(len(x)), np.zeros_like(x), MATERIAL, nothing, jnp.asarray(1.0), situation)
    _, tangents = internal_forces_and_tangent(
        LAW, newton.samples, MATERIAL, jnp.asarray(x), nothing, jnp.asarray(1.0)
    )
    matrix = newton.matrix(objective, x, tangents).toarray()
    # d force / d shortening: the tension rises by k, all else being equal
    (tension,) = solver.cable_tensions(FullOrderState(x[None], surroundings=_wound_up(0.005)))
    push = solver.outside.forces(situation, x).ravel() / tension * 500.0
    found = np.linalg.solve(matrix, push[free])
    # central differences of 10 um: 1e-5 of a response that is linear over mm
    np.testing.assert_allclose(found, difference[free], atol=1e-5 * np.abs(found).max())


def test_the_stiffness_is_the_derivative_of_all_forces_couplings_and_contact_included() -> None:
    # a cable whose points lie within tets far apart, one of them in a tet with fixed vertices
    body = _with_cable(np.array([[0.093, 0.011, 0.027], [0.052, 0.02, 0.013], [0.004, 0.012, 0.021]]))
    contact = Contact({"floor": Plane()}, ContactSettings(1e7, 3e-3, 0.5, 0.01))
    solver = FullOrderSolver(body, LAW, time_step=5e-3, contact=contact)
    generator = np.random.default_rng(6)
    before = body.rest_positions + 2e-4 * generator.normal(size=body.rest_positions.shape)
    x = before + 2e-4 * generator.normal(size=before.shape)
    outside = solver.outside
    around = Surroundings(IDENTITY_POSE[None], np.array([0.11]), ANCHOR[None] + 1e-3)
    instant = outside.instant(around)
    situation = outside.situation(before, instant, instant, 5e-3)
    zero = Material(*(0.0 * np.asarray(field) for field in MATERIAL))
    nothing = jnp.zeros((len(solver.quadrature.volume), 3, 3))
    objective = Objective(np.zeros(len(x)), np.zeros_like(x), zero, nothing, jnp.asarray(1.0), situation)
    no_tangents = jnp.zeros((len(solver.quadrature.volume), 9, 9))
    matrix = solver.newton.matrix(objective, x, no_tangents)
    free = solver.newton.pattern.free
    assert np.any(outside.contact_forces(situation, x)[0]) and outside.tensions(instant, x)[0] > 1.0
    for _ in range(3):
        direction = np.zeros(x.size)
        direction[free] = generator.normal(size=len(free))
        change = 1e-7 * direction.reshape(-1, 3)
        # energies over 4e-7 m: rounding 1e-16 / 1e-4; the forces' curvature within 1e-3 m of the band: 1e-8
        slope = (outside.energy(situation, x + change) - outside.energy(situation, x - change)) / 2e-7
        expected = -float(np.sum(outside.forces(situation, x) * direction.reshape(-1, 3)))
        assert slope == pytest.approx(expected, rel=1e-6, abs=1e-6)
        forces = [outside.forces(situation, x + s * change).ravel()[free] for s in (1.0, -1.0)]
        difference = -(forces[0] - forces[1]) / 2e-7
        found = matrix @ direction[free]
        np.testing.assert_allclose(found, difference, atol=1e-5 * np.abs(difference).max())
    projected = solver.newton.matrix(objective, x, no_tangents + 1e-9 * jnp.eye(9)[None], projected=True)
    lowest = np.linalg.eigvalsh(projected.toarray())[0]
    assert lowest > -1e-9 * abs(matrix).max()  # rounding


def test_full_order_derivatives_go_through_a_taut_cable() -> None:
    solver = DifferentiableFullOrderSolver(TOP, LAW, time_step=5e-3, move_tolerance=1e-13)
    base = np.array([264e3, 0.45, 20.0, 1070.0])
    direction = np.array([30e3, 0.01, 5.0, 50.0])

    def material(t: float) -> Material:
        return Material(*(np.array([value]) for value in base + t * direction))  # type: ignore[arg-type]

    directions = Material(*(np.array([[value]]) for value in direction))  # type: ignore[arg-type]
    state = solver.rest_state()
    tangents = np.zeros((*state.history.shape, 1))
    moved = {s: solver.rest_state() for s in (-1e-4, 1e-4)}
    for k in range(1, 5):
        around = _wound_up(1e-3 * k)
        state, tangents, report = solver.step_with_tangents(
            state, tangents, material(0.0), directions, surroundings=around
        )
        assert report.result == SolveResult.CONVERGED
        moved = {s: solver.step(moved[s], material(s), surroundings=around)[0] for s in moved}
    assert solver.cable_tensions(state)[0] > 0.1
    difference = (moved[1e-4].positions - moved[-1e-4].positions) / 2e-4
    # what the adjoint is held to
    np.testing.assert_allclose(tangents[0, ..., 0], difference, atol=1e-5 * np.abs(difference).max())


def test_full_order_derivatives_refuse_contact() -> None:
    contact = Contact({"floor": Plane()}, ContactSettings(1e7, 1e-3))
    solver = DifferentiableFullOrderSolver(BAR, LAW, time_step=5e-3, contact=contact)
    state = solver.rest_state()
    tangents = np.zeros((*state.history.shape, 1))
    with pytest.raises(ValueError, match=r"contact: \['floor'\], expected none"):
        solver.step_with_tangents(state, tangents, MATERIAL, MATERIAL)


@pytest.mark.parametrize(
    ("around", "words"),
    [
        (None, r"winch_lengths: shape \(0,\), expected \(1,\) for the cables \['pull'\]"),
        (Surroundings(winch_lengths=np.array([0.1, 0.2])), r"winch_lengths: shape \(2,\)"),
        (Surroundings(winch_lengths=np.array([np.nan])), r"winch_lengths: \[nan\], expected finite"),
        (Surroundings(winch_lengths=np.array([-0.1])), r"winch_lengths: \[-0\.1\], expected none negative"),
        (
            Surroundings(winch_lengths=np.array([0.1]), winch_anchors=np.zeros(3)),
            r"winch_anchors: shape \(3,\), expected \(1, 3\)",
        ),
        (
            Surroundings(winch_lengths=np.array([0.1]), winch_anchors=np.full((1, 3), np.inf)),
            r"winch_anchors: .*inf.*expected finite",
        ),
    ],
)
def test_wrong_winches_are_refused(around: Surroundings | None, words: str) -> None:
    solver = FullOrderSolver(TOP, LAW, time_step=5e-3)
    for call in (
        lambda: solver.step(solver.rest_state(), MATERIAL, surroundings=around),
        lambda: solver.static_state(MATERIAL, surroundings=around),
    ):
        with pytest.raises(InvalidSurroundingsError, match=words):
            call()
