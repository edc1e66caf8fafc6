"""What the nodes of a twin share: the cell, warming up before anything counts, and conditions that last."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy

from realsimloop_ros.nodes.message_checks import MessageError
from realsimloop_ros.nodes.parameters import Parameter
from realsimloop_ros.nodes.runtime import USAGE_ERROR, RuntimeLifecycleNode, is_user_error
from realsimloop_ros.observation.cell_file import load_cell
from realsimloop_ros.resources import configuration_file

CELL = Parameter("cell", "str", "cell file: a path, or a name in config/cells", "dual_arm")
# For subscribing poses and markers: none may be lost while the executor is busy, for seconds at a robot's rate.
EVERY_ONE = QoSProfile(depth=2000, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)
# A condition that was not seen again for so long, s of wall clock, is over.
CONDITION_TIME = 5.0

Item = TypeVar("Item")


class OrderedWorker(Generic[Item]):
    """Runs `process` on a thread of its own, on every item in order; `idle` each time none is left.

    Of the items that are `droppable` at most `limit` wait: the oldest gives way and is counted as dropped because
    of `cause`. An exception ends the node with status 1.
    """

    def __init__(
        self,
        node: RuntimeLifecycleNode,
        process: Callable[[Item], None],
        idle: Callable[[], None],
        *,
        droppable: Callable[[Item], bool] = lambda item: False,
        limit: int = 1,
        cause: str = "overflow",
    ) -> None:
        self._node, self._process, self._idle = node, process, idle
        self._droppable, self._limit, self._cause = droppable, limit, cause
        self._condition = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Hand over an item."""
        with self._condition:
            if self._droppable(item):
                places = [place for place, other in enumerate(self._waiting) if self._droppable(other)]
                if len(places) >= self._limit:
                    del self._waiting[places[0]]
                    self._node.diagnostics.count_drop(self._cause)
            self._waiting.append(item)
            self._condition.notify()

    def stop(self, timeout: float = 1.0) -> None:
        """Let the item in work end, for at most `timeout` s, and start no other."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                item = self._waiting.popleft()
            try:
                self._process(item)
                if not self._waiting:
                    self._idle()
            except Exception as error:
                # while the process ends, thread pools and publishers go before this thread does
                if not self._stopping:
                    self._node.get_logger().error(traceback.format_exc())
                    self._node.finish(1, f"{type(error).__name__}: {error}")
                return


class Durations:
    """The last durations of a stage, ms."""

    def __init__(self, size: int = 1000) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, seconds: float) -> None:
        """Take one in."""
        self._values.append(1e3 * seconds)

    def figures(self, name: str) -> dict[str, float]:
        """`NAME_p50_ms` and `NAME_p99_ms`."""
        if not self._values:
            return {}
        p50, p99 = np.percentile(list(self._values), [50, 99])
        return {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99)}


class WarmNode(RuntimeLifecycleNode):
    """A lifecycle node that warms up in `on_configure`, and works while it is active.

    A node overrides `warm_up` (everything that compiles) and `connect` (publishers and subscriptions), both called
    by `on_configure`; it asks `active` before it works.
    """

    def __init__(self, name: str, parameters: Sequence[Parameter] = (), **options: Any) -> None:
        super().__init__(name, parameters, **options)
        self.active = False
        self._conditions: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self.create_timer(1.0, self._forget_conditions, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def warm_up(self) -> None:
        """Compile all that will run."""

    def connect(self) -> None:
        """Make publishers and subscriptions."""

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Warm up and connect; the node ends where its files cannot be used."""
        began = time.perf_counter()
        try:
            self.warm_up()
            self.connect()
        except Exception as error:
            # rclpy would turn it into a silent failure of the transition
            if not is_user_error(error):
                self.get_logger().error(traceback.format_exc())
            self.finish(USAGE_ERROR if is_user_error(error) else 1, str(error))
            return TransitionCallbackReturn.FAILURE
        self.get_logger().info(f"warmed up in {time.perf_counter() - began:.1f} s")
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin to work."""
        self.active = True
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Ignore what comes in."""
        self.active = False
        return super().on_deactivate(state)

    def reject(self, error: MessageError) -> None:
        """Count a message that cannot be used, and say why."""
        self.diagnostics.count_drop(error.cause)
        self.condition(error.cause, str(error))

    def condition(self, name: str, text: str) -> None:
        """Something is not as it should be: a WARN until it has not been said again for CONDITION_TIME. The text
        of its first time is kept, so that a value that changes with each message does not fill the log.
        """
        with self._lock:
            known = self._conditions.get(name)
            self._conditions[name] = (known[0] if known else text, time.monotonic())
        if known is None:
            self._show_conditions()

    def condition_over(self, name: str) -> None:
        """The condition is over."""
        with self._lock:
            known = self._conditions.pop(name, None)
        if known is not None:
            self._show_conditions()

    def close(self) -> None:
        """Tell what was dropped."""
        drops = ", ".join(f"{cause} {number}" for cause, number in sorted(self.diagnostics.drops.items()))
        self.get_logger().info(f"dropped: {drops or 'nothing'}")
        if self.context.ok():
            self.diagnostics.publish()

    def _show_conditions(self) -> None:
        with self._lock:
            text = "; ".join(text for text, _ in self._conditions.values())
        if text:
            self.diagnostics.warn(text)
        else:
            self.diagnostics.ok()

    def _forget_conditions(self) -> None:
        now = time.monotonic()
        with self._lock:
            over = [name for name, (_, last) in self._conditions.items() if now - last > CONDITION_TIME]
        for name in over:
            self.condition_over(name)


class TwinNode(WarmNode):
    """A WarmNode that reads the cell file. Raises the errors of that file."""

    def __init__(self, name: str, parameters: Sequence[Parameter] = (), **options: Any) -> None:
        super().__init__(name, (CELL, *parameters), **options)
        self.cell = load_cell(configuration_file("cells", self.parameters["cell"]))
