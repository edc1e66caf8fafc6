"""One implicit step of a reduced model: the minimum of the incremental potential over the latent state.

    Phi(z) = 1/2 c^T K c - b^T c + sum_s volume_s (Psi(F_s) + viscous potential) + contact and cables,
    F_s = F0_s + B_s c,   c = decoder(z)

with K = kappa M, kappa = inertia/h^2 + damping rate_0/h, M the mass matrix, and b all that the step knows
beforehand: prediction, gravity and damping.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realsimloop_ros.dynamics.surroundings import (
    Around,
    around,
    around_energy,
    around_gradient,
    around_hessian,
)
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
from realsimloop_ros.mechanics.surroundings import Instant
from realsimloop_ros.reduction.model import (
    Kinematics,
    ReducedModel,
    StrainMap,
    point_positions,
    project_forces,
    strain_map,
    support_kinematics,
)

# how a step ended; STALLED: no step along Newton's direction lowers the potential
CONVERGED, MAX_ITERATIONS, NON_FINITE, STALLED = 0, 1, 2, 3


class StepSettings(eqx.Module):
    """How time is stepped.

    time_step: s; gravity: (3,) m/s^2; mass_damping: 1/s; viscous: whether viscosity is computed at all;
    move_tolerance: Newton stops when the rms vertex move of its direction is below it, m. Raises ValueError on
    numbers that are no such thing.
    """

    integrator: Integrator = eqx.field(static=True)
    time_step: float = eqx.field(static=True)
    gravity: Float[Array, 3] = eqx.field(converter=jnp.asarray, default=STANDARD_GRAVITY)
    mass_damping: float = eqx.field(static=True, default=0.0)
    viscous: bool = eqx.field(static=True, default=False)
    move_tolerance: float = eqx.field(static=True, default=1e-9)
    max_iterations: int = eqx.field(static=True, default=30)

    def __check_init__(self) -> None:
        for name, least in (("time_step", 0.0), ("mass_damping", None), ("move_tolerance", 0.0)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0.0 or value == least:
                raise ValueError(f"{name}: {value}, expected a finite number {'> 0' if least == 0.0 else '>= 0'}")
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations: {self.max_iterations}, expected at least 1")

    @property
    def stiffness(self) -> float:
        """kappa, 1/s^2."""
        scheme = self.integrator
        return scheme.inertia / self.time_step**2 + self.mass_damping * self.rate

    @property
    def rate(self) -> float:
        """Factor of the present value in a rate of change, 1/s."""
        return self.integrator.rate[0] / self.time_step

    @property
    def strain_history(self) -> int:
        """Number of past strains a step looks at."""
        return len(self.integrator.rate) - 1 if self.viscous else 0

    def tolerance(self, dtype: jnp.dtype) -> float:
        """move_tolerance, or, in single precision, 1 um: well above what rounding leaves of a move (positions of
        some 0.2 m round to 2e-8 m, and forces are sums over hundreds of strains that are differences of them),
        well below what any reduced model errs by.
        """
        return max(self.move_tolerance, 1e-6) if dtype == jnp.float32 else self.move_tolerance


class Past(NamedTuple):
    """What a step remembers, newest first.

    points: (k, m, 3) mass points, m; coordinates: (k, R) of the basis, m; strains: (s, c, 3, 3) Green strains
    of the samples, none without viscosity; touch: (1, q, 3) contact points, m, none without contact.
    """

    points: Float[Array, "k m 3"]
    coordinates: Float[Array, "k R"]
    strains: Float[Array, "s c 3 3"]
    touch: Float[Array, "t q 3"]


class Placement(NamedTuple):
    """What poses and surroundings decide of a step. frame: of the support; strains: of the samples; around:
    contact and cables, None where there are none.
    """

    frame: Kinematics
    strains: StrainMap
    around: Around | None


class StepProblem(NamedTuple):
    """Phi of one step. strains: of the samples; around: contact and cables or None; linear: (R,) b, N;
    strain_offset: (c, 3, 3) 1/s or None; stiffness: (R, R) K, N/m.
    """

    strains: StrainMap
    around: Around | None
    linear: Float[Array, " R"]
    strain_offset: Float[Array, "c 3 3"] | None
    stiffness: Float[Array, "R R"]


def place(
    model: ReducedModel, grip_poses: Float[Array, "g 7"], before: Instant, after: Instant, time_step: float
) -> Placement:
    """The step that ends at grip_poses (g, 7), its surroundings going from `before` to `after`."""
    frame = support_kinematics(model, grip_poses)
    # where the contact points were is of the past; without friction it does not matter
    touch = None if model.surroundings is None else model.surroundings.touch
    previous = jnp.zeros((0, 3), model.dtype) if touch is None else frame.base[touch.nodes]
    return Placement(frame, strain_map(model, frame), around(model, frame, previous, before, after, time_step))


def step_problem(
    model: ReducedModel, settings: StepSettings, placement: Placement, past: Past, material: Material
) -> StepProblem:
    """Phi of a step after `past`."""
    at = placement.around
    if at is not None and at.touch is not None:
        at = at._replace(previous=past.touch[0])
    return StepProblem(placement.strains, at, *of_the_past(model, settings, placement.frame, past, material))


def of_the_past(
    model: ReducedModel, settings: StepSettings, frame: Kinematics, past: Past, material: Material
) -> tuple[Float[Array, " R"], Float[Array, "c 3 3"] | None, Float[Array, "R R"]]:
    """What past and masses decide of a step: b, N, the strain offset, 1/s, and K, N/m.

    Points carry gravity and what the moving frame adds to the inertia of V c; that of V c itself is summed over
    all vertices once and for all, so that the points' own share of it is taken out.
    """
    points = model.points
    base = frame.base[points.nodes]
    acceleration = inertial_acceleration(settings, base, past.points) - settings.gravity.astype(base.dtype)[None]
    linear = project_forces(model, frame, -points.masses(material)[:, None] * acceleration)
    at_rest = inertial_acceleration(settings, jnp.zeros_like(past.coordinates[0]), past.coordinates)
    linear = linear - points.rest(material) @ at_rest
    return linear, strain_offset(settings, past), settings.stiffness * points.matrix(material)


def inertial_acceleration(settings: StepSettings, x: Array, past: Array) -> Array:
    """What masses at x, after being at `past` (newest first, along its leading axis), are multiplied with in
    the force balance, mass damping included: m/s^2 where x is in m.
    """
    scheme, h = settings.integrator, settings.time_step
    prediction = jnp.tensordot(jnp.asarray(scheme.predictor, past.dtype), past, axes=1)
    result = scheme.inertia / h**2 * (x - prediction)
    if settings.mass_damping:
        weights = jnp.asarray(scheme.rate[1:], past.dtype) / h
        velocity = settings.rate * x + jnp.tensordot(weights, past[: len(weights)], axes=1)
        result = result + settings.mass_damping * velocity
    return result


def static_problem(
    model: ReducedModel, settings: StepSettings, placement: Placement, material: Material
) -> StepProblem:
    """The potential whose minimum is the static equilibrium at a placement, whose time step is STATIC_STEP."""
    masses = model.points.masses(material)
    gravity = settings.gravity.astype(masses.dtype)
    linear = project_forces(model, placement.frame, masses[:, None] * gravity[None])
    size = model.basis.shape[2]
    zero = jnp.zeros((size, size), linear.dtype)
    return StepProblem(placement.strains, placement.around, linear, None, zero)


def strain_offset(settings: StepSettings, past: Past) -> Float[Array, "c 3 3"] | None:
    """What past strains contribute to the strain rate, 1/s; None without viscosity."""
    if not settings.viscous:
        return None
    weights = jnp.asarray(settings.integrator.rate[1:], past.strains.dtype) / settings.time_step
    return jnp.tensordot(weights, past.strains, axes=1)


def _sampled(model: ReducedModel, material: Material) -> tuple[Elasticity, Array]:
    zone = model.samples.zone
    return Elasticity(material.youngs_modulus[zone], material.poisson_ratio[zone]), material.viscosity[zone]


def potential(
    model: ReducedModel, settings: StepSettings, problem: StepProblem, material: Material, latent: Array
) -> Float[Array, ""]:
    """Phi, J, up to a constant."""
    stored, half, work = energies(model, settings, problem, material, latent)
    return stored + half - work


def energies(
    model: ReducedModel, settings: StepSettings, problem: StepProblem, material: Material, latent: Array
) -> tuple[Array, Array, Array]:
    """Stored and dissipated energy, that of inertia, and the work of b: Phi is the first two less the third, J."""
    c = model.decoder(latent)
    F = problem.strains.at(c)
    elasticity, viscosity = _sampled(model, material)
    density = jax.vmap(partial(energy, model.law))(F, elasticity)
    if problem.strain_offset is not None:
        rate = jnp.asarray(settings.rate, F.dtype)
        density += jax.vmap(viscous_energy, (0, 0, None, 0))(F, problem.strain_offset, rate, viscosity)
    half = 0.5 * jnp.dot(c, problem.stiffness @ c)
    stored = jnp.dot(model.samples.volume, density)
    if model.surroundings is not None and problem.around is not None:
        stored += around_energy(model.surroundings, problem.around, c)
    return stored, half, jnp.dot(problem.linear, c)


def gradient(
    model: ReducedModel, settings: StepSettings, problem: StepProblem, material: Material, latent: Array
) -> Float[Array, " r"]:
    """dPhi/dz, N: the residual of the step."""
    if model.decoder.linear:
        return _coordinate_gradient(model, settings, problem, material, latent)
    c, pullback = jax.vjp(model.decoder, latent)
    return pullback(_coordinate_gradient(model, settings, problem, material, c))[0]


def _coordinate_gradient(
    model: ReducedModel, settings: StepSettings, problem: StepProblem, material: Material, c: Array
) -> Float[Array, " R"]:
    piola = sample_stress(model, settings, problem.strain_offset, material, problem.strains.at(c))
    weighted = (model.samples.volume[:, None, None] * piola).reshape(-1)
    slope = problem.stiffness @ c - problem.linear + weighted @ problem.strains.lift.reshape(len(weighted), -1)
    if model.surroundings is not None and problem.around is not None:
        slope += around_gradient(model.surroundings, problem.around, c)
    return slope


def sample_stress(
    model: ReducedModel, settings: StepSettings, offset: Array | None, material: Material, F: Array
) -> Float[Array, "c 3 3"]:
    """First Piola-Kirchhoff stress of the samples, viscosity included, Pa; offset: see strain_offset."""
    elasticity, viscosity = _sampled(model, material)
    piola = jax.vmap(partial(stress, model.law))(F, elasticity)
    if offset is not None:
        rate = settings.rate * jax.vmap(green_strain)(F) + offset
        piola += F @ (viscosity[:, None, None] * rate)
    return piola


def gradient_and_hessian(
    model: ReducedModel, settings: StepSettings, problem: StepProblem, material: Material, latent: Array
) -> tuple[Float[Array, " r"], Float[Array, "r r"]]:
    """dPhi/dz and its exact derivative, the decoder's curvature included."""
    c = model.decoder(latent)
    F = problem.strains.at(c)
    elasticity, viscosity = _sampled(model, material)
    piola, tangent = jax.vmap(partial(stress_and_tangent, model.law))(F, elasticity)
    if problem.strain_offset is not None:
        rate = jnp.asarray(settings.rate, F.dtype)
        more = jax.vmap(viscous_stress_and_tangent, (0, 0, None, 0))(F, problem.strain_offset, rate, viscosity)
        piola, tangent = piola + more[0], tangent + more[1]
    volume, lift = model.samples.volume, problem.strains.lift
    weighted = (volume[:, None, None] * piola).reshape(-1)
    slope = problem.stiffness @ c - problem.linear + weighted @ lift.reshape(len(weighted), -1)
    stiffness = problem.stiffness
    if model.surroundings is not None and problem.around is not None:
        slope += around_gradient(model.surroundings, problem.around, c)
        stiffness = stiffness + around_hessian(model.surroundings, problem.around, c)
    if not model.decoder.linear:
        # along z before anything is multiplied: there are fewer latent directions than coordinates
        jacobian = jax.jacfwd(model.decoder)(latent)
        lift, stiffness = lift @ jacobian, jacobian.T @ stiffness @ jacobian
    flat = lift.reshape(len(weighted), -1)
    hessian = flat.T @ ((volume[:, None, None] * tangent) @ lift).reshape(flat.shape) + stiffness
    if model.decoder.linear:
        return slope, hessian
    # the decoder bends under the force that acts along its coordinates
    curvature = jax.hessian(lambda z: jnp.dot(slope, model.decoder(z)))(latent)
    return slope @ jacobian, hessian + curvature


