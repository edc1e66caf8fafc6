"""`make bench`: how long a frame takes to become theta while a recorded cell is replayed in real time.

The bag of a cell is played at its own pace to camera_sync, simulator, estimator and stress, each a process, all
on two cores. Beside them runs a recorder of what they make of it, from which every figure is taken. Latency is
told by the clock of the bag, which ticks with each of its messages: from the mean stamp of a set of images to the
arrival of the theta of that set, the wait for the frame that closes its segment included.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.compute import use_double_precision
from realsimloop_ros.evaluation.bags import bag_topics
from realsimloop_ros.evaluation.cell_reconstruction import reconstruction
from realsimloop_ros.evaluation.cell_recording import Notices, read_cell_recording
from realsimloop_ros.evaluation.cell_run import load_cell_truth
from realsimloop_ros.evaluation.commands import plain_errors
from realsimloop_ros.evaluation.metrics import summarize_errors
from realsimloop_ros.nodes.demo import PATIENCE, demo, run_watched, take_folder
from realsimloop_ros.nodes.graph import Graph, replay_graph
from realsimloop_ros.observation.cell_file import CellFile, load_cell
from realsimloop_ros.reduction.model import load_reduced_body
from realsimloop_ros.resources import configuration_file

CORES = 2
_RECORDED = ["/theta", "/state", "/observation", "/truth/state", "/diagnostics"]


class AdaptationError(ValueError):
    """A replay of which there is nothing to tell; the text names the bag and the reason."""


@dataclass(frozen=True)
class Adaptation:
    """What adaptation.json holds.

    p50_s, p99_s: one update of theta; latency_p50_s, latency_p99_s: from the cameras' stamp to theta's arrival;
    frames: that became theta; dropped: those that did not, but for the last, which only closes a segment;
    reconstruction: distance of twin and truth over all free vertices and times, None without a truth.
    """

    p50_s: float
    p99_s: float
    latency_p50_s: float
    latency_p99_s: float
    frames: int
    dropped: int
    reconstruction_mean_mm: float | None
    reconstruction_p95_mm: float | None


@dataclass(frozen=True)
class Measured:
    """The figures, and what the nodes dropped, by `NODE.CAUSE`."""

    adaptation: Adaptation
    drops: dict[str, int]


def adaptation_graph(bag: Path, cell: str, record: Path) -> Graph:
    """The twin beside a bag that is played in real time, with a recorder of what it makes of it."""
    graph = replay_graph(bag=str(bag), cell=cell, record=str(record))
    return graph.with_parameters(
        {"bag_player": {"wait_timeout": PATIENCE, "settle_time": 3.0}, "recorder": {"topics": _RECORDED}}
    )


def adaptation_of(replayed: Path, recorded_frames: int, truth_folder: Path, cell: CellFile) -> Measured:
    """The figures of a replay whose outputs are in the bag `replayed`.

    recorded_frames: sets of images in the bag that was played. Raises AdaptationError where no theta came.
    """
    truth = load_cell_truth(truth_folder, Notices()).body
    body = load_reduced_body(cell.resolve(cell.reduced_model)).body
    hashes = (body.content_hash, Notices(), None if truth is None else truth.content_hash)
    recording = read_cell_recording(replayed, *hashes)
    if not recording.theta:
        raise AdaptationError(f"{replayed}: no theta came; see the log of the estimator beside it")
    p50, p99 = np.percentile([sample.solve_time for sample in recording.theta], [50, 99])
    latency_p50, latency_p99 = np.percentile(recording.delays["theta"], [50, 99])
    distances = None
    if truth is not None and recording.twin is not None and recording.truth is not None:
        trace = reconstruction(body, recording.twin, truth, recording.truth)
        distances = summarize_errors(np.asarray(trace.errors, np.float64), body.size)
    frames = len(recording.theta)
    found = Adaptation(
        float(p50),
        float(p99),
        float(latency_p50),
        float(latency_p99),
        frames,
        max(recorded_frames - 1 - frames, 0),
        None if distances is None else 1e3 * distances.mean,
        None if distances is None else 1e3 * distances.p95,
    )
    return Measured(found, recording.drops)


def recorded_sets(bag: Path, cell: CellFile) -> int:
    """Sets of images in a bag: as many as its busiest camera brought."""
    topics = {camera.image_topic for camera in cell.cameras}
    return max((topic.count for topic in bag_topics(bag) if topic.name in topics), default=0)


def adaptation_bench(
    out: Annotated[Path, typer.Option(help="Folder of adaptation.json.")] = Path("out/bench"),
    bag: Annotated[
        Path | None, typer.Option(help="Bag of a cell to replay, with `truth` beside it. Default: a new one.")
    ] = None,
    duration: Annotated[float, typer.Option(help="Length of a new bag, s; 0: the scenario's own.", min=0.0)] = 0.0,
    cell: Annotated[str, typer.Option(help="A cell file, or a name in config/cells.")] = "dual_arm",
) -> None:
    """Replay a cell's bag in real time through the twin's nodes on two cores, and time each adapted frame."""
    console = Console()
    with plain_errors():
        out = out.resolve()
        # the processes of the graph inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        if bag is None:
            console.print("recording a bag: the cell in lockstep with its twin, which takes as long as it takes")
            demo(out=out / "adaptation_recorded", duration=duration, seed=0, cell=cell, scenario="dual_arm")
            bag = out / "adaptation_recorded" / "bag"
        loaded = load_cell(configuration_file("cells", cell))
        folder = out / "adaptation_replayed"
        take_folder(folder, shlex.join(sys.argv))
        load = os.getloadavg()[0]
        graph = adaptation_graph(bag.resolve(), cell, folder / "bag")
        sets = recorded_sets(bag, loaded)
        result, _ = run_watched(graph, folder, cell, sets / max(camera.rate for camera in loaded.cameras), console)
        if result.status != 0:
            raise AdaptationError(f"the replay failed: {result.reason}; logs: {folder / 'log'}")
        use_double_precision()
        found = adaptation_of(folder / "bag", sets, bag.resolve().parent / "truth", loaded)
        with atomic_write(out / "adaptation.json") as path:
            path.write_text(json.dumps(asdict(found.adaptation), indent=1) + "\n", encoding="utf-8")
        console.print(_table(found, load))
        if load > 1.0:
            console.print(f"the machine was busy with other work (load {load:.1f}): times are longer than its own")
        console.print(str(out / "adaptation.json"), highlight=False, soft_wrap=True)


def _table(measured: Measured, load: float) -> Table:
    found = measured.adaptation
    table = Table("", "p50", "p99", title=f"adaptation, {CORES} cores, load before {load:.1f}")
    table.add_row("one update of theta (ms)", f"{1e3 * found.p50_s:.0f}", f"{1e3 * found.p99_s:.0f}")
    latency = (f"{1e3 * found.latency_p50_s:.0f}", f"{1e3 * found.latency_p99_s:.0f}")
    table.add_row("cameras' stamp to theta (ms)", *latency)
    table.add_row("frames adapted, dropped", str(found.frames), str(found.dropped))
    if found.reconstruction_mean_mm is not None:
        distance = (f"mean {found.reconstruction_mean_mm:.2f}", f"p95 {found.reconstruction_p95_mm:.2f}")
        table.add_row("twin to truth (mm)", *distance)
    for cause, number in measured.drops.items():
        if number:
            table.add_row(cause, str(number), "")
    return table


if __name__ == "__main__":
    typer.run(adaptation_bench)
