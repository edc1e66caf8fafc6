import numpy as np
import pytest

from realsimloop_ros.mechanics.full_order_gradient import DifferentiableFullOrderSolver
from realsimloop_ros.mechanics.integrators import BDF2, IMPLICIT_EULER
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from reduced_bodies import gripped_bar

STEPS = 4


@pytest.mark.parametrize("integrator", [IMPLICIT_EULER, BDF2], ids=lambda scheme: scheme.name)
def test_step_tangents_agree_with_central_differences(integrator):
    body = gripped_bar()
    poses = random_grip_motion(body, SnapshotSettings(steps=STEPS, keyframes=1), np.random.default_rng(2))
    solver = DifferentiableFullOrderSolver(
        body, StableNeoHookean(), time_step=1 / 60, integrator=integrator, mass_damping=0.5, move_tolerance=1e-13
    )
    material = Material(np.array([2e5]), np.array([0.45]), np.array([150.0]))
    unit = np.eye(3)[:, :, None]
    directions = Material(1e5 * unit[0], 0.1 * unit[1], 100.0 * unit[2])

    def last(values: Material) -> np.ndarray:
        state = solver.rest_state()
        for pose in poses:
            state, _ = solver.step(state, values, pose)
        return state.positions

    state = solver.rest_state()
    tangents = np.zeros((*state.history.shape, 3))
    for pose in poses:
        state, tangents, _ = solver.step_with_tangents(state, tangents, material, directions, pose)
    for k in range(3):
        step = 1e-5
        high = Material(*(f + step * d[k] for f, d in zip(material, directions, strict=True)))
        low = Material(*(f - step * d[k] for f, d in zip(material, directions, strict=True)))
        difference = (last(high) - last(low)) / (2 * step)
        # positions converge to 1e-13 m, over the step 1e-8; the solves of the tangents to 1e-8 of each
        assert np.abs(tangents[0, ..., k] - difference).max() < 1e-5 * np.abs(difference).max() + 2e-8
