"""Records topics into an MCAP bag: serialized messages, as they come.

Messages are stamped by the node's clock: in virtual time the bag is on the cell's time, not on this
machine's. A message that comes before the clock's first tick gets the time of that tick. A recorder that was
killed leaves a bag that can be read up to its last second.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rclpy.clock import Clock, ClockType
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosbags.interfaces import Qos

from realsimloop_ros.evaluation.bags import bag_writer, message_store, offered_qos
from realsimloop_ros.nodes.discovery import message_class, topic_matches
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.runtime import RuntimeNode, run_node

PARAMETERS = (
    Parameter("bag", "str", "folder of the bag, which must not exist yet"),
    Parameter("topics", "str[]", "regular expressions of the topics to record; empty: every topic", []),
    Parameter(
        "exclude",
        "str[]",
        "regular expressions of topics that are not recorded",
        ["/rosout", "/parameter_events", ".*/transition_event", "/clock"],
    ),
    Parameter("compress", "bool", "compress the chunks of the bag with zstd", False),
)
DISCOVERY_PERIOD = 0.1  # s
FLUSH_PERIOD = 1.0  # s
DEPTH = 100  # messages per topic that may wait in the middleware
MAXIMUM_WAITING = 2**30  # bytes that may wait for the disk


class Entry(NamedTuple):
    """A message on its way to the disk."""

    topic: str
    message_type: str
    stamp_ns: int
    data: bytes
    offered: Qos


class Recorder(RuntimeNode):
    """Subscribes every wanted topic as it appears, with the quality of service that its publishers offer."""

    def __init__(self) -> None:
        super().__init__("recorder", PARAMETERS)
        self.counts: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._before_time: list[Entry] = []
        self._received_bytes = 0  # counted by the executor's thread
        self._written_bytes = 0  # counted by the writer's
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._bag = Path(self.parameters["bag"]).expanduser()
        self._writing = bag_writer(self._bag, atomic=False, compress=self.parameters["compress"])
        self._writer = self._writing.__enter__()
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(DISCOVERY_PERIOD, self._discover, clock=steady)
        self._discover()

    def _discover(self) -> None:
        for topic, types in self.get_topic_names_and_types():
            if topic in self._seen or self.count_publishers(topic) == 0:
                continue
            self._seen.add(topic)
            if not self._wanted(topic):
                continue
            if len(types) != 1 or types[0] not in message_store().types:
                self.diagnostics.warn(f"{topic} is not recorded: {' and '.join(types)} is not one known type")
                continue
            self._subscribe(topic, types[0])

    def heard_topics(self) -> set[str]:
        """Those that it does not record, too: nobody needs to wait for them."""
        return super().heard_topics() | self._seen

    def _wanted(self, topic: str) -> bool:
        namespace = self.get_namespace()
        wanted, exclude = self.parameters["topics"], self.parameters["exclude"]
        return (not wanted or topic_matches(wanted, topic, namespace)) and not topic_matches(
            exclude, topic, namespace
        )

    def _subscribe(self, topic: str, message_type: str) -> None:
        profiles = [info.qos_profile for info in self.get_publishers_info_by_topic(topic)]
        reliable = all(profile.reliability == ReliabilityPolicy.RELIABLE for profile in profiles)
        latched = all(profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for profile in profiles)
        profile = QoSProfile(
            depth=DEPTH,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
        )
        offered = offered_qos(reliable=reliable, latched=latched)
        self.create_subscription(
            message_class(message_type),
            topic,
            lambda data: self._receive(topic, message_type, data, offered),
            profile,
            raw=True,
        )
        self.get_logger().info(f"recording {topic} ({message_type})")

    def _receive(self, topic: str, message_type: str, data: bytes, offered: Qos) -> None:
        now = self.get_clock().now().nanoseconds
        entry = Entry(topic, message_type, now, bytes(data), offered)
        if now == 0:  # virtual time, and the clock has not ticked yet
            self._before_time.append(entry)
            return
        for early in self._before_time:
            self._enqueue(early._replace(stamp_ns=now))
        self._before_time.clear()
        self._enqueue(entry)

    def _enqueue(self, entry: Entry) -> None:
        if self._received_bytes - self._written_bytes > MAXIMUM_WAITING:
            self.diagnostics.count_drop("disk_too_slow")
            self.diagnostics.warn("the disk is too slow for what is recorded: record fewer topics, or compress")
            return
        self._received_bytes += len(entry.data)
        self._queue.put(entry)

    def _write(self) -> None:
        flushed = time.monotonic()
        try:
            while True:
                try:
                    entry = self._queue.get(timeout=FLUSH_PERIOD)
                    if entry is None:
                        return
                    self._write_entry(entry)
                except queue.Empty:
                    pass
                if time.monotonic() - flushed >= FLUSH_PERIOD:
                    flushed = time.monotonic()
                    self._writer.flush()
                    self.diagnostics.report(**{f"messages.{topic}": n for topic, n in self.counts.items()})
        except (OSError, ValueError) as error:
            self.finish(1, f"{self._bag}: cannot be written: {error}")

    def _write_entry(self, entry: Entry) -> None:
        self._written_bytes += len(entry.data)
        self._writer.write_raw(entry.topic, entry.stamp_ns, entry.message_type, entry.data, entry.offered)
        self.counts[entry.topic] += 1

    def close(self) -> None:
        """Write what waits, and complete the bag."""
        self._queue.put(None)
        self._thread.join()
        self._writing.__exit__(None, None, None)
        self.get_logger().info(f"{self._bag}: {sum(self.counts.values())} messages on {len(self.counts)} topics")


def main() -> int:
    return run_node(Recorder)


if __name__ == "__main__":
    raise SystemExit(main())
