"""UR5e kinematics against the published Denavit-Hartenberg parameters, finite differences and itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import make_pose, rotation_matrix
from realsimloop_ros.control import ur5e
from realsimloop_ros.control.ur5e import (
    InvalidArmError,
    InverseKinematicsStatus,
    Ur5e,
    forward_kinematics,
    inverse_kinematics,
    jacobian,
)

# Universal Robots, "DH Parameters for calculations of kinematics and dynamics", UR5e
D = (0.1625, 0.0, 0.0, 0.1333, 0.0997, 0.0996)
A = (0.0, -0.425, -0.3922, 0.0, 0.0, 0.0)
ALPHA = (np.pi / 2, 0.0, 0.0, np.pi / 2, -np.pi / 2, 0.0)

angles = st.lists(st.floats(-3.1, 3.1), min_size=6, max_size=6).map(np.array)

LEFT = Ur5e(
    base_pose=np.array([-0.6, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
    tool_offset=np.array([0.0, 0.0, 0.15, 0.0, 0.0, 0.0, 1.0]),
)


def tool_by_denavit_hartenberg(joints):
    """Flange in `base_link`, which is the controller's base frame turned by pi about z."""
    pose = np.diag([-1.0, -1.0, 1.0, 1.0])
    for theta, d, a, alpha in zip(joints, D, A, ALPHA, strict=True):
        about_z = np.eye(4)
        about_z[:3, :3] = Rotation.from_euler("z", theta).as_matrix()
        about_z[2, 3] = d
        about_x = np.eye(4)
        about_x[:3, :3] = Rotation.from_euler("x", alpha).as_matrix()
        about_x[0, 3] = a
        pose = pose @ about_z @ about_x
    return pose


@given(angles)
@settings(deadline=None, max_examples=50)
def test_forward_kinematics_agrees_with_published_denavit_hartenberg_parameters(joints):
    pose = forward_kinematics(Ur5e(), joints)
    expected = tool_by_denavit_hartenberg(joints)
    # the same numbers composed differently: rounding only
    np.testing.assert_allclose(pose[:3], expected[:3, 3], atol=1e-12)
    np.testing.assert_allclose(rotation_matrix(pose), expected[:3, :3], atol=1e-12)


def test_stretched_arm_reaches_along_its_own_x():
    pose = forward_kinematics(Ur5e(), np.zeros(6))
    # base_link looks along +x: the links lie along it, the wrist stands off to +y
    np.testing.assert_allclose(pose[:3], [0.8172, 0.2329, 0.0628], atol=1e-12)


def test_base_and_tool_are_where_they_were_placed():
    base = make_pose([0.6, 0.1, 0.2], Rotation.from_euler("z", 0.4))
    joints = np.array([0.3, -1.2, 1.0, 0.2, 0.7, -0.5])
    bare = tool_by_denavit_hartenberg(joints)
    placed = forward_kinematics(Ur5e(base, LEFT.tool_offset), joints)
    tip = bare[:3, :3] @ [0.0, 0.0, 0.15] + bare[:3, 3]
    expected = Rotation.from_euler("z", 0.4).apply(tip) + base[:3]
    np.testing.assert_allclose(placed[:3], expected, atol=1e-12)


@given(angles)
@settings(deadline=None, max_examples=30)
def test_jacobian_agrees_with_central_differences(joints):
    step = 1e-6
    analytic = jacobian(LEFT, joints)
    for k in range(6):
        offset = np.eye(6)[k] * step
        after, before = forward_kinematics(LEFT, joints + offset), forward_kinematics(LEFT, joints - offset)
        linear = (after[:3] - before[:3]) / (2 * step)
        turn = Rotation.from_matrix(rotation_matrix(after) @ rotation_matrix(before).T).as_rotvec() / (2 * step)
        # central differences with step 1e-6: truncation 1e-12, rounding 1e-16 / 1e-6 = 1e-10
        np.testing.assert_allclose(analytic[:, k], np.concatenate([linear, turn]), atol=2e-9)


@given(angles, st.lists(st.floats(-0.3, 0.3), min_size=6, max_size=6).map(np.array))
@settings(deadline=None, max_examples=100)
def test_inverse_kinematics_returns_a_posture_that_reaches_the_pose(joints, disturbance):
    pose = forward_kinematics(LEFT, joints)
    result = inverse_kinematics(LEFT, pose, joints + disturbance)
    assert result.solved
    reached = forward_kinematics(LEFT, result.joints)
    # singular postures (stretched arm, straight wrist) are double roots: twice what is accepted there
    np.testing.assert_allclose(reached[:3], pose[:3], atol=2e-6)
    np.testing.assert_allclose(rotation_matrix(reached), rotation_matrix(pose), atol=2e-6)
    assert (np.abs(result.joints) <= ur5e.POSITION_LIMITS + 1e-9).all()


