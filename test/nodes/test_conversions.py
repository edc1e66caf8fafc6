"""Messages to arrays and back, and what is said about messages that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cv2
import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped
from realsimloop.msg import BodyState, MaterialEstimate, MultiViewFrame
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from visualization_msgs.msg import Marker, MarkerArray

from nodes.small_cell import SECOND, small_body
from realsimloop_ros.dynamics.live import LiveState
from realsimloop_ros.estimation.updates import MaterialUpdate, UpdateStatus
from realsimloop_ros.evaluation.cell_messages import views_of
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
from realsimloop_ros.nodes.image_messages import (
    calibration_difference,
    depth_from_message,
    image_from_message,
    image_message,
)
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


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_a_mosaic_becomes_rgb(pattern: str) -> None:
    colour = {"r": 200, "g": 90, "b": 20}
    square = np.array([colour[letter] for letter in pattern], np.uint8).reshape(2, 2)
    message = image_message(np.tile(square, (HEIGHT // 2, WIDTH // 2)), "optical", STAMP)
    message.encoding = f"bayer_{pattern}8"
    found = image_from_message(message, camera(), "image")
    # one colour everywhere: interpolation between the pixels of a channel changes nothing
    np.testing.assert_array_equal(found, np.full((HEIGHT, WIDTH, 3), [200, 90, 20]))


def test_compressed_images_become_rgb() -> None:
    def compressed(kind: str) -> CompressedImage:
        data = cv2.imencode(f".{kind}", np.ascontiguousarray(smooth[:, :, ::-1]))[1].tobytes()
        return CompressedImage(header=header("optical", STAMP), format=f"rgb8; {kind} compressed bgr8", data=data)

    smooth = np.add.outer(np.arange(HEIGHT), np.arange(WIDTH))[:, :, None] * np.array([5, 3, 1]) + 100
    smooth = smooth.astype(np.uint8)
    np.testing.assert_array_equal(image_from_message(compressed("png"), camera(), "image"), smooth)
    # JPEG at OpenCV's default quality is off by a few grey levels
    assert np.abs(image_from_message(compressed("jpeg"), camera(), "image").astype(int) - smooth).max() < 12
    cause, text = refused(
        lambda: image_from_message(CompressedImage(format="jpeg", data=b"nothing"), camera(), "c/compressed")
    )
    assert cause == "wrong_encoding" and "c/compressed: 7 bytes of format 'jpeg'" in text
    larger = replace(camera(), width=16)
    assert refused(lambda: image_from_message(compressed("png"), larger, "image"))[0] == "wrong_size"


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("encoding", ["16UC1", "32FC1"])
def test_depths_become_metres(encoding: str, big_endian: bool) -> None:
    depth = np.linspace(0.4, 1.3, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
    depth[0, 0], unknown = 0.0, np.zeros((HEIGHT, WIDTH), bool)
    unknown[0, 0] = True
    order = ">" if big_endian else "<"
    if encoding == "16UC1":
        data = np.rint(1000 * depth).astype(f"{order}u2")
    else:
        depth[2, 3:5] = np.nan, np.inf
        unknown[2, 3:5] = True
        data = depth.astype(f"{order}f4")
    rows = data.view(np.uint8).reshape(HEIGHT, -1)
    padded = np.concatenate([rows, np.zeros((HEIGHT, 4), np.uint8)], axis=1)
    message = Image(height=HEIGHT, width=WIDTH, encoding=encoding, step=padded.shape[1], is_bigendian=big_endian)
    message.data = padded.tobytes()
    found = depth_from_message(message, camera(), "depth")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(found), unknown)
    # whole millimetres, or float32
    np.testing.assert_allclose(found[~unknown], depth[~unknown], atol=5.01e-4 if encoding == "16UC1" else 1e-7)


def test_compressed_depths_become_metres() -> None:
    depth = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) + 400
    # as compressed_depth_image_transport writes it: an enumeration and two floats before the PNG
    data = bytes(12) + cv2.imencode(".png", depth)[1].tobytes()
    message = CompressedImage(format="16UC1; compressedDepth png", data=data)
    np.testing.assert_allclose(depth_from_message(message, camera(), "depth"), depth * 1e-3, rtol=1e-6)
    message.format = "32FC1; compressedDepth png"
    assert "expected one of 16UC1" in refused(lambda: depth_from_message(message, camera(), "depth"))[1]
    wrong = image_message(PIXELS, "optical", STAMP)
    cause, text = refused(lambda: depth_from_message(wrong, camera(), "depth"))
    assert cause == "wrong_encoding" and "expected one of 16UC1, mono16, 32FC1" in text


def test_depths_of_an_observation_come_back() -> None:
    depth = RANDOM.uniform(0.3, 2.0, (2, HEIGHT, WIDTH)).astype(np.float32)
    depth[0, :2] = np.nan
    depth[1] = np.nan  # a camera that measures none
    original = replace(views(), depth=depth)
    message = multi_view_message(original, ("fa", "fb"), BODY, "world", STAMP, 0)
    assert [len(entry.data) > 0 for entry in message.depths] == [True, False]
    _, found = multi_view_from_message(message, original.cameras[::-1], BODY, "world", "observation")
    np.testing.assert_array_equal(found.depth, depth[::-1])
    np.testing.assert_array_equal(views_of(message, original.cameras).depth, depth)
    message.depths = message.depths[:1]
    cause, text = refused(lambda: multi_view_from_message(message, original.cameras, BODY, "world", "observation"))
    assert cause == "wrong_size" and "depths has 1 entries, expected 2 or none" in text


def test_rows_may_be_padded() -> None:
    padded = np.concatenate([PIXELS.reshape(HEIGHT, -1), np.zeros((HEIGHT, 5), np.uint8)], axis=1)
    message = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH + 5, data=padded.tobytes())
    np.testing.assert_array_equal(image_from_message(message, camera(), "image"), PIXELS)


@pytest.mark.parametrize(
    ("field", "value", "cause", "text"),
    [
        (
            "encoding",
            "yuv422",
            "wrong_encoding",
            "encoding is 'yuv422', expected one of rgb8, bgr8",
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
