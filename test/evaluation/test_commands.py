import pytest

pytest.importorskip("typer")

import re
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.small_experiments import MARKERS, experiment_content, write_bag, write_experiment
from realsimloop_ros import compute
from realsimloop_ros.cli import main
from realsimloop_ros.evaluation.c3d import read_c3d
from realsimloop_ros.evaluation.marker_messages import read_marker_bag
from reduced_bodies import bar_specification

HELD_ZONE = {"youngs_modulus": {"held": 1e5}, "poisson_ratio": {"held": 0.49}}


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


@pytest.fixture
def double_precision_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' process has its precision already, and keeps no compiled programs."""
    monkeypatch.setattr(compute, "use_double_precision", lambda: None)


@pytest.mark.usefixtures("double_precision_stays")
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"capture": {"path": "broken.c3d"}},
            r"broken\.c3d: not a readable \.c3d file .*; export the capture again",
        ),
        ({"capture": {"path": "gone.c3d"}}, r"gone\.c3d: does not exist; check the path"),
        ({"capture": {"path": "broken.mcap"}}, r"broken\.mcap: "),
        ({"capture": {"path": "bag", "frame": "world"}}, r"capture\.frame: 'world', but .*frame 'capture'; name"),
        ({"markers": {"tip": [0.0, 0.0, 0.0]}}, r"markers: .*no marker 'tip'; its markers are 'top', 'left'"),
        ({"body": bar_specification(zones=[{"name": "bar", "density": 0.0}])}, r"density: .*greater than 0"),
        ({"estimation": {"zones": {"gum": HELD_ZONE}}}, r"zones\.gum: unknown zone; the body's zones are bar"),
    ],
)
def test_an_experiment_that_cannot_be_used_ends_with_one_line_and_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], complaint: str
) -> None:
    (tmp_path / "broken.c3d").write_bytes(b"nothing")
    (tmp_path / "broken.mcap").write_bytes(b"nothing")
    seen = np.repeat(np.array(list(MARKERS.values()))[None], 20, axis=0)
    write_bag(tmp_path / "bag", seen)
    path = write_experiment(tmp_path, experiment_content(**changes))
    assert run("evaluate", str(path), "--out", str(tmp_path / "out")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(complaint, line)
    assert not (tmp_path / "out").exists()
