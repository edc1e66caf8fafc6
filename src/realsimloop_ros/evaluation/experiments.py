"""Experiment files: what was recorded, of which body, and what is to be estimated from it."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from realsimloop_ros.body.body import Body, InvalidBodyError
from realsimloop_ros.body.files import BodySpecification, HungWeightSpecification, Vector
from realsimloop_ros.body.poses import checked_poses
from realsimloop_ros.mechanics.material import POISSON_RATIO_LIMIT
from realsimloop_ros.resources import ResourceError, share_directory

DATA_VARIABLE = "REALSIMLOOP_DATA"
Axis = Literal["+x", "-x", "+y", "-y", "+z", "-z"]


_Model = TypeVar("_Model", bound=BaseModel)


class ExperimentError(ValueError):
    """An experiment that cannot be run; the message names the file, the field, its value and the remedy."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CaptureSpecification(_Strict):
    """Where the recording is: a bag folder, an .mcap or a .c3d file.

    A relative path starts at the experiment's folder, ${REALSIMLOOP_DATA} at the data folder. topic: of the
    markers in a bag; frame: in which markers and grips must come; unit: of a .c3d file that names none; grips: for
    each grip of the body the topic of its pose.
    """

    path: str = Field(min_length=1)
    topic: str = "markers"
    frame: str = "capture"
    unit: str | None = None
    grips: dict[str, str] = {}


class AlignedFrame(_Strict):
    """The body's frame by its axes: which axis of the capture each one is.

    The origin comes from the held pose: the mean of the held markers falls on that of their places on the
    body.
    """

    kind: Literal["axes"]
    x: Axis
    y: Axis
    z: Axis

    @model_validator(mode="after")
    def _right_handed(self) -> Self:
        determinant = np.linalg.det(self.rotation())
        if determinant != 1.0:
            remedy = "mirror one of them" if determinant == -1.0 else "name each axis of the capture once"
            raise ValueError(f"x, y, z = {self.x}, {self.y}, {self.z} are no right-handed frame; {remedy}")
        return self

    def rotation(self) -> NDArray[np.float64]:
        """Rows: the body's axes in the capture frame, so that body = rotation @ capture."""
        rows = np.zeros((3, 3))
        for row, axis in enumerate((self.x, self.y, self.z)):
            rows[row, "xyz".index(axis[1])] = 1.0 if axis[0] == "+" else -1.0
        return rows


class FittedFrame(_Strict):
    """The body's frame by the rigid motion that carries the held markers onto their positions on the body."""

    kind: Literal["held_markers"]


def _checked_pose(pose: tuple[float, ...]) -> tuple[float, ...]:
    checked_poses(pose, "pose")
    return pose


class KnownFrame(_Strict):
    """The pose of the body's frame in the capture's: x y z in m, qx qy qz qw."""

    kind: Literal["pose"]
    pose: Annotated[tuple[float, float, float, float, float, float, float], AfterValidator(_checked_pose)]


class TimeSpecification(_Strict):
    """Which part of the recording counts, in seconds since its first frame.

    release: when the held body is let go; `detect` finds it in the tracks; `none` where nothing is released.
    """

    start: float = Field(default=0.0, ge=0.0)
    end: float | None = Field(default=None, gt=0.0)
    release: float | Literal["detect", "none"] = "detect"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end: {self.end} s is not after start, {self.start} s; widen the range")
        return self


class _Quantity(_Strict):
    """Either held at a value, or estimated from a prior."""

    held: float | None = None
    prior: float | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.held is None) == (self.prior is None):
            raise ValueError("give either `held: VALUE` or `prior: VALUE`")
        return self

    @property
    def estimated(self) -> bool:
        return self.prior is not None

    @property
    def start(self) -> float:
        """The held value, or where the estimate starts."""
        return self.held if self.held is not None else float(self.prior or 0.0)


class _Positive(_Quantity):
    """Estimated by its logarithm. factor: the prior's standard deviation as a ratio."""

    held: float | None = Field(None, gt=0.0)
    prior: float | None = Field(None, gt=0.0)
    factor: float = Field(2.0, gt=1.0)

    @property
    def prior_deviation(self) -> float:
        """Of the logarithm."""
        return math.log(self.factor)

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which the estimate stays."""
        return self.start / 100.0, self.start * 100.0


class Modulus(_Positive):
    """Young's modulus, Pa."""


