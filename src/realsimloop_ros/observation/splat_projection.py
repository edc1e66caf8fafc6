"""Projection of Gaussians into pinhole views (EWA splatting), with its tangents and its transpose.

For a centre m with covariance S and a camera with rotation R (rows R0, R1, R2) and translation t:

    (x, y, z) = R m + t,   u = x / z,  v = y / z
    j0 = fx / z (R0 - u R2),   j1 = fy / z (R1 - v R2)
    [[a, b], [b, c]] = [[j0.S j0, j0.S j1], [., j1.S j1]] + 0.3 I        (pixels squared)
    [[A, B], [B, C]] = its inverse, the 'conic'
    s(dx, dy) = A dx^2 / 2 + B dx dy + C dy^2 / 2                        (alpha = opacity exp(-s))

as in gsplat's 'classic' mode; u and v are clamped to 1.3 times the field of view in j0 and j1 only. All of it is
computed in float64 (the kernels' arguments) and stored in the rasterizer's precision.
"""

from __future__ import annotations

import math

import numba
import numpy as np

BLUR = 0.3  # added to the diagonal of the projected covariance, px^2
NEAR = 0.01  # nearest depth drawn, m
ALPHA_MINIMUM = 1.0 / 255.0  # fainter contributions are not drawn
ALPHA_MAXIMUM = 0.999
TRANSMITTANCE_MINIMUM = 1e-4  # a pixel is closed before it would fall to this
CLAMP_MARGIN = 0.3  # of half the field of view


@numba.njit(nogil=True, cache=True)
def project_view(view, intrinsics, width, height, centres, covariances, opacities, xy, conic, depth):
    """Projects k Gaussians into one view; writes xy (k, 2), conic (k, 3) and depth (k,).

    Gaussians that cannot touch the image get depth inf.
    """
    fx, fy, cx, cy = intrinsics[0, 0], intrinsics[1, 1], intrinsics[0, 2], intrinsics[1, 2]
    for i in range(centres.shape[0]):
        depth[i] = np.inf
        if not opacities[i] >= ALPHA_MINIMUM:
            continue
        x, y, z = _in_camera(view, centres, i)
        if not z > NEAR:
            continue
        u, v, _, _ = _clamped(x / z, y / z, fx, fy, cx, cy, width, height)
        a, b, c = BLUR, 0.0, BLUR
        for r in range(3):
            j0r = fx / z * (view[0, r] - u * view[2, r])
            j1r = fy / z * (view[1, r] - v * view[2, r])
            for q in range(3):
                j0q = fx / z * (view[0, q] - u * view[2, q])
                j1q = fy / z * (view[1, q] - v * view[2, q])
                a += j0r * covariances[i, r, q] * j0q
                b += j0r * covariances[i, r, q] * j1q
                c += j1r * covariances[i, r, q] * j1q
        determinant = a * c - b * b
        if not determinant > 0.0:
            continue
        px, py = fx * x / z + cx, fy * y / z + cy
        reach = 2.0 * math.log(opacities[i] / ALPHA_MINIMUM)
        rx, ry = math.sqrt(reach * a), math.sqrt(reach * c)
        if px + rx < 0.0 or py + ry < 0.0 or px - rx > width - 1 or py - ry > height - 1:
            continue
        xy[i, 0], xy[i, 1] = px, py
        conic[i, 0], conic[i, 1], conic[i, 2] = c / determinant, -b / determinant, a / determinant
        depth[i] = z


@numba.njit(nogil=True, cache=True)
def project_view_tangents(
    view,
    intrinsics,
    width,
    height,
    centres,
    covariances,
    tangents_centres,
    tangents_covariances,
    depth,
    polynomials,
):
    """Tangents of s(dx, dy) of one view in p directions.

    tangents_centres (p, k, 3), tangents_covariances (p, k, 3, 3) symmetric, depth (k,) from `project_view`.
    Writes polynomials (k, p, 5): ds = q0 dx + q1 dy + q2 dx^2 + q3 dx dy + q4 dy^2.
    """
    fx, fy, cx, cy = intrinsics[0, 0], intrinsics[1, 1], intrinsics[0, 2], intrinsics[1, 2]
    j0, j1, s0, s1 = np.empty(3), np.empty(3), np.empty(3), np.empty(3)
    d = np.empty(3)
    for i in range(centres.shape[0]):
        if depth[i] == np.inf:
            continue
        x, y, z = _in_camera(view, centres, i)
        u, v, u_free, v_free = _clamped(x / z, y / z, fx, fy, cx, cy, width, height)
        a, b, c = _covariance_rows(view, covariances, i, fx / z, fy / z, u, v, j0, j1, s0, s1)
        determinant = a * c - b * b
        A, B, C = c / determinant, -b / determinant, a / determinant
        for k in range(tangents_centres.shape[0]):
            for r in range(3):
                d[r] = (
                    view[r, 0] * tangents_centres[k, i, 0]
                    + view[r, 1] * tangents_centres[k, i, 1]
                    + view[r, 2] * tangents_centres[k, i, 2]
                )
            shrink = -d[2] / z
            du = (d[0] - x / z * d[2]) / z
            dv = (d[1] - y / z * d[2]) / z
            dgx, dgy = fx * du, fy * dv
            if not u_free:
                du = 0.0
            if not v_free:
                dv = 0.0
            da, db, dc = 0.0, 0.0, 0.0
            for r in range(3):
                dj0 = shrink * j0[r] - fx / z * du * view[2, r]
                dj1 = shrink * j1[r] - fy / z * dv * view[2, r]
                da += 2.0 * dj0 * s0[r]
                db += dj0 * s1[r] + dj1 * s0[r]
                dc += 2.0 * dj1 * s1[r]
                for q in range(3):
                    t = tangents_covariances[k, i, r, q]
                    da += j0[r] * t * j0[q]
                    db += j0[r] * t * j1[q]
                    dc += j1[r] * t * j1[q]
            polynomials[i, k, 0] = -(A * dgx + B * dgy)
            polynomials[i, k, 1] = -(B * dgx + C * dgy)
            polynomials[i, k, 2] = -0.5 * (A * A * da + 2.0 * A * B * db + B * B * dc)
            polynomials[i, k, 3] = -(A * B * da + (A * C + B * B) * db + B * C * dc)
            polynomials[i, k, 4] = -0.5 * (B * B * da + 2.0 * B * C * db + C * C * dc)


