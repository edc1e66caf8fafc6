"""Observations, grip poses and wrist wrenches become theta.

In: observation or markers, ARM/tcp_pose, ARM/tcp_wrench where the estimator file uses wrenches. Out: theta.
See docs/nodes/estimator.md.

Everything goes to the core in the order of its arrival on one worker thread; the core waits until it knows enough,
so theta does not depend on how messages of different topics are interleaved.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from geometry_msgs.msg import PoseStamped, WrenchStamped
from numpy.typing import NDArray
from realsimloop.msg import MultiViewFrame
from visualization_msgs.msg import MarkerArray

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.estimation.twin import load_twin
from realsimloop_ros.nodes.conversions import (
    MessageError,
    markers_from_message,
    multi_view_from_message,
    pose_from_message,
    wrench_from_message,
)
from realsimloop_ros.nodes.parameters import Parameter, ParameterError
from realsimloop_ros.nodes.qos import STREAM
from realsimloop_ros.nodes.runtime import run_node
from realsimloop_ros.nodes.theta_publisher import ThetaPublisher
from realsimloop_ros.nodes.twin_node import EVERY_ONE, OrderedWorker, TwinNode
from realsimloop_ros.observation.clock_jumps import ClockJumps
from realsimloop_ros.observation.image_likelihood import compile_kernels
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.likelihoods import FrameObservation
from realsimloop_ros.observation.silhouettes import silhouette

PARAMETERS = (
    Parameter(
        "source",
        "str",
        "what is observed; auto: images where the cell has cameras, else markers",
        "auto",
        choices=("auto", "images", "markers"),
    ),
    Parameter("marker_frame", "str", "frame of the markers; empty: the cell's world frame", ""),
    Parameter(
        "queue_length",
        "int",
        "observations that may wait, the oldest gives way; 0: 50 of images or 2000 of markers",
        0,
        minimum=0,
    ),
    Parameter("jump_threshold", "float", "step back of a stamp that means that the clock was set", 1.0, "s", 0.1),
)


@dataclass(frozen=True, eq=False)
class _Pose:
    grip: str
    stamp_ns: int
    pose: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Wrench:
    grip: str
    stamp_ns: int
    wrench: NDArray[np.float64]


_Item: TypeAlias = _Pose | _Wrench | MultiViewFrame | MarkerArray


class Estimator(TwinNode):
    """Runs the core on a worker thread. Raises the errors of the cell's files, and ParameterError."""

    def __init__(self, **options: Any) -> None:
        super().__init__("estimator", PARAMETERS, **options)
        self._twin = load_twin(self.cell)
        self.body = self._twin.body
        self.cameras = self.cell.camera_list()
        self.source = self.parameters["source"]
        if self.source == "auto":
            self.source = "images" if self.cameras else "markers"
        if self.source == "images" and not self.cameras:
            raise ParameterError("estimator.source is 'images', but the cell has no cameras; use markers")
        if self.source == "markers" and self.body.markers is None:
            raise ParameterError(
                f"estimator.source is 'markers', but body {self.body.name!r} has none; name them in its file"
            )
        self._marker_frame = self.parameters["marker_frame"] or self.cell.world_frame
        self._limit = self.parameters["queue_length"] or (50 if self.source == "images" else 2000)
        self.core = self._twin.estimator()
        self._jumps = ClockJumps(round(self.parameters["jump_threshold"] * 1e9))
        self._worker: OrderedWorker[_Item] | None = None

    def warm_up(self) -> None:
        """Run the core on observations of the body at rest, and throw it away."""
        if self.source == "images":
            compile_kernels()
        core = self._twin.estimator()
        length = core.segment_ns(core.tracks[0])
        for grip in self.body.grips:
            for stamp in (0, 10 * length):
                core.add_grip_pose(grip.name, stamp, grip.rest_pose)
            for k in range(41):
                core.add_wrench(grip.name, k * length // 4, np.zeros(6))
        for k in range(1, 5):
            core.add_observation(self._made_up(k * length, k))
        core.exercise()

    def _made_up(self, stamp_ns: int, seed: int) -> FrameObservation:
        """What would be seen of the body at rest, with noise so that the estimate moves."""
        rest, noise = self.body.rest_positions, np.random.default_rng(seed)
        if self.source == "markers":
            assert self.body.markers is not None
            seen = self.body.markers.positions(rest, self.body.tets)
            return FrameObservation(stamp_ns, marker_positions=seen + noise.normal(0.0, 1e-3, seen.shape))
        masks = np.stack([silhouette(camera, rest, surface_triangles(self.body)) for camera in self.cameras])
        images = np.where(masks[..., None] > 0, noise.integers(80, 250, (*masks.shape, 3)), 60).astype(np.uint8)
        views = MultiViewImages(self.cameras, images, masks, np.ones(len(self.cameras), bool))
        return FrameObservation(stamp_ns, views=views)

    def connect(self) -> None:
        """Topics of the cell."""
        self._theta = ThetaPublisher(self, self.core, self.body)
        self._worker = OrderedWorker(
            self,
            self._take,
            self._advance,
            droppable=lambda item: not isinstance(item, _Pose | _Wrench),
            limit=self._limit,
            cause="queue_overflow",
        )
        for grip in self.cell.grips:
            topic = f"{grip.arm}/tcp_pose"
            self.create_subscription(PoseStamped, topic, partial(self._on_pose, grip.name, topic), EVERY_ONE)
            if self.core.tracks[0].wrench_likelihood is not None:
                topic = f"{grip.arm}/tcp_wrench"
                listener = partial(self._on_wrench, grip.name, grip.frame, topic)
                self.create_subscription(WrenchStamped, topic, listener, EVERY_ONE)
        if self.source == "images":
            self.create_subscription(MultiViewFrame, "observation", self._on_observation, STREAM)
        else:
            self.create_subscription(MarkerArray, "markers", self._on_observation, EVERY_ONE)

    def _on_pose(self, grip: str, topic: str, message: PoseStamped) -> None:
        if not self.active or self._worker is None:
            return
        try:
            stamp, pose = pose_from_message(message, self.cell.world_frame, topic)
        except MessageError as error:
            self.reject(error)
            return
        self._worker.submit(_Pose(grip, stamp, pose))

    def _on_wrench(self, grip: str, frame: str, topic: str, message: WrenchStamped) -> None:
        if not self.active or self._worker is None:
            return
        try:
            stamp, wrench = wrench_from_message(message, frame, topic)
        except MessageError as error:
            self.reject(error)
            return
        self._worker.submit(_Wrench(grip, stamp, wrench))

    def _on_observation(self, message: MultiViewFrame | MarkerArray) -> None:
        if self.active and self._worker is not None:
            self._worker.submit(message)

    def _take(self, item: _Item) -> None:
        if isinstance(item, _Pose):
            self._notice_jump(item.grip, item.stamp_ns)
            self.core.add_grip_pose(item.grip, item.stamp_ns, item.pose)
            return
        if isinstance(item, _Wrench):
            self._notice_jump(f"{item.grip} wrench", item.stamp_ns)
            self.core.add_wrench(item.grip, item.stamp_ns, item.wrench)
            return
        try:
            observation = self._observation(item)
        except MessageError as error:
            self.reject(error)
            return
        self._notice_jump("observation", observation.stamp_ns)
        self._theta.publish(self.core.add_observation(observation), resets=self._jumps.count)
        track = self.core.tracks[0]
        if len(track.waiting) > self._limit and track.grips_known_until() < track.waiting[0].stamp_ns:
            track.waiting.popleft()
            self.diagnostics.count_drop("no_grip_pose")
            kinds = ["tcp_pose"] if track.wrench_likelihood is None else ["tcp_pose", "tcp_wrench"]
            names = ", ".join(f"{grip.arm}/{kind}" for grip in self.cell.grips for kind in kinds)
            self.condition("no_grip_pose", f"observations wait for messages on {names}: are the arms' drivers up?")

    def _observation(self, item: MultiViewFrame | MarkerArray) -> FrameObservation:
        if isinstance(item, MultiViewFrame):
            stamp, views = multi_view_from_message(
                item, self.cameras, self.body, self.cell.world_frame, "observation"
            )
            return FrameObservation(stamp, views=views)
        reading = markers_from_message(item, self.body.marker_names, self._marker_frame, "markers")
        if reading.unknown:
            self.diagnostics.count_drop("unknown_marker", len(reading.unknown))
            self.condition(
                "unknown_marker",
                f"markers: {', '.join(reading.unknown)} unknown; the body has {', '.join(self.body.marker_names)}",
            )
        return FrameObservation(reading.stamp_ns, marker_positions=reading.positions)

    def _notice_jump(self, stream: str, stamp_ns: int) -> None:
        """Begin anew where a stream's stamps jump back: the clock was set."""
        if self._jumps.jumped(stream, stamp_ns):
            self.core.reset()
            self.condition("clock_jump", f"{stream} jumped back in time: the window begins anew, theta is kept")

    def _advance(self) -> None:
        self._theta.publish(self.core.advance(), resets=self._jumps.count)

    def close(self) -> None:
        """Stop estimating."""
        if self._worker is not None:
            self._worker.stop()
        super().close()


def main() -> int:
    use_one_core()
    use_double_precision()
    return run_node(Estimator)


if __name__ == "__main__":
    raise SystemExit(main())
