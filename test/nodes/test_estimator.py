"""The estimator node: the same numbers as the core, in whatever order messages come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.monitoring
import numpy as np
import pytest
from geometry_msgs.msg import WrenchStamped
from rclpy.parameter import Parameter as RosParameter
from realsimloop.msg import MaterialEstimate, MultiViewFrame
from visualization_msgs.msg import MarkerArray

from nodes.small_cell import (
    ARMS,
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
from realsimloop_ros.body.body import Body, surface_triangles
from realsimloop_ros.estimation.estimator import MaterialUpdate
from realsimloop_ros.estimation.twin import load_twin
from realsimloop_ros.nodes import cell_messages
from realsimloop_ros.nodes.conversions import multi_view_message
from realsimloop_ros.nodes.estimator import Estimator
from realsimloop_ros.nodes.message_checks import stamp_ns
from realsimloop_ros.nodes.parameters import ParameterError
from realsimloop_ros.nodes.qos import ESTIMATES
from realsimloop_ros.observation.cell_file import CellFile, load_cell
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.likelihoods import FrameObservation
from realsimloop_ros.observation.silhouettes import silhouette
from reduced_bodies import REST_POSES

PERIOD = SECOND // 10
STEP = SECOND // 125  # of poses and wrenches
MARKERS = {"a": (0.0, 0.015, 0.0), "b": (0.03, 0.0, 0.015), "c": (-0.04, -0.015, 0.0)}


def poses_at(stamp_ns: int) -> np.ndarray:
    poses = REST_POSES.copy()
    poses[1, 2] += 0.01 * np.sin(stamp_ns * 2e-9)
    return poses


def bent(body: Body, k: int) -> np.ndarray:
    """What frame k sees: the bar hangs through in the middle."""
    vertices = body.rest_positions.copy()
    vertices[:, 2] -= 0.002 * (1 + 0.3 * np.sin(k)) * np.cos(np.pi * vertices[:, 0] / 0.2)
    return vertices


def view(cell: CellFile, body: Body, k: int) -> MultiViewImages:
    cameras, vertices = cell.camera_list(), bent(body, k)
    masks = np.stack([silhouette(camera, vertices, surface_triangles(body)) for camera in cameras])
    images = np.stack([picture(camera, body, vertices) for camera in cameras])
    return MultiViewImages(cameras, images, masks, np.array([True, k != 3]))


def stamp(k: int) -> int:
    return SECOND + k * PERIOD + 3_000_000 * (k % 2)


def wrench_at(stamp_ns: int, arm: int) -> np.ndarray:
    """Some weight, shared by both arms, and a moment."""
    return np.array([0.1 * arm, 0.0, -0.9 + 0.05 * np.sin(stamp_ns * 3e-9), 0.0, 0.02 - 0.04 * arm, 0.0])


def offline(cell: CellFile, frames: int, markers: bool) -> list[MaterialUpdate]:
    """What the core makes of the same input, first all poses and wrenches and then all frames."""
    twin = load_twin(cell)
    core = twin.estimator()
    for now in range(SECOND, SECOND + (frames + 3) * PERIOD, STEP):
        for grip, pose in zip(twin.body.grips, poses_at(now), strict=True):
            core.add_grip_pose(grip.name, now, pose)
        for arm, grip in enumerate(twin.body.grips):
            core.add_wrench(grip.name, now, wrench_at(now, arm))
    updates = []
    for k in range(frames):
        if markers:
            assert twin.body.markers is not None
            seen = twin.body.markers.positions(bent(twin.body, k), twin.body.tets)
            observation = FrameObservation(stamp(k), marker_positions=seen)
        else:
            observation = FrameObservation(stamp(k), views=view(cell, twin.body, k))
        updates += core.add_observation(observation)
    return updates


@pytest.fixture
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    if "markers" in request.node.name:
        return write_cell(tmp_path, small_body(MARKERS), cameras=0)
    if "wrenches" in request.node.name:
        return write_cell(tmp_path, wrenches=True)
    return write_cell(tmp_path)


@pytest.fixture
def other(domain: int, path: Path) -> Iterator[Counterpart]:
    with context_of(domain) as context:
        other = Counterpart(context, load_cell(path))
        other.listen(MaterialEstimate, "theta", ESTIMATES)
        yield other
        other.destroy_node()


def assert_same(received: list[MaterialEstimate], expected: list[MaterialUpdate]) -> None:
    """To the last bit: the same code on the same numbers."""
    assert [stamp_ns(message.header) for message in received] == [update.stamp_ns for update in expected]
    for message, update in zip(received, expected, strict=True):
        assert list(message.youngs_modulus) == np.asarray(update.material.youngs_modulus).tolist()
        assert list(message.covariance) == update.covariance.ravel().tolist()
        assert (message.status, message.reason) == (int(update.status), update.reason)
        assert (message.loss_before, message.loss_after) == (update.loss_before, update.loss_after)


@pytest.mark.parametrize("poses_first", [True, False])
def test_images_give_the_numbers_of_the_core(other: Counterpart, path: Path, poses_first: bool) -> None:
    count = 6
    expected = offline(other.cell, count, markers=False)
    observations = other.source(MultiViewFrame, "observation")
    body = small_body()

    def send_poses() -> None:
        for now in range(SECOND, SECOND + (count + 3) * PERIOD, STEP):
            other.send_poses(now, poses_at(now))

    with running(Estimator, path, other) as node:
        if poses_first:
            send_poses()
        for k in range(count):
            views = view(other.cell, body, k)
            observations.publish(multi_view_message(views, ("f0", "f1"), body, "world", stamp(k), 0))
        if not poses_first:
            send_poses()
        wait_for(lambda: len(other.received["theta"]) >= len(expected))
        assert node.diagnostics.drops == {}
        assert "solve_p99_ms" in figures_of(node)
        assert "overlap.camera_0" in figures_of(node)
    assert len(expected) == count - 1
    assert_same(other.received["theta"], expected)


@pytest.mark.parametrize("order", ["wrenches first", "wrenches last", "in time"])
def test_wrenches_give_the_numbers_of_the_core(other: Counterpart, path: Path, order: str) -> None:
    count = 4
    expected = offline(other.cell, count, markers=False)
    observations = other.source(MultiViewFrame, "observation")
    pulls = [other.source(WrenchStamped, f"{arm}/tcp_wrench") for arm in ARMS]
    body = small_body()

    def send_wrench(now: int) -> None:
        for arm, publisher in enumerate(pulls):
            publisher.publish(cell_messages.wrench_stamped(wrench_at(now, arm), f"{ARMS[arm]}_tool", now))

    stamps = range(SECOND, SECOND + (count + 3) * PERIOD, STEP)
    with running(Estimator, path, other) as node:
        if order == "wrenches first":
            for now in stamps:
                send_wrench(now)
        sent = 0
        for now in stamps:
            other.send_poses(now, poses_at(now))
            if sent < count and now >= stamp(sent):
                views = view(other.cell, body, sent)
                observations.publish(multi_view_message(views, ("f0", "f1"), body, "world", stamp(sent), 0))
                sent += 1
            if order == "in time":
                send_wrench(now)
                time.sleep(0.005)  # segments close while their last wrenches are still to come
        if order == "wrenches last":
            for now in stamps:
                send_wrench(now)
        wait_for(lambda: len(other.received["theta"]) >= len(expected))
        assert node.diagnostics.drops == {}
    assert_same(other.received["theta"], expected)


def test_while_active_nothing_is_compiled_with_wrenches(other: Counterpart, path: Path) -> None:
    compiled: list[str] = []

    def listen(event: str, _: float, **details: object) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listen)
    observations = other.source(MultiViewFrame, "observation")
    pulls = [other.source(WrenchStamped, f"{arm}/tcp_wrench") for arm in ARMS]
    body, count = small_body(), 6
    with running(Estimator, path, other):
        warm = len(compiled)
        for now in range(SECOND, SECOND + (count + 3) * PERIOD, STEP):
            other.send_poses(now, poses_at(now))
            for arm, publisher in enumerate(pulls):
                publisher.publish(cell_messages.wrench_stamped(wrench_at(now, arm), f"{ARMS[arm]}_tool", now))
        for k in range(count):
            observations.publish(
                multi_view_message(view(other.cell, body, k), ("f0", "f1"), body, "world", stamp(k), 0)
            )
        wait_for(lambda: len(other.received["theta"]) >= count - 1)
        assert len(compiled) == warm
    assert warm > 0
    assert {message.status for message in other.received["theta"]} & {MaterialEstimate.STATUS_UPDATED}


def test_wrenches_of_another_frame_are_refused(other: Counterpart, path: Path) -> None:
    pull = other.source(WrenchStamped, "left/tcp_wrench")
    with running(Estimator, path, other) as node:
        pull.publish(cell_messages.wrench_stamped(np.zeros(6), "left_flange", SECOND))
        wait_for(lambda: node.diagnostics.drops.get("wrong_frame") == 1)
        assert "left/tcp_wrench: frame_id is 'left_flange', expected 'left_tool'" in warnings_of(node)
        pull.publish(cell_messages.wrench_stamped(np.full(6, np.nan), "left_tool", SECOND))
        wait_for(lambda: node.diagnostics.drops.get("non_finite") == 1)


def test_markers_give_the_numbers_of_the_core_and_unknown_ones_are_named(other: Counterpart, path: Path) -> None:
    count = 5
    expected = offline(other.cell, count, markers=True)
    source = other.source(MarkerArray, "markers")
    body = load_twin(other.cell).body
    assert body.markers is not None
    with running(Estimator, path, other) as node:
        for now in range(SECOND, SECOND + (count + 3) * PERIOD, STEP):
            other.send_poses(now, poses_at(now))
        for k in range(count):
            seen = body.markers.positions(bent(body, k), body.tets)
            # in another order than the body's, and one that it does not have
            names, places = (*body.marker_names[::-1], "wand"), np.concatenate([seen[::-1], np.zeros((1, 3))])
            source.publish(cell_messages.marker_array(names, places, "world", stamp(k)))
        wait_for(lambda: len(other.received["theta"]) >= len(expected))
        assert node.diagnostics.drops == {"unknown_marker": count}
        assert "markers: wand unknown; the body has a, b, c" in warnings_of(node)
    assert_same(other.received["theta"], expected)


def test_observations_of_another_body_are_refused(other: Counterpart, path: Path) -> None:
    observations = other.source(MultiViewFrame, "observation")
    with running(Estimator, path, other) as node:
        body = small_body()
        message = multi_view_message(view(other.cell, body, 0), ("f0", "f1"), body, "world", SECOND, 0)
        message.body_hash = "cafe"
        observations.publish(message)
        wait_for(lambda: node.diagnostics.drops.get("wrong_body") == 1)
        assert "body_hash is cafe" in warnings_of(node)
        assert small_body().content_hash in warnings_of(node)


def test_observations_that_wait_for_an_arm_are_bounded_and_say_so(other: Counterpart, path: Path) -> None:
    observations = other.source(MultiViewFrame, "observation")
    body = small_body()
    with running(Estimator, path, other, queue_length=3) as node:
        for k in range(6):
            observations.publish(
                multi_view_message(view(other.cell, body, k), ("f0", "f1"), body, "world", stamp(k), 0)
            )
            wait_for(lambda k=k: len(node.core.tracks[0].waiting) == min(k + 1, 3))
        wait_for(lambda: node.diagnostics.drops == {"no_grip_pose": 3})
        assert "observations wait for messages on left/tcp_pose, right/tcp_pose" in warnings_of(node)


def test_a_clock_that_is_set_back_begins_the_window_anew(other: Counterpart, path: Path) -> None:
    observations = other.source(MultiViewFrame, "observation")
    body = small_body()
    with running(Estimator, path, other) as node:
        for begin in (10 * SECOND, 0):
            before = len(other.received["theta"])
            for k in range(3):
                other.send_poses(begin + stamp(k) + PERIOD)
                message = multi_view_message(
                    view(other.cell, body, k), ("f0", "f1"), body, "world", begin + stamp(k), 0
                )
                observations.publish(message)
            other.send_poses(begin + stamp(4) + PERIOD)
            wait_for(lambda before=before: len(other.received["theta"]) == before + 2)
        assert int(figures_of(node)["resets"]) >= 1
        assert "jumped back in time" in warnings_of(node)


def test_a_source_that_the_cell_lacks_is_refused(domain: int, tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    with context_of(domain) as context:
        overrides = [RosParameter("cell", value=str(path)), RosParameter("source", value="markers")]
        with pytest.raises(ParameterError, match=r"source is 'markers', but body 'bar' has none"):
            Estimator(context=context, parameter_overrides=overrides)
