"""Where a camera should see the body: the outline of its surface, as seed and prediction for the masks."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.observation.cameras import Camera

_FINER = 4  # OpenCV fills every pixel that a triangle's edge touches; drawn this much finer, that is 1/8 px
_FRACTION_BITS = 4  # corners are placed to 1/16 of a fine pixel


def predicted_silhouette(camera: Camera, x: NDArray[np.float64], triangles: NDArray[np.int64]) -> NDArray[Any]:
    """Mask (H, W), 255 where the camera, distortion included, sees the surface.

    x: (n, 3) vertices, m; triangles: (f, 3) from `surface_triangles`. Triangles that reach behind the camera or
    far outside of the image are left out.
    """
    pixels, depth = camera.project(x)
    size = np.array([camera.width, camera.height])
    corners = (pixels[triangles] + 0.5) * _FINER - 0.5
    near = (np.abs(corners / _FINER - size / 2) < 4 * size).all(axis=(1, 2))
    near &= (depth[triangles] > 0).all(axis=1)
    fixed = np.rint(corners[near] * (1 << _FRACTION_BITS)).astype(np.int32)
    fine: NDArray[Any] = np.zeros((camera.height * _FINER, camera.width * _FINER), np.uint8)
    for triangle in fixed:
        cv2.fillConvexPoly(fine, triangle, 255, cv2.LINE_8, _FRACTION_BITS)
    share: NDArray[Any] = cv2.resize(fine, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
    return np.where(share > 127, 255, 0).astype(np.uint8)
