"""The NetKet room: the same steps as NetKet where it has them, the dense formula where it has not."""

import itertools
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import snapgrad as sg

nk = pytest.importorskip("netket", reason="needs NetKet: pip install 'snapgrad[netket]'")
import flax.linen as nn  # noqa: E402
import flax.serialization  # noqa: E402

import snapgrad.netket as sgn  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
L = 4
HILBERT = nk.hilbert.Spin(0.5, L)
# A field along y makes the ground state complex, so that no part of a direction vanishes by symmetry.
CHAIN = nk.operator.Ising(HILBERT, nk.graph.Chain(L), h=0.9).to_local_operator() + sum(
    0.3 * nk.operator.spin.sigmay(HILBERT, i) for i in range(L)
)
HAMILTONIAN = CHAIN.to_jax_operator()


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
    """A state with given samples, not drawn from it: only the equality of steps on them is at stake."""
    sampler = nk.sampler.MetropolisLocal(HILBERT, n_chains=4)
    vstate = moved(nk.vqs.MCState(sampler, MODELS[name], n_samples=n_samples, seed=1, **options))
    return draw(vstate, 0)


def draw(vstate, seed):
    rows = np.random.default_rng(seed).integers(0, 2, (4, vstate.n_samples // 4, L))
    vstate._samples = jnp.asarray(2 * rows - 1, vstate.sampler.dtype)
    return vstate


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


CHOLESKY = nk.optimizer.solver.cholesky


@pytest.mark.parametrize(
    ("name", "mode", "momentum"),
    [
        ("real", "real", 0.8),
        ("real", "real", None),
        ("phase", "complex", 0.8),
        pytest.param("phase", "complex", None, marks=pytest.mark.slow),
        pytest.param("phase", "real", 0.8, marks=pytest.mark.slow),
        ("holomorphic", "complex", 0.8),
    ],
)
def test_steps_are_those_of_netket(name, mode, momentum):
    vstate = sampled(name)
    common = {"momentum": momentum, "mode": mode}
    ours = sgn.VMC(HAMILTONIAN, 0.05, vstate, damping=1e-3, **common)
    common |= {"variational_state": vstate, "diag_shift": 1e-3, "linear_solver": CHOLESKY, "use_ntk": True}
    theirs = [
        nk.driver.VMC_SR(HAMILTONIAN, optax.sgd(0.05), on_the_fly=on_the_fly, **common)
        for on_the_fly in (False, True)
    ]
    for step in range(3):  # from the second step on φ is not zero
        draw(vstate, step)
        energy, direction = ours.compute_loss_and_update()
        for driver in theirs:
            wanted_energy, wanted = driver.compute_loss_and_update()
            assert gap(direction, wanted) < 1e-10
        for field in ("mean", "error_of_mean", "variance"):
            np.testing.assert_allclose(
                getattr(energy, field), getattr(wanted_energy, field), rtol=1e-10, atol=1e-12
            )
        ours.update_parameters(direction)


def test_netkets_own_lift_gives_the_same_step():
    vstate = sampled("real")
    common = {"diag_shift": 1e-4, "variational_state": vstate, "use_ntk": True, "on_the_fly": False}
    theirs = nk.driver.VMC_SR(HAMILTONIAN, optax.sgd(0.1), proj_reg=1.0, **common)
    for lift in (0.0, 1.0, 30.0):
        ours = sgn.VMC(HAMILTONIAN, 0.1, vstate, damping=1e-4, lift=lift)
        assert gap(ours.compute_loss_and_update()[1], theirs.compute_loss_and_update()[1]) < 1e-10


@pytest.mark.parametrize("name", ["real", "phase"])
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
        solver_fn=CHOLESKY,
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
    h_psi = CHAIN.to_dense() @ psi
    energy = np.vdot(psi, h_psi).real
    r = 2 * (h_psi / psi - energy) * np.sqrt(p)
    J = (J - np.einsum("s,son->on", p, J)) * np.sqrt(p)[:, None, None]
    r = np.stack([r.real, r.imag], axis=1) if mode == "complex" else r.real[:, None]
    return J.reshape(-1, J.shape[-1]), r.reshape(-1), energy


@pytest.mark.parametrize(
    ("name", "momentum", "holomorphic"),
    [
        ("real", None, False),
        ("few, complex", 0.8, True),
        ("holomorphic", 0.8, True),
        ("not holomorphic", 0.8, False),
        ("few, mixed", None, False),
        ("mixed", 0.8, False),
    ],
)
def test_full_summation_is_the_dense_formula(name, momentum, holomorphic):
    vstate = summed(name)
    J, r, energy = dense(vstate, "real" if name == "real" else "complex")
    n = J.shape[1]
    driver = sgn.VMC(HAMILTONIAN, 0.1, vstate, damping=1e-3, momentum=momentum, holomorphic=holomorphic)
    phi = np.zeros(n)
    if momentum is not None:
        driver._increment = random_like(vstate.parameters, 3)
        phi = momentum * flat(driver._increment)
    found, direction = driver.compute_loss_and_update()
    wanted = phi + np.linalg.solve(J.T @ J + 1e-3 * np.eye(n), J.T @ (r - J @ phi))
    assert np.linalg.norm(flat(direction) - wanted) < 1e-10 * np.linalg.norm(wanted)
    np.testing.assert_allclose(found.mean, energy, rtol=1e-12)
    if name != "real":
        np.testing.assert_allclose(found.variance, np.sum(r**2) / 4)


def test_full_summation_as_netket():
    vstate = summed("holomorphic")
    common = {"variational_state": vstate, "diag_shift": 1e-3, "linear_solver": CHOLESKY}
    theirs = nk.driver.VMC_SR(HAMILTONIAN, optax.sgd(0.1), **common)
    ours = sgn.VMC(HAMILTONIAN, 0.1, vstate, damping=1e-3)
    assert gap(ours.compute_loss_and_update()[1], theirs.compute_loss_and_update()[1]) < 1e-10


@pytest.mark.parametrize("name", ["real", "mixed"])
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


@pytest.mark.parametrize(("name", "weighted"), [("real", True), ("mixed", False), ("mixed", True)])
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


def test_a_deep_model_never_meets_its_jacobian():
    """The compiled step of a network with 69,000 parameters stays far below k × n numbers."""
    sampler = nk.sampler.MetropolisLocal(HILBERT, n_chains=16)
    model = nk.models.MLP(hidden_dims=(256, 256), param_dtype=float, output_activation=None)
    vstate = nk.vqs.MCState(sampler, model, n_samples=256, seed=1)
    samples = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (256, L)))
    found = sgn._local.Configurations(samples, jnp.ones(256), None)
    driver = sgn.VMC(HAMILTONIAN, 0.1, vstate, momentum=0.9)
    arguments = (vstate.parameters, vstate.model_state, found, driver._method(), driver._increment, 1.0)
    lowered = sgn._driver._propose.lower(*arguments, apply=vstate._apply_fun, settings=driver._settings)
    used = lowered.compile().memory_analysis().temp_size_in_bytes
    assert used < 256 * vstate.n_parameters * 8 / 5


