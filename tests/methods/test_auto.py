"""The method without settings: its equations, its refusals, its accuracy, and that it converges.

Nearly all of the time is compilation: tests share the shapes 9 × 4 and 3 × 8 and one compiled step.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import affine, take

import snapgrad as sg
from snapgrad.linalg import factorise, gram, rank_cutoff
from snapgrad.methods import Auto, _policy

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
TALL, WIDE = jnp.asarray(RNG.normal(size=(9, 4))), jnp.asarray(RNG.normal(size=(3, 8)))
TALL_R, WIDE_R = jnp.asarray(RNG.normal(size=9)), jnp.array([1.0, -2.0, 0.5])


def linear(J, r):
    return affine(r, sg.DenseJacobian(J))


def linearise(residual, params):
    """A least-squares problem in one vector of parameters, on all its rows."""
    return sg.Linearisation(
        residual(params),
        sg.DenseJacobian(jax.jacfwd(residual)(params)),
        lambda step: residual(params - step),
    )


def iterate(residual, params, steps, method=None):
    method = Auto() if method is None else method

    @jax.jit
    def advance(params, state):
        step, state = method.direction(linearise(residual, params), state)
        return params - step, state

    state = method.init(params)
    for _ in range(steps):
        params, state = advance(params, state)
    return np.asarray(params), state


def test_first_step_is_levenberg_marquardt():
    """θ − (JᵀJ + λ diag JᵀJ)⁻¹ Jᵀr, in NumPy."""
    J, r = np.asarray(TALL) * np.array([1.0, 10.0, 0.1, 1.0]), np.asarray(TALL_R)
    method = Auto(damping=0.3)
    step, state = take(method, linear(J, r), method.init(jnp.zeros(4)))
    A = J.T @ J
    np.testing.assert_allclose(step, np.linalg.solve(A + 0.3 * np.diag(np.diag(A)), J.T @ r), rtol=1e-12)
    np.testing.assert_allclose(state.many.scale, np.diag(A), rtol=1e-14)
    # A linear problem does as predicted: the damping falls by the most it may.
    report = method.report(state)
    np.testing.assert_allclose(report["gain"], 1, rtol=1e-12)
    np.testing.assert_allclose(report["damping"], 0.3 / 5, rtol=1e-12)
    assert report["step_size"] == 1 and report["momentum"] == 0


def test_scaling_of_parameters_does_not_matter():
    units = np.array([1e-4, 1.0, 1e3, 1e-2])

    def iterates(bend):
        """Six steps in each of the two units, side by side."""

        def one(units):
            def residual(x):
                return TALL @ jnp.sin(x * units) - jnp.sum(TALL, axis=1) * 0.5

            method = Auto(bend=bend)

            def advance(carry, _):
                step, state = method.direction(linearise(residual, carry[0]), carry[1])
                return (carry[0] - step, state), None

            start = jnp.zeros(4), method.init(jnp.zeros(4))
            return jax.lax.scan(advance, start, length=6)[0][0]

        plain, scaled = jax.jit(jax.vmap(one))(jnp.stack([jnp.ones(4), units]))
        return plain, scaled * units

    bent, scaled = iterates(True)
    np.testing.assert_allclose(scaled, bent, rtol=2e-3)
    unbent, scaled = iterates(False)
    np.testing.assert_allclose(scaled, unbent, rtol=1e-9)


def test_first_step_is_spring_when_there_are_few_rows():
    """Started from φ = 0, J⁺r at the damping it reports, times the step size it reports."""
    lin, method = linear(WIDE, WIDE_R), Auto(damping=1e-2)
    step, state = take(method, lin, method.init(jnp.zeros(8)))
    lam = 1e-2 * np.sum(np.asarray(WIDE) ** 2) / 3
    expected = np.asarray(take(sg.SNG(damping=lam), lin, ())[0])
    step_size = method.report(state)["step_size"]
    np.testing.assert_allclose(step, step_size * expected, rtol=1e-10)
    np.testing.assert_allclose(state.few.increment, expected, rtol=1e-10)
    # ρ = 2/3 at the first step, β = 16/3.
    np.testing.assert_allclose(step_size, (2 / 3 + 3 / 16) / (5 / 3), rtol=1e-12)


def test_second_step_keeps_momentum():
    lin, method = linear(WIDE, WIDE_R), sg.AdaptiveSpring(bend=False)
    _, before = take(method, lin, method.init(jnp.zeros(8)))
    _, after = take(method, lin, before)
    np.testing.assert_allclose(before.trial.damping, 1e-2 / 5, rtol=1e-12)  # J is constant: no other bound
    lam = 1e-2 / 5 * np.sum(np.asarray(WIDE) ** 2) / 3
    spring = sg.Spring(damping=lam, momentum=after.pace.momentum)
    expected, _ = take(spring, lin, sg.methods.SpringState(before.increment))
    np.testing.assert_allclose(after.increment, expected, rtol=1e-10)
    np.testing.assert_allclose(after.pace.momentum, (1 - 2 / 4) / (1 + 2 / 4), rtol=1e-12)


@pytest.mark.parametrize("rows", [9, 3])
def test_bend_is_half_the_second_derivative(rows):
    """On a quadratic residual the probe is exact: the extra part is ½ J⁺ r''[s, s]."""
    J, b = (TALL, TALL_R) if rows == 9 else (WIDE, WIDE_R)
    n = J.shape[1]
    Q = 1e-3 * np.random.default_rng(1).normal(size=(rows, n, n))
    after = jax.tree_util.Partial(quadratic, J, jnp.asarray(Q), b)
    lin = sg.Linearisation(-b, sg.DenseJacobian(J), after)  # at x = 0
    steps = [take(Auto(bend=bend), lin, Auto().init(jnp.zeros(n))) for bend in (False, True)]
    (plain, state), (bent, _) = steps
    J, plain = np.asarray(J), np.asarray(plain)
    second = 2 * np.einsum("kij,i,j->k", Q, plain, plain)
    A = J.T @ J
    ridge = 1e-2 * (np.diag(np.diag(A)) if rows == 9 else np.trace(A) / rows * np.eye(n))
    np.testing.assert_allclose(bent - plain, np.linalg.inv(A + ridge) @ J.T @ second / 2, rtol=1e-6)
    assert Auto().report(state)["refused"] == 0


@pytest.mark.parametrize("bend", [False, True])
@pytest.mark.parametrize("curved", [0.03, 0.3])
def test_damping_is_at_least_the_change_of_the_jacobian(bend, curved):
    """As long as that is less than what the residual says, 1e-2 where it has not fallen."""
    Q = curved * np.random.default_rng(1).normal(size=(3, 8, 8))
    after = jax.tree_util.Partial(quadratic, WIDE, jnp.asarray(Q), WIDE_R)
    lin = sg.Linearisation(-WIDE_R, sg.DenseJacobian(WIDE), after)
    method = sg.AdaptiveSpring(bend=bend)
    _, before = take(method, lin, method.init(jnp.zeros(8)))
    first = np.asarray(before.increment * before.pace.step_size)
    second = 2 * np.einsum("kij,i,j->k", Q, first, first)
    turn = np.sum(second**2) / np.sum((np.asarray(WIDE) @ first) ** 2)
    np.testing.assert_allclose(before.turn, turn, rtol=1e-6)
    assert (turn < 1e-2) == (curved == 0.03)
    before = replace(before, trial=replace(before.trial, damping=jnp.asarray(1e-12)))  # trials ask for none
    _, state = take(method, lin, before)
    lam = min(turn, 1e-2) * np.sum(np.asarray(WIDE) ** 2) / 3
    spring = sg.Spring(damping=lam, momentum=state.pace.momentum)
    expected, _ = take(spring, lin, sg.methods.SpringState(before.increment))
    np.testing.assert_allclose(state.increment, expected, rtol=1e-6)


def quadratic(J, Q, b, step):
    """Jx + xᵀQx − b at x = −step."""
    return -J @ step + jnp.einsum("kij,i,j->k", Q, step, step) - b


def test_linear_least_squares_to_the_last_digit():
    rng = np.random.default_rng(1)
    J, b = rng.normal(size=(40, 10)) * np.logspace(0, -6, 10), rng.normal(size=40)
    x, _ = iterate(lambda x: J @ x - b, jnp.zeros(10), 25)
    exact = np.linalg.lstsq(J, b, rcond=None)[0]
    np.testing.assert_allclose(x, exact, rtol=1e-8)


def test_orthogonal_factors_where_the_gram_matrix_fails():
    """λ = 1e-19 with unit columns and singular values down to 1e-9: only J itself can tell."""
    U, V = np.linalg.qr(np.asarray(TALL))[0], np.linalg.qr(np.asarray(TALL)[:4])[0]
    J = U * np.logspace(0, -9, 4) @ V.T
    r = U @ np.logspace(0, -9, 4)  # so that J⁺r = V 1
    method = Auto(damping=1e-20, bend=False)
    step, _ = jax.jit(lambda state: method.direction(linear(J, r), state))(method.init(jnp.zeros(4)))
    u, s, vt = np.linalg.svd(J / np.linalg.norm(J, axis=0), full_matrices=False)
    # The least damping that the method allows, eps^1.5, counts from the next step on.
    expected = vt.T @ (s / (s**2 + 1e-20) * (u.T @ r)) / np.linalg.norm(J, axis=0)
    np.testing.assert_allclose(step, expected, rtol=1e-5)
    np.testing.assert_allclose(step, V @ np.ones(4), rtol=2e-2)


def test_where_orthogonal_factors_take_too_long(monkeypatch):
    """The damping goes a hundred times below what Cholesky bears, and the step is that of the damping."""
    rng = np.random.default_rng(3)
    U, V = np.linalg.qr(rng.normal(size=(30, 8)))[0], np.linalg.qr(rng.normal(size=(8, 8)))[0]
    J, r = U * np.logspace(0, -8, 8) @ V.T, rng.normal(size=30)
    pretend(monkeypatch, "cpu", limit=0)
    least = 0.1 * rank_cutoff(8, jnp.dtype("float64")) / 100
    method = Auto(damping=1e-20, bend=False)
    step, state = jax.jit(lambda state: method.direction(linear(J, r), state))(method.init(jnp.zeros(8)))
    u, s, vt = np.linalg.svd(J / np.linalg.norm(J, axis=0), full_matrices=False)
    expected = vt.T @ (s / (s**2 + least) * (u.T @ r)) / np.linalg.norm(J, axis=0)
    np.testing.assert_allclose(J @ step, J @ expected, atol=1e-5 * np.linalg.norm(r))
    assert state.many.trial.refused == 0
    np.testing.assert_allclose(step, expected, rtol=1e-3)


def test_follows_a_curved_valley():
    """Rosenbrock's function, a thousand times as steep: the bend is what gets it there."""

    def residual(x):
        return jnp.array([1e3 * (x[1] - x[0] ** 2), 1 - x[0], 1e-3 * x[0] - 1e-3])

    start = jnp.array([-1.2, 1.0])
    bent, _ = iterate(residual, start, 60)
    np.testing.assert_allclose(bent, jnp.ones(2), rtol=1e-8)
    straight, _ = iterate(residual, start, 60, Auto(bend=False))
    assert jnp.linalg.norm(straight - 1) > 1e-2


