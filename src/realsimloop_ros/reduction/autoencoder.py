"""The autoencoder: a curved subspace, learnt from the coordinates of a principal basis.

The network maps between the latent state z (r,) and the coordinates c (R,) of a principal basis with R of 3 to 4
r, not between z and all vertices: so its cost, and that of a step, does not depend on the mesh. Encoder and
decoder have two hidden layers of 200 units, trained with Adam at a learning rate of 1e-3, as in the RealSimLoop
paper.

    decoder(z) = (z, 0) + S (net(z / s) - net(0)),      encoder(c) = c_1..r + s net(c / S)

s and S are the spreads of the coordinates, so that networks see standardised numbers. The identity beside the
network makes z the leading coordinates, in m, to first order: the last layers start at zero, so training starts
from the linear subspace, decoder(0) is zero, and the Jacobian there stays well conditioned. Measured on the bar
between two arms, held-out projection error in percent of its length: r = 10: linear 0.49, a plain network 0.73,
this one 0.17; r = 5: 1.37, this one 0.77; r = 20: 0.16, this one 0.08. A weight decay of 0.1 (Loshchilov, Hutter
2019) is worth a fifth of the error: trajectories are few.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from realsimloop_ros.reduction.decoders import Layers, NetworkDecoder, decoder_of, perceptron


@dataclass(frozen=True)
class TrainingSettings:
    """hidden: units of each hidden layer; epochs: at most; patience: epochs without a better validation error
    before training stops; batch: snapshots a step of Adam sees."""

    hidden: tuple[int, ...] = (200, 200)
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    batch: int = 64
    epochs: int = 400
    patience: int = 80


class Autoencoder(eqx.Module):
    """A decoder with the encoder it was trained with; the encoder's layers take c / S and give z / s."""

    decoder: NetworkDecoder
    encoder_layers: Layers

    def encode(self, coordinates: Float[Array, " R"]) -> Float[Array, " r"]:
        """Latent state (r,) of coordinates (R,)."""
        decoder = self.decoder
        bent = perceptron(self.encoder_layers, coordinates / decoder.coordinate_spread)
        return coordinates[: decoder.latent_size] + decoder.latent_spread * bent

    def nearest(self, coordinates: Float[Array, "k R"], iterations: int = 8) -> Float[Array, "k r"]:
        """Latent states (k, r) whose decoded coordinates are nearest, by Gauss-Newton from what the encoder
        says."""

        def one(target: Array) -> Array:
            def improve(_: int, latent: Array) -> Array:
                jacobian = jax.jacfwd(self.decoder)(latent)
                left = self.decoder(latent) - target
                trial = latent - jnp.linalg.solve(jacobian.T @ jacobian, jacobian.T @ left)
                better = jnp.sum((self.decoder(trial) - target) ** 2) < jnp.sum(left**2)
                return jnp.where(better, trial, latent)

            return jax.lax.fori_loop(0, iterations, improve, self.encode(target))

        return _in_chunks(jax.jit(jax.vmap(one)), coordinates)


def _in_chunks(function: Callable[[Array], Array], values: Array, size: int = 256) -> Array:
    return jnp.concatenate([function(values[k : k + size]) for k in range(0, len(values), size)])


@dataclass(frozen=True)
class TrainingReport:
    """epochs run, the best of them, and rms errors of the coordinates there, m."""

    epochs: int
    best_epoch: int
    train_rms: float
    validation_rms: float


