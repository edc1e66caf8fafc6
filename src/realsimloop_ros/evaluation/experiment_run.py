"""Experiments estimated without an executor: the same computation as a replay through the estimator node."""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from realsimloop_ros.dynamics.rollout import no_directions, rollout, without_tangents
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.theta import ParameterSpace
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.estimation.updates import MaterialUpdate, UpdateStatus
from realsimloop_ros.evaluation.experiment_twin import experiment_estimator, origin_ns
from realsimloop_ros.evaluation.experiments import ExperimentError
from realsimloop_ros.evaluation.model_library import ModelLibrary, default_library
from realsimloop_ros.evaluation.preparation import PreparedExperiment, prepare_experiment
from realsimloop_ros.evaluation.record import (
    MarkerTracks,
    Provenance,
    ReconstructionTrace,
    RunRecord,
    ThetaTrace,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.observation.likelihoods import FrameObservation, MarkerLikelihood
from realsimloop_ros.reduction.model import kinematics, positions


@dataclass
class EstimatorTrace:
    """Updates as they come, collected into a ThetaTrace."""

    space: ParameterSpace
    updates: list[MaterialUpdate] = field(default_factory=list)

    def theta(self, axis: str = "time") -> ThetaTrace:
        """The trace; deviations are NaN where a quantity is held."""
        zones, count = self.space.zone_names, len(self.updates)
        deviations = {
            quantity: np.full((count, len(zones)), np.nan) for quantity in ("youngs_modulus", "poisson_ratio")
        }
        values = {
            quantity: np.array([getattr(update.material, quantity) for update in self.updates]).reshape(count, -1)
            for quantity in deviations
        }
        for k, parameter in enumerate(self.space.parameters):
            if parameter.quantity not in deviations:
                continue
            zone = zones.index(parameter.zone)
            spread = np.sqrt(np.array([update.covariance[k, k] for update in self.updates]))
            # the covariance is over log E
            scale = values["youngs_modulus"][:, zone] if parameter.quantity == "youngs_modulus" else 1.0
            deviations[parameter.quantity][:, zone] = spread * scale
        return ThetaTrace(
            zone_names=zones,
            stamps_ns=np.array([update.stamp_ns for update in self.updates], np.int64),
            youngs_modulus=values["youngs_modulus"],
            youngs_modulus_std=deviations["youngs_modulus"],
            poisson_ratio=values["poisson_ratio"],
            poisson_ratio_std=deviations["poisson_ratio"],
            status=tuple(update.status.name for update in self.updates),
            reason=tuple(update.reason for update in self.updates),
            axis=axis,  # type: ignore[arg-type]
        )


def ordered_frames(experiments: Sequence[PreparedExperiment]) -> Iterator[tuple[int, FrameObservation]]:
    """Frames of all experiments with their track's number, by time since each twin's start.

    A frame in which no marker was seen is left out. Experiments estimated together so advance side by side.
    """
    entries = []
    for track, prepared in enumerate(experiments):
        begin = origin_ns(prepared)
        for stamp, markers in zip(prepared.stamps_ns.tolist(), prepared.positions, strict=True):
            if stamp >= begin and np.isfinite(markers).any():
                entries.append((stamp - begin, track, stamp, markers))
    entries.sort(key=lambda entry: entry[:2])
    for _, track, stamp, markers in entries:
        yield track, FrameObservation(stamp, markers)


def evaluate_experiments(
    paths: Sequence[Path],
    *,
    theta: Material | None = None,
    theta_source: str = "estimate",
    library: ModelLibrary | None = None,
) -> RunRecord:
    """Estimate one theta from the experiments together, or hold the given one, and predict their markers with it.

    Raises ExperimentError and its kin for files that cannot be used.
    """
    if not paths:
        raise ExperimentError("experiments: none given; name one or more experiment files")
    experiments = [prepare_experiment(path) for path in paths]
    began = time.perf_counter()
    estimator = experiment_estimator(experiments, library or default_library())
    trace = EstimatorTrace(estimator.space)
    solve_times: list[float] = []
    if theta is None:
        frames = list(ordered_frames(experiments))
        for track, observation in _shown(frames, "estimating theta"):
            for update in estimator.add_observation(observation, track):
                trace.updates.append(update)
                solve_times.append(update.solve_time_s)
        if not trace.updates:
            raise ExperimentError(f"{experiments[0].name}: no frame could be used; is the time range too short?")
    material = estimator.material if theta is None else theta
    spent = time.perf_counter() - began
    tracks = [_marker_tracks(prepared, estimator, number, material) for number, prepared in enumerate(experiments)]
    simulated = sum(float(p.stamps_ns[-1] - origin_ns(p)) * 1e-9 for p in experiments)
    single = len(experiments) == 1
    return RunRecord(
        title=", ".join(prepared.name for prepared in experiments),
        theta_source=theta_source,
        body_size=experiments[0].body.size,
        provenance=_provenance(experiments),
        theta=_held(estimator.space, material) if theta else trace.theta("time" if single else "update"),
        markers=tuple(tracks),
        reconstruction=_reconstruction(tracks),
        timing={"estimator update": np.array(solve_times)} if solve_times else {},
        real_time_factor=simulated / spent if theta is None else None,
        drops=_drops(estimator, trace, experiments),
        notes=tuple(f"{p.name}: {note}" for p in experiments for note in p.notes),
    )


def _shown(frames: list[tuple[int, FrameObservation]], label: str) -> Iterator[tuple[int, FrameObservation]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(frames, description=label)


def _held(space: ParameterSpace, material: Material) -> ThetaTrace:
    update = {name: np.asarray(getattr(material, name))[None] for name in ("youngs_modulus", "poisson_ratio")}
    unknown = np.full((1, len(space.zone_names)), np.nan)
    return ThetaTrace(
        space.zone_names,
        np.zeros(1, np.int64),
        update["youngs_modulus"],
        unknown,
        update["poisson_ratio"],
        unknown,
        ("HELD",),
        ("theta was given",),
        "update",
    )


def predicted_markers(
    track: Track, estimator: TwinEstimator, number: int, material: Material, stamps_ns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Marker positions (t, k, 3), m, rolled out from the estimated start at one material; NaN before it."""
    assert track.begin_ns is not None and track.origin_ns is not None
    likelihood = next(entry for entry in track.likelihoods if isinstance(entry, MarkerLikelihood))
    begin, step = track.origin_ns, track.settings.time_step * 1e9
    ticks = int(np.ceil((stamps_ns[-1] - begin) / step)) + 1
    state = estimator.start_of(number, material)
    poses = jnp.asarray(track.start_poses)
    none = no_directions(len(material.youngs_modulus))
    _, run = rollout(
        track.model,
        track.settings,
        material,
        none,
        without_tangents(state),
        jnp.broadcast_to(poses, (ticks, *poses.shape)),
    )
    frame = kinematics(track.model, poses)
    latents = np.concatenate([np.asarray(state.latents[:1]), np.asarray(run.latents)])
    places = (stamps_ns - begin) / step
    result = np.full((len(stamps_ns), len(track.body.marker_names), 3), np.nan)
    for row in np.flatnonzero(places >= 0.0):
        tick = min(int(places[row]), len(latents) - 2)
        share = places[row] - tick
        latent = (1.0 - share) * latents[tick] + share * latents[tick + 1]
        result[row] = likelihood.predicted(np.asarray(positions(track.model, frame, jnp.asarray(latent))))
    return result


def _marker_tracks(
    prepared: PreparedExperiment, estimator: TwinEstimator, number: int, material: Material
) -> MarkerTracks:
    track = estimator.tracks[number]
    predicted = predicted_markers(track, estimator, number, material, prepared.stamps_ns)
    release = prepared.release
    if release is not None:
        # while it is held, the twin is in the rest shape its markers were bound in
        likelihood = next(entry for entry in track.likelihoods if isinstance(entry, MarkerLikelihood))
        predicted[prepared.held] = likelihood.predicted(prepared.body.rest_positions)
    return MarkerTracks(
        experiment=prepared.name,
        names=prepared.body.marker_names,
        stamps_ns=prepared.stamps_ns,
        measured=prepared.positions,
        predicted=predicted,
        up=prepared.up,
        held=prepared.held,
        release_ns=None if release is None else release.stamp_ns,
        turning_ns=None if release is None else int(prepared.stamps_ns[release.turning_frame]),
    )


def _reconstruction(tracks: Sequence[MarkerTracks]) -> ReconstructionTrace:
    """Marker errors of all experiments one after another, the held pose left out."""
    stamps, errors = [], []
    widest = max(len(track.names) for track in tracks)
    for track in tracks:
        chosen = ~track.held
        padded = np.full((int(chosen.sum()), widest), np.nan, np.float32)
        padded[:, : len(track.names)] = track.errors[chosen]
        stamps.append(track.stamps_ns[chosen])
        errors.append(padded)
    return ReconstructionTrace("markers", np.concatenate(stamps), np.concatenate(errors))


def _drops(
    estimator: TwinEstimator, trace: EstimatorTrace, experiments: Sequence[PreparedExperiment]
) -> dict[str, int]:
    drops = dict(estimator.rejected)
    unseen = sum(int((~np.isfinite(p.positions).all(axis=2)).sum()) for p in experiments)
    if unseen:
        drops["marker_not_seen"] = unseen
    for update in trace.updates:
        if update.status != UpdateStatus.UPDATED:
            cause = f"update_{update.status.name.lower()}"
            drops[cause] = drops.get(cause, 0) + 1
    return drops


def _provenance(experiments: Sequence[PreparedExperiment]) -> Provenance:
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy")}
    return Provenance(
        command=" ".join(["realsimloop", *sys.argv[1:]]),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"python": sys.version.split()[0], **versions},
        body_hashes={prepared.name: prepared.body.content_hash for prepared in experiments},
    )
