import json

import typer
from typer.testing import CliRunner

from realsimloop_ros.evaluation.bench import bench

KEYS = {
    "subspace", "r", "cubature", "tets", "rms_percent", "p99_percent", "step_ms", "full_step_ms",
    "window_gradient_ms", "full_window_gradient_ms", "diverged",
}  # fmt: skip


def test_the_bench_writes_a_row_per_model(tmp_path):
    application = typer.Typer()
    application.command()(bench)
    result = CliRunner().invoke(application, ["--quick", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    rows = json.loads((tmp_path / "reduction.json").read_text())
    assert [row["cubature"] for row in rows] == [True, False]
    for row in rows:
        assert set(row) == KEYS
        # what must come out whatever the machine: times are positive, the held-out error is that of the card
        assert min(row["step_ms"], row["full_step_ms"], row["window_gradient_ms"]) > 0
        assert row["rms_percent"] < 0.2
