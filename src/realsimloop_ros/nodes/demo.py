"""`realsimloop demo`: the dual-arm cell as separate processes, and the report of what came of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.cell.scenario import load_scenario
from realsimloop_ros.compute import use_double_precision
from realsimloop_ros.estimation.estimator_file import load_estimator_file
from realsimloop_ros.evaluation.commands import headline, plain_errors
from realsimloop_ros.nodes.environment import clean_shared_memory, ros_domain, ros_environment
from realsimloop_ros.nodes.graph import Graph, dual_arm_graph
from realsimloop_ros.nodes.run_monitor import Progress, RunMonitor
from realsimloop_ros.nodes.supervisor import RunResult, run_graph
from realsimloop_ros.observation.cell_file import load_cell
from realsimloop_ros.resources import configuration_file

# What a demo writes, and so may remove again.
MARK = "demo.json"
WRITTEN = (
    "bag",
    "truth",
    "log",
    "parameters",
    "record",
    "run.json",
    "report.json",
    "report.html",
    MARK,
)
_FORMAT = "realsimloop-demo-1"
# images per camera that the cell may be ahead of theta: the estimator needs the next frame to close a segment,
# and more let the processes work side by side
AHEAD = 4
# s; a machine that is busy with other things is waited for, since a node that died ends the run anyway
PATIENCE = 600.0
# s, for the estimates that the cell was ahead of
SETTLE_TIME = 3.0
# pictures are drawn for the report, from the images: overlays and surface markers would only cost time
NOT_RECORDED = ["/rosout", "/parameter_events", ".*/transition_event", "/clock", "/overlay/.*", "/stress_markers"]
_REFRESH = 0.25  # s
_PLAIN_PERIOD = 5.0  # s between two lines where nothing can be drawn


class DemoError(ValueError):
    """The demo cannot run or came to nothing; the text names the reason and the remedy."""


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder of report, bag and logs; an earlier demo is replaced.")
    ] = Path("out/demo"),
    duration: Annotated[
        float, typer.Option(help="Seconds of virtual time; 0: the scenario's own.", min=0.0)
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the motion and of all noise.", min=0)] = 0,
    cell: Annotated[str, typer.Option(help="A cell file, or a name in config/cells.")] = "dual_arm",
    scenario: Annotated[str, typer.Option(help="A scenario file, or a name in config/scenarios.")] = "dual_arm",
) -> None:
    """Run two arms that hold a bar, their virtual cell and its twin as processes, and write a report.

    Ends with status 1 where a node failed or no estimate came.
    """
    with plain_errors():
        out = out.resolve()
        started = datetime.now(UTC)
        command = "realsimloop " + shlex.join(sys.argv[1:])
        take_folder(out, command)
        length = duration or load_scenario(configuration_file("scenarios", scenario)).duration
        graph = demo_graph(out, cell, scenario, length, seed)
        console = Console()
        result, latencies = run_watched(graph, out, cell, length, console)
        if result.status != 0:
            print(f"error: {result.reason}; logs: {out / 'log'}", file=sys.stderr)
        elif not (out / "truth" / "run.json").is_file():
            raise DemoError(f"the run was stopped before its end ({result.reason}); there is no report")
        console.print("writing the report")
        notes = [] if result.status == 0 else [f"The run failed: {result.reason}."]
        for line in _report(out, cell, seed, started, command, latencies, notes):
            console.print(line, highlight=False, soft_wrap=True)
        console.print(f"report: {out / 'report.html'}", highlight=False, soft_wrap=True)
        if result.status != 0:
            raise typer.Exit(1)


def demo_graph(out: Path, cell: str, scenario: str, duration: float, seed: int) -> Graph:
    """The graph of the dual-arm cell with a recorder, in lockstep, so that no frame is dropped."""
    graph = dual_arm_graph(cell=cell, scenario=scenario, seed=seed, duration=duration, record=str(out / "bag"))
    return graph.with_parameters(
        {
            "virtual_cell": {
                "truth_directory": str(out / "truth"),
                "wait_for_estimate": AHEAD,
                "estimate_timeout": PATIENCE,
                "wait_timeout": PATIENCE,
                "settle_time": SETTLE_TIME,
            },
            "recorder": {"exclude": NOT_RECORDED},
        }
    )


def take_folder(folder: Path, command: str) -> None:
    """Clear a folder and mark it as this command's. Raises DemoError as clear_folder does."""
    clear_folder(folder)
    with atomic_write(folder / MARK) as path:
        path.write_text(json.dumps({"format": _FORMAT, "command": command, "writes": WRITTEN}, indent=2) + "\n")


