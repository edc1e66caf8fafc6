"""The ablation of time integrators: every scheme has its rows, what is unstable says so, errors fall by order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from realsimloop_ros.evaluation import integration_ablation
from realsimloop_ros.evaluation.integration_ablation import SCHEMES, Settings, ablation
from realsimloop_ros.evaluation.integration_page import at_equal_cost, page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], Path]:
    """Rows of a beam of two cells that swings for a quarter of a second, and the folder of the page."""
    folder = tmp_path_factory.mktemp("ablation")
    application = typer.Typer()
    application.command()(ablation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integration_ablation, "QUICK", Settings((2, 1, 1), 0.3, (2, 4)))
        arguments = ["--quick", "--out", str(folder), "--docs", str(folder / "docs")]
        result = CliRunner().invoke(application, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads((folder / "integration.json").read_text())["rows"], folder / "docs"


def of(rows: list[dict], damping: str, scheme: str) -> list[dict]:
    return [row for row in rows if row["damping"] == damping and row["scheme"] == scheme]


def test_every_scheme_is_run_at_several_steps(written: tuple[list[dict], Path]) -> None:
    rows, _ = written
    for damping in ("undamped", "damped"):
        for scheme in SCHEMES:
            steps = [row["time_step"] for row in of(rows, damping, scheme)]
            assert len(steps) == (3 if scheme in SCHEMES[:2] else 2), scheme
            assert steps == sorted(steps, reverse=True)


def test_what_is_unstable_is_said_and_has_no_figures(written: tuple[list[dict], Path]) -> None:
    rows, _ = written
    for row in of(rows, "undamped", "explicit_euler"):
        assert row["result"] in ("UNSTABLE", "NON_FINITE")
        assert row["stable_step"] is None and row["error_percent"] is None and row["cost"] is None
    others = [row for row in rows if (row["damping"], row["scheme"]) != ("undamped", "explicit_euler")]
    for row in others:
        assert row["result"] == "COMPLETED", row
        assert row["cost"] > 0.0
        if row["stable_step"] is not None:
            assert row["time_step"] <= row["stable_step"]


@pytest.mark.parametrize(
    ("scheme", "least", "most"),
    [
        # half the step: half the error, or a quarter of it; implicit Euler damps most of the swing at such steps
        ("semi_implicit_euler", 1.7, 2.3),
        ("implicit_euler", 1.05, 2.3),
        ("bdf2", 2.5, 5.0),
    ],
)
def test_errors_fall_with_the_order_of_the_scheme(
    written: tuple[list[dict], Path], scheme: str, least: float, most: float
) -> None:
    errors = [row["error_percent"] for row in of(written[0], "undamped", scheme)][:2]
    assert least < errors[0] / errors[1] < most


def test_implicit_euler_takes_the_energy_that_others_keep(written: tuple[list[dict], Path]) -> None:
    rows, _ = written
    ends = {name: of(rows, "undamped", name)[1]["energy_error_percent"] for name in SCHEMES[1:]}
    assert abs(ends["semi_implicit_euler"]) < 1.0
    assert ends["implicit_euler"] < 3.0 * ends["bdf2"] < 0.0


def test_the_page_shows_every_row_and_the_picture(written: tuple[list[dict], Path]) -> None:
    rows, docs = written
    text = (docs / "integrators.md").read_text()
    assert text == page(rows)
    assert text.count("| semi-implicit Euler |") == 6
    assert "(images/integrators.png)" in text
    assert (docs / "images" / "integrators.png").read_bytes().startswith(b"\x89PNG")


def test_errors_at_equal_cost_lie_between_those_measured() -> None:
    rows = [
        {"damping": "none", "scheme": "bdf2", "cost": cost, "error_percent": error}
        for cost, error in ((1.0, 8.0), (4.0, 2.0), (None, None))
    ]
    assert at_equal_cost(rows, "none", "bdf2", 2.0) == pytest.approx(4.0)
    assert at_equal_cost(rows, "none", "bdf2", 5.0) is None
    assert at_equal_cost(rows, "none", "implicit_euler", 2.0) is None
