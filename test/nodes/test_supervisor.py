"""The supervisor, with real processes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from realsimloop_ros.nodes.environment import SHARED_MEMORY
from realsimloop_ros.nodes.graph import Graph, GraphError, NodeSpecification
from realsimloop_ros.nodes.supervisor import RunResult, node_command, run_graph

SCRIPT = Path(__file__).with_name("nodes_under_test.py")
# A supervisor in a process of its own, so that it can be interrupted as from a keyboard.
SUPERVISOR = """
import sys
from pathlib import Path
from realsimloop_ros.nodes.graph import Graph, NodeSpecification
from realsimloop_ros.nodes.supervisor import run_graph
script, output, *kinds = sys.argv[1:]
nodes = tuple(NodeSpecification(kind, kind) for kind in kinds)
result = run_graph(Graph("test", nodes), Path(output), command=lambda n: [sys.executable, script, n.executable])
sys.exit(result.status)
"""


def command(node: NodeSpecification) -> list[str]:
    return [sys.executable, str(SCRIPT), node.executable]


def run(tmp_path: Path, *nodes: NodeSpecification, duration: float | None = None) -> tuple[RunResult, str]:
    """The result of a run and what was printed."""
    screen = io.StringIO()
    result = run_graph(
        Graph("test", nodes),
        tmp_path,
        duration=duration,
        console=Console(file=screen, width=200),
        command=command,
    )
    return result, screen.getvalue()


def node(kind: str, **options: object) -> NodeSpecification:
    return NodeSpecification(kind, kind, **options)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie that only waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_text(path: Path, text: str, timeout: float = 30.0) -> str:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if path.exists() and text in (content := path.read_text()):
            return content
        time.sleep(0.02)
    raise AssertionError(f"{path} does not say {text!r}: {path.read_text() if path.exists() else '(missing)'}")


def start_supervisor(tmp_path: Path, *kinds: str) -> subprocess.Popen[bytes]:
    with (tmp_path / "screen.txt").open("wb") as screen:
        return subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(SCRIPT), str(tmp_path), *kinds],
            stdout=screen,
            stderr=subprocess.STDOUT,
        )


def test_a_node_that_ends_the_run_stops_the_others_and_the_run_succeeds(tmp_path: Path) -> None:
    result, screen = run(tmp_path, node("quiet"), node("over", ends_run=True))
    assert result.status == 0
    assert result.reason == "over has ended the run"
    assert {process.name: process.exit_status for process in result.processes} == {"quiet": 0, "over": 0}
    assert "quiet: interrupted" in screen


def test_lines_stand_behind_their_node_and_in_its_log(tmp_path: Path) -> None:
    _, screen = run(tmp_path, node("quiet"), node("over", ends_run=True))
    assert re.search(r"^quiet \| quiet: up$", screen, re.MULTILINE)
    assert re.search(r"^ over \| over: the scenario is over$", screen, re.MULTILINE)
    assert (tmp_path / "log" / "over.log").read_text() == "over: the scenario is over\n"


def test_a_dead_node_is_reported_with_exit_code_and_log_and_the_run_fails(tmp_path: Path) -> None:
    result, screen = run(tmp_path, node("quiet"), node("crash"))
    assert result.status == 1
    assert result.reason == "crash died (exit code 1)"
    report = screen[screen.index("crash died: exit code 1") :]
    assert "crash: about to fail" in report
    assert "RuntimeError: the sensor is on fire" in report
    assert str(tmp_path / "log" / "crash.log") in report
    assert json.loads((tmp_path / "run.json").read_text())["status"] == 1


def test_a_node_that_dies_by_a_signal_is_reported_by_its_name(tmp_path: Path) -> None:
    result, _ = run(tmp_path, node("segfault"), node("quiet"))
    assert result.reason == "segfault died (signal SIGSEGV)"


def test_a_required_node_that_ends_without_being_asked_fails_the_run(tmp_path: Path) -> None:
    result, _ = run(tmp_path, node("over"), node("quiet"))
    assert (result.status, result.reason) == (1, "over died (exit code 0)")


def test_a_node_that_is_not_required_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    result, screen = run(tmp_path, node("crash", required=False), node("quiet"), duration=1.5)
    assert "crash died: exit code 1" in screen
    assert "quiet: interrupted" in screen
    # it lasted as long as was asked for, but not all went well
    assert (result.status, result.reason) == (1, "crash failed (exit code 1)")


def test_a_node_with_respawn_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRASH_ONCE_MARKER", str(tmp_path / "crashed"))
    result, screen = run(tmp_path, node("crash_once", respawn=True), duration=2.5)
    assert "crash_once died: exit code 3" in screen
    assert "quiet: interrupted" in screen
    assert [(process.restarts, process.exit_status) for process in result.processes] == [(1, 0)]
    assert result.status == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_stops_everything_within_three_seconds(tmp_path: Path, number: signal.Signals) -> None:
    supervisor = start_supervisor(tmp_path, "quiet", "stubborn")
    child = int(
        re.search(r"child (\d+)", wait_for_text(tmp_path / "log" / "stubborn.log", "child"))[1]  # type: ignore[index]
    )
    wait_for_text(tmp_path / "log" / "quiet.log", "up")
    asked = time.monotonic()
    supervisor.send_signal(number)
    assert supervisor.wait(timeout=10) == 0
    assert time.monotonic() - asked < 3.0
    assert not alive(child)
    screen = (tmp_path / "screen.txt").read_text()
    assert "stubborn did not stop in time and was killed" in screen
    assert f"stopped by {number.name}" in screen


def test_the_recorder_hears_the_others_to_their_end(tmp_path: Path) -> None:
    nodes = (NodeSpecification("recorder", "quiet", stops_last=True), node("quiet"), node("over", ends_run=True))
    _, screen = run(tmp_path, *nodes)
    assert screen.index("quiet | quiet: interrupted") < screen.index("recorder | quiet: interrupted")


def test_nodes_get_name_namespace_remappings_parameters_and_a_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROS_DOMAIN_ID", raising=False)
    specification = NodeSpecification(
        "listener",
        "echo",
        namespace="cell_2",
        parameters={"rate": 50.0, "names": ["1", "b"]},
        remappings=(("state", "twin/state"),),
        ends_run=True,
    )
    _, screen = run(tmp_path, specification)
    parameter_file = tmp_path / "parameters" / "listener.yaml"
    assert (
        f"--ros-args -r __node:=listener -r __ns:=/cell_2 -r state:=twin/state --params-file {parameter_file}"
        in screen
    )
    # the string "1" must not turn into a number on its way
    assert yaml.safe_load(parameter_file.read_text()) == {
        "/**": {"ros__parameters": {"rate": 50.0, "names": ["1", "b"]}}
    }
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST" in screen
    assert re.search(r"ROS_DOMAIN_ID=\d+", screen)
    assert "config/fastdds.xml" in screen


def test_a_killed_ros_node_leaves_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREEZE", "1")
    before = {path.name for path in SHARED_MEMORY.glob("*fastdds_*")}
    result, screen = run(tmp_path, node("ros"), NodeSpecification("other", "ros"), duration=4.0)
    assert "ros: up" in screen
    assert all(process.killed for process in result.processes)
    left = {path.name for path in SHARED_MEMORY.glob("*fastdds_*")} - before
    # what other runs on this machine have made meanwhile is mapped by their processes
    assert not {name for name in left if not is_mapped(name)}


def is_mapped(name: str) -> bool:
    """Whether a living process maps a segment, or the segment that a lock or a semaphore belongs to."""
    segment = re.search(r"fastdds_(port\d+|[0-9a-f]+)", name)
    assert segment is not None
    maps = Path("/proc").glob("[0-9]*/maps")
    return any(segment.group() in path.read_text(errors="replace") for path in maps if readable(path))


def readable(path: Path) -> bool:
    try:
        path.read_text(errors="replace")
    except OSError:
        return False
    return True


def test_nodes_end_when_their_supervisor_is_killed(tmp_path: Path, domain: int) -> None:
    output = tmp_path / "run"
    program = (
        "import sys; from pathlib import Path\n"
        "from realsimloop_ros.nodes.graph import Graph, NodeSpecification\n"
        "from realsimloop_ros.nodes.supervisor import run_graph\n"
        "recorder = NodeSpecification('recorder', 'recorder', parameters={'bag': sys.argv[2]})\n"
        "run_graph(Graph('orphans', (recorder,)), Path(sys.argv[1]))\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", program, str(output), str(tmp_path / "bag")],
        stdout=subprocess.DEVNULL,
        env=dict(os.environ),
    )
    wait_for_text(output / "log" / "recorder.log", "[recorder]: ready")
    supervisor.kill()
    supervisor.wait()
    # the pipe to the supervisor is gone with it, so the bag tells: its metadata is written when the node ends well
    # a busy machine takes ten seconds for it
    deadline = time.monotonic() + 60.0
    while not (tmp_path / "bag" / "metadata.yaml").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_missing_executable_is_named_before_anything_starts(tmp_path: Path) -> None:
    graph = Graph("test", (NodeSpecification("ghost", "ghost"),))
    with pytest.raises(GraphError, match="node ghost: package realsimloop has no executable ghost"):
        run_graph(graph, tmp_path, command=node_command)
    with pytest.raises(GraphError, match="package no_such_package is not installed"):
        node_command(NodeSpecification("ghost", "ghost", package="no_such_package"))
