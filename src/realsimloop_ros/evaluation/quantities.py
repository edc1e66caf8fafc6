"""The quantities of theta as a reader sees them: names, units and scales, declared once."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def band(
    quantity: ShownQuantity, value: float, deviation: float, write: Callable[[float], str], sign: str = "+-"
) -> str:
    """The 95 % band about a value, both in SI units, as text in the quantity's unit; write: a number as text.

    A wide band of what cannot be negative is even in its logarithm, and told by its ends.
    """
    reach = 1.96 * deviation
    if quantity.positive and reach > 0.3 * value:
        factor = math.exp(min(reach / value, 50.0))
        return f"({write(value / factor * quantity.scale)} to {write(value * factor * quantity.scale)})"
    return f"{sign} {write(reach * quantity.scale)}"
