"""Watches a run from outside: how far it is, what theta is, and how long each stage takes by wall clock.

The clock of a run in virtual time does not say how long anything took. So the monitor notes by the wall clock when
images, observations and theta arrive, and looks only at the stamps of the big ones.
"""

from __future__ import annotations

import struct
import threading
import time
from dataclasses import dataclass

import numpy as np
import rclpy
from numpy.typing import NDArray
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from realsimloop.msg import MaterialEstimate, MultiViewFrame
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image

from realsimloop_ros.nodes.qos import CLOCK, IMAGES, LATCHED, STREAM
from realsimloop_ros.observation.cell_file import CellFile

# a header comes first in a message: four bytes of encapsulation, then seconds and nanoseconds
_STAMP = struct.Struct("<iI")
_ENCAPSULATION = 4


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    begin_ns, now_ns: of the run's clock; wall_time: s since its first tick; last: E (z,) in Pa of the
    newest theta; updates: of theta.
    """

    begin_ns: int
    now_ns: int
    wall_time: float
    zone_names: tuple[str, ...]
    last: tuple[float, ...]
    updates: int

    @property
    def virtual_time(self) -> float:
        """Time of the run's clock since its first tick, s."""
        return (self.now_ns - self.begin_ns) * 1e-9

    @property
    def real_time_factor(self) -> float:
        return self.virtual_time / self.wall_time if self.wall_time > 0.0 else 0.0


class RunMonitor:
    """Listens on a ROS domain, on a thread of its own, while the `with` block lasts."""

    def __init__(self, domain: int, cell: CellFile) -> None:
        self._domain = domain
        image_topics = tuple(camera.image_topic for camera in cell.cameras)
        # images of one set are less than half a period from the set's stamp, ns
        self._set_width = round(0.45e9 / max((camera.rate for camera in cell.cameras), default=1.0))
        self._lock = threading.Lock()
        self._images: dict[str, dict[int, float]] = {topic: {} for topic in image_topics}
        self._observations: dict[int, float] = {}
        self._thetas: dict[int, float] = {}
        self._begin: tuple[int, float] | None = None
        self._now = (0, 0.0)
        self._zones: tuple[str, ...] = ()
        self._last: tuple[float, ...] = ()

    def __enter__(self) -> RunMonitor:
        self._context = Context()
        rclpy.init(context=self._context, domain_id=self._domain)
        self._node = Node("run_monitor", context=self._context)
        for topic, arrivals in self._images.items():
            self._node.create_subscription(
                Image, topic, lambda data, arrivals=arrivals: self._arrived(arrivals, data), IMAGES, raw=True
            )
        self._node.create_subscription(
            MultiViewFrame, "observation", lambda data: self._arrived(self._observations, data), STREAM, raw=True
        )
        self._node.create_subscription(MaterialEstimate, "theta", self._on_theta, LATCHED)
        self._node.create_subscription(Clock, "/clock", self._on_clock, CLOCK)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, name="monitor", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.try_shutdown()
        self._thread.join(timeout=2.0)
        self._executor.shutdown()
        self._node.destroy_node()

    def progress(self) -> Progress | None:
        """How far the run is; None before its clock has ticked."""
        with self._lock:
            if self._begin is None:
                return None
            return Progress(
                self._begin[0],
                self._now[0],
                self._now[1] - self._begin[1],
                self._zones,
                self._last,
                len(self._thetas),
            )

    def latencies(self) -> dict[str, NDArray[np.float64]]:
        """Wall-clock durations by stage, s, over the run."""
        with self._lock:
            images = [sorted(arrivals.items()) for arrivals in self._images.values()]
            observations, thetas = dict(self._observations), dict(self._thetas)
        stages: dict[str, list[float]] = {
            "last image of a set to observation": [],
            "observation to theta (with the next frame)": [],
            "last image of a set to theta": [],
        }
        to_observation, to_theta, whole = stages.values()
        for stamp, seen in observations.items():
            taken = [t for arrivals in images for s, t in arrivals if abs(s - stamp) <= self._set_width]
            if taken:
                to_observation.append(seen - max(taken))
            if stamp in thetas:
                to_theta.append(thetas[stamp] - seen)
                if taken:
                    whole.append(thetas[stamp] - max(taken))
        return {stage: np.array(values) for stage, values in stages.items() if values}

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            return

    def _arrived(self, arrivals: dict[int, float], data: bytes) -> None:
        seconds, nanoseconds = _STAMP.unpack_from(data, _ENCAPSULATION)
        with self._lock:
            arrivals.setdefault(seconds * 10**9 + nanoseconds, time.monotonic())

    def _on_theta(self, message: MaterialEstimate) -> None:
        stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        with self._lock:
            self._thetas.setdefault(stamp, time.monotonic())
            self._zones = tuple(message.zone_names)
            self._last = tuple(message.youngs_modulus)

    def _on_clock(self, message: Clock) -> None:
        now = message.clock.sec * 10**9 + message.clock.nanosec
        with self._lock:
            self._now = (now, time.monotonic())
            if self._begin is None:
                self._begin = self._now
