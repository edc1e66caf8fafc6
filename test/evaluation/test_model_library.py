"""Where the reduced model of an experiment's body comes from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.small_experiments import MARKERS, experiment_content, with_model, write_experiment
from realsimloop_ros import compute
from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import with_markers
from realsimloop_ros.cli import main
from realsimloop_ros.dynamics.reduce import ReductionSettings
from realsimloop_ros.evaluation import model_library
from realsimloop_ros.evaluation.experiment_twin import reduction_settings
from realsimloop_ros.evaluation.experiments import load_experiment
from realsimloop_ros.evaluation.model_library import ModelLibrary, default_library
from realsimloop_ros.reduction.model import ReducedBody, load_reduced_body
from reduced_bodies import smooth_reduced_body

CONFIG = Path(__file__).resolve().parents[2] / "config"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Body, ReductionSettings]]:
    """What was reduced, by a stand-in that takes no time."""
    calls: list[tuple[Body, ReductionSettings]] = []

    def reduce_at_once(body: Body, settings: ReductionSettings, folder: Path, **_: Any) -> ReducedBody:
        folder.mkdir(parents=True)
        calls.append((body, settings))
        reduced = smooth_reduced_body(body)
        reduced.card["all_samples"] = {"rms": 1e-5, "rms_percent": 0.005}
        return reduced

    monkeypatch.setattr(model_library, "reduce_body", reduce_at_once)
    return calls


def test_a_model_is_found_by_its_body_whatever_the_markers(
    tmp_path: Path, made: list[tuple[Body, ReductionSettings]]
) -> None:
    path = write_experiment(tmp_path, experiment_content())
    reduced, library = with_model(tmp_path, path)
    (tmp_path / "models" / "broken.npz").write_bytes(b"nothing")
    body = with_markers(reduced.body, {name: np.array(place) for name, place in MARKERS.items()})
    found = library.find(body, ReductionSettings())
    assert found.body is body
    assert not made


def test_a_model_that_is_missing_is_made_once(tmp_path: Path, made: list[tuple[Body, ReductionSettings]]) -> None:
    file = load_experiment(write_experiment(tmp_path, experiment_content()))
    settings = reduction_settings(file.experiment)
    library = ModelLibrary((tmp_path / "shipped", tmp_path / "cache"))
    body = with_markers(file.build_body(), {name: np.array(place) for name, place in MARKERS.items()})
    first, second = library.find(body, settings), library.find(body, settings)
    assert [entry[1] for entry in made] == [settings]
    # markers do not matter to a subspace, and would make it another body
    assert made[0][0].markers is None
    np.testing.assert_array_equal(first.basis, second.basis)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npz"]


def test_a_model_is_made_ahead_by_command(
    tmp_path: Path,
    made: list[tuple[Body, ReductionSettings]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the tests' process has its precision already, and keeps no compiled programs
    monkeypatch.setattr(compute, "use_double_precision", lambda: None)
    path = write_experiment(tmp_path, experiment_content())
    with pytest.raises(SystemExit) as caught:
        main(["reduce-experiment", str(path), "--out", str(tmp_path / "model.npz")])
    assert not caught.value.code
    assert "6 shapes" in capsys.readouterr().out
    body = load_reduced_body(tmp_path / "model.npz").body
    assert body.content_hash == load_experiment(path).build_body().content_hash
    # the snapshots' range holds what the experiment expects
    low, high = made[0][1].snapshots.youngs_modulus
    assert low < 2.8e4 < high
    assert made[0][1].snapshots.gravity_direction == (0.0, 0.0, -9.81)


@pytest.mark.parametrize("name", ["beam_gravity", "beam_load52"])
def test_the_models_of_the_experiments_that_ship_are_there_and_good(
    name: str, made: list[tuple[Body, ReductionSettings]]
) -> None:
    file = load_experiment(CONFIG / "experiments" / f"{name}.yaml")
    found = default_library().find(file.build_body(), reduction_settings(file.experiment))
    assert not made
    # a tenth of a per cent is what a subspace may cost before theta pays for it
    assert found.card["cubature"]["rms_percent"] < 0.1
    assert found.card["cubature"]["diverged"] == 0
    # it was made for this experiment
    assert tuple(found.card["settings"]["snapshots"]["youngs_modulus"]) == pytest.approx(
        reduction_settings(file.experiment).snapshots.youngs_modulus
    )
