"""The windowed estimator: every few frames, what is seen and what is predicted become a better theta.

Time is cut into segments of a fixed number of ticks. A segment is closed once a frame beyond its end has come
and every grip is known up to it, whatever the order of arrival, so a live run and a replay compute the same.
Closing a segment rolls the model over it with sensitivities, turns its frames into evidence, and makes a
Gauss-Newton step on

    L(u) = sum over the window of frame losses + 1/2 |u - u_prior|^2  + what earlier windows knew, fading.

Evidence is kept linearised; the window is rolled out anew only when u has moved further than its linearisation
bears. The window's start state follows u to first order through its own sensitivities.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from realsimloop_ros.body.poses import checked_poses
from realsimloop_ros.dynamics.rollout import (
    TwinState,
    moved_by,
    rest_state,
    undeformed_state,
    with_free_start,
)
from realsimloop_ros.dynamics.stepper import CONVERGED
from realsimloop_ros.estimation.bounded_step import BoundedStep, bounded_step
from realsimloop_ros.estimation.identifiability import observable_part, without_nuisance
from realsimloop_ros.estimation.information import Information
from realsimloop_ros.estimation.theta import ParameterSpace
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.estimation.updates import EstimatorSettings, MaterialUpdate, UpdateStatus
from realsimloop_ros.estimation.window import (
    Evidence,
    Segment,
    SegmentFrame,
    gather_evidence,
    latent_at,
    predicted_state,
    roll_out,
    simulate,
    wrench_term,
)
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.observation.likelihoods import FrameObservation, ObservationError


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
        self.tracks = tuple(tracks)
        self.space = space
        self.settings = settings
        # u: theta first, then the start corrections of every track
        starts = np.concatenate([track.start_deviations for track in self.tracks])
        self.u = np.concatenate([space.coordinates(space.prior), np.zeros(len(starts))])
        lower, upper = space.bounds()
        unbounded = np.full(len(starts), np.inf)
        self._lower, self._upper = np.concatenate([lower, -unbounded]), np.concatenate([upper, unbounded])
        self._prior_precision = np.diag(np.concatenate([np.diag(space.prior_precision()), 1.0 / starts**2]))
        self._prior_u = self.u.copy()
        # what has left the window, as information about u
        self._old = Information(len(self.u))
        self._refreshed_at = self.theta.copy()
        # targets whose rollout was refused, with the number of closed segments until which that counts
        self._refusals: list[tuple[NDArray[np.float64], int]] = []
        self._closed = 0
        self.rejected: dict[str, int] = {}

    @property
    def material(self) -> Material:
        """The present estimate."""
        return self.space.material(self.theta)

    @property
    def theta(self) -> NDArray[np.float64]:
        """The coordinates (p,) of the material alone."""
        return self.u[: self.space.size]

    def segment_ns(self, track: Track) -> int:
        """Length of a segment, ns."""
        return round(track.settings.time_step * self.settings.ticks_per_segment * 1e9)

    def add_grip_pose(self, grip: str, stamp_ns: int, pose: NDArray[np.float64], track: int = 0) -> None:
        """A grip's pose (7,). Unknown grips raise ObservationError; a stamp that is not newer is counted."""
        streams = self.tracks[track].grips
        if grip not in streams:
            raise ObservationError(f"grip: {grip!r} is unknown, the body has {sorted(streams)}")
        if not streams[grip].add(stamp_ns, checked_poses(pose, f"{grip} pose")):
            self._count("grip_stamp_not_newer")

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
            self._count("wrench_stamp_not_newer")

    def add_observation(self, observation: FrameObservation, track: int = 0) -> list[MaterialUpdate]:
        """A frame; returns the updates of all segments it closes, oldest first."""
        self._check(observation, self.tracks[track])
        chosen = self.tracks[track]
        newest = chosen.waiting[-1].stamp_ns if chosen.waiting else chosen.begin_ns
        if newest is not None and observation.stamp_ns < newest:
            self._count("frame_stamp_not_newer")
            return []
        chosen.waiting.append(observation)
        return self.advance(track)

    def advance(self, track: int = 0) -> list[MaterialUpdate]:
        """Close every segment that can be closed: call it too when grip poses have come after the frames."""
        chosen = self.tracks[track]
        updates = []
        while (segment := self._next_segment(chosen)) is not None:
            update = self._close(chosen, *segment)
            if update is not None:
                updates.append(update)
        return updates

    def start_of(self, track: int, material: Material) -> TwinState:
        """The state a track started from, at the present start corrections and any material."""
        chosen = self.tracks[track]
        if chosen.start_poses is None:
            raise ValueError(f"track {track}: has not started; give it frames first")
        state = self._start_state(chosen, chosen.start_poses, material)
        p = self.space.size
        return moved_by(state, jnp.asarray(np.concatenate([np.zeros(p), self.u[p:]])))

    def reset(self, track: int = 0) -> None:
        """Begin the track anew, after a clock jump or a gap; theta and what is known of it stay."""
        for segment in self.tracks[track].segments:
            self._old.absorb(segment.evidence, self.settings.forgetting)
        # the corrections to come are of another start
        corrections = self._start_coordinates(self.tracks[track])
        self._old.marginalise(corrections, self._prior_precision)
        self.u[corrections] = 0.0
        for stream in self.tracks[track].grips.values():
            stream.stamps.clear()
            stream.poses.clear()
        for wrench in self.tracks[track].wrenches.values():
            wrench.clear()
        self.tracks[track].clear()

    def exercise(self) -> None:
        """Take every path that an update may take, so that nothing is left to be compiled. What is estimated is
        worth nothing afterwards: for a copy that is thrown away, once it has closed a segment with a frame.
        """
        change = np.full_like(self.u, 1e-3)
        self._shift(change)
        self._relinearise(change)
        self._refreshed_at = np.full_like(self.theta, np.inf)
        self._refresh_appearance()

    def _count(self, cause: str) -> None:
        self.rejected[cause] = self.rejected.get(cause, 0) + 1

    def _check(self, observation: FrameObservation, track: Track) -> None:
        markers = observation.marker_positions
        expected = (len(track.body.marker_names), 3)
        if markers is not None and markers.shape != expected:
            raise ObservationError(
                f"marker_positions: shape {markers.shape}, expected {expected} for {track.body.marker_names}"
            )
        if markers is not None and np.isinf(markers).any():
            raise ObservationError("marker_positions: infinite numbers; mark unseen markers by NaN")

    def _next_segment(self, track: Track) -> tuple[int, list[FrameObservation]] | None:
        """End stamp and frames of the next segment, if it can be closed."""
        if not track.waiting:
            return None
        length = self.segment_ns(track)
        if track.begin_ns is None:
            # frames at a steady rate then lie in the middle of their segments, away from the cuts
            track.begin_ns = track.waiting[0].stamp_ns - length // 2
        end = track.begin_ns + length
        tick = length // self.settings.ticks_per_segment
        if track.waiting[-1].stamp_ns < end or track.grips_known_until(tick) < end:
            return None
        frames = []
        while track.waiting and track.waiting[0].stamp_ns < end:
            frames.append(track.waiting.popleft())
        return end, frames

    def _close(self, track: Track, end: int, observations: list[FrameObservation]) -> MaterialUpdate | None:
        began = time.perf_counter()
        assert track.begin_ns is not None
        begin, ticks = track.begin_ns, self.settings.ticks_per_segment
        step = (end - begin) / ticks
        poses = np.array([track.poses_at(round(begin + (k + 1) * step)) for k in range(ticks)])
        poses = poses.reshape(ticks, -1, 7)
        begins_track = track.state is None
        if track.state is None:
            track.start_poses = track.poses_at(begin)
            track.state = self._start_state(track, track.start_poses, self.material)
        frames = []
        for observation in observations:
            place = (observation.stamp_ns - begin) / step
            tick = min(int(place), ticks - 1)
            frames.append(SegmentFrame(observation, tick, place - tick, track.poses_at(observation.stamp_ns)))
        track.begin_ns = end
        wrenches = None
        if track.wrench_likelihood is not None:
            wrenches = track.wrenches_at(end, (end - begin) // ticks)
        track.forget_before(end)
        segment = self._roll(track, track.state, end, poses, tuple(frames), wrenches, begins_track)
        while len(track.segments) >= self.settings.window:
            self._old.absorb(track.segments.popleft().evidence, self.settings.forgetting)
        track.segments.append(segment)
        track.state = segment.end
        self._closed += 1
        if not frames:
            return None
        status, reason, before, after = self._update()
        segment = track.segments[-1]
        track.state = segment.end
        return self._report(track, segment, status, reason, before, after, time.perf_counter() - began)

    def _start_state(self, track: Track, poses: NDArray[np.float64], material: Material) -> TwinState:
        at = jnp.asarray(poses)
        if track.start == "undeformed":
            state = undeformed_state(track.model, track.settings, at, len(self.u))
        else:
            directions = self.space.directions(self.theta, len(self.u))
            state, result = rest_state(track.model, track.settings, material, directions, at)
            if int(result) != CONVERGED:
                self._count("start_not_converged")
        if track.free_start:
            first = self._start_coordinates(track).start
            state = with_free_start(track.model, track.settings, at, state, first, track.free_start)
        return state

    def _roll(
        self,
        track: Track,
        start: TwinState,
        end_ns: int,
        poses: NDArray[np.float64],
        frames: tuple[SegmentFrame, ...],
        wrenches: NDArray[np.float64] | None,
        begins_track: bool = False,
    ) -> Segment:
        parts = (track.model, track.settings, self.space, self.u)
        before, end, run = roll_out(*parts, start, poses, last_start=track.wrench_likelihood is not None)
        others = []
        if track.wrench_likelihood is not None and wrenches is not None:
            term = wrench_term(*parts, before, end, poses[-1], track.wrench_likelihood, wrenches)
            if term is not None:
                others.append(term)
        seen = [(predicted_state(track.model, self.u, start, run, frame), frame.observation) for frame in frames]
        for predicted, observation in seen:
            for likelihood in track.likelihoods:
                likelihood.prepare(predicted, observation)
        evidence = gather_evidence(track.likelihoods, self.u, run, seen, others)
        return Segment(end_ns, poses, frames, start, end, run, evidence, wrenches, begins_track)

    def _roll_anew(self, track: Track, segment: Segment, start: TwinState) -> Segment:
        """A segment rolled out at the present u from another start."""
        return self._roll(
            track,
            start,
            segment.end_stamp_ns,
            segment.grip_poses,
            segment.frames,
            segment.wrenches,
            segment.begins_track,
        )

    def _start_coordinates(self, track: Track) -> slice:
        """Where the start corrections of a track lie in u."""
        before = self.tracks[: self.tracks.index(track)]
        first = self.space.size + sum(len(other.start_deviations) for other in before)
        return slice(first, first + len(track.start_deviations))

    def _evidence(self) -> list[Evidence]:
        return [segment.evidence for track in self.tracks for segment in track.segments if segment.evidence.valid]

    def _known(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Information on u from data alone: precision and vector."""
        precision, vector = self._old.precision.copy(), self._old.vector.copy()
        for evidence in self._evidence():
            more = evidence.information()
            precision += more[0]
            vector += more[1]
        return precision, vector

    def _loss(self, u: NDArray[np.float64]) -> float:
        """The window's loss at u by its quadratic model, which is exact where it was rolled out at u."""
        away = u - self._prior_u
        return float(
            sum(evidence.loss_at(u) for evidence in self._evidence())
            + 0.5 * away @ self._prior_precision @ away
            + self._old.loss_at(u)
        )

    def _update(self) -> tuple[UpdateStatus, str, float, float]:
        before = self._loss(self.u)
        evidence = self._evidence()
        if not evidence or not any(e.frames for e in evidence):
            unstable = any(not s.evidence.valid for track in self.tracks for s in track.segments)
            if unstable:
                return UpdateStatus.HELD_NOT_CONVERGED, "a step of the window did not converge", before, before
            return UpdateStatus.HELD_NO_OBSERVATION, "no frame of the window could be used", before, before
        status, reason = UpdateStatus.UPDATED, ""
        held = self.u.copy()
        for _ in range(self.settings.relinearisations):
            step = self._gauss_newton_step()
            if step is None:
                return UpdateStatus.HELD_NON_FINITE, "the Gauss-Newton step is not finite", before, before
            change, limited = step
            if not np.any(change):
                break
            if limited:
                reason = "the step was cut at a bound or the trust radius"
            if self._small(change):
                self._shift(change)
                break
            if self._refused_lately(change) or not self._relinearise(change):
                if np.array_equal(held, self.u):
                    status = UpdateStatus.HELD_LOSS_NOT_REDUCED
                    reason = "rolled out anew, the window's loss did not fall"
                break
        if status is UpdateStatus.UPDATED and np.array_equal(held[: self.space.size], self.theta):
            if limited:
                status, reason = UpdateStatus.HELD_OUT_OF_BOUNDS, "the step would leave the bounds"
            elif self.space.size and self._observable(self._known()[0])[0].shape[1] == 0:
                status, reason = UpdateStatus.HELD_UNOBSERVABLE, "no direction of theta is observable"
        after = self._loss(self.u)
        self._refresh_appearance()
        return status, reason, before, after

    def _gauss_newton_step(self) -> BoundedStep | None:
        """The next step of u; None where it is not finite."""
        precision, vector = self._known()
        slope = precision @ self.u - vector + self._prior_precision @ (self.u - self._prior_u)
        if not (np.isfinite(precision).all() and np.isfinite(slope).all()):
            return None
        # the step within the observable subspace: theta is held along the others, the start is free to follow
        part, _ = self._observable(precision)
        free = len(self.u) - self.space.size
        radii = np.concatenate([np.full(self.space.size, self.settings.trust_radius), np.full(free, np.inf)])
        return bounded_step(
            precision + self._prior_precision,
            slope,
            block_diag(part, np.eye(free)),
            (self._lower - self.u, self._upper - self.u),
            radii,
        )

    def _refused_lately(self, change: NDArray[np.float64]) -> bool:
        """Whether nearly the same target was rolled out and refused while half of this window was already in it.

        Such a target is refused again without the cost of a rollout: successive frames propose much the same step.
        """
        p = self.space.size
        self._refusals = [(target, left) for target, left in self._refusals if left > self._closed]
        near = self.settings.relinearise_beyond
        return any(np.abs((self.u + change - target)[:p]).max() <= near for target, _ in self._refusals)

    def _small(self, change: NDArray[np.float64]) -> bool:
        """Whether a change leaves u within what the window's linearisations bear."""
        p = self.space.size
        away = np.array([self.u + change - evidence.u for evidence in self._evidence()])
        start = np.abs(away[:, p:]) * np.sqrt(np.diag(self._prior_precision)[p:])
        limit = self.settings.relinearise_beyond
        return bool(np.abs(away[:, :p]).max(initial=0.0) <= limit and start.max(initial=0.0) <= 10.0 * limit)

    def _observable(self, precision: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Observable directions of theta and the share of each parameter in them, the start marginalised."""
        p = self.space.size
        nuisance = np.zeros_like(precision)
        nuisance[p:, p:] = self._prior_precision[p:, p:]
        return observable_part(
            without_nuisance(precision + nuisance, p), self._prior_precision[:p, :p], self.settings.least_gain
        )

    def _shift(self, change: NDArray[np.float64]) -> None:
        """Move u by a small change: states follow to first order, evidence stays where it was linearised."""
        self.u = self.u + change
        moved = jnp.asarray(change)
        for track in self.tracks:
            for segment in track.segments:
                segment.start = moved_by(segment.start, moved)
                segment.end = moved_by(segment.end, moved)
            if track.segments:
                track.state = track.segments[-1].end

    def _relinearise(self, change: NDArray[np.float64]) -> bool:
        """Roll every window out at u + change; kept only if the loss falls."""
        before = self._loss(self.u)
        previous = self.u
        kept = [list(track.segments) for track in self.tracks]
        self.u = previous + change
        moved = jnp.asarray(change)
        for number, track in enumerate(self.tracks):
            state: TwinState | None = None
            rolled = []
            for segment in track.segments:
                if segment.begins_track:
                    state = self.start_of(number, self.material)
                elif state is None:
                    state = moved_by(segment.start, moved)
                new = self._roll_anew(track, segment, state)
                rolled.append(new)
                state = new.end
            track.segments = deque(rolled)
        lost = sum(s.evidence.valid for segments in kept for s in segments) > len(self._evidence())
        if lost or not self._loss(self.u) < before:
            self._refusals.append((self.u, self._closed + max(1, self.settings.window // 2)))
            self.u = previous
            for track, segments in zip(self.tracks, kept, strict=True):
                track.segments = deque(segments)
            return False
        for track in self.tracks:
            if track.segments:
                track.state = track.segments[-1].end
        return True

    def _refresh_appearance(self) -> None:
        """Let likelihoods adapt to the newest state once u has moved far since they last did."""
        if np.abs(self.theta - self._refreshed_at).max(initial=0.0) <= self.settings.refresh_beyond:
            return
        self._refreshed_at = self.theta.copy()
        for track in self.tracks:
            newest = next((s for s in reversed(track.segments) if s.frames), None)
            if newest is None:
                continue
            _, run = simulate(track.model, track.settings, self.space, self.u, newest.start, newest.grip_poses)
            frame = newest.frames[-1]
            predicted = predicted_state(track.model, self.u, newest.start, run, frame)
            for likelihood in track.likelihoods:
                likelihood.refresh(predicted, frame.observation)
            # evidence was gathered against the old appearance
            track.segments = deque(self._roll_anew(track, segment, segment.start) for segment in track.segments)
            track.state = track.segments[-1].end

    def covariance(self) -> NDArray[np.float64]:
        """Posterior covariance (p, p) over the published coordinates, infinite where unobservable."""
        precision, _ = self._known()
        _, share = self._observable(precision)
        p = self.space.size
        covariance = np.linalg.inv(precision + self._prior_precision)[:p, :p]
        published = self.space.published_covariance(self.theta, covariance)
        for k, parameter in enumerate(self.space.parameters):
            published[k, k] += self.settings.model_deviation.get(parameter.quantity, 0.0) ** 2
        for k in np.flatnonzero(share < 0.5).tolist():
            published[k, :] = published[:, k] = 0.0
            published[k, k] = np.inf
        return published

    def _report(
        self,
        track: Track,
        segment: Segment,
        status: UpdateStatus,
        reason: str,
        before: float,
        after: float,
        seconds: float,
    ) -> MaterialUpdate:
        frame = segment.frames[-1]
        # to first order at the new u, as the states themselves
        change = jnp.asarray(self.u - segment.evidence.u)
        run = segment.run._replace(latents=segment.run.latents + segment.run.tangents @ change)
        predicted = predicted_state(track.model, self.u, segment.start, run, frame)
        return MaterialUpdate(
            stamp_ns=frame.observation.stamp_ns,
            zone_names=self.space.zone_names,
            material=self.material,
            parameter_names=self.space.names,
            covariance=self.covariance(),
            status=status,
            reason=reason,
            loss_before=before,
            loss_after=after,
            frames_used=sum(e.frames for e in self._evidence()),
            solve_time_s=seconds,
            latent=latent_at(segment.start, run, frame),
            grip_poses=frame.grip_poses,
            vertices=predicted.x,
            figures=dict(segment.evidence.figures),
        )
