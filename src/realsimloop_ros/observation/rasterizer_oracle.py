"""The slow and readable rasterizer: every Gaussian at every pixel, in plain JAX.

It says what the fast ones have to compute; values, tangents (`jax.jvp`) and gradients (`jax.grad`) alike.
Memory and time grow with Gaussians times pixels, so it is for tests.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from realsimloop_ros.observation.cameras import PinholeViews
from realsimloop_ros.observation.splat_projection import (
    ALPHA_MAXIMUM,
    ALPHA_MINIMUM,
    BLUR,
    CLAMP_MARGIN,
    NEAR,
    TRANSMITTANCE_MINIMUM,
)


def render_oracle(
    centres: jax.Array, covariances: jax.Array, opacities: jax.Array, colours: jax.Array, views: PinholeViews
) -> jax.Array:
    """The image (K, H, W, 4): premultiplied colour and transmittance.

    centres (k, 3) m, covariances (k, 3, 3) m^2, opacities (k,), colours (k, 3).
    """
    return jnp.stack(
        [
            _render_view(
                centres,
                covariances,
                opacities,
                colours,
                jnp.asarray(views.camera_from_world[view]),
                jnp.asarray(views.intrinsics[view]),
                views.width,
                views.height,
            )
            for view in range(views.count)
        ]
    )


def _project(centre, covariance, camera_from_world, intrinsics, width, height):
    """One Gaussian: pixel (2,), conic (2, 2), depth ()."""
    rotation, translation = camera_from_world[:3, :3], camera_from_world[:3, 3]
    focal = jnp.stack([intrinsics[0, 0], intrinsics[1, 1]])
    principal = intrinsics[:2, 2]
    size = jnp.array([width, height])
    local = rotation @ centre + translation
    depth = local[2]
    safe_depth = jnp.where(depth > NEAR, depth, 1.0)
    plane = local[:2] / safe_depth
    margin = CLAMP_MARGIN * 0.5 * size / focal
    clamped = jnp.clip(plane, -(principal + 0.5) / focal - margin, (size - principal - 0.5) / focal + margin)
    jacobian = (focal / safe_depth)[:, None] * (rotation[:2] - clamped[:, None] * rotation[2][None])
    projected = jacobian @ covariance @ jacobian.T + BLUR * jnp.eye(2)
    (a, b), (_, c) = projected
    conic = jnp.array([[c, -b], [-b, a]]) / (a * c - b * b)
    return focal * plane + principal, conic, depth


def _render_view(centres, covariances, opacities, colours, camera_from_world, intrinsics, width, height):
    pixel, conic, depth = jax.vmap(
        lambda centre, covariance: _project(centre, covariance, camera_from_world, intrinsics, width, height)
    )(centres, covariances)
    order = jnp.argsort(jax.lax.stop_gradient(depth), stable=True)
    columns, rows = jnp.meshgrid(jnp.arange(width), jnp.arange(height))
    grid = jnp.stack([columns, rows], axis=-1).astype(centres.dtype)  # (H, W, 2)

    def draw(state, index):
        colour, transmittance, is_open = state
        offset = grid - pixel[index][None, None]
        exponent = 0.5 * jnp.einsum("hwi,ij,hwj->hw", offset, conic[index], offset)
        alpha = jnp.minimum(ALPHA_MAXIMUM, opacities[index] * jnp.exp(-exponent))
        touches = is_open & (alpha >= ALPHA_MINIMUM) & (depth[index] > NEAR)
        closes = touches & (transmittance * (1 - alpha) <= TRANSMITTANCE_MINIMUM)
        weight = jnp.where(touches & ~closes, alpha * transmittance, 0.0)
        colour = colour + weight[..., None] * colours[index][None, None]
        return (colour, transmittance - weight, is_open & ~closes), None

    start = (
        jnp.zeros((height, width, 3), centres.dtype),
        jnp.ones((height, width), centres.dtype),
        jnp.ones((height, width), bool),
    )
    (colour, transmittance, _), _ = jax.lax.scan(draw, start, order)
    return jnp.concatenate([colour, transmittance[..., None]], axis=-1)
