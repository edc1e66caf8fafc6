"""The record of a live run, from its bag and what a virtual cell left about the truth."""

import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.cell_bags import (
    START_NS,
    Entry,
    body_state,
    material_estimate,
    multi_view_frame,
    pose_stamped,
    write_bag,
)
from evaluation.small_cells import small_cell
from realsimloop_ros.body.files import save_body
from realsimloop_ros.estimation.twin import Twin, load_twin
from realsimloop_ros.evaluation.bags import message_store
from realsimloop_ros.evaluation.cell_recording import CellBagWarning
from realsimloop_ros.evaluation.cell_run import CellRunError, record_live_run
from realsimloop_ros.evaluation.provenance import provenance
from realsimloop_ros.evaluation.record import load_record, save_record
from realsimloop_ros.evaluation.report import make_report, write_report
from realsimloop_ros.observation.cell_file import CellFile

STEPS = 20
STEP_NS = 33_333_333
OFF = 1.5e-3  # m, by which the twin's free vertices are off


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> CellFile:
    return small_cell(tmp_path_factory.mktemp("cell"))


@pytest.fixture(scope="module")
def twin(cell: CellFile) -> Twin:
    return load_twin(cell)


def diagnostics(stamp_ns: int, **values: object) -> Entry:
    types = message_store().types
    pairs = [types["diagnostic_msgs/msg/KeyValue"](key=k, value=str(v)) for k, v in values.items()]
    status = types["diagnostic_msgs/msg/DiagnosticStatus"](
        level=0, name="camera_sync", message="running", hardware_id="", values=pairs
    )
    header = body_header(stamp_ns)
    return Entry(
        "diagnostics", stamp_ns, types["diagnostic_msgs/msg/DiagnosticArray"](header=header, status=[status])
    )


def body_header(stamp_ns: int) -> object:
    return pose_stamped(stamp_ns, "", [0, 0, 0, 0, 0, 0, 1]).header


