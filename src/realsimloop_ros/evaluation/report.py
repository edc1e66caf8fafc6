"""From the record of a run to report.json and report.html."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.evaluation.metrics import (
    FREE_OSCILLATION_SECONDS,
    Oscillation,
    Sag,
    TimingSummary,
    free_oscillation,
    settled_sag,
    summarize_errors,
    summarize_timing,
)
from realsimloop_ros.evaluation.page import render_page
from realsimloop_ros.evaluation.quantities import SHOWN
from realsimloop_ros.evaluation.record import MarkerTracks, RunRecord
from realsimloop_ros.evaluation.report_schema import (
    FORMAT,
    ExperimentReport,
    MarkerReport,
    ParameterReport,
    ProvenanceReport,
    ReconstructionReport,
    Report,
    TimingReport,
    ZoneReport,
)


def write_report(folder: Path, record: RunRecord) -> Report:
    """Write report.json and report.html into `folder`, each whole or not at all. Returns the report."""
    report = make_report(record)
    folder = Path(folder)
    with atomic_write(folder / "report.json") as path:
        path.write_text(report_json(report), encoding="utf-8")
    with atomic_write(folder / "report.html") as path:
        path.write_text(render_page(record, report), encoding="utf-8")
    return report


def report_json(report: Report) -> str:
    """The text of report.json."""
    return json.dumps(report.model_dump(), indent=2, allow_nan=False) + "\n"


def load_report(path: Path) -> Report:
    """Read and check a report.json. Raises ValueError naming the file and the field."""
    try:
        return Report.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: is no {FORMAT} ({error}); make the run anew") from error


def make_report(record: RunRecord) -> Report:
    """All figures of a run."""
    experiments = {tracks.experiment: _experiment(tracks, record.body_size) for tracks in record.markers}
    if len(experiments) == 1:
        markers = dict(next(iter(experiments.values())).markers)
    else:
        markers = {
            f"{name}/{marker}": entry
            for name, experiment in experiments.items()
            for marker, entry in experiment.markers.items()
        }
    provenance = record.provenance
    return Report(
        format=FORMAT,
        title=record.title,
        theta_source=record.theta_source,
        theta=_theta(record),
        reconstruction=_overall_reconstruction(record),
        markers=markers,
        experiments=experiments,
        timing={stage: _timing(summarize_timing(samples)) for stage, samples in record.timing.items()}
        | {stage: _timing(summary) for stage, summary in record.timing_summaries.items()},
        real_time_factor=_finite(record.real_time_factor),
        drops=dict(record.drops),
        updates=dict(Counter(record.theta.status)),
        notes=list(record.notes),
        provenance=ProvenanceReport(
            command=provenance.command,
            started=provenance.started,
            versions=dict(provenance.versions),
            seed=provenance.seed,
            body_hashes=dict(provenance.body_hashes),
        ),
    )


def _finite(value: float | None, factor: float = 1.0) -> float | None:
    return float(value) * factor if value is not None and math.isfinite(value) else None


def _theta(record: RunRecord) -> dict[str, ZoneReport]:
    theta = record.theta
    zones: dict[str, ZoneReport] = {}
    for k, zone in enumerate(theta.zone_names):
        reference = next((entry for entry in record.references if entry.zone == zone), None)
        parameters: dict[str, Any] = {}
        for quantity in SHOWN:
            values, deviations = getattr(theta, quantity.name), getattr(theta, f"{quantity.name}_std")
            if values is not None and deviations is not None:
                # references are of E and nu
                known = None if reference is None else getattr(reference, quantity.name, None)
                parameters[quantity.name] = _parameter(values[:, k], deviations[:, k], known)
        zones[zone] = ZoneReport(**parameters, reference_how=None if reference is None else reference.how)
    return zones


def _parameter(
    values: NDArray[np.float64], deviations: NDArray[np.float64], reference: float | None
) -> ParameterReport:
    estimate = _finite(values[-1]) if len(values) else None
    error = None
    if estimate is not None and reference:
        error = (estimate - reference) / reference
    return ParameterReport(
        estimate=estimate,
        std=_finite(deviations[-1]) if len(deviations) else None,
        reference=_finite(reference),
        relative_error=_finite(error),
    )


def _overall_reconstruction(record: RunRecord) -> ReconstructionReport:
    trace = record.reconstruction
    if trace is not None:
        return _reconstruction(trace.errors, record.body_size, trace.points)
    # every marker of every frame of every experiment counts once
    pooled = [tracks.errors.ravel() for tracks in record.markers]
    frames = sum(_compared_frames(tracks.errors) for tracks in record.markers)
    errors = np.concatenate(pooled) if pooled else np.zeros(0)
    overall = _reconstruction(errors[:, None], record.body_size, "markers" if pooled else None)
    return overall.model_copy(update={"frames": frames})


def _compared_frames(errors: NDArray[np.floating]) -> int:
    return int(np.isfinite(errors).any(axis=1).sum()) if errors.size else 0


def _reconstruction(errors: NDArray[np.floating], size: float, points: str | None) -> ReconstructionReport:
    summary = summarize_errors(np.asarray(errors, dtype=np.float64), size)
    return ReconstructionReport(
        mean_mm=None if summary is None else summary.mean * 1e3,
        p95_mm=None if summary is None else summary.p95 * 1e3,
        max_mm=None if summary is None else summary.maximum * 1e3,
        percent_of_size=None if summary is None else summary.percent_of_size,
        points=points,
        frames=_compared_frames(errors),
    )


def _experiment(tracks: MarkerTracks, size: float) -> ExperimentReport:
    return ExperimentReport(
        markers={name: _marker(tracks, k) for k, name in enumerate(tracks.names)},
        reconstruction=_reconstruction(tracks.errors, size, "markers"),
    )


def _marker(tracks: MarkerTracks, index: int) -> MarkerReport:
    # the same functions for both, over the same frames
    measured_sag, measured_swing = _motion(tracks, tracks.measured[:, index])
    predicted_sag, predicted_swing = _motion(tracks, tracks.predicted[:, index])
    errors = tracks.errors[:, index]
    errors = errors[np.isfinite(errors)]
    return MarkerReport(
        sag_measured_mm=None if measured_sag is None else measured_sag.sag * 1e3,
        sag_predicted_mm=None if predicted_sag is None else predicted_sag.sag * 1e3,
        displacement_measured_mm=None if measured_sag is None else measured_sag.displacement * 1e3,
        displacement_predicted_mm=None if predicted_sag is None else predicted_sag.displacement * 1e3,
        frequency_measured_hz=None if measured_swing is None else measured_swing.frequency,
        frequency_predicted_hz=None if predicted_swing is None else predicted_swing.frequency,
        decay_measured_per_s=None if measured_swing is None else measured_swing.decay_rate,
        decay_predicted_per_s=None if predicted_swing is None else predicted_swing.decay_rate,
        error_mean_mm=float(errors.mean()) * 1e3 if errors.size else None,
    )


def _motion(tracks: MarkerTracks, track: NDArray[np.float64]) -> tuple[Sag | None, Oscillation | None]:
    seconds = (tracks.stamps_ns - tracks.stamps_ns[0]) * 1e-9 if len(tracks.stamps_ns) else np.zeros(0)
    sag = settled_sag(seconds, track, held=tracks.held, up=tracks.up) if tracks.held.any() else None
    if tracks.release_ns is None or tracks.turning_ns is None:
        return sag, None
    start = (tracks.turning_ns - int(tracks.stamps_ns[0])) * 1e-9
    swung = (tracks.turning_ns - tracks.release_ns) * 1e-9
    oscillation = free_oscillation(
        seconds, track @ tracks.up, start=start, duration=FREE_OSCILLATION_SECONDS - swung
    )
    return sag, oscillation


def _timing(summary: TimingSummary | None) -> TimingReport:
    if summary is None:
        return TimingReport(p50_ms=None, p99_ms=None, count=0)
    return TimingReport(p50_ms=summary.p50 * 1e3, p99_ms=summary.p99 * 1e3, count=summary.count)
