"""Which directions of theta the data say anything about."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def without_nuisance(precision: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Precision (p, p) of the first p = size coordinates once the others are marginalised."""
    if len(precision) == size:
        return precision
    cross = precision[:size, size:]
    return precision[:size, :size] - cross @ np.linalg.solve(precision[size:, size:], cross.T)


def observable_part(
    precision: NDArray[np.float64], prior_precision: NDArray[np.float64], least_gain: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Directions in which data inform by at least `least_gain` of what the prior does.

    precision: (p, p) of the data; prior_precision: (p, p), diagonal. Returns the observable directions (p, q) and,
    per parameter, the share (p,) of its unit vector (in prior deviations) that lies within them: a parameter with
    a small share is unobservable. Scaling by the prior makes directions comparable across units.
    """
    deviation = 1.0 / np.sqrt(np.diag(prior_precision))
    values, vectors = np.linalg.eigh(precision * np.outer(deviation, deviation))
    chosen = vectors[:, values >= least_gain]
    return deviation[:, None] * chosen, (chosen**2).sum(axis=1)
