"""From an experiment file to what an estimator takes: the body with its markers, and their tracks.

Nothing here uses a model of the material: the frame, the held pose and the release come from measured
positions and from what the experiment file says.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import with_markers
from realsimloop_ros.body.poses import checked_poses, compose, interpolate, inverse, make_pose, transform_points
from realsimloop_ros.evaluation.c3d import read_c3d
from realsimloop_ros.evaluation.captures import CaptureError, CaptureWarning, MarkerCapture, PoseTrack
from realsimloop_ros.evaluation.experiments import (
    AlignedFrame,
    Experiment,
    ExperimentError,
    ExperimentFile,
    KnownFrame,
    load_experiment,
)
from realsimloop_ros.evaluation.marker_messages import read_marker_bag, read_pose_bag
from realsimloop_ros.evaluation.release import Release, ReleaseError, detect_release, release_at

# A marker further than this from where the file says it is was mixed up with another, or moved: worth a
# warning.
_FAR_FROM_GIVEN = 6e-3
# What a clamp may move before its motion matters: beside a sag of some mm, half of one is a gross error.
_STILL = 0.5e-3


@dataclass(frozen=True)
class PreparedExperiment:
    """An experiment, ready to be estimated.

    body: with its markers at rest where they are bound; body_from_capture: (7,) pose that takes capture
    coordinates to the body's frame; stamps_ns: (t,); positions: (t, k, 3) m of body.marker_names, in the body's
    frame, NaN where not seen; release: None where nothing is released; gravity: (3,) m/s^2; notes: what a reader
    of the report should know; grips: poses in the body's frame, in the order of body.grips.
    """

    name: str
    experiment: Experiment
    body: Body
    body_from_capture: NDArray[np.float64]
    stamps_ns: NDArray[np.int64]
    positions: NDArray[np.float64]
    release: Release | None
    gravity: NDArray[np.float64]
    notes: tuple[str, ...]
    grips: tuple[PoseTrack, ...] = ()

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Times (t,) since the first frame, s."""
        return (self.stamps_ns - self.stamps_ns[0]) * 1e-9

    @property
    def held(self) -> NDArray[np.bool_]:
        """Frames (t,) of the held pose."""
        mask = np.zeros(len(self.stamps_ns), bool)
        if self.release is not None:
            mask[slice(*self.release.held)] = True
        return mask

    def grip_poses_at(self, stamp_ns: int) -> NDArray[np.float64]:
        """Poses (g, 7) of the grips."""
        poses = [interpolate(track.stamps_ns, track.poses, stamp_ns) for track in self.grips]
        return np.array(poses).reshape(-1, 7)

    @property
    def up(self) -> NDArray[np.float64]:
        """Unit vector (3,) against gravity."""
        return -self.gravity / np.linalg.norm(self.gravity)


def load_capture(path: Path, *, topic: str = "markers", unit: str | None = None) -> MarkerCapture:
    """Marker tracks of a .c3d file, a bag folder or an .mcap file."""
    if path.suffix.lower() == ".c3d":
        return read_c3d(path, unit=unit)
    return read_marker_bag(path, topic)


def prepare_experiment(path: Path) -> PreparedExperiment:
    """Read an experiment file, its body and its capture. Every error names file, field and remedy."""
    return prepare(load_experiment(path))


def prepare(file: ExperimentFile) -> PreparedExperiment:
    """Bring an experiment's capture into the body's frame and bind its markers to the body."""
    experiment = file.experiment
    body = file.build_body()
    capture = load_capture(file.capture_path(), topic=experiment.capture.topic, unit=experiment.capture.unit)
    if capture.frame != experiment.capture.frame:
        raise ExperimentError(
            f"{file.path}: capture.frame: {experiment.capture.frame!r}, but the markers of {capture.source} "
            f"come in frame {capture.frame!r}; name that frame, or transform the recording"
        )
    capture = _cut(file, capture)
    try:
        tracked = capture.select(experiment.markers)
        still = capture.select(experiment.still_markers) if experiment.still_markers else None
    except CaptureError as error:
        raise ExperimentError(f"{file.path}: markers: {error}") from error
    release = _release(file, tracked)

    given = np.array(list(experiment.markers.values()))
    held = None if release is None else _held_pose(file, tracked, release)
    frame = _body_from_capture(file, held, given)
    rest = given
    notes: list[str] = []
    if held is not None:
        at_rest = transform_points(frame, held)
        notes += _distances(file, tracked.names, at_rest, given)
        rest = at_rest if experiment.marker_rest == "held" else given
    if still is not None:
        notes += _stillness(file, still)
    body = with_markers(body, dict(zip(tracked.names, rest, strict=True)))
    flat = transform_points(frame, tracked.positions.reshape(-1, 3))
    return PreparedExperiment(
        name=file.name,
        experiment=experiment,
        body=body,
        body_from_capture=frame,
        stamps_ns=tracked.stamps_ns,
        positions=flat.reshape(tracked.positions.shape),
        release=release,
        gravity=np.array(experiment.gravity),
        notes=tuple(notes),
        grips=_grips(file, body, frame),
    )


