"""Calibrated cameras: projection, distortion and rectification.

Pixel convention: that of OpenCV and of ROS `camera_info`: the centre of the upper left pixel is (0, 0), so the
principal point of a centred 160 x 120 camera is (79.5, 59.5). The rasterizers keep to it as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

Array = NDArray[np.float64]


class CameraError(ValueError):
    """A camera's description is not usable; the text names camera, field, value and remedy."""


def _read_only(camera: str, field: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """`value` as a read-only float64 array of `shape`; raises CameraError otherwise."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise CameraError(f"camera '{camera}': {field} is not numeric: {value!r}") from error
    if array.shape != shape:
        raise CameraError(f"camera '{camera}': {field} has shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        raise CameraError(f"camera '{camera}': {field} has a value that is not finite: {array.tolist()}")
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera with plumb-bob distortion at a fixed pose.

    name: unique within the cell.
    width, height: pixels.
    intrinsics: (3, 3), [[fx, 0, cx], [0, fy, cy], [0, 0, 1]] in pixels.
    distortion: (5,), k1 k2 p1 p2 k3 (`plumb_bob` of camera_info).
    world_from_camera: (7,), x y z in m and quaternion qx qy qz qw of the optical frame (z forward, x right,
        y down) in the world frame.
    Raises CameraError.
    """

    name: str
    width: int
    height: int
    intrinsics: Array
    distortion: Array
    world_from_camera: Array

    def __post_init__(self) -> None:
        if not self.name:
            raise CameraError("camera without a name: give every camera one that is unique in the cell")
        for field in ("width", "height"):
            size = getattr(self, field)
            if int(size) != size or not 1 <= size <= 16384:
                raise CameraError(f"camera '{self.name}': {field} is {size}, expected 1 to 16384 pixels")
            object.__setattr__(self, field, int(size))
        intrinsics = _read_only(self.name, "intrinsics", self.intrinsics, (3, 3))
        if intrinsics[0, 0] <= 0 or intrinsics[1, 1] <= 0:
            raise CameraError(
                f"camera '{self.name}': focal lengths in intrinsics are {intrinsics[0, 0]} and"
                f" {intrinsics[1, 1]}, expected positive pixels; is the camera calibrated?"
            )
        if np.any(intrinsics[[0, 1, 2, 2, 2], [1, 0, 0, 1, 2]] != (0, 0, 0, 0, 1)):
            raise CameraError(
                f"camera '{self.name}': intrinsics is {intrinsics.tolist()}, expected"
                " [[fx, 0, cx], [0, fy, cy], [0, 0, 1]] without skew"
            )
        pose = np.array(_read_only(self.name, "world_from_camera", self.world_from_camera, (7,)))
        norm = float(np.linalg.norm(pose[3:]))
        if abs(norm - 1) > 1e-3:
            raise CameraError(
                f"camera '{self.name}': the quaternion of world_from_camera {pose[3:].tolist()} has length"
                f" {norm:.6g}, expected 1 (order qx qy qz qw)"
            )
        pose[3:] /= norm
        pose.setflags(write=False)
        object.__setattr__(self, "intrinsics", intrinsics)
        object.__setattr__(self, "distortion", _read_only(self.name, "distortion", self.distortion, (5,)))
        object.__setattr__(self, "world_from_camera", pose)

    @cached_property
    def camera_from_world(self) -> Array:
        """(4, 4): maps homogeneous world points into the optical frame."""
        rotation = Rotation.from_quat(self.world_from_camera[3:]).as_matrix()
        matrix = np.eye(4)
        matrix[:3, :3] = rotation.T
        matrix[:3, 3] = -rotation.T @ self.world_from_camera[:3]
        matrix.setflags(write=False)
        return matrix

    @property
    def centre(self) -> Array:
        """(3,): the optical centre in the world, m."""
        return self.world_from_camera[:3]

    @property
    def is_rectified(self) -> bool:
        """Whether the camera is a pure pinhole, as the rasterizers need it."""
        return not self.distortion.any()

    @cached_property
    def rectified(self) -> Camera:
        """The pinhole camera whose images `undistort` gives: same intrinsics and pose, no distortion."""
        return self if self.is_rectified else replace(self, distortion=np.zeros(5))

    def in_camera(self, points: ArrayLike) -> Array:
        """World points (..., 3) in the optical frame (..., 3), m."""
        matrix = self.camera_from_world
        return np.asarray(points, dtype=np.float64) @ matrix[:3, :3].T + matrix[:3, 3]

    def project(self, points: ArrayLike) -> tuple[Array, Array]:
        """World points (..., 3) -> distorted pixels (..., 2) and depths (...) in m.

        Points at or behind the camera plane get NaN pixels and their depth, which is <= 0.
        """
        local = self.in_camera(points)
        depth = local[..., 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            plane = np.where(depth[..., None] > 0, local[..., :2] / depth[..., None], np.nan)
        return self.to_pixels(self.distort(plane)), depth

    def distort(self, plane: Array) -> Array:
        """Normalised image coordinates (..., 2) without distortion -> with it (plumb-bob model)."""
        k1, k2, p1, p2, k3 = self.distortion
        x, y = plane[..., 0], plane[..., 1]
        square = x * x + y * y
        radial = 1 + square * (k1 + square * (k2 + square * k3))
        return np.stack(
            [
                x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x),
                y * radial + p1 * (square + 2 * y * y) + 2 * p2 * x * y,
            ],
            axis=-1,
        )

    def to_pixels(self, plane: Array) -> Array:
        """Normalised image coordinates (..., 2) -> pixels (..., 2)."""
        matrix = self.intrinsics
        return plane * (matrix[0, 0], matrix[1, 1]) + (matrix[0, 2], matrix[1, 2])

    @cached_property
    def undistortion_maps(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Fixed-point maps for cv2.remap, computed once per camera."""
        first, second = cv2.initUndistortRectifyMap(
            np.array(self.intrinsics),
            np.array(self.distortion),
            np.eye(3),
            np.array(self.intrinsics),
            (self.width, self.height),
            cv2.CV_16SC2,
        )
        return first, second

    def undistort(self, image: NDArray[Any]) -> NDArray[Any]:
        """An image (H, W) or (H, W, 3) as `rectified` would have taken it; black where it was not seen.

        Raises CameraError where the image has another size than the camera.
        """
        self.check_size(image)
        if self.is_rectified:
            return image
        first, second = self.undistortion_maps
        return cv2.remap(image, first, second, cv2.INTER_LINEAR)

    def undistort_mask(self, mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A mask (H, W) of 0 and 255 likewise: 255 where the interpolated mask is above a half.

        Nearest neighbours would not do: with fixed-point maps they are rounded down, which moves every mask by
        almost half a pixel up and to the left.
        """
        return np.where(self.undistort(mask) > 127, np.uint8(255), np.uint8(0))

    def undistort_depth(self, depth: NDArray[np.float32]) -> NDArray[np.float32]:
        """Depths (H, W), m, as `rectified` would have measured them; NaN where they are unknown.

        Depth is measured along the optical axis, which undistortion keeps. Nearest neighbours, for the mean of the
        depths on both sides of an edge is the depth of nothing.
        """
        self.check_size(depth)
        if self.is_rectified:
            return depth
        columns, rows = self._nearest_pixels
        return cv2.remap(  # type: ignore[return-value]  # OpenCV's signature leaves the element type open
            depth, columns, rows, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=(np.nan,)
        )

    @cached_property
    def _nearest_pixels(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Columns and rows (H, W) of the distorted image's pixels nearest to those of the rectified one."""
        maps = cv2.convertMaps(*self.undistortion_maps, cv2.CV_32FC1)
        columns, rows = (np.rint(values).astype(np.float32) for values in maps)
        return columns, rows

    def check_size(self, image: NDArray[Any]) -> None:
        """Raises CameraError where `image` (H, W, ...) has another size than the camera."""
        if image.shape[:2] != (self.height, self.width):
            raise CameraError(
                f"camera '{self.name}': the image is {image.shape[1]} x {image.shape[0]}, its calibration is for"
                f" {self.width} x {self.height}; scale the calibration with Camera.scaled"
            )

    def scaled(self, factor: float) -> Camera:
        """The same camera with images resized by `factor` (pixel areas averaged, cv2.INTER_AREA).

        Raises CameraError where the size would not stay whole.
        """
        width, height = self.width * factor, self.height * factor
        if abs(width - round(width)) > 1e-9 or abs(height - round(height)) > 1e-9 or factor <= 0:
            raise CameraError(f"camera '{self.name}': scaling by {factor} gives {width} x {height} pixels")
        matrix = np.array(self.intrinsics)
        matrix[0, 0] *= factor
        matrix[1, 1] *= factor
        # Pixel centres lie at whole numbers, so edges, not centres, scale about zero.
        matrix[:2, 2] = (matrix[:2, 2] + 0.5) * factor - 0.5
        return replace(self, width=round(width), height=round(height), intrinsics=matrix)

    def cropped(self, left: int, top: int, width: int, height: int) -> Camera:
        """The pinhole camera of a window of the rectified image.

        Raises CameraError where the window leaves the image.
        """
        if left < 0 or top < 0 or left + width > self.width or top + height > self.height:
            raise CameraError(
                f"camera '{self.name}': window {width} x {height} at ({left}, {top}) leaves the"
                f" {self.width} x {self.height} image"
            )
        matrix = np.array(self.intrinsics)
        matrix[:2, 2] -= (left, top)
        return replace(self, width=width, height=height, intrinsics=matrix, distortion=np.zeros(5))


def look_at(position: ArrayLike, target: ArrayLike, up: ArrayLike = (0.0, 0.0, 1.0)) -> Array:
    """Pose (7,) of an optical frame at `position` (3,) whose z axis points at `target` (3,), image up along `up`.

    Raises CameraError where position, target and up are collinear.
    """
    forward = np.asarray(target, dtype=np.float64) - np.asarray(position, dtype=np.float64)
    right = np.cross(forward, np.asarray(up, dtype=np.float64))
    if np.linalg.norm(right) < 1e-9 * max(float(np.linalg.norm(forward)), 1.0):
        raise CameraError(f"look_at: position {position!r}, target {target!r} and up {up!r} are collinear")
    z = forward / np.linalg.norm(forward)
    x = right / np.linalg.norm(right)
    quaternion = Rotation.from_matrix(np.stack([x, np.cross(z, x), z], axis=1)).as_quat()
    return np.concatenate([np.asarray(position, dtype=np.float64), quaternion])


@dataclass(frozen=True, eq=False)
class PinholeViews:
    """Cameras as the rasterizers need them: camera_from_world (K, 4, 4), intrinsics (K, 3, 3), one image size."""

    camera_from_world: Array
    intrinsics: Array
    width: int
    height: int

    @property
    def count(self) -> int:
        """K, the number of views."""
        return len(self.intrinsics)


def pinhole_views(cameras: Sequence[Camera]) -> PinholeViews:
    """The views of rectified cameras of one image size.

    Raises CameraError where a camera still has distortion or another size.
    """
    if not cameras:
        raise CameraError("no camera given: at least one is needed")
    for camera in cameras:
        if not camera.is_rectified:
            raise CameraError(
                f"camera '{camera.name}': distortion is {camera.distortion.tolist()}, but splats are drawn"
                " through pinhole cameras; rectify the views first (images.rectify)"
            )
        if (camera.width, camera.height) != (cameras[0].width, cameras[0].height):
            raise CameraError(
                f"camera '{camera.name}': {camera.width} x {camera.height} pixels, but '{cameras[0].name}'"
                f" has {cameras[0].width} x {cameras[0].height}; scale or crop all views to one size"
            )
    return PinholeViews(
        np.stack([camera.camera_from_world for camera in cameras]),
        np.stack([camera.intrinsics for camera in cameras]),
        cameras[0].width,
        cameras[0].height,
    )
