"""Stress over the body, as numbers, as a coloured surface for RViz, and painted over the camera images.

In: state, theta, observation. Out: stress, stress_markers, overlay/CAMERA. See docs/nodes/stress.md.

Only what someone subscribes is computed.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import cv2
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from realsimloop.msg import BodyState, MaterialEstimate, MultiViewFrame, StressField
from sensor_msgs.msg import Image
from visualization_msgs.msg import Marker

from realsimloop_ros.body.body import surface_triangles
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.estimation.twin import load_twin
from realsimloop_ros.mechanics import stress as mechanics
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.nodes.conversions import (
    StateReading,
    material_from_message,
    multi_view_from_message,
    state_from_message,
    stress_message,
)
from realsimloop_ros.nodes.image_messages import image_message
from realsimloop_ros.nodes.message_checks import MessageError
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.qos import IMAGES, LATCHED, STREAM
from realsimloop_ros.nodes.runtime import LatestWorker, run_node
from realsimloop_ros.nodes.stress_marker import SurfaceMarker, colours_of
from realsimloop_ros.nodes.twin_node import Durations, TwinNode
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.silhouettes import paint_surface

PARAMETERS = (
    Parameter("rate", "float", "stress fields per second of the states' time, at most", 10.0, "Hz", 0.1),
    Parameter("overlay_rate", "float", "overlays per second of the images' time, at most", 5.0, "Hz", 0.1),
    Parameter("overlay_scale", "int", "width of the overlays, in widths of the camera's", 2, minimum=1, maximum=8),
    Parameter("overlay_opacity", "float", "of the surface over the image", 0.75, minimum=0.0, maximum=1.0),
    Parameter("scale", "float", "von Mises stress of the brightest colour; 0: the largest yet", 0.0, "Pa", 0.0),
    Parameter("jump_threshold", "float", "step back of a stamp that means that the clock was set", 1.0, "s", 0.1),
)
HISTORY = 90  # states kept for the overlays
LEAST_SCALE = 1e3  # Pa, so that a body at rest is not all bright


@dataclass(frozen=True, eq=False)
class _Overlay:
    stamp_ns: int
    views: MultiViewImages
    vertices: NDArray[np.float64]


class Stress(TwinNode):
    """Works on two threads, one for the field and one for the overlays. Raises the errors of the cell's files."""

    def __init__(self, **options: Any) -> None:
        super().__init__("stress", PARAMETERS, **options)
        twin = load_twin(self.cell)
        self.body, self._law = twin.body, twin.model.law
        self._samples = mechanics.stress_samples(twin.body)
        self._triangles = surface_triangles(twin.body)
        self._material: Material = twin.space.prior
        factor = self.parameters["overlay_scale"]
        self.cameras = self.cell.camera_list()
        self._drawn_cameras = [camera.scaled(factor) for camera in self.cameras]
        self._states: deque[StateReading] = deque(maxlen=HISTORY)
        self._frames: deque[tuple[int, MultiViewImages]] = deque(maxlen=10)
        self._last = {"rate": -(2**62), "overlay_rate": -(2**62)}
        self._largest = LEAST_SCALE
        self._durations = {"stress": Durations(), "overlay": Durations()}
        self._field_worker: LatestWorker[StateReading] | None = None
        self._overlay_worker: LatestWorker[_Overlay] | None = None

    def warm_up(self) -> None:
        """Compile the field."""
        self._field(self.body.rest_positions).von_mises.block_until_ready()

    def connect(self) -> None:
        """Topics of the cell file's cameras."""
        self._stresses = self.create_publisher(StressField, "stress", STREAM)
        self._markers = self.create_publisher(Marker, "stress_markers", STREAM)
        self._overlays = [self.create_publisher(Image, f"overlay/{c.name}", IMAGES) for c in self.cameras]
        self._marker = SurfaceMarker(self._triangles, self.cell.world_frame)
        self._field_worker = LatestWorker(self, self._compute)
        self._overlay_worker = LatestWorker(self, self._draw, cause="overlay_overtaken")
        self.create_subscription(BodyState, "state", self._on_state, STREAM)
        self.create_subscription(MaterialEstimate, "theta", self._on_theta, LATCHED)
        if self.cameras:
            self.create_subscription(MultiViewFrame, "observation", self._on_observation, STREAM)

    def _on_theta(self, message: MaterialEstimate) -> None:
        try:
            self._material = material_from_message(message, self.body, "theta")
        except MessageError as error:
            self.reject(error)

    def _on_state(self, message: BodyState) -> None:
        if not self.active or self._field_worker is None:
            return
        try:
            state = state_from_message(message, self.body, self.cell.world_frame, "state")
        except MessageError as error:
            self.reject(error)
            return
        jump = round(self.parameters["jump_threshold"] * 1e9)
        if self._states and state.stamp_ns < self._states[-1].stamp_ns - jump:
            self._states.clear()
            self._last = dict.fromkeys(self._last, -(2**62))
        self._states.append(state)
        if self._is_wanted(self._stresses, self._markers) and self._is_due("rate", state.stamp_ns):
            self._field_worker.submit(state)
        self._hand_over_frames()

    def _on_observation(self, message: MultiViewFrame) -> None:
        if not self.active or not self._is_wanted(*self._overlays):
            return
        try:
            frame = multi_view_from_message(message, self.cameras, self.body, self.cell.world_frame, "observation")
        except MessageError as error:
            self.reject(error)
            return
        if self._is_due("overlay_rate", frame[0]):
            self._frames.append(frame)
            self._hand_over_frames()

    def _is_wanted(self, *publishers: object) -> bool:
        return any(publisher.get_subscription_count() > 0 for publisher in publishers)  # type: ignore[attr-defined]

    def _is_due(self, rate: str, stamp_ns: int) -> bool:
        # half a state's interval less, so that stamps that jitter keep the rate
        if 0 <= stamp_ns - self._last[rate] < 0.9e9 / self.parameters[rate]:
            return False
        self._last[rate] = stamp_ns
        return True

    def _hand_over_frames(self) -> None:
        """Frames whose stamp the states have reached."""
        assert self._overlay_worker is not None
        while self._frames and self._states and self._states[-1].stamp_ns >= self._frames[0][0]:
            stamp, views = self._frames.popleft()
            self._overlay_worker.submit(_Overlay(stamp, views, vertices_at(list(self._states), stamp)))

    def _field(self, vertices: NDArray[np.float64]) -> mechanics.StressField:
        material = Material(*(jnp.asarray(values) for values in self._material))
        return mechanics.stress_field(self._law, self._samples, material, jnp.asarray(vertices))

    def _shares(self, von_mises: NDArray[np.float64]) -> NDArray[np.float64]:
        """Stresses (n,) in units of the brightest colour's."""
        self._largest = max(self._largest, float(von_mises.max()))
        scale = self.parameters["scale"] or self._largest
        self.diagnostics.report(scale_pa=scale)
        return von_mises / scale

    def _compute(self, state: StateReading) -> None:
        began = time.perf_counter()
        field = self._field(state.vertices)
        von_mises = np.asarray(field.von_mises)
        if not np.isfinite(von_mises).all():
            self.diagnostics.count_drop("non_finite_stress")
            self.condition("non_finite_stress", "the stress is not finite: an element of the state is crushed")
            return
        self._stresses.publish(stress_message(field, self.body, self.cell.world_frame, state.stamp_ns))
        if self._is_wanted(self._markers):
            marker = self._marker.message(state.vertices, self._shares(von_mises), state.stamp_ns)
            self._markers.publish(marker)
        self._durations["stress"].add(time.perf_counter() - began)
        self.diagnostics.report(
            max_von_mises_pa=float(von_mises.max()), **self._durations["stress"].figures("stress")
        )

    def _draw(self, job: _Overlay) -> None:
        began = time.perf_counter()
        von_mises = np.nan_to_num(np.asarray(self._field(job.vertices).von_mises))
        colours = colours_of(self._shares(von_mises))
        parts = zip(self._overlays, self._drawn_cameras, self.cell.cameras, strict=True)
        for k, (publisher, camera, entry) in enumerate(parts):
            if not job.views.available[k] or not self._is_wanted(publisher):
                continue
            size = (camera.width, camera.height)
            image = cv2.resize(job.views.images[k], size, interpolation=cv2.INTER_CUBIC)
            painted = paint_surface(
                image, camera, job.vertices, self._triangles, colours, self.parameters["overlay_opacity"]
            )
            publisher.publish(image_message(painted, entry.frame, job.stamp_ns))
        self._durations["overlay"].add(time.perf_counter() - began)
        self.diagnostics.report(**self._durations["overlay"].figures("overlay"))

    def close(self) -> None:
        """Stop both threads."""
        for worker in (self._field_worker, self._overlay_worker):
            if worker is not None:
                worker.stop()
        super().close()


def vertices_at(states: list[StateReading], stamp_ns: int) -> NDArray[np.float64]:
    """Vertices (n, 3) at a stamp, linear between the states around it; those of the nearest end beyond them."""
    for before, after in pairwise(states):
        if before.stamp_ns <= stamp_ns <= after.stamp_ns:
            share = (stamp_ns - before.stamp_ns) / (after.stamp_ns - before.stamp_ns)
            return (1.0 - share) * before.vertices + share * after.vertices
    return (states[0] if stamp_ns < states[0].stamp_ns else states[-1]).vertices


def main() -> int:
    use_one_core()
    use_double_precision()
    return run_node(Stress)


if __name__ == "__main__":
    raise SystemExit(main())
