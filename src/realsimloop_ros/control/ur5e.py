"""Kinematics of a UR5e: forward, Jacobian and inverse, placed in the world and with a tool on its flange.

Joint angles are in rad, in the order of JOINT_NAMES; poses are x y z qx qy qz qw in m. The numbers are the
nominal calibration and the joint limits of UniversalRobots' `ur_description` (default_kinematics.yaml,
joint_limits.yaml, BSD-3-Clause), in whose frames everything here is expressed: `base_link` looks along +x,
and the chain of joints starts from it turned by pi about z (there `base_link_inertia`, on the teach pendant
`base`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import IDENTITY_POSE, checked_poses, rotation_matrix

JOINT_NAMES = (
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
)

# x y z (m), roll pitch yaw (rad) of each joint's frame in the link before it, at angle zero
NOMINAL_CALIBRATION = np.array(
    [
        (0.0, 0.0, 0.1625, 0.0, 0.0, 0.0),
        (0.0, 0.0, 0.0, np.pi / 2, 0.0, 0.0),
        (-0.425, 0.0, 0.0, 0.0, 0.0, 0.0),
        (-0.3922, 0.0, 0.1333, 0.0, 0.0, 0.0),
        (0.0, -0.0997, 0.0, np.pi / 2, 0.0, 0.0),
        (0.0, 0.0996, 0.0, np.pi / 2, np.pi, np.pi),
    ]
)

# the elbow cannot turn further: the shoulder lift joint is in its way
POSITION_LIMITS = np.radians([360.0, 360.0, 180.0, 360.0, 360.0, 360.0])
VELOCITY_LIMITS = np.radians([180.0] * 6)  # rad/s

# Denavit-Hartenberg lengths of the nominal arm (m), from which the closed-form inverse starts
_D1, _A2, _A3, _D4, _D5, _D6 = 0.1625, -0.425, -0.3922, 0.1333, 0.0997, 0.0996

# of a posture's pose error, m and rad: where the Newton steps end, and what is still a solution. At a
# singular posture the closed form finds a double root, to the square root of rounding; the arm repeats to
# 3e-5 m.
_CONVERGED, _ACCEPTED = 1e-10, 1e-6
_FOLLOW_STEPS, _POLISH_STEPS = 5, 20


class InvalidArmError(ValueError):
    """An arm whose numbers describe no UR5e; the message names the field, the value and the remedy."""


@dataclass(frozen=True)
class Ur5e:
    """One placed arm.

    base_pose: (7,) of `base_link` in the world; tool_offset: (7,) of the tool frame in the flange (`tool0`)
    frame, whose z points out of the flange; calibration: (6, 6) rows as in NOMINAL_CALIBRATION, for a robot
    whose factory calibration was read out. Raises InvalidArmError for a calibration too far from a UR5e's.
    """

    base_pose: NDArray[np.float64] = field(default_factory=IDENTITY_POSE.copy)
    tool_offset: NDArray[np.float64] = field(default_factory=IDENTITY_POSE.copy)
    calibration: NDArray[np.float64] = field(default_factory=NOMINAL_CALIBRATION.copy)
    _base: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    _tool: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    _links: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        base = _matrix(checked_poses(self.base_pose, "base_pose"))
        base[:3, :2] *= -1.0  # base_link to base_link_inertia: pi about z
        object.__setattr__(self, "_base", base)
        object.__setattr__(self, "_tool", _matrix(checked_poses(self.tool_offset, "tool_offset")))
        if self.calibration.shape != (6, 6) or not np.isfinite(self.calibration).all():
            raise InvalidArmError(f"calibration: shape {self.calibration.shape}, expected (6, 6) finite numbers")
        deviation = np.abs(self.calibration[:, :3] - NOMINAL_CALIBRATION[:, :3]).max()
        if deviation > 0.02:
            raise InvalidArmError(
                f"calibration: {deviation:.3f} m off a UR5e's nominal lengths; is it another robot's?"
            )
        links = np.tile(np.eye(4), (6, 1, 1))
        links[:, :3, :3] = Rotation.from_euler("xyz", self.calibration[:, 3:]).as_matrix()
        links[:, :3, 3] = self.calibration[:, :3]
        object.__setattr__(self, "_links", links)


class InverseKinematicsStatus(Enum):
    """Why an inverse kinematics call ended."""

    SOLVED = "solved"
    OUT_OF_REACH = "no posture of the arm puts the tool there"
    JOINT_LIMITS = "the postures that put the tool there are outside the joint limits"


@dataclass(frozen=True)
class InverseKinematicsResult:
    """joints: (6,) rad, the posture closest to the seed, or None unless status is SOLVED."""

    status: InverseKinematicsStatus
    joints: NDArray[np.float64] | None

    @property
    def solved(self) -> bool:
        return self.status is InverseKinematicsStatus.SOLVED


def link_frames(arm: Ur5e, joints: ArrayLike) -> NDArray[np.float64]:
    """World transforms (7, 4, 4): the six links' frames in the order of the joints, then the tool."""
    angles = _checked_joints(joints)
    frames = np.empty((7, 4, 4))
    current = arm._base
    for k in range(6):
        current = current @ arm._links[k]
        cosine, sine = np.cos(angles[k]), np.sin(angles[k])
        x, y = current[:, 0].copy(), current[:, 1].copy()
        current[:, 0] = cosine * x + sine * y
        current[:, 1] = cosine * y - sine * x
        frames[k] = current
    frames[6] = current @ arm._tool
    return frames


