"""The hidden truth of a virtual cell: the body in full order, with its own mesh, law and time step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.cell.scenario import BodyTruth
from realsimloop_ros.mechanics.full_order import FullOrderSolver, SolveResult
from realsimloop_ros.mechanics.integrators import integrator_named

# a vertex of a 200 mm bar to a tenth of a micrometre: far below what any sensor of the cell sees
_RELATIVE_TOLERANCE = 5e-7


class TruthDivergedError(ArithmeticError):
    """The truth could not be simulated any further."""


@dataclass(frozen=True)
class Moment:
    """The true state at some time.

    positions: (n, 3) m; wrenches: (g, 6) N and N m, of the body on each tool, in the tool's frame.
    """

    positions: NDArray[np.float64]
    wrenches: NDArray[np.float64]


class HiddenTruth:
    """Steps the true body.

    body: on the truth's mesh; description: its law, material and time step; tool_poses: (g, 7) at the start, where
    it hangs in static equilibrium. Raises ScenarioError, TruthDivergedError.
    """

    def __init__(self, body: Body, description: BodyTruth, tool_poses: NDArray[np.float64]) -> None:
        self.body = body
        self.law = description.law()
        self.material = description.material(body)
        self.solver = FullOrderSolver(
            body,
            self.law,
            time_step=description.time_step,
            integrator=integrator_named(description.integrator),
            gravity=description.gravity,
            move_tolerance=_RELATIVE_TOLERANCE * body.size,
        )
        self._state, report = self.solver.static_state(self.material, tool_poses)
        if report.result is not SolveResult.CONVERGED:
            raise TruthDivergedError(
                f"no static equilibrium at the rest poses ({report.result.name}); is the body too soft?"
            )
        self._wrenches = self.solver.grip_wrenches(self._state, self._state, self.material, tool_poses)
        self._previous_wrenches = self._wrenches
        self.steps = 0
        self.unconverged_steps = 0

    def step(self, tool_poses: NDArray[np.float64]) -> None:
        """One time step, at whose end the tools stand at tool_poses (g, 7). Raises TruthDivergedError."""
        before = self._state
        self._state, report = self.solver.step(before, self.material, tool_poses)
        self.steps += 1
        if report.result is SolveResult.NON_FINITE:
            raise TruthDivergedError(
                f"step {self.steps}: the true body left the range of numbers; are the tools pulled too far apart?"
            )
        self.unconverged_steps += report.result is not SolveResult.CONVERGED
        self._previous_wrenches = self._wrenches
        self._wrenches = self.solver.grip_wrenches(before, self._state, self.material, tool_poses)

    def at(self, fraction: float) -> Moment:
        """The state within the last step: 0 is its beginning, 1 its end.

        Positions run along the parabola through the last three, whose error is of the third order in the time
        step; wrenches along a line.
        """
        newest, middle = self._state.history[:2]
        # a scheme that looks back one step only keeps no third: then along the line
        oldest = self._state.history[2] if len(self._state.history) > 2 else 2.0 * middle - newest
        s = fraction
        positions = 0.5 * s * (s + 1.0) * newest + (1.0 - s) * (1.0 + s) * middle + 0.5 * s * (s - 1.0) * oldest
        return Moment(positions, (1.0 - s) * self._previous_wrenches + s * self._wrenches)
