"""The NetKet room: the same steps as NetKet where it has them, the dense formula where it has not."""

import itertools
import subprocess
import sys

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import snapgrad as sg

nk = pytest.importorskip("netket", reason="needs NetKet: pip install 'snapgrad[netket]'")
import flax.linen as nn  # noqa: E402

import snapgrad.netket as sgn  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
L = 4
HILBERT = nk.hilbert.Spin(0.5, L)
# A field along y makes the ground state complex, so that no part of a direction vanishes by symmetry.
HAMILTONIAN = nk.operator.Ising(HILBERT, nk.graph.Chain(L), h=0.9).to_local_operator() + sum(
    0.3 * nk.operator.spin.sigmay(HILBERT, i) for i in range(L)
)


@pytest.fixture(autouse=True)
def _netket_promotes_ranks():
    with jax.numpy_rank_promotion("allow"):
        yield


class Mixed(nn.Module):
    """Real weights, complex biases and a term that is not holomorphic."""

    hidden: int = 3

    @nn.compact
    def __call__(self, x):
        normal = nn.initializers.normal(0.3)
        y = nn.Dense(self.hidden, param_dtype=float, kernel_init=normal, bias_init=normal)(x)
        b = self.param("b", normal, (self.hidden,), complex)
        c = self.param("c", normal, (x.shape[-1],), complex)
        return jnp.sum(jnp.log(jnp.cosh(y + b)), axis=-1) + x @ c - jnp.sum(jnp.abs(b) ** 2 * y, axis=-1)


class NotHolomorphic(nn.Module):
    """All parameters complex."""

    @nn.compact
    def __call__(self, x):
        y = nn.Dense(6, param_dtype=complex, kernel_init=nn.initializers.normal(0.3))(x)
        return jnp.sum(jnp.log(jnp.cosh(y)), axis=-1) + jnp.sum(jnp.abs(y), axis=-1) * (0.1 + 0.2j)


MODELS = {
    "real": nk.models.RBM(alpha=2, param_dtype=float),
    "phase": nk.models.RBMModPhase(alpha=2, param_dtype=float),
    "holomorphic": nk.models.RBM(alpha=2, param_dtype=complex),
    "not holomorphic": NotHolomorphic(),
    "few, complex": nk.models.RBM(alpha=1, param_dtype=complex, use_hidden_bias=False),
    "few, mixed": Mixed(1),
    "mixed": Mixed(),
}


def sampled(name, n_samples=24, **options):
    sampler = nk.sampler.MetropolisLocal(HILBERT, n_chains=4, sweep_size=5)
    options = {"n_discard_per_chain": 2, "seed": 1, "sampler_seed": 2, **options}
    return moved(nk.vqs.MCState(sampler, MODELS[name], n_samples=n_samples, **options))


def summed(name):
    return moved(nk.vqs.FullSumState(HILBERT, MODELS[name], seed=1))


def moved(vstate):
    """Away from NetKet's initial parameters, which are so small that many derivatives nearly vanish."""
    vstate.parameters = random_like(vstate.parameters, 5, 0.3)
    return vstate


def random_like(tree, seed, scale=1.0):
    rng = np.random.default_rng(seed)

    def draw(x):
        z = rng.normal(size=x.shape) * scale
        return jnp.asarray(z + 1j * rng.normal(size=x.shape) * scale if jnp.iscomplexobj(x) else z)

    return jax.tree.map(draw, tree)


def flat(tree):
    """Real and imaginary parts of every leaf, one after the other."""
    parts = [[x.real, x.imag] if jnp.iscomplexobj(x) else [x] for x in jax.tree.leaves(tree)]
    return np.concatenate([np.ravel(p) for p in itertools.chain(*parts)])


def gap(a, b):
    return np.linalg.norm(flat(a) - flat(b)) / np.linalg.norm(flat(b))


# ------------------------------------------------------------------ against NetKet on the same samples


