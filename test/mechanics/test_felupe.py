"""The full-order solver against FElupe, an independent finite element code, on the same mesh."""

from __future__ import annotations

import felupe
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from body.bodies import bar
from mechanics.felupe_bodies import lame, stable_neo_hookean, static_solution
from realsimloop_ros.body.poses import make_pose
from realsimloop_ros.mechanics.full_order import FullOrderSolver, SolveResult
from realsimloop_ros.mechanics.laws import MaterialLaw, StableNeoHookean, Yeoh
from realsimloop_ros.mechanics.material import material_of

E, NU = 264e3, 0.45
MU, LAM = lame(E, NU)

# Yeoh's law without its higher terms is FElupe's neo-Hooke: mu/2 (J^(-2/3) I - 3) + bulk/2 (J - 1)^2
CASES = [
    (Yeoh(), felupe.NeoHooke(mu=MU, bulk=LAM + 2 / 3 * MU)),
    (StableNeoHookean(), stable_neo_hookean(E, NU)),
]


@pytest.mark.parametrize(("law", "umat"), CASES, ids=["neo_hookean", "stable_neo_hookean"])
def test_a_bar_stretched_bent_and_twisted_by_its_grips(law: MaterialLaw, umat: object) -> None:
    body = bar(holds="grips")
    poses = np.stack(
        [
            make_pose([0.0, 0.0, 0.0], Rotation.identity()),
            make_pose([0.12, 0.0, 0.01], Rotation.from_rotvec([0.5, 0.2, -0.1])),
        ]
    )
    solver = FullOrderSolver(body, law, time_step=1.0)
    material = material_of(body, E, NU)
    state, report = solver.static_state(material, poses, load_steps=2)
    assert report.result == SolveResult.CONVERGED
    weight = solver.masses(material)[:, None] * solver.gravity
    positions, internal = static_solution(body, umat, solver.held_positions(poses), weight)
    # the same equations: both solvers end near rounding, ours after a last move of at most 1e-8 of the size
    np.testing.assert_allclose(state.positions, positions, atol=1e-9 * body.size)
    reactions = (solver.elastic_forces(state, material) - weight)[body.held_vertices]
    theirs = (internal - weight)[body.held_vertices]
    # forces of up to 20 N, stiffness below 1e5 N/m times the differences in position allowed above
    np.testing.assert_allclose(reactions, theirs, atol=1e-5)
    # and the solver's own account of them, of a body that stays where it is
    np.testing.assert_allclose(solver.held_reactions(state, state, material), reactions, atol=1e-12)


@pytest.mark.parametrize(("law", "umat"), CASES, ids=["neo_hookean", "stable_neo_hookean"])
def test_a_cantilever_under_its_own_weight_and_a_load(law: MaterialLaw, umat: object) -> None:
    body = bar()
    x = body.rest_positions
    edge = np.flatnonzero((x[:, 0] > 0.1 - 1e-9) & (x[:, 2] > 0.03 - 1e-9))
    load = np.zeros_like(x)
    load[edge, 2] = -0.4 / len(edge)
    solver = FullOrderSolver(body, law, time_step=1.0)
    material = material_of(body, E, NU)
    state, report = solver.static_state(material, external_force=load)
    assert report.result == SolveResult.CONVERGED
    force = load + solver.masses(material)[:, None] * solver.gravity
    positions, internal = static_solution(body, umat, x, force)
    assert np.abs(state.positions - x).max() > 0.01  # a large deflection
    np.testing.assert_allclose(state.positions, positions, atol=1e-9 * body.size)  # as above
    np.testing.assert_allclose(solver.elastic_forces(state, material), internal, atol=1e-5)
