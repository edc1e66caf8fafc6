"""ros2 launch realsimloop replay.launch.py bag:=FOLDER: the twin beside a recorded bag, with the bag's clock."""

from realsimloop_ros.nodes.launching import launch_description


def generate_launch_description():
    return launch_description("replay")
