"""Rigid poses as seven numbers, x y z qx qy qz qw (m, unit quaternion in ROS order)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation, Slerp

IDENTITY_POSE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])


class InvalidPoseError(ValueError):
    """A pose that is no rigid transform."""


def checked_poses(poses: ArrayLike, field: str = "poses") -> NDArray[np.float64]:
    """Poses (..., 7) as float64 with unit quaternions.

    Raises InvalidPoseError, naming `field`, on wrong sizes, non-finite numbers and quaternions whose norm is
    further than 1e-3 from one (rounding of float32 messages stays below 1e-6).
    """
    array = np.asarray(poses, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] != 7:
        raise InvalidPoseError(f"{field}: shape {array.shape}, expected (..., 7) as x y z qx qy qz qw")
    if not np.isfinite(array).all():
        raise InvalidPoseError(f"{field}: non-finite numbers in {array.tolist()}; send only valid poses")
    norms = np.linalg.norm(array[..., 3:], axis=-1, keepdims=True)
    if np.abs(norms - 1.0).max(initial=0.0) > 1e-3:
        raise InvalidPoseError(f"{field}: quaternion norm {norms.ravel().tolist()}, expected 1; normalise it")
    return np.concatenate([array[..., :3], array[..., 3:] / norms], axis=-1)


def rotation_matrix(pose: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation matrices (..., 3, 3) of poses (..., 7)."""
    return Rotation.from_quat(pose[..., 3:].reshape(-1, 4)).as_matrix().reshape(*pose.shape[:-1], 3, 3)


def make_pose(position: ArrayLike, rotation: Rotation) -> NDArray[np.float64]:
    """Pose (7,) from a position (3,) in m and a rotation."""
    return np.concatenate([np.asarray(position, dtype=np.float64), rotation.as_quat()])


def compose(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """first * second: `second` is given in the frame of `first`; both (7,)."""
    rotation = Rotation.from_quat(first[3:])
    return make_pose(first[:3] + rotation.apply(second[:3]), rotation * Rotation.from_quat(second[3:]))


def inverse(pose: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse rigid transform, (7,)."""
    rotation = Rotation.from_quat(pose[3:]).inv()
    return make_pose(-rotation.apply(pose[:3]), rotation)


def transform_points(pose: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points (k, 3) given in the frame of `pose`, expressed in its parent, m."""
    return Rotation.from_quat(pose[3:]).apply(points) + pose[:3]


def interpolate(stamps: NDArray[np.int64], poses: NDArray[np.float64], stamp: int) -> NDArray[np.float64]:
    """Pose at `stamp` (ns) between samples `stamps` (t,) ascending, poses (t, 7); held beyond the ends."""
    if stamp <= stamps[0]:
        return poses[0]
    if stamp >= stamps[-1]:
        return poses[-1]
    after = int(np.searchsorted(stamps, stamp, side="right"))
    before = after - 1
    fraction = (stamp - stamps[before]) / (stamps[after] - stamps[before])
    position = (1.0 - fraction) * poses[before, :3] + fraction * poses[after, :3]
    rotations = Slerp([0.0, 1.0], Rotation.from_quat(poses[before : after + 1, 3:]))
    return make_pose(position, rotations(fraction))