def test_kaczmarz_on_fresh_rows():
    """A consistent system, few rows per step: it converges, and faster than plain SNG at η = 1."""
    A = jax.random.normal(KEY, (400, 60)) * jnp.logspace(0, -1.5, 60)[None]
    exact = jnp.ones(60)

    def run(method, unit):
        def advance(carry, key):
            x, state = carry
            rows = jax.random.choice(key, 400, (12,), replace=False)
            J = A[rows]
            r = J @ (x - exact)
            lin = sg.Linearisation(r, sg.DenseJacobian(J), lambda step: r - J @ step)
            step, state = method.direction(lin, state)
            return (x - unit * step, state), jnp.linalg.norm(x - exact)

        start = (jnp.zeros(60), method.init(jnp.zeros(60)))
        return jax.jit(lambda: jax.lax.scan(advance, start, jax.random.split(KEY, 1500)))()

    (_, state), auto = run(Auto(), 1.0)
    _, plain = run(sg.SNG(1e-8), 1.0)
    assert auto[-1] < 1e-3 * auto[0]
    assert auto[-1] < 0.1 * plain[-1]
    assert 0 <= state.few.pace.momentum < 1 and int(state.few.trial.step) == 1500


def test_beta_follows_what_rows_say_of_each_other():
    """2n/k for rows in random directions, less for smooth ones, and raised while nothing improves."""
    method = sg.AdaptiveSpring()

    def beta(J, r, steps=1):
        @jax.jit
        def advance(state, r):
            lin = sg.Linearisation(r, sg.DenseJacobian(J), lambda step: r - J @ step)
            return method.direction(lin, state)[1]

        state = method.init(jnp.zeros(J.shape[1]))
        for _ in range(steps):
            state = advance(state, r)
        pace = state.pace
        rho = (1 - pace.momentum) / (1 + pace.momentum)
        return 1 / (pace.step_size * jnp.exp(-pace.log_decay) * (1 + rho) - rho), pace

    k, n = 20, 400
    J = jax.random.normal(KEY, (k, n))
    value, pace = beta(J, jnp.ones(k))
    np.testing.assert_allclose(pace.explained, (k - 1) / n, rtol=0.25)  # of k − 1 others, with their damping
    np.testing.assert_allclose(value, 2 * n / k, rtol=1e-9)
    x = jnp.linspace(0, 1, k)
    smooth = jnp.exp(-((x[:, None] - jnp.linspace(0, 1, n)[None]) ** 2) / 0.1)
    value, pace = beta(smooth, jnp.sin(3 * x))
    assert 0.95 < pace.explained <= 1
    np.testing.assert_allclose(value, 4 / pace.explained, rtol=1e-9)
    # A residual that never changes: β goes to its most, and only then does the step size decay.
    value, pace = beta(smooth, jnp.sin(3 * x), steps=53)
    assert 4 < value < 2 * n / k and pace.log_decay == 0
    value, pace = beta(smooth, jnp.sin(3 * x), steps=70)
    np.testing.assert_allclose(value, 2 * n / k, rtol=1e-9)
    assert pace.log_decay < 0


