"""Pictures of the deformed body in its cell, ray cast from a textured surface mesh (not from splats)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body, surface_triangles
from realsimloop_ros.body.poses import rotation_matrix, transform_points
from realsimloop_ros.cell.raycast import NO_HIT, cast, shade
from realsimloop_ros.cell.scenery import SceneDescription, box_triangles, room_radiance, solid_texture
from realsimloop_ros.observation.cameras import Camera, CameraError

# faces that meet at less than this are one smooth surface, rad
_SMOOTHING_ANGLE = np.radians(40.0)
# a straight edge is bent by distortion: pixels around a triangle's corners that it may cover too
_BOUND_MARGIN = 2.0


@dataclass(frozen=True)
class View:
    """What one camera sees: radiance (H, W, 3), linear RGB; body (H, W), share covered by the body."""

    radiance: NDArray[np.float32]
    body: NDArray[np.float32]


@dataclass(frozen=True)
class _Samples:
    """Constants of one camera: rays (h, w, 2) at z = 1, background (h, w, 3)."""

    camera: Camera
    rays: NDArray[np.float64]
    background: NDArray[np.float32]


@dataclass(frozen=True)
class _Surface:
    """All triangles of a moment: corners (f, 3, 3) m and normals (f, 3, 3), in the world."""

    corners: NDArray[np.float64]
    normals: NDArray[np.float64]


class Renderer:
    """Renders a body and the grippers that hold it.

    arms: names of the arms in the order of the tool poses; each carries scene.grippers[arm], if there.
    workers: views rendered at a time. The same input gives the same bits, whatever their number.
    """

    def __init__(
        self,
        body: Body,
        cameras: Sequence[Camera],
        scene: SceneDescription,
        arms: Sequence[str],
        *,
        workers: int = 1,
    ) -> None:
        self._scene = scene
        self._triangles = surface_triangles(body)
        rest = body.rest_positions
        self._smoothing = _smoothing_matrix(rest, self._triangles)
        texture = solid_texture(scene.texture, rest.min(axis=0), rest.max(axis=0), scene.seed)
        self._volume = texture.colours
        self._texture_coordinates = texture.grid_coordinates(rest[self._triangles])
        boxes = [(k, box) for k, arm in enumerate(arms) for box in scene.grippers.get(arm, ())]
        self._box_tool = [k for k, _ in boxes]
        self._boxes = [box_triangles(box) for _, box in boxes]
        self._box_colours = np.repeat(
            np.array([box.colour for _, box in boxes], dtype=np.float64).reshape(-1, 3), 12, axis=0
        )
        directions = np.array([light.direction for light in scene.lights], dtype=np.float64).reshape(-1, 3)
        self._light_directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        self._light_colours = np.array([light.colour for light in scene.lights]).reshape(-1, 3)
        self._views = [self._prepare(camera) for camera in cameras]
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def render(
        self,
        positions: NDArray[np.float64],
        tool_poses: NDArray[np.float64],
        cameras: Sequence[int] | None = None,
    ) -> list[View]:
        """Views of the body at positions (n, 3), m, with tools at tool_poses (a, 7) in the order of the arms.

        cameras: indices of those to render, all by default.
        """
        surface = self._surface(positions, tool_poses)
        chosen = [self._views[k] for k in (range(len(self._views)) if cameras is None else cameras)]
        if self._pool is None:
            return [self._render(samples, surface) for samples in chosen]
        return list(self._pool.map(lambda samples: self._render(samples, surface), chosen))

    def _prepare(self, camera: Camera) -> _Samples:
        count = self._scene.supersampling
        offsets = (np.arange(count) + 0.5) / count - 0.5
        columns = (np.arange(camera.width)[:, None] + offsets).ravel()
        rows = (np.arange(camera.height)[:, None] + offsets).ravel()
        pixels = np.stack(np.meshgrid(columns, rows), axis=-1)
        rays = _undistorted(camera, pixels)
        directions = np.concatenate([rays, np.ones((*rays.shape[:2], 1))], axis=-1)
        world = directions @ rotation_matrix(camera.world_from_camera).T
        return _Samples(camera, rays, room_radiance(self._scene.room, camera.centre, world, self._scene.seed))

    def _surface(self, positions: NDArray[np.float64], tool_poses: NDArray[np.float64]) -> _Surface:
        corners = [positions[self._triangles]]
        normals = [(self._smoothing @ _area_normals(corners[0])).reshape(-1, 3, 3)]
        for tool, box in zip(self._box_tool, self._boxes, strict=True):
            placed = transform_points(tool_poses[tool], box.reshape(-1, 3)).reshape(-1, 3, 3)
            corners.append(placed)
            normals.append(np.repeat(_area_normals(placed)[:, None], 3, axis=1))
        normal = np.concatenate(normals)
        lengths = np.linalg.norm(normal, axis=-1, keepdims=True)
        return _Surface(np.concatenate(corners), normal / np.maximum(lengths, 1e-30))

    def _render(self, samples: _Samples, surface: _Surface) -> View:
        camera, count = samples.camera, self._scene.supersampling
        rows, columns = samples.rays.shape[:2]
        hit = np.empty((rows, columns), np.int32)
        inverse_depth = np.empty((rows, columns))
        barycentric = np.empty((rows, columns, 3), np.float32)
        local = camera.in_camera(surface.corners)
        bounds = self._bounds(camera, local, (rows, columns))
        cast(samples.rays, local, bounds, hit, inverse_depth, barycentric)
        radiance = np.empty((camera.height, camera.width, 3), np.float32)
        shade(
            hit,
            barycentric,
            surface.normals,
            self._texture_coordinates,
            self._box_colours,
            self._volume,
            self._light_directions,
            self._light_colours,
            np.array(self._scene.sky),
            np.array(self._scene.ground),
            samples.background,
            count,
            radiance,
        )
        on_body = (hit != NO_HIT) & (hit < len(self._triangles))
        blocks = on_body.reshape(camera.height, count, camera.width, count)
        return View(radiance, blocks.mean(axis=(1, 3), dtype=np.float32))

    def _bounds(self, camera: Camera, local: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.int64]:
        """Sample rows and columns (f, 4) that triangles (f, 3, 3), given in the camera, may cover."""
        count = self._scene.supersampling
        depth = local[..., 2]
        in_front = depth.min(axis=1) > 1e-3
        plane = local[..., :2] / np.where(depth > 1e-3, depth, 1.0)[..., None]
        pixels = camera.to_pixels(camera.distort(plane))
        # a pixel's samples lie within half a pixel of its whole-numbered centre
        low = np.floor((pixels.min(axis=1) - _BOUND_MARGIN + 0.5) * count)
        high = np.ceil((pixels.max(axis=1) + _BOUND_MARGIN + 0.5) * count)
        limits = np.array([size[1], size[0]], dtype=np.float64)
        # what reaches behind the camera plane may cover anything
        low = np.where(in_front[:, None], np.clip(low, 0, limits), 0.0).astype(np.int64)
        high = np.where(in_front[:, None], np.clip(high, 0, limits), limits).astype(np.int64)
        high[depth.max(axis=1) <= 1e-3] = 0
        return np.stack([low[:, 1], high[:, 1], low[:, 0], high[:, 0]], axis=1)


def _undistorted(camera: Camera, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normalised coordinates (..., 2) without distortion of distorted pixels (..., 2). Raises CameraError."""
    matrix = camera.intrinsics
    seen = (pixels - (matrix[0, 2], matrix[1, 2])) / (matrix[0, 0], matrix[1, 1])
    plane = seen.copy()
    for _ in range(100):
        error = camera.distort(plane) - seen
        plane -= error
        worst = float(np.abs(error).max())
        # a millionth of a pixel of a camera with a focal length of a thousand
        if worst < 1e-9:
            return plane
        if worst > 1e3:
            break
    raise CameraError(
        f"camera '{camera.name}': distortion {camera.distortion.tolist()} cannot be inverted over the image;"
        " check its coefficients"
    )


def _area_normals(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normals (f, 3) of triangles (f, 3, 3), twice their area long."""
    return np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])


def _smoothing_matrix(rest: NDArray[np.float64], triangles: NDArray[np.int64]) -> sp.csr_matrix:
    """(3 f, f): the triangles whose normals make up each corner's; sharp edges of the rest shape stay."""
    normals = _area_normals(rest[triangles])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    count = len(triangles)
    at_vertex = sp.csr_matrix(
        (np.ones(3 * count), (triangles.ravel(), np.repeat(np.arange(count), 3))), shape=(len(rest), count)
    )
    pairs = at_vertex[triangles.ravel()].tocoo()
    alike = (normals[pairs.row // 3] * normals[pairs.col]).sum(axis=1) > np.cos(_SMOOTHING_ANGLE)
    return sp.csr_matrix((pairs.data[alike], (pairs.row[alike], pairs.col[alike])), shape=(3 * count, count))
