"""Viscosity is told by how a swing dies away: seen on a beam of full order, let go."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from estimation.twins import (
    BEGIN_NS,
    DEVIATION,
    TIP_MARKERS,
    TRUE_NU,
    Twin,
    fed,
    scene_of_frames,
    track,
)
from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.theta import Parameter, ParameterSpace
from realsimloop_ros.estimation.updates import EstimatorSettings, MaterialUpdate, UpdateStatus
from realsimloop_ros.mechanics.full_order import FullOrderSolver, SolveResult
from realsimloop_ros.mechanics.integrators import BDF2, IMPLICIT_EULER, Integrator
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.observation.likelihoods import FrameObservation, MarkerLikelihood
from realsimloop_ros.reduction.model import ReducedBody, every_sample
from realsimloop_ros.reduction.snapshots import SnapshotSettings, simulate_snapshots
from realsimloop_ros.reduction.subspaces import local_displacements, principal_basis
from reduced_bodies import clamped_beam

# swings at 8 Hz and dies away by 2.5 1/s
TRUE_E, VISCOSITY = 6e5, 900.0
FRAME, STEP, SECONDS = 0.01, 0.0025, 0.6


@cache
def swinging_twin() -> Twin:
    """A clamped beam and a subspace learnt from how it swings under its weight."""
    body = clamped_beam(markers=TIP_MARKERS)
    settings = SnapshotSettings(
        steps=40, time_step=0.005, youngs_modulus=(0.4e6, 1e6), gravity_direction=(0.0, 0.0, -1.0), every=1
    )
    snapshots = [simulate_snapshots(body, settings, k) for k in range(3)]
    basis, _ = principal_basis(body, local_displacements(body, snapshots), 12)
    return Twin(body, ReducedBody(body, basis, *every_sample(body), {}).model())


@pytest.fixture(scope="module")
def frames() -> tuple[FrameObservation, ...]:
    """Markers on the tip of a beam let go in its rest shape, with noise; steps of half the twin's."""
    twin, h = swinging_twin(), FRAME / 8
    solver = FullOrderSolver(twin.body, StableNeoHookean(), time_step=h)
    material = material_of(twin.body, TRUE_E, TRUE_NU, VISCOSITY)
    markers = MarkerLikelihood(twin.body, DEVIATION)
    random, seen = np.random.default_rng(3), []
    state = solver.rest_state()
    for step in range(1, round(SECONDS / h) + 1):
        state, report = solver.step(state, material)
        assert report.result is SolveResult.CONVERGED
        if step % 8 == 0:
            marked = markers.predicted(state.positions)
            noisy = marked + DEVIATION * random.standard_normal(marked.shape)
            seen.append(FrameObservation(BEGIN_NS + round(step * h * 1e9), noisy))
    return tuple(seen)


def estimated(frames: tuple[FrameObservation, ...], scheme: Integrator) -> MaterialUpdate:
    """The last update, of E and viscosity from priors that are far off."""
    twin = swinging_twin()
    prior = material_of(twin.body, 1.5 * TRUE_E, TRUE_NU, VISCOSITY / 3.0)
    parameters = (
        Parameter("bar", "youngs_modulus", float(np.log(2.0)), 1e3, 1e7),
        Parameter("bar", "viscosity", float(np.log(3.0)), 1.0, 1e5),
    )
    held = track(twin, StepSettings(scheme, STEP, viscous=True), start="undeformed", origin_ns=BEGIN_NS)
    moving = EstimatorSettings(
        window=30, ticks_per_segment=round(5 * FRAME / STEP), forgetting=1.0, relinearisations=90
    )
    running = TwinEstimator([held], ParameterSpace(("bar",), parameters, prior), moving)
    return fed(running, scene_of_frames(frames))[-1]


def test_a_swing_tells_viscosity_and_modulus_apart(frames: tuple[FrameObservation, ...]) -> None:
    last = estimated(frames, BDF2)
    assert last.status is UpdateStatus.UPDATED
    assert last.parameter_names == ("bar.log_youngs_modulus", "bar.log_viscosity")
    # BDF2 lowers the frequency by (2 pi f h)^2 / 3, 0.5 %, and so raises E by at most 1 %, less what the sag says
    assert last.material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=0.008)
    # it damps by (2 pi f)^4 h^3 / 4, 1 % of the decay; the frequency that is 0.5 % off is worth about as much
    assert last.material.viscosity[0] == pytest.approx(VISCOSITY, rel=0.04)
    # both are known as well as the model may claim to know them
    np.testing.assert_allclose(np.sqrt(np.diag(last.covariance)), [0.02, 0.1], rtol=0.1)


def test_an_integrator_that_damps_leaves_nothing_for_viscosity(frames: tuple[FrameObservation, ...]) -> None:
    last = estimated(frames, IMPLICIT_EULER)
    # implicit Euler damps by (2 pi f)^2 h / 2, 3.1 1/s: more than the beam itself
    assert last.material.viscosity[0] < 0.05 * VISCOSITY
