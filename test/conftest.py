"""Numeric tests run in float64, and a silent broadcast between ranks is an error."""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
