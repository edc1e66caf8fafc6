"""A stand-in for a real cell: truth, arms, cameras and sensors in virtual time, without ROS.

The cell advances in time steps of the truth. Within one, the arms follow their targets from tick to tick of their
sensors, then the body follows the arms, and then everything that was measured meanwhile is computed from states
between the step's ends. So a command takes effect at the next step.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.poses import interpolate
from realsimloop_ros.cell.arms import ArmState, advance, resting, with_target
from realsimloop_ros.cell.motion import random_program
from realsimloop_ros.cell.reference import ReferenceElasticity, reference_elasticity
from realsimloop_ros.cell.renderer import Renderer
from realsimloop_ros.cell.scenario import Scenario, true_body
from realsimloop_ros.cell.sensors import ArmSensor, CameraSensor, MarkerSensor, generator_for
from realsimloop_ros.cell.truth import HiddenTruth
from realsimloop_ros.control.ur5e import inverse_kinematics
from realsimloop_ros.mechanics.laws import Elasticity
from realsimloop_ros.observation.cell_file import CellFile

# strains kept per frame for the reference: others for every frame, so all of the body counts in the end, and few
# enough that the fit takes seconds
_REFERENCE_SAMPLES = 64


class VirtualCellError(ValueError):
    """A virtual cell cannot be set up, or was told to do what it cannot; the text names it."""


@dataclass(frozen=True)
class CameraImage:
    """An image (H, W, 3), uint8 RGB, of cameras[camera] of the cell file; exposure_ns: when it was taken."""

    stamp_ns: int
    camera: int
    image: NDArray[np.uint8]
    exposure_ns: int


@dataclass(frozen=True)
class ArmReport:
    """What an arm reports at one tick.

    arm: its name; tool_pose: (7,) in the world; wrench: (6,) N and N m that the body exerts on the tool, in the
    tool frame; joint_positions, joint_velocities: (6,) rad and rad/s.
    """

    stamp_ns: int
    arm: str
    tool_pose: NDArray[np.float64]
    wrench: NDArray[np.float64]
    joint_positions: NDArray[np.float64]
    joint_velocities: NDArray[np.float64]


@dataclass(frozen=True)
class MarkerPositions:
    """Reported positions (k, 3), m, of the body's markers in the world; NaN where one is lost."""

    stamp_ns: int
    positions: NDArray[np.float64]


@dataclass(frozen=True)
class TruthReport:
    """What nobody knows: vertices (n, 3), m, of the true body, and tool poses (g, 7) in the order of the grips."""

    stamp_ns: int
    positions: NDArray[np.float64]
    tool_poses: NDArray[np.float64]


Event = CameraImage | ArmReport | MarkerPositions | TruthReport


@dataclass(frozen=True)
class _Due:
    """Something to be measured: when, and which one; `number` counts up per source."""

    time_ns: int
    source: tuple[str, int]
    number: int


