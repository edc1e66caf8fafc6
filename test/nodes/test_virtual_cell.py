"""The virtual cell as a process: what it publishes, commands, lockstep, and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rclpy
import yaml
from geometry_msgs.msg import PoseStamped, WrenchStamped
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from realsimloop.msg import BodyState, MaterialEstimate
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, Image, JointState
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import MarkerArray

from realsimloop_ros.body.files import load_body
from realsimloop_ros.control.ur5e import JOINT_NAMES
from realsimloop_ros.nodes import cell_messages as messages
from realsimloop_ros.nodes.qos import CLOCK, COMMAND, IMAGES, LATCHED, STREAM
from realsimloop_ros.nodes.runtime import RuntimeNode

CONFIG = Path(__file__).resolve().parents[2] / "config"
START_NS = 10**9
TOPICS = {
    "camera_0/image_raw": (Image, IMAGES),
    "camera_0/camera_info": (CameraInfo, IMAGES),
    "left/tcp_pose": (PoseStamped, STREAM),
    "left/tcp_wrench": (WrenchStamped, STREAM),
    "right/joint_states": (JointState, STREAM),
    "markers": (MarkerArray, STREAM),
    "truth/state": (BodyState, STREAM),
    "/tf": (TFMessage, STREAM),
    "/tf_static": (TFMessage, LATCHED),
    "/clock": (Clock, CLOCK),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The package's cell and scenario, with a coarse body, long steps, one small camera and a marker."""
    folder = tmp_path_factory.mktemp("cell")
    cell = yaml.safe_load((CONFIG / "cells" / "dual_arm.yaml").read_text())
    body = yaml.safe_load((CONFIG / "bodies" / "dual_arm_bar.yaml").read_text())
    body["markers"] = {"middle": [0.0, 0.0, 0.415]}
    (folder / "body.yaml").write_text(yaml.safe_dump(body))
    cell["body"] = "body.yaml"
    cell["cameras"] = cell["cameras"][:1]
    cell["cameras"][0].update(width=40, height=30)
    lens = cell["cameras"][0]["intrinsics"]
    lens.update({key: value / 4.0 for key, value in lens.items()})
    (folder / "cell.yaml").write_text(yaml.safe_dump(cell))
    scenario = yaml.safe_load((CONFIG / "scenarios" / "dual_arm.yaml").read_text())
    scenario["body"].update(divisions=[8, 1, 1], time_step=1.0 / 60.0)
    scenario["sensors"]["arm"]["rate"] = 50.0
    scenario["sensors"]["markers"] = {"rate": 20.0, "noise": 1e-4, "lost": 0.0}
    scenario["motion"]["initial_rest"] = 0.1
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    return {"cell": str(folder / "cell.yaml"), "scenario": str(folder / "scenario.yaml")}


class Listener:
    """Keeps what comes on the topics, and says so on `ready`, under the name that the cell waits for."""

    def __init__(self, domain: int) -> None:
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = RuntimeNode("listener", context=self.context)
        self.heard: dict[str, list] = {topic: [] for topic in TOPICS}
        for topic, (kind, profile) in TOPICS.items():
            self.node.create_subscription(kind, topic, self.heard[topic].append, profile)
        self.theta = self.node.create_publisher(MaterialEstimate, "theta", LATCHED)
        self.command = self.node.create_publisher(PoseStamped, "left/command", COMMAND)
        self.node.announce_ready()
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def run(self, process: subprocess.Popen[str], timeout: float = 100.0, on_spin=lambda: None) -> str:
        """The process's output when it has ended with 0; everything it said is heard until then."""
        deadline = time.monotonic() + timeout
        while process.poll() is None:
            assert time.monotonic() < deadline, "the cell does not end"
            self.executor.spin_once(timeout_sec=0.05)
            on_spin()
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def listener(domain: int) -> Iterator[Listener]:
    listener = Listener(domain)
    yield listener
    listener.close()


