"""Sensitivities of full-order steps: against central differences, and against a reduced model that leaves nothing
out."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.dynamics.rollout import rollout, undeformed_state
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.mechanics.full_order import SolveResult
from realsimloop_ros.mechanics.full_order_gradient import DifferentiableFullOrderSolver
from realsimloop_ros.mechanics.integrators import BDF2, IMPLICIT_EULER, Integrator
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.model import ReducedBody, every_sample, kinematics, position_tangents, positions
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from reduced_bodies import LENGTH, WIDTH, clamped_beam, gripped_bar

STEPS = 4
TWO_ZONES = [
    {"name": "left", "density": 1070.0},
    {"name": "right", "density": 1100.0, "region": {"minimum": [0.0, None, None]}},
]
TIP_LOAD = [{"name": "weight", "mass": 0.01, "region": {"minimum": [0.1, None, 0.015]}}]
BODIES = {
    "gripped": gripped_bar,
    "clamped, two zones, loaded": lambda: clamped_beam(zones=TWO_ZONES, hung_weights=TIP_LOAD),
}


def material_of_zones(zones: int, viscosity: float = 150.0) -> Material:
    return Material(
        *map(
            np.array,
            (
                [2e5, 3e5][:zones],
                [0.45, 0.4][:zones],
                [viscosity, 2 * viscosity][:zones],
                [1070.0, 1100.0][:zones],
            ),
        )
    )


def every_direction(zones: int) -> Material:
    """Along E, nu, viscosity and density of every zone, in steps of the size of their values."""
    unit = np.eye(4 * zones)
    scales = (1e5, 0.1, 100.0, 500.0)
    return Material(*(scale * unit[:, k * zones : (k + 1) * zones] for k, scale in enumerate(scales)))


class Case:
    """A short motion in full space as a function of the material."""

    def __init__(self, body: Body, integrator: Integrator) -> None:
        self.poses = random_grip_motion(body, SnapshotSettings(steps=STEPS, keyframes=1), np.random.default_rng(2))
        self.solver = DifferentiableFullOrderSolver(
            body,
            StableNeoHookean(),
            time_step=1 / 60,
            integrator=integrator,
            mass_damping=0.5,
            move_tolerance=1e-13,
        )

    def last(self, material: Material) -> NDArray[np.float64]:
        state = self.solver.rest_state()
        for pose in self.poses:
            state, report = self.solver.step(state, material, pose)
            assert report.result is SolveResult.CONVERGED
        return state.positions

    def tangents(self, material: Material, directions: Material) -> NDArray[np.float64]:
        state = self.solver.rest_state()
        tangents = np.zeros((*state.history.shape, len(directions.youngs_modulus)))
        for pose in self.poses:
            state, tangents, report = self.solver.step_with_tangents(state, tangents, material, directions, pose)
            assert report.result is SolveResult.CONVERGED
        return tangents

    def differences(self, material: Material, direction: Material, step: float = 1e-2) -> NDArray[np.float64]:
        """Central differences over two steps, whose errors of second order cancel (Richardson)."""

        def central(h: float) -> NDArray[np.float64]:
            high, low = (
                self.last(Material(*(f + sign * h * d for f, d in zip(material, direction, strict=True))))
                for sign in (1.0, -1.0)
            )
            return (high - low) / (2 * h)

        return (4.0 * central(0.5 * step) - central(step)) / 3.0


def assert_tangents_are_differences(case: Case, material: Material, directions: Material) -> None:
    tangents = case.tangents(material, directions)[0]
    for k in range(tangents.shape[-1]):
        differences = case.differences(material, Material(*(field[k] for field in directions)))
        # a hundredth of the value as step leaves 1e-8 of truncation; positions converge to 1e-13 m, which over
        # the step is 1e-11 m, where slopes are 1e-5 m and more
        assert np.abs(tangents[..., k] - differences).max() < 1e-5 * np.abs(differences).max()


@pytest.mark.parametrize("integrator", [IMPLICIT_EULER, BDF2], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_step_tangents_agree_with_central_differences(body: Callable[[], Body], integrator: Integrator) -> None:
    built = body()
    zones = len(built.zones)
    assert_tangents_are_differences(Case(built, integrator), material_of_zones(zones), every_direction(zones))


def test_a_body_without_viscosity_has_a_derivative_along_it() -> None:
    case = Case(gripped_bar(), BDF2)
    along = Material(np.zeros((1, 1)), np.zeros((1, 1)), np.full((1, 1), 100.0), np.zeros((1, 1)))
    found = case.tangents(material_of_zones(1, 0.0), along)[0, ..., 0]
    # one-sided, as viscosity cannot be negative: its error is the curvature times the step
    step = 1e-4
    high, low = case.last(material_of_zones(1, 100.0 * step)), case.last(material_of_zones(1, 0.0))
    difference = (high - low) / step
    assert np.abs(found - difference).max() < 1e-3 * np.abs(difference).max()


@pytest.mark.parametrize("integrator", [IMPLICIT_EULER, BDF2], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_adjoint_agrees_with_tangents_of_material_and_start(
    body: Callable[[], Body], integrator: Integrator
) -> None:
    built = body()
    case, random = Case(built, integrator), np.random.default_rng(3)
    material, directions = material_of_zones(len(built.zones)), every_direction(len(built.zones))
    start = case.solver.rest_state()
    # every direction of the material, and one more of the start alone
    directions = Material(*(np.concatenate([field, np.zeros_like(field[:1])]) for field in directions))
    count = len(directions.youngs_modulus)
    tangents = np.zeros((*start.history.shape, count))
    tangents[..., -1] = 1e-3 * random.normal(size=start.history.shape)
    tangents[:, built.held_vertices] = 0.0
    start_tangents, state, path, expected = tangents, start, [], np.zeros(count)
    loss_gradients = random.normal(size=(STEPS, *built.rest_positions.shape))
    for pose, loss_gradient in zip(case.poses, loss_gradients, strict=True):
        state, tangents, _ = case.solver.step_with_tangents(state, tangents, material, directions, pose)
        path.append(state.positions)
        expected += np.einsum("ni,nip->p", loss_gradient, tangents[0])
    found = case.solver.adjoint(start, np.array(path), material, loss_gradients)
    along = sum(
        np.einsum("z,pz->p", of_field, direction)
        for of_field, direction in zip(found.material, directions, strict=True)
    )
    along = along + np.einsum("kni,knip->p", found.past, start_tangents)
    # two orders of the same sums, whose linear systems are solved to 1e-8; the sum over steps cancels to a tenth
    np.testing.assert_allclose(along, expected, rtol=1e-6)


def test_the_adjoint_of_a_loss_agrees_with_its_central_difference() -> None:
    case, material = Case(gripped_bar(), BDF2), material_of_zones(1)
    target = case.last(material_of_zones(1, 100.0)) + 1e-3

    def loss(material: Material) -> float:
        return 0.5 * float(np.sum((case.last(material) - target) ** 2))

    state, path = case.solver.rest_state(), []
    for pose in case.poses:
        state, _ = case.solver.step(state, material, pose)
        path.append(state.positions)
    gradients = np.zeros((STEPS, *target.shape))
    gradients[-1] = path[-1] - target
    found = case.solver.adjoint(case.solver.rest_state(), np.array(path), material, gradients).material
    for field, step in (("youngs_modulus", 2e3), ("poisson_ratio", 1e-3), ("density", 10.0)):
        value = getattr(material, field)
        high, low = (loss(material._replace(**{field: value + sign * step})) for sign in (1.0, -1.0))
        # a hundredth of the value as step: 1e-4 of truncation, relative
        assert getattr(found, field)[0] == pytest.approx((high - low) / (2 * step), rel=1e-3)


def unreduced(body: Body) -> ReducedBody:
    """A subspace of all free degrees of freedom, with every strain sample."""
    shares = lumped_masses(body) / lumped_masses(body).sum()
    free = np.setdiff1d(np.arange(len(shares)), body.held_vertices)
    basis = np.zeros((len(shares), 3, 3 * len(free)))
    for k, vertex in enumerate(free):
        basis[vertex, :, 3 * k : 3 * k + 3] = np.eye(3) / np.sqrt(shares[vertex])
    return ReducedBody(body, basis, *every_sample(body), {})


def test_positions_and_tangents_are_those_of_a_reduced_model_that_leaves_nothing_out() -> None:
    mesh = {
        "kind": "box",
        "size": [LENGTH, WIDTH, WIDTH],
        "divisions": [3, 1, 1],
        "origin": [-LENGTH / 2, -WIDTH / 2, -WIDTH / 2],
    }
    body = gripped_bar(mesh=mesh)
    case, material, directions = Case(body, BDF2), material_of_zones(1), every_direction(1)
    model = unreduced(body).model()
    settings = StepSettings(BDF2, 1 / 60, mass_damping=0.5, viscous=True)
    poses = jnp.asarray(case.poses)
    rest = jnp.asarray(np.array([grip.rest_pose for grip in body.grips]))
    start = undeformed_state(model, settings, rest, 4)
    on_device = [Material(*map(jnp.asarray, fields)) for fields in (material, directions)]
    _, run = rollout(model, settings, *on_device, start, poses)
    assert (np.asarray(run.results) == CONVERGED).all()
    # two solvers of the same equations: the reduced one stops at 1e-10 m rms, the full one at 1e-13 m, and the
    # tangents' linear systems are solved to 1e-8
    frame = kinematics(model, poses[-1])
    x = positions(model, frame, run.latents[-1])
    np.testing.assert_allclose(x, case.last(material), atol=1e-9)
    tangents, expected = (
        np.asarray(position_tangents(model, frame, run.latents[-1], run.tangents[-1])),
        case.tangents(material, directions)[0],
    )
    for k in range(4):
        np.testing.assert_allclose(tangents[..., k], expected[..., k], atol=1e-6 * np.abs(expected[..., k]).max())
