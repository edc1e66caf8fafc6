"""Images as messages, and calibrations compared with those of the cell file."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from realsimloop_ros.nodes.message_checks import MessageError, header
from realsimloop_ros.observation.cameras import Camera

# Bytes per pixel of the encodings that are read.
_CHANNELS = {"rgb8": 3, "bgr8": 3, "mono8": 1}
# Likewise, with OpenCV's names for the mosaics: both name the upper left square of four pixels.
_BAYER = {
    "bayer_rggb8": cv2.COLOR_BayerRGGB2RGB,
    "bayer_bggr8": cv2.COLOR_BayerBGGR2RGB,
    "bayer_gbrg8": cv2.COLOR_BayerGBRG2RGB,
    "bayer_grbg8": cv2.COLOR_BayerGRBG2RGB,
}
_CHANNELS |= dict.fromkeys(_BAYER, 1)
# Depths: their element type, and m per unit.
_DEPTHS = {"16UC1": ("u2", 1e-3), "mono16": ("u2", 1e-3), "32FC1": ("f4", 1.0)}
# What compressed_depth_image_transport writes before the PNG.
_DEPTH_HEADER = 12
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


def depth_message(depth: NDArray[np.float32], frame: str, stamp: int) -> Image:
    """A 32FC1 image of depths (H, W), m, NaN where they are unknown."""
    height, width = depth.shape
    message = Image(header=header(frame, stamp), height=height, width=width, encoding="32FC1", step=4 * width)
    message.data = depth.astype("<f4").tobytes()
    return message


def image_from_message(message: Image | CompressedImage, camera: Camera, topic: str) -> NDArray[np.uint8]:
    """Pixels, RGB (H, W, 3), of an image of `camera`: rgb8, bgr8, mono8 or a bayer mosaic of 8 bits, or compressed
    (JPEG, PNG); not to be written to. Raises MessageError.
    """
    if isinstance(message, CompressedImage):
        pixels = _decoded(message, camera, topic, cv2.IMREAD_COLOR, 0)
        return np.ascontiguousarray(pixels[:, :, ::-1])
    if message.encoding in _BAYER:
        mosaic = np.ascontiguousarray(pixels_of(message, camera, topic))
        return np.asarray(cv2.cvtColor(mosaic, _BAYER[message.encoding]), np.uint8)
    pixels = pixels_of(message, camera, topic)
    if message.encoding == "mono8":
        return np.repeat(pixels[:, :, None], 3, axis=2)
    return np.ascontiguousarray(pixels[:, :, ::-1]) if message.encoding == "bgr8" else pixels


def depth_from_message(message: Image | CompressedImage, camera: Camera, topic: str) -> NDArray[np.float32]:
    """Depths (H, W), m, NaN where they are unknown, of a 16UC1 image in mm, a 32FC1 one in m, or a compressed
    (`compressedDepth`) 16UC1 one, registered to `camera`. Raises MessageError.
    """
    if isinstance(message, CompressedImage):
        if "16UC1" not in message.format:
            raise _wrong_encoding(topic, message.format, ["16UC1; compressedDepth"])
        pixels = _decoded(message, camera, topic, cv2.IMREAD_UNCHANGED, _DEPTH_HEADER)
        if pixels.dtype != np.uint16 or pixels.ndim != 2:
            raise _wrong_encoding(topic, message.format, ["16UC1; compressedDepth"])
        depth = pixels.astype(np.float32) * np.float32(1e-3)
    elif message.encoding in _DEPTHS:
        kind, scale = _DEPTHS[message.encoding]
        element = np.dtype(f"{'>' if message.is_bigendian else '<'}{kind}")
        rows = _rows(message, camera, topic, element.itemsize)
        depth = np.ascontiguousarray(rows).view(element).astype(np.float32) * np.float32(scale)
    else:
        raise _wrong_encoding(topic, message.encoding, list(_DEPTHS))
    # drivers say 0, or an infinity, where they know nothing
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(np.nan))


def pixels_of(message: Image, camera: Camera, topic: str) -> NDArray[np.uint8]:
    """(H, W, 3) or (H, W) as encoded."""
    channels = _CHANNELS.get(message.encoding)
    if channels is None:
        raise _wrong_encoding(topic, message.encoding, list(_CHANNELS))
    pixels = _rows(message, camera, topic, channels)
    return pixels.reshape(message.height, message.width, channels) if channels > 1 else pixels


def _decoded(message: CompressedImage, camera: Camera, topic: str, kind: int, offset: int) -> NDArray:
    """The pixels of a compressed image, whose file begins `offset` bytes into the data."""
    data = np.frombuffer(message.data, np.uint8)[offset:]
    pixels = cv2.imdecode(data, kind) if len(data) else None
    if pixels is None:
        raise MessageError(
            "wrong_encoding",
            f"{topic}: {len(message.data)} bytes of format {message.format!r} cannot be decoded; JPEG and PNG can",
        )
    _check_size(pixels.shape[1], pixels.shape[0], camera, topic)
    return pixels


def _wrong_encoding(topic: str, encoding: str, known: list[str]) -> MessageError:
    return MessageError(
        "wrong_encoding",
        f"{topic}: encoding is {encoding!r}, expected one of {', '.join(known)};"
        " have the driver publish one of these",
    )


def _check_size(width: int, height: int, camera: Camera, topic: str) -> None:
    if (width, height) != (camera.width, camera.height):
        raise MessageError(
            "wrong_size",
            f"{topic}: the image is {width} x {height}, camera {camera.name!r} is calibrated for"
            f" {camera.width} x {camera.height}; set the driver's resolution, or the cell file's calibration",
        )


def _rows(message: Image, camera: Camera, topic: str, bytes_per_pixel: int) -> NDArray[np.uint8]:
    """The bytes of the pixels (H, W bytes_per_pixel), without what pads the rows."""
    _check_size(message.width, message.height, camera, topic)
    row = bytes_per_pixel * message.width
    if message.step < row or len(message.data) != message.step * message.height:
        raise MessageError(
            "wrong_size",
            f"{topic}: step is {message.step} and data has {len(message.data)} bytes, expected a step of at least"
            f" {row} and step times height ({message.height}) bytes; the message is damaged",
        )
    return np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)[:, :row]


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
