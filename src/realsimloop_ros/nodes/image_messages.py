"""Images as messages, and calibrations compared with those of the cell file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo, Image

from realsimloop_ros.nodes.message_checks import MessageError, header
from realsimloop_ros.observation.cameras import Camera

# Bytes per pixel of the encodings that are read.
_CHANNELS = {"rgb8": 3, "bgr8": 3, "mono8": 1}
# A calibration that differs by more than this (pixels; or its numbers, for the distortion) is another one.
_CALIBRATION_TOLERANCE = 1e-3


def image_message(pixels: NDArray[np.uint8], frame: str, stamp: int) -> Image:
    """An rgb8 image of (H, W, 3), or a mono8 one of (H, W)."""
    height, width = pixels.shape[:2]
    encoding = "rgb8" if pixels.ndim == 3 else "mono8"
    message = Image(header=header(frame, stamp), height=height, width=width, encoding=encoding)
    message.step = _CHANNELS[encoding] * width
    # an array takes a hundred times longer: rclpy would check it number by number
    message.data = pixels.tobytes()
    return message


def image_from_message(message: Image, camera: Camera, topic: str) -> NDArray[np.uint8]:
    """Pixels, RGB (H, W, 3), of an rgb8, bgr8 or mono8 image of `camera`; not to be written to. Raises
    MessageError.
    """
    pixels = pixels_of(message, camera, topic)
    if message.encoding == "mono8":
        return np.repeat(pixels[:, :, None], 3, axis=2)
    return np.ascontiguousarray(pixels[:, :, ::-1]) if message.encoding == "bgr8" else pixels


def pixels_of(message: Image, camera: Camera, topic: str) -> NDArray[np.uint8]:
    """(H, W, 3) or (H, W) as encoded."""
    channels = _CHANNELS.get(message.encoding)
    if channels is None:
        raise MessageError(
            "wrong_encoding",
            f"{topic}: encoding is {message.encoding!r}, expected one of {', '.join(_CHANNELS)};"
            " have the driver publish one of these",
        )
    if (message.width, message.height) != (camera.width, camera.height):
        raise MessageError(
            "wrong_size",
            f"{topic}: the image is {message.width} x {message.height}, camera {camera.name!r} is calibrated for"
            f" {camera.width} x {camera.height}; set the driver's resolution, or the cell file's calibration",
        )
    row = channels * message.width
    if message.step < row or len(message.data) != message.step * message.height:
        raise MessageError(
            "wrong_size",
            f"{topic}: step is {message.step} and data has {len(message.data)} bytes, expected a step of at least"
            f" {row} and step times height ({message.height}) bytes; the message is damaged",
        )
    pixels = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)[:, :row]
    return pixels.reshape(message.height, message.width, channels) if channels > 1 else pixels


def calibration_difference(message: CameraInfo, camera: Camera) -> str:
    """In words, how a camera_info differs from the cell file's camera; empty where it does not."""
    if (message.width, message.height) != (camera.width, camera.height):
        return f"it says {message.width} x {message.height} pixels, the cell file {camera.width} x {camera.height}"
    if message.distortion_model not in ("", "plumb_bob"):
        return f"its distortion_model is {message.distortion_model!r}, the cell file's numbers are plumb_bob"
    given = np.asarray(message.k, dtype=np.float64).reshape(3, 3)
    if not np.allclose(given, camera.intrinsics, rtol=0.0, atol=_CALIBRATION_TOLERANCE):
        return f"its k is {given.ravel().tolist()}, the cell file's {camera.intrinsics.ravel().tolist()}"
    d = np.zeros(5)
    d[: min(5, len(message.d))] = message.d[:5]
    if not np.allclose(d, camera.distortion, rtol=0.0, atol=_CALIBRATION_TOLERANCE):
        return f"its d is {list(message.d)}, the cell file's {camera.distortion.tolist()}"
    return ""
