"""Cameras: projection and distortion as OpenCV has them, and what is wrong with a bad one."""

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from realsimloop_ros.observation.cameras import Camera, CameraError, look_at, pinhole_views
from realsimloop_ros.observation.images import ImagesError, MultiViewImages, rectify

INTRINSICS = np.array([[310.0, 0, 78.0], [0, 305.0, 61.0], [0, 0, 1]])
DISTORTION = np.array([-0.2, 0.06, 0.002, -0.001, 0.01])


def make(**changes) -> Camera:
    values = {
        "name": "camera",
        "width": 160,
        "height": 120,
        "intrinsics": INTRINSICS,
        "distortion": DISTORTION,
        "world_from_camera": look_at((0.3, -0.4, 0.6), (0, 0, 0.4)),
    }
    return Camera(**{**values, **changes})


def test_projection_is_that_of_opencv():
    camera = make()
    points = np.random.default_rng(0).uniform(-0.1, 0.1, (50, 3)) + np.array([0, 0, 0.4])
    pixels, depth = camera.project(points)
    pose = camera.camera_from_world
    expected, _ = cv2.projectPoints(
        points, cv2.Rodrigues(pose[:3, :3].copy())[0], pose[:3, 3].copy(), INTRINSICS, DISTORTION
    )
    # both in float64: rounding of about 300 px times 1e-16, with room for the rotation vector
    np.testing.assert_allclose(pixels, expected[:, 0], atol=1e-9)
    np.testing.assert_allclose(depth, camera.in_camera(points)[:, 2])


def test_points_behind_the_camera_have_no_pixel():
    camera = make()
    pixels, depth = camera.project(np.add(camera.centre, [[0.3, -0.4, 0.2]]))
    assert np.isnan(pixels).all()
    assert depth[0] < 0


def test_look_at_centres_the_target_and_keeps_up_up():
    camera = make(distortion=np.zeros(5))
    pixels, _ = camera.project(np.array([[0, 0, 0.4], [0, 0, 0.45], [0.05, 0.0375, 0.4]]))
    np.testing.assert_allclose(pixels[0], [78, 61], atol=1e-9)
    assert pixels[1, 1] < pixels[0, 1]  # up in the world is up in the image
    assert pixels[2, 0] > pixels[0, 0]  # right of the line of sight is right in the image
    with pytest.raises(CameraError, match="collinear"):
        look_at((0, 0, 1), (0, 0, 0))


def test_undistortion_brings_points_to_where_the_pinhole_sees_them():
    # the lens is long, so it takes a strong distortion to move a point by a pixel
    camera = make(distortion=np.array([-0.9, 0.1, 0.004, -0.003, 0.0]))
    image = np.zeros((120, 160), np.uint8)
    points = np.array([[0.08, 0.03, 0.42], [-0.09, 0.0, 0.38], [0.0, 0.0, 0.4]])
    pixels, _ = camera.project(points)
    for x, y in pixels:
        # a blob with a sub-pixel centre
        v, u = np.mgrid[:120, :160]
        image = np.maximum(image, (255 * np.exp(-((u - x) ** 2 + (v - y) ** 2) / 4)).astype(np.uint8))
    flat = camera.undistort(image).astype(float)
    expected, _ = camera.rectified.project(points)
    for x, y in expected:
        v, u = np.mgrid[round(y) - 5 : round(y) + 6, round(x) - 5 : round(x) + 6]
        window = flat[v, u]
        centre = np.array([(u * window).sum(), (v * window).sum()]) / window.sum()
        # bilinear fixed-point maps are good to 1/32 px, the window cuts the blob a little
        np.testing.assert_allclose(centre, (x, y), atol=0.1)
    assert np.abs(expected - pixels).max() > 1  # there was something to undo
    assert camera.undistortion_maps is camera.undistortion_maps
    assert camera.rectified.is_rectified
    assert camera.rectified.undistort(image) is image


def test_masks_stay_binary_when_undistorted():
    mask = np.zeros((120, 160), np.uint8)
    mask[40:80, 30:130] = 255
    assert set(np.unique(make().undistort_mask(mask))) == {0, 255}


def test_scaled_and_cropped_cameras_see_the_same_points():
    camera = make(distortion=np.zeros(5))
    point = np.array([[0.03, 0.01, 0.41]])
    full, _ = camera.project(point)
    half, _ = camera.scaled(0.5).project(point)
    # pixel areas, not centres, are halved
    np.testing.assert_allclose(half, (full + 0.5) / 2 - 0.5, atol=1e-9)
    window, _ = camera.cropped(20, 10, 100, 80).project(point)
    np.testing.assert_allclose(window, full - (20, 10), atol=1e-9)
    with pytest.raises(CameraError, match="leaves"):
        camera.cropped(100, 0, 100, 80)
    with pytest.raises(CameraError, match="scaling"):
        camera.scaled(0.33)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "name"),
        ({"width": 0}, "width is 0"),
        ({"height": 20.5}, "height is 20.5"),
        ({"intrinsics": np.eye(4)}, "intrinsics has shape"),
        ({"intrinsics": np.zeros((3, 3))}, "calibrated"),
        ({"intrinsics": np.array([[300, 1, 80], [0, 300, 60], [0, 0, 1]])}, "skew"),
        ({"distortion": np.zeros(4)}, "distortion has shape"),
        ({"distortion": [0, 0, np.nan, 0, 0]}, "not finite"),
        ({"distortion": ["a"] * 5}, "not numeric"),
        ({"world_from_camera": np.array([0, 0, 0, 0, 0, 0, 2.0])}, "quaternion"),
    ],
)
def test_a_bad_camera_is_told_by_field_and_value(changes, words):
    with pytest.raises(CameraError, match=words):
        make(**changes)


