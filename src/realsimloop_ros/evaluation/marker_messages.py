"""Motion-capture markers and moving frames as messages and bags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.evaluation.bags import BagError, bag_writer, message_store, read_bag
from realsimloop_ros.evaluation.captures import MarkerCapture, PoseTrack

POSE_STAMPED = "geometry_msgs/msg/PoseStamped"
MARKER_ARRAY = "visualization_msgs/msg/MarkerArray"
_SPHERE, _ADD, _DELETE = 2, 0, 2


def marker_array(
    stamp_ns: int,
    frame: str,
    names: Sequence[str],
    positions: NDArray[np.float64],
    *,
    diameter: float = 0.008,
) -> Any:
    """Motion-capture markers as a MarkerArray: one SPHERE per marker, named in `ns`; DELETE where not seen.

    positions: (k, 3) m in `frame`, NaN where not seen; diameter: m, of the spheres shown.
    """
    types = message_store().types
    stamp = types["builtin_interfaces/msg/Time"](sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    header = types["std_msgs/msg/Header"](stamp=stamp, frame_id=frame)
    point, quaternion = types["geometry_msgs/msg/Point"], types["geometry_msgs/msg/Quaternion"]
    upright = quaternion(x=0.0, y=0.0, z=0.0, w=1.0)
    markers = []
    for name, position in zip(names, positions, strict=True):
        seen = bool(np.isfinite(position).all())
        x, y, z = (float(value) for value in position) if seen else (0.0, 0.0, 0.0)
        markers.append(
            types["visualization_msgs/msg/Marker"](
                header=header,
                ns=name,
                id=0,
                type=_SPHERE,
                action=_ADD if seen else _DELETE,
                pose=types["geometry_msgs/msg/Pose"](position=point(x=x, y=y, z=z), orientation=upright),
                scale=types["geometry_msgs/msg/Vector3"](x=diameter, y=diameter, z=diameter),
                color=types["std_msgs/msg/ColorRGBA"](r=1.0, g=0.45, b=0.1, a=1.0),
                lifetime=types["builtin_interfaces/msg/Duration"](sec=0, nanosec=0),
                frame_locked=False,
                points=[],
                colors=[],
                texture_resource="",
                texture=types["sensor_msgs/msg/CompressedImage"](
                    header=header, format="", data=np.zeros(0, np.uint8)
                ),
                uv_coordinates=[],
                text=name,
                mesh_resource="",
                mesh_file=types["visualization_msgs/msg/MeshFile"](filename="", data=np.zeros(0, np.uint8)),
                mesh_use_embedded_materials=False,
            )
        )
    return types[MARKER_ARRAY](markers=markers)


def pose_stamped(stamp_ns: int, frame: str, pose: NDArray[np.float64]) -> Any:
    """A pose (7,) as a PoseStamped."""
    types = message_store().types
    stamp = types["builtin_interfaces/msg/Time"](sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    x, y, z, *turn = (float(value) for value in pose)
    return types[POSE_STAMPED](
        header=types["std_msgs/msg/Header"](stamp=stamp, frame_id=frame),
        pose=types["geometry_msgs/msg/Pose"](
            position=types["geometry_msgs/msg/Point"](x=x, y=y, z=z),
            orientation=types["geometry_msgs/msg/Quaternion"](*turn),
        ),
    )


def marker_positions(message: Any) -> dict[str, NDArray[np.float64]]:
    """Positions (3,) by name of a MarkerArray (rosbags' or rclpy's); NaN for those that are deleted."""
    found: dict[str, NDArray[np.float64]] = {}
    for marker in message.markers:
        at = marker.pose.position
        seen = marker.action == _ADD
        found[marker.ns] = np.array([at.x, at.y, at.z]) if seen else np.full(3, np.nan)
    return found


def stamp_of(header: Any) -> int:
    """The stamp of a header, ns."""
    return int(header.stamp.sec) * 10**9 + int(header.stamp.nanosec)


def read_marker_bag(path: Path, topic: str = "markers") -> MarkerCapture:
    """Marker tracks of a bag. Markers count from their first appearance on; before it they are NaN.

    Raises BagError, and CaptureError where the topic has no markers.
    """
    stamps: list[int] = []
    rows: list[dict[str, NDArray[np.float64]]] = []
    frames: dict[str, None] = {}
    for entry in read_bag(path, [topic]):
        if entry.message.__msgtype__ != MARKER_ARRAY:
            raise BagError(f"{path}: {topic!r} holds {entry.message.__msgtype__}, expected {MARKER_ARRAY}")
        if not entry.message.markers:
            continue
        stamps.append(stamp_of(entry.message.markers[0].header))
        rows.append(marker_positions(entry.message))
        frames.update(dict.fromkeys(marker.header.frame_id for marker in entry.message.markers))
    if len(frames) > 1:
        raise BagError(f"{path}: markers on {topic!r} come in the frames {list(frames)}; record them in one")
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    positions = np.full((len(rows), len(names), 3), np.nan)
    for t, row in enumerate(rows):
        for k, name in enumerate(names):
            positions[t, k] = row.get(name, positions[t, k])
    return MarkerCapture(str(path), names, np.array(stamps, np.int64), positions, next(iter(frames), ""))


def write_marker_bag(
    path: Path, capture: MarkerCapture, topic: str = "markers", *, progress: Callable[[], None] | None = None
) -> None:
    """Write marker tracks as a bag, stamped as they were captured. progress: called after each frame."""
    with bag_writer(path) as bag:
        for stamp, positions in zip(capture.stamps_ns.tolist(), capture.positions, strict=True):
            bag.write(topic, stamp, marker_array(stamp, capture.frame, capture.names, positions))
            if progress is not None:
                progress()


def read_pose_bag(path: Path, topic: str) -> PoseTrack:
    """The poses on a topic of a bag (geometry_msgs/PoseStamped). Raises BagError and CaptureError."""
    stamps: list[int] = []
    poses: list[list[float]] = []
    frames: dict[str, None] = {}
    for entry in read_bag(path, [topic]):
        if entry.message.__msgtype__ != POSE_STAMPED:
            raise BagError(f"{path}: {topic!r} holds {entry.message.__msgtype__}, expected {POSE_STAMPED}")
        at, turn = entry.message.pose.position, entry.message.pose.orientation
        stamps.append(stamp_of(entry.message.header))
        poses.append([at.x, at.y, at.z, turn.x, turn.y, turn.z, turn.w])
        frames[entry.message.header.frame_id] = None
    if len(frames) > 1:
        raise BagError(f"{path}: poses on {topic!r} come in the frames {list(frames)}; record them in one")
    array = np.array(poses, dtype=np.float64).reshape(-1, 7)
    return PoseTrack(f"{path}: {topic}", next(iter(frames), ""), np.array(stamps, np.int64), array)
