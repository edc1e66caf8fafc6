"""First-order steps on the window, as the paper takes them: Adam along the gradient of the window's loss."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax

from realsimloop_ros.estimation.methods import Method, Outcome, held_where_it_was
from realsimloop_ros.estimation.problem import WindowProblem
from realsimloop_ros.estimation.updates import EstimatorSettings, UpdateStatus


class FirstOrder(Method):
    """One step of Adam (Kingma, Ba 2015) per update, in units of the prior's deviations, within bounds and
    observable directions.

    The gradient is the window's own: its frames' sensitivities are there for the stated band already, so that an
    adjoint sweep, which gives the same numbers, would cost more. Slower to the minimum than Gauss-Newton, and its
    step never grows beyond the learning rate, however badly a window misleads.
    """

    def __init__(self, settings: EstimatorSettings) -> None:
        self._adam = optax.adam(settings.learning_rate)
        self._state: optax.OptState | None = None

    def lower(self, problem: WindowProblem) -> Outcome:
        held, p = problem.u.copy(), problem.space.size
        precision, vector = problem.known()
        slope = problem.slope(precision, vector)
        if not (np.isfinite(precision).all() and np.isfinite(slope).all()):
            return Outcome(UpdateStatus.HELD_NON_FINITE, "the gradient is not finite", problem.loss(held))
        part, _ = problem.observable(precision)
        deviation = 1.0 / np.sqrt(np.diag(problem.prior_precision))
        gradient = jnp.asarray(slope * deviation)
        if self._state is None:
            self._state = self._adam.init(gradient)
        moves, self._state = self._adam.update(gradient, self._state)
        wanted = np.asarray(moves, np.float64) * deviation
        # theta is held along what is not observable
        wanted[:p] = part @ (part.T @ wanted[:p])
        change = np.clip(wanted, problem.lower - problem.u, problem.upper - problem.u)
        limited = not np.array_equal(change, wanted)
        status, reason = UpdateStatus.UPDATED, "the step was cut at a bound" if limited else ""
        if problem.is_small(change):
            problem.shift(change)
        elif not problem.try_shift(change):
            status, reason = UpdateStatus.HELD_LOSS_NOT_REDUCED, "rolled out anew, the window's loss did not fall"
        if status is UpdateStatus.UPDATED:
            status, reason = held_where_it_was(problem, held, limited) or (status, reason)
        loss = problem.loss(problem.u)
        for _ in range(problem.settings.relinearisations):
            if not problem.freshen():
                break
        return Outcome(status, reason, loss)

    def exercise(self, problem: WindowProblem) -> None:
        self.lower(problem)
        problem.try_shift(np.full_like(problem.u, 1e-3))
