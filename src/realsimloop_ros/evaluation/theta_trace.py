"""The trace of theta over a run: from the messages of a live estimator, and from the updates of an offline one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.estimation.updates import MaterialUpdate, UpdateStatus
from realsimloop_ros.evaluation.marker_messages import stamp_of
from realsimloop_ros.evaluation.quantities import SHOWN
from realsimloop_ros.evaluation.record import ThetaTrace
from realsimloop_ros.mechanics.material import Material

# MaterialEstimate.STATUS_HELD_WARMING_UP, which no update of the estimator has
_WARMING_UP = 7


@dataclass(frozen=True, eq=False)
class ThetaSample:
    """One estimate. material: of the z zones; covariance: (p, p) over parameter_names; solve_time: s."""

    stamp_ns: int
    zone_names: tuple[str, ...]
    material: Material
    parameter_names: tuple[str, ...]
    covariance: NDArray[np.float64]
    status: str
    reason: str
    solve_time: float


def status_name(value: int) -> str:
    """The name of a status of MaterialEstimate."""
    if value == _WARMING_UP:
        return "HELD_WARMING_UP"
    try:
        return UpdateStatus(value).name
    except ValueError:
        return f"UNKNOWN_{value}"


def sample_of_message(message: Any) -> ThetaSample:
    """A MaterialEstimate."""
    names = tuple(message.parameter_names)
    columns = (message.youngs_modulus, message.poisson_ratio, message.viscosity, message.density)
    return ThetaSample(
        stamp_of(message.header),
        tuple(message.zone_names),
        Material(*(np.array(column, np.float64) for column in columns)),  # type: ignore[arg-type]
        names,
        np.array(message.covariance, np.float64).reshape(len(names), len(names)),
        status_name(int(message.status)),
        str(message.reason),
        float(message.solve_time),
    )


def sample_of_update(update: MaterialUpdate) -> ThetaSample:
    """An update of the estimator."""
    return ThetaSample(
        update.stamp_ns,
        update.zone_names,
        Material(*(np.array(column, np.float64) for column in update.material)),  # type: ignore[arg-type]
        update.parameter_names,
        np.array(update.covariance),
        update.status.name,
        update.reason,
        update.solve_time_s,
    )


def held_trace(stamp_ns: int, zone_names: Sequence[str], material: Material) -> ThetaTrace:
    """A theta that is not estimated."""
    columns: dict[str, Any] = {}
    for quantity in SHOWN:
        columns[quantity.name] = np.array([getattr(material, quantity.name)], np.float64)
        columns[f"{quantity.name}_std"] = np.full((1, len(zone_names)), np.nan)
    return ThetaTrace(tuple(zone_names), np.array([stamp_ns], np.int64), **columns)


def trace_of(samples: Iterable[ThetaSample], zone_names: Sequence[str], start: Material) -> ThetaTrace:
    """The samples of zones zone_names as a trace that begins at `start`. A parameter that is not estimated has the
    deviation NaN.
    """
    rows = list(samples)
    zones = tuple(zone_names)
    shape = (len(rows), len(zones))
    with np.errstate(invalid="ignore"):
        told = [
            dict(zip(sample.parameter_names, np.sqrt(np.diag(sample.covariance)), strict=True)) for sample in rows
        ]
    columns: dict[str, Any] = {}
    for quantity in SHOWN:
        values = [getattr(sample.material, quantity.name) for sample in rows]
        published = [[entry.get(f"{zone}.{quantity.published}", np.nan) for zone in zones] for entry in told]
        columns[quantity.name] = np.array(values, np.float64).reshape(shape)
        deviations = np.array(published, np.float64).reshape(shape)
        columns[f"{quantity.name}_std"] = columns[quantity.name] * deviations if quantity.positive else deviations
        columns[f"start_{quantity.name}"] = np.array(getattr(start, quantity.name), np.float64)
    return ThetaTrace(
        zones,
        np.array([sample.stamp_ns for sample in rows], np.int64),
        status=tuple(sample.status for sample in rows),
        reason=tuple(sample.reason for sample in rows),
        **columns,
    )
