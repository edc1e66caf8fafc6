"""The full-order implicit solver: the oracle of every reduced quantity and the truth of the virtual cell.

A step minimises, over the free vertices,

    Phi(x) = inertia/(2 h^2) |x - y|_M^2 + sum_s volume_s (Psi(F_s) + viscous potential) - gravity^T M x
             + mass_damping h / (2 rate_0) |v(x)|_M^2 + contact and friction + cables

by Newton's method (newton.Newton).

Where something is about to touch, touches in motion or leaves, a step is split into up to max_substeps equal
parts (a power of two, or all), see substeps.py. Their number follows from the free flight; the step is done again
in more of them when what comes out moves more than foreseen, ends deeper than a band below a surface or does not
converge. From one step to the next it falls by half at most, which keeps BDF2's uneven differences stable.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.cables import tension_from_nodal_forces
from realsimloop_ros.mechanics.contact import Contact
from realsimloop_ros.mechanics.element_forces import (
    elastic_forces,
    internal_forces_and_tangent,
    sample_strains,
)
from realsimloop_ros.mechanics.elements import hung_masses, lumped_volumes, quadrature
from realsimloop_ros.mechanics.holds import grip_wrenches, held_positions
from realsimloop_ros.mechanics.integrators import BDF2, Integrator, StepWeights, ages_after, step_weights
from realsimloop_ros.mechanics.laws import MaterialLaw
from realsimloop_ros.mechanics.material import Material, check_zones
from realsimloop_ros.mechanics.newton import Newton, Objective, SolveResult
from realsimloop_ros.mechanics.states import FullOrderState, StepReport
from realsimloop_ros.mechanics.substeps import parts_needed, parts_wanted, rounded_parts
from realsimloop_ros.mechanics.surroundings import (
    Instant,
    Situation,
    SurroundingPotential,
    Surroundings,
    between,
    poses_between,
)

STANDARD_GRAVITY = (0.0, 0.0, -9.81)


class FullOrderSolver:
    """Steps a body in full space.

    body, law: what is simulated; time_step: s; integrator: see mechanics.integrators; gravity: (3,) m/s^2;
    mass_damping: Rayleigh's mass-proportional damping, 1/s; move_tolerance: Newton stops when no vertex moves
    further than this, m (the default, 1e-8 of the body's size, is far below any discretisation error); contact:
    what the body may touch; max_substeps: into how many parts a step may be split for it; guided: (n, 3)
    coordinates of vertices that keep their rest values, as on rollers.
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
        contact: Contact | None = None,
        max_substeps: int = 32,
        guided: NDArray[np.bool_] | None = None,
    ) -> None:
        # its square, and that of its inverse, are numbers
        if not 1e-100 < time_step < 1e100:
            raise ValueError(f"time_step: {time_step}, expected a positive number of seconds")
        for name, count in (("max_iterations", max_iterations), ("max_substeps", max_substeps)):
            if count < 1:
                raise ValueError(f"{name}: {count}, expected at least 1")
        if not 0.0 <= mass_damping < np.inf:
            raise ValueError(f"mass_damping: {mass_damping}, expected 1/s >= 0")
        if move_tolerance is not None and not 0.0 < move_tolerance < np.inf:
            raise ValueError(f"move_tolerance: {move_tolerance}, expected a positive length in m")
        if guided is not None and guided.shape != body.rest_positions.shape:
            raise ValueError(f"guided: shape {guided.shape}, expected {body.rest_positions.shape} as the vertices")
        self.body = body
        self.law = law
        self.time_step = float(time_step)
        self.integrator = integrator
        self.gravity = np.asarray(gravity, dtype=np.float64)
        if self.gravity.shape != (3,) or not np.isfinite(self.gravity).all():
            raise ValueError(f"gravity: {self.gravity.tolist()}, expected three finite numbers in m/s^2")
        self.mass_damping = float(mass_damping)
        self._volumes = lumped_volumes(body)
        self._hung_masses = hung_masses(body)
        self.quadrature = quadrature(body)
        self._held = body.held_vertices
        self._guided = np.zeros(body.rest_positions.shape, bool) if guided is None else guided
        self.outside = SurroundingPotential(body, contact)
        self.newton = Newton(
            law,
            self.quadrature,
            self.outside,
            self._held,
            len(body.rest_positions),
            move_tolerance=1e-8 * body.size if move_tolerance is None else move_tolerance,
            max_iterations=max_iterations,
            guided=self._guided,
        )
        self._samples = self.newton.samples
        self._max_substeps = max_substeps if contact is not None else 1

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
        return held_positions(self.body, grip_poses)

    def step(
        self,
        state: FullOrderState,
        material: Material,
        grip_poses: NDArray[np.float64] | None = None,
        external_force: NDArray[np.float64] | None = None,
        surroundings: Surroundings | None = None,
    ) -> tuple[FullOrderState, StepReport]:
        """Advance by one time step with the grips ending at grip_poses (g, 7) and the rest at `surroundings`.

        external_force: (n, 3) N, dead loads beside gravity. Returns the new state and how the solve ended; a
        state that is not CONVERGED is the best found, and finite unless `state` or `grip_poses` were not.

        Raises ValueError where `state` is of another integrator or body, `material` has other zones, `grip_poses`
        is no set of poses, external_force has another shape, or surroundings do not fit contact and cables.
        """
        self._check(material, external_force)
        expected = (self.integrator.history, *self.body.rest_positions.shape)
        if state.history.shape != expected:
            raise ValueError(
                f"state.history: shape {state.history.shape}, expected {expected} for {self.integrator.name}; "
                "take it from rest_state() or resting_at() of this solver"
            )
        self.held_positions(grip_poses)  # refuses wrong poses before anything is done
        end = self.outside.instant(surroundings)
        begin = end if state.surroundings is None else self.outside.instant(state.surroundings)
        parts = self._parts_expected(state, begin, end)
        made, iterations = self.newton.factor.factorisations, 0
        while True:
            after, report, wanted = self._advance(
                state, material, grip_poses, external_force, (begin, end, surroundings), parts
            )
            iterations += report.iterations
            if wanted <= parts or parts >= self._max_substeps:
                break
            parts = rounded_parts(wanted, self._max_substeps)
        factorisations = self.newton.factor.factorisations - made
        return after, replace(report, iterations=iterations, factorisations=factorisations)

    def _parts_expected(self, state: FullOrderState, begin: Instant, end: Instant) -> int:
        """Parts to begin with: what free flight to the step's end asks for, and no sudden return to long ones."""
        contact, most = self.outside.contact, self._max_substeps
        if contact is None:
            return 1
        weights = step_weights(self.integrator, self.time_step, state.ages)
        flight = np.tensordot(weights.predictor, state.history, axes=1)
        motion = self.outside.motion(state.positions, begin, flight, end)
        parts = rounded_parts(parts_needed(motion, float(contact.settings.band)), most)
        if state.ages is not None:
            parts = max(parts, rounded_parts(self.time_step / (2.0001 * float(state.ages[1])), most))
        return parts

    def _advance(
        self,
        state: FullOrderState,
        material: Material,
        grip_poses: NDArray[np.float64] | None,
        external_force: NDArray[np.float64] | None,
        around: tuple[Instant, Instant, Surroundings | None],
        parts: int,
    ) -> tuple[FullOrderState, StepReport, int]:
        """One time step in equal parts; also into how many it should have been split, as far as it shows."""
        begin, end, surroundings = around
        h = self.time_step / parts
        first, wanted = state, parts
        report = StepReport(SolveResult.CONVERGED, 0, 0.0, 0, parts)
        for part in range(1, parts + 1):
            last = part == parts
            poses = grip_poses
            if not last and grip_poses is not None and first.grip_poses is not None:
                poses = poses_between(first.grip_poses, grip_poses, part, parts)
            here, there = between(begin, end, part - 1, parts), between(begin, end, part, parts)
            weights = step_weights(self.integrator, self.time_step, state.ages, h)
            x, report = self._part(state, material, poses, external_force, (here, there), h, weights, report)
            if self.outside.contact is not None:
                band = float(self.outside.contact.settings.band)
                motion = self.outside.motion(state.positions, here, x, there)
                y = np.tensordot(weights.predictor, state.history, axes=1)
                flight = self.outside.motion(state.positions, here, y, there)
                wanted = max(wanted, parts_wanted(flight, motion, band, parts))
                if report.result is not SolveResult.CONVERGED:
                    wanted = max(wanted, 2 * parts)
                report = replace(report, penetration=max(0.0, -float(motion.after.min(initial=0.0))))
            report = replace(report, start=state)
            state = FullOrderState(
                np.concatenate([x[None], state.history[:-1]]),
                ages_after(self.integrator, self.time_step, state.ages, h),
                poses,
                surroundings if last else Surroundings(*map(np.asarray, there)),
            )
            if wanted > parts and parts < self._max_substeps:
                break  # to be done again in smaller parts
        return state, report, wanted

    def _part(
        self,
        state: FullOrderState,
        material: Material,
        grip_poses: NDArray[np.float64] | None,
        external_force: NDArray[np.float64] | None,
        around: tuple[Instant, Instant],
        time_step: float,
        weights: StepWeights,
        report: StepReport,
    ) -> tuple[NDArray[np.float64], StepReport]:
        """Positions (n, 3) after a part of a step, m; the report so far goes on."""
        y = np.tensordot(weights.predictor, state.history, axes=1)
        masses = self.masses(material)
        stiffness = weights.inertia * masses
        rate = weights.rate[0]
        past = state.history[: len(weights.rate) - 1]
        velocity_offset = np.tensordot(weights.rate[1:], past, axes=1)
        force = masses[:, None] * (self.gravity - self.mass_damping * velocity_offset)
        if external_force is not None:
            force = force + external_force
        situation = self.outside.situation(state.positions, *around, time_step) if self.outside else None
        objective = Objective(
            stiffness + self.mass_damping * rate * masses,
            stiffness[:, None] * y + force,
            material,
            self._strain_offset(state, material, weights),
            jnp.asarray(rate),
            situation,
        )
        # start where the free flight would end, or where the parabola through the past goes on, which follows a
        # slow motion more closely, unless something is in the way
        ends = [y]
        if len(state.history) > 2 and state.ages is None:
            ends.append(np.tensordot(np.array([3.0, -3.0, 1.0]), state.history[:3], axes=1))
        starts, held = [], self.held_positions(grip_poses)[self._held]
        for end in ends:
            way = end - state.positions
            way[self._held] = 0.0
            if situation is not None:
                way *= self.outside.longest_step(situation, state.positions, way)
            start = state.positions + way
            start[self._guided] = self.body.rest_positions[self._guided]
            start[self._held] = held
            starts.append(start)
        found = self.newton.minimise(starts, objective)
        return found.positions, replace(
            report,
            result=max(report.result, found.result),
            iterations=report.iterations + found.iterations,
            last_move=found.last_move,
        )

    def static_state(
        self,
        material: Material,
        grip_poses: NDArray[np.float64] | None = None,
        external_force: NDArray[np.float64] | None = None,
        load_steps: int = 1,
        surroundings: Surroundings | None = None,
    ) -> tuple[FullOrderState, StepReport]:
        """Static equilibrium under gravity, hung weights, external_force, cables and contact without friction.

        It is approached in load_steps, in which dead loads grow from nothing and grips move from rest. Raises
        as step.
        """
        self._check(material, external_force)
        if load_steps < 1:
            raise ValueError(f"load_steps: {load_steps}, expected at least 1")
        x = self.body.rest_positions.copy()
        held = self.held_positions(grip_poses)[self._held]
        instant = self.outside.instant(surroundings)
        force = self.masses(material)[:, None] * self.gravity
        if external_force is not None:
            force = force + external_force
        report = StepReport(SolveResult.CONVERGED, 0, 0.0, 0)
        made = self.newton.factor.factorisations
        for load in np.linspace(0.0, 1.0, load_steps + 1)[1:]:
            start = x.copy()
            rest = self.body.rest_positions[self._held]
            start[self._held] = rest + load * (held - rest)
            # over thirty years nothing is dragged along
            situation = self.outside.situation(x, instant, instant, 1e9) if self.outside else None
            objective = Objective(np.zeros(len(x)), load * force, material, None, jnp.asarray(1.0), situation)
            found = self.newton.minimise([start], objective)
            x = found.positions
            report = replace(
                report,
                result=max(report.result, found.result),
                iterations=report.iterations + found.iterations,
                last_move=found.last_move,
                factorisations=self.newton.factor.factorisations - made,
            )
        return replace(self.resting_at(x), grip_poses=grip_poses, surroundings=surroundings), report

    def elastic_forces(self, state: FullOrderState, material: Material) -> NDArray[np.float64]:
        """Gradient of the elastic energy (n, 3), N: what the body's inside asks of the outside."""
        return np.asarray(elastic_forces(self.law, self._samples, material, jnp.asarray(state.positions)))

    def held_reactions(
        self, before: FullOrderState, after: FullOrderState, material: Material
    ) -> NDArray[np.float64]:
        """Forces (k, 3), N, with which grips and fixtures act on body.held_vertices at the end of a step.

        before: the state at which the step, or the last of its parts (StepReport.start), began.
        """
        weights = self._weights_between(before, after)
        y = np.tensordot(weights.predictor, before.history, axes=1)
        x = after.positions
        past = before.history[: len(weights.rate) - 1]
        velocity = weights.rate[0] * x + np.tensordot(weights.rate[1:], past, axes=1)
        gradient, _ = internal_forces_and_tangent(
            self.law,
            self._samples,
            material,
            jnp.asarray(x),
            self._strain_offset(before, material, weights),
            jnp.asarray(weights.rate[0]),
        )
        inertia = self.masses(material)[:, None] * (
            weights.inertia * (x - y) + self.mass_damping * velocity - self.gravity
        )
        total = inertia + np.asarray(gradient)
        if self.body.cables:
            total -= self.outside.forces(self._situation_between(before, after), x)
        return total[self._held]

    def contact_forces(self, before: FullOrderState, after: FullOrderState) -> NDArray[np.float64]:
        """Forces (c, k, 3), N, of each collider on the vertices outside.vertices (k,) at the end of a step.

        before: the state at which the last part of the step began (StepReport.start).
        """
        return self.outside.contact_forces(self._situation_between(before, after), after.positions)[0]

    def cable_tensions(self, state: FullOrderState) -> NDArray[np.float64]:
        """Tension (w,), N, of each cable by its constraint; see mechanics.cables for this rule and the next."""
        return self.outside.tensions(self.outside.instant(state.surroundings), state.positions)

    def nodal_cable_tensions(self, state: FullOrderState, material: Material) -> NDArray[np.float64]:
        """Tension (w,), N, of each cable by the elastic forces at the vertices it is attached to."""
        forces = jnp.asarray(self.elastic_forces(state, material))
        return np.array([float(tension_from_nodal_forces(forces, clique)) for clique in self.outside.cliques])

    def _check(self, material: Material, external_force: NDArray[np.float64] | None) -> None:
        check_zones(self.body, material)
        expected = self.body.rest_positions.shape
        if external_force is not None and np.shape(external_force) != expected:
            raise ValueError(
                f"external_force: shape {np.shape(external_force)}, expected {expected} as the vertices"
            )

    def _weights_between(self, before: FullOrderState, after: FullOrderState) -> StepWeights:
        part = None if after.ages is None else float(after.ages[1])
        return step_weights(self.integrator, self.time_step, before.ages, part)

    def _situation_between(self, before: FullOrderState, after: FullOrderState) -> Situation:
        end = self.outside.instant(after.surroundings)
        begin = end if before.surroundings is None else self.outside.instant(before.surroundings)
        step = self.time_step if after.ages is None else float(after.ages[1])
        return self.outside.situation(before.positions, begin, end, step)

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
        return grip_wrenches(self.body, after.positions, reactions, grip_poses)

    def deformation_gradients(self, state: FullOrderState) -> NDArray[np.float64]:
        """F (s, 3, 3) at every quadrature sample."""
        return self.quadrature.deformation_gradients(state.positions)

    def _strain_offset(self, state: FullOrderState, material: Material, weights: StepWeights) -> Array | None:
        """What past strains contribute to the strain rate, (s, 3, 3), 1/s; None without viscosity."""
        if not np.any(np.asarray(material.viscosity)):
            return None
        past = [sample_strains(self._samples, jnp.asarray(x)) for x in state.history[: len(weights.rate) - 1]]
        parts = zip(weights.rate[1:].tolist(), past, strict=True)
        return sum((w * e for w, e in parts), jnp.zeros_like(past[0]))
