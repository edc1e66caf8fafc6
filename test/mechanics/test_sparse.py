"""Assembly of the stiffness, natural frequencies, and the solver that keeps its factor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from body.bodies import bar, two_tets
from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import Quadrature, lumped_masses, quadrature
from realsimloop_ros.mechanics.full_order import FullOrderSolver
from realsimloop_ros.mechanics.laws import Elasticity, StableNeoHookean, stress_and_tangent
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.mechanics.sparse import (
    NegativeCurvatureError,
    ReusedFactor,
    StiffnessPattern,
    assemble,
    stiffness_pattern,
)

LAW = StableNeoHookean()
E = 264e3


def _stiffness(
    body: Body, x: np.ndarray, poisson_ratio: float
) -> tuple[sp.csc_matrix, StiffnessPattern, Quadrature]:
    samples = quadrature(body)
    pattern = stiffness_pattern(samples, len(body.rest_positions), body.held_vertices)
    F = jnp.asarray(samples.deformation_gradients(x))
    material = Elasticity(jnp.asarray(E), jnp.asarray(poisson_ratio))
    _, tangents = jax.jit(jax.vmap(lambda f: stress_and_tangent(LAW, f, material)))(F)
    return pattern.matrix(assemble(pattern, samples, np.asarray(tangents))), pattern, samples


@pytest.mark.parametrize("quadratic", [True, False])
def test_the_stiffness_is_the_derivative_of_the_forces(quadratic: bool) -> None:
    body = bar(divisions=(2, 1, 1)) if quadratic else two_tets()
    generator = np.random.default_rng(4)
    x = body.rest_positions + 0.02 * body.size * generator.uniform(-1, 1, body.rest_positions.shape)
    matrix, pattern, _ = _stiffness(body, x, 0.45)
    solver = FullOrderSolver(body, LAW, time_step=1.0)
    material = material_of(body, E, 0.45)

    def forces(moved: np.ndarray) -> np.ndarray:
        return solver.elastic_forces(solver.resting_at(moved), material).reshape(-1)[pattern.free]

    step = 1e-5 * body.size
    for _ in range(3):
        direction = np.zeros(x.size)
        direction[pattern.free] = generator.normal(size=len(pattern.free))
        change = step * direction.reshape(-1, 3)
        difference = (forces(x + change) - forces(x - change)) / (2 * step)
        found = matrix @ direction[pattern.free]
        # central differences: (step / size)^2 = 1e-10 times the curvature, and rounding 1e-16 / 1e-5
        np.testing.assert_allclose(found, difference, atol=1e-7 * np.abs(difference).max())
    asymmetry = abs(matrix - matrix.T).max()
    assert asymmetry < 1e-12 * abs(matrix).max()  # the same sums in another order
    np.testing.assert_array_equal(matrix.diagonal(), matrix.data[pattern.diagonal])


def test_a_slender_bar_swings_with_the_frequencies_of_beam_theory() -> None:
    length, side, density = 0.2, 0.01, 1070.0
    body = bar((length, side, side), (20, 1, 1), density=density)
    matrix, pattern, _ = _stiffness(body, body.rest_positions, 1e-6)
    masses = sp.diags(np.repeat(lumped_masses(body), 3)[pattern.free])
    found = np.sqrt(eigsh(matrix, k=4, M=masses, sigma=0.0, return_eigenvectors=False)[::-1]) / (2 * np.pi)
    found.sort()
    radius = side / np.sqrt(12.0)
    expected = np.array([1.8751, 4.6941]) ** 2 / (2 * np.pi * length**2) * radius * np.sqrt(E / density)
    # each mode twice, in both planes; the theory leaves out shear and the turning of sections, which lower the
    # second mode by (pi radius / half wave)^2 or so, 1 %; the lumped masses and the mesh add as much
    np.testing.assert_allclose(found[:2], expected[0], rtol=0.01)
    np.testing.assert_allclose(found[2:], expected[1], rtol=0.03)


def _laplacian(size: int, shift: float) -> sp.csc_matrix:
    return sp.diags(
        [np.full(size - 1, -1.0), np.full(size, 2.0 + shift), np.full(size - 1, -1.0)], [-1, 0, 1], format="csc"
    )


def test_a_factor_is_kept_for_matrices_like_its_own_and_renewed_for_others() -> None:
    factor = ReusedFactor(patience=12)
    generator = np.random.default_rng(5)
    for shift in np.linspace(0.1, 0.12, 20):
        matrix, right = _laplacian(200, float(shift)), generator.normal(size=200)
        x = factor.solve(matrix, right, 1e-10)
        # as promised, plus the drift of the residual that conjugate gradients carry along
        assert np.linalg.norm(matrix @ x - right) <= 2e-10 * np.linalg.norm(right)
    assert factor.factorisations == 1
    far = sp.diags(np.linspace(1.0, 1e4, 200), format="csc")
    factor.solve(far, np.ones(200), 1e-10)
    assert factor.factorisations == 2
    factor.forget()
    factor.solve(far, np.ones(200), 1e-10)
    assert factor.factorisations == 3
    np.testing.assert_array_equal(factor.solve(far, np.zeros(200), 1e-10), np.zeros(200))


# a band that is small enough for LAPACK, and none
FACTORS = pytest.mark.parametrize("largest_band", [10_000, 0], ids=["band", "sparse"])


@FACTORS
def test_both_factors_solve_many_right_hand_sides(largest_band: int) -> None:
    body = bar(divisions=(2, 1, 1))
    matrix, _, _ = _stiffness(body, body.rest_positions, 0.45)
    right = np.random.default_rng(6).normal(size=(matrix.shape[0], 3))
    right[:, 1] = 0.0
    factor = ReusedFactor(largest_band=100 * largest_band)
    x = factor.solve(matrix, right, 1e-10)
    # as promised, plus the drift of the residual that conjugate gradients carry along
    np.testing.assert_array_less(
        np.linalg.norm(matrix @ x - right, axis=0), 2e-10 * np.linalg.norm(right, axis=0) + 1e-300
    )
    estimate = factor.estimate(right[:, 0])
    assert estimate is not None
    # the condition of the stiffness, below 1e5, times rounding
    np.testing.assert_allclose(estimate, x[:, 0], atol=1e-9 * np.abs(x[:, 0]).max())


@FACTORS
def test_negative_curvature_and_singular_matrices_are_told(largest_band: int) -> None:
    indefinite = sp.diags(np.array([1.0, 2.0, -1.0, 3.0]), format="csc")
    with pytest.raises(NegativeCurvatureError, match="pivot"):
        ReusedFactor(largest_band=largest_band).solve(indefinite, np.ones(4), 1e-8)
    with pytest.raises(NegativeCurvatureError, match=r"singular|pivot"):
        singular = sp.diags(np.array([1.0, 0.0]), format="csc")
        ReusedFactor(largest_band=largest_band).solve(singular, np.ones(2), 1e-8)
    factor = ReusedFactor(largest_band=largest_band)
    factor.solve(sp.identity(4, format="csc"), np.ones(4), 1e-8)
    with pytest.raises(NegativeCurvatureError, match="curvature"):
        factor.solve(indefinite, np.array([0.0, 0.0, 1.0, 0.0]), 1e-8)
