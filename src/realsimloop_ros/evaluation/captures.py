"""What a motion capture holds, whichever file it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

# A .c3d file has no absolute time, and ROS reads a zero stamp as "no stamp": such captures start at 1 s.
FIRST_STAMP_NS = 1_000_000_000


class CaptureError(ValueError):
    """A capture that cannot be used; the message names the file, what is wrong with it and the remedy."""


class CaptureWarning(UserWarning):
    """A capture of which only a part can be used."""


@dataclass(frozen=True)
class MarkerCapture:
    """Tracked markers.

    source: the file, for messages; names: (k,) labels; stamps_ns: (t,) ascending, ns;
    positions: (t, k, 3) in m, in `frame`, NaN where a marker was not seen.
    Raises CaptureError when shapes disagree, labels repeat, nothing was captured or time runs backwards.
    """

    source: str
    names: tuple[str, ...]
    stamps_ns: NDArray[np.int64]
    positions: NDArray[np.float64]
    frame: str

    def __post_init__(self) -> None:
        t, k = len(self.stamps_ns), len(self.names)
        if t == 0 or k == 0:
            raise CaptureError(
                f"{self.source}: holds {k} markers in {t} frames; record again or name another file"
            )
        if self.positions.shape != (t, k, 3):
            raise CaptureError(f"{self.source}: positions of shape {self.positions.shape}, expected {(t, k, 3)}")
        if len(set(self.names)) != k:
            raise CaptureError(f"{self.source}: marker labels {list(self.names)} repeat; give each its own")
        if (np.diff(self.stamps_ns) <= 0).any():
            at = int(np.flatnonzero(np.diff(self.stamps_ns) <= 0)[0]) + 1
            raise CaptureError(
                f"{self.source}: the stamp of frame {at} ({self.stamps_ns[at]} ns) is not after the one "
                "before; was the clock set back while recording? Cut the recording there"
            )

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Times (t,) since the first frame, s."""
        return (self.stamps_ns - self.stamps_ns[0]) * 1e-9

    @property
    def rate(self) -> float:
        """Median frame rate, Hz; 0 for a single frame."""
        return float(1e9 / np.median(np.diff(self.stamps_ns))) if len(self.stamps_ns) > 1 else 0.0

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which markers were seen, (t, k)."""
        return np.asarray(np.isfinite(self.positions).all(axis=2))

    def select(self, names: Iterable[str]) -> MarkerCapture:
        """The capture with only these markers, in this order. Raises CaptureError for an unknown one."""
        wanted = tuple(names)
        missing = [name for name in wanted if name not in self.names]
        if missing:
            raise CaptureError(
                f"{self.source}: no marker {missing[0]!r}; its markers are {', '.join(map(repr, self.names))}"
            )
        columns = [self.names.index(name) for name in wanted]
        return replace(self, names=wanted, positions=self.positions[:, columns])

    def between(self, first_ns: int, last_ns: int) -> MarkerCapture:
        """The frames with first_ns <= stamp <= last_ns. Raises CaptureError when there are none."""
        inside = (self.stamps_ns >= first_ns) & (self.stamps_ns <= last_ns)
        if not inside.any():
            raise CaptureError(
                f"{self.source}: no frame between {first_ns} and {last_ns} ns; the capture spans "
                f"{self.stamps_ns[0]} to {self.stamps_ns[-1]} ns"
            )
        return replace(self, stamps_ns=self.stamps_ns[inside], positions=self.positions[inside])


@dataclass(frozen=True)
class PoseTrack:
    """A moving frame. stamps_ns: (t,) ascending, ns; poses: (t, 7) x y z qx qy qz qw in `frame`.

    Raises CaptureError when there is no pose, or time runs backwards.
    """

    source: str
    frame: str
    stamps_ns: NDArray[np.int64]
    poses: NDArray[np.float64]

    def __post_init__(self) -> None:
        if len(self.stamps_ns) == 0 or self.poses.shape != (len(self.stamps_ns), 7):
            raise CaptureError(
                f"{self.source}: {len(self.stamps_ns)} stamps and poses of shape {self.poses.shape}; record again"
            )
        if (np.diff(self.stamps_ns) <= 0).any():
            raise CaptureError(
                f"{self.source}: its stamps do not ascend; cut the recording where the clock went back"
            )
