"""Colliders and contact with friction at one point: closed forms, derivatives, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from body.bodies import bar, two_tets
from realsimloop_ros.body.poses import IDENTITY_POSE, InvalidPoseError, compose, make_pose, transform_points
from realsimloop_ros.mechanics.colliders import (
    Capsule,
    Collider,
    InvalidContactError,
    Plane,
    SignedDistanceGrid,
    Sphere,
    distance_and_normal,
    signed_distance,
)
from realsimloop_ros.mechanics.contact import (
    Contact,
    ContactSettings,
    contact_energy,
    contact_force_and_stiffness,
    contact_points,
    contact_pressure,
    friction_energy,
)

ENERGY = eqx.filter_jit(contact_energy)
FORCE = eqx.filter_jit(contact_force_and_stiffness)
FIRST = eqx.filter_jit(lambda shape, point: jax.grad(shape.local_distance)(point))
SECOND = eqx.filter_jit(lambda shape, point: jax.hessian(shape.local_distance)(point))
SETTINGS = ContactSettings(stiffness=2e8, band=2e-3, friction=0.4, friction_velocity=0.01)
STEP, AREA = 5e-3, 1e-4


def _sphere_grid(radius: float = 0.03, spacing: float = 0.004, margin: float = 0.012) -> SignedDistanceGrid:
    axis = np.arange(-radius - margin, radius + margin + spacing, spacing)
    points = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1)
    return SignedDistanceGrid(np.linalg.norm(points, axis=-1) - radius, [axis[0]] * 3, spacing)


GRID = _sphere_grid()
POSE = make_pose([0.02, -0.01, 0.05], Rotation.from_rotvec([0.4, -0.9, 0.3]))
PREVIOUS_POSE = make_pose([0.0202, -0.0101, 0.0499], Rotation.from_rotvec([0.39, -0.91, 0.31]))
# each with a point on its surface, given in its own frame, away from where its curvature jumps
SHAPES: dict[str, tuple[Collider, list[float]]] = {
    "plane": (Plane(), [0.03, -0.02, 0.0]),
    "sphere": (Sphere(0.03), [0.01, 0.02, 0.02]),
    "capsule_side": (Capsule(0.02, 0.05), [0.012, 0.016, 0.01]),
    "capsule_cap": (Capsule(0.02, 0.05), [0.008, 0.004, 0.05 + 0.0178885]),
    "grid": (GRID, [0.01, 0.02, 0.02]),
}
EVERY_SHAPE = pytest.mark.parametrize("name", list(SHAPES))


def _world(point: NDArray[np.float64] | list[float], pose: NDArray[np.float64]) -> NDArray[np.float64]:
    return transform_points(pose, np.asarray(point)[None])[0]


def test_distances_are_those_of_the_shapes() -> None:
    points = np.random.default_rng(1).uniform(-0.08, 0.08, (200, 3))
    world = jnp.asarray(transform_points(POSE, points))
    along = np.clip(points[:, 2], -0.05, 0.05)
    capsule = np.linalg.norm(points - along[:, None] * [0.0, 0.0, 1.0], axis=1) - 0.02
    for shape, expected in (
        (Plane(), points[:, 2]),
        (Sphere(0.03), np.linalg.norm(points, axis=1) - 0.03),
        (Capsule(0.02, 0.05), capsule),
    ):
        found = jax.vmap(lambda p, shape=shape: signed_distance(shape, p, jnp.asarray(POSE)))(world)
        # rounding (1e-6 r)^2 / 2r of the distance to the middle, seen from 3 mm
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_grid_goes_through_its_samples_and_is_close_between_them() -> None:
    axis = np.arange(-0.042, 0.0421, 0.004)
    samples = np.random.default_rng(2).choice(axis[:21], (50, 3))
    grid = jax.jit(jax.vmap(GRID.local_distance))
    radii = np.linalg.norm(samples, axis=1)
    np.testing.assert_allclose(grid(jnp.asarray(samples)), radii - 0.03, atol=1e-12)  # rounding
    directions = np.random.default_rng(3).normal(size=(200, 3))
    surface = 0.03 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    # (3 / 384) spacing^4 times the fourth derivative of the distance, about 1 / r^3, in each direction
    np.testing.assert_allclose(grid(jnp.asarray(surface)), 0.0, atol=3 * 3 / 384 * 0.004**4 / 0.03**3)
    # beyond the grid the way back to it is added
    far = grid(jnp.asarray([[0.1, 0.0, 0.0]]))
    assert float(far[0]) == pytest.approx(0.07, rel=1e-3)


def test_a_grid_is_smooth_across_its_cells() -> None:
    face = np.array([-0.042 + 18 * 0.004, 0.0113, 0.0087])  # between two cells in x
    for function in (FIRST, SECOND):
        left, right = (
            function(GRID, jnp.asarray(face + np.array([sign * 1e-9, 0.0, 0.0]))) for sign in (-1.0, 1.0)
        )
        # what a derivative may change over 2 nm: the next derivative is below 10^6 / m^2
        np.testing.assert_allclose(left, right, atol=2e-9 * 1e6)


@EVERY_SHAPE
def test_normals_are_unit_vectors_that_point_away(name: str) -> None:
    shape, point = SHAPES[name]
    distance, normal = distance_and_normal(shape, jnp.asarray(_world(point, POSE)), jnp.asarray(POSE))
    # the spline of the grid is within 1e-3 of a distance's slope of one (spacing^3 / r^3)
    assert float(distance) == pytest.approx(0.0, abs=2e-6)
    assert float(jnp.linalg.norm(normal)) == pytest.approx(1.0, abs=1e-3)
    further = jnp.asarray(_world(point, POSE)) + 1e-3 * normal
    assert float(signed_distance(shape, further, jnp.asarray(POSE))) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("shape", [Sphere(0.03), Capsule(0.02, 0.05), GRID], ids=["sphere", "capsule", "grid"])
def test_the_very_centre_yields_finite_derivatives(shape: Collider) -> None:
    middle = jnp.zeros(3)
    assert np.isfinite(FIRST(shape, middle)).all()
    assert np.isfinite(SECOND(shape, middle)).all()


def test_pressure_follows_its_law() -> None:
    for distance, expected in ((3e-3, 0.0), (2e-3, 0.0), (1e-3, 1e5), (0.0, 4e5), (-1e-3, 9e5)):
        pressure, slope = contact_pressure(SETTINGS, jnp.asarray(distance))
        assert float(pressure) == pytest.approx(expected, abs=1e-6)  # k g^2 / band by hand; rounding of 1e5
        # 2 k g / band
        assert float(slope) == pytest.approx(2e11 * max(2e-3 - distance, 0.0), rel=1e-12, abs=1e-6)


Arguments = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def _arguments(name: str, slip: float, depth: float = -5e-4) -> tuple[Collider, Arguments]:
    """A shape, and a point in its band that has slipped by `slip` m since the step's start."""
    shape, surface = SHAPES[name]
    direction = np.array([0.6, -0.3, 0.2])
    _, normal = distance_and_normal(shape, jnp.asarray(surface), jnp.asarray(IDENTITY_POSE))
    tangent = np.cross(np.asarray(normal), direction)
    tangent /= np.linalg.norm(tangent)
    before = np.asarray(surface) + (depth + 2e-4) * np.asarray(normal)
    after = np.asarray(surface) + depth * np.asarray(normal) + slip * tangent
    points = (_world(after, POSE), _world(before, PREVIOUS_POSE), POSE, PREVIOUS_POSE)
    return shape, tuple(jnp.asarray(p) for p in points)  # type: ignore[return-value]


