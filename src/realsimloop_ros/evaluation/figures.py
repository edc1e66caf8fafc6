"""The figures of a report, drawn with matplotlib without global state."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from realsimloop_ros.evaluation.quantities import SHOWN, ShownQuantity
from realsimloop_ros.evaluation.record import MarkerTracks, ReconstructionTrace, ThetaTrace, ZoneReference

MEASURED, PREDICTED, REFERENCE, HELD = "#1b2733", "#e8590c", "#2b8a3e", "#adb5bd"
ZONES = ("#1c7ed6", "#e8590c", "#7048e8", "#0ca678", "#d6336c", "#f08c00")
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#868e96",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#495057",
    "grid.color": "#e9ecef",
    "grid.linewidth": 0.8,
    "xtick.color": "#495057",
    "ytick.color": "#495057",
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "svg.fonttype": "path",
    # the same figure gives the same bytes
    "svg.hashsalt": "realsimloop",
}


@contextmanager
def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> Iterator[tuple[Figure, NDArray]]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False)


def _svg(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def theta_figure(theta: ThetaTrace, references: tuple[ZoneReference, ...]) -> bytes:
    """Young's modulus over time with its 95 % band and the reference; what else is estimated beside it.

    Where the data do not tell a parameter its band is left out, not drawn as infinitely wide.
    """
    estimated = [quantity for quantity in SHOWN if _drawn(theta, quantity)]
    with _figure(10.0, 3.4, columns=len(estimated)) as (figure, axes):
        x, label = _theta_axis(theta)
        for panel, quantity in zip(axes[0], estimated, strict=True):
            scale = quantity.scale
            values, deviations = getattr(theta, quantity.name), getattr(theta, f"{quantity.name}_std")
            for k, zone in enumerate(theta.zone_names):
                start = getattr(theta, f"start_{quantity.name}")
                _theta_zone(
                    panel,
                    x,
                    values[:, k] * scale,
                    deviations[:, k] * scale,
                    zone,
                    ZONES[k % len(ZONES)],
                    quantity.positive,
                    None if start is None else float(start[k]) * scale,
                )
                reference = next((entry for entry in references if entry.zone == zone), None)
                value = None if reference is None else getattr(reference, quantity.name, None)
                if value is not None:
                    name = "reference" if len(theta.zone_names) == 1 else f"reference {zone}"
                    panel.axhline(value * scale, color=REFERENCE, linewidth=1.6, dashes=(5, 3), label=name)
            panel.set_title(quantity.label)
            panel.set_ylabel(quantity.unit)
            panel.set_xlabel(label)
            panel.margins(x=0.01)
            panel.legend(loc="best")
        return _svg(figure)


def _drawn(theta: ThetaTrace, quantity: ShownQuantity) -> bool:
    deviations = getattr(theta, f"{quantity.name}_std")
    return quantity.name == "youngs_modulus" or (deviations is not None and bool((~np.isnan(deviations)).any()))


def _theta_axis(theta: ThetaTrace) -> tuple[NDArray[np.float64], str]:
    if theta.axis == "update":
        return np.arange(1, len(theta.stamps_ns) + 1, dtype=np.float64), "update"
    if len(theta.stamps_ns) == 0:
        return np.zeros(0), "time (s)"
    return (theta.stamps_ns - theta.stamps_ns[0]) * 1e-9, "time (s)"


def _theta_zone(
    panel: Axes,
    x: NDArray[np.float64],
    values: NDArray[np.float64],
    deviations: NDArray[np.float64],
    zone: str,
    colour: str,
    positive: bool,
    start: float | None,
) -> None:
    few = {"marker": "o", "markersize": 4.0} if len(x) < 40 else {}
    known = np.isfinite(deviations)
    if known.any():
        if not positive:
            low, high = values - 1.96 * deviations, values + 1.96 * deviations
        else:
            # the band is symmetric in the logarithm
            spread = np.exp(np.minimum(1.96 * np.where(known, deviations, 0.0) / values, 5.0))
            low, high = values / spread, values * spread
        low, high = np.where(known, low, np.nan), np.where(known, high, np.nan)
        panel.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, label="95 % band")
    panel.plot(x, values, color=colour, linewidth=2.0, label=zone, **few)  # type: ignore[arg-type]
    if start is not None and len(x):
        panel.plot(x[[0, 0]], [start, values[0]], color=colour, linewidth=1.2, dashes=(1, 1.5))
        panel.plot(x[:1], [start], color=colour, linewidth=0.0, marker="D", markersize=6.0, label="start")
    if known.any():
        # a wide band at the start must not flatten the rest of the curve
        spread_of_values = np.ptp(values) if np.ptp(values) > 0 else 0.1 * abs(values[-1])
        bottom, top = panel.get_ylim()
        settled = 3.0 * 1.96 * float(np.median(deviations[known]))
        reach = max(1.5 * float(spread_of_values), settled)
        bottom, top = max(bottom, values.min() - reach), min(top, values.max() + reach)
        if start is not None:
            margin = 0.05 * max(top - bottom, abs(start - values[0]))
            bottom, top = min(bottom, start - margin), max(top, start + margin)
        panel.set_ylim(bottom, top)


def reconstruction_figure(trace: ReconstructionTrace) -> bytes:
    """Mean, 95th percentile and maximum of the distance between twin and reality over time."""
    rows = np.isfinite(trace.errors).any(axis=1)
    errors = trace.errors[rows].astype(np.float64) * 1e3
    with _figure(10.0, 2.9) as (figure, axes):
        panel = axes[0, 0]
        if len(errors):
            t = (trace.stamps_ns[rows] - trace.stamps_ns[0]) * 1e-9
            # where time goes back another recording begins: no line joins the two
            cuts = np.flatnonzero(np.diff(t) < 0.0) + 1
            mean, p95, highest = (
                np.insert(figure_of_merit, cuts, np.nan)
                for figure_of_merit in (
                    np.nanmean(errors, axis=1),
                    np.nanpercentile(errors, 95.0, axis=1),
                    np.nanmax(errors, axis=1),
                )
            )
            t = np.insert(t, cuts, np.nan)
            panel.fill_between(
                t, 0.0, p95, color=ZONES[0], alpha=0.16, linewidth=0, label="95 % of the points below"
            )
            panel.plot(t, highest, color=HELD, linewidth=1.0, label="maximum")
            panel.plot(t, mean, color=ZONES[0], linewidth=2.0, label="mean")
            panel.set_ylim(0.0, None)
            panel.legend(loc="upper right", ncols=3)
        panel.set_title(f"Distance between twin and reality ({trace.points})")
        panel.set_ylabel("mm")
        panel.set_xlabel("time (s)")
        panel.margins(x=0.01)
        return _svg(figure)


def tracks_figure(tracks: MarkerTracks, first_seconds: float = 1.6) -> bytes:
    """Height of each marker relative to its held pose: the whole recording, and its first swings beside it."""
    count = len(tracks.names)
    start = tracks.release_ns if tracks.release_ns is not None else int(tracks.stamps_ns[0])
    t = (tracks.stamps_ns - start) * 1e-9
    with _figure(10.0, 0.9 + 1.75 * count, rows=count, columns=2) as (figure, axes):
        for k, name in enumerate(tracks.names):
            measured, predicted = (
                (track[:, k] @ tracks.up - _level(tracks, track[:, k])) * 1e3
                for track in (tracks.measured, tracks.predicted)
            )
            for column in range(2):
                panel = axes[k, column]
                near = slice(None) if column == 0 else (t >= -0.15) & (t <= first_seconds)
                dots = column == 1
                panel.plot(
                    t[near],
                    measured[near],
                    color=MEASURED,
                    linewidth=0.0 if dots else 1.6,
                    marker="." if dots else "",
                    markersize=4.0,
                    label="measured",
                )
                panel.plot(t[near], predicted[near], color=PREDICTED, linewidth=1.5, label="twin")
                if tracks.release_ns is not None:
                    panel.axvline(0.0, color=HELD, linewidth=1.0, dashes=(2, 2))
                panel.margins(x=0.01)
                panel.set_title(name if column == 0 else f"{name}, first swings")
                if column == 0:
                    panel.set_ylabel("height (mm)")
                if k == count - 1:
                    panel.set_xlabel("time since release (s)" if tracks.release_ns is not None else "time (s)")
        axes[0, 0].legend(loc="upper right", ncols=2)
        return _svg(figure)


def _level(tracks: MarkerTracks, track: NDArray[np.float64]) -> float:
    """The height that counts as zero: each track's own held pose, as for the sag, or its first known height."""
    height = track @ tracks.up
    held = height[tracks.held & np.isfinite(height)]
    if held.size:
        return float(held.mean())
    known = height[np.isfinite(height)]
    return float(known[0]) if known.size else 0.0


def error_figure(tracks: MarkerTracks) -> bytes:
    """Distance between measured and predicted position of each marker over time."""
    start = tracks.release_ns if tracks.release_ns is not None else int(tracks.stamps_ns[0])
    t = (tracks.stamps_ns - start) * 1e-9
    with _figure(10.0, 2.6) as (figure, axes):
        panel = axes[0, 0]
        for k, name in enumerate(tracks.names):
            panel.plot(t, tracks.errors[:, k] * 1e3, color=ZONES[k % len(ZONES)], linewidth=1.2, label=name)
        panel.set_ylim(0.0, None)
        panel.set_title("Distance between measured marker and twin")
        panel.set_ylabel("mm")
        panel.set_xlabel("time since release (s)" if tracks.release_ns is not None else "time (s)")
        panel.margins(x=0.01)
        panel.legend(loc="upper right", ncols=3)
        return _svg(figure)
