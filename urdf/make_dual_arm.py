"""Writes dual_arm.urdf: two UR5e that hold a bar between them, with plain shapes.

    python urdf/make_dual_arm.py > urdf/dual_arm.urdf

Kinematics and joint limits are those of realsimloop_ros.control.ur5e. Masses, inertias, shapes' radii and
efforts are from UniversalRobots' ur_description (physical_parameters.yaml, joint_limits.yaml, BSD-3-Clause).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from xml.etree import ElementTree

from realsimloop_ros.control.ur5e import JOINT_NAMES, NOMINAL_CALIBRATION, POSITION_LIMITS, VELOCITY_LIMITS

EFFORTS = (150.0, 150.0, 150.0, 28.0, 28.0, 28.0)  # N m
GRIPPER_LENGTH, GRIPPER_RADIUS, GRIPPER_MASS = 0.16, 0.03, 0.9  # m, m, kg
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Cylinder:
    """A cylinder around the local z; middle, rpy: its pose in the link's frame (m, rad)."""

    radius: float
    length: float
    middle: Triple
    rpy: Triple = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Link:
    """mass: kg; inertia: ixx iyy izz (kg m^2) about the centre of mass, along the axes turned by `rpy`."""

    name: str
    mass: float
    centre: Triple
    rpy: Triple
    inertia: Triple
    shape: Cylinder


_ALONG_X = (0.0, math.pi / 2, 0.0)
_ALONG_Y = (math.pi / 2, 0.0, 0.0)
_NONE = (0.0, 0.0, 0.0)
LINKS = (
    Link("shoulder_link", 3.761, (0.0, -0.00193, -0.02561), _NONE, (0.0102675, 0.0102675, 0.00666),
         Cylinder(0.06, 0.178, (0.0, 0.0, 0.0))),
    Link("upper_arm_link", 8.058, (-0.2125, 0.0, 0.11336), _ALONG_X, (0.133886, 0.133886, 0.0151074),
         Cylinder(0.054, 0.425, (-0.2125, 0.0, 0.138), _ALONG_X)),
    Link("forearm_link", 2.846, (-0.2422, 0.0, 0.0265), _ALONG_X, (0.0312094, 0.0312094, 0.004095),
         Cylinder(0.04, 0.3922, (-0.1961, 0.0, 0.007), _ALONG_X)),
    Link("wrist_1_link", 1.37, (0.0, -0.01634, -0.0018), _NONE, (0.0025599, 0.0025599, 0.0021942),
         Cylinder(0.045, 0.12, (0.0, 0.0, -0.015))),
    Link("wrist_2_link", 1.3, (0.0, 0.01634, -0.0018), _NONE, (0.0025599, 0.0025599, 0.0021942),
         Cylinder(0.045, 0.12, (0.0, 0.0, -0.015))),
    Link("wrist_3_link", 0.365, (0.0, 0.0, -0.001159), _NONE, (9.89041e-05, 9.89041e-05, 0.000132117),
         Cylinder(0.0375, 0.0375, (0.0, 0.0, -0.019))),
)  # fmt: skip


def numbers(values: Triple | tuple[float, ...]) -> str:
    """Numbers as URDF writes them."""
    return " ".join(f"{value + 0.0:.12g}" for value in values)


def add_origin(parent: ElementTree.Element, xyz: Triple, rpy: Triple = _NONE) -> None:
    ElementTree.SubElement(parent, "origin", xyz=numbers(xyz), rpy=numbers(rpy))


def add_cylinder(link: ElementTree.Element, cylinder: Cylinder, material: str) -> None:
    """The shape, to be seen and to be collided with."""
    for kind in ("visual", "collision"):
        element = ElementTree.SubElement(link, kind)
        add_origin(element, cylinder.middle, cylinder.rpy)
        geometry = ElementTree.SubElement(element, "geometry")
        ElementTree.SubElement(
            geometry, "cylinder", radius=numbers((cylinder.radius,)), length=numbers((cylinder.length,))
        )
        if kind == "visual":
            ElementTree.SubElement(element, "material", name=material)


def add_inertial(link: ElementTree.Element, mass: float, centre: Triple, rpy: Triple, inertia: Triple) -> None:
    element = ElementTree.SubElement(link, "inertial")
    add_origin(element, centre, rpy)
    ElementTree.SubElement(element, "mass", value=numbers((mass,)))
    ixx, iyy, izz = (numbers((value,)) for value in inertia)
    ElementTree.SubElement(element, "inertia", ixx=ixx, iyy=iyy, izz=izz, ixy="0", ixz="0", iyz="0")


def add_fixed_joint(
    robot: ElementTree.Element, name: str, parent: str, child: str, xyz: Triple = _NONE, rpy: Triple = _NONE
) -> None:
    joint = ElementTree.SubElement(robot, "joint", name=name, type="fixed")
    add_origin(joint, xyz, rpy)
    ElementTree.SubElement(joint, "parent", link=parent)
    ElementTree.SubElement(joint, "child", link=child)


