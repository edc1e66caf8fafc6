"""The windowed estimator on twins that observe themselves, so that every truth is known exactly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimation.twins import (
    BEGIN_NS,
    DEVIATION,
    SEGMENT_NS,
    SETTINGS,
    STEP,
    TRUE_E,
    TRUE_NU,
    WEIGHTLESS,
    Scene,
    estimator,
    fed,
    fed_in_order,
    gripped_twin,
    lively,
    material_of_zones,
    other,
    parameter_space,
    scene,
    still,
    stretching,
    track,
    two_zone_twin,
    with_markers,
)
from realsimloop_ros.estimation import problem as problem_module
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.problem import WindowProblem
from realsimloop_ros.estimation.updates import EstimatorSettings, MaterialUpdate, UpdateStatus
from realsimloop_ros.estimation.window import Segment
from realsimloop_ros.observation.likelihoods import ObservationError
from realsimloop_ros.reduction.model import kinematics, positions

TRUTH = material_of_zones([TRUE_E])


@pytest.fixture(scope="module")
def lively_scene() -> Scene:
    return scene(gripped_twin(), TRUTH)


def assert_same(found: Sequence[MaterialUpdate], expected: Sequence[MaterialUpdate]) -> None:
    """To the last bit, but for the time it took."""
    assert [update.stamp_ns for update in found] == [update.stamp_ns for update in expected]
    for one, two in zip(found, expected, strict=True):
        for name in ("covariance", "latent", "grip_poses", "vertices"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
        for values, others in zip(one.material, two.material, strict=True):
            np.testing.assert_array_equal(values, others)
        for name in ("status", "reason", "loss_before", "loss_after", "frames_used", "figures"):
            assert getattr(one, name) == getattr(two, name), name


# -- what is recovered -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_from_a_wrong_start_the_estimate_reaches_the_truth(factor: float, lively_scene: Scene) -> None:
    updates = fed(estimator(gripped_twin(), factor * TRUE_E), lively_scene)
    assert len(updates) == 20
    last = updates[-1]
    # exact data of the same model: what is left is the pull of the prior, a deviation away, against what the
    # window knows to a few percent
    assert last.material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=5e-3)
    assert last.material.poisson_ratio[0] == pytest.approx(TRUE_NU, abs=5e-4)
    assert last.status is UpdateStatus.UPDATED
    assert last.frames_used == SETTINGS.window
    assert last.parameter_names == ("bar.log_youngs_modulus", "bar.poisson_ratio")
    # the more is known, the narrower the band
    assert last.covariance[0, 0] < updates[0].covariance[0, 0]
    assert last.figures["marker_rms_m"] < 0.01 * DEVIATION


def test_first_order_steps_end_where_gauss_newton_does(lively_scene: Scene) -> None:
    found = {}
    for name in ("gauss_newton", "first_order"):
        # a window that holds the whole recording, so that both lower one and the same loss
        settings = replace(SETTINGS, window=20, method=name, learning_rate=0.1)
        running = estimator(gripped_twin(), 1.5 * TRUE_E, settings=settings)
        fed(running, lively_scene)
        for _ in range(200):
            running.method.lower(running.problem)
        found[name] = running.material
    newton, adam = found["gauss_newton"], found["first_order"]
    # segments that moved less than a linearisation bears are not rolled out anew: a tenth of a percent by either
    assert adam.youngs_modulus[0] == pytest.approx(newton.youngs_modulus[0], rel=5e-3)
    assert adam.poisson_ratio[0] == pytest.approx(newton.poisson_ratio[0], abs=5e-4)


def test_first_order_steps_find_the_truth_frame_by_frame(lively_scene: Scene) -> None:
    settings = replace(SETTINGS, method="first_order", learning_rate=0.2)
    updates = fed(estimator(gripped_twin(), 1.5 * TRUE_E, settings=settings), lively_scene)
    moduli = np.array([update.material.youngs_modulus[0] for update in updates])
    # no step is longer than the learning rate, in the prior's deviations
    deviation = parameter_space(gripped_twin(), TRUE_E).parameters[0].prior_deviation
    assert np.abs(np.diff(np.log(moduli))).max() < 1.05 * 0.2 * deviation
    # a fifth of what it began with, in twenty frames
    assert abs(np.log(moduli[-1] / TRUE_E)) < 0.2 * np.log(1.5)


def test_under_noise_the_truth_lies_within_the_published_band() -> None:
    noisy = scene(gripped_twin(), TRUTH, noise=DEVIATION, seed=5)
    settings = replace(SETTINGS, forgetting=1.0, model_deviation={})
    last = fed(estimator(gripped_twin(), settings=settings), noisy)[-1]
    errors = np.array([np.log(last.material.youngs_modulus[0] / TRUE_E), last.material.poisson_ratio[0] - TRUE_NU])
    deviations = np.sqrt(np.diag(last.covariance))
    # three deviations, of noise drawn once for good; and the band is worth something
    assert (np.abs(errors) < 3.0 * deviations).all()
    assert (deviations < [0.06, 0.01]).all()
    # residuals are those of the noise: three coordinates of ten markers
    assert last.figures["marker_rms_m"] == pytest.approx(np.sqrt(3.0) * DEVIATION, rel=0.3)


def test_two_zones_are_told_apart() -> None:
    twin = two_zone_twin()
    true = [TRUE_E, 1.5 * TRUE_E]
    given = scene(twin, material_of_zones(true), segments=25)
    space = parameter_space(twin, 2 * TRUE_E, poisson_ratio=None)
    last = fed(estimator(twin, space=space), given)[-1]
    assert last.parameter_names == ("left.log_youngs_modulus", "right.log_youngs_modulus")
    # as for one zone; two zones share what one had for itself
    np.testing.assert_allclose(last.material.youngs_modulus, true, rtol=0.01)


def test_tracks_of_one_material_share_what_they_learn() -> None:
    twin = gripped_twin()
    scenes = [scene(twin, TRUTH, motion=motion, segments=10) for motion in (lively, other)]
    both = TwinEstimator([track(twin), track(twin)], parameter_space(twin, 2 * TRUE_E), SETTINGS)
    first, second = fed(both, scenes[0], 0)[-1], fed(both, scenes[1], 1)[-1]
    alone = fed(estimator(twin), scenes[1])[-1]
    assert second.covariance[0, 0] < alone.covariance[0, 0]
    assert second.covariance[0, 0] < first.covariance[0, 0]
    assert second.frames_used == 2 * SETTINGS.window
    assert second.material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=0.01)
    np.testing.assert_array_equal(both.material.youngs_modulus, second.material.youngs_modulus)


def test_forgetting_follows_a_change_of_the_material() -> None:
    twin = gripped_twin()

    def stiffening(segment: int):
        return material_of_zones([TRUE_E if segment < 10 else 1.5 * TRUE_E])

    given = scene(twin, stiffening, segments=34)
    found = {}
    for forgetting in (0.6, 1.0):
        settings = replace(SETTINGS, forgetting=forgetting)
        found[forgetting] = fed(estimator(twin, TRUE_E, settings=settings), given)[-1].material.youngs_modulus[0]
    # of ten segments before the change, 18 segments after it left the window: 0.6^18 of them remain
    assert found[0.6] == pytest.approx(1.5 * TRUE_E, rel=0.03)
    assert found[1.0] < 1.4 * TRUE_E


# -- the order of arrival --------------------------------------------------------------------------------------


def frames_first(given: Scene) -> list:
    return [*given.frames, *given.poses]


def poses_first(given: Scene) -> list:
    return [*given.poses, *given.frames]


def one_grip_late(given: Scene) -> list:
    """Frames and the left grip in order, the right grip 0.2 s behind."""
    items = [(frame.stamp_ns, 1, frame) for frame in given.frames]
    items += [(pose[1] + (200_000_000 if pose[0] == "right" else 0), 0, pose) for pose in given.poses]
    return [item for _, _, item in sorted(items, key=lambda entry: entry[:2])]


def in_lumps(given: Scene) -> list:
    """As a network delivers them: half a second of poses, then the frames of that time."""
    items = []
    for begin in range(BEGIN_NS, BEGIN_NS + 1_500_000_000, 500_000_000):
        end = begin + 500_000_000
        items += [pose for pose in given.poses if begin <= pose[1] < end]
        items += [frame for frame in given.frames if begin <= frame.stamp_ns < end]
    return items


@pytest.mark.parametrize("order", [frames_first, poses_first, one_grip_late, in_lumps])
def test_another_order_of_arrival_gives_the_same_bits(order: Callable[[Scene], list], lively_scene: Scene) -> None:
    expected = fed(estimator(gripped_twin()), lively_scene)
    assert_same(fed_in_order(estimator(gripped_twin()), order(lively_scene)), expected)


def test_the_same_inputs_twice_give_the_same_bits(lively_scene: Scene) -> None:
    assert_same(fed(estimator(gripped_twin()), lively_scene), fed(estimator(gripped_twin()), lively_scene))


def test_stamps_that_are_not_newer_are_counted_and_change_nothing(lively_scene: Scene) -> None:
    expected = fed(estimator(gripped_twin()), lively_scene)
    running = estimator(gripped_twin())
    updates = fed(running, Scene(lively_scene.poses[:40], lively_scene.frames[:9]))
    running.add_grip_pose(*lively_scene.poses[3])
    assert running.add_observation(lively_scene.frames[2]) == []
    updates += fed(running, Scene(lively_scene.poses[40:], lively_scene.frames[9:]))
    assert running.rejected == {"grip_stamp_not_newer": 1, "frame_stamp_not_newer": 1}
    assert_same(updates, expected)


# -- what votes ------------------------------------------------------------------------------------------------


def test_markers_that_are_not_seen_are_left_out(lively_scene: Scene) -> None:
    frames = []
    for k, frame in enumerate(lively_scene.frames):
        positions_seen = frame.marker_positions.copy()
        positions_seen[k % 10] = np.nan
        positions_seen[(k + 3) % 10, 1] = np.nan
        frames.append(with_markers(frame, positions_seen))
    given = Scene(lively_scene.poses, tuple(frames))
    last = fed(estimator(gripped_twin()), given)[-1]
    assert last.material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=5e-3)
    complete = fed(estimator(gripped_twin()), lively_scene)[-1]
    assert last.covariance[0, 0] > complete.covariance[0, 0]


def test_a_frame_in_which_nothing_is_seen_does_not_count(lively_scene: Scene) -> None:
    blind = [with_markers(frame, np.full((10, 3), np.nan)) for frame in lively_scene.frames[:3]]
    running = estimator(gripped_twin())
    updates = fed(running, Scene(lively_scene.poses, (*blind, *lively_scene.frames[3:8])))
    assert [update.status for update in updates[:3]] == [UpdateStatus.HELD_NO_OBSERVATION] * 3
    assert updates[0].reason == "no frame of the window could be used"
    assert [update.frames_used for update in updates] == [0, 0, 0, 1, 2, 3, 4]
    assert updates[2].material.youngs_modulus[0] == pytest.approx(2 * TRUE_E, rel=1e-15)
    assert np.isinf(np.diag(updates[2].covariance)).all()
    assert updates[3].status is UpdateStatus.UPDATED


def test_frames_whose_step_did_not_converge_do_not_vote(
    lively_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = list(lively_scene.frames)
    for k in (2, 7):
        frames[k] = with_markers(frames[k], frames[k].marker_positions + 0.1)
    given = Scene(lively_scene.poses, tuple(frames))
    rolled = problem_module.roll_out
    spoilt = [frame.stamp_ns for frame in (frames[2], frames[7])]
    running = estimator(gripped_twin())

    def failing(*arguments, **options):
        before, end, run = rolled(*arguments, **options)
        poses = arguments[-1]
        if any(np.allclose(poses[0], lively((stamp - BEGIN_NS) * 1e-9), atol=1e-12) for stamp in spoilt):
            run = run._replace(results=run.results.at[0].set(1))
        return before, end, run

    voting = fed(estimator(gripped_twin(), settings=replace(SETTINGS, outlier_deviations=1e6)), given)[-1]
    monkeypatch.setattr(problem_module, "roll_out", failing)
    updates = fed(running, given)
    # the spoilt frames, 10 cm off, would have told on the estimate
    assert abs(np.log(voting.material.youngs_modulus[0] / TRUE_E)) > 0.02
    assert updates[-1].material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=5e-3)
    assert [update.frames_used for update in updates[:4]] == [1, 2, 2, 3]
    assert {update.status for update in updates} == {UpdateStatus.UPDATED}


def test_without_a_step_that_converged_the_estimate_is_held(
    lively_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled = problem_module.roll_out

    def failing(*arguments, **options):
        before, end, run = rolled(*arguments, **options)
        return before, end, run._replace(results=run.results.at[0].set(1))

    monkeypatch.setattr(problem_module, "roll_out", failing)
    updates = fed(estimator(gripped_twin()), Scene(lively_scene.poses, lively_scene.frames[:4]))
    for update in updates:
        assert update.status is UpdateStatus.HELD_NOT_CONVERGED
        assert update.reason == "a step of the window did not converge"
        assert update.material.youngs_modulus[0] == pytest.approx(2 * TRUE_E, rel=1e-15)


def test_of_frames_with_one_stamp_the_first_alone_votes(lively_scene: Scene) -> None:
    expected = fed(estimator(gripped_twin()), Scene(lively_scene.poses, lively_scene.frames[:5]))
    again = [with_markers(frame, frame.marker_positions + 1e-3) for frame in lively_scene.frames[:5]]
    twice = tuple(frame for pair in zip(lively_scene.frames[:5], again, strict=True) for frame in pair)
    running = estimator(gripped_twin())
    assert_same(fed(running, Scene(lively_scene.poses, twice)), expected)
    assert running.rejected == {"frame_stamp_not_newer": 5}


def test_a_frame_that_contradicts_all_others_counts_little_and_says_so(lively_scene: Scene) -> None:
    frames = list(lively_scene.frames)
    # the marks have run down: an error that looks like a sag, ten deviations of a marker and more
    sagging = np.zeros((10, 3))
    sagging[:, 2] = -0.01
    frames[12] = with_markers(frames[12], frames[12].marker_positions + sagging)
    spoilt = Scene(lively_scene.poses, tuple(frames))
    updates = fed(estimator(gripped_twin()), spoilt)
    open_ears = fed(estimator(gripped_twin(), settings=replace(SETTINGS, outlier_deviations=1e6)), spoilt)

    def error(update: MaterialUpdate) -> float:
        return abs(float(np.log(update.material.youngs_modulus[0] / TRUE_E)))

    assert updates[12].reason.startswith("the newest frame contradicts what is known by ")
    assert updates[12].figures["contradiction_deviations"] > SETTINGS.outlier_deviations
    # of exact data no other frame does
    assert max(u.figures["contradiction_deviations"] for k, u in enumerate(updates) if k < 12) < 3.0
    assert error(updates[12]) < 0.2 * error(open_ears[12])


# -- what is observable ----------------------------------------------------------------------------------------


def test_where_nothing_moves_or_pulls_everything_is_held() -> None:
    twin = gripped_twin()
    given = scene(twin, TRUTH, motion=still, step=WEIGHTLESS, segments=6)
    running = estimator(twin, step=WEIGHTLESS)
    before = running.u.copy()
    for update in fed(running, given):
        assert update.status is UpdateStatus.HELD_UNOBSERVABLE
        assert update.reason == "no direction of theta is observable"
        np.testing.assert_array_equal(np.diag(update.covariance), [np.inf, np.inf])
    np.testing.assert_array_equal(running.u, before)


def test_slow_stretching_without_gravity_tells_poissons_ratio_but_not_youngs_modulus() -> None:
    twin = gripped_twin()
    given = scene(twin, TRUTH, motion=stretching, step=WEIGHTLESS, segments=20)
    last = fed(estimator(twin, step=WEIGHTLESS), given)[-1]
    assert last.status is UpdateStatus.UPDATED
    assert np.isinf(last.covariance[0, 0])
    assert last.covariance[0, 1] == 0.0
    # held, but for the little that the observable direction has of log E
    assert last.material.youngs_modulus[0] == pytest.approx(2 * TRUE_E, rel=0.01)
    assert np.isfinite(last.covariance[1, 1])
    assert abs(last.material.poisson_ratio[0] - TRUE_NU) < 0.5 * abs(0.43 - TRUE_NU)


# -- acceptance ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "bounds"),
    [
        (SETTINGS, {}),
        (replace(SETTINGS, trust_radius=0.1), {}),
        (replace(SETTINGS, relinearise_beyond=1e-4), {}),
        (SETTINGS, {"lower": 1.4 * TRUE_E}),
    ],
    ids=["as set", "small trust radius", "always anew", "truth out of bounds"],
)
def test_the_loss_never_rises_in_an_update(settings: EstimatorSettings, bounds: dict) -> None:
    twin = gripped_twin()
    noisy = scene(twin, TRUTH, noise=2 * DEVIATION, segments=14)
    space = parameter_space(twin, 2 * TRUE_E, **bounds)
    updates = fed(estimator(twin, settings=settings, space=space), noisy)
    for update in updates:
        # rounding of sums of squares that large
        assert update.loss_after <= update.loss_before + 1e-9 * abs(update.loss_before)
        assert update.loss_after >= 0.0
        assert update.material.youngs_modulus[0] >= 0.999 * bounds.get("lower", 0.0)
    if bounds:
        assert updates[-1].material.youngs_modulus[0] == pytest.approx(bounds["lower"], rel=1e-6)
        # nu goes on where E cannot
        assert updates[-1].status is UpdateStatus.UPDATED
        assert updates[-1].reason == "the step was cut at a bound or the trust radius"


def test_no_coordinate_moves_further_than_the_trust_radius_at_once() -> None:
    twin = gripped_twin()
    settings = replace(SETTINGS, trust_radius=0.05, relinearisations=1)
    running = estimator(twin, settings=settings)
    given = scene(twin, TRUTH, segments=6)
    before, moves = running.theta.copy(), []
    for frame in given.frames:
        for pose in given.poses:
            if frame.stamp_ns - SEGMENT_NS < pose[1] <= frame.stamp_ns:
                running.add_grip_pose(*pose)
        if running.add_observation(frame):
            moves.append(np.abs(running.theta - before).max())
            before = running.theta.copy()
    assert max(moves) == pytest.approx(0.05, rel=1e-9)


def test_an_update_that_does_not_lower_the_loss_is_taken_back(
    lively_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = estimator(gripped_twin())
    before = running.u.copy()
    rolled = WindowProblem.roll_anew

    def worse(self: WindowProblem, *arguments) -> Segment:
        segment = rolled(self, *arguments)
        segment.evidence = replace(segment.evidence, loss=segment.evidence.loss + 1e6)
        return segment

    monkeypatch.setattr(WindowProblem, "roll_anew", worse)
    updates = fed(running, Scene(lively_scene.poses, lively_scene.frames[:3]))
    assert [update.status for update in updates] == [UpdateStatus.HELD_LOSS_NOT_REDUCED] * 2
    assert updates[0].reason == "rolled out anew, the window's loss did not fall"
    assert updates[0].loss_after == updates[0].loss_before
    np.testing.assert_array_equal(running.u, before)


def test_an_update_rolls_out_two_segments_however_far_the_estimate_moves(
    lively_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled, counts = problem_module.roll_out, [0]

    def counting(*arguments, **options):
        counts[-1] += 1
        return rolled(*arguments, **options)

    monkeypatch.setattr(problem_module, "roll_out", counting)
    running = estimator(gripped_twin(), 0.5 * TRUE_E, settings=replace(SETTINGS, window=12))
    for item in sorted(
        [*lively_scene.poses, *lively_scene.frames], key=lambda i: getattr(i, "stamp_ns", 0) or i[1]
    ):
        if isinstance(item, tuple):
            running.add_grip_pose(*item)
        elif running.add_observation(item):
            counts.append(0)
    # the new segment, and one anew: the check of a step, or one that was linearised too far away
    assert max(counts) == 2
    assert running.material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=0.02)
    # once the estimate rests, every segment has been linearised near it
    for segment in running.tracks[0].segments:
        assert np.abs(segment.evidence.u - running.u).max() <= SETTINGS.relinearise_beyond


# -- what is reported ------------------------------------------------------------------------------------------


def test_latent_state_poses_and_vertices_are_those_of_the_frames_stamp(lively_scene: Scene) -> None:
    twin = gripped_twin()
    update = fed(estimator(twin), lively_scene)[9]
    # segments of two ticks begin a tick before their frame
    assert update.stamp_ns == lively_scene.frames[9].stamp_ns
    np.testing.assert_array_equal(update.grip_poses, lively((update.stamp_ns - BEGIN_NS) * 1e-9))
    x = positions(twin.model, kinematics(twin.model, jnp.asarray(update.grip_poses)), jnp.asarray(update.latent))
    # compiled in two ways
    np.testing.assert_allclose(update.vertices, x, atol=1e-12)


# -- beginning anew --------------------------------------------------------------------------------------------


def test_a_reset_begins_anew_and_keeps_what_was_learnt(lively_scene: Scene) -> None:
    running = estimator(gripped_twin())
    before = fed(running, lively_scene)[-1]
    running.reset()
    earlier = Scene(
        tuple((name, stamp - 900_000_000, pose) for name, stamp, pose in lively_scene.poses),
        tuple(replace(frame, stamp_ns=frame.stamp_ns - 900_000_000) for frame in lively_scene.frames),
    )
    updates = fed(running, earlier)
    assert running.rejected == {}
    assert len(updates) == len(lively_scene.frames) - 1
    # the first update after it already stands on what was known
    assert updates[0].material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=0.01)
    assert updates[0].covariance[0, 0] < 2.0 * before.covariance[0, 0]
    assert updates[0].frames_used == 1
    assert updates[-1].material.youngs_modulus[0] == pytest.approx(TRUE_E, rel=5e-3)


# -- mistakes --------------------------------------------------------------------------------------------------


def test_measurements_that_do_not_fit_are_named(lively_scene: Scene) -> None:
    running = estimator(gripped_twin())
    frame = lively_scene.frames[0]
    with pytest.raises(
        ObservationError, match=r"marker_positions: shape \(9, 3\), expected \(10, 3\) for \('top0'"
    ):
        running.add_observation(with_markers(frame, frame.marker_positions[:9]))
    with pytest.raises(ObservationError, match="marker_positions: infinite numbers; mark unseen markers by NaN"):
        running.add_observation(with_markers(frame, np.full((10, 3), np.inf)))
    with pytest.raises(ObservationError, match=r"grip: 'middle' is unknown, the body has \['left', 'right'\]"):
        running.add_grip_pose("middle", BEGIN_NS, lively(0.0)[0])
    assert running.rejected == {}


def test_estimators_without_tracks_or_of_other_zones_are_refused() -> None:
    twin = gripped_twin()
    with pytest.raises(ValueError, match="tracks: none given"):
        TwinEstimator([], parameter_space(twin, TRUE_E), SETTINGS)
    with pytest.raises(ValueError, match=r"zones \('bar',\) differ from the theta's \('left', 'right'\)"):
        TwinEstimator([track(twin)], parameter_space(two_zone_twin(), TRUE_E), SETTINGS)
    with pytest.raises(ValueError, match="start: 'moving', expected 'rest' or 'undeformed'"):
        track(twin, start="moving")
    with pytest.raises(ValueError, match="track 0: has not started; give it frames first"):
        estimator(twin).start_of(0, TRUTH)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"window": 0}, "window: 0, expected at least 1"),
        ({"forgetting": 1.1}, "forgetting: 1.1, expected above 0 and at most 1.0"),
        ({"trust_radius": 0.0}, "trust_radius: 0.0, expected above 0"),
    ],
)
def test_settings_that_make_no_sense_are_named(setting: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EstimatorSettings(**setting)


# -- compilation -----------------------------------------------------------------------------------------------


def test_an_estimator_that_runs_compiles_nothing(lively_scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    fed(estimator(gripped_twin()), lively_scene)  # compiles
    with jax.log_compiles(), caplog.at_level(logging.DEBUG, logger="jax"):
        fed(estimator(gripped_twin(), 0.5 * TRUE_E), lively_scene)
    assert [record.message for record in caplog.records if "ompiling" in record.message] == []


def test_the_step_of_these_tests_is_that_of_their_twins() -> None:
    assert round(STEP.time_step * SETTINGS.ticks_per_segment * 1e9) == SEGMENT_NS
