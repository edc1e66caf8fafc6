"""Import of surfaces and of tetrahedral meshes."""

from __future__ import annotations

import os
from pathlib import Path

import meshio
import numpy as np
import pytest
import trimesh

from body.bodies import bar
from realsimloop_ros.body.body import Body, InvalidBodyError, Zone, corner_volumes, surface_triangles
from realsimloop_ros.body.files import load_body_specification
from realsimloop_ros.body.meshing import box_bar, mesh_from_surface, read_tetrahedral_mesh, to_quadratic
from realsimloop_ros.body.shape_functions import EDGES

DATA = Path(os.environ.get("REALSIMLOOP_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@pytest.mark.parametrize("written_quadratic", [True, False])
@pytest.mark.parametrize("wanted_quadratic", [True, False])
@pytest.mark.parametrize("suffix", [".vtu", ".msh"])
def test_tets_are_read_in_metres(
    tmp_path: Path, suffix: str, written_quadratic: bool, wanted_quadratic: bool
) -> None:
    x, tets = box_bar(100.0, 30.0, 30.0, (2, 1, 1), quadratic=written_quadratic)
    # a vertex without a tet and a surface block are common in files of mesh generators
    points = np.concatenate([[[7.0, 7.0, 7.0]], x])
    cells = [("triangle", tets[:2, :3] + 1), ("tetra10" if written_quadratic else "tetra", tets + 1)]
    path = tmp_path / f"bar{suffix}"
    # .msh would otherwise be written as ANSYS, which has no quadratic tets
    meshio.Mesh(points, cells).write(path, file_format={".vtu": "vtu", ".msh": "gmsh22"}[suffix])
    read_x, read_tets = read_tetrahedral_mesh(path, scale=1e-3, quadratic=wanted_quadratic)
    body = Body("bar", read_x, read_tets, np.zeros(len(read_tets), np.int64), (Zone("all", 1.0),))
    assert body.nodes_per_tet == (10 if wanted_quadratic else 4)
    assert corner_volumes(read_x, read_tets).sum() == pytest.approx(0.1 * 0.03 * 0.03, rel=1e-12)  # rounding
    if wanted_quadratic:
        middles = read_x[read_tets[:, EDGES]].mean(axis=2)
        np.testing.assert_allclose(read_x[read_tets[:, 4:]], middles, atol=1e-15)


def test_left_handed_linear_tets_are_turned(tmp_path: Path) -> None:
    x, tets = box_bar(1.0, 1.0, 1.0, (1, 1, 1), quadratic=False)
    path = tmp_path / "bar.vtu"
    meshio.Mesh(x, [("tetra", tets[:, [1, 0, 2, 3]])]).write(path)
    assert corner_volumes(*read_tetrahedral_mesh(path)).min() > 0.0


def test_a_mesh_file_becomes_a_body(tmp_path: Path) -> None:
    x, tets = box_bar(100.0, 30.0, 30.0, (2, 1, 1), quadratic=False)
    meshio.Mesh(x, [("tetra", tets)]).write(tmp_path / "bar.vtu")
    (tmp_path / "body.yaml").write_text(
        "name: bar\n"
        "mesh: {kind: tets, path: bar.vtu, scale: 0.001}\n"
        "zones: [{name: all, density: 1000}]\n"
        "fixed: {maximum: [0, null, null]}\n"
    )
    body = load_body_specification(tmp_path / "body.yaml")
    assert body.size == pytest.approx(0.1) and len(body.fixed_vertices) == 9


def test_mesh_files_without_tets_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidBodyError, match="does not exist"):
        read_tetrahedral_mesh(tmp_path / "gone.vtu")
    (tmp_path / "text.vtu").write_text("nothing")
    with pytest.raises(InvalidBodyError, match=r"text\.vtu cannot be read"):
        read_tetrahedral_mesh(tmp_path / "text.vtu")
    (tmp_path / "text.unknown").write_text("nothing")
    with pytest.raises(InvalidBodyError, match=r"text\.unknown cannot be read"):
        read_tetrahedral_mesh(tmp_path / "text.unknown")
    meshio.Mesh(np.eye(3), [("triangle", np.array([[0, 1, 2]]))]).write(tmp_path / "surface.vtu")
    with pytest.raises(InvalidBodyError, match=r"surface\.vtu holds \['triangle'\], no tets"):
        read_tetrahedral_mesh(tmp_path / "surface.vtu")
    x, tets = box_bar(1.0, 1.0, 1.0, (1, 1, 1))
    meshio.Mesh(x, [("tetra10", tets[:1]), ("tetra", tets[1:, :4])]).write(tmp_path / "mixed.vtu")
    with pytest.raises(InvalidBodyError, match=r"mixed\.vtu mixes linear and quadratic"):
        read_tetrahedral_mesh(tmp_path / "mixed.vtu")


def test_surfaces_that_cannot_be_filled_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidBodyError, match="does not exist"):
        mesh_from_surface(tmp_path / "gone.stl", edge_length=0.01)
    (tmp_path / "text.stl").write_text("nothing")
    with pytest.raises(InvalidBodyError, match=r"text\.stl"):
        mesh_from_surface(tmp_path / "text.stl", edge_length=0.01)
    (tmp_path / "text.unknown").write_text("nothing")
    with pytest.raises(InvalidBodyError, match=r"text\.unknown"):
        mesh_from_surface(tmp_path / "text.unknown", edge_length=0.01)
    box = trimesh.creation.box()
    trimesh.Trimesh(box.vertices, box.faces[1:]).export(tmp_path / "open.stl")
    with pytest.raises(InvalidBodyError, match=r"open\.stl is not watertight"):
        mesh_from_surface(tmp_path / "open.stl", edge_length=0.1)


def test_the_real_beam_is_filled_with_tets() -> None:
    path = DATA / "real_beam" / "beam.stl"
    if not path.is_file():
        pytest.skip(f"{path} is absent; set REALSIMLOOP_DATA to the folder that holds real_beam")
    x, tets = mesh_from_surface(path, scale=1e-3, edge_length=0.03)
    surface = trimesh.load(path, force="mesh")
    assert isinstance(surface, trimesh.Trimesh)
    # fTetWild keeps the surface within an envelope of 1e-3 of the diagonal (0.11 mm on 30 mm: 0.4 % a side)
    assert corner_volumes(x, tets).sum() == pytest.approx(surface.volume * 1e-9, rel=0.02)
    np.testing.assert_allclose(np.ptp(x, axis=0), surface.extents * 1e-3, atol=2.5e-4)
    body = Body("beam", x, tets, np.zeros(len(tets), np.int64), (Zone("silicone", 1070.0),))
    skin = trimesh.Trimesh(x, surface_triangles(body), process=False)
    assert skin.is_watertight and skin.volume > 0.0


def test_elevation_shares_middles_between_neighbours() -> None:
    x, tets = to_quadratic(*box_bar(1.0, 1.0, 1.0, (2, 2, 2), quadratic=False))
    # vertices of a grid of half the spacing
    assert len(x) == 5**3
    assert len(np.unique(np.round(x, 12), axis=0)) == len(x)
    assert bar((1.0, 1.0, 1.0), (2, 2, 2)).tets.shape == tets.shape
