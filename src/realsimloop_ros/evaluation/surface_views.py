"""The twin's surface as a camera would see it, for overlays and stress pictures."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.cell.raycast import NO_HIT, cast
from realsimloop_ros.observation.cameras import Camera

# samples per pixel and axis: edges are smooth
_FINER = 2
# a straight edge is bent by distortion: samples around a triangle's corners that it may cover too
_MARGIN = 4


@dataclass(frozen=True, eq=False)
class SurfaceView:
    """What a camera sees of a surface, _FINER samples per pixel and axis.

    hit: (h, w) triangle or -1; barycentric: (h, w, 3) place within it.
    """

    triangles: NDArray[np.int64]
    hit: NDArray[np.int32]
    barycentric: NDArray[np.float32]

    @property
    def visible(self) -> NDArray[np.bool_]:
        """(h, w): where the surface is seen."""
        return self.hit != NO_HIT

    def values(self, of_vertices: NDArray[np.floating]) -> NDArray[np.float64]:
        """Values (h, w, ...) of vertices (n, ...), interpolated; 0 where the surface is not seen."""
        given = np.asarray(of_vertices, np.float64)
        found = np.zeros((*self.hit.shape, *given.shape[1:]))
        corners = given[self.triangles[self.hit[self.visible]]]
        found[self.visible] = np.einsum("sc,sc...->s...", self.barycentric[self.visible], corners)
        return found

    def edges(self, width: float = 0.05) -> NDArray[np.bool_]:
        """(h, w): samples nearer to an edge of their triangle than this share of its height."""
        return self.visible & (self.barycentric.min(axis=2) < width)


def view_surface(camera: Camera, x: NDArray[np.floating], triangles: NDArray[np.int64]) -> SurfaceView:
    """What a camera sees of a surface, distortion included. x: (n, 3) m, in the world; triangles: (f, 3)."""
    size = (camera.height * _FINER, camera.width * _FINER)
    rows, columns = ((np.arange(count) + 0.5) / _FINER - 0.5 for count in size)
    pixels = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 1, 2)
    rays = cv2.undistortPoints(pixels, np.array(camera.intrinsics), np.array(camera.distortion))
    local = camera.in_camera(np.asarray(x, np.float64)[triangles])
    bounds = _bounds(camera, np.asarray(x, np.float64)[triangles], size)
    hit = np.empty(size, np.int32)
    inverse_depth = np.empty(size)
    barycentric = np.empty((*size, 3), np.float32)
    cast(np.ascontiguousarray(rays.reshape(*size, 2)), local, bounds, hit, inverse_depth, barycentric)
    return SurfaceView(triangles, hit, barycentric)


def shading(view: SurfaceView, camera: Camera, x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Brightness (h, w) of a surface lit from the camera: 1 where it faces it, 0.45 where it is edge on."""
    corners = np.asarray(x, np.float64)[view.triangles]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    at_vertex = np.zeros((len(x), 3))
    np.add.at(at_vertex, view.triangles, normals[:, None, :].repeat(3, axis=1))
    # half the vertex's normal, half the face's: round where the body is bent, flat where it has edges
    smooth = view.values(at_vertex / np.maximum(np.linalg.norm(at_vertex, axis=1, keepdims=True), 1e-30))
    unit = normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-30)
    flat = unit[np.maximum(view.hit, 0)]
    normal = smooth + flat
    normal /= np.maximum(np.linalg.norm(normal, axis=2, keepdims=True), 1e-30)
    towards = camera.centre - view.values(x)
    towards /= np.maximum(np.linalg.norm(towards, axis=2, keepdims=True), 1e-30)
    return np.where(view.visible, 0.45 + 0.55 * np.clip((normal * towards).sum(axis=2), 0.0, 1.0), 0.0)


def paint(
    image: NDArray[np.uint8], colour: NDArray[np.floating], cover: NDArray[np.floating]
) -> NDArray[np.uint8]:
    """An image (H, W, 3) under colour (h, w, 3), 0 to 255, which is as dense as cover (h, w), 0 to 1, says."""
    height, width = image.shape[:2]
    share = cv2.resize(np.asarray(cover, np.float32), (width, height), interpolation=cv2.INTER_AREA)
    premultiplied = (np.asarray(colour, np.float32) * np.asarray(cover, np.float32)[..., None]).astype(np.float32)
    small = cv2.resize(premultiplied, (width, height), interpolation=cv2.INTER_AREA)
    return np.clip(image * (1.0 - share[..., None]) + small, 0, 255).astype(np.uint8)


def _bounds(camera: Camera, corners: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.int64]:
    """First and last row, first and last column (exclusive) of the samples that triangles (f, 3, 3) may cover."""
    pixels, depth = camera.project(corners)
    samples = (pixels + 0.5) * _FINER - 0.5
    in_front = (depth > 0).all(axis=1)
    limits = np.array([size[1], size[0]])
    safe = np.where(np.isfinite(samples), samples, 0.0)
    low = np.clip(np.floor(safe.min(axis=1)) - _MARGIN, 0, limits).astype(np.int64)
    high = np.clip(np.ceil(safe.max(axis=1)) + _MARGIN + 1, 0, limits).astype(np.int64)
    high[~in_front] = 0
    return np.stack([low[:, 1], high[:, 1], low[:, 0], high[:, 0]], axis=1)
