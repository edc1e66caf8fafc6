"""A theta that is held: the prior, or what an earlier run found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from realsimloop_ros.evaluation.record import load_record
from realsimloop_ros.evaluation.report import load_report
from realsimloop_ros.mechanics.material import Material

# by zone, then by quantity
_Values = dict[str, dict[str, float | None]]


class HeldThetaError(ValueError):
    """A theta that cannot be held; the text names what was asked for and the remedy."""


def held_material(theta: str, zone_names: Sequence[str], prior: Material) -> Material:
    """`prior`, or the last theta of a report.json, a folder that holds one, or a record folder.

    What a report does not tell keeps its value in the prior. Raises HeldThetaError.
    """
    if theta == "prior":
        return prior
    known = _last_values(Path(theta))
    fields = {name: np.array(values, np.float64) for name, values in prior._asdict().items()}
    for k, zone in enumerate(zone_names):
        if zone not in known:
            raise HeldThetaError(
                f"theta: {theta} has the zones {', '.join(known) or '(none)'}, but the body's are "
                f"{', '.join(zone_names)}; name the report of a run with this body"
            )
        for name, value in known[zone].items():
            if value is not None:
                fields[name][k] = value
    return Material(**fields)


def _last_values(path: Path) -> _Values:
    if (path / "record.json").is_file():
        trace = load_record(path).theta
        traces = {name: getattr(trace, name) for name in Material._fields}
        return {
            zone: {name: None if values is None else float(values[-1, k]) for name, values in traces.items()}
            for k, zone in enumerate(trace.zone_names)
        }
    file = path / "report.json" if path.is_dir() else path
    if not file.is_file():
        raise HeldThetaError(
            f"theta: {str(path)!r} is neither `prior` nor `estimate`, and no report.json or record folder; "
            "name one that a run has written"
        )
    return {
        zone: {
            name: None if (parameter := getattr(entry, name)) is None else parameter.estimate
            for name in Material._fields
        }
        for zone, entry in load_report(file).theta.items()
    }
