"""Where grips and fixtures put the vertices they hold, and what grips feel of the forces there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import checked_poses, compose, inverse, rotation_matrix, transform_points


def held_positions(body: Body, grip_poses: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Positions (n, 3) with the held vertices where grips and fixtures put them, the others at rest, m.

    grip_poses: (g, 7) in the order of body.grips, or None where there are none. Raises ValueError or its kind
    InvalidPoseError.
    """
    x = body.rest_positions.copy()
    if body.grips:
        poses = checked_poses(np.zeros((0, 7)) if grip_poses is None else grip_poses, "grip_poses")
        if poses.shape != (len(body.grips), 7):
            raise ValueError(
                f"grip_poses: shape {poses.shape}, expected ({len(body.grips)}, 7) for {body.grip_names}"
            )
        for grip, pose in zip(body.grips, poses, strict=True):
            motion = compose(pose, inverse(grip.rest_pose))
            x[grip.vertices] = transform_points(motion, body.rest_positions[grip.vertices])
    return x


def grip_wrenches(
    body: Body,
    positions: NDArray[np.float64],
    reactions: NDArray[np.float64],
    grip_poses: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Force and moment (g, 6), N and N m, that the body exerts on each grip, in the grip's frame.

    positions: (n, 3) m; reactions: (n, 3) N, with which what holds the body acts on the vertices.
    """
    wrenches = np.zeros((len(body.grips), 6))
    for k, (grip, pose) in enumerate(zip(body.grips, checked_poses(grip_poses), strict=True)):
        force = -reactions[grip.vertices]
        arm = positions[grip.vertices] - pose[:3]
        rotation = rotation_matrix(pose)
        wrenches[k, :3] = rotation.T @ force.sum(axis=0)
        wrenches[k, 3:] = rotation.T @ np.cross(arm, force).sum(axis=0)
    return wrenches
