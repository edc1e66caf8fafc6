"""`make faults`: a recorded cell with each fault in turn, through the path that a live run takes.

Every fault begins two fifths into the recording. What is asked: theta stays within 10 % of the fault-free truth,
and a condition of the cameras' health names the fault within a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.estimation.twin import Twin, load_twin
from realsimloop_ros.evaluation.cell_recording import Notices
from realsimloop_ros.evaluation.cell_run import load_cell_truth
from realsimloop_ros.evaluation.commands import plain_errors
from realsimloop_ros.evaluation.faults import FAULTS, write_faulty_bag
from realsimloop_ros.evaluation.replay import replay_cell_bag
from realsimloop_ros.observation.cell_file import CellFile, load_cell
from realsimloop_ros.resources import configuration_file

_PAGE = """# Faults

A recording of the dual-arm cell with each fault in turn, put into its images and stamps two fifths into it and
replayed through synchroniser, masker, health check and estimator. *Largest error* is that of Young's modulus in
any zone, from the moment of the fault on, against the reference that the truth defines; *named* is how long after
its beginning a condition told of it. Where one camera has the fault, it is the last of the cell. This page is
written by

    make faults

and one of them is looked at by `realsimloop evaluate BAG --cell dual_arm --fault NAME --out FOLDER`, which also
leaves the faulty bag, to be replayed to the nodes.

| fault | what happens | updates | largest error of E (%) | last error (%) | named after (s) | as |
|---|---|---:|---:|---:|---:|---|
"""


@dataclass(frozen=True)
class FaultRow:
    """What became of one fault. Errors of E are parts of the reference; named_after: s, None where never."""

    name: str
    description: str
    updates: int
    largest_error: float
    last_error: float
    named_after: float | None
    named_as: str


def fault_row(bag: Path, cell: CellFile, twin: Twin, reference: np.ndarray, name: str, seed: int = 0) -> FaultRow:
    """One fault. reference: Young's modulus by zone, Pa."""
    fault = FAULTS[name]
    with TemporaryDirectory() as folder:
        faulty = Path(folder) / "bag"
        begin = write_faulty_bag(bag, faulty, cell, name, seed)
        replay = replay_cell_bag(faulty, cell, twin, Notices())
    errors = np.array([np.abs(u.material.youngs_modulus / reference - 1.0).max() for u in replay.updates])
    # updates in the order of their coming: those of the recording's last three fifths
    after = errors[round(0.4 * len(errors)) :]
    told = [c for c in replay.conditions if c.kind.startswith(fault.named_by) and c.stamp_ns >= begin]
    first = min(told, key=lambda condition: condition.stamp_ns, default=None)
    return FaultRow(
        name,
        fault.description,
        len(replay.updates),
        float(after.max()),
        float(errors[-1]),
        None if first is None else (first.stamp_ns - begin) * 1e-9,
        "" if first is None else first.text,
    )


def page(rows: list[FaultRow]) -> str:
    """The page in Markdown."""
    lines = [
        f"| `{row.name}` | {row.description} | {row.updates} | {100.0 * row.largest_error:.1f} | "
        f"{100.0 * row.last_error:.1f} | {'never' if row.named_after is None else f'{row.named_after:.2f}'} | "
        f"{row.named_as} |"
        for row in rows
    ]
    return _PAGE + "\n".join(lines) + "\n"


def fault_study(
    bag: Annotated[
        Path, typer.Argument(help="Bag of a virtual cell with `truth` beside it, as the demo leaves it.")
    ],
    cell: Annotated[str, typer.Option(help="A cell file, or a name in config/cells.")] = "dual_arm",
    docs: Annotated[Path | None, typer.Option(help="Folder in which faults.md is written anew.")] = None,
) -> None:
    """Evaluate a recording with each fault in turn (a minute each)."""
    use_double_precision()
    console = Console(width=120)
    with plain_errors():
        loaded = load_cell(configuration_file("cells", cell))
        twin = load_twin(loaded)
        truth = {entry.zone: entry for entry in load_cell_truth(bag.parent / "truth", Notices()).references}
        reference = np.array([truth[zone].youngs_modulus for zone in twin.body.zone_names])
        rows = []
        for name in track(FAULTS, "faults", console=console, transient=True):
            rows.append(fault_row(bag, loaded, twin, reference, name))
            console.print(rows[-1])
        if docs is not None:
            with atomic_write(docs / "faults.md") as path:
                path.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    use_one_core()
    typer.run(fault_study)
