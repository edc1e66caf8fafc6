"""Linear subspaces: orthonormal in mass, zero where the body is held, and as good as their singular values say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.reduction.grip_warp import grip_warp, warped
from realsimloop_ros.reduction.snapshots import Snapshots, SnapshotSettings, random_grip_motion
from realsimloop_ros.reduction.subspaces import local_displacements, principal_basis
from reduced_bodies import clamped_beam, gripped_bar

BODY = gripped_bar()
COUNT, RANK = 30, 7


def displacements(body: Body, rank: int = RANK, count: int = COUNT, seed: int = 0) -> np.ndarray:
    """Snapshots (k, n, 3), m, of a given rank that fall off by a factor of three from direction to direction."""
    random = np.random.default_rng(seed)
    shapes = random.standard_normal((rank, len(body.rest_positions), 3))
    shapes[:, body.held_vertices] = 0.0
    amounts = random.standard_normal((count, rank)) * 1e-2 / 3.0 ** np.arange(rank)
    return np.einsum("kr,rni->kni", amounts, shapes)


def shares(body: Body) -> np.ndarray:
    masses = lumped_masses(body)
    return masses / masses.sum()


def projected(body: Body, basis: np.ndarray, given: np.ndarray) -> np.ndarray:
    latents = np.einsum("n,kni,nir->kr", shares(body), given, basis)
    return np.einsum("nir,kr->kni", basis, latents)


def rms(body: Body, given: np.ndarray) -> float:
    return float(np.sqrt(np.einsum("n,kni,kni->", shares(body), given, given) / len(given)))


@pytest.mark.parametrize("body", [BODY, clamped_beam()], ids=["gripped", "clamped"])
def test_a_basis_is_orthonormal_in_mass_and_zero_on_held_vertices(body: Body) -> None:
    basis, _ = principal_basis(body, displacements(body), 5)
    gram = np.einsum("n,nir,nis->rs", shares(body), basis, basis)
    np.testing.assert_allclose(gram, np.eye(5), atol=1e-13)  # rounding
    np.testing.assert_array_equal(basis[body.held_vertices], 0.0)


def test_as_many_directions_as_the_data_have_reproduce_them() -> None:
    given = displacements(BODY)
    basis, singular = principal_basis(BODY, given, RANK)
    # the smallest direction is 3^-6 of the largest, and its square is what the Gram matrix holds: 1e-16 / 1e-6
    np.testing.assert_allclose(projected(BODY, basis, given), given, atol=1e-9 * np.abs(given).max())
    # what is beyond the rank is the root of rounding
    assert singular[RANK] < 1e-7 * singular[0]


def test_the_error_of_fewer_directions_is_what_the_singular_values_say() -> None:
    given = displacements(BODY)
    for size in (1, 3, 5):
        basis, singular = principal_basis(BODY, given, size)
        left_over = rms(BODY, given - projected(BODY, basis, given))
        assert left_over == pytest.approx(np.sqrt((singular[size:] ** 2).sum()), rel=1e-6)


def test_the_leading_directions_do_not_depend_on_how_many_are_asked_for() -> None:
    given = displacements(BODY)
    few, _ = principal_basis(BODY, given, 2)
    more, _ = principal_basis(BODY, given, 5)
    np.testing.assert_allclose(np.abs(few), np.abs(more[..., :2]), atol=1e-9)


def test_more_directions_than_snapshots_are_refused() -> None:
    with pytest.raises(ValueError, match=r"latent_size: 31, but 30 snapshots span at most as many directions"):
        principal_basis(BODY, displacements(BODY), 31)


def test_what_the_warp_leaves_over_is_measured_in_its_turned_frame() -> None:
    warp, settings = grip_warp(BODY), SnapshotSettings(steps=6, every=2)
    poses = random_grip_motion(BODY, settings, np.random.default_rng(4))
    kept = np.arange(0, 6, 2)
    expected = displacements(BODY, count=3)
    base, turn = jax.vmap(lambda pose: warped(warp, pose))(jnp.asarray(poses[kept]))
    x = np.asarray(base) + np.einsum("knij,knj->kni", np.asarray(turn), expected)
    trajectory = Snapshots(poses, x.astype(np.float32), kept, np.zeros(3), 1e5, 0.45, 1 / 60)
    found = local_displacements(BODY, [trajectory, trajectory])
    assert found.shape == (6, *BODY.rest_positions.shape)
    # positions of a decimetre in float32
    np.testing.assert_allclose(found[:3], expected, atol=2e-8)
    np.testing.assert_array_equal(found[:, BODY.held_vertices], 0.0)
