"""Compiled sums over the pixels of one view for the image likelihood."""

from __future__ import annotations

import math

import numba
import numpy as np

# places of a mask: outside, at its rim, and far enough inside for its colours to be the body's alone
OUTSIDE, RIM, INSIDE = 0, 1, 2
HUBER = 0
GEMAN_MCCLURE = 1


@numba.njit(nogil=True, cache=True)
def robust(square, kind, scale):
    """Loss and weight of a squared normalised residual s^2.

    Pseudo-Huber: loss k^2 (sqrt(1 + s^2/k^2) - 1), weight 1 / sqrt(1 + s^2/k^2).
    Geman-McClure: loss s^2/2 / (1 + s^2/k^2), weight 1 / (1 + s^2/k^2)^2.
    Both start as s^2/2; the weight is the loss's derivative with respect to s^2/2.
    """
    ratio = square / (scale * scale)
    if kind == HUBER:
        root = math.sqrt(1.0 + ratio)
        # the same as scale^2 (root - 1), without its cancellation near zero
        return square / (1.0 + root), 1.0 / root
    share = 1.0 / (1.0 + ratio)
    return 0.5 * square * share, share * share


@numba.njit(nogil=True, cache=True)
def _residual(layers, image, gain, y, x, residual):
    """Writes gain C - (1 - T) Y (3,) of a pixel: the splats over the image itself; returns its square."""
    square = 0.0
    opacity = 1.0 - layers[y, x, 0, 3]
    for c in range(3):
        residual[c] = gain * layers[y, x, 0, c] - opacity * image[y, x, c] / 255.0
        square += residual[c] * residual[c]
    return square


@numba.njit(nogil=True, cache=True)
def gain_sums(layers, image, places, gain, information, kind, scale):
    """Weighted normal equation of the gain at weights taken at `gain`: numerator and denominator."""
    residual = np.empty(3)
    numerator, denominator = 0.0, 0.0
    for y in range(layers.shape[0]):
        for x in range(layers.shape[1]):
            if places[y, x] != INSIDE or layers[y, x, 0, 3] >= 1.0:
                continue
            square = _residual(layers, image, gain, y, x, residual)
            _, weight = robust(square * information[0], kind, scale)
            weight *= information[0] * information[1]
            for c in range(3):
                colour = layers[y, x, 0, c]
                numerator += weight * colour * (gain * colour - residual[c])
                denominator += weight * colour * colour
    return numerator, denominator


@numba.njit(nogil=True, cache=True)
def offset_sums(outline, places, rim, offset, information, kind, scale):
    """Weighted normal equation of the mask's offset at weights taken at `offset`: numerator and denominator."""
    numerator, denominator = 0.0, 0.0
    for y in range(outline.shape[0]):
        for x in range(outline.shape[1]):
            if rim[y, x] == 0.0:
                continue
            error = 1.0 - outline[y, x] - (places[y, x] != OUTSIDE)
            left = error + offset * rim[y, x]
            _, weight = robust(left * left * information, kind, scale)
            weight *= information
            numerator -= weight * rim[y, x] * error
            denominator += weight * rim[y, x] * rim[y, x]
    return numerator, denominator


@numba.njit(nogil=True, cache=True)
def overlap_counts(layers, places):
    """Pixels of the mask, of the predicted body (alpha > 0.5), and of both."""
    in_mask, in_prediction, in_both = 0, 0, 0
    for y in range(layers.shape[0]):
        for x in range(layers.shape[1]):
            seen, predicted = places[y, x] != OUTSIDE, layers[y, x, 0, 3] < 0.5
            in_mask += seen
            in_prediction += predicted
            in_both += seen and predicted
    return in_mask, in_prediction, in_both


