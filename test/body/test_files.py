"""Body files and body specifications: round trips, and what is said about files that are no bodies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from body.bodies import bar
from realsimloop_ros.body.body import Body, Grip, HungWeight, InvalidBodyError, Zone
from realsimloop_ros.body.files import (
    BodySpecification,
    atomic_write,
    body_arrays,
    load_body,
    load_body_specification,
    save_body,
    with_markers,
)


def full_body() -> Body:
    """A body that has one of everything."""
    body = bar(divisions=(4, 1, 1), holds="grips")
    x, tets = body.rest_positions, body.tets
    middle = np.flatnonzero((np.abs(x[:, 0] - 0.05) < 1e-9) & (x[:, 2] > 0.03 - 1e-9))
    bottom = np.flatnonzero((np.abs(x[:, 0] - 0.05) < 1e-9) & (x[:, 2] < 1e-9))
    pose = np.array([0.1, 0.0, 0.02, 0.0, 0.6, 0.0, 0.8])
    body = replace(
        body,
        zone_of_tet=(x[tets[:, :4]].mean(axis=1)[:, 0] > 0.05).astype(np.int64),
        zones=(Zone("soft", 1070.0), Zone("stiff", 1080.0)),
        grips=(body.grips[0], Grip("right", "right_tool", body.grips[1].vertices, pose)),
        fixed_vertices=bottom,
        hung_weights=(HungWeight("load", 0.052, middle, np.full(len(middle), 1.0 / len(middle))),),
    )
    return with_markers(body, {"tip": np.array([0.1, 0.015, 0.036]), "side": np.array([0.02, -0.01, 0.01])})


def test_a_saved_body_comes_back_whole(tmp_path: Path) -> None:
    body = full_body()
    save_body(tmp_path / "deep" / "body.npz", body)
    loaded = load_body(tmp_path / "deep" / "body.npz")
    assert loaded.content_hash == body.content_hash
    assert loaded.zone_names == ("soft", "stiff") and loaded.marker_names == ("tip", "side")
    np.testing.assert_array_equal(loaded.held_vertices, body.held_vertices)
    np.testing.assert_array_equal(loaded.grips[1].rest_pose, body.grips[1].rest_pose)


def test_a_plain_body_comes_back_whole(tmp_path: Path) -> None:
    body = bar(quadratic=False, holds="none")
    save_body(tmp_path / "body.npz", body)
    loaded = load_body(tmp_path / "body.npz")
    assert loaded.content_hash == body.content_hash
    assert loaded.markers is None and loaded.size == pytest.approx(0.1)


def test_the_file_holds_no_pickle(tmp_path: Path) -> None:
    save_body(tmp_path / "body.npz", full_body())
    with np.load(tmp_path / "body.npz", allow_pickle=False) as archive:
        assert all(archive[name].dtype.kind in "fiU" for name in archive.files)


class _Payload:
    """Something whose unpickling would be noticed."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


def _write_pickle(path: Path) -> None:
    np.savez(path, header=np.array([_Payload()], dtype=object))


def _write_text(path: Path) -> None:
    path.write_text("not a body")


def _write_npy(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))


def _write_truncated(path: Path) -> None:
    save_body(path, full_body())
    path.write_bytes(path.read_bytes()[:2000])


def _write_flipped_byte(path: Path) -> None:
    save_body(path, full_body())
    content = bytearray(path.read_bytes())
    content[600] ^= 0xFF
    path.write_bytes(bytes(content))


def _write_other_archive(path: Path) -> None:
    np.savez(path, rest_positions=np.zeros((3, 3)))


def _write_incomplete(path: Path) -> None:
    arrays = body_arrays(full_body())
    del arrays["grip_1_vertices"]
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _write_inverted(path: Path) -> None:
    arrays = body_arrays(full_body())
    arrays["rest_positions"] = -arrays["rest_positions"]
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _write_header(path: Path, header: str) -> None:
    arrays = body_arrays(full_body()) | {"header": np.array(header)}
    np.savez(path, **arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("write", "word"),
    [
        (_write_pickle, "pickle"),
        (_write_text, "not a zip file"),
        (_write_npy, "not a zip file"),
        (_write_truncated, "damaged"),
        (_write_flipped_byte, "damaged"),
        (_write_other_archive, "'header' is missing"),
        (_write_incomplete, "'grip_1_vertices' is missing"),
        (_write_inverted, "volume"),
        (lambda path: _write_header(path, "[]"), "format None"),
        (lambda path: _write_header(path, "{"), "damaged"),
        (lambda path: _write_header(path, json.dumps({"format": "realsimloop-body-9"})), "body-9"),
    ],
)
def test_files_that_are_no_bodies_are_named(tmp_path: Path, write: Any, word: str) -> None:
    path = tmp_path / "body.npz"
    write(path)
    with pytest.raises(InvalidBodyError) as caught:
        load_body(path)
    assert str(path) in str(caught.value) and word in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for load in (load_body, load_body_specification):
        with pytest.raises(InvalidBodyError, match=r"nowhere.* does not exist"):
            load(tmp_path / "nowhere")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="disk"), atomic_write(path) as temporary:
        temporary.write_text("half of the new")
        raise RuntimeError("disk")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


