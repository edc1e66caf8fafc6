"""Quadrature and masses, and the patch test on an irregular mesh."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from body.bodies import bar, two_tets
from mechanics.meshes import irregular_block, surface_loads
from realsimloop_ros.body.body import Body, HungWeight, InvalidBodyError, Zone
from realsimloop_ros.body.meshing import box_bar
from realsimloop_ros.mechanics.elements import lumped_masses, quadrature
from realsimloop_ros.mechanics.full_order import FullOrderSolver, SolveResult
from realsimloop_ros.mechanics.integrators import IMPLICIT_EULER
from realsimloop_ros.mechanics.laws import Elasticity, MaterialLaw, StableNeoHookean, Yeoh, stress
from realsimloop_ros.mechanics.material import InvalidMaterialError, material_of

AFFINE = np.array([[1.2, 0.36, -0.04], [0.06, 0.8, 0.03], [-0.04, -0.17, 1.15]])
E, NU = 264e3, 0.45
YEOH = Yeoh(second=-0.05, third=0.01)
CASES = pytest.mark.parametrize(
    ("quadratic", "law"),
    [(True, StableNeoHookean()), (True, YEOH), (False, StableNeoHookean())],
    ids=["quadratic-stable_neo_hookean", "quadratic-yeoh", "linear-stable_neo_hookean"],
)


@pytest.mark.parametrize("quadratic", [True, False])
def test_samples_fill_the_body_and_integrate_what_their_order_promises(quadratic: bool) -> None:
    body = irregular_block(quadratic)
    samples = quadrature(body)
    assert samples.points_per_tet == (4 if quadratic else 1)
    volume = 0.06 * 0.05 * 0.04
    assert samples.volume.min() > 0.0
    assert samples.volume.sum() == pytest.approx(volume, rel=1e-12)  # rounding
    points = np.einsum("sa,sai->si", samples.values, body.rest_positions[samples.nodes])
    size = np.array([0.06, 0.05, 0.04])
    np.testing.assert_allclose(samples.volume @ points, volume * size / 2.0, rtol=1e-12)
    if quadratic:
        np.testing.assert_allclose(samples.volume @ points**2, volume * size**2 / 3.0, rtol=1e-12)


@pytest.mark.parametrize("quadratic", [True, False])
def test_shape_functions_hold_affine_maps(quadratic: bool) -> None:
    body = irregular_block(quadratic)
    samples = quadrature(body)
    F = samples.deformation_gradients(body.rest_positions @ AFFINE.T + np.array([1.0, -2.0, 3.0]))
    # differences of coordinates of 3 m over tets of 5 mm: 3e-16 / 5e-3, some terms
    np.testing.assert_allclose(F, np.broadcast_to(AFFINE, F.shape), atol=1e-11)


def test_a_curved_element_turned_inside_out_is_named() -> None:
    x, tets = box_bar(1.0, 1.0, 1.0, (1, 1, 1))
    x = x.copy()
    x[tets[3, 4]] += np.array([0.0, 0.8, 0.0])
    body = Body("folded", x, tets, np.zeros(6, np.int64), (Zone("all", 1.0),))
    with pytest.raises(InvalidBodyError, match=r"tet \d is inverted; straighten"):
        quadrature(body)


@pytest.mark.parametrize("quadratic", [True, False])
def test_lumped_masses_are_positive_and_sum_to_the_mass(quadratic: bool) -> None:
    weight = HungWeight("load", 0.052, np.array([3, 4]), np.array([0.25, 0.75]))
    body = bar((0.1, 0.03, 0.03), (4, 1, 1), quadratic=quadratic, hung_weights=(weight,))
    masses = lumped_masses(body)
    bare = lumped_masses(bar((0.1, 0.03, 0.03), (4, 1, 1), quadratic=quadratic))
    assert masses.min() > 0.0
    assert bare.sum() == pytest.approx(1070.0 * 0.1 * 0.03 * 0.03, rel=1e-12)  # rounding
    np.testing.assert_allclose((masses - bare)[[3, 4]], [0.013, 0.039], rtol=1e-12)
    assert masses.sum() == pytest.approx(bare.sum() + 0.052, rel=1e-12)
    # the centre of gravity of each tet, and so of the bar, is kept
    np.testing.assert_allclose(bare @ body.rest_positions / bare.sum(), [0.05, 0.015, 0.015], rtol=1e-12)


def test_each_zone_weighs_by_its_density() -> None:
    body = two_tets()
    masses = lumped_masses(body)
    volumes = np.array([1.0 / 6.0, 1.0 / 3.0])
    assert masses[0] == pytest.approx(1000.0 * volumes[0] / 4.0)
    assert masses[4] == pytest.approx(1100.0 * volumes[1] / 4.0)
    assert masses.sum() == pytest.approx(1000.0 * volumes[0] + 1100.0 * volumes[1])


@CASES
def test_patch_forces_of_an_affine_state_are_the_surface_tractions(quadratic: bool, law: MaterialLaw) -> None:
    body = irregular_block(quadratic)
    solver = FullOrderSolver(body, law, time_step=1.0)
    forces = solver.elastic_forces(solver.resting_at(body.rest_positions @ AFFINE.T), material_of(body, E, NU))
    piola = np.asarray(stress(law, AFFINE, Elasticity(E, NU)))  # type: ignore[arg-type]
    # a constant stress is integrated exactly; 1e-12 of the largest nodal force (tens of N) is rounding
    np.testing.assert_allclose(forces, surface_loads(body, piola), atol=1e-11)


def _principal_stresses(law: MaterialLaw, stretches: np.ndarray) -> np.ndarray:
    """Nominal principal stresses (3,), Pa, derived by hand from the laws' energies."""
    mu, lam = E / (2 * (1 + NU)), E * NU / ((1 + NU) * (1 - 2 * NU))
    invariant, ratio = float(np.sum(stretches**2)), float(np.prod(stretches))
    if isinstance(law, StableNeoHookean):
        mu, lam = 4 / 3 * mu, lam + 5 / 6 * mu
        rest = 1 + mu / lam - mu / (4 * lam)
        return mu * stretches * (1 - 1 / (invariant + 1)) + lam * (ratio - rest) * ratio / stretches
    scaled = invariant * ratio ** (-2 / 3)
    slope = mu / 2 * (1 + 2 * YEOH.second * (scaled - 3) + 3 * YEOH.third * (scaled - 3) ** 2)
    isochoric = slope * (2 * stretches * ratio ** (-2 / 3) - 2 / 3 * scaled / stretches)
    return isochoric + (lam + 2 / 3 * mu) * (ratio - 1) * ratio / stretches


