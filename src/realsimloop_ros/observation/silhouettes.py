"""What a camera would see of a surface: its silhouette, and the surface painted over an image.

Triangles are drawn through the camera's distortion, which bends the edges of a triangle too; that is left out,
for the triangles of a body's surface are a few pixels large.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.observation.cameras import Camera

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