@numba.njit(nogil=True, cache=True)
def project_view_transpose(
    view,
    intrinsics,
    width,
    height,
    centres,
    covariances,
    depth,
    gradient_xy,
    gradient_conic,
    gradient_centres,
    gradient_covariances,
):
    """Adds to gradient_centres (k, 3) and gradient_covariances (k, 3, 3), symmetric, what a view's gradients

    with respect to xy (k, 2) and conic (k, 3) (A, B, C as three numbers) mean for them.
    """
    fx, fy, cx, cy = intrinsics[0, 0], intrinsics[1, 1], intrinsics[0, 2], intrinsics[1, 2]
    j0, j1, s0, s1 = np.empty(3), np.empty(3), np.empty(3), np.empty(3)
    for i in range(centres.shape[0]):
        if depth[i] == np.inf:
            continue
        x, y, z = _in_camera(view, centres, i)
        u, v, u_free, v_free = _clamped(x / z, y / z, fx, fy, cx, cy, width, height)
        a, b, c = _covariance_rows(view, covariances, i, fx / z, fy / z, u, v, j0, j1, s0, s1)
        determinant = a * c - b * b
        A, B, C = c / determinant, -b / determinant, a / determinant
        gA, gB, gC = gradient_conic[i, 0], gradient_conic[i, 1], gradient_conic[i, 2]
        # -K G K with K the conic and G = [[gA, gB/2], [gB/2, gC]]
        ga = -(A * A * gA + A * B * gB + B * B * gC)
        gb = -(2.0 * A * B * gA + (A * C + B * B) * gB + 2.0 * B * C * gC)
        gc = -(B * B * gA + B * C * gB + C * C * gC)
        g_shrink, gu, gv = 0.0, 0.0, 0.0
        for r in range(3):
            g0 = 2.0 * ga * s0[r] + gb * s1[r]
            g1 = 2.0 * gc * s1[r] + gb * s0[r]
            g_shrink += g0 * j0[r] + g1 * j1[r]
            gu -= fx / z * view[2, r] * g0
            gv -= fy / z * view[2, r] * g1
            for q in range(3):
                gradient_covariances[i, r, q] += (
                    ga * j0[r] * j0[q] + 0.5 * gb * (j0[r] * j1[q] + j1[r] * j0[q]) + gc * j1[r] * j1[q]
                )
        if not u_free:
            gu = 0.0
        if not v_free:
            gv = 0.0
        gu += fx * gradient_xy[i, 0]
        gv += fy * gradient_xy[i, 1]
        gx, gy = gu / z, gv / z
        gz = -(g_shrink + gu * x / z + gv * y / z) / z
        for r in range(3):
            gradient_centres[i, r] += view[0, r] * gx + view[1, r] * gy + view[2, r] * gz


@numba.njit(nogil=True, cache=True)
def _in_camera(view, centres, i):
    x = view[0, 3] + view[0, 0] * centres[i, 0] + view[0, 1] * centres[i, 1] + view[0, 2] * centres[i, 2]
    y = view[1, 3] + view[1, 0] * centres[i, 0] + view[1, 1] * centres[i, 1] + view[1, 2] * centres[i, 2]
    z = view[2, 3] + view[2, 0] * centres[i, 0] + view[2, 1] * centres[i, 1] + view[2, 2] * centres[i, 2]
    return x, y, z


@numba.njit(nogil=True, cache=True)
def _clamped(u, v, fx, fy, cx, cy, width, height):
    """u and v clamped to a little more than the field of view, and whether each was inside."""
    # half a pixel more than cx because pixel centres, not edges, lie at whole numbers
    margin_u, margin_v = CLAMP_MARGIN * 0.5 * width / fx, CLAMP_MARGIN * 0.5 * height / fy
    low_u, high_u = -(cx + 0.5) / fx - margin_u, (width - cx - 0.5) / fx + margin_u
    low_v, high_v = -(cy + 0.5) / fy - margin_v, (height - cy - 0.5) / fy + margin_v
    u_free, v_free = low_u <= u <= high_u, low_v <= v <= high_v
    return min(max(u, low_u), high_u), min(max(v, low_v), high_v), u_free, v_free


@numba.njit(nogil=True, cache=True)
def _covariance_rows(view, covariances, i, fx_z, fy_z, u, v, j0, j1, s0, s1):
    """Writes j0, j1, s0 = S j0, s1 = S j1 and returns a, b, c."""
    for r in range(3):
        j0[r] = fx_z * (view[0, r] - u * view[2, r])
        j1[r] = fy_z * (view[1, r] - v * view[2, r])
    a, b, c = BLUR, 0.0, BLUR
    for r in range(3):
        s0[r] = covariances[i, r, 0] * j0[0] + covariances[i, r, 1] * j0[1] + covariances[i, r, 2] * j0[2]
        s1[r] = covariances[i, r, 0] * j1[0] + covariances[i, r, 1] * j1[1] + covariances[i, r, 2] * j1[2]
    for r in range(3):
        a += j0[r] * s0[r]
        b += j0[r] * s1[r]
        c += j1[r] * s1[r]
    return a, b, c
