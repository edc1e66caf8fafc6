"""Hyperelastic laws, isotropic, as functions of two invariants, and the viscosity that goes with any of them.

Writing the energy in I = tr(F^T F) and J = det F alone gives stress and tangent in closed form from the five
scalar derivatives, for every law (Psi_I is dPsi/dI and so on, cof F = J F^-T, f = 2F and g = cof F, flat):

    P       = 2 Psi_I F + Psi_J cof F
    dP/dF   = 2 Psi_I 1 + Psi_II f f^T + Psi_IJ (f g^T + g f^T) + Psi_JJ g g^T + Psi_J d(cof F)/dF

The scalar derivatives come from automatic differentiation, so a law is one formula. Units: Pa, J/m^3.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Scalar = Float[Array, ""]


class Elasticity(NamedTuple):
    """Small-strain constants: Young's modulus, Pa, and Poisson's ratio."""

    youngs_modulus: Scalar
    poisson_ratio: Scalar


def lame_parameters(youngs_modulus: Scalar, poisson_ratio: Scalar) -> tuple[Scalar, Scalar]:
    """Lame's mu and lambda, Pa, of linear elasticity."""
    mu = youngs_modulus / (2.0 * (1.0 + poisson_ratio))
    lam = youngs_modulus * poisson_ratio / ((1.0 + poisson_ratio) * (1.0 - 2.0 * poisson_ratio))
    return mu, lam


class MaterialLaw(eqx.Module):
    """A hyperelastic law; small strains agree with the Elasticity it is given."""

    @abc.abstractmethod
    def energy_density(self, invariant: Scalar, volume_ratio: Scalar, elasticity: Elasticity) -> Scalar:
        """Energy per rest volume, J/m^3, of I = tr(F^T F) and J = det F, up to a constant."""


class StableNeoHookean(MaterialLaw):
    """Smith, de Goes, Kim: Stable Neo-Hookean Flesh Simulation, 2018; small strains agree with E and nu."""

    def energy_density(self, invariant: Scalar, volume_ratio: Scalar, elasticity: Elasticity) -> Scalar:
        mu, lam = lame_parameters(*elasticity)
        mu, lam = 4.0 / 3.0 * mu, lam + 5.0 / 6.0 * mu
        rest_ratio = 1.0 + 0.75 * mu / lam
        return (
            0.5 * mu * (invariant - 3.0)
            + 0.5 * lam * (volume_ratio - rest_ratio) ** 2
            - 0.5 * mu * jnp.log(invariant + 1.0)
        )


class Yeoh(MaterialLaw):
    """Yeoh's three-term law (1993) on the isochoric invariant, with a quadratic volumetric term.

    second, third: C20 / C10 and C30 / C10; C10 = mu / 2 and the bulk modulus follow from the Elasticity.
    """

    second: float = 0.0
    third: float = 0.0

    def energy_density(self, invariant: Scalar, volume_ratio: Scalar, elasticity: Elasticity) -> Scalar:
        mu, lam = lame_parameters(*elasticity)
        bulk = lam + 2.0 / 3.0 * mu
        # J^(-2/3) of an inverted element: below J = 0.1 the power is continued as a constant, so that a
        # Newton trial that inverts an element yields a large finite energy and the line search refuses it
        isochoric = invariant * jnp.maximum(volume_ratio, 0.1) ** (-2.0 / 3.0) - 3.0
        shear = isochoric + self.second * isochoric**2 + self.third * isochoric**3
        return 0.5 * mu * shear + 0.5 * bulk * (volume_ratio - 1.0) ** 2


def _cofactor_derivative() -> np.ndarray:
    """Constant (9, 9, 9) tensor C with d(cof F)_p / dF_q = sum_r C_pqr F_r."""
    levi_civita = np.zeros((3, 3, 3))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        levi_civita[i, j, k], levi_civita[i, k, j] = 1.0, -1.0
    return np.einsum("ilk,jmn->ijlmkn", levi_civita, levi_civita).reshape(9, 9, 9)


_COFACTOR_DERIVATIVE = _cofactor_derivative()


def _cofactor(F: Float[Array, "3 3"]) -> Float[Array, "3 3"]:
    return jnp.stack([jnp.cross(F[1], F[2]), jnp.cross(F[2], F[0]), jnp.cross(F[0], F[1])])


def invariants(F: Float[Array, "3 3"]) -> tuple[Scalar, Scalar]:
    """I = tr(F^T F) and J = det F."""
    return jnp.sum(F * F), jnp.dot(F[0], jnp.cross(F[1], F[2]))


