"""Build tf2_msgs, which is not on the package index, into the prefix of the running interpreter.

The definitions come from the rosbags type store; their hashes equal those of a ROS 2 installation, so /tf is
understood on both sides. Does nothing where tf2_msgs can be imported already.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from rosbags.typesys import Stores, get_typestore

PACKAGE = "tf2_msgs"
MESSAGES = ("TFMessage", "TF2Error")

CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.21)
project(tf2_msgs)
find_package(ament_cmake REQUIRED)
find_package(rosidl_default_generators REQUIRED)
find_package(builtin_interfaces REQUIRED)
find_package(geometry_msgs REQUIRED)
include({compatibility})
rosidl_generate_interfaces(${{PROJECT_NAME}} {messages} DEPENDENCIES builtin_interfaces geometry_msgs)
ament_export_dependencies(rosidl_default_runtime)
ament_package()
"""

PACKAGE_XML = """\
<?xml version="1.0"?>
<package format="3">
  <name>tf2_msgs</name>
  <version>0.41.4</version>
  <description>Messages of tf2</description>
  <maintainer email="maintainers@realsimloop.example.com">realsimloop maintainers</maintainer>
  <license>BSD-3-Clause</license>
  <buildtool_depend>ament_cmake</buildtool_depend>
  <buildtool_depend>rosidl_default_generators</buildtool_depend>
  <depend>builtin_interfaces</depend>
  <depend>geometry_msgs</depend>
  <exec_depend>rosidl_default_runtime</exec_depend>
  <member_of_group>rosidl_interface_packages</member_of_group>
  <export><build_type>ament_cmake</build_type></export>
</package>
"""


def write_package(root: Path) -> None:
    """Write the sources of tf2_msgs below `root`."""
    typestore = get_typestore(Stores.ROS2_KILTED)
    (root / "msg").mkdir(parents=True, exist_ok=True)
    for name in MESSAGES:
        definition, _ = typestore.generate_msgdef(f"{PACKAGE}/msg/{name}", ros_version=2)
        own, _, _ = definition.partition("=" * 80)  # the rest repeats the types it refers to
        (root / "msg" / f"{name}.msg").write_text(own)
    files = " ".join(f'"msg/{name}.msg"' for name in MESSAGES)
    compatibility = Path(__file__).resolve().parent / "pip_ros_compat.cmake"
    (root / "CMakeLists.txt").write_text(CMAKE_LISTS.format(compatibility=compatibility, messages=files))
    (root / "package.xml").write_text(PACKAGE_XML)


def build(root: Path, prefix: Path) -> None:
    """Configure, build and install the package in `root` into `prefix`."""
    environment = dict(os.environ, AMENT_PREFIX_PATH=str(prefix))
    configure = [
        "cmake",
        "-S",
        str(root),
        "-B",
        str(root / "build"),
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_INSTALL_PREFIX={prefix}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_TESTING=OFF",
    ]
    compile_all = ["cmake", "--build", str(root / "build"), "--parallel", str(os.cpu_count() or 1)]
    install = ["cmake", "--install", str(root / "build")]
    for command in (configure, compile_all, install):
        subprocess.run(command, check=True, env=environment)


def main() -> None:
    if importlib.util.find_spec(PACKAGE) is not None:
        return
    root = Path(sys.argv[1]).resolve()
    write_package(root)
    build(root, Path(sys.prefix))


if __name__ == "__main__":
    main()
