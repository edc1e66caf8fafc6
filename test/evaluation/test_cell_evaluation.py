"""Bags of a cell through the estimator without an executor."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from evaluation.cell_bags import Entry, cell_entries, write_bag
from evaluation.small_cells import small_cell, small_scenario
from realsimloop_ros.cli import main
from realsimloop_ros.evaluation.bags import BagError
from realsimloop_ros.evaluation.cell_evaluation import CellEvaluation, evaluate_cell_bag
from realsimloop_ros.evaluation.cell_recording import CellBagWarning
from realsimloop_ros.evaluation.held_theta import HeldThetaError
from realsimloop_ros.evaluation.record import save_record
from realsimloop_ros.evaluation.report import load_report, write_report
from realsimloop_ros.observation.cell_file import CellFile
from realsimloop_ros.reduction.model import load_reduced_body

DURATION = 0.7  # s: eight frames
UPDATES = 7  # the last frame only closes the segment of the one before it


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> CellFile:
    return small_cell(tmp_path_factory.mktemp("cell"))


@pytest.fixture(scope="module")
def entries(cell: CellFile) -> list[Entry]:
    body = load_reduced_body(cell.resolve(cell.reduced_model)).body
    return list(cell_entries(cell, small_scenario(), body.content_hash, duration=DURATION))


@pytest.fixture(scope="module")
def bag(entries: list[Entry], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bag(tmp_path_factory.mktemp("bag") / "bag", entries)


@pytest.fixture(scope="module")
def evaluation(bag: Path, cell: CellFile) -> CellEvaluation:
    return evaluate_cell_bag(bag, cell)


def numbers(evaluation: CellEvaluation) -> list[np.ndarray]:
    """Everything of the updates that is not a time taken."""
    return [
        np.array(column)
        for update in evaluation.updates
        for column in (
            update.stamp_ns,
            *update.material,
            update.covariance,
            update.loss_before,
            update.loss_after,
            update.latent,
            update.vertices,
        )
    ]


def test_the_same_bag_gives_the_same_bits(bag: Path, cell: CellFile, evaluation: CellEvaluation) -> None:
    again = evaluate_cell_bag(bag, cell, pictures=False)
    assert len(evaluation.updates) == UPDATES
    for first, second in zip(numbers(evaluation), numbers(again), strict=True):
        assert first.tobytes() == second.tobytes()


def test_the_record_has_theta_pictures_and_what_was_used(evaluation: CellEvaluation) -> None:
    record = evaluation.record
    assert record.theta.youngs_modulus.shape == (UPDATES, 1)
    assert np.isfinite(record.theta.youngs_modulus).all()
    assert {picture.kind for picture in record.pictures} == {"camera", "stress"}
    assert any("camera_0, camera_1" in note for note in record.notes)
    assert not record.drops


def test_images_without_observations_are_brought_together_and_masked(
    cell: CellFile, entries: list[Entry], tmp_path: Path
) -> None:
    body = load_reduced_body(cell.resolve(cell.reduced_model)).body
    raw = cell_entries(cell, small_scenario(), body.content_hash, duration=DURATION, raw=True)
    found = evaluate_cell_bag(write_bag(tmp_path / "raw", list(raw)), cell, pictures=False)
    # the set of the last image is only decided by a later one
    assert len(found.updates) >= UPDATES - 1
    assert np.isfinite(found.record.theta.youngs_modulus).all()


def test_a_camera_that_was_never_there_is_named_and_done_without(
    cell: CellFile, entries: list[Entry], tmp_path: Path
) -> None:
    def without_second(entry: Entry) -> Entry:
        if entry.topic != "observation":
            return entry
        message = dataclasses.replace(entry.message, available=np.array([True, False]))
        return dataclasses.replace(entry, message=message)

    path = write_bag(tmp_path / "one", [without_second(entry) for entry in entries])
    with pytest.warns(CellBagWarning, match=r"camera_1 never brought an image; evaluated with 1 of 2 cameras"):
        found = evaluate_cell_bag(path, cell, pictures=False)
    assert len(found.updates) == UPDATES
    assert any("camera_1" in note for note in found.record.notes)


def test_a_bag_that_was_cut_off_gives_a_part_and_says_so(cell: CellFile, bag: Path, tmp_path: Path) -> None:
    (whole,) = bag.glob("*.mcap")
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 6 // 10])
    with pytest.warns(CellBagWarning, match="cut off"):
        found = evaluate_cell_bag(cut, cell, pictures=False)
    assert 0 < len(found.updates) < UPDATES
    assert any("cut off" in note for note in found.record.notes)


def test_messages_of_another_frame_or_body_and_invalid_poses_are_counted(
    cell: CellFile, entries: list[Entry], tmp_path: Path
) -> None:
    changed = list(entries)
    poses = [k for k, entry in enumerate(changed) if entry.topic == "left/tcp_pose"]
    frames = [k for k, entry in enumerate(changed) if entry.topic == "observation"]

    def change(k: int, **fields: object) -> None:
        changed[k] = dataclasses.replace(changed[k], message=dataclasses.replace(changed[k].message, **fields))

    header = changed[poses[4]].message.header
    change(poses[4], header=dataclasses.replace(header, frame_id="elsewhere"))
    pose = changed[poses[7]].message.pose
    lost = dataclasses.replace(pose, position=dataclasses.replace(pose.position, x=float("nan")))
    change(poses[7], pose=lost)
    change(frames[5], body_hash="0" * 64)
    with pytest.warns(CellBagWarning) as caught:
        found = evaluate_cell_bag(write_bag(tmp_path / "mixed", changed), cell, pictures=False)
    assert found.record.drops == {"wrong_frame": 1, "invalid_pose": 1, "wrong_body": 1}
    told = " ".join(str(warning.message) for warning in caught)
    assert "'elsewhere'" in told and "left/tcp_pose" in told and "000000000000" in told
    assert len(found.updates) == UPDATES - 1


def test_a_bag_without_poses_of_a_grip_is_an_error_that_names_the_topic(
    cell: CellFile, entries: list[Entry], tmp_path: Path
) -> None:
    path = write_bag(tmp_path / "bag", [entry for entry in entries if entry.topic != "right/tcp_pose"])
    with pytest.raises(BagError, match=r"no topic 'right/tcp_pose'"):
        evaluate_cell_bag(path, cell)


@pytest.mark.filterwarnings("always::realsimloop_ros.evaluation.cell_recording.CellBagWarning")
def test_a_bag_of_another_body_ends_with_one_line_and_a_status(
    cell: CellFile, entries: list[Entry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def foreign(entry: Entry) -> Entry:
        if entry.topic != "observation":
            return entry
        return dataclasses.replace(entry, message=dataclasses.replace(entry.message, body_hash="1" * 64))

    path = write_bag(tmp_path / "bag", [foreign(entry) for entry in entries])
    cell_path = str(cell.folder / "cell.yaml")
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", str(path), "--cell", cell_path, "--out", str(tmp_path / "out")])
    assert caught.value.code == 1
    told = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in told] == ["warning", "error"]
    assert "8 wrong_body" in told[-1]
    assert not (tmp_path / "out").exists()


def test_a_held_theta_comes_from_the_prior_or_from_an_earlier_report(
    cell: CellFile, bag: Path, evaluation: CellEvaluation, tmp_path: Path
) -> None:
    prior = evaluate_cell_bag(bag, cell, theta="prior", pictures=False)
    assert prior.updates == ()
    np.testing.assert_array_equal(prior.record.theta.youngs_modulus, [[480e3]])
    assert np.isnan(prior.record.theta.youngs_modulus_std).all()
    write_report(tmp_path, evaluation.record)
    save_record(tmp_path / "record", evaluation.record)
    last = evaluation.record.theta.youngs_modulus[-1]
    for source in (tmp_path, tmp_path / "report.json", tmp_path / "record"):
        held = evaluate_cell_bag(bag, cell, theta=str(source), pictures=False).record
        np.testing.assert_array_equal(held.theta.youngs_modulus, [last])
    with pytest.raises(HeldThetaError, match="neither"):
        evaluate_cell_bag(bag, cell, theta=str(tmp_path / "nowhere"))


def test_the_command_writes_record_and_report(cell: CellFile, bag: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", str(bag), "--cell", str(cell.folder / "cell.yaml"), "--theta", "prior"]
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--out", str(tmp_path)])
    assert not caught.value.code
    report = load_report(tmp_path / "report.json")
    assert report.theta_source == "prior"
    assert report.theta["bar"].youngs_modulus.estimate == pytest.approx(480e3)
    assert "data:image/jpeg" in (tmp_path / "report.html").read_text()
