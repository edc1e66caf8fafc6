"""A position-controlled arm as a cell sees it: its tool follows a target pose with lag and inside limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import checked_poses, make_pose

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ArmLimits(BaseModel):
    """How fast and how far a tool moves.

    lag: time constant of the approach to the target, s. Speeds in m/s and rad/s, accelerations in m/s^2 and
    rad/s^2. workspace_minimum, workspace_maximum: corners in the world of the box the tool never leaves, m.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lag: Positive
    speed: Positive
    acceleration: Positive
    angular_speed: Positive
    angular_acceleration: Positive
    workspace_minimum: tuple[float, float, float]
    workspace_maximum: tuple[float, float, float]

    @model_validator(mode="after")
    def _workspace_is_a_box(self) -> ArmLimits:
        if not np.less(self.workspace_minimum, self.workspace_maximum).all():
            raise ValueError(
                f"workspace_minimum {self.workspace_minimum} is not below"
                f" workspace_maximum {self.workspace_maximum}"
            )
        return self


@dataclass(frozen=True)
class ArmState:
    """All in the world. pose, target: (7,) of the tool; velocity (3,) m/s; angular_velocity (3,) rad/s."""

    pose: NDArray[np.float64]
    target: NDArray[np.float64]
    velocity: NDArray[np.float64]
    angular_velocity: NDArray[np.float64]


def resting(pose: ArrayLike) -> ArmState:
    """An arm that stands at `pose` (7,) and is told to."""
    checked = checked_poses(pose, "pose")
    return ArmState(checked, checked, np.zeros(3), np.zeros(3))


def with_target(state: ArmState, target: ArrayLike) -> ArmState:
    """The arm with a new target pose (7,). Raises InvalidPoseError."""
    return replace(state, target=checked_poses(target, "target"))


def advance(state: ArmState, limits: ArmLimits, duration: float) -> ArmState:
    """The arm after `duration` s, a few ms: an exact first-order lag while no limit is met."""
    low, high = np.array(limits.workspace_minimum), np.array(limits.workspace_maximum)
    goal = np.clip(state.target[:3], low, high)
    velocity = _approach(
        goal - state.pose[:3], state.velocity, limits.lag, limits.speed, limits.acceleration, duration
    )
    position = np.clip(state.pose[:3] + velocity * duration, low, high)
    rotation = Rotation.from_quat(state.pose[3:])
    # the shorter way round: a rotation vector is at most pi long
    turn = (Rotation.from_quat(state.target[3:]) * rotation.inv()).as_rotvec()
    angular_velocity = _approach(
        turn, state.angular_velocity, limits.lag, limits.angular_speed, limits.angular_acceleration, duration
    )
    turned = Rotation.from_rotvec(angular_velocity * duration) * rotation
    return ArmState(make_pose(position, turned), state.target, velocity, angular_velocity)


def _approach(
    distance: NDArray[np.float64],
    velocity: NDArray[np.float64],
    lag: float,
    speed_limit: float,
    acceleration_limit: float,
    duration: float,
) -> NDArray[np.float64]:
    """Velocity (3,) over the next `duration` s that closes `distance` (3,)."""
    length = float(np.linalg.norm(distance))
    wanted = np.zeros(3)
    if length > 0.0:
        lagged = length * -np.expm1(-duration / lag) / duration
        # the speed from which the limited deceleration, taken in steps of `duration`, still stops in time
        ramp = 0.5 * acceleration_limit * duration
        braking = float(np.sqrt(ramp**2 + 2.0 * acceleration_limit * length)) - ramp
        wanted = distance / length * min(lagged, speed_limit, braking)
    change = wanted - velocity
    size = float(np.linalg.norm(change))
    if size > acceleration_limit * duration:
        change *= acceleration_limit * duration / size
    return velocity + change
