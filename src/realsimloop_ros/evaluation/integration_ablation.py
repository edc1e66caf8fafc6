"""`make ablation-integration`: four time integrators on one problem, in full space.

The shape of the real beam, 100 x 30 x 30 mm, clamped at one end, is let go from its undeformed shape and swings
under its own weight for a second: once without damping, once with the damping that was identified on the real
beam. The reference is the leapfrog scheme (semi-implicit Euler begun half a step early) at a quarter of its stable
step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from realsimloop_ros.body.body import Body, Zone
from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.body.meshing import box_bar
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.evaluation.integration_page import page, picture
from realsimloop_ros.evaluation.metrics import free_oscillation
from realsimloop_ros.mechanics.explicit import ExplicitScheme, ExplicitSolver, MovingState, RunResult
from realsimloop_ros.mechanics.full_order import FullOrderSolver, FullOrderState, SolveResult
from realsimloop_ros.mechanics.integrators import BDF2, IMPLICIT_EULER, Integrator
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import Material, material_of

SAMPLING = 60  # states compared, per second
_LAW = StableNeoHookean()
SCHEMES = ("explicit_euler", "semi_implicit_euler", "implicit_euler", "bdf2")


@dataclass(frozen=True)
class Settings:
    """divisions: of the beam's mesh; seconds: simulated; splits: implicit steps from one sample to the next."""

    divisions: tuple[int, int, int]
    seconds: float
    splits: tuple[int, ...]


USUAL = Settings((8, 2, 2), 1.0, (1, 2, 4, 8, 16))
QUICK = Settings((4, 1, 1), 0.4, (1, 4))


@dataclass(frozen=True)
class Damping:
    """viscosity: Pa s; mass_damping: 1/s."""

    name: str
    viscosity: float
    mass_damping: float


# the second as identified, see config/experiments/beam_gravity.yaml
DAMPINGS = (Damping("undamped", 0.0, 0.0), Damping("damped", 196.0, 2.46))


@dataclass(frozen=True)
class Swing:
    """What a run gave at 60 Hz. tip: (t,) height of the free end, m; energy: (t,) J; cost: processor s per s."""

    tip: NDArray[np.float64]
    energy: NDArray[np.float64]
    cost: float
    result: str


@dataclass(frozen=True)
class Row:
    """One scheme at one step.

    error_percent: rms of the tip's height against the reference, per cent of its swing; energy_error_percent: at
    the end, against the reference, per cent of the largest kinetic energy; frequency_error_percent; log_decrement:
    per period; reference_log_decrement: what physics damps; cost: processor seconds per simulated second. None
    where the run did not come to its end.
    """

    damping: str
    scheme: str
    time_step: float
    stable_step: float | None
    result: str
    error_percent: float | None = None
    energy_error_percent: float | None = None
    frequency_error_percent: float | None = None
    log_decrement: float | None = None
    reference_log_decrement: float | None = None
    cost: float | None = None


def beam(divisions: tuple[int, int, int]) -> Body:
    """The beam, clamped at x = 0."""
    x, tets = box_bar(0.1, 0.03, 0.03, divisions)
    clamped = np.flatnonzero(x[:, 0] < 1e-9)
    zone = np.zeros(len(tets), np.int64)
    return Body("beam", x, tets, zone, (Zone("silicone", 1070.0),), fixed_vertices=clamped)


