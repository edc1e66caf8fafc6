"""One place that decides how numbers are computed in a process."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import jax


def use_double_precision() -> None:
    """Let JAX compute in float64; every process of the package calls this before its first array.

    Compiled programs are kept in the user's cache ($XDG_CACHE_HOME/realsimloop/jax): a process that starts again,
    and the next one that needs the same program, loads it in a fifth of the time and computes the same bits.
    """
    jax.config.update("jax_enable_x64", True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "realsimloop" / "jax"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def use_one_core() -> None:
    """Keep libraries from starting a thread per core, for a process that shares a few cores with others.

    Before the first array too: XLA reads its options once. Measured on two cores that were busy, a step of the
    reduced model takes 2.7 ms so, and 11 ms with XLA's threads, which wait for each other.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()
    cv2.setNumThreads(1)
