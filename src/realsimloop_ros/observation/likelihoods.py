"""What a frame of measurements says about a predicted state: one interface over markers and images.

A likelihood takes the predicted vertices and their derivatives along p parameter directions, and returns its loss
with gradient and Gauss-Newton matrix over those directions. Terms of one frame add up.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.observation.appearance import AppearanceSettings, fit_appearance, initialise_splats
from realsimloop_ros.observation.image_likelihood import ImageNoise, image_term
from realsimloop_ros.observation.images import MultiViewImages, rectify
from realsimloop_ros.observation.splats import Splats


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


class Likelihood(abc.ABC):
    """One kind of measurement with its noise model."""

    @abc.abstractmethod
    def evaluate(
        self, x: NDArray[np.float64], tangents: NDArray[np.float64], observation: FrameObservation
    ) -> LikelihoodTerm | None:
        """The term at vertices x (n, 3) with derivatives tangents (n, 3, p); None where nothing was measured."""

    def prepare(self, x: NDArray[np.float64], observation: FrameObservation) -> bool:
        """Learn what the likelihood needs from a frame at state x; whether it is ready to be evaluated."""
        return True

    def refresh(self, x: NDArray[np.float64], observation: FrameObservation) -> None:  # noqa: B027
        """Adapt to a state known better than the one `prepare` saw."""


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

    def evaluate(
        self, x: NDArray[np.float64], tangents: NDArray[np.float64], observation: FrameObservation
    ) -> LikelihoodTerm | None:
        measured = observation.marker_positions
        if measured is None:
            return None
        seen = np.asarray(np.isfinite(measured).all(axis=1))
        if not seen.any():
            return None
        error = (self.predicted(x) - np.where(seen[:, None], measured, 0.0))[seen] / self._deviation
        jacobian = np.einsum("ka,kaip->kip", self._attachment.weights, tangents[self._nodes])[seen]
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


class ImageLikelihood(Likelihood):
    """Splats against masked images.

    The splats' appearance is learnt from the first frame and renewed by `refresh`: learnt at a state that was
    wrong, it would hold later estimates at that state. frames_per_sample: as for markers.
    """

    def __init__(
        self,
        body: Body,
        noise: ImageNoise | None = None,
        appearance: AppearanceSettings | None = None,
        *,
        frames_per_sample: float = 1.0,
    ) -> None:
        if not (np.isfinite(frames_per_sample) and frames_per_sample > 0.0):
            raise ObservationError(f"images.frames_per_sample: {frames_per_sample}, expected a positive number")
        self._body = body
        self._noise = noise or ImageNoise()
        self._appearance = appearance or AppearanceSettings()
        self._share = 1.0 / frames_per_sample
        self._rectified: tuple[MultiViewImages, MultiViewImages] | None = None
        self.splats: Splats | None = None

    def prepare(self, x: NDArray[np.float64], observation: FrameObservation) -> bool:
        if self.splats is None and observation.views is not None:
            views = observation.views
            if views.available.all() and all(mask.any() for mask in views.masks):
                self.splats = initialise_splats(self._body, x, rectify(views), self._appearance)
        return self.splats is not None or observation.views is None

    def refresh(self, x: NDArray[np.float64], observation: FrameObservation) -> None:
        if self.splats is not None and observation.views is not None and observation.views.available.all():
            self.splats = fit_appearance(self.splats, x, rectify(observation.views), self._appearance)

    def evaluate(
        self, x: NDArray[np.float64], tangents: NDArray[np.float64], observation: FrameObservation
    ) -> LikelihoodTerm | None:
        if observation.views is None or self.splats is None:
            return None
        directions = np.ascontiguousarray(np.moveaxis(tangents, 2, 0))
        centres, covariances = self.splats.place(x)
        tangents_centres, tangents_covariances = self.splats.place_tangents(x, directions)
        term = image_term(
            self.splats,
            rectify(observation.views),
            centres,
            covariances,
            tangents_centres,
            tangents_covariances,
            self._noise,
        )
        if not any(camera.used for camera in term.cameras):
            return None
        figures = {"colour_rms": term.residual_rms}
        figures |= {f"overlap.{camera.camera}": camera.overlap for camera in term.cameras}
        figures |= {f"gain.{camera.camera}": camera.gain for camera in term.cameras}
        return LikelihoodTerm(
            self._share * term.loss, self._share * term.gradient, self._share * term.gauss_newton, figures
        )
