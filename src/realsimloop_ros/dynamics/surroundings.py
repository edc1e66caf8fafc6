"""The potential of contact and cables over the coordinates of a reduced body.

    E(c) = sum over points and colliders of E_contact(W_i + Q_i V_i c) + sum over cables of E_cable

with the point and cable energies of mechanics.contact and mechanics.cables, and their exact derivatives.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realsimloop_ros.mechanics.cables import (
    cable_energy,
    cable_forces_and_stiffness,
    cable_length,
    stretch_tension,
)
from realsimloop_ros.mechanics.contact import Contact, contact_energy, contact_force_and_stiffness
from realsimloop_ros.mechanics.surroundings import Instant
from realsimloop_ros.reduction.model import Kinematics, ReducedModel
from realsimloop_ros.reduction.surroundings import ReducedCable, ReducedSurroundings, TouchPoints

# so long that friction drags nothing: the "step" in which a static equilibrium is reached, s
STATIC_STEP = 1e9


class PointMap(NamedTuple):
    """Positions of points over the coordinates. base: (k, 3) m at c = 0; lift: (3k, R)."""

    base: Float[Array, "k 3"]
    lift: Float[Array, "d R"]

    def at(self, coordinates: Float[Array, " R"]) -> Float[Array, "k 3"]:
        """Positions (k, 3), m."""
        return self.base + (self.lift @ coordinates).reshape(-1, 3)


class Around(NamedTuple):
    """What acts on a body during one step.

    touch: its contact points, and previous: (k, 3), where they were at the step's start, m; poses, previous_poses:
    (c, 7) of the colliders at the step's ends; time_step: s; cables: the points of each; lengths: (w,) m; anchors:
    (w, 3) m.
    """

    touch: PointMap | None
    previous: Float[Array, "k 3"]
    poses: Float[Array, "c 7"]
    previous_poses: Float[Array, "c 7"]
    time_step: Float[Array, ""]
    cables: tuple[PointMap, ...]
    lengths: Float[Array, " w"]
    anchors: Float[Array, "w 3"]


def touch_map(touch: TouchPoints, frame: Kinematics) -> PointMap:
    """The contact points; frame: of the support."""
    at = frame.take(touch.nodes)
    lift = jnp.einsum("kij,kjr->kir", at.turn, touch.basis.reshape(len(touch.area), 3, -1))
    return PointMap(at.base, lift.reshape(touch.basis.shape))


def cable_map(cable: ReducedCable, frame: Kinematics) -> PointMap:
    """The points of a cable; frame: of the support."""
    base, turn = frame.base[cable.nodes], frame.turn[cable.nodes]
    m, a = cable.nodes.shape
    lift = jnp.einsum("ma,maij,majr->mir", cable.weights, turn, cable.basis.reshape(m, a, 3, -1))
    return PointMap(jnp.einsum("ma,mai->mi", cable.weights, base), lift.reshape(3 * m, -1))


def around(
    model: ReducedModel,
    frame: Kinematics,
    previous: Float[Array, "k 3"],
    before: Instant,
    after: Instant,
    time_step: float,
) -> Around | None:
    """What acts during the step that ends at `frame` (of the support), from `before` to `after`."""
    surroundings = model.surroundings
    if surroundings is None:
        return None
    return Around(
        None if surroundings.touch is None else touch_map(surroundings.touch, frame),
        previous,
        jnp.asarray(after.poses),
        jnp.asarray(before.poses),
        jnp.asarray(time_step, frame.base.dtype),
        tuple(cable_map(cable, frame) for cable in surroundings.cables),
        jnp.asarray(after.lengths),
        jnp.asarray(after.anchors),
    )


def _contact_over_points(contact: Contact, area: Array, at: Around, points: Float[Array, "k 3"]) -> Array:
    over_points = jax.vmap(contact_energy, (None, None, 0, 0, None, None, 0, None))
    total = jnp.zeros((), points.dtype)
    for k, collider in enumerate(contact.colliders):
        poses = at.poses[k], at.previous_poses[k]
        energies = over_points(collider, contact.settings, points, at.previous, *poses, area, at.time_step)
        total += jnp.sum(energies)
    return total


def _cable_energies(surroundings: ReducedSurroundings, at: Around, points: list[Array]) -> Array:
    total = jnp.zeros((), at.lengths.dtype)
    for k, (cable, line) in enumerate(zip(surroundings.cables, points, strict=True)):
        total += cable_energy(line, at.anchors[k], at.lengths[k], cable.stiffness, cable.blend)
    return total


class Outside(NamedTuple):
    """Where contact and cables take hold of a body. touch: (k, 3) m; cables: (m, 3) m of each."""

    touch: Float[Array, "k 3"]
    cables: list[Float[Array, "m 3"]]


def outside_energy(surroundings: ReducedSurroundings, at: Around, points: Outside) -> Float[Array, ""]:
    """Potential, J, of contact and cables at given points."""
    total = _cable_energies(surroundings, at, points.cables)
    if surroundings.contact is not None and surroundings.touch is not None:
        total += _contact_over_points(surroundings.contact, surroundings.touch.area, at, points.touch)
    return total


def outside_points(at: Around, coordinates: Float[Array, " R"]) -> Outside:
    """Those points at given coordinates."""
    touch = at.previous if at.touch is None else at.touch.at(coordinates)
    return Outside(touch, [line.at(coordinates) for line in at.cables])


def around_energy(surroundings: ReducedSurroundings, at: Around, coordinates: Float[Array, " R"]) -> Array:
    """Potential, J, at coordinates (R,)."""
    return outside_energy(surroundings, at, outside_points(at, coordinates))


def outside_slopes(surroundings: ReducedSurroundings, at: Around, points: Outside) -> Outside:
    """Gradient of outside_energy along the points, N: minus the forces on them."""
    return jax.grad(lambda p: outside_energy(surroundings, at, p))(points)


def around_gradient(
    surroundings: ReducedSurroundings, at: Around, coordinates: Float[Array, " R"]
) -> Float[Array, " R"]:
    """Its gradient, N."""
    slopes = outside_slopes(surroundings, at, outside_points(at, coordinates))
    total = jnp.zeros_like(coordinates)
    if at.touch is not None:
        total += slopes.touch.reshape(-1) @ at.touch.lift
    for line, slope in zip(at.cables, slopes.cables, strict=True):
        total += slope.reshape(-1) @ line.lift
    return total


def around_hessian(
    surroundings: ReducedSurroundings, at: Around, coordinates: Float[Array, " R"]
) -> Float[Array, "R R"]:
    """Its exact Hessian, N/m."""
    size = len(coordinates)
    points = outside_points(at, coordinates)
    total = jnp.zeros((size, size), coordinates.dtype)
    contact, touch = surroundings.contact, surroundings.touch
    if contact is not None and touch is not None and at.touch is not None:
        over_points = jax.vmap(contact_force_and_stiffness, (None, None, 0, 0, None, None, 0, None))
        stiffness = jnp.zeros((len(touch.area), 3, 3), coordinates.dtype)
        for k, collider in enumerate(contact.colliders):
            poses = at.poses[k], at.previous_poses[k]
            stiffness += over_points(
                collider, contact.settings, points.touch, at.previous, *poses, touch.area, at.time_step
            )[1]
        lift = at.touch.lift.reshape(len(touch.area), 3, size)
        total += at.touch.lift.T @ (stiffness @ lift).reshape(-1, size)
    for k, (cable, line) in enumerate(zip(surroundings.cables, at.cables, strict=True)):
        _, stiffness = cable_forces_and_stiffness(
            points.cables[k], at.anchors[k], at.lengths[k], cable.stiffness, cable.blend
        )
        total += line.lift.T @ stiffness @ line.lift
    return total


def cable_tensions(surroundings: ReducedSurroundings, at: Around, coordinates: Array) -> Float[Array, " w"]:
    """Tension of each cable by its constraint, N: zero where slack."""
    tensions = []
    for k, (cable, line) in enumerate(zip(surroundings.cables, at.cables, strict=True)):
        stretch = cable_length(line.at(coordinates), at.anchors[k]) - at.lengths[k]
        tensions.append(stretch_tension(stretch, cable.stiffness, cable.blend))
    return jnp.stack(tensions) if tensions else jnp.zeros(0, coordinates.dtype)
