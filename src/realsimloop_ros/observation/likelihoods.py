"""What a frame of measurements says about a predicted state: one interface over markers and images.

A likelihood takes the predicted vertices and their derivatives along p parameter directions, and returns its loss
with gradient and Gauss-Newton matrix over those directions. Terms of one frame add up.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.observation.appearance import AppearanceFit, AppearanceSettings, initialise_splats
from realsimloop_ros.observation.image_likelihood import ImageNoise, PaintedCentres, image_term
from realsimloop_ros.observation.images import MultiViewImages, rectify
from realsimloop_ros.observation.splats import Splats

# frames for which the first look at the body waits for a camera that brings nothing
_FRAMES_TO_WAIT = 10


class ObservationError(ValueError):
    """A measurement that cannot be used; the message names the field, the value and the remedy."""


@dataclass(frozen=True, eq=False)
class FrameObservation:
    """Everything measured at one stamp.

    stamp_ns: nanoseconds; marker_positions: (k, 3) m in the order of body.marker_names, NaN where not seen;
    views: images and masks of all cameras.
    """

    stamp_ns: int
    marker_positions: NDArray[np.float64] | None = None
    views: MultiViewImages | None = None


@dataclass(frozen=True, eq=False)
class LikelihoodTerm:
    """loss: negative log-likelihood up to a constant; gradient: (p,); gauss_newton: (p, p); figures: by name."""

    loss: float
    gradient: NDArray[np.float64]
    gauss_newton: NDArray[np.float64]
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PredictedState:
    """Where the twin is at a frame's stamp: vertices x (n, 3), m, their derivatives tangents (n, 3, p) along the
    estimator's coordinates, and those coordinates u (p,)."""

    x: NDArray[np.float64]
    tangents: NDArray[np.float64]
    u: NDArray[np.float64]


class Likelihood(abc.ABC):
    """One kind of measurement with its noise model."""

    @abc.abstractmethod
    def evaluate(self, predicted: PredictedState, observation: FrameObservation) -> LikelihoodTerm | None:
        """The term at a predicted state; None where nothing was measured."""

    def prepare(self, predicted: PredictedState, observation: FrameObservation) -> bool:
        """Learn what the likelihood needs from a frame; whether it is ready to be evaluated."""
        return True

    def refresh(self, predicted: PredictedState, observation: FrameObservation) -> None:  # noqa: B027
        """Begin to adapt to a state known better than the one `prepare` saw."""

    def work(self) -> None:  # noqa: B027
        """Do a frame's share of what `refresh` began, so that no single frame waits for all of it."""


