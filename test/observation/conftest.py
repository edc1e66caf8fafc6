"""A textured box seen through an exact ray caster: views that no splat has drawn."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from realsimloop_ros.body.body import Body, Zone
from realsimloop_ros.body.meshing import box_bar
from realsimloop_ros.observation.cameras import Camera, look_at
from realsimloop_ros.observation.cell_file import load_cell
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.rasterizers import Gaussians

REPOSITORY = Path(__file__).parents[2]
BACKGROUND = np.array([90, 100, 115], np.uint8)
SIZE = np.array([0.2, 0.03, 0.03])
CENTRE = np.array([0.0, 0.0, 0.4])


@pytest.fixture(scope="session")
def cell_cameras() -> tuple[Camera, ...]:
    """The rectified cameras of the dual-arm cell."""
    cell = load_cell(REPOSITORY / "config" / "cells" / "dual_arm.yaml")
    return tuple(camera.rectified for camera in cell.camera_list())


@pytest.fixture(scope="session")
def bar() -> Body:
    """The dual-arm bar, coarse, with its centre where the cell has it."""
    x, tets = box_bar(*SIZE, (8, 2, 2), origin=tuple(CENTRE - SIZE / 2))
    return Body("bar", x, tets, np.zeros(len(tets), np.int64), (Zone("all", 1070.0),))


@pytest.fixture(scope="session")
def held_out_camera() -> Camera:
    """A view between those of the cell."""
    intrinsics = np.array([[310.0, 0, 79.5], [0, 310.0, 59.5], [0, 0, 1]])
    pose = look_at((0.05, -0.45, 0.6), CENTRE)
    return Camera("held_out", 160, 120, intrinsics, np.zeros(5), pose)


@pytest.fixture(scope="session")
def box_views() -> Callable[..., MultiViewImages]:
    """Function (cameras, shift=(0, 0, 0), gain=1) -> views of the textured box."""
    return draw_box


@pytest.fixture(scope="session")
def scattered() -> Callable[..., Gaussians]:
    """Function (count, seed=0) -> many overlapping random Gaussians in the shape of the bar."""
    return scattered_gaussians


def draw_box(
    cameras: tuple[Camera, ...], shift: tuple[float, float, float] = (0.0, 0.0, 0.0), gain: float = 1.0
) -> MultiViewImages:
    images, masks = [], []
    for camera in cameras:
        image, mask = _cast(camera, CENTRE + np.asarray(shift))
        image = np.where(mask[..., None], image * gain, BACKGROUND * gain)
        images.append(np.clip(np.rint(image), 0, 255).astype(np.uint8))
        masks.append(np.where(mask, 255, 0).astype(np.uint8))
    return MultiViewImages(tuple(cameras), np.stack(images), np.stack(masks), np.ones(len(images), bool))


def _cast(camera: Camera, centre: np.ndarray, samples: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Image (H, W, 3) and mask (H, W) of the box, averaged over samples^2 rays per pixel."""
    offsets = (np.arange(samples) + 0.5) / samples - 0.5
    rows = (np.arange(camera.height)[:, None] + offsets).ravel()
    columns = (np.arange(camera.width)[:, None] + offsets).ravel()
    u, v = np.meshgrid(columns, rows)
    matrix = camera.intrinsics
    rays = np.stack([(u - matrix[0, 2]) / matrix[0, 0], (v - matrix[1, 2]) / matrix[1, 1], np.ones_like(u)], -1)
    rays = rays @ camera.camera_from_world[:3, :3]
    start = camera.centre - centre
    with np.errstate(divide="ignore"):
        near, far = (-SIZE / 2 - start) / rays, (SIZE / 2 - start) / rays
    entry, leave = np.minimum(near, far).max(-1), np.maximum(near, far).min(-1)
    hit = entry < leave
    points = start + np.where(hit, entry, 0)[..., None] * rays
    # a smooth pattern of about 4 cm period, and a shade per face
    pattern = 0.5 + 0.3 * np.sin(points * np.array([150.0, 180.0, 160.0]) + np.array([0.0, 1.0, 2.0]))
    face = np.abs(points / SIZE).argmax(-1)
    colour = pattern * np.array([0.7, 0.85, 1.0])[face][..., None] * 255

    def average(values):
        shape = (camera.height, samples, camera.width, samples, *values.shape[2:])
        return values.reshape(shape).mean((1, 3))

    share = average(hit.astype(float))
    colour = average(colour * hit[..., None]) / np.maximum(share, 1e-9)[..., None]
    return colour, share > 0.5


def scattered_gaussians(count: int, seed: int = 0) -> Gaussians:
    generator = np.random.default_rng(seed)
    centres = generator.uniform(-0.5, 0.5, (count, 3)) * SIZE + CENTRE
    axes = np.linalg.qr(generator.normal(size=(count, 3, 3)))[0]
    scales = 0.004 * np.exp(generator.normal(0, 0.4, (count, 3)))
    covariances = np.einsum("kij,kj,klj->kil", axes, scales**2, axes)
    return Gaussians(
        centres, covariances, generator.uniform(0.3, 0.999, count), generator.uniform(0, 1, (count, 3))
    )
