"""Meshes: structured bars, quadratic elevation, and import of surface and tetrahedral files."""

from __future__ import annotations

from pathlib import Path

import meshio
import numpy as np
import trimesh
from numpy.typing import NDArray

from realsimloop_ros.body.body import InvalidBodyError, corner_volumes
from realsimloop_ros.body.shape_functions import EDGES

Mesh = tuple[NDArray[np.float64], NDArray[np.int64]]

# the six tets of a unit cube along its main diagonal (Kuhn's subdivision): conforming between cubes
_PATHS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


def box_bar(
    length: float,
    width: float,
    height: float,
    divisions: tuple[int, int, int],
    *,
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0),
    quadratic: bool = True,
) -> Mesh:
    """A box, length x width x height (m, along x, y, z), 6 tets per cell; `origin` is its lowest corner."""
    size = np.array([length, width, height])
    counts = np.array(divisions)
    if not (np.isfinite(size).all() and (size > 0).all()):
        raise InvalidBodyError(f"mesh.box: size {size.tolist()} m, expected three positive lengths")
    if counts.shape != (3,) or (counts < 1).any():
        raise InvalidBodyError(f"mesh.box.divisions: {divisions}, expected three counts of at least 1")
    axes = [np.linspace(0.0, size[i], counts[i] + 1) for i in range(3)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3) + np.asarray(origin)
    strides = np.array([(counts[1] + 1) * (counts[2] + 1), counts[2] + 1, 1])
    cells = np.stack(np.meshgrid(*[np.arange(c) for c in counts], indexing="ij"), axis=-1).reshape(-1, 3)
    tets = []
    for path in _PATHS:
        steps = np.zeros((4, 3), np.int64)
        for k, axis in enumerate(path):
            steps[k + 1 :, axis] = 1
        tets.append((cells[:, None] + steps[None]) @ strides)
    corners = positively_oriented(x, np.stack(tets, axis=1).reshape(-1, 4))
    return to_quadratic(x, corners) if quadratic else (x, corners)


def positively_oriented(x: NDArray[np.float64], tets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Linear tets (m, 4) with two corners exchanged wherever the volume is negative."""
    flipped = tets.copy()
    negative = corner_volumes(x, tets) < 0.0
    flipped[negative, 1], flipped[negative, 2] = tets[negative, 2], tets[negative, 1]
    return flipped


def to_quadratic(x: NDArray[np.float64], tets: NDArray[np.int64]) -> Mesh:
    """Ten-node tets from four-node ones: a new vertex in the middle of every edge."""
    edges = np.sort(tets[:, EDGES].reshape(-1, 2), axis=1)
    unique, inverse = np.unique(edges, axis=0, return_inverse=True)
    middles = x[unique].mean(axis=1)
    return (
        np.concatenate([x, middles]),
        np.concatenate([tets, len(x) + inverse.reshape(-1, 6)], axis=1),
    )


def read_tetrahedral_mesh(path: Path, *, scale: float = 1.0, quadratic: bool = True) -> Mesh:
    """Tets of any file meshio reads. scale: metres per file unit. Raises InvalidBodyError naming the file."""
    if not path.is_file():
        raise InvalidBodyError(f"mesh.file: {path} does not exist")
    try:
        mesh = meshio.read(path)
    except (meshio.ReadError, SystemExit, ValueError, KeyError) as error:
        raise InvalidBodyError(
            f"mesh.file: {path} cannot be read ({error}); convert it to .vtu or .msh"
        ) from error
    blocks = {block.type for block in mesh.cells} & {"tetra", "tetra10"}
    if not blocks:
        kinds = sorted({block.type for block in mesh.cells})
        raise InvalidBodyError(f"mesh.file: {path} holds {kinds}, no tets; give a surface as mesh.surface")
    if len(blocks) > 1:
        raise InvalidBodyError(f"mesh.file: {path} mixes linear and quadratic tets; write it with one order")
    kind = blocks.pop()
    tets = np.concatenate([b.data for b in mesh.cells if b.type == kind]).astype(np.int64)
    used, inverse = np.unique(tets, return_inverse=True)
    x, tets = np.asarray(mesh.points, np.float64)[used] * scale, inverse.reshape(tets.shape)
    if kind == "tetra10":
        return (x, tets) if quadratic else _corners_only(x, tets)
    tets = positively_oriented(x, tets)
    return to_quadratic(x, tets) if quadratic else (x, tets)


def _corners_only(x: NDArray[np.float64], tets: NDArray[np.int64]) -> Mesh:
    used, inverse = np.unique(tets[:, :4], return_inverse=True)
    return x[used], inverse.reshape(-1, 4)


def mesh_from_surface(path: Path, *, scale: float = 1.0, edge_length: float, quadratic: bool = True) -> Mesh:
    """Fill a closed surface (any file trimesh reads) with tets of about `edge_length` m, by fTetWild."""
    if not path.is_file():
        raise InvalidBodyError(f"mesh.surface: {path} does not exist")
    try:
        surface = trimesh.load(path, force="mesh")
    # trimesh's readers raise whatever their format's parser does
    except Exception as error:
        raise InvalidBodyError(
            f"mesh.surface: {path} cannot be read ({error}); convert it to .stl, .ply or .obj"
        ) from error
    if not isinstance(surface, trimesh.Trimesh) or len(surface.faces) == 0:
        raise InvalidBodyError(f"mesh.surface: {path} holds no triangles")
    if not surface.is_watertight:
        raise InvalidBodyError(f"mesh.surface: {path} is not watertight; close its holes before import")
    # imported here: loading it takes longer than all the rest of this module
    import pytetwild

    vertices = np.asarray(surface.vertices, np.float64) * scale
    diagonal = float(np.linalg.norm(np.ptp(vertices, axis=0)))
    points, cells = pytetwild.tetrahedralize(
        vertices, np.asarray(surface.faces, np.int32), edge_length_fac=edge_length / diagonal, quiet=True
    )
    x = np.asarray(points, np.float64)
    tets = positively_oriented(x, np.asarray(cells, np.int64)[:, :4])
    return to_quadratic(x, tets) if quadratic else (x, tets)
