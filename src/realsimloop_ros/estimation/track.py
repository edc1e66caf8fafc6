"""One body under observation: its model, what measures it, the poses of its grips and its window."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import interpolate
from realsimloop_ros.dynamics.rollout import TwinState
from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.estimation.window import Segment
from realsimloop_ros.observation.likelihoods import FrameObservation, Likelihood
from realsimloop_ros.observation.wrench_likelihood import WrenchLikelihood
from realsimloop_ros.reduction.model import ReducedModel


class GripStream:
    """Poses of one grip over time, dropped once no segment can ask for them."""

    def __init__(self) -> None:
        self.stamps: deque[int] = deque()
        self.poses: deque[NDArray[np.float64]] = deque()

    def add(self, stamp_ns: int, pose: NDArray[np.float64]) -> bool:
        if self.stamps and stamp_ns <= self.stamps[-1]:
            return False
        self.stamps.append(stamp_ns)
        self.poses.append(pose)
        return True

    def at(self, stamp_ns: int) -> NDArray[np.float64]:
        return interpolate(np.array(self.stamps), np.array(self.poses), stamp_ns)

    def forget_before(self, stamp_ns: int) -> None:
        while len(self.stamps) > 2 and self.stamps[1] < stamp_ns:
            self.stamps.popleft()
            self.poses.popleft()


class WrenchStream:
    """Wrenches of one grip over time."""

    def __init__(self) -> None:
        self.stamps: deque[int] = deque()
        self.wrenches: deque[NDArray[np.float64]] = deque()

    def add(self, stamp_ns: int, wrench: NDArray[np.float64]) -> bool:
        if self.stamps and stamp_ns <= self.stamps[-1]:
            return False
        self.stamps.append(stamp_ns)
        self.wrenches.append(wrench)
        return True

    def mean(self, stamp_ns: int, window_ns: int) -> NDArray[np.float64]:
        """Mean (6,) of the samples within half a window of a stamp: sampled symmetrically, it stands for it."""
        near = [
            wrench
            for stamp, wrench in zip(self.stamps, self.wrenches, strict=True)
            if abs(stamp - stamp_ns) <= window_ns // 2
        ]
        return np.mean(near, axis=0) if near else np.full(6, np.nan)

    def forget_before(self, stamp_ns: int) -> None:
        while self.stamps and self.stamps[0] < stamp_ns:
            self.stamps.popleft()
            self.wrenches.popleft()

    def clear(self) -> None:
        self.stamps.clear()
        self.wrenches.clear()


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
