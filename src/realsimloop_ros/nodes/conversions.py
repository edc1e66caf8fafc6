"""Messages to arrays and back, with every check of what comes from outside (images alone: image_messages).

Stamps are integer nanoseconds, poses x y z qx qy qz qw in m. What cannot be used raises MessageError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion, WrenchStamped
from numpy.typing import ArrayLike, NDArray
from realsimloop.msg import BodyState, MaterialEstimate, MultiViewFrame, StressField
from sensor_msgs.msg import Image
from visualization_msgs.msg import Marker, MarkerArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import InvalidPoseError, checked_poses
from realsimloop_ros.dynamics.live import LiveState
from realsimloop_ros.estimation.updates import MaterialUpdate
from realsimloop_ros.mechanics.material import InvalidMaterialError, Material, material_of
from realsimloop_ros.mechanics.stress import StressField as StressArrays
from realsimloop_ros.nodes.image_messages import (
    depth_from_message,
    depth_message,
    image_from_message,
    image_message,
    pixels_of,
)
from realsimloop_ros.nodes.message_checks import MessageError, check_body, check_frame, header, stamp_ns
from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.images import MultiViewImages

# --- poses and wrenches


def pose_message(pose: ArrayLike) -> Pose:
    """A pose (7,)."""
    x, y, z, qx, qy, qz, qw = map(float, np.asarray(pose))
    return Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))


def pose_from_message(message: PoseStamped, frame: str, topic: str) -> tuple[int, NDArray[np.float64]]:
    """Stamp and pose (7,). Raises MessageError for another frame, non-finite numbers and no unit quaternion."""
    check_frame(message.header, frame, topic)
    p, q = message.pose.position, message.pose.orientation
    try:
        pose = checked_poses([p.x, p.y, p.z, q.x, q.y, q.z, q.w], f"{topic}: pose")
    except InvalidPoseError as error:
        raise MessageError("invalid_pose", str(error)) from error
    return stamp_ns(message.header), pose


def wrench_from_message(message: WrenchStamped, frame: str, topic: str) -> tuple[int, NDArray[np.float64]]:
    """Stamp, ns, and wrench (6,), N and N m, given in the tool's `frame`. Raises MessageError."""
    check_frame(message.header, frame, topic)
    force, torque = message.wrench.force, message.wrench.torque
    wrench = np.array([force.x, force.y, force.z, torque.x, torque.y, torque.z])
    if not np.isfinite(wrench).all():
        raise MessageError(
            "non_finite", f"{topic}: wrench {wrench.tolist()} is not finite; check the sensor's driver"
        )
    return stamp_ns(message.header), wrench


# --- observations


def multi_view_message(
    views: MultiViewImages, frames: Sequence[str], body: Body, world: str, stamp: int, spread_ns: int
) -> MultiViewFrame:
    """Images and masks of all cameras; frames: (K,) of the cameras; spread_ns: of their stamps."""
    message = MultiViewFrame(header=header(world, stamp), body_hash=body.content_hash)
    message.camera_names = [camera.name for camera in views.cameras]
    message.available = [bool(flag) for flag in views.available]
    message.spread = spread_ns * 1e-9
    for image, mask, available, frame in zip(views.images, views.masks, views.available, frames, strict=True):
        message.images.append(image_message(image, frame, stamp) if available else Image())
        message.masks.append(image_message(mask, frame, stamp) if available else Image())
    if views.depth is not None:
        for depth, frame in zip(views.depth, frames, strict=True):
            known = np.isfinite(depth).any()
            message.depths.append(depth_message(depth, frame, stamp) if known else Image())
    return message


def multi_view_from_message(
    message: MultiViewFrame, cameras: Sequence[Camera], body: Body, world: str, topic: str
) -> tuple[int, MultiViewImages]:
    """Stamp and views, in the order of `cameras`, which must be all of the message's. Raises MessageError."""
    check_body(message.body_hash, body, topic)
    check_frame(message.header, world, topic)
    names = [camera.name for camera in cameras]
    if sorted(message.camera_names) != sorted(names):
        raise MessageError(
            "wrong_cameras",
            f"{topic}: camera_names is {list(message.camera_names)}, the cell has {names};"
            " start both nodes with the same cell file",
        )
    for field in ("images", "masks", "available"):
        if len(getattr(message, field)) != len(names):
            raise MessageError(
                "wrong_size", f"{topic}: {field} has {len(getattr(message, field))} entries, expected {len(names)}"
            )
    height, width = cameras[0].height, cameras[0].width
    images = np.zeros((len(names), height, width, 3), np.uint8)
    masks = np.zeros((len(names), height, width), np.uint8)
    available = np.zeros(len(names), bool)
    if message.depths and len(message.depths) != len(names):
        raise MessageError(
            "wrong_size", f"{topic}: depths has {len(message.depths)} entries, expected {len(names)} or none"
        )
    depth = np.full((len(names), height, width), np.nan, np.float32) if message.depths else None
    for k, camera in enumerate(cameras):
        place = message.camera_names.index(camera.name)
        if not message.available[place]:
            continue
        mask = message.masks[place]
        if mask.encoding != "mono8":
            raise MessageError(
                "wrong_encoding", f"{topic}: masks.{camera.name} is {mask.encoding!r}, expected 'mono8'"
            )
        images[k] = image_from_message(message.images[place], camera, f"{topic}: images.{camera.name}")
        masks[k] = pixels_of(mask, camera, f"{topic}: masks.{camera.name}")
        if ((masks[k] != 0) & (masks[k] != 255)).any():
            raise MessageError(
                "wrong_mask", f"{topic}: masks.{camera.name} has values other than 0 and 255; threshold it"
            )
        if depth is not None and message.depths[place].data:
            depth[k] = depth_from_message(message.depths[place], camera, f"{topic}: depths.{camera.name}")
        available[k] = True
    return stamp_ns(message.header), MultiViewImages(tuple(cameras), images, masks, available, depth)


