"""Twins that observe themselves: markers on a small bar whose true material is known, seen by its own model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.dynamics.rollout import TwinState, no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.theta import Parameter, ParameterSpace
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.estimation.updates import EstimatorSettings, MaterialUpdate
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.observation.likelihoods import FrameObservation, MarkerLikelihood
from realsimloop_ros.reduction.model import ReducedBody, ReducedModel, every_sample, kinematics, positions
from realsimloop_ros.reduction.snapshots import SnapshotSettings, simulate_snapshots
from realsimloop_ros.reduction.subspaces import local_displacements, principal_basis
from reduced_bodies import REST_POSES, clamped_beam, gripped_bar

TICK_NS = 20_000_000
TICKS = 2  # per segment; with one tick before the last, both rollouts of a segment are one compiled function
SEGMENT_NS = TICKS * TICK_NS
BEGIN_NS = 1_000_000_000
STEP = StepSettings(BDF2, TICK_NS * 1e-9, viscous=True)
WEIGHTLESS = StepSettings(BDF2, TICK_NS * 1e-9, gravity=jnp.zeros(3), viscous=True)
SETTINGS = EstimatorSettings(window=6, ticks_per_segment=TICKS, forgetting=0.95)
DEVIATION = 2e-4  # m, of a marker's coordinate

TRUE_E, TRUE_NU, VISCOSITY = 1.2e5, 0.45, 150.0
MARKERS = {
    f"{name}{k}": [x, *side]
    for name, side in (("top", (0.0, 0.015)), ("side", (0.015, 0.0)))
    for k, x in enumerate((-0.06, -0.03, 0.0, 0.03, 0.06))
}
TIP_MARKERS = {name: [x + 0.035, y, z] for name, (x, y, z) in MARKERS.items()}
TWO_ZONES = [
    {"name": "left", "density": 1070.0},
    {"name": "right", "density": 1070.0, "region": {"minimum": [0.0, None, None]}},
]


@dataclass(frozen=True)
class Twin:
    """A body and a small subspace learnt from it."""

    body: Body
    model: ReducedModel


@cache
def _learnt(clamped: bool) -> tuple[Body, NDArray[np.float64]]:
    body = clamped_beam(markers=TIP_MARKERS) if clamped else gripped_bar(markers=MARKERS)
    settings = SnapshotSettings(
        steps=20, time_step=1 / 30, shift=0.02, twist=0.8, youngs_modulus=(0.08e6, 0.2e6), every=1
    )
    snapshots = [simulate_snapshots(body, settings, k) for k in range(1 if clamped else 3)]
    basis, _ = principal_basis(body, local_displacements(body, snapshots), 8)
    return body, basis


@cache
def gripped_twin() -> Twin:
    """The bar between two grips, of one zone."""
    body, basis = _learnt(clamped=False)
    return Twin(body, ReducedBody(body, basis, *every_sample(body), {}).model())


@cache
def two_zone_twin() -> Twin:
    """The same bar, its right half another zone: the subspace does not depend on zones."""
    body = gripped_bar(markers=MARKERS, zones=TWO_ZONES)
    return Twin(body, ReducedBody(body, _learnt(clamped=False)[1], *every_sample(body), {}).model())


@cache
def clamped_twin() -> Twin:
    """The bar clamped at its left end."""
    body, basis = _learnt(clamped=True)
    return Twin(body, ReducedBody(body, basis, *every_sample(body), {}).model())


def material_of_zones(youngs_modulus: Sequence[float], poisson_ratio: float = TRUE_NU) -> Material:
    zones = len(youngs_modulus)
    return Material(
        np.array(youngs_modulus), np.full(zones, poisson_ratio), np.full(zones, VISCOSITY), np.full(zones, 1070.0)
    )


# -- motions: grip poses (g, 7) at a time in s ------------------------------------------------------------

Motion = Callable[[float], NDArray[np.float64]]


def lively(time: float) -> NDArray[np.float64]:
    """Both grips shake, shift, and twist against each other; at rest at time 0."""
    poses = REST_POSES.copy()
    swing = np.sin(2 * np.pi * 2.5 * time) * min(1.0, 5.0 * time)
    poses[0, 2] += 0.012 * swing
    poses[1, 0] += 0.010 * (1 - np.cos(2 * np.pi * 1.3 * time))
    poses[1, 1] += 0.008 * swing
    angle = 0.5 * swing
    poses[1, 3:] = [np.sin(angle / 2), 0.0, 0.0, np.cos(angle / 2)]
    return poses


def other(time: float) -> NDArray[np.float64]:
    """Another lively motion."""
    poses = lively(time)
    poses[0, 1] += 0.01 * np.sin(2 * np.pi * 1.7 * time)
    return poses


def still(time: float) -> NDArray[np.float64]:
    """Nothing moves."""
    return REST_POSES.copy()


def stretching(time: float) -> NDArray[np.float64]:
    """The right grip is pulled away, so slowly that inertia does nothing."""
    poses = REST_POSES.copy()
    poses[1, 0] += 0.02 * np.sin(1e-3 * time) / 1e-3 / 0.8
    return poses


def no_grips(time: float) -> NDArray[np.float64]:
    return np.zeros((0, 7))


# -- truth -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What an estimator is given: poses (name, stamp, pose) and frames, both in the order of time."""

    poses: tuple[tuple[str, int, NDArray[np.float64]], ...]
    frames: tuple[FrameObservation, ...]


