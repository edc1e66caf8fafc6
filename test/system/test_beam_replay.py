"""A real motion capture, live and offline: the bag of a .c3d through the estimator's node, beside `evaluate`."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("rclpy")

from realsimloop_ros.evaluation.bags import read_bag
from realsimloop_ros.evaluation.experiments import DATA_VARIABLE, data_folder
from realsimloop_ros.evaluation.record import ThetaTrace, load_record
from realsimloop_ros.evaluation.report import load_report
from realsimloop_ros.evaluation.theta_trace import sample_of_message, trace_of
from realsimloop_ros.nodes.graph import GraphError, NodeSpecification
from realsimloop_ros.nodes.supervisor import node_command

EXPERIMENTS = Path(__file__).resolve().parents[2] / "config" / "experiments"
END = 1.8  # s of the capture: held, released after 0.7 s, and eight periods less one
TIME_LIMIT = 600.0  # s: far more than it takes, for a machine that is busy with other things


def realsimloop(*arguments: str) -> str:
    environment = {**os.environ, "TERM": "dumb", "AMENT_PREFIX_PATH": sys.prefix}
    result = subprocess.run(
        [sys.executable, "-m", "realsimloop_ros.cli", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIME_LIMIT,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def capture() -> Path:
    folder = data_folder()
    if folder is None or not (folder / "real_beam").is_dir():
        pytest.skip(f"no real_beam captures in {folder}; name the data folder in {DATA_VARIABLE}")
    try:
        node_command(NodeSpecification("estimator", "experiment_estimator"))
    except GraphError as error:
        pytest.skip(str(error))
    return folder / "real_beam" / "beam_gravity_V2_a.c3d"


@pytest.fixture(scope="module")
def bag(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bag") / "beam_gravity"
    assert "6 markers, 500 frames at 100 Hz on topic markers" in realsimloop(
        "import-c3d", str(capture), "--out", str(path)
    )
    return path


def experiment(folder: Path, recording: Path) -> Path:
    """The start of the experiment that ships, with another file of its recording."""
    content = yaml.safe_load((EXPERIMENTS / "beam_gravity.yaml").read_text())
    content["body"] = str(EXPERIMENTS / content["body"])
    content["capture"]["path"] = str(recording)
    content["time"]["end"] = END
    path = folder / "beam_gravity.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def evaluated(folder: Path, recording: Path) -> ThetaTrace:
    out = folder / "out"
    realsimloop("evaluate", str(experiment(folder, recording)), "--out", str(out))
    assert load_report(out / "report.json").markers["Tip - 1"].frequency_predicted_hz is not None
    return load_record(out / "record").theta


@pytest.fixture(scope="module")
def offline(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> ThetaTrace:
    return evaluated(tmp_path_factory.mktemp("offline"), capture)


def test_a_bag_gives_the_bits_that_its_capture_gives(bag: Path, offline: ThetaTrace, tmp_path: Path) -> None:
    again = evaluated(tmp_path, bag)
    assert len(offline.stamps_ns) >= 5
    for field in ("stamps_ns", "youngs_modulus", "youngs_modulus_std", "poisson_ratio", "viscosity"):
        np.testing.assert_array_equal(getattr(again, field), getattr(offline, field))
    assert again.status == offline.status


def test_a_replay_through_the_node_gives_what_evaluate_gives(
    capture: Path, bag: Path, offline: ThetaTrace, tmp_path: Path
) -> None:
    recording = tmp_path / "recording"
    told = realsimloop(
        "up",
        "replay",
        f"experiment:={experiment(tmp_path, capture)}",
        f"bag:={bag}",
        f"record:={recording}",
        "--out",
        str(tmp_path / "run"),
    )
    assert "estimator has ended the run" in told
    assert "dropped: nothing" in (tmp_path / "run" / "log" / "estimator.log").read_text()
    samples = [sample_of_message(entry.message) for entry in read_bag(recording, ["theta"])]
    live = trace_of(samples, ("beam",), samples[0].material)
    np.testing.assert_array_equal(live.stamps_ns, offline.stamps_ns)
    # both compute the same; two processes may still be compiled for other machines, and round another way
    np.testing.assert_allclose(live.youngs_modulus, offline.youngs_modulus, rtol=1e-12)
    np.testing.assert_allclose(live.youngs_modulus_std, offline.youngs_modulus_std, rtol=1e-9)
    np.testing.assert_allclose(live.viscosity, offline.viscosity, rtol=1e-9)
    assert live.status == offline.status
    # the released beam tells its modulus: within the range of what is published of this silicone
    assert 0.2e6 < live.youngs_modulus[-1, 0] < 0.35e6
