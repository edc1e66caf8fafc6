"""Masks of the body without learnt weights: what in the image has its colours, near where it is expected.

A camera's masker is seeded once with a rough silhouette, e.g. the twin's prediction. From the seed it learns
how the body's and its surroundings' colours are distributed (Lab histograms). Each later image is brought to
the seed's exposure, every pixel near the last mask or the predicted silhouette gets a log ratio of the two
distributions, the background seen before may veto, and one GrabCut step draws the rim.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

# OpenCV's signatures leave the element type open
Image = NDArray[Any]  # uint8 (H, W, 3), RGB
Mask = NDArray[Any]  # uint8 (H, W), 0 or 255
Field = NDArray[Any]  # float32 (H, W) or (H, W, 3)


class MaskerError(ValueError):
    """A masker was given something it cannot work with; the text names it and the remedy."""


@dataclass(frozen=True)
class MaskerSettings:
    """How masks are made. Lengths are relative to the image width.

    working_width: px; wider images are made smaller for the work.
    bins: of the Lab histograms.
    search_margin: how far from the last mask and the prediction the body is looked for.
    prior_strength: largest log ratio that the predicted silhouette adds inside it, and takes outside of it.
    prior_softness: distance from its outline over which it does so.
    background_tolerance: grey levels by which a pixel must differ from the background to be free of its veto.
    refine: whether GrabCut draws the rim.
    """

    working_width: int = 320
    bins: tuple[int, int, int] = (8, 24, 24)
    search_margin: float = 0.07
    prior_strength: float = 1.5
    prior_softness: float = 0.02
    background_tolerance: float = 18.0
    refine: bool = True


@dataclass(frozen=True)
class MaskResult:
    """A mask and how far to trust it.

    mask: (H, W), 0 or 255. quality: 0 to 1, separation times agreement.
    separation: how much surer the colours are inside the mask than just outside of it, 0 to 1.
    agreement: intersection over union with the prediction, or with the last mask where there is none.
    seconds: time it took. found: False where no pixel was taken for the body; the mask is then empty.
    """

    mask: Mask
    quality: float
    separation: float
    agreement: float
    seconds: float
    found: bool


@dataclass(frozen=True, eq=False)
class ColourModel:
    """Log of (body's share + 1e-5) / (surroundings' share + 1e-5) per Lab bin (bins), float32."""

    log_ratio: Field


@dataclass(frozen=True, eq=False)
class MaskerState:
    """What a camera's masker remembers, at working size (h, w).

    previous: the last mask found. background: (h, w, 3) colours at the seed's exposure, and where they are known.
    """

    colours: ColourModel
    previous: Mask
    background: Field
    background_known: NDArray[np.bool_]


class Masker(Protocol):
    """The masker of one camera, of whatever kind; see ClassicalMasker for what the methods do."""

    @property
    def seeded(self) -> bool: ...

    def seed(self, image: Image, silhouette: Mask) -> MaskResult: ...

    def update(self, image: Image, predicted: Mask | None = None, excluded: Mask | None = None) -> MaskResult: ...


class ClassicalMasker:
    """The masker of one camera. Deterministic: same images in the same order give the same masks."""

    def __init__(self, settings: MaskerSettings | None = None) -> None:
        self.settings = settings or MaskerSettings()
        self.state: MaskerState | None = None

    @property
    def seeded(self) -> bool:
        """Whether `update` may be called."""
        return self.state is not None

    def seed(self, image: Image, silhouette: Mask) -> MaskResult:
        """Learns the body's colours from an image (H, W, 3) and a rough silhouette (H, W); may be called again.

        Raises MaskerError where the silhouette is empty, fills the image, or has another size.
        """
        start = time.perf_counter()
        check_image(image, silhouette=silhouette)
        self.state, working, log_ratio = seed_state(image, silhouette, self.settings)
        return _result(image, working, log_ratio, _resized_mask(silhouette, working), start)

    def update(self, image: Image, predicted: Mask | None = None, excluded: Mask | None = None) -> MaskResult:
        """The mask of the next image.

        predicted: the twin's silhouette. excluded: pixels known to show something else, as the arms.
        Raises MaskerError before `seed`, or where a size differs.
        """
        start = time.perf_counter()
        check_image(image, predicted=predicted, excluded=excluded)
        if self.state is None:
            raise MaskerError("the masker has no seed: call seed() with an image and a rough silhouette first")
        small = _shrunk(image, self.settings)
        if small.shape[:2] != self.state.previous.shape:
            raise MaskerError(
                f"the image is {image.shape[1]} x {image.shape[0]}, the seed had another size; seed again"
            )
        last = self.state.previous
        prior = None if predicted is None else _resized_mask(predicted, last)
        blocked = None if excluded is None else _resized_mask(excluded, last)
        self.state, working, log_ratio = next_state(self.state, small, prior, blocked, self.settings)
        return _result(image, working, log_ratio, last if prior is None else prior, start)


def seed_state(image: Image, silhouette: Mask, settings: MaskerSettings) -> tuple[MaskerState, Mask, Field]:
    """State, mask and log ratio (at working size) from a first image and a rough silhouette."""
    small = _shrunk(image, settings)
    seed = _resized_mask(silhouette, small)
    area = np.count_nonzero(seed)
    if area < 9 or area > 0.9 * seed.size:
        raise MaskerError(
            f"the seed covers {np.count_nonzero(silhouette)} of {silhouette.size} pixels; it must show the body"
            " and some of its surroundings"
        )
    reach = _pixels(settings.search_margin, small)
    around = cv2.dilate(seed, disc(reach))
    # The seed is rough: only what lies far from it is surely background, and a first guess of the colours, from
    # inside and from far, decides what may be the body in between.
    possible = cv2.dilate(seed, disc(max(2, reach // 2)))
    first = _body_against_surroundings(small, seed, possible, cv2.dilate(possible, disc(reach)), settings.bins)
    alike = _log_ratio(cv2.GaussianBlur(small, (3, 3), 0), first) > 0
    labels = np.where(alike & (possible > 0), cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
    labels[possible == 0] = cv2.GC_BGD
    mask = _tidied(_grab_cut(small, labels, 5), seed)
    if not mask.any():
        mask = seed
    colours = learn_colours(small, mask, around, settings)
    known = cv2.dilate(mask, disc(max(2, reach // 4))) == 0
    state = MaskerState(colours, mask, small.astype(np.float32), known)
    return state, mask, _log_ratio(small, colours)


def learn_colours(image: Image, mask: Mask, around: Mask, settings: MaskerSettings | None = None) -> ColourModel:
    """Colours of the body (inside `mask`) against those near it (inside `around`) and, less, everywhere else."""
    bins = (settings or MaskerSettings()).bins
    inside = cv2.erode(mask, disc(1)) if np.count_nonzero(mask) > 400 else mask
    return _body_against_surroundings(image, inside, cv2.dilate(mask, disc(1)), around, bins)


def _body_against_surroundings(
    image: Image, inside: Mask, covered: Mask, around: Mask, bins: tuple[int, int, int]
) -> ColourModel:
    """Colours inside a mask against those outside of `covered`, above all within `around`."""
    lab = cv2.cvtColor(image, cv2.COLOR_RGB2Lab)
    body = _histogram(lab, inside, bins)
    near = _histogram(lab, np.where((around > 0) & (covered == 0), 255, 0).astype(np.uint8), bins)
    far = _histogram(lab, np.where(covered == 0, 255, 0).astype(np.uint8), bins)
    return ColourModel(np.log((body + 1e-5) / (0.8 * near + 0.2 * far + 1e-5)).astype(np.float32))


def next_state(
    state: MaskerState, image: Image, prior: Mask | None, excluded: Mask | None, settings: MaskerSettings
) -> tuple[MaskerState, Mask, Field]:
    """State, mask and log ratio from an image at working size; the mask is empty where the body is not found."""
    reach = _pixels(settings.search_margin, image)
    expected = state.previous if prior is None else cv2.bitwise_or(state.previous, prior)
    gain = exposure_gain(image, state, cv2.dilate(expected, disc(reach)))
    level = image
    if np.abs(gain - 1).max() > 0.02:
        level = np.clip(np.rint(image / gain), 0, 255).astype(np.uint8)
    score = _log_ratio(cv2.GaussianBlur(level, (3, 3), 0), state.colours)
    difference = np.maximum.reduce(cv2.split(np.abs(level - state.background)))
    # The background may only veto: shadows, reflections and tools differ from it too.
    veto = np.clip((difference - settings.background_tolerance) / 5, -3, 0)
    score = score + np.where(state.background_known, veto, 0).astype(np.float32)
    if prior is not None and prior.any():
        softness = max(1.0, settings.prior_softness * image.shape[1])
        score = score + settings.prior_strength * np.tanh(_signed_distance(prior) / softness)
    score = cv2.GaussianBlur(score, (3, 3), 0)
    allowed = cv2.dilate(expected, disc(reach)) > 0
    if excluded is not None:
        allowed &= excluded == 0
    rough: Mask = np.where((score > 0) & allowed, 255, 0).astype(np.uint8)
    opened = cv2.morphologyEx(rough, cv2.MORPH_OPEN, disc(1))
    # a body of two or three pixels' width must not be taken for noise
    if np.count_nonzero(opened) > 0.85 * np.count_nonzero(rough):
        rough = opened
    rough = cv2.morphologyEx(rough, cv2.MORPH_CLOSE, disc(_pixels(0.01, image)))
    rough[~allowed] = 0
    mask = _component(rough, state.previous if prior is None or not prior.any() else prior)
    if settings.refine and mask.any():
        mask = _refined(level, mask, allowed)
    if not mask.any():
        return state, mask, score
    return replace(_with_background(state, level, mask, expected, reach), previous=mask), mask, score


def exposure_gain(image: Image, state: MaskerState, near: Mask) -> NDArray[np.float32]:
    """(3,): brightness per channel against the seed's image: median over known background away from the body."""
    thin = np.s_[::3, ::3]  # a ninth of the pixels is plenty for a median
    usable = state.background_known[thin] & (near[thin] == 0)
    now, before = image[thin][usable], state.background[thin][usable]
    usable = (now.min(axis=1, initial=255) > 4) & (now.max(axis=1, initial=0) < 251)  # saturated ones tell nothing
    if np.count_nonzero(usable) < 64:
        return np.ones(3, np.float32)
    ratio = (now[usable].astype(np.float32) + 1) / (before[usable] + 1)
    return np.clip(np.median(ratio, axis=0), 0.1, 10).astype(np.float32)


