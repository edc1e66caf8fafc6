"""What one theta predicts for the markers of an experiment, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.dynamics.rollout import no_directions, rollout, without_tangents
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.evaluation.preparation import PreparedExperiment
from realsimloop_ros.evaluation.record import MarkerTracks, ReconstructionTrace
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.observation.likelihoods import MarkerLikelihood
from realsimloop_ros.reduction.model import kinematics, positions


def predicted_markers(
    prepared: PreparedExperiment, estimator: TwinEstimator, number: int, material: Material
) -> NDArray[np.float64]:
    """Marker positions (t, k, 3), m, rolled out from the start of track `number` at one theta; NaN before it."""
    track = estimator.tracks[number]
    assert track.origin_ns is not None
    likelihood = marker_likelihood(track)
    begin, step = track.origin_ns, track.settings.time_step * 1e9
    places = (prepared.stamps_ns - begin) / step
    ticks = int(np.ceil(places[-1])) + 1
    poses = np.array([prepared.grip_poses_at(begin + round((k + 1) * step)) for k in range(ticks)])
    state = without_tangents(estimator.start_of(number, material))
    none = no_directions(len(material.youngs_modulus))
    _, run = rollout(track.model, track.settings, material, none, state, jnp.asarray(poses.reshape(ticks, -1, 7)))
    latents = np.concatenate([np.asarray(state.latents[:1]), np.asarray(run.latents)])
    result = np.full((len(places), len(track.body.marker_names), 3), np.nan)
    for row in np.flatnonzero(places >= 0.0):
        tick = min(int(places[row]), len(latents) - 2)
        share = places[row] - tick
        latent = (1.0 - share) * latents[tick] + share * latents[tick + 1]
        frame = kinematics(track.model, jnp.asarray(prepared.grip_poses_at(int(prepared.stamps_ns[row]))))
        result[row] = likelihood.predicted(np.asarray(positions(track.model, frame, jnp.asarray(latent))))
    return result


def marker_tracks(
    prepared: PreparedExperiment, estimator: TwinEstimator, number: int, material: Material
) -> MarkerTracks:
    """Measured and predicted tracks of one experiment, which is the estimator's track `number`."""
    predicted = predicted_markers(prepared, estimator, number, material)
    release = prepared.release
    if release is not None:
        # while it is held, the twin is in the rest shape its markers were bound in
        likelihood = marker_likelihood(estimator.tracks[number])
        predicted[prepared.held] = likelihood.predicted(prepared.body.rest_positions)
    return MarkerTracks(
        experiment=prepared.name,
        names=prepared.body.marker_names,
        stamps_ns=prepared.stamps_ns,
        measured=prepared.positions,
        predicted=predicted,
        up=prepared.up,
        held=prepared.held,
        release_ns=None if release is None else release.stamp_ns,
        turning_ns=None if release is None else int(prepared.stamps_ns[release.turning_frame]),
    )


def marker_likelihood(track: Track) -> MarkerLikelihood:
    """The one that an experiment's track has."""
    return next(entry for entry in track.likelihoods if isinstance(entry, MarkerLikelihood))


def reconstruction(tracks: Sequence[MarkerTracks]) -> ReconstructionTrace:
    """Marker errors of all experiments one after another, the held pose left out."""
    stamps, errors = [], []
    widest = max(len(track.names) for track in tracks)
    for track in tracks:
        chosen = ~track.held
        padded = np.full((int(chosen.sum()), widest), np.nan, np.float32)
        padded[:, : len(track.names)] = track.errors[chosen]
        stamps.append(track.stamps_ns[chosen])
        errors.append(padded)
    return ReconstructionTrace("markers", np.concatenate(stamps), np.concatenate(errors))
