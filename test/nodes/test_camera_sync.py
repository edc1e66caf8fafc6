"""The camera_sync node: sets of images with masks, and what it says about images that do not fit."""

from __future__ import annotations

import hashlib
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter as RosParameter
from realsimloop.msg import MultiViewFrame
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

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
from realsimloop_ros.nodes.camera_sync import CameraSync
from realsimloop_ros.nodes.conversions import multi_view_from_message
from realsimloop_ros.nodes.image_messages import image_message
from realsimloop_ros.nodes.message_checks import header, time_message
from realsimloop_ros.nodes.qos import CLOCK, IMAGES
from realsimloop_ros.observation.cell_file import load_cell
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.masking import intersection_over_union
from realsimloop_ros.observation.sam2_masking import Sam2Masker, Sam2Settings
from realsimloop_ros.observation.silhouettes import silhouette
from reduced_bodies import REST_POSES

BODY = small_body()
PERIOD = SECOND // 10


class Cell(Counterpart):
    """Publishes images of the body at rest."""

    def __init__(self, context: object, path: Path) -> None:
        super().__init__(context, load_cell(path))  # type: ignore[arg-type]
        self.cameras = self.cell.camera_list()
        self.images = [self.source(Image, entry.image_topic, IMAGES) for entry in self.cell.cameras]
        self.infos = [self.source(CameraInfo, entry.info_topic, IMAGES) for entry in self.cell.cameras]
        self.pictures = [picture(camera, BODY, BODY.rest_positions) for camera in self.cameras]
        self.listen(MultiViewFrame, "observation")

    def send_image(self, camera: int, stamp_ns: int, **changes: object) -> None:
        message = image_message(self.pictures[camera], f"camera_{camera}_optical_frame", stamp_ns)
        for name, value in changes.items():
            setattr(message, name, value)
        self.images[camera].publish(message)

    def frames(self) -> list[tuple[int, MultiViewImages]]:
        messages = self.received["observation"]
        return [multi_view_from_message(m, self.cameras, BODY, "world", "observation") for m in messages]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_cell(tmp_path)


@pytest.fixture
def cell(domain: int, path: Path) -> Iterator[Cell]:
    with context_of(domain) as context:
        cell = Cell(context, path)
        yield cell
        cell.destroy_node()


def test_images_become_sets_with_masks(cell: Cell, path: Path) -> None:
    with running(CameraSync, path, cell) as node:
        for k in range(4):
            now = SECOND + k * PERIOD
            cell.send_poses(now + 2_000_000)
            cell.send_image(0, now)
            cell.send_image(1, now + 1_000_000)
            wait_for(lambda k=k: len(cell.received["observation"]) == k + 1)
        assert not warnings_of(node)
        assert node.diagnostics.drops == {}
        assert float(figures_of(node)["quality.camera_0"]) > 0.5
    for k, (stamp, views) in enumerate(cell.frames()):
        assert stamp == SECOND + k * PERIOD + 500_000
        assert views.available.all()
        for index, camera in enumerate(cell.cameras):
            np.testing.assert_array_equal(views.images[index], cell.pictures[index])
            true = silhouette(camera, BODY.rest_positions, surface_triangles(BODY))
            # a rim of less than half a pixel on a body 13 px high
            assert intersection_over_union(views.masks[index], true) > 0.93
    message = cell.received["observation"][0]
    assert message.spread == pytest.approx(0.001)
    assert message.images[0].header.frame_id == "camera_0_optical_frame"


