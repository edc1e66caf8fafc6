"""Small processes for the tests of the supervisor: `python nodes_under_test.py KIND --ros-args ...`."""

import os
import signal
import subprocess
import sys
import time


def quiet() -> None:
    """Runs until it is interrupted, as a node does."""
    print("quiet: up", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("quiet: interrupted", flush=True)


def stubborn() -> None:
    """Ignores SIGINT and SIGTERM, and has a child that does the same."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(f"stubborn: child {child.pid}", flush=True)
    time.sleep(60)


def crash() -> None:
    """Dies with a traceback."""
    print("crash: about to fail", flush=True)
    raise RuntimeError("the sensor is on fire")


def segfault() -> None:
    """Dies by a signal."""
    os.kill(os.getpid(), signal.SIGSEGV)


def over() -> None:
    """Ends the run."""
    time.sleep(0.3)
    print("over: the scenario is over", flush=True)


def crash_once() -> None:
    """Dies at its first start only; the file named by the environment remembers it."""
    marker = os.environ["CRASH_ONCE_MARKER"]
    if not os.path.exists(marker):  # noqa: PTH110
        with open(marker, "w"):  # noqa: PTH123
            pass
        sys.exit(3)
    quiet()


def echo() -> None:
    """Prints its command line and the ROS environment."""
    print("arguments:", " ".join(sys.argv[2:]), flush=True)
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "FASTDDS_DEFAULT_PROFILES_FILE"):
        print(f"{name}={os.environ[name]}", flush=True)


def ros() -> None:
    """A real node, which holds shared memory; with FREEZE set it does not react to signals."""
    import rclpy
    from rclpy.executors import ExternalShutdownException

    try:
        with rclpy.init():
            node = rclpy.create_node("ros")
            if os.environ.get("FREEZE"):
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("ros: up", flush=True)
            rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        print("ros: interrupted", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
