import json
from pathlib import Path

import pytest

pytest.importorskip("rclpy")

from realsimloop_ros.nodes.demo import MARK, DemoError, clear_folder, demo_graph, progress_line
from realsimloop_ros.nodes.run_monitor import Progress


def test_a_demo_replaces_what_an_earlier_one_wrote_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    clear_folder(folder)
    (folder / MARK).write_text(json.dumps({"format": "realsimloop-demo-1"}))
    (folder / "bag").mkdir()
    (folder / "bag" / "bag.mcap").write_bytes(b"old")
    (folder / "report.json").write_text("{}")
    (folder / "my_notes.txt").write_text("mine")
    clear_folder(folder)
    assert [path.name for path in folder.iterdir()] == ["my_notes.txt"]


def test_a_folder_that_no_demo_wrote_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(DemoError, match="no demo wrote"):
        clear_folder(tmp_path)
    (tmp_path / MARK).write_text("not json")
    with pytest.raises(DemoError, match="no demo wrote"):
        clear_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [MARK, "report.json"]
    with pytest.raises(DemoError, match="is no folder"):
        clear_folder(tmp_path / MARK)


def test_the_demo_records_and_waits_for_the_estimate(tmp_path: Path) -> None:
    graph = demo_graph(tmp_path, "dual_arm", "dual_arm", 3.0, 7)
    cell = graph.node("virtual_cell").parameters
    assert (cell["seed"], cell["duration"]) == (7, 3.0)
    assert cell["wait_for_estimate"] > 1
    assert cell["truth_directory"] == str(tmp_path / "truth")
    assert graph.node("recorder").parameters["bag"] == str(tmp_path / "bag")


def test_progress_is_told_in_a_line() -> None:
    prior = {"bar": 480e3}
    assert progress_line(None, 15.0, 4.2, prior) == "starting: nodes compile what they will run (4 s)"
    before = Progress(10**9, 2 * 10**9, 4.0, (), (), 0)
    assert progress_line(before, 15.0, 9.0, prior) == "  1.0 of 15 s, real-time factor 0.25, no estimate yet"
    after = Progress(10**9, 7 * 10**9, 12.0, ("bar",), (251e3,), 55)
    assert progress_line(after, 15.0, 20.0, prior) == (
        "  6.0 of 15 s, real-time factor 0.50, Young's modulus bar 480 -> 251 kPa after 55 updates"
    )
