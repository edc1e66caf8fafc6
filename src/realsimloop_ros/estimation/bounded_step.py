"""The minimum of a quadratic loss within chosen directions, bounds and a trust radius."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space

# a coordinate closer to its bound stands at it: far below what any of them is known to, far above rounding
_AT_BOUND = 1e-9
# what rounding makes of a coordinate that should not move; in u and in m nothing depends on so little
_NO_MOVE = 1e-12


class BoundedStep(NamedTuple):
    """change: (P,) of u; limited: whether a bound or the trust radius cut it."""

    change: NDArray[np.float64]
    limited: bool


def bounded_step(
    hessian: NDArray[np.float64],
    slope: NDArray[np.float64],
    directions: NDArray[np.float64],
    room: tuple[NDArray[np.float64], NDArray[np.float64]],
    radii: NDArray[np.float64],
) -> BoundedStep:
    """A step that never raises the loss  slope.d + d.hessian d/2  over d in the span of `directions` (P, q).

    room: how far each coordinate may go down, (P,) <= 0, and up, (P,) >= 0; radii: (P,) largest moves. A
    coordinate that stands at its bound and would leave is held there while the others go on; a step that meets a
    bound or exceeds a radius is shortened as a whole, which keeps it a descent.
    """
    at_bound = np.zeros(len(slope), bool)
    while directions.shape[1]:
        within = directions.T @ hessian @ directions
        step = -directions @ np.linalg.solve(within, directions.T @ slope)
        step[at_bound | (np.abs(step) < _NO_MOVE)] = 0.0
        leaving = ((step < 0.0) & (room[0] >= -_AT_BOUND)) | ((step > 0.0) & (room[1] <= _AT_BOUND))
        if not leaving.any():
            break
        at_bound |= leaving
        directions = directions @ null_space(directions[leaving])
    else:
        return BoundedStep(np.zeros_like(slope), bool(at_bound.any()))
    room_ahead = np.where(step < 0.0, -room[0], room[1])
    moved, allowed = np.abs(step), np.minimum(room_ahead, radii)
    shares = np.divide(allowed, moved, out=np.ones_like(moved), where=moved > np.maximum(allowed, 0.0))
    share = float(shares.min(initial=1.0))
    return BoundedStep(share * step, bool(at_bound.any()) or share < 1.0)
