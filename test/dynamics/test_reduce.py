"""From a body to its checked reduced model, on a bar that is small enough to do it in seconds."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from realsimloop_ros.dynamics import reduce as reduce_module
from realsimloop_ros.dynamics.reduce import (
    HeldOutError,
    ReductionSettings,
    held_out_error,
    reasons_against,
    reduce_body,
)
from realsimloop_ros.reduction import snapshots as snapshots_module
from realsimloop_ros.reduction.cubature import fit_cubature
from realsimloop_ros.reduction.cubature_checks import StiffnessDeviation
from realsimloop_ros.reduction.model import load_reduced_body, save_reduced_body
from realsimloop_ros.reduction.snapshots import Snapshots, SnapshotSettings, generate_snapshots, simulate_snapshots
from reduced_bodies import gripped_bar

BODY = gripped_bar()
SNAPSHOTS = SnapshotSettings(
    trajectories=4, steps=14, keyframes=1, time_step=1 / 30, twist=0.3, bend=0.1, shift=0.01, every=1
)
SETTINGS = ReductionSettings(latent_size=12, samples=90, held_out=0.25, snapshots=SNAPSHOTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Snapshots of the bar, begun, interrupted in the third of four trajectories, and begun again."""
    made = tmp_path_factory.mktemp("snapshots")
    simulated = []

    def interrupted(body, settings, index, **kind):
        if index == 2 and len(simulated) == 2:
            raise KeyboardInterrupt
        simulated.append(index)
        return simulate_snapshots(body, settings, index, **kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots_module, "simulate_snapshots", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate_snapshots(BODY, SNAPSHOTS, made, workers=1)
        assert sorted(path.name for path in made.glob("trajectory*")) == [
            "trajectory_0000.npz",
            "trajectory_0001.npz",
        ]
        simulated.append(-1)
        generate_snapshots(BODY, SNAPSHOTS, made, workers=1)
    assert simulated == [0, 1, -1, 2, 3]
    return made


# -- snapshots -------------------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_where_it_was(folder: Path) -> None:
    # and nothing is left of what was not finished
    made = {path.name for path in folder.iterdir() if not path.name.startswith("subspace_")}
    assert sorted(made) == [
        "body.npz",
        "snapshots.json",
        *(f"trajectory_{k:04d}.npz" for k in range(4)),
    ]


def test_a_trajectory_read_back_is_the_one_simulated(folder: Path) -> None:
    stored, again = generate_snapshots(BODY, SNAPSHOTS, folder)[2], simulate_snapshots(BODY, SNAPSHOTS, 2)
    for name in ("grip_poses", "positions", "kept", "gravity"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(again, name), err_msg=name)
    assert (stored.youngs_modulus, stored.poisson_ratio) == (again.youngs_modulus, again.poisson_ratio)
    assert len(stored.kept) == SNAPSHOTS.steps


def test_more_trajectories_are_added_to_those_there_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = []

    def noted(body, settings, index, **kind):
        simulated.append(index)
        return simulate_snapshots(body, settings, index, **kind)

    monkeypatch.setattr(snapshots_module, "simulate_snapshots", noted)
    more = generate_snapshots(BODY, replace(SNAPSHOTS, trajectories=5), folder, workers=1)
    assert (len(more), simulated) == (5, [4])
    # and the first four are still there to be had
    assert len(generate_snapshots(BODY, SNAPSHOTS, folder)) == 4
    (folder / "trajectory_0004.npz").unlink()


def test_a_folder_of_other_snapshots_is_refused(folder: Path) -> None:
    for body, settings in ((BODY, replace(SNAPSHOTS, seed=2)), (gripped_bar(name="other"), SNAPSHOTS)):
        with pytest.raises(ValueError, match="holds snapshots of another body or other settings") as caught:
            generate_snapshots(body, settings, folder)
        assert str(folder) in str(caught.value)


# -- the whole way ---------------------------------------------------------------------------------------------


def test_the_reduced_bar_follows_motions_it_has_not_learnt_from(folder: Path, tmp_path: Path) -> None:
    reduced = reduce_body(BODY, SETTINGS, folder, workers=1)
    assert reduced.basis.shape == (189, 3, 12)
    assert len(reduced.sample_index) == 90
    card = reduced.card
    for entry in (card["all_samples"], card["cubature"]):
        assert entry["diverged"] == 0
        assert entry["rollouts"] == 1
        # three short trajectories teach a little: half a percent of 200 mm, where the ends move by 10 mm
        assert entry["rms_percent"] < 0.5
        assert entry["rms"] <= entry["p99"] <= entry["maximum"]
    assert "refused" not in card["cubature"]
    assert card["cubature"]["softest"] > -0.3
    assert card["learned_from"] == 3 * SNAPSHOTS.steps
    # the card says how it was made, and survives on disk
    save_reduced_body(tmp_path / "bar.npz", reduced)
    loaded = load_reduced_body(tmp_path / "bar.npz")
    assert loaded.card["settings"]["snapshots"]["twist"] == 0.3
    assert loaded.card["cubature"] == card["cubature"]


def test_a_cubature_that_fails_its_check_is_given_up_loudly(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reduced = reduce_body(BODY, replace(SETTINGS, samples=4), folder, workers=1)
    assert len(reduced.sample_index) == 240
    np.testing.assert_array_equal(reduced.sample_weight, np.ones(240))
    assert reduced.card["cubature"]["refused"] is True
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "fails its check" in record.message
    assert "the model keeps all 240 samples" in record.message


def test_a_cubature_is_given_up_however_bad_the_model_is_with_all_samples() -> None:
    def error(percent: float, diverged: int = 0) -> HeldOutError:
        return HeldOutError(2e-3 * percent, 4e-3 * percent, 1e-2 * percent, 0.2, diverged, 9)

    sound = StiffnessDeviation(-0.2, 0.3)
    assert reasons_against(SETTINGS, error(0.14), error(0.1), sound) == []
    # half as much again is the most that a good model may lose
    (reason,) = reasons_against(SETTINGS, error(0.17), error(0.1), sound)
    assert reason == "rms 0.00034 m against 0.0002 m with all, at most 0.00032 m"
    # a third of a bad one would be 8 % of the body: what cubature adds has a bound of its own
    (reason,) = reasons_against(SETTINGS, error(32.0), error(25.0), sound)
    assert "rms 0.064 m against 0.05 m with all" in reason
    assert len(reasons_against(SETTINGS, error(np.nan, 2), error(0.1), StiffnessDeviation(-0.6, 0.0))) == 3
    assert reasons_against(SETTINGS, error(0.1), error(0.1), StiffnessDeviation(-0.6, 0.0)) == [
        "a direction lost 60 % of its stiffness"
    ]


def test_a_fit_near_the_snapshots_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, samples=50)
    near = partial(fit_cubature, scales=(0.0,), products=0, guarded=False)
    monkeypatch.setattr(reduce_module, "fit_cubature", near)
    refused = reduce_body(BODY, settings, folder, workers=1)
    # it follows the one quiet motion that judges, but something that this does not excite has all but no stiffness
    assert refused.card["cubature"]["diverged"] == 0
    assert refused.card["cubature"]["softest"] < -settings.most_softened
    assert any("of its stiffness" in reason for reason in refused.card["cubature"]["reasons"])
    assert len(refused.sample_index) == 240


def test_a_second_run_takes_the_subspace_of_the_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, samples=0)
    first = reduce_body(BODY, settings, folder, workers=1)

    def never(*_, **__):
        raise AssertionError("made anew")

    monkeypatch.setattr(reduce_module, "make_subspace", never)
    again = reduce_body(BODY, settings, folder, workers=1)
    np.testing.assert_array_equal(again.basis, first.basis)
    with pytest.raises(AssertionError, match="made anew"):
        reduce_body(BODY, replace(settings, latent_size=11), folder, workers=1)


