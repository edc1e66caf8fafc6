"""Gaussian splats bound to a body, and how its deformation carries them."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from realsimloop_ros.body.body import Attachment, Body, bind_points
from realsimloop_ros.observation.rasterizers import Gaussians

Array = NDArray[np.float64]


class SplatsError(ValueError):
    """Splats that cannot be used; the text names the field or file, and the remedy."""


@dataclass(frozen=True, eq=False)
class Splats:
    """k Gaussians bound to a body.

    attachment: to the body's tets; nodes: (k, a) the vertices of those tets.
    rest_covariances: (k, 3, 3) m^2 at rest, symmetric; colours: (k, 3) in 0 to 1; opacities: (k,) in 0 to 1.
    Raises SplatsError.
    """

    attachment: Attachment
    nodes: NDArray[np.int64]
    rest_covariances: Array
    colours: Array
    opacities: Array

    def __post_init__(self) -> None:
        count, nodes = self.attachment.weights.shape
        for field, shape in (
            ("nodes", (count, nodes)),
            ("rest_covariances", (count, 3, 3)),
            ("colours", (count, 3)),
            ("opacities", (count,)),
        ):
            array = _kernel_array(getattr(self, field), np.int64 if field == "nodes" else np.float64)
            if array.shape != shape:
                raise SplatsError(f"{field} has shape {array.shape}, expected {shape} for {count} splats")
            if not np.isfinite(array).all():
                raise SplatsError(f"{field} has values that are not finite")
            object.__setattr__(self, field, array)
        attachment = Attachment(
            self.attachment.tet, _kernel_array(self.attachment.weights), _kernel_array(self.attachment.gradients)
        )
        object.__setattr__(self, "attachment", attachment)
        for field in ("colours", "opacities"):
            array = getattr(self, field)
            if count and (array.min() < 0 or array.max() > 1):
                raise SplatsError(f"{field} lies in {array.min():.3g} to {array.max():.3g}, expected 0 to 1")

    def __len__(self) -> int:
        return len(self.nodes)

    def place(self, x: Array) -> tuple[Array, Array]:
        """Centres (k, 3) and covariances (k, 3, 3) = F S F^T when the vertices are at x (n, 3), m."""
        centres, covariances = np.empty((len(self), 3)), np.empty((len(self), 3, 3))
        _place(
            _kernel_array(x),
            self.nodes,
            self.attachment.weights,
            self.attachment.gradients,
            self.rest_covariances,
            centres,
            covariances,
        )
        return centres, covariances

    def deformation_gradients(self, x: Array) -> Array:
        """F (k, 3, 3) at the splats when the vertices are at x (n, 3), m."""
        return np.einsum("kai,kaj->kij", np.asarray(x)[self.nodes], self.attachment.gradients)

    def place_tangents(self, x: Array, tangents_x: Array) -> tuple[Array, Array]:
        """Derivatives of `place` (p, k, 3), (p, k, 3, 3) in p directions of the vertices (p, n, 3)."""
        directions = len(tangents_x)
        centres = np.empty((directions, len(self), 3))
        covariances = np.empty((directions, len(self), 3, 3))
        _place_tangents(
            _kernel_array(x),
            _kernel_array(tangents_x),
            self.nodes,
            self.attachment.weights,
            self.attachment.gradients,
            self.rest_covariances,
            centres,
            covariances,
        )
        return centres, covariances

    def place_transpose(self, x: Array, gradient_centres: Array, gradient_covariances: Array) -> Array:
        """dL/dx (n, 3) from dL/dcentres (k, 3) and dL/dcovariances (k, 3, 3), symmetric."""
        gradient_x = np.zeros(np.shape(x))
        _place_transpose(
            _kernel_array(x),
            self.nodes,
            self.attachment.weights,
            self.attachment.gradients,
            self.rest_covariances,
            _kernel_array(gradient_centres),
            _kernel_array(gradient_covariances),
            gradient_x,
        )
        return gradient_x

    def gaussians(self, x: Array) -> Gaussians:
        """The splats in the world, ready to be drawn, when the vertices are at x (n, 3), m."""
        return Gaussians(*self.place(x), self.opacities, self.colours)


def _kernel_array(value: ArrayLike, dtype: DTypeLike = np.float64) -> NDArray:
    """Contiguous and writable: numba would compile anew for any other kind, and JAX gives out read-only arrays."""
    return np.require(value, dtype, ["C", "W"])


def bind_splats(
    body: Body, centres: ArrayLike, rest_covariances: ArrayLike, colours: ArrayLike, opacities: ArrayLike
) -> Splats:
    """Splats at rest positions `centres` (k, 3), m, bound to the body's tets."""
    attachment = bind_points(body, np.asarray(centres, np.float64))
    return Splats(
        attachment,
        body.tets[attachment.tet],
        np.asarray(rest_covariances),
        np.asarray(colours),
        np.asarray(opacities),
    )


