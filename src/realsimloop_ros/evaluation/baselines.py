"""Baselines of the online estimator: the loss of a whole recording, lowered by methods that know no window.

All of them lower the same loss that the online estimator lowers in its window: the sum over all frames of what the
likelihoods say, and the prior, with what was learnt of the appearance at the start. *offline* follows its gradient
(L-BFGS-B; after Hahn et al., Real2Sim: Visco-elastic parameter estimation from dynamic motion, 2019), *cma* and
*annealing* take values alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

import cma
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import dual_annealing, minimize

from realsimloop_ros.estimation.methods import Method, Outcome
from realsimloop_ros.estimation.problem import WindowProblem
from realsimloop_ros.estimation.updates import MethodName, UpdateStatus

# what they are compared with
ONLINE = get_args(MethodName)

# prior deviations that a search without gradients looks through, on each side
_REACH = 3.0


class BaselineError(ValueError):
    """A baseline that does not exist or cannot be run; the text names it and the remedy."""


class Hold(Method):
    """Gathers the frames of a recording and leaves theta where it starts."""

    def lower(self, problem: WindowProblem) -> Outcome:
        reason = "the recording is fitted as a whole"
        return Outcome(UpdateStatus.HELD_NO_OBSERVATION, reason, problem.loss(problem.u))

    def exercise(self, problem: WindowProblem) -> None:
        return


class _Enough(Exception):
    """The budget is spent."""


@dataclass(frozen=True, eq=False)
class Fit:
    """theta: (p,) coordinates of the best that was found, and its loss; of every evaluation the processor time
    since the beginning, s (e,), and the best theta until then (e, p).
    """

    theta: NDArray[np.float64]
    loss: float
    seconds: NDArray[np.float64]
    best: NDArray[np.float64]


class WholeLoss:
    """The loss over theta of a recording that the window holds as a whole. Counts and times what it is asked."""

    def __init__(self, problem: WindowProblem, budget: int) -> None:
        if any(track.free_start for track in problem.tracks):
            raise BaselineError("method: the start of a track is estimated too, which baselines do not; fix it")
        if not any(track.segments and track.segments[0].cut.begins_track for track in problem.tracks):
            raise BaselineError("method: the window does not hold the beginning of the recording; make it longer")
        self.problem, self.budget = problem, budget
        self.deviation = 1.0 / np.sqrt(np.diag(problem.prior_precision))
        self._began = time.process_time()
        self._seconds: list[float] = []
        self._best: list[NDArray[np.float64]] = []
        self._lowest = np.inf

    def __call__(self, theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Loss and gradient (p,) at theta (p,); infinite where a step does not converge."""
        if len(self._seconds) >= self.budget:
            raise _Enough
        problem = self.problem
        problem.u = np.array(theta, np.float64)
        for track in problem.tracks:
            rolled, state = [], None
            for segment in track.segments:
                if segment.cut.begins_track or state is None:
                    state = problem.start_of(track, problem.material)
                rolled.append(problem.roll_anew(track, segment, state))
                state = rolled[-1].end
            track.segments = deque(rolled)
        valid = all(segment.evidence.valid for track in problem.tracks for segment in track.segments)
        loss = problem.loss(problem.u) if valid else np.inf
        slope = problem.prior_precision @ (problem.u - problem.prior_u)
        slope = slope + sum(evidence.gradient for evidence in problem.evidence())
        if not self._best or loss < self._lowest:
            self._lowest, newest = loss, problem.u.copy()
        else:
            newest = self._best[-1]
        self._seconds.append(time.process_time() - self._began)
        self._best.append(newest)
        return float(loss), slope

    def value(self, theta: NDArray[np.float64]) -> float:
        """The loss, large but finite where a step does not converge."""
        return min(self(theta)[0], 1e12)

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper theta (p,): the material's own, and no further than a search should look."""
        centre, reach = self.problem.prior_u, _REACH * self.deviation
        return np.maximum(self.problem.lower, centre - reach), np.minimum(self.problem.upper, centre + reach)

    def fit(self) -> Fit:
        """The best of what was asked so far."""
        return Fit(self._best[-1], float(self._lowest), np.array(self._seconds), np.array(self._best))


def _offline(loss: WholeLoss, seed: int) -> None:
    scale = loss.deviation

    def scaled(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = loss(x * scale)
        return value, slope * scale

    lower, upper = loss.bounds()
    start = loss.problem.prior_u / scale
    bounds = list(zip(lower / scale, upper / scale, strict=True))
    minimize(scaled, start, jac=True, method="L-BFGS-B", bounds=bounds)


def _cma(loss: WholeLoss, seed: int) -> None:
    lower, upper = loss.bounds()
    scale, centre = loss.deviation, loss.problem.prior_u
    bounds = [((lower - centre) / scale).tolist(), ((upper - centre) / scale).tolist()]
    # its seed 0 means the clock
    options = {"bounds": bounds, "seed": seed + 1, "verbose": -9, "maxfevals": loss.budget}
    search = cma.CMAEvolutionStrategy(np.zeros(len(scale)), 1.0, options)
    search.optimize(lambda x: loss.value(centre + scale * np.asarray(x)))


def _annealing(loss: WholeLoss, seed: int) -> None:
    lower, upper = loss.bounds()
    dual_annealing(
        loss.value,
        list(zip(lower, upper, strict=True)),
        x0=loss.problem.prior_u,
        rng=np.random.default_rng(seed),
        no_local_search=True,
        maxfun=loss.budget,
    )


BASELINES: dict[str, Callable[[WholeLoss, int], None]] = {
    "offline": _offline,
    "cma": _cma,
    "annealing": _annealing,
}


def baseline_named(method: str) -> Callable[[WholeLoss, int], None]:
    """Raises BaselineError with the names that exist."""
    if method not in BASELINES:
        raise BaselineError(f"method: {method!r}, expected one of {', '.join((*ONLINE, *BASELINES))}")
    return BASELINES[method]


def fit_whole(problem: WindowProblem, method: str, *, budget: int = 200, seed: int = 0) -> Fit:
    """Lower the loss of a recording that lies in the problem's window from its beginning on.

    budget: evaluations at most. Raises BaselineError.
    """
    search, loss = baseline_named(method), WholeLoss(problem, budget)
    with suppress(_Enough):
        search(loss, seed)
    return loss.fit()
