"""One node as a process: its command line, its output on screen and in a log, its signals and restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import yaml
from rich.console import Console
from rich.text import Text

from realsimloop_ros.nodes.graph import Graph, NodeSpecification

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
RESPAWN_DELAY = 1.0  # s
TAIL_LINES = 20


def ros_arguments(node: NodeSpecification, parameter_file: Path | None) -> list[str]:
    """The command line behind the executable: name, namespace, remappings, parameters."""
    rules = [f"__node:={node.name}"]
    if node.namespace:
        rules.append(f"__ns:=/{node.namespace.strip('/')}")
    rules += [f"{source}:={target}" for source, target in node.remappings]
    arguments = [*node.arguments, "--ros-args"]
    for rule in rules:
        arguments += ["-r", rule]
    if parameter_file is not None:
        arguments += ["--params-file", str(parameter_file)]
    return arguments


class Screen:
    """Lines of all nodes, each behind its node's name."""

    def __init__(self, console: Console, graph: Graph) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._width = max((len(node.name) for node in graph.nodes), default=0)
        self._styles = {node.name: COLOURS[k % len(COLOURS)] for k, node in enumerate(graph.nodes)}

    def line(self, name: str, text: str) -> None:
        """A line of node `name`."""
        prefix = Text(f"{name:>{self._width}} | ", style=self._styles.get(name, ""))
        with self._lock:
            self._console.print(prefix + Text.from_ansi(text), soft_wrap=True, highlight=False)

    def say(self, text: str, style: str = "bold") -> None:
        """A line of the supervisor itself."""
        with self._lock:
            self._console.print(Text(text, style=style), soft_wrap=True, highlight=False)


class NodeProcess:
    """One node's process, its log and its restarts."""

    def __init__(
        self,
        node: NodeSpecification,
        command: Sequence[str],
        environment: dict[str, str],
        output: Path,
        screen: Screen,
    ) -> None:
        self.node = node
        self.log = output / "log" / f"{node.name}.log"
        self.restarts = 0
        self.killed = False
        self.exit_status: int | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._screen = screen
        self._environment = environment
        self._popen: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._respawn_at: float | None = None
        parameter_file: Path | None = None
        if node.parameters:
            parameter_file = output / "parameters" / f"{node.name}.yaml"
            values = {key: list(v) if isinstance(v, tuple) else v for key, v in node.parameters.items()}
            parameter_file.write_text(yaml.safe_dump({"/**": {"ros__parameters": values}}, sort_keys=False))
        self._command = [*command, *ros_arguments(node, parameter_file)]
        self.log.write_bytes(b"")

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.exit_status, self._respawn_at = None, None
        self._popen = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,  # Ctrl-C reaches the supervisor only, which stops the nodes in order
        )
        assert self._popen.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._popen.stdout,), daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        """Started, and not known to have ended."""
        return self._popen is not None and self.exit_status is None

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        if self.exit_status is None:
            return "still running"
        if self.exit_status < 0:
            return f"signal {signal.Signals(-self.exit_status).name}"
        return f"exit code {self.exit_status}"

    def poll(self) -> bool:
        """Whether the process ended since the last call."""
        if self._popen is None or self.exit_status is not None or self._popen.poll() is None:
            return False
        self._ended()
        return True

    def respawn_later(self) -> None:
        """Have `respawn_if_due` start it again after RESPAWN_DELAY."""
        self._respawn_at = time.monotonic() + RESPAWN_DELAY

    def respawn_if_due(self) -> None:
        """Start it again where that was asked for and the delay is over."""
        if self._respawn_at is not None and time.monotonic() >= self._respawn_at:
            self.restarts += 1
            self.start()

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole process group: a node's own children too. What outlives the node can only be
        killed.
        """
        self._respawn_at = None
        if self._popen is None or not (self.running or number == signal.SIGKILL):
            return
        self.killed = self.killed or (number == signal.SIGKILL and self.running)
        try:
            os.killpg(self._popen.pid, number)
        except ProcessLookupError:
            return

    def _ended(self) -> None:
        assert self._popen is not None and self._reader is not None
        # what the node said last may still be in the pipe; a child of the node could hold it open for ever
        self._reader.join(timeout=0.5)
        self.exit_status = self._popen.returncode

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe, self.log.open("ab", buffering=0) as log:
            for line in pipe:
                log.write(line)
                text = line.decode(errors="replace").rstrip()
                self.tail.append(text)
                self._screen.line(self.node.name, text)
