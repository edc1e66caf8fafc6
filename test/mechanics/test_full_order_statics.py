"""Static equilibrium: locking, the elastica, grips, weight and reactions, robustness of Newton's method."""

from __future__ import annotations

import numpy as np
import pytest
from jaxtyping import Array
from scipy.integrate import solve_bvp
from scipy.spatial.transform import Rotation

from body.bodies import bar
from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import BodySpecification
from realsimloop_ros.body.poses import IDENTITY_POSE, make_pose, transform_points
from realsimloop_ros.mechanics import newton
from realsimloop_ros.mechanics.full_order import FullOrderSolver, SolveResult
from realsimloop_ros.mechanics.laws import MaterialLaw, StableNeoHookean, Yeoh
from realsimloop_ros.mechanics.material import material_of

E = 264e3


def _real_beam(divisions: tuple[int, int, int], quadratic: bool, mass: float) -> Body:
    """The shape of the captured beam: 100 x 30 x 30 mm, clamped at x = 0, a mass on the upper tip edge."""
    return BodySpecification.model_validate(
        {
            "name": "beam",
            "mesh": {
                "kind": "box",
                "size": [0.1, 0.03, 0.03],
                "divisions": divisions,
                "quadratic": quadratic,
            },
            "zones": [{"name": "silicone", "density": 1070}],
            "fixed": {"maximum": [0, None, None]},
            "hung_weights": [{"name": "w", "mass": mass, "region": {"minimum": [0.1, None, 0.03]}}],
        }
    ).build()


@pytest.mark.parametrize(
    ("quadratic", "divisions", "expected"),
    [
        # mean sag of the tip face in mm: nu 0.45 own weight, 52 g; nu 0.49 own weight, 52 g
        (True, (10, 2, 2), (6.66, 16.44, 6.46, 16.03)),
        (False, (20, 4, 4), (4.43, 10.86, 2.42, 5.80)),
    ],
    ids=["quadratic", "linear"],
)
def test_linear_tets_lock_and_quadratic_ones_do_not(
    quadratic: bool, divisions: tuple[int, int, int], expected: tuple[float, ...]
) -> None:
    """Both meshes have 525 nodes; beam theory says 6.63 and 16.18 mm."""
    found = []
    for poisson_ratio in (0.45, 0.49):
        for mass in (0.0, 0.052):
            body = _real_beam(divisions, quadratic, mass)
            solver = FullOrderSolver(body, StableNeoHookean(), time_step=0.01)
            state, report = solver.static_state(material_of(body, E, poisson_ratio))
            assert report.result == SolveResult.CONVERGED
            tip = body.rest_positions[:, 0] > 0.1 - 1e-9
            found.append(1e3 * float((body.rest_positions - state.positions)[tip, 2].mean()))
    # the expected values are given to 0.01 mm
    np.testing.assert_allclose(found, expected, atol=0.006)
    if quadratic:
        # beam theory knows neither the clamp's hold on the section nor the law's nonlinearity: 3 %
        np.testing.assert_allclose(found, [6.63, 16.18, 6.63, 16.18], rtol=0.03)


def _elastica(bending_stiffness: float, length: float, tip_force: float, weight: float) -> tuple[float, float]:
    """Tip position along and across a clamped beam that does not stretch; tip_force N, weight N/m, both down.

    EI theta'' = -(P + w (L - s)) cos(theta), theta the slope downwards, solved as a boundary value problem.
    """

    def slope(s: np.ndarray, y: np.ndarray) -> np.ndarray:
        moment = -(tip_force + weight * (length - s)) * np.cos(y[0]) / bending_stiffness
        return np.stack([y[1], moment, np.cos(y[0]), np.sin(y[0])])

    def ends(clamp: np.ndarray, tip: np.ndarray) -> np.ndarray:
        return np.array([clamp[0], tip[1], clamp[2], clamp[3]])

    mesh = np.linspace(0.0, length, 101)
    solution = solve_bvp(slope, ends, mesh, np.zeros((4, 101)), tol=1e-9)
    assert solution.success
    return float(solution.y[2, -1]), float(solution.y[3, -1])


@pytest.mark.parametrize("loading", ["tip", "weight"])
def test_a_slender_cantilever_follows_the_elastica(loading: str) -> None:
    length, side = 0.2, 0.01
    stiffness = E * side**4 / 12.0
    tip_force = 2.0 * stiffness / length**2 if loading == "tip" else 0.0
    weight = 4.0 * stiffness / length**3 if loading == "weight" else 0.0
    density = 1000.0 if loading == "tip" else weight / (9.81 * side**2)
    body = bar((length, side, side), (20, 1, 1), density=density)
    gravity = (0.0, 0.0, -9.81) if loading == "weight" else (0.0, 0.0, 0.0)
    solver = FullOrderSolver(body, StableNeoHookean(), time_step=1.0, gravity=gravity)
    tip = np.flatnonzero(body.rest_positions[:, 0] > length - 1e-9)
    force = np.zeros_like(body.rest_positions)
    force[tip, 2] = -tip_force / len(tip)
    # nu near zero: a beam has no sideways strain to be hindered at the clamp
    state, report = solver.static_state(material_of(body, E, 1e-6), external_force=force)
    assert report.result == SolveResult.CONVERGED
    middle = tip[np.linalg.norm(body.rest_positions[tip, 1:] - side / 2, axis=1).argmin()]
    found = state.positions[middle] - np.array([0.0, side / 2, side / 2])
    along, across = _elastica(stiffness, length, tip_force, weight)
    assert across > 0.4 * length  # a large deflection
    # the elastica leaves out shear, which adds P L / (5/6 G A) = 0.2 mm, or 1e-3 L, of sag; 1e-3 more for the mesh
    np.testing.assert_allclose(found, [along, 0.0, -across], atol=2e-3 * length)


