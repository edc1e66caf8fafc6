"""The bench: a row per model with all its figures, and the machine they were measured on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from realsimloop_ros.evaluation.bench import BenchError, Timing, bench, taking_turns

KEYS = {
    "subspace", "r", "cubature", "tets", "rms_percent", "p99_percent", "step_ms", "full_step_ms",
    "window_gradient_ms", "full_window_gradient_ms", "diverged",
}  # fmt: skip


def test_the_bench_writes_a_row_per_model(tmp_path: Path) -> None:
    application = typer.Typer()
    application.command()(bench)
    result = CliRunner().invoke(application, ["--quick", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "full order" in result.stdout
    rows = json.loads((tmp_path / "reduction.json").read_text())
    assert [(row["cubature"], row["precision"]) for row in rows] == [
        (True, "float32"),
        (True, "float64"),
        (False, "float64"),
    ]
    for row in rows:
        assert set(row) == {*KEYS, "precision"}
        # what must come out whatever the machine: times are positive, the held-out error is that of the card
        assert min(row[key] for key in KEYS if key.endswith("_ms")) > 0
        assert row["rms_percent"] < 0.2
        assert row["diverged"] == 0
    # one full-order measurement stands beside all
    assert len({row["full_step_ms"] for row in rows}) == 1
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert {"python", "jax", "numpy"} <= set(machine["versions"])
    assert (machine["frames"], machine["steps_per_frame"], machine["repetitions"]) == (1, 3, 2)


def test_what_is_compared_takes_turns_after_a_round_that_compiles() -> None:
    calls = []

    def work(name: str, duration: float) -> list[float]:
        calls.append(name)
        return [duration if calls.count(name) > 1 else 100.0]

    works = {"one": lambda: work("one", 1.0), "two": lambda: work("two", 2.0)}
    timings = taking_turns(works, 2, Console(quiet=True))
    assert calls == ["one", "two"] * 3
    np.testing.assert_array_equal(timings["one"].samples, [1.0, 1.0])
    assert timings["two"].median_ms == 2000.0


def test_a_timing_shows_its_median_and_its_spread() -> None:
    assert Timing(np.linspace(0.0, 0.1, 11)).cells() == ("50", "10 - 90")


def test_a_work_that_fails_is_no_measurement() -> None:
    def work() -> list[float]:
        raise BenchError("full order: a step ended as STALLED")

    with pytest.raises(BenchError, match="STALLED"):
        taking_turns({"full": work}, 1, Console(quiet=True))
