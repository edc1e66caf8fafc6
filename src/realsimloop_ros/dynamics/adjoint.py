"""The adjoint of a rollout: the gradient of any loss of its latent states by one backward sweep.

    lambda_t = -H_t^-1 (dl/dz_t + sum_k (dr_{t+k}/dz_t)^T lambda_{t+k})
    dL/dmaterial = sum_t lambda_t^T dr_t/dmaterial

Newton's iterations are never differentiated; every step costs one Hessian at its converged state and one
vector-Jacobian product of its residual. Past positions enter the residuals, so the sweep carries the cotangents of
positions, not of latent states.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realsimloop_ros.dynamics.rollout import TwinState
from realsimloop_ros.dynamics.stepper import (
    StepSettings,
    gradient_and_hessian,
    residual,
    solve_positive,
    step_problem,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import ReducedModel, kinematics, positions, project_forces


class AdjointGradient(NamedTuple):
    """material: derivative of the loss per zone; past: (k, n, 3), with respect to the start's past positions."""

    material: Material
    past: Float[Array, "k n 3"]


@eqx.filter_jit
def adjoint(
    model: ReducedModel,
    settings: StepSettings,
    material: Material,
    start: TwinState,
    grip_poses: Float[Array, "w g 7"],
    latents: Float[Array, "w r"],
    loss_gradients: Float[Array, "w r"],
) -> AdjointGradient:
    """Gradient of a loss whose derivatives with respect to the latent states (w, r) are loss_gradients (w, r).

    start, grip_poses: those of the rollout that gave `latents`.
    """

    def forward(past: Array, step: tuple) -> tuple[Array, Array]:
        poses, latent = step
        x = positions(model, kinematics(model, poses), latent)
        return jnp.concatenate([x[None], past[:-1]]), past

    _, pasts = jax.lax.scan(forward, start.past, (grip_poses, latents))

    def backward(carry: tuple[Array, Material], step: tuple) -> tuple:
        past_cotangent, total = carry
        poses, latent, past, loss_gradient = step
        frame = kinematics(model, poses)
        problem = step_problem(model, settings, frame, past)
        _, hessian = gradient_and_hessian(model, settings, problem, material, latent)
        right = loss_gradient + project_forces(model, frame, past_cotangent[0])
        multiplier = -solve_positive(hessian, right)
        _, pullback = jax.vjp(lambda p, m: residual(model, settings, frame, problem, p, m, latent), past, material)
        earlier, of_material = pullback(multiplier)
        shifted = jnp.concatenate([past_cotangent[1:], jnp.zeros_like(past_cotangent[:1])])
        return (shifted + earlier, jax.tree.map(jnp.add, total, of_material)), None

    first = (jnp.zeros_like(start.past), jax.tree.map(jnp.zeros_like, material))
    steps = (grip_poses, latents, pasts, loss_gradients)
    (past, total), _ = jax.lax.scan(backward, first, steps, reverse=True)
    return AdjointGradient(total, past)
