"""ros2 launch realsimloop replay.launch.py bag:=FOLDER: the twin beside a recorded bag."""

from realsimloop_ros.nodes.launching import launch_description


def generate_launch_description():
    return launch_description("replay")
