"""Local energies within a bound on memory."""

import jax
import numpy as np
import pytest
from chains import HAMILTONIAN, MARKS, sampled

import snapgrad.netket as sgn

pytestmark = MARKS


@pytest.mark.parametrize("kind", ["jax", pytest.param("numba", marks=pytest.mark.slow)])
def test_local_energies_in_chunks_that_respect_a_limit(kind):
    """An operator that is not written in JAX lists all connected configurations first, so samples are cut."""
    vstate, hamiltonian = sampled("phase"), HAMILTONIAN
    if kind == "numba":
        hamiltonian = HAMILTONIAN.to_numba_operator()
    chunks = [sgn.chunk_size_for(vstate, hamiltonian, limit) for limit in (1, 2_000, 2**20)]
    assert chunks == sorted(chunks) and chunks[0] == 1 < chunks[1] < chunks[2]
    few = sgn._local.local_energies(vstate, hamiltonian, 2_000)
    np.testing.assert_allclose(few, vstate.local_estimators(HAMILTONIAN).data.reshape(-1), rtol=1e-12)


def test_memory_limit_reaches_kernel_and_local_energies():
    vstate = sampled("phase")
    plain = sgn.linearise(vstate, HAMILTONIAN)
    limited = sgn.linearise(vstate, HAMILTONIAN, memory_limit="4MiB")
    np.testing.assert_allclose(limited.residual, plain.residual, rtol=1e-11, atol=1e-12)
    gram = jax.jit(lambda lin: lin.jacobian.gram())
    np.testing.assert_allclose(gram(limited), gram(plain), rtol=1e-11, atol=1e-12)
    driver = sgn.VMC(HAMILTONIAN, 0.1, vstate, memory_limit="4MiB")
    assert driver._settings.memory_limit == 4 * 2**20
    assert driver._chunk() == sgn.chunk_size_for(vstate, HAMILTONIAN, 4 * 2**20)
