"""Contact with friction at points, as an incremental potential.

With d the signed distance of a point and g = band - d, the collider presses on it with

    p(d) = stiffness g^2 / band  for g > 0, else 0    (Pa),       E_n = area stiffness g^3 / (3 band)    (J),

which is C2: the force and its derivative start from zero where the band begins. At d = 0 the pressure is
stiffness band, and it goes on rising below.

Friction dissipates over a step of length h, with u the point's displacement beyond that of the collider's matter
under it, tangential part w (Li et al.: Incremental Potential Contact, 2020):

    E_f = mu N h F(|w| / h),    F'(v) = 1 for v >= e, else 2 v/e - (v/e)^2,

e the friction velocity. The normal force N and the tangent plane are those of the step's start, so that E_f is a
potential, convex in the point; its force is C1. Below e the point creeps, above it friction is Coulomb's.

Everything here is for one point and one collider, differentiable with respect to points, poses, settings, area and
time step; callers vmap and sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from realsimloop_ros.body.body import Body, surface_triangles
from realsimloop_ros.body.poses import checked_poses
from realsimloop_ros.mechanics.colliders import (
    Collider,
    InvalidContactError,
    Scalar,
    checked_positive,
    is_traced,
    pose_rotation,
    safe_norm,
    signed_distance,
    to_local,
)


class ContactSettings(eqx.Module):
    """How hard and how rough contact is.

    stiffness: N/m^3 (Pa per m), the mean slope of pressure over the band; band: m, the distance at which contact
    begins; friction: Coulomb's coefficient; friction_velocity: m/s, below which friction is a creep.
    Raises InvalidContactError on numbers that are no such thing.
    """

    stiffness: Scalar
    band: Scalar
    friction: Scalar
    friction_velocity: Scalar

    def __init__(
        self,
        stiffness: ArrayLike | Array,
        band: ArrayLike | Array,
        friction: ArrayLike | Array = 0.0,
        friction_velocity: ArrayLike | Array = 1e-3,
    ) -> None:
        self.stiffness = checked_positive(stiffness, "contact.stiffness", "N/m^3")
        self.band = checked_positive(band, "contact.band", "m")
        self.friction = checked_positive(friction, "contact.friction", "N per N", or_zero=True)
        self.friction_velocity = checked_positive(friction_velocity, "contact.friction_velocity", "m/s")


class Contact(eqx.Module):
    """Named colliders and the settings that hold for all of them.

    Raises InvalidContactError where there is no collider or one of them is not smooth within the band.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    colliders: tuple[Collider, ...]
    settings: ContactSettings

    def __init__(self, colliders: Mapping[str, Collider], settings: ContactSettings) -> None:
        if not colliders:
            raise InvalidContactError("contact.colliders: none; name at least one, or leave contact out")
        if not is_traced(settings.band):
            for name, collider in colliders.items():
                collider.check_band(float(settings.band), f"contact.colliders.{name}")
        self.names = tuple(colliders)
        self.colliders = tuple(colliders.values())
        self.settings = settings

    def ordered_poses(self, poses: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
        """Poses (c, 7) in the order of the colliders. Raises InvalidContactError on unknown or missing names."""
        unknown = sorted(set(poses) - set(self.names))
        missing = [name for name in self.names if name not in poses]
        if unknown or missing:
            raise InvalidContactError(
                f"collider_poses: unknown {unknown}, missing {missing}; the colliders are {list(self.names)}"
            )
        return self.checked_poses(np.stack([np.asarray(poses[name], dtype=np.float64) for name in self.names]))

    def checked_poses(self, poses: ArrayLike | None) -> NDArray[np.float64]:
        """Poses (c, 7) with unit quaternions. Raises InvalidContactError or InvalidPoseError."""
        found = checked_poses(np.zeros((0, 7)) if poses is None else poses, "collider_poses")
        if found.shape != (len(self.names), 7):
            raise InvalidContactError(
                f"collider_poses: shape {found.shape}, expected ({len(self.names)}, 7) for {list(self.names)}"
            )
        return found


def contact_points(body: Body) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The vertices (k,) that may touch something and the rest areas (k,), m^2, that they stand for.

    Every surface vertex that is not held takes a third of each of its surface triangles. A quadratic face is four
    of them, so its corners weigh 1/12 and its middles 1/4: positive everywhere, and exact for pressures linear
    over a face (the weights of the quadratic shape functions would leave corners without contact).

    What is smaller than the distance between vertices may fit between them unnoticed, so the surface must be
    meshed finely against the collider's radius. Vertices on an edge stand for the faces on both of its sides.
    """
    triangles = surface_triangles(body)
    a, b, c = np.moveaxis(body.rest_positions[triangles], 1, 0)
    areas = np.zeros(len(body.rest_positions))
    np.add.at(areas, triangles, (np.linalg.norm(np.cross(b - a, c - a), axis=1) / 6.0)[:, None])
    areas[body.held_vertices] = 0.0
    vertices = np.flatnonzero(areas > 0.0)
    return vertices, areas[vertices]


def contact_pressure(settings: ContactSettings, distance: Scalar) -> tuple[Scalar, Scalar]:
    """Pressure, Pa, at a signed distance, m, and how it falls with it, -dp/dd >= 0, N/m^3."""
    gap = jnp.maximum(settings.band - distance, 0.0)
    return settings.stiffness * gap**2 / settings.band, 2.0 * settings.stiffness * gap / settings.band


def normal_contact_energy(
    collider: Collider, settings: ContactSettings, point: Float[Array, 3], pose: Float[Array, 7], area: Scalar
) -> Scalar:
    """E_n, J, of a world point that stands for an area, m^2."""
    gap = jnp.maximum(settings.band - signed_distance(collider, point, pose), 0.0)
    return area * settings.stiffness * gap**3 / (3.0 * settings.band)


def _sliding(
    collider: Collider,
    settings: ContactSettings,
    point: Float[Array, 3],
    previous_point: Float[Array, 3],
    pose: Float[Array, 7],
    previous_pose: Float[Array, 7],
    area: Scalar,
) -> tuple[Scalar, Float[Array, 3], Float[Array, 3]]:
    """mu N of the step's start, the tangential displacement w (3,), m, and the unit normal (3,) that it lacks."""
    local = to_local(previous_pose, previous_point)
    distance, gradient = jax.value_and_grad(collider.local_distance)(local)
    limit = settings.friction * area * contact_pressure(settings, distance)[0]
    length = safe_norm(gradient)
    rotation = pose_rotation(pose)
    # in the collider's frame of the step's end, so that friction does not see it and the body move as one
    normal = rotation @ (gradient / jnp.where(length > 0.0, length, 1.0))
    moved = point - (rotation @ local + pose[:3])
    return limit, moved - normal * jnp.dot(normal, moved), normal


def friction_energy(
    collider: Collider,
    settings: ContactSettings,
    point: Float[Array, 3],
    previous_point: Float[Array, 3],
    pose: Float[Array, 7],
    previous_pose: Float[Array, 7],
    area: Scalar,
    time_step: Scalar | float,
) -> Scalar:
    """E_f, J, zero where the point and the collider moved as one."""
    limit, slip, _ = _sliding(collider, settings, point, previous_point, pose, previous_pose, area)
    speed = settings.friction_velocity
    # the square is smooth where the norm is not: at rest
    square = jnp.sum(slip**2) / (time_step * speed) ** 2
    ratio = safe_norm(slip) / (time_step * speed)
    potential = jnp.where(square < 1.0, square - square * ratio / 3.0, ratio - 1.0 / 3.0)
    return limit * time_step * speed * potential


def contact_energy(
    collider: Collider,
    settings: ContactSettings,
    point: Float[Array, 3],
    previous_point: Float[Array, 3],
    pose: Float[Array, 7],
    previous_pose: Float[Array, 7],
    area: Scalar,
    time_step: Scalar | float,
) -> Scalar:
    """E_n + E_f, J, of a world point (3,), m.

    previous_point, previous_pose: where point and collider were a time step, s, before; area: m^2.
    """
    pressing = normal_contact_energy(collider, settings, point, pose, area)
    return pressing + friction_energy(
        collider, settings, point, previous_point, pose, previous_pose, area, time_step
    )


def contact_force_and_stiffness(
    collider: Collider,
    settings: ContactSettings,
    point: Float[Array, 3],
    previous_point: Float[Array, 3],
    pose: Float[Array, 7],
    previous_pose: Float[Array, 7],
    area: Scalar,
    time_step: Scalar | float,
) -> tuple[Float[Array, 3], Float[Array, "3 3"]]:
    """Force (3,), N, on the point and -d force/d point (3, 3), N/m: minus gradient and Hessian of contact_energy.

    The stiffness is exact and symmetric; a convex collider's curvature can make it indefinite.
    """
    rotation = pose_rotation(pose)
    local = to_local(pose, point)
    distance, gradient = jax.value_and_grad(collider.local_distance)(local)
    curvature = jax.hessian(collider.local_distance)(local)
    pressure, slope = contact_pressure(settings, distance)
    stiffness = rotation @ (slope * jnp.outer(gradient, gradient) - pressure * curvature) @ rotation.T
    limit, slip, normal = _sliding(collider, settings, point, previous_point, pose, previous_pose, area)
    slow = settings.friction_velocity
    rate = slip / time_step
    speed = safe_norm(rate)
    creeping = speed < slow
    fast = jnp.where(creeping, slow, speed)
    # F'(v)/v, and its derivative over v
    per_speed = jnp.where(creeping, (2.0 - speed / slow) / slow, 1.0 / fast)
    falling = jnp.where(creeping, -1.0 / (slow**2 * jnp.where(speed > 0.0, speed, 1.0)), -1.0 / fast**3)
    tangent = jnp.eye(3, dtype=point.dtype) - jnp.outer(normal, normal)
    drag = limit * per_speed * rate
    slowing = limit / time_step * (per_speed * tangent + falling * jnp.outer(rate, rate))
    return area * pressure * (rotation @ gradient) - drag, area * stiffness + slowing
