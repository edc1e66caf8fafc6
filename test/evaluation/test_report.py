import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from realsimloop_ros.evaluation.page import number, percent
from realsimloop_ros.evaluation.quantities import SHOWN, band
from realsimloop_ros.evaluation.record import (
    MarkerTracks,
    Picture,
    Provenance,
    ReconstructionTrace,
    RecordError,
    RunRecord,
    ThetaTrace,
    ZoneReference,
    load_record,
    save_record,
)
from realsimloop_ros.evaluation.report import load_report, make_report, report_json, write_report
from realsimloop_ros.evaluation.report_schema import Report

ROOT = Path(__file__).resolve().parents[2]
RELEASE = 50  # frame


def tracks(experiment: str, *, sag: float, frequency: float) -> MarkerTracks:
    """Two markers at 100 Hz; the twin sags by a tenth more and swings 5 % slower."""
    t = (np.arange(500) - RELEASE) * 0.01
    after = np.maximum(t, 0.0)

    def fall(depth: float, rate: float) -> np.ndarray:
        positions = np.zeros((len(t), 2, 3))
        positions[:, :, 2] = -depth * (1.0 - np.exp(-2.0 * after) * np.cos(2.0 * np.pi * rate * after))[:, None]
        return positions

    measured = fall(sag, frequency)
    measured[200, 1] = np.nan
    return MarkerTracks(
        experiment=experiment,
        names=("Tip - 1", "Tip - 2"),
        stamps_ns=1_000_000_000 + np.arange(500) * 10_000_000,
        measured=measured,
        predicted=fall(1.1 * sag, 0.95 * frequency),
        up=np.array([0.0, 0.0, 1.0]),
        held=t < 0.0,
        release_ns=1_000_000_000 + RELEASE * 10_000_000,
        turning_ns=1_000_000_000 + (RELEASE + 7) * 10_000_000,
    )


def record(**changes: object) -> RunRecord:
    stamps = 1_000_000_000 + np.arange(3) * 100_000_000
    theta = ThetaTrace(
        zone_names=("soft", "hard"),
        stamps_ns=stamps,
        youngs_modulus=np.array([[1e5, 4e5], [1.5e5, 4e5], [2e5, 4e5]]),
        youngs_modulus_std=np.array([[5e4, np.inf], [2e4, np.inf], [1e4, np.inf]]),
        poisson_ratio=np.full((3, 2), 0.49),
        poisson_ratio_std=np.full((3, 2), np.nan),
        status=("HELD_WARMING_UP", "UPDATED", "UPDATED"),
        reason=("the window is not full yet", "", ""),
    )
    whole = RunRecord(
        title="A <run> & its twin",
        theta_source="estimate",
        body_size=0.1,
        provenance=Provenance(
            "realsimloop evaluate", "2025-01-01", {"numpy": "2"}, 7, {"bar": "ab"}, {"a.yaml": "x: <1>"}
        ),
        theta=theta,
        references=(ZoneReference("soft", "from the truth law", youngs_modulus=2.5e5),),
        markers=(tracks("drop", sag=0.01, frequency=6.0),),
        timing={"step": np.arange(101) * 1e-3, "never": np.zeros(0)},
        real_time_factor=0.5,
        drops={"newer input": 3},
        pictures=(
            Picture("camera", "camera_0", np.full((24, 32, 3), 120, np.uint8), 5),
            Picture("stress", "von Mises", np.zeros((24, 32, 3), np.uint8)),
        ),
        notes=("the clamp moved",),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def same(first: object, second: object) -> bool:
    """Deep equality, arrays by value."""
    if isinstance(first, np.ndarray):
        return (
            isinstance(second, np.ndarray)
            and first.dtype == second.dtype
            and np.array_equal(first, second, first.dtype.kind == "f")
        )
    if hasattr(first, "__dataclass_fields__"):
        return type(first) is type(second) and all(
            same(getattr(first, name), getattr(second, name)) for name in first.__dataclass_fields__
        )
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and list(first) == list(second)
            and all(same(v, second[k]) for k, v in first.items())
        )
    if isinstance(first, tuple):
        return isinstance(second, tuple) and len(first) == len(second) and all(map(same, first, second))
    return first == second


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = ReconstructionTrace("surface vertices", np.arange(2), np.ones((2, 5), np.float32))
    original = record(reconstruction=trace)
    save_record(tmp_path / "run", original)
    assert same(load_record(tmp_path / "run"), original)
    save_record(tmp_path / "run", record())
    assert load_record(tmp_path / "run").reconstruction is None
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_is_no_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nowhere: is no run record"):
        load_record(tmp_path / "nowhere")
    save_record(tmp_path / "run", record())
    (tmp_path / "run" / "record.json").write_text('{"format": "other"}')
    with pytest.raises(RecordError, match="format 'other'"):
        load_record(tmp_path / "run")


def test_arrays_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(RecordError, match=r"theta\.poisson_ratio: shape \(2, 2\), expected \(3, 2\)"):
        replace(record().theta, poisson_ratio=np.zeros((2, 2)))
    with pytest.raises(RecordError, match="zone 'gum' is none of"):
        record(references=(ZoneReference("gum", "made up"),))
    with pytest.raises(RecordError, match="repeat; give each its own name"):
        record(markers=(tracks("a", sag=0.01, frequency=5.0),) * 2)


