import numpy as np
import pytest

from realsimloop_ros.evaluation.surface_views import paint, shading, view_surface
from realsimloop_ros.observation.cameras import Camera, look_at

# a square of 0.2 m at x = 0, seen from x = 1
CORNERS = np.array([[0.0, -0.1, -0.1], [0.0, 0.1, -0.1], [0.0, 0.1, 0.1], [0.0, -0.1, 0.1]])
TRIANGLES = np.array([[0, 1, 2], [0, 2, 3]])


@pytest.fixture
def camera() -> Camera:
    intrinsics = np.array([[100.0, 0.0, 31.5], [0.0, 100.0, 23.5], [0.0, 0.0, 1.0]])
    return Camera("camera", 64, 48, intrinsics, np.zeros(5), look_at([1.0, 0.0, 0.0], [0.0, 0.0, 0.0]))


def test_a_square_covers_the_pixels_that_its_projection_does(camera: Camera) -> None:
    view = view_surface(camera, CORNERS, TRIANGLES)
    # 20 x 20 pixels, two samples per pixel and axis
    assert view.visible.sum() == 40 * 40
    np.testing.assert_allclose(view.values(np.arange(4.0))[~view.visible], 0.0)


def test_values_are_interpolated_between_vertices(camera: Camera) -> None:
    view = view_surface(camera, CORNERS, TRIANGLES)
    heights = view.values(CORNERS[:, 2])[view.visible]
    # samples lie half a sample from the edge: 0.1 m less a fortieth of the height each; barycentrics are float32
    np.testing.assert_allclose([heights.min(), heights.max()], [-0.0975, 0.0975], atol=1e-6)


def test_a_surface_seen_from_behind_is_not_seen(camera: Camera) -> None:
    assert not view_surface(camera, CORNERS, TRIANGLES[:, ::-1]).visible.any()


def test_a_surface_that_faces_the_camera_is_bright(camera: Camera) -> None:
    view = view_surface(camera, CORNERS, TRIANGLES)
    brightness = shading(view, camera, CORNERS)
    # seen at 8 degrees at the corners: 0.45 + 0.55 cos(8 deg)
    assert brightness[view.visible].min() > 0.99
    assert (brightness[~view.visible] == 0.0).all()


def test_paint_mixes_by_cover() -> None:
    image = np.full((2, 2, 3), 100, np.uint8)
    colour = np.full((4, 4, 3), 200.0)
    cover = np.zeros((4, 4))
    cover[:2, :2] = 0.5
    painted = paint(image, colour, cover)
    assert painted[0, 0].tolist() == [150, 150, 150]
    assert painted[1, 1].tolist() == [100, 100, 100]
