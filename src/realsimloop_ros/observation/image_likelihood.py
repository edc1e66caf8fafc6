"""How well the splats at a predicted state explain the camera images: loss, gradient and Gauss-Newton matrix.

Per pixel of camera k, with C and T the drawn colour and transmittance, Y the image, M the mask (0 or 1), g_k the
camera's exposure gain, and R the change of M per px by which the mask is too wide:

    L = 1/n_eff [ s_colour sum over the inside of rho(|g_k C - (1 - T) Y| / sigma_colour)
                  + sum of rho((1 - T - M + o_k R) / sigma_silhouette)
                  + 1/2 (g_k - 1)^2 / sigma_gain^2 + 1/2 o_k^2 / sigma_offset^2 ]

rho is robust. g_k and o_k minimise L for the state at hand, so the gradient needs no derivative of them, and the
Gauss-Newton matrix is the one with both eliminated. n_eff is the number of neighbouring pixels whose errors are
one error: without it, a few thousand pixels would claim a precision that they do not have. A mask errs along whole
edges alike, and drawn splats end a little off the body's edge: without o_k a twentieth of a pixel of either is
taken for a thinner or thicker body, which is Poisson's ratio. Colours are compared over the image itself, so that
they say nothing of where the body ends, and not at the rim of a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import cv2
import numpy as np
from numpy.typing import DTypeLike, NDArray

from realsimloop_ros.body.body import Attachment
from realsimloop_ros.observation import likelihood_kernels as kernels
from realsimloop_ros.observation.cameras import Camera, look_at, pinhole_views
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.rasterizers import (
    Gaussians,
    Rendering,
    render,
    render_tangents,
    render_transpose,
)
from realsimloop_ros.observation.splats import Splats
from realsimloop_ros.observation.threads import run_side_by_side

Array = NDArray[np.float64]

# px, of a mask's rim
_RIM_BLUR = 1.0
_KINDS = {"huber": kernels.HUBER, "geman_mcclure": kernels.GEMAN_MCCLURE}


class ImageNoiseError(ValueError):
    """A noise model that makes no sense; the text names field, value and remedy."""


@dataclass(frozen=True)
class ImageNoise:
    """What is known about the errors of images and masks.

    sigma_colour: standard deviation of a pixel's colour about the drawn one, per channel, of 0 to 1; it holds the
        splats' own error too, not only the sensor's.
    sigma_silhouette: of opacity about the mask.
    sigma_offset: px, by which the edges of a camera's mask lie too far out or in, in one frame, as a whole.
    colour_share: of what colours say, the part that is new: the splats' own error rides on the body, and every
        frame shows it again.
    rim: px, inside the mask's edge, where colours are not compared: image and mask are of two things there.
    correlation_length: px, over which residuals are alike (exp(-distance / length)).
    robust: 'huber' (bounded influence) or 'geman_mcclure' (outliers lose their influence; needs a good start).
    robust_scale: residual, in sigmas, from which on a pixel counts as an outlier.
    sigma_gain: of a camera's exposure gain about 1.
    minimum_overlap: a camera is left out whose mask and predicted silhouette have a smaller intersection
        over union.
    gain_limits: a camera whose gain lies outside is left out.
    gain_tolerance: the gain is iterated to this change.
    Raises ImageNoiseError.
    """

    sigma_colour: float = 0.05
    sigma_silhouette: float = 0.3
    sigma_offset: float = 0.5
    colour_share: float = 1.0
    rim: int = 1
    correlation_length: float = 1.0
    robust: str = "huber"
    robust_scale: float = 3.0
    sigma_gain: float = 0.5
    minimum_overlap: float = 0.2
    gain_limits: tuple[float, float] = (0.2, 5.0)
    gain_tolerance: float = 1e-7

    def __post_init__(self) -> None:
        for field in (
            "sigma_colour",
            "sigma_silhouette",
            "sigma_offset",
            "colour_share",
            "robust_scale",
            "sigma_gain",
            "gain_tolerance",
        ):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ImageNoiseError(f"{field} is {value}, expected a positive number")
        if not (math.isfinite(self.correlation_length) and 0 <= self.correlation_length <= 100):
            raise ImageNoiseError(f"correlation_length is {self.correlation_length}, expected 0 to 100 px")
        if self.robust not in _KINDS:
            raise ImageNoiseError(f"robust is '{self.robust}', expected one of {', '.join(_KINDS)}")

    @property
    def information(self) -> NDArray[np.float64]:
        """(3,): of a colour, the share of it that counts, and of an opacity."""
        return np.array([self.sigma_colour**-2, self.colour_share, self.sigma_silhouette**-2])

    @property
    def pixels_per_sample(self) -> float:
        """n_eff: the sum of exp(-distance / correlation_length) over the pixel grid, 1 without correlation."""
        return correlated_pixels(self.correlation_length)


def correlated_pixels(length: float) -> float:
    """The sum of exp(-distance / length) over all offsets of the pixel grid."""
    if length <= 0:
        return 1.0
    reach = math.ceil(12 * length)
    offsets = np.arange(-reach, reach + 1)
    return float(np.exp(-np.hypot(offsets[:, None], offsets[None, :]) / length).sum())


@dataclass(frozen=True)
class CameraDiagnostics:
    """What one camera had to say.

    used: whether it entered the sums; reason: why not, empty otherwise. gain: of its exposure. residual_rms: of
    the colour (0 to 1) inside the mask. overlap: intersection over union of mask and predicted body.
    outlier_share: of the pixels of either, those about which the two disagree or whose colour has less than half
    its weight. offset: px, by which the mask is too wide.
    """

    camera: str
    used: bool
    reason: str
    gain: float = math.nan
    residual_rms: float = math.nan
    overlap: float = math.nan
    outlier_share: float = math.nan
    offset: float = math.nan


@dataclass(frozen=True, eq=False)
class ImageTerm:
    """Loss (negative log-likelihood up to a constant), its gradient (p,) and Gauss-Newton matrix (p, p).

    residual_rms: colour, 0 to 1, over all cameras used; NaN where none is.
    """

    loss: float
    gradient: Array
    gauss_newton: Array
    residual_rms: float
    cameras: tuple[CameraDiagnostics, ...]


@dataclass(frozen=True, eq=False)
class PaintedCentres:
    """Where colours are drawn: centres (k, 3), m, and their derivatives (p, k, 3); see likelihoods.PaintAnchor."""

    centres: Array
    tangents: Array


def image_term(
    splats: Splats,
    views: MultiViewImages,
    centres: Array,
    covariances: Array,
    tangents_centres: Array,
    tangents_covariances: Array,
    noise: ImageNoise,
    dtype: DTypeLike = np.float32,
    painted: PaintedCentres | None = None,
) -> ImageTerm:
    """The image likelihood of one frame and its derivatives in p directions.

    centres (k, 3), covariances (k, 3, 3) from `Splats.place`; tangents (p, k, 3), (p, k, 3, 3) from
    `Splats.place_tangents`. views: rectified. dtype: of the rasterizer. painted: where the colours are drawn, if
    not at `centres`.
    """
    directions = len(tangents_centres)
    chosen, refused = _present(views)
    gradient, hessian = np.zeros(directions), np.zeros((directions, directions))
    if not len(chosen):
        return ImageTerm(0.0, gradient, hessian, math.nan, tuple(refused.values()))
    gaussians = Gaussians(centres, covariances, splats.opacities, splats.colours)
    pinholes = pinhole_views([views.cameras[i] for i in chosen])
    layers = render_tangents(gaussians, pinholes, tangents_centres, tangents_covariances, dtype)
    outlines = layers[..., 3]
    if painted is not None:
        moved = Gaussians(painted.centres, covariances, splats.opacities, splats.colours)
        layers = render_tangents(moved, pinholes, painted.tangents, tangents_covariances, dtype)
    parts: list[_ViewPart | None] = [None] * len(chosen)

    def evaluate(place: int) -> None:
        parts[place] = _evaluate_view(layers[place], outlines[place], views, int(chosen[place]), noise)

    run_side_by_side([partial(evaluate, place) for place in range(len(chosen))])
    scale = 1 / noise.pixels_per_sample
    loss, square, count = 0.0, 0.0, 0
    diagnostics = dict(refused)
    for camera, part in zip(chosen, parts, strict=True):
        assert part is not None
        diagnostics[int(camera)] = part.diagnostics
        if part.diagnostics.used:
            loss += scale * part.loss
            gradient += scale * part.gradient
            hessian += scale * part.gauss_newton
            square += part.square
            count += part.count
    rms = math.sqrt(square / (3 * count)) if count else math.nan
    return ImageTerm(
        loss, gradient, hessian, rms, tuple(diagnostics[camera] for camera in range(len(views.cameras)))
    )


@dataclass(frozen=True, eq=False)
class ImageGradient:
    """Loss, its derivatives by centres (k, 3), covariances (k, 3, 3), colours (k, 3) and opacities (k,)."""

    loss: float
    centres: Array
    covariances: Array
    colours: Array
    opacities: Array
    cameras: tuple[CameraDiagnostics, ...]


def image_loss_gradient(
    splats: Splats,
    views: MultiViewImages,
    centres: Array,
    covariances: Array,
    noise: ImageNoise,
    dtype: DTypeLike = np.float32,
) -> ImageGradient:
    """The same loss as `image_term`, and its derivatives by the transpose: for adjoints and for the appearance."""
    chosen, diagnostics = _present(views)
    gaussians = Gaussians(centres, covariances, splats.opacities, splats.colours)
    if not len(chosen):
        zeros = (np.zeros_like(gaussians.centres), np.zeros_like(gaussians.covariances))
        appearance = (np.zeros_like(gaussians.colours), np.zeros_like(gaussians.opacities))
        return ImageGradient(0.0, *zeros, *appearance, tuple(diagnostics.values()))
    rendering = render(gaussians, pinhole_views([views.cameras[i] for i in chosen]), dtype)
    gradient_image = np.zeros_like(rendering.image)
    parts: list[_ViewPart | None] = [None] * len(chosen)
    scale = 1 / noise.pixels_per_sample

    def evaluate(place: int) -> None:
        camera = int(chosen[place])
        layers = rendering.image[place][:, :, None, :]
        part = parts[place] = _evaluate_view(layers, layers[..., 3], views, camera, noise)
        if part.diagnostics.used:
            kernels.view_image_gradient(
                layers,
                np.require(views.images[camera], requirements=["C", "W"]),
                *_places_and_rim(views.masks[camera], noise.rim),
                part.diagnostics.gain,
                part.diagnostics.offset,
                noise.information,
                _KINDS[noise.robust],
                noise.robust_scale,
                scale,
                gradient_image[place],
            )

    run_side_by_side([partial(evaluate, place) for place in range(len(chosen))])
    loss = 0.0
    for camera, part in zip(chosen, parts, strict=True):
        assert part is not None
        diagnostics[int(camera)] = part.diagnostics
        loss += scale * part.loss if part.diagnostics.used else 0.0
    result = render_transpose(rendering, gradient_image)
    return ImageGradient(
        loss,
        result.centres,
        result.covariances,
        result.colours,
        result.opacities,
        tuple(diagnostics[camera] for camera in range(len(views.cameras))),
    )


def measured_noise(rendering: Rendering, views: MultiViewImages, noise: ImageNoise) -> ImageNoise:
    """`noise` with sigma_colour and correlation_length as the residuals of a fitted frame show them.

    rendering: of the splats into the cameras of `views`, all available. Only pixels well inside both mask and
    drawn body count. Gives `noise` back unchanged where there are fewer than 100 such pixels.
    """
    squares, horizontal, vertical = [], [], []
    for index in range(len(views.cameras)):
        layers = rendering.image[index][:, :, None, :]
        part = _evaluate_view(layers, layers[..., 3], views, index, noise)
        inside = (views.masks[index] > 0) & (rendering.transmittance[index] < 0.05)
        gain = part.diagnostics.gain if math.isfinite(part.diagnostics.gain) else 1.0
        opacity = 1.0 - rendering.transmittance[index][..., None]
        difference = gain * rendering.colour[index] - opacity * views.images[index] / 255.0
        residual = np.where(inside[..., None], difference, np.nan)
        squares.append(residual[inside].ravel())
        horizontal.append((residual[:, 1:] * residual[:, :-1]).ravel())
        vertical.append((residual[1:] * residual[:-1]).ravel())
    values = np.concatenate(squares)
    if len(values) < 300:
        return noise
    # the median keeps a few outliers from widening the noise of all
    sigma = 1.4826 * float(np.median(np.abs(values)))
    lag = float(np.nanmean(np.concatenate(horizontal + vertical))) / float(np.mean(values**2))
    length = -1 / math.log(min(max(lag, 1e-6), 0.99))
    return replace(noise, sigma_colour=max(sigma, 1e-3), correlation_length=min(length, 100.0))


def compile_kernels() -> None:
    """Compiles, or loads from the cache, all that `image_term` and `image_loss_gradient` need in float32.

    For a node's configure step: after it, no first frame waits for a compiler.
    """
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    gradients = np.array([[[-1.0, -1, -1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]])
    splats = Splats(
        Attachment(np.zeros(1, np.int64), np.full((1, 4), 0.25), gradients),
        np.arange(4)[None],
        np.array([0.01 * np.eye(3)]),
        np.full((1, 3), 0.8),
        np.full(1, 0.9),
    )
    intrinsics = np.array([[8.0, 0, 7.5], [0, 8, 5.5], [0, 0, 1]])
    camera = Camera("compile", 16, 12, intrinsics, np.zeros(5), look_at((3.0, 0.2, 0.2), (0.25, 0.25, 0.25)))
    image = np.full((1, 12, 16, 3), 200, np.uint8)
    centres, covariances = splats.place(corners)
    seen = render(splats.gaussians(corners), pinhole_views([camera])).transmittance < 0.5
    views = MultiViewImages((camera,), image, np.where(seen, 255, 0).astype(np.uint8), np.ones(1, bool))
    tangents = splats.place_tangents(corners, np.ones((1, 4, 3)))
    image_term(splats, views, centres, covariances, *tangents, ImageNoise())
    result = image_loss_gradient(splats, views, centres, covariances, ImageNoise())
    splats.place_transpose(corners, result.centres, result.covariances)


@dataclass(frozen=True, eq=False)
class _ViewPart:
    diagnostics: CameraDiagnostics
    loss: float
    gradient: Array
    gauss_newton: Array
    square: float
    count: int


def _present(views: MultiViewImages) -> tuple[NDArray[np.int64], dict[int, CameraDiagnostics]]:
    """Indices of the views to draw, and why the others are left out."""
    refused = {}
    for index, camera in enumerate(views.cameras):
        if not views.available[index]:
            refused[index] = CameraDiagnostics(camera.name, False, "no image in this frame")
        elif not views.masks[index].any():
            refused[index] = CameraDiagnostics(camera.name, False, "the mask is empty")
    return np.array([i for i in range(len(views.cameras)) if i not in refused], np.int64), refused


def _evaluate_view(
    layers: NDArray, outline: NDArray, views: MultiViewImages, index: int, noise: ImageNoise
) -> _ViewPart:
    """Sums over one view. layers (H, W, 1 + p, 4) for the colours, outline (H, W, 1 + p) for the mask."""
    directions = layers.shape[2] - 1
    # writable: numba would compile anew for the read-only arrays that messages hold
    image = np.require(views.images[index], requirements=["C", "W"])
    places, rim = _places_and_rim(views.masks[index], noise.rim)
    name = views.cameras[index].name
    gradient, hessian, columns = (
        np.zeros(directions),
        np.zeros((directions, directions)),
        np.zeros((2, directions)),
    )
    in_mask, in_prediction, in_both = kernels.overlap_counts(layers, places)
    overlap = in_both / max(1, in_mask + in_prediction - in_both)
    if overlap < noise.minimum_overlap:
        reason = (
            f"mask and predicted silhouette overlap by {overlap:.2f} (intersection over union), less than"
            f" {noise.minimum_overlap:.2f}"
        )
        return _ViewPart(CameraDiagnostics(name, False, reason, overlap=overlap), 0.0, gradient, hessian, 0.0, 0)
    gain, gain_information = _solve_gain(layers, image, places, noise)
    if not noise.gain_limits[0] <= gain <= noise.gain_limits[1]:
        reason = f"the exposure gain {gain:.3g} lies outside {noise.gain_limits[0]:g} to {noise.gain_limits[1]:g}"
        diagnostics = CameraDiagnostics(name, False, reason, gain=gain, overlap=overlap)
        return _ViewPart(diagnostics, 0.0, gradient, hessian, 0.0, 0)
    offset, offset_information = _solve_offset(np.ascontiguousarray(outline[..., 0]), places, rim, noise)
    loss, square, count, outliers = kernels.view_sums(
        layers,
        outline,
        image,
        places,
        rim,
        gain,
        offset,
        noise.information,
        _KINDS[noise.robust],
        noise.robust_scale,
        gradient,
        hessian,
        columns,
    )
    loss += 0.5 * (gain - 1) ** 2 / noise.sigma_gain**2 + 0.5 * offset**2 / noise.sigma_offset**2
    for column, information in zip(columns, (gain_information, offset_information), strict=True):
        hessian -= column[:, None] * column[None, :] / information
    diagnostics = CameraDiagnostics(
        name,
        True,
        "",
        gain=gain,
        residual_rms=math.sqrt(square / (3 * max(1, count))),
        overlap=overlap,
        outlier_share=outliers,
        offset=offset,
    )
    return _ViewPart(diagnostics, loss, gradient, hessian, square, count)


def _places_and_rim(mask: NDArray[np.uint8], width: int) -> tuple[NDArray[np.uint8], Array]:
    """Places (H, W) of a mask, see the kernels, and how it changes (H, W) per px that it grows."""
    seen = np.require(mask > 0, np.uint8)
    inside = cv2.erode(seen, np.ones((2 * width + 1, 2 * width + 1), np.uint8)) if width else seen
    # as wide as the rim of drawn splats, so that an offset and a thicker body look alike
    smooth = cv2.GaussianBlur(seen.astype(np.float64), (0, 0), _RIM_BLUR)
    slopes = (cv2.Sobel(smooth, cv2.CV_64F, *axis, scale=0.125) for axis in ((1, 0), (0, 1)))
    return seen + inside, np.hypot(*slopes)


def _solve_offset(
    transmittance: NDArray, places: NDArray[np.uint8], rim: Array, noise: ImageNoise
) -> tuple[float, float]:
    """The mask's offset that minimises the view's loss, and the information about it."""
    prior = 1 / noise.sigma_offset**2
    offset, information = 0.0, prior
    for _ in range(50):
        numerator, denominator = kernels.offset_sums(
            transmittance,
            places,
            rim,
            offset,
            noise.sigma_silhouette**-2,
            _KINDS[noise.robust],
            noise.robust_scale,
        )
        information = denominator + prior
        change = numerator / information - offset
        offset += change
        if abs(change) < noise.gain_tolerance:
            break
    return offset, information


def _solve_gain(
    layers: NDArray, image: NDArray[np.uint8], places: NDArray[np.uint8], noise: ImageNoise
) -> tuple[float, float]:
    """The gain that minimises the view's loss, and the information about it.

    Each iteration solves the weighted normal equation in closed form. It starts at the median ratio of brightness,
    which half the pixels may spoil.
    """
    body = (places == kernels.INSIDE) & (layers[:, :, 0, 3] < 0.5)
    if not body.any():
        return 1.0, 1 / noise.sigma_gain**2
    drawn = layers[:, :, 0, :3][body].sum(axis=1)
    seen = (1.0 - layers[:, :, 0, 3][body]) * image[body].sum(axis=1) / 255.0
    gain = float(np.median(seen / np.maximum(drawn, 1e-3)))
    prior = 1 / noise.sigma_gain**2
    information = prior
    for _ in range(50):
        numerator, denominator = kernels.gain_sums(
            layers,
            image,
            places,
            gain,
            noise.information,
            _KINDS[noise.robust],
            noise.robust_scale,
        )
        information = denominator + prior
        change = (numerator + prior) / information - gain
        gain += change
        if abs(change) < noise.gain_tolerance:
            break
    return gain, information
