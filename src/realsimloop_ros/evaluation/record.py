"""What a run leaves behind: everything its report is made of, as plain arrays in a folder without pickle."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.evaluation.folders import atomic_folder
from realsimloop_ros.evaluation.metrics import TimingSummary

_FORMAT = "realsimloop-run-1"


class RecordError(ValueError):
    """A run record that cannot be read, or whose arrays do not fit together; the message names the field."""


@dataclass(frozen=True)
class ThetaTrace:
    """The estimate after each of u updates.

    zone_names: z; stamps_ns: (u,) of the last observation used; youngs_modulus, youngs_modulus_std: (u, z)
    Pa; poisson_ratio, poisson_ratio_std: (u, z); viscosity, viscosity_std: (u, z) Pa s; density, density_std:
    (u, z) kg/m^3; the last four None in a record that does not tell them. A deviation is inf where the data do not
    tell the parameter, and NaN where it is held. status: u names such as UPDATED; reason: u texts, why it
    was held. axis: whether the updates follow each other in `time`, or are numbered (several recordings estimated
    together).
    start_...: (z,) before the first update; None where that is not told.
    """

    zone_names: tuple[str, ...]
    stamps_ns: NDArray[np.int64]
    youngs_modulus: NDArray[np.float64]
    youngs_modulus_std: NDArray[np.float64]
    poisson_ratio: NDArray[np.float64]
    poisson_ratio_std: NDArray[np.float64]
    status: tuple[str, ...] = ()
    reason: tuple[str, ...] = ()
    axis: Literal["time", "update"] = "time"
    start_youngs_modulus: NDArray[np.float64] | None = None
    start_poisson_ratio: NDArray[np.float64] | None = None
    viscosity: NDArray[np.float64] | None = None
    viscosity_std: NDArray[np.float64] | None = None
    density: NDArray[np.float64] | None = None
    density_std: NDArray[np.float64] | None = None
    start_viscosity: NDArray[np.float64] | None = None
    start_density: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        shape = (len(self.stamps_ns), len(self.zone_names))
        for quantity in ("youngs_modulus", "poisson_ratio", "viscosity", "density"):
            sizes = {quantity: shape, f"{quantity}_std": shape, f"start_{quantity}": shape[1:]}
            for name, expected in sizes.items():
                if getattr(self, name) is not None:
                    _expect(f"theta.{name}", getattr(self, name), expected)
        for name in ("status", "reason"):
            if len(getattr(self, name)) not in (0, shape[0]):
                raise RecordError(f"theta.{name}: {len(getattr(self, name))} entries, expected none or {shape[0]}")


@dataclass(frozen=True)
class ZoneReference:
    """What the estimate of a zone is compared with. how: a sentence that says how the values were obtained."""

    zone: str
    how: str
    youngs_modulus: float | None = None
    poisson_ratio: float | None = None


@dataclass(frozen=True)
class MarkerTracks:
    """Markers of one experiment, measured and predicted.

    stamps_ns: (t,); measured, predicted: (t, k, 3) m in the body's frame, NaN where not seen or not predicted;
    up: (3,) unit vector against gravity; held: (t,) frames of the held pose before the release; release_ns and
    turning_ns: when it was let go and first turned, None where nothing was released.
    """

    experiment: str
    names: tuple[str, ...]
    stamps_ns: NDArray[np.int64]
    measured: NDArray[np.float64]
    predicted: NDArray[np.float64]
    up: NDArray[np.float64]
    held: NDArray[np.bool_]
    release_ns: int | None = None
    turning_ns: int | None = None

    def __post_init__(self) -> None:
        shape = (len(self.stamps_ns), len(self.names), 3)
        _expect(f"markers of {self.experiment}: measured", self.measured, shape)
        _expect(f"markers of {self.experiment}: predicted", self.predicted, shape)
        _expect(f"markers of {self.experiment}: up", self.up, (3,))
        _expect(f"markers of {self.experiment}: held", self.held, shape[:1])

    @property
    def errors(self) -> NDArray[np.float64]:
        """Distances (t, k), m."""
        return np.linalg.norm(self.predicted - self.measured, axis=2)


@dataclass(frozen=True)
class ReconstructionTrace:
    """Distances between twin and reality at q points (vertices or markers) over t frames.

    stamps_ns: (t,); errors: (t, q) m, NaN where one of the two is not known; points: what the points are.
    """

    points: str
    stamps_ns: NDArray[np.int64]
    errors: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.errors.ndim != 2 or len(self.errors) != len(self.stamps_ns):
            raise RecordError(
                f"reconstruction.errors: shape {self.errors.shape}, expected ({len(self.stamps_ns)}, q)"
            )


@dataclass(frozen=True)
class Picture:
    """An image (h, w, 3) uint8 RGB. kind: where the report shows it; stamp_ns: None where it has no time."""

    kind: Literal["camera", "stress", "other"]
    caption: str
    image: NDArray[np.uint8]
    stamp_ns: int | None = None

    def __post_init__(self) -> None:
        if self.image.ndim != 3 or self.image.shape[2] != 3 or self.image.dtype != np.uint8:
            raise RecordError(
                f"picture {self.caption!r}: {self.image.dtype} {self.image.shape}, expected uint8 (h, w, 3)"
            )


@dataclass(frozen=True)
class Provenance:
    """Where a run came from.

    command: as typed; versions: by package; body_hashes: by body or experiment; settings: the configuration files
    by name, as text.
    """

    command: str
    started: str
    versions: dict[str, str]
    seed: int | None = None
    body_hashes: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """One run.

    theta_source: prior, estimate, or the file theta came from; body_size: m, its longest edge; timing: durations
    in s by stage; timing_summaries: of stages whose single durations were not kept; real_time_factor: simulated
    over wall-clock time; drops: frames or messages lost, by cause; notes: what a reader should know.
    """

    title: str
    theta_source: str
    body_size: float
    provenance: Provenance
    theta: ThetaTrace
    references: tuple[ZoneReference, ...] = ()
    markers: tuple[MarkerTracks, ...] = ()
    reconstruction: ReconstructionTrace | None = None
    timing: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    timing_summaries: dict[str, TimingSummary] = field(default_factory=dict)
    real_time_factor: float | None = None
    drops: dict[str, int] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for reference in self.references:
            if reference.zone not in self.theta.zone_names:
                raise RecordError(
                    f"references: zone {reference.zone!r} is none of the estimated {self.theta.zone_names}"
                )
        names = [tracks.experiment for tracks in self.markers]
        if len(set(names)) != len(names):
            raise RecordError(f"markers: experiments {names} repeat; give each its own name")


def _expect(label: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise RecordError(f"{label}: shape {array.shape}, expected {shape}")


def save_record(folder: Path, record: RunRecord) -> None:
    """Write a record as a folder with record.json and arrays.npz, whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {}
    content = {"format": _FORMAT, "record": _pack(record, "", arrays)}
    with atomic_folder(folder) as temporary:
        with (temporary / "arrays.npz").open("wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
        (temporary / "record.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def load_record(folder: Path) -> RunRecord:
    """Read what save_record wrote. Raises RecordError naming the folder."""
    folder = Path(folder)
    try:
        content = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        if content.get("format") != _FORMAT:
            raise RecordError(f"format {content.get('format')!r}, expected {_FORMAT!r}; make the run anew")
        with np.load(folder / "arrays.npz", allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        return _unpack(RunRecord, content["record"], arrays)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{folder}: is no run record ({error})") from error


def _pack(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": path}
    if dataclasses.is_dataclass(value):
        return {
            entry.name: _pack(getattr(value, entry.name), f"{path}.{entry.name}".strip("."), arrays)
            for entry in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        # numbered, since a stage or a file may have any name, and an archive's entries may not
        return {key: _pack(item, f"{path}.{k}", arrays) for k, (key, item) in enumerate(value.items())}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [_pack(item, f"{path}.{k}", arrays) for k, item in enumerate(value)]
    return value


def _unpack(kind: Any, value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, dict) and set(value) == {"array"} and not dataclasses.is_dataclass(kind):
        return arrays[value["array"]]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _unpack(hints[name], item, arrays) for name, item in value.items()})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return tuple(_unpack(inner[0], item, arrays) for item in value)
    if origin is dict:
        return {key: _unpack(inner[1], item, arrays) for key, item in value.items()}
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _unpack(inner[0], value, arrays)
    return value
