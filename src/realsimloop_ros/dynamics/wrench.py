"""Wrenches at the grips of a reduced model, by virtual work.

The incremental potential Phi depends on the grip poses through every vertex, x = W(g) + Q(g) V z. At its minimum
over z, the wrench that a tool exerts on the body is dPhi along the tool's rigid motion: forces inside the subspace
balance and drop out, so this is the reaction that is consistent with the reduced energy, cubature included.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realsimloop_ros.dynamics.stepper import StepSettings, strain_offset
from realsimloop_ros.mechanics.laws import Elasticity, green_strain, stress
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.grip_warp import quaternion_product, quaternion_to_matrix
from realsimloop_ros.reduction.model import Kinematics, ReducedModel, kinematics, positions


def _moved(poses: Float[Array, "g 7"], twists: Float[Array, "g 6"]) -> Float[Array, "g 7"]:
    """Poses after small motions: translation, m, and rotation about the pose's own origin, rad, in world axes."""
    half = 0.5 * twists[:, 3:]
    turn = jnp.concatenate([half, jnp.ones_like(half[:, :1])], axis=1)
    # to first order, which is all a derivative at zero sees
    return jnp.concatenate([poses[:, :3] + twists[:, :3], quaternion_product(turn, poses[:, 3:])], axis=1)


def _vertex_forces(
    model: ReducedModel,
    settings: StepSettings,
    past: Float[Array, "k n 3"],
    material: Material,
    x: Float[Array, "n 3"],
) -> Float[Array, "n 3"]:
    """dPhi/dx (n, 3), N, with the elastic part by cubature."""
    scheme, h = settings.integrator, settings.time_step
    prediction = jnp.tensordot(jnp.asarray(scheme.predictor, past.dtype), past, axes=1)
    acceleration = scheme.inertia / h**2 * (x - prediction) - settings.gravity[None]
    if settings.mass_damping:
        weights = jnp.asarray(scheme.rate[1:], past.dtype) / h
        velocity = settings.rate * x + jnp.tensordot(weights, past[: len(weights)], axes=1)
        acceleration = acceleration + settings.mass_damping * velocity
    samples = model.samples
    F = jnp.einsum("cai,caj->cij", x[samples.nodes], samples.gradients)
    elasticity = Elasticity(
        jnp.asarray(material.youngs_modulus)[samples.zone], jnp.asarray(material.poisson_ratio)[samples.zone]
    )
    piola = jax.vmap(partial(stress, model.law))(F, elasticity)
    if settings.viscous:
        viscosity = jnp.asarray(material.viscosity)[samples.zone]
        rate = settings.rate * jax.vmap(green_strain)(F) + strain_offset(model, settings, past)
        piola += F @ (viscosity[:, None, None] * rate)
    nodal = jnp.einsum("c,cij,caj->cai", samples.volume, piola, samples.gradients)
    elastic = jax.ops.segment_sum(nodal.reshape(-1, 3), samples.nodes.reshape(-1), len(x))
    return model.masses[:, None] * acceleration + elastic


def grip_wrenches(
    model: ReducedModel,
    settings: StepSettings,
    grip_poses: Float[Array, "g 7"],
    past: Float[Array, "k n 3"],
    material: Material,
    latent: Float[Array, " r"],
) -> Float[Array, "g 6"]:
    """Force and moment (g, 6), N and N m, that the body exerts on each tool, in the tool's frame.

    latent: converged state of the step that ends at grip_poses after past positions (k, n, 3).
    """

    def vertices(twists: Array) -> Array:
        return positions(model, kinematics(model, _moved(grip_poses, twists)), latent)

    x, pullback = jax.vjp(vertices, jnp.zeros((len(grip_poses), 6), latent.dtype))
    (on_body,) = pullback(_vertex_forces(model, settings, past, material, x))
    turn = quaternion_to_matrix(grip_poses[:, 3:])
    force = jnp.einsum("gji,gj->gi", turn, on_body[:, :3])
    moment = jnp.einsum("gji,gj->gi", turn, on_body[:, 3:])
    return -jnp.concatenate([force, moment], axis=1)


@eqx.filter_jit
def wrenches_with_tangents(
    model: ReducedModel,
    settings: StepSettings,
    grip_poses: Float[Array, "g 7"],
    past: Float[Array, "k n 3"],
    past_tangents: Float[Array, "k n 3 p"],
    material: Material,
    directions: Material,
    latent: Float[Array, " r"],
    latent_tangents: Float[Array, "r p"],
) -> tuple[Float[Array, "g 6"], Float[Array, "g 6 p"]]:
    """grip_wrenches and their derivatives along p directions of everything that depends on the material."""

    def of(past: Array, material: Material, latent: Array) -> Array:
        return grip_wrenches(model, settings, grip_poses, past, material, latent)

    wrenches, linear = jax.linearize(of, past, jax.tree.map(jnp.asarray, material), latent)
    tangents = jax.vmap(linear, in_axes=(3, 0, 1), out_axes=2)(
        past_tangents, jax.tree.map(jnp.asarray, directions), latent_tangents
    )
    return wrenches, tangents


def resting_wrenches(
    model: ReducedModel, settings: StepSettings, grip_poses: Array, material: Material, latent: Array
) -> Float[Array, "g 6"]:
    """The wrenches of a body at rest."""
    frame: Kinematics = kinematics(model, grip_poses)
    x = positions(model, frame, latent)
    past = jnp.broadcast_to(x, (settings.integrator.history, *x.shape))
    return grip_wrenches(model, settings, grip_poses, past, material, latent)
