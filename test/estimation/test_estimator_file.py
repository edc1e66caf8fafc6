"""The estimator file: what it becomes, and what it says of mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from realsimloop_ros.body.body import Body
from realsimloop_ros.estimation.estimator_file import EstimatorFileError, load_estimator_file
from realsimloop_ros.estimation.updates import EstimatorSettings
from realsimloop_ros.observation.depth_likelihood import DepthLikelihood
from realsimloop_ros.observation.likelihoods import ImageLikelihood, MarkerLikelihood
from realsimloop_ros.resources import configuration_file
from reduced_bodies import gripped_bar

MARKERS = {"markers": {"top": [0.0, 0.0, 0.015]}}
TWO_ZONES = {
    "zones": [
        {"name": "left", "density": 1070.0},
        {"name": "right", "density": 1100.0, "region": {"minimum": [0.0, None, None]}},
    ]
}


def zone(**changes: dict) -> dict:
    return {"youngs_modulus": {"prior": 2e5}, "poisson_ratio": {"held": 0.45}, **changes}


def written(folder: Path, **changes: object) -> Path:
    path = folder / "estimator.yaml"
    path.write_text(yaml.safe_dump({"time_step": 0.02, "zones": {"bar": zone()}, **changes}))
    return path


def body(**changes: object) -> Body:
    return gripped_bar(**changes)


def test_what_is_given_a_prior_is_estimated_and_what_is_held_is_not(tmp_path: Path) -> None:
    zones = {
        "right": zone(viscosity={"prior": 100.0, "factor": 3.0}, density={"prior": 1000.0, "factor": 1.1}),
        "left": zone(youngs_modulus={"held": 3e5}, poisson_ratio={"prior": 0.4, "deviation": 0.02, "lower": 0.3}),
    }
    file = load_estimator_file(written(tmp_path, zones=zones, viscous=True))
    space = file.parameter_space(body(**TWO_ZONES))
    # in the order of the body's zones, not of the file's
    right = ("right.log_youngs_modulus", "right.log_viscosity", "right.log_density")
    assert space.names == ("left.poisson_ratio", *right)
    np.testing.assert_array_equal(space.prior.youngs_modulus, [3e5, 2e5])
    np.testing.assert_array_equal(space.prior.poisson_ratio, [0.4, 0.45])
    np.testing.assert_array_equal(space.prior.viscosity, [0.0, 100.0])
    # the left zone's is the body's
    np.testing.assert_array_equal(space.prior.density, [body(**TWO_ZONES).zones[0].density, 1000.0])
    assert space.parameters[0].prior_deviation == 0.02
    assert space.parameters[0].lower == 0.3
    assert space.parameters[2].prior_deviation == pytest.approx(np.log(3.0))
    assert space.parameters[3].prior_deviation == pytest.approx(np.log(1.1))


def test_a_viscosity_that_nothing_could_tell_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, zones={"bar": zone(viscosity={"prior": 100.0})})
    with pytest.raises(EstimatorFileError, match=r"viscous: false, but zones\.bar\.viscosity is estimated.*true"):
        load_estimator_file(path)


def test_settings_arrive_where_they_are_used(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        integrator="implicit_euler",
        gravity=[0.0, -9.81, 0.0],
        mass_damping=0.5,
        viscous=True,
        window=4,
        ticks_per_segment=3,
        forgetting=0.9,
        markers={"deviation": 2e-3, "frames_per_sample": 5.0},
    )
    file = load_estimator_file(path)
    step = file.step_settings()
    assert (step.integrator.name, step.time_step, step.mass_damping) == ("implicit_euler", 0.02, 0.5)
    assert step.viscous
    np.testing.assert_array_equal(step.gravity, [0.0, -9.81, 0.0])
    settings = file.estimator_settings()
    assert (settings.window, settings.ticks_per_segment, settings.forgetting) == (4, 3, 0.9)


def test_markers_are_a_likelihood_where_the_body_has_any(tmp_path: Path) -> None:
    file = load_estimator_file(written(tmp_path))
    assert [type(one) for one in file.likelihoods(body())] == [ImageLikelihood]
    assert [type(one) for one in file.likelihoods(body(**MARKERS))] == [ImageLikelihood, MarkerLikelihood]


def test_depths_are_a_likelihood_where_the_file_speaks_of_them(tmp_path: Path) -> None:
    file = load_estimator_file(written(tmp_path, depths={"deviation": 1e-3}))
    assert [type(one) for one in file.likelihoods(body())] == [ImageLikelihood, DepthLikelihood]


def test_judgement_is_set_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, outlier_deviations=4.0, relinearisations=2, model_deviation={"poisson_ratio": 0.02})
    settings = load_estimator_file(path).estimator_settings()
    assert (settings.outlier_deviations, settings.relinearisations) == (4.0, 2)
    assert settings.model_deviation["poisson_ratio"] == 0.02
    assert settings.model_deviation["youngs_modulus"] == EstimatorSettings().model_deviation["youngs_modulus"]


def test_the_shipped_files_are_valid() -> None:
    folder = configuration_file("estimators", "dual_arm").parent
    for path in sorted(folder.glob("*.yaml")):
        assert load_estimator_file(path).zones


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_step": 0.0}, r"time_step: Input should be greater than 0 \(got 0\.0\)"),
        ({"time_step": float("nan")}, r"time_step: .*finite"),
        ({"integrator": "rk4"}, r"integrator: Input should be 'bdf2' or 'implicit_euler' \(got 'rk4'\)"),
        ({"window": 0}, r"window: .* greater than or equal to 1 \(got 0\)"),
        ({"forgetting": 1.5}, r"forgetting: .* less than or equal to 1 \(got 1\.5\)"),
        ({"wndow": 8}, r"wndow: Extra inputs are not permitted \(got 8\)"),
        ({"zones": {}}, r"zones: .* at least 1 item"),
        ({"zones": {"bar": {"youngs_modulus": {"prior": 1e5}}}}, r"zones\.bar\.poisson_ratio: Field required"),
        ({"zones": {"bar": zone(youngs_modulus={})}}, r"zones\.bar\.youngs_modulus: .*give either `held: VALUE`"),
        (
            {"zones": {"bar": zone(poisson_ratio={"prior": 0.4, "held": 0.4})}},
            r"zones\.bar\.poisson_ratio: .*give either `held: VALUE` or `prior: VALUE`",
        ),
        (
            {"zones": {"bar": zone(poisson_ratio={"prior": 0.4, "upper": 0.5})}},
            r"zones\.bar\.poisson_ratio\.upper: .* less than or equal to 0\.499 \(got 0\.5\)",
        ),
        (
            {"zones": {"bar": zone(youngs_modulus={"prior": 1e5, "factor": 1.0})}},
            r"zones\.bar\.youngs_modulus\.factor: .* greater than 1",
        ),
        ({"markers": {"deviation": -1.0}}, r"markers\.deviation: .* greater than 0 \(got -1\.0\)"),
    ],
)
def test_mistakes_name_file_field_and_value(tmp_path: Path, changes: dict, words: str) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(EstimatorFileError, match=words) as caught:
        load_estimator_file(path)
    assert str(path) in str(caught.value)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(EstimatorFileError, match=r"missing\.yaml: does not exist"):
        load_estimator_file(tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("zones: [")
    with pytest.raises(EstimatorFileError, match=r"broken\.yaml: not valid YAML"):
        load_estimator_file(broken)
    broken.write_text("just a line")
    with pytest.raises(EstimatorFileError, match=r"broken\.yaml: file: .*\(got 'just a line'\)"):
        load_estimator_file(broken)
    broken.write_bytes(b"\xff\xfe\x00zones")
    with pytest.raises(EstimatorFileError, match=r"broken\.yaml: not valid YAML"):
        load_estimator_file(broken)


def test_zones_that_are_not_the_bodys_are_named_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, zones={"rod": zone()})
    with pytest.raises(EstimatorFileError, match=r"zones: \['rod'\], but the body's are \['bar'\]") as caught:
        load_estimator_file(path).parameter_space(body())
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"youngs_modulus": {"held": -1.0}}, r"bar\.youngs_modulus: -1\.0, expected a positive value in Pa"),
        ({"poisson_ratio": {"held": 0.5}}, r"bar\.poisson_ratio: 0\.5, expected 0 < nu <= 0\.499"),
        ({"youngs_modulus": {"prior": 1e5, "lower": 2e5}}, r"prior 100000\.0 lies outside its bounds 200000\.0"),
        ({"youngs_modulus": {"prior": 1e5, "lower": 2e5, "upper": 1e5}}, r"bounds 200000\.0 to 100000\.0"),
    ],
)
def test_values_no_material_has_are_named_with_the_file(tmp_path: Path, changes: dict, words: str) -> None:
    path = written(tmp_path, zones={"bar": zone(**changes)})
    with pytest.raises(EstimatorFileError, match=words) as caught:
        load_estimator_file(path).parameter_space(body())
    assert str(path) in str(caught.value)
