"""Into how many parts a time step is split, so that contact is seen coming, pressed in and left again."""

from __future__ import annotations

import math

import numpy as np

from realsimloop_ros.mechanics.surroundings import Motion

# how much of the band a point that touches, or is about to, may cross within one part of a step
RESOLUTION = 0.5


def parts_needed(motion: Motion, band: float) -> float:
    """Parts (not rounded) into which a motion must be split so that each crosses no more than RESOLUTION bands.

    Only points count that are within the band at either end or would reach it on their way; how fast a point
    slides along a surface does not matter.
    """
    touching = (np.minimum(motion.before, motion.after) < band) | (motion.before - motion.closing < band)
    crossed = np.maximum(np.abs(motion.after - motion.before), np.abs(motion.closing))
    return float(np.max(crossed, where=touching, initial=0.0)) / (RESOLUTION * band)


def rounded_parts(parts: float, most: int) -> int:
    """The next power of two, at most `most`; not-a-number stands for as many as there may be."""
    if not parts < most:
        return most
    return min(2 ** math.ceil(math.log2(max(parts, 1.0))), most)


def too_deep(motion: Motion, band: float) -> bool:
    """Whether a point ends further below a surface than the band reaches above it."""
    return bool(motion.after.min(initial=0.0) < -band)
