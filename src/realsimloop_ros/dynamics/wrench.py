"""Wrenches at the grips of a reduced model, by virtual work.

The incremental potential Phi depends on the grip poses through every vertex, x = W(g) + Q(g) V z. At its minimum
over z, the wrench that a tool exerts on the body is dPhi along the tool's rigid motion: forces inside the subspace
balance and drop out, so this is the reaction that is consistent with the reduced energy, cubature included.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realsimloop_ros.dynamics.stepper import (
    Past,
    StepSettings,
    acceleration,
    past_entry,
    past_of_rest,
    sample_stress,
    strain_offset,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.grip_warp import quaternion_product, quaternion_to_matrix
from realsimloop_ros.reduction.model import ReducedModel, point_positions, strain_map, support_kinematics


def _moved(poses: Float[Array, "g 7"], twists: Float[Array, "g 6"]) -> Float[Array, "g 7"]:
    """Poses after small motions: translation, m, and rotation about the pose's own origin, rad, in world axes."""
    half = 0.5 * twists[:, 3:]
    turn = jnp.concatenate([half, jnp.ones_like(half[:, :1])], axis=1)
    # to first order, which is all a derivative at zero sees
    return jnp.concatenate([poses[:, :3] + twists[:, :3], quaternion_product(turn, poses[:, 3:])], axis=1)


def grip_wrenches(
    model: ReducedModel,
    settings: StepSettings,
    grip_poses: Float[Array, "g 7"],
    past: Past,
    material: Material,
    latent: Float[Array, " r"],
) -> Float[Array, "g 6"]:
    """Force and moment (g, 6), N and N m, that the body exerts on each tool, in the tool's frame.

    latent: converged state of the step that ends at grip_poses after `past`.
    """
    coordinates = model.decoder(latent)
    samples = model.samples

    def moved(twists: Array) -> tuple[Array, Array]:
        frame = support_kinematics(model, _moved(grip_poses, twists))
        local = samples.basis @ coordinates
        turn, nodes = frame.turn[samples.nodes], frame.base[samples.nodes]
        x = nodes + jnp.einsum("cail,cal->cai", turn, local.reshape(nodes.shape))
        F = jnp.einsum("cai,caj->cij", x, samples.gradients)
        return point_positions(model, frame, latent), F

    zero = jnp.zeros((len(grip_poses), 6), latent.dtype)
    (points, F), pullback = jax.vjp(moved, zero)
    force = model.points.masses(material)[:, None] * acceleration(settings, points, past.points)
    offset = strain_offset(settings, past)
    piola = sample_stress(model, settings, offset, material, F)
    (on_body,) = pullback((force, samples.volume[:, None, None] * piola))
    turn = quaternion_to_matrix(grip_poses[:, 3:])
    force = jnp.einsum("gji,gj->gi", turn, on_body[:, :3])
    moment = jnp.einsum("gji,gj->gi", turn, on_body[:, 3:])
    return -jnp.concatenate([force, moment], axis=1)


@eqx.filter_jit
def wrenches_with_tangents(
    model: ReducedModel,
    settings: StepSettings,
    grip_poses: Float[Array, "g 7"],
    past: Past,
    past_tangents: Past,
    material: Material,
    directions: Material,
    latent: Float[Array, " r"],
    latent_tangents: Float[Array, "r p"],
) -> tuple[Float[Array, "g 6"], Float[Array, "g 6 p"]]:
    """grip_wrenches and their derivatives along p directions of everything that depends on the material."""

    def of(past: Past, material: Material, latent: Array) -> Array:
        return grip_wrenches(model, settings, grip_poses, past, material, latent)

    wrenches, linear = jax.linearize(of, past, jax.tree.map(jnp.asarray, material), latent)
    tangents = jax.vmap(linear, in_axes=(-1, 0, 1), out_axes=2)(
        past_tangents, jax.tree.map(jnp.asarray, directions), latent_tangents
    )
    return wrenches, tangents


def resting_wrenches(
    model: ReducedModel, settings: StepSettings, grip_poses: Array, material: Material, latent: Array
) -> Float[Array, "g 6"]:
    """The wrenches of a body at rest."""
    frame = support_kinematics(model, grip_poses)
    entry = past_entry(model, settings, frame, strain_map(model, frame), latent)
    return grip_wrenches(model, settings, grip_poses, past_of_rest(settings, entry), material, latent)
