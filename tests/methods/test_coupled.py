"""Self-tuning where the loss is not ½‖r‖²: rows coupled by a Hessian, so that J is not ∂r/∂θ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.methods._curvature import no_curvature
from snapgrad.methods._pace import Foresight

KEY = jax.random.key(0)
ROWS, PARAMS, SAMPLE = 60, 12, 4


def coupled(condition, scale=1.0):
    """Least-quadratics with singular values 1/i and H of this condition number, times a scale."""
    keys = jax.random.split(KEY, 3)
    J = sg.problems.spectrum_matrix(keys[0], sg.problems.singular_values("power:1", PARAMS), ROWS)
    H = scale * sg.problems.linear_hessian(keys[1], ROWS, condition)
    return sg.problems.LeastQuadratics(J, H, solution=jax.random.normal(keys[2], (PARAMS,)))


def train(problem, steps=800):
    sampler = sg.sampling.Uniform(ROWS, SAMPLE)
    return sg.run(problem, KEY, method=sg.Auto(), sampler=sampler, steps=steps, record_every=steps)


@pytest.fixture(scope="module")
def trained():
    """The same problem in three units of its loss, side by side in one program."""
    problems = [coupled(100.0, scale) for scale in (1.0, 1e-3, 1e4)]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *problems)
    return jax.jit(jax.vmap(train))(stacked)


def test_it_converges_where_a_batch_has_no_loss(trained):
    """Steps at η = 1 on this H are ten times too short, and ‖r‖² on the batch would refuse good ones."""
    error = np.asarray(trained.history["relative_error"])
    assert error[0, -1] < 1e-3 * error[0, 0]
    few = trained.state.method.few
    assert not np.any(trained.rejected) and np.all(few.trial.refused == 0)
    # h² is between (tr H/m)² and tr H²/m, up to sampling: 0.047² and 0.1².
    square, along = few.curvature.square[0], few.curvature.along[0]
    assert 0.04 < np.sqrt(square) < 0.2 and along**2 < 0.5 * square


def test_units_of_the_loss_do_not_matter(trained):
    error = np.asarray(trained.history["relative_error"])[:, -1]
    np.testing.assert_allclose(error[1:], error[0], rtol=1e-3)
    square = np.asarray(trained.state.method.few.curvature.square)
    np.testing.assert_allclose(square[1:] / square[0], [1e-6, 1e8], rtol=1e-4)


def test_a_multiple_of_the_identity_is_felt_exactly():
    v, curvature = jnp.array([1.0, -2.0, 0.5]), no_curvature(jnp.dtype(float))
    for time in (1.0, 2.0, 3.0):
        curvature = curvature.update(jnp.asarray(time), 3 * v, v)
    np.testing.assert_allclose([curvature.norm, curvature.along, curvature.agreement], [3, 3, 1], rtol=1e-12)
    # An outlier counts as sixteen times the mean, here with a weight of a quarter.
    after = curvature.update(jnp.asarray(4.0), 1e3 * v, v)
    np.testing.assert_allclose(
        [after.square, after.norm], [9 * (3 + 16) / 4, np.sqrt(9 * 19 / 4)], rtol=1e-12
    )
    for bad in (jnp.full(3, jnp.nan), jnp.zeros(3)):
        kept = curvature.update(jnp.asarray(4.0), bad, v)
        np.testing.assert_array_equal([kept.square, kept.along], [curvature.square, curvature.along])


def test_foresight_is_the_part_that_is_predicted():
    """The squared cosine of prediction and residual, if all batches are alike."""
    v, r = np.array([1.0, 1.0, 0.0]), np.array([2.0, 0.0, 0.0])
    seen = Foresight(jnp.zeros(()), jnp.zeros(()))
    for time in range(1, 200):
        seen = seen.update(
            jnp.asarray(float(time)), jnp.asarray(v @ r / (r @ r)), jnp.asarray(v @ v / (r @ r))
        )
    np.testing.assert_allclose(seen.part, 0.5, rtol=1e-12)
    opposite = seen.update(jnp.asarray(1.0), jnp.asarray(-0.5), jnp.asarray(0.5))
    assert opposite.part == 0


def test_work_on_all_rows_is_the_loss():
    problem = coupled(10.0)
    params = jnp.ones(PARAMS)
    step = jax.random.normal(jax.random.key(1), (PARAMS,))
    lin = problem.linearise(params, jnp.arange(ROWS))
    change = problem.loss(params - step) - problem.loss(params)
    np.testing.assert_allclose(lin.loss_at(step) - lin.loss_at(jnp.zeros(PARAMS)), change, rtol=1e-10)
    plain = sg.problems.LeastQuadratics(problem.jacobian, rhs=problem.rhs)
    assert plain.linearise(params, jnp.arange(3)).loss_at is None


def test_restricted_parameters_keep_the_loss():
    count = lambda v, row: jnp.exp(v) - row[1] * v  # noqa: E731
    params, rows = {"a": jnp.ones(2), "b": jnp.zeros(())}, (jnp.eye(3, 2), jnp.arange(3.0))
    lin = sg.linearise(lambda p, row: row[0] @ p["a"] + p["b"], params, rows, loss=count)
    part = sg.operators.restrict(lin, {"a": True, "b": False})
    step = {"a": jnp.array([0.1, 0.2]), "b": None}
    np.testing.assert_allclose(part.loss_at(step), lin.loss_at({"a": step["a"], "b": jnp.zeros(())}))
