"""Links sources into the running interpreter's environment in place of the copies that ament installs there.

In a development environment an edit must count at once: the Python module is found through a path entry, and the
data files in the package's share folder are links. With `unlink` as the second argument the links are removed, so
that an installation does not write through them.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

DATA = ("config", "launch", "rviz", "urdf")


def unlink(share: Path) -> None:
    """Remove the links to data files."""
    for name in DATA:
        if (share / name).is_symlink():
            (share / name).unlink()


def link(root: Path, site_packages: Path, share: Path) -> None:
    """Replace the copies of module and data files by links to the source tree `root`."""
    shutil.rmtree(site_packages / "realsimloop_ros", ignore_errors=True)
    (site_packages / "realsimloop_ros.pth").write_text(f"{root / 'src'}\n")
    for name in DATA:
        shutil.rmtree(share / name, ignore_errors=True)
        (share / name).symlink_to(root / name)


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    share = Path(sys.prefix) / "share" / "realsimloop"
    if not (root / "src" / "realsimloop_ros" / "__init__.py").is_file():
        raise SystemExit(f"error: {root} is no source tree of realsimloop")
    unlink(share)
    if sys.argv[2:] != ["unlink"]:
        link(root, Path(sysconfig.get_path("purelib")), share)


if __name__ == "__main__":
    main()
