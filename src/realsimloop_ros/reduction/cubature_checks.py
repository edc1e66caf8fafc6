"""What a cubature does not see: directions whose stiffness it lost, and states outside of what it was fitted
to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from realsimloop_ros.body.poses import IDENTITY_POSE
from realsimloop_ros.mechanics.elements import quadrature
from realsimloop_ros.mechanics.laws import Elasticity, MaterialLaw, stress_and_tangent
from realsimloop_ros.reduction.cubature import (
    SCALES,
    Cubature,
    SampleChunk,
    SubspaceArrays,
    drawn_states,
    sample_chunks,
    sampled_strains,
    subspace_arrays,
)
from realsimloop_ros.reduction.model import ReducedBody

# of the stiffness at rest that a direction without one of its own is compared with
_REST_SHARE = 0.1


@dataclass(frozen=True)
class StiffnessDeviation:
    """How far the stiffness of the chosen samples is from that of all, over directions and states.

    softest: the largest share of its stiffness that any direction lost, negative; stiffest: the largest that any
    gained. At -1 something moves without resistance: there the body collapses.
    """

    softest: float
    stiffest: float


def stiffness_deviation(
    reduced: ReducedBody,
    cubature: Cubature,
    grip_poses: NDArray[np.float64],
    latents: NDArray[np.float64],
    *,
    law: MaterialLaw | None = None,
    poisson_ratio: tuple[float, float] = (0.40, 0.48),
    states: int = 12,
    scales: Sequence[float] = SCALES,
    seed: int = 1,
) -> StiffnessDeviation:
    """Compare stiffness matrices at states that the fit has not seen, drawn as it draws them, for random moduli.

    Along the direction where they differ most, which a norm over many directions does not show: relative to the
    stiffness of all samples there and to a tenth of that at rest (a direction that is just buckling has none of
    its own to be compared with). Moduli of zones differ by up to a factor of 100.
    """
    random = np.random.default_rng(seed)
    every, zones = quadrature(reduced.body), len(reduced.body.zones)
    subspace = subspace_arrays(reduced, law)
    complete = sample_chunks(every, np.arange(len(every.volume)))
    chosen = sample_chunks(every, cubature.index, cubature.weight)
    softest, stiffest = 0.0, 0.0
    undeformed = np.array([grip.rest_pose for grip in reduced.body.grips] or [IDENTITY_POSE])
    at_rest = (jnp.asarray(undeformed), jnp.zeros(reduced.latent_size))
    for poses, latent in drawn_states(grip_poses, latents, states, scales, random):
        modulus = 10.0 ** random.uniform(-1.0, 1.0, zones) if zones > 1 else np.ones(1)
        elasticity = Elasticity(jnp.asarray(modulus), jnp.asarray(random.uniform(*poisson_ratio, zones)))
        here = (jnp.asarray(poses), jnp.asarray(latent))
        rest, whole, part = (
            np.sum([np.asarray(_stiffness(subspace, chunk, *state, elasticity)) for chunk in chunks], axis=0)
            for state, chunks in ((at_rest, complete), (here, complete), (here, chosen))
        )
        values, vectors = np.linalg.eigh(whole)
        # a state far from equilibrium may be unstable: what counts is the size of its stiffness
        values, vectors = np.linalg.eigh((vectors * np.abs(values)) @ vectors.T + _REST_SHARE * rest)
        root = vectors / np.sqrt(np.maximum(values, 1e-6 * values.max()))
        changes = np.linalg.eigvalsh(root.T @ (part - whole) @ root)
        softest, stiffest = min(softest, float(changes[0])), max(stiffest, float(changes[-1]))
    return StiffnessDeviation(softest, stiffest)


@eqx.filter_jit
def _stiffness(
    subspace: SubspaceArrays,
    samples: SampleChunk,
    poses: Float[Array, "g 7"],
    latent: Float[Array, " r"],
    elasticity: Elasticity,
) -> Float[Array, "r r"]:
    """The reduced stiffness of some samples, curvature of the decoder included."""
    F, lift = sampled_strains(subspace, samples, poses, latent)
    own = jax.tree.map(lambda values: values[samples.zone], elasticity)
    piola, tangent = jax.vmap(partial(stress_and_tangent, subspace.law))(F, own)
    jacobian = jax.jacfwd(subspace.decoder)(latent)
    reach = lift @ jacobian
    weighted = (samples.volume[:, None, None] * tangent) @ reach
    stiffness = jnp.einsum("spr,spt->rt", reach, weighted)
    if subspace.decoder.linear:
        return stiffness
    force = jnp.einsum("s,sp,spr->r", samples.volume, piola.reshape(-1, 9), lift)
    return stiffness + jax.hessian(lambda z: force @ subspace.decoder(z))(latent)


@dataclass(frozen=True)
class FittedRange:
    """Latent states that a model was fitted to. centre, spread: (r,) m; limit: the largest distance from the
    centre, as a multiple of the spread along the coordinate that is furthest out."""

    centre: NDArray[np.float64]
    spread: NDArray[np.float64]
    limit: float

    def excess(self, latents: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of latent states (..., r), how far out they are over the limit, (...,): above one, nothing is known."""
        distance = np.abs(np.asarray(latents) - self.centre) / self.spread
        return distance.max(axis=-1) / self.limit

    def as_card(self) -> dict:
        """JSON-compatible."""
        return {"centre": self.centre.tolist(), "spread": self.spread.tolist(), "limit": self.limit}

    @classmethod
    def from_card(cls, card: dict) -> FittedRange:
        """From what as_card gave. Raises KeyError where a field is missing."""
        return cls(np.array(card["centre"]), np.array(card["spread"]), float(card["limit"]))


def fitted_range(latents: NDArray[np.float64]) -> FittedRange:
    """The range of latent states (k, r)."""
    centre, spread = latents.mean(axis=0), latents.std(axis=0) + 1e-12
    return FittedRange(centre, spread, float((np.abs(latents - centre) / spread).max()))
