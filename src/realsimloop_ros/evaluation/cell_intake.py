"""From a cell's messages to what an estimator takes. What cannot be used is counted by cause and noted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import InvalidPoseError, checked_poses
from realsimloop_ros.evaluation.cell_messages import CellMessageError, image_array, pose_array, views_of
from realsimloop_ros.evaluation.cell_recording import Notices
from realsimloop_ros.evaluation.marker_messages import marker_positions, stamp_of
from realsimloop_ros.observation.cameras import Camera, CameraError
from realsimloop_ros.observation.cell_file import CellFile
from realsimloop_ros.observation.images import ImagesError
from realsimloop_ros.observation.likelihoods import FrameObservation


class CellIntake:
    """Checks and converts messages.

    cameras: those whose images are used; take_pose(grip, stamp_ns, pose (7,)) is called for every usable pose.
    drops: messages or markers that were not used, by cause.
    """

    def __init__(
        self,
        cell: CellFile,
        body: Body,
        cameras: tuple[Camera, ...],
        take_pose: Callable[[str, int, NDArray[np.float64]], None],
        notices: Notices,
    ) -> None:
        self._cell, self._body, self._cameras = cell, body, cameras
        self._take_pose = take_pose
        self._notices = notices
        self.drops: Counter[str] = Counter()

    def drop(self, cause: str, text: str) -> None:
        """Count a message that is not used; the first text of a cause and topic is noted."""
        self.drops[cause] += 1
        self._notices.warn(text)

    def pose(self, grip: str, topic: str, message: Any) -> None:
        """A PoseStamped of the frame that carries a grip."""
        if not self._in_world(topic, message.header.frame_id):
            return
        try:
            pose = checked_poses(pose_array(message.pose), topic)
        except InvalidPoseError:
            self.drop("invalid_pose", f"{topic}: poses that are not finite or whose quaternion is not of length 1")
            return
        self._take_pose(grip, stamp_of(message.header), pose)

    def wrench(self, topic: str, frame: str, message: Any) -> NDArray[np.float64] | None:
        """A WrenchStamped (6,) of a tool's frame, N and N m."""
        if not self._in_frame(topic, message.header.frame_id, frame):
            return None
        force, torque = message.wrench.force, message.wrench.torque
        values = np.array([force.x, force.y, force.z, torque.x, torque.y, torque.z])
        if not np.isfinite(values).all():
            self.drop("invalid_wrench", f"{topic}: wrenches that are not finite")
            return None
        return values

    def observation(self, topic: str, message: Any) -> FrameObservation | None:
        """A MultiViewFrame."""
        expected = self._body.content_hash
        if message.body_hash != expected:
            self.drop(
                "wrong_body",
                f"{topic}: frames of body {message.body_hash[:12]}, but the cell's model is of {expected[:12]}; "
                "evaluate with the cell file of the recording",
            )
            return None
        if not self._in_world(topic, message.header.frame_id):
            return None
        try:
            views = views_of(message, self._cameras)
        except (CellMessageError, ImagesError) as error:
            self.drop("invalid_images", f"{topic}: {error}")
            return None
        return FrameObservation(stamp_of(message.header), views=views)

    def image(self, camera: Camera, topic: str, message: Any) -> NDArray[np.uint8] | None:
        """An image of a camera, RGB (H, W, 3)."""
        try:
            pixels = image_array(message)
            if pixels.ndim == 2:
                pixels = np.repeat(pixels[:, :, None], 3, axis=2)
            camera.check_size(pixels)
        except (CellMessageError, CameraError) as error:
            self.drop("invalid_images", f"{topic}: {error}")
            return None
        return pixels

    def markers(self, topic: str, message: Any) -> FrameObservation | None:
        """A MarkerArray of motion-capture markers."""
        if not message.markers:
            return None
        first = message.markers[0].header
        frames = {marker.header.frame_id for marker in message.markers}
        if not all(self._in_world(topic, frame) for frame in sorted(frames)):
            return None
        found = marker_positions(message)
        names = self._body.marker_names
        for name in found.keys() - set(names):
            self.drop("unknown_marker", f"{topic}: marker {name!r} is none of the body's {', '.join(names)}")
        positions = np.full((len(names), 3), np.nan)
        deleted = {marker.ns for marker in message.markers if marker.action != 0}
        for k, name in enumerate(names):
            positions[k] = found.get(name, positions[k])
            if name in found and name not in deleted and not np.isfinite(positions[k]).all():
                positions[k] = np.nan
                self.drop(
                    "marker_not_finite",
                    f"{topic}: marker {name!r} has positions that are not finite; it counts as not seen there",
                )
        return FrameObservation(stamp_of(first), marker_positions=positions)

    def _in_world(self, topic: str, frame: str) -> bool:
        return self._in_frame(topic, frame, self._cell.world_frame)

    def _in_frame(self, topic: str, frame: str, expected: str) -> bool:
        if frame == expected:
            return True
        self.drop(
            "wrong_frame",
            f"{topic}: messages in frame {frame!r}, expected {expected!r}; they are left out. Record them in that "
            "frame, or name it in the cell file",
        )
        return False
