"""Sensitivities of full-order steps to the material: what a window gradient costs without a reduced model.

At a converged step the residual r(x, past, material) vanishes, so along a direction of the material

    K dx = -(dr/dmaterial + dr/dpast dpast),   K = d^2 Phi / dx^2,

with the same sparse matrix that Newton's method used and the same reused factor.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from realsimloop_ros.mechanics.element_forces import (
    Samples,
    internal_forces,
    internal_forces_and_tangent,
    sample_strains,
)
from realsimloop_ros.mechanics.full_order import (
    FullOrderSolver,
    FullOrderState,
    SolveResult,
    StepReport,
)
from realsimloop_ros.mechanics.laws import MaterialLaw
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.newton import Objective
from realsimloop_ros.mechanics.surroundings import Surroundings


@eqx.filter_jit
def _force_change(
    law: MaterialLaw,
    samples: Samples,
    material: Material,
    direction: Material,
    x: Array,
    offsets: tuple[Array, Array],
    rate: Array,
) -> Array:
    """Change of the internal forces at fixed x along a direction of the material; offsets: value and change."""

    def force(m: Material, o: Array) -> Array:
        return internal_forces(law, samples, m, x, o, rate)

    return jax.jvp(force, (material, offsets[0]), (direction, offsets[1]))[1]


@eqx.filter_jit
def _strain_change(samples: Samples, x: Array, dx: Array) -> Array:
    return jax.jvp(lambda y: sample_strains(samples, y), (x,), (dx,))[1]


class DifferentiableFullOrderSolver(FullOrderSolver):
    """A full-order solver that carries derivatives along directions of the material."""

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
        if self.outside.contact is not None:
            raise ValueError(
                f"contact: {list(self.outside.contact.names)}, expected none for derivatives in full order; "
                "take them through a reduced model"
            )
        after, report = self.step(state, material, grip_poses, surroundings=surroundings)
        if report.result is not SolveResult.CONVERGED:
            return after, np.full_like(tangents, np.nan), report
        h, scheme = self.time_step, self.integrator
        x = jnp.asarray(after.positions)
        rate = jnp.asarray(scheme.rate[0] / h)
        weights = np.array(scheme.rate[1:]) / h
        # a derivative along viscosity needs the strain rate even where there is no viscosity yet
        viscous = bool(np.any(np.asarray(material.viscosity) > 0.0) or np.any(np.asarray(directions.viscosity)))
        offset = jnp.zeros((len(self.quadrature.volume), 3, 3))
        if viscous:
            for w, position in zip(weights.tolist(), state.history, strict=False):
                offset += w * sample_strains(self._samples, jnp.asarray(position))
        _, tangent = internal_forces_and_tangent(self.law, self._samples, material, x, offset, rate)
        masses = self.masses(material)
        stiffness = (scheme.inertia / h**2 + self.mass_damping * scheme.rate[0] / h) * masses
        situation = self._situation_between(state, after) if self.body.cables else None
        objective = Objective(stiffness, np.zeros_like(after.positions), material, offset, rate, situation)
        matrix = self.newton.matrix(objective, after.positions, tangent)
        free = self.newton.pattern.free
        # what the masses are multiplied with in the residual
        past = state.history
        velocity = scheme.rate[0] / h * after.positions + np.tensordot(weights, past[: len(weights)], axes=1)
        acceleration = (
            scheme.inertia / h**2 * (after.positions - np.tensordot(np.array(scheme.predictor), past, axes=1))
        )
        acceleration += self.mass_damping * velocity - self.gravity
        moved = np.zeros_like(tangents[0])
        on_device = jax.tree.map(jnp.asarray, material)
        for k in range(tangents.shape[-1]):
            past = tangents[..., k]
            inertia = -scheme.inertia / h**2 * np.tensordot(np.array(scheme.predictor), past, axes=1)
            damping = self.mass_damping * np.tensordot(weights, past[: len(weights)], axes=1)
            d_offset = jnp.zeros_like(offset)
            if viscous:
                for w, position, change in zip(weights.tolist(), state.history, past, strict=False):
                    d_offset += w * _strain_change(self._samples, jnp.asarray(position), jnp.asarray(change))
            direction = jax.tree.map(lambda field, k=k: jnp.asarray(field[k]), directions)
            force = _force_change(self.law, self._samples, on_device, direction, x, (offset, d_offset), rate)
            lighter = (self._volumes @ np.asarray(directions.density[k]))[:, None] * acceleration
            right = (masses[:, None] * (inertia + damping) + lighter + np.asarray(force)).ravel()[free]
            # 1e-8: a thousandth of what the tests ask of the gradient
            moved.reshape(-1, tangents.shape[-1])[free, k] = -self.newton.factor.solve(matrix, right, 1e-8)
        return after, np.concatenate([moved[None], tangents[:-1]]), report
