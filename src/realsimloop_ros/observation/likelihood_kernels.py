"""Compiled sums over the pixels of one view for the image likelihood."""

from __future__ import annotations

import math

import numba
import numpy as np

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
def _residual(layers, image, mask, background, gain, y, x, residual):
    """Writes gain C + T b - Y (3,) of a pixel, Y = b outside the mask; returns its square."""
    square = 0.0
    transmittance = layers[y, x, 0, 3]
    seen = mask[y, x] > 0
    for c in range(3):
        target = image[y, x, c] / 255.0 if seen else background[c]
        residual[c] = gain * layers[y, x, 0, c] + transmittance * background[c] - target
        square += residual[c] * residual[c]
    return square


@numba.njit(nogil=True, cache=True)
def gain_sums(layers, image, mask, background, gain, sigma, kind, scale):
    """Weighted normal equation of the gain at weights taken at `gain`: numerator and denominator."""
    residual = np.empty(3)
    numerator, denominator = 0.0, 0.0
    for y in range(layers.shape[0]):
        for x in range(layers.shape[1]):
            if layers[y, x, 0, 3] >= 1.0:
                continue
            square = _residual(layers, image, mask, background, gain, y, x, residual)
            _, weight = robust(square / (sigma * sigma), kind, scale)
            weight /= sigma * sigma
            for c in range(3):
                colour = layers[y, x, 0, c]
                numerator += weight * colour * (gain * colour - residual[c])
                denominator += weight * colour * colour
    return numerator, denominator


@numba.njit(nogil=True, cache=True)
def overlap_counts(layers, mask):
    """Pixels of the mask, of the predicted body (alpha > 0.5), and of both."""
    in_mask, in_prediction, in_both = 0, 0, 0
    for y in range(layers.shape[0]):
        for x in range(layers.shape[1]):
            seen, predicted = mask[y, x] > 0, layers[y, x, 0, 3] < 0.5
            in_mask += seen
            in_prediction += predicted
            in_both += seen and predicted
    return in_mask, in_prediction, in_both


@numba.njit(nogil=True, cache=True)
def view_sums(
    layers,
    outline,
    image,
    mask,
    background,
    gain,
    sigma_colour,
    sigma_silhouette,
    kind,
    scale,
    gradient,
    hessian,
    gain_column,
):
    """Loss of one view, with its first and second (Gauss-Newton) derivatives in the p directions of the layers.

    layers (H, W, 1 + p, 4): what colours are compared with; outline (H, W, 1 + p): transmittance that the mask
    is compared with, and its derivatives; gradient (p,), hessian (p, p), gain_column (p,): the sum of w dr.C, are
    added to.
    Returns loss, squared colour residual, count, and outliers (weight below 1/2) of the pixels that belong to the
    mask or to the predicted body.
    """
    directions = layers.shape[2] - 1
    residual, slope = np.empty(3), np.empty((directions, 4))
    loss, square_sum, count, outliers = 0.0, 0.0, 0, 0
    colour_information = 1.0 / (sigma_colour * sigma_colour)
    silhouette_information = 1.0 / (sigma_silhouette * sigma_silhouette)
    for y in range(layers.shape[0]):
        for x in range(layers.shape[1]):
            transmittance = outline[y, x, 0]
            seen = mask[y, x] > 0
            if transmittance >= 1.0 and layers[y, x, 0, 3] >= 1.0 and not seen:
                continue
            square = _residual(layers, image, mask, background, gain, y, x, residual)
            part, weight = robust(square * colour_information, kind, scale)
            loss += part
            if seen or transmittance < 0.5:
                square_sum += square
                count += 1
                outliers += weight < 0.5
            silhouette = 1.0 - transmittance - (1.0 if seen else 0.0)
            part, edge_weight = robust(silhouette * silhouette * silhouette_information, kind, scale)
            loss += part
            weight *= colour_information
            edge_weight *= silhouette_information
            for j in range(directions):
                d_transmittance = layers[y, x, 1 + j, 3]
                for c in range(3):
                    slope[j, c] = gain * layers[y, x, 1 + j, c] + d_transmittance * background[c]
                    gradient[j] += weight * residual[c] * slope[j, c]
                    gain_column[j] += weight * slope[j, c] * layers[y, x, 0, c]
                slope[j, 3] = -outline[y, x, 1 + j]
                gradient[j] += edge_weight * silhouette * slope[j, 3]
                for k in range(j + 1):
                    hessian[j, k] += weight * (
                        slope[j, 0] * slope[k, 0] + slope[j, 1] * slope[k, 1] + slope[j, 2] * slope[k, 2]
                    ) + edge_weight * (slope[j, 3] * slope[k, 3])
    for j in range(directions):
        for k in range(j):
            hessian[k, j] = hessian[j, k]
    return loss, square_sum, count, outliers


@numba.njit(nogil=True, cache=True)
def view_image_gradient(
    layers, image, mask, background, gain, sigma_colour, sigma_silhouette, kind, scale, factor, gradient_image
):
    """Writes dL/d(colour, transmittance) (H, W, 4) of one view, times `factor`."""
    residual = np.empty(3)
    colour_information = factor / (sigma_colour * sigma_colour)
    silhouette_information = factor / (sigma_silhouette * sigma_silhouette)
    for y in range(layers.shape[0]):
        for x in range(layers.shape[1]):
            transmittance = layers[y, x, 0, 3]
            seen = mask[y, x] > 0
            square = _residual(layers, image, mask, background, gain, y, x, residual)
            _, weight = robust(square / (sigma_colour * sigma_colour), kind, scale)
            silhouette = 1.0 - transmittance - (1.0 if seen else 0.0)
            _, edge_weight = robust(silhouette * silhouette / (sigma_silhouette * sigma_silhouette), kind, scale)
            through = 0.0
            for c in range(3):
                gradient_image[y, x, c] = colour_information * weight * residual[c] * gain
                through += colour_information * weight * residual[c] * background[c]
            gradient_image[y, x, 3] = through - silhouette_information * edge_weight * silhouette