def network(params, x):
    """A small network as a residual: a structured Jacobian, with a trial step, from `sg.linearise`."""
    return jnp.tanh(x @ params["W"]) @ params["v"] - jnp.sin(x[0])


def network_lin(rows):
    rng = np.random.default_rng(2)
    params = {"W": jnp.asarray(rng.normal(size=(2, 6))), "v": jnp.asarray(rng.normal(size=6))}
    return params, sg.linearise(network, params, jnp.asarray(rng.normal(size=(rows, 2))))


def pretend(monkeypatch, backend, limit):
    """A machine of this kind, on which QR of more than so many operations takes too long."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(_policy, "FLOP_LIMIT", limit)


@pytest.mark.parametrize(
    ("backend", "large", "least"),
    [("cpu", "cholesky", 10 * 4 * 2.0**-52 / 10), ("gpu", "cholesky_qr", 1e-20)],
)
def test_only_cholesky_raises_the_damping(monkeypatch, backend, large, least):
    """Where QR takes too long a GPU has another orthogonal factorisation, which bears any damping."""
    damping = jnp.asarray(1e-20)
    pretend(monkeypatch, backend, limit=9 * 4**2)
    assert _policy.affordable_solver(9, 4) == "auto" and _policy.affordable_solver(10, 4) == large
    assert _policy.bearable_damping(damping, 9, 4) == damping
    np.testing.assert_allclose(_policy.bearable_damping(damping, 10, 4), least)


def test_cholesky_qr_waits_until_cholesky_is_not_trusted(monkeypatch):
    """A decade below what is certain the cheap factorisation is taken still; below that, the other one."""
    pretend(monkeypatch, "gpu", limit=0)
    solver = _policy.affordable_solver(9, 4)
    part = _policy.trusted_part(solver)
    assert (solver, part, _policy.trusted_part("auto")) == ("cholesky_qr", 0.1, 1.0)
    A = jnp.asarray(
        np.linalg.qr(np.random.default_rng(0).normal(size=(9, 4)))[0] * 0.1 ** np.arange(0, 24, 6)
    )
    for share, same in ((0.2, True), (0.05, False)):
        damping = share * rank_cutoff(4, A.dtype)
        found = factorise(gram(A.T), damping, solver, rows=A, unit=part)
        plain = factorise(gram(A.T), damping, "cholesky")
        assert bool(jnp.array_equal(found.L, plain.L)) == same


def test_cholesky_qr_gives_the_same_step(monkeypatch):
    """Few rows: of Jᵀ, by SPRING, at a damping that the gram matrix has lost."""
    J = WIDE.at[1].set(WIDE[0] + 1e-8 * WIDE[1])
    lin = linear(J, J @ jnp.ones(8))
    method = sg.AdaptiveSpring(damping=1e-18, bend=False)  # on an exact model it solves for rounding errors
    monkeypatch.setattr("snapgrad.methods._adaptive_spring.START", 0.0)

    def step():
        return jax.jit(lambda state: method.direction(lin, state))(method.init(jnp.zeros(8)))

    by_qr, _ = step()
    pretend(monkeypatch, "gpu", limit=0)
    monkeypatch.setattr(_policy, "store_rows", lambda *args: False)
    found, state = step()
    assert np.any(by_qr) and state.trial.refused == 0
    np.testing.assert_allclose(found, by_qr, rtol=1e-6)


def test_cholesky_qr_keeps_what_float32_loses_by_squaring(monkeypatch):
    """Two columns that differ by a thousandth: with Cholesky the step would be a tenth off."""
    J = TALL.at[:, 1].set(TALL[:, 0] + 1e-3 * TALL[:, 1]).astype(jnp.float32)
    lin = linear(J, J @ jnp.ones(4, jnp.float32))
    pretend(monkeypatch, "cpu", limit=0)
    method = sg.LevenbergMarquardt(damping=1e-12, bend=False)
    step, _ = method.propose(lin, method.init(jnp.zeros(4, jnp.float32)))
    np.testing.assert_allclose(step, np.ones(4), atol=3e-3)


def test_a_parameter_with_hardly_any_effect_stays():
    """A column 1e-20 of the others, as that of a saturated unit, would else move it by 1e19."""
    J = TALL.at[:, 2].multiply(1e-20)
    step, _ = take(sg.LevenbergMarquardt(), linear(J, TALL_R), sg.LevenbergMarquardt().init(jnp.zeros(4)))
    assert abs(step[2]) < 1 and np.linalg.norm(step) > 0.1
    others = np.array([0, 1, 3])
    alone = np.linalg.lstsq(np.asarray(TALL)[:, others], np.asarray(TALL_R))[0]
    np.testing.assert_allclose(step[others], alone, rtol=0.1)


def test_stored_rows_give_the_same_step(monkeypatch):
    """What a GPU does with few rows."""
    params, lin = network_lin(17)
    step, _ = eqx.filter_jit(Auto().direction)(lin, Auto().init(params))
    asked = []
    monkeypatch.setattr("snapgrad.methods._policy.store_rows", lambda *args: asked.append(args) or True)
    stored, _ = jax.jit(lambda lin, state: Auto().direction(lin, state))(lin, Auto().init(params))
    assert asked, "a program compiled before would not have asked"
    for name in params:
        np.testing.assert_allclose(stored[name], step[name], rtol=1e-8, atol=1e-10)


def test_the_choice_is_by_rows():
    """As many rows as parameters: Levenberg–Marquardt; fewer: SPRING. It reports the one that it used."""
    for rows, method in ((18, sg.LevenbergMarquardt()), (17, sg.AdaptiveSpring())):
        params, lin = network_lin(rows)
        step, state = eqx.filter_jit(Auto().direction)(lin, Auto().init(params))
        expected, alone = eqx.filter_jit(method.direction)(lin, method.init(params))
        assert eqx.tree_equal(step, expected)
        report = method.report(alone)
        assert {name: Auto().report(state)[name] for name in report} == report


def test_complex_parameters_are_pairs_of_real_ones():
    """Levenberg–Marquardt on a residual that is linear in Re z and Im z."""
    z = jnp.zeros(2, complex)

    def residual(z, row):
        return row[:2] @ z.real + row[2:] @ z.imag - 1

    method = sg.LevenbergMarquardt(damping=0.1)
    step, _ = eqx.filter_jit(method.direction)(sg.linearise(residual, z, TALL), method.init(z))
    M = np.asarray(TALL)
    A = M.T @ M
    exact = np.linalg.solve(A + 0.1 * np.diag(np.diag(A)), -M.sum(axis=0))
    np.testing.assert_allclose(step, exact[:2] + 1j * exact[2:], rtol=1e-10)


def constant(value):
    """A residual that no step changes."""
    return jax.tree_util.Partial(_constant, value)


def _constant(value, step):
    del step
    return value


def test_a_step_that_raises_the_loss_is_refused():
    lin = sg.Linearisation(jnp.ones(9), sg.DenseJacobian(TALL), constant(jnp.full(9, 2.0)))
    method = Auto()
    state = method.init(jnp.zeros(4))
    dampings = []
    for _ in range(3):
        step, state = take(method, lin, state)
        assert not np.any(step)
        dampings.append(float(method.report(state)["damping"]))
    # At once to what the step feels, ‖Js‖²/‖Ds‖²; from then on by growing factors.
    A = np.asarray(TALL) / np.linalg.norm(TALL, axis=0)
    s = np.linalg.solve(A.T @ A + 1e-2 * np.eye(4), A.sum(axis=0))
    felt = np.sum((A @ s) ** 2) / np.sum(s**2)
    assert felt > 2e-2
    np.testing.assert_allclose(dampings, [felt, 4 * felt, 32 * felt], rtol=1e-9)
    assert int(method.report(state)["refused"]) == 3


def test_nan_after_the_step_is_refused_nan_before_it_is_guarded():
    method = Auto()
    jac, state = sg.DenseJacobian(TALL), method.init(jnp.zeros(4))
    lin = sg.Linearisation(jnp.ones(9), jac, constant(jnp.full(9, jnp.nan)))
    step, after = take(method, lin, state)
    assert not np.any(step) and after.many.trial.damping > state.many.trial.damping
    bad = sg.Linearisation(jnp.full(9, jnp.nan), jac, constant(jnp.ones(9)))
    step, after = take(method, bad, state)
    assert not np.any(step)
    assert eqx.tree_equal(after, state)


def test_a_kernel_that_overflows_is_a_refusal():
    """Rows so large that their products are infinite: more damping, and the next batch is as good as ever."""
    method = Auto()
    step, state = take(method, linear(1e200 * WIDE, WIDE_R), method.init(jnp.zeros(8)))
    np.testing.assert_array_equal(step, 0)
    report = method.report(state)
    assert int(report["refused"]) == 1 and report["damping"] > 1e-2
    step, state = take(method, linear(WIDE, WIDE_R), state)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((step, state)))
    assert np.linalg.norm(WIDE_R - np.asarray(WIDE) @ step) < np.linalg.norm(WIDE_R)


def test_float32_and_trees():
    params = {"a": jnp.zeros((2, 2), jnp.float32), "b": jnp.zeros(3, jnp.float32)}
    rng = np.random.default_rng(3)
    rows = {"a": jnp.asarray(rng.normal(size=(20, 2, 2)), jnp.float32), "b": jnp.ones((20, 3), jnp.float32)}
    lin = affine(jnp.asarray(rng.normal(size=20), jnp.float32), sg.DenseJacobian(rows))
    method = Auto()
    state = method.init(params)
    step, after = take(method, lin, state)
    assert jax.tree.map(lambda x: x.dtype, step) == jax.tree.map(lambda x: x.dtype, params)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(step))


def test_bad_input():
    lin = sg.Linearisation(jnp.ones(3), sg.DenseJacobian(jnp.eye(3, 2)))
    with pytest.raises(ValueError, match="residual_at"):
        Auto().direction(lin, Auto().init(jnp.zeros(2)))
    with pytest.raises(TypeError, match="residual_at"):
        sg.Linearisation(jnp.ones(3), sg.DenseJacobian(jnp.eye(3, 2)), jnp.ones(3))
    with pytest.raises(ValueError, match="`damping` must be >= 0"):
        Auto(damping=-1)
