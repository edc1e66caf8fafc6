"""Scripted motion of the tools: seeded twists, shifts and lifts, rests, and quick moves that excite inertia.

With both ends held and slow motion a body's shape hardly depends on its stiffness. What tells it is the sag
at rest, the forces while twisted, and the lag behind quick moves, so a program holds all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import checked_poses

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Range = tuple[Positive, Positive]


class MotionDescription(BaseModel):
    """What a program is drawn from; all of it per tool and relative to its rest pose.

    twist: rad about the outward axis, which points from the middle of all tools to this one; bend: rad about
    the two axes across it. pull: largest way outward, push: largest way inward, shift: largest way across, m.
    lift: largest common move of all tools upwards or downwards, m. shake: length of a quick move, m.
    move_duration, rest_duration, shake_duration: from, to, s. initial_rest: s before the first move.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    twist: NonNegative
    bend: NonNegative
    pull: NonNegative
    push: NonNegative
    shift: NonNegative
    lift: NonNegative
    shake: NonNegative
    move_duration: Range
    rest_duration: Range
    shake_duration: Range
    initial_rest: NonNegative

    @field_validator("move_duration", "rest_duration", "shake_duration")
    @classmethod
    def _ordered(cls, value: Range) -> Range:
        if value[0] > value[1]:
            raise ValueError(f"starts at {value[0]} s and ends at {value[1]} s; give the shorter one first")
        return value


@dataclass(frozen=True)
class MotionProgram:
    """Way points of all tools, joined by moves of least jerk.

    rest_poses: (g, 7) in the world; times: (s,) ascending, s; offsets: (s, g, 6) from the rest pose: shift in
    m and rotation vector in rad, both in the world.
    """

    rest_poses: NDArray[np.float64]
    times: NDArray[np.float64]
    offsets: NDArray[np.float64]

    @property
    def duration(self) -> float:
        """When the last move ends, s."""
        return float(self.times[-1])

    def targets(self, time: float) -> NDArray[np.float64]:
        """Target poses (g, 7) at `time` s; held before the first and after the last way point."""
        after = int(np.clip(np.searchsorted(self.times, time, side="right"), 1, len(self.times) - 1))
        begin, end = self.times[after - 1], self.times[after]
        s = float(np.clip((time - begin) / (end - begin), 0.0, 1.0))
        # the polynomial with zero velocity and acceleration at both ends (Flash and Hogan 1985)
        share = s**3 * (10.0 - 15.0 * s + 6.0 * s**2)
        offsets = (1.0 - share) * self.offsets[after - 1] + share * self.offsets[after]
        rotations = Rotation.from_rotvec(offsets[:, 3:]) * Rotation.from_quat(self.rest_poses[:, 3:])
        return np.concatenate([self.rest_poses[:, :3] + offsets[:, :3], rotations.as_quat()], axis=1)


def random_program(
    description: MotionDescription, rest_poses: ArrayLike, duration: float, seed: int
) -> MotionProgram:
    """A program of at least `duration` s for tools at `rest_poses` (g, 7), drawn from `seed`.

    It repeats: move, rest, shake, rest, move, shake while moved, lift, rest. Every second move goes back near
    to rest, where sag shows best.
    """
    poses = checked_poses(rest_poses, "rest_poses")
    axes = _axes(poses)
    generator = np.random.default_rng(seed)
    still = np.zeros((len(poses), 6))
    times, offsets = [0.0], [still]

    def go(change: NDArray[np.float64], span: Range) -> None:
        times.append(times[-1] + generator.uniform(*span))
        offsets.append(change)

    def rest() -> None:
        go(offsets[-1], description.rest_duration)

    def common(shift: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([np.tile(shift, (len(poses), 1)), np.zeros((len(poses), 3))], axis=1)

    def shake() -> None:
        held = offsets[-1]
        direction = generator.normal(size=3)
        direction[0] *= 0.2  # mostly across the usual axis of a held bar, where it is soft
        length = description.shake * generator.uniform(0.6, 1.0)
        for sign in (1.0, -1.0, 0.0):
            go(
                held + common(sign * length * direction / np.linalg.norm(direction)),
                description.shake_duration,
            )

    if description.initial_rest > 0.0:
        go(still, (description.initial_rest, description.initial_rest))
    while times[-1] < duration:
        go(_random_offsets(description, axes, generator, 1.0), description.move_duration)
        rest()
        shake()
        rest()
        go(_random_offsets(description, axes, generator, 0.3), description.move_duration)
        shake()
        upwards = description.lift * generator.uniform(-1.0, 1.0)
        go(offsets[-1] + common(np.array([0.0, 0.0, upwards])), description.move_duration)
        rest()
    return MotionProgram(poses, np.array(times), np.stack(offsets))


def _axes(poses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Per tool (g, 3, 3): rows are the outward axis (its own x for a lone tool) and two across it."""
    outward = poses[:, :3] - poses[:, :3].mean(axis=0)
    lengths = np.linalg.norm(outward, axis=1)
    own = Rotation.from_quat(poses[:, 3:]).as_matrix()[:, :, 0]
    first = np.where(lengths[:, None] > 1e-6, outward / np.maximum(lengths, 1e-6)[:, None], own)
    # any axis across will do, as long as it is never parallel
    helper = np.eye(3)[np.abs(first).argmin(axis=1)]
    second = np.cross(first, helper)
    second /= np.linalg.norm(second, axis=1, keepdims=True)
    return np.stack([first, second, np.cross(first, second)], axis=1)


def _random_offsets(
    description: MotionDescription, axes: NDArray[np.float64], generator: np.random.Generator, share: float
) -> NDArray[np.float64]:
    count = len(axes)
    along = generator.uniform(-description.push, description.pull, (count, 1))
    across = _in_disc(generator, count, description.shift)
    # the same way about each tool's own outward axis, so that they twist the body against each other
    turn = generator.choice([-1.0, 1.0]) * description.twist * generator.uniform(0.4, 1.0, (count, 1))
    bend = _in_disc(generator, count, description.bend)
    shift = np.einsum("gk,gki->gi", np.concatenate([along, across], axis=1), axes)
    rotation = np.einsum("gk,gki->gi", np.concatenate([turn, bend], axis=1), axes)
    return share * np.concatenate([shift, rotation], axis=1)


def _in_disc(generator: np.random.Generator, count: int, radius: float) -> NDArray[np.float64]:
    """(count, 2), uniform in a disc, so that the limit holds in every direction."""
    length = radius * np.sqrt(generator.uniform(size=(count, 1)))
    angle = generator.uniform(0.0, 2.0 * np.pi, (count, 1))
    return length * np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