@dataclass(frozen=True, eq=False)
class MarkerReading:
    """stamp_ns; positions: (k, 3) m in the order of the body's markers, NaN where not seen; unknown: names that
    the body does not have."""

    stamp_ns: int
    positions: NDArray[np.float64]
    unknown: tuple[str, ...]


def markers_from_message(message: MarkerArray, names: Sequence[str], frame: str, topic: str) -> MarkerReading:
    """Motion-capture markers, named in `ns`; deleted and non-finite ones are not seen. Raises MessageError."""
    if not message.markers:
        raise MessageError("empty", f"{topic}: no marker, and so no stamp; send lost markers as DELETE")
    positions = np.full((len(names), 3), np.nan)
    unknown = []
    stamp = stamp_ns(message.markers[0].header)
    for marker in message.markers:
        check_frame(marker.header, frame, f"{topic}: {marker.ns}")
        if stamp_ns(marker.header) != stamp:
            raise MessageError(
                "mixed_stamps", f"{topic}: {marker.ns} has another stamp than the first marker; send frames apart"
            )
        if marker.ns not in names:
            unknown.append(marker.ns)
        elif marker.action == Marker.ADD:
            point = marker.pose.position
            found = np.array([point.x, point.y, point.z])
            positions[list(names).index(marker.ns)] = found if np.isfinite(found).all() else np.nan
    return MarkerReading(stamp, positions, tuple(unknown))


# --- theta


def material_message(update: MaterialUpdate, body: Body) -> MaterialEstimate:
    """An estimate."""
    return MaterialEstimate(
        header=header("", update.stamp_ns),
        body_hash=body.content_hash,
        zone_names=list(update.zone_names),
        youngs_modulus=_floats(update.material.youngs_modulus),
        poisson_ratio=_floats(update.material.poisson_ratio),
        density=_floats(update.material.density),
        viscosity=_floats(update.material.viscosity),
        parameter_names=list(update.parameter_names),
        covariance=_floats(update.covariance),
        status=int(update.status),
        reason=update.reason,
        loss_before=float(update.loss_before),
        loss_after=float(update.loss_after),
        frames_used=int(update.frames_used),
        solve_time=float(update.solve_time_s),
    )


def material_from_message(message: MaterialEstimate, body: Body, topic: str) -> Material:
    """The material per zone, in the order of the body. Raises MessageError."""
    check_body(message.body_hash, body, topic)
    if sorted(message.zone_names) != sorted(body.zone_names):
        raise MessageError(
            "wrong_zones",
            f"{topic}: zone_names is {list(message.zone_names)}, the body has {list(body.zone_names)};"
            " start both nodes with the same cell file",
        )
    order = [message.zone_names.index(name) for name in body.zone_names]
    columns = []
    for field in ("youngs_modulus", "poisson_ratio", "viscosity", "density"):
        values = getattr(message, field)
        if len(values) != len(order):
            raise MessageError(
                "wrong_size", f"{topic}: {field} has {len(values)} entries, expected one per zone ({len(order)})"
            )
        columns.append([values[place] for place in order])
    try:
        return material_of(body, *columns)
    except InvalidMaterialError as error:
        raise MessageError("invalid_material", f"{topic}: {error}") from error


# --- state and stress


@dataclass(frozen=True, eq=False)
class StateReading:
    """stamp_ns; vertices: (n, 3) m."""

    stamp_ns: int
    vertices: NDArray[np.float64]


def state_message(state: LiveState, body: Body, world: str) -> BodyState:
    """Where the body is."""
    message = BodyState(
        header=header(world, state.stamp_ns),
        body_hash=body.content_hash,
        latent=_floats(state.latent),
        latent_velocity=_floats(state.latent_velocity),
        grip_names=list(body.grip_names),
        grip_poses=[pose_message(pose) for pose in state.grip_poses],
        converged=state.converged,
    )
    message.vertices.frombytes(state.vertices.astype(np.float32).tobytes())
    return message


def state_from_message(message: BodyState, body: Body, world: str, topic: str) -> StateReading:
    """Stamp and vertices. Raises MessageError for another body or frame, a wrong size and non-finite numbers."""
    check_body(message.body_hash, body, topic)
    check_frame(message.header, world, topic)
    vertices = np.asarray(message.vertices, dtype=np.float64)
    if vertices.size != body.rest_positions.size:
        raise MessageError(
            "wrong_size",
            f"{topic}: vertices has {vertices.size} numbers, expected {body.rest_positions.size} (3 per vertex)",
        )
    if not np.isfinite(vertices).all():
        raise MessageError(
            "non_finite", f"{topic}: vertices has non-finite numbers; the simulator has diverged, restart it"
        )
    return StateReading(stamp_ns(message.header), vertices.reshape(-1, 3))


def stress_message(field: StressArrays, body: Body, world: str, stamp: int) -> StressField:
    """The von Mises stress of every vertex."""
    equivalent = np.asarray(field.von_mises, np.float32)
    message = StressField(
        header=header(world, stamp),
        body_hash=body.content_hash,
        max_von_mises=float(equivalent.max()),
        max_vertex=int(equivalent.argmax()),
        mean_von_mises=float(field.mean_von_mises),
        zone_names=list(body.zone_names),
        zone_max_von_mises=_floats(field.zone_max_von_mises),
    )
    message.von_mises.frombytes(equivalent.tobytes())
    return message


def _floats(values: Any) -> list[float]:
    """A flat list of Python floats, as messages want them."""
    return np.asarray(values, dtype=np.float64).ravel().tolist()
