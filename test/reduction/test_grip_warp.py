import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import compose, make_pose, transform_points
from realsimloop_ros.mechanics.full_order import FullOrderSolver
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.reduction.grip_warp import grip_warp, harmonic_weights, warped
from reduced_bodies import REST_POSES, clamped_beam, gripped_bar

# numbers of the size of the body, 0.2 m: a few roundings of float64
ROUNDING = 1e-14
vectors = hnp.arrays(np.float64, (2, 3), elements=st.floats(-1.2, 1.2))
shifts = hnp.arrays(np.float64, (2, 3), elements=st.floats(-0.03, 0.03))
BODY = gripped_bar()
WARP = grip_warp(BODY)
WARPED = jax.jit(warped)


def moved(turns, shift):
    return np.array([make_pose(REST_POSES[k, :3] + shift[k], Rotation.from_rotvec(turns[k])) for k in range(2)])


@settings(deadline=None, max_examples=40)
@given(vectors, shifts)
def test_held_vertices_go_exactly_where_their_grips_take_them(turns, shift):
    poses = moved(turns, shift)
    base, _ = WARPED(WARP, jnp.asarray(poses))
    solver = FullOrderSolver(BODY, StableNeoHookean(), time_step=0.01)
    held = BODY.held_vertices
    np.testing.assert_allclose(np.asarray(base)[held], solver.held_positions(poses)[held], atol=ROUNDING)


@settings(deadline=None, max_examples=40)
@given(vectors, shifts)
def test_the_local_frames_are_rotations(turns, shift):
    _, turn = WARPED(WARP, jnp.asarray(moved(turns, shift)))
    products = np.einsum("nij,nkj->nik", turn, turn)
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(3), products.shape), atol=ROUNDING)
    np.testing.assert_allclose(np.linalg.det(turn), 1.0, atol=ROUNDING)


def test_at_rest_the_warp_is_the_rest_shape():
    base, turn = WARPED(WARP, jnp.asarray(REST_POSES))
    np.testing.assert_allclose(base, BODY.rest_positions, atol=ROUNDING)
    np.testing.assert_allclose(turn, np.broadcast_to(np.eye(3), turn.shape), atol=ROUNDING)


@settings(deadline=None, max_examples=20)
@given(vectors, shifts, hnp.arrays(np.float64, 3, elements=st.floats(-0.9, 0.9)))
def test_moving_both_grips_together_moves_the_whole_body_rigidly(turns, shift, world_turn):
    world = make_pose([0.3, -0.2, 0.1], Rotation.from_rotvec(world_turn))
    poses = moved(turns, shift)
    base, _ = WARPED(WARP, jnp.asarray(poses))
    together, _ = WARPED(WARP, jnp.asarray(np.array([compose(world, pose) for pose in poses])))
    # the blend of rotations and the curve know no preferred frame
    np.testing.assert_allclose(together, transform_points(world, np.array(base)), atol=1e-13)


def test_derivatives_by_the_poses_are_finite_at_rest_and_agree_with_differences():
    def positions(poses):
        return warped(WARP, poses)[0]

    at_rest = jax.jacfwd(positions)(jnp.asarray(REST_POSES))
    assert np.isfinite(at_rest).all()
    poses = moved(np.array([[0.4, 0.1, 0.0], [-0.3, 0.0, 0.2]]), np.zeros((2, 3)))
    direction = np.zeros((2, 7))
    direction[0, 1], direction[1, 4] = 1.0, 0.5
    step = 1e-6
    difference = (
        positions(jnp.asarray(poses + step * direction)) - positions(jnp.asarray(poses - step * direction))
    ) / (2 * step)
    exact = jax.jvp(positions, (jnp.asarray(poses),), (jnp.asarray(direction),))[1]
    # central differences of a function of size 0.2 with step 1e-6: rounding 1e-16/1e-6, curvature 1e-12
    np.testing.assert_allclose(exact, difference, atol=1e-9)


def test_harmonic_weights_are_a_partition_of_unity_within_bounds():
    weights = harmonic_weights(BODY, [grip.vertices for grip in BODY.grips])
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)
    # quadratic elements obey no discrete maximum principle: allow a hundredth
    assert weights.min() > -0.01
    assert weights.max() < 1.01


def test_a_body_with_only_fixed_vertices_stays_at_rest():
    beam = clamped_beam()
    base, turn = warped(grip_warp(beam), jnp.zeros((0, 7)))
    np.testing.assert_allclose(base, beam.rest_positions, atol=ROUNDING)
    np.testing.assert_allclose(turn, np.broadcast_to(np.eye(3), turn.shape), atol=ROUNDING)


def test_a_grip_and_a_clamp_make_two_holds():
    fixed_and_gripped = gripped_bar(
        grips=[
            {
                "name": "right",
                "frame": "right_tool",
                "rest_pose": REST_POSES[1].tolist(),
                "region": {"minimum": [0.08, None, None]},
            }
        ],
        fixed={"maximum": [-0.08, None, None]},
    )
    pose = make_pose(REST_POSES[1, :3] + [0.0, 0.01, 0.0], Rotation.from_rotvec([0.5, 0.0, 0.0]))[None]
    base, _ = warped(grip_warp(fixed_and_gripped), jnp.asarray(pose))
    solver = FullOrderSolver(fixed_and_gripped, StableNeoHookean(), time_step=0.01)
    held = fixed_and_gripped.held_vertices
    np.testing.assert_allclose(np.asarray(base)[held], solver.held_positions(pose)[held], atol=ROUNDING)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-9, 1e-7])
def test_the_blend_is_smooth_through_equal_rotations(angle):
    poses = moved(np.array([[0.0, 0.0, 0.0], [angle, 0.0, 0.0]]), np.zeros((2, 3)))
    base, _ = warped(WARP, jnp.asarray(poses))
    expected = BODY.rest_positions.copy()
    expected[:, 1] -= np.asarray(WARP.weights)[:, 1] * angle * BODY.rest_positions[:, 2]
    expected[:, 2] += np.asarray(WARP.weights)[:, 1] * angle * BODY.rest_positions[:, 1]
    # to first order in the angle: the rest is its square times the half width
    np.testing.assert_allclose(base, expected, atol=ROUNDING + angle**2)
