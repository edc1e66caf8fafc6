"""The pages and pictures of the studies."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from realsimloop_ros.evaluation.studies import (
    DEVIATION,
    SHIPPED,
    TRUE_MODULUS,
    AblationRow,
    Coverage,
    Drift,
    StartRow,
    Unobservable,
    ZoneRow,
)

SETTING = f"""A small twin (a bar of 200 x 30 x 30 mm between two moving grips, 8 reduced coordinates) makes its
own recordings at 10 Hz: twelve markers, {1e3 * DEVIATION:g} mm of noise per coordinate, a true modulus of
{1e-3 * TRUE_MODULUS:g} kPa and a true Poisson's ratio of 0.45. So the model is right, and what is left to judge
is the estimator. What it makes of a body of another law is in the demo's report."""
_STYLE: dict[Any, Any] = {"font.size": 9.0, "axes.grid": True, "grid.color": "#e9ecef", "legend.frameon": False}


def drawn(size: tuple[float, float], draw: Callable[[Figure], None]) -> bytes:
    """A picture of a size in inches; PNG."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
        return stream.getvalue()


def coverage_page(found: dict[str, Coverage], frames: int) -> str:
    """docs/coverage.md, of coverages by the estimator's settings."""
    lines = [
        "# Coverage\n",
        SETTING,
        "",
        "Each seed draws the noise, and a start from the prior about the truth (a factor of 2 of E, 0.03 of nu).",
        "Counted is how often the truth lies in the interval that is stated to hold it with 95 %, after",
        f"the last of {frames} frames. Written by\n",
        "    make coverage\n",
        "| estimator | seeds | E in its 95 % (%) | nu in its 95 % (%) | rms error E, nu | mean stated, E, nu |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, entry in found.items():
        share = 100.0 * entry.within()
        rms, told = np.sqrt((entry.errors**2).mean(axis=0)), entry.deviations.mean(axis=0)
        lines.append(
            f"| {name} | {len(entry.errors)} | {share[0]:.0f} | {share[1]:.0f} | {100 * rms[0]:.1f} %, "
            f"{rms[1]:.4f} | {100 * told[0]:.1f} %, {told[1]:.4f} |"
        )
    lines += [
        "",
        "![Coverage against the level that is stated](images/coverage.png)\n",
        "As shipped, information on what left the window fades, and 2 % of E and 0.004 of nu are added for what a",
        "model errs; where the model is right and nothing changes, both make the interval wider than it need be.",
    ]
    return "\n".join(lines) + "\n"


def coverage_picture(found: dict[str, Coverage]) -> bytes:
    """Share of seeds within the interval, against the level it is stated for."""
    levels = np.linspace(0.02, 0.99, 98)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for k, (axis, title) in enumerate(zip(axes, ("Young's modulus", "Poisson's ratio"), strict=True)):
            axis.plot(levels, levels, color="#adb5bd", lw=1.0)
            for name, entry in found.items():
                axis.plot(levels, [entry.within(level)[k] for level in levels], label=name)
            axis.set(title=title, xlabel="stated level")
        axes[0].set_ylabel("share of seeds within")
        axes[0].legend()

    return drawn((8.0, 3.2), draw)


def studies_page(
    rows: Sequence[StartRow], zones: Sequence[ZoneRow], drifts: dict[str, Drift], slow: Unobservable
) -> str:
    """docs/studies.md."""
    errors = np.array([row.error for row in rows])
    lines = [
        "# Studies of the estimator\n",
        SETTING + "\n",
        "    make studies\n",
        "## Wrong starts\n",
        f"{len(rows)} starts from {rows[0].factor:.2f} to {rows[-1].factor:.1f} times the truth, each with noise",
        f"of its own, 30 frames: the largest error of E at the end is {100 * np.abs(errors).max():.1f} %, the rms",
        f"{100 * np.sqrt((errors**2).mean()):.1f} %; {int((np.abs(errors) > 0.5).sum())} ended over half off.\n",
        "## Two zones\n",
        "From 480 kPa in both, 60 frames:\n",
        "| zone | true (kPa) | estimated (kPa) | error (%) | stated deviation (%) |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.zone} | {1e-3 * row.true:.0f} | {1e-3 * row.estimated:.0f} | "
        f"{100 * (row.estimated / row.true - 1):+.1f} | {100 * row.deviation:.1f} |"
        for row in zones
    ]
    lines += ["\n## A material that changes\n", "E doubles over 20 s, or at once after 10 s:\n"]
    lines += ["| | lag (s) |", "|---|---:|"] + [f"| {name} | {entry.lag:.1f} |" for name, entry in drifts.items()]
    lines += [
        "\nThe lag of a ramp is the mean age of what is remembered: a window of 0.8 s at full weight, and what",
        f"has left it with a weight that falls by `forgetting` per frame, {SHIPPED.forgetting} as shipped. A",
        "larger one gives a calmer estimate that follows later.\n",
        "![The estimate behind the truth](images/studies.png)\n",
        "## What cannot be told\n",
        "A slow pull without gravity and without wrenches, 8 s, from twice the true E and from a nu of 0.40: E is",
        f"{'published as unknown' if slow.modulus_unknown else 'published as known'} and moved by",
        f"{100 * slow.modulus_moved:.2f} % from its start; nu is {'known' if slow.ratio_known else 'unknown'},",
        f"its error went from {slow.ratio_error_before:+.3f} to {slow.ratio_error_after:+.4f}.",
    ]
    return "\n".join(lines) + "\n"


def studies_picture(drifts: dict[str, Drift]) -> bytes:
    """Estimates of changing materials over time."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(drifts), sharey=True, squeeze=False)[0]
        for axis, (name, entry) in zip(axes, drifts.items(), strict=True):
            axis.plot(entry.seconds, 1e-3 * entry.true, color="#343a40", lw=1.0, label="truth")
            axis.plot(entry.seconds, 1e-3 * entry.estimated, color="#1c7ed6", label="estimate")
            axis.set(title=name, xlabel="s")
        axes[0].set_ylabel("E (kPa)")
        axes[0].legend()

    return drawn((3.2 * len(drifts), 3.0), draw)


def ablation_page(rows: Sequence[AblationRow], seeds: int, frames: int) -> str:
    """docs/ablation.md."""
    lines = [
        "# Ablation of the estimator\n",
        SETTING + "\n",
        f"Each row changes one thing of what is shipped (window 8, forgetting {SHIPPED.forgetting});",
        f"{seeds} seeds draw noise and start, as in [coverage.md](coverage.md). Errors are rms over the seeds",
        f"after {frames} frames, beside the mean deviation that was stated; the time is the median of the last",
        "update, on one core of whatever machine wrote this. Window, noise and forgetting vary here; stepwise",
        "and drifting stiffness are in [studies.md](studies.md), methods in [estimators.md](estimators.md), time",
        "integrators in [integrators.md](integrators.md). Not run: views, their size, the subspace, the wrench.\n",
        "    make ablation\n",
        "| factor | value | E, rms (%) | stated (%) | nu, rms | stated | update (ms) |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.factor} | {row.value} | {100 * row.modulus_error:.2f} | {100 * row.modulus_deviation:.2f} | "
        f"{row.ratio_error:.4f} | {row.ratio_deviation:.4f} | {row.update_ms:.0f} |"
        for row in rows
    ]
    return "\n".join([*lines, "", "![Error of E by factor](images/ablation.png)"]) + "\n"


def ablation_picture(rows: Sequence[AblationRow]) -> bytes:
    """Error and stated deviation of E, one axis a factor."""
    factors = list(dict.fromkeys(row.factor for row in rows))

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(factors), sharey=True, squeeze=False)[0]
        for axis, factor in zip(axes, factors, strict=True):
            chosen = [row for row in rows if row.factor == factor]
            names = [row.value for row in chosen]
            axis.plot(names, [100 * row.modulus_error for row in chosen], "o-", label="rms error")
            axis.plot(names, [100 * row.modulus_deviation for row in chosen], "s--", label="stated deviation")
            axis.tick_params(axis="x", rotation=30)
            axis.set(title=factor)
        axes[0].set_ylabel("E (%)")
        axes[0].legend()

    return drawn((2.8 * len(factors), 3.2), draw)
