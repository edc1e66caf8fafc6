"""Cubature: few strain samples with non-negative weights that stand for all of them.

Weights are fitted so that reduced force and stiffness agree with those of all samples over a wide range of states
(An, Kim, James 2008, with stiffness rows added): states the body passes, every other one stretched by a quarter,
and perturbed at three scales, 0.1, 0.4 and 1.0 of each coordinate's spread. Each state gives rows for the force
and for two random stiffness products, scaled by the spread and normalised, of every zone by itself: energies are
proportional to a zone's modulus, so a sum that is right zone by zone is right for any moduli.

Fitted near the states alone, a model is fast and blows up on unseen motions: where no sample lies, nothing
resists. So the body is cut into neighbourhoods, and a sample in each keeps a least weight, whatever the fit would
have; and cubature_checks.stiffness_deviation looks for a direction whose stiffness was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import Quadrature, quadrature
from realsimloop_ros.mechanics.laws import Elasticity, MaterialLaw, StableNeoHookean, stress_and_tangent
from realsimloop_ros.reduction.decoders import Decoder, IdentityDecoder
from realsimloop_ros.reduction.grip_warp import GripWarp, grip_warp, warped
from realsimloop_ros.reduction.model import ReducedBody
from realsimloop_ros.reduction.nonnegative_fit import NormalEquations, fit_nonnegative

SCALES = (0.1, 0.4, 1.0)
_STRETCH = 1.25
_PRODUCTS = 2
# more candidates than this add nothing to the fit, and their Gram matrix would outgrow the memory
_MOST_CANDIDATES = 4000
# samples computed at a time: what bounds the memory of a large mesh
_CHUNK = 8192
# share of the samples asked for that guard a neighbourhood each, and the share of its volume that each must hold
_GUARDS, _GUARDED_VOLUME = 0.25, 0.1
# a zone that carries next to nothing must not outweigh the others
_LEAST_NORM = 0.03


@dataclass(frozen=True)
class Cubature:
    """index: (c,) samples chosen; weight: (c,) > 0; fit_error: relative residual of the fit."""

    index: NDArray[np.int64]
    weight: NDArray[np.float64]
    fit_error: float


class SampleChunk(eqx.Module):
    """Some strain samples; filled up with volumes of zero to a common length."""

    nodes: Int[Array, "s a"]
    gradients: Float[Array, "s a 3"]
    volume: Float[Array, " s"]
    zone: Int[Array, " s"]


class SubspaceArrays(eqx.Module):
    """What strains of any sample follow from."""

    warp: GripWarp
    basis: Float[Array, "n 3 R"]
    decoder: Decoder
    law: MaterialLaw


def subspace_arrays(reduced: ReducedBody, law: MaterialLaw | None = None) -> SubspaceArrays:
    """Those of a reduced body; the law is stable neo-Hookean unless another is given."""
    size = reduced.basis.shape[2]
    return SubspaceArrays(
        grip_warp(reduced.body),
        jnp.asarray(np.asarray(reduced.basis, np.float64)),
        IdentityDecoder(size) if reduced.decoder is None else reduced.decoder,
        StableNeoHookean() if law is None else law,
    )


def sample_chunks(
    samples: Quadrature, chosen: NDArray[np.int64], weight: NDArray[np.float64] | None = None
) -> list[SampleChunk]:
    """The chosen samples (c,) in chunks of one length, their volumes times `weight` (c,)."""
    size = min(_CHUNK, len(chosen))
    volumes = samples.volume[chosen] if weight is None else samples.volume[chosen] * weight
    chunks = []
    for start in range(0, len(chosen), size):
        index, volume = chosen[start : start + size], volumes[start : start + size]
        filling = size - len(index)
        index = np.concatenate([index, np.repeat(chosen[:1], filling)])
        volume = np.concatenate([volume, np.zeros(filling)])
        arrays = (samples.nodes[index], samples.gradients[index], volume, samples.zone[index])
        chunks.append(SampleChunk(*map(jnp.asarray, arrays)))
    return chunks


def sampled_strains(
    subspace: SubspaceArrays, samples: SampleChunk, poses: Float[Array, "g 7"], latent: Float[Array, " r"]
) -> tuple[Float[Array, "s 3 3"], Float[Array, "s 9 R"]]:
    """F of each sample and dF/dc."""
    base, turn = warped(subspace.warp, poses)
    turned = turn[samples.nodes] @ subspace.basis[samples.nodes]
    lift = jnp.einsum("sair,saj->sijr", turned, samples.gradients)
    still = jnp.einsum("sai,saj->sij", base[samples.nodes], samples.gradients)
    return still + lift @ subspace.decoder(latent), lift.reshape(len(samples.volume), 9, -1)


@eqx.filter_jit
def _rows(
    subspace: SubspaceArrays,
    samples: SampleChunk,
    poses: Float[Array, "g 7"],
    latent: Float[Array, " r"],
    poisson_ratio: Float[Array, " z"],
    vectors: Float[Array, "r v"],
) -> Float[Array, "s w r"]:
    """Per sample, at a Young's modulus of one: its share of the reduced force, and of the stiffness times
    `vectors`."""
    F, lift = sampled_strains(subspace, samples, poses, latent)
    nu = poisson_ratio[samples.zone]
    piola, tangent = jax.vmap(partial(stress_and_tangent, subspace.law))(F, Elasticity(jnp.ones_like(nu), nu))
    force = jnp.einsum("s,sp,spr->sr", samples.volume, piola.reshape(-1, 9), lift)
    jacobian = jax.jacfwd(subspace.decoder)(latent)
    weighted = samples.volume[:, None, None] * tangent
    product = jnp.swapaxes(lift, 1, 2) @ (weighted @ (lift @ (jacobian @ vectors)))
    stiff = jnp.einsum("sRv,Rr->svr", product, jacobian)
    if not subspace.decoder.linear:
        # the reduced force is J^T f, and J changes along v too
        def bent_along(vector: Array) -> Array:
            return jax.jvp(jax.jacfwd(subspace.decoder), (latent,), (vector,))[1]

        stiff += jnp.einsum("sR,vRr->svr", force, jax.vmap(bent_along, in_axes=1)(vectors))
    return jnp.concatenate([(force @ jacobian)[:, None], stiff], axis=1)


def drawn_states(
    grip_poses: NDArray[np.float64],
    latents: NDArray[np.float64],
    count: int,
    scales: Sequence[float],
    random: np.random.Generator,
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Grip poses (g, 7) and latent states (r,): some that the body passes, stretched and perturbed."""
    spread, centre = latents.std(axis=0), latents.mean(axis=0)
    for k in range(count):
        chosen = random.integers(len(latents))
        scale = random.choice(scales)
        stretch = _STRETCH if k % 2 and scale > 0.0 else 1.0
        perturbation = scale * spread * random.standard_normal(latents.shape[1])
        yield grip_poses[chosen], centre + stretch * (latents[chosen] - centre) + perturbation