@EVERY_SHAPE
@pytest.mark.parametrize("slip", [2e-5, 4e-4], ids=["sticks", "slips"])
def test_force_and_stiffness_are_the_derivatives_of_the_energy(name: str, slip: float) -> None:
    shape, (point, *others) = _arguments(name, slip)

    rest = (*others, jnp.asarray(AREA), jnp.asarray(STEP))
    found, stiffness = FORCE(shape, SETTINGS, point, *rest)
    step = 2e-7
    directions = step * jnp.eye(3)

    def slopes(function: Callable[..., jax.Array]) -> NDArray[np.float64]:
        """Fourth-order differences of a function of the point, along the axes."""
        near, far = (
            np.stack([function(point + k * d) - function(point - k * d) for d in directions]) for k in (1, 2)
        )
        return (8 * near - far) / (12 * step)

    # (2e-7 m / 5e-5 m)^4 of the friction's slip of half a step; rounding: 1e-16 of the energy, whose scale over
    # the step is 5e-4 m / 2e-7 m
    slope = slopes(lambda x: ENERGY(shape, SETTINGS, x, *rest))
    np.testing.assert_allclose(found, -slope, atol=1e-9 * np.abs(found).max())
    slope = slopes(lambda x: FORCE(shape, SETTINGS, x, *rest)[0])
    np.testing.assert_allclose(stiffness, -slope, atol=1e-8 * np.abs(stiffness).max())
    np.testing.assert_allclose(stiffness, stiffness.T, atol=1e-12 * np.abs(stiffness).max())


