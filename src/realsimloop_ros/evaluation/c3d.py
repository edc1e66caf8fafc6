"""Reading .c3d motion captures."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import ezc3d
import numpy as np

from realsimloop_ros.evaluation.captures import FIRST_STAMP_NS, CaptureError, CaptureWarning, MarkerCapture

METRES_PER_UNIT = {
    "m": 1.0,
    "meter": 1.0,
    "metre": 1.0,
    "meters": 1.0,
    "metres": 1.0,
    "dm": 0.1,
    "cm": 1e-2,
    "mm": 1e-3,
    "in": 0.0254,
    "inch": 0.0254,
    "inches": 0.0254,
    "ft": 0.3048,
    "feet": 0.3048,
}


def read_c3d(path: Path, *, unit: str | None = None, frame: str = "capture") -> MarkerCapture:
    """Markers of a .c3d file, in metres.

    unit: overrides the unit that the file names. Points with a negative residual (the format's sign for "not
    seen") or without a finite position become NaN. Stamps start at FIRST_STAMP_NS and follow the point rate.
    Warns with CaptureWarning when the file ends before the frames that its header promises.
    Raises CaptureError naming the file and the remedy.
    """
    path = Path(path)
    if not path.is_file():
        raise CaptureError(f"{path}: does not exist; check the path of the capture")
    if path.stat().st_size == 0:
        raise CaptureError(f"{path}: is empty (0 bytes); export or copy the capture again")
    try:
        content = ezc3d.c3d(str(path))
    except (OSError, RuntimeError, ValueError, MemoryError, IndexError) as error:
        reason = str(error).removesuffix(": iostream error")
        raise CaptureError(f"{path}: not a readable .c3d file ({reason}); export the capture again") from error

    points = content["parameters"].get("POINT", {})
    rate = _number(points, "RATE")
    if not (np.isfinite(rate) and rate > 0.0):
        raise CaptureError(f"{path}: POINT:RATE is {rate}, expected a positive frame rate in Hz; export again")
    data = np.asarray(content["data"]["points"], dtype=np.float64)
    positions = np.transpose(data[:3], (2, 1, 0)) * _metres_per_unit(path, points, unit)
    residuals = np.asarray(content["data"]["meta_points"]["residuals"], dtype=np.float64)
    if residuals.size:
        positions[np.transpose(residuals[0]) < 0.0] = np.nan
    positions[~np.isfinite(positions).all(axis=2)] = np.nan

    promised = _promised_frames(path)
    if len(positions) < promised:
        warnings.warn(
            CaptureWarning(
                f"{path}: holds {len(positions)} of the {promised} frames that its header promises; it was "
                "cut off; the frames that are there are used"
            ),
            stacklevel=2,
        )
    steps = np.arange(len(positions), dtype=np.float64)
    stamps = FIRST_STAMP_NS + np.rint(steps * 1e9 / rate).astype(np.int64)
    return MarkerCapture(str(path), _names(points, positions.shape[1]), stamps, positions, frame)


def _values(group: dict[str, Any], name: str) -> list[Any]:
    entry = group.get(name)
    return [] if entry is None else list(np.atleast_1d(entry.get("value", [])))


def _number(group: dict[str, Any], name: str) -> float:
    values = _values(group, name)
    return float(values[0]) if values else float("nan")


def _promised_frames(path: Path) -> int:
    # read from the bytes: the library reports the frames it found, not those that the header names.
    # Words 4 and 5 are 16 bit and saturate in long captures, which then cannot be checked.
    with path.open("rb") as stream:
        first, last = struct.unpack("<HH", stream.read(10)[6:])
    return last - first + 1 if 0 < first <= last < 0xFFFF else 0


def _metres_per_unit(path: Path, points: dict[str, Any], override: str | None) -> float:
    named = override if override is not None else next(iter(_values(points, "UNITS")), "")
    scale = METRES_PER_UNIT.get(str(named).strip().lower())
    if scale is None:
        origin = "the given unit" if override is not None else "POINT:UNITS"
        raise CaptureError(
            f"{path}: {origin} is {str(named)!r}, which is no known unit of length; pass one of "
            f"{', '.join(sorted(METRES_PER_UNIT))} as the unit"
        )
    return scale


def _names(points: dict[str, Any], count: int) -> tuple[str, ...]:
    # a parameter holds 255 labels at most; more go to LABELS2, LABELS3, ...
    labels = _values(points, "LABELS")
    block = 2
    while more := _values(points, f"LABELS{block}"):
        labels += more
        block += 1
    names = [str(label).strip() for label in labels[:count]]
    names += [""] * (count - len(names))
    return tuple(name or f"point {index + 1}" for index, name in enumerate(names))
