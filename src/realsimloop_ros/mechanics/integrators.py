"""Implicit time integrators as sets of coefficients over past positions.

One step minimises an incremental potential with inertia  inertia / (2 h^2) |x - y|_M^2  about the prediction

    y = sum_k predictor[k] x_{t-1-k} + h^2 / inertia * gravity,

and rates of any quantity q are  (rate[0] q_t + sum_k rate[k] q_{t-k}) / h. BDF2 is applied to position and to
velocity, v = D x and a = D v with the same difference D, which leaves four past positions.
"""

from __future__ import annotations

from dataclasses import dataclass


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