@CASES
@pytest.mark.parametrize("stretch", [1.2, 1.8])
def test_uniaxial_stretch_meets_the_closed_form_on_an_irregular_mesh(
    quadratic: bool, law: MaterialLaw, stretch: float
) -> None:
    """A free block pulled by dead tractions along a skew axis stretches evenly: the patch test of a solver."""

    def side(lateral: float) -> float:
        return float(_principal_stresses(law, np.array([stretch, lateral, lateral]))[1])

    lateral = brentq(side, *sorted((stretch**0.05, stretch**-0.55)), xtol=1e-15)
    pull = float(_principal_stresses(law, np.array([stretch, lateral, lateral]))[0])
    axis = np.array([1.0, 2.0, 3.0]) / np.sqrt(14.0)
    along = np.outer(axis, axis)
    body = irregular_block(quadratic)
    # steps of 0.1 s are so long that inertia only keeps the block from drifting and turning
    solver = FullOrderSolver(body, law, time_step=0.1, gravity=np.zeros(3), integrator=IMPLICIT_EULER)
    loads = surface_loads(body, pull * along)
    state = solver.rest_state()
    for _ in range(5):
        state, report = solver.step(state, material_of(body, E, NU), external_force=loads)
        assert report.result == SolveResult.CONVERGED
        state = solver.resting_at(state.positions)
    F = solver.deformation_gradients(state)
    expected = stretch * along + lateral * (np.eye(3) - along)
    # Newton stops at moves of 1e-8 of the size and its last move is a good deal smaller; each step leaves inertia
    # over stiffness, below 1e-3, of the error of the step before
    np.testing.assert_allclose(F, np.broadcast_to(expected, F.shape), atol=1e-7)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0.0, 0.45), ["silicone.youngs_modulus", "0.0"]),
        ((np.nan, 0.45), ["silicone.youngs_modulus", "nan"]),
        ((1e5, 0.5), ["silicone.poisson_ratio", "0.5", "0.499"]),
        ((1e5, 0.0), ["silicone.poisson_ratio", "0 < nu"]),
        ((1e5, 0.45, -1.0), ["silicone.viscosity", "-1.0"]),
        (([1e5, 2e5], 0.45), ["youngs_modulus", "(2,)", "silicone"]),
    ],
)
def test_material_values_out_of_bounds_are_refused_by_zone(values: tuple, words: list[str]) -> None:
    with pytest.raises(InvalidMaterialError) as caught:
        material_of(bar(), *values)
    for word in words:
        assert word in str(caught.value)
