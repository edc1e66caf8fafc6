"""Messages of a cell as arrays. Only field names matter, so messages of rosbags and of rclpy are both taken."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.images import MultiViewImages

_CHANNELS = {"rgb8": 3, "bgr8": 3, "mono8": 1}


class CellMessageError(ValueError):
    """A message that does not say what its type promises; the text names the field."""


def pose_array(pose: Any) -> NDArray[np.float64]:
    """A geometry_msgs/Pose as (7,), unchecked."""
    p, q = pose.position, pose.orientation
    return np.array([p.x, p.y, p.z, q.x, q.y, q.z, q.w])


def image_array(message: Any) -> NDArray[np.uint8]:
    """A sensor_msgs/Image of encoding rgb8, bgr8 or mono8: RGB (H, W, 3), or (H, W). Raises CellMessageError."""
    channels = _CHANNELS.get(message.encoding)
    if channels is None:
        raise CellMessageError(
            f"encoding: {message.encoding!r}, expected one of {', '.join(_CHANNELS)}; convert the images"
        )
    height, width, step = message.height, message.width, message.step
    data = np.frombuffer(message.data, np.uint8)
    if step < width * channels or data.size != height * step:
        raise CellMessageError(f"data: {data.size} bytes, expected {height} rows of {step}, {width} pixels each")
    pixels = data.reshape(height, step)[:, : width * channels]
    if channels == 1:
        return pixels
    pixels = pixels.reshape(height, width, 3)
    return np.ascontiguousarray(pixels[..., ::-1]) if message.encoding == "bgr8" else pixels


def depth_array(message: Any) -> NDArray[np.float32]:
    """A sensor_msgs/Image of encoding 32FC1: depths (H, W), m, NaN where unknown. Raises CellMessageError."""
    data = np.frombuffer(message.data, "<f4")
    if message.encoding != "32FC1" or data.size != message.height * message.width:
        raise CellMessageError(
            f"depths: {message.encoding!r} of {data.size} numbers, expected 32FC1 of"
            f" {message.height * message.width}"
        )
    return data.reshape(message.height, message.width)


def views_of(message: Any, cameras: tuple[Camera, ...]) -> MultiViewImages:
    """The views of `cameras`, of one image size, in a MultiViewFrame; cameras that it does not name are
    unavailable.

    Raises CellMessageError, and ImagesError where a mask has other values than 0 and 255.
    """
    places = {name: k for k, name in enumerate(message.camera_names)}
    shape = (len(cameras), cameras[0].height, cameras[0].width)
    images, masks = np.zeros((*shape, 3), np.uint8), np.zeros(shape, np.uint8)
    available = np.zeros(len(cameras), bool)
    # recordings of earlier versions have no such field
    depth = np.full(shape, np.nan, np.float32) if len(getattr(message, "depths", ())) else None
    for k, camera in enumerate(cameras):
        place = places.get(camera.name)
        if place is None or not message.available[place]:
            continue
        for label, target, source in (("images", images, message.images), ("masks", masks, message.masks)):
            pixels = image_array(source[place])
            if pixels.shape != target.shape[1:]:
                raise CellMessageError(
                    f"{label} of {camera.name}: {pixels.shape}, expected {target.shape[1:]} as the cell file says"
                )
            target[k] = pixels
        available[k] = True
        if depth is not None and len(message.depths[place].data):
            depth[k] = depth_array(message.depths[place])
    return MultiViewImages(cameras, images, masks, available, depth)


def vertices_of(message: Any) -> NDArray[np.float64]:
    """The vertices (n, 3) of a BodyState, m."""
    return np.asarray(message.vertices, np.float64).reshape(-1, 3)
