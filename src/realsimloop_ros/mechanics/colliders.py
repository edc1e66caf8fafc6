"""Rigid things a body touches: signed distances of points, smooth enough for Newton's method.

A collider is a shape in a frame of its own; where that frame stands is an argument of every function, a pose
(7,) x y z qx qy qz qw, so that colliders move and derivatives with respect to their motion exist. Distances are in
m, positive outside.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import spline_filter

Scalar = Float[Array, ""]

# samples by which a grid is continued to find its spline: 0.27^16 is below 1e-9
_BEYOND = 16


class InvalidContactError(ValueError):
    """A collider, contact settings or inputs to them that make no sense; the text names field, value, remedy."""


def is_traced(value: object) -> bool:
    """Whether a value stands for numbers that are not known yet (inside jit or grad): it cannot be checked."""
    return isinstance(value, jax.core.Tracer)


def checked_positive(value: ArrayLike | Array, field: str, unit: str, *, or_zero: bool = False) -> Scalar:
    """The value as a scalar array. Raises InvalidContactError unless it is finite and positive (or zero)."""
    if not is_traced(value):
        found = np.asarray(value, dtype=np.float64)
        if found.shape != ():
            raise InvalidContactError(f"{field}: shape {found.shape}, expected one number")
        if not (np.isfinite(found) and (found > 0.0 or (or_zero and found == 0.0))):
            bound = "not negative" if or_zero else "positive"
            raise InvalidContactError(f"{field}: {found}, expected a finite number of {unit} that is {bound}")
    return jnp.asarray(value, jnp.result_type(float))


def safe_norm(vector: Float[Array, " k"]) -> Scalar:
    """Euclidean norm whose derivatives at zero are zero instead of NaN."""
    square = jnp.sum(vector**2)
    positive = square > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def pose_rotation(pose: Float[Array, 7]) -> Float[Array, "3 3"]:
    """Rotation matrix of a pose, smooth in all four numbers of its quaternion, which need not be normalised."""
    x, y, z, w = pose[3], pose[4], pose[5], pose[6]
    products = jnp.stack(
        [
            jnp.stack([-(y * y + z * z), x * y - z * w, x * z + y * w]),
            jnp.stack([x * y + z * w, -(x * x + z * z), y * z - x * w]),
            jnp.stack([x * z - y * w, y * z + x * w, -(x * x + y * y)]),
        ]
    )
    return jnp.eye(3, dtype=pose.dtype) + 2.0 / jnp.dot(pose[3:], pose[3:]) * products


def to_local(pose: Float[Array, 7], point: Float[Array, 3]) -> Float[Array, 3]:
    """A world point (3,) in the frame of a pose, m."""
    return (point - pose[:3]) @ pose_rotation(pose)


def to_world(pose: Float[Array, 7], point: Float[Array, 3]) -> Float[Array, 3]:
    """A point (3,) of the frame of a pose in the world, m."""
    return pose_rotation(pose) @ point + pose[:3]


class Collider(eqx.Module):
    """A rigid shape."""

    @abc.abstractmethod
    def local_distance(self, point: Float[Array, 3]) -> Scalar:
        """Signed distance, m, of a point (3,) given in the collider's frame."""

    def check_band(self, band: float, field: str) -> None:
        """Raise InvalidContactError where contact within `band` m of the surface would not be differentiable."""


class Plane(Collider):
    """The half space z <= 0 of its frame; its outward normal is the frame's z axis."""

    def local_distance(self, point: Float[Array, 3]) -> Scalar:
        return point[2]


class Sphere(Collider):
    """A ball about the origin of its frame. radius: m."""

    radius: Scalar

    def __init__(self, radius: ArrayLike | Array) -> None:
        self.radius = checked_positive(radius, "sphere.radius", "m")

    def local_distance(self, point: Float[Array, 3]) -> Scalar:
        return _rounded_norm(point, self.radius) - self.radius


class Capsule(Collider):
    """A cylinder along the z axis of its frame, between -half_length and half_length, m, capped by half balls.

    Its distance has continuous normals; its curvature jumps where the caps begin.
    """

    radius: Scalar
    half_length: Scalar

    def __init__(self, radius: ArrayLike | Array, half_length: ArrayLike | Array) -> None:
        self.radius = checked_positive(radius, "capsule.radius", "m")
        self.half_length = checked_positive(half_length, "capsule.half_length", "m")

    def local_distance(self, point: Float[Array, 3]) -> Scalar:
        along = jnp.clip(point[2], -self.half_length, self.half_length)
        return _rounded_norm(point - along * jnp.array([0.0, 0.0, 1.0], point.dtype), self.radius) - self.radius


def _rounded_norm(offset: Float[Array, 3], radius: Scalar) -> Scalar:
    """|offset|, rounded within 1e-6 of the radius so that even the centre has derivatives."""
    return jnp.sqrt(jnp.sum(offset**2) + (1e-6 * radius) ** 2)


