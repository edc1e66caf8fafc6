"""The page and the picture of the integration ablation, from its rows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Row = dict[str, Any]

_NAMES = {
    "explicit_euler": "explicit Euler",
    "semi_implicit_euler": "semi-implicit Euler",
    "implicit_euler": "implicit Euler",
    "bdf2": "BDF2",
}
_COLOURS = {
    "explicit_euler": "#d6336c",
    "semi_implicit_euler": "#0ca678",
    "implicit_euler": "#e8590c",
    "bdf2": "#1c7ed6",
}
_INTRODUCTION = """# Time integrators

The beam of [real_beam.md](real_beam.md) (100 x 30 x 30 mm, E 264 kPa, nu 0.45, 1070 kg/m^3; 192 quadratic tets),
clamped at one end, is let go from its undeformed shape and swings under its own weight for a second, in full
space: once without damping, once with what was identified on the real beam (viscosity 196 Pa s, mass damping 2.46
1/s). Every scheme is compared with the leapfrog scheme at a quarter of its stable step, at 60 instants. This page
and its picture are written by

    make ablation-integration

* *stable step*: the largest, from the stiffest mode of the mesh (explicit schemes); implicit ones have none.
* *error*: rms of the height of the tip, in per cent of its swing.
* *energy*: mechanical energy at the end against the reference, in per cent of the largest kinetic energy.
* *damping*: logarithmic decrement per period beyond that of the reference, which is what the integrator adds.
* *cost*: processor time per simulated second, one thread, after compilation.
"""
_CONCLUSION = """## What it says

* Explicit Euler gains energy in every undamped mode at any step, and ends so soon that no row of it is complete.
  With damping it is stable, and ten times less exact than semi-implicit Euler at the same step.
* Semi-implicit Euler keeps the energy and needs no solver, but its step follows the stiffest mode of the mesh, 350
  times as fast as the swing: it shortens with the elements, with viscosity and as nu nears a half. Undamped, on a
  mesh as small as this one, it is the cheapest of all; with the real beam's viscosity BDF2 comes to an error below
  1 % at two thirds of what its longest step costs.
* Implicit Euler takes the swing away: at 1 ms still half as much per period as the real beam's own damping. A
  viscosity identified with it would be its own.
* BDF2 adds next to no damping from 4 ms on. Its swing is too slow by 13, 4, 1.2, 0.3 and 0.08 % as the step
  halves: a swing of 8 Hz wants 240 steps a second or more.
* What speaks for implicit steps is the reduced model: it has none of the stiff modes and solves a step in a
  millisecond or so, so that the step can be that of what is to be seen, and slow motions of grips cost no more.
* BDF2 is of second order only from a past that continues the motion. Where acceleration jumps, as in a body let go
  from rest, it lags by two thirds of a step ever after; here it begins from the past of a body thrown up to rest.
"""


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _extra_decrement(row: Row) -> float | None:
    if row["log_decrement"] is None:
        return None
    return float(row["log_decrement"]) - float(row["reference_log_decrement"])


def at_equal_cost(rows: Sequence[Row], damping: str, scheme: str, cost: float) -> float | None:
    """Error, per cent, of a scheme whose step is such that it costs `cost`; None beyond what was measured."""
    chosen = sorted(
        (row["cost"], row["error_percent"])
        for row in rows
        if row["damping"] == damping and row["scheme"] == scheme and row["error_percent"] is not None
    )
    if not chosen or not chosen[0][0] <= cost <= chosen[-1][0]:
        return None
    costs, errors = np.log(np.array(chosen).T)
    return float(np.exp(np.interp(np.log(cost), costs, errors)))


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    parts = [_INTRODUCTION]
    for damping in dict.fromkeys(row["damping"] for row in rows):
        parts.append(f"## {damping.capitalize()}\n")
        parts.append("| scheme | step (ms) | stable step (ms) | result | error (%) | energy (%) | frequency (%) |")
        parts[-1] += " damping | cost (s/s) |"
        parts.append("|---|" + "---:|" * 2 + "---|" + "---:|" * 5)
        for row in rows:
            if row["damping"] != damping:
                continue
            explicit = row["scheme"] in ("explicit_euler", "semi_implicit_euler")
            stable = row["stable_step"]
            limit = "any" if not explicit else "none" if stable is None else _number(1e3 * stable)
            cells = (
                _NAMES[row["scheme"]],
                _number(1e3 * row["time_step"]),
                limit,
                row["result"].lower().replace("_", " "),
                _number(row["error_percent"]),
                _number(row["energy_error_percent"]),
                _number(row["frequency_error_percent"]),
                _number(_extra_decrement(row), 2),
                _number(row["cost"], 2),
            )
            parts.append("| " + " | ".join(cells) + " |")
        costs = [row["cost"] for row in rows if row["damping"] == damping and row["cost"] is not None]
        if costs:
            cost = float(np.exp(np.mean(np.log(costs))))
            errors = {name: at_equal_cost(rows, damping, scheme, cost) for scheme, name in _NAMES.items()}
            listed = ", ".join(
                f"{name} {'cannot be run at that' if error is None else f'{error:.2g} %'}"
                for name, error in errors.items()
            )
            parts.append(f"\nAt equal cost, {cost:.2g} s per simulated second: {listed}.\n")
    parts.append("![Error against step and against cost, for both dampings](images/integrators.png)\n")
    parts.append(_CONCLUSION)
    return "\n".join(parts)


def picture(rows: Sequence[Row]) -> bytes:
    """Error against step and against cost, a row of axes per damping; PNG."""
    dampings = list(dict.fromkeys(row["damping"] for row in rows))
    style: dict[Any, Any] = {"font.size": 9.0, "axes.grid": True, "grid.color": "#e9ecef", "legend.frameon": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8.5, 3.2 * len(dampings)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(dampings), 2, squeeze=False)
        for damping, (by_step, by_cost) in zip(dampings, axes, strict=True):
            for scheme, name in _NAMES.items():
                chosen = [
                    row
                    for row in rows
                    if row["damping"] == damping and row["scheme"] == scheme and row["error_percent"] is not None
                ]
                if not chosen:
                    continue
                errors = [row["error_percent"] for row in chosen]
                for axis, key, factor in ((by_step, "time_step", 1e3), (by_cost, "cost", 1.0)):
                    axis.loglog(
                        [factor * row[key] for row in chosen], errors, "o-", color=_COLOURS[scheme], label=name
                    )
            by_step.set(title=f"{damping}: at equal step", xlabel="step (ms)", ylabel="error of the tip (%)")
            by_cost.set(title=f"{damping}: at equal cost", xlabel="processor s per simulated s")
            by_cost.legend()
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
        return stream.getvalue()
