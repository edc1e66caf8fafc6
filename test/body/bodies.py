"""Small bodies for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from realsimloop_ros.body.body import Body, Grip, Zone
from realsimloop_ros.body.meshing import box_bar


def bar(
    size: tuple[float, float, float] = (0.1, 0.03, 0.03),
    divisions: tuple[int, int, int] = (4, 1, 1),
    *,
    quadratic: bool = True,
    density: float = 1070.0,
    holds: str = "fixed",
    **changes: Any,
) -> Body:
    """A bar along x from the origin. holds: `fixed` (its face x = 0), `grips` (both end faces) or `none`."""
    x, tets = box_bar(*size, divisions, quadratic=quadratic)
    left = np.flatnonzero(x[:, 0] < 1e-9)
    right = np.flatnonzero(x[:, 0] > size[0] - 1e-9)
    values: dict[str, Any] = {
        "name": "bar",
        "rest_positions": x,
        "tets": tets,
        "zone_of_tet": np.zeros(len(tets), np.int64),
        "zones": (Zone("silicone", density),),
    }
    if holds == "fixed":
        values["fixed_vertices"] = left
    elif holds == "grips":
        right_pose = np.array([size[0], 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
        values["grips"] = (Grip("left", "left_tool", left), Grip("right", "right_tool", right, right_pose))
    return Body(**(values | changes))


def two_tets(**changes: Any) -> Body:
    """Two linear tets that share a face, one corner fixed: small enough to write every number down."""
    values: dict[str, Any] = {
        "name": "two_tets",
        "rest_positions": np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], np.float64),
        "tets": np.array([[0, 1, 2, 3], [1, 4, 2, 3]]),
        "zone_of_tet": np.array([0, 1]),
        "zones": (Zone("soft", 1000.0), Zone("stiff", 1100.0)),
        "fixed_vertices": np.array([0]),
    }
    return Body(**(values | changes))