SPECIFICATION: dict[str, Any] = {
    "name": "beam",
    "mesh": {"kind": "box", "size": [0.1, 0.03, 0.03], "divisions": [4, 1, 1]},
    "zones": [
        {"name": "soft", "density": 1070},
        {"name": "stiff", "density": 1080, "region": {"minimum": [0.05, None, None]}},
    ],
    "grips": [
        {"name": "right", "frame": "tool", "region": {"minimum": [0.1, None, None]}},
    ],
    "fixed": {"maximum": [0.0, None, None]},
    "hung_weights": [
        {"name": "load", "mass": 0.05, "region": {"minimum": [0.05, 0, 0.03], "maximum": [0.05, 0.03, 0.03]}}
    ],
    "markers": {"top": [0.05, 0.015, 0.03]},
}


def write_specification(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    path = folder / "beam.yaml"
    path.write_text(yaml.safe_dump(SPECIFICATION | (changes or {})))
    return path


def test_a_specification_becomes_the_body_it_describes(tmp_path: Path) -> None:
    body = load_body_specification(write_specification(tmp_path))
    x = body.rest_positions
    centres = x[body.tets[:, :4]].mean(axis=1)
    np.testing.assert_array_equal(body.zone_of_tet, centres[:, 0] > 0.05)
    assert (x[body.fixed_vertices, 0] == 0.0).all() and len(body.fixed_vertices) == 9
    assert (x[body.grips[0].vertices, 0] == 0.1).all() and len(body.grips[0].vertices) == 9
    assert body.marker_names == ("top",)
    assert load_body_specification(write_specification(tmp_path)).content_hash == body.content_hash


@pytest.mark.parametrize(("quadratic", "shares"), [(True, [1 / 6, 4 / 6, 1 / 6]), (False, [1 / 2, 1 / 2])])
def test_a_weight_on_an_edge_is_spread_consistently(quadratic: bool, shares: list[float]) -> None:
    mesh = {"kind": "box", "size": [0.1, 0.03, 0.03], "divisions": [4, 1, 1], "quadratic": quadratic}
    body = BodySpecification.model_validate(SPECIFICATION | {"mesh": mesh}).build()
    weight = body.hung_weights[0]
    order = np.argsort(body.rest_positions[weight.vertices, 1])
    np.testing.assert_allclose(weight.weights[order], shares, rtol=1e-12)  # rounding


def test_a_weight_on_a_lone_vertex_hangs_there() -> None:
    region = {"minimum": [0.05, 0.03, 0.03], "maximum": [0.05, 0.03, 0.03]}
    weights = [{"name": "load", "mass": 0.05, "region": region}]
    body = BodySpecification.model_validate(SPECIFICATION | {"hung_weights": weights}).build()
    np.testing.assert_array_equal(body.hung_weights[0].weights, [1.0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colour": "red"}, ["colour", "Extra inputs"]),
        ({"zones": []}, ["zones", "at least 1"]),
        ({"zones": [{"name": "soft", "density": 0}]}, ["zones.0.density", "greater than 0", "got 0"]),
        ({"zones": [{"name": "soft", "density": float("nan")}]}, ["zones.0.density", "nan"]),
        ({"mesh": {"kind": "sphere"}}, ["mesh", "sphere", "box"]),
        ({"mesh": {"kind": "box", "size": [1, 1], "divisions": [1, 1, 1]}}, ["mesh.box.size.2"]),
        ({"mesh": {"kind": "box", "size": [1, 1, 0], "divisions": [1, 1, 1]}}, ["mesh.box: size"]),
        ({"mesh": {"kind": "tets", "path": "gone.vtu"}}, ["mesh.file", "gone.vtu", "does not exist"]),
        ({"grips": [], "fixed": None}, ["grips, fixed", "name what holds the body"]),
        ({"fixed": {"maximum": [-1, None, None]}}, ["fixed.region", "no vertex", "bounds of the mesh"]),
        (
            {"grips": [{"name": "a", "frame": "f", "region": {"minimum": [9, None, None]}}]},
            ["grips.a.region", "no vertex"],
        ),
        (
            {"grips": [{"name": "a", "frame": "f", "region": {"maximum": [0.05, None, None]}}]},
            ["grips.a", "shares vertices"],
        ),
        (
            {"grips": [{"name": "a", "frame": "f", "rest_pose": [0] * 7, "region": {"minimum": [0.1, 0, 0]}}]},
            ["grips.a.rest_pose", "norm"],
        ),
        (
            {"zones": [{"name": "soft", "density": 1, "region": {"minimum": [0.05, None, None]}}]},
            ["zones", "12 tets lie in no zone", "first zone"],
        ),
        (
            {
                "zones": [
                    {"name": "soft", "density": 1},
                    {"name": "far", "density": 1, "region": {"minimum": [9, None, None]}},
                ]
            },
            ["zones.far", "no tet"],
        ),
        ({"markers": {"top": [0, 0]}}, ["markers.top.2"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_specification_is_refused_by_file_and_field(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    path = write_specification(tmp_path, changes)
    with pytest.raises(InvalidBodyError) as caught:
        load_body_specification(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("content", [b"name: [", b"\xff\xfe\x00", b"- 1", b""])
def test_a_file_that_is_no_specification_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "beam.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidBodyError, match=r"beam\.yaml"):
        load_body_specification(path)
