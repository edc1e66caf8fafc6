"""What a virtual cell measures, as ROS messages. Stamps in ns, poses x y z qx qy qz qw in m."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import (
    Point,
    Pose,
    PoseStamped,
    Quaternion,
    Transform,
    TransformStamped,
    Vector3,
    Wrench,
    WrenchStamped,
)
from numpy.typing import ArrayLike, NDArray
from realsimloop.msg import BodyState
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import ColorRGBA, Header
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import Marker, MarkerArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.cell.virtual_cell import ArmReport, TruthReport
from realsimloop_ros.control.ur5e import JOINT_NAMES
from realsimloop_ros.observation.cell_file import CameraEntry, CellFile

_MARKER_DIAMETER = 0.008  # m, as shown


def time_message(stamp_ns: int) -> Time:
    """A stamp."""
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    return Time(sec=seconds, nanosec=nanoseconds)


def header(frame: str, stamp_ns: int) -> Header:
    """A header."""
    return Header(stamp=time_message(stamp_ns), frame_id=frame)


def pose_message(pose: ArrayLike) -> Pose:
    """A pose (7,)."""
    x, y, z, qx, qy, qz, qw = map(float, np.asarray(pose))
    return Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))


def pose_array(pose: Pose) -> NDArray[np.float64]:
    """A message's pose as (7,), unchecked."""
    p, q = pose.position, pose.orientation
    return np.array([p.x, p.y, p.z, q.x, q.y, q.z, q.w])


def pose_stamped(pose: ArrayLike, frame: str, stamp_ns: int) -> PoseStamped:
    """A pose (7,) in `frame`."""
    return PoseStamped(header=header(frame, stamp_ns), pose=pose_message(pose))


def wrench_stamped(wrench: ArrayLike, frame: str, stamp_ns: int) -> WrenchStamped:
    """Force and moment (6,), N and N m, in `frame`."""
    fx, fy, fz, mx, my, mz = map(float, np.asarray(wrench))
    force, torque = Vector3(x=fx, y=fy, z=fz), Vector3(x=mx, y=my, z=mz)
    return WrenchStamped(header=header(frame, stamp_ns), wrench=Wrench(force=force, torque=torque))


def joint_state(report: ArmReport, stamp_ns: int) -> JointState:
    """An arm's joints, named as in the cell's URDF."""
    return JointState(
        header=header("", stamp_ns),
        name=[f"{report.arm}_{joint}" for joint in JOINT_NAMES],
        position=report.joint_positions.tolist(),
        velocity=report.joint_velocities.tolist(),
    )


def frames(poses: Mapping[str, ArrayLike], parent: str, stamp_ns: int) -> TFMessage:
    """Frames by name, their poses (7,) in `parent`."""
    transforms = []
    for child, pose in poses.items():
        message = pose_message(pose)
        p = message.position
        transforms.append(
            TransformStamped(
                header=header(parent, stamp_ns),
                child_frame_id=child,
                transform=Transform(translation=Vector3(x=p.x, y=p.y, z=p.z), rotation=message.orientation),
            )
        )
    return TFMessage(transforms=transforms)


def camera_frames(cell: CellFile, stamp_ns: int) -> TFMessage:
    """The frames of a cell's cameras."""
    poses = {camera.frame: camera.world_from_camera for camera in cell.cameras}
    return frames(poses, cell.world_frame, stamp_ns)


def image(pixels: NDArray[np.uint8], frame: str, stamp_ns: int) -> Image:
    """An RGB image (H, W, 3)."""
    height, width, _ = pixels.shape
    message = Image(header=header(frame, stamp_ns), height=height, width=width, encoding="rgb8", step=3 * width)
    # an array takes a hundred times longer: rclpy would check it number by number
    message.data = pixels.tobytes()
    return message


def camera_info(camera: CameraEntry, stamp_ns: int) -> CameraInfo:
    """A camera's calibration."""
    lens = camera.intrinsics
    return CameraInfo(
        header=header(camera.frame, stamp_ns),
        height=camera.height,
        width=camera.width,
        distortion_model="plumb_bob",
        d=[float(value) for value in camera.distortion],
        k=[lens.fx, 0.0, lens.cx, 0.0, lens.fy, lens.cy, 0.0, 0.0, 1.0],
        r=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p=[lens.fx, 0.0, lens.cx, 0.0, 0.0, lens.fy, lens.cy, 0.0, 0.0, 0.0, 1.0, 0.0],
    )


def marker_array(names: Sequence[str], positions: NDArray[np.float64], frame: str, stamp_ns: int) -> MarkerArray:
    """Motion-capture markers (k, 3) in `frame`: a sphere each, its name in `ns`; DELETE where one is lost."""
    markers = []
    for name, position in zip(names, positions, strict=True):
        seen = bool(np.isfinite(position).all())
        x, y, z = (float(value) for value in (position if seen else np.zeros(3)))
        markers.append(
            Marker(
                header=header(frame, stamp_ns),
                ns=name,
                type=Marker.SPHERE,
                action=Marker.ADD if seen else Marker.DELETE,
                pose=Pose(position=Point(x=x, y=y, z=z)),
                scale=Vector3(x=_MARKER_DIAMETER, y=_MARKER_DIAMETER, z=_MARKER_DIAMETER),
                color=ColorRGBA(r=1.0, g=0.45, b=0.1, a=1.0),
            )
        )
    return MarkerArray(markers=markers)


def true_state(report: TruthReport, body: Body, frame: str, stamp_ns: int) -> BodyState:
    """The true shape; `body` is the true body, on the truth's own mesh."""
    message = BodyState(
        header=header(frame, stamp_ns),
        body_hash=body.content_hash,
        grip_names=list(body.grip_names),
        grip_poses=[pose_message(pose) for pose in report.tool_poses],
        converged=True,
    )
    message.vertices.frombytes(report.positions.astype(np.float32).tobytes())
    return message
