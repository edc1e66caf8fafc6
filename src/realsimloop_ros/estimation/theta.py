"""What is estimated: named material parameters per zone, their coordinates, priors and bounds.

An estimator works in coordinates u: log E, 10 nu, log viscosity, log density. It publishes covariances over log E,
nu, log viscosity and log density, which are what a user reads. What is measured depends on nu nearly linearly up
to its limit, so a coordinate that stretched the limit to infinity would make a symmetric band of a skewed one.
The factor makes 0.1 of nu as large a move as a factor of e of E.

Density is best held: in its weight and inertia it takes up every other error of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.mechanics.material import POISSON_RATIO_LIMIT, InvalidMaterialError, Material

Quantity = Literal["youngs_modulus", "poisson_ratio", "viscosity", "density"]
# of nu per unit of its coordinate
_RATIO_SCALE = 0.1
_PUBLISHED = {
    "youngs_modulus": "log_youngs_modulus",
    "poisson_ratio": "poisson_ratio",
    "viscosity": "log_viscosity",
    "density": "log_density",
}


@dataclass(frozen=True)
class Parameter:
    """One estimated number.

    zone: name; quantity; prior_deviation: standard deviation of the prior in the published coordinate (log E, nu,
    log viscosity, log density); lower, upper: bounds in SI units.
    """

    zone: str
    quantity: Quantity
    prior_deviation: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        label = f"parameters.{self.zone}.{self.quantity}"
        if self.quantity not in _PUBLISHED:
            raise InvalidMaterialError(f"{label}: expected one of {sorted(_PUBLISHED)}")
        if not (np.isfinite(self.prior_deviation) and self.prior_deviation > 0.0):
            raise InvalidMaterialError(f"{label}.prior_deviation: {self.prior_deviation}, expected > 0")
        ceiling = POISSON_RATIO_LIMIT if self.quantity == "poisson_ratio" else np.inf
        if not (0.0 < self.lower < self.upper <= ceiling):
            raise InvalidMaterialError(
                f"{label}: bounds {self.lower} to {self.upper}, expected 0 < lower < upper"
                + (f" <= {ceiling}" if np.isfinite(ceiling) else "")
            )

    @property
    def name(self) -> str:
        """Name in published covariances, `ZONE.log_youngs_modulus` and the like."""
        return f"{self.zone}.{_PUBLISHED[self.quantity]}"

    def coordinate(self, value: float) -> float:
        """u of a value in SI units."""
        return value / _RATIO_SCALE if self.quantity == "poisson_ratio" else float(np.log(value))

    def value(self, u: float) -> float:
        """SI value of u."""
        return _RATIO_SCALE * u if self.quantity == "poisson_ratio" else float(np.exp(u))

    def value_slope(self, u: float) -> float:
        """d(SI value) / du."""
        return _RATIO_SCALE if self.quantity == "poisson_ratio" else self.value(u)

    def published_slope(self, u: float) -> float:
        """d(published coordinate) / du: one for logarithms."""
        return self.value_slope(u) if self.quantity == "poisson_ratio" else 1.0


@dataclass(frozen=True)
class ParameterSpace:
    """The estimated parameters of a body whose zones are zone_names, and the material they start from.

    prior: Material (z,), the prior's centre; what is not among `parameters` keeps its value there.
    """

    zone_names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    prior: Material

    def __post_init__(self) -> None:
        for parameter in self.parameters:
            if parameter.zone not in self.zone_names:
                raise InvalidMaterialError(
                    f"parameters: unknown zone {parameter.zone!r}; the body's zones are {list(self.zone_names)}"
                )
            value = self._of(self.prior, parameter)
            if not parameter.lower <= value <= parameter.upper:
                raise InvalidMaterialError(
                    f"{parameter.zone}.{parameter.quantity}: prior {value} lies outside its bounds "
                    f"{parameter.lower} to {parameter.upper}"
                )
        if len(set(self.names)) != len(self.names):
            raise InvalidMaterialError(f"parameters: {list(self.names)} repeat; name each once")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def size(self) -> int:
        return len(self.parameters)

    def _of(self, material: Material, parameter: Parameter) -> float:
        return float(getattr(material, parameter.quantity)[self.zone_names.index(parameter.zone)])

    def coordinates(self, material: Material) -> NDArray[np.float64]:
        """u (p,) of a material."""
        return np.array([p.coordinate(self._of(material, p)) for p in self.parameters])

    def material(self, u: NDArray[np.float64]) -> Material:
        """The material at u (p,)."""
        fields = {name: np.array(values, dtype=np.float64) for name, values in self.prior._asdict().items()}
        for parameter, value in zip(self.parameters, u, strict=True):
            fields[parameter.quantity][self.zone_names.index(parameter.zone)] = parameter.value(float(value))
        return Material(**fields)

    def directions(self, u: NDArray[np.float64], total: int | None = None) -> Material:
        """dMaterial/du: a Material whose fields are (p, z), or (total, z) with rows of zeros after the first p."""
        zones = len(self.zone_names)
        fields = {name: np.zeros((total or self.size, zones)) for name in Material._fields}
        for k, (parameter, value) in enumerate(zip(self.parameters, u, strict=True)):
            zone = self.zone_names.index(parameter.zone)
            fields[parameter.quantity][k, zone] = parameter.value_slope(float(value))
        return Material(**fields)

    def prior_precision(self) -> NDArray[np.float64]:
        """Inverse covariance (p, p) of the prior in u."""
        centre = self.coordinates(self.prior)
        deviations = np.array(
            [p.prior_deviation / p.published_slope(float(u)) for p, u in zip(self.parameters, centre, strict=True)]
        )
        return np.diag(1.0 / deviations**2)

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper u (p,)."""
        lower = np.array([p.coordinate(p.lower) for p in self.parameters])
        upper = np.array([p.coordinate(p.upper) for p in self.parameters])
        return lower, upper

    def published_covariance(
        self, u: NDArray[np.float64], covariance: NDArray[np.floating]
    ) -> NDArray[np.float64]:
        """Covariance (p, p) over the published coordinates from that over u; infinite entries stay infinite."""
        slopes = np.array([p.published_slope(float(v)) for p, v in zip(self.parameters, u, strict=True)])
        return np.asarray(covariance * np.outer(slopes, slopes), np.float64)
