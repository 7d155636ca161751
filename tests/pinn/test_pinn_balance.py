"""Weights of blocks: what they are, that units do not matter, and that good ones stay."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad import pinn
from snapgrad.pinn._balance import _rates, _traces

KEY = jax.random.key(0)


class Scaled(eqx.Module):
    residual: object
    factor: jax.Array

    def __call__(self, u, x):
        return self.factor * self.residual(u, x)


def in_other_units(problem, factor):
    first, *rest = problem.blocks
    rest = [replace(block, residual=Scaled(block.residual, jnp.asarray(factor))) for block in rest]
    return pinn.PINN(problem.network, [first, *rest], problem.exact)


def weights(problem):
    return np.array([float(block.weight) for block in problem.blocks])


def test_rates_are_traces_of_the_kernels_of_the_blocks(line):
    """Random signs give the trace on average; here the average over many keys, of weights and points too."""
    found = jax.vmap(lambda key: _rates(line, key))(jax.random.split(KEY, 200))

    def exact(key):
        start, points = jax.random.split(key)
        batch = line.draw(points)
        rows = jax.jacrev(lambda p: line.residuals(p, batch))(line.init(start))
        return {
            name: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(rows[name])) / len(batch[name])
            for name in rows
        }

    expected = jax.vmap(exact)(jax.random.split(jax.random.key(1), 200))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].mean(), values.mean(), rtol=0.15)


def test_units_do_not_matter(line):
    plain = in_other_units(line, 1.0)
    np.testing.assert_array_equal(weights(pinn.balanced(plain)), weights(plain))
    small, large = (pinn.balanced(in_other_units(line, factor)) for factor in (1e-4, 1e4))
    np.testing.assert_allclose(weights(small)[1] / weights(large)[1], 1e16, rtol=1e-9)
    assert weights(small)[0] == 1.0
    rates = [list(_rates(problem, KEY).values()) for problem in (small, large)]
    np.testing.assert_allclose(*rates, rtol=1e-9)
    np.testing.assert_allclose(rates[0][1], rates[0][0], rtol=1e-9)
    errors = [
        pinn.solve(p, KEY, steps=60).history["relative_l2"][-1] for p in (small, in_other_units(line, 1e-4))
    ]
    assert errors[0] < 1e-3 < 0.1 < errors[1]


def test_weights_follow_training_and_units_do_not_matter(line):
    def solved(problem, sampler):
        return pinn.solve(problem, KEY, steps=60, sampler=sampler)

    plain = in_other_units(line, 1.0)
    name = f"weight of {line.blocks[1].name}"
    followed = solved(plain, pinn.Balanced(plain, refresh_every=20))
    np.testing.assert_array_equal(followed.history[name], 1)  # within the band: trained as without
    np.testing.assert_allclose(followed.history["loss"][1], solved(plain, None).history["loss"][1], rtol=1e-6)
    small, large = (in_other_units(line, factor) for factor in (1e-4, 1e4))
    errors = [solved(p, pinn.Balanced(p)).history["relative_l2"][-1] for p in (small, large)]
    assert max(errors) < 1e-3 < 0.1 < solved(small, None).history["relative_l2"][-1]


def test_weights_are_as_far_as_the_band_and_no_further(line):
    problem = in_other_units(line, 1e-4)
    sampler = pinn.Balanced(problem, pinn.Collocation(problem, None))
    params, state = problem.init(KEY), sampler.init(KEY)
    batch, state = sampler.draw(KEY, state, lambda batch: problem.linearise(params, batch))
    rates = _traces(problem, problem.linearise(params, batch), batch, jax.random.fold_in(KEY, 1))
    first, second = rates.values()
    np.testing.assert_allclose(first / second, 30, rtol=1e-9)
    other = problem.init(jax.random.key(4))
    # Weights are not due:
    again, _ = sampler.draw(jax.random.key(5), state, lambda batch: problem.linearise(other, batch))
    np.testing.assert_array_equal(
        again[line.blocks[1].name].weight, batch[line.blocks[1].name].weight, strict=True
    )


def test_balanced_says_what_is_wrong(line):
    with pytest.raises(TypeError, match=r"`problem` must be a sg\.pinn\.PINN"):
        pinn.Balanced(3)
    with pytest.raises(TypeError, match="`sampler` must be a sampler"):
        pinn.Balanced(line, 3)
    with pytest.raises(ValueError, match="`refresh_every`"):
        pinn.Balanced(line, refresh_every=0)


def test_a_zoo_name_does_not_stand_for_other_weights(line, tmp_path):
    found = pinn.balanced(line)
    assert found.recipe is None and line.recipe is not None
    pinn.solve(found, KEY, steps=1).save(tmp_path / "own.snap")
    with pytest.raises(ValueError, match="`problem` must be given"):
        pinn.load(tmp_path / "own.snap")


def test_data_keep_their_weights():
    inverse = pinn.zoo("inverse-heat-1d", hidden=(4,), points=(20, 10))
    heavy = eqx.tree_at(lambda p: p.blocks[1].weight, inverse, jnp.asarray(1e8))
    np.testing.assert_array_equal(weights(pinn.balanced(heavy)), weights(heavy))


def test_advice_on_a_stall_names_what_is_drowned(line):
    problem = in_other_units(line, 1e-4)
    zero, losses = jnp.zeros((), int), np.array([9.0] + 7 * [1.0])
    solution = pinn.Solution(problem.init(KEY), {"loss": losses}, zero, zero, None, problem)
    assert f"Residuals of {line.blocks[1].name} are in units far" in pinn.advice(solution)
