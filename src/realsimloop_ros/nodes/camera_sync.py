"""Images of all cameras brought together, with masks of the body.

In: the image and info topics of the cell file, ARM/tcp_pose. Out: observation. See docs/nodes/camera_sync.md.

A set of images is masked once every grip is known at its stamp: the expected silhouette is then the same in every
run over the same messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from geometry_msgs.msg import PoseStamped
from jaxtyping import Array
from numpy.typing import NDArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from realsimloop.msg import MultiViewFrame
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.dynamics.live import PoseHistory
from realsimloop_ros.nodes.conversions import multi_view_message, pose_from_message
from realsimloop_ros.nodes.image_messages import calibration_difference, depth_from_message, image_from_message
from realsimloop_ros.nodes.message_checks import MessageError, stamp_ns
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.qos import IMAGES, STREAM
from realsimloop_ros.nodes.runtime import LatestWorker, run_node
from realsimloop_ros.nodes.twin_node import EVERY_ONE, Durations, TwinNode
from realsimloop_ros.observation.camera_health import CameraHealth
from realsimloop_ros.observation.cell_file import CellFile
from realsimloop_ros.observation.masking import MaskerError
from realsimloop_ros.observation.sam2_masking import check_sam2
from realsimloop_ros.observation.synchroniser import SynchronisedSet, Synchroniser, SynchroniserSettings
from realsimloop_ros.observation.view_masks import ViewMasker
from realsimloop_ros.reduction.model import ReducedModel, kinematics, load_reduced_body

PARAMETERS = (
    Parameter("tolerance", "float", "largest difference of the stamps of one set", 0.02, "s", 0.0),
    Parameter("timeout", "float", "silence after which a camera is not waited for", 0.3, "s", 0.001),
    Parameter("jump_threshold", "float", "step back of a stamp that means that the clock was set", 1.0, "s", 0.1),
    Parameter("minimum_cameras", "int", "sets with fewer images are not given out", 1, minimum=1),
    Parameter("pose_timeout", "float", "longest wait of a set for the grip poses of its stamp", 1.0, "s", 0.0),
    Parameter(
        "masker",
        "str",
        "what makes the masks, instead of what the cell file says: classical or sam2 for every camera, or"
        " CAMERA=KIND with commas between; may be set while the node runs",
        "",
        changeable=True,
    ),
    Parameter("low_quality", "float", "quality of a mask below which the camera is reported", 0.3, minimum=0.0),
)
CLOCK_PERIOD = 0.05  # s, of the node's clock, between two looks for silent cameras
# Images tell the time themselves. The clock is only for when all are silent, so it may lag: an image that waits
# for the executor is not silence.
CLOCK_SLACK_NS = 1_000_000_000
REPORT_PERIOD = 0.5  # s, wall clock
MAXIMUM_WAITING = 10  # sets that may wait for grip poses

Pixels = NDArray[Any]  # of an image, uint8 (H, W, 3), or its depths, float32 (H, W)


@dataclass(frozen=True, eq=False)
class _Job:
    images: SynchronisedSet[Pixels]
    grip_poses: NDArray[np.float64]
    resets: int
    kinds: tuple[str, ...]


class CameraSync(TwinNode):
    """Synchronises in the executor's thread, masks on a worker's. Raises the errors of the cell's files."""

    def __init__(self, **options: Any) -> None:
        super().__init__("camera_sync", PARAMETERS, **options)
        reduced = load_reduced_body(self.cell.resolve(self.cell.reduced_model))
        self.body, self._model = reduced.body, reduced.model()
        self.cameras = self.cell.camera_list()
        names = tuple(camera.name for camera in self.cameras)
        self._synchroniser: Synchroniser[Pixels] = Synchroniser(
            SynchroniserSettings(
                streams=(*names, *(_depth_stream(entry.name) for entry in self.cell.cameras if entry.depth_topic)),
                tolerance=round(self.parameters["tolerance"] * 1e9),
                timeout=round(self.parameters["timeout"] * 1e9),
                # two images of a camera are at least half its period apart, whatever its jitter
                minimum_period=round(0.5e9 / max(entry.rate for entry in self.cell.cameras)),
                minimum_streams=min(self.parameters["minimum_cameras"], len(names)),
                jump=round(self.parameters["jump_threshold"] * 1e9),
            )
        )
        self._grips = {grip.name: PoseHistory() for grip in self.body.grips}
        self._waiting: deque[SynchronisedSet[Pixels]] = deque()
        self._kinds = masker_kinds(self.parameters["masker"], self.cell)
        self._masker = self._made_masker()
        self.add_on_set_parameters_callback(self._on_parameters)
        # two: what arrives is noted in the executor's thread, what is seen on the worker's
        self._arrivals, self._health = CameraHealth(names), CameraHealth(names)
        self._seen_resets = 0
        self._counted: dict[str, int] = {}
        self._durations = Durations()
        self._worker: LatestWorker[_Job] | None = None

    def warm_up(self) -> None:
        """Compile the warp, and load what OpenCV loads at its first use."""
        rest = np.array([grip.rest_pose for grip in self.body.grips])
        masker = self._made_masker()
        for _ in range(2):
            images = [np.full((c.height, c.width, 3), 128, np.uint8) for c in self.cameras]
            masker.mask(images, self._expected(rest))

    def _made_masker(self) -> ViewMasker:
        return ViewMasker(
            self.cameras, surface_triangles(self.body), kinds=self._kinds, sam2=self.cell.sam2_settings()
        )

    def _on_parameters(self, changes: list[Any]) -> SetParametersResult:
        """Other maskers from the next set on; the worker makes them, for a model takes seconds to load."""
        for change in changes:
            if change.name == "masker":
                try:
                    self._kinds = masker_kinds(change.value, self.cell)
                except MaskerError as error:
                    return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def connect(self) -> None:
        """Topics of the cell file."""
        self._observations = self.create_publisher(MultiViewFrame, "observation", STREAM)
        self._worker = LatestWorker(self, self._mask)
        for k, entry in enumerate(self.cell.cameras):
            kind = CompressedImage if entry.image_topic.endswith("/compressed") else Image
            self.create_subscription(kind, entry.image_topic, partial(self._on_image, k), IMAGES)
            if entry.depth_topic is not None:
                kind = CompressedImage if entry.depth_topic.endswith("/compressedDepth") else Image
                self.create_subscription(kind, entry.depth_topic, partial(self._on_depth, k), IMAGES)
            self.create_subscription(CameraInfo, entry.info_topic, partial(self._on_info, k), IMAGES)
        for grip in self.cell.grips:
            topic = f"{grip.arm}/tcp_pose"
            self.create_subscription(PoseStamped, topic, partial(self._on_pose, grip.name, topic), EVERY_ONE)
        self.create_timer(CLOCK_PERIOD, self._on_clock)
        self.create_timer(REPORT_PERIOD, self._report, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _expected(self, grip_poses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where the grips alone would put the vertices, (n, 3)."""
        return np.asarray(_warped(self._model, jnp.asarray(grip_poses)))

    def _on_info(self, camera: int, message: CameraInfo) -> None:
        entry = self.cell.cameras[camera]
        difference = calibration_difference(message, self.cameras[camera])
        if difference:
            self.condition(
                f"calibration.{entry.name}",
                f"{entry.info_topic} differs from the cell file, which is used: {difference}; calibrate anew, or"
                " correct the cell file",
            )

    def _on_depth(self, camera: int, message: Image | CompressedImage) -> None:
        if not self.active:
            return
        entry = self.cell.cameras[camera]
        try:
            depth = depth_from_message(message, self.cameras[camera], str(entry.depth_topic))
        except MessageError as error:
            self.reject(error)
            return
        self._take(self._synchroniser.add(_depth_stream(entry.name), stamp_ns(message.header), depth))

    def _take(self, sets: list[SynchronisedSet[Pixels]], now: int | None = None) -> None:
        """Let sets wait for their poses. Images alone, not depths, make a set and its stamp."""
        count = len(self.cameras)
        for images in sets:
            stamps = [stamp for stamp in images.stamps_ns[:count] if stamp is not None]
            if len(stamps) < min(self.parameters["minimum_cameras"], count):
                self.diagnostics.count_drop("unmatched")
            else:
                self._waiting.append(replace(images, stamp_ns=sum(stamps) // len(stamps)))
        self._hand_over(now)

    def _on_image(self, camera: int, message: Image | CompressedImage) -> None:
        if not self.active:
            return
        entry = self.cell.cameras[camera]
        try:
            pixels = image_from_message(message, self.cameras[camera], entry.image_topic)
        except MessageError as error:
            self.reject(error)
            return
        stamp = stamp_ns(message.header)
        jump = round(self.parameters["jump_threshold"] * 1e9)
        self._report_conditions(self._arrivals.arrived(entry.name, stamp, jump))
        self._take(self._synchroniser.add(entry.name, stamp, pixels))

    def _on_pose(self, grip: str, topic: str, message: PoseStamped) -> None:
        if not self.active:
            return
        try:
            stamp, pose = pose_from_message(message, self.cell.world_frame, topic)
        except MessageError as error:
            self.reject(error)
            return
        history = self._grips[grip]
        if history.newest is not None and stamp < history.newest - round(self.parameters["jump_threshold"] * 1e9):
            history.clear()
        history.add(stamp, pose)
        self._hand_over()

    def _on_clock(self) -> None:
        now = self.get_clock().now().nanoseconds
        if self.active and now > 0:
            self._take(self._synchroniser.advance(now - CLOCK_SLACK_NS), now)

    def _hand_over(self, now: int | None = None) -> None:
        """Give the worker every waiting set whose grips are known, or have been waited for too long."""
        assert self._worker is not None
        patience = round(self.parameters["pose_timeout"] * 1e9)
        while self._waiting:
            images = self._waiting[0]
            late = [name for name, h in self._grips.items() if h.newest is None or h.newest < images.stamp_ns]
            overdue = now is not None and now - images.stamp_ns > patience
            overdue = overdue or len(self._waiting) > MAXIMUM_WAITING
            if late and not overdue:
                return
            self._waiting.popleft()
            if any(not len(history) for history in self._grips.values()):
                text = f"no pose of {', '.join(late)} yet: where the body is, is unknown"
                self.reject(MessageError("no_grip_pose", text))
                continue
            if late:
                self.condition("stale_pose", f"no new pose of {', '.join(late)}: held where it was")
            poses = np.array([history.at(images.stamp_ns) for history in self._grips.values()])
            for history in self._grips.values():
                history.forget_before(images.stamp_ns)
            self._worker.submit(_Job(images, poses, self._synchroniser.statistics.resets, self._kinds))

    def _mask(self, job: _Job) -> None:
        began = time.perf_counter()
        if job.resets != self._seen_resets:
            self._seen_resets = job.resets
            self._masker.reset()
            self._health.reset()
        usable, conditions = self._health.look(job.images.frames[: len(self.cameras)])
        self._report_conditions(conditions)
        if job.kinds != self._masker.kinds:
            try:
                self._masker.choose(job.kinds)
            except MaskerError as error:
                self.condition("masker", f"{error}; the maskers stay as they were")
        arms = self.cell.arm_shapes(dict(zip(self._grips, job.grip_poses, strict=True)))
        masked = self._masker.mask(usable, self._expected(job.grip_poses), arms)
        self._report_conditions(self._health.masked(masked.quality))
        self.diagnostics.report(**{f"mask_ms.{name}": 1e3 * value for name, value in masked.seconds.items()})
        for name, text in masked.failures.items():
            self.diagnostics.count_drop("no_mask")
            self.condition(f"no_mask.{name}", f"{name}: {text}")
        for name, quality in masked.quality.items():
            self.diagnostics.report(**{f"quality.{name}": quality})
            if quality < self.parameters["low_quality"]:
                text = f"{name}: the mask's quality is {quality:.2f}; look at its overlay"
                self.condition(f"quality.{name}", text)
        stamps = [stamp for stamp in job.images.stamps_ns[: len(self.cameras)] if stamp is not None]
        frames = [entry.frame for entry in self.cell.cameras]
        self._observations.publish(
            multi_view_message(
                replace(masked.views, depth=self._depths(job.images)),
                frames,
                self.body,
                self.cell.world_frame,
                job.images.stamp_ns,
                max(stamps) - min(stamps),
            )
        )
        self._durations.add(time.perf_counter() - began)

    def _depths(self, images: SynchronisedSet[Pixels]) -> NDArray[np.float32] | None:
        """Of all cameras (K, H, W), NaN where none came; None where no camera measures any."""
        found = dict(zip(self._synchroniser.settings.streams, images.frames, strict=True))
        if len(found) == len(self.cameras):
            return None
        unknown = np.full((self.cameras[0].height, self.cameras[0].width), np.nan, np.float32)
        depths = [found.get(_depth_stream(camera.name)) for camera in self.cameras]
        return np.stack([unknown if depth is None else depth for depth in depths])

    def _report_conditions(self, conditions: Mapping[str, str]) -> None:
        for name, text in conditions.items():
            self.condition(name, text)

    def _report(self) -> None:
        statistics = self._synchroniser.statistics
        for cause, streams in statistics.dropped.items():
            number = sum(streams.values()) - self._counted.get(cause, 0)
            if number:
                self._counted[cause] = sum(streams.values())
                self.diagnostics.count_drop(cause, number)
        for name in statistics.absent:
            self.condition(f"absent.{name}", f"{name} is silent: sets go without it; is its driver up?")
        self.diagnostics.report(sets=statistics.sets, resets=statistics.resets, **self._durations.figures("mask"))

    def close(self) -> None:
        """Stop masking."""
        if self._worker is not None:
            self._worker.stop()
        self._report()
        super().close()


def _depth_stream(camera: str) -> str:
    return f"{camera}.depth"


def masker_kinds(text: str, cell: CellFile) -> tuple[str, ...]:
    """The kinds of the cameras' maskers, in the order of the cell file. Raises MaskerError."""
    kinds = {entry.name: str(entry.masker) for entry in cell.cameras}
    for part in filter(None, (word.strip() for word in text.split(","))):
        name, _, kind = part.rpartition("=")
        if kind not in ("classical", "sam2") or (name and name not in kinds):
            raise MaskerError(
                f"masker is {text!r}: expected classical, sam2, or CAMERA=KIND with a camera of {', '.join(kinds)}"
            )
        kinds |= {name: kind} if name else dict.fromkeys(kinds, kind)
    if "sam2" in kinds.values():
        check_sam2()
        if cell.sam2 is None:
            raise MaskerError(
                "masker: sam2 needs weights: give the cell file a block `sam2` with weights and sha256"
            )
    return tuple(kinds.values())


@eqx.filter_jit
def _warped(model: ReducedModel, grip_poses: Array) -> Array:
    return kinematics(model, grip_poses).base


def main() -> int:
    use_one_core()
    use_double_precision()
    return run_node(CameraSync)


if __name__ == "__main__":
    raise SystemExit(main())
