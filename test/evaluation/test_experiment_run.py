"""Experiments from file to record: on bars that observe themselves, so that the truth is known."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from evaluation.small_experiments import (
    FROM_BODY,
    HELD,
    MARKERS,
    OFFSET,
    PRIOR_MODULUS,
    STEP,
    TRUE_MODULUS,
    experiment_content,
    in_capture,
    noisy,
    released_markers,
    seen_markers,
    simulated,
    stamps,
    with_model,
    write_bag,
    write_experiment,
)
from realsimloop_ros.body.poses import compose, make_pose
from realsimloop_ros.evaluation.bags import TruncatedBagWarning, bag_writer
from realsimloop_ros.evaluation.experiment_run import evaluate_experiments
from realsimloop_ros.evaluation.experiments import ExperimentError
from realsimloop_ros.evaluation.held_theta import HeldThetaError
from realsimloop_ros.evaluation.marker_messages import marker_array, pose_stamped
from realsimloop_ros.evaluation.model_library import ModelLibrary
from realsimloop_ros.evaluation.record import RunRecord, save_record
from realsimloop_ros.evaluation.report import make_report, write_report
from reduced_bodies import bar_specification

LOAD = {"name": "weight", "mass": 0.02, "region": {"minimum": [0.1, None, 0.015]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experiments")


@pytest.fixture(scope="module")
def light(folder: Path) -> tuple[Path, ModelLibrary, NDArray[np.float64]]:
    path = write_experiment(folder, experiment_content(), "light")
    reduced, library = with_model(folder, path)
    seen = released_markers(reduced, 1.5)
    write_bag(folder / "bag", seen)
    return path, library, seen


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Path:
    path = write_experiment(folder, experiment_content(loads=[LOAD], capture={"path": "loaded"}), "loaded")
    reduced, _ = with_model(folder, path)
    write_bag(folder / "loaded", released_markers(reduced, 1.5))
    return path


@pytest.fixture(scope="module")
def estimated(light: tuple[Path, ModelLibrary, NDArray[np.float64]], loaded: Path) -> RunRecord:
    path, library, _ = light
    return evaluate_experiments([path, loaded], library=library, command="as typed")


def test_one_modulus_is_found_from_two_experiments(estimated: RunRecord) -> None:
    theta = estimated.theta
    np.testing.assert_array_equal(theta.start_youngs_modulus, [PRIOR_MODULUS])
    # markers err by a thousandth of the amplitude; the start is estimated in four of the six shapes only, and what
    # is left in the other two is worth a little more
    assert theta.youngs_modulus[-1, 0] == pytest.approx(TRUE_MODULUS, rel=0.002)
    assert np.isnan(theta.poisson_ratio_std).all()
    assert theta.axis == "update"
    report = make_report(estimated)
    assert set(report.markers) == {f"{name}/{marker}" for name in ("light", "loaded") for marker in MARKERS}
    for marker in report.markers.values():
        # half the modulus' error, and that of a fit to 1.2 s
        assert marker.frequency_predicted_hz == pytest.approx(marker.frequency_measured_hz, rel=0.002)
        # the modulus' error, and the noise of the mean over some frames
        assert marker.sag_predicted_mm == pytest.approx(marker.sag_measured_mm, rel=0.004)
    assert estimated.provenance.command == "as typed"
    assert set(estimated.provenance.body_hashes) == {"light", "loaded"}
    assert report.real_time_factor is not None and report.real_time_factor > 0.0


def test_a_known_weight_tells_density_and_modulus_apart(
    light: tuple[Path, ModelLibrary, NDArray[np.float64]], loaded: Path
) -> None:
    _, library, _ = light
    true_density, paths = 1070.0, []
    for path in (light[0], loaded):
        content = yaml.safe_load(path.read_text())
        content["estimation"]["zones"]["bar"]["density"] = {"prior": 1.15 * true_density, "factor": 1.3}
        paths.append(write_experiment(path.parent, content, f"{path.stem}_density"))
    record = evaluate_experiments(paths, library=library)
    theta = record.theta
    np.testing.assert_array_equal(theta.start_density, [1.15 * true_density])
    # noise of a thousandth of the amplitude; the weight is half the beam's, so that both err by some times more
    # than the modulus does where the density is known
    assert theta.density[-1, 0] == pytest.approx(true_density, rel=0.01)
    assert theta.youngs_modulus[-1, 0] == pytest.approx(TRUE_MODULUS, rel=0.01)
    zone = make_report(record).theta["bar"]
    assert zone.density is not None and zone.density.std == pytest.approx(theta.density_std[-1, 0])
    assert zone.viscosity is not None and (zone.viscosity.estimate, zone.viscosity.std) == (0.0, None)


def test_the_same_recordings_give_the_same_bits(
    light: tuple[Path, ModelLibrary, NDArray[np.float64]], loaded: Path, estimated: RunRecord
) -> None:
    path, library, _ = light
    again = evaluate_experiments([path, loaded], library=library)
    np.testing.assert_array_equal(again.theta.youngs_modulus, estimated.theta.youngs_modulus)
    np.testing.assert_array_equal(again.theta.youngs_modulus_std, estimated.theta.youngs_modulus_std)
    for ours, theirs in zip(again.markers, estimated.markers, strict=True):
        np.testing.assert_array_equal(ours.predicted, theirs.predicted)


def test_a_held_theta_predicts_and_stays(
    light: tuple[Path, ModelLibrary, NDArray[np.float64]], estimated: RunRecord, tmp_path: Path
) -> None:
    path, library, _ = light
    prior = evaluate_experiments([path], theta="prior", library=library)
    np.testing.assert_array_equal(prior.theta.youngs_modulus, [[PRIOR_MODULUS]])
    assert prior.theta_source == "prior"
    marker = make_report(prior).markers["top"]
    # the frequency goes with the square root of the modulus, the sag against it; both up to the large deflection,
    # and the frequency up to the higher shapes, which a start fitted at the wrong modulus excites
    expected = np.sqrt(PRIOR_MODULUS / TRUE_MODULUS)
    assert marker.frequency_predicted_hz / marker.frequency_measured_hz == pytest.approx(expected, rel=0.05)
    assert marker.sag_predicted_mm / marker.sag_measured_mm == pytest.approx(expected**-2, rel=0.05)

    write_report(tmp_path / "found", estimated)
    save_record(tmp_path / "found" / "record", estimated)
    for source in (tmp_path / "found", tmp_path / "found" / "report.json", tmp_path / "found" / "record"):
        found = evaluate_experiments([path], theta=str(source), library=library)
        np.testing.assert_array_equal(found.theta.youngs_modulus, estimated.theta.youngs_modulus[-1:])
        assert found.theta_source == source.name
    with pytest.raises(HeldThetaError, match=r"'gone' is neither `prior` nor `estimate`, and no report"):
        evaluate_experiments([path], theta="gone", library=library)


def test_a_marker_that_is_lost_is_counted_and_the_others_go_on(
    light: tuple[Path, ModelLibrary, NDArray[np.float64]], folder: Path
) -> None:
    _, library, seen = light
    gaps = seen.copy()
    gaps[60:75, 1] = np.nan
    gaps[90:93] = np.nan
    write_bag(folder / "gaps", gaps)
    path = write_experiment(folder, experiment_content(capture={"path": "gaps"}), "gaps")
    record = evaluate_experiments([path], library=library)
    assert record.drops == {"marker_not_seen": 15 + 3 * len(MARKERS)}
    assert record.theta.youngs_modulus[-1, 0] == pytest.approx(TRUE_MODULUS, rel=0.01)
    assert np.isfinite(record.markers[0].predicted[HELD + 20 :]).all()


def test_a_bag_that_was_cut_off_gives_what_it_holds(
    light: tuple[Path, ModelLibrary, NDArray[np.float64]], folder: Path
) -> None:
    _, library, seen = light
    write_bag(folder / "cut", seen)
    (file,) = (folder / "cut").glob("*.mcap")
    file.write_bytes(file.read_bytes()[: round(0.7 * file.stat().st_size)])
    path = write_experiment(folder, experiment_content(capture={"path": "cut"}), "cut")
    with pytest.warns(TruncatedBagWarning, match="cut"):
        record = evaluate_experiments([path], library=library)
    assert HELD + 30 < len(record.markers[0].stamps_ns) < len(seen)
    assert any("cut" in note for note in record.notes)
    # a second of the oscillation is left
    assert record.theta.youngs_modulus[-1, 0] == pytest.approx(TRUE_MODULUS, rel=0.02)


def test_a_body_between_moving_grips_is_estimated(tmp_path: Path) -> None:
    content = experiment_content(
        body=bar_specification(),
        capture={"path": "bag", "grips": {"left": "left/tcp_pose", "right": "right/tcp_pose"}},
        body_frame={"kind": "pose", "pose": _body_in_capture().tolist()},
        time={"release": "none"},
        marker_rest="given",
        markers=MARKERS | {"top": [0.05, 0.0, 0.02], "left": [-0.05, 0.018, 0.0]},
    )
    content["estimation"] |= {"marker_noise": 1e-4, "frames_per_sample": 1.0}
    path = write_experiment(tmp_path, content)
    reduced, library = with_model(tmp_path, path)
    # an end is shaken after a tenth of a second, since the twin begins at rest; a frame at every second step
    t = np.maximum((1 + np.arange(160)) * STEP - 0.1, 0.0)
    poses = np.repeat(np.array([grip.rest_pose for grip in reduced.body.grips])[None], len(t), axis=0)
    poses[:, 1, 2] += 0.015 * np.sin(2.0 * np.pi * 4.0 * t) ** 2
    frames = simulated(reduced, poses, rest=True)[1::2]
    attached = {name: np.array(place) for name, place in content["markers"].items()}
    seen = in_capture(noisy(seen_markers(reduced.body, frames, attached)))
    with bag_writer(tmp_path / "bag") as bag:
        for k, stamp in enumerate(stamps(len(seen)).tolist()):
            for tick in (2 * k, 2 * k + 1):
                moment = stamp - round((2 * k + 1 - tick) * STEP * 1e9)
                for grip, name in enumerate(("left", "right")):
                    pose = compose(_body_in_capture(), poses[tick, grip])
                    bag.write(f"{name}/tcp_pose", moment, pose_stamped(moment, "capture", pose))
            bag.write("markers", stamp, marker_array(stamp, "capture", tuple(attached), seen[k]))
    record = evaluate_experiments([path], library=library)
    assert record.theta.youngs_modulus[-1, 0] == pytest.approx(TRUE_MODULUS, rel=0.03)
    assert np.nanmean(record.reconstruction.errors) < 1e-4


def _body_in_capture() -> NDArray[np.float64]:
    return make_pose(OFFSET, Rotation.from_matrix(FROM_BODY))


def test_a_time_range_without_a_frame_to_use_is_an_error(
    light: tuple[Path, ModelLibrary, NDArray[np.float64]], folder: Path
) -> None:
    _, library, seen = light
    write_bag(folder / "short", seen[: HELD + 10])
    times = {"release": 0.3}
    path = write_experiment(folder, experiment_content(capture={"path": "short"}, time=times), "short")
    with pytest.raises(ExperimentError, match=r"short: no frame could be used; widen the time range"):
        evaluate_experiments([path], library=library)


def test_experiments_that_disagree_are_not_estimated_together(
    light: tuple[Path, ModelLibrary, NDArray[np.float64]], folder: Path
) -> None:
    path, library, _ = light
    other = experiment_content()
    zones = {"bar": {"youngs_modulus": {"prior": 1e6}, "poisson_ratio": {"held": 0.45}}}
    other["estimation"] = other["estimation"] | {"zones": zones}
    with pytest.raises(ExperimentError, match=r"other: estimation\.zones differ from those of light"):
        evaluate_experiments([path, write_experiment(folder, other, "other")], library=library)
