"""A small cell for tests of the twin's nodes: a coarse bar between two grips, seen by two small cameras."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped
from numpy.typing import NDArray
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from realsimloop_ros.body.body import Body, surface_triangles
from realsimloop_ros.body.files import with_markers
from realsimloop_ros.nodes.conversions import pose_message
from realsimloop_ros.nodes.discovery import wait_until_ready
from realsimloop_ros.nodes.message_checks import header
from realsimloop_ros.nodes.qos import STREAM
from realsimloop_ros.nodes.runtime import RuntimeNode
from realsimloop_ros.nodes.twin_node import TwinNode
from realsimloop_ros.observation.cameras import Camera, look_at
from realsimloop_ros.observation.cell_file import CellFile
from realsimloop_ros.observation.silhouettes import silhouette
from realsimloop_ros.reduction.model import save_reduced_body
from reduced_bodies import REST_POSES, gripped_bar, smooth_reduced_body

SECOND = 10**9
WIDTH, HEIGHT = 80, 60
TIMEOUT = 30.0  # s; a busy machine may take long, a test that passes does not
ARMS = ("left", "right")
AnyNode = TypeVar("AnyNode", bound=TwinNode)


def small_body(markers: dict[str, Sequence[float]] | None = None) -> Body:
    return with_markers(gripped_bar(), {name: np.array(p) for name, p in (markers or {}).items()})


def write_cell(folder: Path, body: Body | None = None, cameras: int = 2, wrenches: bool = False) -> Path:
    """The cell file, with the model and the estimator file beside it. wrenches: the estimator uses them."""
    save_reduced_body(folder / "model.npz", smooth_reduced_body(body or small_body()))
    entries = []
    for k, position in enumerate(([0.0, -0.35, 0.12], [0.1, 0.35, 0.2])[:cameras]):
        entries.append(
            {
                "name": f"camera_{k}",
                "frame": f"camera_{k}_optical_frame",
                "width": WIDTH,
                "height": HEIGHT,
                "intrinsics": {"fx": 110.0, "fy": 110.0, "cx": 39.5, "cy": 29.5},
                "distortion": [-0.05, 0.01, 0.0, 0.0, 0.0],
                "world_from_camera": look_at(position, (0.0, 0.0, 0.0)).tolist(),
                "image_topic": f"camera_{k}/image_raw",
                "info_topic": f"camera_{k}/camera_info",
                "rate": 10.0,
            }
        )
    grips = [
        {"name": arm, "frame": f"{arm}_tool", "rest_pose": pose.tolist(), "arm": arm}
        for arm, pose in zip(ARMS, REST_POSES, strict=True)
    ]
    content = {
        "name": "small",
        "world_frame": "world",
        "body": "model.npz",
        "reduced_model": "model.npz",
        "estimator": "estimator.yaml",
        "grips": grips,
        "cameras": entries,
    }
    (folder / "cell.yaml").write_text(yaml.safe_dump(content))
    zones = {
        "bar": {
            "youngs_modulus": {"prior": 200.0e3, "factor": 2.0, "lower": 20.0e3, "upper": 5.0e6},
            "poisson_ratio": {"held": 0.45},
            "viscosity": {"held": 100.0},
        }
    }
    estimator: dict[str, Any] = {
        "time_step": 1.0 / 60.0,
        "viscous": True,
        "window": 3,
        "images": {"splats": 300, "correlation_length": 1.0, "frames_per_sample": 4.0},
        "zones": zones,
    }
    if wrenches:
        estimator["wrenches"] = {"force_deviation": 0.1, "moment_deviation": 0.005, "frames_per_sample": 4.0}
    (folder / "estimator.yaml").write_text(yaml.safe_dump(estimator))
    return folder / "cell.yaml"


def picture(camera: Camera, body: Body, vertices: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The body in stripes of warm colours before a grey wall."""
    mask = silhouette(camera, vertices, surface_triangles(body))
    columns = np.arange(camera.width) // 8 % 2
    colours = np.where(columns[None, :, None] > 0, np.array([230, 120, 30]), np.array([180, 40, 60]))
    noise = np.random.default_rng(0).integers(-4, 5, (camera.height, camera.width, 3))
    return np.clip(np.where(mask[..., None] > 0, colours, 110) + noise, 0, 255).astype(np.uint8)


class Counterpart(RuntimeNode):
    """The other side of a node's topics. received: messages by topic, in their order."""

    def __init__(self, context: Context, cell: CellFile) -> None:
        super().__init__("counterpart", context=context)
        self.cell = cell
        self.received: dict[str, list[Any]] = {}
        self.poses = {arm: self.create_publisher(PoseStamped, f"{arm}/tcp_pose", STREAM) for arm in ARMS}
        self.sources: list[Any] = list(self.poses.values())

    def source(self, kind: type, topic: str, qos: Any = STREAM) -> Any:
        """A publisher that `start` waits for."""
        publisher = self.create_publisher(kind, topic, qos)
        self.sources.append(publisher)
        return publisher

    def listen(self, kind: type, topic: str, qos: Any = STREAM) -> None:
        self.received[topic] = []
        self.create_subscription(kind, topic, self.received[topic].append, qos)

    def send_pose(self, arm: str, stamp_ns: int, pose: NDArray[np.float64], frame: str = "world") -> None:
        self.poses[arm].publish(PoseStamped(header=header(frame, stamp_ns), pose=pose_message(pose)))

    def send_poses(self, stamp_ns: int, poses: NDArray[np.float64] = REST_POSES) -> None:
        for arm, pose in zip(ARMS, poses, strict=True):
            self.send_pose(arm, stamp_ns, pose)

    def start(self, names: Sequence[str]) -> None:
        """Wait until every publisher and subscription is matched, in both directions."""
        assert wait_until_ready(self, names, self.sources, TIMEOUT) == []


@contextmanager
def context_of(domain: int) -> Iterator[Context]:
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    try:
        yield context
    finally:
        rclpy.try_shutdown(context=context)


@contextmanager
def spinning(node: Node) -> Iterator[None]:
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    thread = threading.Thread(target=executor.spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        executor.shutdown()
        thread.join(TIMEOUT)


@contextmanager
def running(
    create: Callable[..., AnyNode], cell: Path, counterpart: Counterpart, **parameters: Any
) -> Iterator[AnyNode]:
    """A node, warmed up and active, matched with the counterpart; both are spun."""
    # in virtual time, which stands still until a test publishes /clock
    values = {"cell": str(cell), "use_sim_time": True, **parameters}
    overrides = [RosParameter(name, value=value) for name, value in values.items()]
    node = create(context=counterpart.context, parameter_overrides=overrides)
    try:
        node.autostart()
        assert not node.finished.done()
        node.announce_ready()
        with spinning(node):
            counterpart.start([node.get_name()])
            wait_for(lambda: all(counterpart.count_publishers(topic) > 0 for topic in counterpart.received))
            with spinning(counterpart):
                yield node
    finally:
        node.close()
        node.destroy_node()


def wait_for(condition: Callable[[], Any], what: str = "") -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, what or "nothing came in time"
        time.sleep(0.01)


def warnings_of(node: TwinNode) -> str:
    """The text of the node's WARN; empty while all is well."""
    status = node.diagnostics.status()
    return status.message if status.level == DiagnosticStatus.WARN else ""


def figures_of(node: TwinNode) -> dict[str, str]:
    return {value.key: value.value for value in node.diagnostics.status().values}
