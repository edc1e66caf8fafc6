"""Derivatives along grip poses, winches and colliders, and of a body that nothing holds, against central
differences.

The motions pass no event: contact is made and the cable taut throughout, since the derivative of a step through an
event is that of one side or the other.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import BodySpecification
from realsimloop_ros.dynamics.adjoint import adjoint
from realsimloop_ros.dynamics.rollout import (
    InputTangents,
    Trajectory,
    TwinState,
    rest_state,
    rollout,
    undeformed_state,
    with_free_start,
)
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings, past_entry, past_of_rest, place
from realsimloop_ros.mechanics.colliders import Plane, Sphere
from realsimloop_ros.mechanics.contact import Contact, ContactSettings
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.surroundings import Instant
from realsimloop_ros.reduction.model import ReducedBody, ReducedModel, every_sample, vertices
from reduced_bodies import REST_POSES, bar_specification, gripped_bar, smooth_reduced_body

STEPS = 6
SETTINGS = StepSettings(BDF2, 1 / 60, viscous=True, mass_damping=0.5, move_tolerance=1e-13)
MATERIAL = Material(jnp.array([1e5]), jnp.array([0.45]), jnp.array([100.0]), jnp.array([1070.0]))
# one direction of each field, in steps of the size of its value
DIRECTIONS = Material(*(scale * jnp.eye(4)[:, k : k + 1] for k, scale in enumerate((1e5, 0.1, 100.0, 500.0))))
# The error of a central difference with step 1e-5: rounding of converged states (1e-13 m) over the step, and
# the third derivative times its square. The core's bound is 1e-5.
TOLERANCE, STEP = 1e-5, 1e-5
CABLE = {
    "name": "tendon",
    "frame": "winch",
    "anchor": [0.0, 0.0, 0.1],
    "points": [[-0.03, 0.0, 0.015], [0.03, 0.0, 0.015]],
    "stiffness": 300.0,
}


def moving_grips() -> jnp.ndarray:
    """Grips that come together and turn a little, (w, 2, 7)."""
    poses = np.tile(REST_POSES, (STEPS, 1, 1))
    t = np.linspace(0.2, 1.0, STEPS)
    poses[:, 0, 0] += 0.01 * t
    poses[:, 1, 2] += 0.008 * t
    half = 0.15 * t
    poses[:, 1, 3:] = np.stack([np.sin(half), 0 * half, 0 * half, np.cos(half)], axis=1)
    return jnp.asarray(poses)


def surrounded() -> tuple[ReducedModel, Instant]:
    """A bar that a ball presses up against a cable, and where both are at w + 1 instants."""
    contact = Contact({"ball": Sphere(0.02)}, ContactSettings(2e6, 4e-3, friction=0.5, friction_velocity=0.02))
    body = BodySpecification.model_validate({**bar_specification(), "cables": [CABLE]}).build()
    model = smooth_reduced_body(body).model(contact=contact)
    t = np.linspace(0.0, 1.0, STEPS + 1)
    poses = np.zeros((STEPS + 1, 1, 7))
    poses[:, 0, 6] = 1.0
    poses[:, 0, 0] = 0.01 * t
    poses[:, 0, 2] = -0.034 + 0.002 * t
    lengths = 0.2 - 0.01 * t[:, None]
    anchors = np.tile([[0.0, 0.0, 0.1]], (STEPS + 1, 1, 1))
    return model, Instant(*map(jnp.asarray, (poses, lengths, anchors)))


@pytest.fixture(scope="module")
def plain() -> tuple[ReducedModel, None]:
    return smooth_reduced_body(gripped_bar()).model(), None


@pytest.fixture(scope="module")
def pressed() -> tuple[ReducedModel, Instant]:
    return surrounded()


def loss(weights: jnp.ndarray, latents: jnp.ndarray) -> jnp.ndarray:
    return jnp.sum(weights * latents) + 0.5e6 * jnp.sum(latents**2)


def weights_of(model: ReducedModel) -> jnp.ndarray:
    return jnp.asarray(1e3 * np.random.default_rng(4).standard_normal((STEPS, model.latent_size)))


def started(model: ReducedModel, instants: Instant | None, directions: Material) -> TwinState:
    first = None if instants is None else jax.tree.map(lambda leaf: leaf[0], instants)
    start, result = rest_state(model, SETTINGS, MATERIAL, directions, jnp.asarray(REST_POSES), first)
    assert int(result) == CONVERGED
    return start


@pytest.mark.parametrize("case", ["plain", "pressed"])
def test_both_strategies_give_the_derivatives_along_everything_that_is_done_to_a_body(
    case: str, request: pytest.FixtureRequest
) -> None:
    model, instants = request.getfixturevalue(case)
    poses, weights = moving_grips(), weights_of(model)
    random = np.random.default_rng(5)
    start = started(model, instants, DIRECTIONS)
    # what the start depends on is not asked here: the inputs move after it, the material in another test
    start = start._replace(
        past_tangents=jax.tree.map(jnp.zeros_like, start.past_tangents),
        latent_tangents=jnp.zeros_like(start.latent_tangents),
    )
    still = jax.tree.map(jnp.zeros_like, DIRECTIONS)
    along_poses = 1e-2 * random.standard_normal((STEPS, 2, 7, 4))
    # a quaternion moves within the unit sphere
    q = np.asarray(poses)[:, :, 3:, None]
    along_poses[:, :, 3:] -= q * (q * along_poses[:, :, 3:]).sum(axis=2, keepdims=True)
    along_instants = None
    if instants is not None:
        along_instants = Instant(*(1e-3 * random.standard_normal((*leaf.shape, 4)) for leaf in instants))
        along_instants.poses[..., 3:, :] = 0.0
    else:
        zero = np.zeros((STEPS + 1, 0))
        along_instants = Instant(zero[..., None, None], zero[..., None], zero[..., None, None])
        along_instants = Instant(
            np.zeros((STEPS + 1, 0, 7, 4)), np.zeros((STEPS + 1, 0, 4)), np.zeros((STEPS + 1, 0, 3, 4))
        )
    tangents = InputTangents(jnp.asarray(along_poses), Instant(*map(jnp.asarray, along_instants)))
    _, run = rollout(model, SETTINGS, MATERIAL, still, start, poses, instants, tangents)
    assert (np.asarray(run.results) == CONVERGED).all()
    loss_gradient = weights + 1e6 * run.latents
    forward = np.einsum("wr,wrp->p", loss_gradient, run.tangents)
    swept = adjoint(
        model, SETTINGS, MATERIAL, start, poses, run.latents, loss_gradient, instants, with_inputs=True
    )
    backward = np.einsum("wgi,wgip->p", swept.grip_poses, along_poses)
    for slope, direction in zip(swept.instants, along_instants, strict=True):
        backward += np.tensordot(slope, direction, axes=slope.ndim)

    def value(k: int, sign: float) -> float:
        def moved(leaf: jnp.ndarray, direction: np.ndarray) -> jnp.ndarray:
            return leaf + sign * STEP * direction[..., k]

        there = None if instants is None else Instant(*map(moved, instants, along_instants))
        _, run = rollout(model, SETTINGS, MATERIAL, still, start, moved(poses, along_poses), there)
        return float(loss(weights, run.latents))

    differences = np.array([(value(k, 1.0) - value(k, -1.0)) / (2 * STEP) for k in range(4)])
    scale = np.abs(differences).max()
    assert np.abs(forward - differences).max() < TOLERANCE * scale
    assert np.abs(backward - differences).max() < TOLERANCE * scale


def test_the_material_acts_through_contact_and_cables(pressed: tuple[ReducedModel, Instant]) -> None:
    model, instants = pressed
    poses, weights = moving_grips(), weights_of(model)

    def run_with(material: Material, directions: Material) -> tuple[TwinState, Trajectory]:
        first = jax.tree.map(lambda leaf: leaf[0], instants)
        start, _ = rest_state(model, SETTINGS, material, directions, jnp.asarray(REST_POSES), first)
        return start, rollout(model, SETTINGS, material, directions, start, poses, instants)[1]

    start, run = run_with(MATERIAL, DIRECTIONS)
    loss_gradient = weights + 1e6 * run.latents
    forward = np.einsum("wr,wrp->p", loss_gradient, run.tangents)
    swept = adjoint(model, SETTINGS, MATERIAL, start, poses, run.latents, loss_gradient, instants)
    backward = sum(np.asarray(d) @ np.asarray(g) for d, g in zip(DIRECTIONS, swept.material, strict=True))
    for slope, direction in zip(swept.past, start.past_tangents, strict=True):
        backward = backward + np.tensordot(slope, direction, axes=slope.ndim)
    values = []
    for k in range(4):
        ends = []
        for sign in (STEP, -STEP):
            material = jax.tree.map(lambda value, d, sign=sign, k=k: value + sign * d[k], MATERIAL, DIRECTIONS)
            ends.append(float(loss(weights, run_with(material, DIRECTIONS)[1].latents)))
        values.append((ends[0] - ends[1]) / (2 * STEP))
    differences = np.array(values)
    scale = np.maximum(np.abs(differences), 1e-3 * np.abs(differences).max())
    assert (np.abs(forward - differences) / scale).max() < TOLERANCE
    assert (np.abs(backward - differences) / scale).max() < TOLERANCE


def test_a_displaced_start_moves_all_that_is_remembered_of_it(pressed: tuple[ReducedModel, Instant]) -> None:
    model, instants = pressed
    first = jax.tree.map(lambda leaf: leaf[0], instants)
    rest, modes = jnp.asarray(REST_POSES), 2
    start = started(model, instants, DIRECTIONS)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((*leaf.shape, 2 * modes)), (start.past, start.latents))
    start = start._replace(past_tangents=zeros[0], latent_tangents=zeros[1])
    found = with_free_start(model, SETTINGS, rest, start, 0, modes, first).past_tangents
    placement = place(model, rest, first, first, SETTINGS.time_step)
    for k in range(modes):
        ends = [
            past_of_rest(SETTINGS, past_entry(model, SETTINGS, placement, start.latents[0].at[k].add(sign * STEP)))
            for sign in (1.0, -1.0)
        ]
        for name, tangents, high, low in zip(found._fields, found, *ends, strict=True):
            difference = (high - low) / (2 * STEP)
            assert np.abs(difference).max() > 0.0, name
            # strains are quadratic in the latent state: the difference is exact but for rounding over the step
            assert np.abs(tangents[..., k] - difference).max() < TOLERANCE * np.abs(difference).max(), name


# -- a body that nothing holds ---------------------------------------------------------------------------------


def free_body() -> Body:
    return BodySpecification.model_validate({**bar_specification(), "grips": [], "floating": True}).build()


def affine_reduced_body(body: Body, extra: int = 6) -> ReducedBody:
    """All affine motions and a few bending shapes, orthonormal in mass."""
    x = body.rest_positions - body.rest_positions.mean(axis=0)
    shapes = [np.outer(f, e) for f in (np.ones(len(x)), *x.T / 0.1) for e in np.eye(3)]
    shapes += [np.outer(np.cos(np.pi * (k + 2) * x[:, 0] / 0.2), e) for k in range(extra // 3) for e in np.eye(3)]
    root = np.sqrt(lumped_masses(body) / lumped_masses(body).sum())
    q, _ = np.linalg.qr((np.array(shapes) * root[None, :, None]).reshape(len(shapes), -1).T)
    basis = q.reshape(len(x), 3, -1) / root[:, None, None]
    return ReducedBody(body, basis, *every_sample(body), {"subspace": "synthetic"})


FREE = free_body()
POSE = jnp.array([[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
TWIST = jnp.array([0.3, 0.0, 0.5, 2.0, 1.0, 3.0])
NO_POSES = jnp.zeros((40, 0, 7))


def test_a_body_that_nothing_holds_flies_and_turns_as_a_rigid_one() -> None:
    settings = stepped_by(2e-3)
    model = affine_reduced_body(FREE).model()
    stiff = MATERIAL._replace(youngs_modulus=jnp.array([1e7]), viscosity=jnp.array([0.0]))
    start = undeformed_state(model, settings, POSE, 0, twist=TWIST)
    none = jax.tree.map(lambda d: d[:0], DIRECTIONS)
    _, run = rollout(model, settings, stiff, none, start, NO_POSES)
    assert (np.asarray(run.results) == CONVERGED).all()
    x = np.array([vertices(model, run.frames[k], run.latents[k]) for k in range(40)])
    masses = lumped_masses(FREE)
    centre = np.einsum("n,kni->ki", masses / masses.sum(), x)
    time = 2e-3 * np.arange(1, 41)
    # BDF2 is exact on parabolas but for its start: the past was set as if there had been no gravity before
    lag = 9.81 * 2e-3 * time
    expected = np.stack([0.3 * time, 0 * time, 0.5 * time - 0.5 * 9.81 * time**2], axis=1)
    np.testing.assert_allclose(centre[:, :2], expected[:, :2], atol=1e-9)
    assert (np.abs(centre[:, 2] - expected[:, 2]) < lag).all()
    # angular momentum about the centre stays: differences of BDF2 at two distant times, to its second order
    velocity = (1.5 * x[2:] - 2.0 * x[1:-1] + 0.5 * x[:-2]) / 2e-3
    arm = x[2:] - centre[2:, None]
    momentum = np.einsum("n,kni->ki", masses, np.cross(arm, velocity))
    assert np.abs(momentum[-1] - momentum[2]).max() < 0.01 * np.linalg.norm(momentum[2])


def stepped_by(time_step: float) -> StepSettings:
    return StepSettings(BDF2, time_step, viscous=True, move_tolerance=1e-13)


def test_sensitivities_of_a_floating_body_that_hits_the_floor_agree_with_central_differences() -> None:
    contact = Contact({"floor": Plane()}, ContactSettings(1e6, 4e-3, friction=0.3, friction_velocity=0.05))
    model = affine_reduced_body(FREE).model(contact=contact)
    settings = stepped_by(4e-3)
    steps = 8
    floor = np.zeros((steps + 1, 1, 7))
    floor[..., 6] = 1.0
    instants = Instant(jnp.asarray(floor), jnp.zeros((steps + 1, 0)), jnp.zeros((steps + 1, 0, 3)))
    # 2 mm into the band from the first step on, and pressed in further
    pose = POSE.at[0, 2].set(0.017)
    twist = jnp.array([0.05, 0.0, -0.2, 0.0, 0.3, 0.0])

    def run_with(material: Material, count: int = 4) -> Trajectory:
        first = jax.tree.map(lambda leaf: leaf[0], instants)
        start = undeformed_state(model, settings, pose, count, instant=first, twist=twist)
        return rollout(model, settings, material, DIRECTIONS, start, jnp.zeros((steps, 0, 7)), instants)[1]

    run = run_with(MATERIAL)
    assert (np.asarray(run.results) == CONVERGED).all()

    def placed(frame: jnp.ndarray, latent: jnp.ndarray) -> jnp.ndarray:
        return vertices(model, frame, latent)

    for k in range(4):
        _, found = jax.jvp(
            placed, (run.frames[-1], run.latents[-1]), (run.frame_tangents[-1, ..., k], run.tangents[-1, :, k])
        )
        ends = []
        for sign in (STEP, -STEP):
            there = run_with(jax.tree.map(lambda v, d, sign=sign, k=k: v + sign * d[k], MATERIAL, DIRECTIONS))
            ends.append(np.asarray(placed(there.frames[-1], there.latents[-1])))
        difference = (ends[0] - ends[1]) / (2 * STEP)
        assert np.abs(found - difference).max() < TOLERANCE * np.abs(difference).max(), k


def test_what_a_floating_body_cannot_do_is_said() -> None:
    model = affine_reduced_body(FREE).model()
    with pytest.raises(ValueError, match="nothing holds the body; begin with undeformed_state"):
        rest_state(model, SETTINGS, MATERIAL, DIRECTIONS, POSE)
    start = undeformed_state(model, SETTINGS, POSE, 0)
    latents = jnp.zeros((2, model.latent_size))
    with pytest.raises(ValueError, match="adjoint: nothing holds the body"):
        adjoint(model, SETTINGS, MATERIAL, start, NO_POSES[:2], latents, latents)


def test_missing_instants_are_named(pressed: tuple[ReducedModel, Instant]) -> None:
    model, instants = pressed
    with pytest.raises(ValueError, match="instants: none given, but the model has contact or cables"):
        rest_state(model, SETTINGS, MATERIAL, DIRECTIONS, jnp.asarray(REST_POSES))
    start = started(model, instants, DIRECTIONS)
    with pytest.raises(ValueError, match=r"instants: \[7, 7, 7\], expected 5 of each"):
        rollout(model, SETTINGS, MATERIAL, DIRECTIONS, start, moving_grips()[:4], instants)
