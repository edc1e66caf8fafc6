"""What has left the window: a loss that adds up, fades, and forgets a start but not what it taught."""

from __future__ import annotations

import numpy as np
import pytest

from realsimloop_ros.estimation.information import Information
from realsimloop_ros.estimation.window import Evidence


def evidence(seed: int, valid: bool = True) -> Evidence:
    """Of residuals that are linear in u, so that the quadratic model is the loss itself."""
    random = np.random.default_rng(seed)
    jacobian, target, u = random.standard_normal((9, 4)), random.standard_normal(9), random.standard_normal(4)
    error = jacobian @ u - target
    return Evidence(u, 0.5 * float(error @ error), jacobian.T @ error, jacobian.T @ jacobian, 1, valid, {})


def summed(*parts: Evidence, forgetting: float = 1.0) -> Information:
    information = Information(4)
    for part in parts:
        information.absorb(part, forgetting)
    return information


def test_absorbed_losses_add_up_wherever_they_were_linearised() -> None:
    parts, u = [evidence(k) for k in range(3)], np.array([0.3, -1.0, 2.0, 0.1])
    expected = sum(part.loss_at(u) for part in parts)
    assert summed(*parts).loss_at(u) == pytest.approx(expected, rel=1e-12)  # rounding


def test_older_knowledge_fades() -> None:
    first, second, u = evidence(0), evidence(1), np.ones(4)
    found = summed(first, second, forgetting=0.5)
    assert found.loss_at(u) == pytest.approx(0.5 * first.loss_at(u) + second.loss_at(u), rel=1e-12)


def test_evidence_that_does_not_vote_only_lets_time_pass() -> None:
    first, u = evidence(0), np.ones(4)
    found = summed(first, evidence(1, valid=False), forgetting=0.5)
    assert found.loss_at(u) == pytest.approx(0.5 * first.loss_at(u), rel=1e-12)


def test_what_is_marginalised_is_minimised_out_with_its_prior() -> None:
    prior = np.diag([1.0, 1.0, 4.0, 9.0])
    whole, reduced = summed(evidence(0)), summed(evidence(0))
    reduced.marginalise(slice(2, 4), prior)
    for theta in (np.zeros(2), np.array([0.5, -2.0])):
        # the best of the last two coordinates at these first two
        matrix = whole.precision[2:, 2:] + prior[2:, 2:]
        best = np.linalg.solve(matrix, whole.vector[2:] - whole.precision[2:, :2] @ theta)
        expected = whole.loss_at(np.concatenate([theta, best])) + 0.5 * best @ prior[2:, 2:] @ best
        for rest in (np.zeros(2), np.ones(2)):
            # and then nothing is known of them
            assert reduced.loss_at(np.concatenate([theta, rest])) == pytest.approx(expected, rel=1e-11)


def test_marginalising_nothing_changes_nothing() -> None:
    information = summed(evidence(0))
    before = information.loss_at(np.ones(4))
    information.marginalise(slice(4, 4), np.eye(4))
    assert information.loss_at(np.ones(4)) == before
