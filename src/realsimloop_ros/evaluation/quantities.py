"""The quantities of theta as a reader sees them: names, units and scales, declared once."""

from __future__ import annotations

from dataclasses import dataclass

from realsimloop_ros.estimation.theta import Quantity


@dataclass(frozen=True)
class ShownQuantity:
    """name: of the field; scale: SI value to `unit`; digits: after the point; positive: known by its logarithm, as
    all that cannot be negative; always: shown even where it is held."""

    name: Quantity
    label: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    positive: bool = True
    always: bool = False

    @property
    def published(self) -> str:
        """Its name in covariances, after that of the zone."""
        return f"log_{self.name}" if self.positive else self.name


SHOWN = (
    ShownQuantity("youngs_modulus", "Young's modulus", "kPa", 1e-3, always=True),
    ShownQuantity("poisson_ratio", "Poisson's ratio", digits=4, positive=False, always=True),
    ShownQuantity("viscosity", "Viscosity", "Pa s", digits=0),
    ShownQuantity("density", "Density", "kg/m³", digits=0),
)
