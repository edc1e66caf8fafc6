"""One place that decides how numbers are computed in a process."""

from __future__ import annotations

import os

import cv2
import jax


def use_double_precision() -> None:
    """Let JAX compute in float64; every process of the package calls this before its first array."""
    jax.config.update("jax_enable_x64", True)


def use_one_core() -> None:
    """Keep libraries from starting a thread per core, for a process that shares a few cores with others.

    Before the first array too: XLA reads its options once. Measured on two cores that were busy, a step of the
    reduced model takes 2.7 ms so, and 11 ms with XLA's threads, which wait for each other.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()
    cv2.setNumThreads(1)
