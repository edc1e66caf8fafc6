"""One ROS domain per test, and shared memory left as it was found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from realsimloop_ros.nodes.environment import clean_shared_memory, ros_domain, ros_environment


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[int]:
    """A ROS domain of the test's own, set in the environment of this process and of those that it starts."""
    monkeypatch.delenv("ROS_DOMAIN_ID", raising=False)
    with clean_shared_memory(), ros_domain() as number:
        for name, value in ros_environment(number, tmp_path / "ros_log").items():
            monkeypatch.setenv(name, value)
        yield number
