"""What an estimator is told, and what it answers: settings, status, and the update after a segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.estimation.theta import Quantity
from realsimloop_ros.mechanics.material import Material


class UpdateStatus(IntEnum):
    """What became of an update; the values are those of MaterialEstimate.msg."""

    UPDATED = 0
    HELD_NO_OBSERVATION = 1
    HELD_NOT_CONVERGED = 2
    HELD_LOSS_NOT_REDUCED = 3
    HELD_UNOBSERVABLE = 4
    HELD_NON_FINITE = 5
    HELD_OUT_OF_BOUNDS = 6


MethodName = Literal["gauss_newton", "first_order"]


@dataclass(frozen=True)
class EstimatorSettings:
    """How an estimator works.

    method: how the window's loss is lowered; learning_rate: of first-order steps, in deviations of the prior;
    window: segments; ticks_per_segment: of the model's time step; forgetting: factor per segment on what left the
    window (1 for a material that does not change); trust_radius: largest step of any coordinate of u;
    relinearise_beyond: move of u that a linearisation bears; relinearisations: at most so many segments are
    rolled out anew per update, which bounds what it costs; least_gain: information of a direction, in units of
    the prior's, below which it counts as unobservable; model_deviation: standard deviation, by quantity, of what
    is published that no amount of data removes, the error of the model itself; refresh_beyond: move of u since
    the appearance was learnt from which on it is learnt anew; outlier_deviations: distance from what is known
    beyond which a frame that stands alone counts less.
    """

    window: int = 8
    ticks_per_segment: int = 6
    forgetting: float = 0.94
    trust_radius: float = 0.5
    relinearise_beyond: float = 0.05
    relinearisations: int = 1
    least_gain: float = 0.25
    model_deviation: Mapping[Quantity, float] = field(
        default_factory=lambda: {
            "youngs_modulus": 0.02,
            "poisson_ratio": 0.004,
            "viscosity": 0.1,
            "density": 0.02,
        }
    )
    refresh_beyond: float = 0.25
    outlier_deviations: float = 5.0
    method: MethodName = "gauss_newton"
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        for name in ("window", "ticks_per_segment", "relinearisations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}, expected at least 1")
        for name, high in (
            ("forgetting", 1.0),
            ("trust_radius", np.inf),
            ("relinearise_beyond", np.inf),
            ("outlier_deviations", np.inf),
            ("learning_rate", np.inf),
        ):
            if not 0.0 < getattr(self, name) <= high:
                raise ValueError(f"{name}: {getattr(self, name)}, expected above 0 and at most {high}")


@dataclass(frozen=True, eq=False)
class MaterialUpdate:
    """The estimate after a segment.

    stamp_ns: of the newest frame in it; material: per zone; covariance: (p, p) over parameter_names, infinite
    where unobservable; losses of the window before and after; latent: (r,), grip_poses: (g, 7) and vertices:
    (n, 3) at that frame's stamp, predicted at the new theta; figures: of the likelihoods, by name.
    """

    stamp_ns: int
    zone_names: tuple[str, ...]
    material: Material
    parameter_names: tuple[str, ...]
    covariance: NDArray[np.float64]
    status: UpdateStatus
    reason: str
    loss_before: float
    loss_after: float
    frames_used: int
    solve_time_s: float
    latent: NDArray[np.float64]
    grip_poses: NDArray[np.float64]
    vertices: NDArray[np.float64]
    figures: dict[str, float]
