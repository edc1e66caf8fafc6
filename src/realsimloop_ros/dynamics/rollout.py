"""Rollouts of the reduced model over a window of steps, with forward sensitivities to whatever they depend on."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from realsimloop_ros.dynamics.floating import drifting, floating_pose
from realsimloop_ros.dynamics.newton import (
    better_start,
    inverse_of,
    minimise,
    static_latent,
)
from realsimloop_ros.dynamics.stepper import (
    NON_FINITE,
    Past,
    Placement,
    StepSettings,
    gradient,
    gradient_and_hessian,
    no_surroundings,
    past_entry,
    past_of_rest,
    place,
    remembered,
    residual,
    static_problem,
    step_problem,
)
from realsimloop_ros.dynamics.surroundings import STATIC_STEP
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.surroundings import Instant
from realsimloop_ros.reduction.model import ReducedModel


class TwinState(NamedTuple):
    """Where a rollout stands.

    past: what the next step remembers; latents: (2, r) newest first; past_tangents, with a trailing axis p, and
    latent_tangents: (2, r, p), derivatives of both along p directions; inverse: (r, r) of the last Hessian,
    m/N, from which the next step's Newton method begins, zero where there is none; frame: (g, 7) the grip
    poses, or (1, 7) the own frame of a body that nothing holds.
    """

    past: Past
    latents: Float[Array, "2 r"]
    past_tangents: Past
    latent_tangents: Float[Array, "2 r p"]
    inverse: Float[Array, "r r"]
    frame: Float[Array, "g 7"]


class Trajectory(NamedTuple):
    """latents: (w, r); tangents: (w, r, p); results: (w,) codes of dynamics.stepper; iterations and hessians:
    (w,), how many each step took; frames: (w, g, 7), as in TwinState; frame_tangents: (w, g, 7, p), zero for
    given poses.
    """

    latents: Float[Array, "w r"]
    tangents: Float[Array, "w r p"]
    results: Int[Array, " w"]
    iterations: Int[Array, " w"]
    hessians: Int[Array, " w"]
    frames: Float[Array, "w g 7"]
    frame_tangents: Float[Array, "w g 7 p"]


class InputTangents(NamedTuple):
    """Directions along what is done to a body, with a trailing axis p. grip_poses: (w, g, 7, p); instants: of w
    + 1 instants, the first at the start.
    """

    grip_poses: Float[Array, "w g 7 p"]
    instants: Instant


@eqx.filter_jit
def rest_state(
    model: ReducedModel,
    settings: StepSettings,
    material: Material,
    directions: Material,
    grip_poses: Float[Array, "g 7"],
    instant: Instant | None = None,
) -> tuple[TwinState, Int[Array, ""]]:
    """Static equilibrium at grip_poses, its derivatives along `directions` (leading axis p), and a result code.

    instant: where colliders and winches are, for a model that has them. Raises ValueError for a body that nothing
    holds, which has no such equilibrium.
    """
    if model.floating:
        raise ValueError("rest_state: nothing holds the body; begin with undeformed_state")
    material, directions, grip_poses = in_precision_of(model, (material, directions, grip_poses))
    _check_zones(model, material, directions)
    at = checked_instants(model, instant, None)
    placement = place(model, grip_poses, at, at, STATIC_STEP)
    zero = jnp.zeros(model.latent_size, model.dtype)
    solution = static_latent(model, settings, material, placement, zero)
    problem = static_problem(model, settings, placement, material)
    _, hessian = gradient_and_hessian(model, settings, problem, material, solution.latent)

    def forces(m: Material) -> Array:
        return gradient(model, settings, static_problem(model, settings, placement, m), m, solution.latent)

    def along(direction: Material) -> Array:
        return jax.jvp(forces, (material,), (direction,))[1]

    tangents = -inverse_of(hessian) @ jax.vmap(along, out_axes=1)(directions)
    # what has no equilibrium has no derivative of it: nothing that is not finite goes on from here
    tangents = jnp.where(solution.result == NON_FINITE, 0.0, tangents)
    return _resting(model, settings, placement, grip_poses, solution.latent, tangents), solution.result


@eqx.filter_jit
def undeformed_state(
    model: ReducedModel,
    settings: StepSettings,
    grip_poses: Float[Array, "g 7"],
    directions: int,
    *,
    instant: Instant | None = None,
    twist: Float[Array, 6] | None = None,
) -> TwinState:
    """The warped rest shape: a body held in shape until the rollout begins.

    grip_poses: for a body that nothing holds, the pose (1, 7) of its own frame; twist: which moves with this
    velocity, m/s, and angular velocity, rad/s, at its origin, in the world; everything else is at rest.
    """
    (grip_poses,) = in_precision_of(model, (grip_poses,))
    at = checked_instants(model, instant, None)
    placement = place(model, grip_poses, at, at, settings.time_step)
    r = model.latent_size
    latent, tangents = jnp.zeros(r, model.dtype), jnp.zeros((r, directions), model.dtype)
    state = _resting(model, settings, placement, grip_poses, latent, tangents)
    if twist is None:
        return state
    ages = settings.time_step * jnp.arange(settings.integrator.history, dtype=model.dtype)

    def points(poses: Array) -> Array:
        return past_entry(model, settings, place(model, poses, at, at, settings.time_step), latent).points[0]

    moved = jax.vmap(points)(drifting(grip_poses, jnp.asarray(twist, model.dtype), ages))
    return state._replace(past=state.past._replace(points=moved))


def with_free_start(
    model: ReducedModel,
    settings: StepSettings,
    grip_poses: Float[Array, "g 7"],
    state: TwinState,
    first: int,
    modes: int,
    instant: Instant | None = None,
) -> TwinState:
    """The state with tangents of an uncertain start in its directions first ... first + 2 modes - 1.

    The first `modes` of them displace the leading latent coordinates (m, rms), the others move them (m/s).
    instant: where colliders and winches are, for a model that has them.
    """
    at = checked_instants(model, instant, None)
    placement = place(model, jnp.asarray(grip_poses, model.dtype), at, at, settings.time_step)
    unit = jnp.eye(model.latent_size, modes, dtype=model.dtype)
    shape = _entry_tangents(model, settings, placement, state.latents[0], unit)

    def with_shape(tangents: Array, shape: Array) -> Array:
        count = len(tangents)
        lags = (-settings.time_step * jnp.arange(count, dtype=unit.dtype)).reshape(-1, *[1] * (tangents.ndim - 1))
        displaced = jnp.broadcast_to(shape, (count, *shape.shape[1:])) if count else tangents[..., :modes]
        tangents = tangents.at[..., first : first + modes].set(displaced)
        return tangents.at[..., first + modes : first + 2 * modes].set(lags * displaced)

    moved = Past(*map(with_shape, state.past_tangents, shape))
    latents = with_shape(state.latent_tangents, unit[None])
    return state._replace(past_tangents=moved, latent_tangents=latents)


def _entry_tangents(
    model: ReducedModel, settings: StepSettings, placement: Placement, latent: Array, tangents: Float[Array, "r p"]
) -> Past:
    """Derivatives of an entry of the past along p latent directions."""
    _, linear = jax.linearize(lambda z: past_entry(model, settings, placement, z), latent)
    return jax.vmap(linear, in_axes=1, out_axes=-1)(tangents)


def _resting(
    model: ReducedModel,
    settings: StepSettings,
    placement: Placement,
    frame: Array,
    latent: Array,
    tangents: Array,
) -> TwinState:
    entry = past_entry(model, settings, placement, latent)
    moved = _entry_tangents(model, settings, placement, latent, tangents)
    r = len(latent)
    return TwinState(
        past_of_rest(settings, entry),
        jnp.broadcast_to(latent, (2, r)),
        past_of_rest(settings, moved),
        jnp.broadcast_to(tangents, (2, *tangents.shape)),
        jnp.zeros((r, r), latent.dtype),
        frame,
    )


class Inputs(NamedTuple):
    """What is done to the body in one step."""

    grip_poses: Array
    before: Instant
    after: Instant


@eqx.filter_jit
def rollout(
    model: ReducedModel,
    settings: StepSettings,
    material: Material,
    directions: Material,
    state: TwinState,
    grip_poses: Float[Array, "w g 7"],
    instants: Instant | None = None,
    input_tangents: InputTangents | None = None,
) -> tuple[TwinState, Trajectory]:
    """Step through grip_poses (w, g, 7); returns the state after the last step and all steps.

    directions: Material whose fields carry a leading axis p, the directions of the sensitivities

        dz_t = -H^-1 (dr/dmaterial + dr/dpast dpast + dr/dinputs),   H the Hessian at the converged state;

    instants: where colliders and winches are, at the start and after each step (w + 1), for a model that has them;
    input_tangents: what the p directions do to the inputs, nothing unless given.

    A step that is NON_FINITE leaves the state as it was: what is not finite stays out of the steps to come.
    """
    material, directions, grip_poses = in_precision_of(model, (material, directions, grip_poses))
    _check_zones(model, material, directions)
    state = in_precision_of(model, tuple(state), TwinState)
    along_time = checked_instants(model, instants, len(grip_poses) + 1)
    count = state.latent_tangents.shape[-1]
    moving = model.floating or input_tangents is not None

    def pose_of(past: Past, inputs: Inputs, last: Array) -> Array:
        return floating_pose(model, settings, past.points, last) if model.floating else inputs.grip_poses

    def placed(poses: Array, inputs: Inputs) -> Placement:
        return place(model, poses, inputs.before, inputs.after, settings.time_step)

    def one(state: TwinState, step: tuple[Inputs, Inputs | None]) -> tuple[TwinState, tuple]:
        inputs, input_tangent = step
        poses = pose_of(state.past, inputs, state.frame)
        placement = placed(poses, inputs)
        problem = step_problem(model, settings, placement, state.past, material)
        solution = minimise(model, settings, problem, material, better_start(state.latents), state.inverse)
        latent, inverse = solution.latent, solution.inverse
        tangents, pose_tangents = state.latent_tangents[0], jnp.zeros((*poses.shape, count), poses.dtype)
        if count:
            _, hessian = gradient_and_hessian(model, settings, problem, material, latent)
            inverse = inverse_of(hessian)
            if moving:
                right, pose_tangents, direct = of_moving(state, inputs, input_tangent, latent)
            else:
                right = of_placed(state, placement, latent)
            tangents = -inverse @ right
        entry_tangents = _entry_tangents(model, settings, placement, latent, tangents)
        if count and moving:
            entry_tangents = jax.tree.map(jnp.add, entry_tangents, direct)
        following = TwinState(
            remembered(state.past, past_entry(model, settings, placement, latent)),
            jnp.stack([latent, state.latents[0]]),
            remembered(state.past_tangents, entry_tangents),
            jnp.stack([tangents, state.latent_tangents[0]]),
            inverse,
            poses,
        )
        finite = solution.result != NON_FINITE
        following = jax.tree.map(lambda new, old: jnp.where(finite, new, old), following, state)
        reached = following.latents[0], following.latent_tangents[0]
        counts = solution.result, solution.iterations, solution.hessians
        return following, (*reached, *counts, following.frame, pose_tangents)

    def of_placed(state: TwinState, placement: Placement, latent: Array) -> Array:
        """dr along the directions where poses and surroundings do not move: their maps are not differentiated."""

        def of(past: Past, m: Material) -> Array:
            return residual(model, settings, placement, past, m, latent)

        def along(direction: Material, past_tangent: Past) -> Array:
            return jax.jvp(of, (state.past, material), (past_tangent, direction))[1]

        return jax.vmap(along, in_axes=(0, -1), out_axes=1)(directions, state.past_tangents)

    def of_moving(
        state: TwinState, inputs: Inputs, input_tangent: Inputs | None, latent: Array
    ) -> tuple[Array, Array, Past]:
        """dr, the change of the poses, and that of what is remembered at a given latent state."""

        def of(past: Past, m: Material, inputs: Inputs) -> tuple[Array, Array, Past]:
            poses = pose_of(past, inputs, state.frame)
            placement = placed(poses, inputs)
            left = residual(model, settings, placement, past, m, latent)
            return left, poses, past_entry(model, settings, placement, latent)

        if input_tangent is None:
            input_tangent = jax.tree.map(lambda leaf: jnp.zeros((*leaf.shape, count), leaf.dtype), inputs)

        def along(direction: Material, past_tangent: Past, tangent: Inputs) -> tuple[Array, Array, Past]:
            return jax.jvp(of, (state.past, material, inputs), (past_tangent, direction, tangent))[1]

        return jax.vmap(along, in_axes=(0, -1, -1), out_axes=-1)(directions, state.past_tangents, input_tangent)

    steps = per_step(grip_poses, along_time)
    tangent_steps = None
    if input_tangents is not None:
        tangent_steps = per_step(*in_precision_of(model, tuple(input_tangents)))
    state, out = jax.lax.scan(one, state, (steps, tangent_steps))
    return state, Trajectory(*out)


def _check_zones(model: ReducedModel, material: Material, directions: Material) -> None:
    zones = model.points.volumes.shape[1]
    for name, value, along in zip(Material._fields, material, directions, strict=True):
        if value.shape != (zones,):
            raise ValueError(f"material.{name}: shape {value.shape}, expected ({zones},), one value per zone")
        if along.ndim != 2 or along.shape[1] != zones:
            raise ValueError(f"directions.{name}: shape {along.shape}, expected (p, {zones})")


def per_step(grip_poses: Float[Array, "w g 7"], instants: Instant) -> Inputs:
    """The inputs of each step (leading axis w) from poses and w + 1 instants."""
    before = jax.tree.map(lambda leaf: leaf[:-1], instants)
    after = jax.tree.map(lambda leaf: leaf[1:], instants)
    return Inputs(grip_poses, before, after)


def checked_instants(model: ReducedModel, instants: Instant | None, count: int | None) -> Instant:
    """The instants a model asks for. Raises ValueError where they are missing or not as many as they should be."""
    if model.surroundings is None:
        return no_surroundings(model.dtype, count)
    if instants is None:
        raise ValueError("instants: none given, but the model has contact or cables; say where they are")
    if count is not None and any(len(leaf) != count for leaf in instants):
        found = [len(leaf) for leaf in instants]
        raise ValueError(f"instants: {found}, expected {count} of each: one at the start and one after each step")
    return in_precision_of(model, tuple(instants), Instant)


def in_precision_of(model: ReducedModel, values: tuple, kind: type | None = None):  # type: ignore[no-untyped-def]
    """Arrays in the precision of a model."""
    cast = jax.tree.map(lambda value: jnp.asarray(value, model.dtype), values)
    return cast if kind is None else kind(*cast)


def no_directions(zones: int) -> Material:
    """Zero sensitivity directions, for a plain rollout."""
    return Material(*(jnp.zeros((0, zones)) for _ in Material._fields))


def without_tangents(state: TwinState) -> TwinState:
    """The same state carrying no sensitivities."""
    return state._replace(
        past_tangents=jax.tree.map(lambda tangents: tangents[..., :0], state.past_tangents),
        latent_tangents=state.latent_tangents[..., :0],
    )


def moved_by(state: TwinState, change: Float[Array, " p"]) -> TwinState:
    """The state to first order after the material moved by `change` along its p directions."""
    change = change.astype(state.latents.dtype)
    return state._replace(
        past=jax.tree.map(lambda value, tangents: value + tangents @ change, state.past, state.past_tangents),
        latents=state.latents + state.latent_tangents @ change,
    )
