"""Compiled compositing of projected Gaussians over a band of rows of one view: values, tangents and transpose.

Per pixel, Gaussians front to back, with T the transmittance so far (1 at the start):

    alpha = min(0.999, opacity exp(-s)),  not drawn below 1/255;  the pixel closes when T (1 - alpha) <= 1e-4
    colour += alpha T c,   T -= alpha T

Each kernel walks over the Gaussians in order of depth and, for each, over the pixels it reaches. Kernels
release the GIL and share nothing, so that views and bands run on threads of their own; the result does not
depend on the cut. A closed pixel is marked by the sign of its transmittance until the walk is over.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from realsimloop_ros.observation.splat_projection import (
    ALPHA_MAXIMUM,
    ALPHA_MINIMUM,
    TRANSMITTANCE_MINIMUM,
)

# no 'nnan' and 'ninf': a NaN must come out as a NaN
_FAST = {"contract", "arcp", "nsz", "afn", "reassoc"}


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _rows(gy, A, B, C, reach, first, end):
    """Rows [y0, y1) of [first, end) in which s <= reach somewhere."""
    radius = math.sqrt(2.0 * reach * A / (A * C - B * B)) + 1e-3
    return max(first, math.ceil(gy - radius)), min(end, math.floor(gy + radius) + 1)


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _columns(dy, gx, A, B, C, reach, width):
    """Columns [x0, x1) of the image in which s <= reach, in the row dy below the centre."""
    half = B * dy
    discriminant = half * half - A * (C * dy * dy - 2.0 * reach)
    if discriminant <= 0.0:
        return 0, 0
    root = math.sqrt(discriminant)
    # a little more than needed: alpha itself decides at the rim
    x0 = max(0, math.ceil(gx + (-half - root) / A - 1e-3))
    x1 = min(width, math.floor(gx + (-half + root) / A + 1e-3) + 1)
    return x0, x1


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def composite(order, xy, conic, opacities, colours, first, end, image, last):
    """Draws rows [first, end) into image (H, W, 4) = premultiplied colour and transmittance (1 at entry).

    order (n,): indices front to back. Writes last (H, W): place in `order` of the last Gaussian drawn, or -1.
    """
    real = image.dtype.type
    one, half = real(1), real(0.5)
    faintest, densest, closed = real(ALPHA_MINIMUM), real(ALPHA_MAXIMUM), real(TRANSMITTANCE_MINIMUM)
    width = image.shape[1]
    for place in range(order.shape[0]):
        i = order[place]
        gx, gy, A, B, C, opacity = xy[i, 0], xy[i, 1], conic[i, 0], conic[i, 1], conic[i, 2], opacities[i]
        red, green, blue = colours[i, 0], colours[i, 1], colours[i, 2]
        reach = math.log(opacity / faintest)
        y0, y1 = _rows(gy, A, B, C, reach, first, end)
        for y in range(y0, y1):
            dy = real(y) - gy
            x0, x1 = _columns(dy, gx, A, B, C, reach, width)
            constant, linear, square = half * C * dy * dy, B * dy, half * A
            for x in range(x0, x1):
                transmittance = image[y, x, 3]
                if transmittance < 0:
                    continue
                dx = real(x) - gx
                alpha = min(densest, opacity * math.exp(-(constant + dx * (linear + square * dx))))
                if alpha < faintest:
                    continue
                if transmittance * (one - alpha) <= closed:
                    image[y, x, 3] = -transmittance
                    continue
                weight = alpha * transmittance
                image[y, x, 0] += weight * red
                image[y, x, 1] += weight * green
                image[y, x, 2] += weight * blue
                image[y, x, 3] = transmittance - weight
                last[y, x] = place
    for y in range(first, end):
        for x in range(width):
            image[y, x, 3] = abs(image[y, x, 3])


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def composite_tangents(order, xy, conic, opacities, colours, polynomials, first, end, layers):
    """Draws rows [first, end) and their tangents in p directions.

    polynomials (k, p, 5): tangents of s, see `project_view_tangents`. layers (H, W, 1 + p, 4): at [..., 0, :]
    premultiplied colour and transmittance (0 0 0 1 at entry), at [..., 1 + j, :] their tangents (0 at entry).
    """
    real = layers.dtype.type
    one, half = real(1), real(0.5)
    faintest, densest, closed = real(ALPHA_MINIMUM), real(ALPHA_MAXIMUM), real(TRANSMITTANCE_MINIMUM)
    width, directions = layers.shape[1], polynomials.shape[1]
    row = np.empty((directions, 3), layers.dtype)
    for place in range(order.shape[0]):
        i = order[place]
        gx, gy, A, B, C, opacity = xy[i, 0], xy[i, 1], conic[i, 0], conic[i, 1], conic[i, 2], opacities[i]
        red, green, blue = colours[i, 0], colours[i, 1], colours[i, 2]
        reach = math.log(opacity / faintest)
        y0, y1 = _rows(gy, A, B, C, reach, first, end)
        for y in range(y0, y1):
            dy = real(y) - gy
            x0, x1 = _columns(dy, gx, A, B, C, reach, width)
            if x1 <= x0:
                continue
            constant, linear, square = half * C * dy * dy, B * dy, half * A
            for j in range(directions):
                row[j, 0] = dy * (polynomials[i, j, 1] + dy * polynomials[i, j, 4])
                row[j, 1] = polynomials[i, j, 0] + dy * polynomials[i, j, 3]
                row[j, 2] = polynomials[i, j, 2]
            for x in range(x0, x1):
                transmittance = layers[y, x, 0, 3]
                if transmittance < 0:
                    continue
                dx = real(x) - gx
                alpha = min(densest, opacity * math.exp(-(constant + dx * (linear + square * dx))))
                if alpha < faintest:
                    continue
                if transmittance * (one - alpha) <= closed:
                    layers[y, x, 0, 3] = -transmittance
                    continue
                weight = alpha * transmittance
                slope = weight if alpha < densest else real(0)
                layers[y, x, 0, 0] += weight * red
                layers[y, x, 0, 1] += weight * green
                layers[y, x, 0, 2] += weight * blue
                layers[y, x, 0, 3] = transmittance - weight
                for j in range(directions):
                    ds = row[j, 0] + dx * (row[j, 1] + dx * row[j, 2])
                    tangent = alpha * layers[y, x, 1 + j, 3] - slope * ds
                    layers[y, x, 1 + j, 0] += tangent * red
                    layers[y, x, 1 + j, 1] += tangent * green
                    layers[y, x, 1 + j, 2] += tangent * blue
                    layers[y, x, 1 + j, 3] -= tangent
    for y in range(first, end):
        for x in range(width):
            layers[y, x, 0, 3] = abs(layers[y, x, 0, 3])


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def composite_transpose(
    order,
    xy,
    conic,
    opacities,
    colours,
    image,
    last,
    gradient_image,
    gradient_xy,
    gradient_conic,
    gradient_opacities,
    gradient_colours,
):
    """Transpose of `composite` over one view.

    image (H, W, 4) and last (H, W) from `composite`; gradient_image (H, W, 4): dL/d(colour, transmittance).
    Writes dL/dxy (k, 2), dL/dconic (k, 3), dL/dopacity (k,), dL/dcolour (k, 3) of the Gaussians in `order`.
    """
    real = image.dtype.type
    one, half = real(1), real(0.5)
    faintest, densest = real(ALPHA_MINIMUM), real(ALPHA_MAXIMUM)
    height, width = image.shape[0], image.shape[1]
    # per pixel, walking back to front: transmittance before what was walked over, and dL of what lies behind
    walk = np.empty((height, width, 2), image.dtype)
    for y in range(height):
        for x in range(width):
            walk[y, x, 0] = image[y, x, 3]
            walk[y, x, 1] = image[y, x, 3] * gradient_image[y, x, 3]
    for place in range(order.shape[0] - 1, -1, -1):
        i = order[place]
        gx, gy, A, B, C, opacity = xy[i, 0], xy[i, 1], conic[i, 0], conic[i, 1], conic[i, 2], opacities[i]
        red, green, blue = colours[i, 0], colours[i, 1], colours[i, 2]
        reach = math.log(opacity / faintest)
        y0, y1 = _rows(gy, A, B, C, reach, 0, height)
        zero = real(0)
        g_red, g_green, g_blue, g_opacity = zero, zero, zero, zero
        m_x, m_y, m_xx, m_xy, m_yy = zero, zero, zero, zero, zero
        for y in range(y0, y1):
            dy = real(y) - gy
            x0, x1 = _columns(dy, gx, A, B, C, reach, width)
            constant, linear, square = half * C * dy * dy, B * dy, half * A
            for x in range(x0, x1):
                if last[y, x] < place:
                    continue
                dx = real(x) - gx
                density = math.exp(-(constant + dx * (linear + square * dx)))
                alpha = min(densest, opacity * density)
                if alpha < faintest:
                    continue
                inverse = one / (one - alpha)
                transmittance = walk[y, x, 0] * inverse
                behind = walk[y, x, 1]
                weight = alpha * transmittance
                g0, g1, g2 = gradient_image[y, x, 0], gradient_image[y, x, 1], gradient_image[y, x, 2]
                own = g0 * red + g1 * green + g2 * blue
                g_red += weight * g0
                g_green += weight * g1
                g_blue += weight * g2
                g_alpha = transmittance * own - behind * inverse
                walk[y, x, 0] = transmittance
                walk[y, x, 1] = behind + weight * own
                if alpha < densest:
                    g_opacity += density * g_alpha
                    g_s = -alpha * g_alpha
                    m_x += g_s * dx
                    m_y += g_s * dy
                    m_xx += g_s * dx * dx
                    m_xy += g_s * dx * dy
                    m_yy += g_s * dy * dy
        gradient_xy[i, 0] = -(A * m_x + B * m_y)
        gradient_xy[i, 1] = -(B * m_x + C * m_y)
        gradient_conic[i, 0], gradient_conic[i, 1], gradient_conic[i, 2] = half * m_xx, m_xy, half * m_yy
        gradient_opacities[i] = g_opacity
        gradient_colours[i, 0], gradient_colours[i, 1], gradient_colours[i, 2] = g_red, g_green, g_blue