def train_autoencoder(
    coordinates: NDArray[np.float64],
    validation: NDArray[np.float64],
    latent_size: int,
    *,
    seed: int = 0,
    settings: TrainingSettings | None = None,
) -> tuple[Autoencoder, TrainingReport]:
    """Train on coordinates (k, R), in order of falling spread; stop early on those of other motions (l, R).

    Deterministic for a seed on one machine. Trained in single precision; the weights that did best are kept.
    """
    settings = settings or TrainingSettings()
    size = coordinates.shape[1]
    if not 0 < latent_size < size:
        raise ValueError(f"latent_size: {latent_size}, expected fewer than the {size} coordinates of the basis")
    if len(validation) == 0 or len(coordinates) < 2:
        raise ValueError(
            f"snapshots: {len(coordinates)} to learn from and {len(validation)} to stop on; simulate more "
            "trajectories"
        )
    spread = coordinates.std(axis=0) + 1e-12
    scale = jnp.asarray(spread / spread.max(), jnp.float32)
    learnt, judged = (jnp.asarray(values / spread, jnp.float32) for values in (coordinates, validation))
    first, second, key = jax.random.split(jax.random.key(seed), 3)
    layers = (
        _initial(first, (size, *settings.hidden, latent_size)),
        _initial(second, (latent_size, *settings.hidden, size)),
    )
    batch = min(settings.batch, len(learnt))
    batches = len(learnt) // batch
    rate = optax.cosine_decay_schedule(settings.learning_rate, settings.epochs * batches, 0.01)
    optimiser = optax.adamw(rate, weight_decay=settings.weight_decay)
    moments = optimiser.init(layers)

    def loss(layers: tuple[Layers, Layers], given: Array) -> Array:
        """Mean squared distance in units of the largest spread; the basis is orthonormal in mass."""
        latent = jax.vmap(lambda c: perceptron(layers[0], c) + c[:latent_size])(given)
        at_zero = perceptron(layers[1], jnp.zeros(latent_size, jnp.float32))
        bent = jax.vmap(lambda z: perceptron(layers[1], z) - at_zero)(latent)
        found = bent + jnp.pad(latent, ((0, 0), (0, size - latent_size)))
        return jnp.mean(jnp.sum((scale[None] * (found - given)) ** 2, axis=1))

    @jax.jit
    def epoch(layers: tuple, moments: optax.OptState, key: Array) -> tuple:
        order = jax.random.permutation(key, len(learnt))[: batches * batch].reshape(batches, batch)

        def step(carry: tuple, chosen: Array) -> tuple:
            layers, moments = carry
            value, slope = jax.value_and_grad(loss)(layers, learnt[chosen])
            change, moments = optimiser.update(slope, moments, layers)
            return (optax.apply_updates(layers, change), moments), value

        losses: Array
        carry, losses = jax.lax.scan(step, (layers, moments), order)
        return *carry, jnp.mean(losses), loss(carry[0], judged)

    best, best_epoch, kept, train_at_best = np.inf, 0, layers, np.inf
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    count = 0
    unit = 1e3 * spread.max()
    with Progress(*columns) as progress:
        task = progress.add_task("autoencoder", total=settings.epochs)
        for count in range(1, settings.epochs + 1):
            key, own = jax.random.split(key)
            layers, moments, train, held = epoch(layers, moments, own)
            if float(held) < best:
                best, best_epoch, kept, train_at_best = float(held), count, layers, float(train)
            described = f"autoencoder, r = {latent_size}: validation {unit * best**0.5:.3f} mm"
            progress.update(task, advance=1, description=described)
            if count - best_epoch >= settings.patience:
                break
    if not np.isfinite(best):
        raise ValueError("autoencoder: the training did not become finite; lower the learning rate")
    encoder = tuple(
        (jnp.asarray(weight, jnp.result_type(float)), jnp.asarray(bias, jnp.result_type(float)))
        for weight, bias in kept[0]
    )
    decoder = decoder_of(kept[1], spread[:latent_size], spread)
    factor = float(spread.max())
    report = TrainingReport(count, best_epoch, factor * train_at_best**0.5, factor * best**0.5)
    return Autoencoder(decoder, encoder), report


def _initial(key: Array, sizes: tuple[int, ...]) -> Layers:
    """Weights of unit gain, and a last layer of zeros: what is beside the network is right to begin with."""
    layers = []
    for k, (before, after) in enumerate(itertools.pairwise(sizes)):
        key, own = jax.random.split(key)
        gain = 0.0 if k == len(sizes) - 2 else before**-0.5
        weight = gain * jax.random.normal(own, (after, before), jnp.float32)
        layers.append((weight, jnp.zeros(after, jnp.float32)))
    return tuple(layers)
