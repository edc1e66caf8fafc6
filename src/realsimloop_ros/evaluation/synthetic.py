"""Recordings that a twin makes of itself, for studies of estimators where the model is right.

The twin's own reduced model is moved by its grips with a material that is known, markers on its surface are seen
with the noise that the likelihood assumes, and an estimator starts from a prior that is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body, Zone
from realsimloop_ros.body.files import BodySpecification, with_markers
from realsimloop_ros.dynamics.rollout import no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.theta import Parameter, ParameterSpace
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.estimation.updates import EstimatorSettings, MaterialUpdate
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.material import Material, material_of
from realsimloop_ros.observation.likelihoods import FrameObservation, MarkerLikelihood
from realsimloop_ros.reduction.model import (
    ReducedBody,
    ReducedModel,
    every_sample,
    kinematics,
    positions,
)
from realsimloop_ros.reduction.snapshots import SnapshotSettings, simulate_snapshots
from realsimloop_ros.reduction.subspaces import local_displacements, principal_basis

POISSON_RATIO, VISCOSITY = 0.45, 100.0  # of every material here; Pa s
BEGIN_NS = 1_000_000_000

Motion = Callable[[Body, float], NDArray[np.float64]]


class SyntheticError(RuntimeError):
    """A recording that cannot be made, because the model did not follow its grips."""


@dataclass(frozen=True, eq=False)
class SyntheticTwin:
    """A body with markers, its model, and how it is stepped; `ticks` steps a frame."""

    body: Body
    model: ReducedModel
    step: StepSettings
    ticks: int = 6

    @property
    def frame_ns(self) -> int:
        """Time between two frames."""
        return round(self.ticks * self.step.time_step * 1e9)


def twin_of(reduced: ReducedBody, *, zones: int = 1, weight: bool = True) -> SyntheticTwin:
    """The twin of a bar along x with twelve markers on its surface, cut into zones of equal length."""
    body = reduced.body
    low, high = body.rest_positions.min(axis=0), body.rest_positions.max(axis=0)
    if zones > 1:
        centres = body.rest_positions[body.tets[:, :4]].mean(axis=1)[:, 0]
        share = (centres - low[0]) / (high[0] - low[0])
        density = body.zones[0].density
        body = replace(
            body,
            zones=tuple(Zone(f"zone_{k}", density) for k in range(zones)),
            zone_of_tet=np.minimum((zones * share).astype(np.int64), zones - 1),
        )
    middle = 0.5 * (low + high)
    along = np.linspace(low[0], high[0], 8)[1:-1]
    markers = {f"top_{k}": np.array([x, middle[1], high[2]]) for k, x in enumerate(along)}
    markers |= {f"side_{k}": np.array([x, high[1], middle[2]]) for k, x in enumerate(along)}
    # markers do not move the body: the model is that of the body without them
    model = replace(reduced, body=body).model()
    gravity = jnp.array([0.0, 0.0, -9.81]) if weight else jnp.zeros(3)
    return SyntheticTwin(
        with_markers(body, markers), model, StepSettings(BDF2, 1.0 / 60.0, gravity=gravity, viscous=True)
    )


def small_twin(*, latent_size: int = 8, zones: int = 1, weight: bool = True) -> SyntheticTwin:
    """A bar of 200 x 30 x 30 mm between two grips, with few elements and few directions learnt from three motions:
    a hundred seeds take minutes. What data made by itself say of an estimator does not rest on its size.
    """
    body, displacements = _learnt()
    basis, _ = principal_basis(body, displacements, latent_size)
    return twin_of(ReducedBody(body, basis, *every_sample(body), {}), zones=zones, weight=weight)


@cache
def _learnt() -> tuple[Body, NDArray[np.float64]]:
    grips = [
        {"name": name, "frame": f"{name}_tool", "rest_pose": [x, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], "region": region}
        for name, x, region in (
            ("left", -0.1, {"maximum": [-0.08, None, None]}),
            ("right", 0.1, {"minimum": [0.08, None, None]}),
        )
    ]
    mesh = {"kind": "box", "size": [0.2, 0.03, 0.03], "divisions": [10, 1, 1], "origin": [-0.1, -0.015, -0.015]}
    specification = {"name": "bar", "mesh": mesh, "zones": [{"name": "bar", "density": 1070.0}], "grips": grips}
    body = BodySpecification.model_validate(specification).build()
    settings = SnapshotSettings(
        steps=20, time_step=1 / 30, shift=0.02, twist=0.8, youngs_modulus=(0.15e6, 0.8e6), every=1
    )
    snapshots = [simulate_snapshots(body, settings, seed) for seed in range(3)]
    return body, local_displacements(body, snapshots)


def lively(body: Body, time: float) -> NDArray[np.float64]:
    """Both grips shift and twist against each other; at rest at time 0."""
    poses = np.array([grip.rest_pose for grip in body.grips])
    swing = np.sin(2.0 * np.pi * 1.7 * time) * min(1.0, 3.0 * time)
    poses[0, 2] += 0.012 * swing
    poses[1, 0] += 0.006 * (1.0 - np.cos(2.0 * np.pi * 0.9 * time))
    poses[1, 1] += 0.010 * swing
    angle = 0.4 * swing
    poses[1, 3:] = [np.sin(angle / 2.0), 0.0, 0.0, np.cos(angle / 2.0)]
    return poses


def slow(body: Body, time: float) -> NDArray[np.float64]:
    """One grip is drawn away at a millimetre a second, so that inertia does nothing."""
    poses = np.array([grip.rest_pose for grip in body.grips])
    poses[1, 0] += 1e-3 * time
    return poses


@dataclass(frozen=True, eq=False)
class Recording:
    """Grip poses (t, g, 7) at every tick, and marker positions (k, 3) without noise at their stamps."""

    stamps_ns: NDArray[np.int64]
    poses: NDArray[np.float64]
    frames: tuple[FrameObservation, ...]

    def noisy(self, deviation: float, seed: int) -> Recording:
        """With independent Gaussian noise, m."""
        random = np.random.default_rng(seed)
        frames = []
        for frame in self.frames:
            exact = frame.marker_positions
            assert exact is not None
            seen = exact + deviation * random.standard_normal(exact.shape)
            frames.append(replace(frame, marker_positions=seen))
        return replace(self, frames=tuple(frames))


def materials(twin: SyntheticTwin, youngs_modulus: Sequence[float]) -> Material:
    """Young's modulus by zone, Pa."""
    return material_of(twin.body, np.array(youngs_modulus), POISSON_RATIO, VISCOSITY)


