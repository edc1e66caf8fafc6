"""Bodies that touch something in full space: friction on a slope, bounces, balance of forces, split steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from body.bodies import bar
from realsimloop_ros.body.body import Body, Zone
from realsimloop_ros.body.meshing import box_bar
from realsimloop_ros.body.poses import IDENTITY_POSE, InvalidPoseError, make_pose
from realsimloop_ros.mechanics.colliders import (
    Capsule,
    Collider,
    InvalidContactError,
    Plane,
    SignedDistanceGrid,
    Sphere,
)
from realsimloop_ros.mechanics.contact import Contact, ContactSettings
from realsimloop_ros.mechanics.element_forces import Samples, elastic_potential
from realsimloop_ros.mechanics.full_order import FullOrderSolver, FullOrderState, SolveResult, StepReport
from realsimloop_ros.mechanics.integrators import BDF2, IMPLICIT_EULER, INTEGRATORS, Integrator
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.mechanics.surroundings import InvalidSurroundingsError, Surroundings

LAW = StableNeoHookean()
BLOCK = bar((0.04, 0.04, 0.02), (1, 1, 1), quadratic=False, holds="none")
FLOOR = Surroundings(IDENTITY_POSE[None])
FRICTION, CREEP = 0.5, 1e-3
FRICTION_ANGLE = np.degrees(np.arctan(FRICTION))  # 26.6 degrees


def _on_a_slope(
    angle: float, steps: int, h: float = 2e-3
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Centres (t, 3) of a block on a floor, gravity tilted, the floor's last force (3,), and the weight."""
    tilt = np.radians(angle)
    contact = Contact({"floor": Plane()}, ContactSettings(2e7, 1e-3, FRICTION, CREEP))
    solver = FullOrderSolver(
        BLOCK,
        LAW,
        time_step=h,
        integrator=IMPLICIT_EULER,
        gravity=9.81 * np.array([np.sin(tilt), 0.0, -np.cos(tilt)]),
        contact=contact,
    )
    material = material_of(BLOCK, 1e6, 0.3, 100.0)
    # where its weight and the pressure at the floor are nearly in balance
    state, path = solver.resting_at(BLOCK.rest_positions + np.array([0.0, 0.0, 0.9e-3])), []
    for _ in range(steps):
        state, report = solver.step(state, material, surroundings=FLOOR)
        assert report.result == SolveResult.CONVERGED
        path.append(state.positions.mean(axis=0))
    assert report.start is not None
    force = solver.contact_forces(report.start, state)[0].sum(axis=0)
    return np.array(path), force, 9.81 * float(solver.masses(material).sum())


@pytest.mark.parametrize("angle", [15.0, 25.0])
def test_a_block_on_a_slope_sticks_below_the_friction_angle(angle: float) -> None:
    assert angle < FRICTION_ANGLE
    path, force, weight = _on_a_slope(angle, 100)
    # at rest but for the creep that carries what pulls: F'(v) = tan(angle) / mu
    share = np.tan(np.radians(angle)) / FRICTION
    speed = np.diff(path[-2:, 0])[0] / 2e-3
    # its start from rest has faded to 1e-3 of it
    assert speed == pytest.approx(CREEP * (1.0 - np.sqrt(1.0 - share)), rel=0.02)
    # the floor carries all of the weight, along and across
    expected = weight * np.array([-np.sin(np.radians(angle)), 0.0, np.cos(np.radians(angle))])
    np.testing.assert_allclose(force, expected, atol=2e-3 * weight)


@pytest.mark.parametrize("angle", [30.0, 45.0])
def test_a_block_on_a_slope_slides_above_the_friction_angle(angle: float) -> None:
    assert angle > FRICTION_ANGLE
    path, force, weight = _on_a_slope(angle, 100)
    tilt = np.radians(angle)
    found = np.diff(path[50:, 0], 2).mean() / 2e-3**2
    # second differences of positions good to 1e-8 of 40 mm, over 100 ms
    assert found == pytest.approx(9.81 * (np.sin(tilt) - FRICTION * np.cos(tilt)), rel=1e-5)
    np.testing.assert_allclose(force[2], weight * np.cos(tilt), rtol=1e-6)
    np.testing.assert_allclose(force[0], -FRICTION * force[2], rtol=1e-6)


