"""`realsimloop evaluate BAG --cell CELL`: what the twin of a cell makes of a recording, without an executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.estimation.twin import Twin, load_twin
from realsimloop_ros.estimation.updates import MaterialUpdate
from realsimloop_ros.evaluation.baselines import ONLINE, BaselineError, Hold, baseline_named, fit_whole
from realsimloop_ros.evaluation.cell_reconstruction import ScheduledTheta, twin_motion
from realsimloop_ros.evaluation.cell_recording import Notices, read_cell_recording
from realsimloop_ros.evaluation.cell_run import CellResult, CellRunError, load_cell_truth, make_record, prior_note
from realsimloop_ros.evaluation.held_theta import held_material
from realsimloop_ros.evaluation.provenance import provenance
from realsimloop_ros.evaluation.record import RunRecord
from realsimloop_ros.evaluation.replay import CellReplay, Condition, replay_cell_bag
from realsimloop_ros.evaluation.theta_trace import ThetaSample, held_trace, sample_of_update, trace_of
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.observation.cell_file import CellFile


@dataclass(frozen=True, eq=False)
class CellEvaluation:
    """updates: none where theta was held; conditions: see CellReplay."""

    record: RunRecord
    updates: tuple[MaterialUpdate, ...]
    conditions: tuple[Condition, ...] = ()


def evaluate_cell_bag(
    bag: Path,
    cell: CellFile,
    *,
    theta: str = "estimate",
    method: str | None = None,
    truth_folder: Path | None = None,
    command: str = "",
    settings: Sequence[Path] = (),
    pictures: bool = True,
) -> CellEvaluation:
    """Evaluate a recorded cell.

    theta: `estimate`; `prior`, the estimator file's; or a report.json or record folder whose last theta is held.
    method: of the estimator, in place of its file's; or a baseline that fits the recording as a whole, whose theta
    is then held.
    truth_folder: what a virtual cell left about its truth; by default `truth` beside the bag, if there. pictures:
    whether the record gets any. The same bag gives the same updates to the last bit. Raises BagError,
    CellRunError, and the errors of cell and model.
    """
    notices = Notices()
    twin = load_twin(cell)
    truth = load_cell_truth(Path(bag).parent / "truth" if truth_folder is None else truth_folder, notices)
    held = None if theta == "estimate" else held_material(theta, twin.body.zone_names, twin.space.prior)
    if method in ONLINE:
        twin = replace(twin, file=twin.file.model_copy(update={"method": method}))
    elif method is not None:
        if held is not None:
            raise BaselineError(f"method: {method!r} estimates theta, but theta is held ({theta}); choose one")
        held, note = _whole_fit(bag, cell, twin, method)
        notices.note(note)
    replay = replay_cell_bag(bag, cell, twin, notices, estimate=held is None)
    recording = read_cell_recording(
        bag, twin.body.content_hash, notices, None if truth.body is None else truth.body.content_hash
    )
    samples = [sample_of_update(update) for update in replay.updates]
    if held is None and not samples:
        raise CellRunError(
            f"{bag}: {len(replay.frame_stamps_ns)} frames gave no estimate; the recording is shorter than a "
            "segment of the estimator, or its poses and images do not overlap in time"
        )
    if held is not None:
        trace = held_trace(int(replay.grips[0].stamps_ns[0]), twin.body.zone_names, held)
        schedule = [ScheduledTheta(int(replay.grips[0].stamps_ns[0]), held)]
    else:
        trace = trace_of(samples, twin.body.zone_names, twin.space.prior)
        schedule = [ScheduledTheta(0, twin.space.prior)]
        schedule += [ScheduledTheta(sample.stamp_ns, sample.material) for sample in samples]
        notices.note(prior_note(twin))
        notices.note(_against_live(samples, recording.theta))
    for condition in replay.conditions:
        notices.note(f"First seen at {condition.stamp_ns * 1e-9:.1f} s: {condition.text}.")
    states, failures = (None, 0) if replay.resets else twin_motion(twin, schedule, replay.grips)
    if failures:
        notices.warn(f"{bag}: {failures} time steps of the twin did not converge")
    notices.note(f"Used images of {', '.join(replay.cameras) or 'no camera'}.")
    result = CellResult(
        title=f"Replay of {Path(bag).resolve().parent.name}/{Path(bag).name} ({cell.name})",
        theta_source=method or (theta if theta in ("estimate", "prior") else Path(theta).name),
        theta=trace,
        materials=[(entry.stamp_ns, entry.material) for entry in schedule],
        states=states,
        frame_stamps_ns=replay.frame_stamps_ns,
        timing={"estimate (one update)": np.array([sample.solve_time for sample in samples])},
        real_time_factor=_seconds(replay) / replay.seconds if replay.seconds > 0.0 else None,
        drops=replay.drops,
    )
    origin = provenance(
        command, seed=truth.seed, body_hashes={cell.name: twin.body.content_hash}, settings=settings
    )
    record = make_record(bag, cell, twin, result, truth, recording.truth, origin, notices, pictures=pictures)
    return CellEvaluation(record, replay.updates, replay.conditions)


def _whole_fit(bag: Path, cell: CellFile, twin: Twin, method: str) -> tuple[Material, str]:
    """What a baseline finds in a bag, and how it went."""
    baseline_named(method)
    # a window that no recording fills
    whole = replace(twin, file=twin.file.model_copy(update={"window": 2**31}))
    gathered = replay_cell_bag(bag, cell, whole, Notices(), method=Hold()).estimator
    assert gathered is not None
    fit = fit_whole(gathered.problem, method)
    note = (
        f"Theta by {method}, from all frames at once: {len(fit.seconds)} evaluations of the recording in "
        f"{fit.seconds[-1]:.0f} s, loss {fit.loss:.1f}."
    )
    return twin.space.material(fit.theta), note


def _seconds(replay: CellReplay) -> float:
    stamps = replay.frame_stamps_ns
    return float(stamps[-1] - stamps[0]) * 1e-9 if len(stamps) > 1 else 0.0


def _against_live(samples: Sequence[ThetaSample], live: Sequence[ThetaSample]) -> str:
    """How this theta compares with the one that was published while the bag was recorded."""
    if not live:
        return "The bag has no theta of a live run to compare with."
    recorded = {sample.stamp_ns: sample for sample in live}
    pairs = [(sample, recorded[sample.stamp_ns]) for sample in samples if sample.stamp_ns in recorded]
    if not pairs:
        return f"None of the {len(live)} updates of the live run is at the stamps found here."
    largest = max(_difference(ours.material, theirs.material) for ours, theirs in pairs)
    missing = len(live) - len(pairs)
    return (
        f"Against the live run: {len(pairs)} updates at the same stamps, largest relative difference of Young's "
        f"modulus or Poisson's ratio {largest:.1e}; {missing} live updates are not found here, "
        f"{len(samples) - len(pairs)} found here were not live."
    )


def _difference(ours: Material, theirs: Material) -> float:
    columns: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = [
        (np.asarray(ours.youngs_modulus), np.asarray(theirs.youngs_modulus)),
        (np.asarray(ours.poisson_ratio), np.asarray(theirs.poisson_ratio)),
    ]
    return max(float(np.max(np.abs(a - b) / np.abs(b))) for a, b in columns)