def scene(
    twin: Twin,
    material: Material | Callable[[int], Material],
    *,
    motion: Motion = lively,
    segments: int = 20,
    step: StepSettings = STEP,
    noise: float = 0.0,
    start: TwinState | None = None,
    seed: int = 0,
) -> Scene:
    """One frame in the middle of each segment, at a tick, where the twin's interpolation between ticks is exact.

    material: or that of each segment; start: by default at rest under gravity.
    """
    random = np.random.default_rng(seed)
    of_segment = material if callable(material) else (lambda segment: material)
    zones = len(twin.body.zones)
    none = no_directions(zones)

    def poses_at(tick: int) -> NDArray[np.float64]:
        return motion(tick * TICK_NS * 1e-9)

    state = start
    if state is None:
        state, result = rest_state(twin.model, step, of_segment(0), none, jnp.asarray(poses_at(0)))
        assert int(result) == CONVERGED
    markers = MarkerLikelihood(twin.body, DEVIATION)
    frames = []
    for segment in range(segments + 1):
        for tick in range(segment * TICKS + 1, (segment + 1) * TICKS + 1):
            poses = jnp.asarray(poses_at(tick))
            state, run = rollout(twin.model, step, of_segment(segment), none, state, poses[None])
            assert (np.asarray(run.results) == CONVERGED).all()
            if tick == segment * TICKS + 1:
                x = np.asarray(positions(twin.model, kinematics(twin.model, poses), run.latents[0]))
                seen = markers.predicted(x)
                seen = seen + noise * random.standard_normal(seen.shape)
                frames.append(FrameObservation(BEGIN_NS + tick * TICK_NS, seen))
    poses = tuple(
        (grip.name, BEGIN_NS + tick * TICK_NS, poses_at(tick)[k])
        for tick in range((segments + 1) * TICKS + 1)
        for k, grip in enumerate(twin.body.grips)
    )
    return Scene(poses, tuple(frames))


def scene_of_frames(frames: Sequence[FrameObservation]) -> Scene:
    """Frames of a body that nobody grips."""
    return Scene((), tuple(frames))


def with_markers(frame: FrameObservation, positions: NDArray[np.float64]) -> FrameObservation:
    return replace(frame, marker_positions=positions)


# -- estimators --------------------------------------------------------------------------------------------------


def parameter_space(
    twin: Twin, youngs_modulus: float | Sequence[float], poisson_ratio: float | None = 0.43, **bounds: float
) -> ParameterSpace:
    """E of every zone, and nu unless it is None, from a prior."""
    zones = twin.body.zone_names
    prior = material_of_zones(
        np.broadcast_to(youngs_modulus, len(zones)).tolist(), TRUE_NU if poisson_ratio is None else poisson_ratio
    )
    lowest, highest = bounds.get("lower", 1e3), bounds.get("upper", 1e7)
    parameters = [Parameter(zone, "youngs_modulus", float(np.log(2.0)), lowest, highest) for zone in zones]
    if poisson_ratio is not None:
        parameters += [Parameter(zone, "poisson_ratio", 0.03, 0.3, 0.495) for zone in zones]
    return ParameterSpace(zones, tuple(parameters), prior)


def track(twin: Twin, step: StepSettings = STEP, **options: object) -> Track:
    return Track(twin.body, twin.model, step, [MarkerLikelihood(twin.body, DEVIATION)], **options)  # type: ignore[arg-type]


def estimator(
    twin: Twin,
    youngs_modulus: float | Sequence[float] = 2 * TRUE_E,
    *,
    settings: EstimatorSettings = SETTINGS,
    step: StepSettings = STEP,
    space: ParameterSpace | None = None,
) -> TwinEstimator:
    return TwinEstimator([track(twin, step)], space or parameter_space(twin, youngs_modulus), settings)


def fed(running: TwinEstimator, given: Scene, number: int = 0) -> list[MaterialUpdate]:
    """Everything in the order of time."""
    return fed_in_order(running, sorted([*given.poses, *given.frames], key=_stamp), number)


def fed_in_order(running: TwinEstimator, items: Sequence, number: int = 0) -> list[MaterialUpdate]:
    """Items one by one as they are, poses and frames."""
    updates = []
    for item in items:
        if isinstance(item, FrameObservation):
            updates += running.add_observation(item, number)
        else:
            running.add_grip_pose(*item, number)
            updates += running.advance(number)
    return updates


def _stamp(item: FrameObservation | tuple) -> int:
    return item.stamp_ns if isinstance(item, FrameObservation) else item[1]