def test_a_belt_drags_a_block_up_to_its_speed() -> None:
    h, speed = 2e-3, 0.2
    contact = Contact({"belt": Plane()}, ContactSettings(2e7, 1e-3, FRICTION, CREEP))
    solver = FullOrderSolver(BLOCK, LAW, time_step=h, integrator=IMPLICIT_EULER, contact=contact)
    material = material_of(BLOCK, 1e6, 0.3, 100.0)
    at_rest = solver.resting_at(BLOCK.rest_positions + np.array([0.0, 0.0, 0.9e-3]))
    state = replace(at_rest, surroundings=FLOOR)
    for _ in range(20):  # until its landing has faded
        state, _ = solver.step(state, material, surroundings=FLOOR)
    speeds = []
    for k in range(1, 41):
        before = state.positions.mean(axis=0)
        belt = Surroundings(make_pose([speed * k * h, 0.0, 0.0], Rotation.identity())[None])
        state, _ = solver.step(state, material, surroundings=belt)
        speeds.append((state.positions.mean(axis=0) - before)[0] / h)
    # mu g until it has the belt's speed, after 41 ms; the first step still lacks the friction of a moving belt's
    # edge: the block shears and wobbles on the way
    assert speeds[15] == pytest.approx(FRICTION * 9.81 * 16 * h, rel=0.02)
    assert speeds[-1] == pytest.approx(speed, abs=CREEP)


def _ball(radius: float = 0.02) -> Body:
    x, tets = box_bar(2.0, 2.0, 2.0, (2, 2, 2), origin=(-1.0, -1.0, -1.0), quadratic=False)
    reach, length = np.abs(x).max(axis=1, keepdims=True), np.linalg.norm(x, axis=1, keepdims=True)
    x = radius * x * np.divide(reach, length, out=np.zeros_like(length), where=length > 0)
    return Body("ball", x, tets, np.zeros(len(tets), np.int64), (Zone("all", 1070.0),))


BALL = _ball()


@cache
def _bounce(
    scheme: Integrator, h: float, viscosity: float = 0.0, max_substeps: int = 32, duration: float = 0.048
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[StepReport]]:
    """A ball thrown at the floor: heights of its centre (t,), energies (t,), J, and reports."""
    contact = Contact({"floor": Plane()}, ContactSettings(1e7, 4e-3))
    solver = FullOrderSolver(BALL, LAW, time_step=h, integrator=scheme, contact=contact, max_substeps=max_substeps)
    material = material_of(BALL, 3e5, 0.4, viscosity)
    masses = solver.masses(material)
    samples = Samples.of(solver.quadrature)
    nothing, one = jnp.zeros((len(solver.quadrature.volume), 3, 3)), jnp.asarray(1.0)
    elastic = material._replace(viscosity=np.zeros(1))

    def stored(x: NDArray[np.float64]) -> float:
        return float(elastic_potential(LAW, samples, elastic, jnp.asarray(x), nothing, one))

    start, velocity, gravity = np.array([0.0, 0.0, 0.032]), np.array([0.0, 0.0, -0.7]), np.array([0.0, 0.0, -9.81])
    times = -h * np.arange(scheme.history)[:, None, None]
    state = FullOrderState(BALL.rest_positions + start + velocity * times + 0.5 * gravity * times**2)
    at_rest = stored(BALL.rest_positions)
    heights, energies, reports = [], [], []
    for _ in range(round(duration / h)):
        state, report = solver.step(state, material, surroundings=FLOOR)
        assert report.start is not None and report.result == SolveResult.CONVERGED
        # the scheme's own velocity, over the last part of the step
        part = solver.time_step / report.substeps
        past = np.concatenate([state.positions[None], report.start.history])
        ages = state.ages if state.ages is not None else part * np.arange(len(past))
        rate = (past[0] - past[1]) / ages[1] if scheme is IMPLICIT_EULER else _slope(past, ages)
        energy = 0.5 * float(np.sum(masses[:, None] * rate**2)) + stored(state.positions) - at_rest
        energy += 9.81 * float(masses @ (state.positions[:, 2] - BALL.rest_positions[:, 2]))
        gap = np.maximum(4e-3 - state.positions[solver.outside.vertices, 2], 0.0)
        energies.append(energy + 1e7 / (3 * 4e-3) * float(solver.outside.areas @ gap**3))
        heights.append(masses @ state.positions[:, 2] / masses.sum())
        reports.append(report)
    return np.array(heights), np.array(energies), reports


