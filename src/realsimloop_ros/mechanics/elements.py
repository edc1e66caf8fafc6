"""Quadrature of tetrahedral elements: where strains are sampled and with which volume, and lumped masses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body, InvalidBodyError
from realsimloop_ros.body.shape_functions import rest_gradients, shape_values

# four-point rule, exact for quadratics (Hammer, Marlowe, Stroud 1956); linear tets have a constant gradient
_NEAR, _FAR = (5.0 + 3.0 * np.sqrt(5.0)) / 20.0, (5.0 - np.sqrt(5.0)) / 20.0
_FOUR_POINTS = np.full((4, 4), _FAR) + np.eye(4) * (_NEAR - _FAR)
_ONE_POINT = np.full((1, 4), 0.25)


@dataclass(frozen=True)
class Quadrature:
    """Strain samples of a body, flattened over tets and points (s = m q).

    tet: (s,); nodes: (s, a) vertex indices; gradients: (s, a, 3) of the shape functions, 1/m;
    values: (s, a) of the shape functions; volume: (s,) m^3; zone: (s,).
    """

    tet: NDArray[np.int64]
    nodes: NDArray[np.int64]
    gradients: NDArray[np.float64]
    values: NDArray[np.float64]
    volume: NDArray[np.float64]
    zone: NDArray[np.int64]

    @property
    def points_per_tet(self) -> int:
        return len(self.tet) // (int(self.tet[-1]) + 1)

    def deformation_gradients(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """F (s, 3, 3) for vertices at x (n, 3)."""
        return np.einsum("sai,saj->sij", x[self.nodes], self.gradients)


def quadrature(body: Body) -> Quadrature:
    """Strain samples of every tet; raises InvalidBodyError where a curved element is inverted at a sample."""
    points = _FOUR_POINTS if body.nodes_per_tet == 10 else _ONE_POINT
    nodes = body.rest_positions[body.tets][:, None]
    gradients, determinant = rest_gradients(nodes, points[None])
    if determinant.min() <= 0.0:
        raise InvalidBodyError(
            f"tets: tet {int(determinant.min(axis=1).argmin())} is inverted; straighten its edges"
        )
    m, q = determinant.shape
    tet = np.repeat(np.arange(m), q)
    return Quadrature(
        tet=tet,
        nodes=body.tets[tet],
        gradients=gradients.reshape(m * q, -1, 3),
        values=np.tile(shape_values(points, body.nodes_per_tet), (m, 1)),
        volume=(determinant / 6.0 / q).reshape(-1),
        zone=body.zone_of_tet[tet],
    )


def lumped_volumes(body: Body) -> NDArray[np.float64]:
    """Rest volume of each zone that each vertex stands for, (n, z), m^3.

    Quadratic tets are lumped in proportion to the diagonal of the consistent mass (Hinton, Rock, Zienkiewicz
    1976): 1/36 of the element to each corner and 4/27 to each middle; row sums would be negative at corners.
    """
    samples = quadrature(body)
    volumes = samples.volume.reshape(-1, samples.points_per_tet).sum(axis=1)
    shares = np.array([0.25] * 4) if body.nodes_per_tet == 4 else np.array([1 / 36] * 4 + [4 / 27] * 6)
    lumped = np.zeros((len(body.rest_positions), len(body.zones)))
    np.add.at(lumped, (body.tets, body.zone_of_tet[:, None]), volumes[:, None] * shares)
    return lumped


def hung_masses(body: Body) -> NDArray[np.float64]:
    """Mass of hung weights per vertex (n,), kg."""
    masses = np.zeros(len(body.rest_positions))
    for weight in body.hung_weights:
        np.add.at(masses, weight.vertices, weight.mass * weight.weights)
    return masses


def lumped_masses(body: Body) -> NDArray[np.float64]:
    """Mass per vertex (n,), kg, at the densities of the body's zones, hung weights included."""
    return lumped_volumes(body) @ np.array([zone.density for zone in body.zones]) + hung_masses(body)
