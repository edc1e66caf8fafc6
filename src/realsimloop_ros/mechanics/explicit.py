"""Explicit time stepping in full space: what the implicit solver is compared with, and its reference.

    explicit Euler         x' = x + h v,   v' = v + h a(x, v)
    semi-implicit Euler    v' = v + h a(x, v),   x' = x + h v'

Both are stable up to a step that the stiffest mode of the mesh sets. The first gains energy in every undamped mode
at any step. A run never goes wrong silently: it ends with a result code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.element_forces import (
    Samples,
    elastic_potential,
    internal_forces,
    sample_strains,
)
from realsimloop_ros.mechanics.elements import hung_masses, lumped_volumes, quadrature
from realsimloop_ros.mechanics.full_order import STANDARD_GRAVITY
from realsimloop_ros.mechanics.laws import MaterialLaw, lame_parameters
from realsimloop_ros.mechanics.material import Material, check_zones

# a run ends as UNSTABLE where the mechanical energy has grown by this share of the largest sum of its parts
_GROWTH = 0.1


class ExplicitScheme(StrEnum):
    """See the module."""

    EXPLICIT_EULER = "explicit_euler"
    SEMI_IMPLICIT_EULER = "semi_implicit_euler"


class RunResult(IntEnum):
    """How a run ended."""

    COMPLETED = 0
    UNSTABLE = 1  # mechanical energy grew beyond what a stable run's may
    NON_FINITE = 2


@dataclass(frozen=True)
class MovingState:
    """positions (n, 3), m, and velocities (n, 3), m/s."""

    positions: NDArray[np.float64]
    velocities: NDArray[np.float64]


@dataclass(frozen=True)
class StabilityLimit:
    """largest_frequency: of the mesh, rad/s; time_step: largest stable one, s (zero: none is)."""

    largest_frequency: float
    time_step: float


class _Motion(eqx.Module):
    law: MaterialLaw
    samples: Samples
    masses: Float[Array, "n 1"]
    free: Float[Array, "n 1"]
    gravity: Float[Array, 3]
    mass_damping: float = eqx.field(static=True)
    viscous: bool = eqx.field(static=True)

    def acceleration(self, material: Material, x: Array, v: Array) -> Array:
        offset = None
        if self.viscous:
            _, offset = jax.jvp(lambda y: sample_strains(self.samples, y), (x,), (v,))
        # the strain rate is all in the offset
        force = internal_forces(self.law, self.samples, material, x, offset, jnp.zeros(()))
        return self.free * (self.gravity[None] - self.mass_damping * v - force / self.masses)

    def energies(self, material: Material, x: Array, v: Array) -> tuple[Array, Array]:
        """Kinetic energy, and elastic energy with the potential of gravity, J."""
        kinetic = 0.5 * jnp.sum(self.masses * v**2)
        elastic = elastic_potential(self.law, self.samples, material, x, None, jnp.ones(()))
        return kinetic, elastic - jnp.sum(self.masses * x * self.gravity[None])


@eqx.filter_jit
def _advanced(
    motion: _Motion, material: Material, x: Array, v: Array, time_step: Array, steps: Array, implicit: bool
) -> tuple[Array, Array]:
    def one(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, v = state
        after = v + time_step * motion.acceleration(material, x, v)
        return x + time_step * (after if implicit else v), after

    return jax.lax.fori_loop(0, steps, one, (x, v))


@eqx.filter_jit
def _energies(motion: _Motion, material: Material, x: Array, v: Array) -> tuple[Array, Array]:
    return motion.energies(material, x, v)


@eqx.filter_jit
def _scaled_stiffness(motion: _Motion, material: Material, x: Array, along: Array) -> Array:
    """M^-1/2 K M^-1/2 times a field (n, 3), K the elastic stiffness at x, 1/s^2."""
    root = jnp.sqrt(motion.masses)

    def force(y: Array) -> Array:
        return internal_forces(motion.law, motion.samples, material, y, None, jnp.ones(()))

    return motion.free * jax.jvp(force, (x,), (motion.free * along / root,))[1] / root


@eqx.filter_jit
def _scaled_damping(motion: _Motion, material: Material, x: Array, along: Array) -> Array:
    """M^-1/2 C M^-1/2 times a field (n, 3), C the viscous damping at x, 1/s."""
    root = jnp.sqrt(motion.masses)
    change = motion.free * along / root
    zero = jnp.zeros_like(x)
    accelerations = [motion.acceleration(material, x, v) for v in (zero, change)]
    return -motion.free * root * (accelerations[1] - accelerations[0])


class ExplicitSolver:
    """Steps a body whose held vertices stand still, in full space, explicitly.

    body, law: what is simulated; time_step: s; gravity: (3,) m/s^2; mass_damping: 1/s.
    """

    def __init__(
        self,
        body: Body,
        law: MaterialLaw,
        *,
        time_step: float,
        scheme: ExplicitScheme = ExplicitScheme.SEMI_IMPLICIT_EULER,
        gravity: ArrayLike = STANDARD_GRAVITY,
        mass_damping: float = 0.0,
    ) -> None:
        if not (np.isfinite(time_step) and time_step > 0.0):
            raise ValueError(f"time_step: {time_step}, expected a positive number of seconds")
        self.body = body
        self.law = law
        self.time_step = float(time_step)
        self.scheme = scheme
        self.gravity = np.asarray(gravity, dtype=np.float64)
        self.mass_damping = float(mass_damping)
        self._samples = Samples.of(quadrature(body))
        self._volumes, self._hung_masses = lumped_volumes(body), hung_masses(body)

    def rest_state(self) -> MovingState:
        """The undeformed body, at rest."""
        return MovingState(self.body.rest_positions.copy(), np.zeros_like(self.body.rest_positions))

    def masses(self, material: Material) -> NDArray[np.float64]:
        """Mass per vertex (n,), kg."""
        return self._volumes @ np.asarray(material.density) + self._hung_masses

    def stability_limit(self, material: Material, positions: NDArray[np.float64] | None = None) -> StabilityLimit:
        """The largest stable step about positions (n, 3), m (at rest if not given), by the stiffest mode.

        With damping it is a bound from below: the largest frequency and the largest damping are taken together,
        or, in explicit Euler, the smallest damping per stiffness. Raises ValueError where no stiffness is
        positive.
        """
        motion, on_device = self._motion(material)
        x = jnp.asarray(self.body.rest_positions if positions is None else positions)

        def largest_of(product: Callable[..., Array]) -> float:
            def flat(along: NDArray[np.float64]) -> NDArray[np.float64]:
                return np.asarray(product(motion, on_device, x, jnp.asarray(along.reshape(x.shape)))).ravel()

            operator = LinearOperator((x.size, x.size), matvec=flat, dtype=np.float64)
            start = np.random.default_rng(0).normal(size=x.size)
            # a thousandth of the eigenvalue: a two-thousandth of the step
            return float(eigsh(operator, k=1, which="LA", tol=1e-3, v0=start, return_eigenvectors=False)[0])

        probe = _scaled_stiffness(motion, on_device, x, jnp.ones_like(x))
        squared = largest_of(_scaled_stiffness) if np.isfinite(np.asarray(probe)).all() else np.nan
        if not squared > 0.0:
            raise ValueError(
                f"material: {tuple(map(np.ndarray.tolist, map(np.asarray, material)))} has no positive stiffness; "
                "make it with material_of"
            )
        damping = self.mass_damping
        if motion.viscous or damping:
            damping = largest_of(_scaled_damping)
        frequency = float(np.sqrt(squared))
        if self.scheme is ExplicitScheme.EXPLICIT_EULER:
            # a mode of frequency w and damping c is stable up to c / w^2, and above critical damping up to 2 / c;
            # the least c / w^2 of all is that of a pure change of volume, (3 lam + 2 mu) strain
            mu, lam = map(np.asarray, lame_parameters(*map(jnp.asarray, material[:2])))
            least = self.mass_damping / squared + float((material.viscosity / (3.0 * lam + 2.0 * mu)).min())
            return StabilityLimit(frequency, min(least, 2.0 / max(damping, frequency)))
        return StabilityLimit(frequency, (float(np.sqrt(damping**2 + 4.0 * squared)) - damping) / squared)

    def energies(self, state: MovingState, material: Material) -> tuple[float, float]:
        """Kinetic energy, and elastic energy with the potential of gravity, J."""
        motion, on_device = self._motion(material)
        kinetic, stored = _energies(motion, on_device, jnp.asarray(state.positions), jnp.asarray(state.velocities))
        return float(kinetic), float(stored)

    def run(
        self, state: MovingState, material: Material, steps: int, every: int = 1
    ) -> tuple[list[MovingState], RunResult]:
        """States after every `every` steps, `steps` in all, and how the run ended; what came until then is kept.

        Raises ValueError where `every` does not divide `steps`.
        """
        if every < 1 or steps % every:
            raise ValueError(f"every: {every}, expected a divisor of {steps} steps")
        check_zones(self.body, material)
        motion, on_device = self._motion(material)
        implicit = self.scheme is ExplicitScheme.SEMI_IMPLICIT_EULER
        x, v = jnp.asarray(state.positions), jnp.asarray(state.velocities)
        kinetic, stored = map(float, _energies(motion, on_device, x, v))
        if not np.isfinite(kinetic + stored):
            return [], RunResult.NON_FINITE
        begin, rest = kinetic + stored, stored
        largest, states = kinetic, list[MovingState]()
        for _ in range(steps // every):
            x, v = _advanced(motion, on_device, x, v, jnp.asarray(self.time_step), jnp.asarray(every), implicit)
            kinetic, stored = map(float, _energies(motion, on_device, x, v))
            if not np.isfinite(kinetic + stored):
                return states, RunResult.NON_FINITE
            # of the motion itself, up to now: what grows without bound must not raise its own limit
            if kinetic + stored > begin + _GROWTH * max(largest, abs(stored - rest), 1e-12):
                return states, RunResult.UNSTABLE
            largest = max(largest, kinetic)
            states.append(MovingState(np.asarray(x), np.asarray(v)))
        return states, RunResult.COMPLETED

    def _motion(self, material: Material) -> tuple[_Motion, Material]:
        free = np.ones((len(self.body.rest_positions), 1))
        free[self.body.held_vertices] = 0.0
        motion = _Motion(
            self.law,
            self._samples,
            jnp.asarray(self.masses(material)[:, None]),
            jnp.asarray(free),
            jnp.asarray(self.gravity),
            self.mass_damping,
            bool(np.any(material.viscosity)),
        )
        return motion, Material(*map(jnp.asarray, material))
