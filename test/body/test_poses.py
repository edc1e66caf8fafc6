"""Rigid poses: group laws, checks, interpolation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import (
    IDENTITY_POSE,
    InvalidPoseError,
    checked_poses,
    compose,
    interpolate,
    inverse,
    make_pose,
    rotation_matrix,
    transform_points,
)

NUMBERS = st.floats(-2.0, 2.0)
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4).map(np.array)


@st.composite
def poses(draw: st.DrawFn) -> np.ndarray:
    """Any pose within 2 m, turned by up to half a turn."""
    position = np.array(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
    turn = np.array(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
    return make_pose(position, Rotation.from_rotvec(turn))


# coordinates of up to 2 m, a few operations each: 1e-14 is rounding
ROUNDING = 1e-14


@given(poses(), poses(), POINTS)
@settings(deadline=None)
def test_composition_is_applying_one_after_the_other(
    first: np.ndarray, second: np.ndarray, points: np.ndarray
) -> None:
    once = transform_points(compose(first, second), points)
    twice = transform_points(first, transform_points(second, points))
    np.testing.assert_allclose(once, twice, atol=ROUNDING)


@given(poses(), POINTS)
@settings(deadline=None)
def test_the_inverse_undoes_a_pose(pose: np.ndarray, points: np.ndarray) -> None:
    back = transform_points(inverse(pose), transform_points(pose, points))
    np.testing.assert_allclose(back, points, atol=ROUNDING)
    matrix = rotation_matrix(compose(pose, inverse(pose)))
    np.testing.assert_allclose(matrix, np.eye(3), atol=ROUNDING)


@given(poses(), POINTS)
@settings(deadline=None)
def test_the_matrix_turns_like_the_pose(pose: np.ndarray, points: np.ndarray) -> None:
    by_matrix = points @ rotation_matrix(pose).T + pose[:3]
    np.testing.assert_allclose(by_matrix, transform_points(pose, points), atol=ROUNDING)
    assert rotation_matrix(np.stack([pose, pose])[None]).shape == (1, 2, 3, 3)


@given(poses(), poses(), st.integers(-5, 105))
@settings(deadline=None)
def test_interpolation_stays_on_the_way_and_is_held_beyond_its_ends(
    first: np.ndarray, last: np.ndarray, stamp: int
) -> None:
    found = interpolate(np.array([0, 100]), np.stack([first, last]), stamp)
    fraction = np.clip(stamp / 100, 0.0, 1.0)
    np.testing.assert_allclose(found[:3], (1 - fraction) * first[:3] + fraction * last[:3], atol=ROUNDING)
    whole = (Rotation.from_quat(first[3:]).inv() * Rotation.from_quat(last[3:])).magnitude()
    part = (Rotation.from_quat(first[3:]).inv() * Rotation.from_quat(found[3:])).magnitude()
    # the angle of a small turn comes from an arc cosine or sine of rounded numbers: root of the rounding
    assert part == pytest.approx(fraction * whole, abs=1e-7)


@pytest.mark.parametrize("stamp", [0, 10, 25, 40])
def test_interpolation_meets_its_samples(stamp: int) -> None:
    stamps = np.array([0, 10, 25, 40])
    samples = np.stack([make_pose([k, 0, 0], Rotation.from_rotvec([0, 0, 0.5 * k])) for k in range(4)])
    k = int(np.flatnonzero(stamps == stamp)[0])
    np.testing.assert_allclose(interpolate(stamps, samples, stamp), samples[k], atol=ROUNDING)


def test_a_rounded_quaternion_is_normalised() -> None:
    pose = np.array([1.0, 2.0, 3.0, 0.0, 0.0, 0.6, 0.8]).astype(np.float32)
    checked = checked_poses(pose)
    assert checked.dtype == np.float64
    assert np.linalg.norm(checked[3:]) == pytest.approx(1.0, abs=1e-15)
    assert checked_poses(np.zeros((0, 7))).shape == (0, 7)


@pytest.mark.parametrize(
    ("pose", "word"),
    [
        (np.zeros(6), r"left: shape \(6,\)"),
        (3.0, r"left: shape \(\)"),
        ([np.nan, 0, 0, 0, 0, 0, 1], "left: non-finite"),
        ([0, 0, 0, 0, 0, 0, 0], "left: quaternion norm"),
        ([0, 0, 0, 0, 0, 0, 1.01], "left: quaternion norm"),
        (np.stack([IDENTITY_POSE, 2 * IDENTITY_POSE]), "left: quaternion norm"),
    ],
)
def test_what_is_no_pose_is_refused_by_name(pose: object, word: str) -> None:
    with pytest.raises(InvalidPoseError, match=word):
        checked_poses(pose, "left")  # type: ignore[arg-type]
