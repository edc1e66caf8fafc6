"""Assembly of the stiffness matrix, and its solution with a factor that outlives many matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from numpy.typing import NDArray

from realsimloop_ros.mechanics.elements import Quadrature


class NegativeCurvatureError(ArithmeticError):
    """The matrix is not positive definite along a search direction."""


@numba.njit(cache=True, parallel=True)
def _assemble(tangents, gradients, volume, points, slots, data_of_thread):  # pragma: no cover - compiled
    """Scatter  K[(a,i),(b,j)] = sum_s volume G[a,k] H[ik,jl] G[b,l]  into per-thread sparse data."""
    threads = data_of_thread.shape[0]
    elements = slots.shape[0]
    nodes = gradients.shape[1]
    for thread in numba.prange(threads):
        data = data_of_thread[thread]
        half = np.empty((nodes, 3, 3, 3))
        first = elements * thread // threads
        last = elements * (thread + 1) // threads
        for e in range(first, last):
            for q in range(points):
                s = e * points + q
                for a in range(nodes):
                    for i in range(3):
                        for j in range(3):
                            for m in range(3):
                                total = 0.0
                                for k in range(3):
                                    total += gradients[s, a, k] * tangents[s, 3 * i + k, 3 * j + m]
                                half[a, i, j, m] = total * volume[s]
                for a in range(nodes):
                    for i in range(3):
                        row = 3 * a + i
                        for b in range(nodes):
                            for j in range(3):
                                slot = slots[e, row, 3 * b + j]
                                if slot >= 0:
                                    data[slot] += (
                                        half[a, i, j, 0] * gradients[s, b, 0]
                                        + half[a, i, j, 1] * gradients[s, b, 1]
                                        + half[a, i, j, 2] * gradients[s, b, 2]
                                    )


@dataclass(frozen=True)
class StiffnessPattern:
    """Where the element entries go among the free degrees of freedom.

    free: (f,) free degrees of freedom (3 vertex + axis); indices, indptr: the CSC pattern; slots: (m, 3a, 3a)
    data index per element entry, -1 where a degree of freedom is held; diagonal: (f,) data indices.
    """

    free: NDArray[np.int64]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int32]
    slots: NDArray[np.int32]
    diagonal: NDArray[np.int64]

    def matrix(self, data: NDArray[np.float64]) -> sp.csc_matrix:
        size = len(self.free)
        return sp.csc_matrix((data, self.indices, self.indptr), shape=(size, size))

    def slots_among(self, vertices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Data index (3v, 3v) of every entry among vertices (v,), -1 where one is held.

        Entries that the pattern lacks are not looked for: vertices share a tet or a clique of the pattern.
        """
        size = len(self.free)
        dofs = (3 * vertices[:, None] + np.arange(3)).ravel()
        place = np.minimum(np.searchsorted(self.free, dofs), size - 1)
        number = np.where(self.free[place] == dofs, place, -1)
        keys = np.repeat(np.arange(size), np.diff(self.indptr)) * size + self.indices
        slots = np.searchsorted(keys, number[None, :] * size + number[:, None])
        return np.where((number[None, :] >= 0) & (number[:, None] >= 0), slots, -1)


