"""Steps by conjugate gradients: the same as by factorisation, from products alone, with what they report."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import affine, take

import snapgrad as sg
from snapgrad.methods._system import linear_system

RNG = np.random.default_rng(0)
WIDE = RNG.normal(size=(12, 30)) * np.logspace(0, -2, 30)
R = {12: jnp.asarray(RNG.normal(size=12)), 30: jnp.asarray(RNG.normal(size=30))}
TIGHT = sg.CG(tolerance=1e-12)


class ProductsOnly(sg.AbstractJacobian):
    """An operator that cannot form its kernel or its rows."""

    J: jax.Array

    @property
    def shape(self):
        return self.J.shape

    def gram(self):
        raise AssertionError("the kernel was formed")

    def dense(self):
        raise AssertionError("the rows were formed")

    def mv(self, tangent):
        return self.J @ tangent

    def rmv(self, cotangent):
        return self.J.T @ cotangent


def lin_of(J, r=None, operator=ProductsOnly):
    J = jnp.asarray(J)
    return affine(R[J.shape[0]] if r is None else r, operator(J))


DIRECT = {
    "sng": lambda solver: sg.SNG(1e-3, solver),
    "spring": lambda solver: sg.Spring(1e-3, 0.9, solver),
    "auto": lambda solver: sg.Auto(solver=solver),
}


@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize("solver", [TIGHT, sg.CG(tolerance=1e-12, rank=5), sg.CG(tolerance=1e-12, rank=0)])
def test_the_direct_steps_from_products_alone(name, solver):
    """Three steps on the same rows; those of `sg.Auto` agree where the sketch knows the whole kernel."""
    direct, free = DIRECT[name]("auto"), DIRECT[name](solver)
    lin, products = lin_of(WIDE, operator=sg.DenseJacobian), lin_of(WIDE)
    state, own = direct.init(jnp.zeros(30)), free.init(jnp.zeros(30))
    for _ in range(3):
        step, state = take(direct, lin, state)
        found, own = take(free, products, own)
        if name == "auto" and solver.rank < 12:
            # λ and the step size come from estimates of the trace and of what rows explain.
            assert np.linalg.norm(found - step) < 0.7 * np.linalg.norm(step)
            break
        np.testing.assert_allclose(found, step, rtol=1e-8, atol=1e-10)
    report = free.report(own)
    assert report["cg_residual"] < 1e-12 and report["cg_unconverged"] == 0 and report["cg_steps"] > 0


@pytest.mark.parametrize("rank", [0, 5, 64])
@pytest.mark.parametrize("tall", [False, True])
def test_pseudoinverse_without_damping(tall, rank):
    """More rows than parameters, and dependent ones: the least-squares solution of least norm."""
    J = RNG.normal(size=(12, 4)) @ RNG.normal(size=(4, 30))
    J = J.T if tall else J
    r = R[30] if tall else jnp.asarray(J @ RNG.normal(size=30))  # on few rows it must be in their span
    method = sg.SNG(0.0, sg.CG(tolerance=1e-10, rank=rank))
    step, state = take(method, lin_of(J, r), method.init(jnp.zeros(J.shape[1])))
    np.testing.assert_allclose(step, np.linalg.pinv(J) @ r, rtol=1e-7, atol=1e-9)
    assert method.report(state)["cg_unconverged"] == 0


def test_a_solve_that_fails_is_counted_and_leads_nowhere_bad():
    """Dependent rows, no damping, a residual outside of their span: there is no solution, and it says so."""
    J = RNG.normal(size=(12, 2)) @ RNG.normal(size=(2, 30))
    method = sg.Spring(0.0, 0.9, "cg")
    lin, state = lin_of(J), method.init(jnp.zeros(30))
    for count in (1, 2):
        step, state = take(method, lin, state)
        report = method.report(state)
        assert report["cg_unconverged"] == count and 1e-2 < report["cg_residual"] <= 1 + 1e-12
        assert np.linalg.norm(lin.residual_at(step)) <= np.linalg.norm(lin.residual) * (1 + 1e-12)


def test_default_tolerance_is_that_of_the_type():
    for dtype, tolerance in ((jnp.float64, 1e-6), (jnp.float32, 2**-11.5)):
        method = sg.SNG(1e-3, "cg")
        lin = lin_of(WIDE.astype(dtype), R[12].astype(dtype))
        _, state = take(method, lin, method.init(jnp.zeros(30, dtype)))
        assert state.residual.dtype == dtype and state.residual < tolerance
        np.testing.assert_allclose(sg.CG().goal(dtype), tolerance, rtol=1e-6)
    assert sg.SNG(solver="cg").solver == sg.CG() and hash(sg.CG()) == hash(sg.CG(rank=64))


def test_complex_parameters():
    log_psi = lambda p, x: jnp.sum(jnp.log(jnp.cosh(x @ p)))  # noqa: E731
    params = jnp.asarray(RNG.normal(size=(2, 3)) + 1j * RNG.normal(size=(2, 3)))
    for points in (4, 9):  # 8 or 18 rows, 12 real parameters
        samples = jnp.asarray(np.random.default_rng(1).normal(size=(points, 2)))
        jac = sg.jacobian(sg.realify(log_psi), params, samples)
        lin = sg.Linearisation(jnp.linspace(-1, 1, 2 * points), jac)
        step, _ = take(sg.SNG(1e-2), lin, ())
        method = sg.SNG(1e-2, TIGHT)
        found, _ = take(method, lin, method.init(params))
        np.testing.assert_allclose(found, step, rtol=1e-8)


@pytest.mark.parametrize("rank", [0, 16, 64])
def test_what_a_sketch_knows_of_the_kernel(rank):
    """Its trace and what rows explain of each other, for a smooth kernel; exactly if it has sketched all."""
    x = jnp.linspace(0, 1, 40)
    J = jnp.exp(-((x[:, None] - jnp.linspace(0, 1, 50)[None]) ** 2) / 0.1) + 0.05 * jnp.eye(40, 50)
    jac, one = sg.DenseJacobian(J), jnp.asarray(1e-3)
    exact = linear_system(jac, one, "auto", J.dtype)
    system = linear_system(jac, one, sg.CG(tolerance=1e-12, rank=rank), J.dtype)
    # J^{+(λ)} of a large λ is Jᵀ/λ, and so tells λ, which is the mean of the diagonal times 1e6.
    large = jnp.asarray(1e6)
    u = jnp.sin(5 * x)
    unit, estimate = (
        1 / jnp.linalg.norm(linear_system(jac, large, solver, J.dtype).pinv(u))
        for solver in ("auto", sg.CG(rank=rank))
    )
    np.testing.assert_allclose(estimate / unit, 1, rtol={0: 0.5, 16: 2e-2, 64: 1e-8}[rank])
    assert exact.explained > 0.9
    if rank:  # without a sketch nothing is known of what rows explain, and steps are the careful ones
        np.testing.assert_allclose(system.explained, exact.explained, atol={16: 0.02, 64: 1e-8}[rank])
    else:
        assert abs(system.explained) < 1e-9


def test_training_goes_as_with_factorisations_and_is_recorded():
    """A fit on fresh batches; products of a network, in the loop that users run."""
    x = jnp.linspace(-1, 1, 60)
    params = {name: jax.random.normal(jax.random.key(i), (20,)) for i, name in enumerate("wbv")}
    problem = sg.LeastSquares(
        lambda p, row: jnp.tanh(row[0] * p["w"] + p["b"]) @ p["v"] - row[1], (x, jnp.sin(3 * x)), params
    )
    losses = {}
    for solver in ("auto", "cg"):
        result = sg.fit(
            problem,
            jax.random.key(1),
            method=sg.Auto(solver=solver),
            batch_size=30,
            steps=40,
            record_every=20,
        )
        losses[solver] = result.history["loss"]
    assert losses["cg"][-1] < 1e-4 * losses["cg"][0]
    np.testing.assert_allclose(np.log10(losses["cg"][-1]), np.log10(losses["auto"][-1]), atol=0.5)
    history = result.history
    assert {"cg_steps", "cg_residual", "cg_unconverged"} <= set(history)
    assert history["cg_steps"][-1] > 0 and 0 < history["cg_residual"][-1] < 1e-6
    assert history["cg_unconverged"][-1] == 0


def test_a_sweep_over_damping_is_one_vmap():
    lin = lin_of(WIDE)
    sweep = jnp.logspace(-6, 0, 4)

    def residual(damping):
        method = sg.SNG(damping, TIGHT)
        _, state = method.direction(lin, method.init(jnp.zeros(30)))
        return method.report(state)["cg_steps"]

    steps = eqx.filter_jit(jax.vmap(residual))(sweep)
    assert steps.shape == (4,) and np.all(np.asarray(steps) >= 1)