def _grips(file: ExperimentFile, body: Body, frame: NDArray[np.float64]) -> tuple[PoseTrack, ...]:
    wanted = file.experiment.capture
    for name in wanted.grips:
        if name not in body.grip_names:
            raise ExperimentError(
                f"{file.path}: capture.grips.{name}: unknown grip; the body's grips are "
                f"{', '.join(body.grip_names) or 'none'}"
            )
    tracks = []
    for name in body.grip_names:
        if name not in wanted.grips:
            raise ExperimentError(
                f"{file.path}: capture.grips.{name}: missing; name the topic of this grip's pose"
            )
        path = file.capture_path()
        if path.suffix.lower() == ".c3d":
            raise ExperimentError(f"{file.path}: capture.path: {path} has no poses of grips; name a bag")
        track = read_pose_bag(path, wanted.grips[name])
        if track.frame != wanted.frame:
            raise ExperimentError(
                f"{file.path}: capture.frame: {wanted.frame!r}, but the poses on {wanted.grips[name]!r} come in "
                f"frame {track.frame!r}; name that frame, or transform the recording"
            )
        poses = np.stack([compose(frame, pose) for pose in checked_poses(track.poses, track.source)])
        tracks.append(replace(track, poses=poses))
    return tuple(tracks)


def _cut(file: ExperimentFile, capture: MarkerCapture) -> MarkerCapture:
    time = file.experiment.time
    first, last = int(capture.stamps_ns[0]), int(capture.stamps_ns[-1])
    end = last if time.end is None else first + round(time.end * 1e9)
    try:
        return capture.between(first + round(time.start * 1e9), end)
    except CaptureError as error:
        raise ExperimentError(f"{file.path}: time: {error}") from error


def _release(file: ExperimentFile, tracked: MarkerCapture) -> Release | None:
    wanted = file.experiment.time.release
    if wanted == "none":
        return None
    try:
        if wanted == "detect":
            return detect_release(tracked.stamps_ns, tracked.positions)
        # seconds count from the first frame of the recording, as start and end do
        offset = wanted - file.experiment.time.start
        return release_at(tracked.stamps_ns, tracked.positions, int(tracked.stamps_ns[0]) + round(offset * 1e9))
    except ReleaseError as error:
        raise ExperimentError(f"{file.path}: {tracked.source}: {error}") from error


def _held_pose(file: ExperimentFile, tracked: MarkerCapture, release: Release) -> NDArray[np.float64]:
    stretch = tracked.positions[slice(*release.held)]
    seen = np.asarray(np.isfinite(stretch).all(axis=2))
    for index, name in enumerate(tracked.names):
        if not seen[:, index].any():
            raise ExperimentError(
                f"{file.path}: markers.{name}: never seen in the held pose ({len(stretch)} frames before the "
                "release); drop this marker, or start earlier"
            )
    return np.nanmean(stretch, axis=0)


def _body_from_capture(
    file: ExperimentFile, held: NDArray[np.float64] | None, given: NDArray[np.float64]
) -> NDArray[np.float64]:
    frame = file.experiment.body_frame
    if isinstance(frame, KnownFrame):
        return inverse(np.array(frame.pose))
    assert held is not None  # the file's validator asks for a held pose
    if isinstance(frame, AlignedFrame):
        rotation = Rotation.from_matrix(frame.rotation())
    else:
        rotation, _ = Rotation.align_vectors(given - given.mean(axis=0), held - held.mean(axis=0))
    return make_pose(given.mean(axis=0) - rotation.apply(held.mean(axis=0)), rotation)


def _distances(
    file: ExperimentFile,
    names: tuple[str, ...],
    held: NDArray[np.float64],
    given: NDArray[np.float64],
) -> list[str]:
    distances = np.linalg.norm(held - given, axis=1)
    for name, distance in zip(names, distances, strict=True):
        if distance > _FAR_FROM_GIVEN:
            warnings.warn(
                CaptureWarning(
                    f"{file.path}: markers.{name}: held {distance * 1e3:.1f} mm from its given place; check "
                    "position, axes and label"
                ),
                stacklevel=3,
            )
    listed = ", ".join(f"{name} {d * 1e3:.1f} mm" for name, d in zip(names, distances, strict=True))
    return [f"Distance of the held markers from their given positions: {listed}."]


def _stillness(file: ExperimentFile, still: MarkerCapture) -> list[str]:
    start = np.nanmedian(still.positions[: max(4, len(still.stamps_ns) // 50)], axis=0)
    moved = np.linalg.norm(still.positions - start, axis=2)
    drift = np.full(moved.shape[1], np.nan)
    for index in range(moved.shape[1]):
        column = moved[np.isfinite(moved[:, index]), index]
        # the 99th percentile: one bad frame of the camera system is no motion of the clamp
        drift[index] = np.percentile(column, 99.0) if len(column) else np.nan
    listed = ", ".join(f"{name} {d * 1e3:.2f} mm" for name, d in zip(still.names, drift, strict=True))
    for name, value in zip(still.names, drift, strict=True):
        if value > _STILL:
            warnings.warn(
                CaptureWarning(
                    f"{file.path}: still_markers.{name}: moved by {value * 1e3:.2f} mm; the clamp slipped, "
                    "or the tracking jumped"
                ),
                stacklevel=3,
            )
    return [f"Largest motion of the markers that should stand still: {listed}."]
