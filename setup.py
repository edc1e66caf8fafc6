"""`pip install .`: runs the CMake build and ships its install tree in the wheel.

A wheel's data files land in sys.prefix, and with the ROS 2 wheels sys.prefix is the ament prefix, so the tree goes
there unchanged: lib/*.so, lib/realsimloop/<node>, share/realsimloop, share/ament_index. For development use
`make setup`, which links the sources instead of copying them.
"""

import configparser
import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build import build
from setuptools.command.editable_wheel import editable_wheel

HERE = Path(__file__).resolve().parent

# Takes the interpreter of the prefix that it lies in, wherever the wheel was installed to.
SCRIPT = """#!/bin/sh
'''exec' "$(dirname "$(readlink -f "$0")")/{python}" "$0" "$@"
' '''
import sys

from {module} import {function}

sys.exit({function}())
"""


def write_script(path: Path, python: str, target: str) -> None:
    """Write an executable that calls `target` ("module:function") with the Python at `python`, relative to it."""
    module, function = target.split(":")
    path.write_text(SCRIPT.format(python=python, module=module, function=function))
    path.chmod(0o755)


class CMakeBuild(build):
    """Configure, build and stage the package, then hand the staged tree to setuptools as data files."""

    def run(self) -> None:
        import ament_package  # stands where the ROS wheels are: in the environment, or in pip's build environment

        prefix = Path(ament_package.__file__).resolve().parents[4]
        work, stage = HERE / "build" / "wheel", HERE / "build" / "stage"
        environment = dict(os.environ, AMENT_PREFIX_PATH=str(prefix))
        configure = [
            "cmake",
            "-S",
            str(HERE),
            "-B",
            str(work),
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_INSTALL_PREFIX={stage}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            "-DBUILD_TESTING=OFF",
            "-DCMAKE_INSTALL_RPATH=$ORIGIN;$ORIGIN/../../..",
        ]
        compile_all = ["cmake", "--build", str(work), "--parallel", str(os.cpu_count() or 1)]
        for command in (configure, compile_all, ["cmake", "--install", str(work)]):
            subprocess.run(command, check=True, env=environment)
        site = stage / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        for name in ("realsimloop", "realsimloop_ros"):
            self.copy_tree(str(site / name), str(Path(self.build_lib) / name))
        nodes = configparser.ConfigParser()
        nodes.read(HERE / "ros_setup.cfg")
        for line in nodes["options.entry_points"]["console_scripts"].strip().splitlines():
            name, target = (part.strip() for part in line.split("="))
            write_script(stage / "lib" / "realsimloop" / name, "../../bin/python3", target)
        write_script(stage / "bin" / "realsimloop", "python3", "realsimloop_ros.cli:main")
        data_files: dict[str, list[str]] = {}
        for path in sorted(stage.rglob("*")):
            if not path.is_dir() and site not in path.parents:
                folder = str(path.relative_to(stage).parent)
                data_files.setdefault(folder, []).append(str(path.relative_to(HERE)))
        self.distribution.data_files = sorted(data_files.items())
        super().run()


class NoEditable(editable_wheel):
    """An editable wheel would lack the messages and the node executables."""

    def run(self) -> None:
        raise SystemExit("error: `pip install -e` cannot install the ROS messages; use `make setup` instead")


class BinaryDistribution(Distribution):
    """Marks the wheel as bound to this platform and Python."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build": CMakeBuild, "editable_wheel": NoEditable},
    distclass=BinaryDistribution,
    packages=[],
    py_modules=[],
)
