"""Arm kinematics, command gate, shape control."""
