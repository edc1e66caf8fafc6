"""The frame of a body that nothing holds: it goes where the inertia of the body carries it.

A step's frame is the rigid motion that fits the predicted positions of the mass points best,

    R = polar(A B^-1),   A = sum_i w_i (y_i - y_mean) (X_i - X_mean)^T,
                         B = sum_i w_i (X_i - X_mean) (X_i - X_mean)^T,

which is a choice of coordinates and no approximation: the basis of such a body contains all affine motions, so
that what the step adds to the prediction lies in the latent state.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.reduction.grip_warp import quaternion_product, quaternion_to_matrix
from realsimloop_ros.reduction.model import ReducedModel

# Higham's iteration doubles the digits each time: from stretches up to ten to rounding
_POLAR_ITERATIONS = 9


def polar_rotation(A: Float[Array, "3 3"]) -> Float[Array, "3 3"]:
    """The rotation nearest to a matrix of positive determinant (Higham 1986)."""

    X = A
    for _ in range(_POLAR_ITERATIONS):
        # cofactors are the transposed inverse times the determinant
        cofactor = jnp.stack([jnp.cross(X[1], X[2]), jnp.cross(X[2], X[0]), jnp.cross(X[0], X[1])])
        X = 0.5 * (X + cofactor / jnp.dot(X[0], cofactor[0]))
    return X


def _small_rotation_quaternion(R: Float[Array, "3 3"]) -> Float[Array, 4]:
    """The quaternion of a rotation by less than half a turn."""
    w = 0.5 * jnp.sqrt(jnp.maximum(1.0 + jnp.trace(R), 1e-12))
    vector = jnp.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / (4.0 * w)
    q = jnp.concatenate([vector, w[None]])
    return q / jnp.sqrt(jnp.sum(q**2))


def floating_pose(
    model: ReducedModel, settings: StepSettings, past: Float[Array, "k m 3"], last: Float[Array, "1 7"]
) -> Float[Array, "1 7"]:
    """Pose of the frame for the step after past positions of the mass points.

    last: the pose before, from which the quaternion is continued; the pose as a rotation does not depend on it.
    """
    scheme, h = settings.integrator, settings.time_step
    y = jnp.tensordot(jnp.asarray(scheme.predictor, past.dtype), past, axes=1)
    y = y + (h**2 / scheme.inertia) * settings.gravity.astype(y.dtype)[None]
    rest = model.support.rest_positions[model.points.nodes]
    weights = jnp.sum(model.points.volumes, axis=1)
    weights = weights / jnp.sum(weights)
    mean, centre = weights @ y, weights @ rest
    away, arms = y - mean[None], rest - centre[None]
    A = jnp.einsum("m,mi,mj->ij", weights, away, arms)
    B = jnp.einsum("m,mi,mj->ij", weights, arms, arms)
    rotation = polar_rotation(A @ jnp.linalg.inv(B))
    before = jax.lax.stop_gradient(last[0, 3:])
    turned = _small_rotation_quaternion(quaternion_to_matrix(before).T @ rotation)
    origin = model.support.rest_poses[0, :3]
    position = mean + rotation @ (origin - centre)
    return jnp.concatenate([position, quaternion_product(before, turned)])[None]


def drifting(
    poses: Float[Array, "1 7"], twist: Float[Array, 6], ages: Float[Array, " k"]
) -> Float[Array, "k 1 7"]:
    """Where a frame at a pose was `ages` (k,) s ago, that moves with a twist (velocity, m/s, and angular velocity,
    rad/s, both in the world, at the frame's origin)."""
    shifted = poses[None, 0, :3] - ages[:, None] * twist[None, :3]
    speed = jnp.sqrt(jnp.sum(twist[3:] ** 2))
    axis = jnp.where(speed > 0.0, twist[3:] / jnp.where(speed > 0.0, speed, 1.0), 0.0)
    half = -0.5 * ages * speed
    turn = jnp.concatenate([jnp.sin(half)[:, None] * axis[None], jnp.cos(half)[:, None]], axis=1)
    return jnp.concatenate([shifted, quaternion_product(turn, poses[:, 3:])], axis=1)[:, None]
