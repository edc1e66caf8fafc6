"""Finding topics, message classes and other nodes; and waiting until all that a run needs is there."""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.publisher import Publisher
from std_msgs.msg import String

from realsimloop_ros.nodes.qos import READY

STEP = 0.05  # s


def message_class(message_type: str) -> Any:
    """The class of a message type such as `sensor_msgs/msg/Image`. Raises ModuleNotFoundError or
    AttributeError where its package is not installed or has no such message.
    """
    package, kind, name = message_type.split("/")
    return getattr(importlib.import_module(f"{package}.{kind}"), name)


def topic_matches(patterns: Iterable[str], topic: str, namespace: str = "/") -> bool:
    """Whether a pattern, a regular expression, fits the whole of `topic`: the absolute name, or the name
    inside `namespace`.
    """
    prefix = namespace.rstrip("/") + "/"
    names = [topic, *([topic.removeprefix(prefix)] if topic.startswith(prefix) else [])]
    return any(re.fullmatch(pattern, name) for pattern in patterns for name in names)


def announcement(node: Node, topics: Iterable[str]) -> String:
    """What a node says on `ready`: its name, and how many publishers it knows of each of the topics it hears."""
    counts = {topic: node.count_publishers(topic) for topic in topics}
    return String(data=json.dumps({"node": node.get_name(), "publishers": counts}, sort_keys=True))


def wait_until_ready(
    node: Node, expected_nodes: Sequence[str], publishers: Sequence[Publisher], timeout: float
) -> list[str]:
    """Wait until every node of `expected_nodes` has said on `ready` that it is, and each publisher and those
    nodes' subscriptions of its topic know of each other; a recorder among the nodes has seen every topic.

    Returns what was still missing after `timeout` s of wall clock, in words; nothing where all is there. To be
    called before the node is spun. Raises ExternalShutdownException where the process is told to stop meanwhile.
    """
    known: dict[str, dict[str, int]] = {}

    def hear(message: String) -> None:
        said = json.loads(message.data)
        known[said["node"]] = said["publishers"]

    subscription = node.create_subscription(String, "ready", hear, READY)
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    deadline = time.monotonic() + timeout
    try:
        while True:
            executor.spin_once(timeout_sec=STEP)
            missing = [f"node {name}" for name in expected_nodes if name not in known]
            missing += _missing_matches(node, expected_nodes, publishers, known)
            if not missing or time.monotonic() >= deadline:
                return missing
            if not node.context.ok():
                raise ExternalShutdownException
    finally:
        executor.remove_node(node)
        executor.shutdown()
        node.destroy_subscription(subscription)


def _missing_matches(
    node: Node,
    expected_nodes: Sequence[str],
    publishers: Sequence[Publisher],
    known: Mapping[str, Mapping[str, int]],
) -> list[str]:
    missing = []
    for publisher in publishers:
        topic = publisher.topic_name
        subscribers = {info.node_name for info in node.get_subscriptions_info_by_topic(topic)}
        hearers = (subscribers | {"recorder"}) & set(expected_nodes)
        # a match is complete when the subscriber knows of it too, up to a second later; before, it takes nothing
        behind = [
            name for name in sorted(hearers) if known.get(name, {}).get(topic, 0) < node.count_publishers(topic)
        ]
        if not behind and publisher.get_subscription_count() < len(subscribers):
            behind = ["someone"]
        missing += [f"{name}'s subscription of {topic}" for name in behind]
    return missing
