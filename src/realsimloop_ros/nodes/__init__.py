"""ROS nodes, one file each, and the conversions between messages and arrays."""
