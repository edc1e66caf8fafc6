from pathlib import Path

import ezc3d
import numpy as np
import pytest
from numpy.typing import NDArray

from realsimloop_ros.evaluation.c3d import read_c3d
from realsimloop_ros.evaluation.captures import FIRST_STAMP_NS, CaptureError, CaptureWarning, MarkerCapture


def write_c3d(
    path: Path,
    positions: NDArray[np.float64],
    *,
    unit: str = "mm",
    rate: float = 200.0,
    labels: tuple[str, ...] = ("a", "b"),
    unseen: tuple[tuple[int, int], ...] = (),
) -> Path:
    file = ezc3d.c3d()
    file["parameters"]["POINT"]["RATE"]["value"] = [rate]
    file["parameters"]["POINT"]["LABELS"]["value"] = list(labels)
    file.add_parameter("POINT", "UNITS", [unit])
    data = np.ones((4, positions.shape[1], len(positions)))
    data[:3] = np.transpose(positions, (2, 1, 0))
    residuals = np.zeros((1, positions.shape[1], len(positions)))
    for frame, marker in unseen:
        residuals[0, marker, frame] = -1.0
    file["data"]["points"] = data
    file["data"]["meta_points"]["residuals"] = residuals
    file.write(str(path))
    return path


@pytest.fixture
def positions() -> NDArray[np.float64]:
    return np.random.default_rng(3).uniform(10.0, 1000.0, (12, 2, 3))


def test_points_come_in_metres_with_the_stamps_of_their_rate(tmp_path: Path, positions: NDArray) -> None:
    capture = read_c3d(write_c3d(tmp_path / "a.c3d", positions))
    assert capture.names == ("a", "b")
    # the format stores single precision: 6e-8 of 1 m
    np.testing.assert_allclose(capture.positions, positions * 1e-3, rtol=1e-6)
    np.testing.assert_array_equal(np.diff(capture.stamps_ns), 5_000_000)
    assert capture.stamps_ns[0] == FIRST_STAMP_NS
    assert capture.rate == 200.0


def test_a_negative_residual_is_a_marker_not_seen(tmp_path: Path, positions: NDArray) -> None:
    capture = read_c3d(write_c3d(tmp_path / "a.c3d", positions, unseen=((4, 1),)))
    assert np.isnan(capture.positions[4, 1]).all()
    assert capture.seen.sum() == capture.seen.size - 1


def test_an_unknown_unit_is_named_and_can_be_given(tmp_path: Path, positions: NDArray) -> None:
    path = write_c3d(tmp_path / "a.c3d", positions, unit="furlong")
    with pytest.raises(CaptureError, match=r"a\.c3d: POINT:UNITS is 'furlong'.* pass one of .*mm"):
        read_c3d(path)
    np.testing.assert_allclose(read_c3d(path, unit="cm").positions, positions * 1e-2, rtol=1e-6)
    with pytest.raises(CaptureError, match="the given unit is 'parsec'"):
        read_c3d(path, unit="parsec")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "does not exist"),
        (b"", r"is empty \(0 bytes\)"),
        (b"not a capture at all" * 100, r"not a readable \.c3d file"),
        (b"\x02\x50" + b"\xff" * 3000, r"not a readable \.c3d file"),
    ],
)
def test_an_unreadable_file_is_named_with_a_remedy(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "broken.c3d"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CaptureError, match=rf"broken\.c3d: {complaint}"):
        read_c3d(path)


def test_a_cut_file_gives_its_first_frames_and_a_warning(tmp_path: Path, gravity_capture: Path) -> None:
    path = tmp_path / "cut.c3d"
    path.write_bytes(gravity_capture.read_bytes()[:20_000])
    with pytest.warns(CaptureWarning, match=r"cut\.c3d: holds 176 of the 500 frames"):
        cut = read_c3d(path)
    np.testing.assert_array_equal(cut.positions, read_c3d(gravity_capture).positions[:176])


def test_the_real_captures_are_read(gravity_capture: Path, load_capture_path: Path) -> None:
    for path, frames in ((gravity_capture, 500), (load_capture_path, 600)):
        capture = read_c3d(path)
        assert capture.names == ("Tip - 1", "Tip - 2", "Tip - 3", "Base - 1", "Base - 2", "Base - 3")
        assert capture.positions.shape == (frames, 6, 3)
        assert capture.rate == 100.0
        assert capture.seen.all()
        # metres: the tip is about 75 mm up the beam in the first frame
        assert capture.positions[0, 0, 2] == pytest.approx(0.0735, abs=0.002)


def test_an_unknown_marker_is_named_with_those_there() -> None:
    capture = MarkerCapture("run.c3d", ("a", "b"), np.array([1, 2]), np.zeros((2, 2, 3)), "capture")
    with pytest.raises(CaptureError, match=r"run\.c3d: no marker 'c'; its markers are 'a', 'b'"):
        capture.select(["c"])
    assert capture.select(["b"]).names == ("b",)


def test_time_running_backwards_is_an_error() -> None:
    with pytest.raises(CaptureError, match=r"frame 1 .* is not after the one before"):
        MarkerCapture("run", ("a",), np.array([2, 1]), np.zeros((2, 1, 3)), "capture")
