"""Material values per zone, as the solvers take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from realsimloop_ros.body.body import Body

POISSON_RATIO_LIMIT = 0.499


class InvalidMaterialError(ValueError):
    """Material values outside of what the laws allow."""


ZoneValues = Float[Array, " z"] | NDArray[np.float64]


class Material(NamedTuple):
    """Per zone (z,): Young's modulus, Pa; Poisson's ratio; Kelvin-Voigt viscosity, Pa s; density, kg/m^3."""

    youngs_modulus: ZoneValues
    poisson_ratio: ZoneValues
    viscosity: ZoneValues
    density: ZoneValues


def material_of(
    body: Body,
    youngs_modulus: ArrayLike,
    poisson_ratio: ArrayLike,
    viscosity: ArrayLike = 0.0,
    density: ArrayLike | None = None,
) -> Material:
    """Checked material of a body; scalars hold for every zone; density: that of the body's zones unless given.

    Raises InvalidMaterialError naming zone and value unless E > 0, 0 < nu <= 0.499, viscosity >= 0 and density
    > 0.
    """
    if density is None:
        density = [zone.density for zone in body.zones]
    zones = body.zone_names
    columns = []
    for label, values in (
        ("youngs_modulus", youngs_modulus),
        ("poisson_ratio", poisson_ratio),
        ("viscosity", viscosity),
        ("density", density),
    ):
        column = np.asarray(values, dtype=np.float64)
        if column.shape not in ((), (len(zones),)):
            raise InvalidMaterialError(f"{label}: shape {column.shape}, expected one value per zone of {zones}")
        columns.append(np.broadcast_to(column, (len(zones),)).copy())
    e, nu, eta, rho = columns
    for k, zone in enumerate(zones):
        if not (np.isfinite(e[k]) and e[k] > 0.0):
            raise InvalidMaterialError(f"{zone}.youngs_modulus: {e[k]}, expected a positive value in Pa")
        if not (np.isfinite(nu[k]) and 0.0 < nu[k] <= POISSON_RATIO_LIMIT):
            raise InvalidMaterialError(f"{zone}.poisson_ratio: {nu[k]}, expected 0 < nu <= {POISSON_RATIO_LIMIT}")
        if not (np.isfinite(eta[k]) and eta[k] >= 0.0):
            raise InvalidMaterialError(f"{zone}.viscosity: {eta[k]}, expected Pa s >= 0")
        if not (np.isfinite(rho[k]) and rho[k] > 0.0):
            raise InvalidMaterialError(f"{zone}.density: {rho[k]}, expected a positive value in kg/m^3")
    return Material(e, nu, eta, rho)  # type: ignore[arg-type]


def check_zones(body: Body, material: Material) -> None:
    """Raises InvalidMaterialError unless every field has one value per zone of the body."""
    zones = body.zone_names
    for label, values in material._asdict().items():
        if np.shape(values) != (len(zones),):
            raise InvalidMaterialError(
                f"{label}: shape {np.shape(values)}, expected one value per zone of {zones}; use material_of"
            )
