"""The state of a full-order body and the report of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.mechanics.newton import SolveResult
from realsimloop_ros.mechanics.surroundings import Surroundings


@dataclass(frozen=True)
class FullOrderState:
    """Past positions, newest first, (k, n, 3) m, k the integrator's history.

    ages: (k,) s, how much older than the newest each is, None where they stand a time step apart; grip_poses,
    surroundings: those at the newest, from which a split step moves them on; None where they stood still.
    """

    history: NDArray[np.float64]
    ages: NDArray[np.float64] | None = None
    grip_poses: NDArray[np.float64] | None = None
    surroundings: Surroundings | None = None

    @property
    def positions(self) -> NDArray[np.float64]:
        """Present positions (n, 3), m."""
        return self.history[0]


@dataclass(frozen=True)
class StepReport:
    """How a step went.

    result: the worst of its parts; iterations: of Newton's method, in all; last_move: largest move of the last
    Newton direction, m; factorisations: made in all, tries that were given up included; substeps: equal parts it
    was split into; penetration: how deep the deepest point is at its end, m; start: the state at which the last
    part began (held_reactions, grip_wrenches and contact_forces take it as `before`).
    """

    result: SolveResult
    iterations: int
    last_move: float
    factorisations: int
    substeps: int = 1
    penetration: float = 0.0
    start: FullOrderState | None = None
