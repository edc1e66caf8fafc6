"""What the inside of a body answers to a deformation: its potential, forces and tangents over all samples."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realsimloop_ros.mechanics.elements import Quadrature
from realsimloop_ros.mechanics.laws import (
    Elasticity,
    MaterialLaw,
    energy,
    green_strain,
    stress,
    stress_and_tangent,
    viscous_energy,
    viscous_stress_and_tangent,
)
from realsimloop_ros.mechanics.material import Material


class Samples(eqx.Module):
    """Per-sample constants of the compiled functions."""

    nodes: Array
    gradients: Array
    volume: Array
    zone: Array

    @classmethod
    def of(cls, quadrature: Quadrature) -> Samples:
        parts = (quadrature.nodes, quadrature.gradients, quadrature.volume, quadrature.zone)
        return cls(*map(jnp.asarray, parts))


def _deformation_gradients(samples: Samples, x: Float[Array, "n 3"]) -> Float[Array, "s 3 3"]:
    return jnp.einsum("sai,saj->sij", x[samples.nodes], samples.gradients)


def _per_sample(samples: Samples, material: Material) -> tuple[Elasticity, Array]:
    return (
        Elasticity(material.youngs_modulus[samples.zone], material.poisson_ratio[samples.zone]),
        material.viscosity[samples.zone],
    )


@eqx.filter_jit
def sample_strains(samples: Samples, x: Array) -> Array:
    """Green strain (s, 3, 3) at every sample."""
    return jax.vmap(green_strain)(_deformation_gradients(samples, x))


@eqx.filter_jit
def elastic_potential(
    law: MaterialLaw, samples: Samples, material: Material, x: Array, offset: Array | None, rate: Array
) -> Array:
    """Elastic energy and viscous potential, J; offset, rate: see laws.viscous_energy; None: no viscosity."""
    F = _deformation_gradients(samples, x)
    elasticity, viscosity = _per_sample(samples, material)
    density = jax.vmap(partial(energy, law))(F, elasticity)
    if offset is not None:
        density += jax.vmap(viscous_energy, (0, 0, None, 0))(F, offset, rate, viscosity)
    return jnp.dot(samples.volume, density)


def _to_vertices(samples: Samples, piola: Array, vertices: int) -> Array:
    force = jnp.einsum("s,sij,saj->sai", samples.volume, piola, samples.gradients)
    return jax.ops.segment_sum(force.reshape(-1, 3), samples.nodes.reshape(-1), vertices)


def internal_forces(
    law: MaterialLaw, samples: Samples, material: Material, x: Array, offset: Array | None, rate: Array
) -> Float[Array, "n 3"]:
    """Gradient of elastic energy and viscous potential, N; offset, rate: see elastic_potential."""
    F = _deformation_gradients(samples, x)
    elasticity, viscosity = _per_sample(samples, material)
    piola = jax.vmap(partial(stress, law))(F, elasticity)
    if offset is not None:
        strain_rate = rate * jax.vmap(green_strain)(F) + offset
        piola += F @ (viscosity[:, None, None] * strain_rate)
    return _to_vertices(samples, piola, len(x))


compiled_internal_forces = eqx.filter_jit(internal_forces)


@eqx.filter_jit
def internal_forces_and_tangent(
    law: MaterialLaw, samples: Samples, material: Material, x: Array, offset: Array | None, rate: Array
) -> tuple[Array, Array]:
    """internal_forces (n, 3), N, and the tangents (s, 9, 9), Pa, that they come with."""
    F = _deformation_gradients(samples, x)
    elasticity, viscosity = _per_sample(samples, material)
    piola, tangent = jax.vmap(partial(stress_and_tangent, law))(F, elasticity)
    if offset is not None:
        more = jax.vmap(viscous_stress_and_tangent, (0, 0, None, 0))(F, offset, rate, viscosity)
        piola, tangent = piola + more[0], tangent + more[1]
    return _to_vertices(samples, piola, len(x)), tangent


@eqx.filter_jit
def elastic_forces(law: MaterialLaw, samples: Samples, material: Material, x: Array) -> Array:
    """Gradient of the elastic energy (n, 3), N."""
    F = _deformation_gradients(samples, x)
    elasticity, _ = _per_sample(samples, material)
    return _to_vertices(samples, jax.vmap(partial(stress, law))(F, elasticity), len(x))


@eqx.filter_jit
def positive_definite(tangents: Array) -> Array:
    """Symmetric matrices (s, d, d) with their eigenvalues raised to a millionth of the largest."""
    values, vectors = jnp.linalg.eigh(0.5 * (tangents + jnp.swapaxes(tangents, 1, 2)))
    floor = 1e-6 * values[:, -1:]
    return jnp.einsum("sij,sj,skj->sik", vectors, jnp.maximum(values, floor), vectors)
