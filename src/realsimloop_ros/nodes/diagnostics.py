"""A node's state of health on /diagnostics: its last word, figures, and what it dropped by cause."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

PERIOD = 1.0  # s, wall clock
DROP_PREFIX = "drops."


class Diagnostics:
    """Published once a second by wall clock, whatever the clock of the node; every method may be called from
    any thread. Dropped items are counted by cause in a Counter and appear as `drops.CAUSE`.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._drops: Counter[str] = Counter()
        self._values: dict[str, str] = {}
        self._level, self._message = DiagnosticStatus.OK, "running"
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        node.create_timer(PERIOD, self.publish, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def count_drop(self, cause: str, number: int = 1) -> None:
        """Count `number` inputs that were not used because of `cause`."""
        with self._lock:
            self._drops[cause] += number

    @property
    def drops(self) -> Mapping[str, int]:
        """Inputs that were not used, by cause."""
        with self._lock:
            return dict(self._drops)

    def report(self, **values: object) -> None:
        """Set figures that are published beside the drops, e.g. report(solve_time_ms=12.3)."""
        with self._lock:
            self._values.update({name: _text(value) for name, value in values.items()})

    def ok(self, message: str = "running") -> None:
        """All is well."""
        self._set(DiagnosticStatus.OK, message)

    def warn(self, message: str) -> None:
        """The node goes on with less than it should have."""
        self._set(DiagnosticStatus.WARN, message)

    def error(self, message: str) -> None:
        """The node cannot do its work."""
        self._set(DiagnosticStatus.ERROR, message)

    def status(self) -> DiagnosticStatus:
        """What is published."""
        with self._lock:
            figures = {
                **self._values,
                **{DROP_PREFIX + cause: str(n) for cause, n in sorted(self._drops.items())},
            }
            return DiagnosticStatus(
                level=self._level,
                name=self._node.get_fully_qualified_name().lstrip("/"),
                message=self._message,
                values=[KeyValue(key=key, value=value) for key, value in figures.items()],
            )

    def publish(self) -> None:
        """Publish now, for instance before the node ends."""
        array = DiagnosticArray(status=[self.status()])
        array.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(array)

    def _set(self, level: bytes, message: str) -> None:
        with self._lock:
            changed = (level, message) != (self._level, self._message)
            self._level, self._message = level, message
        if changed and level != DiagnosticStatus.OK:
            log = self._node.get_logger()
            (log.warning if level == DiagnosticStatus.WARN else log.error)(message)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
