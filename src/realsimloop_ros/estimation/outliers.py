"""Whole frames that contradict: how far what a segment says is from what is known already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.estimation.window import Evidence

# eigenvalues of an information matrix below this share of its largest one are rounding
_RANK = 1e-10


def contradiction(evidence: Evidence, precision: NDArray[np.float64], vector: NDArray[np.float64]) -> float:
    """Distance, in standard deviations, between what evidence says of u and what is known of it.

    precision: (P, P) and vector: (P,) of what is known, the prior included. It is the innovation of a Kalman
    filter in the directions that the evidence informs of: its slope at what is known, over the spread that the
    slope has by the evidence's own errors and by those of what is known.
    """
    values, vectors = np.linalg.eigh(evidence.precision)
    kept = values > _RANK * max(values[-1], 0.0)
    if not evidence.valid or not kept.any():
        return 0.0
    along, information = vectors[:, kept], values[kept]
    known = np.linalg.inv(precision)
    slope = along.T @ (evidence.gradient + evidence.precision @ (known @ vector - evidence.u))
    spread = np.diag(information) + np.outer(information, information) * (along.T @ known @ along)
    return float(np.sqrt(slope @ np.linalg.solve(spread, slope)))


class OutlierWeights:
    """What a segment counts: 1, less where it contradicts by more than `limit` deviations and stands alone.

    Once `run` segments in a row have contradicted, it is the material that has changed, and they count in full.
    """

    def __init__(self, limit: float, run: int = 3) -> None:
        self._limit, self._run = limit, run
        self._contradicting = 0

    def weigh(self, distance: float) -> float:
        """The weight of the next segment: one that pulls no harder than one at the limit."""
        if distance <= self._limit:
            self._contradicting = 0
            return 1.0
        self._contradicting += 1
        return 1.0 if self._contradicting > self._run else (self._limit / distance) ** 2


def weighted(evidence: Evidence, weight: float) -> Evidence:
    """Evidence that counts `weight` times as much."""
    return replace(
        evidence,
        loss=weight * evidence.loss,
        gradient=weight * evidence.gradient,
        precision=weight * evidence.precision,
    )
