"""What the wrist wrenches of the arms say: the only measurement that knows the scale of the stiffness at rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.observation.likelihoods import LikelihoodTerm, ObservationError


@dataclass(frozen=True)
class WrenchLikelihood:
    """Gaussian errors per component, Huber beyond `robust_scale` deviations.

    force_deviation: N, and moment_deviation: N m, of the sensor with its bias; relative_deviation: of a component,
    in parts of the wrench's magnitude, for what the model itself errs; frames_per_sample: successive frames that
    share one error. The tool's own weight must have been taken off.
    """

    force_deviation: float = 0.1
    moment_deviation: float = 0.005
    relative_deviation: float = 0.03
    robust_scale: float = 10.0
    frames_per_sample: float = 4.0

    def __post_init__(self) -> None:
        for name in ("force_deviation", "moment_deviation", "robust_scale", "frames_per_sample"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0.0):
                raise ObservationError(f"wrenches.{name}: {value}, expected a positive number")
        if not (np.isfinite(self.relative_deviation) and self.relative_deviation >= 0.0):
            raise ObservationError(f"wrenches.relative_deviation: {self.relative_deviation}, expected >= 0")

    def evaluate(
        self, predicted: NDArray[np.float64], tangents: NDArray[np.float64], measured: NDArray[np.float64]
    ) -> LikelihoodTerm | None:
        """The term of wrenches (g, 6), N and N m, predicted with tangents (g, 6, p); NaN: not measured."""
        seen = np.isfinite(measured).all(axis=1)
        if not seen.any():
            return None
        force = np.linalg.norm(measured[seen, :3], axis=1, keepdims=True)
        moment = np.linalg.norm(measured[seen, 3:], axis=1, keepdims=True)
        deviation = np.concatenate(
            [
                np.broadcast_to(np.hypot(self.force_deviation, self.relative_deviation * force), (len(force), 3)),
                np.broadcast_to(
                    np.hypot(self.moment_deviation, self.relative_deviation * moment), (len(force), 3)
                ),
            ],
            axis=1,
        )
        error = (predicted[seen] - measured[seen]) / deviation
        jacobian = tangents[seen] / deviation[:, :, None]
        size = np.abs(error)
        beyond = size > self.robust_scale
        weight = np.where(beyond, self.robust_scale / np.maximum(size, 1e-300), 1.0)
        cost = np.where(beyond, self.robust_scale * (size - 0.5 * self.robust_scale), 0.5 * size**2)
        share = 1.0 / self.frames_per_sample
        return LikelihoodTerm(
            loss=share * float(cost.sum()),
            gradient=share * np.einsum("gcp,gc,gc->p", jacobian, weight, error),
            gauss_newton=share * np.einsum("gcp,gc,gcq->pq", jacobian, weight, jacobian),
            figures={"wrench_rms_deviations": float(np.sqrt((size**2).mean()))},
        )