def start(files: dict[str, str], **parameters: object) -> subprocess.Popen[str]:
    given = {**files, "wait_for_nodes": "[listener]", "duration": 1.0, "seed": 3, **parameters}
    arguments = [part for key, value in given.items() for part in ("-p", f"{key}:={value}")]
    return subprocess.Popen(
        [sys.executable, "-m", "realsimloop_ros.nodes.virtual_cell", "--ros-args", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
    )


def stamp_ns(message) -> int:
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


def test_a_run_publishes_everything_a_cell_has_and_tells_the_truth_afterwards(
    listener: Listener, files: dict[str, str], tmp_path: Path
) -> None:
    output = listener.run(start(files, truth_directory=tmp_path / "truth"))
    heard = listener.heard
    assert "real-time factor" in output
    # reliable topics: each message of one second, both ends included
    assert [len(heard[t]) for t in ("left/tcp_pose", "left/tcp_wrench", "right/joint_states")] == [51, 51, 51]
    assert len(heard["markers"]) == 21
    assert len(heard["truth/state"]) == 31
    # best effort; nothing is lost between two processes of one machine that are ready
    assert len(heard["camera_0/image_raw"]) == len(heard["camera_0/camera_info"]) == 10
    image, info = heard["camera_0/image_raw"][0], heard["camera_0/camera_info"][0]
    assert (image.width, image.height, image.step, image.encoding) == (40, 30, 120, "rgb8")
    assert stamp_ns(image) == stamp_ns(info) > START_NS
    assert image.header.frame_id == info.header.frame_id == "camera_0_optical_frame"
    assert info.distortion_model == "plumb_bob" and len(info.d) == 5
    pose, wrench, joints = heard["left/tcp_pose"][0], heard["left/tcp_wrench"][0], heard["right/joint_states"][0]
    assert (pose.header.frame_id, wrench.header.frame_id) == ("world", "left_tool")
    assert wrench.wrench.force.z < -0.5  # half the weight is 0.94 N
    assert list(joints.name) == [f"right_{name}" for name in JOINT_NAMES]
    assert heard["markers"][0].markers[0].ns == "middle"
    children = {t.child_frame_id for message in heard["/tf"] for t in message.transforms}
    assert children == {"left_tool", "right_tool"}
    assert [t.child_frame_id for t in heard["/tf_static"][0].transforms] == ["camera_0_optical_frame"]
    ticks = [tick.clock.sec * 10**9 + tick.clock.nanosec for tick in heard["/clock"]]
    assert ticks == sorted(ticks) and ticks[-1] >= START_NS + 10**9
    body = load_body(tmp_path / "truth" / "body.npz")
    state = heard["truth/state"][-1]
    assert state.body_hash == body.content_hash
    assert len(state.vertices) == 3 * len(body.rest_positions)
    reference = json.loads((tmp_path / "truth" / "reference.json").read_text())["zones"]["bar"]
    assert 0.8 * 243e3 < reference["youngs_modulus"] < 1.2 * 243e3
    run = json.loads((tmp_path / "truth" / "run.json").read_text())
    assert run["real_time_factor"] > 0.0


def test_a_command_moves_its_arm_and_one_in_another_frame_does_not(
    listener: Listener, files: dict[str, str]
) -> None:
    goal = np.array([-0.1, 0.012, 0.41, 0.0, 0.0, 0.0, 1.0])
    wrong = goal + np.array([0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0])
    sent = []

    def command() -> None:
        if listener.heard["left/tcp_pose"] and not sent:
            listener.command.publish(messages.pose_stamped(goal, "world", START_NS))
            sent.append(True)
        elif len(listener.heard["left/tcp_pose"]) > 40 and len(sent) == 1:
            listener.command.publish(messages.pose_stamped(wrong, "left_tool", START_NS))
            sent.append(True)

    output = listener.run(start(files, duration=2.0, max_real_time_factor=0.5), on_spin=command)
    last = messages.pose_array(listener.heard["left/tcp_pose"][-1].pose)
    # noise of the reported position: 0.03 mm
    np.testing.assert_allclose(last[:3], goal[:3], atol=2e-4)
    assert len(sent) == 2 and "left_tool" in output


def test_a_cell_in_lockstep_waits_for_the_estimate_but_not_for_ever(
    listener: Listener, files: dict[str, str]
) -> None:
    answered = []

    def answer() -> None:
        """Theta for the newest image, up to half a second of virtual time; then the estimator is gone."""
        images = listener.heard["camera_0/image_raw"]
        if (
            images
            and stamp_ns(images[-1]) < START_NS + 5 * 10**8
            and (not answered or answered[-1] is not images[-1])
        ):
            poses = listener.heard["left/tcp_pose"]
            # two images, of 0.1 s each, and a step of the truth of 1/60 s
            allowed = (stamp_ns(answered[-1]) if answered else START_NS) + 2 * 10**8 + 2 * 10**7
            assert stamp_ns(poses[-1]) <= allowed
            answered.append(images[-1])
            listener.theta.publish(MaterialEstimate(header=images[-1].header))

    output = listener.run(start(files, wait_for_estimate=2, estimate_timeout=1.0), on_spin=answer)
    assert len(answered) >= 3
    assert "without waiting" in output


def test_wrong_files_end_it_with_status_2_and_one_line(domain: int, files: dict[str, str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(yaml.safe_dump({**yaml.safe_load(Path(files["scenario"]).read_text()), "duration": -1.0}))
    process = start({**files, "scenario": str(broken)})
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "broken.yaml: duration" in output and "Traceback" not in output
