"""A small cell: the package's own cell and scenario with coarse meshes, long steps and two small cameras."""

from pathlib import Path

import pytest
import yaml

from realsimloop_ros.cell.scenario import load_scenario
from realsimloop_ros.observation.cell_file import load_cell

CONFIG = Path(__file__).resolve().parents[2] / "config"


@pytest.fixture(scope="session")
def small_cell_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cell")
    content = yaml.safe_load((CONFIG / "cells" / "dual_arm.yaml").read_text())
    body = yaml.safe_load((CONFIG / "bodies" / "dual_arm_bar.yaml").read_text())
    body["markers"] = {"middle": [0.0, 0.0, 0.415]}
    (folder / "body.yaml").write_text(yaml.safe_dump(body))
    content["body"] = "body.yaml"
    content["cameras"] = content["cameras"][:2]
    for camera in content["cameras"]:
        camera["width"], camera["height"] = 40, 30
        lens = camera["intrinsics"]
        for key in lens:
            lens[key] /= 4.0
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="session")
def small_scenario_file(tmp_path_factory):
    content = yaml.safe_load((CONFIG / "scenarios" / "dual_arm.yaml").read_text())
    content["body"]["divisions"] = [10, 1, 1]
    content["body"]["time_step"] = 1.0 / 60.0
    content["sensors"]["arm"]["rate"] = 50.0
    content["sensors"]["markers"] = {"rate": 20.0, "noise": 1e-4, "lost": 0.0}
    content["motion"]["initial_rest"] = 0.1
    path = tmp_path_factory.mktemp("scenario") / "small.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="session")
def small_cell(small_cell_file):
    return load_cell(small_cell_file)


@pytest.fixture(scope="session")
def small_scenario(small_scenario_file):
    return load_scenario(small_scenario_file)
