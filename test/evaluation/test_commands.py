import pytest

pytest.importorskip("typer")

from pathlib import Path

import numpy as np

from realsimloop_ros.cli import main
from realsimloop_ros.evaluation.c3d import read_c3d
from realsimloop_ros.evaluation.marker_messages import read_marker_bag


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def test_a_capture_becomes_a_bag_with_the_same_numbers(tmp_path: Path, gravity_capture: Path) -> None:
    assert run("import-c3d", str(gravity_capture), "--out", str(tmp_path / "bag"), "--topic", "mocap") == 0
    bag, file = read_marker_bag(tmp_path / "bag", "mocap"), read_c3d(gravity_capture)
    assert bag.names == file.names
    np.testing.assert_array_equal(bag.stamps_ns, file.stamps_ns)
    np.testing.assert_array_equal(bag.positions, file.positions)


def test_an_unreadable_capture_ends_with_one_line_and_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.c3d").write_bytes(b"nothing")
    assert run("import-c3d", str(tmp_path / "broken.c3d"), "--out", str(tmp_path / "bag")) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "bag").exists()
