"""Stress and stretch over a body, at its vertices: what the twin knows about its inside.

A finite element model knows stress at its quadrature samples only. The value of a vertex is the mean over
the samples of the tets around it, weighted by volume. Averaged are the Cauchy stress, which turns with the
body, and the right Cauchy-Green tensor, which does not; the scalars are taken of these averages. Where
zones meet, the stress of a real body jumps; here both sides share one value.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import quadrature
from realsimloop_ros.mechanics.laws import Elasticity, MaterialLaw, cauchy_stress, von_mises
from realsimloop_ros.mechanics.material import Material


class StressField(NamedTuple):
    """Stress and stretch at the n vertices, and summaries.

    cauchy: (n, 3, 3) Pa; von_mises: (n,) Pa; principal_stresses: (n, 3) Pa, largest first;
    principal_stretches: (n, 3), largest first; mean_von_mises: Pa, mean of the samples over the rest volume;
    zone_max_von_mises: (z,) Pa, largest at a vertex of the zone. Elastic stress only, without viscosity.
    """

    cauchy: Float[Array, "n 3 3"]
    von_mises: Float[Array, " n"]
    principal_stresses: Float[Array, "n 3"]
    principal_stretches: Float[Array, "n 3"]
    mean_von_mises: Float[Array, ""]
    zone_max_von_mises: Float[Array, " z"]

    @property
    def principal_strains(self) -> Float[Array, "n 3"]:
        """Engineering strains along the principal directions, stretch - 1, largest first."""
        return self.principal_stretches - 1.0


class StressSamples(eqx.Module):
    """What of a body the stress needs, made once.

    nodes: (s, a); gradients: (s, a, 3) 1/m; volume: (s,) m^3; zone: (s,); shares: (s, a) share of each sample
    in the mean of each of its nodes; zone_has_vertex: (z, n) whether a vertex belongs to a tet of the zone.
    """

    nodes: Array
    gradients: Array
    volume: Array
    zone: Array
    shares: Array
    zone_has_vertex: Array


def stress_samples(body: Body) -> StressSamples:
    """The samples of a body; raises InvalidBodyError where an element is inverted at rest."""
    samples = quadrature(body)
    around = np.zeros(len(body.rest_positions))
    np.add.at(around, samples.nodes, samples.volume[:, None])
    zone_has_vertex = np.zeros((len(body.zones), len(body.rest_positions)), bool)
    zone_has_vertex[samples.zone[:, None], samples.nodes] = True
    return StressSamples(
        nodes=jnp.asarray(samples.nodes),
        gradients=jnp.asarray(samples.gradients),
        volume=jnp.asarray(samples.volume),
        zone=jnp.asarray(samples.zone),
        shares=jnp.asarray(samples.volume[:, None] / around[samples.nodes]),
        zone_has_vertex=jnp.asarray(zone_has_vertex),
    )


def vertex_mean(samples: StressSamples, values: Float[Array, "s 3 3"]) -> Float[Array, "n 3 3"]:
    """Volume-weighted mean at every vertex of tensors given at the samples."""
    vertices = samples.zone_has_vertex.shape[1]
    spread = jnp.einsum("sa,sij->saij", samples.shares, values).reshape(-1, 3, 3)
    return jax.ops.segment_sum(spread, samples.nodes.reshape(-1), vertices)


@eqx.filter_jit
def stress_field(
    law: MaterialLaw, samples: StressSamples, material: Material, positions: Float[Array, "n 3"]
) -> StressField:
    """Stress and stretch of a body whose vertices are at positions (n, 3), m. Not differentiated through."""
    F = jnp.einsum("sai,saj->sij", positions[samples.nodes], samples.gradients)
    elasticity = Elasticity(material.youngs_modulus[samples.zone], material.poisson_ratio[samples.zone])
    cauchy_of_sample = jax.vmap(partial(cauchy_stress, law))(F, elasticity)
    cauchy = vertex_mean(samples, cauchy_of_sample)
    right_cauchy_green = vertex_mean(samples, jnp.einsum("ski,skj->sij", F, F))
    equivalent = jax.vmap(von_mises)(cauchy)
    of_sample = jax.vmap(von_mises)(cauchy_of_sample)
    squares = jnp.maximum(jnp.linalg.eigvalsh(right_cauchy_green), 0.0)
    return StressField(
        cauchy=cauchy,
        von_mises=equivalent,
        principal_stresses=jnp.linalg.eigvalsh(cauchy)[:, ::-1],
        principal_stretches=jnp.sqrt(squares)[:, ::-1],
        mean_von_mises=jnp.dot(samples.volume, of_sample) / jnp.sum(samples.volume),
        zone_max_von_mises=jnp.max(jnp.where(samples.zone_has_vertex, equivalent[None, :], 0.0), axis=1),
    )
