"""Faults in the recording of a small cell, through the path of a live run without its executor."""

from pathlib import Path

import numpy as np
import pytest

from evaluation.cell_bags import START_NS, Entry, cell_entries, write_bag
from evaluation.small_cells import small_cell, small_scenario
from realsimloop_ros.cli import main
from realsimloop_ros.estimation.twin import Twin, load_twin
from realsimloop_ros.evaluation.bags import BagError, read_bag
from realsimloop_ros.evaluation.cell_recording import Notices
from realsimloop_ros.evaluation.fault_study import fault_row, page
from realsimloop_ros.evaluation.faults import FAULTS, FaultError, write_faulty_bag
from realsimloop_ros.evaluation.marker_messages import stamp_of
from realsimloop_ros.evaluation.replay import CellReplay, replay_cell_bag
from realsimloop_ros.evaluation.report import load_report
from realsimloop_ros.observation.cell_file import CellFile

DURATION = 2.6  # s: 27 frames, ten of them before the faults begin
UPDATES = 25


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> CellFile:
    return small_cell(tmp_path_factory.mktemp("cell"))


@pytest.fixture(scope="module")
def twin(cell: CellFile) -> Twin:
    return load_twin(cell)


@pytest.fixture(scope="module")
def bag(cell: CellFile, twin: Twin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    entries = cell_entries(cell, small_scenario(), twin.body.content_hash, duration=DURATION, raw=True)
    return write_bag(tmp_path_factory.mktemp("bag") / "bag", list(entries))


@pytest.fixture(scope="module")
def faultless(bag: Path, cell: CellFile, twin: Twin) -> CellReplay:
    return replay_cell_bag(bag, cell, twin, Notices())


def test_without_a_fault_nothing_is_named(faultless: CellReplay) -> None:
    assert faultless.conditions == ()
    assert faultless.resets == 0
    assert len(faultless.updates) >= UPDATES


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_within_a_second_and_moves_theta_little(
    name: str, bag: Path, cell: CellFile, twin: Twin, faultless: CellReplay
) -> None:
    # the small cell's twin is too coarse for the truth: what counts here is what the fault adds
    reference = np.asarray(faultless.updates[-1].material.youngs_modulus)
    row = fault_row(bag, cell, twin, reference, name)
    assert row.named_after is not None and row.named_after < 1.0
    assert row.last_error < 0.1
    # images that come too late make sets of fewer cameras, none the less most times have one
    assert row.updates > 0.7 * UPDATES
    assert name in page([row]) and row.named_as in page([row])


def test_only_what_was_measured_goes_into_a_faulty_bag(bag: Path, cell: CellFile, tmp_path: Path) -> None:
    begin = write_faulty_bag(bag, tmp_path / "bag", cell, "stamps_back")
    entries = list(read_bag(tmp_path / "bag"))
    assert {entry.topic for entry in entries} == {
        "camera_0/image_raw", "camera_1/image_raw", "left/tcp_pose", "right/tcp_pose",
        "left/tcp_wrench", "right/tcp_wrench", "truth/state",
    }  # fmt: skip
    for entry in entries:
        late = entry.stamp_ns - stamp_of(entry.message.header)
        assert (late > 4 * START_NS) == (entry.stamp_ns >= begin)


def test_faults_that_do_not_exist_or_have_no_images_are_named(bag: Path, cell: CellFile, tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="'camera_lost': there is no such fault; there are camera_dark"):
        write_faulty_bag(bag, tmp_path / "bag", cell, "camera_lost")
    kept = [entry for entry in read_bag(bag) if "image" not in entry.topic]
    without = write_bag(
        tmp_path / "without", [Entry(entry.topic, entry.stamp_ns, entry.message) for entry in kept]
    )
    with pytest.raises(BagError, match="no images on camera_0/image_raw"):
        write_faulty_bag(without, tmp_path / "bag", cell, "camera_dark")


def test_the_command_evaluates_with_a_fault_and_leaves_the_bag(bag: Path, cell: CellFile, tmp_path: Path) -> None:
    arguments = ["evaluate", str(bag), "--cell", str(cell.folder / "cell.yaml"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--fault", "camera_dark", "--theta", "prior"])
    assert not caught.value.code
    assert (tmp_path / "faulty_bag" / "metadata.yaml").is_file()
    assert any("camera_1 is dark" in note for note in load_report(tmp_path / "report.json").notes)
