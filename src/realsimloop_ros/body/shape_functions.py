"""Shape functions of linear and quadratic tetrahedra in barycentric coordinates.

Node order is that of VTK and meshio: the four corners, then the middles of the edges
(0,1), (1,2), (0,2), (0,3), (1,3), (2,3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EDGES = np.array([(0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3)])


def shape_values(barycentric: NDArray[np.float64], nodes_per_tet: int) -> NDArray[np.float64]:
    """Shape function values, (..., 4) barycentric coordinates to (..., a) weights, a in {4, 10}."""
    if nodes_per_tet == 4:
        return barycentric.copy()
    corners = barycentric * (2.0 * barycentric - 1.0)
    middles = 4.0 * barycentric[..., EDGES[:, 0]] * barycentric[..., EDGES[:, 1]]
    return np.concatenate([corners, middles], axis=-1)


def shape_derivatives(barycentric: NDArray[np.float64], nodes_per_tet: int) -> NDArray[np.float64]:
    """Derivatives with respect to the four barycentric coordinates taken as independent, (..., a, 4)."""
    if nodes_per_tet == 4:
        return np.broadcast_to(np.eye(4), (*barycentric.shape[:-1], 4, 4)).copy()
    derivatives = np.zeros((*barycentric.shape[:-1], 10, 4))
    for corner in range(4):
        derivatives[..., corner, corner] = 4.0 * barycentric[..., corner] - 1.0
    for middle, (first, second) in enumerate(EDGES):
        derivatives[..., 4 + middle, first] = 4.0 * barycentric[..., second]
        derivatives[..., 4 + middle, second] = 4.0 * barycentric[..., first]
    return derivatives


def rest_gradients(
    nodes: NDArray[np.float64], barycentric: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gradients of the shape functions with respect to rest coordinates, and the Jacobian determinant.

    nodes: (..., a, 3) rest positions of one tet's nodes, m; barycentric: (..., 4), broadcast against nodes.
    Returns gradients (..., a, 3) in 1/m and det dX/dxi (...,) in m^3, six times the volume of a straight tet.
    """
    derivatives = shape_derivatives(barycentric, nodes.shape[-2])
    # the reference coordinates are the last three barycentric ones, the first is one minus their sum
    reference = derivatives[..., 1:] - derivatives[..., :1]
    jacobian = np.einsum("...ai,...ak->...ik", nodes, reference)
    gradients = np.einsum("...ak,...ki->...ai", reference, np.linalg.inv(jacobian))
    return gradients, np.linalg.det(jacobian)


def refined_coordinates(
    nodes: NDArray[np.float64], barycentric: NDArray[np.float64], points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Barycentric coordinates (k, 4) at which elements pass through points (k, 3), by Newton's method.

    nodes: (k, a, 3) m; barycentric: (k, 4), those of the corner tets. They are the answer already where edges
    are straight; where a curved element does not reach a point the last iterate is returned.
    """
    refined = barycentric.copy()
    scale = float(np.abs(nodes).max(initial=1.0))
    for _ in range(10):
        values = shape_values(refined, nodes.shape[-2])
        missed = points - np.einsum("ka,kai->ki", values, nodes)
        if np.abs(missed).max(initial=0.0) <= 1e-14 * scale:
            break
        derivatives = shape_derivatives(refined, nodes.shape[-2])
        jacobian = np.einsum("kai,kaj->kij", nodes, derivatives[..., 1:] - derivatives[..., :1])
        change = np.linalg.solve(jacobian, missed[..., None])[..., 0]
        refined += np.concatenate([-change.sum(axis=1, keepdims=True), change], axis=1)
    return refined
