"""The page docs/reduction.md: tables and plots of a sweep over reduced models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from realsimloop_ros.body.files import atomic_write

_LABELS = {"principal": "principal", "skinning_modes": "skinning modes", "autoencoder": "autoencoder"}
_COLOURS = {"principal": "tab:blue", "skinning_modes": "tab:green", "autoencoder": "tab:red"}
_ELEMENTS = {1: "linear", 2: "quadratic"}


def write_page(
    models: Sequence[dict], meshes: Sequence[dict], folder: Path, judgement: dict | None = None
) -> Path:
    """Write reduction.md and images/ into a folder; rows as evaluation.reduction_sweep makes them, judgement as
    evaluation.model_judgement writes it."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    _save(_error_figure(models), images / "reduction_error.png")
    _save(_cost_figure(meshes), images / "reduction_cost.png")
    lines = [
        "# Reduced models: accuracy and cost",
        "",
        "The 200 x 30 x 30 mm bar between two grips: random motions of both ends (twists to 1.2 rad, shifts to "
        "30 mm per end, E 0.1-0.6 MPa, nu 0.40-0.48) that no model has learnt from, against the full-order "
        "solution on the same mesh. Errors are distances of vertices over whole rollouts, in percent of the "
        "bar's length, in double precision. Times are medians of steps in single precision, as the nodes take "
        "them, in turns with the full-order solver in one run; a window is 48 steps with the derivatives of all "
        "states along log E and nu. Made by `make bench`, rows in `out/bench/reduction.json`.",
        "",
        "![Held-out error against r](images/reduction_error.png)",
        "",
        *_model_table(models),
        "",
        "At equal r the autoencoder errs less than principal directions, most at small r; its step costs more. "
        "At equal time it is ahead where a step takes a fraction of a millisecond; at the accuracy that is asked "
        "for, 0.1 %, principal directions are, so they are the default. Skinning modes need no snapshots and know "
        "nothing of the motions to come.",
        "",
        "## Cost against mesh size",
        "",
        "Skinning modes, quadratic elements, at equal r and cubature.",
        "",
        "![Time of a step against mesh size](images/reduction_cost.png)",
        "",
        *_mesh_table(meshes),
        "",
        *([] if judgement is None else _judgement(judgement)),
    ]
    path = folder / "reduction.md"
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")
    return path


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def _ratio(full: float | None, reduced: float | None) -> str:
    return "-" if full is None or reduced is None else f"{full / reduced:.0f}"


