"""Cables as a part of bodies: specification, files, hash, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from body.bodies import bar
from body.test_files import SPECIFICATION
from realsimloop_ros.body.body import Attachment, Body, Cable, InvalidBodyError, bind_points
from realsimloop_ros.body.files import (
    BodySpecification,
    body_arrays,
    body_from_arrays,
    load_body,
    load_body_specification,
    save_body,
)

BODY = bar(divisions=(4, 1, 1))
POINTS = np.array([[0.1, 0.015, 0.03], [0.06, 0.015, 0.03], [0.02, 0.015, 0.035]])
ANCHOR = np.array([-0.05, 0.015, 0.05])
CABLE = Cable("pull", "winch", ANCHOR, bind_points(BODY, POINTS), 2000.0)
WITH_CABLE = replace(BODY, cables=(CABLE,))


def test_a_body_with_a_cable_comes_back_whole(tmp_path: Path) -> None:
    save_body(tmp_path / "body.npz", WITH_CABLE)
    loaded = load_body(tmp_path / "body.npz")
    assert loaded.content_hash == WITH_CABLE.content_hash
    (cable,) = loaded.cables
    assert (cable.name, cable.frame, cable.stiffness, cable.blend) == ("pull", "winch", 2000.0, 1e-4)
    np.testing.assert_allclose(cable.points.positions(loaded.rest_positions, loaded.tets), POINTS, atol=1e-12)
    np.testing.assert_array_equal(cable.anchor, ANCHOR)


def test_a_file_from_before_there_were_cables_still_loads() -> None:
    arrays = body_arrays(BODY)
    header = json.loads(str(arrays["header"]))
    del header["cables"]
    loaded = body_from_arrays(arrays | {"header": np.array(json.dumps(header))})
    assert loaded.cables == () and loaded.content_hash == BODY.content_hash


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"frame": "other"},
        {"anchor": ANCHOR + 1e-9},
        {"stiffness": 2001.0},
        {"blend": 2e-4},
        {"points": bind_points(BODY, POINTS[:2])},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_hash_changes_with_anything_that_defines_a_cable(changes: dict[str, Any]) -> None:
    other = replace(BODY, cables=(replace(CABLE, **changes),))
    assert len({body.content_hash for body in (BODY, WITH_CABLE, other)}) == 3


def _points(**changes: Any) -> Attachment:
    return replace(CABLE.points, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"points": bind_points(BODY, np.zeros((0, 3)))}, ["cables.pull.points: none", "one point"]),
        (
            {"points": bind_points(BODY, POINTS[[0, 1, 1]])},
            ["cables.pull.points: point 1 lies at the next", "drop"],
        ),
        ({"anchor": POINTS[-1]}, ["cables.pull.points: point 2 lies at the next"]),
        ({"anchor": np.array([0.0, np.nan, 0.0])}, ["cables.pull.anchor", "nan", "finite"]),
        ({"anchor": np.zeros(2)}, ["cables.pull.anchor", "[0.0, 0.0]", "three"]),
        ({"stiffness": -1.0}, ["cables.pull.stiffness: -1.0", "positive", "N/m"]),
        ({"stiffness": np.inf}, ["cables.pull.stiffness: inf"]),
        ({"blend": 0.0}, ["cables.pull.blend: 0.0", "positive", "of m"]),
        ({"points": _points(tet=np.array([0, 1, 99]))}, ["cables.pull.points.tet", "0..23", "bind them anew"]),
        ({"points": _points(weights=np.zeros((3, 4)))}, ["cables.pull.points: weights (3, 4)", "(3, 10)"]),
        ({"points": _points(weights=np.full((3, 10), np.nan))}, ["cables.pull.points", "not finite"]),
    ],
)
def test_a_wrong_cable_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidBodyError) as caught:
        replace(BODY, cables=(replace(CABLE, **changes),))
    for word in words:
        assert word in str(caught.value)


def test_cables_of_the_same_name_are_refused() -> None:
    with pytest.raises(InvalidBodyError, match=r"cables: names \('pull', 'pull'\) repeat"):
        replace(BODY, cables=(CABLE, CABLE))


ENTRY: dict[str, Any] = {
    "name": "pull",
    "frame": "winch",
    "anchor": ANCHOR.tolist(),
    "points": POINTS.tolist(),
    "stiffness": 2000.0,
}


def test_a_specification_binds_a_cable_where_it_says() -> None:
    body = BodySpecification.model_validate(SPECIFICATION | {"cables": [ENTRY]}).build()
    assert body.cable_names == ("pull",)
    (cable,) = body.cables
    assert (cable.frame, cable.stiffness, cable.blend) == ("winch", 2000.0, 1e-4)
    np.testing.assert_allclose(cable.points.positions(body.rest_positions, body.tets), POINTS, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"points": []}, ["cables.0.points", "at least 1"]),
        ({"stiffness": -1}, ["cables.0.stiffness", "greater than 0", "got -1"]),
        ({"anchor": [0, 0]}, ["cables.0.anchor.2"]),
        ({"frame": ""}, ["cables.0.frame"]),
        ({"tension": 1}, ["cables.0.tension", "Extra inputs"]),
        ({"points": [POINTS[0].tolist()] * 2}, ["cables.pull.points: point 0 lies at the next one"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_specification_of_a_cable_is_refused_by_file_and_field(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    path = tmp_path / "beam.yaml"
    path.write_text(yaml.safe_dump(SPECIFICATION | {"cables": [ENTRY | changes]}))
    with pytest.raises(InvalidBodyError) as caught:
        load_body_specification(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_every_shipped_body_is_without_cables_and_keeps_its_hash(tmp_path: Path) -> None:
    body: Body = load_body_specification(Path(__file__).parents[2] / "config" / "bodies" / "dual_arm_bar.yaml")
    save_body(tmp_path / "bar.npz", body)
    assert load_body(tmp_path / "bar.npz").content_hash == body.content_hash
    # written down once, as in test_body: models and bags of this body name it
    assert body.content_hash.startswith(DUAL_ARM_BAR_HASH)


DUAL_ARM_BAR_HASH = "41e5294f2b19a161"
