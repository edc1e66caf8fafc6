"""The shipped model of the dual-arm bar against the full order, on motions of which it has seen none.

Twists to 1.2 rad and shifts to 30 mm of both ends, of another seed than the motions it was made from. Pressed
together far enough, a bar may buckle one way or another by a hair: there the full order, with a modulus that is a
thousandth larger, ends elsewhere too. Such motions judge no model; they are found by that, shown, and left out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.dynamics.reduce import HeldOutError, distances_to_full_order, pooled_error
from realsimloop_ros.reduction.model import ReducedBody, load_reduced_body
from realsimloop_ros.reduction.snapshots import SnapshotSettings, simulate_motion, simulate_snapshots
from realsimloop_ros.resources import share_directory

MOTIONS = SnapshotSettings(trajectories=50, bend=0.0, seed=78)
_CHANGE = 1e-3


@dataclass(frozen=True)
class JudgedMotion:
    """index: of the motion; youngs_modulus: Pa; nearest: least distance of the grips, m; rms: of the model to the
    full order, m, none where it diverged; moved: rms by which a thousandth of the modulus moves the full
    order, m; determined: whether that is less than a thousandth of the body's size."""

    index: int
    youngs_modulus: float
    poisson_ratio: float
    nearest: float
    rms: float | None
    moved: float
    determined: bool


def judge(
    reduced: ReducedBody, settings: SnapshotSettings, console: Console
) -> tuple[list[JudgedMotion], HeldOutError]:
    """All motions, and the model's error over those that the full order itself answers."""
    body, model = reduced.body, reduced.model(dtype=np.float32)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    motions: list[JudgedMotion] = []
    judging: list[NDArray[np.float64] | None] = []
    with Progress(*columns, console=console, transient=True) as progress:
        for index in progress.track(range(settings.trajectories), description="motions"):
            true = simulate_snapshots(body, settings, index)
            changed = true.youngs_modulus * (1.0 + _CHANGE)
            other = simulate_motion(body, settings, true.grip_poses, true.gravity, changed, true.poisson_ratio)
            kept = min(len(true.kept), len(other.kept))
            apart = np.linalg.norm(other.positions[:kept] - true.positions[:kept], axis=2)
            distances = distances_to_full_order(body, model, true, settings.integrator)
            ends = true.kept_poses[:, [0, -1], :3]
            moved = _rms(apart)
            motions.append(
                JudgedMotion(
                    index,
                    true.youngs_modulus,
                    true.poisson_ratio,
                    float(np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1).min()),
                    None if distances is None else _rms(distances),
                    moved,
                    moved < _CHANGE * body.size,
                )
            )
            if motions[-1].determined:
                judging.append(distances)
    return motions, pooled_error(body, judging)


def _known(motion: JudgedMotion) -> float:
    return np.inf if motion.rms is None else motion.rms


def _rms(distances: NDArray[np.floating]) -> float:
    return float(np.sqrt(np.mean(np.square(distances, dtype=np.float64))))


def show(motions: list[JudgedMotion], error: HeldOutError, console: Console) -> None:
    """The pooled error, and the motions that make up most of it or are left out."""
    card = error.as_card()
    table = Table(
        "motion", "E", "nu", "ends", "rms", "full order moves", title="the worst, and those without an answer"
    )
    for motion in sorted(motions, key=lambda motion: (motion.determined, -_known(motion)))[:8]:
        table.add_row(
            str(motion.index),
            f"{1e-3 * motion.youngs_modulus:.0f} kPa",
            f"{motion.poisson_ratio:.3f}",
            f"{1e3 * motion.nearest:.0f} mm",
            f"{1e3 * _known(motion):.3f} mm",
            f"{1e3 * motion.moved:.3f} mm" + ("" if motion.determined else ": left out"),
        )
    console.print(table)
    console.print(
        f"{error.rollouts} motions: rms {card['rms_percent']:.3f} %, p99 {card['p99_percent']:.3f} % of the size, "
        f"largest {1e3 * error.maximum:.1f} mm, {error.diverged} diverged; "
        f"{sum(not motion.determined for motion in motions)} left out",
        highlight=False,
    )


def run_judgement(
    out: Annotated[Path, typer.Option(help="Folder of judgement.json.")] = Path("out/bench"),
    model: Annotated[Path | None, typer.Option(help="Reduced model; default: that of the dual-arm bar.")] = None,
    motions: Annotated[int, typer.Option(help="How many motions.", min=1)] = MOTIONS.trajectories,
) -> None:
    """Judge a reduced model on motions that it has not seen, some three seconds each."""
    use_double_precision()
    console = Console(width=110)
    reduced = load_reduced_body(model or share_directory() / "config" / "models" / "dual_arm_bar.npz")
    judged, error = judge(reduced, replace(MOTIONS, trajectories=motions), console)
    show(judged, error, console)
    path = out / "judgement.json"
    content = {"pooled": error.as_card(), "motions": [asdict(motion) for motion in judged]}
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    console.print(str(path), highlight=False)


if __name__ == "__main__":
    use_one_core()
    typer.run(run_judgement)
