"""`make bench`: time per step and per window gradient, full order beside reduced, in one run.

Both walk the same grip motion of the shipped dual-arm bar with the same law, time step and integrator. A window
gradient is a rollout over all steps of w frames together with the derivatives of every state along log E and nu;
in full order, the faster of these and of the adjoint of a loss of all positions.
What is compared takes turns, repetition by repetition, so that a machine that is busy for a while is busy for
all. Times are medians, with their tenth and ninetieth percentiles; ratios are of medians.
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
from numpy.typing import DTypeLike, NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.dynamics.rollout import no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.evaluation.provenance import package_versions
from realsimloop_ros.mechanics.full_order import SolveResult
from realsimloop_ros.mechanics.full_order_gradient import DifferentiableFullOrderSolver
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import ReducedBody, every_sample, load_reduced_body
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from realsimloop_ros.resources import share_directory

TIME_STEP = 1.0 / 60.0
_MATERIAL = Material(np.array([0.24e6]), np.array([0.45]), np.array([0.0]), np.array([1070.0]))
# along log E and nu
_DIRECTIONS = Material(np.array([[0.24e6], [0.0]]), np.array([[0.0], [1.0]]), np.zeros((2, 1)), np.zeros((2, 1)))

Work = Callable[[], list[float]]


class BenchError(RuntimeError):
    """A measurement that would mean nothing, because what it timed did not come to its end."""


@dataclass(frozen=True)
class Settings:
    """What is timed: windows of `frames` frames of `ticks` steps each, `repetitions` times."""

    frames: int
    ticks: int
    repetitions: int

    @property
    def steps(self) -> int:
        """Steps of a window."""
        return self.frames * self.ticks


# as the estimator of the dual-arm cell is set: 8 frames at 10 Hz, steps at 60 Hz
USUAL, QUICK = Settings(frames=8, ticks=6, repetitions=8), Settings(frames=1, ticks=3, repetitions=2)


@dataclass(frozen=True)
class Timing:
    """Durations, s."""

    samples: NDArray[np.float64]

    @property
    def median_ms(self) -> float:
        """Median, ms."""
        return 1e3 * float(np.median(self.samples))

    def cells(self) -> tuple[str, str]:
        """Median, and tenth to ninetieth percentile, ms."""
        low, high = 1e3 * np.percentile(self.samples, [10, 90])
        return f"{self.median_ms:.3g}", f"{low:.3g} - {high:.3g}"


def timed(work: Callable[[], object]) -> float:
    """Duration of a call, s."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def taking_turns(works: dict[str, Work], repetitions: int, console: Console) -> dict[str, Timing]:
    """Durations of every work, one after the other in each repetition, after a round that compiles."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    samples: dict[str, list[float]] = {name: [] for name in works}
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("timing", total=(repetitions + 1) * len(works))
        for repetition in range(repetitions + 1):
            for name, work in works.items():
                progress.update(task, description=f"{name if repetition else name + ', compiling':40}")
                durations = work()
                if repetition:
                    samples[name] += durations
                progress.advance(task)
    return {name: Timing(np.array(values)) for name, values in samples.items()}


def grip_motion(reduced: ReducedBody) -> NDArray[np.float64]:
    """Poses (t, g, 7) of both grips passing two random targets in 0.8 s: motions as the model was learnt from."""
    settings = SnapshotSettings(steps=USUAL.steps, time_step=TIME_STEP, keyframes=2)
    return random_grip_motion(reduced.body, settings, np.random.default_rng(5))


def full_order_works(reduced: ReducedBody, poses: NDArray[np.float64]) -> tuple[Work, Work, Work]:
    """Steps one by one, and a window gradient by tangents and by the adjoint, in full space."""
    solver = DifferentiableFullOrderSolver(
        reduced.body, StableNeoHookean(), time_step=TIME_STEP, integrator=BDF2, move_tolerance=1e-8
    )
    first, _ = solver.static_state(_MATERIAL, poses[0])

    def checked(result: SolveResult) -> None:
        if result is not SolveResult.CONVERGED:
            raise BenchError(f"full order: a step ended as {result.name}")

    def steps() -> list[float]:
        state, durations = first, []
        for pose in poses:
            began = time.perf_counter()
            state, report = solver.step(state, _MATERIAL, pose)
            durations.append(time.perf_counter() - began)
            checked(report.result)
        return durations

    def window() -> None:
        state, tangents = first, np.zeros((*first.history.shape, 2))
        for pose in poses:
            state, tangents, report = solver.step_with_tangents(state, tangents, _MATERIAL, _DIRECTIONS, pose)
            checked(report.result)

    loss_gradients = np.ones((len(poses), *first.history.shape[1:]))

    def swept() -> None:
        state, path = first, []
        for pose in poses:
            state, report = solver.step(state, _MATERIAL, pose)
            checked(report.result)
            path.append(state.positions)
        solver.adjoint(first, np.array(path), _MATERIAL, loss_gradients)

    return steps, lambda: [timed(window)], lambda: [timed(swept)]


def reduced_works(
    reduced: ReducedBody, poses: NDArray[np.float64], dtype: DTypeLike | None = None
) -> tuple[Work, Work]:
    """A step, as part of a window, and a window gradient, of a reduced model; dtype: its precision, double unless
    given."""
    model, settings, path = reduced.model(dtype=dtype), StepSettings(BDF2, TIME_STEP), jnp.asarray(poses)
    material = Material(*map(jnp.asarray, _MATERIAL))

    def window(directions: Material) -> Callable[[], None]:
        start, _ = rest_state(model, settings, material, directions, path[0])

        def run() -> None:
            end = jax.block_until_ready(rollout(model, settings, material, directions, start, path))
            if (np.asarray(end[1].results) != CONVERGED).any():
                raise BenchError("reduced: a step did not converge")

        return run

    plain, derived = window(no_directions(1)), window(Material(*map(jnp.asarray, _DIRECTIONS)))
    return lambda: [timed(plain) / len(poses)], lambda: [timed(derived)]


def measured(reduced: ReducedBody, settings: Settings, console: Console) -> tuple[list[dict], Table]:
    """Rows of reduction.json, with the shipped cubature in single and double precision and with all samples, and
    their table."""
    poses = grip_motion(reduced)[: settings.steps]
    complete = ReducedBody(reduced.body, reduced.basis, *every_sample(reduced.body), reduced.card)
    models = {
        "cubature, single precision": (reduced, np.float32),
        "cubature": (reduced, np.float64),
        "all samples": (complete, np.float64),
    }
    works: dict[str, Work] = {}
    full_order = ("full order, step", "full order, window gradient", "full order, window adjoint")
    works |= dict(zip(full_order, full_order_works(reduced, poses), strict=True))
    for label, (body, dtype) in models.items():
        works[f"{label}, step"], works[f"{label}, window gradient"] = reduced_works(body, poses, dtype)
    timings = taking_turns(works, settings.repetitions, console)

    table = Table(
        title=(
            f"{reduced.body.name}: {len(reduced.body.rest_positions)} vertices, {len(reduced.body.tets)} tets; "
            f"ms; window: {settings.frames} x {settings.ticks} steps"
        )
    )
    for heading in ("", "step", "p10 - p90", "ratio", "window gradient", "p10 - p90", "ratio"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    full_step = timings[full_order[0]]
    full_gradient = min((timings[name] for name in full_order[1:]), key=lambda timing: timing.median_ms)
    table.add_row("full order", *full_step.cells(), "1", *full_gradient.cells(), "1")
    rows = []
    for label, (body, dtype) in models.items():
        step, gradient = timings[f"{label}, step"], timings[f"{label}, window gradient"]
        card, r = _judgement(reduced, body is reduced), body.latent_size
        table.add_row(
            f"r = {r}, {len(body.sample_index)} samples, {np.dtype(dtype).name}",
            *step.cells(),
            f"{full_step.median_ms / step.median_ms:.0f}",
            *gradient.cells(),
            f"{full_gradient.median_ms / gradient.median_ms:.0f}",
        )
        rows.append(
            {
                "subspace": reduced.card.get("subspace"),
                "r": r,
                "cubature": body is reduced,
                "precision": np.dtype(dtype).name,
                "tets": len(body.body.tets),
                "rms_percent": card.get("rms_percent"),
                "p99_percent": card.get("p99_percent"),
                "step_ms": step.median_ms,
                "full_step_ms": full_step.median_ms,
                "window_gradient_ms": gradient.median_ms,
                "full_window_gradient_ms": full_gradient.median_ms,
                "diverged": card.get("diverged"),
            }
        )
    return rows, table


def _judgement(reduced: ReducedBody, cubature: bool) -> dict:
    """Held-out errors from the model's card: of the model as it is, or with all samples."""
    kept = [entry for key in ("points", "cubature") if not (entry := reduced.card.get(key, {})).get("refused")]
    found: dict = next((entry for entry in kept if entry), {}) if cubature else {}
    return found or reduced.card.get("all_samples", {})


