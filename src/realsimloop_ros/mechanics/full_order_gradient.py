"""Derivatives of full-order steps by the material: what a window gradient costs without a reduced model.

At a converged step the residual r(x, past, material) vanishes. With K = dr/dx, the sparse matrix that Newton's
method used, derivatives go forward along directions of the material, p right-hand sides a step,

    K dx = -(dr/dmaterial dmaterial + dr/dpast dpast),

or backward from the gradient of a loss, one right-hand side a step however many parameters there are,

    K lambda_t = -(dl/dx_t + sum_k (dr_{t+k}/dx_t)^T lambda_{t+k})
    dL/dmaterial = sum_t lambda_t^T dr_t/dmaterial.

Newton's iterations are never differentiated. Held vertices follow their grips whatever the material.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from realsimloop_ros.mechanics.element_forces import (
    Samples,
    internal_forces,
    internal_forces_and_tangent,
    sample_strains,
)
from realsimloop_ros.mechanics.full_order import FullOrderSolver, FullOrderState, SolveResult, StepReport
from realsimloop_ros.mechanics.integrators import Integrator
from realsimloop_ros.mechanics.laws import MaterialLaw
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.newton import Objective
from realsimloop_ros.mechanics.surroundings import Surroundings

# of the linear systems, relative: a thousandth of what the tests ask of a derivative
_TOLERANCE = 1e-8


class AdjointGradient(NamedTuple):
    """material: derivative of the loss per zone; past: (k, n, 3), with respect to the start's past positions."""

    material: Material
    past: NDArray[np.float64]


class _Motion(eqx.Module):
    """What a step's residual is made of, beside state and material."""

    law: MaterialLaw
    samples: Samples
    volumes: Float[Array, "n z"]
    hung_masses: Float[Array, " n"]
    gravity: Float[Array, 3]
    integrator: Integrator = eqx.field(static=True)
    time_step: float = eqx.field(static=True)
    mass_damping: float = eqx.field(static=True)
    viscous: bool = eqx.field(static=True)

    def strain_offset(self, past: Array) -> Array | None:
        """What past strains contribute to the strain rate, (s, 3, 3), 1/s; None without viscosity."""
        if not self.viscous:
            return None
        weights = jnp.array(self.integrator.rate[1:]) / self.time_step
        strains = jax.vmap(lambda x: sample_strains(self.samples, x))(past[: len(weights)])
        return jnp.tensordot(weights, strains, axes=1)

    def residual(self, x: Array, past: Array, material: Material) -> Array:
        """Gradient (n, 3), N, of the potential that a step minimises, after past positions (k, n, 3)."""
        scheme, h = self.integrator, self.time_step
        rate = scheme.rate[0] / h
        acceleration = scheme.inertia / h**2 * (x - jnp.tensordot(jnp.array(scheme.predictor), past, axes=1))
        if self.mass_damping:
            weights = jnp.array(scheme.rate[1:]) / h
            velocity = rate * x + jnp.tensordot(weights, past[: len(weights)], axes=1)
            acceleration = acceleration + self.mass_damping * velocity
        masses = self.volumes @ material.density + self.hung_masses
        force = internal_forces(self.law, self.samples, material, x, self.strain_offset(past), jnp.asarray(rate))
        return masses[:, None] * (acceleration - self.gravity[None]) + force


@eqx.filter_jit
def _changes(
    motion: _Motion, x: Array, past: Array, material: Material, past_changes: Array, directions: Material
) -> Array:
    """Changes (n, 3, p) of the residual at fixed x along p directions of past and material."""

    def along(past_change: Array, direction: Material) -> Array:
        def of(past: Array, material: Material) -> Array:
            return motion.residual(x, past, material)

        return jax.jvp(of, (past, material), (past_change, direction))[1]

    return jax.vmap(along, in_axes=(3, 0), out_axes=2)(past_changes, directions)


@eqx.filter_jit
def _pulled_back(
    motion: _Motion, x: Array, past: Array, material: Material, multiplier: Array
) -> tuple[Array, Material]:
    """multiplier^T times the derivatives of the residual by past (k, n, 3) and material."""
    _, pullback = jax.vjp(lambda p, m: motion.residual(x, p, m), past, material)
    return pullback(multiplier)


