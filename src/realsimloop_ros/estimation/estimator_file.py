"""The estimator file: how a twin is simulated, what is estimated of it, and how its observations err."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from realsimloop_ros.body.body import Body
from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.estimation.theta import Parameter, ParameterSpace, Quantity
from realsimloop_ros.estimation.updates import EstimatorSettings, MethodName
from realsimloop_ros.mechanics.full_order import STANDARD_GRAVITY
from realsimloop_ros.mechanics.integrators import integrator_named
from realsimloop_ros.mechanics.material import POISSON_RATIO_LIMIT, InvalidMaterialError, material_of
from realsimloop_ros.observation.appearance import AppearanceSettings
from realsimloop_ros.observation.depth_likelihood import DepthLikelihood
from realsimloop_ros.observation.image_likelihood import ImageNoise
from realsimloop_ros.observation.likelihoods import ImageLikelihood, Likelihood, MarkerLikelihood
from realsimloop_ros.observation.wrench_likelihood import WrenchLikelihood

Vector = tuple[float, float, float]


class EstimatorFileError(ValueError):
    """An estimator file that cannot be used; the message names the file, the field and the value."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EstimatedQuantity(_Strict):
    """Either held at a value or estimated from a prior within bounds."""

    held: float | None = None
    prior: float | None = None
    lower: float = Field(gt=0, default=1e-9)
    upper: float = Field(gt=0, default=1e12)

    @model_validator(mode="after")
    def _one_of_them(self) -> EstimatedQuantity:
        if (self.held is None) == (self.prior is None):
            raise ValueError("give either `held: VALUE` or `prior: VALUE`")
        return self

    @property
    def start(self) -> float:
        """The held value, or the prior's centre."""
        value = self.held if self.held is not None else self.prior
        assert value is not None
        return value


class LogQuantity(EstimatedQuantity):
    """factor: the prior's standard deviation as a ratio."""

    factor: float = Field(2.0, gt=1)


class RatioQuantity(EstimatedQuantity):
    """deviation: the prior's standard deviation."""

    deviation: float = Field(0.03, gt=0)
    lower: float = Field(gt=0, default=1e-3)
    upper: float = Field(gt=0, le=POISSON_RATIO_LIMIT, default=POISSON_RATIO_LIMIT)


class ZoneFile(_Strict):
    """What is held and what is estimated in one zone; E in Pa, viscosity in Pa s, density in kg/m^3.

    density: held at the body's unless given; it takes up every other error of the model, so estimate it only where
    forces are measured.
    """

    youngs_modulus: LogQuantity
    poisson_ratio: RatioQuantity
    viscosity: LogQuantity = LogQuantity(held=0.0)
    density: LogQuantity | None = None


class MarkerFile(_Strict):
    """deviation: m, of one coordinate; frames_per_sample: successive frames that share one error."""

    deviation: float = Field(0.5e-3, gt=0)
    frames_per_sample: float = Field(1.0, gt=0)


class WrenchFile(_Strict):
    """Errors of the wrist wrenches, N, N m and parts of the wrench; see WrenchLikelihood."""

    force_deviation: float = Field(0.1, gt=0)
    moment_deviation: float = Field(0.005, gt=0)
    relative_deviation: float = Field(0.03, ge=0)
    frames_per_sample: float = Field(4.0, gt=0)


class ImageFile(_Strict):
    """splats: their number; frames_per_sample: as for markers; the others: see ImageNoise."""

    splats: int = Field(3000, ge=2)
    sigma_colour: float = Field(0.05, gt=0)
    sigma_silhouette: float = Field(0.3, gt=0)
    sigma_offset: float = Field(0.5, gt=0)
    colour_share: float = Field(1.0, gt=0, le=1)
    correlation_length: float = Field(1.0, ge=0, le=100)
    frames_per_sample: float = Field(1.0, gt=0)


class DepthFile(_Strict):
    """deviation: m at a distance of 1 m, growing with its square; see DepthLikelihood."""

    deviation: float = Field(2e-3, gt=0)
    robust_scale: float = Field(3.0, gt=0)
    points: int = Field(600, ge=1)
    points_per_sample: float = Field(4.0, gt=0)
    frames_per_sample: float = Field(4.0, gt=0)


