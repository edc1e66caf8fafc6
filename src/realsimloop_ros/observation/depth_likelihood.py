"""What depth images say: points of the predicted surface against the depth measured along their line of sight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body, surface_triangles
from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.images import MultiViewImages, rectify
from realsimloop_ros.observation.likelihoods import (
    FrameObservation,
    Likelihood,
    LikelihoodTerm,
    ObservationError,
    PredictedState,
)

Array = NDArray[np.float64]

# cosine of the angle to the line of sight beyond which a surface is seen too flat for its depth to be known
_FLAT = 0.3
# m, between the depths of neighbouring pixels, from which on an edge or a wrong pixel lies between them
_EDGE = 0.008


class DepthLikelihood(Likelihood):
    """Depth errors whose deviation grows with the square of the distance, as those of stereo; Huber beyond.

    deviation: m, at a distance of 1 m; robust_scale: deviations from which on a point counts as an outlier;
    points: of the surface that are looked at; points_per_sample and frames_per_sample: how many of them, and how
    many successive frames, share one error, by which information is divided. Raises ObservationError.
    """

    def __init__(
        self,
        body: Body,
        deviation: float,
        *,
        robust_scale: float = 3.0,
        points: int = 600,
        points_per_sample: float = 4.0,
        frames_per_sample: float = 1.0,
    ) -> None:
        for label, value in (
            ("deviation", deviation),
            ("robust_scale", robust_scale),
            ("points", points),
            ("points_per_sample", points_per_sample),
            ("frames_per_sample", frames_per_sample),
        ):
            if not (np.isfinite(value) and value > 0.0):
                raise ObservationError(f"depths.{label}: {value}, expected a positive number")
        self._deviation, self._robust_scale = deviation, robust_scale
        self._share = 1.0 / (points_per_sample * frames_per_sample)
        triangles = surface_triangles(body)
        corners = body.rest_positions[triangles]
        areas = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
        random = np.random.default_rng(0)
        self._triangles = triangles[random.choice(len(triangles), int(points), p=areas / areas.sum())]
        weights = random.exponential(size=(int(points), 3))
        self._weights = weights / weights.sum(axis=1, keepdims=True)

    def evaluate(self, predicted: PredictedState, observation: FrameObservation) -> LikelihoodTerm | None:
        if observation.views is None or observation.views.depth is None:
            return None
        views = rectify(observation.views)
        corners = predicted.x[self._triangles]
        points = np.einsum("ka,kai->ki", self._weights, corners)
        normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        tangents = np.einsum("ka,kaip->kip", self._weights, predicted.tangents[self._triangles])
        found = [
            self._view(views, index, points, normals, tangents)
            for index in range(len(views.cameras))
            if views.available[index]
        ]
        errors = np.concatenate([error for error, _, _ in found]) if found else np.zeros(0)
        if not len(errors):
            return None
        jacobian = np.concatenate([slopes for _, slopes, _ in found])
        deviation = self._deviation * np.concatenate([depth for _, _, depth in found]) ** 2
        size = np.abs(errors) / deviation
        beyond = size > self._robust_scale
        weight = np.where(beyond, self._robust_scale / np.maximum(size, 1e-300), 1.0) / deviation**2
        cost = np.where(beyond, self._robust_scale * (size - 0.5 * self._robust_scale), 0.5 * size**2)
        return LikelihoodTerm(
            loss=self._share * float(cost.sum()),
            gradient=self._share * np.einsum("kp,k,k->p", jacobian, weight, errors),
            gauss_newton=self._share * np.einsum("kp,k,kq->pq", jacobian, weight, jacobian),
            figures={"depth_rms_m": float(np.sqrt((errors**2).mean())), "depth_points": float(len(errors))},
        )

    def _view(
        self, views: MultiViewImages, index: int, points: Array, normals: Array, tangents: Array
    ) -> tuple[Array, Array, Array]:
        """Errors (k,), m, their slopes (k, p) and measured depths (k,) of the points that one view measures."""
        camera = views.cameras[index]
        assert views.depth is not None
        towards = camera.centre - points
        squarely = np.einsum("ki,ki->k", normals, towards) > _FLAT * (
            np.linalg.norm(normals, axis=1) * np.linalg.norm(towards, axis=1)
        )
        pixels, _ = camera.project(points)
        inside = (
            squarely & (pixels >= 0).all(axis=1) & (pixels < (camera.width - 1, camera.height - 1)).all(axis=1)
        )
        chosen = np.flatnonzero(inside)
        column, row = np.floor(pixels[chosen]).astype(int).T
        # four neighbours, all of the body and without an edge between them
        near = np.stack([views.depth[index][row + i, column + j] for i in (0, 1) for j in (0, 1)]).astype(float)
        seen = np.stack([views.masks[index][row + i, column + j] for i in (0, 1) for j in (0, 1)]) > 0
        usable = seen.all(axis=0) & np.isfinite(near).all(axis=0) & (np.ptp(near, axis=0) < _EDGE)
        chosen, near = chosen[usable], near[:, usable]
        right, down = (pixels[chosen] - np.floor(pixels[chosen])).T
        upper, lower = near[0] + right * (near[1] - near[0]), near[2] + right * (near[3] - near[2])
        measured = upper + down * (lower - upper)
        along_columns = (1 - down) * (near[1] - near[0]) + down * (near[3] - near[2])
        errors, slopes = _errors(camera, points[chosen], tangents[chosen], measured, along_columns, lower - upper)
        # a pixel's own depth: the noise does not change within it
        return errors, slopes, near[0]


def _errors(
    camera: Camera, points: Array, tangents: Array, measured: Array, along_columns: Array, along_rows: Array
) -> tuple[Array, Array]:
    """Predicted less measured depth, with its slopes: the line of sight moves over the depth image too."""
    local = camera.in_camera(points)
    moves = np.einsum("ij,kjp->kip", camera.camera_from_world[:3, :3], tangents)
    depth = local[:, 2]
    focal = camera.intrinsics[0, 0], camera.intrinsics[1, 1]
    slopes = moves[:, 2].copy()
    for axis, along in ((0, along_columns), (1, along_rows)):
        plane = local[:, axis] / depth
        pixel = focal[axis] * (moves[:, axis] - plane[:, None] * moves[:, 2]) / depth[:, None]
        slopes -= along[:, None] * pixel
    return depth - measured, slopes