class VirtualCell:
    """A cell in virtual time, from 0 ns on. The same cell, scenario, seed and commands give the same events.

    program_duration: how long the scripted motion goes on, s; workers: cameras rendered at a time.
    Raises ScenarioError, VirtualCellError, InvalidBodyError.
    """

    def __init__(
        self,
        cell: CellFile,
        scenario: Scenario,
        seed: int = 0,
        program_duration: float | None = None,
        workers: int = 1,
    ) -> None:
        self._cell, self._scenario = cell, scenario
        body = true_body(cell, scenario)
        rest_poses = cell.rest_poses()
        self._arms = [entry.arm for entry in cell.grips]
        if len(set(self._arms)) != len(self._arms):
            raise VirtualCellError(f"grips.arm: {self._arms}; an arm carries one grip, give each its own")
        self._truth = HiddenTruth(body, scenario.body, rest_poses)
        duration = scenario.duration if program_duration is None else program_duration
        self._program = random_program(scenario.motion, rest_poses, duration, seed)
        self._scripted = dict.fromkeys(self._arms, True)
        self._states = [resting(pose) for pose in rest_poses]
        self._kinematics = [scenario.arms[arm].kinematics() for arm in self._arms]
        self._joints = [self._home(k, pose) for k, pose in enumerate(rest_poses)]
        cameras = cell.camera_list()
        self._renderer = Renderer(body, cameras, scenario.scene, self._arms, workers=workers)
        sensors = scenario.sensors
        self._cameras = [CameraSensor(sensors.camera, c.name, c.rate, seed) for c in cell.cameras]
        self._arm_sensors = [ArmSensor(sensors.arm, arm, seed) for arm in self._arms]
        self._markers = None if sensors.markers is None else MarkerSensor(sensors.markers, seed)
        if self._markers is not None and body.markers is None:
            raise VirtualCellError("sensors.markers: the body has no markers; add some to it, or write null")
        self._time_ns = 0
        self._due: list[tuple[int, tuple[str, int], int]] = []
        self._waiting: list[tuple[int, int, Event]] = []
        self._count = 0
        self._path_stamps = np.zeros(1, np.int64)
        self._path = rest_poses[None]
        self._seed = seed
        self._strains: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        for source in self._sources():
            self._schedule(source, 0)

    @property
    def body(self) -> Body:
        """The true body; the vertices of TruthReport are its."""
        return self._truth.body

    @property
    def time_ns(self) -> int:
        """Virtual time that everything has reached."""
        return self._time_ns

    @property
    def unconverged_steps(self) -> int:
        """Steps of the truth that hit their iteration limit."""
        return self._truth.unconverged_steps

    def set_target(self, arm: str, pose: ArrayLike) -> None:
        """Send an arm's tool to `pose` (7,) in the world, m; its scripted motion ends for good.

        Raises VirtualCellError for an unknown arm, InvalidPoseError for what is no pose.
        """
        if arm not in self._scripted:
            raise VirtualCellError(f"arm {arm!r} is not in the cell; it has {', '.join(self._arms)}")
        k = self._arms.index(arm)
        self._states[k] = with_target(self._states[k], pose)
        self._scripted[arm] = False

    def advance(self, duration: float) -> Iterator[Event]:
        """The events of the next `duration` s, in the order of their stamps, computed as they are asked for.

        Time goes on in whole time steps of the truth: the first at or beyond `duration` is the last.
        """
        end_ns = self._time_ns + round(duration * 1e9)
        while self._time_ns < end_ns:
            self._step()
            while self._waiting and self._waiting[0][0] <= self._time_ns:
                yield heapq.heappop(self._waiting)[2]

    def reference(self) -> Mapping[str, ReferenceElasticity]:
        """Per zone, the best constants of the estimator's law for the strains seen so far; see cell.reference.

        Raises ValueError where the body was hardly strained.
        """
        quadrature, material = self._truth.solver.quadrature, self._truth.material
        samples = np.concatenate([np.zeros(0, np.int64), *(chosen for chosen, _ in self._strains)])
        strains = np.concatenate([np.zeros((0, 3, 3)), *(F for _, F in self._strains)])
        found = {}
        for z, name in enumerate(self.body.zone_names):
            mine = quadrature.zone[samples] == z
            found[name] = reference_elasticity(
                self._truth.law,
                Elasticity(material.youngs_modulus[z], material.poisson_ratio[z]),
                strains[mine],
                quadrature.volume[samples[mine]],
            )
        return found

    def _home(self, k: int, pose: NDArray[np.float64]) -> NDArray[np.float64]:
        name = self._arms[k]
        result = inverse_kinematics(self._kinematics[k], pose, self._scenario.arms[name].joints)
        if result.joints is None:
            raise VirtualCellError(
                f"arms.{name}: cannot reach the rest pose {pose.tolist()} ({result.status.value}); move its base"
            )
        return result.joints

    def _sources(self) -> list[tuple[str, int]]:
        sources = [("arm", 0), ("truth", 0)]
        if self._markers is not None:
            sources.append(("markers", 0))
        return sources + [("camera", k) for k in range(len(self._cameras))]

    def _schedule(self, source: tuple[str, int], number: int) -> None:
        kind, index = source
        sensors = self._scenario.sensors
        if kind == "camera":
            time_ns = self._cameras[index].exposure(number).time_ns
        elif kind == "arm":
            time_ns = round(number * 1e9 / sensors.arm.rate)
        elif kind == "truth":
            time_ns = round(number * 1e9 / sensors.truth_rate)
        else:
            assert sensors.markers is not None
            time_ns = round(number * 1e9 / sensors.markers.rate)
        heapq.heappush(self._due, (time_ns, source, number))

    def _step(self) -> None:
        begin_ns = self._time_ns
        end_ns = round((self._truth.steps + 1) * self._scenario.body.time_step * 1e9)
        due = []
        while self._due and self._due[0][0] <= end_ns:
            item = _Due(*heapq.heappop(self._due))
            due.append(item)
            self._schedule(item.source, item.number + 1)
        ticks = sorted({item.time_ns for item in due if item.source[0] == "arm"} | {end_ns})
        self._move_arms(begin_ns, ticks)
        self._truth.step(self._path[-1])
        for item in due:
            self._measure(item, (item.time_ns - begin_ns) / (end_ns - begin_ns))
        self._time_ns = end_ns

    def _move_arms(self, begin_ns: int, ticks: list[int]) -> None:
        stamps, path = [begin_ns], [self._poses()]
        for tick in ticks:
            if tick > stamps[-1]:
                targets = self._program.targets(tick * 1e-9)
                for k, arm in enumerate(self._arms):
                    state: ArmState = self._states[k]
                    if self._scripted[arm]:
                        state = with_target(state, targets[k])
                    limits = self._scenario.arms[arm].limits
                    self._states[k] = advance(state, limits, (tick - stamps[-1]) * 1e-9)
                stamps.append(tick)
                path.append(self._poses())
        self._path_stamps, self._path = np.array(stamps, np.int64), np.array(path)

    def _poses(self) -> NDArray[np.float64]:
        return np.array([state.pose for state in self._states])

    def _tools_at(self, time_ns: int) -> NDArray[np.float64]:
        poses = [interpolate(self._path_stamps, self._path[:, k], time_ns) for k in range(len(self._arms))]
        return np.array(poses)

    def _measure(self, item: _Due, fraction: float) -> None:
        kind, index = item.source
        moment = self._truth.at(fraction)
        tools = self._tools_at(item.time_ns)
        if kind == "camera":
            sensor = self._cameras[index]
            exposure = sensor.exposure(item.number)
            (view,) = self._renderer.render(moment.positions, tools, [index])
            image = sensor.image(item.number, exposure.time_ns * 1e-9, view.radiance)
            self._emit(CameraImage(exposure.stamp_ns, index, image, exposure.time_ns))
        elif kind == "arm":
            for k, arm in enumerate(self._arms):
                self._emit(self._arm_report(item, k, arm, tools[k], moment.wrenches[k]))
        elif kind == "truth":
            self._strains.append(self._strain_samples(item.number, moment.positions))
            self._emit(TruthReport(item.time_ns, moment.positions, tools))
        else:
            assert self._markers is not None and self.body.markers is not None
            positions = self.body.markers.positions(moment.positions, self.body.tets)
            self._emit(MarkerPositions(item.time_ns, self._markers.positions(item.number, positions)))

    def _arm_report(
        self, item: _Due, k: int, arm: str, pose: NDArray[np.float64], wrench: NDArray[np.float64]
    ) -> ArmReport:
        result = inverse_kinematics(self._kinematics[k], pose, self._joints[k])
        # a pose out of reach leaves the joints where they were: the tool of this stand-in is ideal, not its arm
        joints = self._joints[k] if result.joints is None else result.joints
        velocities = (joints - self._joints[k]) * self._scenario.sensors.arm.rate * (item.number > 0)
        self._joints[k] = joints
        sensor = self._arm_sensors[k]
        return ArmReport(
            item.time_ns,
            arm,
            sensor.pose(item.number, pose),
            sensor.wrench(item.number, wrench),
            joints,
            velocities,
        )

    def _strain_samples(
        self, number: int, positions: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        quadrature = self._truth.solver.quadrature
        count = min(_REFERENCE_SAMPLES, len(quadrature.volume))
        generator = generator_for(self._seed, "reference", number)
        chosen = np.sort(generator.choice(len(quadrature.volume), count, replace=False))
        F = np.einsum("sai,saj->sij", positions[quadrature.nodes[chosen]], quadrature.gradients[chosen])
        return chosen, F

    def _emit(self, event: Event) -> None:
        heapq.heappush(self._waiting, (event.stamp_ns, self._count, event))
        self._count += 1