class Problem:
    """The swing of one beam with one damping."""

    def __init__(self, settings: Settings, damping: Damping) -> None:
        self.settings, self.damping = settings, damping
        self.body = beam(settings.divisions)
        self.material: Material = material_of(self.body, 264e3, 0.45, damping.viscosity)
        self.samples = round(settings.seconds * SAMPLING)
        self._tip = self.body.rest_positions[:, 0] > 0.1 - 1e-9

    def explicit_solver(self, scheme: ExplicitScheme, split: int) -> ExplicitSolver:
        """A solver of `split` steps between two samples."""
        h = 1.0 / (SAMPLING * split)
        return ExplicitSolver(self.body, _LAW, time_step=h, scheme=scheme, mass_damping=self.damping.mass_damping)

    def stable_split(self, scheme: ExplicitScheme) -> int | None:
        """The fewest steps between two samples that are stable; None where no step is."""
        limit = self.explicit_solver(scheme, 1).stability_limit(self.material).time_step
        return None if limit == 0.0 else int(np.ceil(1.0 / (SAMPLING * limit)))

    def explicit(self, scheme: ExplicitScheme, split: int, *, half_step_early: bool = False) -> Swing:
        """A run; half_step_early: begin with the velocity half a step before, which makes it leapfrog."""
        solver = self.explicit_solver(scheme, split)
        start = solver.rest_state()
        if half_step_early:
            early = np.tile(-0.5 * solver.time_step * solver.gravity, (len(start.positions), 1))
            early[self.body.held_vertices] = 0.0
            start = MovingState(start.positions, early)
        solver.run(start, self.material, split, split)  # compiles
        began = time.process_time()
        states, result = solver.run(start, self.material, split * self.samples, split)
        cost = (time.process_time() - began) / self.settings.seconds
        return self._path([solver.rest_state(), *states], cost, result.name)

    def implicit(self, scheme: Integrator, split: int) -> Swing:
        """A run of an implicit integrator."""
        solver = FullOrderSolver(
            self.body,
            _LAW,
            time_step=1.0 / (SAMPLING * split),
            integrator=scheme,
            mass_damping=self.damping.mass_damping,
        )
        ages = solver.time_step * np.arange(scheme.history)
        fall = 0.5 * solver.gravity * ages[:, None] ** 2 if scheme.history > 2 else np.zeros((scheme.history, 3))
        # the past of a body that comes to rest at this moment, and goes on with the same acceleration: from a past
        # at rest, where acceleration jumps, BDF2 lags by two thirds of a step for ever
        history = solver.rest_state().history + fall[:, None]
        history[:, self.body.held_vertices] = self.body.rest_positions[self.body.held_vertices]
        state = FullOrderState(history)
        solver.step(state, self.material)  # compiles
        states, result = [MovingState(state.positions, np.zeros_like(state.positions))], SolveResult.CONVERGED
        began = time.process_time()
        for step in range(1, split * self.samples + 1):
            state, report = solver.step(state, self.material)
            result = report.result
            if result is not SolveResult.CONVERGED:
                break
            if step % split == 0:
                velocity = np.tensordot(np.array(scheme.rate), state.history[: len(scheme.rate)], axes=1)
                states.append(MovingState(state.positions, velocity / solver.time_step))
        cost = (time.process_time() - began) / self.settings.seconds
        done = result is SolveResult.CONVERGED
        return self._path(states, cost, RunResult.COMPLETED.name if done else result.name)

    def _path(self, states: list[MovingState], cost: float, result: str) -> Swing:
        judge = self.explicit_solver(ExplicitScheme.SEMI_IMPLICIT_EULER, 1)
        energies = [sum(judge.energies(state, self.material)) for state in states]
        tip = [state.positions[self._tip, 2].mean() for state in states]
        return Swing(np.array(tip), np.array(energies), cost, result)

    def kinetic_scale(self, path: Swing) -> float:
        """The most that the swing has in motion, J: a little under what gravity does to the mean height."""
        mass = float(self.explicit_solver(ExplicitScheme.SEMI_IMPLICIT_EULER, 1).masses(self.material).sum())
        return 9.81 * mass * float(np.ptp(path.tip)) / 8.0


def compared(problem: Problem, scheme: str, split: int, stable: int | None, run: Swing, reference: Swing) -> Row:
    """A run beside the reference."""
    stable_step = None if stable is None else 1.0 / (SAMPLING * stable)
    row = Row(problem.damping.name, scheme, 1.0 / (SAMPLING * split), stable_step, run.result)
    if run.result != RunResult.COMPLETED.name:
        return row
    error = float(np.sqrt(np.mean((run.tip - reference.tip) ** 2)))
    energy = float(run.energy[-1] - reference.energy[-1]) / problem.kinetic_scale(reference)
    row = replace(
        row,
        error_percent=100.0 * error / float(np.ptp(reference.tip)),
        energy_error_percent=100.0 * energy,
        cost=run.cost,
    )
    seconds = np.arange(problem.samples + 1) / SAMPLING
    found, true = (
        free_oscillation(seconds, path.tip, start=0.0, duration=seconds[-1]) for path in (run, reference)
    )
    if found is None or true is None:
        return row
    return replace(
        row,
        frequency_error_percent=100.0 * (found.frequency / true.frequency - 1.0),
        log_decrement=found.decay_rate / found.frequency,
        reference_log_decrement=true.decay_rate / true.frequency,
    )