@pytest.mark.parametrize("on_the_fly", [False, True], ids=["srt", "srt_onthefly"])
@pytest.mark.parametrize("momentum", [None, 0.8])
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("real", "real"),
        ("phase", "complex"),
        ("phase", "real"),
        ("holomorphic", "complex"),
        ("not holomorphic", "complex"),
    ],
)
def test_steps_are_those_of_netket(name, mode, momentum, on_the_fly):
    vstate = sampled(name, chunk_size=8)
    theirs = nk.driver.VMC_SR(
        HAMILTONIAN,
        optax.sgd(0.05),
        diag_shift=1e-3,
        momentum=momentum,
        mode=mode,
        variational_state=vstate,
        use_ntk=True,
        on_the_fly=on_the_fly,
        linear_solver=nk.optimizer.solver.cholesky,
    )
    ours = sgn.VMC(HAMILTONIAN, optax.sgd(0.05), vstate, damping=1e-3, momentum=momentum, mode=mode)
    for _ in range(3):  # from the second step on φ is not zero
        energy, direction = ours.compute_loss_and_update()
        wanted_energy, wanted = theirs.compute_loss_and_update()
        assert gap(direction, wanted) < 1e-10
        np.testing.assert_allclose(energy.mean, wanted_energy.mean, rtol=1e-12)
        np.testing.assert_allclose(energy.error_of_mean, wanted_energy.error_of_mean, rtol=1e-10)
        np.testing.assert_allclose(energy.variance, wanted_energy.variance, rtol=1e-10)
        ours.update_parameters(direction)
        ours._step_count += 1


def test_netkets_own_lift_gives_the_same_step():
    vstate = sampled("real")
    common = {"diag_shift": 1e-4, "variational_state": vstate, "use_ntk": True, "on_the_fly": False}
    theirs = nk.driver.VMC_SR(HAMILTONIAN, optax.sgd(0.1), proj_reg=1.0, **common)
    for lift in (0.0, 1.0, 30.0):
        ours = sgn.VMC(HAMILTONIAN, 0.1, vstate, damping=1e-4, lift=lift)
        assert gap(ours.compute_loss_and_update()[1], theirs.compute_loss_and_update()[1]) < 1e-10


@pytest.mark.parametrize("name", ["real", "phase", "holomorphic"])
def test_weighted_samples_as_netkets_parameter_space(name):
    from netket._src.ngd.sr_srt_common import sr

    vstate = sampled(name)
    weights = np.random.default_rng(0).uniform(0.2, 2.0, vstate.n_samples)
    lin = sgn.linearise(vstate, HAMILTONIAN, weights=weights, lift=1.0)
    method = sg.SNG(1e-3)
    direction, _ = method.direction(lin, method.init(vstate.parameters))
    wanted, _, _ = sr(
        vstate._apply_fun,
        vstate.local_estimators(HAMILTONIAN).data,
        vstate.parameters,
        vstate.model_state,
        vstate.samples.reshape(-1, L),
        diag_shift=1e-3,
        solver_fn=nk.optimizer.solver.cholesky,
        mode="real" if name == "real" else "complex",
        weights=jnp.asarray(weights),
    )
    assert gap(direction, wanted) < 1e-10


def test_a_weight_of_two_is_a_sample_twice():
    vstate = sampled("mixed", 12)
    samples = vstate.samples.reshape(-1, L)
    counts = jnp.array([1, 2, 1, 3, 1, 1, 1, 1, 2, 1, 1, 1])
    weighted = sgn.linearise(vstate, HAMILTONIAN, weights=counts)
    repeated = sgn.linearise(
        sgn._local.with_samples(vstate, jnp.repeat(samples, counts, axis=0)), HAMILTONIAN
    )
    a, b = (lin.jacobian.rmv(lin.residual) for lin in (weighted, repeated))
    assert gap(a, b) < 1e-12
    phi = random_like(vstate.parameters, 0)
    squares = [np.linalg.norm(lin.jacobian.mv(phi)) for lin in (weighted, repeated)]
    np.testing.assert_allclose(*squares, rtol=1e-12)


# ------------------------------------------------------------------------ against the dense formula