def test_a_set_waits_for_the_poses_of_its_stamp(cell: Cell, path: Path) -> None:
    lowered = REST_POSES.copy()
    lowered[:, 2] -= 0.02
    cell.pictures = [picture(camera, BODY, BODY.rest_positions - [0, 0, 0.02]) for camera in cell.cameras]
    with running(CameraSync, path, cell) as node:
        cell.send_poses(SECOND // 2)
        for camera in range(2):
            cell.send_image(camera, SECOND)
        cell.send_poses(SECOND * 3 // 2, lowered)  # at the image's stamp, the body is half way down
        wait_for(lambda: cell.received["observation"])
        assert not warnings_of(node)
    half = [silhouette(c, BODY.rest_positions - [0, 0, 0.01], surface_triangles(BODY)) for c in cell.cameras]
    whole = [silhouette(c, BODY.rest_positions - [0, 0, 0.02], surface_triangles(BODY)) for c in cell.cameras]
    for mask, expected, true in zip(cell.frames()[0][1].masks, half, whole, strict=True):
        # the image decides, not what was expected
        assert intersection_over_union(mask, true) > 0.93
        assert intersection_over_union(expected, true) < 0.7


def test_a_silent_camera_is_reported_and_left_out(cell: Cell, path: Path) -> None:
    clock = cell.source(Clock, "/clock", CLOCK)
    with running(CameraSync, path, cell) as node:
        for k in range(12):
            cell.send_poses(SECOND + k * PERIOD)
            cell.pictures[0][0, 0] = k  # a camera that repeats one image is stuck
            cell.send_image(0, SECOND + k * PERIOD)
            if k < 2:
                cell.send_image(1, SECOND + k * PERIOD)
            time.sleep(0.05)  # nothing tells when an image that waits has come in
        wait_for(lambda: len(cell.received["observation"]) >= 4)
        clock.publish(Clock(clock=time_message(SECOND + 12 * PERIOD)))
        wait_for(lambda: "camera_1 is silent" in warnings_of(node))
        assert "camera_0" not in warnings_of(node)
    assert cell.frames()[0][1].available.tolist() == [True, True]
    assert cell.frames()[-1][1].available.tolist() == [True, False]


def test_the_clock_notices_that_all_cameras_are_silent(cell: Cell, path: Path) -> None:
    clock = cell.source(Clock, "/clock", CLOCK)
    with running(CameraSync, path, cell) as node:
        cell.send_poses(SECOND)
        for camera in range(2):
            cell.send_image(camera, SECOND)
        wait_for(lambda: cell.received["observation"])
        clock.publish(Clock(clock=time_message(4 * SECOND)))
        wait_for(lambda: "camera_0 is silent" in warnings_of(node) and "camera_1 is silent" in warnings_of(node))


def test_images_that_do_not_fit_are_counted_and_named(cell: Cell, path: Path) -> None:
    with running(CameraSync, path, cell) as node:
        cell.send_image(0, SECOND, encoding="yuv422")
        wait_for(lambda: node.diagnostics.drops.get("wrong_encoding") == 1)
        cell.send_image(1, SECOND, height=10)
        wait_for(lambda: node.diagnostics.drops.get("wrong_size") == 1)
        assert "camera_0/image_raw: encoding is 'yuv422'" in warnings_of(node)
        size = "camera_1/image_raw: the image is 80 x 10, camera 'camera_1' is calibrated for 80 x 60"
        assert size in warnings_of(node)


def test_another_calibration_is_reported(cell: Cell, path: Path) -> None:
    with running(CameraSync, path, cell) as node:
        info = CameraInfo(width=80, height=60, distortion_model="plumb_bob", d=[0.0] * 5)
        info.k = cell.cameras[1].intrinsics.ravel()
        cell.infos[1].publish(info)
        wait_for(lambda: "camera_1/camera_info differs from the cell file" in warnings_of(node))
        assert "calibrate anew" in warnings_of(node)


def test_without_poses_a_set_is_dropped_with_a_reason(cell: Cell, path: Path) -> None:
    clock = cell.source(Clock, "/clock", CLOCK)
    with running(CameraSync, path, cell, pose_timeout=0.5) as node:
        for camera in range(2):
            cell.send_image(camera, SECOND)
        cell.send_pose("left", SECOND, REST_POSES[0])
        clock.publish(Clock(clock=time_message(SECOND)))
        wait_for(lambda: figures_of(node).get("sets") == "1")
        clock.publish(Clock(clock=time_message(2 * SECOND)))
        wait_for(lambda: node.diagnostics.drops.get("no_grip_pose") == 1)
        assert "no pose of right yet" in warnings_of(node)


def test_a_mask_that_is_not_found_makes_the_camera_unavailable(cell: Cell, path: Path) -> None:
    with running(CameraSync, path, cell) as node:
        for k in range(2):
            if k == 1:
                cell.pictures[1] = np.full_like(cell.pictures[1], 110)  # someone stands in the way
            cell.send_poses(SECOND + k * PERIOD)
            for camera in range(2):
                cell.send_image(camera, SECOND + k * PERIOD)
            wait_for(lambda k=k: len(cell.received["observation"]) == k + 1)
        assert node.diagnostics.drops == {"no_mask": 1}
        assert "camera_1: nothing in the image has the body's colours" in warnings_of(node)
    assert cell.frames()[1][1].available.tolist() == [True, False]


def test_a_clock_that_is_set_back_begins_anew(cell: Cell, path: Path) -> None:
    with running(CameraSync, path, cell) as node:
        for number, start in enumerate((10 * SECOND, SECOND)):
            for k in range(3):
                cell.send_poses(start + k * PERIOD)
                for camera in range(2):
                    cell.send_image(camera, start + k * PERIOD)
                wait_for(lambda number=number, k=k: len(cell.received["observation"]) == 3 * number + k + 1)
        wait_for(lambda: figures_of(node).get("resets") == "1")
    assert [stamp for stamp, _ in cell.frames()][3:] == [SECOND + k * PERIOD for k in range(3)]


def test_maskers_are_changed_while_the_node_runs(cell: Cell, path: Path) -> None:
    def changed(node: CameraSync, value: str) -> SetParametersResult:
        (result,) = node.set_parameters([RosParameter("masker", value=value)])
        return result

    with running(CameraSync, path, cell) as node:
        assert changed(node, "camera_1=classical").successful
        refused = changed(node, "camera_7=classical")
        assert not refused.successful
        assert "a camera of camera_0, camera_1" in refused.reason
        # the small cell has no weights, and perhaps torch is missing too: either is said
        refused = changed(node, "sam2")
        assert not refused.successful
        assert "block `sam2`" in refused.reason or "make segmentation" in refused.reason
        cell.send_poses(SECOND)
        for camera in range(2):
            cell.send_image(camera, SECOND)
        wait_for(lambda: cell.received["observation"])
        assert float(figures_of(node)["mask_ms.camera_0"]) > 0.0


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "sam2")),
    reason="torch or sam2 is not installed: `make segmentation`",
)
def test_a_camera_changes_to_sam2_from_the_next_set_on(cell: Cell, path: Path) -> None:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    weights = path.parent / "random.pt"
    torch.save({"model": Sam2Masker(Sam2Settings(image_size=64))._model.state_dict()}, weights)
    content = yaml.safe_load(path.read_text())
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    content["sam2"] = {"weights": weights.name, "sha256": digest, "image_size": 64}
    path.write_text(yaml.safe_dump(content))
    try:
        with running(CameraSync, path, cell) as node:
            for k in range(2):
                if k == 1:
                    (result,) = node.set_parameters([RosParameter("masker", value="camera_0=sam2")])
                    assert result.successful, result.reason
                cell.send_poses(SECOND + k * PERIOD)
                for camera in range(2):
                    cell.send_image(camera, SECOND + k * PERIOD)
                wait_for(lambda k=k: len(cell.received["observation"]) == k + 1)
            assert node._masker.kinds == ("sam2", "classical")
            assert float(figures_of(node)["quality.camera_1"]) > 0.5
    finally:
        torch.set_num_threads(threads)


