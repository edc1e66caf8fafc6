"""Cables as functions of points: closed forms taut and slack, derivatives, and both tension rules."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from body.bodies import bar
from realsimloop_ros.body.body import Cable, bind_points
from realsimloop_ros.mechanics.cables import (
    attached_points,
    attached_vertices,
    cable_energy,
    cable_forces_and_stiffness,
    cable_length,
    cable_tension,
    stretch_energy,
    stretch_tension,
    tension_from_nodal_forces,
)

STIFFNESS, BLEND = 2000.0, 1e-3
# three points and an anchor, with legs of 30, 40 and 50 mm and a right angle at the middle point
POINTS = jnp.array([[0.03, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.04, 0.0]])
ANCHOR = jnp.array([0.0, 0.07, 0.04])
LENGTH = 0.12
ENERGY = eqx.filter_jit(cable_energy)
FORCES = eqx.filter_jit(cable_forces_and_stiffness)


def test_a_taut_cable_is_a_spring_and_a_slack_one_is_nothing() -> None:
    assert float(cable_length(POINTS, ANCHOR)) == pytest.approx(LENGTH, rel=1e-14)
    for stretch in (0.5e-3, 2e-3, 0.03):
        rest = jnp.asarray(LENGTH - stretch)
        energy = ENERGY(POINTS, ANCHOR, rest, STIFFNESS, BLEND)
        # Hooke's, and the constant that makes it meet the blend
        expected = 0.5 * STIFFNESS * stretch**2 + STIFFNESS * BLEND**2 / 24
        assert float(energy) == pytest.approx(expected, rel=1e-9)
        tension = cable_tension(POINTS, ANCHOR, rest, STIFFNESS, BLEND)
        assert float(tension) == pytest.approx(STIFFNESS * stretch, rel=1e-9)
    for slack in (0.6e-3, 0.01):
        rest = jnp.asarray(LENGTH + slack)
        assert float(ENERGY(POINTS, ANCHOR, rest, STIFFNESS, BLEND)) == 0.0
        forces, stiffness = FORCES(POINTS, ANCHOR, rest, STIFFNESS, BLEND)
        assert not np.any(forces) and not np.any(stiffness)


def test_energy_tension_and_stiffness_are_continuous_from_slack_to_taut() -> None:
    def energy(s: jax.Array) -> jax.Array:
        return stretch_energy(s, jnp.asarray(STIFFNESS), jnp.asarray(BLEND))

    def tension(s: jax.Array) -> jax.Array:
        return stretch_tension(s, jnp.asarray(STIFFNESS), jnp.asarray(BLEND))

    s = jnp.linspace(-1.0, 1.0, 4001) * BLEND  # steps of BLEND / 2000
    energies, slopes = jax.vmap(jax.value_and_grad(energy))(s)
    tensions, seconds = jax.vmap(jax.value_and_grad(tension))(s)
    np.testing.assert_allclose(slopes, tensions, atol=1e-12 * STIFFNESS * BLEND)
    # each rises by no more than its slope allows over one step; the second derivative by k / 2000
    assert np.abs(np.diff(energies)).max() < STIFFNESS * BLEND * BLEND / 2000
    assert np.abs(np.diff(tensions)).max() < STIFFNESS * BLEND / 2000 * 1.001
    assert np.abs(np.diff(seconds)).max() < STIFFNESS / 2000 * 1.001
    assert np.diff(tensions).min() >= 0.0
    assert float(tension(jnp.asarray(0.0))) == pytest.approx(STIFFNESS * BLEND / 8)  # k (b/2)^2 / 2b


def test_the_tension_is_the_same_all_along_and_the_forces_balance() -> None:
    rest = jnp.asarray(LENGTH - 2e-3)
    forces, stiffness = FORCES(POINTS, ANCHOR, rest, STIFFNESS, BLEND)
    tension = STIFFNESS * 2e-3
    legs = np.diff(np.concatenate([POINTS, ANCHOR[None]]), axis=0)
    units = legs / np.linalg.norm(legs, axis=1, keepdims=True)
    expected = tension * np.array([units[0], units[1] - units[0], units[2] - units[1]])
    np.testing.assert_allclose(forces, expected, atol=1e-9 * tension)
    # the winch takes what the points pass on
    np.testing.assert_allclose(forces.sum(axis=0), tension * units[2], atol=1e-9 * tension)
    np.testing.assert_allclose(stiffness, stiffness.T, atol=1e-9 * np.abs(stiffness).max())


@pytest.mark.parametrize("stretch", [2e-3, 1e-4], ids=["taut", "within the blend"])
def test_derivatives_agree_with_differences(stretch: float) -> None:
    def energy(inputs: tuple[jax.Array, ...]) -> jax.Array:
        return cable_energy(*inputs)

    inputs = (POINTS, ANCHOR, *map(jnp.asarray, (LENGTH - stretch, STIFFNESS, BLEND)))
    scales = (1e-3, 1e-3, 1e-3, STIFFNESS, BLEND)
    generator = np.random.default_rng(5)

    def forces(moved: tuple[jax.Array, ...]) -> jax.Array:
        return FORCES(*moved)[0]

    derivative = jax.jit(lambda d: jax.jvp(lambda i: (energy(i), forces(i)), (inputs,), (d,))[1])
    for _ in range(3):
        direction = tuple(
            scale * jnp.asarray(generator.normal(size=v.shape)) for v, scale in zip(inputs, scales, strict=True)
        )

        def moved(t: float, d: tuple[jax.Array, ...] = direction) -> tuple[jax.Array, ...]:
            return tuple(a + t * b for a, b in zip(inputs, d, strict=True))

        t = 1e-4
        for function, along in zip((lambda i: ENERGY(*i), forces), derivative(direction), strict=True):
            difference = (function(moved(t)) - function(moved(-t))) / (2 * t)
            # central differences over 1e-4 of scales like those of the blend: 1e-8
            np.testing.assert_allclose(along, difference, atol=1e-6 * np.abs(difference).max())


def test_the_stiffness_is_the_derivative_of_the_forces() -> None:
    rest = jnp.asarray(LENGTH - 2e-3)
    _, stiffness = FORCES(POINTS, ANCHOR, rest, STIFFNESS, BLEND)
    flat, columns = POINTS.reshape(-1), []
    for axis in np.eye(9):
        near, far = (
            FORCES((flat + s * axis).reshape(3, 3), ANCHOR, rest, STIFFNESS, BLEND)[0].reshape(-1)
            for s in (1e-7, -1e-7)
        )
        columns.append((near - far) / 2e-7)
    # 1e-7 m of legs of 30 mm; rounding 1e-16 * 4 N / 1e-7 m against 4e3 N/m
    np.testing.assert_allclose(stiffness, -np.array(columns), atol=1e-8 * STIFFNESS)


def test_points_that_coincide_have_finite_derivatives() -> None:
    twice = jnp.concatenate([POINTS[:1], POINTS[:1], POINTS[1:]])
    forces, stiffness = FORCES(twice, ANCHOR, jnp.asarray(0.1), STIFFNESS, BLEND)
    assert np.isfinite(forces).all() and np.isfinite(stiffness).all()


def test_a_cable_knows_the_vertices_it_is_attached_to() -> None:
    body = bar(divisions=(4, 1, 1))
    corner, inner = body.rest_positions[-1], np.array([0.04, 0.011, 0.017])
    bound = bind_points(body, np.stack([inner, corner]))
    cable = Cable("pull", "winch", np.array([0.3, 0.0, 0.0]), bound, STIFFNESS)
    vertices = attached_vertices(replace(body, cables=(cable,)), cable)
    # a point bound to a vertex adds that vertex alone, one within a tet all ten of its nodes
    expected = np.union1d(body.tets[bound.tet[0]], [len(body.rest_positions) - 1])
    np.testing.assert_array_equal(vertices, expected)
    nodes = jnp.asarray(body.tets[bound.tet])
    found = attached_points(jnp.asarray(body.rest_positions), nodes, jnp.asarray(bound.weights))
    np.testing.assert_allclose(found, [inner, corner], atol=1e-12)


def test_nodal_forces_give_the_tension_at_a_knot_and_the_deflection_at_an_eyelet() -> None:
    rest = jnp.asarray(LENGTH - 2e-3)
    forces, _ = FORCES(POINTS, ANCHOR, rest, STIFFNESS, BLEND)
    tension = STIFFNESS * 2e-3
    # each point bound to a vertex of its own, in equilibrium: internal force = - pull of the cable
    alone = tension_from_nodal_forces(-forces, jnp.array([0]))
    assert float(alone) == pytest.approx(tension, rel=1e-9)
    # the right angle adds 2 T sin(45 deg), the last eyelet turns by the angle between y and (0, 3, 4) / 5
    bend = np.arccos(3 / 5)
    expected = tension * (1 + np.sqrt(2) + 2 * np.sin(bend / 2))
    assert float(tension_from_nodal_forces(-forces, jnp.arange(3))) == pytest.approx(expected, rel=1e-9)
