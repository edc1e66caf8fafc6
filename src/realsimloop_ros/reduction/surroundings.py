"""What may touch or pull a reduced body: its contact points and the points its cables run through."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.contact import Contact, contact_points


class TouchPoints(eqx.Module):
    """Vertices that may touch something. nodes: (k,) places in the support; basis: (3k, R); area: (k,) m^2."""

    nodes: Int[Array, " k"]
    basis: Float[Array, "d R"]
    area: Float[Array, " k"]


class ReducedCable(eqx.Module):
    """A cable through m points of the body. nodes: (m, a) places in the support of the vertices that carry each
    point; weights: (m, a); basis: (m, 3a, R) of these vertices; stiffness: N/m; blend: m.
    """

    nodes: Int[Array, "m a"]
    weights: Float[Array, "m a"]
    basis: Float[Array, "m b R"]
    stiffness: Float[Array, ""]
    blend: Float[Array, ""]


class ReducedSurroundings(eqx.Module):
    """All that a body may touch and be pulled by."""

    contact: Contact | None
    touch: TouchPoints | None
    cables: tuple[ReducedCable, ...]


def surrounding_vertices(body: Body, contact: Contact | None) -> NDArray[np.int64]:
    """The vertices (k,) whose positions contact and cables depend on, sorted."""
    parts = [body.tets[cable.points.tet].ravel() for cable in body.cables]
    if contact is not None:
        parts.append(contact_points(body)[0])
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def reduced_surroundings(
    body: Body, contact: Contact | None, basis: NDArray[np.float64], support: NDArray[np.int64]
) -> ReducedSurroundings | None:
    """The surroundings of a body with a basis (n, 3, R), or None where it has neither cables nor contact."""
    if contact is None and not body.cables:
        return None
    count = basis.shape[2]
    touch = None
    if contact is not None:
        vertices, areas = contact_points(body)
        touch = TouchPoints(
            jnp.asarray(np.searchsorted(support, vertices)),
            jnp.asarray(basis[vertices].reshape(-1, count)),
            jnp.asarray(areas),
        )
    cables = []
    for cable in body.cables:
        nodes = body.tets[cable.points.tet]
        cables.append(
            ReducedCable(
                jnp.asarray(np.searchsorted(support, nodes)),
                jnp.asarray(cable.points.weights),
                jnp.asarray(basis[nodes].reshape(len(nodes), -1, count)),
                jnp.asarray(cable.stiffness),
                jnp.asarray(cable.blend),
            )
        )
    return ReducedSurroundings(contact, touch, tuple(cables))