def forward_kinematics(arm: Ur5e, joints: ArrayLike) -> NDArray[np.float64]:
    """Pose (7,) of the tool in the world."""
    return _pose(link_frames(arm, joints)[6])


def jacobian(arm: Ur5e, joints: ArrayLike) -> NDArray[np.float64]:
    """Geometric Jacobian (6, 6) in the world: rows linear velocity (m/s) then angular velocity (rad/s) of
    the tool.
    """
    return _jacobian(link_frames(arm, joints))


def inverse_kinematics(arm: Ur5e, pose: ArrayLike, seed: ArrayLike) -> InverseKinematicsResult:
    """Joint angles that put the tool at `pose` (7,) in the world: of all postures, the one closest to
    `seed` (6,).

    A posture within 0.1 rad of the seed, as when an arm is followed from tick to tick, is found by Newton's
    method alone. Otherwise the eight closed-form postures of the nominal arm are each corrected by Newton
    steps, so a calibrated arm is solved exactly too. Where wrist 2 is straight, wrist 3 keeps the seed's
    angle. Angles are taken a turn up or down where that is closer to the seed and inside the limits.
    """
    start = _checked_joints(seed, "seed")
    target = _matrix(checked_poses(pose, "pose"))
    near = _polish(arm, target, start, _FOLLOW_STEPS)
    if near is not None and np.abs(near - start).max() < 0.1 and (np.abs(near) <= POSITION_LIMITS).all():
        return InverseKinematicsResult(InverseKinematicsStatus.SOLVED, near)
    flange = np.linalg.inv(arm._base) @ target @ np.linalg.inv(arm._tool)
    exact = [
        joints
        for candidate in _closed_form(flange, start[5])
        if (joints := _polish(arm, target, candidate, _POLISH_STEPS)) is not None
    ]
    if not exact:
        return InverseKinematicsResult(InverseKinematicsStatus.OUT_OF_REACH, None)
    inside = [joints for posture in exact if (joints := _nearest_turns(posture, start)) is not None]
    if not inside:
        return InverseKinematicsResult(InverseKinematicsStatus.JOINT_LIMITS, None)
    best = min(inside, key=lambda joints: float(np.abs(joints - start).sum()))
    return InverseKinematicsResult(InverseKinematicsStatus.SOLVED, best)


def _matrix(pose: NDArray[np.float64]) -> NDArray[np.float64]:
    matrix = np.eye(4)
    matrix[:3, :3] = rotation_matrix(pose)
    matrix[:3, 3] = pose[:3]
    return matrix


