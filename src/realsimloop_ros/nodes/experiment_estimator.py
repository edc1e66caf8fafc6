"""The markers of an experiment become theta, as they come.

In: the topic of the experiment's markers, and those of its grips' poses. Out: theta. See
docs/nodes/experiment_estimator.md.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from geometry_msgs.msg import PoseStamped
from numpy.typing import NDArray
from rclpy.clock import Clock, ClockType
from visualization_msgs.msg import MarkerArray

from realsimloop_ros.body.poses import compose, transform_points
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.evaluation.experiment_twin import experiment_estimator, origin_ns, shared_parameters
from realsimloop_ros.evaluation.model_library import default_library
from realsimloop_ros.evaluation.preparation import prepare_experiment
from realsimloop_ros.nodes.conversions import markers_from_message, pose_from_message
from realsimloop_ros.nodes.message_checks import MessageError
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.runtime import run_node
from realsimloop_ros.nodes.theta_publisher import ThetaPublisher
from realsimloop_ros.nodes.twin_node import EVERY_ONE, OrderedWorker, WarmNode
from realsimloop_ros.observation.likelihoods import FrameObservation
from realsimloop_ros.resources import configuration_file

PARAMETERS = (
    Parameter("experiment", "str", "experiment file: a path, or a name in config/experiments"),
    Parameter("queue_length", "int", "frames that may wait, the oldest gives way", 100_000, minimum=1),
    Parameter("patience", "float", "silence, after the first frame, that means that no more come", 10.0, "s", 0.1),
)
FLUSH_TIME = 5.0  # s, for the last theta to reach those who listen


@dataclass(frozen=True, eq=False)
class _Pose:
    grip: str
    topic: str
    message: PoseStamped


_Item: TypeAlias = _Pose | MarkerArray


class ExperimentEstimator(WarmNode):
    """Runs the core on a worker thread. Raises the errors of the experiment's files, and ParameterError.

    Frame, held pose and release are read from the experiment's own capture; what is estimated comes by topic. The
    node ends with status 0 when the experiment's last frame has been used.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("estimator", PARAMETERS, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._prepared = prepare_experiment(configuration_file("experiments", self.parameters["experiment"]))
        for entry in caught:
            self.get_logger().warning(str(entry.message))
        self._body = self._prepared.body
        self._capture = self._prepared.experiment.capture
        self._known = {*self._body.marker_names, *self._prepared.experiment.still_markers}
        self._first_ns, self._last_ns = (int(self._prepared.stamps_ns[k]) for k in (0, -1))
        self._origin_ns = origin_ns(self._prepared)
        self._reached_ns = 0
        self._submitted = self._processed = 0
        self._heard = time.monotonic()
        self._worker: OrderedWorker[_Item] | None = None
        self.core = self._new_core()

    def _new_core(self) -> TwinEstimator:
        experiments = [self._prepared]
        return experiment_estimator(experiments, shared_parameters(experiments), default_library())

    def warm_up(self) -> None:
        """Run a core on noise about the body at rest, and throw it away."""
        core, noise = self._new_core(), np.random.default_rng(0)
        length = core.segment_ns(core.tracks[0])
        for grip in self._body.grips:
            for stamp in (self._origin_ns, self._origin_ns + 10 * length):
                core.add_grip_pose(grip.name, stamp, grip.rest_pose)
        assert self._body.markers is not None  # an experiment has some
        at_rest = self._body.markers.positions(self._body.rest_positions, self._body.tets)
        for k in range(5):
            seen = at_rest + noise.normal(0.0, 1e-3, at_rest.shape)
            core.add_observation(FrameObservation(self._origin_ns + k * length, seen))
        core.exercise()

    def connect(self) -> None:
        """Topics of the experiment."""
        self._theta = ThetaPublisher(self, self.core, self._body)
        self._worker = OrderedWorker(
            self,
            self._take,
            lambda: None,
            droppable=lambda item: not isinstance(item, _Pose),
            limit=self.parameters["queue_length"],
            cause="queue_overflow",
        )
        self.create_subscription(MarkerArray, self._capture.topic, self._submit, EVERY_ONE)
        for grip, topic in self._capture.grips.items():
            listener = partial(self._on_pose, grip, topic)
            self.create_subscription(PoseStamped, topic, listener, EVERY_ONE)
        self.create_timer(1.0, self._watch, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _on_pose(self, grip: str, topic: str, message: PoseStamped) -> None:
        self._submit(_Pose(grip, topic, message))

    def _submit(self, item: _Item) -> None:
        if self.active and self._worker is not None:
            self._submitted += 1
            self._heard = time.monotonic()
            self._worker.submit(item)

    def _take(self, item: _Item) -> None:
        try:
            if isinstance(item, _Pose):
                self._take_pose(item)
            else:
                self._take_markers(item)
        except MessageError as error:
            self.reject(error)
        self._processed += 1
        if self._reached_ns >= self._last_ns and self.core.tracks[0].grips_known_until() >= self._last_ns:
            self._end("the experiment's last frame has been used")

    def _take_pose(self, item: _Pose) -> None:
        stamp, pose = pose_from_message(item.message, self._capture.frame, item.topic)
        self.core.add_grip_pose(item.grip, stamp, compose(self._prepared.body_from_capture, pose))
        self._theta.publish(self.core.advance())

    def _take_markers(self, message: MarkerArray) -> None:
        topic = self._capture.topic
        reading = markers_from_message(message, self._body.marker_names, self._capture.frame, topic)
        unknown = [name for name in reading.unknown if name not in self._known]
        if unknown:
            self.diagnostics.count_drop("unknown_marker", len(unknown))
            known = ", ".join(sorted(self._known))
            self.condition(
                "unknown_marker",
                f"{topic}: {', '.join(unknown)} unknown, the experiment has {known}; name it there under markers "
                "or still_markers",
            )
        if not self._first_ns <= reading.stamp_ns <= self._last_ns:
            self._beyond(reading.stamp_ns)
            return
        self._reached_ns = max(self._reached_ns, reading.stamp_ns)
        if reading.stamp_ns < self._origin_ns:
            return  # the held pose: it is known already
        seen = np.asarray(np.isfinite(reading.positions).all(axis=1))
        if not seen.all():
            lost = [name for name, there in zip(self._body.marker_names, seen, strict=True) if not there]
            self.diagnostics.count_drop("marker_not_seen", len(lost))
            self.condition(
                "marker_not_seen",
                f"{topic}: no position of {', '.join(lost)} at {reading.stamp_ns * 1e-9:.3f} s; the others are "
                "used, see whether the cameras lose it",
            )
        if seen.any():
            positions: NDArray[np.float64] = transform_points(self._prepared.body_from_capture, reading.positions)
            self._theta.publish(self.core.add_observation(FrameObservation(reading.stamp_ns, positions)))

    def _beyond(self, stamp_ns: int) -> None:
        """A frame that the experiment leaves out, or one of another recording."""
        times = self._prepared.experiment.time
        if (stamp_ns < self._first_ns and times.start > 0.0) or (
            stamp_ns > self._last_ns and times.end is not None
        ):
            return
        self.diagnostics.count_drop("not_of_recording")
        self.condition(
            "not_of_recording",
            f"{self._capture.topic}: stamp {stamp_ns * 1e-9:.3f} s, but the experiment's recording spans "
            f"{self._first_ns * 1e-9:.3f} to {self._last_ns * 1e-9:.3f} s; play the recording it names",
        )

    def _watch(self) -> None:
        """End where the markers have ceased before the experiment's last frame."""
        silent = time.monotonic() - self._heard
        if self._processed and self._processed == self._submitted and silent > self.parameters["patience"]:
            missing = (self._last_ns - max(self._reached_ns, self._first_ns)) * 1e-9
            reason = f"nothing came for {silent:.0f} s, {missing:.2f} s of the experiment are missing"
            self.get_logger().warning(f"{self._capture.topic}: {reason}; was the recording cut off?")
            self._end(reason)

    def _end(self, reason: str) -> None:
        name = self._prepared.name
        if self._theta.published == 0:
            self.finish(
                1,
                f"{name}: {self._processed} messages and no estimate ({reason}); play the experiment's recording "
                f"on {self._capture.topic}, and see the drops above",
            )
            return
        self._theta.flush(FLUSH_TIME)
        moduli = zip(self.core.space.zone_names, np.asarray(self.core.material.youngs_modulus), strict=True)
        found = ", ".join(f"{zone} {1e-3 * value:.1f} kPa" for zone, value in moduli)
        self.finish(0, f"{name}: {self._theta.published} updates, {found}; {reason}")

    def close(self) -> None:
        """Stop estimating."""
        if self._worker is not None:
            self._worker.stop()
        super().close()


def main() -> int:
    use_one_core()
    use_double_precision()
    return run_node(ExperimentEstimator)


if __name__ == "__main__":
    raise SystemExit(main())
