"""What bodies are made of: zones, grips, weights, attachments and cables, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.poses import IDENTITY_POSE


class InvalidBodyError(ValueError):
    """A body that cannot be simulated; the message names the field, the value and the remedy."""


@dataclass(frozen=True)
class Zone:
    """A region of one material. density: kg/m^3."""

    name: str
    density: float


@dataclass(frozen=True)
class Grip:
    """Vertices carried rigidly by a named frame. rest_pose: the frame's pose at which the body is at rest."""

    name: str
    frame: str
    vertices: NDArray[np.int64]
    rest_pose: NDArray[np.float64] = field(default_factory=IDENTITY_POSE.copy)


@dataclass(frozen=True)
class HungWeight:
    """A dead weight: its mass (kg) pulls along gravity and adds inertia. weights (k,) sum to one."""

    name: str
    mass: float
    vertices: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Attachment:
    """Points bound to tets.

    tet: (k,) index; weights: (k, a) of the tet's nodes; gradients: (k, a, 3) of the
    shape functions there, 1/m.
    """

    tet: NDArray[np.int64]
    weights: NDArray[np.float64]
    gradients: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tet)

    def positions(self, x: NDArray[np.float64], tets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Positions (k, 3) of the points when the vertices are at x (n, 3), m."""
        return np.einsum("ka,kai->ki", self.weights, x[tets[self.tet]])

    def deformation_gradients(self, x: NDArray[np.float64], tets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Deformation gradients (k, 3, 3) at the points when the vertices are at x (n, 3)."""
        return np.einsum("kai,kaj->kij", x[tets[self.tet]], self.gradients)


def no_attachment(nodes_per_tet: int) -> Attachment:
    """An attachment of no points."""
    return Attachment(np.zeros(0, np.int64), np.zeros((0, nodes_per_tet)), np.zeros((0, nodes_per_tet, 3)))


@dataclass(frozen=True)
class Cable:
    """A cable through points of a body to a winch.

    frame: the named frame that carries the winch's eyelet, at whose origin the cable ends; anchor: (3,) m, where
    that origin is when the body is at rest; points: ordered from the far end to the winch; stiffness: N/m, of the
    whole cable; blend: m, the length over which it goes from slack to taut.
    """

    name: str
    frame: str
    anchor: NDArray[np.float64]
    points: Attachment
    stiffness: float
    blend: float = 1e-4
