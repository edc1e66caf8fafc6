"""Recorded bags of a cell, written without ROS from a virtual cell that runs in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.cell.renderer import Renderer
from realsimloop_ros.cell.scenario import Scenario
from realsimloop_ros.cell.virtual_cell import ArmReport, MarkerPositions, TruthReport, VirtualCell
from realsimloop_ros.evaluation.bags import bag_writer, message_store
from realsimloop_ros.evaluation.marker_messages import marker_array
from realsimloop_ros.observation.cell_file import CellFile

START_NS = 10**9
LATENCY_NS = 2_000_000


@dataclass(frozen=True)
class Entry:
    """A message on its way into a bag."""

    topic: str
    log_ns: int
    message: Any


def header(stamp_ns: int, frame: str) -> Any:
    types = message_store().types
    stamp = types["builtin_interfaces/msg/Time"](sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    return types["std_msgs/msg/Header"](stamp=stamp, frame_id=frame)


def pose_message(pose: Sequence[float]) -> Any:
    types = message_store().types
    x, y, z, qx, qy, qz, qw = map(float, pose)
    return types["geometry_msgs/msg/Pose"](
        position=types["geometry_msgs/msg/Point"](x=x, y=y, z=z),
        orientation=types["geometry_msgs/msg/Quaternion"](x=qx, y=qy, z=qz, w=qw),
    )


def pose_stamped(stamp_ns: int, frame: str, pose: Sequence[float]) -> Any:
    return message_store().types["geometry_msgs/msg/PoseStamped"](
        header=header(stamp_ns, frame), pose=pose_message(pose)
    )


def wrench_stamped(stamp_ns: int, frame: str, wrench: Sequence[float]) -> Any:
    types = message_store().types
    fx, fy, fz, mx, my, mz = map(float, wrench)
    vector = types["geometry_msgs/msg/Vector3"]
    return types["geometry_msgs/msg/WrenchStamped"](
        header=header(stamp_ns, frame),
        wrench=types["geometry_msgs/msg/Wrench"](force=vector(x=fx, y=fy, z=fz), torque=vector(x=mx, y=my, z=mz)),
    )


def image(stamp_ns: int, frame: str, pixels: NDArray[np.uint8]) -> Any:
    """An RGB image (H, W, 3) or a mask (H, W); an empty array for a camera that brought nothing."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    return message_store().types["sensor_msgs/msg/Image"](
        header=header(stamp_ns, frame),
        height=height,
        width=width,
        encoding="rgb8" if channels == 3 else "mono8",
        is_bigendian=0,
        step=width * channels,
        data=np.ascontiguousarray(pixels).reshape(-1),
    )


def body_state(
    stamp_ns: int, body: Body, vertices: NDArray[np.floating], poses: NDArray[np.float64], latent: int = 0
) -> Any:
    return message_store().types["realsimloop/msg/BodyState"](
        header=header(stamp_ns, "world"),
        body_hash=body.content_hash,
        latent=np.zeros(latent),
        latent_velocity=np.zeros(latent),
        grip_names=list(body.grip_names),
        grip_poses=[pose_message(pose) for pose in poses],
        vertices=np.asarray(vertices, np.float32).reshape(-1),
        converged=True,
    )


def material_estimate(
    stamp_ns: int,
    body: Body,
    youngs_modulus: float,
    poisson_ratio: float,
    covariance: NDArray[np.float64],
    *,
    status: int = 0,
    solve_time: float = 0.02,
) -> Any:
    (zone,) = body.zone_names
    names = [f"{zone}.log_youngs_modulus", f"{zone}.poisson_ratio"]
    return message_store().types["realsimloop/msg/MaterialEstimate"](
        header=header(stamp_ns, "world"),
        body_hash=body.content_hash,
        zone_names=[zone],
        youngs_modulus=np.array([youngs_modulus]),
        poisson_ratio=np.array([poisson_ratio]),
        density=np.array([1070.0]),
        viscosity=np.array([100.0]),
        parameter_names=names[: len(covariance)],
        covariance=covariance.reshape(-1),
        status=status,
        reason="",
        loss_before=2.0,
        loss_after=1.0,
        frames_used=3,
        solve_time=solve_time,
    )


