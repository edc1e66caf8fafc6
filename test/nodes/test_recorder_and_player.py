"""A recording, and its replay, between processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rclpy
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TransformStamped
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from realsimloop.msg import MaterialEstimate
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage

from realsimloop_ros.evaluation.bags import TruncatedBagWarning, bag_topics, bag_writer, message_store, read_bag
from realsimloop_ros.nodes.discovery import wait_until_ready
from realsimloop_ros.nodes.qos import CLOCK, IMAGES, LATCHED, STREAM
from realsimloop_ros.nodes.runtime import RuntimeNode

SECOND = 10**9
PERIOD = SECOND // 50


@pytest.fixture
def node(domain: int) -> Iterator[RuntimeNode]:
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = RuntimeNode("test", context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """End what a failed test has left."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start(module: str, **parameters: object) -> subprocess.Popen[str]:
    arguments = [part for key, value in parameters.items() for part in ("-p", f"{key}:={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", f"realsimloop_ros.nodes.{module}", "--ros-args", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
    )
    STARTED.append(process)
    return process


def stop(process: subprocess.Popen[str]) -> str:
    """The output of a process after SIGINT; it must end with 0."""
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    return output


def stamp_of(nanoseconds: int) -> Time:
    return Time(sec=nanoseconds // SECOND, nanosec=nanoseconds % SECOND)


class Cell:
    """Publishes images, an estimate and a static frame in virtual time."""

    def __init__(self, node: RuntimeNode) -> None:
        self.image = node.create_publisher(Image, "camera_0/image_raw", IMAGES)
        self.theta = node.create_publisher(MaterialEstimate, "theta", LATCHED)
        self.frames = node.create_publisher(TFMessage, "/tf_static", LATCHED)
        self.clock = node.create_publisher(Clock, "/clock", CLOCK)
        self.publishers = (self.image, self.theta, self.frames)

    def run(self, count: int) -> None:
        frame = TransformStamped(header=Header(frame_id="world"), child_frame_id="left_tool")
        self.frames.publish(TFMessage(transforms=[frame]))
        for k in range(count):
            now = SECOND + k * PERIOD
            self.clock.publish(Clock(clock=stamp_of(now)))
            pixels = np.full((120, 160, 3), k % 256, np.uint8)
            image = Image(height=120, width=160, encoding="rgb8", step=480, data=pixels.tobytes())
            image.header.stamp = stamp_of(now)
            self.image.publish(image)
            estimate = MaterialEstimate(zone_names=["bar"], youngs_modulus=[2e5 + k], covariance=[np.inf])
            estimate.header.stamp = stamp_of(now)
            self.theta.publish(estimate)
            time.sleep(0.005)  # a cell that runs at four times real time


def record(node: RuntimeNode, bag: Path, count: int, **parameters: object) -> subprocess.Popen[str]:
    """Record `count` frames, until the recorder says that they are on the disk; it runs on."""
    recorder = start("recorder", bag=bag, use_sim_time="true", **parameters)
    cell = Cell(node)
    assert wait_until_ready(node, ["recorder"], cell.publishers, timeout=30.0) == []
    written = 0

    def hear(health: DiagnosticArray) -> None:
        nonlocal written
        for status in health.status:
            figures = {value.key: int(value.value) for value in status.values if value.key.startswith("messages.")}
            written = max(written, figures.get("messages./theta", 0))

    node.create_subscription(DiagnosticArray, "/diagnostics", hear, 10)
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    cell.run(count)
    deadline = time.monotonic() + 30.0
    while written < count:
        assert time.monotonic() < deadline
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()
    return recorder


def test_a_recording_holds_every_message_on_the_time_of_the_cell(node: RuntimeNode, tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    recorder = record(node, bag, 100)
    stop(recorder)
    counts = {topic.name: topic.count for topic in bag_topics(bag)}
    assert counts["theta"] == 100
    assert counts["tf_static"] == 1
    assert counts["camera_0/image_raw"] == 100
    assert "clock" not in counts
    messages = list(read_bag(bag, ["theta"]))
    assert [m.message.youngs_modulus[0] for m in messages] == [2e5 + k for k in range(100)]
    assert np.isinf(messages[0].message.covariance).all()
    # each is stamped by the tick of the cell's clock that the recorder heard last, however busy the machine is
    stamps = [m.stamp_ns for m in messages]
    assert stamps == sorted(stamps)
    assert set(stamps) <= {SECOND + k * PERIOD for k in range(100)}
    # the static frame came before the clock's first tick, and got the time of the first that was heard
    (frame,) = read_bag(bag, ["tf_static"])
    assert frame.stamp_ns <= stamps[0]


def test_topics_are_chosen_by_pattern(node: RuntimeNode, tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    stop(record(node, bag, 10, topics="[theta, '/tf.*']"))
    assert {topic.name for topic in bag_topics(bag)} == {"theta", "tf_static"}


def test_a_killed_recorder_leaves_a_bag_that_can_be_read(node: RuntimeNode, tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    recorder = record(node, bag, 20)
    recorder.kill()
    recorder.wait()
    with pytest.warns(TruncatedBagWarning, match="cut off"):
        assert len(list(read_bag(bag, ["theta"]))) == 20


def test_an_existing_bag_is_not_touched(domain: int, tmp_path: Path) -> None:
    recorder = start("recorder", bag=tmp_path)
    output, _ = recorder.communicate(timeout=30)
    assert recorder.returncode == 2
    assert f"{tmp_path}: exists already" in output


class Listener:
    """What arrives in a replay."""

    def __init__(self, node: RuntimeNode) -> None:
        self.clock: list[int] = []
        self.theta: list[float] = []
        self.images = 0
        self.arrivals: list[float] = []
        node.create_subscription(
            Clock, "/clock", lambda m: self.clock.append(m.clock.sec * SECOND + m.clock.nanosec), CLOCK
        )
        node.create_subscription(MaterialEstimate, "theta", self._take, STREAM)
        node.create_subscription(Image, "camera_0/image_raw", self._count, IMAGES)
        node.announce_ready()

    def _take(self, message: MaterialEstimate) -> None:
        self.theta.append(message.youngs_modulus[0])
        self.arrivals.append(time.monotonic())

    def _count(self, _: Image) -> None:
        self.images += 1


def write_bag(bag: Path, count: int) -> None:
    store = message_store()
    header = store.types["std_msgs/msg/Header"]
    stamp = store.types["builtin_interfaces/msg/Time"]
    string = store.types["std_msgs/msg/String"]
    estimate = store.types["realsimloop/msg/MaterialEstimate"]
    image = store.types["sensor_msgs/msg/Image"]
    empty = np.zeros(0)
    with bag_writer(bag) as writer:
        for k in range(count):
            now = SECOND + k * PERIOD
            head = header(stamp=stamp(sec=now // SECOND, nanosec=now % SECOND), frame_id="")
            pixels = np.full(120 * 160 * 3, k % 256, np.uint8)
            writer.write(
                "camera_0/image_raw",
                now,
                image(head, 120, 160, "rgb8", 0, 480, pixels),
            )
            writer.write(
                "theta",
                now,
                estimate(
                    head, "", ["bar"], np.array([2e5 + k]), empty, empty, empty, [], empty, 0, "", 0.0, 0.0, 0, 0.0
                ),
            )
            writer.write("note", now, string("not played"))


def play(node: RuntimeNode, bag: Path, **parameters: object) -> tuple[Listener, int, str]:
    """What arrived, the player's exit status and its output."""
    listener = Listener(node)
    player = start("bag_player", bag=bag, wait_for_nodes="[test]", settle_time=0.5, **parameters)
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    deadline = time.monotonic() + 60.0
    while player.poll() is None:
        assert time.monotonic() < deadline
        executor.spin_once(timeout_sec=0.05)
    executor.shutdown()
    output, _ = player.communicate()
    return listener, player.returncode, output


def test_a_replay_brings_every_message_and_the_clock_of_the_bag(node: RuntimeNode, tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", 100)
    listener, status, output = play(node, tmp_path / "bag", exclude="[note]")
    assert status == 0, output
    assert listener.theta == [2e5 + k for k in range(100)]
    assert listener.images == 100
    assert listener.clock == sorted(listener.clock)
    assert SECOND <= listener.clock[0] <= SECOND + 10 * PERIOD
    assert listener.clock[-1] == SECOND + 99 * PERIOD
    assert "/note" not in {name for name, _ in node.get_topic_names_and_types()}


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 0.98), (4.0, 0.245)])
def test_a_replay_takes_the_time_of_the_bag_divided_by_the_rate(
    node: RuntimeNode, tmp_path: Path, rate: float, expected: float
) -> None:
    write_bag(tmp_path / "bag", 50)
    listener, status, output = play(node, tmp_path / "bag", rate=rate)
    assert status == 0, output
    # two busy cores shift single messages by some 10 ms; a wrong rate is off by a factor
    assert listener.arrivals[-1] - listener.arrivals[0] == pytest.approx(expected, abs=0.15)


def test_a_cut_bag_is_played_as_far_as_it_goes_with_a_warning(node: RuntimeNode, tmp_path: Path) -> None:
    write_bag(tmp_path / "whole", 100)
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", cut)
    (cut / "metadata.yaml").unlink()
    (file,) = cut.glob("*.mcap")
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    listener, status, output = play(node, cut)
    assert status == 0, output
    assert 30 <= len(listener.theta) < 100
    with pytest.warns(TruncatedBagWarning):
        last = max(message.stamp_ns for message in read_bag(cut))
    assert f"{file}: cut off" in output
    assert f"stamp {last} ns" in output


def test_a_bag_that_does_not_exist_is_named(domain: int, tmp_path: Path) -> None:
    player = start("bag_player", bag=tmp_path / "nowhere")
    output, _ = player.communicate(timeout=30)
    assert player.returncode == 2
    assert f"{tmp_path / 'nowhere'}: no such bag" in output


def test_a_player_that_waits_in_vain_says_for_what_and_plays(domain: int, tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", 2)
    player = start(
        "bag_player", bag=tmp_path / "bag", wait_for_nodes="[estimator]", wait_timeout=1.0, settle_time=0.0
    )
    output, _ = player.communicate(timeout=30)
    assert player.returncode == 0
    assert "starting without node estimator" in output
