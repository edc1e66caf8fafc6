"""One body under observation: its model, what measures it, the poses of its grips and its window."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.dynamics.rollout import TwinState
from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.estimation.streams import GripStream, WrenchStream
from realsimloop_ros.estimation.window import Cut, Segment, SegmentFrame
from realsimloop_ros.observation.likelihoods import FrameObservation, Likelihood
from realsimloop_ros.observation.wrench_likelihood import WrenchLikelihood
from realsimloop_ros.reduction.model import ReducedModel


class Track:
    """One body under observation: its model, what measures it, and its window.

    start: `rest` begins in static equilibrium at the first grip poses, `undeformed` in the held rest shape.
    free_start: where that is only about right, how many leading latent coordinates are corrected together with
    theta, in displacement and velocity, with standard deviations start_displacement, m, and start_velocity, m/s.
    wrench_likelihood: where given, segments wait for the wrenches of all grips.
    """

    def __init__(
        self,
        body: Body,
        model: ReducedModel,
        settings: StepSettings,
        likelihoods: Sequence[Likelihood],
        *,
        wrench_likelihood: WrenchLikelihood | None = None,
        start: str = "rest",
        origin_ns: int | None = None,
        free_start: int = 0,
        start_displacement: float = 1e-3,
        start_velocity: float = 0.05,
    ) -> None:
        if start not in ("rest", "undeformed"):
            raise ValueError(f"start: {start!r}, expected 'rest' or 'undeformed'")
        self.body = body
        self.model = model
        self.settings = settings
        self.likelihoods = tuple(likelihoods)
        self.wrench_likelihood = wrench_likelihood
        self.wrenches = {grip.name: WrenchStream() for grip in body.grips}
        self.start = start
        self.origin_ns = origin_ns
        self.free_start = free_start
        self.start_deviations = np.repeat([start_displacement, start_velocity], free_start)
        self.grips = {grip.name: GripStream() for grip in body.grips}
        self.clear()

    def clear(self) -> None:
        """Forget the window and what waits; the origin is taken from the next frame."""
        self.segments: deque[Segment] = deque()
        self.waiting: deque[FrameObservation] = deque()
        self.state: TwinState | None = None
        self.start_poses: NDArray[np.float64] | None = None
        self.begin_ns: int | None = self.origin_ns

    def segment_ns(self, ticks: int) -> int:
        """Length of a segment of so many ticks, ns."""
        return round(self.settings.time_step * ticks * 1e9)

    def take_frame(self, observation: FrameObservation) -> bool:
        """Let a frame wait for its segment; False, and nothing is done, where one as new has come before it.

        Of frames with one stamp the first alone counts: a moment that is told twice is not known twice as well.
        """
        if self.waiting and observation.stamp_ns <= self.waiting[-1].stamp_ns:
            return False
        if self.begin_ns is not None and observation.stamp_ns < self.begin_ns:
            return False
        self.waiting.append(observation)
        return True

    def next_cut(self, ticks: int) -> Cut | None:
        """The next segment's share of what has come, taken out of it, once all of it has come."""
        if not self.waiting:
            return None
        length = self.segment_ns(ticks)
        if self.begin_ns is None:
            # frames at a steady rate then lie in the middle of their segments, away from the cuts
            self.begin_ns = self.waiting[0].stamp_ns - length // 2
        begin, end = self.begin_ns, self.begin_ns + length
        tick = length // ticks
        if self.waiting[-1].stamp_ns < end or self.grips_known_until(tick) < end:
            return None
        step = length / ticks
        poses = np.array([self.poses_at(round(begin + (k + 1) * step)) for k in range(ticks)])
        begins_track = self.start_poses is None
        if self.start_poses is None:
            self.start_poses = self.poses_at(begin)
        frames = []
        while self.waiting and self.waiting[0].stamp_ns < end:
            observation = self.waiting.popleft()
            place = (observation.stamp_ns - begin) / step
            at = min(int(place), ticks - 1)
            frames.append(SegmentFrame(observation, at, place - at, self.poses_at(observation.stamp_ns)))
        wrenches = self.wrenches_at(end, tick) if self.wrench_likelihood is not None else None
        self.begin_ns = end
        self.forget_before(end)
        return Cut(end, poses.reshape(ticks, -1, 7), tuple(frames), wrenches, begins_track)

    def clear_streams(self) -> None:
        """Forget what has come about the grips."""
        for stream in self.grips.values():
            stream.clear()
        for wrench in self.wrenches.values():
            wrench.clear()

    def poses_at(self, stamp_ns: int) -> NDArray[np.float64]:
        """Grip poses (g, 7) in the order of body.grips."""
        return np.array([stream.at(stamp_ns) for stream in self.grips.values()]).reshape(-1, 7)

    def wrenches_at(self, stamp_ns: int, window_ns: int) -> NDArray[np.float64]:
        """Wrenches (g, 6) around a stamp, NaN for a grip that reported none."""
        return np.array([stream.mean(stamp_ns, window_ns) for stream in self.wrenches.values()]).reshape(-1, 6)

    def forget_before(self, stamp_ns: int) -> None:
        """Drop what no later segment asks for."""
        for stream in self.grips.values():
            stream.forget_before(stamp_ns)
        for wrench in self.wrenches.values():
            wrench.forget_before(stamp_ns)

    def grips_known_until(self, wrench_window_ns: int = 0) -> float:
        """Stamp, ns, up to which every grip's pose is known, and, where wrenches are used, its mean wrench over a
        window around the stamp.
        """
        newest = [stream.stamps[-1] if stream.stamps else -np.inf for stream in self.grips.values()]
        if self.wrench_likelihood is not None:
            half = wrench_window_ns // 2
            newest += [stream.stamps[-1] - half if stream.stamps else -np.inf for stream in self.wrenches.values()]
        return min(newest, default=np.inf)