# ----------------------------------------------------------------------------------------- the driver


def chain_state(n_samples=64, **options):
    sampler = nk.sampler.MetropolisLocal(HILBERT, n_chains=16, sweep_size=4)
    options = {"n_samples": n_samples, "n_discard_per_chain": 0, "seed": 1, "sampler_seed": 2, **options}
    return nk.vqs.MCState(sampler, nk.models.RBM(alpha=2, param_dtype=complex), **options)


def new_driver(**options):
    options = {"damping": optax.exponential_decay(1e-2, 10, 0.5), "momentum": 0.7, **options}
    return sgn.VMC(HAMILTONIAN, optax.adam(0.01), chain_state(), holomorphic=True, **options)


def test_a_run_logs_calls_back_and_resumes_exactly(tmp_path, capsys):
    driver, log, seen = new_driver(), nk.logging.RuntimeLog(), []

    def note(step, data, driver):
        seen.append(step)
        return True

    magnetisation = nk.operator.spin.sigmax(HILBERT, 0).to_jax_operator()
    driver.run(3, out=log, obs={"x": magnetisation}, callback=note)  # with the progress bar
    assert seen == [0, 1, 2] and driver.step_count == 3
    assert len(log.data["Energy"]["Mean"]) == len(log.data["x"]["Mean"]) == 3
    assert list(log.data["rejected_steps"]["value"]) == [0, 0, 0]
    saved = flax.serialization.to_bytes(driver)
    driver.run(3, out=str(tmp_path / "run"), show_progress=False)
    assert (tmp_path / "run.log").exists()
    other = flax.serialization.from_bytes(new_driver(), saved)
    assert other.step_count == 3
    other.run(3, out=None, show_progress=False)
    assert gap(other._increment, driver._increment) == 0
    assert gap(other.state.parameters, driver.state.parameters) == 0


