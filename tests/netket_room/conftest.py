"""What the tests of this room need of JAX: NetKet promotes ranks, and programs are compiled to run once."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _netket_promotes_ranks():
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