def _slope(past: NDArray[np.float64], ages: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slope, at the newest of them, of the parabola through the last three positions."""
    since = -ages[:3]
    return np.polynomial.polynomial.polyfit(since, past[:3].reshape(3, -1), 2)[1].reshape(-1, 3)


@pytest.mark.parametrize("scheme", [IMPLICIT_EULER, BDF2], ids=list(INTEGRATORS))
@pytest.mark.parametrize("h", [8e-3, 2e-3])
def test_a_bounce_gains_no_energy(scheme: Integrator, h: float) -> None:
    _, energies, reports = _bounce(scheme, h)
    # BDF2's velocity lags by a term of second order, see test_full_order_dynamics; implicit Euler loses always
    gain = np.diff(energies).max() / energies[0]
    assert gain < (0.0 if scheme is IMPLICIT_EULER else 1e-2)
    assert energies.max() <= energies[0] * 1.01
    assert energies[-1] > (0.3 if scheme is IMPLICIT_EULER else 0.85) * energies[0]
    assert max(report.substeps for report in reports) > 1


def test_a_bounce_converges_as_the_step_is_halved() -> None:
    # at 48 ms the ball is on its way up; viscosity damps what vibrates faster than these steps see
    heights = {h: _bounce(BDF2, h, 60.0, max_substeps=1)[0][-1] for h in (2e-3, 1e-3, 5e-4, 2.5e-4)}
    errors = [abs(heights[h] - heights[2.5e-4]) for h in (2e-3, 1e-3, 5e-4)]
    assert errors[0] > 2.0 * errors[1] > 4.0 * errors[2]
    assert heights[2.5e-4] > 0.03
    # long steps that are split where it counts are as good as short ones: an eighth of what is left of the error
    split = abs(_bounce(BDF2, 4e-3, 60.0)[0][-1] - heights[2.5e-4])
    assert split < 1.5e-3


def test_steps_are_split_at_the_impact_alone_and_always_alike() -> None:
    heights, _, reports = _bounce(BDF2, 4e-3)
    parts = [report.substeps for report in reports]
    assert parts[0] == 1 and max(parts) <= 32
    busy = [k for k, count in enumerate(parts) if count > 1]
    assert busy and min(np.array(heights)[busy]) < 0.024
    # powers of two that fall by half a step at most
    assert all(count & (count - 1) == 0 for count in parts)
    assert all(after >= before / 2 for before, after in pairwise(parts))
    again, _, _ = _bounce.__wrapped__(BDF2, 4e-3)
    np.testing.assert_array_equal(heights, again)


SHAPES: dict[str, tuple[Collider, NDArray[np.float64]]] = {
    "plane": (Plane(), make_pose([0.1, 0.0, 0.0295], Rotation.from_rotvec([np.pi, 0.0, 0.0]))),
    "sphere": (Sphere(0.03), make_pose([0.1, 0.015, 0.059], Rotation.identity())),
    "capsule": (
        Capsule(0.01, 0.03),
        make_pose([0.075, 0.015, 0.039], Rotation.from_rotvec([np.pi / 2, 0.0, 0.0])),
    ),
}
AXIS = np.arange(-0.042, 0.0421, 0.004)
GRID = np.linalg.norm(np.stack(np.meshgrid(AXIS, AXIS, AXIS, indexing="ij"), axis=-1), axis=-1) - 0.03
SHAPES["grid"] = (SignedDistanceGrid(GRID, [-0.042] * 3, 0.004), SHAPES["sphere"][1])
HELD = bar(divisions=(2, 1, 1))


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_held_bar_pressed_by_a_collider_is_in_balance(name: str) -> None:
    shape, pose = SHAPES[name]
    contact = Contact({"tool": shape}, ContactSettings(5e7, 2e-3, FRICTION))
    # lifted against the tool
    solver = FullOrderSolver(HELD, LAW, time_step=5e-3, gravity=(0.0, 0.0, 9.81), contact=contact)
    material = material_of(HELD, 264e3, 0.45)
    around = Surroundings(pose[None])
    state, report = solver.static_state(material, surroundings=around)
    assert report.result == SolveResult.CONVERGED
    pressing = solver.contact_forces(state, state)[0].sum(axis=0)
    weight = float(solver.masses(material).sum()) * np.array([0.0, 0.0, 9.81])
    assert pressing[2] < -0.05
    reaction = solver.held_reactions(state, state, material).sum(axis=0)
    # Newton's method ends within 1e-8 of the size of the minimum, at stiffnesses of 1e3 N/m
    np.testing.assert_allclose(reaction + pressing + weight, 0.0, atol=1e-6)
    # friction holds what rests: the next step stays
    after, report = solver.step(state, material, surroundings=around)
    assert report.result == SolveResult.CONVERGED and report.substeps == 1
    np.testing.assert_allclose(after.positions, state.positions, atol=1e-8)


def _plate() -> SignedDistanceGrid:
    """A plate of 80 x 80 x 10 mm about the origin."""
    spacing, half = 2.5e-3, np.array([0.04, 0.04, 0.005])
    counts = np.ceil((half + 0.01) / spacing).astype(int)
    axes = [spacing * np.arange(-n, n + 1) for n in counts]
    beyond = np.abs(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)) - half
    outside = np.linalg.norm(np.maximum(beyond, 0.0), axis=-1)
    return SignedDistanceGrid(outside + np.minimum(beyond.max(axis=-1), 0.0), -counts * spacing, spacing)


@pytest.mark.parametrize("max_substeps", [1, 32])
def test_a_fast_block_does_not_go_through_a_thin_plate(max_substeps: int) -> None:
    contact, h = Contact({"plate": _plate()}, ContactSettings(2e9, 2e-3)), 5e-3
    lying = Surroundings(make_pose([0.02, 0.02, 0.0], Rotation.identity())[None])
    solver = FullOrderSolver(
        BLOCK, LAW, time_step=h, integrator=IMPLICIT_EULER, contact=contact, max_substeps=max_substeps
    )
    material = material_of(BLOCK, 1e6, 0.3, 100.0)
    # 50 mm a step, five times the plate's thickness
    above = BLOCK.rest_positions + np.array([0.0, 0.0, 0.03])
    state = FullOrderState(np.stack([above, above + np.array([0.0, 0.0, 10.0 * h])]))
    for _ in range(4):
        state, report = solver.step(state, material, surroundings=lying)
        assert report.result == SolveResult.CONVERGED
        assert state.positions[:, 2].min() > 0.0
        assert report.penetration < 2e-3 and report.substeps <= max_substeps


def _swung(h: float, max_substeps: int) -> tuple[FullOrderState, list[int]]:
    """A bar in two grips that lower and turn it onto a ball that rises, over 40 ms."""
    contact = Contact({"ball": Sphere(0.02)}, ContactSettings(5e7, 2e-3, FRICTION))
    solver = FullOrderSolver(GRIPPED, LAW, time_step=h, contact=contact, max_substeps=max_substeps)
    material = material_of(GRIPPED, 264e3, 0.45, 200.0)

    def grips(time: float) -> NDArray[np.float64]:
        turn = Rotation.from_rotvec([0.0, 5.0 * time, 0.0])
        return np.stack([make_pose(turn.apply(g.rest_pose[:3]), turn) for g in GRIPPED.grips])

    def around(time: float) -> Surroundings:
        return Surroundings(make_pose([0.05, 0.015, -0.028 + 0.1 * time], Rotation.identity())[None])

    state, _ = solver.static_state(material, grips(0.0), surroundings=around(0.0))
    counts = []
    for k in range(1, round(0.04 / h) + 1):
        state, report = solver.step(state, material, grips(k * h), surroundings=around(k * h))
        assert report.result == SolveResult.CONVERGED and report.start is not None
        counts.append(report.substeps)
        if report.substeps > 1:
            # grips and colliders go on between the parts along rigid motions
            ends = [grips((k - part) * h) for part in (1.0, 1.0 / report.substeps)]
            assert report.start.grip_poses is not None and report.start.surroundings is not None
            np.testing.assert_allclose(report.start.grip_poses[:, 3:], ends[1][:, 3:], atol=1e-12)
            assert report.start.surroundings.collider_poses is not None
            there = around((k - 1.0 / report.substeps) * h).collider_poses
            np.testing.assert_allclose(report.start.surroundings.collider_poses, there, atol=1e-12)
    return state, counts


GRIPPED = bar(divisions=(2, 1, 1), holds="grips")


def test_grips_and_colliders_move_through_the_parts_of_a_step() -> None:
    coarse, counts = _swung(8e-3, 32)
    fine, _ = _swung(1e-3, 1)
    assert max(counts) > 1
    middle = GRIPPED.rest_positions[:, 0] == 0.05
    pushed = np.abs(fine.positions - _swung_alone()).max()
    assert pushed > 2e-3
    np.testing.assert_allclose(coarse.positions[middle], fine.positions[middle], atol=0.1 * pushed)


def _swung_alone() -> NDArray[np.float64]:
    turn = Rotation.from_rotvec([0.0, 0.2, 0.0])
    return turn.apply(GRIPPED.rest_positions)


def test_without_anything_near_contact_changes_nothing() -> None:
    far = Contact({"floor": Plane()}, ContactSettings(1e8, 1e-3, FRICTION))
    below = Surroundings(make_pose([0.0, 0.0, -1.0], Rotation.identity())[None])
    material = material_of(HELD, 264e3, 0.45, 50.0)
    paths = []
    for contact, around in ((None, None), (far, below)):
        solver = FullOrderSolver(HELD, LAW, time_step=5e-3, contact=contact)
        state = solver.rest_state()
        for _ in range(5):
            state, report = solver.step(state, material, surroundings=around)
            assert report.substeps == 1 and report.penetration == 0.0
        paths.append(state.positions)
    # the same minima, to what Newton's method leaves: 1e-8 of the size, 100 mm, in each step
    np.testing.assert_allclose(*paths, atol=1e-9)


def test_wrong_surroundings_are_refused() -> None:
    contact = Contact({"floor": Plane(), "wall": Plane()}, ContactSettings(1e8, 1e-3))
    solver = FullOrderSolver(BLOCK, LAW, time_step=5e-3, contact=contact)
    material, state = material_of(BLOCK, 1e6, 0.3), solver.rest_state()
    with pytest.raises(InvalidContactError, match=r"collider_poses: shape \(0, 7\), expected \(2, 7\)"):
        solver.step(state, material)
    for poses, error, words in (
        (IDENTITY_POSE[None], InvalidContactError, r"expected \(2, 7\) for \['floor', 'wall'\]"),
        (np.full((2, 7), np.nan), InvalidPoseError, "collider_poses: non-finite"),
        (np.zeros((2, 7)), InvalidPoseError, "quaternion norm"),
    ):
        with pytest.raises(error, match=words):
            solver.step(state, material, surroundings=Surroundings(poses))
    alone = FullOrderSolver(BLOCK, LAW, time_step=5e-3)
    with pytest.raises(InvalidSurroundingsError, match=r"collider_poses: .* a solver without contact"):
        alone.step(state, material, surroundings=FLOOR)
    with pytest.raises(ValueError, match="max_substeps: 0, expected at least 1"):
        FullOrderSolver(BLOCK, LAW, time_step=5e-3, contact=contact, max_substeps=0)


def test_a_state_that_is_not_finite_is_a_result_with_contact_too() -> None:
    contact = Contact({"floor": Plane()}, ContactSettings(1e8, 1e-3))
    solver = FullOrderSolver(BLOCK, LAW, time_step=5e-3, contact=contact)
    state = solver.rest_state()
    state.history[1, 0, 0] = np.nan
    with np.errstate(invalid="ignore"):
        _, report = solver.step(state, material_of(BLOCK, 1e6, 0.3), surroundings=FLOOR)
    assert report.result == SolveResult.NON_FINITE