def processor() -> str:
    """Name of the processor."""
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def bench(
    out: Annotated[Path, typer.Option(help="Folder of reduction.json and machine.json.")] = Path("out/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="A short window, twice: times mean little.")] = False,
) -> None:
    """Time full order and reduced model side by side on the shipped dual-arm bar."""
    use_double_precision()
    console = Console(width=124)  # a narrower one would cut figures off
    settings = QUICK if quick else USUAL
    reduced = load_reduced_body(share_directory() / "config" / "models" / "dual_arm_bar.npz")
    cores, load_before = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    rows, table = measured(reduced, settings, console)
    versions = package_versions()
    about = {
        "processor": processor(),
        "cores": cores,
        "system": platform.platform(),
        "jax_backend": jax.default_backend(),
        "versions": versions,
        "load_average": [load_before, os.getloadavg()[0]],
        "frames": settings.frames,
        "steps_per_frame": settings.ticks,
        "repetitions": settings.repetitions,
    }
    console.print(table)
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    console.print(f"{cores} cores of {processor()}; {listed}", highlight=False)
    if load_before > cores:
        console.print(
            f"the machine was busy with other work (load {load_before:.1f}): times are longer than its own, "
            "ratios hold better",
            style="yellow",
        )
    for name, content in (("reduction.json", rows), ("machine.json", about)):
        with atomic_write(out / name) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    console.print(str(out / "reduction.json"), highlight=False)


if __name__ == "__main__":
    # as the nodes run; the full-order solver assembles on all cores none the less
    use_one_core()
    typer.run(bench)
