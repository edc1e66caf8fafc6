"""Runs a graph as processes where `ros2 launch` is not installed: starts, watches and stops them together."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from realsimloop_ros.nodes.environment import (
    SUPERVISOR_VARIABLE,
    clean_shared_memory,
    ros_domain,
    ros_environment,
)
from realsimloop_ros.nodes.graph import Graph, GraphError, NodeSpecification
from realsimloop_ros.nodes.processes import NodeProcess, Screen
from realsimloop_ros.resources import package_prefix

POLL_PERIOD = 0.05  # s


@dataclass(frozen=True)
class GracePeriods:
    """How long processes may take after each signal, s. `last`: what the recorder may take after the
    others.
    """

    interrupt: float
    last: float
    terminate: float


# Ctrl-C: everything is gone within 3 s. At the end of a run nobody waits at the keyboard, and bags are
# completed.
ON_REQUEST = GracePeriods(interrupt=1.2, last=0.9, terminate=0.4)
AT_THE_END = GracePeriods(interrupt=5.0, last=20.0, terminate=2.0)


@dataclass(frozen=True)
class ProcessResult:
    """How a node ended. exit_status: negative where a signal ended it; killed: did not react to SIGTERM."""

    name: str
    exit_status: int
    restarts: int
    killed: bool
    log: str


@dataclass(frozen=True)
class RunResult:
    """How a run ended. status: 0 for success; wall_time: s."""

    graph: str
    status: int
    reason: str
    wall_time: float
    processes: tuple[ProcessResult, ...]


def node_command(node: NodeSpecification) -> list[str]:
    """The installed executable of a node. Raises GraphError where its package is not built."""
    prefix = package_prefix(node.package)
    path = None if prefix is None else prefix / "lib" / node.package / node.executable
    if path is None or not path.is_file():
        where = "is not installed" if prefix is None else f"has no executable {node.executable} in {prefix}"
        raise GraphError(
            f"node {node.name}: package {node.package} {where}; run `make setup`, or source what colcon built"
        )
    return [str(path)]


def run_graph(
    graph: Graph,
    output: Path,
    *,
    duration: float | None = None,
    console: Console | None = None,
    command: Callable[[NodeSpecification], Sequence[str]] = node_command,
) -> RunResult:
    """Run every node of `graph` until a node ends the run, `duration` s of wall clock have passed, or
    SIGINT, SIGTERM or SIGHUP comes; then stop what still runs.

    Writes output/log/NAME.log, output/parameters/NAME.yaml and output/run.json. Raises GraphError where an
    executable is missing; then nothing was started.
    """
    commands = {node.name: list(command(node)) for node in graph.nodes}
    output = output.resolve()
    for folder in ("log", "parameters"):
        (output / folder).mkdir(parents=True, exist_ok=True)
    screen = Screen(console or Console(), graph)
    with clean_shared_memory(), ros_domain() as domain, _stop_signals() as requests:
        environment = ros_environment(domain, output / "log" / "ros")
        environment[SUPERVISOR_VARIABLE] = str(os.getpid())
        screen.say(f"{graph.name}: {len(graph.nodes)} nodes, ROS domain {domain}, logs in {output / 'log'}")
        processes = [NodeProcess(node, commands[node.name], environment, output, screen) for node in graph.nodes]
        started = time.monotonic()
        try:
            for process in processes:
                process.start()
            ending = _watch(processes, started, duration, requests, screen)
        finally:
            grace = ON_REQUEST if requests or sys.exc_info()[0] else AT_THE_END
            _stop(processes, grace, requests)
        wall_time = time.monotonic() - started
    result = _result(graph, processes, ending, wall_time, screen)
    (output / "run.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
    return result


@dataclass(frozen=True)
class _Ending:
    status: int
    reason: str


def _watch(
    processes: Sequence[NodeProcess],
    started: float,
    duration: float | None,
    requests: list[int],
    screen: Screen,
) -> _Ending:
    while True:
        if requests:
            return _Ending(0, f"stopped by {signal.Signals(requests[0]).name}")
        if duration is not None and time.monotonic() - started >= duration:
            return _Ending(0, f"the {duration:g} s asked for are over")
        for process in processes:
            process.respawn_if_due()
            if not process.poll():
                continue
            node = process.node
            if node.ends_run and process.exit_status == 0:
                return _Ending(0, f"{node.name} has ended the run")
            _report_death(process, screen)
            if node.respawn:
                process.respawn_later()
            elif node.required:
                return _Ending(1, f"{node.name} died ({process.ending})")
        time.sleep(POLL_PERIOD)


def _stop(processes: Sequence[NodeProcess], grace: GracePeriods, requests: list[int]) -> None:
    first = [process for process in processes if not process.node.stops_last]
    last = [process for process in processes if process.node.stops_last]
    for group, period in ((first, grace.interrupt), (last, grace.last)):
        for process in group:
            process.signal(signal.SIGINT)
        _wait(group, period, requests)
    remaining = [process for process in processes if process.running]
    for process in remaining:
        process.signal(signal.SIGTERM)
    _wait(remaining, grace.terminate, requests)
    for process in processes:
        process.signal(signal.SIGKILL)  # of an ended node too: its children would live on in the group
    _wait(processes, 2.0, [])


def _wait(processes: Sequence[NodeProcess], period: float, requests: list[int]) -> None:
    """Until all have ended or `period` s have passed; a further request to stop cuts the wait short."""
    deadline, seen = time.monotonic() + period, len(requests)
    while any(process.running for process in processes):
        for process in processes:
            process.poll()
        if time.monotonic() >= deadline or (seen and len(requests) > seen):
            return
        time.sleep(0.01)


def _result(
    graph: Graph, processes: Sequence[NodeProcess], ending: _Ending, wall_time: float, screen: Screen
) -> RunResult:
    ours = (0, -signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL)
    status, reason = ending.status, ending.reason
    for process in processes:
        if process.killed:
            screen.say(f"{process.node.name} did not stop in time and was killed", "yellow")
        elif process.exit_status not in ours and status == 0:
            if process.node.required and not process.node.respawn:
                _report_death(process, screen)
            status, reason = 1, f"{process.node.name} failed ({process.ending})"
    screen.say(f"{graph.name}: {reason} after {wall_time:.1f} s", "bold" if status == 0 else "bold red")
    results = tuple(
        ProcessResult(
            process.node.name,
            -signal.SIGKILL if process.exit_status is None else process.exit_status,
            process.restarts,
            process.killed,
            str(process.log),
        )
        for process in processes
    )
    return RunResult(graph.name, status, reason, wall_time, results)


def _report_death(process: NodeProcess, screen: Screen) -> None:
    screen.say(f"{process.node.name} died: {process.ending}; its last lines:", "bold red")
    for line in process.tail:
        screen.line(process.node.name, line)
    screen.say(f"all of it: {process.log}", "red")


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Signals that ask for the end, in the order in which they came. Only the main thread may receive
    them.
    """
    requests: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, _: requests.append(n)) for number in numbers}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
