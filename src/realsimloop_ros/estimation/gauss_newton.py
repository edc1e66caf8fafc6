"""Gauss-Newton on the window: the minimum of its quadratic model, rolled out anew where that is far away."""

from __future__ import annotations

import numpy as np
from scipy.linalg import block_diag

from realsimloop_ros.estimation.bounded_step import BoundedStep, bounded_step
from realsimloop_ros.estimation.methods import Method, Outcome, held_where_it_was
from realsimloop_ros.estimation.problem import WindowProblem
from realsimloop_ros.estimation.updates import EstimatorSettings, UpdateStatus


class GaussNewton(Method):
    """Steps to the minimum of the quadratic model within bounds, trust radius and observable directions.

    A step that is more than a linearisation bears is checked by rolling out anew: all windows, where the settings
    allow that many segments, else the newest segment alone. The others then follow over the frames to come, and an
    update costs the same however long the window is.
    """

    def __init__(self, settings: EstimatorSettings) -> None:
        # halved where a step is refused, doubled where one is taken
        self._radius = settings.trust_radius

    def lower(self, problem: WindowProblem) -> Outcome:
        settings = problem.settings
        status, reason, limited = UpdateStatus.UPDATED, "", False
        held, budget = problem.u.copy(), settings.relinearisations
        while budget:
            step = gauss_newton_step(problem, self._radius)
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
                self._radius = min(2.0 * self._radius, settings.trust_radius)
                break
            whole = budget >= problem.segments
            budget -= problem.segments if whole else 1
            if not (problem.relinearise(change) if whole else problem.try_shift(change)):
                self._radius = 0.5 * float(np.abs(change[: problem.space.size]).max(initial=0.0)) or self._radius
                if np.array_equal(held, problem.u):
                    status = UpdateStatus.HELD_LOSS_NOT_REDUCED
                    reason = "rolled out anew, the window's loss did not fall"
                break
            self._radius = min(2.0 * self._radius, settings.trust_radius)
        if status is UpdateStatus.UPDATED:
            status, reason = held_where_it_was(problem, held, limited) or (status, reason)
        loss = problem.loss(problem.u)
        while budget and problem.freshen():
            budget -= 1
        return Outcome(status, reason, loss)

    def exercise(self, problem: WindowProblem) -> None:
        change = np.full_like(problem.u, 1e-3)
        problem.shift(change)
        problem.try_shift(change)


def gauss_newton_step(problem: WindowProblem, radius: float) -> BoundedStep | None:
    """The next step of u, no coordinate of theta by more than `radius`; None where it is not finite."""
    precision, vector = problem.known()
    slope = problem.slope(precision, vector)
    if not (np.isfinite(precision).all() and np.isfinite(slope).all()):
        return None
    # the step within the observable subspace: theta is held along the others, the start is free to follow
    size = problem.space.size
    part, _ = problem.observable(precision)
    free = len(problem.u) - size
    radii = np.concatenate([np.full(size, radius), np.full(free, np.inf)])
    return bounded_step(
        precision + problem.prior_precision,
        slope,
        block_diag(part, np.eye(free)),
        (problem.lower - problem.u, problem.upper - problem.u),
        radii,
    )
