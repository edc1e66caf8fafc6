"""Pictures of a cell's run: what the cameras saw with the twin over it, and the stress inside the twin."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import jax.numpy as jnp
import matplotlib
import matplotlib.image
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.estimation.twin import Twin
from realsimloop_ros.evaluation.cell_messages import CellMessageError, image_array
from realsimloop_ros.evaluation.cell_recording import Notices, StateTrack, read_messages
from realsimloop_ros.evaluation.marker_messages import stamp_of
from realsimloop_ros.evaluation.record import Picture
from realsimloop_ros.evaluation.surface_views import paint, shading, view_surface
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.mechanics.stress import stress_field, stress_samples
from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.cell_file import CellFile

_PANEL_WIDTH = 480  # px
_TWIN = np.array([255.0, 122.0, 24.0])
_LINE = np.array([255.0, 250.0, 240.0])
_COLOURS = "turbo"


@dataclass(frozen=True, eq=False)
class Moment:
    """A frame chosen for the pictures.

    x: (n, 3) m, the twin's vertices; material: the twin's then; images: by camera name, as recorded.
    """

    stamp_ns: int
    x: NDArray[np.float64]
    material: Material
    images: Mapping[str, NDArray[np.uint8]]


def chosen_stamps(frame_stamps_ns: NDArray[np.int64], twin: Twin, states: StateTrack, count: int) -> list[int]:
    """Of each of `count` equal stretches of a run, the frame at which the twin is furthest from its rest shape."""
    shapes = states.near(frame_stamps_ns)
    away = np.sqrt(((shapes - twin.body.rest_positions) ** 2).sum(axis=2).mean(axis=1))
    known = np.flatnonzero(np.isfinite(away))
    parts = [part for part in np.array_split(known, min(count, len(known))) if len(part)]
    return [int(frame_stamps_ns[part[np.argmax(away[part])]]) for part in parts]


def recorded_images(
    bag: Path, cell: CellFile, stamps_ns: Sequence[int], notices: Notices
) -> dict[int, dict[str, NDArray[np.uint8]]]:
    """By stamp and camera, the images of the frames at stamps_ns."""
    found: dict[int, dict[str, NDArray[np.uint8]]] = {stamp: {} for stamp in stamps_ns}

    def take(_: int, message: Any) -> None:
        stamp = stamp_of(message.header)
        if stamp not in found:
            return
        for name, picture, there in zip(message.camera_names, message.images, message.available, strict=True):
            try:
                if there:
                    found[stamp][name] = image_array(picture)
            except CellMessageError as error:
                notices.warn(f"{bag}: no picture of {name}: {error}")

    def take_raw(camera: str, rate: float) -> Any:
        def keep(_: int, message: Any) -> None:
            stamp = stamp_of(message.header)
            near = min(found, key=lambda wanted: abs(wanted - stamp), default=None)
            if near is not None and abs(near - stamp) < 0.4e9 / rate and camera not in found[near]:
                found[near][camera] = image_array(message)

        return keep

    read_messages(bag, {"observation": take}, Notices())
    if not any(found.values()):
        handlers = {camera.image_topic: take_raw(camera.name, camera.rate) for camera in cell.cameras}
        read_messages(bag, handlers, Notices())
    return found


def camera_pictures(
    twin: Twin, cameras: Sequence[Camera], moments: Sequence[Moment], begin_ns: int
) -> list[Picture]:
    """A picture per moment: above, what the cameras saw; below, the same with the twin's surface over it."""
    triangles = surface_triangles(twin.body)
    pictures = []
    for moment in moments:
        columns = []
        for camera in cameras:
            image = moment.images.get(camera.name)
            if image is None:
                continue
            fine, large = _enlarged(camera, image)
            columns.append(np.concatenate([large, _with_twin(fine, large, moment.x, triangles)]))
        if columns:
            seconds = (moment.stamp_ns - begin_ns) * 1e-9
            moduli = ", ".join(
                f"{zone} {value * 1e-3:.0f} kPa"
                for zone, value in zip(
                    twin.body.zone_names, np.asarray(moment.material.youngs_modulus), strict=True
                )
            )
            caption = f"{seconds:.1f} s. Above: the cameras. Below: the twin over them, Young's modulus: {moduli}"
            pictures.append(Picture("camera", caption, _side_by_side(columns), moment.stamp_ns))
    return pictures


