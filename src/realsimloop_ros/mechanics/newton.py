"""Newton's method over the free vertices of a body: exact tangents, a line search and a factor that is reused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array
from numpy.typing import NDArray

from realsimloop_ros.mechanics.element_forces import (
    Samples,
    compiled_internal_forces,
    elastic_potential,
    internal_forces_and_tangent,
    positive_definite,
)
from realsimloop_ros.mechanics.elements import Quadrature
from realsimloop_ros.mechanics.laws import MaterialLaw
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.sparse import (
    NegativeCurvatureError,
    ReusedFactor,
    assemble,
    stiffness_pattern,
)
from realsimloop_ros.mechanics.surroundings import Situation, SurroundingPotential


class SolveResult(IntEnum):
    """How a step ended."""

    CONVERGED = 0
    MAX_ITERATIONS = 1
    STALLED = 2  # no step along the descent direction lowers the potential
    NON_FINITE = 3


@dataclass(frozen=True)
class Objective:
    """sum_i stiffness_i/2 |x_i|^2 - target_i x_i + the potentials of the inside and of the surroundings.

    stiffness: (n,) N/m; target: (n, 3) N; strain_offset: (s, 3, 3) 1/s, None without viscosity, and rate, 1/s: see
    laws.viscous_energy; situation: None where nothing surrounds the body.
    """

    stiffness: NDArray[np.float64]
    target: NDArray[np.float64]
    material: Material
    strain_offset: Array | None
    rate: Array
    situation: Situation | None


@dataclass(frozen=True)
class Minimum:
    """positions (n, 3), m; how the search ended; its iterations; largest move of the last direction, m."""

    positions: NDArray[np.float64]
    result: SolveResult
    iterations: int
    last_move: float


class Newton:
    """Minimises objectives of one body.

    held: (k,) vertices that stay where the start has them; move_tolerance: m, it ends when no vertex would move
    further; guided: (vertices, 3) coordinates that stay too.
    """

    def __init__(
        self,
        law: MaterialLaw,
        quadrature: Quadrature,
        outside: SurroundingPotential,
        held: NDArray[np.int64],
        vertices: int,
        *,
        move_tolerance: float,
        max_iterations: int,
        guided: NDArray[np.bool_] | None = None,
    ) -> None:
        self.law = law
        self.quadrature = quadrature
        self.samples = Samples.of(quadrature)
        self.outside = outside
        self.pattern = stiffness_pattern(quadrature, vertices, held, outside.cliques, guided)
        self.factor = ReusedFactor()
        self._contact_slots = np.array(
            [self.pattern.slots_among(np.array([vertex])) for vertex in outside.vertices], np.int64
        ).reshape(-1, 3, 3)
        self._cable_slots = [self.pattern.slots_among(clique) for clique in outside.cliques]
        self._move_tolerance = move_tolerance
        self._max_iterations = max_iterations

    def minimise(self, starts: Sequence[NDArray[np.float64]], objective: Objective) -> Minimum:
        """The lowest positions found from the best of starts (n, 3), m; finite unless these or the objective are
        not.
        """
        free = self.pattern.free
        values = [self._value(objective, start) for start in starts]
        finite = [k for k, (value, _) in enumerate(values) if np.isfinite(value)]
        if not finite:
            # the input is not finite, or so far off that the energy overflows: nothing to descend from
            return Minimum(starts[0], SolveResult.NON_FINITE, 0, np.inf)
        best = min(finite, key=lambda k: values[k][0])
        x, (value, size) = starts[best].copy(), values[best]
        move = np.inf
        for iteration in range(1, self._max_iterations + 1):
            gradient, tangents = internal_forces_and_tangent(
                self.law,
                self.samples,
                objective.material,
                jnp.asarray(x),
                objective.strain_offset,
                objective.rate,
            )
            residual = self._residual(objective, x, np.asarray(gradient))
            if not np.isfinite(residual).all():
                return Minimum(x, SolveResult.NON_FINITE, iteration, move)
            # a factor that costs less than iterations with the last step's also serves the corrections below
            renew = iteration == 1 and self.factor.is_cheap
            direction, matrix = self.direction(objective, x, tangents, residual, renew=renew)
            slope = float(residual @ direction)
            # what is left to go, not what the line search allows: a short step is no sign of a minimum
            before, move = move, float(np.abs(direction).max())
            step = self.longest_step(objective, x, direction)
            shortest = 1e-6 * step
            while step > shortest:
                trial = x.copy()
                trial.reshape(-1)[free] += step * direction
                trial_value, trial_size = self._value(objective, trial)
                # near the minimum rounding hides the decrease
                if trial_value <= value + 1e-4 * step * slope + 1e-14 * size:
                    x, value, size = trial, trial_value, trial_size
                    break
                step *= 0.5
            if move <= self._move_tolerance:
                return Minimum(x, SolveResult.CONVERGED, iteration, move)
            if step <= shortest:
                return Minimum(x, SolveResult.STALLED, iteration, move)
            if step == 1.0 and move < 0.1 * before:
                x, move = self._corrected(objective, x, move, matrix)
                if move <= self._move_tolerance:
                    return Minimum(x, SolveResult.CONVERGED, iteration, move)
                value, size = self._value(objective, x)
        return Minimum(x, SolveResult.MAX_ITERATIONS, self._max_iterations, move)

    def _residual(
        self, objective: Objective, x: NDArray[np.float64], gradient: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Slope (f,), N, of the objective, given that of the inside (n, 3)."""
        total = gradient + objective.stiffness[:, None] * x - objective.target
        if objective.situation is not None:
            total = total - self.outside.forces(objective.situation, x)
        return total.ravel()[self.pattern.free]

    def _corrected(
        self, objective: Objective, x: NDArray[np.float64], move: float, matrix: sp.csc_matrix
    ) -> tuple[NDArray[np.float64], float]:
        """Positions after more steps with the same matrix, for as long as each is a fifth of the last, `move`.

        Such a step costs a gradient and a solution; a Newton step a tangent, an assembly and mostly a factor too.
        Returns the positions and the largest move of the last step, m.
        """
        while move > self._move_tolerance:
            gradient = compiled_internal_forces(
                self.law,
                self.samples,
                objective.material,
                jnp.asarray(x),
                objective.strain_offset,
                objective.rate,
            )
            residual = self._residual(objective, x, np.asarray(gradient))
            try:
                correction = -self.factor.solve(matrix, residual, 1e-3)
            except NegativeCurvatureError:
                break
            left = float(np.abs(correction).max())
            # also where it is not a number
            if not left <= 0.2 * move or self.longest_step(objective, x, correction) < 1.0:
                break
            x, move = x.copy(), left
            x.reshape(-1)[self.pattern.free] += correction
        return x, move

    def _value(self, objective: Objective, x: NDArray[np.float64]) -> tuple[float, float]:
        """The value, J, and the size of the terms it is a sum of, to which its rounding is proportional."""
        stored = float(
            elastic_potential(
                self.law,
                self.samples,
                objective.material,
                jnp.asarray(x),
                objective.strain_offset,
                objective.rate,
            )
        )
        around = 0.0 if objective.situation is None else self.outside.energy(objective.situation, x)
        half = 0.5 * objective.stiffness[:, None] * x
        size = abs(stored) + abs(around) + float(np.sum(np.abs(x) * (np.abs(half) + np.abs(objective.target))))
        return stored + around + float(np.sum(x * (half - objective.target))), size

    def longest_step(self, objective: Objective, x: NDArray[np.float64], direction: NDArray[np.float64]) -> float:
        """The part of a direction (f,) that goes through no collider, at most 1."""
        if objective.situation is None:
            return 1.0
        move = np.zeros_like(x)
        move.reshape(-1)[self.pattern.free] = direction
        return self.outside.longest_step(objective.situation, x, move)

    def direction(
        self,
        objective: Objective,
        x: NDArray[np.float64],
        tangents: Array,
        residual: NDArray[np.float64],
        *,
        renew: bool = False,
    ) -> tuple[NDArray[np.float64], sp.csc_matrix]:
        """Newton direction (f,) and the matrix it comes from; where the exact tangent is not positive definite,
        those of the projected one. renew: with a factor of this very matrix.
        """
        for projected in (False, True):
            matrix = self.matrix(objective, x, tangents, projected=projected)
            try:
                # 1e-4: the error of the direction then lies below that of Newton's own quadratic convergence
                # until the last iteration, which it lengthens at most by one
                direction = -self.factor.solve(matrix, residual, 1e-4, renew=renew)
            except NegativeCurvatureError:
                self.factor.forget()
                continue
            if float(direction @ residual) < 0.0 or not np.any(residual):
                return direction, matrix
        return -residual / np.maximum(np.abs(matrix.diagonal()), 1e-12), matrix

    def matrix(
        self, objective: Objective, x: NDArray[np.float64], tangents: Array, *, projected: bool = False
    ) -> sp.csc_matrix:
        """The Hessian over the free degrees of freedom, N/m; projected: that of terms made positive definite."""
        chosen = positive_definite(tangents) if projected else tangents
        data = assemble(self.pattern, self.quadrature, np.asarray(chosen))
        data[self.pattern.diagonal] += np.repeat(objective.stiffness, 3)[self.pattern.free]
        if objective.situation is not None:
            _, pressing = self.outside.contact_forces(objective.situation, x)
            parts = [(self._contact_slots, pressing)]
            pulling = self.outside.cable_stiffness(objective.situation, x)
            parts += [(slots[None], block[None]) for slots, block in zip(self._cable_slots, pulling, strict=True)]
            for slots, blocks in parts:
                added = _without_negative(blocks) if projected else blocks
                np.add.at(data, slots[slots >= 0], added[slots >= 0])
        return self.pattern.matrix(data)


def _without_negative(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Symmetric matrices (b, d, d) without their negative eigenvalues."""
    values, vectors = np.linalg.eigh(blocks)
    return np.einsum("bij,bj,bkj->bik", vectors, np.maximum(values, 0.0), vectors)
