"""The minimum of a step's potential.

Newton's method is followed with an old Hessian for as long as that contracts (a chord costs a gradient, a tenth
of a Hessian), and with a new one and a backtracking line search where it does not. Nothing raises inside jit: a
step returns a result code.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from realsimloop_ros.dynamics.stepper import (
    CONVERGED,
    MAX_ITERATIONS,
    NON_FINITE,
    STALLED,
    Placement,
    StepProblem,
    StepSettings,
    energies,
    gradient,
    gradient_and_hessian,
    static_problem,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import ReducedModel

# a chord that leaves more than this share of the way to go is not worth its gradient: from there, some ten
# chords cost as much as a Hessian and do as much
_CONTRACTION = 0.35


class StepSolution(NamedTuple):
    """latent: (r,); result code; iterations: of either kind; hessians: how many were computed; inverse: (r, r) of
    the last one, m/N."""

    latent: Float[Array, " r"]
    result: Int[Array, ""]
    iterations: Int[Array, ""]
    hessians: Int[Array, ""]
    inverse: Float[Array, "r r"]


def inverse_of(hessian: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Its inverse where it is positive definite, else that with the magnitudes of its eigenvalues, clamped."""
    factor = jax.lax.linalg.cholesky(hessian, symmetrize_input=False)

    def direct() -> Array:
        eye = jnp.eye(len(hessian), dtype=hessian.dtype)
        half = jax.lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)
        return half.T @ half

    def clamped() -> Array:
        safe = jnp.where(jnp.isfinite(hessian), hessian, 0.0)
        values, vectors = jnp.linalg.eigh(safe)
        magnitudes = jnp.abs(values)
        tiny = jnp.finfo(hessian.dtype).tiny
        values = jnp.maximum(magnitudes, 1e-8 * jnp.max(magnitudes) + tiny)
        return (vectors / values[None]) @ vectors.T

    return jax.lax.cond(jnp.all(jnp.isfinite(factor)), direct, clamped)


class _Search(NamedTuple):
    """Where the minimisation stands. slope: the gradient at `latent`; inverse: (r, r); fresh: whether a new
    Hessian is asked for.
    """

    latent: Array
    slope: Array
    inverse: Array
    fresh: Array
    iterations: Array
    hessians: Array
    result: Array


def minimise(
    model: ReducedModel,
    settings: StepSettings,
    problem: StepProblem,
    material: Material,
    start: Float[Array, " r"],
    inverse: Float[Array, "r r"] | None = None,
) -> StepSolution:
    """The latent state (r,) that minimises Phi, from `start`: the lowest finite one found, whatever the result.

    inverse: of a Hessian of a step before, where there is one that is not zero.
    """
    dtype = start.dtype
    tolerance = settings.tolerance(dtype)
    terms = partial(energies, model, settings, problem, material)

    def slope_at(latent: Array) -> Array:
        return gradient(model, settings, problem, material, latent)

    def chord(search: _Search) -> _Search:
        """One gradient at the end of the old Hessian's direction tells whether that leads on."""
        direction = -search.inverse @ search.slope
        move = jnp.linalg.norm(direction)
        trial = search.latent + direction
        slope = slope_at(trial)
        last = -search.inverse @ slope
        left = jnp.linalg.norm(last)
        done = left <= tolerance
        leads = done | (left <= _CONTRACTION * move)
        return _Search(
            # the next direction is known already: where it is the last, it is taken
            jnp.where(done, trial + last, jnp.where(leads, trial, search.latent)),
            jnp.where(leads, slope, search.slope),
            search.inverse,
            ~leads,
            search.iterations + 1,
            search.hessians,
            jnp.where(done, CONVERGED, MAX_ITERATIONS),
        )

    def newton(search: _Search) -> _Search:
        latent = search.latent
        slope_vector, hessian = gradient_and_hessian(model, settings, problem, material, latent)
        inverse = inverse_of(hessian)
        direction = -inverse @ slope_vector
        slope = jnp.dot(slope_vector, direction)
        stored, half, work = terms(latent)
        value = stored + half - work
        # near the minimum a decrease drowns in the rounding of the terms that make up the energy; allow that much
        slack = 1e3 * jnp.finfo(dtype).eps * (jnp.abs(stored) + half + jnp.abs(work))

        def value_of(step: Array) -> Array:
            stored, half, work = terms(latent + step * direction)
            return stored + half - work

        def lower(step: Array, trial: Array) -> Array:
            return trial <= value + 1e-4 * step * slope + slack

        def too_long(line: tuple) -> Array:
            return ~lower(*line) & (line[0] > 1e-6)

        def halve(line: tuple) -> tuple:
            return 0.5 * line[0], value_of(0.5 * line[0])

        one = jnp.ones((), dtype)
        step, trial = jax.lax.while_loop(too_long, halve, (one, value_of(one)))
        found = lower(step, trial)
        # what is left to go, not what the line search allows: a short step is no sign of a minimum
        move = jnp.linalg.norm(direction)
        failed = jnp.where(jnp.isfinite(move), STALLED, NON_FINITE)
        going_on = jnp.where(found, MAX_ITERATIONS, failed)
        following = jnp.where(found, latent + step * direction, latent)
        return _Search(
            following,
            slope_at(following),
            inverse,
            jnp.asarray(False),
            search.iterations + 1,
            search.hessians + 1,
            jnp.where(move <= tolerance, CONVERGED, going_on),
        )

    def unfinished(search: _Search) -> Array:
        return (search.result == MAX_ITERATIONS) & (search.iterations < settings.max_iterations)

    def chords(search: _Search) -> _Search:
        return jax.lax.while_loop(lambda s: unfinished(s) & ~s.fresh, chord, search)

    if inverse is None:
        inverse = jnp.zeros((len(start), len(start)), dtype)
    slope = slope_at(start)
    zero = jnp.zeros((), jnp.int32)
    # from where the forces are not finite there is nothing to descend
    begin = jnp.where(jnp.isfinite(slope).all(), MAX_ITERATIONS, NON_FINITE)
    known = jnp.trace(inverse) > 0.0
    first = _Search(start, slope, inverse, ~known, zero, zero, begin)
    # two loops rather than a branch in one: a branch would copy all that it looks at
    end = jax.lax.while_loop(unfinished, lambda search: chords(newton(search)), chords(first))
    return StepSolution(end.latent, end.result, end.iterations, end.hessians, end.inverse)


def better_start(latents: Float[Array, "2 r"]) -> Float[Array, " r"]:
    """Where the last two latent states, newest first, lead."""
    return 2.0 * latents[0] - latents[1]


def static_latent(
    model: ReducedModel, settings: StepSettings, material: Material, placement: Placement, start: Array
) -> StepSolution:
    """Latent state of static equilibrium at a placement."""
    return minimise(model, settings, static_problem(model, settings, placement, material), material, start)