def clear_folder(folder: Path) -> None:
    """Remove what an earlier demo wrote into a folder, and nothing else. Raises DemoError where the folder holds
    something and no demo wrote it.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        return
    if not folder.is_dir():
        raise DemoError(f"{folder}: is no folder; name another one with --out")
    if any(folder.iterdir()) and not _is_ours(folder / MARK):
        raise DemoError(f"{folder}: holds files that no demo wrote; empty it, or name another folder with --out")
    for name in WRITTEN:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _is_ours(mark: Path) -> bool:
    try:
        return bool(json.loads(mark.read_text(encoding="utf-8"))["format"] == _FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def run_watched(
    graph: Graph, out: Path, cell: str, duration: float, console: Console
) -> tuple[RunResult, dict[str, NDArray[np.float64]]]:
    """Run the graph with its output in log/console.log, and show how far it is.

    duration: of the run by its own clock, s. Returns wall-clock durations by stage, s, beside the result.
    """
    (out / "log").mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(clean_shared_memory())
        domain = stack.enter_context(ros_domain())
        # this process listens on the nodes' domain, with their transport
        stack.enter_context(_environment(ros_environment(domain, out / "log" / "ros")))
        loaded = load_cell(configuration_file("cells", cell))
        estimator = load_estimator_file(loaded.resolve(loaded.estimator))
        prior = {zone: entry.youngs_modulus.start for zone, entry in estimator.zones.items()}
        monitor = stack.enter_context(RunMonitor(domain, loaded))
        screen = stack.enter_context((out / "log" / "console.log").open("w", encoding="utf-8"))
        console.print(
            f"{graph.name}: {len(graph.nodes)} processes on ROS domain {domain}, {duration:g} s of virtual time, "
            f"logs in {out / 'log'}",
            highlight=False,
            soft_wrap=True,
        )
        with _progress(monitor, _Shown(console, duration, prior)):
            result = run_graph(graph, out, console=Console(file=screen, width=160))
        return result, monitor.latencies()


@dataclass(frozen=True)
class _Shown:
    """Where progress is shown, the length of the run in s of virtual time, and the prior, Pa by zone."""

    console: Console
    duration: float
    prior: Mapping[str, float]

    def line(self, progress: Progress | None, waited: float) -> str:
        return progress_line(progress, self.duration, waited, self.prior)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _progress(monitor: RunMonitor, shown: _Shown) -> Iterator[None]:
    """Show progress on a thread: drawn on a terminal, else as a line now and then."""
    ended = threading.Event()
    draws = shown.console.is_terminal and not shown.console.is_dumb_terminal
    target = _draw if draws else _tell
    thread = threading.Thread(target=target, args=(monitor, shown, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=2.0)


def _draw(monitor: RunMonitor, shown: _Shown, ended: threading.Event) -> None:
    began = time.monotonic()
    with Live(console=shown.console, refresh_per_second=4) as live:
        while True:
            over = ended.wait(_REFRESH)
            progress = monitor.progress()
            done = 0.0 if progress is None else progress.virtual_time
            row = Table.grid(padding=(0, 1))
            row.add_row(
                ProgressBar(total=shown.duration, completed=min(done, shown.duration), width=30),
                Text(shown.line(progress, time.monotonic() - began)),
            )
            live.update(row)
            if over:
                return


def _tell(monitor: RunMonitor, shown: _Shown, ended: threading.Event) -> None:
    began = time.monotonic()
    while not ended.wait(_PLAIN_PERIOD):
        line = shown.line(monitor.progress(), time.monotonic() - began)
        shown.console.print(line, highlight=False, soft_wrap=True)


def progress_line(progress: Progress | None, duration: float, waited: float, prior: Mapping[str, float]) -> str:
    """Virtual time, real-time factor, and Young's modulus now and at the start.

    waited: s since the start; prior: Young's modulus by zone, Pa, that the estimate starts from.
    """
    if progress is None:
        return f"starting: nodes compile what they will run ({waited:.0f} s)"
    text = f"{progress.virtual_time:5.1f} of {duration:g} s, real-time factor {progress.real_time_factor:.2f}"
    if not progress.last:
        return f"{text}, no estimate yet"
    moduli = ", ".join(
        f"{zone} {prior[zone] * 1e-3:.0f} -> {last * 1e-3:.0f} kPa"
        for zone, last in zip(progress.zone_names, progress.last, strict=True)
    )
    return f"{text}, Young's modulus {moduli} after {progress.updates} updates"


def _report(
    out: Path, cell: str, seed: int, started: datetime, command: str, latencies: dict, notes: list[str]
) -> list[str]:
    from realsimloop_ros.estimation.twin import load_twin
    from realsimloop_ros.evaluation.cell_run import record_live_run
    from realsimloop_ros.evaluation.provenance import provenance
    from realsimloop_ros.evaluation.record import save_record
    from realsimloop_ros.evaluation.report import write_report

    use_double_precision()
    path = configuration_file("cells", cell)
    loaded = load_cell(path)
    twin = load_twin(loaded)
    settings = [path, loaded.resolve(loaded.body), loaded.resolve(loaded.estimator)]
    origin = provenance(
        command,
        started=started,
        seed=seed,
        body_hashes={twin.body.name: twin.body.content_hash},
        settings=settings,
    )
    record = record_live_run(
        out / "bag",
        loaded,
        twin,
        origin,
        truth_folder=out / "truth",
        latencies=latencies,
        title="Two arms hold a silicone bar: the twin beside its virtual cell",
        notes=notes,
    )
    save_record(out / "record", record)
    report = write_report(out, record)
    return headline(report)