def _model_table(rows: Sequence[dict]) -> list[str]:
    lines = [
        "| subspace | elements | r | samples | rms % | p99 % | diverged | step ms | ratio | gradient ms | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            _LABELS[row["subspace"]],
            _ELEMENTS[row["element_order"]],
            str(row["r"]),
            f"{row['samples']}" + ("" if row["cubature"] else " (all)"),
            _number(row["rms_percent"]),
            _number(row["p99_percent"]),
            str(row["diverged"]),
            _number(row["step_ms"]),
            _ratio(row["full_step_ms"], row["step_ms"]),
            _number(row["window_gradient_ms"]),
            _ratio(row["full_window_gradient_ms"], row["window_gradient_ms"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _mesh_table(rows: Sequence[dict]) -> list[str]:
    lines = ["| tets | step ms | full-order step ms | window gradient ms |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row["tets"]):
        cells = (
            str(row["tets"]),
            *(_number(row[key]) for key in ("step_ms", "full_step_ms", "window_gradient_ms")),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _judgement(judgement: dict) -> list[str]:
    """The section on the shipped model."""
    pooled = judgement["pooled"]
    motions = sorted(judgement["motions"], key=lambda motion: (motion["determined"], -(motion["rms"] or 1e9)))
    left_out = sum(not motion["determined"] for motion in motions)
    lines = [
        "## The shipped model of the dual-arm bar",
        "",
        "    realsimloop reduce config/bodies/dual_arm_bar.yaml --out dual_arm_bar.npz --latent-size 80 \\",
        "      --samples 640 --points 172 --trajectories 240 --pressed 140",
        "",
        f"On {len(motions)} motions of another seed than those it was made from (`python -m "
        "realsimloop_ros.evaluation.model_judgement`), in single precision. Pressed together far enough, the bar "
        "may buckle one way or another by a hair: where the full order itself moves by more than 0.1 % of the "
        "length when its modulus is a thousandth larger, there is nothing to compare with, and the motion is left "
        f"out: {left_out} of {len(motions)}. Over the others: **rms {_number(pooled['rms_percent'])} %, p99 "
        f"{_number(pooled['p99_percent'])} % of the length**, largest {_number(1e3 * pooled['maximum'])} mm, "
        f"{pooled['diverged']} diverged. The worst, and what was left out:",
        "",
        "| motion | E kPa | nu | grips at least apart mm | rms mm | full order moves by mm | judges |",
        "|---|---|---|---|---|---|---|",
    ]
    for motion in motions[:6]:
        cells = (
            str(motion["index"]),
            _number(1e-3 * motion["youngs_modulus"]),
            _number(motion["poisson_ratio"]),
            _number(1e3 * motion["nearest"]),
            "diverged" if motion["rms"] is None else _number(1e3 * motion["rms"]),
            _number(1e3 * motion["moved"]),
            "yes" if motion["determined"] else "no",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _error_figure(rows: Sequence[dict]) -> Figure:
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    series = sorted({(row["subspace"], row["element_order"]) for row in rows}, reverse=True)
    for kind, order in series:
        own = [row for row in rows if (row["subspace"], row["element_order"]) == (kind, order) and row["cubature"]]
        own = sorted((row for row in own if row["rms_percent"] is not None), key=lambda row: row["r"])
        look = {"color": _COLOURS[kind], "marker": "o", "linestyle": "-" if order == 2 else "--"}
        label = f"{_LABELS[kind]}, {_ELEMENTS[order]}"
        left.plot([row["r"] for row in own], [row["rms_percent"] for row in own], label=label, **look)
        timed = [row for row in own if row["step_ms"] is not None]
        right.plot([row["step_ms"] for row in timed], [row["rms_percent"] for row in timed], label=label, **look)
    left.set(xlabel="r", ylabel="held-out error, rms, % of length")
    right.set(xlabel="time of a step, ms")
    errors = [row["rms_percent"] for row in rows]
    _logarithmic(left, [row["r"] for row in rows], [*errors, 0.1])
    _logarithmic(right, [row["step_ms"] for row in rows], [*errors, 0.1])
    for axes in (left, right):
        axes.axhline(0.1, color="0.6", linewidth=0.8)
        axes.grid(visible=True, which="both", color="0.93")
    if series:
        left.legend(fontsize=8)
    return figure


def _cost_figure(rows: Sequence[dict]) -> Figure:
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(rows, key=lambda row: row["tets"])
    for key, label, marker in (("full_step_ms", "full order", "s"), ("step_ms", "reduced", "o")):
        own = [row for row in ordered if row[key] is not None]
        axes.plot([row["tets"] for row in own], [row[key] for row in own], marker=marker, label=label)
    axes.set(xlabel="tets", ylabel="time of a step, ms")
    times = [row[key] for row in rows for key in ("step_ms", "full_step_ms")]
    _logarithmic(axes, [row["tets"] for row in rows], times)
    axes.grid(visible=True, which="both", color="0.93")
    axes.legend()
    return figure


def _logarithmic(axes: Axes, x: Sequence[float | None], y: Sequence[float | None]) -> None:
    """Logarithmic axes with room around the values, of which there may be one or none."""
    for values, limits in ((x, axes.set_xlim), (y, axes.set_ylim)):
        known = [value for value in values if value is not None] or [1.0]
        limits(min(known) / 1.3, max(known) * 1.3)
    axes.set(xscale="log", yscale="log")
