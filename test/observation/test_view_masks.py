"""Masks of all cameras of a cell from the expected shape."""

from __future__ import annotations

import numpy as np
import pytest

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.observation.cameras import Camera, look_at
from realsimloop_ros.observation.masking import intersection_over_union
from realsimloop_ros.observation.silhouettes import silhouette
from realsimloop_ros.observation.view_masks import ViewMasker
from reduced_bodies import gripped_bar

BODY = gripped_bar()
TRIANGLES = surface_triangles(BODY)
MATRIX = np.array([[110.0, 0, 39.5], [0, 110.0, 29.5], [0, 0, 1]])
CAMERAS = tuple(
    Camera(f"camera_{k}", 80, 60, MATRIX, np.zeros(5), look_at(position, (0.0, 0.0, 0.0)))
    for k, position in enumerate(((0.0, -0.35, 0.12), (0.1, 0.35, 0.2)))
)


def picture(camera: Camera, vertices: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(0).integers(-4, 5, (60, 80, 3))
    mask = silhouette(camera, vertices, TRIANGLES)[..., None]
    return np.clip(np.where(mask > 0, np.array([220, 90, 40]), 110) + noise, 0, 255).astype(np.uint8)


def pictures(vertices: np.ndarray) -> list[np.ndarray]:
    return [picture(camera, vertices) for camera in CAMERAS]


def test_the_image_decides_and_not_the_expected_shape() -> None:
    masker = ViewMasker(CAMERAS, TRIANGLES)
    for shift in (0.0, 0.01):
        true = BODY.rest_positions - [0.0, 0.0, shift]
        found = masker.mask(pictures(true), BODY.rest_positions)
        assert found.failures == {}
        for camera, mask in zip(CAMERAS, found.views.masks, strict=True):
            # a rim of less than half a pixel on a body 9 px high
            assert intersection_over_union(mask, silhouette(camera, true, TRIANGLES)) > 0.9
            assert found.quality[camera.name] > 0.3


def test_a_camera_without_an_image_is_not_available_and_is_seeded_later() -> None:
    masker = ViewMasker(CAMERAS, TRIANGLES)
    images = pictures(BODY.rest_positions)
    assert masker.mask([images[0], None], BODY.rest_positions).views.available.tolist() == [True, False]
    assert masker.mask(images, BODY.rest_positions).views.available.tolist() == [True, True]


def test_a_body_out_of_sight_is_a_failure_with_a_reason() -> None:
    masker = ViewMasker(CAMERAS, TRIANGLES)
    found = masker.mask(pictures(BODY.rest_positions), np.add(BODY.rest_positions, [0.0, 0.0, 5.0]))
    assert found.views.available.tolist() == [False, False]
    assert "the seed covers 0 of 4800 pixels" in found.failures["camera_0"]


@pytest.mark.parametrize("reset", [True, False])
def test_same_images_give_same_masks(reset: bool) -> None:
    masker = ViewMasker(CAMERAS, TRIANGLES)
    sequence = [pictures(BODY.rest_positions - [0.0, 0.0, 0.003 * k]) for k in range(3)]
    first = [masker.mask(images, BODY.rest_positions).views.masks for images in sequence]
    if reset:
        masker.reset()
    else:
        masker = ViewMasker(CAMERAS, TRIANGLES)
    again = [masker.mask(images, BODY.rest_positions).views.masks for images in sequence]
    np.testing.assert_array_equal(first, again)
