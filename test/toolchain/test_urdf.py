"""The description of the two arms."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import IDENTITY_POSE
from realsimloop_ros.cell.scenario import load_scenario
from realsimloop_ros.control.ur5e import (
    JOINT_NAMES,
    POSITION_LIMITS,
    VELOCITY_LIMITS,
    Ur5e,
    forward_kinematics,
    inverse_kinematics,
    link_frames,
)
from realsimloop_ros.observation.cell_file import load_cell
from realsimloop_ros.resources import configuration_file, share_directory

FOLDER = share_directory() / "urdf"
# 12 digits in the file, angles of pi among them, and arms of 1 m: rounding stays below this
ROUNDING = 1e-10


def vector(text: str) -> NDArray[np.float64]:
    return np.array([float(part) for part in text.split()])


@pytest.fixture(scope="module")
def robot() -> ElementTree.Element:
    return ElementTree.parse(FOLDER / "dual_arm.urdf").getroot()


def frame_in_world(robot: ElementTree.Element, link: str, angles: dict[str, float]) -> NDArray[np.float64]:
    """World transform (4, 4) of a link."""
    joints = {joint.find("child").get("link"): joint for joint in robot.findall("joint")}  # type: ignore[union-attr]
    transform = np.eye(4)
    while link in joints:
        joint = joints[link]
        origin = joint.find("origin")
        assert origin is not None
        step = np.eye(4)
        step[:3, :3] = Rotation.from_euler("xyz", vector(origin.get("rpy", "0 0 0"))).as_matrix()
        step[:3, 3] = vector(origin.get("xyz", "0 0 0"))
        if joint.get("type") == "revolute":
            turn = np.eye(4)
            axis = joint.find("axis")
            assert axis is not None
            angle = angles[joint.get("name", "")]
            turn[:3, :3] = Rotation.from_rotvec(angle * vector(axis.get("xyz", ""))).as_matrix()
            step = step @ turn
        transform = step @ transform
        parent = joint.find("parent")
        assert parent is not None
        link = parent.get("link", "")
    assert link == "world"
    return transform


def scenario_arm(name: str) -> tuple[Ur5e, NDArray[np.float64]]:
    arm = load_scenario(configuration_file("scenarios", "dual_arm")).arms[name]
    return arm.kinematics(), np.array(arm.joints)


def test_the_file_is_what_its_generator_writes() -> None:
    generated = runpy.run_path(str(FOLDER / "make_dual_arm.py"))["dual_arm"]()
    assert (FOLDER / "dual_arm.urdf").read_text() == generated


@pytest.mark.parametrize("arm", ["left", "right"])
def test_every_link_stands_where_the_kinematics_of_the_cell_put_it(robot: ElementTree.Element, arm: str) -> None:
    kinematics, _ = scenario_arm(arm)
    names = ["shoulder", "upper_arm", "forearm", "wrist_1", "wrist_2", "wrist_3"]
    links = [*(f"{arm}_{name}_link" for name in names), f"{arm}_tool"]
    for angles in np.random.default_rng(3).uniform(-np.pi, np.pi, (5, 6)):
        by_name = {f"{arm}_{name}": angle for name, angle in zip(JOINT_NAMES, angles, strict=True)}
        expected = link_frames(kinematics, angles)
        for link, frame in zip(links, expected, strict=True):
            np.testing.assert_allclose(frame_in_world(robot, link, by_name), frame, atol=ROUNDING)


@pytest.mark.parametrize("arm", ["left", "right"])
def test_the_flange_frame_is_that_of_the_kinematics_without_a_tool(robot: ElementTree.Element, arm: str) -> None:
    kinematics, angles = scenario_arm(arm)
    bare = Ur5e(kinematics.base_pose, IDENTITY_POSE)
    by_name = {f"{arm}_{name}": angle for name, angle in zip(JOINT_NAMES, angles, strict=True)}
    pose = forward_kinematics(bare, angles)
    frame = frame_in_world(robot, f"{arm}_tool0", by_name)
    np.testing.assert_allclose(frame[:3, 3], pose[:3], atol=ROUNDING)
    np.testing.assert_allclose(frame[:3, :3], Rotation.from_quat(pose[3:]).as_matrix(), atol=ROUNDING)


def test_both_arms_reach_the_grips_of_the_cell_inside_their_limits(robot: ElementTree.Element) -> None:
    cell = load_cell(configuration_file("cells", "dual_arm"))
    for grip in cell.grips:
        kinematics, seed = scenario_arm(grip.arm)
        result = inverse_kinematics(kinematics, grip.rest_pose, seed)
        assert result.solved and result.joints is not None
        by_name = {f"{grip.arm}_{n}": angle for n, angle in zip(JOINT_NAMES, result.joints, strict=True)}
        frame = frame_in_world(robot, grip.frame, by_name)
        # inverse kinematics is accepted at 1e-6
        np.testing.assert_allclose(frame[:3, 3], grip.rest_pose[:3], atol=2e-6)
        rotation = Rotation.from_quat(grip.rest_pose[3:]).as_matrix()
        np.testing.assert_allclose(frame[:3, :3], rotation, atol=2e-6)


def test_joint_limits_are_those_of_the_kinematics(robot: ElementTree.Element) -> None:
    for k, name in enumerate(JOINT_NAMES):
        for arm in ("left", "right"):
            limit = robot.find(f"joint[@name='{arm}_{name}']/limit")
            assert limit is not None
            assert float(limit.get("upper", "")) == pytest.approx(POSITION_LIMITS[k])
            assert float(limit.get("lower", "")) == pytest.approx(-POSITION_LIMITS[k])
            assert float(limit.get("velocity", "")) == pytest.approx(VELOCITY_LIMITS[k])
            assert float(limit.get("effort", "")) > 0.0


def test_every_joint_joins_links_that_exist_and_every_link_but_the_world_has_one_parent(
    robot: ElementTree.Element,
) -> None:
    links = {link.get("name") for link in robot.findall("link")}
    parents = [joint.find("parent").get("link") for joint in robot.findall("joint")]  # type: ignore[union-attr]
    children = [joint.find("child").get("link") for joint in robot.findall("joint")]  # type: ignore[union-attr]
    assert set(parents) <= links
    assert sorted(children, key=str) == sorted(links - {"world"}, key=str)


def test_inertias_could_belong_to_a_body(robot: ElementTree.Element) -> None:
    inertias = robot.findall("link/inertial/inertia")
    assert inertias
    for inertia in inertias:
        moments = sorted(float(inertia.get(key, "")) for key in ("ixx", "iyy", "izz"))
        assert moments[0] > 0.0
        assert moments[0] + moments[1] >= moments[2]


def test_the_display_file_shows_topics_and_frames_that_exist() -> None:
    text = (Path(FOLDER).parent / "rviz" / "dual_arm.rviz").read_text()
    for name in ("stress_markers", "robot_description", "overlay/camera_0", "Fixed Frame: world"):
        assert name in text
