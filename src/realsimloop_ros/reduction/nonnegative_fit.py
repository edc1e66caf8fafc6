"""Few columns with non-negative weights that stand for the sum of all: the fit behind every cubature.

Columns are added greedily by how well they explain the residual, with non-negative least squares between (An, Kim,
James 2008); half as many again as wanted are taken, and those that the fit misses least are dropped: measured,
that halves the error at equal count. Only normal equations are held, so a problem costs columns^3, not rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import nnls

_EXCESS = 1.5
# relative to unit columns; keeps the factor of nearly parallel columns defined
_RIDGE = 1e-12


@dataclass(frozen=True)
class NonnegativeFit:
    """index: (c,) ascending columns; weight: (c,) > 0; error: relative residual of the fit."""

    index: NDArray[np.int64]
    weight: NDArray[np.float64]
    error: float


class NormalEquations:
    """Sums of A^T A and A^T b over row blocks, so that no more than one block is ever held."""

    def __init__(self, columns: int) -> None:
        self.gram = np.zeros((columns, columns))
        self.moment = np.zeros(columns)
        self.square = 0.0

    def add(self, rows: NDArray[np.float64], right: NDArray[np.float64]) -> None:
        """Rows (p, k) of A and their right-hand side (p,)."""
        self.gram += rows.T @ rows
        self.moment += rows.T @ right
        self.square += float(right @ right)

    def error(self, index: NDArray[np.int64], weight: NDArray[np.float64]) -> float:
        """|A w - b| / |b|."""
        fitted = float(weight @ self.gram[np.ix_(index, index)] @ weight)
        squared = fitted - 2.0 * float(weight @ self.moment[index]) + self.square
        return float(np.sqrt(max(squared, 0.0) / self.square)) if self.square > 0.0 else 0.0


def fit_nonnegative(
    equations: NormalEquations, count: int, least: NDArray[np.float64] | None = None
) -> NonnegativeFit:
    """About `count` columns and their weights.

    least: (k,) weights that columns must have at the least; those above zero are always chosen, and count.
    Columns without any entry are never chosen. Raises ValueError where all are empty.
    """
    gram, moment = equations.gram, equations.moment
    norms = np.sqrt(np.diag(gram))
    usable = norms > 1e-12 * norms.max(initial=0.0)
    if not usable.any():
        raise ValueError("cubature: no candidate contributes anything; is the body held everywhere?")
    least = np.zeros(len(moment)) if least is None else np.where(usable, least, 0.0)
    always = np.flatnonzero(least > 0.0)
    # what the least weights leave over is fitted by additions to them
    left = moment - gram[:, always] @ least[always]
    norms = np.where(usable, norms, np.inf)
    active, weight = _grown(gram, left, norms, always, max(count, len(always)))
    active, weight = _pruned(gram, left, norms, active, weight, always, max(count, len(always)))
    total = weight + least[active]
    kept = total > 0.0
    active, total = active[kept], total[kept]
    order = np.argsort(active)
    active, total = active[order], total[order]
    return NonnegativeFit(active, total, equations.error(active, total))


def _grown(
    gram: NDArray[np.float64],
    moment: NDArray[np.float64],
    norms: NDArray[np.float64],
    always: NDArray[np.int64],
    count: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Columns added a batch at a time until there are _EXCESS times as many as wanted, or none explains more."""
    active, weight = always, np.zeros(len(always))
    batch = max(4, count // 10)
    for _ in range(10 * count):
        score = (moment - gram[:, active] @ weight) / norms
        score[active] = -np.inf
        best = np.argsort(score)[::-1][:batch]
        best = best[score[best] > 0.0]
        if len(best) == 0:
            break
        active, weight = _solved(gram, moment, norms, np.concatenate([active, best]), always)
        if len(active) >= _EXCESS * count:
            break
    return active, weight


def _pruned(
    gram: NDArray[np.float64],
    moment: NDArray[np.float64],
    norms: NDArray[np.float64],
    active: NDArray[np.int64],
    weight: NDArray[np.float64],
    always: NDArray[np.int64],
    count: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Down to `count` columns: those go whose loss, once the others are refitted, raises the residual least."""
    while len(active) > count:
        scale = norms[active]
        small = gram[np.ix_(active, active)] / np.outer(scale, scale) + _RIDGE * np.eye(len(active))
        inverse = cho_solve(cho_factor(small), np.eye(len(active)))
        cost = (weight * scale) ** 2 / np.diag(inverse)
        cost[np.isin(active, always)] = np.inf
        droppable = int(np.isfinite(cost).sum())
        drop = min(max(1, (len(active) - count) // 8), droppable)
        if drop == 0:
            break
        kept = np.argsort(cost, kind="stable")[drop:]
        active, weight = _solved(gram, moment, norms, active[kept], always)
    return active, weight


def _solved(
    gram: NDArray[np.float64],
    moment: NDArray[np.float64],
    norms: NDArray[np.float64],
    active: NDArray[np.int64],
    always: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Non-negative least squares over the active columns; those at zero leave, except `always`."""
    scale = norms[active]
    small = gram[np.ix_(active, active)] / np.outer(scale, scale)
    factor = np.linalg.cholesky(small + _RIDGE * np.eye(len(active)))
    right = solve_triangular(factor, moment[active] / scale, lower=True)
    scaled, _ = nnls(factor.T, right, maxiter=50 * len(active))
    kept = (scaled > 1e-9 * scaled.max(initial=0.0)) | np.isin(active, always)
    return active[kept], (scaled / scale)[kept]
