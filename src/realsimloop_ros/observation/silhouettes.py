"""What a camera would see of a surface: its silhouette, and the surface painted over an image.

Triangles are drawn through the camera's distortion, which bends the edges of a triangle too; that is left out,
for the triangles of a body's surface are a few pixels large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.observation.cameras import Camera

# Directions that a sphere is drawn by: its outline is short of the true one by 1 % of its radius.
_ANGLES = np.arange(16) * np.pi / 8
_SPHERE = np.array(
    [
        [np.cos(a) * np.cos(b), np.sin(a) * np.cos(b), np.sin(b)]
        for b in np.linspace(-np.pi / 2, np.pi / 2, 9)
        for a in _ANGLES
    ]
)
# OpenCV draws corners to 1/16 px.
_SHIFT = 4
# OpenCV fills every pixel that a triangle's edge touches; drawn this much finer, a silhouette grows by 1/8 px.
_FINER = 4
# Surfaces nearer to the camera plane than this, m, are not drawn.
_NEAREST = 1e-3
# Beyond so many pixels outside of the image the distortion model folds back, and OpenCV's integers overflow.
_FARTHEST = 4000.0


def silhouette(camera: Camera, vertices: NDArray[np.float64], triangles: NDArray[np.int64]) -> NDArray[np.uint8]:
    """(H, W), 255 where the surface of vertices (n, 3), m, and triangles (f, 3) covers half a pixel or more."""
    corners, visible = _projected(camera, vertices, triangles, _FINER)
    fine: NDArray[Any] = np.zeros((camera.height * _FINER, camera.width * _FINER), np.uint8)
    for triangle in corners[visible]:
        cv2.fillConvexPoly(fine, triangle, 255, cv2.LINE_8, _SHIFT)
    share: NDArray[Any] = cv2.resize(fine, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
    return np.where(share > 127, 255, 0).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class Capsule:
    """All points within `radius`, m, of the line from start to end, (3,) each, m: a stretch of an arm or tool."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    radius: float


def capsule_silhouette(camera: Camera, capsule: Capsule) -> NDArray[np.uint8]:
    """(H, W), 255 where the capsule may be seen; nothing where it reaches behind the camera plane."""
    centres = np.repeat([capsule.start, capsule.end], len(_SPHERE), axis=0)
    pixels, depth = camera.project(centres + capsule.radius * np.tile(_SPHERE, (2, 1)))
    mask: NDArray[Any] = np.zeros((camera.height, camera.width), np.uint8)
    if depth.min() > _NEAREST and np.abs(pixels).max() < _FARTHEST:
        corners = np.rint(cv2.convexHull(pixels.astype(np.float32)) * 2**_SHIFT).astype(np.int32)
        cv2.fillConvexPoly(mask, corners, 255, cv2.LINE_8, _SHIFT)
    return mask


def hidden_by(
    camera: Camera, capsules: Sequence[Capsule], vertices: NDArray[np.float64], body: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """(H, W), 255 where a pixel shows a capsule and not the body.

    vertices: (n, 3) of the body, m; body: (H, W), its silhouette. A capsule hides the body where it is nearer to
    the camera than every vertex that it covers, and is hidden by it otherwise.
    """
    hidden = np.zeros((camera.height, camera.width), np.uint8)
    pixels, depth = camera.project(vertices)
    column, row = np.rint(np.where(depth[:, None] > 0, pixels, -1)).astype(int).T
    inside = (column >= 0) & (column < camera.width) & (row >= 0) & (row < camera.height)
    column, row = np.where(inside, column, 0), np.where(inside, row, 0)
    for capsule in capsules:
        mask = capsule_silhouette(camera, capsule)
        covered = inside & (mask[row, column] > 0)
        farthest = camera.in_camera(np.stack([capsule.start, capsule.end]))[:, 2].max()
        if covered.any() and farthest > depth[covered].min():
            mask[body > 0] = 0
        hidden |= mask
    return hidden


def paint_surface(
    image: NDArray[np.uint8],
    camera: Camera,
    vertices: NDArray[np.float64],
    triangles: NDArray[np.int64],
    colours: NDArray[np.uint8],
    opacity: float,
    outline: tuple[int, int, int] = (255, 255, 255),
) -> NDArray[np.uint8]:
    """A copy of an image (H, W, 3) with the surface over it, its silhouette drawn as a line.

    colours: (n, 3) RGB of the vertices; opacity: 0 to 1. The surface is shaded by the light of a lamp at the
    camera, far triangles are drawn first.
    """
    corners, visible = _projected(camera, vertices, triangles)
    at = vertices[triangles]
    normals = np.cross(at[:, 1] - at[:, 0], at[:, 2] - at[:, 0])
    to_camera = camera.centre - at.mean(axis=1)
    distance = np.linalg.norm(to_camera, axis=1)
    lengths = np.maximum(np.linalg.norm(normals, axis=1) * distance, 1e-300)
    facing = np.einsum("fi,fi->f", normals, to_camera) / lengths
    shown = np.flatnonzero(visible & (facing > 0.0))
    shade = 0.55 + 0.45 * facing
    shaded = np.clip(colours[triangles].mean(axis=1) * shade[:, None], 0, 255).astype(int)
    painted = image.copy()
    mask = np.zeros(image.shape[:2], np.uint8)
    for face in shown[np.argsort(-distance[shown], kind="stable")]:
        cv2.fillConvexPoly(painted, corners[face], shaded[face].tolist(), cv2.LINE_8, _SHIFT)
        cv2.fillConvexPoly(mask, corners[face], 255, cv2.LINE_8, _SHIFT)
    blended = cv2.addWeighted(painted, opacity, image, 1.0 - opacity, 0.0)
    result = np.where(mask[:, :, None] > 0, blended, image)
    contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(result, contours, -1, outline, 1, cv2.LINE_AA)
    return result


def _projected(
    camera: Camera, vertices: NDArray[np.float64], triangles: NDArray[np.int64], finer: int = 1
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Corners (f, 3, 2) in an image `finer` times as fine, as OpenCV's fixed-point numbers, and which triangles
    lie before the camera.
    """
    pixels, depth = camera.project(vertices)
    usable = (depth > _NEAREST) & (np.abs(np.nan_to_num(pixels, nan=np.inf)).max(axis=1) < _FARTHEST)
    # pixel centres, not edges, lie at whole numbers
    placed = (np.where(usable[:, None], pixels, 0.0) + 0.5) * finer - 0.5
    fixed = np.rint(placed * 2**_SHIFT).astype(np.int32)
    return fixed[triangles], usable[triangles].all(axis=1)
