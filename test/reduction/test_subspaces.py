"""Linear subspaces: orthonormal in mass, zero where the body is held, and as good as their singular values say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.reduction.autoencoder import TrainingSettings
from realsimloop_ros.reduction.grip_warp import grip_warp, warped
from realsimloop_ros.reduction.model import ReducedBody, every_sample
from realsimloop_ros.reduction.snapshots import Snapshots, SnapshotSettings, random_grip_motion
from realsimloop_ros.reduction.subspaces import (
    KINDS,
    Subspace,
    load_subspace,
    local_displacements,
    make_subspace,
    principal_basis,
    projection_error,
    save_subspace,
)
from reduced_bodies import clamped_beam, gripped_bar, smooth_reduced_body

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


# -- by name ---------------------------------------------------------------------------------------------------


def motion(seed: int) -> Snapshots:
    """Twelve states of the bar whose local displacements are smooth and curved in two amounts."""
    random = np.random.default_rng(seed)
    poses = random_grip_motion(BODY, SnapshotSettings(steps=12, every=1), random)
    a, b = 1e-2 * random.uniform(-1.0, 1.0, (2, 12))
    amounts = np.stack([a, b, 30.0 * a * b, 20.0 * a**2], axis=1)
    basis = smooth_reduced_body(BODY, 4).basis
    base, turn = jax.vmap(lambda pose: warped(grip_warp(BODY), pose))(jnp.asarray(poses))
    x = np.asarray(base) + np.einsum("knij,njr,kr->kni", np.asarray(turn), basis, amounts)
    return Snapshots(poses, x.astype(np.float32), np.arange(12), np.zeros(3), 1e5, 0.45, 1 / 60)


LEARNT, HELD_OUT = [motion(seed) for seed in range(12)], [motion(seed) for seed in (100, 101)]
TINY = TrainingSettings(hidden=(16, 16), epochs=150, patience=150, batch=16)


@cache
def made(kind: str, size: int = 2) -> Subspace:
    return make_subspace(kind, BODY, LEARNT, HELD_OUT, size, training=TINY)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_a_body_that_can_be_simulated(kind: str) -> None:
    subspace = made(kind)
    reduced = ReducedBody(BODY, subspace.basis, *every_sample(BODY), subspace.card, subspace.decoder)
    assert reduced.latent_size == 2
    assert subspace.latents.shape == (12 * 12, 2)
    gram = np.einsum("n,nir,nis->rs", shares(BODY), subspace.basis, subspace.basis)
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)  # rounding
    assert json.loads(json.dumps(subspace.card)) == subspace.card
    assert subspace.card["subspace"] == kind
    assert subspace.card["projection_held_out"]["rms"] <= subspace.card["projection_held_out"]["p99"]


def test_the_autoencoder_beats_the_principal_directions_and_these_the_skinning_modes() -> None:
    curved, straight, skinned = (
        made(kind).card["projection_held_out"]["rms"] for kind in ("autoencoder", "principal", "skinning_modes")
    )
    assert curved < 0.7 * straight
    assert straight < skinned
    assert made("autoencoder").card["training"]["best_epoch"] > 0


def test_the_projection_error_of_principal_directions_is_what_is_left_over() -> None:
    subspace, given = made("principal"), local_displacements(BODY, HELD_OUT)
    left = given - projected(BODY, subspace.basis, given)
    error = projection_error(BODY, subspace, given)
    assert error.rms == pytest.approx(np.sqrt((left**2).sum(axis=2).mean()))
    assert error.maximum == pytest.approx(np.linalg.norm(left, axis=2).max())


@pytest.mark.parametrize("kind", ["principal", "autoencoder"])
def test_a_subspace_read_back_is_the_one_made(kind: str, tmp_path: Path) -> None:
    subspace = made(kind)
    save_subspace(tmp_path / "subspace.npz", subspace)
    loaded = load_subspace(tmp_path / "subspace.npz")
    np.testing.assert_array_equal(loaded.latents, subspace.latents)
    np.testing.assert_array_equal(loaded.coordinates(), subspace.coordinates())
    assert loaded.card == subspace.card
    (tmp_path / "subspace.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"subspace\.npz.*delete the file"):
        load_subspace(tmp_path / "subspace.npz")


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(
        ValueError, match="subspace: 'pca', expected one of principal, skinning_modes, autoencoder"
    ):
        make_subspace("pca", BODY, LEARNT, HELD_OUT, 2)
    with pytest.raises(ValueError, match="latent_size: 0, expected a positive number"):
        make_subspace("principal", BODY, LEARNT, HELD_OUT, 0)
    with pytest.raises(ValueError, match="1 trajectories to learn from, an autoencoder needs at least two"):
        make_subspace("autoencoder", BODY, LEARNT[:1], HELD_OUT, 2)
