"""The cell's URDF and the virtual cell's arms are the same: any joint angles put the tool at one place."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import rotation_matrix
from realsimloop_ros.cell.scenario import load_scenario
from realsimloop_ros.control.ur5e import JOINT_NAMES, forward_kinematics

ROOT = Path(__file__).resolve().parents[2]


def tool_by_urdf(arm, joints):
    """Transform (4, 4) of the arm's tool in the world, from the joints of the URDF alone."""
    parents = {}
    for joint in ElementTree.parse(ROOT / "urdf" / "dual_arm.urdf").getroot().iter("joint"):
        parents[joint.find("child").get("link")] = joint
    angles = {f"{arm}_{name}": angle for name, angle in zip(JOINT_NAMES, joints, strict=True)}
    link, transform = f"{arm}_tool", np.eye(4)
    while link in parents:
        joint = parents[link]
        step = np.eye(4)
        origin = joint.find("origin")
        if origin is not None:
            step[:3, 3] = [float(x) for x in origin.get("xyz").split()]
            step[:3, :3] = Rotation.from_euler("xyz", [float(x) for x in origin.get("rpy").split()]).as_matrix()
        if joint.get("type") == "revolute":
            axis = np.array([float(x) for x in joint.find("axis").get("xyz").split()])
            turn = np.eye(4)
            turn[:3, :3] = Rotation.from_rotvec(axis * angles[joint.get("name")]).as_matrix()
            step = step @ turn
        transform = step @ transform
        link = joint.find("parent").get("link")
    assert link == "world"
    return transform


@pytest.mark.parametrize("arm", ["left", "right"])
def test_urdf_agrees_with_the_kinematics_of_the_scenario(arm):
    scenario = load_scenario(ROOT / "config" / "scenarios" / "dual_arm.yaml")
    kinematics = scenario.arms[arm].kinematics()
    generator = np.random.default_rng(1)
    for joints in (scenario.arms[arm].joints, *generator.uniform(-2.5, 2.5, (5, 6))):
        pose, expected = forward_kinematics(kinematics, joints), tool_by_urdf(arm, joints)
        # the URDF gives its angles with twelve digits
        np.testing.assert_allclose(pose[:3], expected[:3, 3], atol=1e-9)
        np.testing.assert_allclose(rotation_matrix(pose), expected[:3, :3], atol=1e-9)
