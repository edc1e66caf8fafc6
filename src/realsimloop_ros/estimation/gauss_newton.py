"""Gauss-Newton on the window: the minimum of its quadratic model, rolled out anew where that is far away."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from realsimloop_ros.estimation.bounded_step import BoundedStep, bounded_step
from realsimloop_ros.estimation.methods import Method, Outcome, held_where_it_was
from realsimloop_ros.estimation.problem import WindowProblem
from realsimloop_ros.estimation.updates import UpdateStatus


class GaussNewton(Method):
    """Steps to the minimum of the quadratic model within bounds, trust radius and observable directions."""

    def __init__(self) -> None:
        # targets whose rollout was refused, with the number of closed segments until which that counts
        self._refusals: list[tuple[NDArray[np.float64], int]] = []

    def lower(self, problem: WindowProblem) -> Outcome:
        status, reason, limited = UpdateStatus.UPDATED, "", False
        held = problem.u.copy()
        for _ in range(problem.settings.relinearisations):
            step = gauss_newton_step(problem)
            if step is None:
                return Outcome(
                    UpdateStatus.HELD_NON_FINITE, "the Gauss-Newton step is not finite", problem.loss(held)
                )
            change, limited = step
            if not np.any(change):
                break
            if limited:
                reason = "the step was cut at a bound or the trust radius"
            if problem.is_small(change):
                problem.shift(change)
                break
            if self._refused_lately(problem, change) or not self._relinearise(problem, change):
                if np.array_equal(held, problem.u):
                    status = UpdateStatus.HELD_LOSS_NOT_REDUCED
                    reason = "rolled out anew, the window's loss did not fall"
                break
        if status is UpdateStatus.UPDATED:
            status, reason = held_where_it_was(problem, held, limited) or (status, reason)
        return Outcome(status, reason, problem.loss(problem.u))

    def exercise(self, problem: WindowProblem) -> None:
        change = np.full_like(problem.u, 1e-3)
        problem.shift(change)
        problem.relinearise(change)

    def _relinearise(self, problem: WindowProblem, change: NDArray[np.float64]) -> bool:
        target = problem.u + change
        if problem.relinearise(change):
            return True
        self._refusals.append((target, problem.closed + max(1, problem.settings.window // 2)))
        return False

    def _refused_lately(self, problem: WindowProblem, change: NDArray[np.float64]) -> bool:
        """Whether nearly the same target was rolled out and refused while half of this window was already in it.

        Such a target is refused again without the cost of a rollout: successive frames propose much the same step.
        """
        p = problem.space.size
        self._refusals = [(target, left) for target, left in self._refusals if left > problem.closed]
        near = problem.settings.relinearise_beyond
        return any(np.abs((problem.u + change - target)[:p]).max() <= near for target, _ in self._refusals)


def gauss_newton_step(problem: WindowProblem) -> BoundedStep | None:
    """The next step of u; None where it is not finite."""
    precision, vector = problem.known()
    slope = precision @ problem.u - vector + problem.prior_precision @ (problem.u - problem.prior_u)
    if not (np.isfinite(precision).all() and np.isfinite(slope).all()):
        return None
    # the step within the observable subspace: theta is held along the others, the start is free to follow
    size = problem.space.size
    part, _ = problem.observable(precision)
    free = len(problem.u) - size
    radii = np.concatenate([np.full(size, problem.settings.trust_radius), np.full(free, np.inf)])
    return bounded_step(
        precision + problem.prior_precision,
        slope,
        block_diag(part, np.eye(free)),
        (problem.lower - problem.u, problem.upper - problem.u),
        radii,
    )
