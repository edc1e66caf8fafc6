"""A twin that runs along: it follows grip poses on a fixed grid of ticks, with a material that may change.

Time is what the stamps say, no clock is read: the same poses give the same states however they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import checked_poses, interpolate
from realsimloop_ros.dynamics.rollout import TwinState, no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import CONVERGED, NON_FINITE, StepSettings
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import ReducedModel, vertices


class LiveTwinError(ValueError):
    """A pose or a setting that a running twin cannot use; the text names it and the remedy."""


@dataclass(frozen=True, eq=False)
class LiveState:
    """Where the body is at a stamp, ns.

    latent, latent_velocity: (r,), the latter 1/s; grip_poses: (g, 7); vertices: (n, 3) m; converged: False where
    a step hit its iteration limit.
    """

    stamp_ns: int
    latent: NDArray[np.float64]
    latent_velocity: NDArray[np.float64]
    grip_poses: NDArray[np.float64]
    vertices: NDArray[np.float64]
    converged: bool


class PoseHistory:
    """Poses of one frame over time. add: whether a stamp was newer than the last one."""

    def __init__(self) -> None:
        self._stamps: deque[int] = deque()
        self._poses: deque[NDArray[np.float64]] = deque()

    def __len__(self) -> int:
        return len(self._stamps)

    @property
    def newest(self) -> int | None:
        """Stamp of the newest pose, ns."""
        return self._stamps[-1] if self._stamps else None

    @property
    def oldest(self) -> int:
        """Stamp of the oldest pose kept, ns."""
        return self._stamps[0]

    def add(self, stamp_ns: int, pose: NDArray[np.float64]) -> bool:
        """Take a pose (7,) in; False, and nothing done, where its stamp is not newer."""
        if self._stamps and stamp_ns <= self._stamps[-1]:
            return False
        self._stamps.append(stamp_ns)
        self._poses.append(pose)
        return True

    def at(self, stamp_ns: int) -> NDArray[np.float64]:
        """The pose (7,) at a stamp, interpolated; beyond the ends that of the end."""
        return interpolate(np.array(self._stamps), np.array(self._poses), stamp_ns)

    def forget_before(self, stamp_ns: int) -> None:
        """Drop what no later stamp needs."""
        while len(self._stamps) > 1 and self._stamps[1] <= stamp_ns:
            self._stamps.popleft()
            self._poses.popleft()

    def clear(self) -> None:
        """Forget every pose."""
        self._stamps.clear()
        self._poses.clear()


class LiveTwin:
    """A running twin.

    It begins in static equilibrium at the first moment at which every grip is known, and gives a state every
    `ticks_per_state` ticks. A pose older than its grip's last by more than `jump_ns`, or newer by more, begins it
    anew: the clock was set, or there is nothing to follow in between. So does a lag of more than `lag_ns` behind
    the poses, which a machine that is too slow would never make up for.
    """

    def __init__(
        self,
        body: Body,
        model: ReducedModel,
        settings: StepSettings,
        material: Material,
        *,
        ticks_per_state: int = 1,
        jump_ns: int = 1_000_000_000,
        lag_ns: int = 2_000_000_000,
    ) -> None:
        if ticks_per_state < 1:
            raise LiveTwinError(f"ticks_per_state is {ticks_per_state}, expected at least 1")
        self.body = body
        self._model = model
        self._settings = settings
        self._directions = no_directions(len(body.zones))
        self._ticks = ticks_per_state
        self._interval_ns = round(ticks_per_state * settings.time_step * 1e9)
        self._jump_ns = jump_ns
        self._lag_ns = lag_ns
        self._grips = {grip.name: PoseHistory() for grip in body.grips}
        self._state: TwinState | None = None
        self._now = 0
        self.resets: dict[str, int] = {}
        self.rejected = 0
        self.set_material(material)

    def set_material(self, material: Material) -> None:
        """The material of the steps to come."""
        self._material = Material(*(jnp.asarray(values) for values in material))

    def reset(self, cause: str) -> None:
        """Begin anew with the next poses; counted by cause."""
        self._count(cause)
        for history in self._grips.values():
            history.clear()
        self._state = None

    @property
    def now_ns(self) -> int | None:
        """Stamp of the last step; None before the first."""
        return None if self._state is None else self._now

    @property
    def known_until(self) -> int | None:
        """Stamp, ns, up to which every grip is known; None where one is not known at all."""
        newest = [history.newest for history in self._grips.values()]
        known = [stamp for stamp in newest if stamp is not None]
        return min(known) if known and len(known) == len(newest) else None

    def grips_behind(self, stamp_ns: int) -> tuple[str, ...]:
        """Grips whose last pose is older than a stamp, or that have none."""
        newest = {name: history.newest for name, history in self._grips.items()}
        return tuple(name for name, stamp in newest.items() if stamp is None or stamp < stamp_ns)

    def add_grip_pose(self, grip: str, stamp_ns: int, pose: NDArray[np.float64]) -> None:
        """A grip's pose (7,); one whose stamp is not newer is counted in `rejected`. Raises LiveTwinError for an
        unknown grip, InvalidPoseError for an invalid pose.
        """
        if grip not in self._grips:
            raise LiveTwinError(f"grip {grip!r} is unknown, the body has {', '.join(self._grips)}")
        history = self._grips[grip]
        newest = history.newest
        if newest is not None and stamp_ns < newest - self._jump_ns:
            self.reset("clock_jump")
        elif newest is not None and stamp_ns > newest + self._jump_ns:
            self.reset("gap")
        if not history.add(stamp_ns, checked_poses(pose, f"{grip} pose")):
            self.rejected += 1

    def advance(self, until_ns: int | None = None) -> Iterator[LiveState]:
        """Steps, and gives the states, up to `until_ns`, or, without it, up to where every grip is known; beyond
        that, grips are held where they were last. The material may be changed between two states.
        """
        known = self.known_until
        if known is None:
            return
        end = known if until_ns is None else until_ns
        if self._state is None:
            self._begin(max(history.oldest for history in self._grips.values()))
        elif end - self._now > self._lag_ns:
            self._count("too_slow")
            self._begin(end)
        while self._now + self._interval_ns <= end:
            yield self._step()

    def _count(self, cause: str) -> None:
        self.resets[cause] = self.resets.get(cause, 0) + 1

    def _poses(self, stamp_ns: int) -> NDArray[np.float64]:
        return np.array([history.at(stamp_ns) for history in self._grips.values()])

    def _begin(self, stamp_ns: int) -> None:
        # on a grid of whole intervals, so that the stamps do not depend on which pose came first
        self._now = stamp_ns // self._interval_ns * self._interval_ns
        poses = jnp.asarray(self._poses(self._now))
        self._state, result = rest_state(self._model, self._settings, self._material, self._directions, poses)
        if int(result) != CONVERGED:
            self._count("start_not_converged")

    def _step(self) -> LiveState:
        assert self._state is not None
        following = self._now + self._interval_ns
        stamps = np.linspace(self._now, following, self._ticks + 1)[1:]
        poses = np.array([self._poses(round(stamp)) for stamp in stamps])
        self._state, run = rollout(
            self._model, self._settings, self._material, self._directions, self._state, jnp.asarray(poses)
        )
        self._now = following
        results = np.asarray(run.results)
        if (results == NON_FINITE).any():
            self._count("diverged")
            self._begin(following)
        for history in self._grips.values():
            history.forget_before(following)
        latents = np.asarray(self._state.latents)
        return LiveState(
            stamp_ns=following,
            latent=latents[0],
            latent_velocity=(latents[0] - latents[1]) / self._settings.time_step,
            grip_poses=poses[-1],
            vertices=np.asarray(vertices(self._model, jnp.asarray(poses[-1]), self._state.latents[0]), np.float64),
            converged=bool((results == CONVERGED).all()),
        )
