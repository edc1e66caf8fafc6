"""Assembly of the stiffness matrix, and its solution with a factor that outlives many matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial

import numba
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from numpy.typing import NDArray
from scipy.linalg.lapack import dpbtrf, dpbtrs
from scipy.sparse.csgraph import reverse_cuthill_mckee
from threadpoolctl import ThreadpoolController

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
        # the element's own matrix first: its innermost loop runs over neighbours in memory, and each entry is
        # looked up in the sparse pattern once rather than once per sample
        element = np.empty((nodes, 3, 3, nodes))
        across = np.empty((3, nodes))
        first = elements * thread // threads
        last = elements * (thread + 1) // threads
        for e in range(first, last):
            element[:] = 0.0
            for q in range(points):
                s = e * points + q
                for b in range(nodes):
                    for m in range(3):
                        across[m, b] = gradients[s, b, m]
                for a in range(nodes):
                    g0 = gradients[s, a, 0] * volume[s]
                    g1 = gradients[s, a, 1] * volume[s]
                    g2 = gradients[s, a, 2] * volume[s]
                    for i in range(3):
                        row = 3 * i
                        for j in range(3):
                            column = 3 * j
                            h0 = (
                                g0 * tangents[s, row, column]
                                + g1 * tangents[s, row + 1, column]
                                + g2 * tangents[s, row + 2, column]
                            )
                            h1 = (
                                g0 * tangents[s, row, column + 1]
                                + g1 * tangents[s, row + 1, column + 1]
                                + g2 * tangents[s, row + 2, column + 1]
                            )
                            h2 = (
                                g0 * tangents[s, row, column + 2]
                                + g1 * tangents[s, row + 1, column + 2]
                                + g2 * tangents[s, row + 2, column + 2]
                            )
                            for b in range(nodes):
                                element[a, i, j, b] += h0 * across[0, b] + h1 * across[1, b] + h2 * across[2, b]
            for a in range(nodes):
                for i in range(3):
                    for b in range(nodes):
                        for j in range(3):
                            slot = slots[e, 3 * a + i, 3 * b + j]
                            if slot >= 0:
                                data[slot] += element[a, i, j, b]


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
    samples: Quadrature,
    vertices: int,
    held: NDArray[np.int64],
    cliques: Sequence[NDArray[np.int64]] = (),
    guided: NDArray[np.bool_] | None = None,
) -> StiffnessPattern:
    """The pattern of a body's stiffness over the degrees of freedom that are not held.

    cliques: sets of vertices that something beside the tets couples with each other; guided: (vertices, 3)
    coordinates that are held too.
    """
    is_free = np.ones((vertices, 3), bool)
    is_free[held] = False
    if guided is not None:
        is_free &= ~guided
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


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def _one_thread() -> AbstractContextManager:
    """Keeps BLAS from sharing the small blocks of a band among threads, which on a busy machine wait for each
    other: measured on two cores, 5 to 17 ms a factor with one thread, 230 to 1,400 ms with two.
    """
    return _blas().limit(limits=1)


class _Band:
    """Where the lower triangle of a symmetric CSC pattern goes in LAPACK's band storage.

    order: (f,) degrees of freedom, renumbered so that neighbours lie close (reverse Cuthill-McKee); width: of the
    band below the diagonal.
    """

    def __init__(self, matrix: sp.csc_matrix) -> None:
        size = matrix.shape[0]
        self.indices, self.indptr = matrix.indices, matrix.indptr
        self.order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
        number = np.empty(size, np.int64)
        number[self.order] = np.arange(size)
        row, column = number[matrix.indices], number[np.repeat(np.arange(size), np.diff(matrix.indptr))]
        self.width = int((row - column).max(initial=0))
        self._lower = np.flatnonzero(row >= column)
        self._place = (column * (self.width + 1) + row - column)[self._lower]

    @property
    def entries(self) -> int:
        """Numbers that the factor holds."""
        return len(self.order) * (self.width + 1)

    def fits(self, matrix: sp.csc_matrix) -> bool:
        """Whether a matrix has this pattern."""
        return (matrix.indptr is self.indptr and matrix.indices is self.indices) or (
            np.array_equal(matrix.indptr, self.indptr) and np.array_equal(matrix.indices, self.indices)
        )

    def factor(self, matrix: sp.csc_matrix) -> NDArray[np.float64]:
        """Cholesky factor in band storage; NegativeCurvatureError where there is none."""
        storage = np.zeros(self.entries)
        storage[self._place] = matrix.data[self._lower]
        # column-major (width + 1, f), as LAPACK reads it, without a copy
        with _one_thread():
            factor, failed = dpbtrf(storage.reshape(len(self.order), -1).T, lower=1, overwrite_ab=1)
        if failed or not np.isfinite(factor[0]).all():
            raise NegativeCurvatureError("a pivot of the factor is not positive")
        return factor

    def solve(self, factor: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
        """matrix^-1 right, right (f, p)."""
        x = np.empty_like(right)
        with _one_thread():
            x[self.order] = dpbtrs(factor, right[self.order], lower=1, overwrite_b=1)[0]
        return x


# of 8 bytes; beyond, the band of a compact body costs more than the scattered entries of a sparse factor
_LARGEST_BAND = 20_000_000


class ReusedFactor:
    """Solves a slowly changing symmetric system by conjugate gradients, preconditioned with an old factor.

    The factor is renewed when a solve needs more than `patience` iterations, so a factorisation, the dearest part
    of a Newton step, serves many matrices. It is a Cholesky factor in band storage where the band is small, as it
    is for bars and plates: measured on the 200 mm bar (2,625 unknowns, width 173), 3.3 ms against the 19 ms
    of SuperLU, and 0.27 ms against 0.41 ms for a solution.
    """

    def __init__(self, patience: int = 12, largest_band: int = _LARGEST_BAND) -> None:
        self._patience = patience
        self._largest_band = largest_band
        self._band: _Band | None = None
        self._solve: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
        self.factorisations = 0

    def solve(
        self, matrix: sp.csc_matrix, right: NDArray[np.float64], tolerance: float, *, renew: bool = False
    ) -> NDArray[np.float64]:
        """x with |matrix x - right| <= tolerance |right|; NegativeCurvatureError where there is none.

        right: (f,), or (f, p), each column to the tolerance; renew: with a factor of this matrix, which the
        solves to come find as the old one.
        """
        columns = right.reshape(len(right), -1)
        if self._solve is not None and not renew:
            # patience is that of four digits
            limit = int(np.ceil(self._patience * max(1.0, np.log(tolerance) / np.log(1e-4))))
            x = self._conjugate_gradients(matrix, columns, tolerance, limit)
            if x is not None:
                return x.reshape(right.shape)
        self._renew(matrix)
        # an exact factor needs one or two iterations; more means the matrix is all but singular
        x = self._conjugate_gradients(matrix, columns, tolerance, 50)
        if x is None:
            raise NegativeCurvatureError("no convergence with an exact factor")
        return x.reshape(right.shape)

    @property
    def is_cheap(self) -> bool:
        """Whether a factorisation costs less than ten or so iterations with an old factor: 8 at a width of 173."""
        return self._band is not None and self._band.entries <= self._largest_band and self._band.width <= 250

    def estimate(self, right: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """What the present factor alone makes of right (f,); None where there is none."""
        return None if self._solve is None else self._solve(right[:, None])[:, 0]

    def forget(self) -> None:
        """Drop the factor: the next solve makes a new one."""
        self._solve = None

    def _renew(self, matrix: sp.csc_matrix) -> None:
        self._solve = None
        self.factorisations += 1
        if self._band is None or not self._band.fits(matrix):
            self._band = _Band(matrix)
        if self._band.entries <= self._largest_band:
            self._solve = partial(self._band.solve, self._band.factor(matrix))
        else:
            self._solve = _sparse_factor(matrix).solve

    def _conjugate_gradients(
        self, matrix: sp.csc_matrix, right: NDArray[np.float64], tolerance: float, limit: int
    ) -> NDArray[np.float64] | None:
        """Each column of right (f, p) on its own, all in step; None where one does not get there."""
        assert self._solve is not None
        x = np.zeros_like(right)
        residual = right.copy()
        target = tolerance * np.linalg.norm(right, axis=0)
        direction = np.zeros_like(right)
        previous = np.ones(right.shape[1])
        # columns that are there: they stand still while the others go on
        going = np.flatnonzero(target > 0.0)
        for _ in range(limit):
            if len(going) == 0:
                return x
            z = self._solve(residual[:, going])
            rho = np.einsum("fp,fp->p", residual[:, going], z)
            # also where it is not a number
            if not (rho > 0.0).all():
                return None
            direction[:, going] = z + rho / previous[going] * direction[:, going]
            previous[going] = rho
            image = matrix @ direction[:, going]
            curvature = np.einsum("fp,fp->p", direction[:, going], image)
            if (curvature <= 0.0).any():
                raise NegativeCurvatureError(f"curvature {curvature.min():.3g} along a search direction")
            x[:, going] += rho / curvature * direction[:, going]
            residual[:, going] -= rho / curvature * image
            going = going[np.linalg.norm(residual[:, going], axis=0) > target[going]]
        return None if len(going) else x


def _sparse_factor(matrix: sp.csc_matrix) -> spl.SuperLU:
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
    return factor