Job = tuple[str, Callable[[], Row]]


def jobs(problem: Problem) -> Iterator[Job]:
    """Every run of a problem as (what it is, the work), the reference first."""
    leapfrog = ExplicitScheme.SEMI_IMPLICIT_EULER
    stable = problem.stable_split(leapfrog)
    assert stable is not None  # of every damped or undamped body
    reference = problem.explicit(leapfrog, 4 * stable, half_step_early=True)
    for scheme in ExplicitScheme:
        fewest = problem.stable_split(scheme)
        # where no step is stable, those of the other explicit scheme show what comes of it
        for split in (fewest or stable, 2 * (fewest or stable), 4 * (fewest or stable)):

            def explicit(scheme: ExplicitScheme = scheme, split: int = split, fewest: int | None = fewest) -> Row:
                run = problem.explicit(scheme, split)
                return compared(problem, scheme.value, split, fewest, run, reference)

            yield f"{problem.damping.name}, {scheme.value}, {SAMPLING * split} steps/s", explicit
    for integrator in (IMPLICIT_EULER, BDF2):
        for split in problem.settings.splits:

            def implicit(integrator: Integrator = integrator, split: int = split) -> Row:
                run = problem.implicit(integrator, split)
                # stable at any step, so the largest is whatever one asks for
                return compared(problem, integrator.name, split, None, run, reference)

            yield f"{problem.damping.name}, {integrator.name}, {SAMPLING * split} steps/s", implicit


def measured(settings: Settings, console: Console) -> list[Row]:
    """Rows of every scheme, step and damping."""
    columns = (TextColumn("{task.description:50}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    rows = []
    total = len(DAMPINGS) * (3 * len(ExplicitScheme) + 2 * len(settings.splits))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reference", total=total)
        for damping in DAMPINGS:
            progress.update(task, description=f"{damping.name}, reference")
            for label, work in jobs(Problem(settings, damping)):
                progress.update(task, description=label)
                rows.append(work())
                progress.advance(task)
    return rows


def shown(rows: list[Row]) -> Table:
    """The rows as a table."""
    table = Table(title="swinging beam: error of the tip, per cent of its swing, against the reference")
    for heading in (
        "",
        "step (ms)",
        "result",
        "error %",
        "energy %",
        "frequency %",
        "log decrement",
        "cost (s/s)",
    ):
        table.add_column(heading, justify="right" if heading not in ("", "result") else "left")
    for row in rows:
        values = (
            row.error_percent,
            row.energy_error_percent,
            row.frequency_error_percent,
            row.log_decrement,
            row.cost,
        )
        table.add_row(
            f"{row.damping}, {row.scheme}",
            f"{1e3 * row.time_step:.3g}",
            row.result,
            *("-" if value is None else f"{value:.3g}" for value in values),
        )
    return table


def ablation(
    out: Annotated[Path, typer.Option(help="Folder of integration.json.")] = Path("out/bench"),
    docs: Annotated[
        Path | None, typer.Option(help="Folder in which integrators.md and its picture are written anew.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse beam, 0.4 s: figures mean little.")] = False,
) -> None:
    """Compare explicit, semi-implicit and implicit Euler and BDF2 on a swinging beam (about four minutes)."""
    use_double_precision()
    console = Console(width=120)
    settings = QUICK if quick else USUAL
    rows = measured(settings, console)
    console.print(shown(rows))
    content = {"settings": asdict(settings), "rows": [asdict(row) for row in rows]}
    with atomic_write(out / "integration.json") as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    written = [out / "integration.json"]
    if docs is not None:
        entries = content["rows"]
        assert isinstance(entries, list)
        for path, data in (
            (docs / "integrators.md", page(entries).encode()),
            (docs / "images" / "integrators.png", picture(entries)),
        ):
            with atomic_write(path) as temporary:
                temporary.write_bytes(data)
            written.append(path)
    for path in written:
        console.print(str(path), highlight=False)


if __name__ == "__main__":
    use_one_core()
    typer.run(ablation)
