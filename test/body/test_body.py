"""What a Body accepts and refuses, its hash, its surface, and points bound to it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trimesh

from body.bodies import bar, two_tets
from realsimloop_ros.body.body import (
    Attachment,
    Body,
    Grip,
    HungWeight,
    InvalidBodyError,
    Zone,
    bind_points,
    corner_volumes,
    surface_triangles,
)
from realsimloop_ros.body.files import with_markers
from realsimloop_ros.body.meshing import box_bar, to_quadratic
from realsimloop_ros.body.parts import no_attachment
from realsimloop_ros.body.poses import InvalidPoseError

# written down once: a change of this number breaks every body hash that a bag or a model has stored
TWO_TETS_HASH = "96777953c0c958524f1878c282c8d85b19acddb98714a86a648b61919ab48d2a"


def test_hash_is_the_same_in_every_process_and_version() -> None:
    assert two_tets().content_hash == TWO_TETS_HASH
    program = "from body.bodies import two_tets; print(two_tets().content_hash)"
    path = [entry for entry in sys.path if entry]
    out = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == TWO_TETS_HASH


def test_hash_does_not_depend_on_how_numbers_are_held() -> None:
    body = two_tets()
    same = replace(
        body,
        tets=np.asfortranarray(body.tets.astype(np.int32)),
        rest_positions=np.asfortranarray(body.rest_positions),
    )
    assert same.content_hash == body.content_hash


HELD_BAR = bar(holds="grips")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"rest_positions": HELD_BAR.rest_positions + np.array([0.0, 0.0, 1e-15])},
        {"tets": HELD_BAR.tets[::-1]},
        {"zones": (Zone("silicone", 1070.0 + 1e-9),)},
        {"zones": (Zone("rubber", 1070.0),)},
        {"grips": HELD_BAR.grips[:1]},
        {"grips": (replace(HELD_BAR.grips[0], frame="elsewhere"), HELD_BAR.grips[1])},
        {
            "grips": (
                replace(HELD_BAR.grips[0], rest_pose=np.array([0, 0, 1e-9, 0, 0, 0, 1.0])),
                HELD_BAR.grips[1],
            )
        },
        {"fixed_vertices": np.array([40])},
        {"hung_weights": (HungWeight("w", 0.01, np.array([40]), np.array([1.0])),)},
        {"hung_weights": (HungWeight("w", 0.02, np.array([40]), np.array([1.0])),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_hash_changes_with_anything_that_defines_the_body(changes: dict[str, Any]) -> None:
    assert replace(HELD_BAR, **changes).content_hash != HELD_BAR.content_hash


def test_hash_changes_with_a_marker() -> None:
    with_one = with_markers(HELD_BAR, {"tip": np.array([0.1, 0.015, 0.02])})
    moved = with_markers(HELD_BAR, {"tip": np.array([0.1, 0.015, 0.021])})
    renamed = replace(with_one, marker_names=("top",))
    assert len({body.content_hash for body in (HELD_BAR, with_one, moved, renamed)}) == 4


def _positions_with(row: int, value: float) -> np.ndarray:
    x = two_tets().rest_positions.copy()
    x[row, 1] = value
    return x


def _weight(mass: float = 0.1, vertices: Any = (4,), weights: Any = (1.0,)) -> dict[str, Any]:
    return {"hung_weights": (HungWeight("load", mass, np.array(vertices, int), np.array(weights, float)),)}


TWO_BARS = np.concatenate([box_bar(1, 1, 1, (1, 1, 1), quadratic=False)[0] + 3 * k for k in (0, 1)])
TWO_BARS_TETS = np.concatenate([box_bar(1, 1, 1, (1, 1, 1), quadratic=False)[1] + 8 * k for k in (0, 1)])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rest_positions": np.zeros((5, 2))}, ["rest_positions", "(5, 2)", "(n, 3)"]),
        ({"rest_positions": _positions_with(4, np.nan)}, ["rest_positions", "vertex 4", "nan", "repair"]),
        ({"rest_positions": _positions_with(4, np.inf)}, ["rest_positions", "vertex 4", "inf"]),
        ({"tets": np.zeros((2, 5), int)}, ["tets", "(2, 5)"]),
        ({"tets": np.array([[0, 1, 2, 3], [1, 4, 2, 9]])}, ["tets", "9", "5 vertices"]),
        ({"tets": np.array([[0, 1, 2, 3], [4, 1, 2, 3]])}, ["tets", "tet 1", "volume", "reorder"]),
        ({"tets": np.array([[0, 1, 2, 3], [1, 2, 2, 3]])}, ["tets", "tet 1", "volume 0"]),
        (
            {"rest_positions": np.concatenate([two_tets().rest_positions, np.ones((1, 3))])},
            ["vertices (first 5) belong to no tet", "drop"],
        ),
        ({"zone_of_tet": np.zeros(3, int)}, ["zone_of_tet", "(3,)", "(2,)"]),
        ({"zone_of_tet": np.array([0, 2])}, ["zone_of_tet", "0..2", "soft", "stiff"]),
        ({"zone_of_tet": np.array([0, -1])}, ["zone_of_tet", "-1..0"]),
        ({"zones": ()}, ["zone_of_tet", "zones are ()"]),
        ({"zones": (Zone("soft", 1000.0), Zone("soft", 1.0))}, ["zones", "repeat"]),
        ({"zones": (Zone("soft", 1000.0), Zone("stiff", 0.0))}, ["zones.stiff.density", "0.0", "kg/m^3"]),
        ({"zones": (Zone("soft", -1.0), Zone("stiff", 1.0))}, ["zones.soft.density", "-1.0"]),
        ({"zones": (Zone("soft", np.nan), Zone("stiff", 1.0))}, ["zones.soft.density", "nan"]),
        ({"zone_of_tet": np.array([0, 0])}, ["zones.stiff", "no tet"]),
        ({"fixed_vertices": np.array([5])}, ["fixed_vertices", "outside 0..4"]),
        ({"fixed_vertices": np.array([1, 1])}, ["fixed_vertices", "twice"]),
        ({"fixed_vertices": np.arange(5)}, ["every vertex is held"]),
        ({"grips": (Grip("a", "f", np.array([1, 2])),)}, ["grips.a", "2 vertices", "three"]),
        ({"grips": (Grip("a", "f", np.array([0, 1, 2])),)}, ["grips.a", "shares vertices", "separate"]),
        (
            {"grips": (Grip("a", "f", np.array([1, 2, 3])), Grip("b", "g", np.array([2, 3, 4])))},
            ["grips.b", "shares vertices"],
        ),
        (
            {
                "fixed_vertices": np.zeros(0, int),
                "grips": (Grip("a", "f", np.array([1, 2, 3])), Grip("a", "g", np.array([0, 4]))),
            },
            ["grips", "repeat"],
        ),
        (_weight(mass=-0.1), ["hung_weights.load.mass", "-0.1"]),
        (_weight(mass=np.nan), ["hung_weights.load.mass", "nan"]),
        (_weight(weights=[0.9]), ["hung_weights.load.weights", "0.9", "sum of one"]),
        (_weight(vertices=[3, 4], weights=[2.0, -1.0]), ["hung_weights.load.weights", "-1.0", "negative"]),
        (_weight(vertices=[3, 4]), ["hung_weights.load", "one weight per vertex"]),
        (_weight(vertices=[], weights=[]), ["hung_weights.load", "at least one"]),
        (_weight(vertices=[7]), ["hung_weights.load.vertices", "outside 0..4"]),
        ({"marker_names": ("tip",)}, ["markers", "tip"]),
        ({"markers": Attachment(np.array([0]), np.ones((1, 4)), np.zeros((1, 4, 3)))}, ["markers"]),
        (
            {
                "marker_names": ("tip",),
                "markers": Attachment(np.array([2]), np.ones((1, 4)), np.zeros((1, 4, 3))),
            },
            ["markers.tet", "outside 0..1"],
        ),
        (
            {
                "marker_names": ("tip",),
                "markers": Attachment(np.array([0]), np.ones((1, 10)), np.zeros((1, 10, 3))),
            },
            ["markers", "(1, 10)", "(1, 4)", "bind_points"],
        ),
        (
            {
                "marker_names": ("tip",),
                "markers": Attachment(np.array([0]), np.full((1, 4), np.nan), np.zeros((1, 4, 3))),
            },
            ["markers", "not finite"],
        ),
        (
            {
                "rest_positions": TWO_BARS,
                "tets": TWO_BARS_TETS,
                "zone_of_tet": np.repeat([0, 1], 6),
            },
            ["falls into 2 parts", "nothing holds 1", "8 vertices about [3.5, 3.5, 3.5] m", "merge"],
        ),
        (
            {
                "rest_positions": TWO_BARS,
                "tets": TWO_BARS_TETS,
                "zone_of_tet": np.repeat([0, 1], 6),
                "fixed_vertices": np.zeros(0, int),
            },
            ["falls into 2 parts", "nothing holds 2"],
        ),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, dict) else "",
)
def test_what_cannot_be_simulated_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidBodyError) as caught:
        two_tets(**changes)
    for word in words:
        assert word in str(caught.value)


def test_a_grip_with_an_invalid_rest_pose_is_refused_by_name() -> None:
    grip = Grip("left", "tool", np.array([1, 2, 3]), np.zeros(7))
    with pytest.raises(InvalidPoseError, match=r"grips\.left\.rest_pose"):
        two_tets(grips=(grip,))


def test_two_parts_are_fine_when_each_is_held_and_one_part_may_fly() -> None:
    held = np.array([0, 8])
    two_tets(rest_positions=TWO_BARS, tets=TWO_BARS_TETS, zone_of_tet=np.repeat([0, 1], 6), fixed_vertices=held)
    assert len(two_tets(fixed_vertices=np.zeros(0, int)).held_vertices) == 0


@pytest.mark.parametrize("quadratic", [True, False])
def test_surface_is_closed_and_outward(quadratic: bool) -> None:
    size = (0.1, 0.03, 0.02)
    body = bar(size, (3, 2, 1), quadratic=quadratic)
    triangles = surface_triangles(body)
    surface = trimesh.Trimesh(body.rest_positions, triangles, process=False)
    assert surface.is_watertight and surface.is_winding_consistent
    # the divergence theorem gives a positive volume for outward triangles only; 1e-12: rounding
    assert surface.volume == pytest.approx(np.prod(size), rel=1e-12)
    # two triangles per square, four times as many where quadratic faces are split
    squares = 2 * (3 * 2 + 3 * 1 + 2 * 1)
    assert len(triangles) == squares * 2 * (4 if quadratic else 1)


@pytest.mark.parametrize("quadratic", [True, False])
def test_box_fills_its_volume_without_gaps(quadratic: bool) -> None:
    x, tets = box_bar(0.2, 0.03, 0.05, (4, 2, 3), origin=(1.0, -2.0, 3.0), quadratic=quadratic)
    volumes = corner_volumes(x, tets)
    assert volumes.min() > 0.0
    assert volumes.sum() == pytest.approx(0.2 * 0.03 * 0.05, rel=1e-12)  # rounding
    np.testing.assert_allclose(x.min(axis=0), [1.0, -2.0, 3.0], atol=1e-15)
    np.testing.assert_allclose(x.max(axis=0), [1.2, -1.97, 3.05], atol=1e-15)


@pytest.mark.parametrize(
    ("size", "divisions", "word"),
    [((0.1, 0.0, 0.1), (1, 1, 1), "size"), ((0.1, 0.1, np.nan), (1, 1, 1), "size"), ((1, 1, 1), (1, 0, 1), "div")],
)
def test_box_refuses_empty_shapes(size: Any, divisions: Any, word: str) -> None:
    with pytest.raises(InvalidBodyError, match=word):
        box_bar(*size, divisions)


def _quadratic_map(x: np.ndarray) -> np.ndarray:
    """A displacement that quadratic elements hold exactly."""
    bend = np.stack([x[:, 2] * x[:, 0], 0.3 * x[:, 0] ** 2, -0.5 * x[:, 0] * x[:, 1]], axis=1)
    return x + 2.0 * bend


def test_bound_points_inside_follow_the_elements_exactly() -> None:
    body = bar((0.1, 0.03, 0.03), (4, 2, 2))
    points = np.random.default_rng(1).uniform(0.001, 0.029, (50, 3)) * np.array([3.0, 1.0, 1.0])
    bound = bind_points(body, points)
    # 1e-15: a few roundings of coordinates of 0.1 m
    np.testing.assert_allclose(bound.positions(body.rest_positions, body.tets), points, atol=1e-15)
    moved = _quadratic_map(body.rest_positions)
    np.testing.assert_allclose(bound.positions(moved, body.tets), _quadratic_map(points), atol=1e-15)
    difference = 1e-6
    gradients = np.stack(
        [
            (_quadratic_map(points + difference * axis) - _quadratic_map(points - difference * axis))
            / (2 * difference)
            for axis in np.eye(3)
        ],
        axis=2,
    )
    # central differences of a quadratic are exact; what is left is rounding over the difference, 1e-16 / 1e-6
    np.testing.assert_allclose(bound.deformation_gradients(moved, body.tets), gradients, atol=1e-9)


@pytest.mark.parametrize("quadratic", [True, False])
def test_bound_points_outside_follow_the_nearest_patch(quadratic: bool) -> None:
    body = bar((0.1, 0.03, 0.03), (4, 2, 2), quadratic=quadratic)
    points = np.array([[0.1, 0.015, 0.036], [0.104, 0.013, 0.02], [0.05, -0.006, -0.003]])
    bound = bind_points(body, points)
    np.testing.assert_allclose(bound.positions(body.rest_positions, body.tets), points, atol=1e-15)
    np.testing.assert_allclose(bound.weights.sum(axis=1), 1.0, atol=1e-12)  # a shift moves the point alike
    affine = np.array([[1.1, 0.2, 0.0], [-0.1, 0.9, 0.05], [0.0, 0.1, 1.2]])
    # first-order extension: exact for affine maps, to rounding
    np.testing.assert_allclose(
        bound.positions(body.rest_positions @ affine.T, body.tets), points @ affine.T, atol=1e-15
    )
    if quadratic:
        feet = np.clip(points, 0.0, [0.1, 0.03, 0.03])
        at_feet = bind_points(body, feet)
        moved = _quadratic_map(body.rest_positions)
        F = at_feet.deformation_gradients(moved, body.tets)
        extended = _quadratic_map(feet) + np.einsum("kij,kj->ki", F, points - feet)
        np.testing.assert_allclose(bound.positions(moved, body.tets), extended, atol=1e-14)


def test_points_are_bound_in_curved_elements() -> None:
    x, tets = to_quadratic(*box_bar(1.0, 1.0, 1.0, (1, 1, 1), quadratic=False))
    x[8:] += 0.03 * np.sin(7.0 * x[8:, [1, 2, 0]])  # middles off their edges
    body = Body("curved", x, tets, np.zeros(6, np.int64), (Zone("all", 1.0),))
    points = np.random.default_rng(2).uniform(0.3, 0.7, (20, 3))
    # Newton ends at rounding
    np.testing.assert_allclose(bind_points(body, points).positions(x, tets), points, atol=1e-14)


def test_binding_refuses_points_that_are_none() -> None:
    body = bar()
    with pytest.raises(InvalidBodyError, match="points"):
        bind_points(body, np.array([[0.0, np.nan, 0.0]]))
    with pytest.raises(InvalidBodyError, match=r"\(1, 2\)"):
        bind_points(body, np.zeros((1, 2)))


def test_no_attachment_has_no_points() -> None:
    body = bar()
    empty = no_attachment(10)
    assert len(empty) == 0
    assert empty.positions(body.rest_positions, body.tets).shape == (0, 3)
    assert len(bind_points(body, np.zeros((0, 3)))) == 0