def test_cameras_are_frozen_through_and_through():
    with pytest.raises(ValueError, match="read-only"):
        make().intrinsics[0, 0] = 1.0


def test_splats_are_only_drawn_through_rectified_cameras_of_one_size():
    with pytest.raises(CameraError, match="rectify"):
        pinhole_views([make()])
    with pytest.raises(CameraError, match="scale or crop"):
        pinhole_views([make().rectified, make(name="other", width=80).rectified])
    with pytest.raises(CameraError, match="no camera"):
        pinhole_views([])


def test_a_pose_and_its_inverse_agree():
    camera = make()
    rotation = Rotation.from_quat(camera.world_from_camera[3:]).as_matrix()
    np.testing.assert_allclose(camera.camera_from_world[:3, :3] @ rotation, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(camera.in_camera(camera.centre), np.zeros(3), atol=1e-12)


def views(**changes) -> MultiViewImages:
    values = {
        "cameras": (make(), make(name="second")),
        "images": np.zeros((2, 120, 160, 3), np.uint8),
        "masks": np.zeros((2, 120, 160), np.uint8),
        "available": np.ones(2, bool),
    }
    return MultiViewImages(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cameras": ()}, "empty"),
        ({"cameras": (make(), make())}, "twice"),
        ({"cameras": (make(), make(name="b", width=80))}, "80 x 120"),
        ({"images": np.zeros((2, 120, 160, 3))}, "images is float64"),
        ({"masks": np.zeros((1, 120, 160), np.uint8)}, "masks is"),
        ({"masks": np.ones((2, 120, 160), np.uint8)}, "threshold"),
        ({"available": np.ones(3, bool)}, "available is"),
        ({"depth": np.ones((2, 120, 160))}, "depth is float64"),
        ({"depth": np.zeros((2, 120, 160), np.float32)}, "depth has values that are not positive"),
    ],
)
def test_views_that_do_not_belong_together_are_refused(changes, words):
    with pytest.raises(ImagesError, match=words):
        views(**changes)


def test_rectified_views_are_pinhole_views():
    flat = rectify(views(images=np.full((2, 120, 160, 3), 80, np.uint8)))
    assert all(camera.is_rectified for camera in flat.cameras)
    assert flat.images[:, 60, 80].tolist() == [[80] * 3] * 2
    assert rectify(flat) is flat


def test_a_rectified_mask_lies_where_the_rectified_image_lies():
    camera = make()
    image = np.zeros((camera.height, camera.width), np.uint8)
    height, width = image.shape
    image[height // 3 : 2 * height // 3, width // 3 : 2 * width // 3] = 255
    soft = camera.undistort(image).astype(float)
    hard = camera.undistort_mask(image).astype(float)
    for axis in range(2):
        places = np.arange(image.shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1))
        centre_soft, centre_hard = ((places * picture).sum() / picture.sum() for picture in (soft, hard))
        # thresholding moves single pixels of the rim; nearest neighbours moved the whole mask by 0.4 px
        assert abs(centre_soft - centre_hard) < 0.05


def test_a_rectified_depth_is_that_of_the_surface_the_rectified_pixel_sees():
    # a plane that slants away from the camera: its depth under each rectified pixel is known in closed form
    camera = make()
    normal, offset = np.array([0.3, -0.2, 1.0]), 0.6
    columns, rows = np.meshgrid(np.arange(camera.width, dtype=float), np.arange(camera.height, dtype=float))
    pixels = np.stack([columns, rows], axis=-1)
    plane = (pixels - camera.intrinsics[:2, 2]) / (camera.intrinsics[0, 0], camera.intrinsics[1, 1])
    expected = offset / (plane @ normal[:2] + normal[2])
    # what the distorted camera measures: the rays of its pixels, undistorted by OpenCV
    rays = cv2.undistortPoints(
        pixels.reshape(-1, 1, 2), np.array(camera.intrinsics), np.array(camera.distortion)
    ).reshape(*pixels.shape)
    measured = (offset / (rays @ normal[:2] + normal[2])).astype(np.float32)
    measured[10:20, 30:50] = np.nan
    two = np.stack([measured, measured])
    flat = rectify(views(depth=two))
    assert flat.depth is not None and flat.depth.dtype == np.float32
    known = np.isfinite(flat.depth[0])
    assert known.mean() > 0.9
    # half a pixel's slant at most, which is what the nearest neighbour is off by
    step = np.abs(np.stack(np.gradient(expected))).sum(axis=0).max()
    assert np.abs(flat.depth[0] - expected)[known].max() < 0.5 * step + 1e-6
    # the hole stays a hole of its size, nothing is interpolated across its rim
    assert 150 < np.count_nonzero(~known[5:25, 25:55]) < 250