def test_netkets_chunk_size_callback_tunes_it(capsys):
    driver = sgn.VMC(HAMILTONIAN, 0.01, chain_state())
    driver.run(1, callback=nk.callbacks.AutoChunkSize(chunk_size_bwd=16, chunk_size=16), show_progress=False)
    assert driver.chunk_size_bwd == 16 and driver.state.chunk_size == 16


def test_full_summation_reaches_the_ground_state():
    vstate = summed("holomorphic")
    # A step is one of imaginary time, 2η: it must be short against the inverse of the spectrum's width, 10.
    driver = sgn.VMC(HAMILTONIAN, 0.05, vstate, damping=1e-4, momentum=0.5, max_norm=0.5)
    driver.run(200, show_progress=False)
    exact = np.linalg.eigvalsh(CHAIN.to_dense())[0]
    assert abs(float(vstate.expect(HAMILTONIAN).mean.real) - exact) < 1e-6 * abs(exact)


def test_norm_of_a_step_is_bounded_and_the_increment_is_not():
    vstate = summed("mixed")
    driver = sgn.VMC(HAMILTONIAN, 5.0, vstate, momentum=0.8, max_norm=0.01)
    before = vstate.parameters
    _, direction = driver.compute_loss_and_update()
    driver.update_parameters(direction)
    step = flat(vstate.parameters) - flat(before)
    np.testing.assert_allclose(np.linalg.norm(step), 0.01, rtol=1e-12)
    np.testing.assert_allclose(step / 0.01, -flat(direction) / np.linalg.norm(flat(direction)), atol=1e-12)
    assert gap(driver._increment, direction) == 0


def test_schedules_give_each_step_its_own_values():
    driver = sgn.VMC(
        HAMILTONIAN, 0.1, summed("mixed"), damping=lambda t: 0.1 / (t + 1), momentum=lambda t: t / 9
    )
    driver._step_count = 4
    method = driver._method()
    np.testing.assert_allclose([method.damping, method.momentum], [0.02, 4 / 9])
    driver._step_count = 9
    with pytest.raises(ValueError, match=r"`momentum` must be in \[0, 1\), got 1.0"):
        driver._method()


def test_a_step_that_is_not_finite_is_refused_counted_and_reported(monkeypatch):
    vstate = summed("mixed")
    driver, log = sgn.VMC(HAMILTONIAN, optax.adam(0.01), vstate, momentum=0.8), nk.logging.RuntimeLog()
    driver.run(1, show_progress=False)
    before = jax.tree.map(np.asarray, (vstate.parameters, driver._increment, driver._optimizer_state))
    found = sgn._driver.configurations

    def broken(*args, **kwargs):
        good = found(*args, **kwargs)
        return good._replace(local=good.local.at[3].set(jnp.nan))

    with monkeypatch.context() as patch:
        patch.setattr(sgn._driver, "configurations", broken)
        with pytest.warns(RuntimeWarning, match="step 1 was not finite and was left out"):
            driver.run(2, out=log, show_progress=False)
    after = (vstate.parameters, driver._increment, driver._optimizer_state)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert driver.rejected_steps == 2 and list(log.data["rejected_steps"]["value"]) == [0, 1]
    driver.run(1, show_progress=False)
    assert gap(driver._increment, before[1]) > 1e-3 and driver.rejected_steps == 2


def test_an_optimizer_that_overflows_is_refused_as_well():
    driver = sgn.VMC(HAMILTONIAN, 1e308, summed("real"), damping=1e-12)
    before = driver.state.parameters
    with pytest.warns(RuntimeWarning, match="step 0"):
        driver.update_parameters(jax.tree.map(lambda x: 1e10 * jnp.ones_like(x), before))
    assert gap(driver.state.parameters, before) == 0


