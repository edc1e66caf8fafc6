"""Masks of all cameras of a cell from the expected shape."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.observation.cameras import Camera, look_at
from realsimloop_ros.observation.masking import MaskerError, intersection_over_union
from realsimloop_ros.observation.silhouettes import Capsule, capsule_silhouette, hidden_by, silhouette
from realsimloop_ros.observation.view_masks import ViewMasker
from reduced_bodies import gripped_bar

BODY = gripped_bar()
TRIANGLES = surface_triangles(BODY)
MATRIX = np.array([[110.0, 0, 39.5], [0, 110.0, 29.5], [0, 0, 1]])
UP = np.array([0.0, 0.0, 0.05])
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


def test_a_capsule_is_seen_where_its_spheres_are() -> None:
    capsule = Capsule(np.array([-0.02, 0.01, 0.0]), np.array([0.03, 0.0, 0.02]), 0.012)
    # spheres along the line, each drawn as the circle that it is to less than a pixel this far away
    for camera in CAMERAS:
        expected = np.zeros((60, 80), np.uint8)
        for share in np.linspace(0, 1, 60):
            pixel, depth = camera.project(capsule.start + share * (capsule.end - capsule.start))
            radius = camera.intrinsics[0, 0] * capsule.radius / float(depth)
            cv2.circle(expected, tuple(int(v) for v in np.rint(16 * pixel)), round(16 * radius), 255, -1, shift=4)
        assert intersection_over_union(capsule_silhouette(camera, capsule), expected) > 0.85


def test_what_is_before_the_body_hides_it_and_what_is_behind_does_not() -> None:
    camera = CAMERAS[0]
    body = silhouette(camera, BODY.rest_positions, TRIANGLES)
    towards = camera.centre / np.linalg.norm(camera.centre)
    for distance, is_hidden in ((0.1, True), (-0.1, False)):
        middle = distance * towards
        arm = Capsule(middle - UP, middle + UP, 0.008)
        hidden = hidden_by(camera, [arm], BODY.rest_positions, body)
        assert (hidden & capsule_silhouette(camera, arm)).any()
        assert bool((hidden & body).any()) is is_hidden


def test_an_arm_before_the_body_is_no_part_of_its_mask() -> None:
    camera = CAMERAS[0]
    towards = camera.centre / np.linalg.norm(camera.centre)
    arm = Capsule(0.1 * towards - UP, 0.1 * towards + UP, 0.008)
    over = capsule_silhouette(camera, arm)
    images = pictures(BODY.rest_positions)
    # the worst arm: of the body's own colour
    images[0] = np.where(over[..., None] > 0, np.array([220, 90, 40]), images[0]).astype(np.uint8)
    true = silhouette(camera, BODY.rest_positions, TRIANGLES)
    for arms, reached in (((), False), ((arm,), True)):
        masker = ViewMasker(CAMERAS, TRIANGLES)
        for _ in range(2):
            mask = masker.mask(images, BODY.rest_positions, arms).views.masks[0]
        assert bool(not (mask & over).any()) is reached
    # the parts on both sides of the arm are both found; the rim is less than half a pixel, as above
    assert intersection_over_union(mask, np.where(over > 0, 0, true)) > 0.85


def test_a_camera_s_masker_is_changed_without_the_others_forgetting() -> None:
    masker = ViewMasker(CAMERAS, TRIANGLES)
    images = pictures(BODY.rest_positions)
    found = masker.mask(images, BODY.rest_positions)
    assert set(found.seconds) == {"camera_0", "camera_1"} and min(found.seconds.values()) > 0.0
    with pytest.raises(MaskerError, match="block `sam2`"):
        masker.choose(("sam2", "classical"))
    with pytest.raises(MaskerError, match="'magic' is unknown"):
        masker.choose(("classical", "magic"))
    assert masker.kinds == ("classical", "classical")
    # a camera that keeps its kind still knows its colours: it finds the body where nothing says that it is
    masker.choose(("classical", "classical"))
    elsewhere = BODY.rest_positions + 0.2 * UP
    assert masker.mask(pictures(elsewhere), elsewhere).failures == {}
