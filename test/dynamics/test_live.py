"""The running twin: its states do not depend on how poses arrive, and a jump of the clock begins it anew."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.dynamics.live import LiveState, LiveTwin, LiveTwinError, PoseHistory
from realsimloop_ros.dynamics.rollout import no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.material import Material, material_of
from realsimloop_ros.reduction.model import vertices
from reduced_bodies import REST_POSES, gripped_bar, smooth_reduced_body

SECOND = 10**9
PERIOD = SECOND // 125
REDUCED = smooth_reduced_body(gripped_bar())
MODEL = REDUCED.model()
SETTINGS = StepSettings(BDF2, 0.02, viscous=True)
MATERIAL = material_of(REDUCED.body, 2e5, 0.45, 100.0)
Pose = tuple[str, int, np.ndarray]


def twin(**options: int) -> LiveTwin:
    return LiveTwin(REDUCED.body, MODEL, SETTINGS, MATERIAL, **options)


def motion(arm: str, count: int = 60, begin: int = SECOND) -> list[Pose]:
    poses = []
    for k in range(count):
        pose = REST_POSES[0 if arm == "left" else 1].copy()
        pose[2] += (0.01 if arm == "left" else -0.02) * np.sin(0.2 * k)
        poses.append((arm, begin + k * PERIOD, pose))
    return poses


def fed(running: LiveTwin, poses: list[Pose]) -> list[LiveState]:
    states = []
    for pose in poses:
        running.add_grip_pose(*pose)
        states += list(running.advance())
    return states


def in_turn(begin: int = SECOND) -> list[Pose]:
    pairs = zip(motion("left", begin=begin), motion("right", begin=begin), strict=True)
    return list(itertools.chain.from_iterable(pairs))


def test_states_lie_on_a_grid_and_are_those_of_a_rollout() -> None:
    states = fed(twin(ticks_per_state=2), in_turn())
    assert [state.stamp_ns for state in states[:3]] == [SECOND + k * SECOND // 25 for k in (1, 2, 3)]
    stamps = np.arange(1, 2 * len(states) + 1) * 0.02
    height = np.array([0.01, -0.02])[:, None] * np.sin(0.2 * np.arange(60))
    poses = np.tile(REST_POSES, (len(stamps), 1, 1))
    for grip in range(2):
        poses[:, grip, 2] += np.interp(stamps, np.arange(60) * 0.008, height[grip])
    material = Material(*(jnp.asarray(values) for values in MATERIAL))
    start, _ = rest_state(MODEL, SETTINGS, material, no_directions(1), jnp.asarray(REST_POSES))
    _, run = rollout(MODEL, SETTINGS, material, no_directions(1), start, jnp.asarray(poses))
    # the poses between two samples differ by the rounding of stamps to ns, 1e-11 m here
    np.testing.assert_allclose(states[-1].latent, run.latents[-1], atol=1e-9)
    np.testing.assert_allclose(states[-1].vertices, vertices(MODEL, poses[-1], run.latents[-1]), atol=1e-9)
    velocity = (run.latents[-1] - run.latents[-2]) / 0.02
    np.testing.assert_allclose(states[-1].latent_velocity, velocity, atol=1e-6)
    assert all(state.converged for state in states)


@pytest.mark.parametrize("order", ["right first", "late left", "in blocks"])
def test_the_order_of_arrival_does_not_matter(order: str) -> None:
    expected = fed(twin(), in_turn())
    left, right = motion("left"), motion("right")
    mixed = {
        "right first": list(itertools.chain.from_iterable(zip(right, left, strict=True))),
        "late left": right[:30] + left[:25] + right[30:] + left[25:],
        "in blocks": right + left,
    }[order]
    states = fed(twin(), mixed)
    assert [s.stamp_ns for s in states] == [s.stamp_ns for s in expected]
    for state, other in zip(states, expected, strict=True):
        np.testing.assert_array_equal(state.latent, other.latent)


def test_a_material_takes_effect_with_the_next_state() -> None:
    running = twin()
    for pose in in_turn():
        running.add_grip_pose(*pose)
    states = running.advance()
    first = next(states)
    running.set_material(material_of(REDUCED.body, 2e4, 0.45, 100.0))
    second = next(states)
    expected = fed(twin(), in_turn())
    np.testing.assert_array_equal(first.latent, expected[0].latent)
    # ten times as soft: the step differs by far more than what Newton's method leaves, 1e-10 m
    assert np.abs(second.latent - expected[1].latent).max() > 1e-6


def test_grips_are_held_beyond_their_last_pose() -> None:
    running = twin()
    fed(running, in_turn())
    assert running.grips_behind(2 * SECOND) == ("left", "right")
    held = list(running.advance(until_ns=2 * SECOND))
    assert held[-1].stamp_ns == 2 * SECOND
    np.testing.assert_array_equal(held[-1].grip_poses[1], motion("right")[-1][2])


def test_nothing_is_known_before_every_grip_is() -> None:
    running = twin()
    assert fed(running, motion("left")) == []
    assert running.known_until is None
    assert running.now_ns is None
    assert running.grips_behind(SECOND) == ("right",)


@pytest.mark.parametrize(("begin", "cause"), [(10 * SECOND, "gap"), (SECOND // 5, "clock_jump")])
def test_a_jump_of_the_stamps_begins_anew_at_rest(begin: int, cause: str) -> None:
    running = twin(jump_ns=SECOND // 2)
    fed(running, in_turn())
    states = fed(running, in_turn(begin))
    assert running.resets[cause] >= 1
    expected = fed(twin(), in_turn())
    assert states[-1].stamp_ns - begin == expected[-1].stamp_ns - SECOND
    np.testing.assert_allclose(states[-1].latent, expected[-1].latent, atol=1e-9)


def test_a_twin_that_is_too_slow_leaves_time_out() -> None:
    running = twin(lag_ns=SECOND // 10)
    fed(running, in_turn()[:20])
    for pose in in_turn()[20:]:
        running.add_grip_pose(*pose)
    states = list(running.advance())
    assert running.resets == {"too_slow": 1}
    assert states == []  # it stands at the newest pose already
    assert running.now_ns is not None
    assert running.now_ns > SECOND + 50 * PERIOD


def test_stamps_that_are_not_newer_are_counted() -> None:
    running = twin()
    running.add_grip_pose("left", SECOND, REST_POSES[0])
    running.add_grip_pose("left", SECOND, REST_POSES[0])
    assert running.rejected == 1


def test_unknown_grips_and_settings_are_named() -> None:
    with pytest.raises(LiveTwinError, match=r"grip 'middle' is unknown, the body has left, right"):
        twin().add_grip_pose("middle", SECOND, REST_POSES[0])
    with pytest.raises(LiveTwinError, match="ticks_per_state is 0"):
        twin(ticks_per_state=0)


def test_a_history_interpolates_and_forgets() -> None:
    history = PoseHistory()
    for k in range(4):
        assert history.add(k * SECOND, np.array([float(k), 0, 0, 0, 0, 0, 1]))
    history.forget_before(2 * SECOND + 1)
    assert (len(history), history.oldest, history.newest) == (2, 2 * SECOND, 3 * SECOND)
    assert history.at(SECOND * 5 // 2)[0] == 2.5
    assert history.at(9 * SECOND)[0] == 3.0
