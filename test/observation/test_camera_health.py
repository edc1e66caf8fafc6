"""What a camera's images tell of the camera."""

import numpy as np
import pytest

from realsimloop_ros.observation.camera_health import CameraHealth
from realsimloop_ros.observation.clock_jumps import ClockJumps

SECOND = 10**9


def images(seed: int = 0, level: float = 120.0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(level, 20.0, (12, 16, 3))
    return np.clip(noise, 0, 255).astype(np.uint8)


@pytest.fixture
def health() -> CameraHealth:
    found = CameraHealth(["left", "right"])
    for k in range(12):
        usable, conditions = found.look([images(k), images(100 + k)])
        conditions |= found.masked({"left": 0.8, "right": 0.6})
        assert conditions == {}
        assert all(image is not None for image in usable)
    return found


def test_a_dark_or_blinded_camera_is_named_and_left_out(health: CameraHealth) -> None:
    for level, kind in ((3.0, "dark"), (254.0, "bright")):
        fault = np.full((12, 16, 3), level, np.uint8)
        usable, conditions = health.look([images(50), fault])
        assert list(conditions) == [f"{kind}.right"]
        assert usable[0] is not None and usable[1] is None


def test_a_camera_that_repeats_itself_is_left_out_after_half_a_second_and_taken_back(health: CameraHealth) -> None:
    stuck = images(7)
    found = [health.look([stuck, images(200 + k)]) for k in range(6)]
    assert [usable[0] is None for usable, _ in found] == [False] * 4 + [True] * 2
    assert [list(conditions) for _, conditions in found] == [[]] * 4 + [["stuck.left"]] * 2
    usable, conditions = health.look([images(8), images(300)])
    assert usable[0] is not None and conditions == {}


def test_a_step_of_the_brightness_is_named_until_it_is_the_usual_one(health: CameraHealth) -> None:
    # the exposure halved, at a gamma of 2.2
    found = [health.look([images(k, 120.0 * 0.73), images(200 + k)])[1] for k in range(10)]
    assert list(found[0]) == ["exposure.left"]
    assert found[-1] == {}


def test_something_before_the_body_is_named_as_long_as_it_stays(health: CameraHealth) -> None:
    for _ in range(20):
        assert list(health.masked({"left": 0.5, "right": 0.6})) == ["hidden.left"]
    assert health.masked({"left": 0.75, "right": 0.6}) == {}


def test_one_image_that_is_lost_is_no_fault_but_two_of_ten_are(health: CameraHealth) -> None:
    assert health.look([None, images(1)])[1] == {}
    assert list(health.look([None, images(2)])[1]) == ["gaps.left"]


def test_images_out_of_order_and_clocks_set_back_are_told_apart(health: CameraHealth) -> None:
    assert health.arrived("left", 10 * SECOND, SECOND) == {}
    assert list(health.arrived("left", 10 * SECOND - 1, SECOND)) == ["order.left"]
    assert health.arrived("right", 10 * SECOND - 1, SECOND) == {}
    assert list(health.arrived("left", 5 * SECOND, SECOND)) == ["clock_jump.left"]
    # which is one event, whichever camera tells it first
    assert health.arrived("right", 5 * SECOND, SECOND) == {}
    assert health.arrived("left", 6 * SECOND, SECOND) == {}


def test_every_stream_begins_anew_after_a_jump() -> None:
    jumps = ClockJumps(SECOND)
    assert not jumps.jumped("a", 10 * SECOND) and not jumps.jumped("b", 10 * SECOND)
    assert not jumps.jumped("a", 9 * SECOND)  # late, but no jump
    assert jumps.jumped("b", 2 * SECOND)
    assert not jumps.jumped("a", 2 * SECOND)
    assert jumps.count == 1
