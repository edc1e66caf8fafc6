"""Skinning eigenmodes: a subspace from rest shape and stiffness alone, without any snapshot.

Each of a few smooth weights carries an affine motion of its own, u = sum_k w_k(X) A_k (X - X_0, 1); the weights
are the softest eigenvectors of the elastic energy's Hessian with respect to weights, the trace of its 3 x 3 blocks
(Benchekroun, Zhang, Chaudhuri, Grinspun, Zhou, Jacobson: Fast Complementary Dynamics via Skinning Eigenmodes,
2023). For an isotropic material that Hessian is a Laplacian, weighted with 4 mu + lambda.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import Quadrature, lumped_masses, quadrature
from realsimloop_ros.mechanics.laws import Elasticity, StableNeoHookean, lame_parameters, stress_and_tangent

_AFFINE = 12


def skinning_weights(
    body: Body, count: int, youngs_modulus: NDArray[np.float64], poisson_ratio: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The `count` softest weights (n, count), zero on held vertices, orthonormal in mass.

    youngs_modulus, poisson_ratio: (z,) per zone; only ratios of the moduli matter.
    """
    samples, n = quadrature(body), len(body.rest_positions)
    free = np.setdiff1d(np.arange(n), body.held_vertices)
    if count >= len(free):
        raise ValueError(f"latent_size: {count} skinning weights are asked for, but {len(free)} vertices are free")
    mu, lam = lame_parameters(jnp.asarray(youngs_modulus), jnp.asarray(poisson_ratio))
    stiffness = np.asarray(4.0 * mu + lam)[samples.zone]
    hessian = _laplacian(samples, stiffness, n)[free][:, free].tocsc()
    masses = sp.diags(lumped_masses(body)[free]).tocsc()
    # shifted below the softest eigenvalue, which is zero where nothing is held
    diagonal = hessian.diagonal() / masses.diagonal()
    start = np.random.default_rng(0).standard_normal(len(free))
    _, vectors = spl.eigsh(hessian, k=count, M=masses, sigma=-1e-6 * float(diagonal.mean()), v0=start)
    weights = np.zeros((n, count))
    weights[free] = vectors
    return weights


def _laplacian(samples: Quadrature, factor: NDArray[np.float64], vertices: int) -> sp.csc_matrix:
    blocks = np.einsum("s,sai,sbi->sab", factor * samples.volume, samples.gradients, samples.gradients)
    a = samples.nodes.shape[1]
    rows, columns = np.repeat(samples.nodes, a, axis=1), np.tile(samples.nodes, (1, a))
    return sp.csc_matrix((blocks.ravel(), (rows.ravel(), columns.ravel())), shape=(vertices, vertices))


def skinning_basis(
    body: Body, latent_size: int, youngs_modulus: NDArray[np.float64], poisson_ratio: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Basis (n, 3, r), orthonormal in mass over total mass, zero on held vertices.

    As many weights as hold r directions; of their twelve affine directions each, the r softest combinations.
    """
    weights = skinning_weights(body, -(-latent_size // _AFFINE), youngs_modulus, poisson_ratio)
    centred = body.rest_positions - body.rest_positions.mean(axis=0)
    affine = np.concatenate([centred / body.size, np.ones((len(centred), 1))], axis=1)
    scalar = (weights[:, :, None] * affine[:, None, :]).reshape(len(centred), -1)
    span = np.einsum("nk,ij->nikj", scalar, np.eye(3)).reshape(len(centred), 3, -1)

    masses = lumped_masses(body)
    root = np.sqrt(masses / masses.sum())
    directions, _ = np.linalg.qr((root[:, None, None] * span).reshape(3 * len(centred), -1))
    basis = directions.reshape(len(centred), 3, -1) / root[:, None, None]
    _, softest = sl.eigh(_rest_stiffness(body, basis, youngs_modulus, poisson_ratio))
    basis = basis @ softest[:, :latent_size]
    basis[body.held_vertices] = 0.0  # rounding of the orthogonalisation
    return basis


def _rest_stiffness(
    body: Body, basis: NDArray[np.float64], youngs_modulus: NDArray[np.float64], poisson_ratio: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Stiffness (r, r) of the undeformed body along a basis (n, 3, r)."""
    samples = quadrature(body)
    elasticity = Elasticity(jnp.asarray(youngs_modulus), jnp.asarray(poisson_ratio))
    _, tangents = jax.vmap(partial(stress_and_tangent, StableNeoHookean(), jnp.eye(3)))(elasticity)
    strains = np.einsum("sair,saj->sijr", basis[samples.nodes], samples.gradients).reshape(
        len(samples.nodes), 9, -1
    )
    stiffness = np.zeros((basis.shape[2], basis.shape[2]))
    for zone, tangent in enumerate(np.asarray(tangents)):
        rows = strains[samples.zone == zone]
        volume = samples.volume[samples.zone == zone]
        stiffness += np.einsum("s,spr,pq,sqt->rt", volume, rows, tangent, rows, optimize=True)
    return 0.5 * (stiffness + stiffness.T)