def residual(
    model: ReducedModel,
    settings: StepSettings,
    placement: Placement,
    past: Past,
    material: Material,
    latent: Float[Array, " r"],
) -> Float[Array, " r"]:
    """The step's residual as a function of all that it depends on, which is what sensitivities differentiate."""
    return gradient(model, settings, step_problem(model, settings, placement, past, material), material, latent)


def past_entry(model: ReducedModel, settings: StepSettings, placement: Placement, latent: Array) -> Past:
    """What later steps remember of a body at `latent`: one entry of each kind that they look at."""
    points = point_positions(model, placement.frame, latent)[None]
    c, at, strains = model.decoder(latent), placement.around, placement.strains
    touch = jnp.zeros((0, 0, 3), points.dtype) if at is None or at.touch is None else at.touch.at(c)[None]
    if not settings.viscous:
        return Past(points, c[None], jnp.zeros((0, *strains.base.shape), points.dtype), touch)
    return Past(points, c[None], jax.vmap(green_strain)(strains.at(c))[None], touch)


def remembered(past: Past, entry: Past) -> Past:
    """The past with the newest entry in front and the oldest gone."""
    return Past(*(jnp.concatenate([new, old])[: len(old)] for new, old in zip(entry, past, strict=True)))


def no_surroundings(dtype: jnp.dtype, instants: int | None = None) -> Instant:
    """An instant without colliders and winches, or several of them."""
    lead = () if instants is None else (instants,)
    return Instant(jnp.zeros((*lead, 0, 7), dtype), jnp.zeros((*lead, 0), dtype), jnp.zeros((*lead, 0, 3), dtype))


def past_of_rest(settings: StepSettings, entry: Past) -> Past:
    """The past of a body that has rested at an entry."""
    history = settings.integrator.history
    counts = history, history, settings.strain_history, len(entry.touch)
    return Past(*(jnp.repeat(part, count, axis=0) for part, count in zip(entry, counts, strict=True)))
