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

from realsimloop_ros.dynamics.rollout import checked_instants, in_precision_of
from realsimloop_ros.dynamics.stepper import (
    Past,
    StepSettings,
    inertial_acceleration,
    past_entry,
    past_of_rest,
    place,
    sample_stress,
    strain_offset,
)
from realsimloop_ros.dynamics.surroundings import Outside, around, outside_points, outside_slopes
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.surroundings import Instant
from realsimloop_ros.reduction.grip_warp import quaternion_product, quaternion_to_matrix
from realsimloop_ros.reduction.model import ReducedModel, point_positions, support_kinematics


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
    before: Instant | None = None,
    after: Instant | None = None,
) -> Float[Array, "g 6"]:
    """Force and moment (g, 6), N and N m, that the body exerts on each tool, in the tool's frame.

    latent: converged state of the step that ends at grip_poses after `past`; before, after: where colliders and
    winches were at the step's ends, for a model that has them.
    """
    coordinates = model.decoder(latent)
    samples = model.samples
    began, ended = (checked_instants(model, instant, None) for instant in (before, after))

    def moved(twists: Array) -> tuple[Array, Array, Outside | None]:
        frame = support_kinematics(model, _moved(grip_poses, twists))
        local = samples.basis @ coordinates
        turn, nodes = frame.turn[samples.nodes], frame.base[samples.nodes]
        x = nodes + jnp.einsum("cail,cal->cai", turn, local.reshape(nodes.shape))
        F = jnp.einsum("cai,caj->cij", x, samples.gradients)
        at = around(model, frame, _previous(past), began, ended, settings.time_step)
        return point_positions(model, frame, latent), F, None if at is None else outside_points(at, coordinates)

    zero = jnp.zeros((len(grip_poses), 6), latent.dtype)
    (points, F, outside), pullback = jax.vjp(moved, zero)
    gravity = settings.gravity.astype(points.dtype)
    acceleration = inertial_acceleration(settings, points, past.points) - gravity[None]
    force = model.points.masses(material)[:, None] * acceleration
    piola = sample_stress(model, settings, strain_offset(settings, past), material, F)
    slopes = None
    if model.surroundings is not None and outside is not None:
        frame = support_kinematics(model, grip_poses)
        at = around(model, frame, _previous(past), began, ended, settings.time_step)
        assert at is not None
        slopes = outside_slopes(model.surroundings, at, outside)
    (on_body,) = pullback((force, samples.volume[:, None, None] * piola, slopes))
    turn = quaternion_to_matrix(grip_poses[:, 3:])
    force = jnp.einsum("gji,gj->gi", turn, on_body[:, :3])
    moment = jnp.einsum("gji,gj->gi", turn, on_body[:, 3:])
    return -jnp.concatenate([force, moment], axis=1)


def _previous(past: Past) -> Float[Array, "k 3"]:
    return past.touch[0] if len(past.touch) else jnp.zeros((0, 3), past.points.dtype)


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

    grip_poses, material, directions = in_precision_of(model, (grip_poses, material, directions))

    def of(past: Past, material: Material, latent: Array) -> Array:
        return grip_wrenches(model, settings, grip_poses, past, material, latent)

    wrenches, linear = jax.linearize(of, past, material, latent)
    tangents = jax.vmap(linear, in_axes=(-1, 0, 1), out_axes=2)(past_tangents, directions, latent_tangents)
    return wrenches, tangents


def resting_wrenches(
    model: ReducedModel,
    settings: StepSettings,
    grip_poses: Array,
    material: Material,
    latent: Array,
    instant: Instant | None = None,
) -> Float[Array, "g 6"]:
    """The wrenches of a body at rest."""
    at = checked_instants(model, instant, None)
    entry = past_entry(model, settings, place(model, grip_poses, at, at, settings.time_step), latent)
    past = past_of_rest(settings, entry)
    return grip_wrenches(model, settings, grip_poses, past, material, latent, at, at)
