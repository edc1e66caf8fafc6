"""The windowed estimator: every few frames, what is seen and what is predicted become a better theta.

Time is cut into segments of a fixed number of ticks. A segment is closed once a frame beyond its end has come
and every grip is known up to it, whatever the order of arrival, so a live run and a replay compute the same.
Closing a segment rolls the model over it with sensitivities, turns its frames into evidence (problem.py), and lets
the method that the settings name lower the window's loss (methods.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.poses import checked_poses
from realsimloop_ros.dynamics.rollout import TwinState
from realsimloop_ros.estimation.first_order import FirstOrder
from realsimloop_ros.estimation.gauss_newton import GaussNewton
from realsimloop_ros.estimation.methods import Method, Outcome, unusable
from realsimloop_ros.estimation.problem import WindowProblem
from realsimloop_ros.estimation.theta import ParameterSpace
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.estimation.updates import EstimatorSettings, MaterialUpdate
from realsimloop_ros.estimation.window import Cut, latent_at, predicted_state
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.observation.likelihoods import FrameObservation, ObservationError

_METHODS = {"gauss_newton": GaussNewton, "first_order": FirstOrder}


class TwinEstimator:
    """Estimates one theta from one track, or from several that share their material."""

    def __init__(self, tracks: Sequence[Track], space: ParameterSpace, settings: EstimatorSettings) -> None:
        if not tracks:
            raise ValueError("tracks: none given, expected at least one")
        for track in tracks:
            if track.body.zone_names != space.zone_names:
                raise ValueError(
                    f"tracks: zones {track.body.zone_names} differ from the theta's {space.zone_names}"
                )
        self.problem = WindowProblem(tracks, space, settings)
        self.method: Method = _METHODS[settings.method](settings)
        self.tracks = self.problem.tracks
        self.space = space
        self.settings = settings

    @property
    def material(self) -> Material:
        """The present estimate."""
        return self.problem.material

    @property
    def u(self) -> NDArray[np.float64]:
        """theta first, then the start corrections of every track."""
        return self.problem.u

    @property
    def theta(self) -> NDArray[np.float64]:
        """The coordinates (p,) of the material alone."""
        return self.problem.theta

    @property
    def rejected(self) -> dict[str, int]:
        """What was not used, by cause."""
        return self.problem.rejected

    def segment_ns(self, track: Track) -> int:
        """Length of a segment, ns."""
        return track.segment_ns(self.settings.ticks_per_segment)

    def add_grip_pose(self, grip: str, stamp_ns: int, pose: NDArray[np.float64], track: int = 0) -> None:
        """A grip's pose (7,). Unknown grips raise ObservationError; a stamp that is not newer is counted."""
        streams = self.tracks[track].grips
        if grip not in streams:
            raise ObservationError(f"grip: {grip!r} is unknown, the body has {sorted(streams)}")
        if not streams[grip].add(stamp_ns, checked_poses(pose, f"{grip} pose")):
            self.problem.count("grip_stamp_not_newer")

    def add_wrench(self, grip: str, stamp_ns: int, wrench: NDArray[np.float64], track: int = 0) -> None:
        """Force and moment (6,), N and N m, that the body exerts on a grip's tool, in the tool's frame.

        Ignored where the track uses no wrenches. Unknown grips, wrong sizes and non-finite numbers raise
        ObservationError; a stamp that is not newer is counted.
        """
        chosen = self.tracks[track]
        if grip not in chosen.wrenches:
            raise ObservationError(f"grip: {grip!r} is unknown, the body has {sorted(chosen.wrenches)}")
        values = np.asarray(wrench, np.float64)
        if values.shape != (6,) or not np.isfinite(values).all():
            raise ObservationError(f"{grip} wrench: {values.tolist()}, expected six finite numbers")
        if chosen.wrench_likelihood is not None and not chosen.wrenches[grip].add(stamp_ns, values):
            self.problem.count("wrench_stamp_not_newer")

    def add_observation(self, observation: FrameObservation, track: int = 0) -> list[MaterialUpdate]:
        """A frame; returns the updates of all segments it closes, oldest first."""
        _check(observation, self.tracks[track])
        if not self.tracks[track].take_frame(observation):
            self.problem.count("frame_stamp_not_newer")
            return []
        return self.advance(track)

    def advance(self, track: int = 0) -> list[MaterialUpdate]:
        """Close every segment that can be closed: call it too when grip poses have come after the frames."""
        chosen = self.tracks[track]
        updates = []
        while (cut := chosen.next_cut(self.settings.ticks_per_segment)) is not None:
            began = time.perf_counter()
            self.problem.append(chosen, cut)
            if cut.frames:
                updates.append(self._update(chosen, cut, began))
        return updates

    def start_of(self, track: int, material: Material) -> TwinState:
        """The state a track started from, at the present start corrections and any material."""
        chosen = self.tracks[track]
        if chosen.start_poses is None:
            raise ValueError(f"track {track}: has not started; give it frames first")
        return self.problem.start_of(chosen, material)

    def reset(self, track: int = 0) -> None:
        """Begin the track anew, after a clock jump or a gap; theta and what is known of it stay."""
        chosen = self.tracks[track]
        self.problem.forget(chosen)
        chosen.clear_streams()
        chosen.clear()

    def exercise(self) -> None:
        """Take every path that an update may take, so that nothing is left to be compiled. What is estimated is
        worth nothing afterwards: for a copy that is thrown away, once it has closed a segment with a frame.
        """
        self.method.exercise(self.problem)

    def covariance(self) -> NDArray[np.float64]:
        """Posterior covariance (p, p) over the published coordinates, infinite where unobservable."""
        return self.problem.covariance()

    def _update(self, track: Track, cut: Cut, began: float) -> MaterialUpdate:
        before = self.problem.loss(self.u)
        silent = unusable(self.problem)
        if silent is not None:
            outcome = Outcome(*silent, before)
        else:
            outcome = self.method.lower(self.problem)
            self.problem.refresh_appearance()
        seconds = time.perf_counter() - began
        segment, frame = track.segments[-1], cut.frames[-1]
        run = self.problem.run_of(segment)
        reason = outcome.reason
        if segment.weight < 1.0:
            contradicts = (
                f"the newest frame contradicts what is known by {segment.distance:.1f} deviations and counts "
                f"{segment.weight:.2g}"
            )
            reason = f"{reason}; {contradicts}" if reason else contradicts
        predicted = predicted_state(track.model, self.u, segment.start, run, frame)
        return MaterialUpdate(
            stamp_ns=frame.observation.stamp_ns,
            zone_names=self.space.zone_names,
            material=self.material,
            parameter_names=self.space.names,
            covariance=self.covariance(),
            status=outcome.status,
            reason=reason,
            loss_before=before,
            loss_after=outcome.loss,
            frames_used=sum(e.frames for e in self.problem.evidence()),
            solve_time_s=seconds,
            latent=latent_at(segment.start, run, frame),
            grip_poses=frame.grip_poses,
            vertices=predicted.x,
            figures={**segment.evidence.figures, "contradiction_deviations": segment.distance},
        )


def _check(observation: FrameObservation, track: Track) -> None:
    markers = observation.marker_positions
    expected = (len(track.body.marker_names), 3)
    if markers is not None and markers.shape != expected:
        raise ObservationError(
            f"marker_positions: shape {markers.shape}, expected {expected} for {track.body.marker_names}"
        )
    if markers is not None and np.isinf(markers).any():
        raise ObservationError("marker_positions: infinite numbers; mark unseen markers by NaN")
