"""Which directions count as observable, and what marginalising the start does."""

from __future__ import annotations

import numpy as np
import pytest

from realsimloop_ros.estimation.identifiability import observable_part, without_nuisance


def random_precision(size: int, seed: int = 0) -> np.ndarray:
    root = np.random.default_rng(seed).standard_normal((size, 2 * size))
    return root @ root.T


@pytest.mark.parametrize("size", [1, 2, 3])
def test_marginalising_is_the_inverse_of_a_block_of_the_dense_inverse(size: int) -> None:
    precision = random_precision(6)
    expected = np.linalg.inv(np.linalg.inv(precision)[:size, :size])
    # rounding, times a condition number of some hundreds
    np.testing.assert_allclose(without_nuisance(precision, size), expected, rtol=1e-11)


def test_without_nuisance_nothing_is_marginalised() -> None:
    precision = random_precision(3)
    assert without_nuisance(precision, 3) is precision


def test_a_nuisance_that_explains_the_data_as_well_leaves_nothing_known() -> None:
    # both columns alike: moving the start does what moving theta does
    column = np.array([[1.0, 1.0], [2.0, 2.0], [0.5, 0.5]])
    precision = column.T @ column
    prior = 1e-8
    known = without_nuisance(precision + np.diag([0.0, prior]), 1)
    # what is left is what the nuisance's prior forbids
    assert known[0, 0] == pytest.approx(prior, rel=1e-6)


def test_directions_are_compared_in_units_of_the_prior() -> None:
    prior = np.diag([4.0, 1e6])  # deviations 0.5 and 1e-3
    data = np.diag([3.0, 3e5])  # 0.75 and 0.3 of what the prior knows
    part, share = observable_part(data, prior, 0.5)
    assert part.shape == (2, 1)
    np.testing.assert_allclose(np.abs(part[:, 0]), [0.5, 0.0], atol=1e-15)
    np.testing.assert_allclose(share, [1.0, 0.0], atol=1e-15)
    part, share = observable_part(data, prior, 0.25)
    assert part.shape == (2, 2)
    np.testing.assert_allclose(share, [1.0, 1.0])


def test_of_a_sum_alone_each_parameter_has_half() -> None:
    # data that see u0 + u1 only
    part, share = observable_part(100.0 * np.ones((2, 2)), np.eye(2), 0.25)
    assert part.shape == (2, 1)
    assert abs(part[0, 0] - part[1, 0]) < 1e-15
    np.testing.assert_allclose(share, [0.5, 0.5])


def test_no_data_make_nothing_observable() -> None:
    part, share = observable_part(np.zeros((3, 3)), np.eye(3), 0.25)
    assert part.shape == (3, 0)
    np.testing.assert_array_equal(share, np.zeros(3))
