"""One implicit step of a reduced model: the minimum of the incremental potential over the latent state.

    Phi(z) = kappa M/2 |z|^2 - b^T z + sum_c volume_c (Psi(F_c) + viscous potential),   F_c = F0_c + B_c z

with kappa = inertia/h^2 + damping rate_0/h, M the total mass and b all that the step knows beforehand: prediction,
gravity and damping. Newton's method with the exact Hessian, a Cholesky factor, eigenvalues clamped where it is not
positive definite, and a backtracking line search. Nothing raises inside jit: a step returns a result code.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from realsimloop_ros.mechanics.full_order import STANDARD_GRAVITY
from realsimloop_ros.mechanics.integrators import Integrator
from realsimloop_ros.mechanics.laws import (
    Elasticity,
    energy,
    green_strain,
    stress,
    stress_and_tangent,
    viscous_energy,
    viscous_stress_and_tangent,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import (
    Kinematics,
    ReducedModel,
    positions,
    project_forces,
    strain_map,
)

# how a step ended; STALLED: no step along Newton's direction lowers the potential
CONVERGED, MAX_ITERATIONS, NON_FINITE, STALLED = 0, 1, 2, 3


class StepSettings(eqx.Module):
    """How time is stepped.

    time_step: s; gravity: (3,) m/s^2; mass_damping: 1/s; viscous: whether viscosity is computed at all;
    move_tolerance: Newton stops when the rms vertex move of its direction is below it, m.
    """

    integrator: Integrator = eqx.field(static=True)
    time_step: float = eqx.field(static=True)
    gravity: Float[Array, 3] = eqx.field(converter=jnp.asarray, default=STANDARD_GRAVITY)
    mass_damping: float = eqx.field(static=True, default=0.0)
    viscous: bool = eqx.field(static=True, default=False)
    move_tolerance: float = eqx.field(static=True, default=1e-10)
    max_iterations: int = eqx.field(static=True, default=30)

    @property
    def stiffness(self) -> float:
        """kappa, 1/s^2."""
        scheme = self.integrator
        return scheme.inertia / self.time_step**2 + self.mass_damping * self.rate

    @property
    def rate(self) -> float:
        """Factor of the present value in a rate of change, 1/s."""
        return self.integrator.rate[0] / self.time_step


class StepProblem(NamedTuple):
    """Phi of one step. base: (c, 3, 3) F at z = 0; lift: (c, 9, r) dF/dz; rows: (r, 9 c), lift as the Hessian's
    product reads it; linear: (r,) b, N; strain_offset: (c, 3, 3) 1/s or None; stiffness: kappa M, N/m."""

    base: Float[Array, "c 3 3"]
    lift: Float[Array, "c 9 r"]
    rows: Float[Array, "r s"]
    linear: Float[Array, " r"]
    strain_offset: Float[Array, "c 3 3"] | None
    stiffness: Float[Array, ""]


class StepSolution(NamedTuple):
    """latent: (r,); result code; Newton iterations."""

    latent: Float[Array, " r"]
    result: Int[Array, ""]
    iterations: Int[Array, ""]


def step_problem(
    model: ReducedModel, settings: StepSettings, frame: Kinematics, past: Float[Array, "k n 3"]
) -> StepProblem:
    """Phi of the step that ends at `frame`, after past positions (k, n, 3), newest first, m."""
    stiffness = jnp.asarray(settings.stiffness * model.total_mass)
    base, lift = strain_map(model, frame)
    return StepProblem(base, lift, _rows(lift), *_of_the_past(model, settings, frame, past), stiffness)


def _rows(lift: Float[Array, "c 9 r"]) -> Float[Array, "r s"]:
    return lift.reshape(-1, lift.shape[2]).T


def _of_the_past(
    model: ReducedModel, settings: StepSettings, frame: Kinematics, past: Float[Array, "k n 3"]
) -> tuple[Float[Array, " r"], Float[Array, "c 3 3"] | None]:
    """What past positions decide of a step: b, N, and the strain offset, 1/s."""
    scheme, h = settings.integrator, settings.time_step
    prediction = jnp.tensordot(jnp.asarray(scheme.predictor, past.dtype), past, axes=1)
    acceleration = scheme.inertia / h**2 * (prediction - frame.base) + settings.gravity[None]
    if settings.mass_damping:
        weights = jnp.asarray(scheme.rate[1:], past.dtype) / h
        velocity = settings.rate * frame.base + jnp.tensordot(weights, past[: len(weights)], axes=1)
        acceleration = acceleration - settings.mass_damping * velocity
    linear = project_forces(model, frame, model.masses[:, None] * acceleration)
    return linear, strain_offset(model, settings, past) if settings.viscous else None


def static_problem(model: ReducedModel, settings: StepSettings, frame: Kinematics) -> StepProblem:
    """The potential whose minimum is the static equilibrium at `frame`."""
    gravity = jnp.broadcast_to(settings.gravity, frame.base.shape)
    linear = project_forces(model, frame, model.masses[:, None] * gravity)
    base, lift = strain_map(model, frame)
    return StepProblem(base, lift, _rows(lift), linear, None, jnp.asarray(0.0))


def strain_offset(model: ReducedModel, settings: StepSettings, past: Float[Array, "k n 3"]) -> Array:
    """What past strains contribute to the strain rate, (c, 3, 3), 1/s."""
    weights = jnp.asarray(settings.integrator.rate[1:], past.dtype) / settings.time_step
    samples = model.samples
    F = jnp.einsum("kcai,caj->kcij", past[: len(weights)][:, samples.nodes], samples.gradients)
    return jnp.tensordot(weights, jax.vmap(jax.vmap(green_strain))(F), axes=1)


def _sampled(model: ReducedModel, material: Material) -> tuple[Elasticity, Array]:
    zone = model.samples.zone
    return Elasticity(material.youngs_modulus[zone], material.poisson_ratio[zone]), material.viscosity[zone]


def _strain(problem: StepProblem, latent: Array) -> Array:
    return problem.base + (problem.lift @ latent).reshape(-1, 3, 3)


def potential(
    model: ReducedModel, settings: StepSettings, problem: StepProblem, material: Material, latent: Array
) -> Float[Array, ""]:
    """Phi, J, up to a constant."""
    F = _strain(problem, latent)
    elasticity, viscosity = _sampled(model, material)
    density = jax.vmap(partial(energy, model.law))(F, elasticity)
    if problem.strain_offset is not None:
        rate = jnp.asarray(settings.rate)
        density += jax.vmap(viscous_energy, (0, 0, None, 0))(F, problem.strain_offset, rate, viscosity)
    quadratic = 0.5 * problem.stiffness * jnp.dot(latent, latent) - jnp.dot(problem.linear, latent)
    return quadratic + jnp.dot(model.samples.volume, density)


def gradient(
    model: ReducedModel, settings: StepSettings, problem: StepProblem, material: Material, latent: Array
) -> Float[Array, " r"]:
    """dPhi/dz, N: the residual of the step."""
    F = _strain(problem, latent)
    elasticity, viscosity = _sampled(model, material)
    piola = jax.vmap(partial(stress, model.law))(F, elasticity)
    if problem.strain_offset is not None:
        second = viscosity[:, None, None] * (settings.rate * jax.vmap(green_strain)(F) + problem.strain_offset)
        piola += F @ second
    weighted = (model.samples.volume[:, None, None] * piola).reshape(-1)
    return problem.stiffness * latent - problem.linear + weighted @ problem.lift.reshape(len(weighted), -1)


def gradient_and_hessian(
    model: ReducedModel, settings: StepSettings, problem: StepProblem, material: Material, latent: Array
) -> tuple[Float[Array, " r"], Float[Array, "r r"]]:
    """dPhi/dz and its exact derivative."""
    F = _strain(problem, latent)
    elasticity, viscosity = _sampled(model, material)
    piola, tangent = jax.vmap(partial(stress_and_tangent, model.law))(F, elasticity)
    if problem.strain_offset is not None:
        rate = jnp.asarray(settings.rate)
        more = jax.vmap(viscous_stress_and_tangent, (0, 0, None, 0))(F, problem.strain_offset, rate, viscosity)
        piola, tangent = piola + more[0], tangent + more[1]
    volume, lift = model.samples.volume, problem.lift
    r = latent.shape[0]
    weighted = (volume[:, None, None] * piola).reshape(-1)
    stiff = ((volume[:, None, None] * tangent) @ lift).reshape(-1, r)
    hessian = problem.rows @ stiff + problem.stiffness * jnp.eye(r, dtype=latent.dtype)
    return problem.stiffness * latent - problem.linear + problem.rows @ weighted, hessian


def solve_positive(hessian: Float[Array, "r r"], right: Array) -> Array:
    """hessian^-1 right, right (r,) or (r, p), by Cholesky; else with clamped magnitudes of the eigenvalues."""
    factor = jnp.linalg.cholesky(hessian)

    def direct() -> Array:
        return jax.scipy.linalg.cho_solve((factor, True), right)

    def clamped() -> Array:
        safe = jnp.where(jnp.isfinite(hessian), hessian, 0.0)
        values, vectors = jnp.linalg.eigh(safe)
        values = jnp.maximum(jnp.abs(values), 1e-8 * jnp.max(jnp.abs(values)) + 1e-300)
        scaled = jnp.swapaxes(vectors, 0, 1) @ right
        return vectors @ (scaled / (values if right.ndim == 1 else values[:, None]))

    return jax.lax.cond(jnp.all(jnp.isfinite(factor)), direct, clamped)


def minimise(
    model: ReducedModel,
    settings: StepSettings,
    problem: StepProblem,
    material: Material,
    start: Float[Array, " r"],
) -> StepSolution:
    """The latent state (r,) that minimises Phi, from `start`: the lowest finite one found, whatever the result."""

    def value_of(latent: Array) -> Array:
        return potential(model, settings, problem, material, latent)

    def iteration(carry: tuple) -> tuple:
        latent, value, count, _, previous = carry
        slope_vector, hessian = gradient_and_hessian(model, settings, problem, material, latent)
        direction = -solve_positive(hessian, slope_vector)
        slope = jnp.dot(slope_vector, direction)
        # near the minimum a decrease drowns in the rounding of the terms that make up the energy; allow that much
        inertia, work = 0.5 * problem.stiffness * jnp.dot(latent, latent), jnp.dot(problem.linear, latent)
        terms = jnp.abs(value - inertia + work) + inertia + jnp.abs(work)
        slack = 1e3 * jnp.finfo(latent.dtype).eps * terms

        def lower(step: Array, trial: Array) -> Array:
            return trial <= value + 1e-4 * step * slope + slack

        def too_long(search: tuple) -> Array:
            step, trial = search
            return ~lower(step, trial) & (step > 1e-6)

        def halve(search: tuple) -> tuple:
            step = 0.5 * search[0]
            return step, value_of(latent + step * direction)

        one = jnp.ones((), latent.dtype)
        step, trial = jax.lax.while_loop(too_long, halve, (one, value_of(latent + direction)))
        found = lower(step, trial)
        # what is left to go, not what the line search allows: a short step is no sign of a minimum
        move = jnp.linalg.norm(direction)
        failed = jnp.where(jnp.isfinite(move), STALLED, NON_FINITE)
        following = jnp.where(found, latent + step * direction, latent)

        def with_the_same_hessian() -> tuple[Array, Array]:
            """One more step at the price of a gradient; kept where it shows that the end is reached."""
            left = gradient(model, settings, problem, material, following)
            last = -solve_positive(hessian, left)
            reached = jnp.linalg.norm(last) <= settings.move_tolerance
            return jnp.where(reached, following + last, following), reached

        # once Newton's method converges quadratically, its next direction is all but known
        fast = found & (move < 0.1 * previous) & (move > settings.move_tolerance)
        following, reached = jax.lax.cond(
            fast, with_the_same_hessian, lambda: (following, move <= settings.move_tolerance)
        )
        going_on = jnp.where(found, MAX_ITERATIONS, failed)
        result = jnp.where(reached, CONVERGED, going_on)
        return following, jnp.where(found, trial, value), count + 1, result, move

    def unfinished(carry: tuple) -> Array:
        _, _, count, result, _ = carry
        return (result == MAX_ITERATIONS) & (count < settings.max_iterations)

    value = value_of(start)
    # from where the potential is not finite there is nothing to descend
    begin = jnp.where(jnp.isfinite(value), MAX_ITERATIONS, NON_FINITE)
    first = (start, value, jnp.zeros((), jnp.int32), begin, jnp.zeros((), start.dtype))
    latent, _, count, result, _ = jax.lax.while_loop(unfinished, iteration, first)
    return StepSolution(latent, result, count)


def better_start(
    model: ReducedModel,
    settings: StepSettings,
    problem: StepProblem,
    material: Material,
    latents: Float[Array, "2 r"],
) -> Float[Array, " r"]:
    """The extrapolation of the last two latent states, or the last one where its potential is lower."""
    extrapolated = 2.0 * latents[0] - latents[1]
    values = [potential(model, settings, problem, material, z) for z in (extrapolated, latents[0])]
    return jnp.where(values[0] < values[1], extrapolated, latents[0])


def residual(
    model: ReducedModel,
    settings: StepSettings,
    frame: Kinematics,
    problem: StepProblem,
    past: Float[Array, "k n 3"],
    material: Material,
    latent: Float[Array, " r"],
) -> Float[Array, " r"]:
    """The step's residual as a function of past and material, which is what sensitivities differentiate.

    problem: that of the step, at `frame`, which is not differentiated.
    """
    linear, offset = _of_the_past(model, settings, frame, past)
    return gradient(model, settings, problem._replace(linear=linear, strain_offset=offset), material, latent)


def static_latent(
    model: ReducedModel, settings: StepSettings, material: Material, frame: Kinematics, start: Array
) -> StepSolution:
    """Latent state of static equilibrium at `frame`."""
    return minimise(model, settings, static_problem(model, settings, frame), material, start)


def past_of_rest(model: ReducedModel, settings: StepSettings, frame: Kinematics, latent: Array) -> Array:
    """Past positions (k, n, 3) of a body that has rested at `latent`."""
    x = positions(model, frame, latent)
    return jnp.broadcast_to(x, (settings.integrator.history, *x.shape))
