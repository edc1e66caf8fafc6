"""`make bench`: time per step and per window gradient, full order beside reduced, in one run.

Both walk the same grip motion of the shipped dual-arm bar with the same law, time step and integrator. A window
gradient is a rollout over w frames with the derivatives of every state along log E and nu. Times are medians over
repetitions, with their tenth and ninetieth percentiles; the ratio is of the medians.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.compute import use_double_precision
from realsimloop_ros.dynamics.rollout import no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.mechanics.full_order_gradient import DifferentiableFullOrderSolver
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import ReducedBody, every_sample, load_reduced_body
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from realsimloop_ros.resources import share_directory

WINDOW_FRAMES = 8
TICKS_PER_FRAME = 6
_MATERIAL = Material(np.array([0.24e6]), np.array([0.45]), np.array([0.0]))
# along log E and nu
_DIRECTIONS = Material(np.array([[0.24e6], [0.0]]), np.array([[0.0], [1.0]]), np.zeros((2, 1)))


@dataclass(frozen=True)
class Timing:
    """Durations, s."""

    samples: NDArray[np.float64]

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    def text(self) -> str:
        """Median and spread in ms."""
        low, high = np.percentile(self.samples, [10, 90])
        return f"{1e3 * self.median:.2f} ({1e3 * low:.2f} to {1e3 * high:.2f})"


def timed(work: Callable[[], object], repetitions: int) -> Timing:
    """Durations of repeated calls, after one that compiles."""
    work()
    samples = []
    for _ in range(repetitions):
        began = time.perf_counter()
        work()
        samples.append(time.perf_counter() - began)
    return Timing(np.array(samples))


def grip_motion(reduced: ReducedBody, time_step: float, steps: int) -> NDArray[np.float64]:
    """Poses (t, g, 7) of a random motion of both grips."""
    settings = SnapshotSettings(steps=steps, time_step=time_step, keyframes=2)
    return random_grip_motion(reduced.body, settings, np.random.default_rng(5))


def time_reduced(
    reduced: ReducedBody, time_step: float, poses: NDArray[np.float64], repetitions: int
) -> tuple[Timing, Timing]:
    """One step, and one window gradient."""
    model = reduced.model()
    settings = StepSettings(BDF2, time_step)
    path = jnp.asarray(poses)
    plain = no_directions(1)
    start, _ = rest_state(model, settings, _MATERIAL, plain, path[0])
    carried, _ = rest_state(model, settings, _MATERIAL, _DIRECTIONS, path[0])
    steps = len(poses)
    whole = timed(
        lambda: jax.block_until_ready(rollout(model, settings, _MATERIAL, plain, start, path)), repetitions
    )
    gradient = timed(
        lambda: jax.block_until_ready(rollout(model, settings, _MATERIAL, _DIRECTIONS, carried, path)),
        repetitions,
    )
    return Timing(whole.samples / steps), gradient


def time_full_order(
    reduced: ReducedBody, time_step: float, poses: NDArray[np.float64], repetitions: int
) -> tuple[Timing, Timing]:
    """One step, and one window gradient (its steps timed over the motion's beginning and scaled to its length)."""
    solver = DifferentiableFullOrderSolver(
        reduced.body, StableNeoHookean(), time_step=time_step, integrator=BDF2, move_tolerance=1e-8
    )
    first, _ = solver.static_state(_MATERIAL, poses[0])
    steps, gradients = [], []
    for repetition in range(repetitions + 1):
        state = first
        tangents = np.zeros((*state.history.shape, 2))
        for pose in poses:
            began = time.perf_counter()
            plain, _ = solver.step(state, _MATERIAL, pose)
            middle = time.perf_counter()
            state, tangents, _ = solver.step_with_tangents(state, tangents, _MATERIAL, _DIRECTIONS, pose)
            ended = time.perf_counter()
            if repetition:
                steps.append(middle - began)
                gradients.append(ended - middle)
            assert np.isfinite(plain.positions).all()
    per_window = np.array(gradients).reshape(repetitions, len(poses)).sum(axis=1)
    return Timing(np.array(steps)), Timing(per_window)


def rows_of(
    reduced: ReducedBody, time_step: float, frames: int, ticks: int, repetitions: int
) -> tuple[list[dict], Table]:
    """Measurements with the shipped cubature and with all samples, and their table."""
    poses = grip_motion(reduced, time_step, frames * ticks)
    full_step, full_gradient = time_full_order(reduced, time_step, poses, max(1, repetitions // 5))
    complete = ReducedBody(reduced.body, reduced.basis, *every_sample(reduced.body), reduced.card)
    table = Table(
        "model",
        "step",
        "window gradient",
        "ratio, step",
        "ratio, gradient",
        title=(
            f"{reduced.body.name}: {len(reduced.body.tets)} quadratic tets, "
            f"window of {frames} frames of {ticks} steps; ms"
        ),
    )
    table.add_row("full order", full_step.text(), full_gradient.text(), "1", "1")
    rows = []
    for label, body, entry in (
        ("cubature", reduced, reduced.card.get("cubature", {})),
        ("all_samples", complete, reduced.card.get("all_samples", {})),
    ):
        step, gradient = time_reduced(body, time_step, poses, repetitions)
        r, count = body.basis.shape[2], len(body.sample_index)
        table.add_row(
            f"reduced, r = {r}, {count} samples",
            step.text(),
            gradient.text(),
            f"{full_step.median / step.median:.1f}",
            f"{full_gradient.median / gradient.median:.1f}",
        )
        rows.append(
            {
                "subspace": reduced.card.get("subspace"),
                "r": r,
                "cubature": label == "cubature",
                "tets": len(body.body.tets),
                "rms_percent": entry.get("rms_percent"),
                "p99_percent": entry.get("p99_percent"),
                "step_ms": 1e3 * step.median,
                "full_step_ms": 1e3 * full_step.median,
                "window_gradient_ms": 1e3 * gradient.median,
                "full_window_gradient_ms": 1e3 * full_gradient.median,
                "diverged": entry.get("diverged"),
            }
        )
    return rows, table


def bench(
    out: Annotated[Path, typer.Option(help="Folder of reduction.json.")] = Path("out/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="A short window and few repetitions.")] = False,
) -> None:
    """Time full order and reduced model side by side on the shipped dual-arm bar."""
    use_double_precision()
    console = Console(width=110)
    reduced = load_reduced_body(share_directory() / "config" / "models" / "dual_arm_bar.npz")
    frames, repetitions = (1, 3) if quick else (WINDOW_FRAMES, 15)
    with console.status("timing; some minutes on two cores"):
        rows, table = rows_of(reduced, 1 / 60, frames, TICKS_PER_FRAME, repetitions)
    console.print(table)
    versions = f"Python {platform.python_version()}, jax {jax.__version__}"
    console.print(
        f"{os.cpu_count()} cores, {platform.machine()}, {versions}; medians, 10th to 90th percentile in brackets"
    )
    path = out / "reduction.json"
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(rows, indent=1))
    console.print(f"{path}")


if __name__ == "__main__":
    typer.run(bench)
