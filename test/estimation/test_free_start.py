"""A start that is only about right is corrected together with the material."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from estimation.twins import (
    BEGIN_NS,
    SETTINGS,
    STEP,
    TRUE_E,
    Scene,
    clamped_twin,
    fed,
    material_of_zones,
    no_grips,
    parameter_space,
    scene,
    track,
)
from realsimloop_ros.dynamics.rollout import (
    TwinState,
    moved_by,
    undeformed_state,
    with_free_start,
    without_tangents,
)
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.updates import UpdateStatus

MODES = 3
# displacements of the leading latent coordinates, m, and their velocities, m/s
TRUE_START = np.array([1.5e-3, -0.8e-3, 0.5e-3, 0.04, -0.03, 0.02])
NO_POSES = jnp.zeros((0, 7))


def true_start() -> TwinState:
    twin = clamped_twin()
    held = undeformed_state(twin.model, STEP, NO_POSES, 2 * MODES)
    moved = moved_by(with_free_start(twin.model, STEP, NO_POSES, held, 0, MODES), jnp.asarray(TRUE_START))
    return without_tangents(moved)


@pytest.fixture(scope="module")
def released() -> Scene:
    """A beam let go about in its rest shape, seen from the next tick on."""
    return scene(clamped_twin(), material_of_zones([TRUE_E]), motion=no_grips, segments=16, start=true_start())


def running(free_start: int = MODES) -> TwinEstimator:
    twin = clamped_twin()
    free = track(
        twin,
        start="undeformed",
        origin_ns=BEGIN_NS,
        free_start=free_start,
        start_displacement=1e-3,
        start_velocity=0.05,
    )
    space = parameter_space(twin, 1.5 * TRUE_E, poisson_ratio=None)
    return TwinEstimator([free], space, replace(SETTINGS, window=20, forgetting=1.0, relinearisations=60))


def test_the_start_is_found_with_the_material(released: Scene) -> None:
    estimator = running()
    last = fed(estimator, released)[-1]
    assert last.status is UpdateStatus.UPDATED
    # exact data: what is left is the pull of the priors, 0.6 deviations of log E and up to 1.5 of the start
    assert last.material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=5e-3)
    np.testing.assert_allclose(estimator.u[1 : 1 + MODES], TRUE_START[:MODES], atol=5e-5)
    np.testing.assert_allclose(estimator.u[1 + MODES :], TRUE_START[MODES:], atol=5e-3)
    # theta alone is published
    assert last.covariance.shape == (1, 1)
    state = estimator.start_of(0, last.material)
    np.testing.assert_allclose(state.past.points[0], true_start().past.points[0], atol=1e-4)


def test_after_a_reset_the_start_is_another_and_the_material_is_known(released: Scene) -> None:
    estimator = running()
    before = fed(estimator, released)[-1]
    corrected = estimator.u.copy()
    estimator.reset()
    np.testing.assert_array_equal(estimator.u[1:], np.zeros(2 * MODES))
    assert estimator.u[0] == corrected[0]
    # what the first start taught of E is still known, no worse than before
    deviation = np.sqrt(estimator.covariance()[0, 0])
    assert deviation == pytest.approx(np.sqrt(before.covariance[0, 0]), rel=1e-6)
    # and the other start is found in turn
    again = fed(estimator, released)[-1]
    assert again.material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=5e-3)
    np.testing.assert_allclose(estimator.u[1 : 1 + MODES], TRUE_START[:MODES], atol=5e-5)
    assert again.covariance[0, 0] < before.covariance[0, 0]
