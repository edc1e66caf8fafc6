"""Numeric tests run in float64, and a silent broadcast between ranks is an error. ROS finds the environment's
packages."""

import os
import sys

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

os.environ.setdefault("AMENT_PREFIX_PATH", sys.prefix)
