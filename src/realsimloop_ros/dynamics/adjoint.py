"""The adjoint of a rollout: the gradient of any loss of its latent states by one backward sweep.

    lambda_t = -H_t^-1 (dl/dz_t + sum_k (dr_{t+k}/dz_t)^T lambda_{t+k})
    dL/dmaterial = sum_t lambda_t^T dr_t/dmaterial,   dL/dg_t = lambda_t^T dr_t/dg_t + what later steps remember
    of g_t

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

from realsimloop_ros.dynamics.newton import inverse_of
from realsimloop_ros.dynamics.rollout import Inputs, TwinState, checked_instants, in_precision_of, per_step
from realsimloop_ros.dynamics.stepper import (
    Past,
    Placement,
    StepSettings,
    gradient_and_hessian,
    past_entry,
    place,
    remembered,
    residual,
    step_problem,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.surroundings import Instant
from realsimloop_ros.reduction.model import ReducedModel


class AdjointGradient(NamedTuple):
    """Derivatives of a loss.

    material: per zone; past: with respect to what the start remembers; grip_poses: (w, g, 7) and instants (w +
    1), with respect to what is done to the body, through the latent states alone; None where not asked for.
    """

    material: Material
    past: Past
    grip_poses: Float[Array, "w g 7"] | None
    instants: Instant | None


@eqx.filter_jit
def adjoint(
    model: ReducedModel,
    settings: StepSettings,
    material: Material,
    start: TwinState,
    grip_poses: Float[Array, "w g 7"],
    latents: Float[Array, "w r"],
    loss_gradients: Float[Array, "w r"],
    instants: Instant | None = None,
    *,
    with_inputs: bool = False,
) -> AdjointGradient:
    """Gradient of a loss whose derivatives with respect to the latent states (w, r) are loss_gradients (w, r).

    start, grip_poses, instants: those of the rollout that gave `latents`; with_inputs: whether the gradient along
    poses and surroundings is wanted too (what the loss depends on them directly is the caller's to add). Raises
    ValueError for a body that nothing holds, whose frame a sweep over latent states does not see.
    """
    if model.floating:
        raise ValueError("adjoint: nothing holds the body; take the forward sensitivities of rollout")
    material, grip_poses = in_precision_of(model, (material, grip_poses))
    inputs = per_step(grip_poses, checked_instants(model, instants, len(grip_poses) + 1))

    def placed(given: Inputs) -> Placement:
        return place(model, given.grip_poses, given.before, given.after, settings.time_step)

    def entry(given: Inputs, latent: Array) -> Past:
        return past_entry(model, settings, placed(given), latent)

    def forward(past: Past, step: tuple) -> tuple[Past, Past]:
        return remembered(past, entry(*step)), past

    _, pasts = jax.lax.scan(forward, start.past, (inputs, latents))

    def backward(carry: tuple[Past, Material], step: tuple) -> tuple:
        cotangent, total = carry
        given, latent, past, loss_gradient = step
        placement = placed(given)
        problem = step_problem(model, settings, placement, past, material)
        _, hessian = gradient_and_hessian(model, settings, problem, material, latent)
        # the step's own entry is the newest of what the next one remembers
        newest = jax.tree.map(lambda c: c[:1], cotangent)
        _, remember = jax.vjp(lambda z: past_entry(model, settings, placement, z), latent)
        multiplier = -inverse_of(hessian) @ (loss_gradient + remember(newest)[0])

        def at_given(past: Past, m: Material) -> Array:
            return residual(model, settings, placement, past, m, latent)

        def of_inputs(given: Inputs) -> tuple[Array, Past]:
            moved = placed(given)
            left = residual(model, settings, moved, past, material, latent)
            return left, past_entry(model, settings, moved, latent)

        _, pullback = jax.vjp(at_given, past, material)
        earlier, of_material = pullback(multiplier)
        of_given = jax.vjp(of_inputs, given)[1]((multiplier, newest))[0] if with_inputs else None
        older = jax.tree.map(lambda c: jnp.concatenate([c[1:], jnp.zeros_like(c[:1])]), cotangent)
        total = jax.tree.map(jnp.add, total, of_material)
        return (jax.tree.map(jnp.add, older, earlier), total), of_given

    first = (jax.tree.map(jnp.zeros_like, start.past), jax.tree.map(jnp.zeros_like, material))
    steps = (inputs, latents, pasts, loss_gradients)
    along_inputs: Inputs | None
    (past, total), along_inputs = jax.lax.scan(backward, first, steps, reverse=True)
    if along_inputs is None:
        return AdjointGradient(total, past, None, None)
    # an instant ends one step and begins the next
    shared = jax.tree.map(
        lambda before, after: (
            jnp.concatenate([before, jnp.zeros_like(before[:1])])
            + jnp.concatenate([jnp.zeros_like(after[:1]), after])
        ),
        along_inputs.before,
        along_inputs.after,
    )
    return AdjointGradient(total, past, along_inputs.grip_poses, shared)