def dense(vstate, mode="complex"):
    """√p (O − ⟨O⟩) and 2√p(E_loc − E), by plain automatic differentiation in real coordinates."""
    samples = jnp.asarray(HILBERT.all_states())
    parts, tree = jax.tree.flatten(vstate.parameters)
    shapes = [(x.shape, jnp.iscomplexobj(x)) for x in parts]

    def unflatten(vector):
        leaves, at = [], 0
        for shape, is_complex in shapes:
            size = int(np.prod(shape))
            piece = vector[at : at + size].reshape(shape)
            at += size
            if is_complex:
                piece = piece + 1j * vector[at : at + size].reshape(shape)
                at += size
            leaves.append(piece)
        return jax.tree.unflatten(tree, leaves)

    def outputs(vector):
        out = vstate._apply_fun({"params": unflatten(vector)}, samples)
        return jnp.stack([out.real, out.imag], axis=1) if mode == "complex" else out.real[:, None]

    J = np.asarray(jax.jacfwd(outputs)(jnp.asarray(flat(vstate.parameters))))  # [states, outputs, n]
    psi = np.exp(np.asarray(vstate._apply_fun(vstate.variables, samples)).astype(complex))
    psi = psi / np.linalg.norm(psi)
    p = np.abs(psi) ** 2
    h_psi = HAMILTONIAN.to_dense() @ psi
    energy = np.vdot(psi, h_psi).real
    r = 2 * (h_psi / psi - energy) * np.sqrt(p)
    J = (J - np.einsum("s,son->on", p, J)) * np.sqrt(p)[:, None, None]
    r = np.stack([r.real, r.imag], axis=1) if mode == "complex" else r.real[:, None]
    return J.reshape(-1, J.shape[-1]), r.reshape(-1), energy


@pytest.mark.parametrize("momentum", [None, 0.8])
@pytest.mark.parametrize("name", MODELS)
def test_full_summation_is_the_dense_formula(name, momentum):
    vstate = summed(name)
    J, r, energy = dense(vstate, "real" if name == "real" else "complex")
    n = J.shape[1]
    driver = sgn.VMC(HAMILTONIAN, 0.1, vstate, damping=1e-3, momentum=momentum)
    phi = np.zeros(n)
    if momentum is not None:
        driver._increment = random_like(vstate.parameters, 3)
        phi = momentum * flat(driver._increment)
    stats_, direction = driver.compute_loss_and_update()
    wanted = phi + np.linalg.solve(J.T @ J + 1e-3 * np.eye(n), J.T @ (r - J @ phi))
    assert np.linalg.norm(flat(direction) - wanted) < 1e-10 * np.linalg.norm(wanted)
    np.testing.assert_allclose(stats_.mean, energy, rtol=1e-12)
    np.testing.assert_allclose(stats_.variance, np.sum(r**2) / 4 if name != "real" else stats_.variance)


@pytest.mark.parametrize("name", ["holomorphic", "few, complex"])
@pytest.mark.parametrize("momentum", [None, 0.8])
def test_the_holomorphic_shortcut_changes_nothing(name, momentum):
    for vstate in (summed(name), sampled(name)):
        directions = []
        for holomorphic in (False, True):
            driver = sgn.VMC(
                HAMILTONIAN, 0.1, vstate, damping=1e-3, momentum=momentum, holomorphic=holomorphic
            )
            if momentum is not None:
                driver._increment = random_like(vstate.parameters, 3)
            directions.append(driver.compute_loss_and_update()[1])
        assert gap(*directions) < 1e-10


@pytest.mark.parametrize("name", ["real", "phase", "holomorphic"])
def test_full_summation_as_netket(name):
    vstate = summed(name)
    theirs = nk.driver.VMC_SR(
        HAMILTONIAN,
        optax.sgd(0.1),
        diag_shift=1e-3,
        variational_state=vstate,
        linear_solver=nk.optimizer.solver.cholesky,
    )
    ours = sgn.VMC(HAMILTONIAN, 0.1, vstate, damping=1e-3)
    assert gap(ours.compute_loss_and_update()[1], theirs.compute_loss_and_update()[1]) < 1e-10


