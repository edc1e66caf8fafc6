"""Numeric tests run in float64, and a silent broadcast between ranks is an error. ROS finds the environment's
packages."""

import gc
import os
import sys
from collections.abc import Iterator

import jax
import pytest

from realsimloop_ros.compute import use_double_precision

use_double_precision()
jax.config.update("jax_numpy_rank_promotion", "raise")

os.environ.setdefault("AMENT_PREFIX_PATH", sys.prefix)


@pytest.fixture(autouse=True, scope="module")
def _compiled_code_goes_with_its_tests() -> Iterator[None]:
    """What a module compiled is dropped after it: the memory maps of all programs of all tests together are
    more than Linux gives a process (vm.max_map_count), and XLA aborts then.
    """
    yield
    jax.clear_caches()
    gc.collect()
