"""The hidden truth obeys statics: it sags, its weight arrives at the tools, and it moves rigidly with them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import compose, make_pose
from realsimloop_ros.cell.reference import reference_elasticity
from realsimloop_ros.cell.scenario import true_body
from realsimloop_ros.cell.truth import HiddenTruth
from realsimloop_ros.mechanics.laws import Elasticity, StableNeoHookean, Yeoh

WEIGHT = 0.2 * 0.03 * 0.03 * 1070.0 * 9.81  # N


@pytest.fixture(scope="module")
def body(small_cell, small_scenario):
    return true_body(small_cell, small_scenario)


@pytest.fixture
def truth(body, small_cell, small_scenario):
    return HiddenTruth(body, small_scenario.body, small_cell.rest_poses())


def test_bar_sags_most_in_its_middle_and_downwards(truth):
    sag = (truth.at(1.0).positions - truth.body.rest_positions)[:, 2]
    middle = np.abs(truth.body.rest_positions[:, 0]) < 1e-9
    assert sag.max() < 1e-4  # Poisson's effect lifts a corner by some micrometres, no more
    # clamped beam, w l^4 / (384 E I) plus shear w l^2 / (8 kappa G A), 180 mm free: 2.1 mm; a mesh of one cell
    # across is stiffer, by a quarter here
    assert -2.1e-3 < sag[middle].mean() < -1.4e-3


def test_tools_carry_the_weight_at_rest(truth, small_cell):
    wrenches = truth.at(1.0).wrenches
    # the body pulls both tools down; static equilibrium to the solver's tolerance of 0.1 micrometre
    np.testing.assert_allclose(wrenches[:, 2].sum(), -WEIGHT, rtol=1e-4)
    np.testing.assert_allclose(wrenches[0, 2], wrenches[1, 2], rtol=1e-2)  # the mesh is not quite symmetric
    # the bar hangs between the tools, so it pulls them towards each other
    assert wrenches[0, 0] > 0.0 > wrenches[1, 0]


def test_body_at_rest_stays_at_rest(truth, small_cell):
    before = truth.at(1.0)
    for _ in range(6):
        truth.step(small_cell.rest_poses())
    after = truth.at(1.0)
    # Newton's tolerance is 0.1 micrometre a step
    np.testing.assert_allclose(after.positions, before.positions, atol=1e-6)
    np.testing.assert_allclose(after.wrenches, before.wrenches, atol=1e-2)


def test_wrench_is_given_in_the_tools_own_frame(body, small_cell, small_scenario):
    """The same hold described by tool frames that stand elsewhere and otherwise: the same force and moment."""
    offset = make_pose([0.02, -0.01, 0.03], Rotation.from_rotvec([0.3, 1.2, -0.7]))
    rest = small_cell.rest_poses()
    moved = np.array([compose(pose, offset) for pose in rest])
    grips = tuple(replace(grip, rest_pose=pose) for grip, pose in zip(body.grips, moved, strict=True))
    first = HiddenTruth(body, small_scenario.body, rest).at(1.0).wrenches
    second = HiddenTruth(replace(body, grips=grips), small_scenario.body, moved).at(1.0).wrenches
    turn = Rotation.from_quat(offset[3:])
    # the solver's tolerance of 0.1 micrometre, times a stiffness of some kN/m
    np.testing.assert_allclose(turn.apply(second[:, :3]), first[:, :3], atol=1e-3)
    moments = first[:, 3:] - np.cross(offset[:3], first[:, :3])
    np.testing.assert_allclose(turn.apply(second[:, 3:]), moments, atol=1e-4)


def test_states_between_steps_lie_on_a_smooth_path(truth, small_cell):
    """While the tools accelerate evenly, every vertex's path is close to a parabola, which is met exactly."""
    rest = small_cell.rest_poses()
    for k in range(8):
        moved = rest.copy()
        moved[:, 2] += 0.5 * 2.0 * ((k + 1) / 60.0) ** 2
        truth.step(moved)
    held = truth.body.held_vertices
    begin, half, end = (
        truth.at(s).positions[held, 2] - truth.body.rest_positions[held, 2] for s in (0.0, 0.5, 1.0)
    )
    np.testing.assert_allclose([begin, half, end], np.outer([(k / 60.0) ** 2 for k in (7, 7.5, 8)], 1 + 0 * half))


def test_reference_of_the_same_law_is_exact():
    generator = np.random.default_rng(1)
    F = np.eye(3) + 0.15 * generator.normal(size=(200, 3, 3))
    F[np.linalg.det(F) < 0.3] = np.eye(3)
    found = reference_elasticity(StableNeoHookean(), Elasticity(2e5, 0.45), F, np.full(200, 1e-9))
    # least squares with a residual of zero stops at its relative tolerance of 1e-8
    np.testing.assert_allclose([found.youngs_modulus, found.poisson_ratio], [2e5, 0.45], rtol=1e-6)
    assert found.relative_residual < 1e-6


def test_reference_of_small_strains_is_the_small_strain_constant_of_any_law():
    generator = np.random.default_rng(1)
    F = np.eye(3) + 1e-4 * generator.normal(size=(200, 3, 3))
    found = reference_elasticity(Yeoh(0.2, -0.01), Elasticity(2e5, 0.45), F, np.full(200, 1e-9))
    # laws that agree to first order differ by the strain
    np.testing.assert_allclose([found.youngs_modulus, found.poisson_ratio], [2e5, 0.45], rtol=2e-3)


def test_reference_does_not_depend_on_rotation():
    generator = np.random.default_rng(1)
    F = np.eye(3) + 0.1 * generator.normal(size=(100, 3, 3))
    turned = Rotation.random(100, rng=2).as_matrix() @ F
    first, second = (
        reference_elasticity(Yeoh(0.2, -0.01), Elasticity(2e5, 0.45), f, np.full(100, 1e-9)) for f in (F, turned)
    )
    np.testing.assert_allclose(first.youngs_modulus, second.youngs_modulus, rtol=1e-6)
    np.testing.assert_allclose(first.poisson_ratio, second.poisson_ratio, rtol=1e-6)


def test_unstrained_body_has_no_reference():
    with pytest.raises(ValueError, match="hardly strained"):
        reference_elasticity(Yeoh(), Elasticity(2e5, 0.45), np.tile(np.eye(3), (5, 1, 1)), np.full(5, 1e-9))
