"""A ball that nothing holds bounces off the floor: the reduced model, on a floating frame, against full order."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body, Zone
from realsimloop_ros.body.meshing import box_bar
from realsimloop_ros.dynamics.rollout import no_directions, rollout, undeformed_state
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.mechanics.colliders import Plane
from realsimloop_ros.mechanics.contact import Contact, ContactSettings
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.mechanics.full_order import FullOrderSolver, FullOrderState
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.mechanics.surroundings import Instant, Surroundings
from realsimloop_ros.reduction.model import ReducedBody, every_sample, vertices
from realsimloop_ros.reduction.skinning_modes import skinning_basis

RADIUS, TIME_STEP, STEPS = 0.02, 1e-3, 48
HEIGHT, SPEED = 0.032, 0.7
CONTACT = Contact({"floor": Plane()}, ContactSettings(1e7, 4e-3))
FLOOR = np.array([[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])


def ball() -> Body:
    """A coarse ball of 48 tets."""
    x, tets = box_bar(2.0, 2.0, 2.0, (2, 2, 2), origin=(-1.0, -1.0, -1.0), quadratic=False)
    reach, length = np.abs(x).max(axis=1, keepdims=True), np.linalg.norm(x, axis=1, keepdims=True)
    x = RADIUS * x * np.divide(reach, length, out=np.zeros_like(length), where=length > 0)
    return Body("ball", x, tets, np.zeros(len(tets), np.int64), (Zone("all", 1070.0),))


BALL = ball()
MATERIAL = material_of(BALL, 3e5, 0.4, 60.0)
MASSES = lumped_masses(BALL)


def flight(count: int) -> NDArray[np.float64]:
    """Heights above where it starts, newest first, of a ball that has flown until then."""
    times = -TIME_STEP * np.arange(count)
    return -SPEED * times - 0.5 * 9.81 * times**2


def full_order() -> NDArray[np.float64]:
    """Height of the centre after each step, m, in full space, no step split."""
    solver = FullOrderSolver(
        BALL, StableNeoHookean(), time_step=TIME_STEP, integrator=BDF2, contact=CONTACT, max_substeps=1
    )
    shift = np.array([0.0, 0.0, 1.0]) * (HEIGHT + flight(4))[:, None, None]
    state = FullOrderState(BALL.rest_positions + shift)
    heights = []
    for _ in range(STEPS):
        state, _ = solver.step(state, MATERIAL, surroundings=Surroundings(FLOOR))
        heights.append(MASSES @ state.positions[:, 2] / MASSES.sum())
    return np.array(heights)


def reduced(latent_size: int) -> NDArray[np.float64]:
    """The same of a reduced model of skinning eigenmodes."""
    basis = skinning_basis(BALL, latent_size, np.array([3e5]), np.array([0.4]))
    model = ReducedBody(BALL, basis, *every_sample(BALL), {}).model(contact=CONTACT)
    settings = StepSettings(BDF2, TIME_STEP, viscous=True)
    poses = np.tile(FLOOR, (STEPS + 1, 1, 1))
    instants = Instant(jnp.asarray(poses), jnp.zeros((STEPS + 1, 0)), jnp.zeros((STEPS + 1, 0, 3)))
    first = Instant(*(leaf[0] for leaf in instants))
    pose = model.warp.rest_poses.at[0, 2].add(HEIGHT)
    start = undeformed_state(model, settings, pose, 0, instant=first)
    points = start.past.points.at[..., 2].add(jnp.asarray(flight(4))[:, None])
    start = start._replace(past=start.past._replace(points=points))
    material = MATERIAL._replace(**{k: jnp.asarray(v) for k, v in MATERIAL._asdict().items()})
    _, run = rollout(model, settings, material, no_directions(1), start, jnp.zeros((STEPS, 0, 7)), instants)
    assert (np.asarray(run.results) == CONVERGED).all()
    x = np.array([vertices(model, run.frames[k], run.latents[k]) for k in range(STEPS)])
    return x[:, :, 2] @ MASSES / MASSES.sum()


@pytest.fixture(scope="module")
def expected() -> NDArray[np.float64]:
    return full_order()


def test_a_subspace_of_everything_is_the_full_order_solution(expected: NDArray[np.float64]) -> None:
    # 27 vertices have 81 directions, 7 weights have 84: the same equations, with the frame as another way to write
    # them; both stop at a billionth of a metre, and the impact lets that grow
    heights = reduced(81)
    assert heights.min() < RADIUS  # it touches from 4 mm above the floor on
    np.testing.assert_allclose(heights, expected, atol=1e-6)


def test_few_modes_bounce_alike(expected: NDArray[np.float64]) -> None:
    heights = reduced(48)
    assert heights[-1] > heights.min() + 5e-3
    # a stiffer body than it should be leaves earlier: a hundredth of the ball's size
    assert np.abs(heights - expected).max() < 4e-4
