"""Markers and wrenches of a cell, as an estimator takes them."""

from pathlib import Path

import numpy as np
import pytest

from evaluation.cell_bags import START_NS, wrench_stamped
from evaluation.small_cells import small_cell
from realsimloop_ros.body.files import with_markers
from realsimloop_ros.estimation.twin import load_twin
from realsimloop_ros.evaluation.cell_intake import CellIntake
from realsimloop_ros.evaluation.cell_recording import CellBagWarning, Notices
from realsimloop_ros.evaluation.marker_messages import marker_array

PLACES = np.array([[0.0, 0.0, 0.415], [0.02, 0.0, 0.415]])


@pytest.fixture
def intake(tmp_path: Path) -> CellIntake:
    cell = small_cell(tmp_path)
    body = with_markers(load_twin(cell).body, {"middle": PLACES[0], "right": PLACES[1]})
    return CellIntake(cell, body, (), lambda *_: None, Notices())


def test_markers_come_in_the_order_of_the_body(intake: CellIntake) -> None:
    message = marker_array(START_NS, "world", ["right", "middle"], PLACES[::-1])
    frame = intake.markers("markers", message)
    assert frame is not None and frame.stamp_ns == START_NS
    np.testing.assert_array_equal(frame.marker_positions, PLACES)


def test_a_marker_that_is_not_finite_counts_as_not_seen_and_is_named(intake: CellIntake) -> None:
    message = marker_array(START_NS, "world", ["middle", "right"], PLACES)
    message.markers[1].pose.position.y = float("nan")
    with pytest.warns(CellBagWarning, match="'right' has positions that are not finite"):
        frame = intake.markers("markers", message)
    assert frame is not None and frame.marker_positions is not None
    assert np.isfinite(frame.marker_positions).all(axis=1).tolist() == [True, False]
    assert intake.drops == {"marker_not_finite": 1}


def test_a_lost_marker_is_no_fault(intake: CellIntake) -> None:
    lost = PLACES.copy()
    lost[0] = np.nan
    frame = intake.markers("markers", marker_array(START_NS, "world", ["middle", "right"], lost))
    assert frame is not None and frame.marker_positions is not None
    assert np.isfinite(frame.marker_positions).all(axis=1).tolist() == [False, True]
    assert not intake.drops


def test_an_unknown_marker_is_counted_and_named(intake: CellIntake) -> None:
    message = marker_array(START_NS, "world", ["middle", "left"], PLACES)
    with pytest.warns(CellBagWarning, match="'left' is none of the body's middle, right"):
        intake.markers("markers", message)
    assert intake.drops == {"unknown_marker": 1}


def test_markers_in_another_frame_are_left_out(intake: CellIntake) -> None:
    with pytest.warns(CellBagWarning, match=r"in frame 'camera', expected 'world'"):
        assert intake.markers("markers", marker_array(START_NS, "camera", ["middle"], PLACES[:1])) is None
    assert intake.drops == {"wrong_frame": 1}


def test_wrenches_are_taken_in_the_tool_frame_only(intake: CellIntake) -> None:
    wrench = [1.0, 2.0, 3.0, 0.1, 0.2, 0.3]
    good = wrench_stamped(START_NS, "left_tool", wrench)
    np.testing.assert_array_equal(intake.wrench("left/tcp_wrench", "left_tool", good), wrench)
    with pytest.warns(CellBagWarning, match=r"in frame 'world', expected 'left_tool'"):
        foreign = wrench_stamped(START_NS, "world", wrench)
        assert intake.wrench("left/tcp_wrench", "left_tool", foreign) is None
    with pytest.warns(CellBagWarning, match="not finite"):
        broken = wrench_stamped(START_NS, "left_tool", [np.nan, *wrench[1:]])
        assert intake.wrench("left/tcp_wrench", "left_tool", broken) is None
    assert intake.drops == {"wrong_frame": 1, "invalid_wrench": 1}
