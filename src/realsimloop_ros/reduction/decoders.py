"""From the latent state z that is simulated to the coordinates c of the basis: what makes a subspace curved or
not.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

Layers = tuple[tuple[Array | NDArray, Array | NDArray], ...]


class Decoder(eqx.Module):
    """A smooth map c = decoder(z) with decoder(0) = 0.

    kind: its name in files; linear: whether it is the identity, which spares a step the chain rule.
    """

    kind: ClassVar[str]
    linear: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def latent_size(self) -> int:
        """r, the length of z."""

    @property
    @abc.abstractmethod
    def coordinate_count(self) -> int:
        """R, the length of c."""

    @abc.abstractmethod
    def __call__(self, latent: Float[Array, " r"]) -> Float[Array, " R"]:
        """Coordinates (R,) of a latent state (r,)."""

    @abc.abstractmethod
    def arrays(self) -> dict[str, NDArray]:
        """What a file holds of it."""

    @classmethod
    @abc.abstractmethod
    def from_arrays(cls, arrays: dict[str, NDArray]) -> Decoder:
        """Made anew from what a file holds. Raises ValueError or KeyError."""


class IdentityDecoder(Decoder):
    """c = z: a linear subspace."""

    kind: ClassVar[str] = "identity"
    linear: ClassVar[bool] = True
    size: int = eqx.field(static=True)

    @property
    def latent_size(self) -> int:
        return self.size

    @property
    def coordinate_count(self) -> int:
        return self.size

    def __call__(self, latent: Float[Array, " r"]) -> Float[Array, " R"]:
        return latent

    def arrays(self) -> dict[str, NDArray]:
        return {"size": np.array(self.size)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray]) -> IdentityDecoder:
        return cls(int(arrays["size"]))


def perceptron(layers: Layers, value: Array) -> Array:
    """A multilayer perceptron, (a,) -> (b,), with a smooth activation: its Hessian enters a step's."""
    for weight, bias in layers[:-1]:
        value = jax.nn.silu(weight @ value + bias)
    weight, bias = layers[-1]
    return jnp.asarray(weight @ value + bias)


class NetworkDecoder(Decoder):
    """decoder(z) = (z, 0) + S (net(z / s) - net(0)).

    layers: weights (out, in) and biases (out,); latent_spread: s (r,) m; coordinate_spread: S (R,) m; at_zero:
    net(0).
    """

    kind: ClassVar[str] = "network"
    layers: Layers
    latent_spread: Float[Array, " r"]
    coordinate_spread: Float[Array, " R"]
    at_zero: Float[Array, " R"]

    @property
    def latent_size(self) -> int:
        return self.latent_spread.shape[0]

    @property
    def coordinate_count(self) -> int:
        return self.coordinate_spread.shape[0]

    def __call__(self, latent: Float[Array, " r"]) -> Float[Array, " R"]:
        straight = jnp.pad(latent, (0, self.coordinate_count - self.latent_size))
        bent = perceptron(self.layers, latent / self.latent_spread) - self.at_zero
        return straight + self.coordinate_spread * bent

    def arrays(self) -> dict[str, NDArray]:
        arrays = {"latent_spread": np.asarray(self.latent_spread), "spread": np.asarray(self.coordinate_spread)}
        for k, (weight, bias) in enumerate(self.layers):
            # they were trained in single precision
            arrays[f"weight_{k}"], arrays[f"bias_{k}"] = (
                np.asarray(weight, np.float32),
                np.asarray(bias, np.float32),
            )
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray]) -> NetworkDecoder:
        count = sum(key.startswith("weight_") for key in arrays)
        layers = tuple((arrays[f"weight_{k}"], arrays[f"bias_{k}"]) for k in range(count))
        sizes = [len(arrays["latent_spread"]), *(len(bias) for _, bias in layers)]
        if not layers or sizes[-1] != len(arrays["spread"]) or sizes[-1] < sizes[0]:
            raise ValueError(f"decoder: layers of sizes {sizes}, but {len(arrays['spread'])} coordinates")
        for k, (weight, bias) in enumerate(layers):
            if weight.shape != (sizes[k + 1], sizes[k]):
                raise ValueError(
                    f"decoder: weight_{k} has shape {weight.shape}, expected {(sizes[k + 1], sizes[k])}"
                )
            if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
                raise ValueError(f"decoder: layer {k} holds non-finite numbers")
        return decoder_of(layers, arrays["latent_spread"], arrays["spread"])


def decoder_of(layers: Layers, latent_spread: NDArray, coordinate_spread: NDArray) -> NetworkDecoder:
    """A decoder in JAX's own precision, exactly zero at zero up to rounding."""

    def converted(value: Array | NDArray) -> Array:
        return jnp.asarray(value, jnp.result_type(float))

    own = tuple((converted(weight), converted(bias)) for weight, bias in layers)
    spread = converted(latent_spread)
    return NetworkDecoder(own, spread, converted(coordinate_spread), perceptron(own, jnp.zeros_like(spread)))


def decoder_from_arrays(kind: str, arrays: dict[str, NDArray]) -> Decoder:
    """The decoder that a file holds. Raises ValueError naming the kinds that there are."""
    kinds = {decoder.kind: decoder for decoder in (IdentityDecoder, NetworkDecoder)}
    if kind not in kinds:
        raise ValueError(f"decoder: {kind!r}, expected one of {sorted(kinds)}")
    return kinds[kind].from_arrays(arrays)
