"""How far a frame contradicts what is known, and what it then counts."""

from __future__ import annotations

import numpy as np
import pytest

from realsimloop_ros.estimation.outliers import OutlierWeights, contradiction, weighted
from realsimloop_ros.estimation.window import Evidence


def evidence(mean: np.ndarray, precision: np.ndarray, at: np.ndarray) -> Evidence:
    """Linearised at `at`, of a quadratic loss with its minimum at `mean`."""
    return Evidence(at, 1.0, precision @ (at - mean), precision, 1, True, {})


def test_the_distance_is_that_of_two_measurements_in_their_common_deviations() -> None:
    # of one number: 1 known to 0.3, and 2 measured to 0.4; their difference has a deviation of 0.5
    found = evidence(np.array([2.0]), np.array([[1 / 0.16]]), np.array([1.7]))
    assert contradiction(found, np.array([[1 / 0.09]]), np.array([1 / 0.09])) == pytest.approx(2.0)


def test_what_a_frame_says_nothing_of_does_not_count_as_contradicting() -> None:
    along = np.array([1.0, 1.0])
    found = evidence(np.array([3.0, 1.0]), np.outer(along, along) / 0.16, np.zeros(2))
    # known to be (0, 0), each to 0.3: their sum to 0.3 sqrt 2, and 4 was found
    expected = 4.0 / np.sqrt(0.16 + 2 * 0.09)
    assert contradiction(found, np.eye(2) / 0.09, np.zeros(2)) == pytest.approx(expected)
    assert contradiction(evidence(np.zeros(2), np.zeros((2, 2)), np.zeros(2)), np.eye(2), np.ones(2)) == 0.0


def test_innovations_of_consistent_data_have_the_deviation_that_is_claimed() -> None:
    random, distances = np.random.default_rng(0), []
    for _ in range(2000):
        truth = 0.3 * random.standard_normal(2)
        seen = truth + 0.1 * random.standard_normal(2)
        distances.append(contradiction(evidence(seen, np.eye(2) / 0.01, seen), np.eye(2) / 0.09, np.zeros(2)))
    # a chi-square of two degrees of freedom: mean 2, of 2000 draws known to 2 / sqrt 2000
    assert np.mean(np.square(distances)) == pytest.approx(2.0, abs=4 * 2 / np.sqrt(2000))


def test_a_single_frame_counts_less_and_a_run_of_them_in_full() -> None:
    weights = OutlierWeights(5.0, run=2)
    assert [weights.weigh(d) for d in (1.0, 10.0, 4.0, 10.0, 10.0, 10.0)] == [1.0, 0.25, 1.0, 0.25, 0.25, 1.0]


def test_weighted_evidence_has_its_minimum_where_it_was() -> None:
    found = evidence(np.array([2.0]), np.array([[4.0]]), np.array([1.0]))
    light = weighted(found, 0.25)
    for one in (found, light):
        precision, vector = one.information()
        assert np.linalg.solve(precision, vector) == pytest.approx([2.0])
    assert light.loss_at(np.array([0.0])) == pytest.approx(0.25 * found.loss_at(np.array([0.0])))
