"""How an estimator lowers the loss of its window: what every method is asked, and what it answers."""

from __future__ import annotations

import abc
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.estimation.problem import WindowProblem
from realsimloop_ros.estimation.updates import UpdateStatus


class Outcome(NamedTuple):
    """status: what became of an update; reason: why theta was held, or what cut it short; loss: after it."""

    status: UpdateStatus
    reason: str
    loss: float


class Method(abc.ABC):
    """Moves a problem's u so that its loss falls, or leaves it where it is."""

    @abc.abstractmethod
    def lower(self, problem: WindowProblem) -> Outcome:
        """Update u once. The window has evidence, and a frame among it."""

    @abc.abstractmethod
    def exercise(self, problem: WindowProblem) -> None:
        """Run all that an update may run, so that it is compiled; what becomes of the problem is no matter."""


def unusable(problem: WindowProblem) -> tuple[UpdateStatus, str] | None:
    """Why a window says nothing; None where it does."""
    evidence = problem.evidence()
    if evidence and any(e.frames for e in evidence):
        return None
    if any(not segment.evidence.valid for track in problem.tracks for segment in track.segments):
        return UpdateStatus.HELD_NOT_CONVERGED, "a step of the window did not converge"
    return UpdateStatus.HELD_NO_OBSERVATION, "no frame of the window could be used"


def held_where_it_was(
    problem: WindowProblem, before: NDArray[np.float64], limited: bool
) -> tuple[UpdateStatus, str] | None:
    """Why theta is still what it was `before`, (P,); None where it has moved."""
    p = problem.space.size
    if not np.array_equal(before[:p], problem.theta):
        return None
    if limited:
        return UpdateStatus.HELD_OUT_OF_BOUNDS, "the step would leave the bounds"
    if p and problem.observable(problem.known()[0])[0].shape[1] == 0:
        return UpdateStatus.HELD_UNOBSERVABLE, "no direction of theta is observable"
    return None
