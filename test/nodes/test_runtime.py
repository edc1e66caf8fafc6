"""Start, end and health of a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.context import Context

from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.runtime import LatestWorker, RuntimeNode

HEAD = """
import sys, threading
from realsimloop_ros.nodes.runtime import RuntimeNode, RuntimeLifecycleNode, run_node
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.graph import GraphError
from rclpy.lifecycle import TransitionCallbackReturn
"""
PLAIN = """
class Plain(RuntimeNode):
    def __init__(self):
        super().__init__("plain", (Parameter("rate", "float", "rate", 1.0),))
        self.create_timer(0.01, self.say)
        self.said = False
    def say(self):
        if not self.said:
            print("up", flush=True)
        self.said = True
    def close(self):
        self.diagnostics.publish()
        print("closed", flush=True)
sys.exit(run_node(Plain))
"""


@pytest.fixture
def node(domain: int) -> Iterator[RuntimeNode]:
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = RuntimeNode("worker", (Parameter("rate", "float", "rate", 1.0),), context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.usefixtures("domain")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_that_is_told_to_stop_closes_and_ends_with_zero(number: signal.Signals) -> None:
    process = start(PLAIN)
    assert process.stdout is not None
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
    process.send_signal(number)
    assert finished(process) == (0, "closed\n")


@pytest.mark.usefixtures("domain")
def test_wrong_settings_end_with_two_and_one_line() -> None:
    status, output = finished(start(PLAIN, "--ros-args", "-p", "rate:=5"))
    assert status == 2
    assert output.count("\n") == 1
    assert "plain.rate is 5, expected float (write 50.0, not 50)" in output


@pytest.mark.usefixtures("domain")
def test_an_error_in_a_callback_ends_with_a_traceback() -> None:
    program = """
class Failing(RuntimeNode):
    def __init__(self):
        super().__init__("failing")
        self.create_timer(0.01, self.fail)
    def fail(self):
        raise ZeroDivisionError("no mass")
    def close(self):
        print("closed", flush=True)
sys.exit(run_node(Failing))
"""
    status, output = finished(start(program))
    assert status == 1
    assert "ZeroDivisionError: no mass" in output
    assert "closed" in output


@pytest.mark.usefixtures("domain")
def test_a_node_may_end_itself_from_another_thread() -> None:
    program = """
class Scenario(RuntimeNode):
    def __init__(self):
        super().__init__("scenario")
        threading.Timer(0.3, lambda: self.finish(0, "the scenario is over")).start()
sys.exit(run_node(Scenario))
"""
    status, output = finished(start(program))
    assert status == 0
    assert "the scenario is over" in output


@pytest.mark.usefixtures("domain")
def test_a_lifecycle_node_warms_up_and_activates_itself() -> None:
    program = """
class Warm(RuntimeLifecycleNode):
    def on_configure(self, state):
        print("configured", flush=True)
        return TransitionCallbackReturn.SUCCESS
    def on_activate(self, state):
        print("active", flush=True)
        self.finish(0)
        return super().on_activate(state)
sys.exit(run_node(lambda: Warm("warm")))
"""
    assert finished(start(program)) == (0, "configured\nactive\n")


@pytest.mark.usefixtures("domain")
def test_a_lifecycle_node_that_cannot_configure_ends_with_one() -> None:
    program = """
class Cold(RuntimeLifecycleNode):
    def on_configure(self, state):
        return TransitionCallbackReturn.FAILURE
sys.exit(run_node(lambda: Cold("cold")))
"""
    status, output = finished(start(program))
    assert status == 1
    assert "configure failed" in output


def test_the_worker_takes_the_newest_and_counts_what_it_overtook(node: RuntimeNode) -> None:
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def process(item: int) -> None:
        seen.append(item)
        begun.set()
        go_on.wait(10)

    worker = LatestWorker(node, process)
    worker.submit(0)
    assert begun.wait(10)
    for item in (1, 2, 3):
        worker.submit(item)
    go_on.set()
    deadline = threading.Event()
    while len(seen) < 2 and not deadline.wait(0.01):
        pass
    worker.stop()
    assert seen == [0, 3]
    assert node.diagnostics.drops == {"overtaken": 2}


def test_an_error_on_the_worker_ends_the_node(node: RuntimeNode) -> None:
    def process(item: int) -> None:
        raise ZeroDivisionError("no mass")

    LatestWorker(node, process).submit(1)
    done = threading.Event()
    node.finished.add_done_callback(lambda _: done.set())
    while not node.finished.done():
        done.wait(0.01)
    assert node.finished.result() == 1


def test_health_shows_figures_and_drops_by_cause(node: RuntimeNode) -> None:
    node.diagnostics.count_drop("stale", 2)
    node.diagnostics.count_drop("no_mask")
    node.diagnostics.report(solve_time_ms=12.3456789, window=8)
    node.diagnostics.warn("camera_2 is silent")
    status = node.diagnostics.status()
    assert status.level == DiagnosticStatus.WARN
    assert (status.name, status.message) == ("worker", "camera_2 is silent")
    assert {value.key: value.value for value in status.values} == {
        "solve_time_ms": "12.3457",
        "window": "8",
        "drops.no_mask": "1",
        "drops.stale": "2",
    }
