"""Gaussian splats to images on the CPU: values, tangents and transposes, from numpy and from JAX.

The semantics are gsplat's 'classic' ones (see `splat_projection` and `splat_kernels`; the slow and readable
oracle is `rasterizer_oracle`), with OpenCV's pixel convention: add half a pixel to cx and cy for gsplat. All
views run at once on a pool of threads; results do not depend on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from realsimloop_ros.observation import splat_kernels, splat_projection
from realsimloop_ros.observation.cameras import PinholeViews
from realsimloop_ros.observation.threads import core_count, run_side_by_side

Array = NDArray[np.floating]


class SplatShapeError(ValueError):
    """Gaussians with arrays of the wrong shape, or with values that are not finite; the text names the array."""


@dataclass(frozen=True, eq=False)
class Gaussians:
    """k Gaussians in the world.

    centres (k, 3) m, covariances (k, 3, 3) m^2 symmetric, opacities (k,) and colours (k, 3) in 0 to 1.
    Raises SplatShapeError.
    """

    centres: NDArray[np.float64]
    covariances: NDArray[np.float64]
    opacities: NDArray[np.float64]
    colours: NDArray[np.float64]

    def __post_init__(self) -> None:
        count = len(np.asarray(self.centres))
        for field, shape in (
            ("centres", (count, 3)),
            ("covariances", (count, 3, 3)),
            ("opacities", (count,)),
            ("colours", (count, 3)),
        ):
            object.__setattr__(self, field, _checked(field, getattr(self, field), shape))


@dataclass(frozen=True, eq=False)
class Rendering:
    """What K views see of the Gaussians, and what the transpose needs to know again.

    image: (K, H, W, 4): premultiplied colour and transmittance (1 - alpha).
    """

    gaussians: Gaussians
    views: PinholeViews
    image: Array
    last: NDArray[np.int32]
    projection: Projection

    @property
    def colour(self) -> Array:
        """(K, H, W, 3): premultiplied colour, black where nothing is."""
        return self.image[..., :3]

    @property
    def transmittance(self) -> Array:
        """(K, H, W): 1 - alpha."""
        return self.image[..., 3]

    def over(self, background: ArrayLike) -> Array:
        """(K, H, W, 3): the images over a background (3,) or (K, H, W, 3)."""
        return self.image[..., :3] + self.image[..., 3:] * np.asarray(background, self.image.dtype)


@dataclass(frozen=True, eq=False)
class Projection:
    """Gaussians projected into K views, in the rasterizer's precision.

    xy (K, k, 2) px, conic (K, k, 3) 1/px^2, depth (K, k) m with inf where not drawn, order: per view, the
    indices of what is drawn, front to back; opacities (k,) and colours (k, 3).
    """

    xy: Array
    conic: Array
    depth: NDArray[np.float64]
    order: tuple[NDArray[np.int64], ...]
    opacities: Array
    colours: Array


@dataclass(frozen=True, eq=False)
class SplatGradient:
    """Derivatives of a scalar: centres (k, 3), covariances (k, 3, 3) symmetric, opacities (k,), colours (k, 3)."""

    centres: NDArray[np.float64]
    covariances: NDArray[np.float64]
    opacities: NDArray[np.float64]
    colours: NDArray[np.float64]


def render(gaussians: Gaussians, views: PinholeViews, dtype: DTypeLike = np.float32) -> Rendering:
    """Draws the Gaussians into all views. dtype: float32, or float64 for tests."""
    projection = _project(gaussians, views, dtype)
    shape = (views.count, views.height, views.width)
    image = np.zeros((*shape, 4), dtype)
    image[..., 3] = 1
    last = np.full(shape, -1, np.int32)

    def draw(view: int, first: int, end: int) -> None:
        splat_kernels.composite(
            projection.order[view],
            projection.xy[view],
            projection.conic[view],
            projection.opacities,
            projection.colours,
            first,
            end,
            image[view],
            last[view],
        )

    run_side_by_side([partial(draw, *band) for band in _bands(views)])
    return Rendering(gaussians, views, image, last, projection)


def render_tangents(
    gaussians: Gaussians,
    views: PinholeViews,
    tangents_centres: NDArray[np.float64],
    tangents_covariances: NDArray[np.float64],
    dtype: DTypeLike = np.float32,
) -> Array:
    """Draws the Gaussians and, in the same pass, the derivatives in p directions.

    tangents_centres (p, k, 3), tangents_covariances (p, k, 3, 3) symmetric.
    Returns (K, H, W, 1 + p, 4): [..., 0, :] is `Rendering.image`, [..., 1 + j, :] its derivative in direction j.
    Raises SplatShapeError.
    """
    count = len(gaussians.centres)
    directions = len(tangents_centres)
    tangents_centres = _checked("tangents_centres", tangents_centres, (directions, count, 3))
    tangents_covariances = _checked("tangents_covariances", tangents_covariances, (directions, count, 3, 3))
    projection = _project(gaussians, views, dtype)
    polynomials = np.empty((views.count, count, directions, 5), dtype)

    def project(view: int) -> None:
        splat_projection.project_view_tangents(
            views.camera_from_world[view],
            views.intrinsics[view],
            views.width,
            views.height,
            gaussians.centres,
            gaussians.covariances,
            tangents_centres,
            tangents_covariances,
            projection.depth[view],
            polynomials[view],
        )

    run_side_by_side([partial(project, view) for view in range(views.count)])
    layers = np.zeros((views.count, views.height, views.width, 1 + directions, 4), dtype)
    layers[..., 0, 3] = 1

    def draw(view: int, first: int, end: int) -> None:
        splat_kernels.composite_tangents(
            projection.order[view],
            projection.xy[view],
            projection.conic[view],
            projection.opacities,
            projection.colours,
            polynomials[view],
            first,
            end,
            layers[view],
        )

    run_side_by_side([partial(draw, *band) for band in _bands(views)])
    return layers


def render_transpose(rendering: Rendering, gradient_image: Array) -> SplatGradient:
    """From dL/d`Rendering.image` (K, H, W, 4) to the derivatives of L with respect to the Gaussians."""
    image, projection, views = rendering.image, rendering.projection, rendering.views
    gradient_image = np.ascontiguousarray(gradient_image, image.dtype)
    if gradient_image.shape != image.shape:
        raise SplatShapeError(f"gradient_image is {gradient_image.shape}, expected {image.shape}")
    count = len(rendering.gaussians.centres)
    # one set per view, summed in the order of the views: the sum then does not depend on the threads
    centres = np.zeros((views.count, count, 3))
    covariances = np.zeros((views.count, count, 3, 3))
    opacities = np.zeros((views.count, count), image.dtype)
    colours = np.zeros((views.count, count, 3), image.dtype)

    def pull_back(view: int) -> None:
        xy = np.zeros((count, 2), image.dtype)
        conic = np.zeros((count, 3), image.dtype)
        splat_kernels.composite_transpose(
            projection.order[view],
            projection.xy[view],
            projection.conic[view],
            projection.opacities,
            projection.colours,
            image[view],
            rendering.last[view],
            gradient_image[view],
            xy,
            conic,
            opacities[view],
            colours[view],
        )
        splat_projection.project_view_transpose(
            views.camera_from_world[view],
            views.intrinsics[view],
            views.width,
            views.height,
            rendering.gaussians.centres,
            rendering.gaussians.covariances,
            projection.depth[view],
            xy,
            conic,
            centres[view],
            covariances[view],
        )

    run_side_by_side([partial(pull_back, view) for view in range(views.count)])
    return SplatGradient(
        centres.sum(0),
        covariances.sum(0),
        opacities.sum(0, dtype=np.float64),
        colours.sum(0, dtype=np.float64),
    )


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def render_jax(
    centres: jax.Array,
    covariances: jax.Array,
    opacities: jax.Array,
    colours: jax.Array,
    views: PinholeViews,
    dtype: DTypeLike = np.float32,
) -> jax.Array:
    """`render` for JAX: the image (K, H, W, 4), differentiable in its first four arguments (reverse mode).

    The callback holds numpy and compiled code only: JAX called inside a callback can wait for itself.
    """
    return _render_jax_forward(centres, covariances, opacities, colours, views, dtype)[0]


def _render_jax_forward(centres, covariances, opacities, colours, views, dtype):
    def draw(*arrays):
        return render(_gaussians(arrays), views, dtype).image

    shape = jax.ShapeDtypeStruct((views.count, views.height, views.width, 4), dtype)
    arrays = (centres, covariances, opacities, colours)
    return jax.pure_callback(draw, shape, *arrays, vmap_method="sequential"), arrays


def _render_jax_transpose(views, dtype, arrays, gradient_image):
    def pull_back(gradient, *arrays):
        result = render_transpose(render(_gaussians(arrays), views, dtype), np.asarray(gradient))
        return tuple(
            np.asarray(value, array.dtype)
            for value, array in zip(
                (result.centres, result.covariances, result.opacities, result.colours), arrays, strict=True
            )
        )

    shapes = tuple(jax.ShapeDtypeStruct(jnp.shape(array), array.dtype) for array in arrays)
    return jax.pure_callback(pull_back, shapes, gradient_image, *arrays, vmap_method="sequential")


render_jax.defvjp(_render_jax_forward, _render_jax_transpose)


def _gaussians(arrays: Sequence[ArrayLike]) -> Gaussians:
    return Gaussians(*(np.asarray(array, np.float64) for array in arrays))


def _checked(field: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    # writable too: numba would compile anew for a read-only array, and JAX gives those out
    array = np.require(value, np.float64, ["C", "W"])
    if array.shape != shape:
        raise SplatShapeError(f"{field} has shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        raise SplatShapeError(f"{field} has values that are not finite; the state it comes from has diverged")
    return array


def _project(gaussians: Gaussians, views: PinholeViews, dtype: DTypeLike) -> Projection:
    count = len(gaussians.centres)
    xy = np.zeros((views.count, count, 2), dtype)
    conic = np.zeros((views.count, count, 3), dtype)
    depth = np.empty((views.count, count))
    order: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * views.count

    def project(view: int) -> None:
        splat_projection.project_view(
            views.camera_from_world[view],
            views.intrinsics[view],
            views.width,
            views.height,
            gaussians.centres,
            gaussians.covariances,
            gaussians.opacities,
            xy[view],
            conic[view],
            depth[view],
        )
        drawn = np.flatnonzero(np.isfinite(depth[view]))
        # stable, so that equal depths keep one order on every machine
        order[view] = drawn[np.argsort(depth[view][drawn], kind="stable")]

    run_side_by_side([partial(project, view) for view in range(views.count)])
    return Projection(
        xy,
        conic,
        depth,
        tuple(order),
        np.ascontiguousarray(gaussians.opacities, dtype),
        np.ascontiguousarray(gaussians.colours, dtype),
    )


def _bands(views: PinholeViews) -> list[tuple[int, int, int]]:
    """(view, first row, end row): enough bands to keep every core busy, of equal heights."""
    per_view = max(1, math.ceil(core_count() / views.count))
    edges = np.linspace(0, views.height, per_view + 1).astype(int)
    return [(view, int(first), int(end)) for view in range(views.count) for first, end in pairwise(edges)]