@pytest.mark.parametrize("name", ["real", "phase", "holomorphic", "mixed"])
def test_the_gradient_is_that_of_the_energy(name):
    vstate = summed(name)
    lin = sgn.linearise(vstate, HAMILTONIAN)
    eps, gradient = 1e-5, lin.jacobian.rmv(lin.residual)
    along = random_like(vstate.parameters, 8)
    start = vstate.parameters

    def energy(t):
        vstate.parameters = jax.tree.map(lambda p, d: p + t * d, start, along)
        return float(vstate.expect(HAMILTONIAN).mean.real)

    slope = (energy(eps) - energy(-eps)) / (2 * eps)
    np.testing.assert_allclose(flat(gradient) @ flat(along), slope, rtol=1e-7)


def test_an_amplitude_that_underflows_is_left_out():
    class Forbidden(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = nk.models.RBM(alpha=1, param_dtype=float)(x)
            return inner - 800.0 * (jnp.sum(x, axis=-1) == L)

    vstate = nk.vqs.FullSumState(HILBERT, Forbidden(), seed=0)
    assert float(vstate.probability_distribution().min()) == 0
    lin = sgn.linearise(vstate, HAMILTONIAN)
    assert np.isfinite(lin.residual).all() and np.isfinite(lin.jacobian.gram()).all()
    assert np.sum(np.abs(lin.residual) == 0) == 1


# --------------------------------------------------------------------------------- the kernel itself


@pytest.mark.parametrize("name", ["real", "mixed", "holomorphic"])
@pytest.mark.parametrize("weighted", [False, True])
def test_lift_acts_on_the_null_space_of_each_block(name, weighted):
    vstate = sampled(name)
    w = np.random.default_rng(0).uniform(0.2, 2.0, vstate.n_samples) if weighted else None
    plain = sgn.linearise(vstate, HAMILTONIAN, weights=w)
    lifted = sgn.linearise(vstate, HAMILTONIAN, weights=w, lift=2.0)
    K = np.asarray(plain.jacobian.gram())
    np.testing.assert_allclose(K, plain.jacobian.dense() @ plain.jacobian.dense().T, atol=1e-12)
    root = np.full(vstate.n_samples, vstate.n_samples**-0.5) if w is None else np.sqrt(w / w.sum())
    blocks = np.eye(K.shape[0] // root.size)
    for block in blocks:
        null = np.kron(root, block)
        np.testing.assert_allclose(K @ null, 0, atol=1e-12)
        np.testing.assert_allclose(plain.residual @ null, 0, atol=1e-12)
        added = 2.0 * np.trace(K) / K.shape[0]
        np.testing.assert_allclose(lifted.jacobian.gram() @ null, added * null, atol=1e-10)
    rest = np.asarray(lifted.jacobian.gram()) - K
    assert np.linalg.matrix_rank(rest, tol=1e-10) == len(blocks)


def test_memory_limit_reaches_kernel_and_local_energies():
    vstate = sampled("phase", 32)
    plain = sgn.linearise(vstate, HAMILTONIAN)
    for hamiltonian in (HAMILTONIAN, HAMILTONIAN.to_jax_operator()):
        for limit in (3_000, "1MiB"):
            limited = sgn.linearise(vstate, hamiltonian, memory_limit=limit)
            np.testing.assert_allclose(limited.residual, plain.residual, rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(limited.jacobian.gram(), plain.jacobian.gram(), rtol=1e-11, atol=1e-12)
        chunks = [sgn.chunk_size_for(vstate, hamiltonian, limit) for limit in (1, 3_000, 2**20)]
        assert chunks == sorted(chunks) and chunks[0] == 1 and chunks[-1] >= 64
    driver = sgn.VMC(HAMILTONIAN, 0.1, vstate, memory_limit=3_000)
    assert driver._settings.memory_limit == 3_000
    assert gap(driver.compute_loss_and_update()[1], sgn.VMC(HAMILTONIAN, 0.1, vstate).compute_loss_and_update()[1]) < 1e-9
