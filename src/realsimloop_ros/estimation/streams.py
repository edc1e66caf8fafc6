"""What arrives about a track's grips over time: their poses and the wrenches on their tools."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.poses import interpolate


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

    def clear(self) -> None:
        self.stamps.clear()
        self.poses.clear()


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
