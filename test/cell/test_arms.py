"""An arm follows its target with lag and never breaks its limits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import InvalidPoseError, make_pose
from realsimloop_ros.cell.arms import ArmLimits, advance, resting, with_target

LIMITS = ArmLimits(
    lag=0.04,
    speed=0.5,
    acceleration=6.0,
    angular_speed=3.0,
    angular_acceleration=40.0,
    workspace_minimum=(-0.3, -0.2, 0.2),
    workspace_maximum=(0.1, 0.2, 0.6),
)
LOOSE = LIMITS.model_copy(
    update={"speed": 1e6, "acceleration": 1e9, "angular_speed": 1e6, "angular_acceleration": 1e9}
)
HOME = np.array([-0.1, 0.0, 0.4, 0.0, 0.0, 0.0, 1.0])
TICK = 0.008


def moved(offset, rotation_vector):
    return make_pose(HOME[:3] + np.array(offset), Rotation.from_rotvec(rotation_vector))


def run(state, limits, duration, tick=TICK):
    states = [state]
    for _ in range(round(duration / tick)):
        states.append(advance(states[-1], limits, tick))
    return states


def angle(first, second):
    return (Rotation.from_quat(first[3:]).inv() * Rotation.from_quat(second[3:])).magnitude()


def test_step_response_is_a_first_order_lag_while_no_limit_is_met():
    target = moved([0.02, 0.0, 0.0], [0.5, 0.0, 0.0])
    states = run(with_target(resting(HOME), target), LOOSE, 0.2)
    times = TICK * np.arange(len(states))
    # the velocity of each step is the exact exponential's mean: rounding only
    expected = 1.0 - np.exp(-times / LOOSE.lag)
    np.testing.assert_allclose([s.pose[0] - HOME[0] for s in states], 0.02 * expected, atol=1e-12)
    np.testing.assert_allclose([angle(HOME, s.pose) for s in states], 0.5 * expected, atol=1e-7)


coordinates = st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3).map(np.array)
targets = st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=3)


@given(targets)
@settings(deadline=None, max_examples=25)
def test_speed_acceleration_and_workspace_limits_hold_for_any_targets(sequence):
    state = resting(HOME)
    for offset, turn in sequence:
        target = make_pose(HOME[:3] + 0.3 * offset, Rotation.from_rotvec(2.0 * turn))
        states = run(with_target(state, target), LIMITS, 0.3)
        for before, after in itertools.pairwise(states):
            # 1e-9 relative: sums and products of a handful of float64 numbers
            assert np.linalg.norm(after.velocity) <= LIMITS.speed * (1 + 1e-9)
            assert np.linalg.norm(after.angular_velocity) <= LIMITS.angular_speed * (1 + 1e-9)
            jump = np.linalg.norm(after.velocity - before.velocity)
            assert jump <= LIMITS.acceleration * TICK * (1 + 1e-9)
            jump = np.linalg.norm(after.angular_velocity - before.angular_velocity)
            assert jump <= LIMITS.angular_acceleration * TICK * (1 + 1e-9)
            assert (after.pose[:3] >= np.array(LIMITS.workspace_minimum)).all()
            assert (after.pose[:3] <= np.array(LIMITS.workspace_maximum)).all()
        state = states[-1]


def test_arm_arrives_without_overshoot_under_its_limits():
    target = moved([0.15, 0.0, 0.0], [0.0, 0.0, 2.0])
    states = run(with_target(resting(HOME), target), LIMITS, 2.0)
    travelled = np.array([s.pose[0] - HOME[0] for s in states])
    # speed falls in steps of acceleration * tick, so the last step may be off by half its square
    assert travelled.max() <= 0.15 + 0.5 * LIMITS.acceleration * TICK**2
    # 2 s are more than 30 lags after the ramps: e^-30 of the way is left
    np.testing.assert_allclose(states[-1].pose[:3], target[:3], atol=1e-9)
    assert angle(states[-1].pose, target) < 1e-7


def test_rotation_takes_the_shorter_way():
    start = make_pose(HOME[:3], Rotation.from_rotvec([0.0, 0.0, 3.0]))
    target = make_pose(HOME[:3], Rotation.from_rotvec([0.0, 0.0, -3.0]))
    states = run(with_target(resting(start), target), LIMITS, 1.0)
    # 2 pi - 6 rad lie between them
    assert max(angle(start, s.pose) for s in states) < 0.29


def test_same_targets_give_the_same_bits():
    target = moved([0.1, 0.05, -0.02], [0.4, 0.2, 0.1])
    first, second = (run(with_target(resting(HOME), target), LIMITS, 0.5)[-1] for _ in range(2))
    assert first.pose.tobytes() == second.pose.tobytes()


def test_errors_name_the_field():
    with pytest.raises(InvalidPoseError, match="target"):
        with_target(resting(HOME), [0.0] * 7)
    with pytest.raises(ValidationError, match="workspace_minimum"):
        ArmLimits(**{**LIMITS.model_dump(), "workspace_minimum": (0.5, 0.0, 0.0)})
