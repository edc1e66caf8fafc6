"""Splats judged by a view left out: on four real views of a rope, and the command on views of a box."""

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from realsimloop_ros.cli import main
from realsimloop_ros.evaluation.real_views import RealViewsError, fit_without, judge_masker, load_views
from realsimloop_ros.observation.appearance import AppearanceSettings
from realsimloop_ros.observation.cameras import Camera, look_at
from realsimloop_ros.observation.silhouettes import paint_surface, silhouette

DATA = Path(os.environ.get("REALSIMLOOP_DATA", Path(__file__).parents[3] / "shared" / "data")) / "multi_view"


@pytest.mark.skipif(
    not DATA.is_dir(), reason=f"{DATA} is absent: name the folder that holds multi_view in REALSIMLOOP_DATA"
)
def test_splats_of_three_real_views_explain_the_fourth() -> None:
    views = load_views(DATA)
    # view 0 is the hardest to leave out; docs/real_views.md has all four and a longer fit
    result, splats, _, _ = fit_without(views, 0, 0.003, AppearanceSettings(count=3000, iterations=10))
    print(result)
    assert len(splats) == 3000
    assert result.psnr_image_db > 24.0
    # what a longer fit reaches is 23.1 and 18.5 dB; below these the geometry or the colours are wrong
    assert result.psnr_window_db > 21.0
    assert result.psnr_object_db > 17.0
    assert result.silhouette_iou > 0.6
    masks = judge_masker(views)
    assert min(f["mask_iou"] for seeds in masks.values() for f in seeds.values()) >= 0.9
    assert max(f["seed_iou"] for seeds in masks.values() for f in seeds.values()) < 0.75


def write_views(folder: Path) -> None:
    """Four views of a painted box, in the layout that is read."""
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * (0.05, 0.03, 0.02)
    faces = np.array(
        [
            0,
            1,
            3,
            0,
            3,
            2,
            4,
            6,
            7,
            4,
            7,
            5,
            0,
            4,
            5,
            0,
            5,
            1,
            2,
            3,
            7,
            2,
            7,
            6,
            0,
            2,
            6,
            0,
            6,
            4,
            1,
            5,
            7,
            1,
            7,
            3,
        ]
    ).reshape(-1, 3)
    colours = np.array([[200, 60 + 20 * k, 40] for k in range(8)], np.uint8)
    matrix = np.array([[150.0, 0, 47.5], [0, 150.0, 35.5], [0, 0, 1]])
    rotations, places = [], []
    for k, position in enumerate([(0.3, -0.2, 0.2), (-0.3, -0.2, 0.25), (0.25, 0.3, 0.1), (-0.25, 0.25, 0.3)]):
        camera = Camera(f"view_{k}", 96, 72, matrix, np.zeros(5), look_at(position, (0, 0, 0)))
        grey = np.full((72, 96, 3), 90, np.uint8)
        picture = paint_surface(grey, camera, corners, faces, colours, 1.0, outline=(200, 100, 40))
        cv2.imwrite(str(folder / f"img_{k}.png"), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
        cv2.imwrite(str(folder / f"mask_{k}.png"), silhouette(camera, corners, faces))
        rotations.append(Rotation.from_quat(camera.world_from_camera[3:]).as_matrix())
        places.append(camera.centre)
    np.save(folder / "intr_list.npy", np.tile(matrix, (4, 1, 1)))
    np.save(folder / "R_list.npy", rotations)
    np.save(folder / "t_list.npy", places)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def test_the_command_writes_splats_a_picture_and_figures(tmp_path: Path) -> None:
    write_views(tmp_path)
    out = tmp_path / "out"
    options = ("--count", "400", "--iterations", "5", "--held-out", "1")
    assert run("fit-splats", str(tmp_path), "--out", str(out), *options) == 0
    figures = json.loads((out / "real_views.json").read_text())
    (result,) = figures["held_out"]
    assert result["view"] == "view_1"
    assert set(result["psnr_fitted_db"]) == {"view_0", "view_2", "view_3"}
    # a box of nearly one colour is easy: it is drawn where it is, in its colour
    assert result["silhouette_iou"] > 0.6
    assert result["psnr_image_db"] > 20.0
    assert (out / "splats_view_1.ply").read_bytes().startswith(b"ply")
    picture = cv2.imread(str(out / "comparison.png"))
    assert picture.shape[1] % 3 == 0
    given, drawn, difference = np.split(picture.astype(int), 3, axis=1)
    assert np.abs(difference - np.clip(2 * np.abs(given - drawn), 0, 255)).max() <= 2  # rounding


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(RealViewsError, match="intr_list"):
        load_views(tmp_path)
    write_views(tmp_path)
    (tmp_path / "mask_2.png").unlink()
    with pytest.raises(RealViewsError, match=r"mask_2\.png"):
        load_views(tmp_path)
