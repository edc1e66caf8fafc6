"""Experiments estimated without an executor: the same computation as a replay through the estimator's node."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.updates import MaterialUpdate, UpdateStatus
from realsimloop_ros.evaluation.experiment_prediction import marker_tracks, reconstruction
from realsimloop_ros.evaluation.experiment_twin import (
    experiment_estimator,
    origin_ns,
    shared_parameters,
    with_held_theta,
)
from realsimloop_ros.evaluation.experiments import ExperimentError
from realsimloop_ros.evaluation.held_theta import held_material
from realsimloop_ros.evaluation.model_library import ModelLibrary, default_library
from realsimloop_ros.evaluation.preparation import PreparedExperiment, prepare_experiment
from realsimloop_ros.evaluation.provenance import provenance
from realsimloop_ros.evaluation.record import RunRecord
from realsimloop_ros.evaluation.theta_trace import held_trace, sample_of_update, trace_of
from realsimloop_ros.observation.likelihoods import FrameObservation


class Reading(NamedTuple):
    """One thing measured: a frame of markers (k, 3), or the pose (7,) of `grip`, both in the body's frame.

    since_start_ns: since the start of the twin of experiment number `track`.
    """

    since_start_ns: int
    track: int
    grip: str
    stamp_ns: int
    value: NDArray[np.float64]


def readings(experiments: Sequence[PreparedExperiment]) -> list[Reading]:
    """What all experiments measured, by time since each twin's start: together they advance side by side.

    Frames before that start, and those in which no marker was seen, are left out.
    """
    found = []
    for track, prepared in enumerate(experiments):
        begin = origin_ns(prepared)
        for name, grip in zip(prepared.body.grip_names, prepared.grips, strict=True):
            for stamp, pose in zip(grip.stamps_ns.tolist(), grip.poses, strict=True):
                found.append(Reading(stamp - begin, track, name, stamp, pose))
        for stamp, markers in zip(prepared.stamps_ns.tolist(), prepared.positions, strict=True):
            if stamp >= begin and np.isfinite(markers).any():
                found.append(Reading(stamp - begin, track, "", stamp, markers))
    return sorted(found, key=lambda entry: entry[:3])


def take(estimator: TwinEstimator, reading: Reading) -> list[MaterialUpdate]:
    """Hand a reading to the estimator; the updates that follow from it."""
    if reading.grip:
        estimator.add_grip_pose(reading.grip, reading.stamp_ns, reading.value, reading.track)
        return estimator.advance(reading.track)
    return estimator.add_observation(FrameObservation(reading.stamp_ns, reading.value), reading.track)


def evaluate_experiments(
    paths: Sequence[Path], *, theta: str = "estimate", library: ModelLibrary | None = None, command: str = ""
) -> RunRecord:
    """Estimate one theta from the experiments together, or hold one, and predict their markers with it. How a
    released body started is estimated either way.

    theta: `estimate`; `prior`, the experiments'; or a report.json or record folder whose theta is held. Raises
    ExperimentError, CaptureError, BagError and HeldThetaError for what cannot be used; what is wrong in part is a
    warning and a note of the record.
    """
    if not paths:
        raise ExperimentError("experiments: none given; name one or more experiment files")
    experiments, notes = _prepared(paths)
    space = shared_parameters(experiments)
    zones = space.zone_names
    held = None if theta == "estimate" else held_material(theta, zones, space.prior)
    if held is not None:
        space = with_held_theta(space, held)
    estimator = experiment_estimator(experiments, space, library or default_library())
    began = time.perf_counter()
    updates = _estimated(estimator, experiments)
    spent = time.perf_counter() - began
    if held is None:
        trace = trace_of(map(sample_of_update, updates), zones, space.prior)
    else:
        trace = held_trace(origin_ns(experiments[0]), zones, held)
    tracks = [
        marker_tracks(prepared, estimator, number, estimator.material)
        for number, prepared in enumerate(experiments)
    ]
    simulated = sum(float(prepared.stamps_ns[-1] - origin_ns(prepared)) * 1e-9 for prepared in experiments)
    hashes = {prepared.name: prepared.body.content_hash for prepared in experiments}
    return RunRecord(
        title=", ".join(prepared.name for prepared in experiments),
        theta_source=theta if theta in ("estimate", "prior") else Path(theta).name,
        body_size=experiments[0].body.size,
        provenance=provenance(command, body_hashes=hashes, settings=paths),
        theta=replace(trace, axis="time" if len(experiments) == 1 else "update"),
        markers=tuple(tracks),
        reconstruction=reconstruction(tracks),
        timing={"estimate (one update)": np.array([update.solve_time_s for update in updates])},
        real_time_factor=simulated / spent,
        drops=_drops(estimator, updates, experiments),
        notes=notes,
    )


def _prepared(paths: Sequence[Path]) -> tuple[list[PreparedExperiment], tuple[str, ...]]:
    """The experiments, and what a reader of the report should know of them: warnings first."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        experiments = [prepare_experiment(path) for path in paths]
    for entry in caught:
        warnings.warn(entry.message, stacklevel=3)  # type: ignore[arg-type]
    notes = [str(entry.message) for entry in caught]
    notes += [f"{prepared.name}: {note}" for prepared in experiments for note in prepared.notes]
    return experiments, tuple(notes)


def _estimated(estimator: TwinEstimator, experiments: Sequence[PreparedExperiment]) -> list[MaterialUpdate]:
    updates = []
    for reading in _shown(readings(experiments)):
        updates += take(estimator, reading)
    if not updates:
        names = ", ".join(prepared.name for prepared in experiments)
        raise ExperimentError(
            f"{names}: no frame could be used; widen the time range, and see that every grip has poses in it"
        )
    return updates


def _shown(entries: list[Reading]) -> Iterator[Reading]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(entries, description="estimating theta")


def _drops(
    estimator: TwinEstimator, updates: Sequence[MaterialUpdate], experiments: Sequence[PreparedExperiment]
) -> dict[str, int]:
    drops = dict(estimator.rejected)
    unseen = sum(int((~np.isfinite(p.positions).all(axis=2)).sum()) for p in experiments)
    if unseen:
        drops["marker_not_seen"] = unseen
    for update in updates:
        if update.status != UpdateStatus.UPDATED:
            cause = f"update_{update.status.name.lower()}"
            drops[cause] = drops.get(cause, 0) + 1
    return drops
