"""When a held body is let go: the held pose, the release and the first turning point of its motion.

Everything here looks at measured positions alone, never at a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class ReleaseError(ValueError):
    """No release was found; the message says what was looked for and the remedy."""


@dataclass(frozen=True)
class Release:
    """A release in a capture of t frames.

    held: frames (start, stop) of the held pose, the last quiet stretch before the release; stamp_ns: when the
    markers began to move; frame: the first frame at or after it; turning_frame: the first turning point of
    the motion, at which the body is nearly at rest again, free of the hand that let it go.
    """

    held: tuple[int, int]
    stamp_ns: int
    frame: int
    turning_frame: int


def detect_release(
    stamps_ns: NDArray[np.int64],
    positions: NDArray[np.float64],
    *,
    held_seconds: float = 0.25,
    smallest_motion: float = 0.5e-3,
) -> Release:
    """Find the onset of fast motion of markers positions (t, k, 3), m, NaN where not seen.

    The markers' mean displacement from the start is followed. Its largest excursion A sets the scale: the
    motion is under way when the displacement passes A/4 for good, and it began where the displacement last
    stood within the noise before that. The noise is the spread of the displacement about its running median
    in the frames before, but at least A/100. Between the last quiet frame and the first moving one the time
    is interpolated under the assumption of constant acceleration from rest, the displacement growing with the
    square of time.

    held_seconds: how much of the quiet stretch counts as the held pose; smallest_motion: m, below which
    nothing was released. Raises ReleaseError.
    """
    seconds = (stamps_ns - stamps_ns[0]) * 1e-9
    seen = np.isfinite(positions).all(axis=(1, 2))
    if seen.sum() < 8:
        raise ReleaseError(
            f"release: all markers are seen together in {int(seen.sum())} frames only, too few to find it; "
            "give time.release in seconds"
        )
    rows = np.flatnonzero(seen)
    moved = positions[rows] - np.median(positions[rows[: max(4, len(rows) // 50)]], axis=0)
    displacement = np.linalg.norm(moved.mean(axis=1), axis=1)
    scale = float(displacement.max())
    if scale < smallest_motion:
        raise ReleaseError(
            f"release: the markers move by {scale * 1e3:.2f} mm at most, nothing was released in this time "
            "range; widen it, or give time.release in seconds"
        )
    under_way = int(np.flatnonzero(displacement > scale / 4.0)[0])
    if under_way < 3:
        raise ReleaseError(
            "release: the markers move from the first frames on, the held pose is not in the time range; let "
            "it start earlier, or give time.release in seconds"
        )
    quiet_level = np.median(displacement[:under_way])
    spread = 1.4826 * float(np.median(np.abs(displacement[:under_way] - quiet_level)))
    quiet = np.abs(displacement[:under_way] - quiet_level) < max(6.0 * spread, scale / 100.0)
    last_quiet = int(np.flatnonzero(quiet)[-1]) if quiet.any() else 0
    onset = _onset(seconds[rows], displacement - quiet_level, last_quiet)
    stamp = int(stamps_ns[0]) + round(onset * 1e9)
    frame = int(np.searchsorted(stamps_ns, stamp))
    held_stop = int(rows[last_quiet])  # the last quiet frame may already hold the very first motion
    held_start = int(np.searchsorted(seconds, seconds[held_stop] - held_seconds))
    if held_stop - held_start < 3:
        raise ReleaseError(f"release: the held pose lasts {held_stop - held_start} frames, too few; start earlier")
    return Release((held_start, held_stop), stamp, frame, int(rows[first_turning_point(displacement, last_quiet)]))


def release_at(stamps_ns: NDArray[np.int64], positions: NDArray[np.float64], stamp_ns: int) -> Release:
    """The release when its time is known; the held pose is the quarter of a second before it."""
    frame = int(np.searchsorted(stamps_ns, stamp_ns))
    if frame < 3 or frame > len(stamps_ns) - 4:
        raise ReleaseError(f"time.release: frame {frame} of {len(stamps_ns)} leaves no held pose or no motion")
    start = int(np.searchsorted(stamps_ns, stamps_ns[frame - 1] - 250_000_000))
    centre = np.nanmean(positions[start:frame], axis=(0, 1))
    displacement = np.linalg.norm(np.nanmean(positions, axis=1) - centre, axis=1)
    return Release((start, frame), stamp_ns, frame, first_turning_point(displacement, frame))


def first_turning_point(displacement: NDArray[np.float64], start: int) -> int:
    """Frame of the first turning point of displacement (t,) after `start`: it has moved, and then falls back.

    Falling back means by a tenth of what was reached, so that a kink on the way does not count.
    """
    top = start
    base = displacement[start]
    moved = (np.nanmax(displacement[start:]) - base) / 4.0
    for index in range(start, len(displacement)):
        value = displacement[index]
        if np.isnan(value):
            continue
        if value > displacement[top]:
            top = index
        elif displacement[top] - base > moved and displacement[top] - value > 0.1 * (displacement[top] - base):
            break
    return top


def _onset(seconds: NDArray[np.float64], displacement: NDArray[np.float64], last_quiet: int) -> float:
    first, second = displacement[last_quiet + 1], displacement[min(last_quiet + 2, len(displacement) - 1)]
    t1, t2 = seconds[last_quiet + 1], seconds[min(last_quiet + 2, len(seconds) - 1)]
    earliest = seconds[last_quiet]
    if not second > first > 0.0:
        return float(earliest)
    # displacement = a (t - t0)^2 / 2 through both frames
    ratio = np.sqrt(first / second)
    return float(np.clip((t1 - ratio * t2) / (1.0 - ratio), earliest, t1))