def intersection_over_union(first: NDArray, second: NDArray) -> float:
    """Of the nonzero pixels of two masks; 1 where both are empty."""
    union = np.count_nonzero((first > 0) | (second > 0))
    return np.count_nonzero((first > 0) & (second > 0)) / union if union else 1.0


def _with_background(state: MaskerState, level: Image, mask: Mask, expected: Mask, reach: int) -> MaskerState:
    """The state with the background learnt where nothing of the body is or is expected."""
    clear = cv2.dilate(cv2.bitwise_or(mask, expected), disc(max(2, reach // 2))) == 0
    rate = np.where(state.background_known, 0.05, 1.0)[..., None]
    background = np.where(clear[..., None], state.background + rate * (level - state.background), state.background)
    return replace(
        state,
        background=background.astype(np.float32),
        background_known=state.background_known | clear,
    )


def _refined(image: Image, mask: Mask, allowed: NDArray[np.bool_]) -> Mask:
    """One GrabCut step in a window around the mask; the mask itself where that loses it."""
    band = disc(max(1, round(0.01 * image.shape[1])))
    inner, outer = cv2.erode(mask, band), cv2.dilate(mask, band)
    labels = np.where(mask > 0, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
    labels[inner > 0] = cv2.GC_FGD
    labels[(outer == 0) | ~allowed] = cv2.GC_BGD
    result = _tidied(_grab_cut(image, labels, 1), mask)
    return result if 2 * np.count_nonzero(result) > np.count_nonzero(mask) else mask


def _grab_cut(image: Image, labels: NDArray[np.uint8], iterations: int) -> Mask:
    """GrabCut within a window around all that may be the body."""
    possible = np.where(labels != cv2.GC_BGD, 255, 0).astype(np.uint8)
    x, y, width, height = cv2.boundingRect(possible)
    pad = max(4, image.shape[1] // 25)
    window = np.s_[max(0, y - pad) : y + height + pad, max(0, x - pad) : x + width + pad]
    cut = np.ascontiguousarray(labels[window])
    foreground = np.isin(cut, (cv2.GC_FGD, cv2.GC_PR_FGD))
    result = np.zeros(labels.shape, np.uint8)
    if np.count_nonzero(foreground) < 10 or np.count_nonzero(~foreground) < 10:
        result[window][foreground] = 255  # too few pixels for the colour mixtures
        return result
    cv2.setRNGSeed(0)  # its clustering draws random numbers
    cv2.grabCut(
        np.ascontiguousarray(image[window]),
        cut,
        (0, 0, 1, 1),  # not read: the labels say it
        np.zeros((1, 65)),
        np.zeros((1, 65)),
        iterations,
        cv2.GC_INIT_WITH_MASK,
    )
    result[window][np.isin(cut, (cv2.GC_FGD, cv2.GC_PR_FGD))] = 255
    return result


def _tidied(mask: Mask, near: Mask) -> Mask:
    """The mask's parts near the body, without pinholes: a spot of another colour on the body is no hole in it."""
    mask = _component(cv2.morphologyEx(mask, cv2.MORPH_CLOSE, disc(1)), near)
    count, labels, statistics, _ = cv2.connectedComponentsWithStats(255 - mask, connectivity=4)
    small = statistics[:, cv2.CC_STAT_AREA] < 0.02 * np.count_nonzero(mask)
    small[0] = False  # label 0 is the mask itself
    return np.where(small[labels], 255, mask).astype(np.uint8) if count > 2 and small.any() else mask


def _component(mask: Mask, near: Mask) -> Mask:
    """The parts of the mask that lie where the body is expected.

    A tool or a band around it may cut the body in two, so beside the part that overlaps most, those count that
    have a fifth of its overlap, or that lie mostly where the body is expected.
    """
    count, labels, statistics, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    if count <= 2:
        return mask
    area = statistics[:, cv2.CC_STAT_AREA].astype(float)
    overlap = np.bincount(labels[near > 0], minlength=count).astype(float)
    rank = overlap + 0.1 * area  # where nothing overlaps, the largest part wins
    rank[0] = 0
    keep = (rank >= 0.2 * rank.max()) | ((overlap > 0.5 * area) & (area > 0.005 * area[1:].sum()))
    keep[0] = False
    return np.where(keep[labels], 255, 0).astype(np.uint8)


def _log_ratio(image: Image, colours: ColourModel) -> Field:
    lab = cv2.cvtColor(image, cv2.COLOR_RGB2Lab).astype(np.int32)
    bins = lab * np.array(colours.log_ratio.shape) >> 8
    return colours.log_ratio[bins[..., 0], bins[..., 1], bins[..., 2]]


def _histogram(lab: Image, mask: Mask, bins: tuple[int, int, int]) -> Field:
    """Shares (bins) of the pixels in `mask`, smoothed a little over neighbouring bins."""
    histogram = cv2.calcHist([lab], [0, 1, 2], mask, list(bins), [0, 256] * 3)
    for axis in range(3):
        first = np.concatenate([histogram.take([0], axis), histogram.take(range(bins[axis] - 1), axis)], axis)
        after = np.concatenate([histogram.take(range(1, bins[axis]), axis), histogram.take([-1], axis)], axis)
        histogram = 0.25 * first + 0.5 * histogram + 0.25 * after
    return histogram / max(float(histogram.sum()), 1.0)


def _signed_distance(mask: Mask) -> Field:
    """Distance (px) to the outline, positive inside."""
    outside = np.where(mask > 0, 0, 255).astype(np.uint8)
    return cv2.distanceTransform(mask, cv2.DIST_L2, 3) - cv2.distanceTransform(outside, cv2.DIST_L2, 3)


def _result(image: Image, working: Mask, log_ratio: Field, expected: Mask, start: float) -> MaskResult:
    height, width = image.shape[:2]
    mask = working
    if working.shape != (height, width):
        smooth = cv2.resize(working, (width, height), interpolation=cv2.INTER_LINEAR)
        mask = np.where(smooth > 127, 255, 0).astype(np.uint8)
    found = bool(working.any())
    agreement = intersection_over_union(working, expected)
    separation = 0.0
    ring = (cv2.dilate(working, disc(_pixels(0.02, working))) > 0) & (working == 0)
    if found and ring.any():
        certainty = 1 / (1 + np.exp(-np.clip(log_ratio, -10, 10)))
        separation = max(0.0, float(certainty[working > 0].mean() - certainty[ring].mean()))
    quality = separation * agreement if found else 0.0
    return MaskResult(mask, quality, separation, agreement, time.perf_counter() - start, found)


def _shrunk(image: Image, settings: MaskerSettings) -> Image:
    height, width = image.shape[:2]
    if width <= settings.working_width:
        return image
    factor = settings.working_width / width
    return cv2.resize(
        image, (settings.working_width, max(1, round(height * factor))), interpolation=cv2.INTER_AREA
    )


def _resized_mask(mask: Mask, like: NDArray) -> Mask:
    height, width = like.shape[:2]
    if mask.shape == (height, width):
        return np.where(mask > 0, 255, 0).astype(np.uint8)
    smooth: Mask = cv2.resize(
        np.where(mask > 0, 255, 0).astype(np.uint8), (width, height), interpolation=cv2.INTER_AREA
    )
    return np.where(smooth > 127, 255, 0).astype(np.uint8)


def _pixels(share: float, image: NDArray) -> int:
    return max(1, math.ceil(share * image.shape[1]))


def disc(radius: int) -> NDArray[Any]:
    """A structuring element; a square where it is large, which OpenCV then splits into rows and columns."""
    size = 2 * int(radius) + 1
    shape = cv2.MORPH_ELLIPSE if 1 < radius < 5 else cv2.MORPH_RECT
    return cv2.getStructuringElement(shape, (size, size))


def check_image(image: Image, **masks: Mask | None) -> None:
    """Raises MaskerError for an image that is not uint8 RGB, or a mask of another size."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise MaskerError(f"image is {image.dtype} {image.shape}, expected uint8 RGB (H, W, 3)")
    for name, mask in masks.items():
        if mask is not None and (mask.dtype != np.uint8 or mask.shape != image.shape[:2]):
            raise MaskerError(f"{name} is {mask.dtype} {mask.shape}, expected uint8 {image.shape[:2]}")
