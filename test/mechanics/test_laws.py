"""Material laws: derivatives, frame invariance, rest, small strains, viscosity."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, root
from scipy.spatial.transform import Rotation

from realsimloop_ros.mechanics.laws import (
    Elasticity,
    MaterialLaw,
    StableNeoHookean,
    Yeoh,
    cauchy_stress,
    energy,
    green_strain,
    lame_parameters,
    stress,
    stress_and_tangent,
    viscous_energy,
    viscous_stress_and_tangent,
    von_mises,
)

LAWS = [StableNeoHookean(), Yeoh(), Yeoh(second=-0.05, third=0.01)]
LAW_NAMES = ["stable_neo_hookean", "neo_hookean", "yeoh"]
E = 264e3

ENERGY = jax.jit(energy)
STRESS = jax.jit(stress)
STRESS_AND_TANGENT = jax.jit(stress_and_tangent)
AUTOMATIC_STRESS = jax.jit(jax.grad(energy, argnums=1))
AUTOMATIC_TANGENT = jax.jit(jax.hessian(energy, argnums=1))
VISCOUS_ENERGY = jax.jit(viscous_energy)
VISCOUS = jax.jit(viscous_stress_and_tangent)
VISCOUS_GRADIENT = jax.jit(jax.grad(viscous_energy))
VISCOUS_HESSIAN = jax.jit(jax.hessian(viscous_energy))


def elasticity(poisson_ratio: float = 0.45) -> Elasticity:
    return Elasticity(jnp.asarray(E), jnp.asarray(poisson_ratio))


def rotations() -> st.SearchStrategy[np.ndarray]:
    angles = st.tuples(*[st.floats(-2.0, 2.0)] * 3)
    return angles.map(lambda turn: Rotation.from_rotvec(turn).as_matrix())


@st.composite
def deformations(draw: st.DrawFn, least: float = 0.3, most: float = 2.5) -> np.ndarray:
    """F of any orientation with principal stretches between `least` and `most`."""
    stretches = np.diag([draw(st.floats(least, most)) for _ in range(3)])
    return draw(rotations()) @ stretches @ draw(rotations())


POISSON = st.floats(0.05, 0.499)


@pytest.mark.parametrize("law", LAWS, ids=LAW_NAMES)
@given(F=deformations(), poisson_ratio=POISSON)
@settings(max_examples=30, deadline=None)
def test_stress_and_tangent_are_derivatives_of_the_energy(
    law: MaterialLaw, F: np.ndarray, poisson_ratio: float
) -> None:
    material = elasticity(poisson_ratio)
    piola, tangent = STRESS_AND_TANGENT(law, jnp.asarray(F), material)
    expected = AUTOMATIC_STRESS(law, jnp.asarray(F), material)
    expected_tangent = AUTOMATIC_TANGENT(law, jnp.asarray(F), material).reshape(9, 9)
    # the same numbers in another order: rounding relative to the largest terms, which are those of the bulk
    size = float(jnp.abs(expected_tangent).max())
    np.testing.assert_allclose(piola, expected, atol=1e-12 * size)
    np.testing.assert_allclose(STRESS(law, jnp.asarray(F), material), expected, atol=1e-12 * size)
    np.testing.assert_allclose(tangent, expected_tangent, atol=1e-12 * size)
    np.testing.assert_allclose(tangent, tangent.T, atol=1e-12 * size)


@pytest.mark.parametrize("law", LAWS, ids=LAW_NAMES)
@given(F=deformations(), first=rotations(), second=rotations())
@settings(max_examples=30, deadline=None)
def test_energy_is_isotropic_and_does_not_see_rotations(
    law: MaterialLaw, F: np.ndarray, first: np.ndarray, second: np.ndarray
) -> None:
    material = elasticity()
    turned = jnp.asarray(first @ F @ second)
    value = float(ENERGY(law, jnp.asarray(F), material))
    # rounding of terms of the size of the bulk modulus, 10 E here, times J^2, at most 2.5^6
    assert float(ENERGY(law, turned, material)) == pytest.approx(value, abs=1e-12 * 2.5e3 * E)
    piola = STRESS(law, jnp.asarray(F), material)
    np.testing.assert_allclose(STRESS(law, turned, material), first @ piola @ second, atol=1e-12 * 2.5e3 * E)


@pytest.mark.parametrize("law", LAWS, ids=LAW_NAMES)
@given(turn=rotations(), poisson_ratio=POISSON)
@settings(max_examples=20, deadline=None)
def test_a_turned_body_at_rest_has_no_stress_and_least_energy(
    law: MaterialLaw, turn: np.ndarray, poisson_ratio: float
) -> None:
    material = elasticity(poisson_ratio)
    piola, tangent = STRESS_AND_TANGENT(law, jnp.asarray(turn), material)
    bulk = E / (3.0 * (1.0 - 2.0 * poisson_ratio))
    # differences of terms of the size of the bulk modulus cancel to rounding
    np.testing.assert_allclose(piola, np.zeros((3, 3)), atol=1e-14 * (bulk + E))
    values = np.linalg.eigvalsh(tangent)
    assert (values[:3] > -1e-13 * (bulk + E)).all()  # three rotations cost nothing
    assert (values[3:] > 0.1 * E).all()  # every strain does


@pytest.mark.parametrize("law", LAWS, ids=LAW_NAMES)
@pytest.mark.parametrize("poisson_ratio", [0.1, 0.3, 0.45, 0.49, 0.499])
def test_small_strains_agree_with_linear_elasticity(law: MaterialLaw, poisson_ratio: float) -> None:
    material = elasticity(poisson_ratio)
    _, tangent = STRESS_AND_TANGENT(law, jnp.eye(3), material)
    mu, lam = lame_parameters(*material)
    eye = np.eye(3)
    linear = float(lam) * np.einsum("ij,kl->ijkl", eye, eye) + float(mu) * (
        np.einsum("ik,jl->ijkl", eye, eye) + np.einsum("il,jk->ijkl", eye, eye)
    )
    # both are exact; rounding of the bulk terms is what is left
    np.testing.assert_allclose(tangent.reshape(3, 3, 3, 3), linear, atol=1e-12 * float(lam + mu))


def _stretched(law: MaterialLaw, stretch: float, material: Elasticity) -> tuple[float, float]:
    """Nominal stress and lateral stretch of a bar pulled along x with free sides."""

    def side(lateral: float) -> float:
        return float(STRESS(law, jnp.diag(jnp.array([stretch, lateral, lateral])), material)[1, 1])

    # between no change of area and one that is larger than any volume-preserving one
    lateral = brentq(side, *sorted((stretch**0.05, stretch**-0.55)), xtol=1e-15, rtol=1e-14)
    pulled = STRESS(law, jnp.diag(jnp.array([stretch, lateral, lateral])), material)
    return float(pulled[0, 0]), lateral


@pytest.mark.parametrize("law", LAWS, ids=LAW_NAMES)
@pytest.mark.parametrize("poisson_ratio", [0.3, 0.45, 0.49])
def test_a_pulled_bar_shows_youngs_modulus_and_poissons_ratio(law: MaterialLaw, poisson_ratio: float) -> None:
    strain = 1e-4
    stresses, laterals = zip(
        *[_stretched(law, 1.0 + e, elasticity(poisson_ratio)) for e in (strain, -strain)], strict=True
    )
    # the mean of pull and push drops the quadratic term; the cubic one is of the order strain^2 = 1e-8
    assert (stresses[0] - stresses[1]) / (2 * strain) == pytest.approx(E, rel=1e-6)
    assert -(laterals[0] - laterals[1]) / (2 * strain) == pytest.approx(poisson_ratio, rel=1e-6)


@pytest.mark.parametrize("law", LAWS, ids=LAW_NAMES)
@pytest.mark.parametrize("poisson_ratio", [0.3, 0.45, 0.49])
def test_a_pressed_cube_shows_the_bulk_modulus(law: MaterialLaw, poisson_ratio: float) -> None:
    strain = 1e-4
    material = elasticity(poisson_ratio)
    pressures = [float(STRESS(law, (1.0 + e) * jnp.eye(3), material)[0, 0]) for e in (strain, -strain)]
    bulk = E / (3.0 * (1.0 - 2.0 * poisson_ratio))
    # as above; a hydrostatic strain e changes the volume by 3 e
    assert (pressures[0] - pressures[1]) / (2 * strain) == pytest.approx(3.0 * bulk, rel=1e-6)


def test_yeoh_meets_its_incompressible_closed_form() -> None:
    second, third = -0.05, 0.01
    law = Yeoh(second=second, third=third)
    mu = E / 3.0
    for stretch in (0.6, 1.5, 2.5):
        found, _ = _stretched(law, stretch, elasticity(0.499))
        excess = stretch**2 + 2.0 / stretch - 3.0
        slope = 0.5 * mu * (1.0 + 2.0 * second * excess + 3.0 * third * excess**2)
        closed = 2.0 * slope * (stretch - stretch**-2)
        # nu = 0.499 in place of 0.5: mu differs by 0.07 %; the volume changes by stress / (3 bulk), 0.4 % at the
        # largest stretch, where the force rises with up to the fourth power of the stretch
        assert found == pytest.approx(closed, rel=0.02)


def test_stable_neo_hookean_bears_inversion() -> None:
    law = StableNeoHookean()
    for F in (-np.eye(3), np.diag([1.0, 1.0, -0.5]), np.zeros((3, 3))):
        piola, tangent = STRESS_AND_TANGENT(law, jnp.asarray(F), elasticity(0.49))
        assert np.isfinite(piola).all() and np.isfinite(tangent).all()
    # and pushes back: the energy falls towards positive volume
    flat = STRESS(law, jnp.diag(jnp.array([1.0, 1.0, -0.1])), elasticity(0.49))
    assert float(flat[2, 2]) < 0.0


def test_yeoh_stays_finite_when_inverted() -> None:
    for F in (np.diag([1.0, 1.0, -0.5]), np.zeros((3, 3))):
        piola, tangent = STRESS_AND_TANGENT(LAWS[2], jnp.asarray(F), elasticity(0.49))
        assert np.isfinite(piola).all() and np.isfinite(tangent).all()


@given(F=deformations(0.5, 2.0), before=deformations(0.5, 2.0), rate=st.floats(1.0, 1e3))
@settings(max_examples=30, deadline=None)
def test_viscous_stress_is_the_derivative_of_its_potential(F: np.ndarray, before: np.ndarray, rate: float) -> None:
    offset = -rate * green_strain(jnp.asarray(before))
    arguments: Any = (jnp.asarray(F), offset, jnp.asarray(rate), jnp.asarray(50.0))
    piola, tangent = VISCOUS(*arguments)
    size = 50.0 * rate * 10.0  # viscosity times the largest strain rate; rounding is relative to it
    np.testing.assert_allclose(piola, VISCOUS_GRADIENT(*arguments), atol=1e-12 * size)
    hessian = VISCOUS_HESSIAN(*arguments).reshape(9, 9)
    np.testing.assert_allclose(tangent, hessian, atol=1e-12 * size)


@given(F=deformations(0.5, 2.0), first=rotations(), second=rotations(), rate=st.floats(1.0, 1e3))
@settings(max_examples=30, deadline=None)
def test_viscosity_does_not_see_rotations(
    F: np.ndarray, first: np.ndarray, second: np.ndarray, rate: float
) -> None:
    # the strain before and after is the same up to rotations: nothing has flowed
    offset = -rate * green_strain(jnp.asarray(first @ F))
    arguments: Any = (jnp.asarray(second @ F), offset, jnp.asarray(rate), jnp.asarray(50.0))
    size = 50.0 * rate * 10.0
    np.testing.assert_allclose(VISCOUS(*arguments)[0], np.zeros((3, 3)), atol=1e-13 * size)  # rounding
    assert float(VISCOUS_ENERGY(*arguments)) >= 0.0
    assert float(VISCOUS_ENERGY(*arguments)) <= 1e-24 * size**2 / 50.0  # the square of rounding


def test_viscosity_resists_stretching() -> None:
    rate, viscosity = jnp.asarray(100.0), jnp.asarray(50.0)
    piola, _ = VISCOUS(jnp.diag(jnp.array([1.01, 1.0, 1.0])), jnp.zeros((3, 3)), rate, viscosity)
    strain_rate = 100.0 * 0.5 * (1.01**2 - 1.0)
    expected = np.zeros((3, 3))
    expected[0, 0] = 1.01 * 50.0 * strain_rate
    np.testing.assert_allclose(piola, expected, rtol=1e-12)  # rounding


@given(F=deformations(), turn=rotations())
@settings(max_examples=20, deadline=None)
def test_cauchy_stress_is_symmetric_and_von_mises_does_not_see_rotations(F: np.ndarray, turn: np.ndarray) -> None:
    found = CAUCHY(jnp.asarray(F))
    size = float(jnp.abs(found).max()) + E
    np.testing.assert_allclose(found, found.T, atol=1e-12 * size)
    turned = CAUCHY(jnp.asarray(turn @ F))
    np.testing.assert_allclose(turned, turn @ found @ turn.T, atol=1e-12 * size)
    assert float(von_mises(turned)) == pytest.approx(float(von_mises(found)), abs=1e-12 * size)


CAUCHY = jax.jit(partial(cauchy_stress, StableNeoHookean(), elasticity=elasticity()))


def test_von_mises_of_known_states() -> None:
    assert float(von_mises(jnp.diag(jnp.array([3.0, 0.0, 0.0])))) == pytest.approx(3.0)
    assert float(von_mises(7.0 * jnp.eye(3))) == pytest.approx(0.0, abs=1e-15)
    shear = jnp.zeros((3, 3)).at[0, 1].set(2.0).at[1, 0].set(2.0)
    assert float(von_mises(shear)) == pytest.approx(2.0 * np.sqrt(3.0))


@pytest.mark.parametrize("law", LAWS, ids=LAW_NAMES)
def test_simple_shear_meets_its_closed_form(law: MaterialLaw) -> None:
    # at small shear every law gives mu times the shear; Poynting's normal stresses are of second order
    mu, _ = lame_parameters(*elasticity(0.45))
    shear = 1e-4
    F = jnp.eye(3).at[0, 1].set(shear)
    found = STRESS(law, F, elasticity(0.45))
    # relative terms of the order shear^2 = 1e-8
    assert float(found[0, 1]) == pytest.approx(float(mu) * shear, rel=1e-7)
    normal = jnp.abs(jnp.diag(found)).max()
    assert float(normal) < 10.0 * E * shear**2


def test_the_lateral_stretch_of_the_closed_forms_is_a_true_root() -> None:
    # the helper above assumes equal lateral stretches; three free unknowns find the same state
    law, material = LAWS[0], elasticity(0.45)
    force, lateral = _stretched(law, 1.5, material)

    def residual(stretches: np.ndarray) -> np.ndarray:
        return np.diag(STRESS(law, jnp.diag(jnp.asarray(stretches)), material)) - np.array([force, 0.0, 0.0])

    found = root(residual, [1.2, 0.9, 0.95], tol=1e-12)
    np.testing.assert_allclose(found.x, [1.5, lateral, lateral], rtol=1e-9)  # root's own tolerance