@numba.njit(nogil=True, cache=True)
def view_sums(
    layers,
    outline,
    image,
    places,
    rim,
    gain,
    offset,
    information,
    kind,
    scale,
    gradient,
    hessian,
    columns,
):
    """Loss of one view, with its first and second (Gauss-Newton) derivatives in the p directions of the layers.

    layers (H, W, 1 + p, 4): what colours are compared with; outline (H, W, 1 + p): transmittance that the mask
    is compared with, and its derivatives; places (H, W): of the mask; rim (H, W): its change per px of offset;
    information: of a colour, the share of it that counts, and of the opacity; gradient (p,), hessian (p, p), and
    columns (2, p), the sums of w dr.C and of w dr.rim, are added to.
    Returns the loss, the squared colour residual and the count of the pixels inside the mask, and the share of
    outliers among the pixels of mask or predicted body: those about which the two disagree, or whose colour has
    less than half its weight.
    """
    directions = layers.shape[2] - 1
    residual, slope = np.empty(3), np.empty((directions, 4))
    loss, square_sum, count, of_either, outliers = 0.0, 0.0, 0, 0, 0
    for y in range(layers.shape[0]):
        for x in range(layers.shape[1]):
            transmittance, place = outline[y, x, 0], places[y, x]
            if transmittance >= 1.0 and layers[y, x, 0, 3] >= 1.0 and place == OUTSIDE and rim[y, x] == 0.0:
                continue
            silhouette = 1.0 - transmittance - (place != OUTSIDE) + offset * rim[y, x]
            either, doubtful = place != OUTSIDE or transmittance < 0.5, abs(silhouette) > 0.5
            weight = 0.0
            if place == INSIDE:
                square = _residual(layers, image, gain, y, x, residual)
                part, weight = robust(square * information[0], kind, scale)
                loss += information[1] * part
                square_sum += square
                count += 1
                doubtful = doubtful or weight < 0.5
                weight *= information[0] * information[1]
            of_either += either
            outliers += either and doubtful
            part, edge_weight = robust(silhouette * silhouette * information[2], kind, scale)
            loss += part
            edge_weight *= information[2]
            for j in range(directions):
                d_transmittance = layers[y, x, 1 + j, 3]
                slope[j, 3] = -outline[y, x, 1 + j]
                gradient[j] += edge_weight * silhouette * slope[j, 3]
                columns[1, j] += edge_weight * slope[j, 3] * rim[y, x]
                for c in range(3):
                    slope[j, c] = gain * layers[y, x, 1 + j, c] + d_transmittance * image[y, x, c] / 255.0
                    if weight > 0.0:
                        gradient[j] += weight * residual[c] * slope[j, c]
                        columns[0, j] += weight * slope[j, c] * layers[y, x, 0, c]
                for k in range(j + 1):
                    hessian[j, k] += weight * (
                        slope[j, 0] * slope[k, 0] + slope[j, 1] * slope[k, 1] + slope[j, 2] * slope[k, 2]
                    ) + edge_weight * (slope[j, 3] * slope[k, 3])
    for j in range(directions):
        for k in range(j):
            hessian[k, j] = hessian[j, k]
    return loss, square_sum, count, outliers / max(1, of_either)


@numba.njit(nogil=True, cache=True)
def view_image_gradient(
    layers, image, places, rim, gain, offset, information, kind, scale, factor, gradient_image
):
    """Writes dL/d(colour, transmittance) (H, W, 4) of one view, times `factor`."""
    residual = np.empty(3)
    for y in range(layers.shape[0]):
        for x in range(layers.shape[1]):
            transmittance, place = layers[y, x, 0, 3], places[y, x]
            through = 0.0
            if place == INSIDE:
                square = _residual(layers, image, gain, y, x, residual)
                _, weight = robust(square * information[0], kind, scale)
                weight *= factor * information[0] * information[1]
                for c in range(3):
                    gradient_image[y, x, c] = weight * residual[c] * gain
                    through += weight * residual[c] * image[y, x, c] / 255.0
            silhouette = 1.0 - transmittance - (place != OUTSIDE) + offset * rim[y, x]
            _, edge_weight = robust(silhouette * silhouette * information[2], kind, scale)
            gradient_image[y, x, 3] = through - factor * information[2] * edge_weight * silhouette
