"""The stress field: affine states, averages, bending, turning, zones."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from body.bodies import bar, two_tets
from mechanics.meshes import irregular_block
from realsimloop_ros.mechanics.full_order import FullOrderSolver
from realsimloop_ros.mechanics.laws import Elasticity, StableNeoHookean, cauchy_stress, von_mises
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.mechanics.stress import StressField, stress_field, stress_samples, vertex_mean

LAW = StableNeoHookean()
E, NU = 264e3, 0.45
AFFINE = np.array([[1.2, 0.3, -0.04], [0.06, 0.9, 0.03], [-0.04, -0.1, 1.1]])


def _tensor(F: np.ndarray, youngs_modulus: float = E) -> np.ndarray:
    return np.asarray(cauchy_stress(LAW, jnp.asarray(F), Elasticity(jnp.asarray(youngs_modulus), jnp.asarray(NU))))


@pytest.mark.parametrize("quadratic", [True, False])
def test_an_affine_state_has_the_same_stress_everywhere(quadratic: bool) -> None:
    body = irregular_block(quadratic)
    x = jnp.asarray(body.rest_positions @ AFFINE.T + 0.1)
    field = stress_field(LAW, stress_samples(body), material_of(body, E, NU), x)
    expected = _tensor(AFFINE)
    size = np.abs(expected).max()  # tolerances: rounding, amplified by the bulk terms that cancel
    np.testing.assert_allclose(field.cauchy, np.broadcast_to(expected, field.cauchy.shape), atol=1e-11 * size)
    equivalent = float(von_mises(jnp.asarray(expected)))
    np.testing.assert_allclose(field.von_mises, equivalent, rtol=1e-10)
    assert float(field.mean_von_mises) == pytest.approx(equivalent, rel=1e-10)
    assert float(field.zone_max_von_mises[0]) == pytest.approx(equivalent, rel=1e-10)
    principal = np.linalg.eigvalsh(expected)[::-1]
    np.testing.assert_allclose(
        field.principal_stresses, np.broadcast_to(principal, (len(x), 3)), atol=1e-10 * size
    )
    stretches = np.linalg.svd(AFFINE)[1]
    np.testing.assert_allclose(field.principal_stretches, np.broadcast_to(stretches, (len(x), 3)), rtol=1e-10)
    np.testing.assert_allclose(field.principal_strains, np.broadcast_to(stretches - 1.0, (len(x), 3)), atol=1e-10)


def test_a_body_at_rest_and_turned_has_no_stress() -> None:
    body = irregular_block(True)
    x = jnp.asarray(Rotation.from_rotvec([1.0, 2.0, -0.5]).apply(body.rest_positions))
    field = stress_field(LAW, stress_samples(body), material_of(body, E, NU), x)
    assert float(jnp.abs(field.von_mises).max()) < 1e-9 * E  # rounding of coordinates over slim tets
    np.testing.assert_allclose(field.principal_stretches, 1.0, atol=1e-10)


def test_a_bent_bar_is_pulled_above_and_pressed_below() -> None:
    length, side = 0.2, 0.01
    body = bar((length, side, side), (20, 1, 1), density=1e-3)
    solver = FullOrderSolver(body, LAW, time_step=1.0)
    force = np.zeros_like(body.rest_positions)
    tip = body.rest_positions[:, 0] > length - 1e-9
    force[tip, 2] = -1e-4 / tip.sum()
    material = material_of(body, E, 1e-6)
    state, _ = solver.static_state(material, external_force=force)
    field = stress_field(LAW, stress_samples(body), material, jnp.asarray(state.positions))
    x = body.rest_positions
    middle = (np.abs(x[:, 0] - length / 2) < 1e-9) & (np.abs(x[:, 1] - side / 2) < 1e-9)
    top = np.flatnonzero(middle & (x[:, 2] > side - 1e-9))
    bottom = np.flatnonzero(middle & (x[:, 2] < 1e-9))
    # beam theory: M z / I with M = 1e-4 N x 0.1 m at the outer fibre; the mean over the tets around a vertex takes
    # in the inside, down to the middle plane, so that it is a good part of it but never more
    outer = 1e-4 * (length / 2) * (side / 2) / (side**4 / 12)
    for vertices, sign in ((top, 1.0), (bottom, -1.0)):
        along = sign * np.asarray(field.cauchy)[vertices, 0, 0]
        assert (along > 0.3 * outer).all() and (along < 1.05 * outer).all()
        np.testing.assert_allclose(np.asarray(field.von_mises)[vertices], along, rtol=0.2)
    # the mean of |z| over a section is half the outer value, and that of M over the length the value in the
    # middle; four samples a tet do not integrate the kink of |z| exactly: 10 %
    assert float(field.mean_von_mises) == pytest.approx(outer / 2.0, rel=0.1)


def test_vertices_average_their_tets_by_volume_and_zones_have_maxima_of_their_own() -> None:
    body = two_tets()
    samples = stress_samples(body)
    values = np.stack([np.eye(3), 4.0 * np.eye(3)])
    mean = np.asarray(vertex_mean(samples, jnp.asarray(values)))
    # volumes 1/6 and 1/3: vertices of the shared face hold (1 + 2 * 4) / 3
    np.testing.assert_allclose(mean[:, 0, 0], [1.0, 3.0, 3.0, 3.0, 4.0], rtol=1e-14)
    material = material_of(body, [1e5, 4e5], NU)
    field: StressField = stress_field(
        LAW, samples, material, jnp.asarray(body.rest_positions @ np.diag([1.1, 1.0, 1.0]))
    )
    stretched = np.diag([1.1, 1.0, 1.0])
    soft, stiff = (float(von_mises(jnp.asarray(_tensor(stretched, e)))) for e in (1e5, 4e5))
    np.testing.assert_allclose(field.von_mises, np.array([soft, *[(soft + 2 * stiff) / 3] * 3, stiff]), rtol=1e-10)
    np.testing.assert_allclose(field.zone_max_von_mises, [(soft + 2 * stiff) / 3, stiff], rtol=1e-10)
    assert float(field.mean_von_mises) == pytest.approx((soft + 2 * stiff) / 3, rel=1e-10)