def test_at_rest_the_stiffness_of_stiction_is_exact() -> None:
    shape, (_, before, *poses) = _arguments("plane", 0.0)
    poses = [poses[1], poses[1]]
    found = FORCE(shape, SETTINGS, before, before, *poses, AREA, STEP)[1]
    hessian = jax.jit(jax.hessian(lambda x: contact_energy(shape, SETTINGS, x, before, *poses, AREA, STEP)))
    automatic = hessian(before)
    np.testing.assert_allclose(automatic, found, atol=1e-12 * np.abs(found).max())
    # tangentially 2 mu N / (e h)
    pressure, _ = contact_pressure(SETTINGS, signed_distance(shape, before, poses[0]))
    expected = 2 * 0.4 * AREA * pressure / (0.01 * STEP)
    assert float(jnp.linalg.eigvalsh(found)[-1]) == pytest.approx(float(expected), rel=1e-9)


Inputs = tuple[Arguments, tuple[jax.Array, ...], jax.Array]


def _force_of(shape: Collider, inputs: Inputs) -> jax.Array:
    places, values, step = inputs
    return contact_force_and_stiffness(shape, ContactSettings(*values), *places, AREA, step)[0]


FORCE_OF = eqx.filter_jit(_force_of)


@eqx.filter_jit
def _derivative(shape: Collider, inputs: Inputs, direction: Inputs) -> jax.Array:
    return jax.jvp(lambda i: _force_of(shape, i), (inputs,), (direction,))[1]


@EVERY_SHAPE
@pytest.mark.parametrize("slip", [2e-5, 4e-4], ids=["sticks", "slips"])
def test_forces_are_differentiable_in_points_poses_and_settings(name: str, slip: float) -> None:
    shape, arguments = _arguments(name, slip)
    numbers = (SETTINGS.stiffness, SETTINGS.band, SETTINGS.friction, SETTINGS.friction_velocity)
    inputs = (arguments, numbers, jnp.asarray(STEP))
    scales = ((1e-3,) * 4, (2e8, 2e-3, 0.4, 0.01), STEP)
    generator = np.random.default_rng(7)
    for _ in range(3):
        direction = jax.tree.map(
            lambda v, scale: scale * jnp.asarray(generator.normal(size=v.shape)), inputs, scales
        )

        def moved(t: float, direction: Inputs = direction) -> jax.Array:
            return FORCE_OF(shape, jax.tree.map(lambda a, b: a + t * b, inputs, direction))

        # fourth-order differences over a 1e-4 of the scales
        t = 1e-4
        slope = (8 * (moved(t) - moved(-t)) - (moved(2 * t) - moved(-2 * t))) / (12 * t)
        along = _derivative(shape, inputs, direction)
        np.testing.assert_allclose(along, slope, rtol=0, atol=1e-6 * np.abs(slope).max())


def test_friction_is_coulombs_when_it_slides_and_a_creep_when_it_sticks() -> None:
    plane, pose = Plane(), jnp.asarray(IDENTITY_POSE)
    before = jnp.array([0.0, 0.0, 1e-3])
    normal_force = AREA * 1e5
    for velocity, share in ((0.1, 1.0), (0.01, 1.0), (0.005, 0.75), (0.0, 0.0)):
        point = before + jnp.array([velocity * STEP, 0.0, 0.0])
        force, _ = FORCE(plane, SETTINGS, point, before, pose, pose, AREA, STEP)
        # F'(v) by hand: 2 (1/2) - (1/2)^2 = 3/4 at half the friction velocity
        np.testing.assert_allclose(force, [-share * 0.4 * normal_force, 0.0, normal_force], atol=1e-12 * 10)


@EVERY_SHAPE
def test_moving_with_the_collider_is_no_sliding(name: str) -> None:
    shape, (_, before, _, previous) = _arguments(name, 0.0)
    motion = make_pose([0.1, 0.2, -0.1], Rotation.from_rotvec([0.5, 0.1, 1.2]))
    pose = jnp.asarray(compose(motion, np.array(previous)))
    point = jnp.asarray(_world(np.array(before), motion))
    energy = friction_energy(shape, SETTINGS, point, before, pose, previous, AREA, STEP)
    # mu N v for a slip of rounding, 1e-16 m
    assert 0.0 <= float(energy) < 1e-20
    force, _ = FORCE(shape, SETTINGS, point, before, pose, previous, AREA, STEP)
    rotation = Rotation.from_quat(motion[3:])
    held, _ = FORCE(shape, SETTINGS, before, before, previous, previous, AREA, STEP)
    np.testing.assert_allclose(force, rotation.apply(np.array(held)), atol=1e-8 * np.abs(held).max())


def test_a_collider_that_moves_drags_what_lies_on_it() -> None:
    plane, point = Plane(), jnp.array([0.0, 0.0, 1e-3])
    pose = IDENTITY_POSE.copy()
    pose[0] = 0.1 * STEP
    force, _ = FORCE(plane, SETTINGS, point, point, jnp.asarray(pose), jnp.asarray(IDENTITY_POSE), AREA, STEP)
    assert float(force[0]) == pytest.approx(0.4 * AREA * 1e5, rel=1e-9)


