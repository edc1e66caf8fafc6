"""Compiled ray casting of triangles: one ray per image sample, nearest hit, shading with lights.

Each triangle is tested against the rays of the samples that its projection covers, by the inverse of its
corner matrix: for a ray d from the eye and corners v0 v1 v2 as columns of V, w = V^-1 d are the barycentric
coordinates of the hit over its distance, so the hit lies inside where all three are positive, at
1 / (w0 + w1 + w2) times d.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

NO_HIT = -1


@numba.njit(cache=True, nogil=True)
def cast(
    rays: NDArray[np.float64],
    triangles: NDArray[np.float64],
    bounds: NDArray[np.int64],
    hit: NDArray[np.int32],
    inverse_depth: NDArray[np.float64],
    barycentric: NDArray[np.float32],
) -> None:  # pragma: no cover - compiled
    """Nearest front-facing triangle per ray.

    rays: (h, w, 2), the x and y of each sample's ray at z = 1 in the camera; triangles: (f, 3, 3) corners in
    the camera, m, counter-clockwise seen from outside; bounds: (f, 4) first row, last row, first column,
    last column (exclusive) of the samples a triangle may cover. Written: hit (h, w) triangle or NO_HIT,
    inverse_depth (h, w) 1/m, barycentric (h, w, 3).
    """
    hit[:] = NO_HIT
    inverse_depth[:] = 0.0
    for f in range(triangles.shape[0]):
        a, b, c = triangles[f, 0], triangles[f, 1], triangles[f, 2]
        # rows of V^-1 times det V
        p0, p1, p2 = b[1] * c[2] - b[2] * c[1], b[2] * c[0] - b[0] * c[2], b[0] * c[1] - b[1] * c[0]
        determinant = a[0] * p0 + a[1] * p1 + a[2] * p2
        # positive: seen from behind or edge on
        if determinant >= -1e-18:
            continue
        scale = 1.0 / determinant
        p0, p1, p2 = p0 * scale, p1 * scale, p2 * scale
        q0, q1, q2 = (
            (c[1] * a[2] - c[2] * a[1]) * scale,
            (c[2] * a[0] - c[0] * a[2]) * scale,
            (c[0] * a[1] - c[1] * a[0]) * scale,
        )
        r0, r1, r2 = (
            (a[1] * b[2] - a[2] * b[1]) * scale,
            (a[2] * b[0] - a[0] * b[2]) * scale,
            (a[0] * b[1] - a[1] * b[0]) * scale,
        )
        for i in range(bounds[f, 0], bounds[f, 1]):
            for j in range(bounds[f, 2], bounds[f, 3]):
                x, y = rays[i, j, 0], rays[i, j, 1]
                u = p0 * x + p1 * y + p2
                v = q0 * x + q1 * y + q2
                w = r0 * x + r1 * y + r2
                if u < 0.0 or v < 0.0 or w < 0.0:
                    continue
                total = u + v + w
                if total > inverse_depth[i, j]:
                    inverse_depth[i, j] = total
                    hit[i, j] = f
                    barycentric[i, j, 0] = u / total
                    barycentric[i, j, 1] = v / total
                    barycentric[i, j, 2] = w / total


@numba.njit(cache=True, nogil=True)
def sample_volume(
    volume: NDArray[np.float32], x: float, y: float, z: float, colour: NDArray[np.float64]
) -> None:  # pragma: no cover - compiled
    """Colour (3,) of a solid texture (nx, ny, nz, 3) at grid coordinates, trilinear, held at its borders."""
    nx, ny, nz = volume.shape[0], volume.shape[1], volume.shape[2]
    x = min(max(x, 0.0), nx - 1.000001)
    y = min(max(y, 0.0), ny - 1.000001)
    z = min(max(z, 0.0), nz - 1.000001)
    i, j, k = int(x), int(y), int(z)
    fx, fy, fz = x - i, y - j, z - k
    for channel in range(3):
        total = 0.0
        for corner in range(8):
            a, b, c = corner & 1, (corner >> 1) & 1, corner >> 2
            weight = (fx if a else 1.0 - fx) * (fy if b else 1.0 - fy) * (fz if c else 1.0 - fz)
            total += weight * volume[i + a, j + b, k + c, channel]
        colour[channel] = total


@numba.njit(cache=True, nogil=True)
def shade(
    hit: NDArray[np.int32],
    barycentric: NDArray[np.float32],
    normals: NDArray[np.float64],
    texture_coordinates: NDArray[np.float64],
    flat_colours: NDArray[np.float64],
    volume: NDArray[np.float32],
    light_directions: NDArray[np.float64],
    light_colours: NDArray[np.float64],
    sky: NDArray[np.float64],
    ground: NDArray[np.float64],
    background: NDArray[np.float32],
    supersampling: int,
    radiance: NDArray[np.float32],
) -> None:  # pragma: no cover - compiled
    """Radiance (H, W, 3) of each pixel: the mean over its samples of Lambert shading, or of the background.

    normals: (f, 3, 3) per corner in the world; texture_coordinates: (b, 3, 3) grid coordinates in `volume`
    of the corners of the first b triangles; flat_colours: (f - b, 3) of the others; light_directions: (l, 3)
    unit, towards the lights, light_colours: (l, 3); sky, ground: (3,) ambient light from above and below;
    background: (h, w, 3) per sample.
    """
    textured = texture_coordinates.shape[0]
    share = 1.0 / (supersampling * supersampling)
    colour = np.empty(3)
    normal = np.empty(3)
    light = np.empty(3)
    for row in range(radiance.shape[0]):
        for column in range(radiance.shape[1]):
            radiance[row, column, :] = 0.0
            for i in range(row * supersampling, (row + 1) * supersampling):
                for j in range(column * supersampling, (column + 1) * supersampling):
                    f = hit[i, j]
                    if f < 0:
                        for channel in range(3):
                            radiance[row, column, channel] += share * background[i, j, channel]
                        continue
                    b0, b1, b2 = barycentric[i, j, 0], barycentric[i, j, 1], barycentric[i, j, 2]
                    square = 0.0
                    for axis in range(3):
                        normal[axis] = (
                            b0 * normals[f, 0, axis] + b1 * normals[f, 1, axis] + b2 * normals[f, 2, axis]
                        )
                        square += normal[axis] ** 2
                    normal /= np.sqrt(max(square, 1e-30))
                    if f < textured:
                        t = texture_coordinates[f]
                        sample_volume(
                            volume,
                            b0 * t[0, 0] + b1 * t[1, 0] + b2 * t[2, 0],
                            b0 * t[0, 1] + b1 * t[1, 1] + b2 * t[2, 1],
                            b0 * t[0, 2] + b1 * t[1, 2] + b2 * t[2, 2],
                            colour,
                        )
                    else:
                        colour[:] = flat_colours[f - textured]
                    upwards = 0.5 + 0.5 * normal[2]
                    for channel in range(3):
                        light[channel] = upwards * sky[channel] + (1.0 - upwards) * ground[channel]
                    for k in range(light_directions.shape[0]):
                        facing = (
                            normal[0] * light_directions[k, 0]
                            + normal[1] * light_directions[k, 1]
                            + normal[2] * light_directions[k, 2]
                        )
                        if facing > 0.0:
                            for channel in range(3):
                                light[channel] += facing * light_colours[k, channel]
                    for channel in range(3):
                        radiance[row, column, channel] += share * colour[channel] * light[channel]
