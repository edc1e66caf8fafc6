"""Cubature: few strain samples with non-negative weights that stand for all of them.

Weights are fitted so that reduced force and stiffness agree with those of all samples over a wide range of states
(An, Kim, James 2008, with stiffness rows added): states are snapshots perturbed at three scales, 0.1, 0.4 and 1.0
of each coordinate's spread; each gives a row block for the force and two for random stiffness products, scaled by
the spread and normalised. Fitted near the snapshots alone, a model is fast and blows up on unseen motions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray
from scipy.optimize import nnls

from realsimloop_ros.mechanics.laws import Elasticity, stress_and_tangent
from realsimloop_ros.reduction.model import Kinematics, ReducedModel, strain_map, support_kinematics

_SCALES = (0.1, 0.4, 1.0)
_PRODUCTS = 2


@dataclass(frozen=True)
class Cubature:
    """index: (c,) samples chosen; weight: (c,) > 0; fit_error: relative residual of the fit."""

    index: NDArray[np.int64]
    weight: NDArray[np.float64]
    fit_error: float


@eqx.filter_jit
def _rows(
    model: ReducedModel, frame: Kinematics, latent: Array, elasticity: Elasticity, vectors: Array
) -> tuple[Array, Array]:
    """Per sample: its share of the reduced force (s, r) and of stiffness times `vectors` (r, v), (s, r, v)."""
    strains = strain_map(model, frame)
    F, lift = strains.at(latent), strains.lift
    piola, tangent = jax.vmap(partial(stress_and_tangent, model.law), (0, None))(F, elasticity)
    volume = model.samples.volume
    force = jnp.einsum("s,sp,spr->sr", volume, piola.reshape(-1, 9), lift)
    product = jnp.einsum("spr,spq,sqv->srv", lift, volume[:, None, None] * tangent, lift @ vectors)
    return force, product


def fit_cubature(
    model: ReducedModel,
    grip_poses: NDArray[np.float64],
    latents: NDArray[np.float64],
    samples: int,
    *,
    poisson_ratio: tuple[float, float] = (0.40, 0.48),
    states: int = 60,
    seed: int = 0,
) -> Cubature:
    """Choose about `samples` of the model's strain samples (the model must hold all of them, weight one).

    grip_poses: (k, g, 7) and latents: (k, r), states the body passes. Young's modulus only scales rows and is left
    out (one zone's modulus against another's is not: zones are fitted as of equal modulus).
    """
    random = np.random.default_rng(seed)
    spread = latents.std(axis=0) + 1e-12
    r = latents.shape[1]
    matrix, right = [], []
    for _ in range(states):
        chosen = random.integers(len(latents))
        latent = latents[chosen] + random.choice(_SCALES) * spread * random.standard_normal(r)
        elasticity = Elasticity(jnp.asarray(2e5), jnp.asarray(random.uniform(*poisson_ratio)))
        vectors = random.standard_normal((r, _PRODUCTS)) * spread[:, None]
        frame = support_kinematics(model, jnp.asarray(grip_poses[chosen]))
        force, product = _rows(model, frame, jnp.asarray(latent), elasticity, jnp.asarray(vectors))
        blocks = [np.asarray(force), *np.moveaxis(np.asarray(product), 2, 0)]
        for block in blocks:
            scaled = block * spread[None, :]
            total = scaled.sum(axis=0)
            norm = float(np.linalg.norm(total))
            if norm > 0.0:
                matrix.append((scaled / norm).T)
                right.append(total / norm)
    return _greedy_nnls(np.concatenate(matrix), np.concatenate(right), samples)


def _greedy_nnls(a: NDArray[np.float64], b: NDArray[np.float64], samples: int) -> Cubature:
    """Add the columns that best explain the residual, refit without negative weights, until there are enough."""
    # equilibrated normal equations, factored once: the small problems then cost columns^3, not rows
    gram = a.T @ a
    moment = a.T @ b
    norms = np.sqrt(np.diag(gram)) + 1e-300
    active = np.zeros(0, np.int64)
    weight = np.zeros(0)
    batch = max(4, samples // 10)
    for _ in range(10 * samples):
        residual_moment = moment - gram[:, active] @ weight
        score = residual_moment / norms
        score[active] = -np.inf
        best = np.argsort(score)[::-1][:batch]
        best = best[score[best] > 0.0]
        if len(best) == 0:
            break
        active = np.concatenate([active, best])
        scale = norms[active]
        small = gram[np.ix_(active, active)] / np.outer(scale, scale)
        factor = np.linalg.cholesky(small + 1e-12 * np.eye(len(active)))
        reduced = np.linalg.solve(factor, moment[active] / scale)
        scaled, _ = nnls(factor.T, reduced, maxiter=50 * len(active))
        kept = scaled > 1e-9 * scaled.max()
        active, weight = active[kept], (scaled / scale)[kept]
        if len(active) >= samples:
            break
    order = np.argsort(active)
    active, weight = active[order], weight[order]
    error = float(np.linalg.norm(a[:, active] @ weight - b) / np.linalg.norm(b))
    return Cubature(active, weight, error)
