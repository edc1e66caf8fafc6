"""Rollouts of the reduced model over a window of steps, with forward sensitivities to the material."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from realsimloop_ros.dynamics.stepper import (
    NON_FINITE,
    StepProblem,
    StepSettings,
    better_start,
    gradient,
    gradient_and_hessian,
    minimise,
    residual,
    solve_positive,
    static_latent,
    static_problem,
    step_problem,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import (
    Kinematics,
    ReducedModel,
    kinematics,
    position_tangents,
    positions,
)


class TwinState(NamedTuple):
    """Where a rollout stands.

    past: (k, n, 3) positions, newest first, m; latents: (2, r) newest first; past_tangents: (k, n, 3, p) and
    latent_tangents: (2, r, p), derivatives of both along p material directions.
    """

    past: Float[Array, "k n 3"]
    latents: Float[Array, "2 r"]
    past_tangents: Float[Array, "k n 3 p"]
    latent_tangents: Float[Array, "2 r p"]


class Trajectory(NamedTuple):
    """latents: (w, r); tangents: (w, r, p); results: (w,) codes of dynamics.stepper; iterations: (w,)."""

    latents: Float[Array, "w r"]
    tangents: Float[Array, "w r p"]
    results: Int[Array, " w"]
    iterations: Int[Array, " w"]


@eqx.filter_jit
def rest_state(
    model: ReducedModel,
    settings: StepSettings,
    material: Material,
    directions: Material,
    grip_poses: Float[Array, "g 7"],
) -> tuple[TwinState, Int[Array, ""]]:
    """Static equilibrium at grip_poses, its derivatives along `directions` (leading axis p), and a result code."""
    frame = kinematics(model, grip_poses)
    start = jnp.zeros(model.latent_size)
    solution = static_latent(model, settings, material, frame, start)
    problem = static_problem(model, settings, frame)
    _, hessian = gradient_and_hessian(model, settings, problem, material, solution.latent)

    def along(direction: Material) -> Array:
        return jax.jvp(
            lambda m: gradient(model, settings, problem, m, solution.latent), (material,), (direction,)
        )[1]

    tangents = -solve_positive(hessian, jax.vmap(along, out_axes=1)(directions))
    return _resting(model, settings, frame, solution.latent, tangents), solution.result


@eqx.filter_jit
def undeformed_state(
    model: ReducedModel, settings: StepSettings, grip_poses: Float[Array, "g 7"], directions: int
) -> TwinState:
    """The warped rest shape without velocity: a body held in shape until the rollout begins."""
    frame = kinematics(model, grip_poses)
    r = model.latent_size
    return _resting(model, settings, frame, jnp.zeros(r), jnp.zeros((r, directions)))


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
    frame = kinematics(model, grip_poses)
    k, r = settings.integrator.history, model.latent_size
    unit = jnp.eye(r, modes)
    lags = -settings.time_step * jnp.arange(k, dtype=unit.dtype)
    shapes = position_tangents(model, frame, unit)
    past, latents = state.past_tangents, state.latent_tangents
    middle, last = first + modes, first + 2 * modes
    past = past.at[..., first:middle].set(jnp.broadcast_to(shapes, (k, *shapes.shape)))
    past = past.at[..., middle:last].set(lags[:, None, None, None] * shapes[None])
    latents = latents.at[..., first:middle].set(jnp.broadcast_to(unit, (2, r, modes)))
    latents = latents.at[..., middle:last].set(lags[:2, None, None] * unit[None])
    return state._replace(past_tangents=past, latent_tangents=latents)


def _resting(
    model: ReducedModel, settings: StepSettings, frame: Kinematics, latent: Array, tangents: Array
) -> TwinState:
    x, dx = positions(model, frame, latent), position_tangents(model, frame, tangents)
    k = settings.integrator.history
    return TwinState(
        jnp.broadcast_to(x, (k, *x.shape)),
        jnp.broadcast_to(latent, (2, *latent.shape)),
        jnp.broadcast_to(dx, (k, *dx.shape)),
        jnp.broadcast_to(tangents, (2, *tangents.shape)),
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

    count = state.latent_tangents.shape[-1]

    def sensitivities(frame: Kinematics, problem: StepProblem, state: TwinState, latent: Array) -> Array:
        _, hessian = gradient_and_hessian(model, settings, problem, material, latent)

        def along(direction: Material, past_tangent: Array) -> Array:
            def of(past: Array, m: Material) -> Array:
                return residual(model, settings, frame, problem, past, m, latent)

            return jax.jvp(of, (state.past, material), (past_tangent, direction))[1]

        right = jax.vmap(along, in_axes=(0, 3), out_axes=1)(directions, state.past_tangents)
        return -solve_positive(hessian, right)

    def one(state: TwinState, poses: Array) -> tuple[TwinState, tuple]:
        frame = kinematics(model, poses)
        problem = step_problem(model, settings, frame, state.past)
        start = better_start(model, settings, problem, material, state.latents)
        solution = minimise(model, settings, problem, material, start)
        latent = solution.latent
        tangents = sensitivities(frame, problem, state, latent) if count else state.latent_tangents[0]
        following = TwinState(
            jnp.concatenate([positions(model, frame, latent)[None], state.past[:-1]]),
            jnp.stack([latent, state.latents[0]]),
            jnp.concatenate([position_tangents(model, frame, tangents)[None], state.past_tangents[:-1]]),
            jnp.stack([tangents, state.latent_tangents[0]]),
        )
        finite = solution.result != NON_FINITE
        following = jax.tree.map(lambda new, old: jnp.where(finite, new, old), following, state)
        reached = following.latents[0], following.latent_tangents[0]
        return following, (*reached, solution.result, solution.iterations)

    state, steps = jax.lax.scan(one, state, grip_poses)
    return state, Trajectory(*steps)


def no_directions(zones: int) -> Material:
    """Zero sensitivity directions, for a plain rollout."""
    empty = jnp.zeros((0, zones))
    return Material(empty, empty, empty, empty)


def without_tangents(state: TwinState) -> TwinState:
    """The same state carrying no sensitivities."""
    return state._replace(
        past_tangents=state.past_tangents[..., :0], latent_tangents=state.latent_tangents[..., :0]
    )


def moved_by(state: TwinState, change: Float[Array, " p"]) -> TwinState:
    """The state to first order after the material moved by `change` along its p directions."""
    return state._replace(
        past=state.past + state.past_tangents @ change, latents=state.latents + state.latent_tangents @ change
    )
