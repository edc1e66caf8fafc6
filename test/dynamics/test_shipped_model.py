"""The shipped model of the dual-arm bar: it does not diverge, and single precision is enough for it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from realsimloop_ros.dynamics.rollout import Trajectory, no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.material import Material, material_of
from realsimloop_ros.reduction.model import load_reduced_body
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from realsimloop_ros.resources import share_directory

REDUCED = load_reduced_body(share_directory() / "config" / "models" / "dual_arm_bar.npz")
BODY = REDUCED.body
TIME_STEP = 1.0 / 60.0
SETTINGS = StepSettings(BDF2, TIME_STEP)


def device(material: Material) -> Material:
    return Material(*map(jnp.asarray, material))


def test_ten_thousand_steps_of_fifty_motions_do_not_diverge() -> None:
    model = REDUCED.model(dtype=jnp.float32)
    steps, none = 200, no_directions(1)
    for seed in range(50):
        random = np.random.default_rng([7, seed])
        motion = SnapshotSettings(steps=steps, keyframes=10, time_step=TIME_STEP)
        poses = random_grip_motion(BODY, motion, random)
        modulus, ratio = np.exp(random.uniform(*np.log([1e5, 6e5]))), random.uniform(0.40, 0.48)
        material = device(material_of(BODY, modulus, ratio))
        start, result = rest_state(model, SETTINGS, material, none, poses[0])
        assert int(result) == CONVERGED
        _, run = rollout(model, SETTINGS, material, none, start, poses)
        assert (np.asarray(run.results) == CONVERGED).all(), seed
        # rms displacement beyond the grips' warp, a quarter of the bar's length: buckling ends that come 60 mm
        # nearer takes less
        assert np.linalg.norm(np.asarray(run.latents), axis=1).max() < 0.05, seed


def test_single_precision_gives_the_states_and_sensitivities_of_double() -> None:
    material = device(material_of(BODY, 2.4e5, 0.45))
    directions = Material(
        jnp.array([[2.4e5], [0.0]]), jnp.array([[0.0], [0.1]]), jnp.zeros((2, 1)), jnp.zeros((2, 1))
    )
    poses = random_grip_motion(BODY, SnapshotSettings(steps=48, keyframes=2), np.random.default_rng(3))

    def run(dtype: type) -> Trajectory:
        model = REDUCED.model(dtype=dtype)
        start, _ = rest_state(model, SETTINGS, material, directions, poses[0])
        return rollout(model, SETTINGS, material, directions, start, poses)[1]

    single, double = run(jnp.float32), run(jnp.float64)
    assert single.latents.dtype == jnp.float32
    # positions of 0.1 m round to 1e-8 m; steps of 1/60 s carry such errors on, some fifty of them
    np.testing.assert_allclose(single.latents, double.latents, atol=1e-6)
    scale = np.abs(double.tangents).max(axis=(0, 1))
    # the bound asked of the core
    assert (np.abs(np.asarray(single.tangents) - double.tangents).max(axis=(0, 1)) / scale).max() < 1e-2
