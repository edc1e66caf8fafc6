"""The full-order solver against FElupe, an independent finite element code, on the same mesh."""

from __future__ import annotations

import felupe
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from body.bodies import bar
from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import make_pose
from realsimloop_ros.mechanics.full_order import FullOrderSolver, SolveResult
from realsimloop_ros.mechanics.laws import MaterialLaw, StableNeoHookean, Yeoh
from realsimloop_ros.mechanics.material import material_of

E, NU = 264e3, 0.45
MU, LAM = E / (2 * (1 + NU)), E * NU / ((1 + NU) * (1 - 2 * NU))


def _stable_neo_hookean() -> felupe.Material:
    """The law as FElupe takes it, derived by hand: arrays (3, 3, points, cells)."""
    mu, lam = 4 / 3 * MU, LAM + 5 / 6 * MU
    rest = 1 + mu / lam - mu / (4 * lam)

    def parts(F: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        ratio = np.linalg.det(np.moveaxis(F, (0, 1), (-2, -1)))
        inverse = np.moveaxis(np.linalg.inv(np.moveaxis(F, (0, 1), (-2, -1))), (-2, -1), (0, 1))
        return np.einsum("ij...,ij...->...", F, F), ratio, inverse

    def stress(x: list) -> list:
        F = x[0]
        invariant, ratio, inverse = parts(F)
        return [
            mu * (1 - 1 / (invariant + 1)) * F + lam * (ratio - rest) * ratio * np.swapaxes(inverse, 0, 1),
            x[-1],
        ]

    def elasticity(x: list) -> list:
        F = x[0]
        invariant, ratio, inverse = parts(F)
        eye = np.eye(3)
        shape = F.shape[2:]
        unit = np.einsum("ik,jl->ijkl", eye, eye).reshape(3, 3, 3, 3, *[1] * len(shape))
        volume = np.einsum("ji...,lk...->ijkl...", inverse, inverse)
        turned = np.einsum("li...,jk...->ijkl...", inverse, inverse)
        return [
            mu * (1 - 1 / (invariant + 1)) * unit
            + 2 * mu / (invariant + 1) ** 2 * np.einsum("ij...,kl...->ijkl...", F, F)
            + lam * ((2 * ratio - rest) * ratio * volume - (ratio - rest) * ratio * turned)
        ]

    return felupe.Material(stress=stress, elasticity=elasticity)


# Yeoh's law without its higher terms is FElupe's neo-Hooke: mu/2 (J^(-2/3) I - 3) + bulk/2 (J - 1)^2
CASES = [
    (Yeoh(), felupe.NeoHooke(mu=MU, bulk=LAM + 2 / 3 * MU)),
    (StableNeoHookean(), _stable_neo_hookean()),
]


def _solve(
    body: Body, umat: object, moved: NDArray[np.float64], force: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions (n, 3) and internal forces (n, 3) with held vertices at `moved` under nodal forces, by FElupe."""
    mesh = felupe.Mesh(body.rest_positions, body.tets, "tetra10")
    region = felupe.RegionQuadraticTetra(mesh)
    field = felupe.FieldContainer([felupe.Field(region, dim=3)])
    solid = felupe.SolidBody(umat, field)
    held = np.zeros(mesh.npoints, bool)
    held[body.held_vertices] = True
    boundaries = {"held": felupe.Boundary(field[0], mask=held)}
    dof0, dof1 = felupe.dof.partition(field, boundaries)
    everywhere = np.arange(mesh.npoints)
    displacement = (moved - body.rest_positions).ravel()[dof0]
    for load in (0.5, 1.0):
        points = felupe.PointLoad(field, everywhere, values=load * force)
        felupe.newtonraphson(
            items=[solid, points], dof0=dof0, dof1=dof1, ext0=load * displacement, verbose=0, tol=1e-10
        )
    internal = np.asarray(solid.assemble.vector().todense()).reshape(-1, 3)
    return body.rest_positions + field[0].values, internal


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
    positions, internal = _solve(body, umat, solver.held_positions(poses), weight)
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
    positions, internal = _solve(body, umat, x, force)
    assert np.abs(state.positions - x).max() > 0.01  # a large deflection
    np.testing.assert_allclose(state.positions, positions, atol=1e-9 * body.size)  # as above
    np.testing.assert_allclose(solver.elastic_forces(state, material), internal, atol=1e-5)