def test_reactions_at_rest_are_the_weight() -> None:
    body = _real_beam((4, 1, 1), True, 0.052)
    solver = FullOrderSolver(body, StableNeoHookean(), time_step=0.01)
    material = material_of(body, E, 0.45, 5.0)
    state, _ = solver.static_state(material)
    reactions = solver.held_reactions(state, state, material)
    weight = (1070.0 * 0.1 * 0.03**2 + 0.052) * 9.81
    # Newton stops at moves of 1e-8 of the size: 1e-9 m times a stiffness below 1e5 N/m
    np.testing.assert_allclose(reactions.sum(axis=0), [0.0, 0.0, weight], atol=1e-4)
    x = state.positions
    moment = np.cross(x[body.held_vertices], reactions).sum(axis=0)
    load = np.cross(x, solver.masses(material)[:, None] * solver.gravity).sum(axis=0)
    np.testing.assert_allclose(moment + load, np.zeros(3), atol=1e-5)


def test_grip_wrenches_carry_the_weight_between_two_grips() -> None:
    body = bar(holds="grips")
    solver = FullOrderSolver(body, StableNeoHookean(), time_step=0.01)
    material = material_of(body, E, 0.45)
    turn = Rotation.from_rotvec([0.3, -0.2, 0.1])
    whole = make_pose([0.3, -0.1, 0.5], turn)
    poses = np.stack([make_pose(whole[:3], turn), make_pose(transform_points(whole, [[0.1, 0, 0]])[0], turn)])
    state, report = solver.static_state(material, poses)
    assert report.result == SolveResult.CONVERGED
    wrenches = solver.grip_wrenches(state, state, material, poses)
    forces = np.stack([Rotation.from_quat(p[3:]).apply(w[:3]) for p, w in zip(poses, wrenches, strict=True)])
    weight = solver.masses(material).sum() * 9.81
    np.testing.assert_allclose(forces.sum(axis=0), [0.0, 0.0, -weight], atol=1e-4)  # as above
    moments = [
        Rotation.from_quat(p[3:]).apply(w[3:]) + np.cross(p[:3], f)
        for p, w, f in zip(poses, wrenches, forces, strict=True)
    ]
    load = np.cross(state.positions, solver.masses(material)[:, None] * solver.gravity).sum(axis=0)
    np.testing.assert_allclose(np.sum(moments, axis=0), load, atol=1e-5)


def test_grips_moved_together_carry_the_body_rigidly() -> None:
    body = bar(holds="grips")
    solver = FullOrderSolver(body, StableNeoHookean(), time_step=0.01, gravity=np.zeros(3))
    whole = make_pose([0.1, 0.2, -0.3], Rotation.from_rotvec([0.0, 1.2, 0.4]))
    poses = np.stack([whole, whole])
    poses[1, :3] = transform_points(whole, body.grips[1].rest_pose[None, :3])[0]
    state, report = solver.static_state(material_of(body, E, 0.45), poses, load_steps=4)
    assert report.result == SolveResult.CONVERGED
    # at the end of the last step nothing is strained; the last Newton move is below 1e-8 of the size
    np.testing.assert_allclose(
        state.positions, transform_points(whole, body.rest_positions), atol=1e-8 * body.size
    )


def test_grips_moved_apart_stretch_and_twist_the_body() -> None:
    body = bar(holds="grips")
    solver = FullOrderSolver(body, StableNeoHookean(), time_step=0.01, gravity=np.zeros(3))
    material = material_of(body, E, 0.45)
    turn = Rotation.from_rotvec([1.0, 0.0, 0.0])
    # turned about the bar's own axis, which runs through the middle of its faces
    centre = np.array([0.0, 0.015, 0.015])
    poses = np.stack([IDENTITY_POSE, make_pose(np.array([0.12, 0, 0]) + centre - turn.apply(centre), turn)])
    state, report = solver.static_state(material, poses, load_steps=3)
    assert report.result == SolveResult.CONVERGED
    left, right = body.grips
    np.testing.assert_allclose(state.positions[left.vertices], body.rest_positions[left.vertices], atol=1e-15)
    moved = transform_points(poses[1], body.rest_positions[right.vertices] - [0.1, 0, 0])
    np.testing.assert_allclose(state.positions[right.vertices], moved, atol=1e-15)  # exact, to rounding
    wrenches = solver.grip_wrenches(state, state, material, poses)
    # the body pulls the grips together and untwists them; what the grips feel is in balance
    assert wrenches[0, 0] > 1.0 and wrenches[1, 0] < -1.0
    assert wrenches[0, 3] > 0.0
    np.testing.assert_allclose(wrenches[0, 0], -wrenches[1, 0], rtol=1e-5)


@pytest.mark.parametrize("law", [StableNeoHookean(), Yeoh()], ids=["stable_neo_hookean", "yeoh"])
def test_a_compressed_bar_takes_the_projected_path_and_converges(
    law: MaterialLaw, monkeypatch: pytest.MonkeyPatch
) -> None:
    projections = []
    project = newton.positive_definite

    def counted(tangents: Array) -> Array:
        projections.append(len(tangents))
        return project(tangents)

    monkeypatch.setattr(newton, "positive_definite", counted)
    body = bar(holds="grips")
    solver = FullOrderSolver(body, law, time_step=0.01, max_iterations=100)
    poses = np.stack([IDENTITY_POSE, make_pose([0.06, 0.0, 0.0], Rotation.identity())])
    # pushed by 40 %, far past buckling: the tangent is indefinite on the way
    state, report = solver.static_state(material_of(body, E, 0.45), poses, load_steps=4)
    assert projections
    assert report.result == SolveResult.CONVERGED
    assert np.isfinite(state.positions).all()
