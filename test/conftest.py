"""Numeric tests run in float64, and a silent broadcast between ranks is an error. ROS finds the environment's
packages."""

import os
import sys

import jax

from realsimloop_ros.compute import use_double_precision

use_double_precision()
jax.config.update("jax_numpy_rank_promotion", "raise")

os.environ.setdefault("AMENT_PREFIX_PATH", sys.prefix)
