"""Skinning eigenmodes against a bar's closed form, and the subspace that they span."""

from __future__ import annotations

import numpy as np
import pytest

from body.bodies import bar
from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.reduction.skinning_modes import skinning_basis, skinning_weights
from reduced_bodies import clamped_beam, gripped_bar

MODULUS, RATIO = np.array([2e5]), np.array([0.45])


def shares(body: Body) -> np.ndarray:
    masses = lumped_masses(body)
    return masses / masses.sum()


def residual(body: Body, basis: np.ndarray, field: np.ndarray) -> float:
    """Share of a field (n, 3) that a basis orthonormal in mass cannot follow."""
    weights = shares(body)
    found = np.einsum("nir,r->ni", basis, np.einsum("n,ni,nir->r", weights, field, basis))
    return float(np.sqrt((weights[:, None] * (field - found) ** 2).sum() / (weights[:, None] * field**2).sum()))


def test_weights_of_a_bar_are_the_sines_between_its_ends() -> None:
    # a Laplacian on a slender bar held at both ends: sin(k pi x / L), whatever the cross-section
    body = bar(divisions=(16, 2, 2), holds="grips")
    weights = skinning_weights(body, 3, MODULUS, RATIO)
    x = body.rest_positions[:, 0] / 0.1
    for k in range(3):
        sine = np.sin((k + 1) * np.pi * x)
        sine /= np.sqrt(shares(body) @ sine**2)
        found = weights[:, k] / np.sqrt(shares(body) @ weights[:, k] ** 2)
        # lumped masses weigh middles of edges more than corners: the cosine to the sine is 0.0015 off
        assert abs(shares(body) @ (sine * found)) > 0.995
        np.testing.assert_array_equal(weights[body.held_vertices, k], 0.0)


@pytest.mark.parametrize("body", [gripped_bar(), clamped_beam()], ids=["gripped", "clamped"])
@pytest.mark.parametrize("size", [5, 12, 20])
def test_a_basis_is_orthonormal_in_mass_and_zero_on_held_vertices(body: Body, size: int) -> None:
    basis = skinning_basis(body, size, MODULUS, RATIO)
    assert basis.shape == (*body.rest_positions.shape, size)
    gram = np.einsum("n,nir,nis->rs", shares(body), basis, basis)
    np.testing.assert_allclose(gram, np.eye(size), atol=1e-12)  # rounding
    np.testing.assert_array_equal(basis[body.held_vertices], 0.0)


def test_each_weight_carries_all_affine_motions() -> None:
    body = gripped_bar()
    basis = skinning_basis(body, 24, MODULUS, RATIO)
    weights = skinning_weights(body, 2, MODULUS, RATIO)
    random = np.random.default_rng(0)
    for k in range(2):
        affine = body.rest_positions @ random.standard_normal((3, 3)) + 0.05 * random.standard_normal(3)
        assert residual(body, basis, weights[:, k : k + 1] * affine) < 1e-10  # rounding
    # and of what they do not carry, little is in it
    assert residual(body, basis, random.standard_normal(body.rest_positions.shape)) > 0.5


def test_softer_combinations_come_first() -> None:
    # the softest way to move a slender bar is to bend it: across, with one half wave
    body = gripped_bar(
        mesh={
            "kind": "box",
            "size": [0.2, 0.01, 0.01],
            "divisions": [10, 1, 1],
            "origin": [-0.1, -0.005, -0.005],
        }
    )
    basis = skinning_basis(body, 2, MODULUS, RATIO)
    across = np.einsum("n,nir->ir", shares(body), basis**2)
    assert (across[1:].sum(axis=0) > 0.95).all()


def test_a_free_body_keeps_its_rigid_motions() -> None:
    body = bar(holds="none")
    basis = skinning_basis(body, 12, MODULUS, RATIO)
    centred = body.rest_positions - body.rest_positions.mean(axis=0)
    for axis in np.eye(3):
        # the first weight of a free body is constant: all that it carries is affine, and rigid motions are softest
        assert residual(body, basis, np.broadcast_to(axis, centred.shape)) < 1e-6
        assert residual(body, basis, np.cross(axis, centred)) < 1e-6


def test_more_weights_than_vertices_are_refused() -> None:
    with pytest.raises(ValueError, match="skinning weights are asked for, but"):
        skinning_basis(bar(divisions=(1, 1, 1)), 12 * 80, MODULUS, RATIO)