def record(
    twin: SyntheticTwin, youngs_modulus: Callable[[float], Sequence[float]], motion: Motion, frames: int
) -> Recording:
    """youngs_modulus: Pa by zone at a time, s. Frames lie on ticks, where no interpolation errs."""
    likelihood = MarkerLikelihood(twin.body, 1.0)
    none = no_directions(len(twin.body.zones))
    step_ns = twin.step.time_step * 1e9
    ticks = [motion(twin.body, k * twin.step.time_step) for k in range(twin.ticks * (frames + 1) + 1)]
    state, result = rest_state(
        twin.model, twin.step, materials(twin, youngs_modulus(0.0)), none, jnp.asarray(ticks[0])
    )
    results, seen = [int(result)], []
    for frame in range(frames + 1):
        span = range(frame * twin.ticks + 1, (frame + 1) * twin.ticks + 1)
        material = materials(twin, youngs_modulus(span[0] * twin.step.time_step))
        poses = jnp.asarray(np.array([ticks[k] for k in span]))
        state, run = rollout(twin.model, twin.step, material, none, state, poses)
        results.extend(np.asarray(run.results).tolist())
        middle = twin.ticks // 2
        x = positions(twin.model, kinematics(twin.model, poses[middle - 1]), run.latents[middle - 1])
        stamp = BEGIN_NS + round((frame * twin.ticks + middle) * step_ns)
        seen.append(FrameObservation(stamp, likelihood.predicted(np.asarray(x, np.float64))))
    if set(results) != {CONVERGED}:
        raise SyntheticError(f"{sum(r != CONVERGED for r in results)} steps did not converge; move the grips less")
    stamps = np.array([BEGIN_NS + round(k * step_ns) for k in range(len(ticks))], np.int64)
    return Recording(stamps, np.array(ticks), tuple(seen))


def space_of(
    twin: SyntheticTwin, youngs_modulus: Sequence[float], poisson_ratio: float | None, factor: float = 2.0
) -> ParameterSpace:
    """E of every zone, Pa, and, unless it is None, nu, from a prior; factor: the prior's deviation of E."""
    prior = materials(twin, youngs_modulus)
    zones = twin.body.zone_names
    parameters = [Parameter(zone, "youngs_modulus", float(np.log(factor)), 1e3, 1e8) for zone in zones]
    if poisson_ratio is not None:
        prior = prior._replace(poisson_ratio=np.full(len(zones), poisson_ratio))
        parameters += [Parameter(zone, "poisson_ratio", 0.03, 0.05, 0.495) for zone in zones]
    return ParameterSpace(zones, tuple(parameters), prior)


def estimator_of(
    twin: SyntheticTwin, space: ParameterSpace, settings: EstimatorSettings, deviation: float
) -> TwinEstimator:
    """An estimator that takes the markers' noise for `deviation`, m."""
    track = Track(twin.body, twin.model, twin.step, [MarkerLikelihood(twin.body, deviation)], origin_ns=BEGIN_NS)
    return TwinEstimator([track], space, settings)


def estimate(estimator: TwinEstimator, recording: Recording) -> Iterator[MaterialUpdate]:
    """Everything in the order of time, as the updates are asked for."""
    waiting = list(recording.frames)
    grips = estimator.tracks[0].body.grip_names
    for stamp, poses in zip(recording.stamps_ns.tolist(), recording.poses, strict=True):
        for grip, pose in zip(grips, poses, strict=True):
            estimator.add_grip_pose(grip, stamp, pose)
        while waiting and waiting[0].stamp_ns <= stamp:
            yield from estimator.add_observation(waiting.pop(0))
        yield from estimator.advance()