def energy(law: MaterialLaw, F: Float[Array, "3 3"], elasticity: Elasticity) -> Scalar:
    """Energy density, J/m^3."""
    return law.energy_density(*invariants(F), elasticity)


def stress(law: MaterialLaw, F: Float[Array, "3 3"], elasticity: Elasticity) -> Float[Array, "3 3"]:
    """First Piola-Kirchhoff stress, Pa."""
    d_i, d_j = jax.grad(law.energy_density, argnums=(0, 1))(*invariants(F), elasticity)
    return 2.0 * d_i * F + d_j * _cofactor(F)


def stress_and_tangent(
    law: MaterialLaw, F: Float[Array, "3 3"], elasticity: Elasticity
) -> tuple[Float[Array, "3 3"], Float[Array, "9 9"]]:
    """First Piola-Kirchhoff stress, Pa, and its derivative with respect to F, both row-major."""
    pair = jnp.stack(invariants(F))

    def scalar(values: Float[Array, 2]) -> Scalar:
        return law.energy_density(values[0], values[1], elasticity)

    d = jax.grad(scalar)(pair)
    dd = jax.hessian(scalar)(pair)
    cofactor = _cofactor(F)
    f, g = 2.0 * F.reshape(9), cofactor.reshape(9)
    tangent = (
        2.0 * d[0] * jnp.eye(9, dtype=F.dtype)
        + dd[0, 0] * jnp.outer(f, f)
        + dd[0, 1] * (jnp.outer(f, g) + jnp.outer(g, f))
        + dd[1, 1] * jnp.outer(g, g)
        + d[1] * (jnp.asarray(_COFACTOR_DERIVATIVE, F.dtype) @ F.reshape(9))
    )
    return 2.0 * d[0] * F + d[1] * cofactor, tangent


def green_strain(F: Float[Array, "3 3"]) -> Float[Array, "3 3"]:
    """Green-Lagrange strain (F^T F - 1) / 2."""
    return 0.5 * (F.T @ F - jnp.eye(3, dtype=F.dtype))


def viscous_energy(
    F: Float[Array, "3 3"], strain_offset: Float[Array, "3 3"], rate: Scalar, viscosity: Scalar
) -> Scalar:
    """Kelvin-Voigt dissipation as an incremental potential, J/m^3; its derivative is F (viscosity * dE/dt).

    The strain rate is  dE/dt = rate * E(F) + strain_offset: what an integrator makes of the present
    strain and of the past ones. rate: 1/s; strain_offset: (3, 3) 1/s; viscosity: Pa s.
    """
    strain_rate = rate * green_strain(F) + strain_offset
    return 0.5 * viscosity / rate * jnp.sum(strain_rate**2)


def viscous_stress_and_tangent(
    F: Float[Array, "3 3"], strain_offset: Float[Array, "3 3"], rate: Scalar, viscosity: Scalar
) -> tuple[Float[Array, "3 3"], Float[Array, "9 9"]]:
    """First Piola-Kirchhoff stress of the viscosity, Pa, and its derivative with respect to F."""
    second = viscosity * (rate * green_strain(F) + strain_offset)
    eye = jnp.eye(3, dtype=F.dtype)
    # dP_ij/dF_kl = delta_ik S_lj + viscosity rate (F_il F_kj + (F F^T)_ik delta_jl) / 2
    tangent = jnp.einsum("ik,lj->ijkl", eye, second) + 0.5 * viscosity * rate * (
        jnp.einsum("il,kj->ijkl", F, F) + jnp.einsum("ik,jl->ijkl", F @ F.T, eye)
    )
    return F @ second, tangent.reshape(9, 9)


def cauchy_stress(law: MaterialLaw, F: Float[Array, "3 3"], elasticity: Elasticity) -> Float[Array, "3 3"]:
    """Cauchy stress P F^T / J, Pa."""
    _, volume_ratio = invariants(F)
    return stress(law, F, elasticity) @ F.T / volume_ratio


def von_mises(cauchy: Float[Array, "3 3"]) -> Scalar:
    """Von Mises equivalent sqrt(3/2 s:s) of a Cauchy stress, s its deviator, Pa."""
    deviator = cauchy - jnp.trace(cauchy) / 3.0 * jnp.eye(3, dtype=cauchy.dtype)
    return jnp.sqrt(1.5 * jnp.sum(deviator**2))
