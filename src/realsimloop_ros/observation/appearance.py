"""The first look of the splats: where they lie in the body, and their colours, opacities and scales from views."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from realsimloop_ros.body.body import Body, surface_triangles
from realsimloop_ros.observation.cameras import pinhole_views
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.rasterizers import Rendering, render, render_transpose
from realsimloop_ros.observation.splats import Splats, SplatsError, bind_splats

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AppearanceSettings:
    """How splats are made from a body and its first views.

    count: number of splats; surface_share: of them, those on the surface (the rest fills the inside).
    iterations: Adam steps. After about 100, held-out views get worse: the fit starts to explain pixels by shapes
        that only the views in use see.
    background: colour (0 to 1) over which body pixels and splats are compared.
    silhouette_weight: of the squared difference of opacity and mask, against the mean colour difference.
    scale_weight: keeps scales near their start, where nothing is seen.
    """

    count: int = 3000
    surface_share: float = 0.7
    seed: int = 0
    iterations: int = 80
    colour_rate: float = 2e-2
    opacity_rate: float = 2e-2
    scale_rate: float = 1e-2
    background: tuple[float, float, float] = (0.5, 0.5, 0.5)
    silhouette_weight: float = 0.2
    scale_weight: float = 1e-4


def sample_splats(body: Body, settings: AppearanceSettings | None = None) -> tuple[Splats, Array]:
    """Grey splats over the surface (by area) and inside (by volume); deterministic for a seed.

    Returns the splats, surface ones first, and the outward normals at rest (s, 3) of the s surface ones.
    Surface splats are flat, and lie about half their spacing below the surface, so that their rim ends near it.
    """
    settings = settings or AppearanceSettings()
    if settings.count < 2 or not 0 < settings.surface_share <= 1:
        raise SplatsError(
            f"count is {settings.count} and surface_share {settings.surface_share}, expected two or more splats"
            " and a share above 0 and up to 1"
        )
    generator = np.random.default_rng(settings.seed)
    on_surface = max(1, round(settings.surface_share * settings.count))
    corners = body.rest_positions[surface_triangles(body)]  # (f, 3, 3)
    cross = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    areas = 0.5 * np.linalg.norm(cross, axis=1)
    triangle = generator.choice(len(areas), on_surface, p=areas / areas.sum())
    centres = _inside(generator, corners[triangle])
    normals = cross[triangle] / np.linalg.norm(cross[triangle], axis=1, keepdims=True)
    spacing = float(np.sqrt(areas.sum() / on_surface))
    centres -= normals * 0.45 * spacing

    tets = body.rest_positions[body.tets[:, :4]]
    volumes = np.linalg.det(tets[:, 1:] - tets[:, :1]) / 6
    filling = settings.count - on_surface
    tet = generator.choice(len(volumes), filling, p=volumes / volumes.sum())
    centres = np.concatenate([centres, _inside(generator, tets[tet])])

    wide, flat = (0.55 * spacing) ** 2, (0.22 * spacing) ** 2
    covariances = np.tile(wide * np.eye(3), (settings.count, 1, 1))
    covariances[:on_surface] -= (wide - flat) * normals[:, :, None] * normals[:, None, :]
    splats = bind_splats(
        body, centres, covariances, np.full((settings.count, 3), 0.5), np.full(settings.count, 0.9)
    )
    return splats, normals


def _inside(generator: np.random.Generator, corners: Array) -> Array:
    """A uniformly random point (k, 3) in each simplex (k, c, 3)."""
    weights = generator.exponential(size=corners.shape[:2])
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("kc,kci->ki", weights, corners)


def initialise_splats(
    body: Body, x: Array, views: MultiViewImages, settings: AppearanceSettings | None = None
) -> Splats:
    """Splats for a body seen in rectified views while its vertices are at x (n, 3), m.

    Raises SplatsError where no available view sees the body.
    """
    settings = settings or AppearanceSettings()
    splats, normals = sample_splats(body, settings)
    return fit_appearance(paint_splats(splats, normals, x, views), x, views, settings)


def paint_splats(splats: Splats, normals: Array, x: Array, views: MultiViewImages) -> Splats:
    """Colours from the views: back-projected, weighted by how squarely a surface splat faces the camera.

    normals (s, 3): of the first s splats, at rest. Splats that no mask shows take the colour of the nearest one
    that is seen. Raises SplatsError where there is none.
    """
    surface = len(normals)
    centres, _ = splats.place(x)
    deformation = splats.deformation_gradients(x)[:surface]
    # normals are carried by F^-T
    carried = np.linalg.solve(deformation.swapaxes(1, 2), normals[..., None])[..., 0]
    carried /= np.linalg.norm(carried, axis=1, keepdims=True)
    total = np.zeros((surface, 3))
    weight = np.zeros(surface)
    for camera, image, mask, available in zip(
        views.cameras, views.images, views.masks, views.available, strict=True
    ):
        if not available:
            continue
        pixels, depth = camera.project(centres[:surface])
        column, row = np.rint(np.where(depth[:, None] > 0, pixels, -1)).astype(int).T
        seen = (column >= 0) & (column < camera.width) & (row >= 0) & (row < camera.height)
        column, row = np.where(seen, column, 0), np.where(seen, row, 0)
        towards = camera.centre - centres[:surface]
        facing = np.einsum("ki,ki->k", carried, towards) / np.linalg.norm(towards, axis=1)
        share = np.clip(facing, 0, 1) ** 2 * (seen & (mask[row, column] > 0))
        total += share[:, None] * image[row, column] / 255
        weight += share
    seen = weight > 1e-3
    if not seen.any():
        names = [camera.name for camera in views.cameras]
        raise SplatsError(
            f"none of the cameras {names} sees the body inside its mask; check poses, masks and the state"
        )
    colours = np.empty((len(splats), 3))
    painted = np.flatnonzero(seen)
    colours[painted] = total[painted] / weight[painted, None]
    rest = np.setdiff1d(np.arange(len(splats)), painted)
    colours[rest] = colours[painted[cKDTree(centres[painted]).query(centres[rest])[1]]]
    return replace(splats, colours=np.clip(colours, 0, 1))


def fit_appearance(
    splats: Splats, x: Array, views: MultiViewImages, settings: AppearanceSettings | None = None
) -> Splats:
    """Colours, opacities and scales by a short Adam on the difference from the masked, rectified views.

    Positions and orientations stay: they belong to the body.
    """
    settings = settings or AppearanceSettings()
    fit = AppearanceFit(splats, x, views, settings)
    fit.advance(settings.iterations)
    return fit.splats


class AppearanceFit:
    """`fit_appearance` as far as it has got: for one that goes on while frames come in.

    iterations: those done.
    """

    def __init__(self, splats: Splats, x: Array, views: MultiViewImages, settings: AppearanceSettings) -> None:
        self._start, self._x, self._settings = splats, x, settings
        self.iterations = 0
        chosen = np.flatnonzero(views.available)
        self._pinholes = pinhole_views([views.cameras[i] for i in chosen])
        self._background = np.asarray(settings.background)
        self._masks = views.masks[chosen] > 0
        self._target = np.where(self._masks[..., None], views.images[chosen] / 255.0, self._background)
        variances, self._axes = np.linalg.eigh(splats.rest_covariances)
        start = {
            "colour": _logit(np.clip(splats.colours, 0.02, 0.98)),
            "opacity": _logit(np.clip(splats.opacities, 0.02, 0.98)),
            "scale": 0.5 * np.log(variances),
        }
        self._scales = start["scale"]
        self._bounds = start["scale"].min() + np.log(0.25), start["scale"].max() + np.log(3.0)
        self._rates = (settings.colour_rate, settings.opacity_rate, settings.scale_rate)
        self._deformation = splats.deformation_gradients(x)
        self._values: dict[str, Any] = {name: jnp.asarray(value) for name, value in start.items()}
        self._state = _optimiser(self._rates).init(self._values)

    @property
    def splats(self) -> Splats:
        """What has been found."""
        if not self.iterations:
            return self._start
        scaled = self._axes * np.exp(np.asarray(self._values["scale"], np.float64))[:, None, :]
        return replace(
            self._start,
            colours=_sigmoid(np.asarray(self._values["colour"], np.float64)),
            opacities=_sigmoid(np.asarray(self._values["opacity"], np.float64)),
            rest_covariances=scaled @ scaled.swapaxes(1, 2),
        )

    def advance(self, iterations: int) -> None:
        """Go on by so many iterations."""
        for _ in range(iterations):
            current = self.splats
            rendering = render(current.gaussians(self._x), self._pinholes)
            difference = _difference(rendering, self._target, self._masks, self._background, self._settings)
            result = render_transpose(rendering, difference)
            # covariance = F A diag(exp 2s) A^T F^T
            local = self._deformation @ self._axes
            scale = np.asarray(self._values["scale"], np.float64)
            along = np.einsum("kji,kjl,kli->ki", local, result.covariances, local)
            drift = scale - self._scales
            gradient = {
                "colour": result.colours * current.colours * (1 - current.colours),
                "opacity": result.opacities * current.opacities * (1 - current.opacities),
                "scale": along * 2 * np.exp(2 * scale) + 2 * self._settings.scale_weight * drift / drift.size,
            }
            slopes = {name: jnp.asarray(value) for name, value in gradient.items()}
            self._values, self._state = _descend(self._rates, self._bounds, slopes, self._state, self._values)
            self.iterations += 1


@cache
def _optimiser(rates: tuple[float, float, float]) -> optax.GradientTransformation:
    """Adam with a rate each for colour, opacity and scale."""
    parts = {name: optax.adam(rate) for name, rate in zip(("colour", "opacity", "scale"), rates, strict=True)}
    return optax.multi_transform(parts, {name: name for name in parts})


@partial(jax.jit, static_argnums=0)
def _descend(rates, bounds, gradient, state, values):
    """A step of the optimiser. Compiled once, not per fit: the estimator fits while it runs."""
    change, state = _optimiser(rates).update(gradient, state, values)
    values = optax.apply_updates(values, change)
    return {**values, "scale": jnp.clip(values["scale"], *bounds)}, state


def _difference(
    rendering: Rendering,
    target: Array,
    masks: NDArray[np.bool_],
    background: Array,
    settings: AppearanceSettings,
) -> Array:
    """d/dimage (K, H, W, 4) of mean |colour difference| + weight mean (alpha - mask)^2."""
    residual = rendering.over(background) - target
    # |r| smoothed within a few grey levels, so that what already fits comes to rest
    colour = residual / np.sqrt(residual**2 + 0.01**2) / residual.size
    silhouette = 2 * settings.silhouette_weight * ((1 - rendering.transmittance) - masks) / masks.size
    transmittance = colour @ background - silhouette
    return np.concatenate([colour, transmittance[..., None]], axis=-1)


def _logit(value: Array) -> Array:
    return np.log(value / (1 - value))


def _sigmoid(value: Array) -> Array:
    return 1 / (1 + np.exp(-value))
