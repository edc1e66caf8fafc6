"""Cables: a line through eyelets on the body to a winch, taut or slack.

A cable starts at its first point, slides without friction through the others and ends at its anchor, an eyelet
that a named frame carries and behind which the winch stands. It is l long, the winch has paid out l0, and the
stretch s = l - l0 costs

    E(s) = k/2 s^2 + k b^2/24 for s > b/2,   k (s + b/2)^3 / (6 b) within,   0 for s < -b/2    (J),

C2 over the short length b between slack and taut, and exactly Hooke's law beyond. The tension T = dE/dl is the
same all along; each point is pulled by T towards each of its neighbours.

Two rules for the tension. By the constraint, it is dE/dl: what the cable carries, whatever the body does. By nodal
forces (the paper's rule) it is the sum, over the vertices the cable is attached to, of the magnitudes of the
internal forces there. In equilibrium and without other loads these internal forces are what the cable pulls with:
T at the vertex where it ends, 2 T sin(bend / 2) at an eyelet where it turns by `bend`. So the second rule gives T
for a cable knotted to one vertex; each eyelet adds its share of deflection, an attachment spread over several
vertices adds |f| of each (no less than the magnitude of their sum), and weight and inertia of these vertices come
in too. It needs no winch reading, though, which is why both are given.

Everything here is a pure function of present points (m, 3), in order from the far end to the winch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body, Cable

Scalar = Float[Array, ""]

# shape functions smaller than this hold nothing: rounding of a point bound to a vertex
_NO_WEIGHT = 1e-6


def cable_length(points: Float[Array, "m 3"], anchor: Float[Array, 3]) -> Scalar:
    """Length, m, of the line through points (m, 3) to the anchor (3,)."""
    line = jnp.concatenate([points, anchor[None]])
    square = jnp.sum((line[1:] - line[:-1]) ** 2, axis=1)
    # points that coincide pull each other nowhere; the root's derivative there would be NaN
    apart = square > 0.0
    return jnp.sum(jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0))


def stretch_energy(stretch: Scalar, stiffness: Scalar, blend: Scalar) -> Scalar:
    """E(s), J. stretch: s, m; stiffness: k, N/m; blend: b, m."""
    within = jnp.clip(stretch + 0.5 * blend, 0.0, blend)
    rising = within**3 / (6.0 * blend)
    taut = jnp.maximum(stretch, 0.5 * blend)
    return stiffness * (rising + 0.5 * (taut - 0.5 * blend) * (taut + 0.5 * blend))


def stretch_tension(stretch: Scalar, stiffness: Scalar, blend: Scalar) -> Scalar:
    """dE/ds, N."""
    within = jnp.clip(stretch + 0.5 * blend, 0.0, blend)
    return stiffness * (within**2 / (2.0 * blend) + jnp.maximum(stretch - 0.5 * blend, 0.0))


def cable_energy(
    points: Float[Array, "m 3"], anchor: Float[Array, 3], rest_length: Scalar, stiffness: Scalar, blend: Scalar
) -> Scalar:
    """Energy, J, of a cable whose winch has paid out rest_length, m; stiffness: N/m; blend: m."""
    return stretch_energy(cable_length(points, anchor) - rest_length, stiffness, blend)


def cable_tension(
    points: Float[Array, "m 3"], anchor: Float[Array, 3], rest_length: Scalar, stiffness: Scalar, blend: Scalar
) -> Scalar:
    """Tension by the constraint, N: zero where slack."""
    return stretch_tension(cable_length(points, anchor) - rest_length, stiffness, blend)


def cable_forces_and_stiffness(
    points: Float[Array, "m 3"], anchor: Float[Array, 3], rest_length: Scalar, stiffness: Scalar, blend: Scalar
) -> tuple[Float[Array, "m 3"], Float[Array, "d d"]]:
    """Forces (m, 3), N, on the points and minus their derivative (3m, 3m), N/m, symmetric."""

    def energy(flat: Array) -> Scalar:
        return cable_energy(flat.reshape(points.shape), anchor, rest_length, stiffness, blend)

    flat = points.reshape(-1)
    return -jax.grad(energy)(flat).reshape(points.shape), jax.hessian(energy)(flat)


def attached_points(x: Float[Array, "n 3"], nodes: Array, weights: Float[Array, "m a"]) -> Float[Array, "m 3"]:
    """Points (m, 3) of an attachment when the vertices are at x (n, 3), m; nodes: (m, a) vertex indices."""
    return jnp.einsum("ma,mai->mi", weights, x[nodes])


def attached_vertices(body: Body, cable: Cable) -> NDArray[np.int64]:
    """The vertices (k,) that a cable's points are bound to, sorted."""
    nodes = body.tets[cable.points.tet]
    return np.unique(nodes[np.abs(cable.points.weights) > _NO_WEIGHT])


def tension_from_nodal_forces(internal_forces: Float[Array, "n 3"], vertices: Array | NDArray[np.int64]) -> Scalar:
    """Tension by the paper's rule, N: the sum over vertices (k,) of |force|, of internal_forces (n, 3)."""
    return jnp.sum(jnp.linalg.norm(internal_forces[vertices], axis=1))
