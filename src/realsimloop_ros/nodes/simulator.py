"""The running twin: it follows the grip poses with the newest theta, and says where the body is.

In: ARM/tcp_pose, theta. Out: state. See docs/nodes/simulator.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from numpy.typing import NDArray
from realsimloop.msg import BodyState, MaterialEstimate

from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.dynamics.live import LiveState, LiveTwin
from realsimloop_ros.estimation.twin import load_twin
from realsimloop_ros.mechanics.material import Material
from realsimloop_ros.nodes.conversions import material_from_message, pose_from_message, state_message
from realsimloop_ros.nodes.message_checks import MessageError
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.qos import LATCHED, STREAM
from realsimloop_ros.nodes.runtime import run_node
from realsimloop_ros.nodes.twin_node import EVERY_ONE, Durations, OrderedWorker, TwinNode

PARAMETERS = (
    Parameter("publish_rate", "float", "states per second of the poses' time, in whole ticks", 30.0, "Hz", 1.0),
    Parameter("stale_timeout", "float", "age of a grip's last pose from which on it is held", 0.5, "s", 0.01),
    Parameter("jump_threshold", "float", "step of a grip's stamps, either way, that starts anew", 1.0, "s", 0.1),
    Parameter("maximum_lag", "float", "lag behind the poses that starts anew", 2.0, "s", 0.1),
)
CLOCK_PERIOD = 0.05  # s, of the node's clock, between two looks at the age of the poses


@dataclass(frozen=True)
class _Pose:
    grip: str
    stamp_ns: int
    pose: NDArray[np.float64]


@dataclass(frozen=True)
class _Now:
    stamp_ns: int


class Simulator(TwinNode):
    """Steps the twin on a worker thread. Raises the errors of the cell's files."""

    def __init__(self, **options: Any) -> None:
        super().__init__("simulator", PARAMETERS, **options)
        twin = load_twin(self.cell)
        self.body = twin.body
        ticks = max(1, round(1.0 / (self.parameters["publish_rate"] * twin.step.time_step)))
        self._make_twin = lambda: LiveTwin(
            twin.body,
            twin.model,
            twin.step,
            twin.space.prior,
            ticks_per_state=ticks,
            jump_ns=round(self.parameters["jump_threshold"] * 1e9),
            lag_ns=round(self.parameters["maximum_lag"] * 1e9),
        )
        self.twin = self._make_twin()
        self._fitted = twin.fitted
        self._durations = Durations()
        self._clock_began: int | None = None
        self._worker: OrderedWorker[_Pose | _Now | Material] | None = None

    def warm_up(self) -> None:
        """Step a twin that is thrown away."""
        twin = self._make_twin()
        for stamp in (0, 10**9):
            for grip in self.body.grips:
                twin.add_grip_pose(grip.name, stamp, grip.rest_pose)
            for _ in twin.advance():
                pass

    def connect(self) -> None:
        """Topics of the cell file's arms."""
        self._states = self.create_publisher(BodyState, "state", STREAM)
        self._worker = OrderedWorker(self, self._take, self._step)
        for grip in self.cell.grips:
            self.create_subscription(
                PoseStamped,
                f"{grip.arm}/tcp_pose",
                lambda message, grip=grip: self._on_pose(grip.name, f"{grip.arm}/tcp_pose", message),
                EVERY_ONE,
            )
        self.create_subscription(MaterialEstimate, "theta", self._on_theta, LATCHED)
        self.create_timer(CLOCK_PERIOD, self._on_clock)

    def _on_pose(self, grip: str, topic: str, message: PoseStamped) -> None:
        if not self.active or self._worker is None:
            return
        try:
            stamp, pose = pose_from_message(message, self.cell.world_frame, topic)
        except MessageError as error:
            self.reject(error)
            return
        self._worker.submit(_Pose(grip, stamp, pose))

    def _on_theta(self, message: MaterialEstimate) -> None:
        if not self.active or self._worker is None:
            return
        try:
            self._worker.submit(material_from_message(message, self.body, "theta"))
        except MessageError as error:
            self.reject(error)

    def _on_clock(self) -> None:
        now = self.get_clock().now().nanoseconds
        if self.active and self._worker is not None and now > 0:
            self._worker.submit(_Now(now))

    def _take(self, item: _Pose | _Now | Material) -> None:
        if isinstance(item, _Pose):
            self.twin.add_grip_pose(item.grip, item.stamp_ns, item.pose)
        elif isinstance(item, _Now):
            self._look_at_ages(item.stamp_ns)
        else:
            self.twin.set_material(item)

    def _look_at_ages(self, now: int) -> None:
        """Hold grips that have fallen silent; begin anew where the clock was set back."""
        at = self.twin.now_ns
        if at is not None and now < at - round(self.parameters["jump_threshold"] * 1e9):
            self.twin.reset("clock_jump")
            return
        limit = now - round(self.parameters["stale_timeout"] * 1e9)
        if self._clock_began is None or now < self._clock_began:
            self._clock_began = now
        silent = self.twin.grips_behind(limit)
        if not silent or self._clock_began > limit:
            self.condition_over("stale_pose")
            return
        names = ", ".join(f"{grip.arm}/tcp_pose" for grip in self.cell.grips if grip.name in silent)
        if self.twin.known_until is None:
            self.condition("stale_pose", f"no pose yet on {names}: nothing to simulate; is the arm's driver up?")
            return
        self.condition("stale_pose", f"no new pose on {names}: held where it was; is the arm's driver up?")
        self._publish(until_ns=limit)

    def _step(self) -> None:
        self._publish(until_ns=None)

    def _publish(self, until_ns: int | None) -> None:
        began = time.perf_counter()
        for state in self.twin.advance(until_ns):
            self._states.publish(state_message(state, self.body, self.cell.world_frame))
            self._durations.add(time.perf_counter() - began)
            if not state.converged:
                self.condition("not_converged", "a step did not converge: its state is the last iterate")
            self._look_at_range(state)
            began = time.perf_counter()
        self._report()

    def _look_at_range(self, state: LiveState) -> None:
        """Say where the body is further out than its reduced model was fitted for."""
        if self._fitted is None:
            return
        excess = float(self._fitted.excess(state.latent))
        self.diagnostics.report(range_excess=excess)
        if excess > 1.0:
            self.condition(
                "beyond_range",
                f"the body is deformed {excess:.2f} times as far as its reduced model was fitted for: trust no "
                "state or stress; move back, or make the model anew from wider motions (realsimloop reduce)",
            )

    def _report(self) -> None:
        twin = self.twin
        known, at = twin.known_until, twin.now_ns
        lag = 0.0 if known is None or at is None else max(0.0, (known - at) * 1e-9)
        resets = {f"resets.{cause}": number for cause, number in twin.resets.items()}
        self.diagnostics.report(
            lag_s=lag, poses_not_newer=twin.rejected, **resets, **self._durations.figures("state")
        )
        if twin.resets.get("too_slow"):
            self.condition("too_slow", "the twin is slower than the cell and left out time: free a core for it")

    def close(self) -> None:
        """Stop stepping."""
        if self._worker is not None:
            self._worker.stop()
        super().close()


def main() -> int:
    use_one_core()
    use_double_precision()
    return run_node(Simulator)


if __name__ == "__main__":
    raise SystemExit(main())
