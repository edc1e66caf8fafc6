"""The sweep over reduced models: rows with all figures, taken up where it was broken off, and a page of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from realsimloop_ros.evaluation import reduction_sweep
from realsimloop_ros.evaluation.bench import BenchError
from realsimloop_ros.evaluation.reduction_page import write_page
from realsimloop_ros.evaluation.reduction_sweep import bar, medians, run_sweep

KEYS = {
    "subspace", "element_order", "r", "cubature", "tets", "samples", "rms_percent", "p99_percent", "step_ms",
    "full_step_ms", "window_gradient_ms", "full_window_gradient_ms", "diverged",
}  # fmt: skip


def invoke(out: Path) -> str:
    application = typer.Typer()
    application.command()(run_sweep)
    result = CliRunner().invoke(application, ["--quick", "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_quick_sweep_writes_rows_and_a_page_and_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"subspace": "principal", "r": 48}
    (tmp_path / "reduction.json").write_text(json.dumps([other]))
    assert "reduction.json" in invoke(tmp_path)
    rows = json.loads((tmp_path / "reduction.json").read_text())
    assert rows[0] == other  # what the bench wrote stays
    sampled, complete, mesh = rows[1:]
    for row in (sampled, complete, mesh):
        assert set(row) == KEYS
        assert row["step_ms"] > 0
    assert (sampled["cubature"], complete["cubature"]) == (True, False)
    assert sampled["samples"] == 60
    assert complete["samples"] == 4 * complete["tets"] == 240
    # one full-order measurement stands beside both
    assert sampled["full_step_ms"] == complete["full_step_ms"] > 0
    assert sampled["diverged"] == 0
    # two short trajectories and four directions are off by a percent; one that goes astray, by tens
    assert complete["rms_percent"] < 3.0
    assert mesh["rms_percent"] is None
    page = (tmp_path / "reduction.md").read_text()
    assert "| principal | quadratic | 4 | 60 |" in page
    assert "| principal | quadratic | 4 | 240 (all) |" in page
    for name in ("reduction_error", "reduction_cost"):
        assert f"(images/{name}.png)" in page
        assert (tmp_path / "images" / f"{name}.png").read_bytes().startswith(b"\x89PNG")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(reduction_sweep, "reduce_body", never)
    monkeypatch.setattr(reduction_sweep, "reduced_works", never)
    invoke(tmp_path)
    assert json.loads((tmp_path / "reduction.json").read_text()) == rows


def test_a_page_says_so_where_a_figure_is_missing(tmp_path: Path) -> None:
    row = dict.fromkeys(KEYS)
    row |= {"subspace": "autoencoder", "element_order": 1, "r": 5, "cubature": True, "tets": 480, "samples": 50}
    row |= {"rms_percent": 0.25, "p99_percent": 1.0, "diverged": 1}
    page = write_page([row], [], tmp_path).read_text()
    assert "| autoencoder | linear | 5 | 50 | 0.25 | 1 | 1 | - | - | - | - |" in page


def test_what_does_not_come_to_its_end_has_no_duration() -> None:
    calls = []

    def works() -> list[float]:
        calls.append(1)
        return [0.002 * len(calls)]

    def fails() -> list[float]:
        raise BenchError("a step did not converge")

    # the first call compiles; the median of 4, 6 and 8 ms
    assert medians({"works": works, "fails": fails}, 3) == {"works": 6.0, "fails": None}


@pytest.mark.parametrize(("order", "nodes"), [(1, 4), (2, 10)])
def test_the_bar_of_the_sweep_is_held_at_both_ends(order: int, nodes: int) -> None:
    body = bar((20, 2, 2), order)
    assert body.nodes_per_tet == nodes
    assert len(body.tets) == 480
    assert body.size == pytest.approx(0.2)
    held = body.rest_positions[body.held_vertices][:, 0]
    assert abs(held).min() == pytest.approx(0.09)
