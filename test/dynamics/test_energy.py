"""Energy of closed, undamped bodies, full order and reduced, by one account: it falls as fast as the order of the
integrator says, and never grows beyond that.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from mechanics.meshes import irregular_block
from realsimloop_ros.body.body import Body
from realsimloop_ros.dynamics.rollout import no_directions, rest_state, rollout
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.mechanics.explicit import ExplicitSolver, MovingState
from realsimloop_ros.mechanics.full_order import FullOrderSolver, FullOrderState, SolveResult
from realsimloop_ros.mechanics.integrators import BDF2, IMPLICIT_EULER, Integrator
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import Material, material_of
from realsimloop_ros.reduction.model import ReducedBody, every_sample, vertices
from realsimloop_ros.reduction.subspaces import principal_basis
from reduced_bodies import LENGTH, WIDTH, clamped_beam

LAW = StableNeoHookean()
MESH = {
    "kind": "box",
    "size": [LENGTH, WIDTH, WIDTH],
    "divisions": [10, 1, 1],
    "origin": [-LENGTH / 2, -WIDTH / 2, -WIDTH / 2],
}
BEAM = clamped_beam(mesh=MESH)
MATERIAL = material_of(BEAM, 1e6, 0.45)
GRAVITY = np.array([0.0, 0.0, -9.81])
SECONDS = 1.0


def energies(body: Body, material: Material, scheme: Integrator, h: float, path: NDArray) -> NDArray[np.float64]:
    """Kinetic and elastic energy, J, of positions (t, n, 3) h apart; the first of rate's past have none."""
    judge = ExplicitSolver(body, LAW, time_step=1.0, gravity=np.zeros(3))
    rest = sum(judge.energies(judge.rest_state(), material))
    lags = len(scheme.rate) - 1
    found = []
    for t in range(lags, len(path)):
        velocity = np.tensordot(np.array(scheme.rate), path[t - lags : t + 1][::-1], axes=1) / h
        found.append(sum(judge.energies(MovingState(path[t], velocity), material)) - rest)
    return np.array(found)


def full_order_path(scheme: Integrator, h: float) -> NDArray[np.float64]:
    """Positions (t, n, 3) of the beam that is let go from its sag and weighs nothing any more."""
    sagging = FullOrderSolver(BEAM, LAW, time_step=h, integrator=scheme, gravity=GRAVITY)
    solver = FullOrderSolver(BEAM, LAW, time_step=h, integrator=scheme, gravity=np.zeros(3))
    state, _ = sagging.static_state(MATERIAL)
    path = list(state.history[: len(scheme.rate) - 1])
    for _ in range(round(SECONDS / h)):
        state, report = solver.step(state, MATERIAL)
        assert report.result is SolveResult.CONVERGED
        path.append(state.positions)
    return np.array(path)


def reduced_path(scheme: Integrator, h: float) -> NDArray[np.float64]:
    """The same of a reduced model of the four leading directions of that motion, with all samples."""
    moved = full_order_path(scheme, h) - BEAM.rest_positions
    basis, _ = principal_basis(BEAM, moved, 4)
    reduced = ReducedBody(BEAM, basis, *every_sample(BEAM), {})
    model, material = reduced.model(), Material(*map(jnp.asarray, MATERIAL))
    poses = jnp.zeros((round(SECONDS / h), 0, 7))
    start, result = rest_state(
        model, StepSettings(scheme, h, gravity=GRAVITY), material, no_directions(1), poses[0]
    )
    assert int(result) == CONVERGED
    settings = StepSettings(scheme, h, gravity=np.zeros(3))
    _, run = rollout(model, settings, material, no_directions(1), start, poses)
    assert (np.asarray(run.results) == CONVERGED).all()
    latents = jnp.concatenate([jnp.repeat(start.latents[:1], len(scheme.rate) - 1, axis=0), run.latents])
    return np.asarray(jax.jit(jax.vmap(lambda z: vertices(model, poses[0], z)))(latents))


@pytest.mark.parametrize("path", [full_order_path, reduced_path], ids=["full order", "reduced"])
@pytest.mark.parametrize(("scheme", "order"), [(IMPLICIT_EULER, 1), (BDF2, 3)], ids=["implicit_euler", "bdf2"])
def test_energy_falls_at_the_rate_of_the_integrators_order(
    path: Callable[[Integrator, float], NDArray], scheme: Integrator, order: int
) -> None:
    rates = []
    # 0.3 and 0.15 rad of the first mode (5 Hz) in a step
    for h in (1.0 / 100.0, 1.0 / 200.0):
        energy = energies(BEAM, MATERIAL, scheme, h, path(scheme, h))
        seconds = h * np.arange(len(energy))
        # the first mode alone: higher ones, which a sudden release sets going too, have died out
        late = seconds > 0.4
        rates.append(-np.polyfit(seconds[late], np.log(energy[late]), 1)[0])
        if scheme is IMPLICIT_EULER:
            # in every step, to the rounding of an energy at rest of 1e2 J and to what Newton leaves
            assert np.diff(energy).max() < 1e-9 * energy[0]
        else:
            # what counts as kinetic lags by second order, (0.3 rad)^2, and so the sum wavers
            assert energy.max() < 1.05 * energy[0]
    # halving the step: half (implicit Euler) or an eighth (BDF2, whose damping is of third order) of the loss
    assert np.log2(rates[0] / rates[1]) == pytest.approx(order, abs=0.35)


def test_a_free_spinning_block_keeps_momentum_and_only_loses_energy() -> None:
    body = irregular_block(quadratic=False)
    material, h = material_of(body, 1e5, 0.3), 2e-3
    solver = FullOrderSolver(body, LAW, time_step=h, integrator=IMPLICIT_EULER, gravity=np.zeros(3))
    masses = solver.masses(material)[:, None]
    x = body.rest_positions
    centre = (masses * x).sum(axis=0) / masses.sum()
    velocity = np.cross([0.0, 5.0, 20.0], x - centre) + np.array([0.3, 0.0, 0.1])
    state = FullOrderState(np.stack([x, x - h * velocity]))
    path, momenta = list(state.history[::-1]), []
    for _ in range(60):
        state, report = solver.step(state, material)
        assert report.result is SolveResult.CONVERGED
        path.append(state.positions)
        momenta.append((masses * (state.history[0] - state.history[1]) / h).sum(axis=0))
    # forces inside sum to nothing; each step may leave 1e-8 of the size, 6e-10 m, over h
    np.testing.assert_allclose(momenta, np.broadcast_to((masses * velocity).sum(axis=0), (60, 3)), atol=1e-6)
    energy = energies(body, material, IMPLICIT_EULER, h, np.array(path))
    assert np.diff(energy).max() < 1e-9 * energy[0]
    # it spins on: implicit Euler takes (20 rad/s h)^2 of the spin in a step, 0.16 %
    assert energy[-1] > 0.8 * energy[0]
