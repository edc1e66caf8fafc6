"""Whatever is asked of the full-order solvers ends: in an error that names what is wrong, or in a result code with
finite positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from body.bodies import bar
from realsimloop_ros.body.body import Body, InvalidBodyError
from realsimloop_ros.body.meshing import box_bar
from realsimloop_ros.mechanics.explicit import ExplicitSolver, RunResult
from realsimloop_ros.mechanics.full_order import FullOrderSolver, SolveResult
from realsimloop_ros.mechanics.full_order_gradient import DifferentiableFullOrderSolver
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import InvalidMaterialError, Material, material_of

LAW = StableNeoHookean()
BEAM, GRIPPED = bar(divisions=(2, 1, 1)), bar(divisions=(2, 1, 1), holds="grips")
GOOD = material_of(BEAM, 264e3, 0.45)
SECOND = box_bar(0.1, 0.03, 0.03, (2, 1, 1), origin=(1.0, 0.0, 0.0))


def moved_vertex(value: float) -> np.ndarray:
    x = BEAM.rest_positions.copy()
    x[3, 0] = value
    return x


def with_second_part() -> Body:
    count = len(BEAM.rest_positions)
    return replace(
        BEAM,
        rest_positions=np.vstack([BEAM.rest_positions, SECOND[0]]),
        tets=np.vstack([BEAM.tets, SECOND[1] + count]),
        zone_of_tet=np.zeros(2 * len(BEAM.tets), np.int64),
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: replace(BEAM, rest_positions=moved_vertex(np.nan)), "vertex 3 is [nan"),
        (lambda: replace(BEAM, rest_positions=moved_vertex(np.inf)), "vertex 3 is [inf"),
        (lambda: replace(BEAM, tets=BEAM.tets[:, [0, 2, 1, 3, 6, 5, 4, 7, 9, 8]]), "tet 0 has volume -"),
        (lambda: replace(BEAM, rest_positions=BEAM.rest_positions * [1.0, 1.0, 0.0]), "tet 0 has volume 0"),
        (with_second_part, "falls into 2 parts and nothing holds 1 of them"),
        (
            lambda: replace(
                GRIPPED,
                grips=(GRIPPED.grips[0], replace(GRIPPED.grips[1], vertices=GRIPPED.grips[0].vertices)),
            ),
            "grips.right: shares vertices with another grip",
        ),
    ],
    ids=["not a number", "infinite", "inverted", "flat", "disconnected", "grips that overlap"],
)
def test_bodies_that_cannot_be_simulated_are_refused(make: Callable[[], Body], words: str) -> None:
    with pytest.raises(InvalidBodyError, match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gravity": [0.0, np.nan, 0.0]}, "gravity: [0.0, nan, 0.0], expected three finite numbers"),
        ({"gravity": [0.0, 9.81]}, "gravity: [0.0, 9.81], expected three finite numbers"),
        ({"mass_damping": -1.0}, "mass_damping: -1.0, expected 1/s >= 0"),
        ({"mass_damping": np.nan}, "mass_damping: nan"),
        ({"move_tolerance": 0.0}, "move_tolerance: 0.0, expected a positive length"),
        ({"move_tolerance": np.nan}, "move_tolerance: nan"),
        ({"max_iterations": 0}, "max_iterations: 0, expected at least 1"),
        ({"time_step": 1e-200}, "time_step: 1e-200, expected a positive number"),
        ({"time_step": 1e200}, "time_step: 1e+200, expected a positive number"),
    ],
    ids=lambda value: next(iter(value.items())).__repr__() if isinstance(value, dict) else "",
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        FullOrderSolver(BEAM, LAW, **{"time_step": 0.01, **options})


def test_inputs_of_other_shapes_are_refused() -> None:
    solver = FullOrderSolver(BEAM, LAW, time_step=0.01)
    force = np.zeros(3)
    words = re.escape("external_force: shape (3,), expected (45, 3)")
    with pytest.raises(ValueError, match=words):
        solver.step(solver.rest_state(), GOOD, external_force=force)
    with pytest.raises(ValueError, match=words):
        solver.static_state(GOOD, external_force=force)
    with pytest.raises(ValueError, match="load_steps: 0, expected at least 1"):
        solver.static_state(GOOD, load_steps=0)
    two_zones = Material(*(np.repeat(values, 2) for values in GOOD))
    words = re.escape("youngs_modulus: shape (2,), expected one value per zone of ('silicone',)")
    explicit = ExplicitSolver(BEAM, LAW, time_step=1e-5)
    for call in (
        lambda: solver.step(solver.rest_state(), two_zones),
        lambda: solver.static_state(two_zones),
        lambda: explicit.run(explicit.rest_state(), two_zones, 1),
    ):
        with pytest.raises(InvalidMaterialError, match=words):
            call()


OUT_OF_BOUNDS = {
    "negative modulus": GOOD._replace(youngs_modulus=np.array([-1e5])),
    "no modulus": GOOD._replace(youngs_modulus=np.array([0.0])),
    "infinite modulus": GOOD._replace(youngs_modulus=np.array([np.inf])),
    "nu of a half": GOOD._replace(poisson_ratio=np.array([0.5])),
    "nu above": GOOD._replace(poisson_ratio=np.array([0.6])),
    "nu below": GOOD._replace(poisson_ratio=np.array([-2.0])),
    "density not a number": GOOD._replace(density=np.array([np.nan])),
}


@pytest.mark.parametrize("material", OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS)
def test_a_material_out_of_bounds_is_a_result(material: Material) -> None:
    # material_of refuses such values by name; a caller that goes past it gets a code, and no NaN
    solver = FullOrderSolver(BEAM, LAW, time_step=0.01)
    with np.errstate(all="ignore"):
        for state, report in (solver.step(solver.rest_state(), material), solver.static_state(material)):
            assert report.result is not SolveResult.CONVERGED
            assert np.isfinite(state.positions).all()
        explicit = ExplicitSolver(BEAM, LAW, time_step=1e-5)
        states, _ = explicit.run(explicit.rest_state(), material, 1000, 10)
        assert all(np.isfinite(state.positions).all() for state in states)


@pytest.mark.parametrize("name", ["negative modulus", "no modulus", "nu of a half", "density not a number"])
def test_no_stable_step_is_made_up_for_a_material_without_stiffness(name: str) -> None:
    explicit = ExplicitSolver(BEAM, LAW, time_step=1e-5)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"material: .* has no positive stiffness"):
        explicit.stability_limit(OUT_OF_BOUNDS[name])


@pytest.mark.parametrize("distance", [0.05, 0.5, 50.0, 1e10, 1e200])
@pytest.mark.parametrize("way", [-1.0, 1.0], ids=["pressed", "pulled"])
def test_grips_that_go_anywhere_end_in_a_result(distance: float, way: float) -> None:
    solver = FullOrderSolver(GRIPPED, LAW, time_step=0.01)
    poses = np.array([grip.rest_pose for grip in GRIPPED.grips])
    poses[1, 0] += way * distance
    with np.errstate(all="ignore"):
        state, report = solver.step(solver.rest_state(), material_of(GRIPPED, 264e3, 0.45), poses)
    assert np.isfinite(state.positions).all()
    assert report.iterations <= 50
    # half of its length in one step is far, and still a motion
    assert (report.result is SolveResult.CONVERGED) == (distance == 0.05 or (distance == 0.5 and way > 0))


@pytest.mark.parametrize("newton", [1e10, 1e200])
def test_forces_of_any_size_end_in_a_result(newton: float) -> None:
    solver = FullOrderSolver(BEAM, LAW, time_step=0.01)
    with np.errstate(all="ignore"):
        state, report = solver.step(
            solver.rest_state(), GOOD, external_force=np.full_like(BEAM.rest_positions, newton)
        )
    assert report.result is not SolveResult.CONVERGED
    assert np.isfinite(state.positions).all()


def test_what_is_not_finite_stays_out_of_derivatives() -> None:
    solver = DifferentiableFullOrderSolver(BEAM, LAW, time_step=0.01)
    state = solver.rest_state()
    state.history[1, -1, 0] = np.nan
    tangents = np.zeros((*state.history.shape, 1))
    directions = Material(*(np.ones((1, 1)) for _ in GOOD))
    _, after, report = solver.step_with_tangents(state, tangents, GOOD, directions)
    # a step without a solution has no derivatives, and says so by its code and by NaN, not by wrong numbers
    assert report.result is SolveResult.NON_FINITE
    assert np.isnan(after).all()


def test_an_explicit_run_of_what_is_not_finite_is_a_result() -> None:
    explicit = ExplicitSolver(BEAM, LAW, time_step=1e-5)
    state = explicit.rest_state()
    state.positions[-1, 0] = np.inf
    with np.errstate(all="ignore"):
        assert explicit.run(state, GOOD, 10) == ([], RunResult.NON_FINITE)
