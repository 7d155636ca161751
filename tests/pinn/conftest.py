"""One small problem for all tests that only need one, because each new problem is compiled anew.

Docstring examples and the study have the same sizes: JAX then finds their programs in its cache.
"""

import pytest

from snapgrad import pinn


@pytest.fixture(scope="session")
def line():
    """A one-dimensional Poisson problem with more rows than parameters, solved in well under a second."""
    return pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
