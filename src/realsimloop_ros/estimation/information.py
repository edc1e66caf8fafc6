"""What observations that have left the window said of u: a quadratic loss that fades."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.estimation.window import Evidence


class Information:
    """The loss  constant - vector.u + u.precision u/2  over u (P,): a sum of linearised evidence."""

    def __init__(self, size: int) -> None:
        self.precision = np.zeros((size, size))
        self.vector = np.zeros(size)
        self.constant = 0.0

    def loss_at(self, u: NDArray[np.float64]) -> float:
        """The loss at u (P,)."""
        return float(self.constant - self.vector @ u + 0.5 * u @ self.precision @ u)

    def absorb(self, evidence: Evidence, forgetting: float) -> None:
        """Take evidence in, after what is known already has faded by a factor."""
        self.precision *= forgetting
        self.vector *= forgetting
        self.constant *= forgetting
        if evidence.valid:
            precision, vector = evidence.information()
            self.precision += precision
            self.vector += vector
            self.constant += evidence.loss_at(np.zeros_like(self.vector))

    def marginalise(self, which: slice, prior_precision: NDArray[np.float64]) -> None:
        """Forget some coordinates, of a prior about zero, but not what they taught of the others."""
        precision, vector = self.precision, self.vector
        own = precision[which, which] + prior_precision[which, which]
        gain = np.linalg.solve(own, precision[which, :]).T
        self.constant -= 0.5 * float(vector[which] @ np.linalg.solve(own, vector[which]))
        self.vector = vector - gain @ vector[which]
        self.precision = precision - gain @ precision[which, :]
        self.precision[which, :] = self.precision[:, which] = 0.0
        self.vector[which] = 0.0
