"""Make the running interpreter's environment import realsimloop_ros from the source tree.

ament installs a copy of the Python module beside the generated messages. In a development environment an edit must
count at once, so the copy is replaced by a path entry that points to `src`.
"""

import shutil
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    source = Path(sys.argv[1]).resolve()
    if not (source / "realsimloop_ros" / "__init__.py").is_file():
        raise SystemExit(f"error: {source} holds no package realsimloop_ros; name the source folder")
    site_packages = Path(sysconfig.get_path("purelib"))
    shutil.rmtree(site_packages / "realsimloop_ros", ignore_errors=True)
    (site_packages / "realsimloop_ros.pth").write_text(f"{source}\n")


if __name__ == "__main__":
    main()