class PoissonRatio(_Quantity):
    """Poisson's ratio. deviation: the prior's standard deviation."""

    held: float | None = Field(None, gt=0.0, le=POISSON_RATIO_LIMIT)
    prior: float | None = Field(None, gt=0.0, lt=POISSON_RATIO_LIMIT)
    deviation: float = Field(0.03, gt=0.0)

    @property
    def prior_deviation(self) -> float:
        """Of the ratio itself."""
        return self.deviation

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which the estimate stays."""
        return 0.01, POISSON_RATIO_LIMIT


class Viscosity(_Positive):
    """Kelvin-Voigt viscosity, Pa s; held at 0, the body is elastic."""

    held: float | None = Field(None, ge=0.0)


class Density(_Positive):
    """Density, kg/m^3."""

    factor: float = Field(1.1, gt=1.0)


class ZoneEstimation(_Strict):
    """What is held and what is estimated in one zone.

    density: held at the body's unless given; it takes up every other error of the model, so estimate it only where
    a force is known, as that of a weight.
    """

    youngs_modulus: Modulus
    poisson_ratio: PoissonRatio
    viscosity: Viscosity = Viscosity(held=0.0)
    density: Density | None = None

    @property
    def viscous(self) -> bool:
        """Whether viscosity plays a part at all."""
        return self.viscosity.start > 0.0


class EstimationSpecification(_Strict):
    """How the estimate is made.

    marker_noise: m, standard deviation per coordinate, the model's own error included; frames_per_sample:
    successive frames that share one error; time_step: s; mass_damping: 1/s (Rayleigh); frames_per_update: frames
    from one theta to the next; window: updates whose frames are looked at again when theta moves; forgetting:
    factor per update on what left the window, 1 for a material that does not change; free_start: leading shapes
    in which the start of a released body is estimated; zones: by the zone names of the body.
    """

    zones: dict[str, ZoneEstimation] = Field(min_length=1)
    marker_noise: float = Field(0.5e-3, gt=0.0)
    frames_per_sample: float = Field(10.0, gt=0.0)
    integrator: Literal["bdf2", "implicit_euler"] = "bdf2"
    time_step: float = Field(0.005, gt=0.0)
    mass_damping: float = Field(0.0, ge=0.0)
    frames_per_update: int = Field(5, ge=1)
    window: int = Field(4, ge=1)
    forgetting: float = Field(1.0, gt=0.0, le=1.0)
    free_start: int = Field(4, ge=0)


class Experiment(_Strict):
    """One recording of one body.

    body: a body specification, or the path of one, which also says what holds it; loads: weights hung on it
    here; gravity: (3,) m/s^2 in the body's frame; markers: capture label to position on the body at rest, m;
    marker_rest: `held` puts each marker where it was while held (a marker stands off the surface by what was
    measured), `given` where `markers` says; still_markers: labels that are fixed to the ground or the clamp
    and tell whether it moved.
    """

    name: str = Field("", pattern=r"^[^/\\]*$")
    description: str = ""
    body: Path | BodySpecification
    loads: tuple[HungWeightSpecification, ...] = ()
    gravity: Vector
    capture: CaptureSpecification
    body_frame: Annotated[AlignedFrame | FittedFrame | KnownFrame, Field(discriminator="kind")]
    markers: dict[str, Vector] = Field(min_length=1)
    marker_rest: Literal["held", "given"] = "held"
    still_markers: tuple[str, ...] = ()
    time: TimeSpecification = TimeSpecification()
    estimation: EstimationSpecification

    @model_validator(mode="after")
    def _held_pose_is_there_when_needed(self) -> Self:
        if self.time.release == "none":
            if self.body_frame.kind != "pose":
                raise ValueError(
                    f"body_frame.kind: {self.body_frame.kind!r} needs a held pose, but time.release is none; "
                    "give the pose of the body's frame"
                )
            if self.marker_rest == "held":
                raise ValueError("marker_rest: 'held' needs a held pose, but time.release is none; use given")
        if self.body_frame.kind == "held_markers" and len(self.markers) < 3:
            raise ValueError(
                f"body_frame.kind: 'held_markers' needs three markers, not {len(self.markers)}; use axes"
            )
        return self


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment and the file it was read from, from which its relative paths start."""

    path: Path
    experiment: Experiment

    @property
    def name(self) -> str:
        return self.experiment.name or self.path.stem

    def capture_path(self) -> Path:
        """The recording. Raises ExperimentError for a variable that is not set."""
        try:
            return self.path.parent / expanded(self.experiment.capture.path)
        except ExperimentError as error:
            raise ExperimentError(f"{self.path}: capture.path: {error}") from error

    def body_specification(self) -> BodySpecification:
        """The body with the weights hung on it here. Raises ExperimentError naming file and field."""
        body = self.experiment.body
        if isinstance(body, Path):
            file = self.path.parent / expanded(str(body))
            body = _validated(BodySpecification, file, _read_yaml(file, f"{self.path}: body: "))
        names = [weight.name for weight in (*body.hung_weights, *self.experiment.loads)]
        if len(set(names)) != len(names):
            raise ExperimentError(f"{self.path}: loads: names {names} repeat; give each its own")
        return body.model_copy(update={"hung_weights": (*body.hung_weights, *self.experiment.loads)})

    def build_body(self) -> Body:
        """The body with its loads. Raises ExperimentError naming file and field."""
        body = self.experiment.body
        # where relative mesh paths of the body start
        folder = (self.path.parent / expanded(str(body))).parent if isinstance(body, Path) else self.path.parent
        try:
            return self.body_specification().build(folder)
        except InvalidBodyError as error:
            raise ExperimentError(f"{self.path}: body: {error}") from error


