"""The depth likelihood: its derivatives, and what depth images of a bent bar tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.cell.raycast import cast
from realsimloop_ros.observation.depth_likelihood import DepthLikelihood
from realsimloop_ros.observation.likelihoods import FrameObservation, ObservationError, PredictedState


def modes(x):
    """Up, and a sag, of the vertices (n, 3, 2) per m."""
    moves = np.zeros((len(x), 3, 2))
    moves[:, 2, 0] = 1.0
    moves[:, 2, 1] = np.cos(np.pi * x[:, 0] / 0.2)
    return moves


def state(bar, u):
    x = bar.rest_positions
    return PredictedState(x + modes(x) @ u, modes(x), np.asarray(u))


def depth_image(camera, x, triangles):
    """(H, W) m: the nearest surface along each line of sight, NaN where there is none."""
    local = camera.in_camera(x)[triangles]
    grid = np.stack(np.meshgrid(np.arange(camera.width), np.arange(camera.height)), axis=-1)
    rays = (grid - camera.intrinsics[:2, 2]) / (camera.intrinsics[0, 0], camera.intrinsics[1, 1])
    bounds = np.tile([0, camera.height, 0, camera.width], (len(triangles), 1))
    hit = np.empty(rays.shape[:2], np.int32)
    inverse = np.empty(rays.shape[:2])
    cast(
        np.ascontiguousarray(rays),
        np.ascontiguousarray(local),
        bounds,
        hit,
        inverse,
        np.empty((*hit.shape, 3), np.float32),
    )
    return np.where(hit >= 0, 1.0 / np.maximum(inverse, 1e-9), np.nan).astype(np.float32)


@pytest.fixture(scope="module")
def bent(bar, cell_cameras, box_views):
    """Views of the bar 1 mm higher and sagging by 3 mm, their masks where depth is known."""
    x = state(bar, np.array([1e-3, -3e-3])).x
    depth = np.stack([depth_image(camera, x, surface_triangles(bar)) for camera in cell_cameras])
    masks = np.where(np.isfinite(depth), 255, 0).astype(np.uint8)
    return replace(box_views(cell_cameras), depth=depth, masks=masks)


def fitted(likelihood, bar, views):
    u = np.zeros(2)
    for _ in range(8):
        term = likelihood.evaluate(state(bar, u), FrameObservation(0, views=views))
        u = u - np.linalg.solve(term.gauss_newton, term.gradient)
    return u, term


def test_depth_tells_where_the_bar_is_despite_noise_and_wrong_pixels(bar, bent):
    random = np.random.default_rng(0)
    noisy = bent.depth + 0.25 * 2e-3 * random.standard_normal(bent.depth.shape)
    wrong = random.random(bent.depth.shape) < 0.05
    noisy = np.where(wrong, noisy + 0.01, noisy).astype(np.float32)
    u, term = fitted(DepthLikelihood(bar, 2e-3, points_per_sample=1.0), bar, replace(bent, depth=noisy))
    # some hundred points of half a millimetre each, and what is left of one wrong pixel in twenty
    np.testing.assert_allclose(u, [1e-3, -3e-3], atol=2e-4)
    assert term.figures["depth_points"] > 300
    # the band is about that of the noise
    assert 1e-5 < np.sqrt(np.linalg.inv(term.gauss_newton)[0, 0]) < 1e-4


def test_the_gradient_is_the_central_difference_of_the_loss(bar, bent):
    likelihood = DepthLikelihood(bar, 2e-3)
    # a depth that is known everywhere and smooth: no point enters or leaves
    rows, columns = np.mgrid[0:120, 0:160]
    smooth = np.broadcast_to(0.5 + 1e-3 * columns * 0.1 + 2e-4 * rows, bent.depth.shape).astype(np.float32)
    views = replace(bent, depth=smooth, masks=np.full_like(bent.masks, 255))
    u = np.array([2e-4, 1e-4])
    gradient = likelihood.evaluate(state(bar, u), FrameObservation(0, views=views)).gradient
    for k, step in enumerate(1e-8 * np.eye(2)):
        high, low = (
            likelihood.evaluate(state(bar, u + sign * step), FrameObservation(0, views=views)).loss
            for sign in (1, -1)
        )
        # losses near 1e5 have a rounding of 1e-11, over a step of 2e-8
        assert (high - low) / 2e-8 == pytest.approx(gradient[k], rel=1e-5)


def test_without_depth_nothing_is_said(bar, bent):
    likelihood = DepthLikelihood(bar, 2e-3)
    for views in (None, replace(bent, depth=None), replace(bent, depth=np.full_like(bent.depth, np.nan))):
        assert likelihood.evaluate(state(bar, np.zeros(2)), FrameObservation(0, views=views)) is None
    with pytest.raises(ObservationError, match=r"depths\.deviation: 0\.0, expected a positive number"):
        DepthLikelihood(bar, 0.0)
