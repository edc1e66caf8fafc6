"""Messages to arrays and back, and what is said about messages that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped
from realsimloop.msg import BodyState, MaterialEstimate, MultiViewFrame
from sensor_msgs.msg import CameraInfo, Image
from visualization_msgs.msg import Marker, MarkerArray

from nodes.small_cell import SECOND, small_body
from realsimloop_ros.dynamics.live import LiveState
from realsimloop_ros.estimation.updates import MaterialUpdate, UpdateStatus
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.nodes import cell_messages
from realsimloop_ros.nodes.conversions import (
    markers_from_message,
    material_from_message,
    material_message,
    multi_view_from_message,
    multi_view_message,
    pose_from_message,
    pose_message,
    state_from_message,
    state_message,
)
from realsimloop_ros.nodes.image_messages import calibration_difference, image_from_message, image_message
from realsimloop_ros.nodes.message_checks import MessageError, header, stamp_ns
from realsimloop_ros.observation.cameras import Camera, look_at
from realsimloop_ros.observation.images import MultiViewImages
from reduced_bodies import REST_POSES

STAMP = 3 * SECOND + 7
BODY = small_body()
WIDTH, HEIGHT = 8, 6
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def camera(name: str = "camera_0") -> Camera:
    matrix = np.array([[10.0, 0, 3.5], [0, 10.0, 2.5], [0, 0, 1]])
    return Camera(name, WIDTH, HEIGHT, matrix, np.array([-0.1, 0, 0, 0, 0]), look_at((0, -1, 0), (0, 0, 0)))


def views() -> MultiViewImages:
    images = RANDOM.integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)
    masks = np.where(images[..., 0] > 128, 255, 0).astype(np.uint8)
    return MultiViewImages((camera("a"), camera("b")), images, masks, np.array([True, True]))


def frame(available: tuple[bool, bool] = (True, True)) -> MultiViewFrame:
    return multi_view_message(
        replace(views(), available=np.array(available)), ("fa", "fb"), BODY, "world", STAMP, 2_000_000
    )


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """Cause and text."""
    with pytest.raises(MessageError) as caught:
        call()
    return caught.value.cause, str(caught.value)


def test_poses_come_back() -> None:
    pose = np.array([0.1, -0.2, 0.3, 0.5, -0.5, 0.5, 0.5])
    message = PoseStamped(header=header("world", STAMP), pose=pose_message(pose))
    stamp, found = pose_from_message(message, "world", "left/tcp_pose")
    assert stamp == STAMP
    np.testing.assert_array_equal(found, pose)


def test_images_come_back_as_bytes() -> None:
    message = image_message(PIXELS, "optical", STAMP)
    assert (message.encoding, message.step, message.header.frame_id) == ("rgb8", 3 * WIDTH, "optical")
    np.testing.assert_array_equal(image_from_message(message, camera(), "image"), PIXELS)


def test_other_encodings_become_rgb() -> None:
    message = image_message(np.ascontiguousarray(PIXELS[:, :, ::-1]), "optical", STAMP)
    message.encoding = "bgr8"
    np.testing.assert_array_equal(image_from_message(message, camera(), "image"), PIXELS)
    grey = image_from_message(image_message(PIXELS[:, :, 0], "optical", STAMP), camera(), "image")
    np.testing.assert_array_equal(grey, np.repeat(PIXELS[:, :, :1], 3, axis=2))


def test_rows_may_be_padded() -> None:
    padded = np.concatenate([PIXELS.reshape(HEIGHT, -1), np.zeros((HEIGHT, 5), np.uint8)], axis=1)
    message = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH + 5, data=padded.tobytes())
    np.testing.assert_array_equal(image_from_message(message, camera(), "image"), PIXELS)


@pytest.mark.parametrize(
    ("field", "value", "cause", "text"),
    [
        (
            "encoding",
            "bayer_rggb8",
            "wrong_encoding",
            "encoding is 'bayer_rggb8', expected one of rgb8, bgr8",
        ),
        ("width", 16, "wrong_size", "the image is 16 x 6, camera 'camera_0' is calibrated for 8 x 6"),
        ("step", 20, "wrong_size", "step is 20 and data has 144 bytes"),
        ("data", b"123", "wrong_size", "data has 3 bytes"),
    ],
)
def test_damaged_images_are_refused(field: str, value: object, cause: str, text: str) -> None:
    message = image_message(PIXELS, "optical", STAMP)
    setattr(message, field, value)
    found = refused(lambda: image_from_message(message, camera(), "camera_0/image_raw"))
    assert found[0] == cause
    assert found[1].startswith("camera_0/image_raw: ")
    assert text in found[1]


def test_a_calibration_is_compared_in_words() -> None:
    message = CameraInfo(width=WIDTH, height=HEIGHT, distortion_model="plumb_bob", d=[-0.1, 0.0, 0.0, 0.0, 0.0])
    message.k = camera().intrinsics.ravel()
    assert calibration_difference(message, camera()) == ""
    message.d = [-0.2, 0.0, 0.0, 0.0, 0.0]
    assert "its d is [-0.2" in calibration_difference(message, camera())
    message.k = 2 * camera().intrinsics.ravel()
    assert "its k is [20.0" in calibration_difference(message, camera())
    message.distortion_model = "equidistant"
    assert "equidistant" in calibration_difference(message, camera())
    message.width = 16
    assert "it says 16 x 6 pixels, the cell file 8 x 6" in calibration_difference(message, camera())


def test_observations_come_back_in_the_order_of_the_cell() -> None:
    original = views()
    message = multi_view_message(original, ("fa", "fb"), BODY, "world", STAMP, 2_000_000)
    assert message.spread == 0.002
    stamp, found = multi_view_from_message(message, original.cameras[::-1], BODY, "world", "observation")
    assert stamp == STAMP
    np.testing.assert_array_equal(found.images, original.images[::-1])
    np.testing.assert_array_equal(found.masks, original.masks[::-1])


def test_a_camera_that_is_away_stays_away() -> None:
    message = frame((False, True))
    assert (message.images[0].width, len(message.masks[0].data)) == (0, 0)
    _, found = multi_view_from_message(message, views().cameras, BODY, "world", "observation")
    assert found.available.tolist() == [False, True]


def test_observations_of_another_cell_are_refused() -> None:
    def read(message: MultiViewFrame) -> Callable[[], object]:
        return lambda: multi_view_from_message(message, views().cameras, BODY, "world", "observation")

    message = frame()
    message.body_hash = "abc"
    cause, text = refused(read(message))
    assert cause == "wrong_body"
    assert "body_hash is abc" in text
    assert BODY.content_hash in text
    message = frame()
    message.camera_names = ["a", "c"]
    assert refused(read(message))[0] == "wrong_cameras"
    message = frame()
    message.available = [True]
    assert "available has 1 entries, expected 2" in refused(read(message))[1]
    message = frame()
    message.masks[1].data = bytes([7]) * (WIDTH * HEIGHT)
    assert refused(read(message)) == (
        "wrong_mask",
        "observation: masks.b has values other than 0 and 255; threshold it",
    )
    message = frame()
    message.header.frame_id = "map"
    assert refused(read(message))[0] == "wrong_frame"


def markers(**changes: object) -> MarkerArray:
    array = cell_messages.marker_array(("tip", "stick", "base"), np.eye(3), "world", STAMP)
    for name, value in changes.items():
        setattr(array.markers[0], name, value)
    return array


def test_markers_are_put_in_the_order_of_the_body() -> None:
    reading = markers_from_message(markers(), ("base", "tip", "lost"), "world", "markers")
    assert reading.stamp_ns == STAMP
    np.testing.assert_array_equal(reading.positions, [[0, 0, 1], [1, 0, 0], [np.nan] * 3])
    assert reading.unknown == ("stick",)


def test_a_marker_that_is_not_seen_is_nan() -> None:
    array = markers(action=Marker.DELETE)
    array.markers[1].pose.position.y = float("nan")
    reading = markers_from_message(array, ("tip", "stick", "base"), "world", "markers")
    assert np.isnan(reading.positions).all(axis=1).tolist() == [True, True, False]


def test_markers_of_another_frame_or_without_a_stamp_are_refused() -> None:
    wrong = markers(header=header("mocap", STAMP))
    assert refused(lambda: markers_from_message(wrong, ("tip",), "world", "markers"))[0] == "wrong_frame"
    mixed = markers(header=header("world", STAMP + 1))
    assert refused(lambda: markers_from_message(mixed, ("tip",), "world", "markers"))[0] == "mixed_stamps"
    assert refused(lambda: markers_from_message(MarkerArray(), ("tip",), "world", "markers"))[0] == "empty"


def estimate() -> MaterialEstimate:
    return material_message(
        MaterialUpdate(
            stamp_ns=STAMP,
            zone_names=("bar",),
            material=material_of(BODY, 2e5, 0.45, 100.0),
            parameter_names=("bar.log_youngs_modulus", "bar.poisson_ratio"),
            covariance=np.array([[0.01, 0.0], [0.0, np.inf]]),
            status=UpdateStatus.HELD_UNOBSERVABLE,
            reason="at rest",
            loss_before=2.0,
            loss_after=1.0,
            frames_used=8,
            solve_time_s=0.1,
            latent=np.zeros(6),
            grip_poses=REST_POSES,
            vertices=BODY.rest_positions,
            figures={},
        ),
        BODY,
    )


def test_a_material_comes_back() -> None:
    message = estimate()
    assert message.density.tolist() == [1070.0]
    assert np.isinf(message.covariance[3])
    assert (message.status, message.reason) == (MaterialEstimate.STATUS_HELD_UNOBSERVABLE, "at rest")
    assert stamp_ns(message.header) == STAMP
    material = material_from_message(message, BODY, "theta")
    assert [float(values[0]) for values in material] == [2e5, 0.45, 100.0, 1070.0]


@pytest.mark.parametrize(
    ("field", "value", "cause", "text"),
    [
        ("body_hash", "", "wrong_body", "body_hash is (empty)"),
        ("zone_names", ["rod"], "wrong_zones", "zone_names is ['rod'], the body has ['bar']"),
        ("viscosity", [1.0, 2.0], "wrong_size", "viscosity has 2 entries, expected one per zone (1)"),
        (
            "youngs_modulus",
            [-1.0],
            "invalid_material",
            "bar.youngs_modulus: -1.0, expected a positive",
        ),
        ("poisson_ratio", [float("nan")], "invalid_material", "bar.poisson_ratio: nan"),
    ],
)
def test_a_wrong_material_is_refused(field: str, value: object, cause: str, text: str) -> None:
    message = estimate()
    setattr(message, field, value)
    found = refused(lambda: material_from_message(message, BODY, "theta"))
    assert found[0] == cause
    assert text in found[1]


def state() -> BodyState:
    live = LiveState(STAMP, np.arange(6.0), np.ones(6), REST_POSES, BODY.rest_positions, True)
    return state_message(live, BODY, "world")


def test_a_state_comes_back() -> None:
    message = state()
    assert list(message.latent) == list(range(6))
    assert message.grip_poses[1].position.x == 0.1
    reading = state_from_message(message, BODY, "world", "state")
    assert reading.stamp_ns == STAMP
    # float32 on the way
    np.testing.assert_allclose(reading.vertices, BODY.rest_positions, rtol=6e-8, atol=0)


def test_a_wrong_state_is_refused() -> None:
    message = state()
    del message.vertices[-3:]
    found = refused(lambda: state_from_message(message, BODY, "world", "state"))
    assert found[0] == "wrong_size"
    message = state()
    message.vertices[5] = float("inf")
    found = refused(lambda: state_from_message(message, BODY, "world", "state"))
    assert found[0] == "non_finite"
    assert "diverged" in found[1]
