"""A theta that is held: the prior, or what an earlier run found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from realsimloop_ros.evaluation.record import load_record
from realsimloop_ros.evaluation.report import load_report
from realsimloop_ros.mechanics.material import Material

_Values = dict[str, tuple[float | None, float | None]]


class HeldThetaError(ValueError):
    """A theta that cannot be held; the text names what was asked for and the remedy."""


def held_material(theta: str, zone_names: Sequence[str], prior: Material) -> Material:
    """`prior`, or the last E and nu of a report.json, a folder that holds one, or a record folder.

    What a report does not tell keeps its value in the prior. Raises HeldThetaError.
    """
    if theta == "prior":
        return prior
    known = _last_values(Path(theta))
    modulus, ratio = np.array(prior.youngs_modulus), np.array(prior.poisson_ratio)
    for k, zone in enumerate(zone_names):
        if zone not in known:
            raise HeldThetaError(
                f"theta: {theta} has the zones {', '.join(known) or '(none)'}, but the body's are "
                f"{', '.join(zone_names)}; name the report of a run with this body"
            )
        found_modulus, found_ratio = known[zone]
        modulus[k] = modulus[k] if found_modulus is None else found_modulus
        ratio[k] = ratio[k] if found_ratio is None else found_ratio
    return prior._replace(youngs_modulus=modulus, poisson_ratio=ratio)


def _last_values(path: Path) -> _Values:
    if (path / "record.json").is_file():
        last = load_record(path).theta
        return {
            zone: (float(last.youngs_modulus[-1, k]), float(last.poisson_ratio[-1, k]))
            for k, zone in enumerate(last.zone_names)
        }
    file = path / "report.json" if path.is_dir() else path
    if not file.is_file():
        raise HeldThetaError(
            f"theta: {str(path)!r} is neither `prior` nor `estimate`, and no report.json or record folder; "
            "name one that a run has written"
        )
    return {
        zone: (entry.youngs_modulus.estimate, entry.poisson_ratio.estimate)
        for zone, entry in load_report(file).theta.items()
    }
