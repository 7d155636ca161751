"""Strict numerics for every test: float64, no silent rank promotion, run-time shape checks."""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

from jaxtyping import install_import_hook  # noqa: E402

# Checks every jaxtyping annotation of the library while the tests run.
install_import_hook("snapgrad", "beartype.beartype")
