"""What every node shares: a clean start and end, its parameters, and its state of health.

class Stress(RuntimeNode):
    def __init__(self) -> None:
        super().__init__("stress", PARAMETERS)

def main() -> int:
    return run_node(Stress)
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from std_msgs.msg import String

from realsimloop_ros.nodes.diagnostics import Diagnostics
from realsimloop_ros.nodes.discovery import announcement
from realsimloop_ros.nodes.environment import SUPERVISOR_VARIABLE
from realsimloop_ros.nodes.parameters import Parameter, ParameterError, declare_parameters
from realsimloop_ros.nodes.qos import LATCHED

# A node exits with this when its settings are wrong, as command line tools do.
USAGE_ERROR = 2
_PR_SET_PDEATHSIG = 1
ANNOUNCEMENT_PERIOD = 0.2  # s, wall clock

Item = TypeVar("Item")


class _Runtime:
    """Parameters, health and end of a node; mixed into plain and lifecycle nodes.

    parameters: values by name; diagnostics: see Diagnostics; finished: done with the exit status when the
    node ends itself.
    """

    parameters: dict[str, Any]
    diagnostics: Diagnostics
    finished: Future

    def _start_runtime(self, parameters: Sequence[Parameter]) -> None:
        assert isinstance(self, Node)
        self.parameters = declare_parameters(self, parameters)
        self.diagnostics = Diagnostics(self)
        self.finished = Future()
        self._ready = False
        self._announced = String()
        self._ready_publisher = self.create_publisher(String, "ready", LATCHED)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(ANNOUNCEMENT_PERIOD, self._announce, clock=steady)

    def finish(self, status: int = 0, reason: str = "") -> None:
        """End the process with `status`, from any thread. A reason is logged, as an error unless status is
        0.
        """
        assert isinstance(self, Node)
        if self.finished.done():
            return
        if reason and status == 0:
            self.get_logger().info(reason)
        elif reason:
            self.get_logger().fatal(reason)
        self.finished.set_result(status)

    def announce_ready(self) -> None:
        """Tell on the topic `ready` that every subscription stands and nothing is left to be compiled; and from
        now on which publishers are known, so that these can wait for it.
        """
        assert isinstance(self, Node)
        self._ready = True
        self._announce()
        self.get_logger().info("ready")

    def heard_topics(self) -> set[str]:
        """The topics whose publishers wait until this node knows them: those that it subscribes."""
        assert isinstance(self, Node)
        return {subscription.topic_name for subscription in self.subscriptions}

    def _announce(self) -> None:
        assert isinstance(self, Node)
        if not self._ready:
            return
        message = announcement(self, self.heard_topics())
        if message != self._announced:
            self._announced = message
            self._ready_publisher.publish(message)

    def close(self) -> None:
        """Called once when the node ends, however it ends: stop threads, close files. Nodes extend it."""


class RuntimeNode(_Runtime, Node):
    """A plain node. Raises ParameterError."""

    def __init__(self, name: str, parameters: Sequence[Parameter] = (), **options: Any) -> None:
        super().__init__(name, **options)
        self._start_runtime(parameters)


class RuntimeLifecycleNode(_Runtime, LifecycleNode):
    """A node with compiled code: it compiles in `on_configure`, and while active nothing compiles.

    With the parameter `autostart` (the default) it configures and activates itself, so it runs without a
    lifecycle manager. Raises ParameterError.
    """

    AUTOSTART = Parameter("autostart", "bool", "configure and activate at start", True)

    def __init__(self, name: str, parameters: Sequence[Parameter] = (), **options: Any) -> None:
        super().__init__(name, **options)
        self._start_runtime((*parameters, self.AUTOSTART))

    def autostart(self) -> None:
        """Configure and activate; end with status 1 where a transition fails."""
        for transition in (self.trigger_configure, self.trigger_activate):
            if transition() != TransitionCallbackReturn.SUCCESS:
                self.finish(1, f"{transition.__name__.removeprefix('trigger_')} failed")
                return


def run_node(
    create: Callable[[], RuntimeNode | RuntimeLifecycleNode], arguments: Sequence[str] | None = None
) -> int:
    """Run one node until it is told to stop or ends itself. Returns the exit status: 0 for SIGINT and SIGTERM
    too, 2 for wrong settings (a ParameterError or another error of this package: one line, no traceback).

    After SIGINT and SIGTERM the node can still publish, until `close` has returned.
    """
    _die_with_supervisor()
    # rclpy's own handlers would take the middleware away before the node has closed
    rclpy.init(args=None if arguments is None else list(arguments), signal_handler_options=SignalHandlerOptions.NO)
    node: RuntimeNode | RuntimeLifecycleNode | None = None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        node = create()
        _stop_on_signals(node)
        return _spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        return 0
    except Exception as error:
        if not is_user_error(error):
            raise
        name = node.get_name() if node is not None else create.__name__
        rclpy.logging.get_logger(name).fatal(str(error))
        return USAGE_ERROR
    finally:
        if node is not None:
            node.close()
            node.destroy_node()
        rclpy.try_shutdown()


def is_user_error(error: BaseException) -> bool:
    """Whether the error's text is enough for the user to mend it: that of the errors which this package
    defines.
    """
    return isinstance(error, (ParameterError, ValueError, OSError)) and type(error).__module__.startswith(
        "realsimloop_ros."
    )


def _spin(node: RuntimeNode | RuntimeLifecycleNode) -> int:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        if isinstance(node, RuntimeLifecycleNode) and node.parameters["autostart"]:
            node.autostart()
        if not node.finished.done():
            node.announce_ready()
        executor.spin_until_future_complete(node.finished)
        # spinning also ends, without a result, when a signal shut the context down
        status = node.finished.result()
        return 0 if status is None else int(status)
    finally:
        executor.shutdown()


def _stop_on_signals(node: RuntimeNode | RuntimeLifecycleNode) -> None:
    """End the node with status 0 at the first SIGINT or SIGTERM; a second one interrupts what it is doing."""

    def stop(number: int, _: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        # the signal may have interrupted this thread while it held a lock that finishing takes
        threading.Thread(target=node.finish, name="stop", daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _die_with_supervisor() -> None:
    """Ask the kernel to interrupt this process when the supervisor that started it is gone, however it
    went.
    """
    supervisor = os.environ.get(SUPERVISOR_VARIABLE)
    if supervisor is None or os.getppid() != int(supervisor):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


class LatestWorker(Generic[Item]):
    """Runs `process` on a thread of its own, always on the newest item; what is overtaken is counted as
    dropped.

    An exception in `process` ends the node with status 1.
    """

    def __init__(
        self,
        node: RuntimeNode | RuntimeLifecycleNode,
        process: Callable[[Item], None],
        *,
        cause: str = "overtaken",
    ) -> None:
        self._node = node
        self._process = process
        self._cause = cause
        self._condition = threading.Condition()
        self._pending: list[Item] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Hand over an item; one that still waits is dropped."""
        with self._condition:
            if self._pending:
                self._node.diagnostics.count_drop(self._cause)
            self._pending = [item]
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
                self._condition.wait_for(lambda: self._pending or self._stopping)
                if self._stopping:
                    return
                item = self._pending.pop()
            try:
                self._process(item)
            except Exception as error:
                # while the process ends, publishers go before this thread does
                if not self._stopping:
                    self._node.get_logger().error(traceback.format_exc())
                    self._node.finish(1, f"{type(error).__name__}: {error}")
                return
