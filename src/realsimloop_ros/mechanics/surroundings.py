"""What acts on a body from outside with a potential: colliders it touches and cables that pull it.

Surroundings say where these stand at an instant. SurroundingPotential knows the body's contact points and cable
attachments and yields, for the step between two instants, energy, forces and stiffness over the body's vertices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import interpolate
from realsimloop_ros.mechanics.cables import (
    attached_points,
    attached_vertices,
    cable_energy,
    cable_forces_and_stiffness,
    cable_length,
    stretch_tension,
)
from realsimloop_ros.mechanics.colliders import distance_and_normal, pose_rotation, to_local
from realsimloop_ros.mechanics.contact import (
    Contact,
    contact_energy,
    contact_force_and_stiffness,
    contact_points,
)


class InvalidSurroundingsError(ValueError):
    """Surroundings that do not fit the body or its contact."""


@dataclass(frozen=True)
class Surroundings:
    """Where colliders and winches are at an instant.

    collider_poses: (c, 7) in the order of the contact's colliders; winch_lengths: (w,) m paid out, in the order of
    body.cables; winch_anchors: (w, 3) m, the cables' ends, where they are at rest if not given.
    """

    collider_poses: NDArray[np.float64] | None = None
    winch_lengths: NDArray[np.float64] | None = None
    winch_anchors: NDArray[np.float64] | None = None


class Instant(NamedTuple):
    """Checked Surroundings. poses: (c, 7); lengths: (w,) m; anchors: (w, 3) m."""

    poses: NDArray[np.float64] | Float[Array, "c 7"]
    lengths: NDArray[np.float64] | Float[Array, " w"]
    anchors: NDArray[np.float64] | Float[Array, "w 3"]


def poses_between(
    first: NDArray[np.float64], second: NDArray[np.float64], part: int, parts: int
) -> NDArray[np.float64]:
    """Poses (p, 7) after `part` of `parts` equal parts of the way from first to second."""
    stamps = np.array([0, parts])
    poses = [interpolate(stamps, np.stack(pair), part) for pair in zip(first, second, strict=True)]
    return np.reshape(poses, (-1, 7))


def between(first: Instant, second: Instant, part: int, parts: int) -> Instant:
    """The instant after `part` of `parts` equal parts of the way from first to second."""
    if part == parts:
        return second
    fraction = part / parts
    return Instant(
        poses_between(np.asarray(first.poses), np.asarray(second.poses), part, parts),
        (1.0 - fraction) * first.lengths + fraction * second.lengths,
        (1.0 - fraction) * first.anchors + fraction * second.anchors,
    )


class _Cable(eqx.Module):
    """A cable's points as weights of the vertices it is attached to."""

    nodes: Array
    weights: Array
    stiffness: Array
    blend: Array


class Situation(eqx.Module):
    """All that a potential needs beside positions. previous: (k, 3) contact points at the step's start, m; poses,
    previous_poses: (c, 7); time_step: s; lengths: (w,) m; anchors: (w, 3) m."""

    previous: Array
    poses: Array
    previous_poses: Array
    time_step: Array
    lengths: Array
    anchors: Array


class Motion(NamedTuple):
    """How contact points (k,) move relative to colliders (c,) over a step, (c, k) m each.

    before, after: signed distances at its ends; closing: the way along the normal at its start, positive inwards.
    """

    before: NDArray[np.float64]
    after: NDArray[np.float64]
    closing: NDArray[np.float64]