def test_errors_name_the_argument():
    vstate = summed("mixed")
    other = nk.operator.Ising(nk.hilbert.Spin(0.5, 3), nk.graph.Chain(3), h=1.0)
    lopsided = nk.operator.spin.sigmap(HILBERT, 0)
    for error, match, make in [
        (TypeError, "`variational_state` must be", lambda: sgn.VMC(HAMILTONIAN, 0.1, None)),
        (TypeError, "`hamiltonian` must be a NetKet operator, got float", lambda: sgn.linearise(vstate, 1.0)),
        (ValueError, "`hamiltonian` must act on", lambda: sgn.VMC(other, 0.1, vstate)),
        (ValueError, "`hamiltonian` must be Hermitian", lambda: sgn.VMC(lopsided, 0.1, vstate)),
        (ValueError, "`damping` must be >= 0", lambda: sgn.VMC(HAMILTONIAN, 0.1, vstate, damping=-1)),
        (ValueError, "`max_norm` must be >= 0", lambda: sgn.VMC(HAMILTONIAN, 0.1, vstate, max_norm=-1)),
        (ValueError, "`holomorphic` needs", lambda: sgn.VMC(HAMILTONIAN, 0.1, vstate, holomorphic=True)),
        (
            ValueError,
            "log ψ is not holomorphic",
            lambda: sgn.linearise(summed("not holomorphic"), HAMILTONIAN, holomorphic=True),
        ),
        (ValueError, "`memory_limit` must be", lambda: sgn.linearise(vstate, HAMILTONIAN, memory_limit="x")),
        (ValueError, "`weights` must be None", lambda: sgn.linearise(vstate, HAMILTONIAN, weights=[1.0])),
        (
            ValueError,
            "`weights` must not be",
            lambda: sgn.linearise(sampled("real", 4), HAMILTONIAN, weights=-np.ones(4)),
        ),
        (ValueError, "`subselect` must be None", lambda: sgn.VMC(HAMILTONIAN, 0.1, vstate, subselect=3)),
        (
            ValueError,
            "`subselect` must be at most",
            lambda: sgn.VMC(HAMILTONIAN, 0.1, chain_state(), subselect=65),
        ),
    ]:
        with pytest.raises(error, match=match):
            make()


# --------------------------------------------------------------------------------------- subselection


def test_subsets_and_weights_follow_squared_volumes():
    """Frequencies of all subsets by χ²; weights whose expected sums are exact."""
    c, k, lam = 6, 3, 0.05
    rows = np.random.default_rng(0).normal(size=(c, 4))
    rows[1] = rows[0] * 1.01  # nearly the same row twice
    K = jnp.asarray(rows @ rows.T)
    subsets = list(itertools.combinations(range(c), k))
    volumes = np.array([np.linalg.det(np.asarray(K)[np.ix_(s, s)] + lam * np.eye(k)) for s in subsets])
    p = volumes / volumes.sum()
    inclusion = np.array([p[[i in s for s in subsets]].sum() for i in range(c)])
    draws = 4000
    keys = jax.random.split(jax.random.key(0), draws)
    chosen, weights = jax.lax.map(lambda key: sgn.select(key, K, k, lam), keys, batch_size=500)
    order = {s: i for i, s in enumerate(subsets)}
    counts = np.bincount([order[tuple(sorted(map(int, s)))] for s in chosen], minlength=len(subsets))
    likely = p * draws > 5
    rest = np.append(counts[likely], counts[~likely].sum()), np.append(p[likely], p[~likely].sum()) * draws
    assert stats.chisquare(*rest).pvalue > 1e-3
    wanted = 1 / inclusion[np.asarray(chosen)]
    np.testing.assert_allclose(weights, wanted / wanted.sum(axis=1, keepdims=True), rtol=1e-9)


def test_keeping_everything_is_no_selection():
    vstate = sampled("mixed")
    plain = sgn.VMC(HAMILTONIAN, 0.1, vstate).compute_loss_and_update()
    every = sgn.VMC(HAMILTONIAN, 0.1, vstate, subselect=vstate.n_samples).compute_loss_and_update()
    assert gap(every[1], plain[1]) < 1e-9
    np.testing.assert_allclose(every[0].mean, plain[0].mean)


def test_a_run_on_selected_configurations():
    driver, log = new_driver(subselect=24), nk.logging.RuntimeLog()
    driver.run(30, out=log, show_progress=False)
    exact = np.linalg.eigvalsh(CHAIN.to_dense())[0]
    first, last = log.data["Energy"]["Mean"][0].real, log.data["Energy"]["Mean"][-1].real
    assert last < first and last > exact - 5 * log.data["Energy"]["Sigma"][-1]


# -------------------------------------------------------------------------------------------- imports


def test_without_netket_the_rest_imports_and_the_room_says_what_to_install():
    code = (
        "import sys, snapgrad; assert 'netket' not in sys.modules; sys.modules['netket'] = None\n"
        "try:\n    import snapgrad.netket\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'snapgrad[netket]'" in done.stdout


# ------------------------------------------------------------------------------------------- tutorial


def test_the_tutorial(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["netket_driver.py", "--small"])
    names = runpy.run_path(str(Path(__file__).parents[1] / "tutorials" / "netket_driver.py"))
    out = capsys.readouterr().out
    assert "steps refused: 0" in out and "outer product" in out
    assert abs(names["full_energy"] - names["exact"]) < 1e-4
    assert abs(names["found"].mean - names["exact"]) < 0.05
