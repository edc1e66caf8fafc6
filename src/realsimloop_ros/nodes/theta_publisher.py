"""What estimators publish: theta after each update, and what their core says in the node's diagnostics."""

from __future__ import annotations

from collections.abc import Iterable

from rclpy.duration import Duration
from realsimloop.msg import MaterialEstimate

from realsimloop_ros.body.body import Body
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.updates import MaterialUpdate, UpdateStatus
from realsimloop_ros.nodes.conversions import material_message
from realsimloop_ros.nodes.qos import ESTIMATES
from realsimloop_ros.nodes.twin_node import Durations, WarmNode


class ThetaPublisher:
    """The topic `theta` of a node, for the estimates that `core` makes of `body`."""

    def __init__(self, node: WarmNode, core: TwinEstimator, body: Body) -> None:
        self._node, self._core, self._body = node, core, body
        self._publisher = node.create_publisher(MaterialEstimate, "theta", ESTIMATES)
        self._solve = Durations()
        self._rejected: dict[str, int] = {}
        self.published = 0

    def publish(self, updates: Iterable[MaterialUpdate], **figures: object) -> None:
        """Publish updates in their order. figures: more of them, for the diagnostics."""
        for update in updates:
            self._publisher.publish(material_message(update, self._body))
            self.published += 1
            self._solve.add(update.solve_time_s)
            self._report(update, figures)

    def flush(self, seconds: float) -> None:
        """Wait until those who listen have what was published, for at most `seconds`."""
        self._publisher.wait_for_all_acked(Duration(seconds=seconds))

    def _report(self, update: MaterialUpdate, figures: dict[str, object]) -> None:
        for cause, number in self._core.rejected.items():
            new = number - self._rejected.get(cause, 0)
            if new:
                self._node.diagnostics.count_drop(cause, new)
            self._rejected[cause] = number
        if update.status == UpdateStatus.UPDATED:
            self._node.condition_over("held")
        else:
            self._node.condition("held", f"theta is held ({update.status.name}): {update.reason}")
        now = self._node.get_clock().now().nanoseconds
        self._node.diagnostics.report(
            status=update.status.name,
            frames_used=update.frames_used,
            delay_s=(now - update.stamp_ns) * 1e-9,
            **figures,
            **self._solve.figures("solve"),
            **update.figures,
        )
