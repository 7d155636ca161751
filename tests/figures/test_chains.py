"""The spin chains of the study of tuning: exact against NetKet, counted rightly, and whole at quick size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad.figures import _chains as chains

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _netket_promotes_ranks():
    pytest.importorskip("netket", reason="needs NetKet: pip install 'snapgrad[netket]'")
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def test_the_problem_is_netkets():
    """Its energy is that of the state, its residual that of NetKet's local energies on the same samples."""
    import netket as nk

    system = chains.spin_system("j1j2", chains.QUICK._replace(sites=4), scale=3.0)
    vstate = nk.vqs.MCState(system.sampler, system.model, n_samples=16)
    spread = lambda x: np.asarray(x) + 0.1 * np.arange(x.size).reshape(x.shape) / x.size  # noqa: E731
    vstate.parameters = jax.tree.map(spread, vstate.parameters)
    psi, H = np.asarray(vstate.to_array()), np.asarray(system.hamiltonian.to_dense())
    exact = np.linalg.eigvalsh(H)[0]
    found = float(jax.jit(lambda p: system.problem.metrics(p))(vstate.parameters)["relative_error"])
    np.testing.assert_allclose(found, (np.vdot(psi, H @ psi).real - exact) / abs(exact), rtol=1e-9)

    uniforms = (np.arange(16) + 0.5) / 16
    chosen = np.searchsorted(np.cumsum(np.abs(psi) ** 2), uniforms)

    @jax.jit
    def look(params, uniforms, step):
        lin = system.problem.linearise(params, uniforms)
        return lin.residual, lin.residual_at(step), lin.jacobian.rmv(lin.residual)

    step = jax.tree.map(lambda x: 0.1 * x, vstate.parameters)
    here, there, gradient = look(vstate.parameters, jnp.asarray(uniforms), step)
    local = (H @ psi / psi)[chosen]
    wanted = local - local.mean()
    np.testing.assert_allclose(here, np.stack([wanted.real, wanted.imag], 1).ravel() / 2, atol=1e-10)
    vstate._samples = jnp.asarray(np.asarray(vstate.hilbert.all_states())[None, chosen])
    _, wanted = vstate.expect_and_grad(system.hamiltonian)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    vstate.parameters = jax.tree.map(lambda p, s: p - s, vstate.parameters, step)
    psi = np.asarray(vstate.to_array())
    local = (H @ psi / psi)[chosen]
    wanted = local - local.mean()
    np.testing.assert_allclose(there, np.stack([wanted.real, wanted.imag], 1).ravel() / 2, atol=1e-10)


def test_steps_and_final_errors_are_counted():
    errors = np.array([[1.0, 2e-3, 9e-4, 2e-3] + [1e-4] * 20, [1.0] * 24, [np.nan] * 24])
    np.testing.assert_array_equal(chains.steps_to_goal(errors), [2, np.inf, np.inf])
    np.testing.assert_allclose(chains.final_error(errors), [1e-4, 1.0, np.inf])


def test_the_panel_at_quick_size():
    found = chains.spin_chains(chains.QUICK)
    seeds, steps = chains.QUICK.seeds, chains.QUICK.steps
    assert found["errors"].shape == (1, 3, seeds, steps + 1) and found["settings"].shape == (1, 2, 3)
    assert found["grid_steps"].shape == (1, len(chains.QUICK.settings()))
    # The start is not tuned, and the same for all three.
    np.testing.assert_array_equal(
        found["errors"][:, 1:, :, 0], found["errors"][:, :1, :, 0].repeat(2, axis=1)
    )
    assert np.all(found["final"][0] < found["errors"][0, :, :, 0].min())
    assert found["final_ratio"][0] < 2 and found["final"][0, 0] < 1e-2
