"""A cell small enough for a test: a coarse bar with a synthetic subspace, two cameras of 64 x 48 pixels."""

from __future__ import annotations

from pathlib import Path

import yaml

from realsimloop_ros.body.files import BodySpecification
from realsimloop_ros.cell.scenario import Scenario
from realsimloop_ros.observation.cell_file import CellFile, load_cell
from realsimloop_ros.reduction.model import save_reduced_body
from reduced_bodies import bar_specification, smooth_reduced_body

CONFIG = Path(__file__).resolve().parents[2] / "config"
_HEIGHT = 0.4  # m, of the bar's axis in the cell


def small_cell(folder: Path) -> CellFile:
    """Write a cell and everything it names into a folder."""
    specification = bar_specification()
    specification["mesh"]["origin"][2] += _HEIGHT
    for grip in specification["grips"]:
        grip["rest_pose"][2] += _HEIGHT
    (folder / "body.yaml").write_text(yaml.safe_dump(specification))
    body = BodySpecification.model_validate(specification).build()
    save_reduced_body(folder / "model.npz", smooth_reduced_body(body))
    estimator = yaml.safe_load((CONFIG / "estimators" / "dual_arm.yaml").read_text())
    estimator["window"] = 3
    estimator["images"]["splats"] = 200
    (folder / "estimator.yaml").write_text(yaml.safe_dump(estimator))
    cell = yaml.safe_load((CONFIG / "cells" / "dual_arm.yaml").read_text())
    cell |= {"body": "body.yaml", "reduced_model": "model.npz", "estimator": "estimator.yaml"}
    cell["cameras"] = cell["cameras"][:2]
    for camera in cell["cameras"]:
        camera["width"], camera["height"] = 64, 48
        for key in camera["intrinsics"]:
            camera["intrinsics"][key] *= 0.4
    (folder / "cell.yaml").write_text(yaml.safe_dump(cell))
    return load_cell(folder / "cell.yaml")


def small_scenario(**motion: float) -> Scenario:
    """The scenario dual_arm with a coarse truth and long steps."""
    content = yaml.safe_load((CONFIG / "scenarios" / "dual_arm.yaml").read_text())
    content["body"]["divisions"] = [10, 1, 1]
    content["body"]["time_step"] = 1.0 / 60.0
    content["sensors"]["arm"]["rate"] = 60.0
    content["sensors"]["truth_rate"] = 30.0
    content["motion"] |= {"initial_rest": 0.1, **motion}
    return Scenario.model_validate(content)
