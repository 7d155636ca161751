"""The problems are what the paper says they are."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg

KEY = jax.random.key(0)
PROBLEMS = {
    "gaussian": lambda **kw: sg.problems.gaussian_llq(KEY, 60, 12, **kw),
    "inflated": lambda **kw: sg.problems.gaussian_llq(KEY, 60, 12, inflation=100.0, **kw),
    "power:2": lambda **kw: sg.problems.spectrum_llq(KEY, "power:2", 60, 12, **kw),
    "flat": lambda **kw: sg.problems.spectrum_llq(KEY, "flat", 60, 12, **kw),
    "power:1-linear": lambda **kw: sg.problems.spectrum_llq(KEY, "power:1", 60, 12, hessian="linear", **kw),
    "least-squares": lambda **kw: sg.problems.gaussian_llq(KEY, 60, 12, hessian="identity", **kw),
}


@eqx.filter_jit
def gradient_of_loss(problem, params):
    return jax.grad(problem.loss)(params)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_llq(name, noise):
    """The solution is a stationary point; consistent exactly when there is no noise."""
    problem = PROBLEMS[name](noise=noise)
    J, theta = problem.jacobian, problem.solution
    gradient = np.asarray(gradient_of_loss(problem, theta))
    np.testing.assert_allclose(gradient, np.zeros(12), atol=1e-10 * float(jnp.linalg.norm(problem.rhs)))
    lin = problem.linearise(theta, jnp.arange(60))
    np.testing.assert_allclose(J.T @ lin.residual, gradient, atol=1e-12)
    size = float(jnp.linalg.norm(lin.residual) / jnp.linalg.norm(problem.rhs))
    assert size < 1e-12 if noise == 0 else size > 0.01
    rows = jnp.array([3, 50])
    part = problem.linearise(jnp.ones(12), rows)
    whole = problem.linearise(jnp.ones(12), jnp.arange(60))
    np.testing.assert_allclose(part.residual, whole.residual[rows], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(part.jacobian.dense(), whole.jacobian.dense()[rows])
    assert problem.metrics(problem.init(KEY))["relative_error"] == 1.0


def test_spectra_and_norms():
    for name, values in {"power:2": 1 / np.arange(1, 13) ** 2, "flat": np.ones(12)}.items():
        J = PROBLEMS[name]().jacobian
        np.testing.assert_allclose(np.linalg.svd(J, compute_uv=False), values, rtol=1e-10)
    for name in ("gaussian", "inflated"):
        np.testing.assert_allclose(np.linalg.norm(PROBLEMS[name]().jacobian, 2), 1, rtol=1e-12)
    norms = np.linalg.norm(PROBLEMS["inflated"]().jacobian, axis=1)
    assert norms[0] > 30 * norms[1:].max()
    wishart = np.linalg.eigvalsh(PROBLEMS["gaussian"]().hessian)
    np.testing.assert_allclose(wishart[-1], 1, rtol=1e-12)
    assert wishart[0] > 0
    linear = np.linalg.eigvalsh(PROBLEMS["power:1-linear"]().hessian)
    expected = 1 / (1 + np.arange(60) * 99 / 59)
    np.testing.assert_allclose(linear[::-1], expected, rtol=1e-10)
    assert PROBLEMS["least-squares"]().hessian is None


def test_rank_deficient_solution_is_in_the_row_space():
    rng = np.random.default_rng(0)
    J = rng.normal(size=(10, 3)) @ rng.normal(size=(3, 6))
    for problem in (
        sg.problems.LeastQuadratics(J, solution=jnp.ones(6)),
        sg.problems.LeastQuadratics(J, jnp.diag(jnp.arange(1.0, 11.0)), rhs=jnp.ones(10)),
    ):
        theta = problem.solution
        np.testing.assert_allclose(np.linalg.pinv(J) @ (J @ theta), theta, atol=1e-10)
        np.testing.assert_allclose(gradient_of_loss(problem, theta), np.zeros(6), atol=1e-9)


class TestPoisson:
    def test_parameter_counts(self):
        for first_bias, count in ((True, 7851), (False, 7801)):
            problem = sg.problems.DiscretePoisson(first_bias=first_bias)
            params = jax.eval_shape(problem.init, KEY)
            assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
            lin = eqx.filter_eval_shape(problem.linearise, params, jnp.array([0, 99]))
            assert lin.jacobian.shape == (2, count)

    @pytest.mark.parametrize("first_bias", [True, False])
    def test_residual_is_the_function_space_gradient(self, first_bias):
        problem = sg.problems.DiscretePoisson(num_rows=12, width=3, first_bias=first_bias)

        @jax.jit
        def both(key):
            params = problem.init(key)
            lin = problem.linearise(params, jnp.arange(12))
            return lin.jacobian.rmv(lin.residual), jax.grad(problem.loss)(params)

        ours, theirs = map(jax.tree.leaves, both(KEY))
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)

    def test_laplacian_norm(self):
        problem = sg.problems.DiscretePoisson()
        apply = jax.jit(jax.vmap(lambda e: problem._laplacian(lambda i: e[i], jnp.arange(100))))
        H = np.asarray(apply(jnp.eye(100)))
        np.testing.assert_allclose(np.linalg.eigvalsh(H)[-1], 1013.21183642338, rtol=1e-12)

    def test_constants_do_not_count_as_error(self):
        problem = sg.problems.DiscretePoisson(num_rows=12, width=3)

        @jax.jit
        def errors(key):
            params = problem.init(key)
            shifted = [*params[:-1], {**params[-1], "b": params[-1]["b"] + 3.0}]
            return [problem.metrics(p)["relative_error"] for p in (params, shifted)]

        np.testing.assert_allclose(*errors(KEY), rtol=1e-12)
