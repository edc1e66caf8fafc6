"""The scenario file of a virtual cell: what the body is really made of, how arms and sensors behave, what happens.

It holds what nobody knows in a real cell, so it is apart from the cell file, and no estimator reads it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import BodySpecification, BoxMesh, load_body_specification
from realsimloop_ros.cell.arms import ArmLimits
from realsimloop_ros.cell.motion import MotionDescription
from realsimloop_ros.cell.scenery import SceneDescription
from realsimloop_ros.cell.sensors import (
    ArmSensorDescription,
    CameraSensorDescription,
    MarkerSensorDescription,
)
from realsimloop_ros.control.ur5e import Ur5e
from realsimloop_ros.mechanics.integrators import INTEGRATORS
from realsimloop_ros.mechanics.laws import Yeoh
from realsimloop_ros.mechanics.material import Material, material_of
from realsimloop_ros.observation.cell_file import CellFile, describe_validation_error

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Pose = tuple[Number, Number, Number, Number, Number, Number, Number]
Joints = tuple[Number, Number, Number, Number, Number, Number]


class ScenarioError(ValueError):
    """A scenario file cannot be used; the text names the file and the field."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ZoneTruth(_Strict):
    """youngs_modulus: Pa at small strain; viscosity: Kelvin-Voigt, Pa s."""

    youngs_modulus: Positive
    poisson_ratio: Annotated[float, Field(gt=0, le=0.499)]
    viscosity: NonNegative


class BodyTruth(_Strict):
    """The body's law, mesh and time step.

    divisions: cells of the box mesh along x, y, z, in place of those of the body file; null for a body that is no
    box, which keeps its mesh. second, third: C20 / C10 and C30 / C10 of Yeoh's law. time_step: s. gravity: m/s^2.
    zones: by the names of the body file.
    """

    divisions: tuple[int, int, int] | None
    second: Number
    third: Number
    time_step: Annotated[float, Field(gt=0, le=0.1)]
    integrator: str
    gravity: tuple[Number, Number, Number]
    zones: dict[str, ZoneTruth]

    def law(self) -> Yeoh:
        return Yeoh(self.second, self.third)

    def material(self, body: Body) -> Material:
        """Raises ScenarioError where the zones are not those of the body."""
        if set(self.zones) != set(body.zone_names):
            raise ScenarioError(
                f"body.zones: {sorted(self.zones)}, but the body has {sorted(body.zone_names)}; name each of them"
            )
        zones = [self.zones[name] for name in body.zone_names]
        return material_of(
            body,
            np.array([zone.youngs_modulus for zone in zones]),
            np.array([zone.poisson_ratio for zone in zones]),
            np.array([zone.viscosity for zone in zones]),
        )


class ArmTruth(_Strict):
    """A UR5e.

    base_pose: of base_link in the world; tool_offset: of the tool frame in the flange frame (tool0); joints: a
    posture near that of the rest pose, rad; limits: how it follows its target.
    """

    base_pose: Pose
    tool_offset: Pose
    joints: Joints
    limits: ArmLimits

    def kinematics(self) -> Ur5e:
        return Ur5e(np.array(self.base_pose), np.array(self.tool_offset))


class SensorTruth(_Strict):
    """markers: null where there is no motion capture. truth_rate: how often the true shape is told, Hz."""

    camera: CameraSensorDescription
    arm: ArmSensorDescription
    markers: MarkerSensorDescription | None
    truth_rate: Annotated[float, Field(gt=0, le=1000)]


class Scenario(_Strict):
    """Everything a virtual cell needs beside its cell file.

    duration: how much virtual time a run takes if it is not told, s; arms: by the names in the cell file's grips.
    """

    duration: Positive
    body: BodyTruth
    arms: dict[str, ArmTruth]
    sensors: SensorTruth
    scene: SceneDescription
    motion: MotionDescription


def load_scenario(path: Path | str) -> Scenario:
    """Reads a scenario file. Raises ScenarioError with the file's name and the field's."""
    path = Path(path)
    try:
        scenario = Scenario.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: is not YAML: {error}") from error
    except ValidationError as error:
        raise ScenarioError(describe_validation_error(path, error)) from error
    if scenario.body.integrator not in INTEGRATORS:
        raise ScenarioError(
            f"{path}: body.integrator: {scenario.body.integrator!r}, expected one of {sorted(INTEGRATORS)}"
        )
    return scenario


def true_body(cell: CellFile, scenario: Scenario) -> Body:
    """The body that the cell file names, on the truth's own mesh; its grips in the order of the cell file.

    Raises ScenarioError, or InvalidBodyError where the body file cannot be read.
    """
    path = cell.resolve(cell.body)
    body = load_body_specification(path)
    if scenario.body.divisions is not None:
        specification = BodySpecification.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        if not isinstance(specification.mesh, BoxMesh):
            raise ScenarioError(
                f"body.divisions: {scenario.body.divisions}, but {path} is no box; set divisions to null"
            )
        mesh = specification.mesh.model_copy(update={"divisions": scenario.body.divisions})
        body = specification.model_copy(update={"mesh": mesh}).build(path.parent)
    grips = {grip.name: grip for grip in body.grips}
    wanted = [entry.name for entry in cell.grips]
    if set(grips) != set(wanted):
        raise ScenarioError(f"grips of {path}: {sorted(grips)}, but the cell file has {sorted(wanted)}")
    missing = sorted({entry.arm for entry in cell.grips} - set(scenario.arms))
    if missing:
        raise ScenarioError(f"arms: {', '.join(missing)} of the cell file is missing; describe it")
    return replace(body, grips=tuple(grips[name] for name in wanted))