class DifferentiableFullOrderSolver(FullOrderSolver):
    """A full-order solver that gives derivatives by the material."""

    def step_with_tangents(
        self,
        state: FullOrderState,
        tangents: NDArray[np.float64],
        material: Material,
        directions: Material,
        grip_poses: NDArray[np.float64] | None = None,
        surroundings: Surroundings | None = None,
    ) -> tuple[FullOrderState, NDArray[np.float64], StepReport]:
        """One step; tangents (k, n, 3, p) are the derivatives of state.history along `directions` (fields (p, z)).

        Returns the new state, its tangents (k, n, 3, p), and how the solve ended. Raises ValueError with contact,
        whose friction and split steps depend on the past in ways that are not differentiated here.
        """
        self._refuse_contact()
        after, report = self.step(state, material, grip_poses, surroundings=surroundings)
        if report.result is not SolveResult.CONVERGED:
            return after, np.full_like(tangents, np.nan), report
        # a derivative along viscosity needs the strain rate even where there is no viscosity yet
        motion = self._motion(bool(np.any(material.viscosity) or np.any(directions.viscosity)))
        x, past = jnp.asarray(after.positions), jnp.asarray(state.history)
        on_device, along = (jax.tree.map(jnp.asarray, values) for values in (material, directions))
        changes = np.asarray(_changes(motion, x, past, on_device, jnp.asarray(tangents), along))
        moved = np.zeros_like(tangents[0])
        columns = moved.reshape(-1, tangents.shape[-1])
        right = changes.reshape(columns.shape)[self.newton.pattern.free]
        columns[self.newton.pattern.free] = -self._solved(motion, x, past, on_device, right, surroundings)
        return after, np.concatenate([moved[None], tangents[:-1]]), report

    def adjoint(
        self,
        start: FullOrderState,
        positions: NDArray[np.float64],
        material: Material,
        loss_gradients: NDArray[np.float64],
        surroundings: Sequence[Surroundings] | None = None,
    ) -> AdjointGradient:
        """Gradient of a loss whose derivatives by the positions (w, n, 3) of w steps are loss_gradients (w, n, 3).

        start: the state before the first of them; positions: converged ones, as `step` gave them; surroundings:
        at the end of each step, where the body has cables. Raises ValueError with contact, as step_with_tangents.
        """
        self._refuse_contact()
        history = len(start.history)
        # oldest first: row history + t is what step t came to
        path = np.concatenate([start.history[::-1], positions])
        # the derivative by viscosity is wanted even where there is none
        motion = self._motion(viscous=True)
        on_device = jax.tree.map(jnp.asarray, material)
        total = jax.tree.map(np.zeros_like, material)
        cotangent = np.zeros_like(start.history)
        for t in range(len(positions) - 1, -1, -1):
            x, past = jnp.asarray(positions[t]), jnp.asarray(path[t : t + history][::-1])
            multiplier = np.zeros_like(positions[t])
            right = (loss_gradients[t] + cotangent[0]).ravel()[self.newton.pattern.free]
            around = None if surroundings is None else surroundings[t]
            solved = self._solved(motion, x, past, on_device, right, around)
            multiplier.reshape(-1)[self.newton.pattern.free] = -solved
            earlier, of_material = _pulled_back(motion, x, past, on_device, jnp.asarray(multiplier))
            cotangent = np.concatenate([cotangent[1:], np.zeros_like(cotangent[:1])]) + np.asarray(earlier)
            total = jax.tree.map(lambda sum_, term: sum_ + np.asarray(term), total, of_material)
        return AdjointGradient(total, cotangent)

    def _motion(self, viscous: bool) -> _Motion:
        return _Motion(
            self.law,
            self._samples,
            jnp.asarray(self._volumes),
            jnp.asarray(self._hung_masses),
            jnp.asarray(self.gravity),
            self.integrator,
            self.time_step,
            self.mass_damping,
            viscous,
        )

    def _refuse_contact(self) -> None:
        if self.outside.contact is not None:
            raise ValueError(
                f"contact: {list(self.outside.contact.names)}, expected none for derivatives in full order; "
                "take them through a reduced model"
            )

    def _solved(
        self,
        motion: _Motion,
        x: Array,
        past: Array,
        material: Material,
        right: NDArray[np.float64],
        surroundings: Surroundings | None,
    ) -> NDArray[np.float64]:
        """K^-1 right over the free degrees of freedom, right (f,) or (f, p), at converged positions x."""
        h, scheme, newton = self.time_step, self.integrator, self.newton
        offset = motion.strain_offset(past) if np.any(material.viscosity) else None
        rate = jnp.asarray(scheme.rate[0] / h)
        _, tangent = internal_forces_and_tangent(self.law, self._samples, material, x, offset, rate)
        stiffness = (scheme.inertia / h**2 + self.mass_damping * scheme.rate[0] / h) * self.masses(material)
        situation = None
        if self.body.cables:
            instant = self.outside.instant(surroundings)
            situation = self.outside.situation(np.asarray(past[0]), instant, instant, h)
        objective = Objective(stiffness, np.zeros(x.shape), material, offset, rate, situation)
        matrix = newton.matrix(objective, np.asarray(x), tangent)
        # where a factor costs less than the iterations that an old one would need to this tolerance, a new one
        # serves the Newton iterations of the next step too
        return newton.factor.solve(matrix, right, _TOLERANCE, renew=newton.factor.is_cheap)
