"""The stress node: the field of the core, a marker for RViz, overlays; and only what someone wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import jax.numpy as jnp
import numpy as np
import pytest
from realsimloop.msg import BodyState, MaterialEstimate, MultiViewFrame, StressField
from sensor_msgs.msg import Image
from visualization_msgs.msg import Marker

from nodes.small_cell import (
    SECOND,
    Counterpart,
    context_of,
    figures_of,
    picture,
    running,
    small_body,
    wait_for,
    warnings_of,
    write_cell,
)
from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.dynamics.live import LiveState
from realsimloop_ros.estimation.twin import load_twin
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.mechanics.stress import stress_field, stress_samples
from realsimloop_ros.nodes.conversions import StateReading, multi_view_message, state_message
from realsimloop_ros.nodes.message_checks import header, stamp_ns
from realsimloop_ros.nodes.qos import IMAGES, LATCHED
from realsimloop_ros.nodes.stress import Stress, vertices_at
from realsimloop_ros.nodes.stress_marker import SurfaceMarker, colours_of
from realsimloop_ros.observation.cell_file import load_cell
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.silhouettes import silhouette
from reduced_bodies import REST_POSES

BODY = small_body()
TRIANGLES = surface_triangles(BODY)
PERIOD = SECOND // 30


def stretched(share: float) -> np.ndarray:
    return BODY.rest_positions * [1.0 + share, 1.0, 1.0]


def state(stamp: int, vertices: np.ndarray) -> BodyState:
    return state_message(LiveState(stamp, np.zeros(6), np.zeros(6), REST_POSES, vertices, True), BODY, "world")


def expected_field(cell: Path, vertices: np.ndarray, youngs_modulus: float = 2e5):
    twin = load_twin(load_cell(cell))
    material = material_of(BODY, youngs_modulus, 0.45, 100.0)
    material = type(material)(*(jnp.asarray(values) for values in material))
    # float32 on the way, as the node gets it
    positions = jnp.asarray(vertices.astype(np.float32).astype(np.float64))
    return stress_field(twin.model.law, stress_samples(BODY), material, positions)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_cell(tmp_path)


@pytest.fixture
def other(domain: int, path: Path) -> Iterator[Counterpart]:
    with context_of(domain) as context:
        other = Counterpart(context, load_cell(path))
        other.states = other.source(BodyState, "state")
        yield other
        other.destroy_node()


def test_the_field_is_that_of_the_core_at_the_newest_theta(other: Counterpart, path: Path) -> None:
    other.listen(StressField, "stress")
    thetas = other.source(MaterialEstimate, "theta", LATCHED)
    with running(Stress, path, other) as node:
        other.states.publish(state(SECOND, stretched(0.05)))
        wait_for(lambda: other.received["stress"])
        theta = MaterialEstimate(
            body_hash=BODY.content_hash,
            zone_names=["bar"],
            youngs_modulus=[4e5],
            poisson_ratio=[0.45],
            viscosity=[100.0],
            density=[1070.0],
        )
        thetas.publish(theta)
        wait_for(lambda: float(np.asarray(node._material.youngs_modulus)[0]) == 4e5)
        other.states.publish(state(2 * SECOND, stretched(0.05)))
        wait_for(lambda: len(other.received["stress"]) == 2)
        assert not warnings_of(node)
    for message, modulus in zip(other.received["stress"], (2e5, 4e5), strict=True):
        field = expected_field(path, stretched(0.05), modulus)
        np.testing.assert_array_equal(np.asarray(message.von_mises), np.asarray(field.von_mises, np.float32))
        assert message.max_vertex == int(np.asarray(message.von_mises).argmax())
        assert message.mean_von_mises == pytest.approx(float(field.mean_von_mises), rel=1e-6)
        assert list(message.zone_names) == ["bar"]
        # 2 G times the strain, where nothing contracts across; 5 % is not small to second order
        assert message.mean_von_mises == pytest.approx(0.05 * modulus / 1.45, rel=0.05)
    assert [stamp_ns(m.header) for m in other.received["stress"]] == [SECOND, 2 * SECOND]


def test_states_are_thinned_to_the_rate(other: Counterpart, path: Path) -> None:
    other.listen(StressField, "stress")
    with running(Stress, path, other, rate=10.0) as node:
        for k in range(30):
            other.states.publish(state(SECOND + k * PERIOD, stretched(0.01)))
            if k % 3 == 0:
                wait_for(lambda k=k: len(other.received["stress"]) == k // 3 + 1)
        assert node.diagnostics.drops == {}
    stamps = [stamp_ns(m.header) for m in other.received["stress"]]
    assert stamps == [SECOND + k * PERIOD for k in range(0, 30, 3)]


def test_nothing_is_computed_that_nobody_wants(other: Counterpart, path: Path) -> None:
    with running(Stress, path, other) as node:
        other.states.publish(state(SECOND, stretched(0.01)))
        wait_for(lambda: node._states)
        assert "stress_p50_ms" not in figures_of(node)


def test_the_marker_is_the_coloured_surface(other: Counterpart, path: Path) -> None:
    other.listen(Marker, "stress_markers")
    with running(Stress, path, other, scale=2e4):
        other.states.publish(state(SECOND, stretched(0.05)))
        wait_for(lambda: other.received["stress_markers"])
    marker = other.received["stress_markers"][0]
    assert (marker.type, marker.header.frame_id, marker.scale.x) == (Marker.TRIANGLE_LIST, "world", 1.0)
    assert len(marker.points) == len(marker.colors) == 3 * len(TRIANGLES)
    points = np.array([[p.x, p.y, p.z] for p in marker.points])
    np.testing.assert_allclose(points, stretched(0.05)[TRIANGLES.ravel()], atol=1e-8)  # float32 on the way
    colours = np.array([[c.r, c.g, c.b] for c in marker.colors])
    shares = np.asarray(expected_field(path, stretched(0.05)).von_mises) / 2e4
    np.testing.assert_allclose(colours, colours_of(shares)[TRIANGLES.ravel()] / 255, atol=1e-6)


def test_overlays_show_the_twin_at_the_stamp_of_the_image(other: Counterpart, path: Path) -> None:
    observations = other.source(MultiViewFrame, "observation")
    for camera in range(2):
        other.listen(Image, f"overlay/camera_{camera}", IMAGES)
    cameras = other.cell.camera_list()
    images = np.stack([picture(camera, BODY, BODY.rest_positions) for camera in cameras])
    masks = np.zeros(images.shape[:3], np.uint8)
    views = MultiViewImages(cameras, images, masks, np.array([True, True]))
    with running(Stress, path, other, overlay_scale=2, overlay_opacity=1.0):
        other.states.publish(state(SECOND, BODY.rest_positions))
        message = multi_view_message(views, ("f0", "f1"), BODY, "world", SECOND + PERIOD // 2, 0)
        observations.publish(message)
        other.states.publish(state(SECOND + PERIOD, BODY.rest_positions - [0, 0, 0.02]))
        wait_for(lambda: all(other.received[f"overlay/camera_{k}"] for k in range(2)))
    for k, camera in enumerate(cameras):
        overlay = other.received[f"overlay/camera_{k}"][0]
        assert (overlay.width, overlay.height, overlay.encoding) == (160, 120, "rgb8")
        assert stamp_ns(overlay.header) == SECOND + PERIOD // 2
        pixels = np.frombuffer(overlay.data, np.uint8).reshape(120, 160, 3)
        changed = np.abs(pixels.astype(int) - cv2.resize(images[k], (160, 120), interpolation=cv2.INTER_CUBIC))
        drawn = changed.max(axis=2) > 0
        half_way = BODY.rest_positions - [0, 0, 0.01]
        expected = silhouette(camera.scaled(2), half_way, TRIANGLES) > 0
        # the outline and a filled rim of half a pixel, around a body 26 px high
        assert np.count_nonzero(drawn & ~expected) < 0.2 * np.count_nonzero(expected)
        assert np.count_nonzero(drawn & expected) > 0.95 * np.count_nonzero(expected)


def test_states_of_another_body_and_damaged_ones_are_refused(other: Counterpart, path: Path) -> None:
    with running(Stress, path, other) as node:
        message = state(SECOND, BODY.rest_positions)
        message.body_hash = "beef"
        other.states.publish(message)
        wait_for(lambda: node.diagnostics.drops.get("wrong_body") == 1)
        assert "state: body_hash is beef" in warnings_of(node)
        message = state(SECOND, BODY.rest_positions)
        message.vertices[0] = float("nan")
        other.states.publish(message)
        wait_for(lambda: node.diagnostics.drops.get("non_finite") == 1)
        assert "vertices has non-finite numbers" in warnings_of(node)


def test_vertices_between_states_are_interpolated_and_held_beyond() -> None:
    states = [StateReading(10 * k, np.full((1, 3), float(k))) for k in range(3)]
    assert vertices_at(states, 15)[0, 0] == 1.5
    assert vertices_at(states, -5)[0, 0] == 0.0
    assert vertices_at(states, 25)[0, 0] == 2.0


def test_colours_grow_brighter_and_stop_at_the_ends() -> None:
    table = colours_of(np.linspace(0.0, 1.0, 256)).astype(float) @ [0.2126, 0.7152, 0.0722]
    # perceptually even: no step back by more than the rounding of a byte
    assert (np.diff(table) > -1.0).all()
    np.testing.assert_array_equal(colours_of(np.array([-1.0, 2.0])), colours_of(np.array([0.0, 1.0])))


def test_a_marker_can_be_made_again() -> None:
    maker = SurfaceMarker(TRIANGLES, "world")
    maker.message(BODY.rest_positions, np.zeros(len(BODY.rest_positions)), SECOND)
    marker = maker.message(stretched(0.1), np.ones(len(BODY.rest_positions)), 2 * SECOND)
    assert marker.points[0].x == pytest.approx(stretched(0.1)[TRIANGLES[0, 0], 0])
    assert marker.header == header("world", 2 * SECOND)
