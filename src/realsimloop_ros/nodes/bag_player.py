"""Plays a bag with its clock, and ends with its last message.

It starts when every node that it waits for is ready and every subscription of its topics is matched, so
nothing of the bag is lost to discovery. A bag that was cut off is played as far as it goes, with a warning
that names the bag and its last stamp.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from realsimloop_ros.evaluation.bags import (
    BagError,
    RawBagMessage,
    TruncatedBagWarning,
    bag_topics,
    read_raw_bag,
)
from realsimloop_ros.nodes.discovery import message_class, topic_matches, wait_until_ready
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.qos import CLOCK
from realsimloop_ros.nodes.runtime import RuntimeNode, run_node

PARAMETERS = (
    Parameter("bag", "str", "bag to play: a folder, or a .mcap file"),
    Parameter("rate", "float", "bag seconds per second; 0: as fast as possible", 1.0, minimum=0.0),
    Parameter("topics", "str[]", "regular expressions of the topics to play; empty: every topic", []),
    Parameter("exclude", "str[]", "regular expressions of topics that are not played", ["/clock"]),
    Parameter("clock_period", "float", "longest time of the bag between two ticks of /clock", 0.01, "s", 1e-4),
    Parameter("wait_for_nodes", "str[]", "nodes that must be ready before the first message", []),
    Parameter("wait_timeout", "float", "longest wait for nodes and subscriptions", 120.0, "s", 0.0),
    Parameter("settle_time", "float", "wait after the last message, for what is still computed", 1.0, "s", 0.0),
    Parameter("stay", "bool", "stay after the last message, where another node ends the run", False),
)
LATCHED_TOPICS = ("/tf_static", "/robot_description")


class BagPlayer(RuntimeNode):
    """Publishes a bag's messages on a thread of its own. Raises BagError for a bag that cannot be played."""

    def __init__(self) -> None:
        super().__init__("bag_player", PARAMETERS)
        self._bag = Path(self.parameters["bag"]).expanduser()
        self._publishers_by_topic = self._make_publishers()
        self._clock_publisher = self.create_publisher(Clock, "/clock", CLOCK)
        self._stopping = threading.Event()
        self._wait()
        self._thread = threading.Thread(target=self._play, name="player", daemon=True)
        self._thread.start()

    def _make_publishers(self) -> dict[str, Publisher]:
        wanted, exclude = self.parameters["topics"], self.parameters["exclude"]
        publishers: dict[str, Publisher] = {}
        for topic in bag_topics(self._bag):
            name = f"/{topic.name}"
            if (wanted and not topic_matches(wanted, name)) or topic_matches(exclude, name):
                continue
            try:
                message = message_class(topic.message_type)
            except (ModuleNotFoundError, AttributeError):
                self.diagnostics.warn(f"{name} is not played: {topic.message_type} is not installed")
                continue
            latched = name.endswith(LATCHED_TOPICS)
            profile = QoSProfile(
                depth=100,
                reliability=ReliabilityPolicy.RELIABLE,
                durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
            )
            publishers[topic.name] = self.create_publisher(message, name, profile)
        if not publishers:
            raise BagError(f"{self._bag}: no topic is left to play; see the parameters topics and exclude")
        return publishers

    def _wait(self) -> None:
        missing = wait_until_ready(
            self,
            self.parameters["wait_for_nodes"],
            [*self._publishers_by_topic.values(), self._clock_publisher],
            self.parameters["wait_timeout"],
        )
        if missing:
            self.diagnostics.warn(f"starting without {', '.join(missing)}")

    def _play(self) -> None:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", TruncatedBagWarning)
                played = self._publish_all(read_raw_bag(self._bag, list(self._publishers_by_topic)))
            for warning in caught:
                self.diagnostics.warn(str(warning.message))
        except BagError as error:
            self.finish(1, str(error))
            return
        told = f"{self._bag}: played {played} messages"
        if self.parameters["stay"]:
            self.get_logger().info(told)
            return
        self._stopping.wait(self.parameters["settle_time"])
        self.finish(0, told)

    def _publish_all(self, messages: Iterator[RawBagMessage]) -> int:
        rate, period = self.parameters["rate"], int(self.parameters["clock_period"] * 1e9)
        begin, first_ns, ticked_ns, played = 0.0, 0, 0, 0
        for message in messages:
            if played == 0:  # opening the bag took its time too
                begin, first_ns, ticked_ns = time.monotonic(), message.stamp_ns, message.stamp_ns
                self._tick(first_ns)
            while ticked_ns < message.stamp_ns and not self._stopping.is_set():
                ticked_ns = min(ticked_ns + period, message.stamp_ns)
                if rate > 0.0:
                    self._sleep_until(begin + (ticked_ns - first_ns) * 1e-9 / rate)
                self._tick(ticked_ns)
            if self._stopping.is_set():
                break
            self._publishers_by_topic[message.topic].publish(message.data)
            played += 1
        return played

    def _sleep_until(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining > 0.0:
            self._stopping.wait(remaining)

    def _tick(self, stamp_ns: int) -> None:
        clock = Clock()
        clock.clock.sec, clock.clock.nanosec = divmod(stamp_ns, 10**9)
        self._clock_publisher.publish(clock)

    def close(self) -> None:
        """Stop playing."""
        self._stopping.set()
        self._thread.join(timeout=1.0)


def main() -> int:
    return run_node(BagPlayer)


if __name__ == "__main__":
    raise SystemExit(main())