def fit_cubature(
    reduced: ReducedBody,
    grip_poses: NDArray[np.float64],
    latents: NDArray[np.float64],
    samples: int,
    *,
    law: MaterialLaw | None = None,
    poisson_ratio: tuple[float, float] = (0.40, 0.48),
    states: int = 60,
    scales: Sequence[float] = SCALES,
    products: int = _PRODUCTS,
    guarded: bool = True,
    seed: int = 0,
) -> Cubature:
    """Choose about `samples` of the body's strain samples; the cubature that `reduced` comes with is not looked
    at.

    grip_poses: (k, g, 7) and latents: (k, r), states the body passes. scales of zero, no products and no guards
    give the fit near the states that the module's text warns of.
    """
    random = np.random.default_rng(seed)
    every, zones = quadrature(reduced.body), len(reduced.body.zones)
    subspace = subspace_arrays(reduced, law)
    moves = np.abs(reduced.basis).max(axis=(1, 2)) > 0.0
    strained = np.flatnonzero(moves[every.nodes].any(axis=1))
    if len(strained) == 0:
        raise ValueError("cubature: no sample is ever strained; is the body held everywhere?")
    least = np.zeros(len(every.volume))
    if guarded:
        least = guard_weights(reduced.body, every, strained, max(1, round(_GUARDS * samples)))
    offered = strained
    if len(offered) > _MOST_CANDIDATES:
        guards = np.flatnonzero(least)
        others = np.setdiff1d(strained, guards)
        offered = np.union1d(guards, random.choice(others, _MOST_CANDIDATES - len(guards), replace=False))
    place, zone, offered_zone = np.searchsorted(strained, offered), every.zone[strained], every.zone[offered]
    chunks = sample_chunks(every, strained)
    spread = latents.std(axis=0) + 1e-12
    equations = NormalEquations(len(offered))
    for poses, latent in drawn_states(grip_poses, latents, states, scales, random):
        vectors = random.standard_normal((len(spread), products)) * spread[:, None]
        nu = random.uniform(*poisson_ratio, zones)
        arrays = tuple(map(jnp.asarray, (poses, latent, nu, vectors)))
        parts = [np.asarray(_rows(subspace, chunk, *arrays)) for chunk in chunks]
        each = np.concatenate(parts)[: len(strained)] * spread
        totals = np.stack([each[zone == label].sum(axis=0) for label in range(zones)])
        whole = np.linalg.norm(totals.sum(axis=0), axis=1)
        norms = np.maximum(np.linalg.norm(totals, axis=2), _LEAST_NORM * whole) + 1e-300
        for label in range(zones):
            inside = offered_zone == label
            scaled = each[place[inside]] / norms[label][None, :, None]
            rows = np.zeros((scaled[0].size if len(scaled) else 0, len(offered)))
            rows[:, inside] = scaled.reshape(len(scaled), -1).T
            if len(rows):
                equations.add(rows, (totals[label] / norms[label][:, None]).ravel())
    fit = fit_nonnegative(equations, samples, least[offered])
    return Cubature(offered[fit.index], fit.weight, fit.error)


def guard_weights(body: Body, samples: Quadrature, strained: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Least weights (s,): of about `count` neighbourhoods, in every zone at least one, the middle sample stands
    for a share of the volume."""
    centres = np.einsum("sa,sai->si", samples.values, body.rest_positions[samples.nodes])
    least = np.zeros(len(samples.volume))
    for label in np.unique(samples.zone[strained]):
        inside = strained[samples.zone[strained] == label]
        share = min(max(1, round(count * len(inside) / len(strained))), len(inside))
        start = centres[inside[_spread_out(centres[inside], share)]]
        middles, member = kmeans2(centres[inside], start, minit="matrix")
        for k in np.unique(member):
            group = inside[member == k]
            nearest = group[np.linalg.norm(centres[group] - middles[k], axis=1).argmin()]
            least[nearest] = _GUARDED_VOLUME * samples.volume[group].sum() / samples.volume[nearest]
    return least


def _spread_out(points: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Points far from each other: each is the farthest from those before it."""
    chosen = [0]
    distance = np.linalg.norm(points - points[0], axis=1)
    for _ in range(count - 1):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return np.array(chosen)
