"""Compiled kernels that release the GIL, run side by side on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(core_count(), thread_name_prefix="observation")


def run_side_by_side(tasks: Sequence[Callable[[], None]]) -> None:
    """Runs the tasks to their end, one core each; the first exception is raised.

    Numba's own parallel loops are not used: its portable threading layer ends the process when two threads
    enter it.
    """
    if len(tasks) == 1 or core_count() == 1:
        for task in tasks:
            task()
        return
    for future in [_pool().submit(task) for task in tasks]:
        future.result()
