"""The virtual cell: order and rates of its events, commands, determinism, and errors that name what is wrong."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import InvalidPoseError, make_pose
from realsimloop_ros.cell.scenario import Scenario, ScenarioError, load_scenario, true_body
from realsimloop_ros.cell.virtual_cell import (
    ArmReport,
    CameraImage,
    MarkerPositions,
    TruthReport,
    VirtualCell,
    VirtualCellError,
)
from realsimloop_ros.control.ur5e import forward_kinematics
from realsimloop_ros.observation.cell_file import load_cell

CONFIG = Path(__file__).resolve().parents[2] / "config"


@pytest.fixture(scope="module")
def run(small_cell, small_scenario):
    cell = VirtualCell(small_cell, small_scenario, seed=3)
    return cell, list(cell.advance(1.0))


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


def test_shipped_scenario_fits_the_shipped_cell():
    scenario = load_scenario(CONFIG / "scenarios" / "dual_arm.yaml")
    cell = load_cell(CONFIG / "cells" / "dual_arm.yaml")
    body = true_body(cell, scenario)
    assert body.grip_names == ("left", "right")
    coarse = load_cell_body(cell)
    # the truth's mesh is finer than the twin's in every direction
    assert len(body.tets) > 1.5 * len(coarse.tets)
    assert scenario.body.time_step < 1.0 / 60.0


def load_cell_body(cell):
    from realsimloop_ros.body.files import load_body_specification

    return load_body_specification(cell.resolve(cell.body))


def test_events_come_in_the_order_of_their_stamps(run):
    _, events = run
    assert all(a.stamp_ns <= b.stamp_ns for a, b in itertools.pairwise(events))


def test_every_source_keeps_its_rate(run):
    cell, events = run
    assert cell.time_ns == 1_000_000_000
    for camera in (0, 1):
        assert len([e for e in of(events, CameraImage) if e.camera == camera]) == 10
    # both ends of the second are included
    assert len([e for e in of(events, ArmReport) if e.arm == "left"]) == 51
    assert len(of(events, MarkerPositions)) == 21
    assert len(of(events, TruthReport)) == 31


def test_reported_joints_put_the_tool_where_it_is(run, small_scenario):
    _, events = run
    for event in of(events, ArmReport)[::7]:
        pose = forward_kinematics(small_scenario.arms[event.arm].kinematics(), event.joint_positions)
        # the pose is reported with noise of 0.03 mm per axis
        assert np.linalg.norm(pose[:3] - event.tool_pose[:3]) < 5 * 3e-5
    speeds = np.array([np.abs(e.joint_velocities).max() for e in of(events, ArmReport)])
    assert 0.05 < speeds.max() < np.pi


def test_tools_hold_the_bars_ends(run):
    cell, events = run
    event = of(events, TruthReport)[-1]
    for grip, pose in zip(cell.body.grips, event.tool_poses, strict=True):
        centre = event.positions[grip.vertices].mean(axis=0)
        local = Rotation.from_quat(pose[3:]).inv().apply(centre - pose[:3])
        # gripped are the bar's last 10 mm
        np.testing.assert_allclose(np.abs(local), [0.005, 0.0, 0.0], atol=1e-9)


def test_bar_is_seen_by_every_camera_and_moves(run):
    _, events = run
    for camera in (0, 1):
        images = np.array([e.image for e in of(events, CameraImage) if e.camera == camera]).astype(float)
        orange = (images[..., 0] - images[..., 2] > 60).mean(axis=(1, 2))
        assert (orange > 0.05).all()
        assert np.abs(images[-1] - images[0]).mean() > 1.0


def test_markers_ride_on_the_true_surface(run):
    cell, events = run
    truths = {e.stamp_ns: e for e in of(events, TruthReport)}
    shared = [e for e in of(events, MarkerPositions) if e.stamp_ns in truths]
    assert len(shared) > 5
    for event in shared:
        expected = cell.body.markers.positions(truths[event.stamp_ns].positions, cell.body.tets)
        assert np.abs(event.positions - expected).max() < 5 * 1e-4  # five deviations of its noise


def test_seed_decides_everything(run, small_cell, small_scenario):
    _, events = run
    again = list(VirtualCell(small_cell, small_scenario, seed=3).advance(0.4))
    for first, second in zip(events, again, strict=False):
        assert type(first) is type(second)
        for name, value in vars(first).items():
            assert np.array_equal(value, getattr(second, name), equal_nan=isinstance(value, np.ndarray))
    other = list(VirtualCell(small_cell, small_scenario, seed=4).advance(0.2))
    assert not np.array_equal(of(other, CameraImage)[0].image, of(events, CameraImage)[0].image)


def test_cutting_time_into_pieces_changes_nothing(run, small_cell, small_scenario):
    _, events = run
    cell = VirtualCell(small_cell, small_scenario, seed=3)
    pieces = [event for _ in range(4) for event in cell.advance(0.1)]
    for first, second in zip(events, pieces, strict=False):
        assert first.stamp_ns == second.stamp_ns
    assert np.array_equal(of(pieces, TruthReport)[-1].positions, of(events, TruthReport)[12].positions)


def test_command_ends_the_script_of_its_arm_and_is_followed(small_cell, small_scenario):
    cell = VirtualCell(small_cell, small_scenario, seed=3)
    home = small_cell.rest_poses()[0]
    goal = make_pose(home[:3] + np.array([0.0, 0.01, 0.02]), Rotation.from_rotvec([0.2, 0.0, 0.0]))
    cell.set_target("left", goal)
    last = of(cell.advance(0.6), TruthReport)[-1]
    # 0.6 s are twenty lags; the right arm goes on with its script
    np.testing.assert_allclose(last.tool_poses[0], goal, atol=1e-6)
    assert np.abs(last.tool_poses[1] - small_cell.rest_poses()[1]).max() > 1e-3


def test_commands_that_cannot_be_meant_are_refused(run):
    cell, _ = run
    with pytest.raises(VirtualCellError, match=r"'middle'.*left, right"):
        cell.set_target("middle", [0, 0, 0, 0, 0, 0, 1])
    with pytest.raises(InvalidPoseError, match="target"):
        cell.set_target("left", [0, 0, 0, 0, 0, 0, 0])


def test_reference_lies_near_the_truths_small_strain_constants(run, small_scenario):
    cell, _ = run
    found = cell.reference()["bar"]
    zone = small_scenario.body.zones["bar"]
    # strains stay below 25 %, where the two laws differ by a few per cent
    assert abs(found.youngs_modulus / zone.youngs_modulus - 1.0) < 0.1
    assert abs(found.poisson_ratio - zone.poisson_ratio) < 0.02
    assert 0.0 < found.relative_residual < 0.1
    assert "Piola" in found.as_dictionary()["method"]


def with_changes(scenario, **changes):
    content = scenario.model_dump()
    for path, value in changes.items():
        *parents, last = path.split("__")
        entry = content
        for parent in parents:
            entry = entry[parent]
        entry[last] = value
    return Scenario.model_validate(content)


def test_wrong_scenarios_are_refused_by_name(small_cell, small_scenario, tmp_path):
    unreachable = with_changes(small_scenario, arms__left__base_pose=(-3.0, 0, 0, 0, 0, 0, 1))
    with pytest.raises(VirtualCellError, match=r"arms\.left.*rest pose"):
        VirtualCell(small_cell, unreachable)
    zone = small_scenario.body.zones["bar"].model_dump()
    with pytest.raises(ScenarioError, match=r"body\.zones.*handle"):
        VirtualCell(small_cell, with_changes(small_scenario, body__zones={"handle": zone}))
    with pytest.raises(ScenarioError, match=r"arms: right"):
        arms = {"left": small_scenario.arms["left"].model_dump()}
        true_body(small_cell, with_changes(small_scenario, arms=arms))
    for text, expected in (
        ("duration: [", "is not YAML"),
        (yaml.safe_dump({**small_scenario.model_dump(mode="json"), "colour": 1}), "colour"),
        (
            yaml.safe_dump(with_changes(small_scenario, body__integrator="leapfrog").model_dump(mode="json")),
            r"body\.integrator.*leapfrog",
        ),
    ):
        path = tmp_path / "wrong.yaml"
        path.write_text(text)
        with pytest.raises(ScenarioError, match=rf"wrong\.yaml.*{expected}"):
            load_scenario(path)
    with pytest.raises(ScenarioError, match=r"absent\.yaml"):
        load_scenario(tmp_path / "absent.yaml")