def stress_pictures(
    twin: Twin, cameras: Sequence[Camera], moments: Sequence[Moment], begin_ns: int
) -> list[Picture]:
    """One picture: the von Mises stress of the twin in its place, in two views per moment, on one scale."""
    triangles = surface_triangles(twin.body)
    samples = stress_samples(twin.body)
    fields = []
    for moment in moments:
        material = Material(*(jnp.asarray(values) for values in moment.material))
        found = stress_field(twin.model.law, samples, material, jnp.asarray(moment.x))
        fields.append(np.asarray(found.von_mises))
    if not fields:
        return []
    # the edge of a grip is a singularity: it must not take the whole scale
    top = float(np.percentile(np.concatenate(fields), 99.0)) * 1e-3
    norm = Normalize(0.0, top)
    colours = matplotlib.colormaps[_COLOURS]
    chosen = _opposite(cameras)
    panels: list[list[NDArray[np.uint8]]] = []
    for camera in chosen:
        row = []
        for moment, field in zip(moments, fields, strict=True):
            image = moment.images.get(camera.name)
            if image is None:
                image = np.full((camera.height, camera.width, 3), 70, np.uint8)
            fine, large = _enlarged(camera, image)
            row.append(_with_stress(fine, large, moment.x, triangles, field * 1e-3, norm, colours))
        panels.append(row)
    times = [(moment.stamp_ns - begin_ns) * 1e-9 for moment in moments]
    picture = _stress_sheet(panels, times, norm)
    caption = (
        "von Mises stress on the twin's surface, at its place in two camera views, at "
        + ", ".join(f"{seconds:.1f}" for seconds in times)
        + " s; elastic part, without viscosity"
    )
    return [Picture("stress", caption, picture)]


def _enlarged(camera: Camera, image: NDArray[np.uint8]) -> tuple[Camera, NDArray[np.uint8]]:
    """Camera and image, brought to about the width of a panel; never made smaller."""
    factor = max(1, round(_PANEL_WIDTH / camera.width))
    fine = camera.scaled(float(factor))
    return fine, cv2.resize(image, (fine.width, fine.height), interpolation=cv2.INTER_CUBIC).astype(np.uint8)


def _with_twin(
    camera: Camera, image: NDArray[np.uint8], x: NDArray[np.float64], triangles: NDArray[np.int64]
) -> NDArray[np.uint8]:
    view = view_surface(camera, x, triangles)
    visible = view.visible.astype(np.uint8)
    outline = cv2.morphologyEx(visible, cv2.MORPH_GRADIENT, np.ones((5, 5), np.uint8)) > 0
    lines = view.edges() & ~outline
    cover = np.where(view.visible, 0.22, 0.0)
    cover = np.where(lines, 0.4, cover)
    cover = np.where(outline, 1.0, cover)
    colour = np.where(lines[..., None], _LINE, _TWIN)
    return paint(image, colour, cover)


def _with_stress(
    camera: Camera,
    image: NDArray[np.uint8],
    x: NDArray[np.float64],
    triangles: NDArray[np.int64],
    kilopascals: NDArray[np.float64],
    norm: Normalize,
    colours: Any,
) -> NDArray[np.uint8]:
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    dimmed = np.repeat((0.55 * grey + 90.0).astype(np.uint8)[..., None], 3, axis=2)
    view = view_surface(camera, x, triangles)
    colour = 255.0 * colours(norm(view.values(kilopascals)))[..., :3] * shading(view, camera, x)[..., None]
    return paint(dimmed, colour, view.visible.astype(np.float32))


def _opposite(cameras: Sequence[Camera]) -> list[Camera]:
    """The two cameras that look in the most different directions."""
    if len(cameras) < 2:
        return list(cameras)
    forward = np.array([camera.camera_from_world[2, :3] for camera in cameras])
    pair = sorted(divmod(int(np.argmin(forward @ forward.T)), len(cameras)))
    return [cameras[k] for k in pair]


def _side_by_side(columns: Sequence[NDArray[np.uint8]], gap: int = 6) -> NDArray[np.uint8]:
    height = max(column.shape[0] for column in columns)
    parts: list[NDArray[np.uint8]] = []
    for k, column in enumerate(columns):
        if k:
            parts.append(np.full((height, gap, 3), 255, np.uint8))
        padded = np.full((height, column.shape[1], 3), 255, np.uint8)
        padded[: column.shape[0]] = column
        parts.append(padded)
    return np.concatenate(parts, axis=1)


def _stress_sheet(
    panels: Sequence[Sequence[NDArray[np.uint8]]], times: Sequence[float], norm: Normalize
) -> NDArray[np.uint8]:
    rows, columns = len(panels), len(panels[0])
    height, width = panels[0][0].shape[:2]
    panel_inches = 3.2
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "font.size": 10.0}):
        figure = Figure(
            figsize=(columns * panel_inches + 1.0, rows * panel_inches * height / width + 0.4),
            layout="constrained",
            dpi=150,
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False)
        for i, row in enumerate(panels):
            for k, panel in enumerate(row):
                axes[i, k].imshow(panel)
                axes[i, k].set_axis_off()
                if i == 0:
                    axes[i, k].set_title(f"{times[k]:.1f} s", fontsize=11.0, fontweight="bold", loc="left")
        bar = figure.colorbar(
            ScalarMappable(norm, _COLOURS), ax=axes, extend="max", aspect=30, pad=0.01, fraction=0.03
        )
        bar.set_label("von Mises stress (kPa)")
        bar.outline.set_visible(False)  # type: ignore[operator]
        stream = io.BytesIO()
        figure.savefig(stream, format="png")
        stream.seek(0)
        return np.asarray(255.0 * matplotlib.image.imread(stream)[..., :3]).round().astype(np.uint8)
