"""The loss of a window over u, from what its segments say, the prior and what earlier windows knew:

    L(u) = sum over the window of segment losses + 1/2 |u - u_prior|^2  + what has left the window, fading.

u is theta first, then the corrections of every track's start. A segment's share is its evidence, linearised where
the segment was rolled out; states follow u to first order through their own sensitivities.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.dynamics.rollout import (
    Trajectory,
    TwinState,
    moved_by,
    rest_state,
    undeformed_state,
    with_free_start,
)
from realsimloop_ros.dynamics.stepper import CONVERGED
from realsimloop_ros.estimation.identifiability import observable_part, without_nuisance
from realsimloop_ros.estimation.information import Information
from realsimloop_ros.estimation.outliers import OutlierWeights, contradiction, weighted
from realsimloop_ros.estimation.theta import ParameterSpace
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.estimation.updates import EstimatorSettings
from realsimloop_ros.estimation.window import (
    Cut,
    Evidence,
    Segment,
    gather_evidence,
    predicted_state,
    roll_out,
    wrench_term,
)
from realsimloop_ros.mechanics.material import Material


class WindowProblem:
    """u, the windows of all tracks, and what is known of u.

    rejected: what was not used, by cause.
    """

    def __init__(self, tracks: Sequence[Track], space: ParameterSpace, settings: EstimatorSettings) -> None:
        self.tracks = tuple(tracks)
        self.space = space
        self.settings = settings
        starts = np.concatenate([track.start_deviations for track in self.tracks])
        self.u = np.concatenate([space.coordinates(space.prior), np.zeros(len(starts))])
        lower, upper = space.bounds()
        unbounded = np.full(len(starts), np.inf)
        self.lower, self.upper = np.concatenate([lower, -unbounded]), np.concatenate([upper, unbounded])
        self.prior_precision = np.diag(np.concatenate([np.diag(space.prior_precision()), 1.0 / starts**2]))
        self.prior_u = self.u.copy()
        # what has left the window, as information about u
        self.old = Information(len(self.u))
        self.rejected: dict[str, int] = {}
        self._newest = self.tracks[0]
        self._outliers = [OutlierWeights(settings.outlier_deviations) for _ in self.tracks]
        self._refreshed_at = self.theta.copy()

    @property
    def material(self) -> Material:
        """The present estimate."""
        return self.space.material(self.theta)

    @property
    def theta(self) -> NDArray[np.float64]:
        """The coordinates (p,) of the material alone."""
        return self.u[: self.space.size]

    def count(self, cause: str) -> None:
        """Note that something was not used."""
        self.rejected[cause] = self.rejected.get(cause, 0) + 1

    def append(self, track: Track, cut: Cut) -> None:
        """Roll a track's next cut out and take it into the window."""
        if track.state is None:
            assert track.start_poses is not None
            track.state = self._start_state(track, track.start_poses, self.material)
        segment = self._roll(track, track.state, cut)
        precision, vector = self.known()
        prior = self.prior_precision
        segment.distance = contradiction(segment.evidence, precision + prior, vector + prior @ self.prior_u)
        segment.weight = self._outliers[self.tracks.index(track)].weigh(segment.distance)
        segment.evidence = weighted(segment.evidence, segment.weight)
        while len(track.segments) >= self.settings.window:
            self.old.absorb(track.segments.popleft().evidence, self.settings.forgetting)
        track.segments.append(segment)
        track.state = segment.end
        self._newest = track

    def start_of(self, track: Track, material: Material) -> TwinState:
        """The state a track started from, at the present start corrections and any material."""
        assert track.start_poses is not None
        state = self._start_state(track, track.start_poses, material)
        p = self.space.size
        return moved_by(state, jnp.asarray(np.concatenate([np.zeros(p), self.u[p:]])))

    def forget(self, track: Track) -> None:
        """Let go of a track's window, keeping what it said of theta."""
        for segment in track.segments:
            self.old.absorb(segment.evidence, self.settings.forgetting)
        # the corrections to come are of another start
        corrections = self._start_coordinates(track)
        self.old.marginalise(corrections, self.prior_precision)
        self.u[corrections] = 0.0

    # -- what is known of u --------------------------------------------------------------------------------------

    def evidence(self) -> list[Evidence]:
        """That of all segments that may vote."""
        return [segment.evidence for track in self.tracks for segment in track.segments if segment.evidence.valid]

    def known(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Information on u from data alone: precision (P, P) and vector (P,)."""
        precision, vector = self.old.precision.copy(), self.old.vector.copy()
        for evidence in self.evidence():
            more = evidence.information()
            precision += more[0]
            vector += more[1]
        return precision, vector

    def loss(self, u: NDArray[np.float64]) -> float:
        """The window's loss at u by its quadratic model, which is exact where it was rolled out at u."""
        away = u - self.prior_u
        return float(
            sum(evidence.loss_at(u) for evidence in self.evidence())
            + 0.5 * away @ self.prior_precision @ away
            + self.old.loss_at(u)
        )

    def slope(self, precision: NDArray[np.float64], vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Gradient (P,) of the loss at the present u, of what is `known` and the prior."""
        return precision @ self.u - vector + self.prior_precision @ (self.u - self.prior_u)

    def observable(self, precision: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Observable directions of theta and the share of each parameter in them, the start marginalised."""
        p = self.space.size
        nuisance = np.zeros_like(precision)
        nuisance[p:, p:] = self.prior_precision[p:, p:]
        return observable_part(
            without_nuisance(precision + nuisance, p), self.prior_precision[:p, :p], self.settings.least_gain
        )

    def covariance(self) -> NDArray[np.float64]:
        """Posterior covariance (p, p) over the published coordinates, infinite where unobservable."""
        precision, _ = self.known()
        _, share = self.observable(precision)
        p = self.space.size
        covariance = np.linalg.inv(precision + self.prior_precision)[:p, :p]
        published = self.space.published_covariance(self.theta, covariance)
        for k, parameter in enumerate(self.space.parameters):
            published[k, k] += self.settings.model_deviation.get(parameter.quantity, 0.0) ** 2
        for k in np.flatnonzero(share < 0.5).tolist():
            published[k, :] = published[:, k] = 0.0
            published[k, k] = np.inf
        return published

    # -- how u moves ---------------------------------------------------------------------------------------------

    def is_small(self, change: NDArray[np.float64]) -> bool:
        """Whether a change of u, (P,), is within what a linearisation bears."""
        p = self.space.size
        start = np.abs(change[p:]) * np.sqrt(np.diag(self.prior_precision)[p:])
        limit = self.settings.relinearise_beyond
        return bool(np.abs(change[:p]).max(initial=0.0) <= limit and start.max(initial=0.0) <= 10.0 * limit)

    def shift(self, change: NDArray[np.float64]) -> None:
        """Move u by a small change: states follow to first order, evidence stays where it was linearised."""
        self.u = self.u + change
        moved = jnp.asarray(change)
        for track in self.tracks:
            for segment in track.segments:
                segment.start = moved_by(segment.start, moved)
                segment.end = moved_by(segment.end, moved)
            if track.segments:
                track.state = track.segments[-1].end

    @property
    def segments(self) -> int:
        """How many segments all windows have together."""
        return sum(len(track.segments) for track in self.tracks)

    def relinearise(self, change: NDArray[np.float64]) -> bool:
        """Roll every window out at u + change; kept only if the loss falls."""
        before, previous = self.loss(self.u), self.u
        kept = [list(track.segments) for track in self.tracks]
        valid = len(self.evidence())
        self.u = previous + change
        moved = jnp.asarray(change)
        for track in self.tracks:
            for k in range(len(track.segments)):
                start = track.segments[k - 1].end if k else moved_by(track.segments[0].start, moved)
                track.segments[k] = self._anew(track, k, start)
        if valid > len(self.evidence()) or not self.loss(self.u) < before:
            self.u = previous
            for track, segments in zip(self.tracks, kept, strict=True):
                track.segments = deque(segments)
            return False
        for track in self.tracks:
            if track.segments:
                track.state = track.segments[-1].end
        return True

    def try_shift(self, change: NDArray[np.float64]) -> bool:
        """Move u by any change if the loss falls with the newest segment rolled out anew at it.

        The newest stands for the others, which are rolled out anew one by one by `freshen`: so a step costs the
        same however long the window is.
        """
        track = self._newest
        before, last = self.loss(self.u), track.segments[-1]
        self.u = self.u + change
        new = self._anew(track, len(track.segments) - 1, moved_by(last.start, jnp.asarray(change)))
        track.segments[-1] = new
        if (last.evidence.valid and not new.evidence.valid) or not self.loss(self.u) < before:
            self.u = self.u - change
            track.segments[-1] = last
            return False
        track.segments.pop()
        self.u = self.u - change
        self.shift(change)
        track.segments.append(new)
        track.state = new.end
        return True

    def freshen(self) -> bool:
        """Roll the oldest segment out anew that was linearised too far from u; False where there is none.

        The oldest goes first: what it says is about to be kept for good, and the next one starts from its end.
        """
        stale = [
            (k - len(track.segments), number, k)
            for number, track in enumerate(self.tracks)
            for k, segment in enumerate(track.segments)
            if not self.is_small(self.u - segment.evidence.u)
        ]
        if not stale:
            return False
        _, number, k = min(stale)
        track = self.tracks[number]
        start = track.segments[k - 1].end if k else track.segments[0].start
        track.segments[k] = self._anew(track, k, start)
        track.state = track.segments[-1].end
        return True

    def _anew(self, track: Track, k: int, start: TwinState) -> Segment:
        """A track's segment k rolled out at the present u, from `start` unless its start is known for any u."""
        segment = track.segments[k]
        if segment.cut.begins_track:
            start = self.start_of(track, self.material)
        return self.roll_anew(track, segment, start)

    def refresh_appearance(self) -> None:
        """Let likelihoods adapt to the newest state once u has moved far since they last did."""
        for track in self.tracks:
            for likelihood in track.likelihoods:
                likelihood.work()
        if np.abs(self.theta - self._refreshed_at).max(initial=0.0) <= self.settings.refresh_beyond:
            return
        self._refreshed_at = self.theta.copy()
        for track in self.tracks:
            newest = next((s for s in reversed(track.segments) if s.cut.frames), None)
            if newest is not None:
                frame = newest.cut.frames[-1]
                predicted = predicted_state(track.model, self.u, newest.start, self.run_of(newest), frame)
                for likelihood in track.likelihoods:
                    likelihood.refresh(predicted, frame.observation)

    def run_of(self, segment: Segment) -> Trajectory:
        """A segment's trajectory to first order at the present u."""
        change = jnp.asarray(self.u - segment.evidence.u)
        return segment.run._replace(latents=segment.run.latents + segment.run.tangents @ change)

    def roll_anew(self, track: Track, segment: Segment, start: TwinState) -> Segment:
        """A segment rolled out at the present u from another start; it counts what it counted."""
        new = self._roll(track, start, segment.cut)
        evidence = weighted(new.evidence, segment.weight)
        return replace(new, evidence=evidence, weight=segment.weight, distance=segment.distance)

    def _roll(self, track: Track, start: TwinState, cut: Cut) -> Segment:
        parts = (track.model, track.settings, self.space, self.u)
        before, end, run = roll_out(*parts, start, cut.grip_poses, last_start=track.wrench_likelihood is not None)
        others = []
        if track.wrench_likelihood is not None and cut.wrenches is not None:
            last = cut.grip_poses[-1]
            term = wrench_term(*parts, before, end, last, track.wrench_likelihood, cut.wrenches)
            if term is not None:
                others.append(term)
        seen = [
            (predicted_state(track.model, self.u, start, run, frame), frame.observation) for frame in cut.frames
        ]
        for predicted, observation in seen:
            for likelihood in track.likelihoods:
                likelihood.prepare(predicted, observation)
        evidence = gather_evidence(track.likelihoods, self.u, run, seen, others)
        return Segment(cut, start, end, run, evidence)

    def _start_state(self, track: Track, poses: NDArray[np.float64], material: Material) -> TwinState:
        at = jnp.asarray(poses)
        if track.start == "undeformed":
            state = undeformed_state(track.model, track.settings, at, len(self.u))
        else:
            directions = self.space.directions(self.theta, len(self.u))
            state, result = rest_state(track.model, track.settings, material, directions, at)
            if int(result) != CONVERGED:
                self.count("start_not_converged")
        if track.free_start:
            first = self._start_coordinates(track).start
            state = with_free_start(track.model, track.settings, at, state, first, track.free_start)
        return state

    def _start_coordinates(self, track: Track) -> slice:
        """Where the start corrections of a track lie in u."""
        before = self.tracks[: self.tracks.index(track)]
        first = self.space.size + sum(len(other.start_deviations) for other in before)
        return slice(first, first + len(track.start_deviations))
