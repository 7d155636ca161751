"""Local energies within a bound on memory."""

import numpy as np
from chains import CHAIN, HAMILTONIAN, MARKS, sampled

import snapgrad.netket as sgn

pytestmark = MARKS


def test_memory_limit_reaches_kernel_and_local_energies():
    vstate = sampled("phase")
    plain = sgn.linearise(vstate, HAMILTONIAN)
    for hamiltonian in (HAMILTONIAN, CHAIN):
        chunks = [sgn.chunk_size_for(vstate, hamiltonian, limit) for limit in (1, 2_000, 2**20)]
        assert chunks == sorted(chunks) and chunks[0] == 1 < chunks[1] < chunks[2]
        few = sgn._local.local_energies(vstate, hamiltonian, 2_000)
        all_ = vstate.local_estimators(hamiltonian).data.reshape(-1)
        np.testing.assert_allclose(few, all_, rtol=1e-12)
    limited = sgn.linearise(vstate, HAMILTONIAN, memory_limit="4MiB")
    np.testing.assert_allclose(limited.residual, plain.residual, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(limited.jacobian.gram(), plain.jacobian.gram(), rtol=1e-11, atol=1e-12)
    driver = sgn.VMC(HAMILTONIAN, 0.1, vstate, memory_limit="4MiB")
    assert driver._settings.memory_limit == 4 * 2**20
