"""The record of a cell's run, from its bag and what a virtual cell left about the truth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import load_body
from realsimloop_ros.estimation.twin import Twin
from realsimloop_ros.evaluation.cell_pictures import (
    Moment,
    camera_pictures,
    chosen_stamps,
    recorded_images,
    stress_pictures,
)
from realsimloop_ros.evaluation.cell_reconstruction import reconstruction
from realsimloop_ros.evaluation.cell_recording import (
    CellRecording,
    Notices,
    StateTrack,
    present_topics,
    read_cell_recording,
)
from realsimloop_ros.evaluation.metrics import TimingSummary
from realsimloop_ros.evaluation.record import (
    Picture,
    Provenance,
    ReconstructionTrace,
    RunRecord,
    ThetaTrace,
    ZoneReference,
)
from realsimloop_ros.evaluation.theta_trace import trace_of
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.observation.cell_file import CellFile

_PICTURES = 4


class CellRunError(ValueError):
    """A run of which there is nothing to report; the text names it and the reason."""


@dataclass(frozen=True, eq=False)
class CellTruth:
    """What a virtual cell tells about its truth when the run is over. body: None where the run has no truth."""

    body: Body | None = None
    references: tuple[ZoneReference, ...] = ()
    real_time_factor: float | None = None
    seed: int | None = None
    begin_ns: int | None = None


def load_cell_truth(folder: Path | None, notices: Notices) -> CellTruth:
    """Read body.npz, reference.json and run.json of a virtual cell's truth_directory, as far as they are there."""
    if folder is None or not folder.is_dir():
        return CellTruth()
    body = load_body(folder / "body.npz") if (folder / "body.npz").is_file() else None
    references, run = _read_json(folder / "reference.json"), _read_json(folder / "run.json")
    if body is not None and not references:
        notices.warn(f"{folder}: no reference.json; the estimate is compared with nothing")
    return CellTruth(
        body,
        tuple(_reference(zone, values) for zone, values in references.get("zones", {}).items()),
        run.get("real_time_factor"),
        run.get("seed"),
        run.get("start_ns"),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CellRunError(f"{path}: is not JSON ({error}); run the cell again") from error
    return dict(content)


def _reference(zone: str, values: Mapping[str, Any]) -> ZoneReference:
    how = (
        f"{values['method']} From {values['samples']} strains with stretches up to "
        f"{values['largest_stretch']:.2f}; {100.0 * values['relative_residual']:.1f} % of the stress is left."
    )
    return ZoneReference(zone, how, values["youngs_modulus"], values["poisson_ratio"])


@dataclass(frozen=True, eq=False)
class CellResult:
    """What a run or a replay found: theta, the twin's shapes, and the frames of images that were used."""

    title: str
    theta_source: str
    theta: ThetaTrace
    materials: Sequence[tuple[int, Material]]
    states: StateTrack | None
    frame_stamps_ns: NDArray[np.int64]
    timing: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    timing_summaries: dict[str, TimingSummary] = field(default_factory=dict)
    real_time_factor: float | None = None
    drops: dict[str, int] = field(default_factory=dict)


def record_live_run(
    bag: Path,
    cell: CellFile,
    twin: Twin,
    provenance: Provenance,
    *,
    truth_folder: Path | None = None,
    latencies: Mapping[str, NDArray[np.float64]] | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> RunRecord:
    """The record of a run as it happened.

    latencies: wall-clock durations by stage, s, of an observer of the run. Raises BagError for a bag that
    cannot be read, CellRunError where no estimate came.
    """
    notices = Notices()
    truth = load_cell_truth(truth_folder, notices)
    recording = read_cell_recording(
        bag, twin.body.content_hash, notices, None if truth.body is None else truth.body.content_hash
    )
    if not recording.theta:
        there = ", ".join(sorted(present_topics(bag))) or "none"
        raise CellRunError(
            f"{bag}: no theta of this twin was recorded; its topics are {there}. See the log of the estimator, or "
            "record a run of the twin"
        )
    notices.note(prior_note(twin))
    late = _frames_after_the_end(recording)
    if late:
        recording.drops["run_ended_before_estimate"] = late
        notices.warn(f"{bag}: the run ended before {late} frames were estimated: the estimator was behind")
    timing = {"estimate (one update)": np.array([sample.solve_time for sample in recording.theta])}
    timing |= dict(latencies or _delays(recording))
    result = CellResult(
        title=title or f"{cell.name}, run of the twin beside the cell",
        theta_source="estimate",
        theta=trace_of(recording.theta, twin.body.zone_names, twin.space.prior),
        materials=[(sample.stamp_ns, sample.material) for sample in recording.theta],
        states=recording.twin,
        frame_stamps_ns=recording.observation_stamps_ns,
        timing=timing,
        timing_summaries=_node_timing(recording),
        real_time_factor=truth.real_time_factor,
        drops=recording.drops,
    )
    return make_record(bag, cell, twin, result, truth, recording.truth, provenance, notices, notes)


def prior_note(twin: Twin) -> str:
    """From which theta the estimate starts."""
    prior = twin.space.prior
    zones = zip(
        twin.body.zone_names, np.asarray(prior.youngs_modulus), np.asarray(prior.poisson_ratio), strict=True
    )
    values = "; ".join(f"{zone}: {modulus * 1e-3:.0f} kPa, {ratio:.3f}" for zone, modulus, ratio in zones)
    return f"The estimate starts from Young's modulus and Poisson's ratio of {values}."


def make_record(
    bag: Path,
    cell: CellFile,
    twin: Twin,
    result: CellResult,
    truth: CellTruth,
    true_states: StateTrack | None,
    provenance: Provenance,
    notices: Notices,
    notes: Sequence[str] = (),
    pictures: bool = True,
) -> RunRecord:
    """Everything of a result that the report shows."""
    distances: ReconstructionTrace | None = None
    if result.states is None:
        notices.warn(f"{bag}: no state of the twin, and so no distance to the truth and no pictures")
    elif truth.body is not None and true_states is not None:
        distances = reconstruction(twin.body, result.states, truth.body, true_states)
        if not distances.errors.size:
            notices.warn(f"{bag}: twin and truth were never known at the same time")
            distances = None
    drawn: tuple[Picture, ...] = ()
    if pictures and result.states is not None:
        drawn = _pictures(bag, cell, twin, result.states, result, truth, notices)
    zones = set(twin.body.zone_names)
    return RunRecord(
        title=result.title,
        theta_source=result.theta_source,
        body_size=twin.body.size,
        provenance=provenance,
        theta=result.theta,
        references=tuple(entry for entry in truth.references if entry.zone in zones),
        reconstruction=distances,
        timing={stage: np.asarray(samples) for stage, samples in result.timing.items() if len(samples)},
        timing_summaries=result.timing_summaries,
        real_time_factor=result.real_time_factor,
        drops=result.drops,
        pictures=drawn,
        notes=(*notes, *notices.texts),
    )


def _pictures(
    bag: Path,
    cell: CellFile,
    twin: Twin,
    states: StateTrack,
    result: CellResult,
    truth: CellTruth,
    notices: Notices,
) -> tuple[Picture, ...]:
    cameras = cell.camera_list()
    stamps = chosen_stamps(result.frame_stamps_ns, twin, states, _PICTURES)
    if not stamps or not cameras:
        return ()
    images = recorded_images(bag, cell, stamps, notices)
    shapes = states.near(np.array(stamps, np.int64))
    starts = np.array([stamp for stamp, _ in result.materials])
    moments = []
    for stamp, x in zip(stamps, shapes, strict=True):
        at = max(int(np.searchsorted(starts, stamp, side="right")) - 1, 0)
        moments.append(Moment(stamp, x, result.materials[at][1], images[stamp]))
    begin = truth.begin_ns if truth.begin_ns is not None else int(states.stamps_ns[0])
    return (
        *camera_pictures(twin, cameras, moments, begin),
        *stress_pictures(twin, cameras, moments, begin),
    )


def _frames_after_the_end(recording: CellRecording) -> int:
    """Frames without theta when the run was over; the very last one only closes the segment before it."""
    last = recording.theta[-1].stamp_ns
    return max(0, int((recording.observation_stamps_ns > last).sum()) - 1)


def _delays(recording: CellRecording) -> dict[str, NDArray[np.float64]]:
    names = {
        "observation": "stamp of the images to observation (recorder's clock)",
        "theta": "stamp of the images to theta (recorder's clock)",
    }
    return {names[topic]: np.array(delays) for topic, delays in recording.delays.items()}


def _node_timing(recording: CellRecording) -> dict[str, TimingSummary]:
    """Durations that nodes say as NAME_p50_ms and NAME_p99_ms: their last word, which is over the run."""
    found = {}
    for node, name in sorted(recording.figures):
        if not name.endswith("_p50_ms"):
            continue
        stage = name.removesuffix("_p50_ms")
        p50, p99 = recording.figures[node, name], recording.figures.get((node, f"{stage}_p99_ms"))
        # the messages of theta tell each of these
        if p99 and (node, stage) != ("estimator", "solve"):
            found[f"{node}: {stage}"] = TimingSummary(p50[-1] * 1e-3, p99[-1] * 1e-3, None)
    return found
