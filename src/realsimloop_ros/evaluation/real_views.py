"""Splats fitted to real views of a scene, judged by a view that the fit has not seen.

The folder holds `img_I.png` and `mask_I.png` (not 0 where the object is) of views I = 0, 1, ..., and their
calibration: `intr_list.npy` (K, 3, 3), `R_list.npy` (K, 3, 3) and `t_list.npy` (K, 3) or (K, 3, 1), from camera
to world, m; images without distortion. It is the layout of robo-alex/gs-dynamics. Geometry comes from the masks of
the views in use, so nothing of the view left out enters, unless a measured cloud of points is given beside them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import trimesh
import typer
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.observation.appearance import AppearanceSettings, fit_appearance, paint_splats
from realsimloop_ros.observation.cameras import Camera, pinhole_views
from realsimloop_ros.observation.carving import carve, scene_splats
from realsimloop_ros.observation.images import MultiViewImages, crop_to_masks
from realsimloop_ros.observation.masking import ClassicalMasker, MaskerSettings, intersection_over_union
from realsimloop_ros.observation.rasterizers import render
from realsimloop_ros.observation.splat_files import save_splats
from realsimloop_ros.observation.splats import Splats

# Pixels around the masks that the fit looks at: what splats must not cover.
_MARGIN = 20
# How deep below measured points the object may reach, m.
_THICKNESS = 0.012


class RealViewsError(ValueError):
    """A folder of views that cannot be used; the text names the file and the remedy."""


@dataclass(frozen=True)
class HeldOutFit:
    """How well splats fitted to the other views explain a view.

    psnr_image_db: of the whole image with the object cut out over one grey; psnr_window_db: of the window around
    the object; psnr_object_db: of the given mask's pixels alone; psnr_object_exposure_db: likewise, after one gain
    per channel; gains: those. silhouette_iou: of the drawn silhouette and the given mask. psnr_fitted_db: of the
    mask's pixels, by view, for the views that the fit has seen.
    """

    view: str
    psnr_image_db: float
    psnr_window_db: float
    psnr_object_db: float
    psnr_object_exposure_db: float
    gains: tuple[float, float, float]
    silhouette_iou: float
    psnr_fitted_db: dict[str, float]


def load_views(folder: Path) -> MultiViewImages:
    """The views of a folder, rectified. Raises RealViewsError."""
    try:
        tables = [
            np.load(folder / f"{name}_list.npy", allow_pickle=False).astype(float) for name in ("intr", "R", "t")
        ]
    except (OSError, ValueError) as error:
        raise RealViewsError(
            f"{folder}: cannot read its calibration ({error}); it needs intr_list.npy, R_list.npy and t_list.npy"
        ) from error
    intrinsics, rotations, places = tables
    if len({len(table) for table in tables}) != 1:
        raise RealViewsError(
            f"{folder}: the lists have {[len(table) for table in tables]} views, expected one number"
        )
    cameras, images, masks = [], [], []
    for k in range(len(intrinsics)):
        image, mask = (
            _read(folder / f"img_{k}.png", cv2.IMREAD_COLOR),
            _read(folder / f"mask_{k}.png", cv2.IMREAD_GRAYSCALE),
        )
        if mask.shape != image.shape[:2]:
            raise RealViewsError(f"{folder / f'mask_{k}.png'}: {mask.shape}, the image has {image.shape[:2]}")
        pose = np.concatenate([places[k].ravel(), Rotation.from_matrix(rotations[k]).as_quat()])
        cameras.append(Camera(f"view_{k}", image.shape[1], image.shape[0], intrinsics[k], np.zeros(5), pose))
        images.append(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
        masks.append(np.where(mask > 0, 255, 0).astype(np.uint8))
    return MultiViewImages(tuple(cameras), np.stack(images), np.stack(masks), np.ones(len(cameras), bool))


def _read(path: Path, kind: int) -> NDArray[Any]:
    image = cv2.imread(str(path), kind)
    if image is None:
        raise RealViewsError(f"{path}: is missing or no image; the calibration lists name it")
    return image


def _cloud(path: Path) -> NDArray[np.float64]:
    """The points (n, 3) of a .ply file, m. Raises RealViewsError."""
    try:
        points = np.asarray(getattr(trimesh.load(path), "vertices", ()), np.float64)
    # trimesh's readers raise whatever their format's parser does
    except Exception as error:
        raise RealViewsError(f"{path}: cannot be read as points ({error}); give a .ply file") from error
    if not len(points):
        raise RealViewsError(f"{path}: holds no points")
    return points


def fit_without(
    views: MultiViewImages,
    held_out: int,
    spacing: float,
    settings: AppearanceSettings,
    cloud: NDArray[np.float64] | None = None,
) -> tuple[HeldOutFit, Splats, Any, NDArray[np.float64]]:
    """Splats from all views but one. Returns the judgement, the splats, their body, and the held-out view as they
    draw it (H, W, 3), 0 to 1, over the settings' background. cloud: (n, 3) measured points of the surface, m.
    """
    available = views.available.copy()
    available[held_out] = False
    chosen = np.flatnonzero(available)
    seen = MultiViewImages(
        tuple(views.cameras[k] for k in chosen),
        views.images[chosen],
        views.masks[chosen],
        np.ones(len(chosen), bool),
    )
    hull = carve(seen, spacing)
    body, splats, normals = scene_splats(hull if cloud is None else hull.near(cloud, _THICKNESS), settings)
    x = body.rest_positions
    window = crop_to_masks(seen, _MARGIN)
    splats = fit_appearance(paint_splats(splats, normals, x, window), x, window, settings)
    background = np.asarray(settings.background)
    rendering = render(splats.gaussians(x), pinhole_views(views.cameras))
    drawn, covered = rendering.over(background), rendering.transmittance < 0.5
    target = np.where(views.masks[..., None] > 0, views.images / 255, background)
    mask = views.masks[held_out] > 0
    square = (drawn[held_out] - target[held_out]) ** 2
    both = mask & covered[held_out]
    ours, theirs = drawn[held_out][both], target[held_out][both]
    gains = (ours * theirs).sum(axis=0) / np.maximum((ours**2).sum(axis=0), 1e-12)
    corrected = (gains * drawn[held_out] - target[held_out]) ** 2
    x0, y0, width, height = cv2.boundingRect(views.masks[held_out])
    rows, columns = (
        slice(max(0, y0 - _MARGIN), y0 + height + _MARGIN),
        slice(max(0, x0 - _MARGIN), x0 + width + _MARGIN),
    )
    result = HeldOutFit(
        view=views.cameras[held_out].name,
        psnr_image_db=_decibel(square),
        psnr_window_db=_decibel(square[rows, columns]),
        psnr_object_db=_decibel(square[mask]),
        psnr_object_exposure_db=_decibel(corrected[mask]),
        gains=(float(gains[0]), float(gains[1]), float(gains[2])),
        silhouette_iou=intersection_over_union(mask, covered[held_out]),
        psnr_fitted_db={
            views.cameras[k].name: _decibel(((drawn[k] - target[k]) ** 2)[views.masks[k] > 0]) for k in chosen
        },
    )
    return result, splats, body, drawn[held_out]


def _decibel(square: NDArray[np.float64]) -> float:
    """Peak signal to noise ratio of squared errors of colours in 0 to 1."""
    return float(-10 * np.log10(max(float(square.mean()), 1e-12)))


def rough_seeds(mask: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
    """The mask as a twin with errors would predict it: too wide, too thin, in the wrong place."""
    height, width = mask.shape
    shift = np.array([[1, 0, 5], [0, 1, 4]], np.float32)
    return {
        "grown": np.asarray(cv2.dilate(mask, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (11, 11))), np.uint8),
        "shrunk": np.asarray(cv2.erode(mask, np.ones((5, 5), np.uint8)), np.uint8),
        "shifted": np.asarray(cv2.warpAffine(mask, shift, (width, height), flags=cv2.INTER_NEAREST), np.uint8),
    }


def judge_masker(views: MultiViewImages) -> dict[str, dict[str, dict[str, float]]]:
    """By view and seed: intersection over union with the given mask, of the seed and of the classical masker."""
    settings = MaskerSettings(working_width=views.cameras[0].width)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for camera, image, mask in zip(views.cameras, views.images, views.masks, strict=True):
        found[camera.name] = {}
        for name, seed in rough_seeds(mask).items():
            made = ClassicalMasker(settings).seed(image, seed).mask
            found[camera.name][name] = {
                "seed_iou": intersection_over_union(seed, mask),
                "mask_iou": intersection_over_union(made, mask),
            }
    return found


def comparison(
    views: MultiViewImages, drawn: dict[int, NDArray[np.float64]], background: tuple[float, float, float]
) -> NDArray[np.uint8]:
    """A picture (h, w, 3): a row per view left out, given | rendered | their difference, twice as strong."""
    given = np.where(views.masks[..., None] > 0, views.images / 255, np.asarray(background))
    pictures = given.copy()
    for k, picture in drawn.items():
        pictures[k] = picture
    levels = [np.clip(np.rint(255 * part), 0, 255).astype(np.uint8) for part in (given, pictures)]
    levels.append(np.clip(2 * np.abs(levels[0].astype(int) - levels[1]), 0, 255).astype(np.uint8))
    cut = [crop_to_masks(replace(views, images=part), _MARGIN).images for part in levels]
    rows = [np.concatenate([part[k] for part in cut], axis=1) for k in sorted(drawn)]
    return np.concatenate(rows)


def fit_splats_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Views, masks and calibration; see docs/real_views.md.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the splats, the picture and the figures.")],
    held_out: Annotated[
        int | None, typer.Option(help="The view to leave out, from 0; each in turn without it.")
    ] = None,
    count: Annotated[int, typer.Option(min=2, help="Number of splats.")] = 8000,
    iterations: Annotated[int, typer.Option(min=0, help="Steps of the fit.")] = 80,
    spacing: Annotated[
        float, typer.Option(help="Edge of the cells carved, m; about a pixel's width there.")
    ] = 0.002,
    seed: Annotated[int, typer.Option(help="Of where the splats lie.")] = 0,
    cloud: Annotated[
        Path | None, typer.Option(help="Measured points of the surface (.ply, m) that bound it.")
    ] = None,
) -> None:
    """Fit splats to all views of a folder but one, and say how well they explain the one left out.

    Writes splats_VIEW.ply (fitted without VIEW), comparison.png and real_views.json.
    """
    views = load_views(folder)
    if held_out is not None and not 0 <= held_out < len(views.cameras):
        raise RealViewsError(f"--held-out is {held_out}, expected 0 to {len(views.cameras) - 1}")
    settings = AppearanceSettings(count=count, iterations=iterations, seed=seed)
    points = None if cloud is None else _cloud(cloud)
    out.mkdir(parents=True, exist_ok=True)
    results, drawn = [], {}
    for k in range(len(views.cameras)) if held_out is None else [held_out]:
        result, splats, body, drawn[k] = fit_without(views, k, spacing, settings, points)
        results.append(result)
        save_splats(out / f"splats_{result.view}.ply", splats, body)
        print(
            f"{result.view} left out: PSNR {result.psnr_image_db:.1f} dB (image),"
            f" {result.psnr_window_db:.1f} dB (window),"
            f" {result.psnr_object_db:.1f} dB (object alone); silhouette IoU {result.silhouette_iou:.3f}"
        )
    masker = judge_masker(views)
    worst = min(figures["mask_iou"] for seeds in masker.values() for figures in seeds.values())
    print(f"classical masker from rough seeds: IoU {worst:.3f} at least")
    picture = cv2.cvtColor(comparison(views, drawn, settings.background), cv2.COLOR_RGB2BGR)
    with atomic_write(out / "comparison.png") as temporary:
        temporary.write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    figures_of = {
        "settings": asdict(settings) | {"spacing_m": spacing, "cloud": None if cloud is None else cloud.name},
        "held_out": [asdict(result) for result in results],
        "masker": masker,
    }
    with atomic_write(out / "real_views.json") as temporary:
        temporary.write_text(json.dumps(figures_of, indent=1) + "\n", encoding="utf-8")
