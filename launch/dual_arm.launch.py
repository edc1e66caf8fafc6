"""ros2 launch realsimloop dual_arm.launch.py: the twin beside a virtual cell of two arms that hold a bar."""

from realsimloop_ros.nodes.launching import launch_description


def generate_launch_description():
    return launch_description("dual_arm")
