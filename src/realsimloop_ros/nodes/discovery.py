"""Finding topics, message classes and other nodes; and waiting until all that a run needs is there."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException
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


def wait_until_ready(
    node: Node, expected_nodes: Sequence[str], publishers: Sequence[Publisher], timeout: float
) -> list[str]:
    """Wait until every node of `expected_nodes` has said on `ready` that it is, and every publisher is
    matched with every subscription of its topic; with a recorder among the nodes every publisher has at
    least one.

    Returns what was still missing after `timeout` s of wall clock, in words; nothing where all is there. To
    be called before the node is spun. Raises ExternalShutdownException where the process is told to stop
    meanwhile.
    """
    ready: set[str] = set()
    subscription = node.create_subscription(String, "ready", lambda message: ready.add(message.data), READY)
    least = 1 if "recorder" in expected_nodes else 0
    deadline = time.monotonic() + timeout
    try:
        while True:
            rclpy.spin_once(node, timeout_sec=STEP)
            missing = [f"node {name}" for name in expected_nodes if name not in ready]
            missing += [
                f"a subscription of {publisher.topic_name}"
                for publisher in publishers
                if publisher.get_subscription_count()
                < max(least, node.count_subscribers(publisher.topic_name))
            ]
            if not missing or time.monotonic() >= deadline:
                return missing
            if not node.context.ok():
                raise ExternalShutdownException
    finally:
        node.destroy_subscription(subscription)
