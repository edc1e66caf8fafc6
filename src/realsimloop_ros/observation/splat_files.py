"""Splats on disk: the usual .ply of Gaussian splatting, and beside it the binding to the body."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.body import Attachment, Body
from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.observation.splats import Splats, SplatsError, bind_splats

Array = NDArray[np.float64]

_FORMAT = "realsimloop-splats-1"
_HARMONIC = 0.28209479177387814  # the constant spherical harmonic, sqrt(1 / (4 pi))


def binding_path(path: Path) -> Path:
    """Where the binding of a .ply file stands: `bar.ply` -> `bar.binding.npz`."""
    return path.with_suffix(".binding.npz")


def save_splats(path: Path | str, splats: Splats, body: Body) -> None:
    """Writes the splats at rest in the usual .ply layout, and their binding to the body beside it.

    The .ply (binary, float32; position, f_dc, opacity before the sigmoid, log scales, quaternion w x y z) opens in
    any splat viewer; the binding (.npz) holds the attachment and the body's hash.
    """
    path = Path(path)
    centres, _ = splats.place(body.rest_positions)
    scales, quaternions = _scales_and_quaternions(splats.rest_covariances)
    opacities = np.clip(splats.opacities, 1e-6, 1 - 1e-6)
    columns = {
        **{name: centres[:, i] for i, name in enumerate("xyz")},
        **{name: np.zeros(len(splats)) for name in ("nx", "ny", "nz")},
        **{f"f_dc_{i}": (splats.colours[:, i] - 0.5) / _HARMONIC for i in range(3)},
        "opacity": np.log(opacities / (1 - opacities)),
        **{f"scale_{i}": np.log(scales[:, i]) for i in range(3)},
        **{f"rot_{i}": quaternions[:, i] for i in range(4)},
    }
    table = np.empty(len(splats), [(name, "<f4") for name in columns])
    for name, column in columns.items():
        table[name] = column
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(splats)}"]
    header += [f"property float {name}" for name in columns]
    with atomic_write(path) as temporary:
        temporary.write_bytes("\n".join([*header, "end_header", ""]).encode("ascii") + table.tobytes())
    with atomic_write(binding_path(path)) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(
            stream,
            format=np.array(_FORMAT),
            body_hash=np.array(body.content_hash),
            tet=splats.attachment.tet,
            weights=splats.attachment.weights,
            gradients=splats.attachment.gradients,
        )


def load_splats(path: Path | str, body: Body) -> Splats:
    """Reads splats of a body; without a binding file beside the .ply, they are bound where they lie.

    Raises SplatsError where a file is unreadable, incomplete, or belongs to another body.
    """
    path = Path(path)
    table = _read_ply(path)
    column = np.stack
    centres = column([table[name] for name in "xyz"], axis=1).astype(np.float64)
    colours = 0.5 + _HARMONIC * column([table[f"f_dc_{i}"] for i in range(3)], axis=1).astype(np.float64)
    opacities = 1 / (1 + np.exp(-table["opacity"].astype(np.float64)))
    scales = np.exp(column([table[f"scale_{i}"] for i in range(3)], axis=1).astype(np.float64))
    quaternions = column([table[f"rot_{i}"] for i in range(4)], axis=1).astype(np.float64)
    if len(centres) and (np.linalg.norm(quaternions, axis=1) < 1e-6).any():
        raise SplatsError(f"{path}: a quaternion rot_0..rot_3 is zero")
    axes = Rotation.from_quat(quaternions[:, [1, 2, 3, 0]]).as_matrix() * scales[:, None, :]
    covariances = axes @ axes.swapaxes(1, 2)
    # colours a little outside 0 to 1 are usual in .ply files from elsewhere
    colours = np.clip(colours, 0, 1)
    binding = binding_path(path)
    if not binding.exists():
        return bind_splats(body, centres, covariances, colours, opacities)
    try:
        with binding.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in ("format", "body_hash", "tet", "weights", "gradients")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise SplatsError(f"{binding}: cannot be read ({error}); remove it to bind the splats anew") from error
    if str(content["format"]) != _FORMAT:
        raise SplatsError(f"{binding}: format is '{content['format']}', expected '{_FORMAT}'")
    if str(content["body_hash"]) != body.content_hash:
        raise SplatsError(
            f"{binding}: body_hash is {content['body_hash']}, but the body '{body.name}' has"
            f" {body.content_hash}; make the splats for this body, or remove the file to bind them anew"
        )
    if len(content["tet"]) != len(centres):
        raise SplatsError(f"{binding}: binds {len(content['tet'])} splats, but {path} has {len(centres)}")
    attachment = Attachment(content["tet"], content["weights"], content["gradients"])
    return Splats(attachment, body.tets[attachment.tet], covariances, colours, opacities)


def _scales_and_quaternions(covariances: Array) -> tuple[Array, Array]:
    """Standard deviations (k, 3) along the axes of the quaternions (k, 4), w x y z."""
    values, axes = np.linalg.eigh(covariances)
    axes[..., 0] *= np.where(np.linalg.det(axes) < 0, -1.0, 1.0)[:, None]
    quaternions = Rotation.from_matrix(axes).as_quat()[:, [3, 0, 1, 2]]
    return np.sqrt(np.maximum(values, 1e-14)), quaternions


_PLY_TYPES = {
    "float": "<f4",
    "float32": "<f4",
    "double": "<f8",
    "float64": "<f8",
    "uchar": "u1",
    "uint8": "u1",
    "int": "<i4",
    "int32": "<i4",
    "uint": "<u4",
    "uint32": "<u4",
}
_NEEDED = ("x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", *(f"scale_{i}" for i in range(3)))


def _read_ply(path: Path) -> NDArray[Any]:
    """The vertex table of a binary little-endian .ply; raises SplatsError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SplatsError(f"{path}: cannot be read: {error.strerror or error}") from error
    end = content.find(b"end_header\n")
    if not content.startswith(b"ply") or end < 0:
        raise SplatsError(f"{path}: is not a .ply file")
    lines = [line.split() for line in content[:end].decode("ascii", "replace").splitlines()]
    if ["format", "binary_little_endian", "1.0"] not in lines:
        raise SplatsError(f"{path}: only binary_little_endian .ply files are read")
    elements = [line for line in lines if line[:1] == ["element"]]
    if not elements or elements[0][1] != "vertex":
        raise SplatsError(f"{path}: the first element is not vertex")
    start = lines.index(elements[0])
    stop = lines.index(elements[1]) if len(elements) > 1 else len(lines)
    properties = [line for line in lines[start:stop] if line[:1] == ["property"]]
    unknown = [" ".join(line) for line in properties if len(line) != 3 or line[1] not in _PLY_TYPES]
    if unknown:
        raise SplatsError(f"{path}: cannot read the vertex properties {unknown}")
    dtype = np.dtype([(name, _PLY_TYPES[kind]) for _, kind, name in properties])
    missing = [name for name in (*_NEEDED, *(f"rot_{i}" for i in range(4))) if name not in (dtype.names or ())]
    if missing:
        raise SplatsError(f"{path}: lacks the properties {', '.join(missing)}; is it a splat file?")
    count = int(elements[0][2])
    data = content[end + len(b"end_header\n") :]
    if len(data) < count * dtype.itemsize:
        raise SplatsError(
            f"{path}: ends after {len(data) // dtype.itemsize} of {count} splats; the file is truncated"
        )
    table = np.frombuffer(data, dtype, count)
    for name in _NEEDED:
        if not np.isfinite(table[name]).all():
            raise SplatsError(f"{path}: {name} has values that are not finite")
    return table
