"""The best constants that the estimator's law has for what the truth did: what an estimate is measured against.

The truth obeys another law, so it has no exact E and nu of the stable neo-Hookean one. The reference is the pair
whose stress differs least from the truth's over the strains that really occurred.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from realsimloop_ros.mechanics.laws import Elasticity, MaterialLaw, StableNeoHookean, stress

METHOD = (
    "Young's modulus and Poisson's ratio of the stable neo-Hookean law that minimise, over quadrature samples"
    " of the true body and over the frames of the run, sum volume * U(R^T (P_fit(F) - P_truth(F))): P is the"
    " first Piola-Kirchhoff stress of either law at the true deformation gradient F, R its rotation, and U the"
    " complementary energy of isotropic elasticity with the truth's small-strain constants, so that a mismatch"
    " counts by the strain energy it is worth. Viscous stress is left out of both."
)


@dataclass(frozen=True)
class ReferenceElasticity:
    """The best pair and how good it is.

    youngs_modulus: Pa; relative_residual: root of what energy of mismatch is left over what energy there was;
    samples: strains used; largest_stretch, mean_strain_energy (J/m^3): what the body went through; method: how it
    was computed.
    """

    youngs_modulus: float
    poisson_ratio: float
    relative_residual: float
    samples: int
    largest_stretch: float
    mean_strain_energy: float
    method: str = METHOD

    def as_dictionary(self) -> dict[str, float | int | str]:
        return asdict(self)


def reference_elasticity(
    truth_law: MaterialLaw,
    truth: Elasticity,
    deformation_gradients: NDArray[np.float64],
    volumes: NDArray[np.float64],
) -> ReferenceElasticity:
    """Fit of a zone. deformation_gradients: (s, 3, 3); volumes: (s,) m^3, the samples' weights.

    Raises ValueError where the samples hold no strain to fit to.
    """
    F = jnp.asarray(deformation_gradients)
    u, stretches, vt = np.linalg.svd(deformation_gradients)
    # the sign keeps the rotation proper should a sample be inverted
    u[:, :, 2] *= np.sign(np.linalg.det(u @ vt))[:, None]
    turn_back = jnp.asarray(np.swapaxes(u @ vt, 1, 2))
    wanted = jax.vmap(lambda f: stress(truth_law, f, truth))(F)
    mu = float(truth.youngs_modulus) / (2.0 * (1.0 + float(truth.poisson_ratio)))
    bulk = float(truth.youngs_modulus) / (3.0 * (1.0 - 2.0 * float(truth.poisson_ratio)))
    weight = jnp.sqrt(jnp.asarray(volumes))

    def rows(piola: jax.Array) -> jax.Array:
        """Stress (s, 3, 3) as (s, 10) numbers, the sum of whose squares is the weighted energy."""
        turned = jnp.einsum("sij,sjk->sik", turn_back, piola)
        trace = jnp.trace(turned, axis1=1, axis2=2)
        deviator = turned - trace[:, None, None] / 3.0 * jnp.eye(3)[None]
        parts = [deviator.reshape(-1, 9) / jnp.sqrt(4.0 * mu), trace[:, None] / jnp.sqrt(18.0 * bulk)]
        return weight[:, None] * jnp.concatenate(parts, axis=1)

    there = rows(wanted)
    energy = float(jnp.sum(there**2))
    if not energy > 1e-12 * mu * float(volumes.sum()):
        raise ValueError("the body was hardly strained: there is nothing to fit a reference to")

    @jax.jit
    def residual(parameters: jax.Array) -> jax.Array:
        candidate = Elasticity(jnp.exp(parameters[0]), parameters[1])
        fitted = jax.vmap(partial(_stress_of, candidate))(F)
        return ((rows(fitted) - there) / np.sqrt(energy)).reshape(-1)

    jacobian = jax.jit(jax.jacfwd(residual))
    start = np.array([np.log(float(truth.youngs_modulus)), float(truth.poisson_ratio)])
    fit = least_squares(
        lambda p: np.asarray(residual(jnp.asarray(p))),
        start,
        jac=lambda p: np.asarray(jacobian(jnp.asarray(p))),
        bounds=([-np.inf, 0.01], [np.inf, 0.4989]),
        x_scale=[0.1, 0.01],
    )
    return ReferenceElasticity(
        youngs_modulus=float(np.exp(fit.x[0])),
        poisson_ratio=float(fit.x[1]),
        relative_residual=float(np.linalg.norm(fit.fun)),
        samples=len(deformation_gradients),
        largest_stretch=float(stretches.max()),
        mean_strain_energy=energy / float(volumes.sum()),
    )


def _stress_of(elasticity: Elasticity, F: jax.Array) -> jax.Array:
    return stress(StableNeoHookean(), F, elasticity)