@pytest.mark.parametrize("body", [bar(holds="none"), bar(holds="none", quadratic=False)], ids=["ten", "four"])
def test_contact_points_share_out_the_whole_surface(body) -> None:  # type: ignore[no-untyped-def]
    vertices, areas = contact_points(body)
    assert areas.sum() == pytest.approx(2 * 0.03 * 0.03 + 4 * 0.1 * 0.03, rel=1e-12)
    assert (areas > 0.0).all()
    # the area's centre is that of the box: pressures linear over the surface have the right moment
    np.testing.assert_allclose(
        areas @ body.rest_positions[vertices] / areas.sum(), [0.05, 0.015, 0.015], rtol=1e-12
    )


def test_contact_points_leave_out_what_is_held() -> None:
    body = bar()
    vertices, areas = contact_points(body)
    assert not np.isin(vertices, body.held_vertices).any()
    assert areas.sum() < 2 * 0.03 * 0.03 + 4 * 0.1 * 0.03
    # two tets: three faces of each, half a unit square or the slanted ones of sqrt(3)/2
    vertices, areas = contact_points(two_tets(fixed_vertices=np.zeros(0, np.int64)))
    np.testing.assert_allclose(areas[0], 3 * 0.5 / 3, rtol=1e-12)
    np.testing.assert_array_equal(vertices, np.arange(5))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sphere(-0.1), r"sphere\.radius: -0\.1, expected a finite number of m that is positive"),
        (lambda: Sphere(np.nan), r"sphere\.radius: nan"),
        (lambda: Sphere([1.0, 2.0]), r"sphere\.radius: shape \(2,\), expected one number"),
        (lambda: Capsule(0.1, 0.0), r"capsule\.half_length: 0\.0"),
        (lambda: ContactSettings(-1.0, 1e-3), r"contact\.stiffness: -1\.0, .* N/m\^3"),
        (lambda: ContactSettings(1e8, 0.0), r"contact\.band: 0\.0"),
        (lambda: ContactSettings(1e8, 1e-3, -0.1), r"contact\.friction: -0\.1, .* not negative"),
        (lambda: ContactSettings(1e8, 1e-3, 0.1, 0.0), r"contact\.friction_velocity: 0\.0"),
        (lambda: SignedDistanceGrid(np.zeros((4, 4)), [0, 0, 0], 0.1), r"grid\.values: shape \(4, 4\)"),
        (lambda: SignedDistanceGrid(np.zeros((3, 4, 4)), [0, 0, 0], 0.1), r"each at least 4"),
        (lambda: SignedDistanceGrid(_cube(np.nan), [0, 0, 0], 0.1), r"sample \[1, 2, 3\] is nan"),
        (lambda: SignedDistanceGrid(_cube(0.1), [0, 0, 0], 0.1), "nothing is solid"),
        (lambda: SignedDistanceGrid(_cube(-1.0), [0, 0, 0], 0.1), r"change by 11 m per m.*both in m"),
        (lambda: SignedDistanceGrid(_cube(-0.01), [0, 0], 0.1), r"grid\.origin: \[0\.0, 0\.0\]"),
        (lambda: SignedDistanceGrid(_cube(-0.01), [0, 0, 0], -0.1), r"grid\.spacing: -0\.1"),
        (lambda: Contact({}, SETTINGS), r"contact\.colliders: none"),
        (
            lambda: Contact({"mould": _sphere_grid(margin=0.0)}, SETTINGS),
            r"contact\.colliders\.mould: the distance on the grid's border .* extend the grid",
        ),
    ],
)
def test_what_is_no_contact_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidContactError, match=words):
        make()


def _cube(value: float) -> NDArray[np.float64]:
    values = np.full((4, 4, 4), 0.1)
    values[1, 2, 3] = value
    return values


def test_poses_are_ordered_by_name_and_checked() -> None:
    contact = Contact({"floor": Plane(), "ball": Sphere(0.1)}, SETTINGS)
    found = contact.ordered_poses({"ball": POSE, "floor": IDENTITY_POSE})
    np.testing.assert_allclose(found, [IDENTITY_POSE, POSE], atol=1e-15)
    with pytest.raises(InvalidContactError, match=r"unknown \['wall'\], missing \['ball'\].*\['floor', 'ball'\]"):
        contact.ordered_poses({"floor": IDENTITY_POSE, "wall": POSE})
    with pytest.raises(InvalidContactError, match=r"shape \(0, 7\), expected \(2, 7\)"):
        contact.checked_poses(None)
    with pytest.raises(InvalidPoseError, match="collider_poses: non-finite"):
        contact.checked_poses(np.full((2, 7), np.nan))
