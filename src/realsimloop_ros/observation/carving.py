"""Splats of a scene that has no mesh: the volume that all masks allow, carved out, and splats over it.

The visual hull holds the object and is larger where the cameras do not look: it cannot show hollows, and with few
cameras it keeps wedges that none of them looks into.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.parts import Zone
from realsimloop_ros.observation.appearance import AppearanceSettings
from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.splats import Splats, SplatsError, bind_splats

Array = NDArray[np.float64]

# Cells are halved this often, from eight times the wanted spacing: that is a five hundredth of the work.
_HALVINGS = 3


@dataclass(frozen=True, eq=False)
class Hull:
    """The volume that the masks allow. filled: bool (a, b, c) cells of edge `spacing`, m, a rim of empty ones
    around; origin: (3,) the centre of the first cell, m."""

    filled: NDArray[np.bool_]
    origin: Array
    spacing: float

    @property
    def volume(self) -> float:
        """m^3."""
        return float(np.count_nonzero(self.filled)) * self.spacing**3

    def near(self, points: Array, distance: float) -> Hull:
        """The part within `distance`, m, of measured points (n, 3). Raises SplatsError where there is none."""
        cells = np.argwhere(self.filled)
        close = (
            cKDTree(points).query(self.origin + self.spacing * cells, distance_upper_bound=distance)[0] < np.inf
        )
        if not close.any():
            raise SplatsError(
                "the cloud lies nowhere near what the masks allow; are both in the world frame, in m?"
            )
        filled = np.zeros_like(self.filled)
        filled[tuple(cells[close].T)] = True
        return replace(self, filled=filled)


def carve(views: MultiViewImages, spacing: float) -> Hull:
    """The largest connected volume that lies inside the mask of every available, rectified view.

    spacing: edge of a cell, m; a pixel's width at the object is about as fine as masks can tell. What a camera
    does not see because it lies outside of its image is taken for empty. Raises SplatsError.
    """
    chosen = np.flatnonzero(views.available)
    cameras = [views.cameras[k] for k in chosen]
    if len(cameras) < 2 or not all(views.masks[k].any() for k in chosen):
        names = [camera.name for camera in cameras]
        raise SplatsError(f"carving needs two views or more, each with a mask that is not empty; given: {names}")
    if not spacing > 0:
        raise SplatsError(f"spacing is {spacing} m, expected a positive length")
    # how many pixels a point lies outside of the mask, 0 inside
    outside = [
        cv2.distanceTransform(np.where(views.masks[k] > 0, 0, 255).astype(np.uint8), cv2.DIST_L2, 5)
        for k in chosen
    ]
    low, high = _bounds(cameras, [views.masks[k] for k in chosen])
    step = spacing * 2**_HALVINGS
    count = np.maximum(np.ceil((high - low) / step), 1).astype(int)
    cells = np.stack(np.meshgrid(*map(np.arange, count), indexing="ij"), axis=-1).reshape(-1, 3)
    for level in range(_HALVINGS + 1):
        if level:
            step /= 2
            cells = (2 * cells[:, None] + np.argwhere(np.ones((2, 2, 2)))[None]).reshape(-1, 3)
        reach = 0.0 if level == _HALVINGS else 0.5 * np.sqrt(3) * step
        for camera, distance in zip(cameras, outside, strict=True):
            cells = cells[_may_be_inside(camera, distance, low + (cells + 0.5) * step, reach)]
    if not len(cells):
        raise SplatsError("the masks have no volume in common; check the cameras' poses and the masks")
    first = cells.min(axis=0)
    filled = np.zeros(np.ptp(cells, axis=0) + 3, bool)
    filled[tuple((cells - first + 1).T)] = True
    labels, parts = ndimage.label(filled)
    if parts > 1:
        filled = labels == 1 + int(np.argmax(np.bincount(labels.ravel())[1:]))
    return Hull(filled, low + (first - 0.5) * spacing, spacing)


def scene_splats(hull: Hull, settings: AppearanceSettings | None = None) -> tuple[Body, Splats, Array]:
    """Grey splats over the surface and inside of a hull, as `appearance.sample_splats` lays them in a body.

    Returns the scene as a body of one large tet, the splats, surface ones first, and the outward normals (s, 3) of
    the surface ones.
    """
    settings = settings or AppearanceSettings()
    generator = np.random.default_rng(settings.seed)
    on_surface = max(1, round(settings.surface_share * settings.count))
    shell = hull.filled & ~ndimage.binary_erosion(hull.filled)
    outward = -np.stack(np.gradient(ndimage.gaussian_filter(hull.filled.astype(float), 1.5)), axis=-1)[shell]
    cells, area = np.argwhere(shell), np.count_nonzero(shell) * hull.spacing**2
    chosen = generator.choice(len(cells), on_surface, replace=on_surface > len(cells))
    normals = outward[chosen] / np.maximum(np.linalg.norm(outward[chosen], axis=1, keepdims=True), 1e-12)
    inner = np.argwhere(hull.filled & ~shell)
    filling = settings.count - on_surface if len(inner) else 0
    places = np.concatenate(
        [cells[chosen], inner[generator.choice(len(inner), filling)] if filling else cells[:0]]
    )
    centres = hull.origin + hull.spacing * (places + generator.uniform(-0.5, 0.5, places.shape))
    between = float(np.sqrt(area / on_surface))
    # flat ones, whose rim ends near the surface
    centres[:on_surface] -= 0.45 * between * normals
    wide, flat = (0.55 * between) ** 2, (0.22 * between) ** 2
    covariances = np.tile(wide * np.eye(3), (len(centres), 1, 1))
    covariances[:on_surface] -= (wide - flat) * normals[:, :, None] * normals[:, None, :]
    body = _scene_body(centres)
    grey, opacities = np.full((len(centres), 3), 0.5), np.full(len(centres), 0.9)
    return body, bind_splats(body, centres, covariances, grey, opacities), normals


def _scene_body(points: Array) -> Body:
    """One tet around all points: what nothing moves needs no finer mesh."""
    margin = 0.1 * float(np.ptp(points, axis=0).max())
    low = points.min(axis=0) - margin
    edge = float((points.max(axis=0) + margin - low).sum())
    corners = low + edge * np.concatenate([np.zeros((1, 3)), np.eye(3)])
    # a body needs a density; nothing here reads it
    return Body("scene", corners, np.array([[0, 1, 2, 3]]), np.zeros(1, np.int64), (Zone("scene", 1000.0),))


def _bounds(cameras: list[Camera], masks: list[NDArray[np.uint8]]) -> tuple[Array, Array]:
    """A box that holds everything seen in all masks: about the point nearest to the rays of the masks' middles."""
    projectors, middles = [], []
    for camera, mask in zip(cameras, masks, strict=True):
        x, y, width, height = cv2.boundingRect(mask)
        pixel = np.array([x + 0.5 * (width - 1), y + 0.5 * (height - 1), 1.0])
        ray = camera.camera_from_world[:3, :3].T @ np.linalg.solve(camera.intrinsics, pixel)
        ray /= np.linalg.norm(ray)
        projectors.append(np.eye(3) - np.outer(ray, ray))
        middles.append(camera.centre)
    total = np.sum(projectors, axis=0)
    if np.linalg.cond(total) > 1e8:
        raise SplatsError("the cameras look in one direction: carving needs views from different sides")
    centre = np.linalg.solve(total, np.sum([p @ m for p, m in zip(projectors, middles, strict=True)], axis=0))
    radius = 0.0
    for camera, mask in zip(cameras, masks, strict=True):
        _, _, width, height = cv2.boundingRect(mask)
        distance = float(np.linalg.norm(camera.centre - centre))
        radius = max(radius, distance * float(np.hypot(width, height)) / float(camera.intrinsics[0, 0]))
    # the whole diagonal, not half of it, for the object may lie nearer to one camera and aslant
    return centre - radius, centre + radius


def _may_be_inside(camera: Camera, distance: NDArray, points: Array, reach: float) -> NDArray[np.bool_]:
    """Which spheres of radius `reach`, m, about points (n, 3) may touch the mask."""
    pixels, depth = camera.project(points)
    pixels = np.where(depth[:, None] > 0, pixels, -1e6)
    last = np.array([camera.width - 1, camera.height - 1])
    nearest = np.clip(np.rint(pixels), 0, last).astype(int)
    beyond = np.linalg.norm(pixels - np.clip(pixels, 0, last), axis=1)
    pixels_per_metre = camera.intrinsics[:2, :2].max() / np.maximum(depth, 1e-9)
    # a pixel's half diagonal for the rounding; the sphere grows towards the image's rim
    slack = 0.0 if reach == 0.0 else 1.5 * reach * pixels_per_metre + 1.0
    return (depth > 0) & (beyond <= slack) & (distance[nearest[:, 1], nearest[:, 0]] <= slack)