@numba.njit(nogil=True, cache=True)
def _place(x, nodes, weights, gradients, rest_covariances, centres, covariances):
    deformation, product = np.empty((3, 3)), np.empty((3, 3))
    for i in range(nodes.shape[0]):
        _centre_and_gradient(x, nodes, weights, gradients, i, centres[i], deformation)
        for r in range(3):
            for q in range(3):
                product[r, q] = (
                    deformation[r, 0] * rest_covariances[i, 0, q]
                    + deformation[r, 1] * rest_covariances[i, 1, q]
                    + deformation[r, 2] * rest_covariances[i, 2, q]
                )
        for r in range(3):
            for q in range(r + 1):
                value = (
                    product[r, 0] * deformation[q, 0]
                    + product[r, 1] * deformation[q, 1]
                    + product[r, 2] * deformation[q, 2]
                )
                covariances[i, r, q] = value
                covariances[i, q, r] = value


@numba.njit(nogil=True, cache=True)
def _place_tangents(x, tangents_x, nodes, weights, gradients, rest_covariances, centres, covariances):
    deformation, tangent, product = np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    centre = np.empty(3)
    for i in range(nodes.shape[0]):
        _centre_and_gradient(x, nodes, weights, gradients, i, centre, deformation)
        # product = S F^T
        for r in range(3):
            for q in range(3):
                product[r, q] = (
                    rest_covariances[i, r, 0] * deformation[q, 0]
                    + rest_covariances[i, r, 1] * deformation[q, 1]
                    + rest_covariances[i, r, 2] * deformation[q, 2]
                )
        for k in range(tangents_x.shape[0]):
            _centre_and_gradient(tangents_x[k], nodes, weights, gradients, i, centres[k, i], tangent)
            for r in range(3):
                for q in range(3):
                    covariances[k, i, r, q] = (
                        tangent[r, 0] * product[0, q]
                        + tangent[r, 1] * product[1, q]
                        + tangent[r, 2] * product[2, q]
                        + tangent[q, 0] * product[0, r]
                        + tangent[q, 1] * product[1, r]
                        + tangent[q, 2] * product[2, r]
                    )


@numba.njit(nogil=True, cache=True)
def _place_transpose(
    x, nodes, weights, gradients, rest_covariances, gradient_centres, gradient_covariances, gradient_x
):
    deformation, product, gradient = np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    centre = np.empty(3)
    for i in range(nodes.shape[0]):
        _centre_and_gradient(x, nodes, weights, gradients, i, centre, deformation)
        for r in range(3):
            for q in range(3):
                product[r, q] = (
                    deformation[r, 0] * rest_covariances[i, 0, q]
                    + deformation[r, 1] * rest_covariances[i, 1, q]
                    + deformation[r, 2] * rest_covariances[i, 2, q]
                )
        # dL/dF = 2 G F S with G symmetric
        for r in range(3):
            for q in range(3):
                gradient[r, q] = 0.0
                for s in range(3):
                    gradient[r, q] += (gradient_covariances[i, r, s] + gradient_covariances[i, s, r]) * product[
                        s, q
                    ]
        for a in range(nodes.shape[1]):
            for r in range(3):
                gradient_x[nodes[i, a], r] += (
                    weights[i, a] * gradient_centres[i, r]
                    + gradient[r, 0] * gradients[i, a, 0]
                    + gradient[r, 1] * gradients[i, a, 1]
                    + gradient[r, 2] * gradients[i, a, 2]
                )


@numba.njit(nogil=True, cache=True)
def _centre_and_gradient(x, nodes, weights, gradients, i, centre, deformation):
    centre[:] = 0.0
    deformation[:] = 0.0
    for a in range(nodes.shape[1]):
        node = nodes[i, a]
        for r in range(3):
            centre[r] += weights[i, a] * x[node, r]
            for q in range(3):
                deformation[r, q] += x[node, r] * gradients[i, a, q]
