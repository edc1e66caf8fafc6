"""A recorded cell through the estimator, without an executor: the same bag gives the same bits every time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.methods import Method
from realsimloop_ros.estimation.twin import Twin
from realsimloop_ros.estimation.updates import MaterialUpdate
from realsimloop_ros.evaluation.bags import BagError
from realsimloop_ros.evaluation.captures import PoseTrack
from realsimloop_ros.evaluation.cell_cameras import JUMP_NS, CameraSets
from realsimloop_ros.evaluation.cell_intake import CellIntake
from realsimloop_ros.evaluation.cell_recording import Notices, present_topics, read_messages
from realsimloop_ros.evaluation.marker_messages import stamp_of
from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.cell_file import CellFile, GripEntry
from realsimloop_ros.observation.clock_jumps import ClockJumps
from realsimloop_ros.observation.likelihoods import FrameObservation

Handler = Callable[[int, Any], None]
_TakeGrip = Callable[[str, int, NDArray[np.float64]], None]


@dataclass(frozen=True)
class Condition:
    """Something that is not as it should be. stamp_ns: when the recording first showed it; kind: `KIND.CAMERA`."""

    stamp_ns: int
    kind: str
    text: str


@dataclass(frozen=True, eq=False)
class CellReplay:
    """What came out of a bag.

    updates: of theta, in their order; grips: poses in the order of the body's grips; cameras: names of those whose
    images were used; frame_stamps_ns: of the frames that reached the estimator; drops: by cause; seconds: of
    wall-clock time that it took; resets: times that the stamps jumped back; conditions: what was wrong with
    cameras and clocks; estimator: as it is at the end.
    """

    updates: tuple[MaterialUpdate, ...]
    grips: tuple[PoseTrack, ...]
    cameras: tuple[str, ...]
    frame_stamps_ns: NDArray[np.int64]
    drops: dict[str, int]
    seconds: float
    resets: int = 0
    conditions: tuple[Condition, ...] = ()
    estimator: TwinEstimator | None = None


def replay_cell_bag(
    bag: Path,
    cell: CellFile,
    twin: Twin,
    notices: Notices,
    *,
    estimate: bool = True,
    method: Method | None = None,
) -> CellReplay:
    """Feed a bag, in recorded order, to a twin's fresh estimator. estimate: else only poses and frames are kept;
    method: in place of the estimator's own.

    Frames come from the topic `observation` where the bag has it, else from the cameras' images, else from
    `markers`; wrenches where the estimator uses them and the bag has them. Raises BagError where nothing can be
    used.
    """
    began = time.perf_counter()
    source = _Source(Path(bag), cell, twin, notices)
    estimator = twin.estimator(wrenches=source.has_wrenches)
    if method is not None:
        estimator.method = method
    updates: list[MaterialUpdate] = []
    frames: list[int] = []
    jumps = ClockJumps(JUMP_NS)

    def notice_jump(stream: str, stamp_ns: int) -> None:
        if jumps.jumped(stream, stamp_ns):
            estimator.reset()
            source.note({"clock_jump": f"{stream} jumped back in time"})

    def take_pose(grip: str, stamp_ns: int, pose: NDArray[np.float64]) -> None:
        notice_jump(grip, stamp_ns)
        source.keep_pose(grip, stamp_ns, pose)
        if estimate:
            estimator.add_grip_pose(grip, stamp_ns, pose)
            updates.extend(estimator.advance())

    def take_frame(frame: FrameObservation) -> None:
        notice_jump("observation", frame.stamp_ns)
        frames.append(frame.stamp_ns)
        if estimate:
            updates.extend(estimator.add_observation(frame))

    def take_wrench(grip: str, stamp_ns: int, wrench: NDArray[np.float64]) -> None:
        notice_jump(f"{grip} wrench", stamp_ns)
        if estimate:
            estimator.add_wrench(grip, stamp_ns, wrench)
            updates.extend(estimator.advance())

    source.run(take_pose, take_frame, take_wrench)
    rejected = estimator.rejected if estimate else {}
    drops = {cause: source.drops.get(cause, 0) + rejected.get(cause, 0) for cause in source.drops | rejected}
    return CellReplay(
        tuple(updates),
        source.grips(),
        tuple(camera.name for camera in source.cameras),
        np.array(frames, np.int64),
        drops,
        time.perf_counter() - began,
        jumps.count,
        tuple(source.conditions.values()),
        estimator,
    )


class _Source:
    """One bag and what of it is used."""

    def __init__(self, bag: Path, cell: CellFile, twin: Twin, notices: Notices) -> None:
        self._bag, self._cell, self._twin, self._notices = bag, cell, twin, notices
        self._topics = present_topics(bag)
        self._poses: dict[str, dict[int, NDArray[np.float64]]] = {grip.name: {} for grip in cell.grips}
        self.drops: dict[str, int] = {}
        self.conditions: dict[str, Condition] = {}
        self._now = 0
        self.cameras = self._used_cameras()
        self.has_wrenches = self._wrenches_recorded()

    def note(self, conditions: dict[str, str]) -> None:
        """Keep the first of each kind, with the recording's time."""
        for kind, text in conditions.items():
            self.conditions.setdefault(kind, Condition(self._now, kind, text))

    def keep_pose(self, grip: str, stamp_ns: int, pose: NDArray[np.float64]) -> None:
        self._poses[grip].setdefault(stamp_ns, pose)

    def grips(self) -> tuple[PoseTrack, ...]:
        """The poses in the order of the body's grips."""
        tracks = []
        for name in self._twin.body.grip_names:
            stamps = sorted(self._poses[name])
            poses = np.array([self._poses[name][stamp] for stamp in stamps])
            tracks.append(
                PoseTrack(f"{self._bag}: {name}", self._cell.world_frame, np.array(stamps, np.int64), poses)
            )
        return tuple(tracks)

    def run(
        self,
        take_pose: _TakeGrip,
        take_frame: Callable[[FrameObservation], None],
        take_wrench: _TakeGrip,
    ) -> None:
        """Read the bag once. Raises BagError where there are no poses of a grip, or no frames."""
        taken = 0

        def take(frame: FrameObservation | None) -> None:
            nonlocal taken
            if frame is not None:
                taken += 1
                take_frame(frame)

        sets = self._camera_sets()

        def take_everywhere(grip: str, stamp_ns: int, pose: NDArray[np.float64]) -> None:
            take_pose(grip, stamp_ns, pose)
            if sets is not None:
                for stamp, views in sets.add_pose(grip, stamp_ns, pose):
                    take(FrameObservation(stamp, views=views))
                self.note(sets.new_conditions())

        intake = CellIntake(self._cell, self._twin.body, self.cameras, take_everywhere, self._notices)

        def posed(grip: str, topic: str) -> Handler:
            return lambda _, message: intake.pose(grip, topic, message)

        def pulled(grip: GripEntry, topic: str) -> Handler:
            def look(_: int, message: Any) -> None:
                wrench = intake.wrench(topic, grip.frame, message)
                if wrench is not None:
                    take_wrench(grip.name, stamp_of(message.header), wrench)

            return look

        def pictured(camera: Camera, topic: str) -> Handler:
            def look(_: int, message: Any) -> None:
                image = intake.image(camera, topic, message)
                if sets is not None and image is not None:
                    for stamp, views in sets.add_image(camera.name, stamp_of(message.header), image):
                        take(FrameObservation(stamp, views=views))
                    self.note(sets.new_conditions())

            return look

        handlers: dict[str, Handler] = {}
        for grip in self._cell.grips:
            topic = f"{grip.arm}/tcp_pose"
            if topic not in self._topics:
                raise BagError(
                    f"{self._bag}: no topic {topic!r}, and so no pose of grip {grip.name!r}; its topics are "
                    f"{', '.join(sorted(self._topics)) or 'none'}"
                )
            handlers[topic] = posed(grip.name, topic)
            if self.has_wrenches:
                handlers[_wrench_topic(grip)] = pulled(grip, _wrench_topic(grip))
        if sets is not None:
            entries = {entry.name: entry.image_topic for entry in self._cell.cameras}
            for camera in self.cameras:
                handlers[entries[camera.name]] = pictured(camera, entries[camera.name])
        elif self.cameras:
            handlers["observation"] = lambda _, message: take(intake.observation("observation", message))
        elif self._twin.body.marker_names:
            handlers["markers"] = lambda _, message: take(intake.markers("markers", message))

        def timed(handler: Handler) -> Handler:
            def take_timed(stamp_ns: int, message: Any) -> None:
                self._now = stamp_ns
                handler(stamp_ns, message)

            return take_timed

        read_messages(self._bag, {topic: timed(handler) for topic, handler in handlers.items()}, self._notices)
        self.drops = {**intake.drops, **(sets.dropped if sets is not None else {})}
        without = [grip.name for grip in self._cell.grips if not self._poses[grip.name]]
        if without or not taken:
            missing = f"pose of grip {without[0]!r}" if without else "frame of images or markers"
            causes = ", ".join(f"{count} {cause}" for cause, count in self.drops.items()) or "none were recorded"
            raise BagError(f"{self._bag}: no usable {missing} ({causes}); there is nothing to evaluate")

    def _wrenches_recorded(self) -> bool:
        """Whether the estimator uses wrenches and the bag has those of every grip."""
        if self._twin.file.wrenches is None:
            return False
        missing = [_wrench_topic(grip) for grip in self._cell.grips if _wrench_topic(grip) not in self._topics]
        if missing:
            self._notices.warn(f"{self._bag}: no topic {missing[0]!r}; evaluated without wrenches")
        return not missing

    def _camera_sets(self) -> CameraSets | None:
        """What makes views of single images; None where the bag has them as observations."""
        if not self.cameras or "observation" in self._topics:
            return None
        return CameraSets(self._twin, self.cameras, self._cell)

    def _used_cameras(self) -> tuple[Camera, ...]:
        """The cameras that were there at least once. One that never was must not keep the twin waiting for it."""
        cameras = self._cell.camera_list()
        seen: set[str] = set()

        def look(_: int, message: Any) -> None:
            seen.update(name for name, there in zip(message.camera_names, message.available, strict=True) if there)

        if "observation" in self._topics:
            read_messages(self._bag, {"observation": look}, Notices())
        else:
            seen = {entry.name for entry in self._cell.cameras if entry.image_topic in self._topics}
        used = tuple(camera for camera in cameras if camera.name in seen)
        for camera in cameras:
            if camera.name not in seen:
                others = f"evaluated with {len(used)} of {len(cameras)} cameras" if used else "no camera is left"
                self._notices.warn(f"{self._bag}: {camera.name} never brought an image; {others}")
        return used


def _wrench_topic(grip: GripEntry) -> str:
    return f"{grip.arm}/tcp_wrench"