class MarkerLikelihood(Likelihood):
    """Motion-capture markers with independent Gaussian errors, Huber beyond `robust_scale` deviations.

    body: with markers; deviation: of one coordinate, m, the model's own error included; frames_per_sample: how
    many successive frames share one error (a model that errs, errs alike for a while), by which information is
    divided.
    """

    def __init__(
        self, body: Body, deviation: float, *, robust_scale: float = 3.0, frames_per_sample: float = 1.0
    ) -> None:
        if body.markers is None:
            raise ObservationError("markers: the body has none; name them in its specification")
        for label, value in (("deviation", deviation), ("frames_per_sample", frames_per_sample)):
            if not (np.isfinite(value) and value > 0.0):
                raise ObservationError(f"markers.{label}: {value}, expected a positive number")
        self._attachment = body.markers
        self._nodes = body.tets[body.markers.tet]
        self._deviation = deviation
        self._robust_scale = robust_scale
        self._share = 1.0 / frames_per_sample

    def predicted(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Marker positions (k, 3), m, for vertices x (n, 3)."""
        return np.einsum("ka,kai->ki", self._attachment.weights, x[self._nodes])

    def evaluate(self, predicted: PredictedState, observation: FrameObservation) -> LikelihoodTerm | None:
        measured = observation.marker_positions
        if measured is None:
            return None
        seen = np.asarray(np.isfinite(measured).all(axis=1))
        if not seen.any():
            return None
        error = (self.predicted(predicted.x) - np.where(seen[:, None], measured, 0.0))[seen] / self._deviation
        jacobian = np.einsum("ka,kaip->kip", self._attachment.weights, predicted.tangents[self._nodes])[seen]
        jacobian = jacobian / self._deviation
        size = np.linalg.norm(error, axis=1)
        beyond = size > self._robust_scale
        weight = np.where(beyond, self._robust_scale / np.maximum(size, 1e-300), 1.0)
        cost = np.where(beyond, self._robust_scale * (size - 0.5 * self._robust_scale), 0.5 * size**2)
        weighted = weight[:, None, None] * jacobian
        return LikelihoodTerm(
            loss=self._share * float(cost.sum()),
            gradient=self._share * np.einsum("kip,ki->p", weighted, error),
            gauss_newton=self._share * np.einsum("kip,kiq->pq", weighted, jacobian),
            figures={"marker_rms_m": float(np.sqrt((size**2).mean())) * self._deviation},
        )


@dataclass(frozen=True, eq=False)
class PaintAnchor:
    """The state at which colours were learnt, so that they say nothing about what was assumed then.

    Colours are read off the first images at the predicted state x0(u0). Had u been another, they would have been
    read off elsewhere: a colour sits on the material point that was believed to be there. So when u moves on, the
    paint moves on the body by  -F F0^-1 (dc0/du) (u - u0),  and the derivative of a painted centre is
    dc/du - F F0^-1 dc0/du: without this, a twin started at a wrong stiffness would find its wrong sag confirmed by
    every later image.

    u: (p,); tangents: (p, k, 3) of the splats' centres; inverse_gradients: (k, 3, 3) F0^-1.
    """

    u: NDArray[np.float64]
    tangents: NDArray[np.float64]
    inverse_gradients: NDArray[np.float64]

    @classmethod
    def at(cls, splats: Splats, predicted: PredictedState) -> PaintAnchor:
        """The anchor of colours learnt at a state."""
        tangents, _ = splats.place_tangents(predicted.x, _directions_first(predicted.tangents))
        inverse = np.linalg.inv(splats.deformation_gradients(predicted.x)).astype(np.float64)
        return cls(predicted.u.copy(), tangents, inverse)

    def painted(
        self,
        splats: Splats,
        predicted: PredictedState,
        centres: NDArray[np.float64],
        tangents: NDArray[np.float64],
    ) -> PaintedCentres:
        """Where the colours are when the splats' centres are at `centres` (k, 3) with tangents (p, k, 3)."""
        carry = splats.deformation_gradients(predicted.x) @ self.inverse_gradients
        carried = np.einsum("kij,pkj->pki", carry, self.tangents)
        shift = np.einsum("pki,p->ki", carried, predicted.u - self.u)
        return PaintedCentres(centres - shift, tangents - carried)


class ImageLikelihood(Likelihood):
    """Splats against masked images.

    The splats' appearance is learnt from the first frame and renewed by `refresh`; see PaintAnchor for what it
    says about theta. frames_per_sample: as for markers; refresh_iterations: of the fit that renews it, done
    `iterations_per_frame` at a time, and in use once it is done.
    """

    def __init__(
        self,
        body: Body,
        noise: ImageNoise | None = None,
        appearance: AppearanceSettings | None = None,
        *,
        frames_per_sample: float = 1.0,
        refresh_iterations: int = 30,
        iterations_per_frame: int = 2,
    ) -> None:
        if not (np.isfinite(frames_per_sample) and frames_per_sample > 0.0):
            raise ObservationError(f"images.frames_per_sample: {frames_per_sample}, expected a positive number")
        self._body = body
        self._noise = noise or ImageNoise()
        self._appearance = appearance or AppearanceSettings()
        self._iterations, self._iterations_per_frame = refresh_iterations, iterations_per_frame
        self._fit: AppearanceFit | None = None
        self._next_anchor: PaintAnchor | None = None
        self._share = 1.0 / frames_per_sample
        self._anchor: PaintAnchor | None = None
        self._waited = 0
        self.splats: Splats | None = None

    def prepare(self, predicted: PredictedState, observation: FrameObservation) -> bool:
        if self.splats is None and observation.views is not None:
            views = observation.views
            seen = views.available & views.masks.any(axis=(1, 2))
            self._waited += 1
            # all cameras if they come, else those that have come by then: a dark one must not hold up the others
            if seen.all() or (seen.any() and self._waited > _FRAMES_TO_WAIT):
                views = replace(views, available=seen)
                self.splats = initialise_splats(self._body, predicted.x, rectify(views), self._appearance)
                self._anchor = PaintAnchor.at(self.splats, predicted)
        return self.splats is not None or observation.views is None

    def refresh(self, predicted: PredictedState, observation: FrameObservation) -> None:
        views = observation.views
        if self.splats is not None and views is not None and views.available.any():
            self._fit = AppearanceFit(self.splats, predicted.x, rectify(views), self._appearance)
            self._next_anchor = PaintAnchor.at(self.splats, predicted)

    def work(self) -> None:
        if self._fit is None:
            return
        self._fit.advance(min(self._iterations_per_frame, self._iterations - self._fit.iterations))
        if self._fit.iterations >= self._iterations:
            self.splats, self._anchor = self._fit.splats, self._next_anchor
            self._fit = None

    def evaluate(self, predicted: PredictedState, observation: FrameObservation) -> LikelihoodTerm | None:
        if observation.views is None or self.splats is None or self._anchor is None:
            return None
        centres, covariances = self.splats.place(predicted.x)
        tangents_centres, tangents_covariances = self.splats.place_tangents(
            predicted.x, _directions_first(predicted.tangents)
        )
        term = image_term(
            self.splats,
            rectify(observation.views),
            centres,
            covariances,
            tangents_centres,
            tangents_covariances,
            self._noise,
            painted=self._anchor.painted(self.splats, predicted, centres, tangents_centres),
        )
        if not any(camera.used for camera in term.cameras):
            return None
        figures = {"colour_rms": term.residual_rms}
        figures |= {f"overlap.{camera.camera}": camera.overlap for camera in term.cameras}
        figures |= {f"gain.{camera.camera}": camera.gain for camera in term.cameras}
        figures |= {f"mask_offset.{camera.camera}": camera.offset for camera in term.cameras}
        return LikelihoodTerm(
            self._share * term.loss, self._share * term.gradient, self._share * term.gauss_newton, figures
        )


def _directions_first(tangents: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 3, p) to (p, n, 3)."""
    return np.ascontiguousarray(np.moveaxis(tangents, 2, 0))