def _pose(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([matrix[:3, 3], Rotation.from_matrix(matrix[:3, :3]).as_quat()])


def _checked_joints(joints: ArrayLike, field_name: str = "joints") -> NDArray[np.float64]:
    angles = np.asarray(joints, dtype=np.float64)
    if angles.shape != (6,) or not np.isfinite(angles).all():
        raise InvalidArmError(f"{field_name}: {angles.tolist()}, expected six finite angles in rad")
    return angles


def _jacobian(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    axes = frames[:6, :3, 2]
    arms = frames[6, :3, 3] - frames[:6, :3, 3]
    return np.concatenate([np.cross(axes, arms), axes], axis=1).T


def _closed_form(flange: NDArray[np.float64], wrist_3: float) -> list[NDArray[np.float64]]:
    """Postures of the nominal arm for a flange pose (4, 4) in `base`.

    Source: K. Hawkins, "Analytic inverse kinematics for the Universal Robots UR-5/UR-10 arms", 2013.
    """
    postures: list[NDArray[np.float64]] = []
    rotation, position = flange[:3, :3], flange[:3, 3]
    wrist = position - _D6 * rotation[:, 2]
    radius = float(np.hypot(wrist[0], wrist[1]))
    # rounding, and the lengths of a calibrated arm, must not lose a posture at the edge of reach
    slack = 1e-3
    if radius < _D4 * (1.0 - slack):
        return postures
    shoulder = np.arctan2(wrist[1], wrist[0]) + np.pi / 2
    swing = np.arccos(min(_D4 / radius, 1.0))
    for q1, wrist_sign, elbow_sign in itertools.product((shoulder + swing, shoulder - swing), (1, -1), (1, -1)):
        sine, cosine = np.sin(q1), np.cos(q1)
        bend = (position[0] * sine - position[1] * cosine - _D4) / _D6
        if abs(bend) > 1.0 + slack:
            continue
        q5 = wrist_sign * np.arccos(np.clip(bend, -1.0, 1.0))
        if abs(np.sin(q5)) < 1e-6:
            q6 = _reachable_wrist_3(flange, q1, q5, wrist_3)
        else:
            sign = np.sign(np.sin(q5))
            q6 = np.arctan2(
                sign * (rotation[1, 1] * cosine - rotation[0, 1] * sine),
                sign * (rotation[0, 0] * sine - rotation[1, 0] * cosine),
            )
        fourth = _fourth_link(flange, q1, q5, q6)
        x, y = fourth[0, 3], fourth[1, 3]
        elbow = (x * x + y * y - _A2**2 - _A3**2) / (2.0 * _A2 * _A3)
        if abs(elbow) > 1.0 + slack:
            continue
        q3 = elbow_sign * np.arccos(np.clip(elbow, -1.0, 1.0))
        q2 = np.arctan2(y, x) - np.arctan2(_A3 * np.sin(q3), _A2 + _A3 * np.cos(q3))
        q4 = np.arctan2(fourth[1, 0], fourth[0, 0]) - q2 - q3
        postures.append(np.array([q1, q2, q3, q4, q5, q6]))
    return postures


def _fourth_link(flange: NDArray[np.float64], q1: float, q5: float, q6: float) -> NDArray[np.float64]:
    """Frame (4, 4) of wrist 1, seen from the frame after the shoulder pan, in whose x y plane it moves."""
    wrist = _denavit_hartenberg(q5, _D5, 0.0, -np.pi / 2) @ _denavit_hartenberg(q6, _D6, 0.0, 0.0)
    return np.linalg.inv(_denavit_hartenberg(q1, _D1, 0.0, np.pi / 2)) @ flange @ np.linalg.inv(wrist)


def _reachable_wrist_3(flange: NDArray[np.float64], q1: float, q5: float, wanted: float) -> float:
    """For a straight wrist: the angle of wrist 3 closest to `wanted` for which the long links reach.

    With it the end of the long links moves on a circle, c + a cos q6 + b sin q6, so its squared distance from
    the shoulder is a cosine, which must lie between those of the folded and of the stretched arm.
    """
    ends = [_fourth_link(flange, q1, q5, q6)[:2, 3] for q6 in (0.0, np.pi / 2, np.pi)]
    centre = 0.5 * (ends[0] + ends[2])
    a, b = ends[0] - centre, ends[1] - centre
    swing = 2.0 * float(np.hypot(centre @ a, centre @ b))
    if swing < 1e-12:
        return wanted
    mean = float(centre @ centre + a @ a)
    nearest, farthest = (_A2 - _A3) ** 2, (_A2 + _A3) ** 2
    outward = np.arctan2(centre @ b, centre @ a)
    offset = (wanted - outward + np.pi) % (2.0 * np.pi) - np.pi
    limits = np.clip([(nearest - mean) / swing, (farthest - mean) / swing], -1.0, 1.0)
    allowed = np.clip(np.cos(offset), *limits)
    if allowed == np.cos(offset):
        return wanted
    return float(outward + np.copysign(np.arccos(allowed), offset))


def _denavit_hartenberg(theta: float, d: float, a: float, alpha: float) -> NDArray[np.float64]:
    ct, st, ca, sa = np.cos(theta), np.sin(theta), np.cos(alpha), np.sin(alpha)
    return np.array(
        [
            [ct, -st * ca, st * sa, a * ct],
            [st, ct * ca, -ct * sa, a * st],
            [0.0, sa, ca, d],
            [0.0, 0.0, 0.0, 1.0],
        ]
    )


def _polish(
    arm: Ur5e, target: NDArray[np.float64], joints: NDArray[np.float64], steps: int
) -> NDArray[np.float64] | None:
    """Newton steps, damped near singular postures, until the tool stands at `target`; None where it never
    does.
    """
    best, best_error = joints, np.inf
    for _ in range(steps):
        frames = link_frames(arm, joints)
        error = np.empty(6)
        error[:3] = target[:3, 3] - frames[6, :3, 3]
        error[3:] = Rotation.from_matrix(target[:3, :3] @ frames[6, :3, :3].T).as_rotvec()
        size = float(np.abs(error).max())
        if size < best_error:
            best, best_error = joints, size
        if size < _CONVERGED:
            break
        # damping in proportion to the error bounds the step at singular postures, and vanishes at the
        # solution
        u, singular, vt = np.linalg.svd(_jacobian(frames))
        joints = joints + vt.T @ (singular / (singular**2 + 1e-2 * size**2) * (u.T @ error))
    return best if best_error < _ACCEPTED else None


def _nearest_turns(posture: NDArray[np.float64], seed: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The posture with whole turns added: inside the limits, each angle as close to the seed as it can be."""
    turn = 2.0 * np.pi
    lowest = np.ceil((-POSITION_LIMITS - posture) / turn - 1e-12)
    highest = np.floor((POSITION_LIMITS - posture) / turn + 1e-12)
    if (lowest > highest).any():
        return None
    return posture + turn * np.clip(np.round((seed - posture) / turn), lowest, highest)
