"""Steps of a quadratic loss: its minimum, descent along bounds and radii, and chosen directions only."""

from __future__ import annotations

import numpy as np
import pytest

from realsimloop_ros.estimation.bounded_step import BoundedStep, bounded_step

EVERY = np.eye(2)
FAR = np.full(2, np.inf)
UNBOUNDED = (-FAR, FAR)
# a narrow valley along (1, -1): what is good for both coordinates together is bad for each alone
VALLEY = np.array([[1.0, 0.99], [0.99, 1.0]])


def loss(hessian: np.ndarray, slope: np.ndarray, step: BoundedStep) -> float:
    return float(slope @ step.change + 0.5 * step.change @ hessian @ step.change)


def test_without_limits_it_is_newtons_step() -> None:
    slope = np.array([0.3, -0.2])
    step = bounded_step(VALLEY, slope, EVERY, UNBOUNDED, FAR)
    assert not step.limited
    np.testing.assert_allclose(step.change, -np.linalg.solve(VALLEY, slope), rtol=1e-13)  # rounding


def test_only_the_chosen_directions_move() -> None:
    direction = np.array([[0.6], [0.8]])
    step = bounded_step(VALLEY, np.array([1.0, 0.0]), direction, UNBOUNDED, FAR)
    assert step.change[0] * 0.8 == pytest.approx(step.change[1] * 0.6)
    assert loss(VALLEY, np.array([1.0, 0.0]), step) < 0.0


def test_no_direction_is_no_step() -> None:
    step = bounded_step(VALLEY, np.ones(2), np.zeros((2, 0)), UNBOUNDED, FAR)
    np.testing.assert_array_equal(step.change, np.zeros(2))
    assert not step.limited


def test_a_step_longer_than_its_radius_keeps_its_direction() -> None:
    slope = np.array([0.3, -0.2])
    free = bounded_step(VALLEY, slope, EVERY, UNBOUNDED, FAR).change
    step = bounded_step(VALLEY, slope, EVERY, UNBOUNDED, np.array([0.5, np.inf]))
    assert step.limited
    np.testing.assert_allclose(step.change, free * 0.5 / abs(free[0]), rtol=1e-13)


@pytest.mark.parametrize("seed", range(20))
def test_the_loss_never_rises_and_the_bounds_hold(seed: int) -> None:
    random = np.random.default_rng(seed)
    root = random.standard_normal((4, 4))
    hessian, slope = root @ root.T + 1e-3 * np.eye(4), random.standard_normal(4)
    u, lower, upper = np.zeros(4), -random.uniform(0.0, 0.2, 4), random.uniform(0.0, 0.2, 4)
    lower[random.integers(4)] = 0.0  # one stands at its bound
    before = 0.0
    for _ in range(6):
        slope_here = slope + hessian @ u
        step = bounded_step(hessian, slope_here, np.eye(4), (lower - u, upper - u), np.full(4, np.inf))
        u = u + step.change
        assert (u >= lower - 1e-12).all()
        assert (u <= upper + 1e-12).all()
        after = float(slope @ u + 0.5 * u @ hessian @ u)
        assert after <= before + 1e-12
        before = after


def test_clipping_each_coordinate_would_have_raised_the_loss() -> None:
    # the minimum lies at (-10, 10.1) or so; the second coordinate has no room
    slope = np.array([0.0, -0.2])
    free = -np.linalg.solve(VALLEY, slope)
    clipped = BoundedStep(np.clip(free, [-np.inf, -np.inf], [np.inf, 0.1]), True)
    assert loss(VALLEY, slope, clipped) > 0.0
    step = bounded_step(VALLEY, slope, EVERY, (-FAR, np.array([np.inf, 0.1])), FAR)
    assert loss(VALLEY, slope, step) < 0.0
    assert step.change[1] == pytest.approx(0.1)


def test_a_coordinate_at_its_bound_stays_while_the_others_go_on() -> None:
    slope = np.array([-1.0, -1.0])
    step = bounded_step(np.eye(2), slope, EVERY, (-FAR, np.array([0.0, np.inf])), FAR)
    assert step.limited
    np.testing.assert_allclose(step.change, [0.0, 1.0], atol=1e-15)
    # a bound that rounding left a hair away is a bound
    step = bounded_step(np.eye(2), slope, EVERY, (-FAR, np.array([1e-15, np.inf])), FAR)
    np.testing.assert_allclose(step.change, [0.0, 1.0], atol=1e-15)


def test_at_the_corner_of_all_bounds_nothing_moves() -> None:
    step = bounded_step(np.eye(2), -np.ones(2), EVERY, (-FAR, np.zeros(2)), FAR)
    np.testing.assert_array_equal(step.change, np.zeros(2))
    assert step.limited


def test_rounding_of_a_direction_that_does_not_move_a_coordinate_is_no_move_of_it() -> None:
    # the first coordinate stands at its bound and is, but for rounding, not in the direction
    direction = np.array([[1e-17], [1.0]])
    step = bounded_step(np.eye(2), np.array([0.0, -1.0]), direction, (-FAR, np.array([0.0, np.inf])), FAR)
    np.testing.assert_array_equal(step.change, [0.0, 1.0])
    assert not step.limited
