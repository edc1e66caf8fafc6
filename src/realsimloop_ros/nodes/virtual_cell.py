"""The virtual cell as a node: everything a real cell publishes, in virtual time with /clock, and what is true.

Out: camera_i/image_raw, camera_i/camera_info (topics of the cell file), ARM/tcp_pose, ARM/tcp_wrench,
ARM/joint_states, markers, /tf, /tf_static, /clock, truth/state. In: ARM/command (the tool's pose in the world; it
ends the arm's script), theta (for the lockstep only). It starts when the nodes it waits for are ready and its
topics are matched, runs as fast as the machine allows, tells its real-time factor, and ends with status 0.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from pathlib import Path

import numba
from geometry_msgs.msg import PoseStamped, WrenchStamped
from rclpy.publisher import Publisher
from realsimloop.msg import BodyState, MaterialEstimate
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, Image, JointState
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import MarkerArray

from realsimloop_ros.body.files import atomic_write, save_body
from realsimloop_ros.body.poses import InvalidPoseError
from realsimloop_ros.cell.scenario import load_scenario
from realsimloop_ros.cell.truth import TruthDivergedError
from realsimloop_ros.cell.virtual_cell import (
    ArmReport,
    CameraImage,
    Event,
    MarkerPositions,
    TruthReport,
    VirtualCell,
)
from realsimloop_ros.compute import use_double_precision
from realsimloop_ros.nodes import cell_messages as messages
from realsimloop_ros.nodes.discovery import wait_until_ready
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.qos import CLOCK, COMMAND, IMAGES, LATCHED, STREAM
from realsimloop_ros.nodes.runtime import RuntimeNode, run_node
from realsimloop_ros.observation.cell_file import load_cell
from realsimloop_ros.resources import configuration_file

PARAMETERS = (
    Parameter("cell", "str", "cell file: a path, or a name in config/cells", "dual_arm"),
    Parameter("scenario", "str", "scenario file: a path, or a name in config/scenarios", "dual_arm"),
    Parameter("seed", "int", "of the motion and all noise", 0, minimum=0),
    Parameter("duration", "float", "virtual time of the run; 0: the scenario's", 0.0, "s", 0.0),
    Parameter(
        "max_real_time_factor", "float", "virtual over wall-clock time, at most; 0: unlimited", 0.0, minimum=0.0
    ),
    Parameter(
        "wait_for_estimate",
        "int",
        "images per camera that the cell may be ahead of the last theta; 0: it does not wait",
        0,
        minimum=0,
    ),
    Parameter("estimate_timeout", "float", "longest wait for one theta, by wall clock", 10.0, "s", 0.0),
    Parameter("wait_for_nodes", "str[]", "nodes that must be ready before the first message", []),
    Parameter("wait_timeout", "float", "longest wait for nodes and subscriptions", 120.0, "s", 0.0),
    Parameter("settle_time", "float", "wait after the last message, for what is still computed", 1.0, "s", 0.0),
    Parameter("publish_tool_frames", "bool", "publish the tools' frames on /tf", True),
    Parameter(
        "truth_directory", "str", "folder for body.npz, reference.json, run.json at the end; empty: none", ""
    ),
    Parameter("render_workers", "int", "cameras rendered at a time", 1, minimum=1, maximum=64),
)

# stamps start here: ROS takes a time of zero for none
START_NS = 10**9


class VirtualCellNode(RuntimeNode):
    """Runs the cell on a thread of its own. Raises ResourceError and the errors of cell and scenario files."""

    def __init__(self) -> None:
        super().__init__("virtual_cell", PARAMETERS)
        cell_file = load_cell(configuration_file("cells", self.parameters["cell"]))
        scenario = load_scenario(configuration_file("scenarios", self.parameters["scenario"]))
        self._duration = self.parameters["duration"] or scenario.duration
        self._cell_file = cell_file
        self._step_ns = round(scenario.body.time_step * 1e9)
        self._cell = VirtualCell(
            cell_file, scenario, self.parameters["seed"], self._duration, self.parameters["render_workers"]
        )
        self._make_publishers()
        self._condition = threading.Condition()
        self._commands: dict[str, PoseStamped] = {}
        self._estimate_ns = START_NS
        self._waits_for_estimate = self.parameters["wait_for_estimate"] > 0
        for grip in cell_file.grips:
            self.create_subscription(
                PoseStamped, f"{grip.arm}/command", lambda m, arm=grip.arm: self._on_command(arm, m), COMMAND
            )
        self.create_subscription(MaterialEstimate, "theta", self._on_theta, LATCHED)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cell", daemon=True)
        self._wait_for_others()
        self._thread.start()

    def _wait_for_others(self) -> None:
        missing = wait_until_ready(
            self, self.parameters["wait_for_nodes"], self._publishers_to_match, self.parameters["wait_timeout"]
        )
        if missing:
            self.diagnostics.warn(f"starting without {', '.join(missing)}")

    def close(self) -> None:
        """Stop time."""
        self._stopping.set()
        with self._condition:
            self._condition.notify_all()
        self._thread.join(timeout=2.0)

    def _make_publishers(self) -> None:
        cell, parts = self._cell_file, self.create_publisher
        self._images = [parts(Image, camera.image_topic, IMAGES) for camera in cell.cameras]
        self._infos = [parts(CameraInfo, camera.info_topic, IMAGES) for camera in cell.cameras]
        arms = [grip.arm for grip in cell.grips]
        self._poses = {arm: parts(PoseStamped, f"{arm}/tcp_pose", STREAM) for arm in arms}
        self._wrenches = {arm: parts(WrenchStamped, f"{arm}/tcp_wrench", STREAM) for arm in arms}
        self._joints = {arm: parts(JointState, f"{arm}/joint_states", STREAM) for arm in arms}
        self._frames = {grip.arm: grip.frame for grip in cell.grips}
        self._markers = parts(MarkerArray, "markers", STREAM)
        self._truth = parts(BodyState, "truth/state", STREAM)
        self._tf = parts(TFMessage, "/tf", STREAM)
        self._tf_static = parts(TFMessage, "/tf_static", LATCHED)
        self._clock_publisher = parts(Clock, "/clock", CLOCK)
        self._publishers_to_match: list[Publisher] = [
            *self._images,
            *self._infos,
            *self._poses.values(),
            *self._wrenches.values(),
            *self._joints.values(),
            self._markers,
            self._truth,
            self._tf,
            self._tf_static,
            self._clock_publisher,
        ]

    def _on_command(self, arm: str, message: PoseStamped) -> None:
        if message.header.frame_id not in ("", self._cell_file.world_frame):
            self.diagnostics.count_drop("command_frame")
            self.diagnostics.warn(
                f"{arm}/command is in frame {message.header.frame_id!r} and is not followed; send it in"
                f" {self._cell_file.world_frame!r}"
            )
            return
        with self._condition:
            self._commands[arm] = message

    def _on_theta(self, message: MaterialEstimate) -> None:
        stamp = message.header.stamp
        with self._condition:
            self._estimate_ns = max(self._estimate_ns, stamp.sec * 10**9 + stamp.nanosec)
            self._waits_for_estimate = self.parameters["wait_for_estimate"] > 0
            self._condition.notify_all()

    def _run(self) -> None:
        try:
            self._run_to_the_end()
        except TruthDivergedError as error:
            self.finish(1, str(error))
        except Exception as error:
            self.get_logger().error(traceback.format_exc())
            self.finish(1, f"{type(error).__name__}: {error}")

    def _run_to_the_end(self) -> None:
        self._tf_static.publish(messages.camera_frames(self._cell_file, START_NS))
        self.get_logger().info(f"{self._cell_file.name}: {self._duration:g} s of virtual time")
        begin = time.monotonic()
        end_ns = round(self._duration * 1e9)
        while self._cell.time_ns < end_ns and not self._stopping.is_set():
            self._wait_for_its_turn(begin)
            self._follow_commands()
            for event in self._cell.advance(self._step_ns * 1e-9):
                self._publish(event)
            self._tick(START_NS + self._cell.time_ns)
            factor = self._cell.time_ns * 1e-9 / (time.monotonic() - begin)
            self.diagnostics.report(real_time_factor=factor, virtual_time=self._cell.time_ns * 1e-9)
        wall = time.monotonic() - begin
        factor = self._cell.time_ns * 1e-9 / wall
        if self._cell.unconverged_steps:
            self.diagnostics.warn(f"{self._cell.unconverged_steps} steps of the truth hit their iteration limit")
        self._stopping.wait(self.parameters["settle_time"])
        self._write_truth(wall, factor)
        self.finish(
            0,
            f"{self._cell.time_ns * 1e-9:.1f} s of virtual time in {wall:.1f} s: real-time factor {factor:.3f}",
        )

    def _wait_for_its_turn(self, begin: float) -> None:
        limit = self.parameters["max_real_time_factor"]
        if limit > 0.0:
            ahead = begin + self._cell.time_ns * 1e-9 / limit - time.monotonic()
            if ahead > 0.0:
                self._stopping.wait(ahead)
        if not self._cell_file.cameras:
            return
        allowance = self.parameters["wait_for_estimate"] / self._cell_file.cameras[0].rate * 1e9

        def free() -> bool:
            now = START_NS + self._cell.time_ns
            return not self._waits_for_estimate or now - self._estimate_ns <= allowance or self._stopping.is_set()

        with self._condition:
            if not self._condition.wait_for(free, self.parameters["estimate_timeout"]):
                # an estimator that died must not stop the cell; its next theta starts the lockstep again
                self._waits_for_estimate = False
                self.diagnostics.count_drop("estimate_timeout")
                self.diagnostics.warn(
                    f"no theta within {self.parameters['estimate_timeout']:g} s: going on without waiting for it"
                )

    def _follow_commands(self) -> None:
        with self._condition:
            commands, self._commands = self._commands, {}
        for arm, message in commands.items():
            try:
                self._cell.set_target(arm, messages.pose_array(message.pose))
            except InvalidPoseError as error:
                self.diagnostics.count_drop("command_invalid")
                self.diagnostics.warn(f"{arm}/command: {error}")

    def _publish(self, event: Event) -> None:
        stamp_ns = START_NS + event.stamp_ns
        world = self._cell_file.world_frame
        self._tick(stamp_ns)
        if isinstance(event, CameraImage):
            camera = self._cell_file.cameras[event.camera]
            # first the calibration, so that whoever pairs them has it when the image comes
            self._infos[event.camera].publish(messages.camera_info(camera, stamp_ns))
            self._images[event.camera].publish(messages.image(event.image, camera.frame, stamp_ns))
        elif isinstance(event, ArmReport):
            frame = self._frames[event.arm]
            if self.parameters["publish_tool_frames"]:
                self._tf.publish(messages.frames({frame: event.tool_pose}, world, stamp_ns))
            self._poses[event.arm].publish(messages.pose_stamped(event.tool_pose, world, stamp_ns))
            self._wrenches[event.arm].publish(messages.wrench_stamped(event.wrench, frame, stamp_ns))
            self._joints[event.arm].publish(messages.joint_state(event, stamp_ns))
        elif isinstance(event, MarkerPositions):
            names = self._cell.body.marker_names
            self._markers.publish(messages.marker_array(names, event.positions, world, stamp_ns))
        else:
            assert isinstance(event, TruthReport)
            self._truth.publish(messages.true_state(event, self._cell.body, world, stamp_ns))

    def _tick(self, stamp_ns: int) -> None:
        self._clock_publisher.publish(Clock(clock=messages.time_message(stamp_ns)))

    def _write_truth(self, wall: float, factor: float) -> None:
        """What the report compares with: written when the run is over, so that nothing can peek at it before."""
        if not self.parameters["truth_directory"]:
            return
        folder = Path(self.parameters["truth_directory"]).expanduser()
        save_body(folder / "body.npz", self._cell.body)
        run = {
            "cell": self._cell_file.name,
            "seed": self.parameters["seed"],
            "start_ns": START_NS,
            "virtual_time_s": self._cell.time_ns * 1e-9,
            "wall_time_s": wall,
            "real_time_factor": factor,
            "unconverged_steps": self._cell.unconverged_steps,
        }
        _write_json(folder / "run.json", run)
        try:
            reference = {name: found.as_dictionary() for name, found in self._cell.reference().items()}
        except ValueError as error:
            self.diagnostics.warn(f"no reference.json: {error}")
            return
        _write_json(folder / "reference.json", {"zones": reference})


def _write_json(path: Path, content: object) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    use_double_precision()
    # one thread of compiled assembly: threads that wait take the cores of the twin's nodes, and with their number
    # the order of sums would change, and so the last bits of a run
    numba.set_num_threads(1)
    return run_node(VirtualCellNode)


if __name__ == "__main__":
    raise SystemExit(main())