def multi_view_frame(
    stamp_ns: int,
    body_hash: str,
    cell: CellFile,
    images: NDArray[np.uint8],
    masks: NDArray[np.uint8],
    available: Sequence[bool],
) -> Any:
    """images (K, H, W, 3), masks (K, H, W)."""
    none, no_mask = np.zeros((0, 0, 3), np.uint8), np.zeros((0, 0), np.uint8)
    frames = [camera.frame for camera in cell.cameras]
    return message_store().types["realsimloop/msg/MultiViewFrame"](
        header=header(stamp_ns, cell.world_frame),
        body_hash=body_hash,
        camera_names=[camera.name for camera in cell.cameras],
        images=[image(stamp_ns, f, p if a else none) for f, p, a in zip(frames, images, available, strict=True)],
        masks=[image(stamp_ns, f, m if a else no_mask) for f, m, a in zip(frames, masks, available, strict=True)],
        depths=[],
        available=np.array(available, bool),
        spread=0.0,
    )


def cell_entries(
    cell: CellFile,
    scenario: Scenario,
    body_hash: str,
    *,
    duration: float,
    seed: int = 0,
    frame_period: int = 3,
    raw: bool = False,
) -> Iterator[Entry]:
    """What a cell publishes, with one observation per `frame_period` reports of the truth.

    The pictures are rendered here, at the stamps of the truth, so that each has its exact mask. raw: the images of
    the cameras instead of observations.
    """
    virtual = VirtualCell(cell, scenario, seed, duration)
    arms = [grip.arm for grip in cell.grips]
    tools = {grip.arm: grip.frame for grip in cell.grips}
    cameras = cell.camera_list()
    renderer = Renderer(virtual.body, cameras, scenario.scene, arms)
    count = 0
    for event in virtual.advance(duration):
        stamp = START_NS + event.stamp_ns
        log = stamp + LATENCY_NS
        if isinstance(event, ArmReport):
            yield Entry(f"{event.arm}/tcp_pose", log, pose_stamped(stamp, cell.world_frame, event.tool_pose))
            yield Entry(f"{event.arm}/tcp_wrench", log, wrench_stamped(stamp, tools[event.arm], event.wrench))
        elif isinstance(event, MarkerPositions):
            names = virtual.body.marker_names
            yield Entry("markers", log, marker_array(stamp, cell.world_frame, names, event.positions))
        elif isinstance(event, TruthReport):
            state = body_state(stamp, virtual.body, event.positions, event.tool_poses)
            yield Entry("truth/state", log, state)
            if count % frame_period == 0:
                views = renderer.render(event.positions, event.tool_poses)
                images = np.stack([(255.0 * view.radiance ** (1 / 2.2)).astype(np.uint8) for view in views])
                masks = np.stack([np.where(view.body > 0.5, 255, 0).astype(np.uint8) for view in views])
                if raw:
                    for camera, pixels in zip(cell.cameras, images, strict=True):
                        yield Entry(camera.image_topic, log, image(stamp, camera.frame, pixels))
                else:
                    seen = [True] * len(cameras)
                    message = multi_view_frame(stamp, body_hash, cell, images, masks, seen)
                    yield Entry("observation", log + LATENCY_NS, message)
            count += 1


def write_bag(path: Path, entries: Sequence[Entry]) -> Path:
    """The entries in the order of their log stamps, in chunks of a few messages, so that a cut leaves a part."""
    with bag_writer(path) as bag:
        for k, entry in enumerate(sorted(entries, key=lambda entry: entry.log_ns)):
            bag.write(entry.topic, entry.log_ns, entry.message)
            if k % 20 == 19:
                bag.flush()
    return path
