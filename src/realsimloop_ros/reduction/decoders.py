"""From the latent state z that is simulated to the coordinates c of the basis: what makes a subspace curved or
not.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray


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


def decoder_from_arrays(kind: str, arrays: dict[str, NDArray]) -> Decoder:
    """The decoder that a file holds. Raises ValueError naming the kinds that there are."""
    kinds = {decoder.kind: decoder for decoder in (IdentityDecoder,)}
    if kind not in kinds:
        raise ValueError(f"decoder: {kind!r}, expected one of {sorted(kinds)}")
    return kinds[kind].from_arrays(arrays)