class EstimatorFile(_Strict):
    """How a twin is simulated and estimated; see the comments of config/estimators/dual_arm.yaml."""

    integrator: Literal["bdf2", "implicit_euler"] = "bdf2"
    time_step: float = Field(gt=0)
    gravity: Vector = STANDARD_GRAVITY
    # of the simulated steps: single is twice as fast, and errs by 1e-7 m and by 1e-3 of a sensitivity
    precision: Literal["single", "double"] = "double"
    mass_damping: float = Field(0.0, ge=0)
    viscous: bool = False
    # gauss_newton, or first_order: steps of Adam, at most learning_rate deviations of the prior each
    method: MethodName = "gauss_newton"
    learning_rate: float = Field(0.1, gt=0)
    window: int = Field(8, ge=1)
    ticks_per_segment: int = Field(6, ge=1)
    forgetting: float = Field(0.94, gt=0, le=1)
    # segments rolled out anew per update, which bounds what it costs
    relinearisations: int = Field(1, ge=1)
    # from what is known, beyond which a frame that stands alone counts less
    outlier_deviations: float = Field(5.0, gt=0)
    # standard deviations of what is published that no amount of data removes; by default those of the estimator
    model_deviation: dict[Quantity, float] = Field(default_factory=dict)
    zones: dict[str, ZoneFile] = Field(min_length=1)
    markers: MarkerFile = MarkerFile()
    images: ImageFile = ImageFile()
    # left out where no camera measures depth
    depths: DepthFile | None = None
    # left out where the arms have no wrist sensors
    wrenches: WrenchFile | None = None

    # where it was read from, for what is found wrong later
    _source: str = PrivateAttr("estimator")

    @model_validator(mode="after")
    def _viscous_where_viscosity_is_estimated(self) -> EstimatorFile:
        for name, zone in self.zones.items():
            if zone.viscosity.prior is not None and not self.viscous:
                raise ValueError(
                    f"viscous: false, but zones.{name}.viscosity is estimated, which no frame could tell; "
                    "write `viscous: true`"
                )
        return self

    @property
    def dtype(self) -> type:
        """The floating-point type of the simulated steps."""
        return np.float32 if self.precision == "single" else np.float64

    def step_settings(self) -> StepSettings:
        """How time is stepped."""
        return StepSettings(
            integrator_named(self.integrator),
            self.time_step,
            gravity=jnp.asarray(self.gravity),
            mass_damping=self.mass_damping,
            viscous=self.viscous,
        )

    def estimator_settings(self) -> EstimatorSettings:
        """How the window moves."""
        return EstimatorSettings(
            method=self.method,
            learning_rate=self.learning_rate,
            window=self.window,
            ticks_per_segment=self.ticks_per_segment,
            forgetting=self.forgetting,
            relinearisations=self.relinearisations,
            outlier_deviations=self.outlier_deviations,
            model_deviation={**EstimatorSettings().model_deviation, **self.model_deviation},
        )

    def parameter_space(self, body: Body) -> ParameterSpace:
        """What is estimated of a body.

        Raises EstimatorFileError for zones that do not match the body's and for values that no material has.
        """
        if set(self.zones) != set(body.zone_names):
            raise EstimatorFileError(
                f"{self._source}: zones: {sorted(self.zones)}, but the body's are {sorted(body.zone_names)}"
            )
        ordered = [self.zones[name] for name in body.zone_names]
        densities = [
            zone.density.start if zone.density is not None else own.density
            for zone, own in zip(ordered, body.zones, strict=True)
        ]
        try:
            prior = material_of(
                body,
                [zone.youngs_modulus.start for zone in ordered],
                [zone.poisson_ratio.start for zone in ordered],
                [zone.viscosity.start for zone in ordered],
                densities,
            )
            parameters = []
            for name, zone in zip(body.zone_names, ordered, strict=True):
                for quantity in ZoneFile.model_fields:
                    entry = getattr(zone, quantity)
                    if entry is not None and entry.prior is not None:
                        parameters.append(_parameter(name, quantity, entry))  # type: ignore[arg-type]
            return ParameterSpace(body.zone_names, tuple(parameters), prior)
        except InvalidMaterialError as error:
            raise EstimatorFileError(f"{self._source}: zones: {error}") from error

    def wrench_likelihood(self) -> WrenchLikelihood | None:
        """Of the wrist wrenches, where they are used."""
        if self.wrenches is None:
            return None
        return WrenchLikelihood(**self.wrenches.model_dump())

    def likelihoods(self, body: Body) -> tuple[Likelihood, ...]:
        """Of images, of depths where the file speaks of them, and of markers where the body has any."""
        images = self.images
        noise = ImageNoise(
            sigma_colour=images.sigma_colour,
            sigma_silhouette=images.sigma_silhouette,
            sigma_offset=images.sigma_offset,
            colour_share=images.colour_share,
            correlation_length=images.correlation_length,
        )
        # colours alone: opacities and scales fitted at a wrong state would bend the silhouette towards it
        appearance = AppearanceSettings(count=images.splats, opacity_rate=0.0, scale_rate=0.0)
        every: list[Likelihood] = [
            ImageLikelihood(body, noise, appearance, frames_per_sample=images.frames_per_sample)
        ]
        if self.depths is not None:
            every.append(DepthLikelihood(body, **self.depths.model_dump()))
        if body.markers is not None:
            every.append(
                MarkerLikelihood(body, self.markers.deviation, frames_per_sample=self.markers.frames_per_sample)
            )
        return tuple(every)


def _parameter(zone: str, quantity: Quantity, entry: EstimatedQuantity) -> Parameter:
    deviation = entry.deviation if isinstance(entry, RatioQuantity) else float(np.log(entry.factor))  # type: ignore[attr-defined]
    return Parameter(zone, quantity, deviation, entry.lower, entry.upper)


def load_estimator_file(path: Path) -> EstimatorFile:
    """Read an estimator file. Raises EstimatorFileError naming the file and each wrong field."""
    path = Path(path)
    if not path.is_file():
        raise EstimatorFileError(f"{path}: does not exist")
    try:
        file = EstimatorFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise EstimatorFileError(f"{path}: not valid YAML ({error})") from error
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']} (got {e['input']!r})" for e in error.errors()
        ]
        raise EstimatorFileError(f"{path}: " + "; ".join(lines)) from error
    file._source = str(path)
    return file