@pytest.mark.parametrize("seed", range(20))
def test_inverse_kinematics_keeps_the_branch_of_a_nearby_seed(seed):
    generator = np.random.default_rng(seed)
    joints = generator.uniform([-3, -2.5, 0.5, -2.5, 0.5, -3], [3, -0.5, 2.2, -0.5, 2.4, 3])
    result = inverse_kinematics(LEFT, forward_kinematics(LEFT, joints), joints + generator.uniform(-0.1, 0.1, 6))
    # 1e-9 in pose over the smallest singular value of these well-conditioned postures (above 0.01)
    np.testing.assert_allclose(result.joints, joints, atol=1e-7)


def test_calibrated_arm_is_solved_exactly():
    generator = np.random.default_rng(5)
    deviation = generator.normal(0.0, [5e-4] * 3 + [1e-3] * 3, (6, 6))
    arm = Ur5e(LEFT.base_pose, LEFT.tool_offset, ur5e.NOMINAL_CALIBRATION + deviation)
    joints = np.array([0.4, -1.5, 1.6, -1.0, 1.2, 0.3])
    result = inverse_kinematics(arm, forward_kinematics(arm, joints), joints + 0.05)
    np.testing.assert_allclose(result.joints, joints, atol=1e-7)


def test_turns_follow_the_seed_beyond_half_a_turn():
    joints = np.array([4.0, -1.2, 1.0, -4.5, 0.7, 6.0])
    result = inverse_kinematics(LEFT, forward_kinematics(LEFT, joints), joints)
    np.testing.assert_allclose(result.joints, joints, atol=1e-7)


def test_straight_wrist_keeps_the_angle_of_the_seed():
    joints = np.array([0.3, -1.2, 1.0, 0.2, 0.0, -0.5])
    result = inverse_kinematics(LEFT, forward_kinematics(LEFT, joints), joints)
    # at the singular wrist the angle of wrist 2 is a double root: sqrt of rounding
    np.testing.assert_allclose(result.joints, joints, atol=1e-6)


@pytest.mark.parametrize("elbow", [0.0, np.pi])
def test_straight_wrist_on_a_stretched_or_folded_arm_is_solved_from_any_seed(elbow):
    """There only one angle of wrist 3 lets the long links reach, and the seed's is another one."""
    joints = np.array([0.3, -1.2, elbow, 0.2, 0.0, -0.5])
    pose = forward_kinematics(LEFT, joints)
    for wrist_3 in np.linspace(-3.0, 3.0, 7):
        result = inverse_kinematics(LEFT, pose, [0.3, -1.2, elbow, 0.2, 0.0, wrist_3])
        # a double root twice over: what a solution may be off
        np.testing.assert_allclose(forward_kinematics(LEFT, result.joints)[:3], pose[:3], atol=2e-6)


@pytest.mark.parametrize("position", [(0.6, 0.0, 0.4), (-0.6, 0.0, 0.4)])
def test_unreachable_pose_is_said_to_be_out_of_reach(position):
    """One beyond the stretched arm, one on the shoulder's own axis."""
    pose = np.array([*position, 0.0, 0.0, 0.0, 1.0])
    result = inverse_kinematics(LEFT, pose, np.zeros(6))
    assert result.status is InverseKinematicsStatus.OUT_OF_REACH
    assert result.joints is None


def test_pose_outside_the_joint_limits_is_said_to_be(monkeypatch):
    monkeypatch.setattr(ur5e, "POSITION_LIMITS", np.full(6, 0.1))
    pose = forward_kinematics(LEFT, [0.4, -1.5, 1.6, -1.0, 1.2, 0.3])
    assert inverse_kinematics(LEFT, pose, np.zeros(6)).status is InverseKinematicsStatus.JOINT_LIMITS


def test_both_arms_of_the_cell_reach_their_grip_poses():
    """Tools 0.1 m left and right of the world's origin, looking at each other along x, 0.3 m high."""
    tool = np.array([0.0, 0.0, 0.16, 0.0, 0.0, 0.0, 1.0])
    seed = np.array([0.0, -1.5, 1.8, -0.3, 1.6, 0.0])
    for side, yaw in ((-1.0, 0.0), (1.0, np.pi)):
        arm = Ur5e(make_pose([side * 0.6, 0.0, 0.0], Rotation.from_euler("z", yaw)), tool)
        pose = make_pose([side * 0.1, 0.0, 0.3], Rotation.from_euler("y", -side * np.pi / 2))
        assert inverse_kinematics(arm, pose, seed).solved


def test_errors_name_the_field():
    with pytest.raises(InvalidArmError, match="joints"):
        forward_kinematics(LEFT, [0.0, np.nan, 0.0, 0.0, 0.0, 0.0])
    with pytest.raises(InvalidArmError, match="seed"):
        inverse_kinematics(LEFT, LEFT.base_pose, [0.0])
    wrong = ur5e.NOMINAL_CALIBRATION.copy()
    wrong[2, 0] = -0.6127  # a UR10e's upper arm
    with pytest.raises(InvalidArmError, match="another robot"):
        Ur5e(calibration=wrong)
