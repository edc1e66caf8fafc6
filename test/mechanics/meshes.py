"""An irregular body, and loads on surfaces, for the tests of mechanics."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body, Zone, surface_triangles
from realsimloop_ros.body.meshing import box_bar, to_quadratic


def irregular_block(quadratic: bool, *, density: float = 1000.0) -> Body:
    """A free block, 60 x 50 x 40 mm, of 162 tets of all shapes; its faces are plane."""
    size = np.array([0.06, 0.05, 0.04])
    x, tets = box_bar(*size, (3, 3, 3), quadratic=False)
    inner = (x > 1e-9) & (x < size - 1e-9)
    # a sixth of a cell: as far as the slimmest tets bear
    x = x + inner * np.random.default_rng(3).uniform(-1.0, 1.0, x.shape) * size / 18.0
    if quadratic:
        x, tets = to_quadratic(x, tets)
    return Body("block", x, tets, np.zeros(len(tets), np.int64), (Zone("all", density),))


def surface_loads(body: Body, piola: NDArray[np.float64]) -> NDArray[np.float64]:
    """Consistent nodal forces (n, 3), N, of the dead tractions P N over the whole surface of a body."""
    triangles = surface_triangles(body)
    shares = triangles
    if body.nodes_per_tet == 10:
        # each face is four triangles, the last of them between the middles of its edges: on a plane face each
        # middle carries a third of the load and the corners carry nothing
        of_face = triangles.reshape(-1, 4, 3)
        shares = of_face[:, 3]
        triangles = np.stack([of_face[:, 0, 0], of_face[:, 1, 1], of_face[:, 2, 2]], axis=1)
    a, b, c = np.moveaxis(body.rest_positions[triangles], 1, 0)
    area_normals = 0.5 * np.cross(b - a, c - a)
    loads = np.zeros_like(body.rest_positions)
    np.add.at(loads, shares, (area_normals @ piola.T)[:, None, :] / 3.0)
    return loads