def load_experiment(path: Path) -> ExperimentFile:
    """Read an experiment file. Raises ExperimentError naming file, field, value and remedy."""
    path = Path(path)
    file = ExperimentFile(path, _validated(Experiment, path, _read_yaml(path, "")))
    zones = [zone.name for zone in file.body_specification().zones]
    for named in file.experiment.estimation.zones:
        if named not in zones:
            raise ExperimentError(
                f"{path}: estimation.zones.{named}: unknown zone; the body's zones are {', '.join(zones)}"
            )
    for zone in zones:
        if zone not in file.experiment.estimation.zones:
            raise ExperimentError(
                f"{path}: estimation.zones.{zone}: missing; say what is held and what is estimated"
            )
    return file


def data_folder() -> Path | None:
    """The folder that ${REALSIMLOOP_DATA} stands for: the variable, or shared/data beside the source tree."""
    if named := os.environ.get(DATA_VARIABLE):
        return Path(named)
    try:
        beside = share_directory().parent / "shared" / "data"
    except ResourceError:
        return None
    return beside if beside.is_dir() else None


def expanded(text: str) -> Path:
    """A path with ${REALSIMLOOP_DATA} and ~ replaced. Raises ExperimentError."""

    def replace(match: re.Match[str]) -> str:
        if match[1] != DATA_VARIABLE:
            raise ExperimentError(f"{text!r}: unknown variable; only {DATA_VARIABLE} is replaced")
        folder = data_folder()
        if folder is None:
            raise ExperimentError(f"{text!r}: {DATA_VARIABLE} is not set; set it to the folder with the data")
        return str(folder)

    return Path(re.sub(r"\$\{(\w+)\}", replace, text)).expanduser()


def _read_yaml(path: Path, prefix: str) -> object:
    if not path.is_file():
        raise ExperimentError(f"{prefix}{path}: does not exist; check the path")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{prefix}{path}: not valid YAML ({error})") from error


def _validated(model: type[_Model], path: Path, content: Any) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        lines = []
        for entry in error.errors():
            field = ".".join(str(part) for part in entry["loc"]) or "file"
            message = entry["msg"].removeprefix("Value error, ")
            shown = repr(entry["input"])
            got = f" (got {shown})" if len(shown) < 80 and not isinstance(entry["input"], dict) else ""
            lines.append(f"{field}: {message}{got}")
        raise ExperimentError(f"{path}: " + "; ".join(lines)) from error