def test_the_report_has_what_was_asked_for() -> None:
    report = json.loads(report_json(make_report(record())))
    soft, hard = report["theta"]["soft"], report["theta"]["hard"]
    assert soft["youngs_modulus"] == {"estimate": 2e5, "std": 1e4, "reference": 2.5e5, "relative_error": -0.2}
    assert soft["reference_how"] == "from the truth law"
    # unobservable, and held: no deviation, and no infinity in the file
    assert hard["youngs_modulus"] == {"estimate": 4e5, "std": None, "reference": None, "relative_error": None}
    assert soft["poisson_ratio"]["std"] is None
    marker = report["markers"]["Tip - 1"]
    assert marker["sag_measured_mm"] == pytest.approx(10.0, rel=1e-3)
    assert marker["sag_predicted_mm"] == pytest.approx(11.0, rel=1e-3)
    assert marker["frequency_measured_hz"] == pytest.approx(6.0, rel=1e-4)
    assert marker["frequency_predicted_hz"] == pytest.approx(5.7, rel=1e-4)
    assert marker["decay_measured_per_s"] == pytest.approx(2.0, rel=1e-3)
    assert report["timing"]["step"] == {"p50_ms": 50.0, "p99_ms": 99.0, "count": 101}
    assert report["timing"]["never"] == {"p50_ms": None, "p99_ms": None, "count": 0}
    assert report["real_time_factor"] == 0.5
    assert report["drops"] == {"newer input": 3}
    assert report["updates"] == {"HELD_WARMING_UP": 1, "UPDATED": 2}
    assert report["reconstruction"]["points"] == "markers"
    assert report["reconstruction"]["frames"] == 500
    assert report["reconstruction"]["percent_of_size"] == pytest.approx(report["reconstruction"]["mean_mm"])


def test_markers_of_several_experiments_are_kept_apart() -> None:
    pair = (tracks("light", sag=0.01, frequency=6.0), tracks("heavy", sag=0.02, frequency=4.0))
    report = make_report(record(markers=pair))
    assert list(report.markers) == ["light/Tip - 1", "light/Tip - 2", "heavy/Tip - 1", "heavy/Tip - 2"]
    assert report.experiments["heavy"].markers["Tip - 1"] == report.markers["heavy/Tip - 1"]
    assert report.reconstruction.frames == 1000


def test_what_does_not_apply_is_null() -> None:
    bare = make_report(record(markers=(), timing={}, real_time_factor=None, drops={}, references=(), pictures=()))
    assert bare.reconstruction.mean_mm is None
    assert bare.markers == {}
    assert bare.real_time_factor is None
    still = replace(
        tracks("a", sag=0.01, frequency=6.0), release_ns=None, turning_ns=None, held=np.zeros(500, bool)
    )
    marker = make_report(record(markers=(still,))).markers["Tip - 1"]
    assert marker.sag_measured_mm is None
    assert marker.frequency_measured_hz is None
    assert marker.error_mean_mm is not None


def test_a_twin_that_blew_up_still_gets_a_report(tmp_path: Path) -> None:
    lost = tracks("a", sag=0.01, frequency=6.0)
    lost = replace(lost, predicted=np.full_like(lost.predicted, np.nan))
    report = write_report(tmp_path, record(markers=(lost,), real_time_factor=float("inf")))
    assert report.markers["Tip - 1"].sag_predicted_mm is None
    assert report.markers["Tip - 1"].sag_measured_mm is not None
    assert report.real_time_factor is None


def test_the_page_stands_alone(tmp_path: Path) -> None:
    write_report(
        tmp_path, record(reconstruction=ReconstructionTrace("v", np.arange(4), np.ones((4, 3), np.float32)))
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    # nothing is fetched and nothing is run: every source is data, and there is no script
    assert all(source.startswith("data:image/") for source in re.findall(r'src="([^"]*)"', page))
    assert not re.search(r"<script|<link|url\(|@import|https?://", page)
    assert "A &lt;run&gt; &amp; its twin" in page
    assert "x: &lt;1&gt;" in page
    # two figures of the estimate and the error, two per experiment, and two pictures
    assert page.count("data:image/svg+xml") == 4
    assert page.count("data:image/jpeg") == 2
    assert load_report(tmp_path / "report.json") == make_report(
        record(reconstruction=ReconstructionTrace("v", np.arange(4), np.ones((4, 3), np.float32)))
    )


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_report(tmp_path / name, record())
    for file in ("report.json", "report.html"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_a_report_of_another_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"title": 3}')
    with pytest.raises(ValueError, match=r"report\.json: is no realsimloop-report-1"):
        load_report(tmp_path / "report.json")


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "report_schema.md").read_text(encoding="utf-8")

    def names(model: type) -> set[str]:
        return set(model.model_fields)  # type: ignore[attr-defined]

    from realsimloop_ros.evaluation import report_schema

    for model in (
        Report,
        report_schema.ParameterReport,
        report_schema.ZoneReport,
        report_schema.ReconstructionReport,
        report_schema.MarkerReport,
        report_schema.TimingReport,
        report_schema.ProvenanceReport,
    ):
        missing = [name for name in names(model) if name not in text]
        assert missing == []


def test_a_band_that_reaches_far_is_told_by_its_ends() -> None:
    modulus, ratio, viscosity, _ = SHOWN

    def write(value: float) -> str:
        return number(value, 3)

    assert band(modulus, 2.8e5, 1e4, write) == "+- 19.6"
    # exp(1.96 * 0.5), about three times down and up: never below zero
    assert band(viscosity, 400.0, 200.0, write) == "(150 to 1,066)"
    assert band(ratio, 0.02, 0.02, write, "±") == "± 0.0392"


def test_numbers_read_as_a_person_writes_them() -> None:
    assert number(None) == "–"
    assert number(0.0, 3) == "0.00"
    assert number(4.2) == "4.20"
    assert number(231.04, 4, "kPa") == "231.0 kPa"
    assert number(123456.0) == "123,456"
    assert number(231.0) == "231"
    assert percent(-0.0354) == "−3.5 %"
    assert percent(0.02) == "+2.0 %"
    assert percent(-1e-6) == "0.0 %"
