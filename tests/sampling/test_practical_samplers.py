"""Chains and pools against the laws that they should have, by enumeration on small matrices."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from test_squared_volume import NUM_SAMPLES, frequencies, matrices, p_value, svs_law

import snapgrad as sg
from snapgrad.sampling import AllRows, DownUpChain, Pool, SquaredVolume, SwapChain, Uniform

MATRICES = dict((f"{name} n={J.shape[1]}", J) for name, J in matrices())
SUBSETS = list(itertools.combinations(range(8), 3))


def linearise_with(J):
    return lambda rows: sg.Linearisation(jnp.zeros(rows.shape[0]), sg.DenseJacobian(J[rows]))


@eqx.filter_jit
def advance(sampler, J, key, starts):
    """One draw of each of many chains."""

    def one(key, start):
        rows, state = sampler.draw(key, start, linearise_with(J))
        return eqx.error_if(rows, jnp.any(rows != state), "the state must be the batch")

    return jax.vmap(one)(jax.random.split(key, len(starts)), starts)


@eqx.filter_jit
def draws(sampler, J, key, count=NUM_SAMPLES):
    def one(key):
        return sampler.draw(key, sampler.init(key), linearise_with(J))[0]

    return jax.vmap(one)(jax.random.split(key, count))


CHAINS = {
    "swap": lambda lam: SwapChain(8, 3, lam, moves=10),
    "down-up": lambda lam: DownUpChain(8, 3, lam, moves=10),
    "down-up with candidates": lambda lam: DownUpChain(8, 3, lam, moves=10, candidates=2),
}
CHAIN_CASES = [("generic n=5", 0.0), ("generic n=5", 0.01), ("repeated n=5", 0.5), ("heavy n=5", 0.01)]
# Enough to tell λ from λ + 1: of these matrices these laws differ by a χ² of 370 at least.
NUM_CHAINS = 8_000
FEW_CHAINS = 2_000  # where it is asked only whether a subset occurs: each of 56 would, about 36 times


@functools.cache
def exact_samples(name, lam):
    return SquaredVolume.from_matrix(MATRICES[name], 3, lam).sample(jax.random.key(1), (NUM_CHAINS,))


@pytest.mark.parametrize("chain", CHAINS)
def test_chain_keeps_its_stationary_law(chain):
    """Exact samples, moved on, are exact samples still, and not the same ones."""
    p_values = []
    for i, (name, lam) in enumerate(CHAIN_CASES):
        J, exact = MATRICES[name], exact_samples(name, lam)
        moved = advance(CHAINS[chain](lam), jnp.asarray(J), jax.random.key(10 + i), exact)
        assert np.mean(np.any(np.sort(moved, axis=1) != np.sort(exact, axis=1), axis=1)) > 0.4
        counts = frequencies(moved, 8)
        p_values.append(p_value(counts.copy(), svs_law(J, 3, lam)))
        # The test has power: the law of another λ is refused.
        assert p_value(counts.copy(), svs_law(J, 3, lam + 1.0)) < 1e-6
    assert scipy.stats.combine_pvalues(p_values).pvalue > 1e-3, p_values


@pytest.mark.parametrize("chain", CHAINS)
def test_chain_reaches_its_stationary_law(chain):
    """From one and the same unlikely start."""
    J = MATRICES["generic n=5"]
    law = svs_law(J, 3, 0.0)
    rows = jnp.broadcast_to(jnp.asarray(SUBSETS[int(np.argmin(law))]), (NUM_CHAINS, 3))
    for key in jax.random.split(jax.random.key(21), 12):
        rows = advance(CHAINS[chain](0.0), jnp.asarray(J), key, rows)
    assert p_value(frequencies(rows, 8), law) > 1e-3


@pytest.mark.parametrize("chain", CHAINS)
def test_chain_leaves_a_singular_start(chain):
    """At λ = 0 from rows 0, 3 (equal) and 1: no subset with probability zero is left after a while."""
    J = MATRICES["repeated n=5"]
    rows = jnp.broadcast_to(jnp.array([0, 3, 1]), (FEW_CHAINS, 3))
    for key in jax.random.split(jax.random.key(22), 12):
        rows = advance(CHAINS[chain](0.0), jnp.asarray(J), key, rows)
    law = svs_law(J, 3, 0.0)
    assert frequencies(rows, 8)[law < 1e-20].sum() == 0 and np.any(law < 1e-20)


@pytest.mark.parametrize("chain", CHAINS)
def test_chain_survives_what_is_not_finite(chain):
    """It wanders uniformly, and finds every subset."""
    starts = jnp.broadcast_to(jnp.array([0, 3, 1]), (FEW_CHAINS, 3))
    J = jnp.asarray(np.full((8, 5), np.nan))
    rows = advance(CHAINS[chain](1e-3), J, jax.random.key(23), starts)
    assert frequencies(rows, 8).min() > 0


def test_chain_follows_a_changing_jacobian():
    """A chain kept over a scan while J turns from favouring the first rows to favouring the last ones."""
    early, late = np.eye(8) * 1e-2, np.eye(8) * 1e-2
    early[:3], late[5:] = np.eye(8)[:3] * 10, np.eye(8)[5:] * 10
    sampler = SwapChain(8, 3, moves=20)

    def step(state, inputs):
        key, J = inputs
        rows, state = sampler.draw(key, state, linearise_with(J))
        return state, rows

    jacobians = jnp.asarray(np.stack([early] * 10 + [late] * 10))
    keys = jax.random.split(jax.random.key(24), 20)
    _, rows = jax.jit(lambda start: jax.lax.scan(step, start, (keys, jacobians)))(sampler.init(keys[0]))
    assert set(rows[9].tolist()) == {0, 1, 2} and set(rows[19].tolist()) == {5, 6, 7}


def pivoted_law(J, k, lam):
    """P(S) of randomly pivoted Cholesky: the sum over orders of products of normalised Schur complements."""
    L = J @ J.T + lam * np.eye(len(J))

    @functools.cache
    def schur(S, i):
        S = list(S)
        return L[i, i] - L[i, S] @ np.linalg.solve(L[np.ix_(S, S)], L[S, i]) if S else L[i, i]

    law = []
    for subset in itertools.combinations(range(len(J)), k):
        total = 0.0
        for order in itertools.permutations(subset):
            p = 1.0
            for t, i in enumerate(order):
                before = tuple(sorted(order[:t]))
                p *= schur(before, i) / sum(schur(before, j) for j in range(len(J)) if j not in before)
            total += p
        law.append(total)
    return np.array(law)


def pooled_law(J, pool_size, select_law):
    """The law of a subset of a uniform pool."""
    law = dict.fromkeys(SUBSETS, 0.0)
    pools = list(itertools.combinations(range(8), pool_size))
    for pool in pools:
        chosen = select_law(J[list(pool)])
        for S, p in zip(itertools.combinations(pool, 3), chosen, strict=True):
            law[S] += p / len(pools)
    return np.array(list(law.values()))


@pytest.mark.parametrize("subselect", ["dpp", "rpcholesky"])
def test_pool_law(subselect):
    select_law = {"dpp": svs_law, "rpcholesky": pivoted_law}[subselect]
    p_values = []
    for i, (name, lam) in enumerate([("generic n=5", 0.01), ("heavy n=9", 0.5), ("generic n=9", 0.0)]):
        J = MATRICES[name]
        sampler = Pool(Uniform(8, 5), sample_size=3, damping=lam, subselect=subselect)
        counts = frequencies(draws(sampler, jnp.asarray(J), jax.random.key(30 + i)), 8)
        p_values.append(p_value(counts, pooled_law(J, 5, lambda J: select_law(J, 3, lam))))
    assert scipy.stats.combine_pvalues(p_values).pvalue > 1e-3, p_values


def test_pool_of_all_rows_is_squared_volume_sampling():
    J = MATRICES["repeated n=5"]
    sampler = Pool(AllRows(8), sample_size=3, subselect="dpp")
    assert sampler.num_rows == 8
    counts = frequencies(draws(sampler, jnp.asarray(J), jax.random.key(40)), 8)
    assert p_value(counts, svs_law(J, 3, 0.0)) > 1e-3


@pytest.mark.parametrize("subselect", ["dpp", "rpcholesky"])
def test_pool_of_low_rank(subselect):
    """Rank 2 and k = 3 at λ = 0: two independent rows, and any third."""
    J = np.zeros((8, 4))
    J[0, 0], J[1, 1] = 3.0, 1e-3
    rows = draws(Pool(AllRows(8), 3, subselect=subselect), jnp.asarray(J), jax.random.key(41), 3000)
    counts = frequencies(rows, 8)
    allowed = np.array([{0, 1} <= set(S) for S in SUBSETS])
    assert counts[~allowed].sum() == 0
    assert scipy.stats.chisquare(counts[allowed]).pvalue > 1e-3


class _Points(sg.AbstractSampler):
    """Points of a square with weights, to stand for a continuous domain."""

    count: int = eqx.field(static=True)
    num_rows: None = None

    def init(self, key):
        return jnp.zeros((), int)

    def draw(self, key, state, linearise):
        batch = {"x": jax.random.uniform(key, (self.count, 2)), "w": jnp.arange(float(self.count))}
        return batch, state + 1


def test_pool_of_points():
    """Any pytree of points: leaves stay together, the base sampler keeps its state."""

    def linearise(batch):
        assert batch["x"].shape == (20, 2)
        return sg.Linearisation(jnp.zeros(20), sg.DenseJacobian(batch["x"]))

    sampler = Pool(_Points(20), sample_size=4, damping=1e-3)
    key = jax.random.key(42)
    batch, state = jax.jit(lambda key: sampler.draw(key, sampler.init(key), linearise))(key)
    assert sampler.num_rows is None and state == 1
    assert batch["x"].shape == (4, 2) and batch["w"].shape == (4,)
    pool, _ = _Points(20).draw(jax.random.split(key)[0], state, None)
    np.testing.assert_array_equal(batch["x"], pool["x"][batch["w"].astype(int)])


def test_dampings_are_leaves():
    """A sweep over λ is a vmap: the choice at λ = 1e6 is nearly uniform, at λ = 0 it avoids equal rows."""
    J = jnp.asarray(np.repeat(np.eye(2), 4, axis=0))
    keys = jax.random.split(jax.random.key(43), 400)
    for build in (
        lambda lam: Pool(AllRows(8), 2, lam),
        lambda lam: Pool(AllRows(8), 2, lam, "dpp"),
        lambda lam: DownUpChain(8, 2, lam, moves=6),
    ):

        def one(lam, key, build=build):
            sampler = build(lam)
            return sampler.draw(key, sampler.init(key), linearise_with(J))[0] // 4

        blocks = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(jnp.array([0.0, 1e6]), keys)
        same = np.mean(blocks[..., 0] == blocks[..., 1], axis=1)
        assert same[0] == 0 and abs(same[1] - 3 / 7) < 0.1


def test_bad_input():
    J = jnp.asarray(MATRICES["generic n=5"])
    key = jax.random.key(0)
    for call, message in [
        (lambda: SwapChain(8, 9), "`sample_size` must be at most `num_rows`, which is 8; got 9"),
        (lambda: SwapChain(8, 3, moves=0), "`moves` must be at least 1, got 0"),
        (lambda: SwapChain(8, 3, -1.0), "`damping` must be >= 0"),
        (lambda: DownUpChain(0, 1), "`num_rows` must be at least 1"),
        (lambda: DownUpChain(8, 3, candidates=0), "`candidates` must be at least 1, got 0"),
        (lambda: Pool(Uniform(8, 5), 3, -1.0), "`damping` must be >= 0"),
        (lambda: Pool(Uniform(8, 5), 0), "`sample_size` must be at least 1"),
        (
            lambda: Pool(Uniform(8, 5), 6).draw(key, (), linearise_with(J)),
            "`sample_size` must be at most the size of the pool, which is 5; got 6",
        ),
        (
            lambda: Pool(Uniform(8, 5), 2).draw(key, (), lambda rows: linearise_with(J)(jnp.arange(8))),
            "`base` must draw one entry per row of the Jacobian: 8 rows",
        ),
        (
            lambda: SwapChain(8, 3).draw(key, jnp.arange(3), lambda rows: linearise_with(J)(jnp.arange(8))),
            "one row for each of 6 indices, got 8",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
