"""The adjoint of a rollout: the gradient of any loss of its latent states by one backward sweep.

    lambda_t = -H_t^-1 (dl/dz_t + sum_k (dr_{t+k}/dz_t)^T lambda_{t+k})
    dL/dmaterial = sum_t lambda_t^T dr_t/dmaterial,   dL/dg_t = lambda_t^T dr_t/dg_t + what later steps remember of g_t

Newton's iterations are never differentiated; every step costs one Hessian at its converged state and one
vector-Jacobian product of its residual. Steps remember points and strains, not latent states, so the sweep carries
the cotangents of these.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realsimloop_ros.dynamics.rollout import TwinState
from realsimloop_ros.dynamics.stepper import (
    Past,
    StepProblem,
    StepSettings,
    gradient_and_hessian,
    inverse_of,
    of_the_past,
    past_entry,
    remembered,
    residual,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import ReducedModel, strain_map, support_kinematics


class AdjointGradient(NamedTuple):
    """material: derivative of the loss per zone; past: with respect to what the start remembers; grip_poses:
    (w, g, 7), with respect to the poses at given latent states and through them, None where not asked for."""

    material: Material
    past: Past
    grip_poses: Float[Array, "w g 7"] | None


@eqx.filter_jit
def adjoint(
    model: ReducedModel,
    settings: StepSettings,
    material: Material,
    start: TwinState,
    grip_poses: Float[Array, "w g 7"],
    latents: Float[Array, "w r"],
    loss_gradients: Float[Array, "w r"],
    *,
    with_poses: bool = False,
) -> AdjointGradient:
    """Gradient of a loss whose derivatives with respect to the latent states (w, r) are loss_gradients (w, r).

    start, grip_poses: those of the rollout that gave `latents`; with_poses: whether the gradient along the grip
    poses is wanted too (of a loss that depends on them through the latent states alone; what it depends on them
    directly is the caller's to add).
    """

    def entry(poses: Array, latent: Array) -> Past:
        frame = support_kinematics(model, poses)
        return past_entry(model, settings, frame, strain_map(model, frame), latent)

    def forward(past: Past, step: tuple) -> tuple[Past, Past]:
        return remembered(past, entry(*step)), past

    _, pasts = jax.lax.scan(forward, start.past, (grip_poses, latents))

    def backward(carry: tuple[Past, Material], step: tuple) -> tuple:
        cotangent, total = carry
        poses, latent, past, loss_gradient = step
        frame = support_kinematics(model, poses)
        strains = strain_map(model, frame)
        problem = StepProblem(strains, *of_the_past(model, settings, frame, past, material))
        _, hessian = gradient_and_hessian(model, settings, problem, material, latent)
        # the step's own entry is the newest of what the next one remembers
        newest = jax.tree.map(lambda c: c[:1], cotangent)
        if with_poses:
            _, remember = jax.vjp(entry, poses, latent)
            direct, through_latent = remember(newest)
        else:
            _, remember = jax.vjp(lambda z: past_entry(model, settings, frame, strains, z), latent)
            (through_latent,) = remember(newest)
        multiplier = -inverse_of(hessian) @ (loss_gradient + through_latent)

        def at_fixed_poses(past: Past, m: Material) -> Array:
            return residual(model, settings, frame, strains, past, m, latent)

        def of_everything(past: Past, m: Material, p: Array) -> Array:
            moved = support_kinematics(model, p)
            return residual(model, settings, moved, strain_map(model, moved), past, m, latent)

        if with_poses:
            _, pullback = jax.vjp(of_everything, past, material, poses)
            earlier, of_material, of_poses = pullback(multiplier)
            of_poses = of_poses + direct
        else:
            _, pullback = jax.vjp(at_fixed_poses, past, material)
            earlier, of_material = pullback(multiplier)
            of_poses = None
        older = jax.tree.map(lambda c: jnp.concatenate([c[1:], jnp.zeros_like(c[:1])]), cotangent)
        total = jax.tree.map(jnp.add, total, of_material)
        return (jax.tree.map(jnp.add, older, earlier), total), of_poses

    first = (jax.tree.map(jnp.zeros_like, start.past), jax.tree.map(jnp.zeros_like, material))
    steps = (grip_poses, latents, pasts, loss_gradients)
    (past, total), of_poses = jax.lax.scan(backward, first, steps, reverse=True)
    return AdjointGradient(total, past, of_poses)
