"""What a rendered cell looks like: the body's solid texture, the room, grippers and lights, from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.ndimage import gaussian_filter

_PAINTING = 2.2  # m, side of the square of wall that is painted before it repeats

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Colour = tuple[Share, Share, Share]
Vector = tuple[float, float, float]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextureDescription(_Strict):
    """A solid texture of spots: colours in linear RGB, radii from, to (m), spots per litre."""

    base: Colour
    spots: Annotated[tuple[Colour, ...], Field(min_length=1)]
    spot_radius: tuple[Positive, Positive]
    spots_per_litre: Positive
    unevenness: Share  # of brightness, slowly varying


class LightDescription(_Strict):
    """A distant light: direction towards it (any length) in the world, linear RGB."""

    direction: Vector
    colour: Colour


class BoxDescription(_Strict):
    """A rigid box carried by a tool: corners in the tool frame, m, linear RGB."""

    minimum: Vector
    maximum: Vector
    colour: Colour


class RoomDescription(_Strict):
    """Floor and walls.

    minimum, maximum: corners in the world, m; floor, wall: linear RGB; contrast: of their pattern; tile: m.
    """

    minimum: Vector
    maximum: Vector
    floor: Colour
    wall: Colour
    contrast: Share
    tile: Positive


class SceneDescription(_Strict):
    """Everything the renderer needs beside body and cameras.

    seed: of the body's texture and the room's pattern; supersampling: rays per pixel and axis; grippers: boxes per
    arm name.
    """

    seed: Annotated[int, Field(ge=0)]
    supersampling: Annotated[int, Field(ge=1, le=8)]
    texture: TextureDescription
    lights: tuple[LightDescription, ...]
    sky: Colour
    ground: Colour
    grippers: dict[str, tuple[BoxDescription, ...]]
    room: RoomDescription


@dataclass(frozen=True)
class SolidTexture:
    """Colours on a grid in rest coordinates: origin (3,) m, spacing m, colours (nx, ny, nz, 3) linear RGB."""

    origin: NDArray[np.float64]
    spacing: float
    colours: NDArray[np.float32]

    def grid_coordinates(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rest positions (..., 3) in cells of the grid."""
        return (points - self.origin) / self.spacing


def solid_texture(
    description: TextureDescription, minimum: NDArray[np.float64], maximum: NDArray[np.float64], seed: int
) -> SolidTexture:
    """Texture of a body between rest corners `minimum`, `maximum` (3,), m."""
    generator = np.random.default_rng(seed)
    # two hundred cells along the longest side: finer than a pixel of any camera that sees the whole body
    spacing = float((maximum - minimum).max()) / 200.0
    shape = np.ceil((maximum - minimum) / spacing).astype(int) + 2
    axes = [minimum[k] + spacing * np.arange(shape[k]) for k in range(3)]
    brightness = gaussian_filter(generator.normal(size=shape), 12.0, mode="nearest")
    brightness = 1.0 + description.unevenness * brightness / max(float(np.abs(brightness).max()), 1e-12)
    colours = np.array(description.base) * brightness[..., None]
    litres = float(np.prod(maximum - minimum)) * 1e3
    for _ in range(max(1, round(description.spots_per_litre * litres))):
        centre = generator.uniform(minimum, maximum)
        radius = generator.uniform(*description.spot_radius)
        colour = np.array(description.spots[generator.integers(len(description.spots))])
        window = tuple(
            slice(*np.searchsorted(axes[k], (centre[k] - radius - spacing, centre[k] + radius + spacing)))
            for k in range(3)
        )
        grid = np.stack(np.meshgrid(*(axes[k][window[k]] for k in range(3)), indexing="ij"), axis=-1)
        distance = np.linalg.norm(grid - centre, axis=-1)
        cover = np.clip((radius - distance) / spacing + 0.5, 0.0, 1.0)[..., None]
        colours[window] = (1.0 - cover) * colours[window] + cover * colour
    return SolidTexture(minimum.copy(), spacing, np.clip(colours, 0.0, 1.0).astype(np.float32))


def box_triangles(box: BoxDescription) -> NDArray[np.float64]:
    """The twelve outward triangles (12, 3, 3) of a box, m, in the frame that carries it."""
    low, high = np.array(box.minimum), np.array(box.maximum)
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]) * (high - low) + low
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return np.array([corners[list(t)] for a, b, c, d in quads for t in ((a, b, c), (a, c, d))])


def room_radiance(
    room: RoomDescription, origin: NDArray[np.float64], directions: NDArray[np.float64], seed: int
) -> NDArray[np.float32]:
    """Radiance (..., 3) of the room for rays from `origin` (3,), inside it, along `directions` (..., 3)."""
    low, high = np.array(room.minimum), np.array(room.maximum)
    with np.errstate(divide="ignore"):
        distances = np.where(directions > 0, high - origin, low - origin) / directions
    distances = np.where(np.abs(directions) < 1e-12, np.inf, distances)
    side = distances.argmin(axis=-1)
    nearest = distances.min(axis=-1)
    points = origin + nearest[..., None] * directions
    positive = np.take_along_axis(directions, side[..., None], axis=-1)[..., 0] > 0
    # two coordinates on the plane that was hit
    u = np.where(side == 0, points[..., 1], points[..., 0])
    v = np.where(side == 2, points[..., 1], points[..., 2])
    surface = side * 2 + positive
    paint = np.stack([_paint(room.contrast, seed + k) for k in range(6)])
    # the painting repeats every _PAINTING metres; neighbours are met by wrapping, so there is no edge
    cells = paint.shape[1]
    rows, columns = (np.floor(x * (cells / _PAINTING)).astype(np.int64) % cells for x in (v, u))
    pattern = paint[surface, rows, columns]
    is_seam = np.minimum(_distance_to_grid(u, room.tile), _distance_to_grid(v, room.tile)) < 0.004
    pattern = pattern - 0.6 * room.contrast * is_seam
    is_floor = (side == 2) & ~positive
    colour = np.where(is_floor[..., None], np.array(room.floor), np.array(room.wall))
    # walls darken towards the floor, as they do in a room lit from above
    shade = np.where(side == 2, 1.0, 0.65 + 0.35 * (points[..., 2] - low[2]) / (high[2] - low[2]))
    return np.clip(colour * (pattern * shade)[..., None], 0.0, 1.0).astype(np.float32)


def _distance_to_grid(values: NDArray[np.float64], pitch: float) -> NDArray[np.float64]:
    return np.abs(values - pitch * np.round(values / pitch))


def _paint(contrast: float, seed: int) -> NDArray[np.float64]:
    """Brightness (k, k) of one wall about one: mottled, with a few paler and darker panels."""
    generator = np.random.default_rng(seed)
    cells = 512
    brightness = np.ones((cells, cells))
    for width, share in ((1.5, 0.25), (6.0, 0.35), (40.0, 0.6)):
        mottle = gaussian_filter(generator.normal(size=(cells, cells)), width, mode="wrap")
        brightness += contrast * share * mottle / float(np.abs(mottle).max())
    for _ in range(14):
        top, left = generator.integers(0, cells, 2)
        height, width = generator.integers(12, 70, 2)
        brightness[top : top + height, left : left + width] *= 1.0 + contrast * generator.uniform(-2.0, 1.0)
    return brightness