def stiffness_pattern(
    samples: Quadrature, vertices: int, held: NDArray[np.int64], cliques: Sequence[NDArray[np.int64]] = ()
) -> StiffnessPattern:
    """The pattern of a body's stiffness over the degrees of freedom that are not held.

    cliques: sets of vertices that something beside the tets couples with each other.
    """
    is_free = np.ones((vertices, 3), bool)
    is_free[held] = False
    free = np.flatnonzero(is_free.ravel())
    number = np.full(3 * vertices, -1)
    number[free] = np.arange(len(free))
    tets = samples.nodes[:: samples.points_per_tet]
    dofs = number[(3 * tets[:, :, None] + np.arange(3)).reshape(len(tets), -1)]
    rows = np.broadcast_to(dofs[:, :, None], (*dofs.shape, dofs.shape[1]))
    columns = np.swapaxes(rows, 1, 2)
    kept = (rows >= 0) & (columns >= 0)
    keys = columns[kept].astype(np.int64) * len(free) + rows[kept]
    coupled = [keys]
    for clique in cliques:
        of_clique = number[(3 * clique[:, None] + np.arange(3)).ravel()]
        of_clique = of_clique[of_clique >= 0].astype(np.int64)
        coupled.append((of_clique[:, None] * len(free) + of_clique[None, :]).ravel())
    unique, inverse = np.unique(np.concatenate(coupled), return_inverse=True)
    slots = np.full(rows.shape, -1, np.int32)
    slots[kept] = inverse[: len(keys)]
    indptr = np.zeros(len(free) + 1, np.int32)
    np.add.at(indptr, unique // len(free) + 1, 1)
    diagonal = np.searchsorted(unique, np.arange(len(free)) * (len(free) + 1))
    return StiffnessPattern(
        free, (unique % len(free)).astype(np.int32), np.cumsum(indptr, dtype=np.int32), slots, diagonal
    )


def assemble(pattern: StiffnessPattern, samples: Quadrature, tangents: NDArray[np.float64]) -> NDArray[np.float64]:
    """CSC data of the stiffness, N/m, from tangents (s, 9, 9), Pa."""
    data = np.zeros((numba.get_num_threads(), len(pattern.indices)))
    _assemble(tangents, samples.gradients, samples.volume, samples.points_per_tet, pattern.slots, data)
    return data.sum(axis=0)


class ReusedFactor:
    """Solves a slowly changing symmetric system by conjugate gradients, preconditioned with an old factor.

    The factor is renewed when the last solve needed more than `patience` iterations, so a factorisation, by
    far the dearest part of a Newton step, serves many matrices.
    """

    def __init__(self, patience: int = 12) -> None:
        self._patience = patience
        self._factor: spl.SuperLU | None = None
        self.factorisations = 0

    def solve(self, matrix: sp.csc_matrix, right: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
        """x with |matrix x - right| <= tolerance |right|; NegativeCurvatureError where there is none."""
        if self._factor is None:
            self._renew(matrix)
        x = self._conjugate_gradients(matrix, right, tolerance, self._patience)
        if x is None:
            self._renew(matrix)
            # an exact factor needs one or two iterations; more means the matrix is all but singular
            x = self._conjugate_gradients(matrix, right, tolerance, 50)
            if x is None:
                raise NegativeCurvatureError("no convergence with an exact factor")
        return x

    def forget(self) -> None:
        """Drop the factor: the next solve makes a new one."""
        self._factor = None

    def _renew(self, matrix: sp.csc_matrix) -> None:
        self._factor = None
        self.factorisations += 1
        try:
            factor = spl.splu(
                matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
            )
        except RuntimeError as error:
            raise NegativeCurvatureError(str(error)) from error
        # pivots on the diagonal have the signs of the eigenvalues (Sylvester); conjugate gradients with an exact
        # factor end after one iteration and would not see a negative one
        negative = int((factor.U.diagonal() <= 0.0).sum())
        if negative:
            raise NegativeCurvatureError(f"{negative} pivots of the factor are not positive")
        self._factor = factor

    def _conjugate_gradients(
        self, matrix: sp.csc_matrix, right: NDArray[np.float64], tolerance: float, limit: int
    ) -> NDArray[np.float64] | None:
        assert self._factor is not None
        x = np.zeros_like(right)
        residual = right.copy()
        target = tolerance * float(np.linalg.norm(right))
        if target == 0.0:
            return x
        direction = np.zeros_like(right)
        previous = 1.0
        for _ in range(limit):
            z = self._factor.solve(residual)
            rho = float(residual @ z)
            if rho <= 0.0:
                return None
            direction = z + rho / previous * direction
            previous = rho
            image = matrix @ direction
            curvature = float(direction @ image)
            if curvature <= 0.0:
                raise NegativeCurvatureError(f"curvature {curvature:.3g} along a search direction")
            x += rho / curvature * direction
            residual -= rho / curvature * image
            if float(np.linalg.norm(residual)) <= target:
                return x
        return None
