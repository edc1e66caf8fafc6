"""Where the package's data files are: in the source tree, or in the share folder of an installed package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PACKAGE = "realsimloop"


class ResourceError(FileNotFoundError):
    """A data file of the package cannot be found; the text says where it was looked for."""


def prefixes() -> tuple[Path, ...]:
    """Installation prefixes in the order of search: AMENT_PREFIX_PATH, then that of this interpreter."""
    listed = [Path(entry) for entry in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if entry]
    return tuple(dict.fromkeys([*listed, Path(sys.prefix)]))


def package_prefix(package: str) -> Path | None:
    """The prefix that a ROS package is installed in, or None."""
    for prefix in prefixes():
        if (prefix / "share" / "ament_index" / "resource_index" / "packages" / package).is_file():
            return prefix
    return None


def share_directory() -> Path:
    """The folder that holds config, launch, msg, rviz and urdf. Raises ResourceError."""
    source_tree = Path(__file__).resolve().parents[2]
    if (source_tree / "package.xml").is_file() and (source_tree / "config").is_dir():
        return source_tree
    prefix = package_prefix(PACKAGE)
    if prefix is None:
        raise ResourceError(
            f"package {PACKAGE} is not installed in any of {', '.join(map(str, prefixes()))}; "
            "run `make setup`, or source the install tree that colcon made"
        )
    return prefix / "share" / PACKAGE


def configuration_file(folder: str, name: str) -> Path:
    """A file that the user names: an existing path, or the name of one in config/`folder` without its ending.

    Raises ResourceError with the names that exist.
    """
    given = Path(name).expanduser()
    if given.suffix in (".yaml", ".yml") or given.exists():
        if not given.is_file():
            raise ResourceError(f"{given}: no such file")
        return given.resolve()
    directory = share_directory() / "config" / folder
    path = directory / f"{name}.yaml"
    if not path.is_file():
        known = sorted(entry.stem for entry in directory.glob("*.yaml"))
        raise ResourceError(f"{name}: neither a file nor one of config/{folder}: {', '.join(known) or '(empty)'}")
    return path.resolve()
