"""The renderer against projections, colours and light known in closed form, and against another ray
caster.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial import ConvexHull
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.body import Body, Grip, Zone, surface_triangles
from realsimloop_ros.body.meshing import box_bar
from realsimloop_ros.body.poses import make_pose
from realsimloop_ros.cell.renderer import Renderer
from realsimloop_ros.cell.scenery import LightDescription, SceneDescription, room_radiance, solid_texture
from realsimloop_ros.observation.cameras import Camera, CameraError, look_at

SIZE = np.array([0.2, 0.03, 0.03])
ARMS = ("left", "right")
TOOLS = np.array([[-0.1, 0.0, 0.4, 0.0, 0.0, 0.0, 1.0], [0.1, 0.0, 0.4, 0.0, 0.0, 0.0, 1.0]])
DISTORTION = np.array([-0.09, 0.03, 0.0006, 0.0007, 0.0])
SCENE = SceneDescription.model_validate(
    {
        "seed": 1,
        "supersampling": 2,
        "texture": {
            "base": [0.8, 0.3, 0.1],
            "spots": [[0.2, 0.05, 0.05], [0.05, 0.3, 0.4]],
            "spot_radius": [0.006, 0.012],
            "spots_per_litre": 300,
            "unevenness": 0.0,
        },
        "lights": [],
        "sky": [1.0, 1.0, 1.0],
        "ground": [1.0, 1.0, 1.0],
        "grippers": {},
        "room": {
            "minimum": [-2, -1.6, 0],
            "maximum": [2, 1.6, 2.6],
            "floor": [0.2, 0.2, 0.2],
            "wall": [0.5, 0.5, 0.5],
            "contrast": 0.2,
            "tile": 0.3,
        },
    }
)


def bar():
    positions, tets = box_bar(*SIZE, (10, 2, 2), origin=(-0.1, -0.015, 0.385))
    ends = np.flatnonzero(positions[:, 0] < -0.09 + 1e-9), np.flatnonzero(positions[:, 0] > 0.09 - 1e-9)
    grips = tuple(Grip(name, f"{name}_tool", v, p) for name, v, p in zip(ARMS, ends, TOOLS, strict=True))
    return Body("bar", positions, tets, np.zeros(len(tets), np.int64), (Zone("bar", 1070.0),), grips)


BODY = bar()


def camera(distortion=DISTORTION, position=(0.23, -0.43, 0.58)):
    matrix = np.array([[306.0, 0.0, 79.9], [0.0, 306.5, 59.2], [0.0, 0.0, 1.0]])
    return Camera("camera_0", 160, 120, matrix, distortion, look_at(position, (0.0, 0.0, 0.4)))


def deformed():
    """Twisted by 0.8 rad from end to end and sagging, like the bar in the cell."""
    x = BODY.rest_positions.copy()
    share = x[:, 0] / 0.2
    turns = Rotation.from_rotvec(np.outer(0.8 * share, [1.0, 0.0, 0.0]))
    centre = np.stack([x[:, 0], 0 * share, 0.4 - 0.01 * np.cos(np.pi * share)], axis=1)
    return centre + turns.apply(x * [0, 1, 1] - [0, 0, 0.4])


@pytest.mark.parametrize("distortion", [np.zeros(5), DISTORTION], ids=["pinhole", "distorted"])
def test_silhouette_of_a_box_has_the_area_of_its_projection(distortion):
    view_from = camera(distortion)
    (view,) = Renderer(BODY, [view_from], SCENE, ARMS).render(BODY.rest_positions, TOOLS)
    # a convex body's outline is the hull of its projected edges, sampled densely as distortion bends them
    low, high = BODY.rest_positions.min(axis=0), BODY.rest_positions.max(axis=0)
    grid = np.stack(np.meshgrid(*[np.linspace(0.0, 1.0, 41)] * 3), axis=-1).reshape(-1, 3)
    on_edge = ((grid == 0.0) | (grid == 1.0)).sum(axis=1) >= 2
    outline, _ = view_from.project(low + grid[on_edge] * (high - low))
    area = ConvexHull(outline).volume
    # samples are a quarter of a pixel; their error along an outline of some 250 px averages to about one of
    # them
    assert abs(view.body.sum() - area) < 0.005 * area


def test_coverage_agrees_with_another_ray_caster():
    pytest.importorskip("embreex")
    import trimesh

    view_from = camera()
    coarse = SCENE.model_copy(update={"supersampling": 1})
    (view,) = Renderer(BODY, [view_from], coarse, ARMS).render(deformed(), TOOLS)
    mesh = trimesh.Trimesh(deformed(), surface_triangles(BODY), process=False)
    depth = 0.5
    # rays through pixels whose centres, once distorted, are the image's pixels: found from points at one
    # depth
    u, v = np.meshgrid(np.linspace(-0.26, 0.26, 300), np.linspace(-0.2, 0.2, 240))
    local = np.stack([u * depth, v * depth, np.full_like(u, depth)], axis=-1).reshape(-1, 3)
    turn = Rotation.from_quat(view_from.world_from_camera[3:])
    pixels, _ = view_from.project(turn.apply(local) + view_from.centre)
    hit = mesh.ray.intersects_any(np.tile(view_from.centre, (len(local), 1)), turn.apply(local))
    column, row = np.round(pixels).astype(int).T
    inside = (column >= 0) & (column < 160) & (row >= 0) & (row < 120)
    ours = view.body[row[inside], column[inside]] > 0.5
    # a ray is up to half a pixel from the pixel's centre, so only pixels on the outline may differ: 2 px of
    # 250 px around in 19,200 px, half of them on the wrong side
    assert np.mean(ours != hit[inside]) < 0.5 * 2 * 250 / 19200


def test_texture_appears_where_its_points_project_to():
    """With even light the picture is the texture, seen where the deformed surface's points project to."""
    view_from = camera()
    x = deformed()
    (view,) = Renderer(BODY, [view_from], SCENE, ARMS).render(x, TOOLS)
    low, high = BODY.rest_positions.min(axis=0), BODY.rest_positions.max(axis=0)
    texture = solid_texture(SCENE.texture, low, high, SCENE.seed)
    compared = []
    for triangle in surface_triangles(BODY):
        centre, rest = x[triangle].mean(axis=0), BODY.rest_positions[triangle].mean(axis=0)
        normal = np.cross(x[triangle[1]] - x[triangle[0]], x[triangle[2]] - x[triangle[0]])
        towards = view_from.centre - centre
        facing = normal @ towards / np.linalg.norm(normal) / np.linalg.norm(towards)
        cell = np.round(texture.grid_coordinates(rest)).astype(int)
        around = texture.colours[tuple(slice(max(c - 3, 0), c + 4) for c in cell)].reshape(-1, 3)
        (pixel,), _ = view_from.project(centre[None])
        column, row = np.round(pixel).astype(int)
        near = (slice(max(row - 1, 0), row + 2), slice(max(column - 1, 0), column + 2))
        # only where the texture is even over the pixels around and nothing else is seen in them
        if facing < 0.4 or np.ptp(around, axis=0).max() > 1e-6 or view.body[near].min() < 1.0:
            continue
        # float32 colours summed over four samples
        np.testing.assert_allclose(view.radiance[row, column], around[0], atol=1e-5)
        compared.append(tuple(around[0]))
    assert len(compared) > 30
    assert len(set(compared)) == 3  # the base colour and both kinds of spots