class SignedDistanceGrid(Collider):
    """Any closed shape, by samples of its signed distance on a regular grid, joined by a cubic B-spline.

    The spline goes through the samples and is C2, so forces and stiffnesses are continuous (a trilinear
    interpolant has normals that jump from cell to cell, at which Newton's method would stall). Outside of the grid
    the distance to the grid is added, which is continuous but not smooth: check_band refuses a grid that contact
    could leave.

    coefficients: (nx + 2, ny + 2, nz + 2) of the spline, m; origin: (3,) m, where the first sample stands in the
    collider's frame; spacing: m; border: smallest sample on the grid's border, m.
    """

    coefficients: Float[Array, "i j k"]
    origin: Float[Array, 3]
    spacing: Scalar
    border: float = eqx.field(static=True)

    def __init__(self, values: ArrayLike, origin: ArrayLike, spacing: float) -> None:
        """values: (nx, ny, nz) samples, m, negative inside; origin: (3,) m; spacing: m."""
        samples = np.asarray(values, dtype=np.float64)
        corner = np.asarray(origin, dtype=np.float64)
        self.spacing = checked_positive(spacing, "grid.spacing", "m")
        _check_grid(samples, corner, float(spacing))
        # samples go on beyond the border with the same slope; what the filter's own end does there fades to a
        # fourth within each sample
        beyond = np.pad(samples, _BEYOND, mode="reflect", reflect_type="odd")
        kept = slice(_BEYOND - 1, 1 - _BEYOND)
        coefficients = spline_filter(beyond, order=3, mode="mirror")[kept, kept, kept]
        self.coefficients = jnp.asarray(coefficients, jnp.result_type(float))
        self.origin = jnp.asarray(corner, jnp.result_type(float))
        self.border = min(float(np.take(samples, [0, -1], axis=axis).min()) for axis in range(3))

    def local_distance(self, point: Float[Array, 3]) -> Scalar:
        last = jnp.asarray(self.coefficients.shape, point.dtype) - 3.0
        place = (point - self.origin) / self.spacing
        inside = jnp.clip(place, 0.0, last)
        cell = jnp.clip(jnp.floor(inside), 0.0, last - 1.0)
        first = cell.astype(jnp.int32)
        patch = jax.lax.dynamic_slice(self.coefficients, (first[0], first[1], first[2]), (4, 4, 4))
        weights = jax.vmap(_cubic_weights)(inside - cell)
        value = jnp.einsum("ijk,i,j,k->", patch, weights[0], weights[1], weights[2])
        return value + self.spacing * safe_norm(place - inside)

    def check_band(self, band: float, field: str) -> None:
        if self.border < band:
            raise InvalidContactError(
                f"{field}: the distance on the grid's border is {self.border:.6g} m, but contact begins at "
                f"{band:.6g} m; extend the grid by {(band - self.border):.3g} m on every side"
            )


def _cubic_weights(fraction: Scalar) -> Float[Array, 4]:
    """Values of the four cubic B-splines that reach a point at `fraction` of its cell."""
    t, rest = fraction, 1.0 - fraction
    return (
        jnp.stack(
            [rest**3, 4.0 - 6.0 * t**2 + 3.0 * t**3, 4.0 - 6.0 * rest**2 + 3.0 * rest**3, t**3],
        )
        / 6.0
    )


def _check_grid(values: NDArray[np.float64], origin: NDArray[np.float64], spacing: float) -> None:
    if values.ndim != 3 or min(values.shape) < 4:
        raise InvalidContactError(f"grid.values: shape {values.shape}, expected (nx, ny, nz), each at least 4")
    if not np.isfinite(values).all():
        bad = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
        raise InvalidContactError(f"grid.values: sample {bad} is {values[tuple(bad)]}; sample the shape anew")
    if origin.shape != (3,) or not np.isfinite(origin).all():
        raise InvalidContactError(f"grid.origin: {origin.tolist()}, expected three finite numbers in m")
    if values.min() >= 0.0:
        raise InvalidContactError(
            f"grid.values: smallest {values.min():.6g} m, so nothing is solid; distances are negative inside"
        )
    # a distance changes by no more than the way gone; sampled with some error
    steepest = max(float(np.abs(np.diff(values, axis=axis)).max()) for axis in range(3)) / spacing
    if steepest > 1.5:
        raise InvalidContactError(
            f"grid.values: change by {steepest:.3g} m per m, no distance does; are values and spacing both in m?"
        )


def signed_distance(collider: Collider, point: Float[Array, 3], pose: Float[Array, 7]) -> Scalar:
    """Signed distance, m, of a world point (3,) from a collider at a pose (7,)."""
    return collider.local_distance(to_local(pose, point))


def distance_and_normal(
    collider: Collider, point: Float[Array, 3], pose: Float[Array, 7]
) -> tuple[Scalar, Float[Array, 3]]:
    """Signed distance, m, and its gradient (3,) with respect to the world point."""
    return jax.value_and_grad(lambda x: signed_distance(collider, x, pose))(point)
