"""Reading and writing bodies: .npz files, and YAML specifications from which a body is built."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from realsimloop_ros.body.body import (
    Attachment,
    Body,
    Cable,
    Grip,
    HungWeight,
    InvalidBodyError,
    Zone,
    bind_points,
)
from realsimloop_ros.body.meshing import Mesh, box_bar, mesh_from_surface, read_tetrahedral_mesh
from realsimloop_ros.body.poses import IDENTITY_POSE, InvalidPoseError
from realsimloop_ros.body.shape_functions import EDGES

_FORMAT = "realsimloop-body-1"


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`: replaces it when the block ends well, vanishes when it does not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; give the result the usual permissions
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_body(path: Path, body: Body) -> None:
    """Write a body as one .npz without pickled objects."""
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **body_arrays(body))  # type: ignore[arg-type]


def load_body(path: Path) -> Body:
    """Read what save_body wrote. Raises InvalidBodyError naming the file."""
    if not Path(path).is_file():
        raise InvalidBodyError(f"body: {path} does not exist")
    try:
        with zipfile.ZipFile(path):
            pass  # numpy would take other formats too, and name pickles in its complaint about text
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        return body_from_arrays(arrays)
    except InvalidBodyError as error:
        raise InvalidBodyError(f"{path}: {error}") from error
    except KeyError as error:
        raise InvalidBodyError(f"{path}: not a body file, {error} is missing; write it with save_body") from error
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidBodyError(
            f"{path}: not a body file, or a damaged one ({error}); write it with save_body"
        ) from error


def body_arrays(body: Body) -> dict[str, NDArray]:
    """The body as named arrays, one of them a JSON header."""
    arrays: dict[str, NDArray] = {
        "rest_positions": body.rest_positions,
        "tets": body.tets,
        "zone_of_tet": body.zone_of_tet,
        "fixed_vertices": body.fixed_vertices,
    }
    for k, grip in enumerate(body.grips):
        arrays[f"grip_{k}_vertices"], arrays[f"grip_{k}_rest_pose"] = grip.vertices, grip.rest_pose
    for k, weight in enumerate(body.hung_weights):
        arrays[f"weight_{k}_vertices"], arrays[f"weight_{k}_weights"] = weight.vertices, weight.weights
    if body.markers is not None:
        arrays |= _attachment_arrays("markers", body.markers)
    for k, cable in enumerate(body.cables):
        arrays[f"cable_{k}_anchor"] = cable.anchor
        arrays |= _attachment_arrays(f"cable_{k}", cable.points)
    header = {
        "format": _FORMAT,
        "name": body.name,
        "zones": [[zone.name, zone.density] for zone in body.zones],
        "grips": [[grip.name, grip.frame] for grip in body.grips],
        "hung_weights": [[weight.name, weight.mass] for weight in body.hung_weights],
        "marker_names": list(body.marker_names),
        "cables": [[cable.name, cable.frame, cable.stiffness, cable.blend] for cable in body.cables],
    }
    arrays["header"] = np.array(json.dumps(header))
    return arrays


def _attachment_arrays(label: str, attachment: Attachment) -> dict[str, NDArray]:
    return {f"{label}_{part}": getattr(attachment, part) for part in ("tet", "weights", "gradients")}


def _attachment_from(label: str, arrays: dict[str, NDArray]) -> Attachment:
    return Attachment(*(arrays[f"{label}_{part}"] for part in ("tet", "weights", "gradients")))


def body_from_arrays(arrays: dict[str, NDArray]) -> Body:
    """The inverse of body_arrays."""
    header = json.loads(str(arrays["header"]))
    found = header.get("format") if isinstance(header, dict) else None
    if found != _FORMAT:
        raise InvalidBodyError(f"body: format {found!r}, expected {_FORMAT!r}; write the file anew")
    markers = _attachment_from("markers", arrays) if header["marker_names"] else None
    return Body(
        name=header["name"],
        rest_positions=arrays["rest_positions"],
        tets=arrays["tets"],
        zone_of_tet=arrays["zone_of_tet"],
        zones=tuple(Zone(name, density) for name, density in header["zones"]),
        grips=tuple(
            Grip(name, frame, arrays[f"grip_{k}_vertices"], arrays[f"grip_{k}_rest_pose"])
            for k, (name, frame) in enumerate(header["grips"])
        ),
        fixed_vertices=arrays["fixed_vertices"],
        hung_weights=tuple(
            HungWeight(name, mass, arrays[f"weight_{k}_vertices"], arrays[f"weight_{k}_weights"])
            for k, (name, mass) in enumerate(header["hung_weights"])
        ),
        marker_names=tuple(header["marker_names"]),
        markers=markers,
        # files from before there were cables say nothing of them
        cables=tuple(
            Cable(name, frame, arrays[f"cable_{k}_anchor"], _attachment_from(f"cable_{k}", arrays), *numbers)
            for k, (name, frame, *numbers) in enumerate(header.get("cables", []))
        ),
    )


Vector = Annotated[tuple[float, float, float], Field(description="x, y, z in m")]
PoseNumbers = tuple[float, float, float, float, float, float, float]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BoxMesh(_Strict):
    """A structured bar; size in m along x, y, z; origin is its lowest corner."""

    kind: Literal["box"]
    size: Vector
    divisions: tuple[int, int, int]
    origin: Vector = (0.0, 0.0, 0.0)
    quadratic: bool = True


class FileMesh(_Strict):
    """A tetrahedral mesh file; scale: metres per file unit."""

    kind: Literal["tets"]
    path: Path
    scale: float = Field(1.0, gt=0)
    quadratic: bool = True


class SurfaceMesh(_Strict):
    """A closed surface to be filled with tets of about edge_length m; scale: metres per file unit."""

    kind: Literal["surface"]
    path: Path
    scale: float = Field(1.0, gt=0)
    edge_length: float = Field(gt=0)
    quadratic: bool = True


class Region(_Strict):
    """An axis-aligned box in rest coordinates, m; a side left out is unbounded."""

    minimum: tuple[float | None, float | None, float | None] = (None, None, None)
    maximum: tuple[float | None, float | None, float | None] = (None, None, None)

    def contains(self, points: NDArray[np.float64], tolerance: float) -> NDArray[np.bool_]:
        inside = np.ones(len(points), bool)
        for axis in range(3):
            lower, upper = self.minimum[axis], self.maximum[axis]
            if lower is not None:
                inside &= points[:, axis] >= lower - tolerance
            if upper is not None:
                inside &= points[:, axis] <= upper + tolerance
        return inside


class ZoneSpecification(_Strict):
    name: str = Field(min_length=1)
    density: float = Field(gt=0, description="kg/m^3")
    region: Region = Region()


class GripSpecification(_Strict):
    name: str = Field(min_length=1)
    frame: str = Field(min_length=1)
    rest_pose: PoseNumbers = tuple(IDENTITY_POSE.tolist())  # type: ignore[assignment]
    region: Region


class HungWeightSpecification(_Strict):
    name: str = Field(min_length=1)
    mass: float = Field(ge=0, description="kg")
    region: Region


class CableSpecification(_Strict):
    """A cable from its far end through points of the body to the eyelet of a winch; all in rest coordinates, m."""

    name: str = Field(min_length=1)
    frame: str = Field(min_length=1, description="carries the winch's eyelet at its origin")
    anchor: Vector
    points: tuple[Vector, ...] = Field(min_length=1)
    stiffness: float = Field(gt=0, description="N/m, of the whole cable")
    blend: float = Field(1e-4, gt=0, description="m, from slack to taut")


class BodySpecification(_Strict):
    """A body as a user writes it: a mesh, and what regions and points make of it."""

    name: str = Field(min_length=1)
    mesh: Annotated[BoxMesh | FileMesh | SurfaceMesh, Field(discriminator="kind")]
    zones: tuple[ZoneSpecification, ...] = Field(min_length=1)
    grips: tuple[GripSpecification, ...] = ()
    fixed: Region | None = None
    hung_weights: tuple[HungWeightSpecification, ...] = ()
    markers: dict[str, Vector] = {}
    cables: tuple[CableSpecification, ...] = ()
    floating: bool = Field(False, description="whether it is meant that nothing holds the body")

    @model_validator(mode="after")
    def _something_holds_it(self) -> BodySpecification:
        held = bool(self.grips) or self.fixed is not None
        if not held and not self.floating:
            raise ValueError("grips, fixed: both are missing; name what holds the body, or set floating: true")
        if held and self.floating:
            raise ValueError("floating: true, but grips or fixed hold the body; leave one of them out")
        return self

    def build(self, folder: Path = Path()) -> Body:
        """The body; relative mesh paths are taken from `folder`. Raises InvalidBodyError."""
        x, tets = self._mesh(folder)
        tolerance = 1e-9 + 1e-6 * float(np.ptp(x, axis=0).max())
        centres = x[tets[:, :4]].mean(axis=1)
        zone_of_tet = np.full(len(tets), -1)
        # a later zone overrides an earlier one, so that a whole-body zone may come first
        for index, zone in enumerate(self.zones):
            zone_of_tet[zone.region.contains(centres, tolerance)] = index
        if (zone_of_tet < 0).any():
            missed = int((zone_of_tet < 0).sum())
            raise InvalidBodyError(f"zones: {missed} tets lie in no zone; let the first zone have no region")

        def inside(region: Region, label: str) -> NDArray[np.int64]:
            found = np.flatnonzero(region.contains(x, tolerance))
            if len(found) == 0:
                raise InvalidBodyError(f"{label}.region: holds no vertex; bounds of the mesh are {_bounds(x)}")
            return found

        weights = []
        for entry in self.hung_weights:
            vertices = inside(entry.region, f"hung_weights.{entry.name}")
            weights.append(HungWeight(entry.name, entry.mass, vertices, _edge_weights(x, tets, vertices)))
        body = Body(
            name=self.name,
            rest_positions=x,
            tets=tets,
            zone_of_tet=zone_of_tet,
            zones=tuple(Zone(zone.name, zone.density) for zone in self.zones),
            grips=tuple(
                Grip(grip.name, grip.frame, inside(grip.region, f"grips.{grip.name}"), np.array(grip.rest_pose))
                for grip in self.grips
            ),
            fixed_vertices=np.zeros(0, np.int64) if self.fixed is None else inside(self.fixed, "fixed"),
            hung_weights=tuple(weights),
        )
        cables = tuple(
            Cable(
                entry.name,
                entry.frame,
                np.array(entry.anchor),
                bind_points(body, np.array(entry.points)),
                entry.stiffness,
                entry.blend,
            )
            for entry in self.cables
        )
        body = replace(body, cables=cables)
        return with_markers(body, {name: np.array(point) for name, point in self.markers.items()})

    def _mesh(self, folder: Path) -> Mesh:
        mesh = self.mesh
        if isinstance(mesh, BoxMesh):
            return box_bar(*mesh.size, mesh.divisions, origin=mesh.origin, quadratic=mesh.quadratic)
        if isinstance(mesh, FileMesh):
            return read_tetrahedral_mesh(folder / mesh.path, scale=mesh.scale, quadratic=mesh.quadratic)
        return mesh_from_surface(
            folder / mesh.path, scale=mesh.scale, edge_length=mesh.edge_length, quadratic=mesh.quadratic
        )


def with_markers(body: Body, markers: dict[str, NDArray[np.float64]]) -> Body:
    """The body with markers at rest positions (3,), m, replacing any it had."""
    if not markers:
        return replace(body, marker_names=(), markers=None)
    return replace(body, marker_names=tuple(markers), markers=bind_points(body, np.stack(list(markers.values()))))


def load_body_specification(path: Path) -> Body:
    """Build the body a YAML specification describes. Raises InvalidBodyError naming file and field."""
    path = Path(path)
    if not path.is_file():
        raise InvalidBodyError(f"body specification: {path} does not exist")
    try:
        specification = BodySpecification.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidBodyError(f"{path}: not valid YAML ({error})") from error
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']} (got {e['input']!r})" for e in error.errors()
        ]
        raise InvalidBodyError(f"{path}: " + "; ".join(lines)) from error
    try:
        return specification.build(path.parent)
    except (InvalidBodyError, InvalidPoseError) as error:
        raise InvalidBodyError(f"{path}: {error}") from error


def _bounds(x: NDArray[np.float64]) -> str:
    return f"{np.round(x.min(axis=0), 6).tolist()} to {np.round(x.max(axis=0), 6).tolist()} m"


def _edge_weights(
    x: NDArray[np.float64], tets: NDArray[np.int64], vertices: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Consistent weights of a load spread evenly along the mesh edges in a region, sum one.

    The ends of a linear segment carry 1/2 each, of a quadratic one 1/6 each and its middle 4/6; where the
    region holds no whole edge every vertex carries the same.
    """
    weights = np.zeros(len(x))
    chosen = np.zeros(len(x), bool)
    chosen[vertices] = True
    segments = tets[:, EDGES].reshape(-1, 2)
    shares = np.array([1.0, 1.0]) / 2.0
    if tets.shape[1] == 10:
        segments = np.concatenate([segments, tets[:, 4:].reshape(-1, 1)], axis=1)
        shares = np.array([1.0, 1.0, 4.0]) / 6.0
    segments = segments[chosen[segments].all(axis=1)]
    _, first = np.unique(np.sort(segments[:, :2], axis=1), axis=0, return_index=True)
    for segment in segments[first]:
        weights[segment] += float(np.linalg.norm(x[segment[1]] - x[segment[0]])) * shares
    if weights.sum() == 0.0:
        weights[vertices] = 1.0
    return (weights / weights.sum())[vertices]
