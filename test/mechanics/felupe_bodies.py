"""Bodies of this project in FElupe, an independent finite element code."""

from __future__ import annotations

import felupe
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body


def lame(youngs_modulus: float, poisson_ratio: float) -> tuple[float, float]:
    """Mu and lambda, Pa."""
    mu = youngs_modulus / (2 * (1 + poisson_ratio))
    return mu, youngs_modulus * poisson_ratio / ((1 + poisson_ratio) * (1 - 2 * poisson_ratio))


def neo_hookean(mu: float, lam: float, rest: float, barrier: bool) -> felupe.Material:
    """mu/2 (I - 3) + lam/2 (J - rest)^2, less mu/2 log(I + 1) with `barrier`, derived by hand for FElupe's arrays
    (3, 3, points, cells).
    """

    def parts(F: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        ratio = np.linalg.det(np.moveaxis(F, (0, 1), (-2, -1)))
        inverse = np.moveaxis(np.linalg.inv(np.moveaxis(F, (0, 1), (-2, -1))), (-2, -1), (0, 1))
        return np.einsum("ij...,ij...->...", F, F), ratio, inverse

    def stress(x: list) -> list:
        F = x[0]
        invariant, ratio, inverse = parts(F)
        factor = mu * (1 - 1 / (invariant + 1)) if barrier else mu
        return [factor * F + lam * (ratio - rest) * ratio * np.swapaxes(inverse, 0, 1), x[-1]]

    def elasticity(x: list) -> list:
        F = x[0]
        invariant, ratio, inverse = parts(F)
        eye = np.eye(3)
        unit = np.einsum("ik,jl->ijkl", eye, eye).reshape(3, 3, 3, 3, *[1] * (F.ndim - 2))
        volume = np.einsum("ji...,lk...->ijkl...", inverse, inverse)
        turned = np.einsum("li...,jk...->ijkl...", inverse, inverse)
        volumetric = lam * ((2 * ratio - rest) * ratio * volume - (ratio - rest) * ratio * turned)
        if not barrier:
            return [mu * unit + volumetric]
        outer = 2 * mu / (invariant + 1) ** 2 * np.einsum("ij...,kl...->ijkl...", F, F)
        return [mu * (1 - 1 / (invariant + 1)) * unit + outer + volumetric]

    return felupe.Material(stress=stress, elasticity=elasticity)


def stable_neo_hookean(youngs_modulus: float, poisson_ratio: float) -> felupe.Material:
    """Smith, de Goes, Kim 2018, in the moduli of small strains."""
    mu, lam = lame(youngs_modulus, poisson_ratio)
    mu, lam = 4 / 3 * mu, lam + 5 / 6 * mu
    return neo_hookean(mu, lam, 1 + mu / lam - mu / (4 * lam), barrier=True)


def static_solution(
    body: Body, umat: object, moved: NDArray[np.float64], force: NDArray[np.float64], load_steps: int = 2
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions (n, 3) and internal forces (n, 3) with held vertices at `moved` under nodal forces."""
    mesh = felupe.Mesh(body.rest_positions, body.tets, "tetra10")
    field = felupe.FieldContainer([felupe.Field(felupe.RegionQuadraticTetra(mesh), dim=3)])
    solid = felupe.SolidBody(umat, field)
    held = np.zeros(mesh.npoints, bool)
    held[body.held_vertices] = True
    boundaries = {"held": felupe.Boundary(field[0], mask=held)}
    dof0, dof1 = felupe.dof.partition(field, boundaries)
    everywhere = np.arange(mesh.npoints)
    displacement = (moved - body.rest_positions).ravel()[dof0]
    for load in np.linspace(0.0, 1.0, load_steps + 1)[1:]:
        points = felupe.PointLoad(field, everywhere, values=load * force)
        felupe.newtonraphson(
            items=[solid, points], dof0=dof0, dof1=dof1, ext0=load * displacement, verbose=0, tol=1e-10
        )
    internal = np.asarray(solid.assemble.vector().todense()).reshape(-1, 3)
    return body.rest_positions + field[0].values, internal
