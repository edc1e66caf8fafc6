"""The environment of a run: ROS variables, a domain of its own, and shared memory that is left clean."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from realsimloop_ros.resources import prefixes, share_directory

# Process id of the supervisor, in the environment of the nodes that it starts.
SUPERVISOR_VARIABLE = "REALSIMLOOP_SUPERVISOR"
SHARED_MEMORY = Path("/dev/shm")
# The discovery ports of a higher domain fall into the range from which Linux hands out ports of its own.
_DOMAINS = range(1, 102)


class DomainError(OSError):
    """Every ROS domain is taken on this machine."""


def ros_environment(domain: int, log_directory: Path) -> dict[str, str]:
    """The environment of this process with what the nodes need added; what the user has set stays."""
    environment = dict(os.environ)
    environment["AMENT_PREFIX_PATH"] = os.pathsep.join(
        str(prefix) for prefix in prefixes() if (prefix / "share" / "ament_index").is_dir()
    )
    environment["ROS_DOMAIN_ID"] = str(domain)
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    environment.setdefault("FASTDDS_DEFAULT_PROFILES_FILE", str(share_directory() / "config" / "fastdds.xml"))
    environment.setdefault("ROS_LOG_DIR", str(log_directory))
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


@contextmanager
def ros_domain(environment: Mapping[str, str] = os.environ) -> Iterator[int]:
    """A domain that no other run on this machine uses, kept until the block ends; the user's ROS_DOMAIN_ID
    where it is set. Raises DomainError.
    """
    chosen = environment.get("ROS_DOMAIN_ID", "")
    if chosen:
        yield int(chosen)
        return
    candidates = list(_DOMAINS)
    random.shuffle(candidates)
    for domain in candidates:
        with _domain_lock(domain) as locked:
            if locked and _ports_free(domain):
                yield domain
                return
    raise DomainError(
        f"no free ROS domain in {_DOMAINS.start}..{_DOMAINS.stop - 1}; stop other runs, or set ROS_DOMAIN_ID"
    )


@contextmanager
def clean_shared_memory() -> Iterator[None]:
    """Remove, after the block, the shared memory that Fast DDS made meanwhile and that no living process
    holds. A
    process that was killed cannot remove its own: 35 MB each with our transport profile.
    """
    before = _segments()
    try:
        yield
    finally:
        for name in _segments() - before:
            _remove_if_unused(name)


@contextmanager
def _domain_lock(domain: int) -> Iterator[bool]:
    # two runs that start together both find the ports free: the lock decides
    path = Path(tempfile.gettempdir()) / f"realsimloop-{os.getuid()}-domain-{domain}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)


def _ports_free(domain: int) -> bool:
    """Whether no participant has taken the first discovery ports of `domain` (RTPS 2.2, section 9.6.1.1)."""
    for participant in range(3):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", 7400 + 250 * domain + 10 + 2 * participant))
            except OSError:
                return False
    return True


def _segments() -> set[str]:
    """Names of Fast DDS's segments and ports."""
    names = (path.name for path in SHARED_MEMORY.glob("fastdds_*"))
    return {name.removesuffix("_el").removesuffix("_sl") for name in names}


def _remove_if_unused(name: str) -> None:
    locks = [SHARED_MEMORY / f"{name}{suffix}" for suffix in ("_el", "_sl")]
    for path in locks:
        try:
            with path.open("rb") as file:
                # whoever uses a segment or a port holds a lock on this file, and the kernel drops it with
                # the process
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            continue
        except (BlockingIOError, PermissionError):
            return
    for path in (SHARED_MEMORY / name, SHARED_MEMORY / f"sem.{name}_mutex", *locks):
        path.unlink(missing_ok=True)
