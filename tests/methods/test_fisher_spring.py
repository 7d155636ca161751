"""SPRING that looks back: against the rule written out in NumPy, in any unit and in either space."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import take

import snapgrad as sg
from snapgrad.methods._fisher_spring import _pseudoinverse

STEPS = 25
N = 6
rng = np.random.default_rng(0)
HESSIAN = np.diag(np.linspace(0.5, 4.0, N))


def batch(t, params, rows, scale=1.0):
    """Fresh rows of a model whose residual bends: r = J(A θ + θ³/10 + noise)."""
    draw = np.random.default_rng(t)
    J = draw.normal(size=(rows, N)) / np.sqrt(rows)
    noise = 0.1 * draw.normal(size=N)

    def residual(p):
        return scale * J @ (HESSIAN @ p + 0.1 * p**3 + noise)

    return J, residual(params), residual


def by_hand(rows, radius=0.08, least=1e-3):
    """The parameters after each step, by the rule as it is printed."""
    params, phi = np.ones(N), np.zeros(N)
    eta, delta, M, log_h, w = 0.0, 0.0, 1.0, 0.0, 0
    path = []
    for t in range(STEPS):
        J, r, residual = batch(t, params, rows)
        v = J @ phi
        h = np.nan
        if t > 0 and (t < 10 or t % 10 == 0):
            h = v @ (residual(params + eta * phi) - r) / (eta * (v @ v))
            if h > 0:
                log_h += max(0.1, 1 / (w + 1)) * (np.log(h) - log_h)
                w += 1
        if t > 0:
            known = np.exp(log_h) if w else 0.0
            m = v @ r / (v @ v) + eta * (h if h > 0 else known)
            M += max(0.1, 1 / (t + 1)) * (np.clip(m, -1, 2) - M)
        mu = 1 - np.clip(eta * np.exp(log_h) + 4 * delta, 1e-3, 1) if w else 0.0
        K = J @ J.T
        lam = max(least, 0.3 * (delta if t else radius)) * np.trace(K) / rows
        phi = mu * phi + J.T @ np.linalg.solve(K + lam * np.eye(rows), r - mu * v)
        size = np.linalg.norm(J @ phi)
        trust = np.clip(M, 0, 0.999)
        x = np.clip(0.2 * trust**2 / (1 - trust), 0.05, 0.5)
        most = radius * np.clip(M / 0.75, 0.3, 1) ** 2
        new = min(x * np.exp(-log_h), most / size) if w else 0.02 / size
        eta = min(new, 2 * eta) if t else new
        params, delta = params - eta * phi, eta * size
        path.append(params)
    return np.stack(path)


def by_method(rows, scale=1.0, dtype=jnp.float64, method=None):
    method = sg.methods.FisherSpring() if method is None else method
    params = jnp.ones(N, dtype)
    state, path = method.init(params), []
    for t in range(STEPS):
        J, _, residual = batch(t, np.asarray(params, float), rows, scale)
        here = np.asarray(params, float)
        lin = sg.Linearisation(
            jnp.asarray(residual(here), dtype),
            sg.DenseJacobian(jnp.asarray(J, dtype)),
            jax.tree_util.Partial(
                _residual, *(jnp.asarray(x, dtype) for x in (J, residual_terms(t, rows), here)), scale
            ),
            has_loss=False,
        )
        step, state = take(method, lin, state)
        params = params - step
        path.append(np.asarray(params, float))
    return np.stack(path), method.report(state), state


def residual_terms(t, rows):
    draw = np.random.default_rng(t)
    draw.normal(size=(rows, N))
    return 0.1 * draw.normal(size=N)


def _residual(J, noise, here, scale, step):
    p = here - step
    return scale * (J @ (jnp.asarray(HESSIAN, J.dtype) @ p + 0.1 * p**3 + noise))


@pytest.mark.parametrize("rows", [4, 12])  # fewer rows than parameters, and more
def test_steps_are_those_of_the_rule(rows):
    found, report, state = by_method(rows)
    np.testing.assert_allclose(found, by_hand(rows), rtol=1e-9)
    assert state.measured > 5 and report["curvature"] > 0
    np.testing.assert_allclose(np.linalg.norm(found[-1]) < 0.5 * np.sqrt(N), True)


def test_units_do_not_matter():
    plain, report, _ = by_method(4)
    for scale in (100.0, 0.01):
        other, scaled, _ = by_method(4, scale)
        np.testing.assert_allclose(other, plain, rtol=1e-8)
        np.testing.assert_allclose(scaled["step_size"] * scale, report["step_size"], rtol=1e-8)
        for name in ("momentum", "length", "gain"):
            np.testing.assert_allclose(scaled[name], report[name], rtol=1e-8)


def test_single_precision():
    found, _, state = by_method(4, dtype=jnp.float32)
    np.testing.assert_allclose(found, by_hand(4), rtol=2e-3, atol=2e-3)
    assert state.step_size.dtype == state.gain.dtype == jnp.float32


def test_conjugate_gradients_take_the_same_steps():
    cg = sg.methods.FisherSpring(solver=sg.CG(tolerance=1e-13))
    np.testing.assert_allclose(by_method(4, method=cg)[0], by_hand(4), rtol=1e-7)


def test_a_look_back_that_is_not_finite_teaches_nothing():
    J = jnp.asarray(rng.normal(size=(4, N)))
    method = sg.methods.FisherSpring()
    lin = sg.Linearisation(jnp.ones(4), sg.DenseJacobian(J), jax.tree_util.Partial(_nowhere), has_loss=False)
    _, first = take(method, lin, method.init(jnp.zeros(N)))
    step, second = take(method, lin, first)
    assert second.step == 2 and second.measured == 0 and second.momentum == 0
    np.testing.assert_allclose(np.linalg.norm(J @ step), 0.02)  # its length while no curvature is known


def _nowhere(step):
    del step
    return jnp.full(4, jnp.nan)


def test_it_needs_the_residual_elsewhere():
    method = sg.methods.FisherSpring()
    lin = sg.Linearisation(jnp.ones(4), sg.DenseJacobian(jnp.eye(4)))
    with pytest.raises(ValueError, match="`residual_at` for sg\\.methods"):
        method.direction(lin, method.init(jnp.zeros(4)))
    with pytest.raises(ValueError, match="`radius` must be"):
        sg.methods.FisherSpring(radius=-1.0)


@pytest.mark.parametrize("method", [sg.Auto(), sg.methods.LineSearch(sg.SNG(1e-3)), sg.methods.LBFGS()])
def test_methods_that_judge_by_a_loss_refuse_where_there_is_none(method):
    lin = sg.Linearisation(jnp.ones(4), sg.DenseJacobian(jnp.eye(4)), lambda step: 1 - step, has_loss=False)
    with pytest.raises(ValueError, match=r"must have a loss on its batch.*FisherSpring"):
        method.direction(lin, method.init(jnp.zeros(4)))


def test_damping_that_rounding_hides_is_raised():
    """Rank 2 in float32 and no damping: the pseudoinverse all the same, and nothing for no kernel at all."""
    draw = np.random.default_rng(3)
    J = jnp.asarray(draw.normal(size=(5, 2)) @ draw.normal(size=(2, 8)), jnp.float32)
    r = J @ jnp.asarray(draw.normal(size=8), jnp.float32)
    pinv = lambda J: _pseudoinverse(sg.DenseJacobian(J), jnp.float32(0), "auto", r.dtype)[0](r)  # noqa: E731
    U, s, Vt = np.linalg.svd(np.asarray(J, float), full_matrices=False)
    wanted = (Vt[:2].T / s[:2]) @ (U[:, :2].T @ np.asarray(r, float))
    np.testing.assert_allclose(pinv(J), wanted, rtol=0, atol=2e-5 * np.linalg.norm(wanted))
    np.testing.assert_array_equal(pinv(0 * J), 0)
