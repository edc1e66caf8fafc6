"""From the images of single cameras to masked views, with the parts and defaults of the node camera_sync."""

from __future__ import annotations

from collections import deque

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.dynamics.live import PoseHistory
from realsimloop_ros.estimation.twin import Twin
from realsimloop_ros.observation.camera_health import CameraHealth
from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.cell_file import CellFile
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.synchroniser import SynchronisedSet, Synchroniser, SynchroniserSettings
from realsimloop_ros.observation.view_masks import ViewMasker
from realsimloop_ros.reduction.model import kinematics

# the defaults of the node's parameters, ns
_TOLERANCE, _TIMEOUT, JUMP_NS = 20_000_000, 300_000_000, 1_000_000_000

Pixels = NDArray[np.uint8]


class CameraSets:
    """Takes images and grip poses in the order of their recording, gives masked views.

    cell: says which masker a camera has, and the shape of the arms that it keeps off. A set is masked once every
    grip is known at its stamp, since the warp of the grips says where the body is expected.
    """

    def __init__(self, twin: Twin, cameras: tuple[Camera, ...], cell: CellFile) -> None:
        entries = {entry.name: entry for entry in cell.cameras}
        rate = max(entries[camera.name].rate for camera in cameras)
        self._cell = cell
        self._model = twin.model
        self._grips = {name: PoseHistory() for name in twin.body.grip_names}
        self._synchroniser: Synchroniser[Pixels] = Synchroniser(
            SynchroniserSettings(
                streams=tuple(camera.name for camera in cameras),
                tolerance=_TOLERANCE,
                timeout=_TIMEOUT,
                minimum_period=round(0.5e9 / rate),
                jump=JUMP_NS,
            )
        )
        self._masker = ViewMasker(
            cameras,
            surface_triangles(twin.body),
            kinds=[entries[camera.name].masker for camera in cameras],
            sam2=cell.sam2_settings(),
        )
        names = [camera.name for camera in cameras]
        self._arrivals, self._health = CameraHealth(names), CameraHealth(names)
        self._conditions: dict[str, str] = {}
        self._waiting: deque[SynchronisedSet[Pixels]] = deque()
        self._resets = 0
        self.without_mask = 0

    @property
    def dropped(self) -> dict[str, int]:
        """Images that found no set, by cause, and images in which the body was not found."""
        causes = {cause: sum(n.values()) for cause, n in self._synchroniser.statistics.dropped.items()}
        return {cause: n for cause, n in {**causes, "no_mask": self.without_mask}.items() if n}

    def add_pose(self, grip: str, stamp_ns: int, pose: NDArray[np.float64]) -> list[tuple[int, MultiViewImages]]:
        """A grip's pose (7,). Returns stamps and views that are ready now."""
        history = self._grips[grip]
        if history.newest is not None and stamp_ns < history.newest - JUMP_NS:
            history.clear()
        history.add(stamp_ns, pose)
        return self._ready()

    def new_conditions(self) -> dict[str, str]:
        """What is wrong with cameras since the last call: texts by `KIND.CAMERA`."""
        found, self._conditions = self._conditions, {}
        return found

    def add_image(self, camera: str, stamp_ns: int, image: Pixels) -> list[tuple[int, MultiViewImages]]:
        """An image (H, W, 3) of a camera. Returns stamps and views that are ready now."""
        self._conditions |= self._arrivals.arrived(camera, stamp_ns, JUMP_NS)
        self._waiting.extend(self._synchroniser.add(camera, stamp_ns, image))
        absent = self._synchroniser.statistics.absent
        self._conditions |= {f"absent.{name}": f"{name} is silent: sets go without it" for name in absent}
        return self._ready()

    def _ready(self) -> list[tuple[int, MultiViewImages]]:
        views = []
        while self._waiting:
            stamp = self._waiting[0].stamp_ns
            if any(history.newest is None or history.newest < stamp for history in self._grips.values()):
                break
            views.append((stamp, self._masked(self._waiting.popleft())))
        return views

    def _masked(self, images: SynchronisedSet[Pixels]) -> MultiViewImages:
        resets = self._synchroniser.statistics.resets
        if resets != self._resets:
            self._resets = resets
            self._masker.reset()
            self._health.reset()
        poses = np.array([history.at(images.stamp_ns) for history in self._grips.values()])
        for history in self._grips.values():
            history.forget_before(images.stamp_ns)
        expected = np.asarray(kinematics(self._model, jnp.asarray(poses)).base)
        usable, conditions = self._health.look(images.frames)
        arms = self._cell.arm_shapes(dict(zip(self._grips, poses, strict=True)))
        masked = self._masker.mask(usable, expected, arms)
        self.without_mask += len(masked.failures)
        self._conditions |= conditions | self._health.masked(masked.quality)
        self._conditions |= {f"no_mask.{name}": f"{name}: {text}" for name, text in masked.failures.items()}
        return masked.views
