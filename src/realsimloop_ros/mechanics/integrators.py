"""Implicit time integrators as sets of coefficients over past positions.

One step minimises an incremental potential with inertia  inertia / (2 h^2) |x - y|_M^2  about the prediction

    y = sum_k predictor[k] x_{t-1-k} + h^2 / inertia * gravity,

and rates of any quantity q are  (rate[0] q_t + sum_k rate[k] q_{t-k}) / h. BDF2 is applied to position and to
velocity, v = D x and a = D v with the same difference D, which leaves four past positions.

The same differences exist between positions that stand unevenly in time, which is how a step is split into shorter
ones: D is then the derivative, at the newest of them, of the parabola (or line) through the positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Integrator:
    """inertia: factor of M/h^2; predictor: weights of past positions; rate: of present and past values."""

    name: str
    inertia: float
    predictor: tuple[float, ...]
    rate: tuple[float, ...]

    @property
    def history(self) -> int:
        """Number of past positions a step looks at."""
        return len(self.predictor)


IMPLICIT_EULER = Integrator("implicit_euler", 1.0, (2.0, -1.0), (1.0, -1.0))
BDF2 = Integrator("bdf2", 9.0 / 4.0, (24.0 / 9.0, -22.0 / 9.0, 8.0 / 9.0, -1.0 / 9.0), (1.5, -2.0, 0.5))
INTEGRATORS = {scheme.name: scheme for scheme in (IMPLICIT_EULER, BDF2)}


def integrator_named(name: str) -> Integrator:
    """The integrator of that name; ValueError lists the known ones."""
    if name not in INTEGRATORS:
        raise ValueError(f"integrator: {name!r}, expected one of {sorted(INTEGRATORS)}")
    return INTEGRATORS[name]


@dataclass(frozen=True)
class StepWeights:
    """An integrator's coefficients for one step of a certain length.

    inertia: of the present position in the acceleration, 1/s^2; predictor: (k,) weights of past positions, newest
    first; rate: (o + 1,) of present and past values in a rate of change, 1/s.
    """

    inertia: float
    predictor: NDArray[np.float64]
    rate: NDArray[np.float64]


def step_weights(
    scheme: Integrator, time_step: float, ages: NDArray[np.float64] | None = None, part: float | None = None
) -> StepWeights:
    """Coefficients of a step of time_step, s, or of a `part` of it, s.

    ages: (k,) s, how much older than the newest the past positions are; None for a time step apart.
    """
    if ages is None and part in (None, time_step):
        return StepWeights(
            scheme.inertia / time_step**2, np.array(scheme.predictor), np.array(scheme.rate) / time_step
        )
    since = time_step * np.arange(scheme.history) if ages is None else ages
    times = np.concatenate([[0.0], -((time_step if part is None else part) + since)])
    order = len(scheme.rate) - 1
    rate = _derivative_weights(times[: order + 1])
    acceleration = np.zeros(len(times))
    for k in range(order + 1):
        acceleration[k : k + order + 1] += rate[k] * _derivative_weights(times[k : k + order + 1])
    return StepWeights(float(acceleration[0]), -acceleration[1:] / acceleration[0], rate)


def ages_after(
    scheme: Integrator, time_step: float, ages: NDArray[np.float64] | None, part: float
) -> NDArray[np.float64] | None:
    """Ages (k,), s, of the past positions after a part, s, of a step; None once all stand time_step, s, apart."""
    even = time_step * np.arange(scheme.history)
    after = np.concatenate([[0.0], (even if ages is None else ages)[:-1] + part])
    return None if np.allclose(after, even, rtol=1e-9, atol=0.0) else after


def _derivative_weights(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights, 1/s, of values at `times` in the derivative at times[0] of the polynomial through them."""
    since = times - times[0]
    scale = -since[1]
    powers = np.vander(since / scale, increasing=True).T
    slope = np.zeros(len(times))
    slope[1] = 1.0
    return np.linalg.solve(powers, slope) / scale
