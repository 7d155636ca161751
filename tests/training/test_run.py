"""The loop: exactness, sweeps, refusal of non-finite steps, going on."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg

KEY = jax.random.key(0)
PROBLEM = sg.problems.gaussian_llq(KEY, 60, 12)
SAMPLER = sg.sampling.Uniform(60, 5)
ADAM = optax.adam(0.1)  # one for all: a loop is compiled anew for another pair of functions


def run(method, optimizer, steps, *, problem=PROBLEM, sampler=SAMPLER, **options):
    return sg.run(problem, KEY, method=method, sampler=sampler, optimizer=optimizer, steps=steps, **options)


def test_the_loop_is_the_method():
    """Against the same iteration written out with optax by hand."""
    method = sg.Spring(1e-3, 0.5)
    result = run(method, optax.sgd(0.3), 7, record_every=3)
    assert result.history["step"].tolist() == [0, 3, 6, 7]
    _, key_loop = jax.random.split(KEY)
    params, tx = jnp.zeros(12), sg.as_optax(method, 0.3)
    state, errors = tx.init(params), [1.0]

    @jax.jit
    def advance(params, state, step):
        rows = SAMPLER.sample(jax.random.fold_in(key_loop, step))
        lin = PROBLEM.linearise(params, rows)
        updates, state = tx.update(None, state, params, linearisation=lin)
        return optax.apply_updates(params, updates), state

    for step in range(7):
        params, state = advance(params, state, step)
        errors.append(float(PROBLEM.metrics(params)["relative_error"]))
    np.testing.assert_allclose(result.params, params, rtol=1e-11)
    np.testing.assert_allclose(result.history["relative_error"], np.array(errors)[[0, 3, 6, 7]], rtol=1e-11)
    assert int(result.rejected) == 0


def test_sweep_is_one_vmap():
    lams, etas = jnp.array([1e-4, 1e-2]), jnp.array([0.5, 1.0])
    keys = jax.random.split(KEY, 3)

    def one(lam, eta, key):
        return sg.run(
            PROBLEM,
            key,
            method=sg.Spring(lam, 0.2),
            sampler=SAMPLER,
            optimizer=optax.sgd(eta),
            steps=20,
            record_every=20,
        )

    sweep = jax.jit(jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None)))(lams, etas, keys)
    assert sweep.history["relative_error"].shape == (2, 3, 2)
    alone = one(lams[1], etas[1], keys[2])
    np.testing.assert_allclose(sweep.params[1, 2], alone.params, rtol=1e-9)


def test_two_batches_and_ngd_and_sgd():
    pair = sg.sampling.TwoBatches(SAMPLER)
    assert run(sg.TwoBatch(1.0), 1.0, 5, sampler=pair).history["relative_error"][-1] < 1
    ngd = run(sg.SNG(0.0), 1.0, 60, sampler=sg.sampling.AllRows(60))
    assert ngd.history["relative_error"][-1] < 0.2
    sgd = run(sg.SGD(), 0.5, 30)
    assert sgd.history["relative_error"][-1] < 1


def test_ngd_rate():
    """Corollary 5.2: one factor 1 − η λ_min(H) per step, at least, in the JᵀJ norm."""
    rate = 1 - np.linalg.eigvalsh(PROBLEM.hessian)[0]
    J, solution, theta = np.asarray(PROBLEM.jacobian), np.asarray(PROBLEM.solution), np.zeros(12)
    advance = jax.jit(lambda x: sg.SNG(0.0).direction(PROBLEM.linearise(x, jnp.arange(60)), ())[0])
    for _ in range(10):
        new = theta - np.asarray(advance(theta))
        before, after = (np.sum((J @ (x - solution)) ** 2) for x in (theta, new))
        assert after <= rate * before * (1 + 1e-12)
        theta = new


class Spoiled(sg.AbstractProblem):
    """A problem whose residual is NaN on every batch that holds row 0."""

    inner: sg.problems.LeastQuadratics

    @property
    def num_rows(self):
        return self.inner.num_rows

    def init(self, key):
        return self.inner.init(key)

    def linearise(self, params, batch):
        lin = self.inner.linearise(params, batch)
        return eqx.tree_at(lambda x: x.residual, lin, jnp.where(batch == 0, jnp.nan, lin.residual))

    def metrics(self, params):
        return self.inner.metrics(params)


@pytest.fixture(scope="module")
def spoiled():
    return run(sg.Spring(1e-3, 0.5), ADAM, 40, problem=Spoiled(PROBLEM))


def test_non_finite_steps_are_left_out_and_counted(spoiled):
    result = spoiled
    _, key_loop = jax.random.split(KEY)
    rows = np.stack([SAMPLER.sample(jax.random.fold_in(key_loop, t)) for t in range(40)])
    hit = np.any(rows == 0, axis=1)
    assert int(result.rejected) == hit.sum() > 0
    errors = np.asarray(result.history["relative_error"])
    assert np.all(np.isfinite(errors))
    still = errors[1:] == errors[:-1]
    np.testing.assert_array_equal(still, hit)
    assert bool(jnp.all(jnp.isfinite(result.state.method.increment)))


def test_going_on_is_bit_identical(spoiled):
    """Also where steps are refused, before and after the break."""
    method = sg.Spring(1e-3, 0.5)
    half = run(method, ADAM, 20, problem=Spoiled(PROBLEM))
    rest = run(method, ADAM, 20, problem=Spoiled(PROBLEM), state=half.state)
    assert 0 < int(half.rejected) < int(rest.rejected)
    assert eqx.tree_equal(spoiled.state, rest.state)


def test_divergence_ends_in_refused_steps_not_in_nan():
    result = run(sg.SGD(), 1e200, 20)
    assert int(result.rejected) > 0 and bool(jnp.all(jnp.isfinite(result.params)))


def test_poisson_network_trains():
    problem = sg.problems.DiscretePoisson(num_rows=30, width=16)
    sampler = sg.sampling.Uniform(30, 10)
    result = run(sg.SNG(1e-2), 2.0**-6, 300, problem=problem, sampler=sampler, record_every=300)
    first, last = result.history["relative_error"]
    assert last < 0.3 * first and int(result.rejected) == 0