def test_mass_points_stand_for_all_vertices(folder: Path) -> None:
    reduced = reduce_body(BODY, replace(SETTINGS, samples=0, points=36), folder, workers=1)
    assert reduced.points is not None
    held = np.isin(reduced.points.vertex, BODY.held_vertices)
    assert (~held).sum() == 36
    # what a grip holds is rigid: ten points have its mass, centre and inertia
    assert 0 < held.sum() <= 2 * 10
    entry, every = reduced.card["points"], reduced.card["all_samples"]
    assert entry["rms"] < 1.1 * every["rms"] + 1e-5 * BODY.size


# -- the judge -------------------------------------------------------------------------------------------------


def nothing_kept() -> Snapshots:
    """A trajectory whose first step did not converge."""
    poses = np.tile(np.array([grip.rest_pose for grip in BODY.grips]), (SNAPSHOTS.steps, 1, 1))
    empty = np.zeros((0, 189, 3), np.float32)
    return Snapshots(poses, empty, np.zeros(0, np.int64), np.zeros(3), 1e5, 0.45, 1 / 30)


def test_a_trajectory_of_which_nothing_was_kept_judges_nothing(folder: Path) -> None:
    reduced = reduce_body(BODY, replace(SETTINGS, samples=0), folder, workers=1)
    error = held_out_error(BODY, reduced.model(), [nothing_kept()], "bdf2")
    assert (error.rollouts, error.diverged) == (0, 0)


def test_one_trajectory_is_not_enough(tmp_path: Path) -> None:
    settings = replace(SETTINGS, snapshots=replace(SNAPSHOTS, trajectories=1, steps=2))
    with pytest.raises(ValueError, match=r"snapshots\.trajectories: 1, at least two are needed, one to judge"):
        reduce_body(BODY, settings, tmp_path, workers=1)
