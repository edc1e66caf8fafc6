"""Into how many parts a time step is split, so that contact is seen coming, pressed in and left again."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.mechanics.surroundings import Motion

# How much of the band a point that touches, or is about to, may cross within one part of a step. Measured on a
# soft ball that bounces undamped, BDF2, steps of 1 to 8 ms: at 1/2 its energy rises by up to 10 % in one step, at
# 1/4 by up to 3 %, at 1/8 by up to 0.2 %, for twice as many parts.
RESOLUTION = 0.125


def parts_needed(motion: Motion, band: float) -> float:
    """Parts (not rounded) into which a motion must be split so that each crosses RESOLUTION bands at most.

    Only points count that are within the band at either end or would reach it on their way; how fast a point
    slides along a surface does not matter.
    """
    crossed = np.maximum(np.abs(motion.after - motion.before), np.abs(motion.closing))
    return float(np.max(crossed, where=_touching(motion, band), initial=0.0)) / (RESOLUTION * band)


def parts_needed_to_turn(flight: Motion, motion: Motion, band: float) -> float:
    """Parts into which a motion must be split so that forces turn it off its flight by RESOLUTION bands at most.

    The way off the flight goes with the square of time.
    """
    turned = np.abs(motion.after - flight.after)
    furthest = float(np.max(turned, where=motion.after < band, initial=0.0))
    return math.sqrt(furthest / (RESOLUTION * band))


def parts_wanted(flight: Motion, motion: Motion, band: float, parts: int) -> int:
    """Into how many parts a step should have been split of which one of `parts` parts came out as `motion`.

    flight: what was foreseen. Twice what was aimed at is let pass: the flight foresees what happens only so well.
    """
    needed = max(parts_needed(motion, band), parts_needed_to_turn(flight, motion, band))
    if needed > 2.0:
        return math.ceil(needed * parts)
    return 2 * parts if too_deep(motion, band) else parts


def _touching(motion: Motion, band: float) -> NDArray[np.bool_]:
    return (np.minimum(motion.before, motion.after) < band) | (motion.before - motion.closing < band)


def rounded_parts(parts: float, most: int) -> int:
    """The next power of two, at most `most`; not-a-number stands for as many as there may be."""
    if not parts < most:
        return most
    return min(2 ** math.ceil(math.log2(max(parts, 1.0))), most)


def too_deep(motion: Motion, band: float) -> bool:
    """Whether a point ends further below a surface than the band reaches above it."""
    return bool(motion.after.min(initial=0.0) < -band)