def test_a_face_is_as_bright_as_lamberts_law_says():
    towards = np.array([0.2, -1.0, 0.4])
    lit = SCENE.model_copy(
        update={
            "lights": (LightDescription(direction=tuple(towards), colour=(0.6, 0.5, 0.4)),),
            "sky": (0.3, 0.3, 0.3),
            "ground": (0.1, 0.1, 0.1),
            "texture": SCENE.texture.model_copy(update={"spots": (SCENE.texture.base,)}),
        }
    )
    view_from = camera()
    (view,) = Renderer(BODY, [view_from], lit, ARMS).render(BODY.rest_positions, TOOLS)
    # the face towards -y: half sky, half ground, and the light at its angle
    cosine = -towards[1] / np.linalg.norm(towards)
    expected = np.array(SCENE.texture.base) * (0.5 * (0.3 + 0.1) + cosine * np.array([0.6, 0.5, 0.4]))
    (pixel,), _ = view_from.project(np.array([[0.03, -0.015, 0.4]]))
    column, row = np.round(pixel).astype(int)
    np.testing.assert_allclose(view.radiance[row, column], expected, rtol=1e-5)  # float32


def test_gripper_hides_the_body_behind_it_and_moves_with_its_tool():
    box = {"minimum": [-0.02, -0.04, -0.04], "maximum": [0.02, 0.04, 0.04], "colour": [0.1, 0.2, 0.3]}
    scene = SceneDescription.model_validate({**SCENE.model_dump(), "grippers": {"left": [box]}})
    view_from = camera()
    renderer = Renderer(BODY, [view_from], scene, ARMS)

    def seen(tool):
        (view,) = renderer.render(BODY.rest_positions, np.stack([tool, TOOLS[1]]))
        (pixel,), _ = view_from.project(np.array([[-0.09, -0.015, 0.4]]))
        column, row = np.round(pixel).astype(int)
        return view.body[row, column], view.radiance[row, column]

    cover, colour = seen(TOOLS[0])
    assert cover == 0.0
    # even light shows the box's own colour; float32
    np.testing.assert_allclose(colour, [0.1, 0.2, 0.3], rtol=1e-5)
    cover, _ = seen(make_pose([-0.2, 0.0, 0.4], Rotation.identity()))
    assert cover == 1.0


def test_the_room_shows_where_nothing_stands_before_it():
    view_from = camera(np.zeros(5))
    scene = SCENE.model_copy(update={"supersampling": 1})
    (view,) = Renderer(BODY, [view_from], scene, ARMS).render(BODY.rest_positions, TOOLS)
    turn = Rotation.from_quat(view_from.world_from_camera[3:])
    direction = turn.apply([(5 - 79.9) / 306.0, (110 - 59.2) / 306.5, 1.0])
    expected = room_radiance(SCENE.room, view_from.centre, direction[None], SCENE.seed)[0]
    assert view.body[110, 5] == 0.0
    np.testing.assert_array_equal(view.radiance[110, 5], expected)


def test_number_of_workers_and_choice_of_cameras_do_not_change_a_picture():
    cameras = [camera(), replace(camera(position=(-0.2, 0.42, 0.67)), name="camera_1")]
    both = Renderer(BODY, cameras, SCENE, ARMS).render(deformed(), TOOLS)
    threads = Renderer(BODY, cameras, SCENE, ARMS, workers=2)
    for k, view in enumerate(threads.render(deformed(), TOOLS)):
        assert view.radiance.tobytes() == both[k].radiance.tobytes()
    (second,) = threads.render(deformed(), TOOLS, cameras=[1])
    assert second.radiance.tobytes() == both[1].radiance.tobytes()


def test_distortion_without_an_inverse_is_refused_by_name():
    with pytest.raises(CameraError, match=r"camera_0.*distortion"):
        Renderer(BODY, [camera(np.array([-40.0, 0.0, 0.0, 0.0, 0.0]))], SCENE, ARMS)
