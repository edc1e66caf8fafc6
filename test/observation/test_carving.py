"""The volume that masks allow, and splats over it, against a box whose views are cast exactly."""

import numpy as np
import pytest

from realsimloop_ros.observation.appearance import AppearanceSettings
from realsimloop_ros.observation.carving import carve, scene_splats
from realsimloop_ros.observation.images import MultiViewImages, crop_to_masks
from realsimloop_ros.observation.splats import SplatsError

SIZE, CENTRE = np.array([0.2, 0.03, 0.03]), np.array([0.0, 0.0, 0.4])
SPACING = 0.002


@pytest.fixture(scope="module")
def views(cell_cameras, box_views) -> MultiViewImages:
    return box_views(cell_cameras)


@pytest.fixture(scope="module")
def hull(views):
    return carve(views, SPACING)


def cells(hull) -> np.ndarray:
    return hull.origin + hull.spacing * np.argwhere(hull.filled)


def test_the_hull_holds_the_object_and_not_much_more(hull):
    grid = np.stack(np.meshgrid(*(np.arange(-s / 2 + 0.003, s / 2 - 0.002, 0.004) for s in SIZE)), axis=-1)
    inside = np.rint((grid.reshape(-1, 3) + CENTRE - hull.origin) / hull.spacing).astype(int)
    # a pixel is 1.6 mm wide there; what lies two of them below the surface is inside of every mask
    assert hull.filled[tuple(inside.T)].all()
    # the four views look along two directions: a rhomb around the square, up to twice its area
    assert 0.95 < hull.volume / SIZE.prod() < 2.1


def test_the_hull_is_all_that_every_mask_allows(views, hull):
    # the fine cells that the coarse ones led to are those that testing every fine cell finds
    margin = 3 * SPACING
    low, high = cells(hull).min(axis=0) - margin, cells(hull).max(axis=0) + margin
    axes = [np.arange(a + SPACING * 0.0, b, SPACING) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    kept = np.ones(len(points), bool)
    for camera, mask in zip(views.cameras, views.masks, strict=True):
        column, row = np.rint(camera.project(points)[0]).astype(int).T
        inside = (column >= 0) & (column < camera.width) & (row >= 0) & (row < camera.height)
        kept &= inside & (mask[np.where(inside, row, 0), np.where(inside, column, 0)] > 0)
    assert np.count_nonzero(kept) == np.count_nonzero(hull.filled)


def test_measured_points_bound_the_hull(hull):
    surface = CENTRE + np.array([0.0, 0.0, 0.015]) + np.zeros((1, 3))
    near = hull.near(surface, 0.01)
    assert np.linalg.norm(cells(near) - surface, axis=1).max() <= 0.01
    assert 0 < near.volume < hull.volume
    with pytest.raises(SplatsError, match="world frame"):
        hull.near(surface + 1.0, 0.01)


def test_splats_lie_in_the_hull_and_look_outwards(hull):
    body, splats, normals = scene_splats(hull, AppearanceSettings(count=500))
    centres, _ = splats.place(body.rest_positions)
    place = np.rint((centres - hull.origin) / hull.spacing).astype(int)
    # surface splats are moved inwards, at an edge out of the cell that they were drawn in
    assert hull.filled[tuple(place.T)].mean() > 0.98
    away = centres[: len(normals)] - CENTRE
    away[:, 0] = 0.0
    # the ends of the bar apart, outwards is away from its axis
    middle = np.abs(centres[: len(normals), 0]) < 0.09
    assert np.mean(np.einsum("ki,ki->k", away, normals)[middle] > 0) > 0.98


def test_masks_that_do_not_agree_are_refused(views):
    with pytest.raises(SplatsError, match="two views or more"):
        carve(
            MultiViewImages(views.cameras, views.images, views.masks, np.array([True, False, False, False])),
            SPACING,
        )
    masks = views.masks.copy()
    masks[0] = 0
    masks[0, :5, :5] = 255
    with pytest.raises(SplatsError, match="no volume in common"):
        carve(MultiViewImages(views.cameras, views.images, masks, views.available), SPACING)
    with pytest.raises(SplatsError, match="spacing"):
        carve(views, 0.0)


def test_cropped_views_see_the_same_pixels(views):
    depth = np.broadcast_to(np.arange(160, dtype=np.float32) + 1, (4, 120, 160)).copy()
    whole = MultiViewImages(views.cameras, views.images, views.masks, views.available, depth)
    cut = crop_to_masks(whole, 4)
    assert cut.images.shape[1] < 120
    assert (cut.masks > 0).sum() == (views.masks > 0).sum()
    point = CENTRE + np.array([0.02, 0.01, 0.0])
    for k, (before, after) in enumerate(zip(whole.cameras, cut.cameras, strict=True)):
        (x0, y0), (x1, y1) = (np.rint(camera.project(point)[0]).astype(int) for camera in (before, after))
        assert (whole.images[k, y0, x0] == cut.images[k, y1, x1]).all()
        assert cut.depth is not None and whole.depth[k, y0, x0] == cut.depth[k, y1, x1]
