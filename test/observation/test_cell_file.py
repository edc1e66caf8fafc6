"""The cell file: what ships is sound, and what is wrong is told by file and field."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from realsimloop_ros.observation.cell_file import CellFileError, load_cell

SHIPPED = Path(__file__).parents[2] / "config" / "cells" / "dual_arm.yaml"


@pytest.fixture
def edited(tmp_path):
    """Function (edit) -> path of the shipped cell with `edit` applied to its content."""

    def write(edit):
        content = yaml.safe_load(SHIPPED.read_text())
        edit(content)
        path = tmp_path / "cell.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def test_every_camera_of_the_cell_sees_the_whole_bar_large():
    cell = load_cell(SHIPPED)
    corners = np.array([[x, y, z] for x in (-0.1, 0.1) for y in (-0.015, 0.015) for z in (0.385, 0.415)])
    assert [camera.name for camera in cell.camera_list()] == [f"camera_{i}" for i in range(4)]
    for camera in cell.camera_list():
        pixels, depth = camera.project(corners)
        assert (depth > 0.3).all()
        # room for the arms' motion on both sides, and most of the width filled
        assert pixels[:, 0].min() > 8
        assert pixels[:, 0].max() < camera.width - 8
        assert np.ptp(pixels[:, 0]) > 0.6 * camera.width
        assert pixels[:, 1].min() > 20
        assert pixels[:, 1].max() < camera.height - 20


def test_no_corner_of_a_rectified_image_is_unseen():
    for camera in load_cell(SHIPPED).camera_list():
        white = np.full((camera.height, camera.width), 255, np.uint8)
        assert camera.undistort(white).min() == 255


def test_grips_hold_the_ends_of_the_bar():
    cell = load_cell(SHIPPED)
    assert [grip.frame for grip in cell.grips] == ["left_tool", "right_tool"]
    np.testing.assert_allclose(cell.rest_poses()[:, :3], [[-0.1, 0, 0.4], [0.1, 0, 0.4]])


def test_paths_are_relative_to_the_cell_file(tmp_path):
    shutil.copy(SHIPPED, tmp_path / "other.yaml")
    cell = load_cell(tmp_path / "other.yaml")
    assert cell.resolve(cell.body).parent.parent == tmp_path.resolve().parent
    assert cell.resolve(Path("/somewhere/body.yaml")) == Path("/somewhere/body.yaml")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda c: c.update(colour="red"), "colour"),
        (lambda c: c.pop("body"), "body"),
        (lambda c: c["cameras"][1].pop("intrinsics"), "cameras.1.intrinsics"),
        (lambda c: c["cameras"][1]["intrinsics"].update(fx=-1), "cameras.1.intrinsics.fx"),
        (lambda c: c["cameras"][2].update(distortion=[0, 0]), "cameras.2.distortion"),
        (lambda c: c["cameras"][0].update(world_from_camera=[0] * 7), "cameras.0.world_from_camera"),
        (lambda c: c["cameras"][0].update(image_topic="a b"), "cameras.0.image_topic"),
        (lambda c: c["cameras"][0].update(distortion=[0, 0, 0, 0, float("nan")]), "camera_0.*not finite"),
        (lambda c: c["cameras"][3].update(name="camera_0"), "cameras.name: camera_0"),
        (lambda c: c["grips"][0].update(frame="right_tool"), "grips.frame: right_tool"),
        (lambda c: c.update(grips=[]), "grips"),
        (lambda c: c.update(folder="/"), "folder"),
    ],
)
def test_a_mistake_is_told_by_file_and_field(edited, edit, words):
    path = edited(edit)
    with pytest.raises(CellFileError, match=words) as error:
        load_cell(path)
    assert str(path) in str(error.value)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(CellFileError, match=r"missing\.yaml"):
        load_cell(tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [")
    with pytest.raises(CellFileError, match="is not YAML"):
        load_cell(broken)
    broken.write_text("- 1")
    with pytest.raises(CellFileError, match="mapping"):
        load_cell(broken)


def test_a_sam2_masker_needs_its_weights(edited, tmp_path):
    def choose(content):
        content["cameras"][1]["masker"] = "sam2"

    with pytest.raises(CellFileError, match="camera_1 use sam2, so the cell needs a block `sam2`"):
        load_cell(edited(choose))

    def describe(content):
        choose(content)
        content["sam2"] = {"weights": "sam2.pt", "sha256": "ab" * 32, "model": "small", "image_size": 512}

    settings = load_cell(edited(describe)).sam2_settings()
    assert settings.weights == tmp_path.resolve() / "sam2.pt"
    assert (settings.model, settings.image_size) == ("small", 512)
    assert load_cell(SHIPPED).sam2_settings() is None


def test_shapes_of_the_arms_follow_their_tools(edited):
    def describe(content):
        content["grips"][1]["shape"] = [{"start": [0, 0, 0.02], "end": [0, 0.1, 0.02], "radius": 0.03}]

    cell = load_cell(edited(describe))
    # the right tool turned by 90 degrees about z: its y is the world's -x
    poses = np.array([[0, 0, 0, 0, 0, 0, 1.0], [0.1, 0, 0.4, 0, 0, np.sqrt(0.5), np.sqrt(0.5)]])
    (capsule,) = cell.arm_shapes({"right": poses[1], "left": poses[0]})
    np.testing.assert_allclose(capsule.start, [0.1, 0, 0.42], atol=1e-12)
    np.testing.assert_allclose(capsule.end, [0.0, 0, 0.42], atol=1e-12)
    assert capsule.radius == 0.03