class SurroundingPotential:
    """Contact and cables of a body.

    vertices: (k,) those that may touch something; areas: (k,) m^2; cliques: per cable the vertices it couples.
    """

    def __init__(self, body: Body, contact: Contact | None) -> None:
        self.body = body
        self.contact = contact
        self.vertices, self.areas = contact_points(body)
        if contact is None:
            self.vertices, self.areas = self.vertices[:0], self.areas[:0]
        self.cliques = [attached_vertices(body, cable) for cable in body.cables]
        self._cables = tuple(
            _Cable(
                jnp.asarray(body.tets[cable.points.tet]),
                jnp.asarray(cable.points.weights),
                jnp.asarray(cable.stiffness),
                jnp.asarray(cable.blend),
            )
            for cable in body.cables
        )
        # from the positions of a clique's vertices to the cable's points, (3m, 3v)
        self._spread = [self._point_map(k) for k in range(len(self._cables))]
        self._area_array = jnp.asarray(self.areas)
        self._vertex_array = jnp.asarray(self.vertices)

    def __bool__(self) -> bool:
        return self.contact is not None or bool(self._cables)

    def _point_map(self, index: int) -> NDArray[np.float64]:
        cable, clique = self.body.cables[index], self.cliques[index]
        weights = np.zeros((len(cable.points), len(self.body.rest_positions)))
        nodes = self.body.tets[cable.points.tet]
        np.add.at(weights, (np.arange(len(nodes))[:, None], nodes), cable.points.weights)
        return np.asarray(np.kron(weights[:, clique], np.eye(3)), dtype=np.float64)

    def instant(self, surroundings: Surroundings | None) -> Instant:
        """Checked surroundings. Raises InvalidSurroundingsError, InvalidContactError, InvalidPoseError."""
        given = Surroundings() if surroundings is None else surroundings
        if self.contact is not None:
            poses = self.contact.checked_poses(given.collider_poses)
        else:
            poses = _checked(given.collider_poses, (0, 7), "collider_poses", "a solver without contact")
        names, count = self.body.cable_names, len(self._cables)
        lengths = _checked(given.winch_lengths, (count,), "winch_lengths", f"the cables {list(names)}")
        if lengths.min(initial=0.0) < 0.0:
            raise InvalidSurroundingsError(f"winch_lengths: {lengths.tolist()}, expected none negative, in m")
        anchors = given.winch_anchors
        if anchors is None:
            anchors = np.reshape([cable.anchor for cable in self.body.cables], (-1, 3))
        return Instant(poses, lengths, _checked(anchors, (count, 3), "winch_anchors", f"the cables {list(names)}"))

    def situation(
        self, start: NDArray[np.float64], before: Instant, after: Instant, time_step: float
    ) -> Situation:
        """The situation of a step from positions start (n, 3), m, between two instants time_step s apart."""
        return Situation(
            jnp.asarray(start[self.vertices]),
            jnp.asarray(after.poses),
            jnp.asarray(before.poses),
            jnp.asarray(time_step),
            jnp.asarray(after.lengths),
            jnp.asarray(after.anchors),
        )

    def energy(self, situation: Situation, x: NDArray[np.float64]) -> float:
        """Potential, J, at positions (n, 3), m."""
        contact, areas, vertices = self.contact, self._area_array, self._vertex_array
        return float(_energy(contact, self._cables, areas, vertices, situation, jnp.asarray(x)))

    def forces(self, situation: Situation, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Forces (n, 3), N, of everything on the vertices."""
        total = np.zeros_like(x)
        pressing, _ = self.contact_forces(situation, x)
        np.add.at(total, self.vertices, pressing.sum(axis=0))
        for spread, clique, (force, _) in zip(self._spread, self.cliques, self._pulls(situation, x), strict=True):
            total[clique] += (spread.T @ force.ravel()).reshape(-1, 3)
        return total

    def contact_forces(
        self, situation: Situation, x: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Forces (c, k, 3), N, of each collider on the contact points, and their stiffness (k, 3, 3), N/m."""
        if self.contact is None:
            return np.zeros((0, 0, 3)), np.zeros((0, 3, 3))
        points = jnp.asarray(x[self.vertices])
        forces, stiffness = _contact_forces(self.contact, self._area_array, situation, points)
        return np.asarray(forces), np.asarray(stiffness)

    def cable_stiffness(self, situation: Situation, x: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Per cable the stiffness (3v, 3v), N/m, among the vertices of its clique."""
        pulls = self._pulls(situation, x)
        return [spread.T @ stiffness @ spread for spread, (_, stiffness) in zip(self._spread, pulls, strict=True)]

    def tensions(self, instant: Instant, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Tension (w,), N, of each cable by its constraint."""
        found = np.zeros(len(self._cables))
        for k, cable in enumerate(self._cables):
            points = attached_points(jnp.asarray(x), cable.nodes, cable.weights)
            stretch = cable_length(points, jnp.asarray(instant.anchors[k])) - instant.lengths[k]
            found[k] = float(stretch_tension(stretch, cable.stiffness, cable.blend))
        return found

    def motion(
        self, x: NDArray[np.float64], before: Instant, moved: NDArray[np.float64], after: Instant
    ) -> Motion:
        """Relative motion of contact points while the body goes from x to moved, (n, 3) m."""
        assert self.contact is not None
        arrays = (x[self.vertices], before.poses, moved[self.vertices], after.poses)
        return Motion(*map(np.asarray, _motion(self.contact, *map(jnp.asarray, arrays))))

    def longest_step(self, situation: Situation, x: NDArray[np.float64], direction: NDArray[np.float64]) -> float:
        """The part (at most 1) of `direction` (n, 3), m, that takes no point further than a band below a surface.

        Along the normal at x, which is exact for convex colliders: a straight way that does not cross the plane
        through the nearest surface point cannot go through the collider.
        """
        if self.contact is None:
            return 1.0
        here = Instant(np.asarray(situation.poses), np.zeros(0), np.zeros((0, 3)))
        motion = self.motion(x, here, x + direction, here)
        allowed = np.maximum(motion.before, 0.0) + float(self.contact.settings.band)
        return float(np.min(allowed / np.maximum(motion.closing, allowed), initial=1.0))

    def _pulls(self, situation: Situation, x: NDArray[np.float64]) -> list[tuple[Array, Array]]:
        return [tuple(map(np.asarray, pull)) for pull in _cable_pulls(self._cables, situation, jnp.asarray(x))]  # type: ignore[misc]


def _checked(
    values: NDArray[np.float64] | None, shape: tuple[int, ...], label: str, reason: str
) -> NDArray[np.float64]:
    found = np.zeros((0, *shape[1:])) if values is None else np.asarray(values, dtype=np.float64)
    if found.shape != shape:
        raise InvalidSurroundingsError(f"{label}: shape {found.shape}, expected {shape} for {reason}")
    if not np.isfinite(found).all():
        raise InvalidSurroundingsError(f"{label}: {found.tolist()}, expected finite numbers; send only valid ones")
    return found


@eqx.filter_jit
def _energy(
    contact: Contact | None,
    cables: tuple[_Cable, ...],
    areas: Array,
    vertices: Array,
    situation: Situation,
    x: Float[Array, "n 3"],
) -> Array:
    total = jnp.zeros((), x.dtype)
    if contact is not None:
        over_points = jax.vmap(contact_energy, (None, None, 0, 0, None, None, 0, None))
        for k, collider in enumerate(contact.colliders):
            poses = (situation.poses[k], situation.previous_poses[k])
            ends = (x[vertices], situation.previous)
            total += jnp.sum(over_points(collider, contact.settings, *ends, *poses, areas, situation.time_step))
    for k, cable in enumerate(cables):
        points = attached_points(x, cable.nodes, cable.weights)
        winch = (situation.anchors[k], situation.lengths[k])
        total += cable_energy(points, *winch, cable.stiffness, cable.blend)
    return total


@eqx.filter_jit
def _contact_forces(
    contact: Contact, areas: Array, situation: Situation, points: Float[Array, "k 3"]
) -> tuple[Array, Array]:
    over_points = jax.vmap(contact_force_and_stiffness, (None, None, 0, 0, None, None, 0, None))
    found = [
        over_points(
            collider,
            contact.settings,
            points,
            situation.previous,
            situation.poses[k],
            situation.previous_poses[k],
            areas,
            situation.time_step,
        )
        for k, collider in enumerate(contact.colliders)
    ]
    return jnp.stack([force for force, _ in found]), sum(
        (stiffness for _, stiffness in found), jnp.zeros((len(points), 3, 3))
    )


@eqx.filter_jit
def _cable_pulls(
    cables: tuple[_Cable, ...], situation: Situation, x: Float[Array, "n 3"]
) -> list[tuple[Array, Array]]:
    return [
        cable_forces_and_stiffness(
            attached_points(x, cable.nodes, cable.weights),
            situation.anchors[k],
            situation.lengths[k],
            cable.stiffness,
            cable.blend,
        )
        for k, cable in enumerate(cables)
    ]


@eqx.filter_jit
def _motion(
    contact: Contact, points: Array, poses: Array, moved: Array, moved_poses: Array
) -> tuple[Array, Array, Array]:
    found = []
    for k, collider in enumerate(contact.colliders):

        def of_point(point: Array, end: Array, collider=collider, k: int = k) -> tuple[Array, Array, Array]:  # type: ignore[no-untyped-def]
            distance, normal = distance_and_normal(collider, point, poses[k])
            carried = pose_rotation(moved_poses[k]) @ to_local(poses[k], point) + moved_poses[k, :3]
            turned = pose_rotation(moved_poses[k]) @ (normal @ pose_rotation(poses[k]))
            after, _ = distance_and_normal(collider, end, moved_poses[k])
            return distance, after, jnp.dot(turned, carried - end)

        found.append(jax.vmap(of_point)(points, moved))
    before, after, closing = (jnp.stack(parts) for parts in zip(*found, strict=True))
    return before, after, closing
