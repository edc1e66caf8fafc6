"""Where a run came from: versions, settings, and when it was started."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from realsimloop_ros.evaluation.record import Provenance

_PACKAGES = {"realsimloop": "realsimloop-ros2", "jax": "jax", "numpy": "numpy", "numba": "numba", "rclpy": "rclpy"}


def package_versions() -> dict[str, str]:
    """Versions of what decides about the numbers; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name, distribution in _PACKAGES.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            continue
    return found


def provenance(
    command: str,
    *,
    started: datetime | None = None,
    seed: int | None = None,
    body_hashes: Mapping[str, str] | None = None,
    settings: Iterable[Path] = (),
) -> Provenance:
    """command: as typed; settings: configuration files, whose text is kept."""
    moment = datetime.now(UTC) if started is None else started.astimezone(UTC)
    return Provenance(
        command=command,
        started=moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        versions=package_versions(),
        seed=seed,
        body_hashes=dict(body_hashes or {}),
        settings={f"{path.parent.name}/{path.name}": path.read_text(encoding="utf-8") for path in settings},
    )