def add_arm(robot: ElementTree.Element, prefix: str, base: Triple, yaw: float, tool_yaw: float) -> None:
    """A UR5e whose base_link stands at `base` (m), turned by `yaw` (rad) about the world's z.

    tool_yaw: rad about the flange's z by which the tool frame is turned after its quarter turn about the
    flange's x, so that both tools can have the world's axes.
    """
    base_link = ElementTree.SubElement(robot, "link", name=f"{prefix}base_link")
    add_cylinder(base_link, Cylinder(0.06, 0.0991, (0.0, 0.0, 0.04955)), "dark")
    add_fixed_joint(robot, f"{prefix}base_joint", "world", f"{prefix}base_link", base, (0.0, 0.0, yaw))
    ElementTree.SubElement(robot, "link", name=f"{prefix}base_link_inertia")
    add_fixed_joint(
        robot,
        f"{prefix}base_link-base_link_inertia",
        f"{prefix}base_link",
        f"{prefix}base_link_inertia",
        rpy=(0.0, 0.0, math.pi),
    )
    parent = f"{prefix}base_link_inertia"
    for k, link in enumerate(LINKS):
        element = ElementTree.SubElement(robot, "link", name=prefix + link.name)
        add_inertial(element, link.mass, link.centre, link.rpy, link.inertia)
        add_cylinder(element, link.shape, "light" if k % 2 else "blue")
        joint = ElementTree.SubElement(robot, "joint", name=prefix + JOINT_NAMES[k], type="revolute")
        row = [float(value) for value in NOMINAL_CALIBRATION[k]]
        add_origin(joint, (row[0], row[1], row[2]), (row[3], row[4], row[5]))
        ElementTree.SubElement(joint, "parent", link=parent)
        ElementTree.SubElement(joint, "child", link=prefix + link.name)
        ElementTree.SubElement(joint, "axis", xyz="0 0 1")
        ElementTree.SubElement(
            joint,
            "limit",
            lower=numbers((-float(POSITION_LIMITS[k]),)),
            upper=numbers((float(POSITION_LIMITS[k]),)),
            velocity=numbers((float(VELOCITY_LIMITS[k]),)),
            effort=numbers((EFFORTS[k],)),
        )
        parent = prefix + link.name
    # the flange has x out of the arm (REP 103), tool0 has z out of it
    for name, start, rpy in (
        ("flange", "wrist_3_link", (0.0, -math.pi / 2, -math.pi / 2)),
        ("tool0", "flange", (math.pi / 2, 0.0, math.pi / 2)),
    ):
        ElementTree.SubElement(robot, "link", name=prefix + name)
        add_fixed_joint(robot, f"{prefix}{start}-{name}", prefix + start, prefix + name, rpy=rpy)
    gripper = ElementTree.SubElement(robot, "link", name=f"{prefix}gripper")
    shape = Cylinder(GRIPPER_RADIUS, GRIPPER_LENGTH, (GRIPPER_LENGTH / 2, 0.0, 0.0), _ALONG_X)
    across = GRIPPER_MASS * (3 * GRIPPER_RADIUS**2 + GRIPPER_LENGTH**2) / 12
    along = GRIPPER_MASS * GRIPPER_RADIUS**2 / 2
    add_inertial(gripper, GRIPPER_MASS, shape.middle, shape.rpy, (across, across, along))
    add_cylinder(gripper, shape, "dark")
    add_fixed_joint(robot, f"{prefix}flange-gripper", f"{prefix}flange", f"{prefix}gripper")
    ElementTree.SubElement(robot, "link", name=f"{prefix}tool")
    add_fixed_joint(
        robot,
        f"{prefix}gripper-tool",
        f"{prefix}gripper",
        f"{prefix}tool",
        (GRIPPER_LENGTH, 0.0, 0.0),
        (math.pi / 2, 0.0, tool_yaw),
    )


def dual_arm() -> str:
    """The description as XML text."""
    robot = ElementTree.Element("robot", name="dual_arm")
    for name, colour in (("dark", "0.2 0.2 0.22 1"), ("light", "0.8 0.8 0.82 1"), ("blue", "0.45 0.65 0.8 1")):
        material = ElementTree.SubElement(robot, "material", name=name)
        ElementTree.SubElement(material, "color", rgba=colour)
    ElementTree.SubElement(robot, "link", name="world")
    add_arm(robot, "left_", (-0.6, 0.0, 0.0), 0.0, 0.0)
    add_arm(robot, "right_", (0.6, 0.0, 0.0), math.pi, math.pi)
    ElementTree.indent(robot)
    comment = "<!-- Written by make_dual_arm.py; the sources of its numbers are named there. -->"
    return f'<?xml version="1.0"?>\n{comment}\n{ElementTree.tostring(robot, encoding="unicode")}\n'


if __name__ == "__main__":
    sys.stdout.write(dual_arm())
