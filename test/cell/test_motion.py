"""Motion programs stay inside what they were given, are smooth, and repeat with their seed."""

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.spatial.transform import Rotation

from realsimloop_ros.cell.motion import MotionDescription, random_program

DESCRIPTION = MotionDescription(
    twist=0.5,
    bend=0.2,
    pull=0.015,
    push=0.004,
    shift=0.02,
    lift=0.03,
    shake=0.02,
    move_duration=(0.6, 1.2),
    rest_duration=(0.3, 0.6),
    shake_duration=(0.12, 0.2),
    initial_rest=0.5,
)
REST = np.array([[-0.1, 0.0, 0.4, 0.0, 0.0, 0.0, 1.0], [0.1, 0.0, 0.4, 0.0, 0.0, 0.0, 1.0]])


@pytest.fixture(scope="module")
def program():
    return random_program(DESCRIPTION, REST, 30.0, seed=3)


def test_targets_stay_inside_the_described_reach(program):
    for time in np.linspace(-1.0, program.duration + 1.0, 600):
        targets = program.targets(time)
        # pull or shift, on top of it a lift and a shake, each taken at its longest
        reach = np.hypot(DESCRIPTION.pull, DESCRIPTION.shift) + DESCRIPTION.lift + DESCRIPTION.shake
        assert np.linalg.norm(targets[:, :3] - REST[:, :3], axis=1).max() <= reach
        angles = Rotation.from_quat(targets[:, 3:]).magnitude()
        assert angles.max() <= np.hypot(DESCRIPTION.twist, DESCRIPTION.bend) + 1e-12


def test_ends_are_never_pushed_together_further_than_described(program):
    for time in np.linspace(0.0, program.duration, 300):
        left, right = program.targets(time)[:, 0]
        # shakes and lifts move both ends alike
        assert right - left >= 0.2 - 2 * DESCRIPTION.push - 1e-12


def test_program_uses_its_reach_and_rests_in_between(program):
    ends = [Rotation.from_quat(program.targets(t)[:, 3:]) for t in program.times]
    against = np.array([(end[0].inv() * end[1]).magnitude() for end in ends])
    # both ends twist by 0.4 to 1 of what is allowed, against each other
    assert against.max() > 1.2 * DESCRIPTION.twist
    still = [np.array_equal(a, b) for a, b in zip(program.offsets[:-1], program.offsets[1:], strict=True)]
    assert 0.2 < np.mean(still) < 0.6


def test_targets_are_smooth(program):
    step = 1e-3
    times = np.arange(0.0, program.duration, step)
    positions = np.array([program.targets(t)[:, :3] for t in times])
    acceleration = np.diff(positions, 2, axis=0) / step**2
    # a move of least jerk over d metres in T seconds peaks at 5.774 d / T^2; the longest quick one is a shake
    # from one side to the other
    bound = 5.774 * 2 * DESCRIPTION.shake / DESCRIPTION.shake_duration[0] ** 2
    assert np.linalg.norm(acceleration, axis=-1).max() < bound * 1.01


def test_seed_decides_the_program():
    first, same, other = (random_program(DESCRIPTION, REST, 10.0, seed=s) for s in (1, 1, 2))
    assert first.offsets.tobytes() == same.offsets.tobytes()
    assert not np.array_equal(first.offsets[2], other.offsets[2])


def test_lone_tool_twists_about_its_own_axis():
    turned = np.array([[0.0, 0.0, 0.4, *Rotation.from_euler("z", 0.5).as_quat()]])
    calm = DESCRIPTION.model_copy(update={"bend": 0.0})
    program = random_program(calm, turned, 5.0, seed=1)
    turns = program.offsets[:, 0, 3:]
    axis = np.array([np.cos(0.5), np.sin(0.5), 0.0])
    np.testing.assert_allclose(turns, np.outer(turns @ axis, axis), atol=1e-12)


def test_reversed_range_is_refused_by_name():
    with pytest.raises(ValidationError, match="move_duration"):
        MotionDescription(**{**DESCRIPTION.model_dump(), "move_duration": (1.0, 0.5)})
