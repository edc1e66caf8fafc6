"""One place that decides how numbers are computed in a process."""

from __future__ import annotations

import jax


def use_double_precision() -> None:
    """Let JAX compute in float64; every process of the package calls this before its first array."""
    jax.config.update("jax_enable_x64", True)
