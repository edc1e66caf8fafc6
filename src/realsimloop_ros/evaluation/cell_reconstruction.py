"""How far the twin is from the truth, and the twin's motion for a theta that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from realsimloop_ros.body.body import Body, bind_points
from realsimloop_ros.dynamics.live import LiveState, LiveTwin
from realsimloop_ros.estimation.twin import Twin
from realsimloop_ros.evaluation.captures import PoseTrack
from realsimloop_ros.evaluation.cell_recording import StateTrack
from realsimloop_ros.evaluation.record import ReconstructionTrace
from realsimloop_ros.mechanics.material import Material

POINTS = "free vertices of the true body"
# a recording is followed from end to end, however long a gap in its poses is
_FOR_EVER = 2**62
# moments looked at together, which bounds the memory that it takes
_BATCH = 64


@dataclass(frozen=True, eq=False)
class ScheduledTheta:
    """A theta that holds from stamp_ns on."""

    stamp_ns: int
    material: Material


def reconstruction(twin_body: Body, twin: StateTrack, truth_body: Body, truth: StateTrack) -> ReconstructionTrace:
    """Distances at the truth's free vertices, at the stamps of whichever of the two is told less often.

    The truth's mesh is finer than the twin's: its vertices at rest are bound to the twin's tets, and the twin says
    where they are. Gripped vertices, which both bodies are given, are left out.
    """
    free = np.setdiff1d(np.arange(len(truth_body.rest_positions)), truth_body.held_vertices)
    bound = bind_points(twin_body, truth_body.rest_positions[free])
    stamps = min((twin.stamps_ns, truth.stamps_ns), key=lambda stamps: len(stamps) / max(np.ptp(stamps), 1))
    errors = np.full((len(stamps), len(free)), np.nan, np.float32)
    for first in range(0, len(stamps), _BATCH):
        part = slice(first, first + _BATCH)
        ours, theirs = twin.near(stamps[part]), truth.near(stamps[part])
        for k, (x, true) in enumerate(zip(ours, theirs, strict=True)):
            predicted = bound.positions(x, twin_body.tets)
            errors[first + k] = np.linalg.norm(predicted - true[free], axis=1)
    known = np.isfinite(errors).all(axis=1)
    return ReconstructionTrace(POINTS, stamps[known], errors[known])


def twin_motion(
    twin: Twin, schedule: Sequence[ScheduledTheta], grips: Sequence[PoseTrack]
) -> tuple[StateTrack, int]:
    """The twin following its grips, a state per time step, and how many of these did not converge.

    It starts in static equilibrium. Whatever theta the schedule says at a time is used from then on; before its
    first entry, the first one's. grips: in the order of the body's.
    """
    live = LiveTwin(twin.body, twin.model, twin.step, schedule[0].material, jump_ns=_FOR_EVER, lag_ns=_FOR_EVER)
    starts = np.array([entry.stamp_ns for entry in schedule])
    poses = sorted(
        (int(stamp), k, row) for k, track in enumerate(grips) for row, stamp in enumerate(track.stamps_ns)
    )
    states: list[LiveState] = []
    for stamp, k, row in poses:
        live.add_grip_pose(twin.body.grip_names[k], stamp, grips[k].poses[row])
        for state in live.advance():
            states.append(state)
            at = int(np.searchsorted(starts, state.stamp_ns, side="right")) - 1
            live.set_material(schedule[max(at, 0)].material)
    n, g = len(twin.body.rest_positions), len(grips)
    track = StateTrack(
        np.array([state.stamp_ns for state in states], np.int64),
        np.array([state.vertices for state in states], np.float32).reshape(-1, n, 3),
        np.array([state.grip_poses for state in states], np.float64).reshape(-1, g, 7),
    )
    return track, sum(not state.converged for state in states)
