"""NetKet promotes ranks, which the other tests forbid."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _netket_promotes_ranks():
    with jax.numpy_rank_promotion("allow"):
        yield