def run_entries(cell: CellFile, twin: Twin) -> list[Entry]:
    """A run in which the truth swings as the twin does, OFF beside it, and E falls from 480 to 300 kPa."""
    body = twin.body
    poses = np.array([grip.rest_pose for grip in body.grips])
    free = np.ones(len(body.rest_positions), bool)
    free[body.held_vertices] = False
    entries = []
    for k in range(STEPS):
        stamp = START_NS + k * STEP_NS
        swing = np.zeros_like(body.rest_positions)
        swing[free, 2] = 0.01 * np.sin(0.4 * k)
        true = body.rest_positions + swing
        entries.append(Entry("truth/state", stamp, body_state(stamp, body, true, poses)))
        shape = true.copy()
        shape[free, 1] += OFF
        entries.append(Entry("state", stamp, body_state(stamp, body, shape, poses)))
        if k % 3 == 0:
            pixels = np.full((2, 48, 64, 3), 90, np.uint8)
            masks = np.zeros((2, 48, 64), np.uint8)
            frame = multi_view_frame(stamp, body.content_hash, cell, pixels, masks, [True, k < 15])
            entries.append(Entry("observation", stamp + 5_000_000, frame))
            modulus = 480e3 - 30e3 * (k // 3)
            covariance = np.diag([0.1**2, np.inf])
            entries.append(
                Entry("theta", stamp + 9_000_000, material_estimate(stamp, body, modulus, 0.45, covariance))
            )
    last = START_NS + STEPS * STEP_NS
    figures = {"drops.late": 3, "mask_p50_ms": 4.0, "mask_p99_ms": 9.0, "sets": 7}
    entries += [diagnostics(START_NS, **{"drops.late": 1}), diagnostics(last, **figures)]
    return entries


@pytest.fixture(scope="module")
def truth_folder(twin: Twin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("truth")
    save_body(folder / "body.npz", twin.body)
    reference = {
        "youngs_modulus": 250e3,
        "poisson_ratio": 0.45,
        "relative_residual": 0.01,
        "samples": 100,
        "largest_stretch": 1.1,
        "mean_strain_energy": 1.0,
        "method": "Method.",
    }
    (folder / "reference.json").write_text(json.dumps({"zones": {"bar": reference}}))
    (folder / "run.json").write_text(
        json.dumps({"real_time_factor": 0.25, "seed": 3, "start_ns": START_NS, "wall_time_s": 4.0})
    )
    return folder


@pytest.fixture(scope="module")
def bag(cell: CellFile, twin: Twin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bag(tmp_path_factory.mktemp("run") / "bag", run_entries(cell, twin))


def test_a_run_becomes_a_record_with_its_figures(
    cell: CellFile, twin: Twin, bag: Path, truth_folder: Path, tmp_path: Path
) -> None:
    latencies = {"observation to theta": np.array([0.1, 0.3])}
    origin = provenance("realsimloop demo", seed=3)
    record = record_live_run(bag, cell, twin, origin, truth_folder=truth_folder, latencies=latencies)
    save_record(tmp_path / "record", record)
    report = write_report(tmp_path, load_record(tmp_path / "record"))
    bar = report.theta["bar"]
    assert bar.youngs_modulus.estimate == pytest.approx(300e3)
    # a deviation of log E is one of E in per cent
    assert bar.youngs_modulus.std == pytest.approx(30e3)
    assert bar.youngs_modulus.relative_error == pytest.approx(0.2)
    assert bar.poisson_ratio.std is None  # infinite: the data do not tell it
    assert "stretches up to 1.10" in (bar.reference_how or "")
    # vertices travel as float32: 4e-8 m at 0.4 m
    assert report.reconstruction.mean_mm == pytest.approx(1e3 * OFF, abs=1e-4)
    assert report.reconstruction.max_mm == pytest.approx(1e3 * OFF, abs=1e-4)
    assert report.reconstruction.percent_of_size == pytest.approx(100.0 * OFF / 0.2, abs=1e-4)
    assert report.reconstruction.frames == STEPS
    assert report.real_time_factor == 0.25
    assert report.drops == {"camera_sync.late": 3}
    assert not any("the run ended before" in note for note in report.notes)
    assert report.timing["observation to theta"].p50_ms == pytest.approx(200.0)
    assert report.timing["camera_sync: mask"].p99_ms == pytest.approx(9.0)
    assert report.timing["camera_sync: mask"].count is None
    assert report.timing["estimate (one update)"].p50_ms == pytest.approx(20.0)
    np.testing.assert_array_equal(record.theta.start_youngs_modulus, [480e3])
    kinds = [picture.kind for picture in record.pictures]
    assert kinds == ["camera"] * 4 + ["stress"]
    # well spread: one in each quarter of the run
    stamps = [picture.stamp_ns or 0 for picture in record.pictures[:4]]
    assert stamps == sorted(set(stamps))
    assert (tmp_path / "report.html").read_text().count("<figcaption>") == 5


def test_without_a_truth_there_is_neither_reference_nor_distance(cell: CellFile, twin: Twin, bag: Path) -> None:
    record = record_live_run(bag, cell, twin, provenance("realsimloop demo"))
    report = make_report(record)
    assert report.theta["bar"].youngs_modulus.reference is None
    assert report.reconstruction.mean_mm is None
    assert report.real_time_factor is None


def test_theta_of_another_body_is_left_out_and_counted(cell: CellFile, twin: Twin, tmp_path: Path) -> None:
    entries = run_entries(cell, twin)
    k = next(k for k, entry in enumerate(entries) if entry.topic == "theta")
    entries[k].message.body_hash = "2" * 64
    path = write_bag(tmp_path / "bag", entries)
    with pytest.warns(CellBagWarning, match="'theta' are about body 222222222222"):
        record = record_live_run(path, cell, twin, provenance("realsimloop demo"))
    assert record.drops["wrong_body"] == 1
    assert len(record.theta.stamps_ns) == 6


def test_frames_that_the_run_left_without_an_estimate_are_counted(
    cell: CellFile, twin: Twin, tmp_path: Path
) -> None:
    entries = run_entries(cell, twin)
    kept = [entry for entry in entries if entry.topic != "theta" or entry.log_ns < START_NS + 12 * STEP_NS]
    path = write_bag(tmp_path / "bag", kept)
    with pytest.warns(CellBagWarning, match="ended before 2 frames"):
        record = record_live_run(path, cell, twin, provenance("realsimloop demo"))
    assert record.drops["run_ended_before_estimate"] == 2


def test_a_run_without_theta_is_an_error_that_tells_what_there_is(
    cell: CellFile, twin: Twin, tmp_path: Path
) -> None:
    entries = [entry for entry in run_entries(cell, twin) if entry.topic in ("state", "observation")]
    path = write_bag(tmp_path / "bag", entries)
    with pytest.raises(CellRunError, match=r"no theta .* observation, state"):
        record_live_run(path, cell, twin, provenance("realsimloop demo"))
