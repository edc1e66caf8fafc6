"""Rollouts of the reduced model over a window of steps, with forward sensitivities to the material."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from realsimloop_ros.dynamics.stepper import (
    NON_FINITE,
    Past,
    StepProblem,
    StepSettings,
    better_start,
    gradient,
    gradient_and_hessian,
    inverse_of,
    minimise,
    past_entry,
    past_of_rest,
    remembered,
    residual,
    static_latent,
    static_problem,
    step_problem,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import Kinematics, ReducedModel, StrainMap, strain_map, support_kinematics


class TwinState(NamedTuple):
    """Where a rollout stands.

    past: what the next step remembers; latents: (2, r) newest first; past_tangents, with a trailing axis p, and
    latent_tangents: (2, r, p), derivatives of both along p material directions; inverse: (r, r) of the last Hessian,
    m/N, from which the next step's Newton method begins, zero where there is none.
    """

    past: Past
    latents: Float[Array, "2 r"]
    past_tangents: Past
    latent_tangents: Float[Array, "2 r p"]
    inverse: Float[Array, "r r"]


class Trajectory(NamedTuple):
    """latents: (w, r); tangents: (w, r, p); results: (w,) codes of dynamics.stepper; iterations and hessians: (w,),
    how many each step took."""

    latents: Float[Array, "w r"]
    tangents: Float[Array, "w r p"]
    results: Int[Array, " w"]
    iterations: Int[Array, " w"]
    hessians: Int[Array, " w"]


@eqx.filter_jit
def rest_state(
    model: ReducedModel,
    settings: StepSettings,
    material: Material,
    directions: Material,
    grip_poses: Float[Array, "g 7"],
) -> tuple[TwinState, Int[Array, ""]]:
    """Static equilibrium at grip_poses, its derivatives along `directions` (leading axis p), and a result code."""
    material, directions, grip_poses = _in_precision_of(model, (material, directions, grip_poses))
    frame = support_kinematics(model, grip_poses)
    solution = static_latent(model, settings, material, frame, jnp.zeros(model.latent_size, model.dtype))
    problem = static_problem(model, settings, frame, material)
    _, hessian = gradient_and_hessian(model, settings, problem, material, solution.latent)

    def forces(m: Material) -> Array:
        moved = static_problem(model, settings, frame, m)
        return gradient(model, settings, problem._replace(linear=moved.linear), m, solution.latent)

    def along(direction: Material) -> Array:
        return jax.jvp(forces, (material,), (direction,))[1]

    tangents = -inverse_of(hessian) @ jax.vmap(along, out_axes=1)(directions)
    return _resting(model, settings, frame, problem.strains, solution.latent, tangents), solution.result


@eqx.filter_jit
def undeformed_state(
    model: ReducedModel, settings: StepSettings, grip_poses: Float[Array, "g 7"], directions: int
) -> TwinState:
    """The warped rest shape without velocity: a body held in shape until the rollout begins."""
    (grip_poses,) = _in_precision_of(model, (grip_poses,))
    frame = support_kinematics(model, grip_poses)
    r = model.latent_size
    latent, tangents = jnp.zeros(r, model.dtype), jnp.zeros((r, directions), model.dtype)
    return _resting(model, settings, frame, strain_map(model, frame), latent, tangents)


def with_free_start(
    model: ReducedModel,
    settings: StepSettings,
    grip_poses: Float[Array, "g 7"],
    state: TwinState,
    first: int,
    modes: int,
) -> TwinState:
    """The state with tangents of an uncertain start in its directions first ... first + 2 modes - 1.

    The first `modes` of them displace the leading latent coordinates (m, rms), the others move them (m/s).
    """
    frame = support_kinematics(model, jnp.asarray(grip_poses, model.dtype))
    unit = jnp.eye(model.latent_size, modes, dtype=model.dtype)
    shape = _entry_tangents(model, settings, frame, strain_map(model, frame), state.latents[0], unit)

    def lags(count: int) -> Array:
        return -settings.time_step * jnp.arange(count, dtype=unit.dtype)

    def with_shape(tangents: Array, shape: Array) -> Array:
        count = len(tangents)
        later = lags(count).reshape(-1, *[1] * (tangents.ndim - 1))
        displaced = jnp.broadcast_to(shape, (count, *shape.shape[1:])) if count else tangents[..., :modes]
        tangents = tangents.at[..., first : first + modes].set(displaced)
        return tangents.at[..., first + modes : first + 2 * modes].set(later * displaced)

    past = Past(*map(with_shape, state.past_tangents, shape))
    latents = with_shape(state.latent_tangents, unit[None])
    return state._replace(past_tangents=past, latent_tangents=latents)


def _entry_tangents(
    model: ReducedModel,
    settings: StepSettings,
    frame: Kinematics,
    strains: StrainMap,
    latent: Array,
    tangents: Float[Array, "r p"],
) -> Past:
    """Derivatives of an entry of the past along p latent directions."""
    _, linear = jax.linearize(lambda z: past_entry(model, settings, frame, strains, z), latent)
    return jax.vmap(linear, in_axes=1, out_axes=-1)(tangents)


def _resting(
    model: ReducedModel,
    settings: StepSettings,
    frame: Kinematics,
    strains: StrainMap,
    latent: Array,
    tangents: Array,
) -> TwinState:
    entry = past_entry(model, settings, frame, strains, latent)
    moved = _entry_tangents(model, settings, frame, strains, latent, tangents)
    r = len(latent)
    return TwinState(
        past_of_rest(settings, entry),
        jnp.broadcast_to(latent, (2, r)),
        past_of_rest(settings, moved),
        jnp.broadcast_to(tangents, (2, *tangents.shape)),
        jnp.zeros((r, r), latent.dtype),
    )


@eqx.filter_jit
def rollout(
    model: ReducedModel,
    settings: StepSettings,
    material: Material,
    directions: Material,
    state: TwinState,
    grip_poses: Float[Array, "w g 7"],
) -> tuple[TwinState, Trajectory]:
    """Step through grip_poses (w, g, 7); returns the state after the last step and all steps.

    directions: Material whose fields carry a leading axis p, the directions of the sensitivities
    dz_t = -H^-1 (dr/dmaterial + dr/dpast dpast), H the Hessian at the converged state.

    A step that is NON_FINITE leaves the state as it was: what is not finite stays out of the steps to come.
    """
    material, directions, grip_poses = _in_precision_of(model, (material, directions, grip_poses))
    count = state.latent_tangents.shape[-1]

    def sensitivities(
        frame: Kinematics, strains: StrainMap, problem: StepProblem, state: TwinState, latent: Array
    ) -> tuple[Array, Array]:
        _, hessian = gradient_and_hessian(model, settings, problem, material, latent)
        inverse = inverse_of(hessian)

        def of(past: Past, m: Material) -> Array:
            return residual(model, settings, frame, strains, past, m, latent)

        def along(direction: Material, past_tangent: Past) -> Array:
            return jax.jvp(of, (state.past, material), (past_tangent, direction))[1]

        right = jax.vmap(along, in_axes=(0, -1), out_axes=1)(directions, state.past_tangents)
        return -inverse @ right, inverse

    def one(state: TwinState, poses: Array) -> tuple[TwinState, tuple]:
        frame = support_kinematics(model, poses)
        problem = step_problem(model, settings, frame, state.past, material)
        start = better_start(state.latents)
        solution = minimise(model, settings, problem, material, start, state.inverse)
        latent, strains = solution.latent, problem.strains
        tangents, inverse = state.latent_tangents[0], solution.inverse
        if count:
            tangents, inverse = sensitivities(frame, strains, problem, state, latent)
        following = TwinState(
            remembered(state.past, past_entry(model, settings, frame, strains, latent)),
            jnp.stack([latent, state.latents[0]]),
            remembered(state.past_tangents, _entry_tangents(model, settings, frame, strains, latent, tangents)),
            jnp.stack([tangents, state.latent_tangents[0]]),
            inverse,
        )
        finite = solution.result != NON_FINITE
        following = jax.tree.map(lambda new, old: jnp.where(finite, new, old), following, state)
        reached = following.latents[0], following.latent_tangents[0]
        return following, (*reached, solution.result, solution.iterations, solution.hessians)

    state, steps = jax.lax.scan(one, state, grip_poses)
    return state, Trajectory(*steps)


def _in_precision_of(model: ReducedModel, values: tuple) -> tuple:
    return jax.tree.map(lambda value: jnp.asarray(value, model.dtype), values)


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
    return state._replace(
        past=jax.tree.map(lambda value, tangents: value + tangents @ change, state.past, state.past_tangents),
        latents=state.latents + state.latent_tangents @ change,
    )
