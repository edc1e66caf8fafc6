"""Adjoint and forward sensitivities against central differences, on every kind of body."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.dynamics.adjoint import adjoint
from realsimloop_ros.dynamics.rollout import rest_state, rollout, undeformed_state, with_free_start
from realsimloop_ros.dynamics.stepper import (
    CONVERGED,
    StepSettings,
    gradient,
    gradient_and_hessian,
    no_surroundings,
    place,
    step_problem,
)
from realsimloop_ros.mechanics.integrators import BDF2, IMPLICIT_EULER
from realsimloop_ros.mechanics.laws import Yeoh
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from reduced_bodies import clamped_beam, gripped_bar, smooth_reduced_body

TWO_ZONES = [
    {"name": "left", "density": 1070.0},
    {"name": "right", "density": 1100.0, "region": {"minimum": [0.0, None, None]}},
]
LOAD = [
    {"name": "weight", "mass": 0.02, "region": {"minimum": [-0.001, None, 0.015], "maximum": [0.001, None, None]}}
]
TIP_LOAD = [{"name": "weight", "mass": 0.01, "region": {"minimum": [0.1, None, 0.015]}}]
BODIES = {
    "gripped": gripped_bar,
    "gripped, two zones, loaded": lambda: gripped_bar(zones=TWO_ZONES, hung_weights=LOAD),
    "clamped": clamped_beam,
    "clamped, two zones, loaded": lambda: clamped_beam(zones=TWO_ZONES, hung_weights=TIP_LOAD),
}
STEPS = 8
# The error of a central difference with relative step 1e-5: rounding of the converged states (1e-12 of their size)
# over the step, and the third derivative times its square. The bound is 1e-5.
TOLERANCE = 1e-6


class Case:
    """A rollout and a random loss of its latent states as a function of the material."""

    def __init__(self, body, integrator, law=None):
        self.body = body
        self.model = smooth_reduced_body(body).model(law)
        self.settings = StepSettings(integrator, 1 / 60, viscous=True, mass_damping=0.5, move_tolerance=1e-13)
        random = np.random.default_rng(3)
        self.poses = jnp.asarray(random_grip_motion(body, SnapshotSettings(steps=STEPS, keyframes=1), random))
        self.weights = jnp.asarray(1e3 * random.standard_normal((STEPS, self.model.latent_size)))
        zones = len(body.zones)
        self.material = Material(
            *map(
                jnp.asarray,
                ([2e5, 3e5][:zones], [0.45, 0.4][:zones], [100.0, 200.0][:zones], [1070.0, 1100.0][:zones]),
            )
        )
        unit = jnp.eye(4 * zones)
        self.directions = Material(
            1e5 * unit[:, :zones],
            0.1 * unit[:, zones : 2 * zones],
            100.0 * unit[:, 2 * zones : 3 * zones],
            500.0 * unit[:, 3 * zones :],
        )

    def run(self, material):
        start, result = rest_state(self.model, self.settings, material, self.directions, self.poses[0])
        assert int(result) == CONVERGED
        _, trajectory = rollout(self.model, self.settings, material, self.directions, start, self.poses)
        return start, trajectory

    def loss(self, latents):
        return jnp.sum(self.weights * latents) + 0.5e6 * jnp.sum(latents**2)

    def loss_gradient(self, latents):
        return self.weights + 1e6 * latents

    def differences(self, step=1e-5):
        slopes = []
        for k in range(len(self.directions.youngs_modulus)):
            along = jax.tree.map(lambda d, k=k: step * d[k], self.directions)
            high = self.loss(self.run(jax.tree.map(jnp.add, self.material, along))[1].latents)
            low = self.loss(self.run(jax.tree.map(jnp.subtract, self.material, along))[1].latents)
            slopes.append(float(high - low) / (2 * step))
        return np.array(slopes)


@pytest.mark.parametrize("integrator", [IMPLICIT_EULER, BDF2], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("name", BODIES)
def test_adjoint_and_sensitivities_agree_with_central_differences(name, integrator):
    case = Case(BODIES[name](), integrator)
    start, trajectory = case.run(case.material)
    assert (np.asarray(trajectory.results) == CONVERGED).all()
    loss_gradient = case.loss_gradient(trajectory.latents)
    forward = np.einsum("wr,wrp->p", loss_gradient, trajectory.tangents)
    swept = adjoint(case.model, case.settings, case.material, start, case.poses, trajectory.latents, loss_gradient)
    backward = sum(
        np.asarray(d) @ np.asarray(g) for d, g in zip(case.directions, swept.material, strict=True)
    ) + sum(
        np.tensordot(cotangent, tangents, axes=cotangent.ndim)
        for cotangent, tangents in zip(swept.past, start.past_tangents, strict=True)
    )
    differences = case.differences()
    # a parameter's slope may be small beside the others': relative to the largest of its kind
    scale = np.maximum(np.abs(differences), 1e-3 * np.abs(differences).max())
    assert (np.abs(forward - differences) / scale).max() < TOLERANCE
    assert (np.abs(backward - differences) / scale).max() < TOLERANCE


def test_the_gradients_hold_for_another_law():
    case = Case(gripped_bar(), BDF2, Yeoh(0.15, -0.006))
    _, trajectory = case.run(case.material)
    forward = np.einsum("wr,wrp->p", case.loss_gradient(trajectory.latents), trajectory.tangents)
    differences = case.differences()
    assert (np.abs(forward - differences) / np.abs(differences)).max() < TOLERANCE


def test_the_start_corrections_are_the_derivatives_of_the_start():
    body = clamped_beam()
    case = Case(body, BDF2)
    modes, zones = 2, 4
    directions = Material(*(jnp.concatenate([d, jnp.zeros((2 * modes, 1))]) for d in case.directions))
    no_poses = jnp.zeros((0, 7))
    start = undeformed_state(case.model, case.settings, no_poses, zones + 2 * modes)
    start = with_free_start(case.model, case.settings, no_poses, start, zones, modes)
    _, trajectory = rollout(case.model, case.settings, case.material, directions, start, case.poses)
    slopes = np.einsum("wr,wrp->p", case.loss_gradient(trajectory.latents), trajectory.tangents)[zones:]
    for k in range(2 * modes):
        step = 1e-6
        values = []
        for sign in (1.0, -1.0):
            moved = start._replace(
                past=jax.tree.map(
                    lambda value, tangents, k=k, by=sign * step: value + by * tangents[..., zones + k],
                    start.past,
                    start.past_tangents,
                ),
                latents=start.latents + sign * step * start.latent_tangents[..., zones + k],
            )
            _, run = rollout(case.model, case.settings, case.material, directions, moved, case.poses)
            values.append(float(case.loss(run.latents)))
        difference = (values[0] - values[1]) / (2 * step)
        assert abs(slopes[k] - difference) < 1e-5 * np.abs(slopes).max()


def test_the_hessian_is_the_derivative_of_the_gradient():
    case = Case(gripped_bar(), BDF2)
    start, trajectory = case.run(case.material)
    nothing = no_surroundings(case.model.dtype)
    placement = place(case.model, case.poses[0], nothing, nothing, case.settings.time_step)
    problem = step_problem(case.model, case.settings, placement, start.past, case.material)
    latent = trajectory.latents[3]

    def slope(z):
        return gradient(case.model, case.settings, problem, case.material, z)

    direct, hessian = gradient_and_hessian(case.model, case.settings, problem, case.material, latent)
    exact = jax.jacfwd(slope)(latent)
    # two formulas of the same numbers: rounding of sums over some hundred samples
    np.testing.assert_allclose(hessian, exact, atol=1e-11 * np.abs(exact).max())
    np.testing.assert_allclose(direct, slope(latent), atol=1e-11 * np.abs(direct).max())
