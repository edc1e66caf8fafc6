"""What the twin's nodes share: a worker that keeps the order, conditions that end, a clear end for wrong files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rclpy.parameter import Parameter as RosParameter

from nodes import small_cell
from nodes.small_cell import context_of, wait_for, warnings_of, write_cell
from realsimloop_ros.nodes import twin_node
from realsimloop_ros.nodes.message_checks import MessageError
from realsimloop_ros.nodes.twin_node import Durations, OrderedWorker, TwinNode
from realsimloop_ros.observation.cell_file import CellFileError


@pytest.fixture
def node(domain: int, tmp_path: Path) -> Iterator[TwinNode]:
    overrides = [RosParameter("cell", value=str(write_cell(tmp_path)))]
    with context_of(domain) as context:
        node = TwinNode("plain", context=context, parameter_overrides=overrides)
        yield node
        node.destroy_node()


def test_the_worker_keeps_the_order_and_drops_only_what_may_be_dropped(node: TwinNode) -> None:
    begun, go_on, seen, rests = threading.Event(), threading.Event(), [], []

    def process(item: str) -> None:
        seen.append(item)
        begun.set()
        go_on.wait(small_cell.TIMEOUT)

    worker: OrderedWorker[str] = OrderedWorker(
        node, process, lambda: rests.append(len(seen)), droppable=str.isupper, limit=2, cause="full"
    )
    worker.submit("first")
    assert begun.wait(small_cell.TIMEOUT)
    for item in ("A", "a", "B", "b", "C", "c", "D"):
        worker.submit(item)
    go_on.set()
    wait_for(lambda: rests == [6])
    worker.stop()
    assert seen == ["first", "a", "b", "C", "c", "D"]
    assert node.diagnostics.drops == {"full": 2}


def test_an_error_on_the_worker_ends_the_node(node: TwinNode) -> None:
    def process(item: int) -> None:
        raise ZeroDivisionError("no mass")

    OrderedWorker(node, process, lambda: None).submit(1)
    wait_for(node.finished.done)
    assert node.finished.result() == 1


def test_a_condition_is_told_once_and_ends(node: TwinNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.condition("silent", "camera_1 is silent for 1 s")
    node.condition("silent", "camera_1 is silent for 2 s")
    node.reject(MessageError("wrong_size", "the image is small"))
    assert warnings_of(node) == "camera_1 is silent for 1 s; the image is small"
    assert node.diagnostics.drops == {"wrong_size": 1}
    node.condition_over("silent")
    assert warnings_of(node) == "the image is small"
    monkeypatch.setattr(twin_node, "CONDITION_TIME", -1.0)
    node._forget_conditions()
    assert warnings_of(node) == ""


def test_durations_are_given_as_percentiles() -> None:
    durations = Durations()
    assert durations.figures("solve") == {}
    for k in range(101):
        durations.add(1e-3 * k)
    assert durations.figures("solve") == {"solve_p50_ms": pytest.approx(50), "solve_p99_ms": pytest.approx(99)}


def test_a_wrong_cell_file_names_file_and_field(domain: int, tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    path.write_text(path.read_text().replace("rate: 10.0", "rate: -1.0"))
    with context_of(domain) as context, pytest.raises(CellFileError, match=r"cell.yaml: cameras.0.rate"):
        TwinNode("plain", context=context, parameter_overrides=[RosParameter("cell", value=str(path))])


@pytest.mark.usefixtures("domain")
def test_a_node_whose_model_is_missing_ends_with_two_and_one_line(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    (tmp_path / "model.npz").unlink()
    command = [sys.executable, "-m", "realsimloop_ros.nodes.simulator", "--ros-args", "-p", f"cell:={path}"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=120)
    assert done.returncode == 2
    output = done.stdout + done.stderr
    assert f"{tmp_path / 'model.npz'} does not exist; make it with `realsimloop reduce`" in output
    assert "Traceback" not in output
