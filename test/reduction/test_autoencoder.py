"""The autoencoder: zero at rest, better than the linear subspace that it starts from, the same every time."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.reduction.autoencoder import (
    Autoencoder,
    TrainingReport,
    TrainingSettings,
    train_autoencoder,
)
from realsimloop_ros.reduction.decoders import NetworkDecoder, decoder_from_arrays
from realsimloop_ros.reduction.model import InvalidModelError, ReducedBody, load_reduced_body, save_reduced_body
from reduced_bodies import gripped_bar, smooth_reduced_body

SIZE, LATENT = 5, 2
TINY = TrainingSettings(hidden=(16, 16), epochs=150, patience=150, batch=32)


def curved(count: int, seed: int) -> np.ndarray:
    """Coordinates (k, 5), m, on a curved surface of dimension two whose curvature no plane can follow."""
    random = np.random.default_rng(seed)
    a, b = random.uniform(-1.0, 1.0, (2, count))
    return 1e-2 * np.stack([a, 0.6 * b, 0.3 * a * b, 0.2 * (a**2 - 1 / 3), 0.1 * b**3], axis=1)


LEARNT, OTHERS = curved(400, 0), curved(100, 1)


@cache
def trained(seed: int = 0) -> tuple[Autoencoder, TrainingReport]:
    return train_autoencoder(LEARNT, OTHERS, LATENT, seed=seed, settings=TINY)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).sum(axis=1).mean()))


def test_it_follows_what_a_linear_subspace_cannot() -> None:
    autoencoder, report = trained()
    decoded = jax.vmap(lambda c: autoencoder.decoder(autoencoder.encode(c)))(jnp.asarray(OTHERS))
    linear = rms(OTHERS[:, LATENT:])
    # the two leading coordinates hold the whole surface, so what is left is a matter of training: a third will do
    assert rms(np.asarray(decoded) - OTHERS) < linear / 3.0
    assert report.validation_rms == pytest.approx(rms(np.asarray(decoded) - OTHERS), rel=1e-3)  # single precision


def test_the_nearest_state_is_at_least_as_near_as_the_encoded_one() -> None:
    autoencoder, _ = trained()
    targets = jnp.asarray(OTHERS)
    decode = jax.vmap(autoencoder.decoder)
    encoded = np.linalg.norm(decode(jax.vmap(autoencoder.encode)(targets)) - targets, axis=1)
    nearest = np.linalg.norm(decode(autoencoder.nearest(targets)) - targets, axis=1)
    assert (nearest <= encoded + 1e-15).all()
    # and a state that decodes to the target exactly is found
    own = decode(jnp.asarray([[4e-3, -3e-3], [0.0, 5e-3]]))
    np.testing.assert_allclose(decode(autoencoder.nearest(own)), own, atol=1e-10)


def test_rest_is_at_zero_and_the_way_out_of_it_is_well_conditioned() -> None:
    decoder = trained()[0].decoder
    # rounding of the network's value at zero, a number of order one times coordinates of 10 mm
    np.testing.assert_allclose(decoder(jnp.zeros(LATENT)), 0.0, atol=1e-17)
    jacobian = jax.jacfwd(decoder)(jnp.zeros(LATENT))
    # a plane through the surface at rest spans the leading coordinates
    assert np.linalg.cond(jacobian) < 3.0
    np.testing.assert_allclose(jacobian[:LATENT], np.eye(LATENT), atol=0.3)


def test_derivatives_are_smooth_to_the_second_order() -> None:
    decoder, z = trained()[0].decoder, jnp.array([2e-3, -1e-3])
    hessian = jax.hessian(decoder)(z)
    step = 1e-6
    for k, axis in enumerate(np.eye(LATENT)):
        ahead, behind = jax.jacfwd(decoder)(z + step * axis), jax.jacfwd(decoder)(z - step * axis)
        # second order differences over 1e-6 m of curvatures that vary over 1e-2 m
        np.testing.assert_allclose(hessian[:, :, k], (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-4)


def test_the_same_seed_gives_the_same_network_and_another_another() -> None:
    again, _ = train_autoencoder(LEARNT, OTHERS, LATENT, seed=0, settings=TINY)
    first = trained()[0]
    for mine, theirs in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    few = TrainingSettings(hidden=(16, 16), epochs=2)
    other, _ = train_autoencoder(LEARNT, OTHERS, LATENT, seed=1, settings=few)
    assert not np.array_equal(other.decoder.layers[0][0], first.decoder.layers[0][0])


def test_training_stops_when_other_motions_no_longer_gain() -> None:
    # noise: nothing of it carries over to other noise, so no epoch is better than the linear start for long
    random = np.random.default_rng(3)
    noise = random.standard_normal((2, 60, SIZE)) * np.array([5, 4, 3, 2, 1]) * 1e-3
    settings = TrainingSettings(hidden=(32, 32), epochs=400, patience=5, batch=16, weight_decay=0.0)
    _, report = train_autoencoder(noise[0], noise[1], LATENT, settings=settings)
    assert report.epochs < 400
    assert report.epochs == report.best_epoch + 5


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="latent_size: 5, expected fewer than the 5 coordinates of the basis"):
        train_autoencoder(LEARNT, OTHERS, SIZE)
    with pytest.raises(ValueError, match="400 to learn from and 0 to stop on; simulate more trajectories"):
        train_autoencoder(LEARNT, OTHERS[:0], LATENT)


# -- on disk ---------------------------------------------------------------------------------------------------


def curved_body() -> ReducedBody:
    """The bar with the five leading directions of its synthetic subspace bent onto two latent ones."""
    straight = smooth_reduced_body(gripped_bar(), SIZE)
    return ReducedBody(
        straight.body,
        straight.basis,
        straight.sample_index,
        straight.sample_weight,
        {"subspace": "autoencoder"},
        trained()[0].decoder,
    )


def test_a_decoder_survives_on_disk_with_its_body(tmp_path: Path) -> None:
    reduced = curved_body()
    assert reduced.latent_size == LATENT
    save_reduced_body(tmp_path / "bar.npz", reduced)
    loaded = load_reduced_body(tmp_path / "bar.npz")
    assert isinstance(loaded.decoder, NetworkDecoder)
    z = jnp.array([3e-3, -2e-3])
    # weights were trained in single precision and are stored in it
    np.testing.assert_array_equal(loaded.decoder(z), trained()[0].decoder(z))
    assert loaded.model().latent_size == LATENT


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("weight_1", lambda w: w[:, :-1], r"weight_1 has shape \(16, 15\), expected \(16, 16\)"),
        ("weight_1", lambda w: w * np.nan, "layer 1 holds non-finite numbers"),
        ("spread", lambda s: s[:-1], r"layers of sizes \[2, 16, 16, 5\], but 4 coordinates"),
    ],
)
def test_damaged_weights_are_refused(key: str, change, message: str) -> None:
    arrays = trained()[0].decoder.arrays()
    arrays[key] = change(arrays[key])
    with pytest.raises(ValueError, match=message):
        decoder_from_arrays("network", arrays)
    with pytest.raises(ValueError, match=r"decoder: 'other', expected one of \['identity', 'network'\]"):
        decoder_from_arrays("other", arrays)


def test_a_decoder_of_other_coordinates_than_the_basis_is_refused() -> None:
    straight = smooth_reduced_body(gripped_bar(), 6)
    with pytest.raises(InvalidModelError, match="gives 5 coordinates, but the basis has 6"):
        ReducedBody(
            straight.body,
            straight.basis,
            straight.sample_index,
            straight.sample_weight,
            {},
            trained()[0].decoder,
        )
