"""Coordinates of material parameters: maps there and back, slopes, bounds, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from realsimloop_ros.estimation.theta import Parameter, ParameterSpace, Quantity
from realsimloop_ros.mechanics.material import POISSON_RATIO_LIMIT, InvalidMaterialError, Material

ZONES = ("left", "right")
PRIOR = Material(np.array([2e5, 4e5]), np.array([0.45, 0.4]), np.array([100.0, 50.0]), np.array([1070.0, 1000.0]))


def parameter(
    zone: str = "left",
    quantity: Quantity = "youngs_modulus",
    prior_deviation: float = 0.7,
    lower: float = 1e-3,
    upper: float | None = None,
) -> Parameter:
    highest = 0.495 if quantity == "poisson_ratio" else 1e7
    return Parameter(zone, quantity, prior_deviation, lower, highest if upper is None else upper)


def space(*parameters: Parameter, prior: Material = PRIOR) -> ParameterSpace:
    chosen = parameters or (
        parameter("left", "youngs_modulus"),
        parameter("right", "poisson_ratio", 0.03),
        parameter("right", "viscosity", 1.0),
        parameter("left", "density", 0.1),
    )
    return ParameterSpace(ZONES, chosen, prior)


def test_coordinates_of_a_material_lead_back_to_it() -> None:
    every = space()
    u = every.coordinates(PRIOR)
    found = every.material(u)
    for values, expected in zip(found, PRIOR, strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-14)  # rounding of exp and log
    np.testing.assert_allclose(every.coordinates(found), u, rtol=1e-13)


def test_only_what_is_estimated_moves() -> None:
    every = space()
    moved = every.material(every.coordinates(PRIOR) + np.array([0.3, -0.2, 0.1, -0.4]))
    assert moved.youngs_modulus[0] == pytest.approx(2e5 * np.exp(0.3))
    assert moved.youngs_modulus[1] == PRIOR.youngs_modulus[1]
    assert moved.poisson_ratio[0] == PRIOR.poisson_ratio[0]
    assert moved.poisson_ratio[1] < PRIOR.poisson_ratio[1]
    assert moved.viscosity[1] == pytest.approx(50.0 * np.exp(0.1))
    assert moved.density[0] == pytest.approx(1070.0 * np.exp(-0.4))
    assert moved.density[1] == PRIOR.density[1]
    # the prior is not written to
    assert PRIOR.youngs_modulus[0] == 2e5


def test_directions_are_the_derivatives_of_the_material() -> None:
    every = space()
    u = every.coordinates(PRIOR) + 0.2
    directions = every.directions(u)
    for k in range(every.size):
        step = 1e-5 * np.eye(every.size)[k]
        high, low = every.material(u + step), every.material(u - step)
        for name in Material._fields:
            difference = (getattr(high, name) - getattr(low, name)) / 2e-5
            # a central difference of 1e-5: its square, and rounding of the value over it
            scale = np.abs(getattr(PRIOR, name)).max()
            np.testing.assert_allclose(getattr(directions, name)[k], difference, atol=1e-9 * scale)


def test_directions_beyond_the_material_are_zero() -> None:
    every = space()
    directions = every.directions(every.coordinates(PRIOR), 7)
    for values in directions:
        assert values.shape == (7, 2)
        assert not values[4:].any()
    assert directions.youngs_modulus[0, 0] == pytest.approx(2e5)


@pytest.mark.parametrize("quantity", ["youngs_modulus", "poisson_ratio", "viscosity", "density"])
def test_published_slopes_are_derivatives_of_what_is_published(quantity: Quantity) -> None:
    one = parameter("left", quantity)
    u = one.coordinate(0.4 if quantity == "poisson_ratio" else 3e3)

    def published(v: float) -> float:
        return one.value(v) if quantity == "poisson_ratio" else np.log(one.value(v))

    difference = (published(u + 1e-5) - published(u - 1e-5)) / 2e-5
    assert one.published_slope(u) == pytest.approx(difference, rel=1e-8)


def test_poissons_ratio_within_its_bounds_never_passes_its_limit() -> None:
    widest = space(parameter("left", "poisson_ratio", upper=POISSON_RATIO_LIMIT))
    _, upper = widest.bounds()
    assert widest.material(upper).poisson_ratio[0] <= POISSON_RATIO_LIMIT


def test_the_prior_is_stated_in_published_coordinates() -> None:
    every = space()
    u = every.coordinates(PRIOR)
    covariance = every.published_covariance(u, np.linalg.inv(every.prior_precision()))
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), [0.7, 0.03, 1.0, 0.1], rtol=1e-13)


def test_infinite_variances_stay_infinite_when_published() -> None:
    every = space()
    covariance = np.diag([np.inf, 1.0, 1.0, 1.0])
    published = every.published_covariance(every.coordinates(PRIOR), covariance)
    assert np.isinf(published[0, 0])
    assert np.isfinite(np.diag(published)[1:]).all()


def test_bounds_are_the_coordinates_of_the_values() -> None:
    every = space(parameter("left", lower=1e4, upper=1e6), parameter("left", "poisson_ratio", 0.03, 0.3, 0.49))
    lower, upper = every.bounds()
    at_lower, at_upper = every.material(lower), every.material(upper)
    assert at_lower.youngs_modulus[0] == pytest.approx(1e4)
    assert at_upper.youngs_modulus[0] == pytest.approx(1e6)
    assert at_lower.poisson_ratio[0] == pytest.approx(0.3)
    assert at_upper.poisson_ratio[0] == pytest.approx(0.49)


def test_a_bound_at_poissons_limit_has_a_finite_coordinate() -> None:
    every = space(parameter("left", "poisson_ratio", 0.03, 0.3, POISSON_RATIO_LIMIT))
    _, upper = every.bounds()
    assert np.isfinite(upper).all()
    assert every.material(upper).poisson_ratio[0] == pytest.approx(POISSON_RATIO_LIMIT, rel=1e-8)


def test_names_tell_zone_and_published_coordinate() -> None:
    assert space().names == (
        "left.log_youngs_modulus",
        "right.poisson_ratio",
        "right.log_viscosity",
        "left.log_density",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"quantity": "stiffness"},
            r"parameters\.left\.stiffness: expected one of \['density', 'poisson_ratio', ",
        ),
        ({"prior_deviation": 0.0}, r"parameters\.left\.youngs_modulus\.prior_deviation: 0\.0, expected > 0"),
        ({"prior_deviation": np.nan}, r"youngs_modulus\.prior_deviation: nan"),
        ({"lower": 0.0}, r"parameters\.left\.youngs_modulus: bounds 0\.0 to .*, expected 0 < lower < upper$"),
        ({"lower": 2e7}, r"bounds 20000000\.0 to 10000000\.0"),
        ({"quantity": "poisson_ratio", "upper": 0.5}, r"poisson_ratio: bounds 0\.001 to 0\.5, .*<= 0\.499"),
    ],
)
def test_wrong_parameters_are_named(arguments: dict, words: str) -> None:
    with pytest.raises(InvalidMaterialError, match=words):
        parameter(**arguments)


def test_wrong_spaces_are_named() -> None:
    with pytest.raises(
        InvalidMaterialError, match=r"unknown zone 'middle'; the body's zones are \['left', 'right'\]"
    ):
        space(parameter("middle"))
    with pytest.raises(
        InvalidMaterialError, match=r"right\.youngs_modulus: prior 400000\.0 lies outside its bounds"
    ):
        space(parameter("right", upper=3e5))
    with pytest.raises(InvalidMaterialError, match=r"left\.log_youngs_modulus.* repeat; name each once"):
        space(parameter(), parameter())


def test_a_prior_without_viscosity_to_estimate_is_refused() -> None:
    still = PRIOR._replace(viscosity=np.zeros(2))
    with pytest.raises(InvalidMaterialError, match=r"left\.viscosity: prior 0\.0 lies outside its bounds"):
        space(parameter("left", "viscosity"), prior=still)
