"""The cell file: which frames hold the body, which cameras see it, and which files describe the rest.

A cell file says only what the operator of a real cell knows too. What a virtual cell's body is really made of
stands in a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from realsimloop_ros.body.poses import transform_points
from realsimloop_ros.observation.cameras import Camera, CameraError
from realsimloop_ros.observation.sam2_masking import Sam2Settings
from realsimloop_ros.observation.silhouettes import Capsule

Pose = tuple[float, float, float, float, float, float, float]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
Topic = Annotated[str, Field(pattern=r"^[~/A-Za-z_][A-Za-z0-9_/]*$")]


class CellFileError(ValueError):
    """A cell file cannot be read; the text names the file and the field."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_quaternion(pose: Pose) -> Pose:
    """A pose whose quaternion has length 1; raises ValueError."""
    norm = float(np.linalg.norm(pose[3:]))
    if not np.isfinite(pose).all() or abs(norm - 1) > 1e-3:
        raise ValueError(f"quaternion {list(pose[3:])} has length {norm:.6g}, expected 1 (order qx qy qz qw)")
    return pose


class CapsuleEntry(_Strict):
    """A stretch of an arm or its tool: what lies within `radius`, m, of the line from start to end, m, both in the
    frame of the tool."""

    start: tuple[float, float, float]
    end: tuple[float, float, float]
    radius: Annotated[float, Field(gt=0)]


class GripEntry(_Strict):
    """A grip of the body and the frame that carries it.

    name: the grip's name in the body.
    frame: TF frame of the tool.
    rest_pose: x y z (m) qx qy qz qw of that frame in the world, with the body at rest.
    arm: namespace of the arm that carries the frame (`left` for left/tcp_pose and so on).
    shape: of tool and forearm, so that masks keep off what hides the body; none where it is not given.
    """

    name: Name
    frame: Name
    rest_pose: Pose
    arm: Name
    shape: tuple[CapsuleEntry, ...] = ()

    _quaternion = field_validator("rest_pose")(_check_quaternion)


class Intrinsics(_Strict):
    """Focal lengths and principal point, pixels; the centre of the upper left pixel is (0, 0)."""

    fx: Annotated[float, Field(gt=0)]
    fy: Annotated[float, Field(gt=0)]
    cx: float
    cy: float


class CameraEntry(_Strict):
    """A calibrated camera.

    distortion: k1 k2 p1 p2 k3 (`plumb_bob`).
    world_from_camera: x y z (m) qx qy qz qw of the optical frame (z forward, x right, y down) in the world.
    masker: what makes the masks; sam2 needs the cell's block `sam2`.
    image_topic: of compressed images where it ends in /compressed.
    depth_topic: of depths registered to the image pixel by pixel; compressed where it ends in /compressedDepth.
    """

    name: Name
    frame: Name
    width: Annotated[int, Field(ge=1, le=16384)]
    height: Annotated[int, Field(ge=1, le=16384)]
    intrinsics: Intrinsics
    distortion: tuple[float, float, float, float, float]
    world_from_camera: Pose
    image_topic: Topic
    info_topic: Topic
    rate: Annotated[float, Field(gt=0, le=1000)]  # Hz
    masker: Literal["classical", "sam2"] = "classical"
    depth_topic: Topic | None = None

    _quaternion = field_validator("world_from_camera")(_check_quaternion)

    def camera(self) -> Camera:
        """The camera as data. Raises CameraError."""
        matrix = self.intrinsics
        return Camera(
            name=self.name,
            width=self.width,
            height=self.height,
            intrinsics=np.array([[matrix.fx, 0, matrix.cx], [0, matrix.fy, matrix.cy], [0, 0, 1]]),
            distortion=np.array(self.distortion),
            world_from_camera=np.array(self.world_from_camera),
        )


class Sam2Entry(_Strict):
    """The SAM 2 model of the cell; see sam2_masking.Sam2Settings. weights: path, relative to the cell file."""

    weights: Path
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
    model: Literal["tiny", "small", "base_plus", "large"] = "tiny"
    image_size: Annotated[int, Field(ge=64, multiple_of=32)] = 1024


class CellFile(_Strict):
    """A cell as its operator describes it.

    body, reduced_model, estimator: paths, relative ones from the folder of the cell file (see `resolve`).
    """

    name: Name
    world_frame: Name
    body: Path
    reduced_model: Path
    estimator: Path
    grips: Annotated[tuple[GripEntry, ...], Field(min_length=1)]
    cameras: tuple[CameraEntry, ...]
    sam2: Sam2Entry | None = None
    folder: Annotated[Path, Field(exclude=True)] = Path()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for field, names in (
            ("grips.name", [grip.name for grip in self.grips]),
            ("grips.frame", [grip.frame for grip in self.grips]),
            ("cameras.name", [camera.name for camera in self.cameras]),
            ("cameras.frame", [camera.frame for camera in self.cameras]),
            ("cameras.image_topic", [camera.image_topic for camera in self.cameras]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{field}: {', '.join(twice)} appears more than once")
        missing = [camera.name for camera in self.cameras if camera.masker == "sam2" and self.sam2 is None]
        if missing:
            raise ValueError(f"cameras.masker: {', '.join(missing)} use sam2, so the cell needs a block `sam2`")
        return self

    def resolve(self, path: Path) -> Path:
        """A path of the cell file as an absolute one."""
        return (self.folder / path).resolve()

    def camera_list(self) -> tuple[Camera, ...]:
        """The cameras in the order of the file."""
        return tuple(entry.camera() for entry in self.cameras)

    def sam2_settings(self) -> Sam2Settings | None:
        """Of the block `sam2`; None where there is none."""
        entry = self.sam2
        if entry is None:
            return None
        return Sam2Settings(self.resolve(entry.weights), entry.sha256, entry.model, entry.image_size)

    def arm_shapes(self, grip_poses: Mapping[str, NDArray[np.float64]]) -> list[Capsule]:
        """The shapes of tools and forearms in the world, m; grip_poses: (7,) of every grip, by its name."""
        return [
            Capsule(
                transform_points(grip_poses[grip.name], np.array([part.start]))[0],
                transform_points(grip_poses[grip.name], np.array([part.end]))[0],
                part.radius,
            )
            for grip in self.grips
            for part in grip.shape
        ]

    def rest_poses(self) -> NDArray[np.float64]:
        """(g, 7): the grips' poses at rest, in the order of the file."""
        return np.array([grip.rest_pose for grip in self.grips])


def describe_validation_error(path: Path, error: ValidationError) -> str:
    """One line per problem, each with file and field."""
    lines = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"]) or "(whole file)"
        given = "" if isinstance(problem["input"], dict) else f", given {problem['input']!r}"
        lines.append(f"{path}: {field}: {problem['msg']}{given}")
    return "\n".join(lines)


def load_cell(path: Path | str) -> CellFile:
    """Reads a cell file. Raises CellFileError with the file's name and the field's."""
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CellFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CellFileError(f"{path}: is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise CellFileError(f"{path}: expected a mapping with name, grips, cameras; got {type(content).__name__}")
    if "folder" in content:
        raise CellFileError(f"{path}: folder: is the folder of the cell file itself and cannot be set")
    try:
        cell = CellFile.model_validate({**content, "folder": path.resolve().parent})
    except ValidationError as error:
        raise CellFileError(describe_validation_error(path, error)) from error
    for index, entry in enumerate(cell.cameras):
        try:
            entry.camera()
        except CameraError as error:
            raise CellFileError(f"{path}: cameras.{index}: {error}") from error
    return cell
