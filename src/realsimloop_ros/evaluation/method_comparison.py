"""`make estimators`: the online estimator and the baselines on one recording, and docs/estimators.md."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.estimation.updates import MethodName
from realsimloop_ros.evaluation.baselines import BASELINES, Hold, fit_whole
from realsimloop_ros.evaluation.studies import DEVIATION, RIGHT, TRUE_MODULUS
from realsimloop_ros.evaluation.study_pages import SETTING, drawn
from realsimloop_ros.evaluation.synthetic import estimate, estimator_of, lively, record, small_twin, space_of


@dataclass(frozen=True, eq=False)
class MethodRow:
    """How one method went.

    seconds: (k,) of processing until each estimate, and modulus: (k,) the estimate, Pa; evaluations: of the whole
    recording, None for the online method, which never rolls all of it out; loss: at the end, None online.
    """

    method: str
    seconds: NDArray[np.float64]
    modulus: NDArray[np.float64]
    evaluations: int | None
    loss: float | None

    @property
    def errors(self) -> NDArray[np.float64]:
        """Of the modulus against the truth, in parts (k,)."""
        return np.asarray(np.abs(self.modulus / TRUE_MODULUS - 1.0))

    def reached(self, error: float = 0.05) -> int | None:
        """The first estimate from which on all are within `error`; None where the last is not."""
        beyond = np.flatnonzero(self.errors > error)
        first = 0 if not len(beyond) else int(beyond[-1]) + 1
        return first if first < len(self.modulus) else None


def compared(*, frames: int = 30, budget: int = 150, seed: int = 0) -> list[MethodRow]:
    """All methods from twice the true modulus, on the same noisy recording, one after the other."""
    twin = small_twin()
    recording = record(twin, lambda _: [TRUE_MODULUS], lively, frames).noisy(DEVIATION, seed)
    space = space_of(twin, [2.0 * TRUE_MODULUS], 0.43)
    rows = []
    for name in get_args(MethodName):
        for _ in range(2):  # the first compiles
            seconds, moduli, began = [], [], time.process_time()
            settings = replace(RIGHT, method=name)
            for update in estimate(estimator_of(twin, space, settings, DEVIATION), recording):
                seconds.append(time.process_time() - began)
                moduli.append(float(update.material.youngs_modulus[0]))
        rows.append(MethodRow(name, np.array(seconds), np.array(moduli), None, None))
    for method in BASELINES:
        whole = estimator_of(twin, space, replace(RIGHT, window=frames + 1), DEVIATION)
        whole.method = Hold()
        deque(estimate(whole, recording), maxlen=0)  # gathers the frames
        fit = fit_whole(whole.problem, method, budget=budget, seed=seed)
        modulus = np.array([float(space.material(theta).youngs_modulus[0]) for theta in fit.best])
        rows.append(MethodRow(method, fit.seconds, modulus, len(fit.seconds), fit.loss))
    return rows


def page(rows: list[MethodRow]) -> str:
    """docs/estimators.md."""
    lines = [
        "# Estimators compared\n",
        SETTING + "\n",
        "Every method starts at twice the true modulus and sees the same 30 frames, in one run on one core. The",
        "online methods (Gauss-Newton, and one step of Adam per frame, as the paper takes them) take frame after",
        "frame and keep a window; the others have the whole recording from the beginning",
        "and lower its loss: L-BFGS-B with its gradient, CMA-ES (`cma`) and simulated annealing",
        "(SciPy's `dual_annealing` without local search) by values alone. A value costs these the sensitivities",
        "too, which they do not need: about half of their time. Numbers of evaluations do not depend on it.\n",
        "    make estimators\n",
        "`realsimloop evaluate BAG --cell CELL --method NAME` runs one of them on the recording of a cell.\n",
        "| method | time to 5 % of E (s) | evaluations until then | error at the end (%) | evaluations |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        at = row.reached()
        took = "not reached" if at is None else f"{row.seconds[at]:.2f}"
        until = "" if at is None or row.evaluations is None else str(at + 1)
        number = "online" if row.evaluations is None else str(row.evaluations)
        lines.append(f"| {row.method} | {took} | {until} | {100 * row.errors[-1]:.2f} | {number} |")
    first = rows[0].reached()
    for row in rows[1:]:
        at = row.reached()
        if first is not None and at is not None:
            ratio = row.seconds[at] / rows[0].seconds[first]
            lines += ["", f"{row.method} takes {ratio:.1f} times as long to 5 % as {rows[0].method}."]
    lines += ["", "![Error of E against time](images/estimators.png)"]
    return "\n".join(lines) + "\n"


def picture(rows: list[MethodRow]) -> bytes:
    """Error of E against processing time."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row in rows:
            axes.loglog(row.seconds, 100.0 * np.maximum(row.errors, 1e-5), label=row.method)
        axes.axhline(5.0, color="#adb5bd", lw=1.0)
        axes.set(xlabel="processing (s)", ylabel="error of E (%)")
        axes.legend()

    return drawn((6.0, 3.4), draw)


def method_comparison(
    docs: Annotated[Path, typer.Option(help="Folder in which estimators.md is written anew.")] = Path("docs"),
    budget: Annotated[int, typer.Option(help="Evaluations of each baseline at most.", min=2)] = 150,
    frames: Annotated[int, typer.Option(help="Of the recording.", min=2)] = 30,
) -> None:
    """Time to 5 % error of E: the online estimator beside offline, CMA-ES and annealing (some minutes)."""
    use_double_precision()
    rows = compared(frames=frames, budget=budget)
    for path, content in (
        (docs / "estimators.md", page(rows).encode()),
        (docs / "images" / "estimators.png", picture(rows)),
    ):
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        print(path)


if __name__ == "__main__":
    use_one_core()
    typer.run(method_comparison)
