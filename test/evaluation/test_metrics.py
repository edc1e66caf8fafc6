from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from realsimloop_ros.evaluation.c3d import read_c3d
from realsimloop_ros.evaluation.metrics import (
    free_oscillation,
    settled_sag,
    summarize_errors,
    summarize_timing,
)
from realsimloop_ros.evaluation.release import ReleaseError, detect_release, release_at

RATE = 100.0


def swing(
    frequency: float,
    decay: float,
    *,
    creep: float = 0.0,
    noise: float = 0.0,
    seconds: float = 3.0,
    seed: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A body that falls 10 mm from rest at 0 s, swings about its settled height and creeps on."""
    t = np.arange(0.0, seconds, 1.0 / RATE)
    y = -0.010 * (1.0 - np.exp(-decay * t) * np.cos(2.0 * np.pi * frequency * t)) - creep * (
        1.0 - np.exp(-t / 0.8)
    )
    return t, y + np.random.default_rng(seed).normal(0.0, noise, len(t))


@pytest.mark.parametrize("frequency", [2.0, 4.4, 7.9, 15.0])
@pytest.mark.parametrize("decay", [0.3, 2.5])
def test_the_frequency_of_a_clean_swing_is_exact(frequency: float, decay: float) -> None:
    t, y = swing(frequency, decay)
    found = free_oscillation(t, y, start=0.0)
    assert found is not None
    # the signal is in the fitted family: what remains is where the search stops
    assert found.frequency == pytest.approx(frequency, rel=1e-5)
    assert found.decay_rate == pytest.approx(decay, rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_creep_move_the_frequency_by_less_than_half_a_per_cent(seed: int) -> None:
    # 0.1 mm noise on 10 mm, and a tenth of the sag as creep: worse than the real captures (0.03 mm, a tenth)
    t, y = swing(7.9, 2.5, creep=1e-3, noise=1e-4, seed=seed)
    found = free_oscillation(t, y, start=0.06)
    assert found is not None
    assert found.frequency == pytest.approx(7.9, rel=5e-3)
    assert found.decay_rate == pytest.approx(2.5, rel=0.1)


def test_a_second_mode_does_not_take_over() -> None:
    t, y = swing(4.4, 1.6)
    found = free_oscillation(t, y + 0.0015 * np.exp(-6.0 * t) * np.sin(2.0 * np.pi * 23.0 * t), start=0.0)
    assert found is not None
    # the short-lived second mode holds 15 % of the amplitude at first
    assert found.frequency == pytest.approx(4.4, rel=5e-3)


def test_gaps_in_a_track_do_not_move_the_frequency() -> None:
    t, y = swing(7.9, 2.5)
    y[30:45] = np.nan
    found = free_oscillation(t, y, start=0.0)
    assert found is not None
    assert found.frequency == pytest.approx(7.9, rel=1e-4)


def test_what_does_not_swing_has_no_frequency() -> None:
    t = np.arange(0.0, 3.0, 0.01)
    noise = np.random.default_rng(2).normal(0.0, 1e-4, len(t))
    assert free_oscillation(t, noise, start=0.0) is None
    assert free_oscillation(t, np.zeros_like(t), start=0.0) is None
    assert free_oscillation(t, -0.01 * (1.0 - np.exp(-3.0 * t)) + 0.01 * noise, start=0.0) is None
    assert free_oscillation(t[:10], noise[:10], start=0.0) is None


def test_sag_is_the_drop_along_gravity_and_displacement_its_whole_length() -> None:
    t = np.arange(0.0, 6.0, 0.01)
    positions = np.zeros((len(t), 3))
    fall = np.where(t < 1.0, 0.0, 1.0 - np.exp(-8.0 * (t - 1.0)))
    positions[:, 2], positions[:, 0] = -0.004 * fall, 0.003 * fall
    found = settled_sag(t, positions, held=t < 1.0, up=np.array([0.0, 0.0, 1.0]))
    assert found is not None
    assert found.sag == pytest.approx(0.004, rel=1e-9)
    assert found.displacement == pytest.approx(0.005, rel=1e-9)
    assert found.ripple < 1e-12


def test_an_unseen_settled_stretch_has_no_sag() -> None:
    t = np.arange(0.0, 6.0, 0.01)
    positions = np.zeros((len(t), 3))
    positions[200:] = np.nan
    assert settled_sag(t, positions, held=t < 1.0, up=np.array([0.0, 0.0, 1.0])) is None


def test_errors_are_summarized_over_every_point_that_was_seen() -> None:
    errors = np.linspace(0.0, 1e-3, 1001).reshape(7, 143)
    errors[0, 0] = np.nan
    summary = summarize_errors(errors, size=0.1)
    assert summary is not None
    assert summary.mean == pytest.approx(0.5005e-3)
    assert summary.p95 == pytest.approx(0.95005e-3)
    assert summary.maximum == 1e-3
    assert summary.percent_of_size == pytest.approx(0.5005)
    assert summarize_errors(np.full((2, 2), np.nan), 0.1) is None


def test_timing_is_summarized_by_median_and_99th_percentile() -> None:
    summary = summarize_timing(np.arange(101) * 1e-3)
    assert summary is not None
    assert (summary.p50, summary.p99, summary.count) == (0.05, 0.099, 101)
    assert summarize_timing(np.zeros(0)) is None


def held_and_released(release: float, *, seed: int = 0, noise: float = 3e-5) -> tuple[NDArray, NDArray]:
    t = np.arange(0.0, 4.0, 1.0 / RATE)
    after = np.maximum(t - release, 0.0)
    fall = 0.010 * (1.0 - np.exp(-2.5 * after) * np.cos(2.0 * np.pi * 7.9 * after))
    positions = np.random.default_rng(seed).normal(0.0, noise, (len(t), 3, 3))
    positions[:, :, 2] -= fall[:, None]
    return (t * 1e9).round().astype(np.int64), positions


@pytest.mark.parametrize("release", [0.4, 0.703, 1.238])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_release_is_found_to_within_a_frame(release: float, seed: int) -> None:
    stamps, positions = held_and_released(release, seed=seed)
    found = detect_release(stamps, positions)
    assert found.stamp_ns * 1e-9 == pytest.approx(release, abs=0.01)
    assert found.held[1] <= release * RATE + 1
    # half a period of 7.9 Hz after the release, to within a frame
    assert found.turning_frame / RATE == pytest.approx(release + 0.0633, abs=0.011)


def test_a_wobble_while_held_is_no_release() -> None:
    stamps, positions = held_and_released(1.2)
    positions[30:34, :, 2] += 0.4e-3
    assert detect_release(stamps, positions).stamp_ns * 1e-9 == pytest.approx(1.2, abs=0.01)


def test_nothing_released_is_an_error_with_a_remedy() -> None:
    stamps, positions = held_and_released(10.0)
    with pytest.raises(ReleaseError, match=r"nothing was released .* time\.release"):
        detect_release(stamps, positions)
    stamps, positions = held_and_released(-1.0)
    with pytest.raises(ReleaseError, match="start earlier"):
        detect_release(stamps, positions)
    with pytest.raises(ReleaseError, match="leaves no held pose"):
        release_at(stamps, positions, 0)


@pytest.mark.parametrize(
    ("name", "sag", "displacement", "frequency", "moving"),
    [
        # sag and displacement in mm as read off plots of the tracks; the frequency from the times of the
        # first eight extrema after the turning point; the first frame that moves as seen in the tracks
        ("gravity", 6.63, 6.70, 7.74, 71),
        ("load52", 17.46, 17.53, 4.36, 44),
    ],
)
def test_the_real_captures_give_their_known_sag_and_frequency(
    data_folder: Path, name: str, sag: float, displacement: float, frequency: float, moving: int
) -> None:
    capture = read_c3d(data_folder / "real_beam" / f"beam_{name}_V2_a.c3d").select(
        ["Tip - 1", "Tip - 2", "Tip - 3"]
    )
    release = detect_release(capture.stamps_ns, capture.positions)
    assert abs(release.frame - moving) <= 1
    held = np.zeros(len(capture.stamps_ns), bool)
    held[slice(*release.held)] = True
    up = np.array([1.0, 0.0, 0.0])
    found = settled_sag(capture.seconds, capture.positions[:, 0], held=held, up=up)
    assert found is not None
    assert found.sag * 1e3 == pytest.approx(sag, abs=0.02)
    assert found.displacement * 1e3 == pytest.approx(displacement, abs=0.02)
    assert found.ripple < 5e-5  # the capture lasts until the beam is still
    for marker in range(3):
        oscillation = free_oscillation(
            capture.seconds, capture.positions[:, marker, 0], start=capture.seconds[release.turning_frame]
        )
        assert oscillation is not None
        assert oscillation.frequency == pytest.approx(frequency, rel=0.01)
