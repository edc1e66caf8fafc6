"""The full-order implicit solver: the oracle of every reduced quantity and the truth of the virtual cell.

A step minimises, over the free vertices,

    Phi(x) = inertia/(2 h^2) |x - y|_M^2 + sum_s volume_s (Psi(F_s) + viscous potential) - gravity^T M x
             + mass_damping h / (2 rate_0) |v(x)|_M^2

by Newton's method with the exact tangent (projected to positive definite samples only where it is not), a
backtracking line search and a factor that is reused (sparse.ReusedFactor).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import checked_poses, compose, inverse, rotation_matrix, transform_points
from realsimloop_ros.mechanics.elements import hung_masses, lumped_volumes, quadrature
from realsimloop_ros.mechanics.integrators import BDF2, Integrator
from realsimloop_ros.mechanics.laws import (
    Elasticity,
    MaterialLaw,
    energy,
    green_strain,
    stress,
    stress_and_tangent,
    viscous_energy,
    viscous_stress_and_tangent,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.sparse import (
    NegativeCurvatureError,
    ReusedFactor,
    assemble,
    stiffness_pattern,
)

STANDARD_GRAVITY = (0.0, 0.0, -9.81)


class SolveResult(IntEnum):
    """How a step ended."""

    CONVERGED = 0
    MAX_ITERATIONS = 1
    STALLED = 2  # no step along the descent direction lowers the potential
    NON_FINITE = 3


@dataclass(frozen=True)
class FullOrderState:
    """Past positions, newest first, (k, n, 3) m, k the integrator's history."""

    history: NDArray[np.float64]

    @property
    def positions(self) -> NDArray[np.float64]:
        """Present positions (n, 3), m."""
        return self.history[0]


@dataclass(frozen=True)
class StepReport:
    """result; Newton iterations; largest move of the last Newton direction, m; factorisations made."""

    result: SolveResult
    iterations: int
    last_move: float
    factorisations: int


class Samples(eqx.Module):
    """Per-sample constants of the compiled functions."""

    nodes: Array
    gradients: Array
    volume: Array
    zone: Array


def _deformation_gradients(samples: Samples, x: Float[Array, "n 3"]) -> Float[Array, "s 3 3"]:
    return jnp.einsum("sai,saj->sij", x[samples.nodes], samples.gradients)


def _per_sample(samples: Samples, material: Material) -> tuple[Elasticity, Array]:
    return (
        Elasticity(material.youngs_modulus[samples.zone], material.poisson_ratio[samples.zone]),
        material.viscosity[samples.zone],
    )


@eqx.filter_jit
def sample_strains(samples: Samples, x: Array) -> Array:
    """Green strain (s, 3, 3) at every sample."""
    return jax.vmap(green_strain)(_deformation_gradients(samples, x))


@eqx.filter_jit
def _potential(
    law: MaterialLaw, samples: Samples, material: Material, x: Array, offset: Array, rate: Array
) -> Array:
    F = _deformation_gradients(samples, x)
    elasticity, viscosity = _per_sample(samples, material)
    density = jax.vmap(partial(energy, law))(F, elasticity)
    density += jax.vmap(viscous_energy, (0, 0, None, 0))(F, offset, rate, viscosity)
    return jnp.dot(samples.volume, density)


def _to_vertices(samples: Samples, piola: Array, vertices: int) -> Array:
    force = jnp.einsum("s,sij,saj->sai", samples.volume, piola, samples.gradients)
    return jax.ops.segment_sum(force.reshape(-1, 3), samples.nodes.reshape(-1), vertices)


def internal_forces(
    law: MaterialLaw, samples: Samples, material: Material, x: Array, offset: Array, rate: Array
) -> Float[Array, "n 3"]:
    """Gradient of elastic energy and viscous potential, N; offset, rate: see laws.viscous_energy."""
    F = _deformation_gradients(samples, x)
    elasticity, viscosity = _per_sample(samples, material)
    piola = jax.vmap(partial(stress, law))(F, elasticity)
    strain_rate = rate * jax.vmap(green_strain)(F) + offset
    second = viscosity[:, None, None] * strain_rate
    return _to_vertices(samples, piola + F @ second, len(x))


@eqx.filter_jit
def internal_forces_and_tangent(
    law: MaterialLaw, samples: Samples, material: Material, x: Array, offset: Array, rate: Array
) -> tuple[Array, Array]:
    """internal_forces (n, 3), N, and the tangents (s, 9, 9), Pa, that they come with."""
    F = _deformation_gradients(samples, x)
    elasticity, viscosity = _per_sample(samples, material)
    piola, tangent = jax.vmap(partial(stress_and_tangent, law))(F, elasticity)
    piola_v, tangent_v = jax.vmap(viscous_stress_and_tangent, (0, 0, None, 0))(F, offset, rate, viscosity)
    return _to_vertices(samples, piola + piola_v, len(x)), tangent + tangent_v


