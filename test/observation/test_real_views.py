"""Four real views of a rope with given masks: the cameras on data that no one here has made."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from realsimloop_ros.observation.cameras import Camera

DATA = Path(os.environ.get("REALSIMLOOP_DATA", Path(__file__).parents[3] / "shared" / "data")) / "multi_view"

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"{DATA} is absent: name the folder that holds multi_view in REALSIMLOOP_DATA"
)


@pytest.fixture(scope="module")
def real_cameras() -> list[Camera]:
    rotations, translations = np.load(DATA / "R_list.npy"), np.load(DATA / "t_list.npy")
    cameras = []
    for index, values in enumerate(np.load(DATA / "intr_list.npy")):
        intrinsics = np.array(values, float)
        pose = np.concatenate([translations[index].ravel(), Rotation.from_matrix(rotations[index]).as_quat()])
        cameras.append(Camera(f"real_{index}", 640, 480, intrinsics, np.zeros(5), pose))
    return cameras


@pytest.fixture(scope="module")
def real_views() -> list[tuple[np.ndarray, np.ndarray]]:
    views = []
    for index in range(4):
        image = cv2.cvtColor(cv2.imread(str(DATA / f"img_{index}.png")), cv2.COLOR_BGR2RGB)
        mask = cv2.imread(str(DATA / f"mask_{index}.png"), cv2.IMREAD_GRAYSCALE)
        views.append((image, np.where(mask > 0, 255, 0).astype(np.uint8)))
    return views


def cloud() -> np.ndarray:
    """The points (k, 3) of the coloured cloud, m."""
    content = (DATA / "pcd.ply").read_bytes()
    end = content.index(b"end_header\n") + len(b"end_header\n")
    header = content[:end].decode().splitlines()
    count = int(next(line for line in header if line.startswith("element vertex")).split()[2])
    kinds = {"double": "<f8", "float": "<f4", "uchar": "u1"}
    properties = [line.split() for line in header if line.startswith("property")]
    table = np.frombuffer(content, [(p[2], kinds[p[1]]) for p in properties], count, end)
    return np.stack([table[axis] for axis in "xyz"], axis=1).astype(float)


def test_the_cloud_falls_into_the_given_masks(real_cameras, real_views):
    points = cloud()
    for camera, (_, mask) in zip(real_cameras, real_views, strict=True):
        pixels, depth = camera.project(points)
        assert (depth > 0).all()
        column, row = np.rint(pixels).astype(int).T
        inside = (column >= 0) & (column < 640) & (row >= 0) & (row < 480)
        near = cv2.dilate(mask, np.ones((9, 9), np.uint8))
        share = np.mean(near[row[inside], column[inside]] > 0) * inside.mean()
        print(f"{camera.name}: {share:.3f} of the cloud within 4 px of the mask")
        assert share > 0.9
