"""Into how many parts a step is split, for motions written down by hand."""

from __future__ import annotations

import numpy as np
import pytest

from realsimloop_ros.mechanics.substeps import (
    RESOLUTION,
    parts_needed,
    parts_needed_to_turn,
    parts_wanted,
    rounded_parts,
    too_deep,
)
from realsimloop_ros.mechanics.surroundings import Motion

BAND = 1e-3


def _motion(before: float, after: float, closing: float | None = None) -> Motion:
    """Of two points, the first of which rests 5 m away."""
    way = before - after if closing is None else closing
    return Motion(np.array([[5.0, before]]), np.array([[5.0, after]]), np.array([[0.0, way]]))


@pytest.mark.parametrize(
    ("motion", "crossed"),
    [
        (_motion(0.1, 0.05), 0.0),  # far away, however fast
        (_motion(5e-3, 2e-3), 0.0),  # ends outside of the band
        (_motion(5e-3, 0.5e-3), 4.5e-3),  # comes in
        (_motion(0.5e-3, 5e-3), 4.5e-3),  # leaves
        (_motion(0.5e-3, 0.5e-3), 0.0),  # rests, or slides
        (_motion(0.02, 0.01, 0.05), 0.05),  # would be on the other side of something thin
        (_motion(0.02, np.nan), 0.0),
    ],
)
def test_only_motion_in_reach_of_contact_counts(motion: Motion, crossed: float) -> None:
    assert parts_needed(motion, BAND) == pytest.approx(crossed / (RESOLUTION * BAND))


def test_parts_go_with_the_root_of_what_forces_turn() -> None:
    flight = _motion(0.5e-3, -2e-3)
    assert parts_needed_to_turn(flight, flight, BAND) == 0.0
    turned = _motion(0.5e-3, -2e-3 + 4 * RESOLUTION * BAND)
    assert parts_needed_to_turn(flight, turned, BAND) == pytest.approx(2.0)
    # what is no longer in touch was turned by something else
    assert parts_needed_to_turn(flight, _motion(0.5e-3, 0.01), BAND) == 0.0


def test_a_part_that_came_out_as_foreseen_is_let_pass_and_others_ask_for_more() -> None:
    calm = _motion(0.5e-3, 0.5e-3 - 1.9 * RESOLUTION * BAND)
    assert parts_wanted(calm, calm, BAND, 4) == 4
    hasty = _motion(0.5e-3, 0.5e-3 - 3.0 * RESOLUTION * BAND)
    assert parts_wanted(hasty, hasty, BAND, 4) == 12
    surprised = _motion(0.5e-3, 0.5e-3 + 9.5 * RESOLUTION * BAND, 0.0)
    assert parts_wanted(calm, surprised, BAND, 4) > 8
    deep = _motion(-1.1e-3, -1.1e-3)
    assert parts_wanted(deep, deep, BAND, 4) == 8


@pytest.mark.parametrize(
    ("parts", "most", "expected"),
    [(0.0, 32, 1), (1.0, 32, 1), (1.1, 32, 2), (4.0, 32, 4), (5.0, 32, 8), (99.0, 32, 32), (5.0, 6, 6)],
)
def test_parts_are_powers_of_two_and_bounded(parts: float, most: int, expected: int) -> None:
    assert rounded_parts(parts, most) == expected


def test_what_is_not_a_number_is_split_as_far_as_possible() -> None:
    assert rounded_parts(np.nan, 32) == 32


def test_a_band_below_the_surface_is_too_deep() -> None:
    assert too_deep(_motion(0.0, -1.1e-3), BAND)
    assert not too_deep(_motion(0.0, -0.9e-3), BAND)