def test_compressed_images_and_depths_reach_the_observation(cell: Cell, path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    content["cameras"][0] |= {"image_topic": "camera_0/image/compressed", "depth_topic": "camera_0/depth"}
    path.write_text(yaml.safe_dump(content))
    images = cell.source(CompressedImage, "camera_0/image/compressed", IMAGES)
    depths = cell.source(Image, "camera_0/depth", IMAGES)
    millimetres = np.arange(60 * 80, dtype=np.uint16).reshape(60, 80)
    with running(CameraSync, path, cell) as node:
        cell.send_poses(SECOND)
        file = cv2.imencode(".png", np.ascontiguousarray(cell.pictures[0][:, :, ::-1]))[1].tobytes()
        images.publish(CompressedImage(header=header("camera_0_optical_frame", SECOND), format="png", data=file))
        cell.send_image(1, SECOND)
        depths.publish(
            Image(
                header=header("camera_0_optical_frame", SECOND + 3_000_000),
                height=60,
                width=80,
                encoding="16UC1",
                step=160,
                data=millimetres.tobytes(),
            )
        )
        wait_for(lambda: cell.received["observation"])
        assert node.diagnostics.drops == {}
    _, views = cell.frames()[0]
    np.testing.assert_array_equal(views.images[0], cell.pictures[0])
    assert np.isnan(views.depth[1]).all() and np.isnan(views.depth[0, 0, 0])
    np.testing.assert_allclose(views.depth[0].ravel()[1:], 1e-3 * millimetres.ravel()[1:], rtol=1e-6)
