"""The demo from end to end: separate processes over DDS, a short run, its report, and its bag evaluated again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")

from realsimloop_ros.evaluation.record import RunRecord, load_record
from realsimloop_ros.evaluation.report import load_report
from realsimloop_ros.nodes.graph import GraphError, dual_arm_graph
from realsimloop_ros.nodes.supervisor import node_command

DURATION = 2.0  # s of virtual time
FRAMES = 20  # at 10 Hz
TIME_LIMIT = 600.0  # s: far more than it takes, for a machine that is busy with other things


def realsimloop(*arguments: str) -> subprocess.Popen[str]:
    return started("-m", "realsimloop_ros.cli", *arguments)


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TERM": "dumb"},
    )


def told(process: subprocess.Popen[str]) -> str:
    """What a command that has succeeded said."""
    try:
        output, _ = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()
        raise
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    try:
        for node in dual_arm_graph().nodes:
            node_command(node)
    except GraphError as error:
        pytest.skip(str(error))
    out = tmp_path_factory.mktemp("system") / "demo"
    return out, told(realsimloop("demo", "--out", str(out), "--duration", str(DURATION), "--seed", "1"))


@pytest.fixture(scope="module")
def replays(run: tuple[Path, str]) -> list[RunRecord]:
    out, _ = run
    folders = [out.parent / f"replay_{k}" for k in range(2)]
    processes = [
        realsimloop("evaluate", str(out / "bag"), "--cell", "dual_arm", "--out", str(folder)) for folder in folders
    ]
    for process in processes:
        told(process)
    return [load_record(folder / "record") for folder in folders]


def test_the_demo_ends_with_a_report_of_all_its_figures(run: tuple[Path, str]) -> None:
    out, output = run
    report = load_report(out / "report.json")
    for parameter in (report.theta["bar"].youngs_modulus, report.theta["bar"].poisson_ratio):
        assert parameter.estimate is not None
        assert parameter.reference is not None
        assert parameter.relative_error is not None
    assert report.theta["bar"].reference_how
    # what is asked of the whole demo; a modulus that is off by a factor of two costs less than that
    assert report.reconstruction.mean_mm is not None and report.reconstruction.mean_mm < 2.0
    assert report.reconstruction.frames > 0.8 * DURATION * 30
    assert report.real_time_factor is not None and report.real_time_factor > 0.0
    for stage in ("estimate (one update)", "last image of a set to theta", "camera_sync: mask"):
        assert report.timing[stage].p50_ms is not None
    assert report.provenance.seed == 1
    assert not any(report.drops.values())
    page = (out / "report.html").read_text()
    assert page.count("data:image/jpeg") == 5
    assert str(out / "report.html") in output
    assert "Young's modulus" in output
    processes = json.loads((out / "run.json").read_text())["processes"]
    assert [process["exit_status"] for process in processes] == [0] * len(processes)


def test_its_bag_evaluated_twice_gives_the_same_bits(replays: list[RunRecord]) -> None:
    first, second = (record.theta for record in replays)
    # the last frames only close the segments before them
    assert FRAMES - 3 <= len(first.stamps_ns) <= FRAMES
    for name in ("stamps_ns", "youngs_modulus", "youngs_modulus_std", "poisson_ratio", "poisson_ratio_std"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


def test_the_live_run_and_its_evaluation_agree(run: tuple[Path, str], replays: list[RunRecord]) -> None:
    live, replay = load_record(run[0] / "record").theta, replays[0].theta
    both = np.intersect1d(live.stamps_ns, replay.stamps_ns)
    assert len(both) >= len(live.stamps_ns) - 1
    for name in ("youngs_modulus", "poisson_ratio"):
        ours = getattr(live, name)[np.isin(live.stamps_ns, both)]
        theirs = getattr(replay, name)[np.isin(replay.stamps_ns, both)]
        # no frame was dropped, so the same numbers went through the same code: at most rounding is left
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_its_bag_replayed_in_real_time_gives_the_bench_its_figures(run: tuple[Path, str], tmp_path: Path) -> None:
    command = [
        "-m",
        "realsimloop_ros.nodes.adaptation_bench",
        "--bag",
        str(run[0] / "bag"),
        "--out",
        str(tmp_path),
    ]
    told(started(*command))
    found = json.loads((tmp_path / "adaptation.json").read_text())
    assert list(found) == [
        "p50_s", "p99_s", "latency_p50_s", "latency_p99_s",
        "frames", "dropped", "reconstruction_mean_mm", "reconstruction_p95_mm",
    ]  # fmt: skip
    assert 0.0 < found["p50_s"] <= found["p99_s"]
    # theta waits for the frame that closes its segment: half a period at least
    assert 0.05 < found["latency_p50_s"] <= found["latency_p99_s"]
    # how many are dropped is the machine's affair, that none is lost without being counted is not
    assert found["frames"] + found["dropped"] == FRAMES - 1
    assert found["frames"] > 0
    # as for the demo itself
    assert 0.0 < found["reconstruction_mean_mm"] < 2.0
    assert found["reconstruction_mean_mm"] < found["reconstruction_p95_mm"]
