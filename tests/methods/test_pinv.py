"""Complex parameters in parameter space: the solves of the explicit real matrix, whatever the shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad import SNG, Linearisation, Spring
from snapgrad.methods._matrix_free import any_solver
from snapgrad.methods._pinv import inverse_fisher_apply, pinv_apply
from snapgrad.operators import jacobian, realify

KEY = jax.random.key(0)
PARAMS = {
    "b": jnp.asarray([0.3, -0.2]),
    "W": jax.random.normal(KEY, (3, 2), jnp.complex128),
}
N = 2 + 2 * 6


def log_psi(p, x):
    return jnp.sum(jnp.log(jnp.cosh(x @ p["W"] + p["b"])))


@pytest.fixture(scope="module", params=[3, 9], ids=["k<n", "k>n"])
def rows(request):
    """An operator, its real matrix, and a vector: k = 6 or 18 rows for n = 14 real parameters."""
    jac = jacobian(realify(log_psi), PARAMS, jax.random.normal(KEY, (request.param, 3)))
    J = jac.dense()
    assert J.shape == (2 * request.param, N)
    return jac, J, jax.random.normal(KEY, J.shape[:1])


def as_vector(tree):
    """In the order of the columns: W, real parts before imaginary ones, then b."""
    assert jax.tree.structure(tree) == jax.tree.structure(PARAMS)
    assert jax.tree.map(lambda x: x.dtype, tree) == jax.tree.map(lambda x: x.dtype, PARAMS)
    return np.concatenate([np.real(tree["W"]).ravel(), np.imag(tree["W"]).ravel(), tree["b"]])


@pytest.mark.parametrize("solver", ["auto", "eigh", "qr"])
def test_pinv_apply_with_complex_parameters(rows, solver):
    jac, J, u = rows
    found = pinv_apply(jac, u, jnp.asarray(1e-3), solver)
    wanted = np.linalg.solve(J.T @ J + 1e-3 * np.eye(N), J.T @ u)
    np.testing.assert_allclose(as_vector(found), wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


def test_inverse_fisher_apply_with_complex_parameters(rows):
    jac, J, _ = rows
    found = inverse_fisher_apply(jac, PARAMS, jnp.asarray(1e-2))
    wanted = np.linalg.solve(J.T @ J + 1e-2 * np.eye(N), as_vector(PARAMS))
    np.testing.assert_allclose(as_vector(found), wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())


@pytest.mark.parametrize("solver", ["auto", "qr"])
def test_methods_take_complex_parameters(rows, solver):
    jac, J, u = rows
    lin = Linearisation(u, jac)
    direction, _ = SNG(1e-3, solver).direction(lin, ())
    pinv = np.linalg.solve(J.T @ J + 1e-3 * np.eye(N), np.asarray(J.T))
    np.testing.assert_allclose(as_vector(direction), pinv @ u, rtol=1e-7)
    spring = Spring(1e-3, 0.9, solver)
    first, state = spring.direction(lin, spring.init(PARAMS))
    second, _ = spring.direction(lin, state)
    phi = pinv @ u
    np.testing.assert_allclose(as_vector(first), phi, rtol=1e-7)
    phi = 0.9 * phi + pinv @ (u - 0.9 * J @ phi)
    np.testing.assert_allclose(as_vector(second), phi, rtol=1e-7)


def test_a_factorisation_for_many_solves_is_no_solver_of_a_step():
    """Cholesky-QR wants to be kept: a step with one solve would take another way without a word."""
    with pytest.raises(ValueError, match=r"`solver` must be one of .*'qr'.*got 'cholesky_qr'"):
        any_solver("cholesky_qr")