@eqx.filter_jit
def _elastic_forces(law: MaterialLaw, samples: Samples, material: Material, x: Array) -> Array:
    F = _deformation_gradients(samples, x)
    elasticity, _ = _per_sample(samples, material)
    return _to_vertices(samples, jax.vmap(partial(stress, law))(F, elasticity), len(x))


@eqx.filter_jit
def _positive_definite(tangents: Array) -> Array:
    values, vectors = jnp.linalg.eigh(0.5 * (tangents + jnp.swapaxes(tangents, 1, 2)))
    floor = 1e-6 * values[:, -1:]
    return jnp.einsum("sij,sj,skj->sik", vectors, jnp.maximum(values, floor), vectors)


class FullOrderSolver:
    """Steps a body in full space.

    body, law: what is simulated; time_step: s; integrator: see mechanics.integrators; gravity: (3,) m/s^2;
    mass_damping: Rayleigh's mass-proportional damping, 1/s; move_tolerance: Newton stops when no vertex moves
    further than this, m (the default, 1e-8 of the body's size, is far below any discretisation error).
    """

    def __init__(
        self,
        body: Body,
        law: MaterialLaw,
        *,
        time_step: float,
        integrator: Integrator = BDF2,
        gravity: ArrayLike = STANDARD_GRAVITY,
        mass_damping: float = 0.0,
        move_tolerance: float | None = None,
        max_iterations: int = 50,
    ) -> None:
        if not (np.isfinite(time_step) and time_step > 0.0):
            raise ValueError(f"time_step: {time_step}, expected a positive number of seconds")
        self.body = body
        self.law = law
        self.time_step = float(time_step)
        self.integrator = integrator
        self.gravity = np.asarray(gravity, dtype=np.float64)
        self.mass_damping = float(mass_damping)
        self._volumes = lumped_volumes(body)
        self._hung_masses = hung_masses(body)
        self.quadrature = quadrature(body)
        self._samples = Samples(
            jnp.asarray(self.quadrature.nodes),
            jnp.asarray(self.quadrature.gradients),
            jnp.asarray(self.quadrature.volume),
            jnp.asarray(self.quadrature.zone),
        )
        held = body.held_vertices
        self._pattern = stiffness_pattern(self.quadrature, len(body.rest_positions), held)
        self._held = held
        self._factor = ReusedFactor()
        self._move_tolerance = 1e-8 * body.size if move_tolerance is None else move_tolerance
        self._max_iterations = max_iterations

    def masses(self, material: Material) -> NDArray[np.float64]:
        """Mass per vertex (n,), kg."""
        return self._volumes @ np.asarray(material.density) + self._hung_masses

    def rest_state(self) -> FullOrderState:
        """The undeformed body, at rest for as long as the integrator looks back."""
        return self.resting_at(self.body.rest_positions)

    def resting_at(self, positions: NDArray[np.float64]) -> FullOrderState:
        """A state without velocity at positions (n, 3), m."""
        return FullOrderState(np.repeat(positions[None], self.integrator.history, axis=0))

    def held_positions(self, grip_poses: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Positions (n, 3) with the held vertices where grips and fixtures put them, the others at rest, m.

        grip_poses: (g, 7) in the order of body.grips, or None where there are none.
        """
        x = self.body.rest_positions.copy()
        grips = self.body.grips
        if grips:
            poses = checked_poses(np.zeros((0, 7)) if grip_poses is None else grip_poses, "grip_poses")
            if poses.shape != (len(grips), 7):
                raise ValueError(
                    f"grip_poses: shape {poses.shape}, expected ({len(grips)}, 7) for {self.body.grip_names}"
                )
            for grip, pose in zip(grips, poses, strict=True):
                motion = compose(pose, inverse(grip.rest_pose))
                x[grip.vertices] = transform_points(motion, self.body.rest_positions[grip.vertices])
        return x

    def step(
        self,
        state: FullOrderState,
        material: Material,
        grip_poses: NDArray[np.float64] | None = None,
        external_force: NDArray[np.float64] | None = None,
    ) -> tuple[FullOrderState, StepReport]:
        """Advance by one time step with the grips ending at grip_poses (g, 7).

        external_force: (n, 3) N, dead loads beside gravity. Returns the new state and how the solve ended; a
        state that is not CONVERGED is the best found, and finite unless `state` or `grip_poses` were not.

        Raises ValueError where `state` is of another integrator or body, or `grip_poses` is no set of poses.
        """
        h, scheme = self.time_step, self.integrator
        expected = (scheme.history, *self.body.rest_positions.shape)
        if state.history.shape != expected:
            raise ValueError(
                f"state.history: shape {state.history.shape}, expected {expected} for {scheme.name}; "
                "take it from rest_state() or resting_at() of this solver"
            )
        y = np.tensordot(np.array(scheme.predictor), state.history, axes=1)
        # start where the free flight would end: with small steps that is close to the solution
        start = y.copy()
        start[self._held] = self.held_positions(grip_poses)[self._held]
        masses = self.masses(material)
        stiffness = scheme.inertia / h**2 * masses
        rate = scheme.rate[0] / h
        past = state.history[: len(scheme.rate) - 1]
        velocity_offset = np.tensordot(np.array(scheme.rate[1:]), past, axes=1) / h
        force = masses[:, None] * (self.gravity - self.mass_damping * velocity_offset)
        if external_force is not None:
            force = force + external_force
        target = stiffness[:, None] * y + force
        stiffness = stiffness + self.mass_damping * rate * masses
        x, report = self._minimise(start, stiffness, target, material, self._strain_offset(state, material), rate)
        history = np.concatenate([x[None], state.history[:-1]])
        return FullOrderState(history), report

    def static_state(
        self,
        material: Material,
        grip_poses: NDArray[np.float64] | None = None,
        external_force: NDArray[np.float64] | None = None,
        load_steps: int = 1,
    ) -> tuple[FullOrderState, StepReport]:
        """Static equilibrium under gravity, hung weights and external_force, approached in load_steps."""
        x = self.body.rest_positions.copy()
        held = self.held_positions(grip_poses)[self._held]
        force = self.masses(material)[:, None] * self.gravity
        if external_force is not None:
            force = force + external_force
        zero = jnp.zeros((len(self.quadrature.volume), 3, 3))
        elastic = material._replace(viscosity=jnp.zeros_like(material.viscosity))
        report = StepReport(SolveResult.CONVERGED, 0, 0.0, 0)
        for load in np.linspace(0.0, 1.0, load_steps + 1)[1:]:
            start = x.copy()
            rest = self.body.rest_positions[self._held]
            start[self._held] = rest + load * (held - rest)
            x, last = self._minimise(start, np.zeros(len(x)), load * force, elastic, zero, 1.0)
            worst = max(report.result, last.result)
            report = replace(last, result=worst, iterations=report.iterations + last.iterations)
        return self.resting_at(x), report

    def elastic_forces(self, state: FullOrderState, material: Material) -> NDArray[np.float64]:
        """Gradient of the elastic energy (n, 3), N: what the body's inside asks of the outside."""
        return np.asarray(_elastic_forces(self.law, self._samples, material, jnp.asarray(state.positions)))

    def held_reactions(
        self, before: FullOrderState, after: FullOrderState, material: Material
    ) -> NDArray[np.float64]:
        """Forces (k, 3), N, with which grips and fixtures act on body.held_vertices at the end of a step."""
        h, scheme = self.time_step, self.integrator
        y = np.tensordot(np.array(scheme.predictor), before.history, axes=1)
        x = after.positions
        rate = scheme.rate[0] / h
        past = before.history[: len(scheme.rate) - 1]
        velocity = rate * x + np.tensordot(np.array(scheme.rate[1:]), past, axes=1) / h
        gradient, _ = internal_forces_and_tangent(
            self.law,
            self._samples,
            material,
            jnp.asarray(x),
            self._strain_offset(before, material),
            jnp.asarray(rate),
        )
        inertia = self.masses(material)[:, None] * (
            scheme.inertia / h**2 * (x - y) + self.mass_damping * velocity - self.gravity
        )
        return (inertia + np.asarray(gradient))[self._held]

    def grip_wrenches(
        self,
        before: FullOrderState,
        after: FullOrderState,
        material: Material,
        grip_poses: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Force and moment (g, 6), N and N m, that the body exerts on each grip, in the grip's frame."""
        reactions = np.zeros_like(after.positions)
        reactions[self._held] = self.held_reactions(before, after, material)
        wrenches = np.zeros((len(self.body.grips), 6))
        for k, (grip, pose) in enumerate(zip(self.body.grips, checked_poses(grip_poses), strict=True)):
            force = -reactions[grip.vertices]
            arm = after.positions[grip.vertices] - pose[:3]
            rotation = rotation_matrix(pose)
            wrenches[k, :3] = rotation.T @ force.sum(axis=0)
            wrenches[k, 3:] = rotation.T @ np.cross(arm, force).sum(axis=0)
        return wrenches

    def deformation_gradients(self, state: FullOrderState) -> NDArray[np.float64]:
        """F (s, 3, 3) at every quadrature sample."""
        return self.quadrature.deformation_gradients(state.positions)

    def _strain_offset(self, state: FullOrderState, material: Material) -> Array:
        if not np.any(np.asarray(material.viscosity) > 0.0):
            return jnp.zeros((len(self.quadrature.volume), 3, 3))
        weights = np.array(self.integrator.rate[1:]) / self.time_step
        past = [sample_strains(self._samples, jnp.asarray(x)) for x in state.history[: len(weights)]]
        return sum((w * e for w, e in zip(weights.tolist(), past, strict=True)), jnp.zeros_like(past[0]))

    def _minimise(
        self,
        start: NDArray[np.float64],
        stiffness: NDArray[np.float64],
        target: NDArray[np.float64],
        material: Material,
        strain_offset: Array,
        rate: float,
    ) -> tuple[NDArray[np.float64], StepReport]:
        """Minimise  sum_i stiffness_i/2 |x_i|^2 - target_i x_i + potential(x)  over the free vertices."""
        pattern, made = self._pattern, self._factor.factorisations
        free = pattern.free
        dof_stiffness = np.repeat(stiffness, 3)[free]
        rate_array = jnp.asarray(rate)

        def objective(x: NDArray[np.float64]) -> tuple[float, float]:
            """The value, and the size of the terms it is a sum of, to which its rounding is proportional."""
            stored = float(
                _potential(self.law, self._samples, material, jnp.asarray(x), strain_offset, rate_array)
            )
            half = 0.5 * stiffness[:, None] * x
            size = abs(stored) + float(np.sum(np.abs(x) * (np.abs(half) + np.abs(target))))
            return stored + float(np.sum(x * (half - target))), size

        x = start.copy()
        value, size = objective(x)
        if not np.isfinite(value):
            # the input is not finite, or so far off that the energy overflows: nothing to descend from
            return start, StepReport(SolveResult.NON_FINITE, 0, np.inf, 0)
        move = np.inf
        for iteration in range(1, self._max_iterations + 1):
            gradient, tangents = internal_forces_and_tangent(
                self.law, self._samples, material, jnp.asarray(x), strain_offset, rate_array
            )
            residual = (np.asarray(gradient) + stiffness[:, None] * x - target).ravel()[free]
            if not np.isfinite(residual).all():
                return x, self._report(SolveResult.NON_FINITE, iteration, move, made)
            direction = self._newton_direction(tangents, dof_stiffness, residual)
            slope = float(residual @ direction)
            # what is left to go, not what the line search allows: a short step is no sign of a minimum
            move = float(np.abs(direction).max())
            step = 1.0
            while step > 1e-6:
                trial = x.copy()
                trial.reshape(-1)[free] += step * direction
                trial_value, trial_size = objective(trial)
                # near the minimum rounding hides the decrease
                if trial_value <= value + 1e-4 * step * slope + 1e-14 * size:
                    x, value, size = trial, trial_value, trial_size
                    break
                step *= 0.5
            if move <= self._move_tolerance:
                return x, self._report(SolveResult.CONVERGED, iteration, move, made)
            if step <= 1e-6:
                return x, self._report(SolveResult.STALLED, iteration, move, made)
        return x, self._report(SolveResult.MAX_ITERATIONS, self._max_iterations, move, made)

    def _report(self, result: SolveResult, iterations: int, move: float, made: int) -> StepReport:
        return StepReport(result, iterations, move, self._factor.factorisations - made)

    def _newton_direction(
        self, tangents: Array, dof_stiffness: NDArray[np.float64], residual: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Newton direction; where the exact tangent is not positive definite, that of the projected one."""
        for projected in (False, True):
            chosen = _positive_definite(tangents) if projected else tangents
            data = assemble(self._pattern, self.quadrature, np.asarray(chosen))
            data[self._pattern.diagonal] += dof_stiffness
            matrix = self._pattern.matrix(data)
            try:
                # 1e-4: the error of the direction then lies below that of Newton's own quadratic convergence
                # until the last iteration, which it lengthens at most by one
                direction = -self._factor.solve(matrix, residual, 1e-4)
            except NegativeCurvatureError:
                self._factor.forget()
                continue
            if float(direction @ residual) < 0.0 or not np.any(residual):
                return direction
        return -residual / np.maximum(np.abs(matrix.diagonal()), 1e-12)
