"""PINNs: operators, domains, blocks, samplers, the solver, bad input, and that nothing stalls."""

import importlib.util
import itertools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.integrate import quad

import snapgrad as sg
from snapgrad import pinn
from snapgrad.pinn._references import allen_cahn_grid, burgers_grid

KEY = jax.random.key(0)
NET = pinn.MLP([3, 5, 4, 1])
PARAMS = NET.init(KEY)
W = jax.random.normal(KEY, (3, 3))

FUNCTIONS = {
    "mlp": lambda x: NET(PARAMS, x),
    "compiled": jax.jit(lambda x: NET(PARAMS, x)),
    "remat": jax.checkpoint(lambda x: NET(PARAMS, x)),
    "gelu": lambda x: jnp.sum(jax.nn.gelu(W @ x)),
    "softplus": lambda x: jnp.sum(jax.nn.softplus(W @ x)),  # a custom derivative
    "swish": lambda x: jnp.prod(jax.nn.swish(W @ x)),
    "sine": lambda x: jnp.sin(x[0] * x[1]) + x[2] ** 3,
    "quotient": lambda x: x[0] / (2 + jnp.cos(x[1] * x[2])) + x[1] / 3 + 2 / (3 + x[0]),
    "norm": lambda x: jnp.linalg.norm(x - 2) ** 1.5,
    "bilinear": lambda x: x @ W @ jnp.tanh(x),
    "power": lambda x: jnp.sum((2 + x) ** (1 + x[::-1])),
    "maximum": lambda x: jnp.sum(jnp.maximum(x, 0.1) ** 2),
    "indexed": lambda x: jnp.concatenate([x[1:], x[:1] ** 2])[::-1] @ x,
    "where": lambda x: jnp.where(x[0] > 5, x[1], x[2] ** 2 * x[0]),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) + y[0] * x, x).sum(),
    "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(W @ c), c.sum()), x, length=3)[1].sum(),
    "vector": lambda x: jnp.stack([jnp.sin(x[0]) * x[1], x @ x, jnp.exp(x[2])]),
    "linear": lambda x: W[0] @ x,
    "constant": lambda x: jnp.array(2.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_against_nested_differentiation(name):
    f, x = FUNCTIONS[name], jnp.array([0.3, -0.7, 0.4])
    hessian = jax.jacfwd(jax.jacfwd(f))(x)
    value, gradient, laplacian = pinn.derivatives(f, x)
    np.testing.assert_allclose(value, f(x), rtol=1e-13)
    np.testing.assert_allclose(gradient, jax.jacfwd(f)(x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(laplacian, jnp.trace(hessian, axis1=-2, axis2=-1), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(pinn.laplacian(f, x), laplacian, rtol=1e-12, atol=1e-14)
    part = hessian[..., 0, 0] + hessian[..., 2, 2]
    np.testing.assert_allclose(pinn.laplacian(f, x, [0, -1]), part, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(pinn.derivatives(f, x, slice(0, 3, 2)).laplacian, part, rtol=1e-11, atol=1e-13)


def test_other_operators():
    x = jnp.array([0.3, -0.7, 0.4])
    field = FUNCTIONS["vector"]
    np.testing.assert_allclose(pinn.divergence(field, x), jnp.trace(jax.jacfwd(field)(x)))
    np.testing.assert_allclose(pinn.time_derivative(field, x), jax.jacfwd(field)(x)[:, 0])
    direction = jnp.array([1.0, 2.0, -1.0])
    np.testing.assert_allclose(pinn.directional(field, x, direction), jax.jacfwd(field)(x) @ direction)
    with pytest.raises(ValueError, match="one point"):
        pinn.laplacian(FUNCTIONS["sine"], jnp.ones((4, 3)))
    with pytest.raises(ValueError, match="`axes` must name some of the 3"):
        pinn.laplacian(FUNCTIONS["sine"], x, axes=3)
    with pytest.raises(ValueError, match="`field` must return 3 components"):
        pinn.divergence(lambda x: x[:2], x)


def test_laplacian_rows_are_few_outer_products():
    """d + 2 for a hidden weight: value, d slopes and the Laplacian; nested derivatives have more."""
    network = pinn.MLP([3, 64, 64, 1])
    params = network.init(KEY)

    def products(residual):
        jac = sg.jacobian(residual, params, jnp.ones((2, 3)))
        plan = {leaf.name: leaf for leaf in jac.plan().leaves}
        return sum(region.products for region in plan["[1]['W']"].regions), jac

    forward, jac = products(lambda p, x: pinn.laplacian(lambda y: network(p, y), x))
    nested, other = products(lambda p, x: jnp.trace(jax.hessian(lambda y: network(p, y))(x)))
    assert forward <= 5 < nested
    np.testing.assert_allclose(jac.gram(), other.gram(), rtol=1e-10)


DOMAINS = {
    "box": (
        pinn.Box([0, -1], [2, 3]),
        lambda x: (x >= jnp.array([[0, -1]])).all() & (x <= jnp.array([[2, 3]])).all(),
    ),
    "interval": (pinn.Box(1, 2), lambda x: ((x >= 1) & (x <= 2)).all()),
    "boundary": (
        pinn.Box([0, -1], [2, 3]).boundary(),
        lambda x: ((x[:, 0] == 0) | (x[:, 0] == 2) | (x[:, 1] == -1) | (x[:, 1] == 3)).all(),
    ),
    "ball": (
        pinn.Ball([1, 0, 0], 2),
        lambda x: (jnp.linalg.norm(x - jnp.eye(1, 3), axis=1) <= 2 + 1e-12).all(),
    ),
    "sphere": (
        pinn.Ball([1, 0, 0], 2).boundary(),
        lambda x: jnp.allclose(jnp.linalg.norm(x - jnp.eye(1, 3), axis=1), 2),
    ),
    "space-time": (
        pinn.SpaceTime(pinn.Box([5], [6]), 0, 2),
        lambda x: ((x[:, 0] <= 2) & (x[:, 1] >= 5)).all(),
    ),
    "initial": (pinn.SpaceTime(pinn.Box([5], [6]), 1, 2).initial(), lambda x: (x[:, 0] == 1).all()),
    "lateral": (
        pinn.SpaceTime(pinn.Box([5], [6]), 0, 2).boundary(),
        lambda x: ((x[:, 1] == 5) | (x[:, 1] == 6)).all(),
    ),
}


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("how", ["sample", "spread"])
def test_points_are_in_their_domain(name, how):
    domain, inside = DOMAINS[name]
    x = getattr(domain, how)(KEY, 37)
    assert x.shape == (37, domain.dim) and bool(inside(x))


def test_points_are_uniform():
    """Means and shares against exact ones, within five standard errors."""
    count = 20_000
    box = pinn.Box([0, 0], [3, 1])
    edge = box.boundary().sample(KEY, count)
    long_sides = float(jnp.mean((edge[:, 1] == 0) | (edge[:, 1] == 1)))
    assert abs(long_sides - 6 / 8) < 5 * np.sqrt(0.75 * 0.25 / count)
    radius = jnp.linalg.norm(pinn.Ball([0, 0, 0], 1).sample(KEY, count), axis=1)
    assert abs(float(jnp.mean(radius**3)) - 0.5) < 5 / np.sqrt(12 * count)
    z = pinn.Sphere([0, 0, 0], 1).sample(KEY, count)[:, 2]  # Archimedes: uniform in [−1, 1]
    assert abs(float(jnp.mean(z**2)) - 1 / 3) < 5 * np.sqrt(4 / 45 / count)
    ends = pinn.Box(0, 1).boundary()
    assert all(sorted(ends.spread(jax.random.key(i), 2)[:, 0].tolist()) == [0, 1] for i in range(20))


def test_spread_points_integrate_better():
    box, count = pinn.Box([0, 0], [1, 1]), 512
    f = lambda x: jnp.exp(x[:, 0] - x[:, 1] ** 2)  # noqa: E731
    exact = (np.e - 1) * quad(lambda y: np.exp(-(y**2)), 0, 1)[0]
    errors = {
        how: np.std(
            [float(jnp.mean(f(getattr(box, how)(jax.random.key(i), count)))) - exact for i in range(20)]
        )
        for how in ("sample", "spread")
    }
    assert errors["spread"] < errors["sample"] / 5


def small_problem(**change):
    given = {"network": pinn.MLP([2, 6, 1]), "exact": lambda x: jnp.sin(x[0]) * x[1]}
    box = pinn.Box([0, 0], [1, 1])
    blocks = [
        pinn.Block("interior", lambda u, x: pinn.laplacian(u, x) + u(x) ** 2, box, 7, weight=2.0),
        pinn.Block("boundary", lambda u, x: jnp.stack([u(x), pinn.gradient(u, x)[0]]), box.boundary(), 4),
    ]
    return pinn.PINN(**{**given, "blocks": blocks, **change})


def test_linearisation_is_the_derivative_of_the_residual():
    problem = small_problem()
    params, batch = problem.init(KEY), problem.draw(KEY)
    lin = problem.linearise(params, batch)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    residual = lambda flat: problem.linearise(unravel(flat), batch).residual  # noqa: E731
    assert lin.residual.shape == (7 + 2 * 4,)
    np.testing.assert_allclose(
        lin.jacobian.dense(), jax.jit(jax.jacrev(residual))(flat), rtol=1e-11, atol=1e-13
    )
    step = jax.tree.map(lambda p: 0.1 * jnp.ones_like(p), params)
    np.testing.assert_allclose(lin.residual_at(step), residual(flat - 0.1), rtol=1e-12)
    # ½‖r‖² is the weighted sum of mean squares.
    parts = problem.residuals(params, batch)
    loss = 2 * jnp.mean(parts["interior"] ** 2) + jnp.mean(jnp.sum(parts["boundary"] ** 2, axis=1))
    np.testing.assert_allclose(jnp.sum(lin.residual**2), loss, rtol=1e-12)


@pytest.mark.parametrize("points", [(100, 50), (300, 100)])  # all pairs of products at once, and one by one
def test_kernel_is_that_of_the_rows(points):
    """Many outer products a row in the interior, one on the boundary."""
    problem = pinn.zoo("poisson-5d", hidden=(32, 30), points=points)
    jac = jax.jit(lambda key: problem.linearise(problem.init(key), problem.draw(key)))(KEY).jacobian
    J = np.asarray(jac.dense())
    np.testing.assert_allclose(jac.gram(), J @ J.T, atol=1e-13 * np.sum(J**2))


def no_rows(batch):
    raise AssertionError("a plain sampler does not look at the rows")


def test_samplers():
    problem = small_problem()
    fixed, some, fresh = (pinn.Collocation(problem, every) for every in (None, 2, 1))
    seen = {}
    for name, sampler in (("fixed", fixed), ("some", some), ("fresh", fresh)):
        state, batches = sampler.init(KEY), []
        for t in range(4):
            batch, state = sampler.draw(jax.random.key(t), state, no_rows)
            batches.append(float(batch["interior"][0, 0]))
        seen[name] = batches
    assert len(set(seen["fixed"])) == 1 and len(set(seen["fresh"])) == 4
    assert seen["some"][0] == seen["some"][1] != seen["some"][2] == seen["some"][3]


def test_points_are_kept_longer_and_longer():
    sampler = pinn.Collocation(small_problem(), refresh_every=3, warm_up=True)
    state, batches = sampler.init(KEY), []
    for t in range(16):
        batch, state = sampler.draw(jax.random.key(t), state, no_rows)
        batches.append(float(batch["interior"][0, 0]))
    ages = [len(list(run)) for _, run in itertools.groupby(batches)]
    assert ages == [1, 1, 1, 2, 2, 3, 3, 3]


def test_adaptive_points_go_where_the_residual_is():
    box = pinn.Box([0, 0], [1, 1])
    peak = pinn.Block("interior", lambda u, x: u(x) * 0 + jnp.exp(-100 * (x[0] - 0.5) ** 2), box, 200)
    problem = pinn.PINN(pinn.MLP([2, 3, 1]), [peak])
    sampler = pinn.ResidualAdaptive(problem, refresh_every=1, floor=0.1)
    params = problem.init(KEY)
    batch, state = sampler.draw(KEY, sampler.init(KEY), lambda b: problem.linearise(params, b))
    near = lambda b: float(jnp.mean(jnp.abs(b["interior"][:, 0] - 0.5) < 0.1))  # noqa: E731
    assert 0.1 < near(batch) < 0.3
    batch, _ = sampler.draw(KEY, state, lambda b: problem.linearise(params, b))
    assert near(batch) > 0.5
    assert jnp.unique(batch["interior"], axis=0).shape[0] == 200


# Problem, hidden layers, points a step, and the error below which every seed must end after 300 steps.
SMALL = {
    "poisson-1d": ((16,), (64, 2), 1e-5),
    "poisson-2d": ((16,), (200, 40), 3e-4),
    "poisson-5d": ((16, 16), (500, 100), 0.1),
    "poisson-10d": ((16,), (60, 30), 0.15),
    "poisson-100d": ((16,), (60, 30), 0.2),
    "heat-1d": ((16,), (150, 20, 20), 1e-3),
    "heat-4d": ((16,), (300, 40, 40), 0.05),
    "burgers-1d": ((12, 12), (500, 40, 40), 2e-3),
    "allen-cahn-1d": ((12, 12), (500, 40, 40), 2e-3),
    "helmholtz-2d": ((16,), (200, 40), 0.05),
    "nonlinear-2d": ((16,), (200, 40), 1e-3),
    "fokker-planck-9d": ((16,), (200, 100), 0.4),
    "inverse-heat-1d": ((12,), (120, 40), 0.03),
}


def worst_error(name, seeds):
    hidden, points, _ = SMALL[name]
    problem = pinn.zoo(name, hidden=hidden, points=points)
    solutions = [pinn.solve(problem, jax.random.key(s), steps=300, record_every=100) for s in range(seeds)]
    return max(solution.history["relative_l2"][-1] for solution in solutions)


@pytest.mark.parametrize("name", ["poisson-1d", "poisson-10d"])
def test_no_seed_stalls(name):
    assert worst_error(name, 3) < SMALL[name][-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_no_seed_of_ten_stalls(name):
    assert worst_error(name, 10) < SMALL[name][-1]


def test_every_problem_of_the_zoo_is_among_them():
    assert set(SMALL) == set(pinn.NAMES)


def test_solve_stops_continues_and_reports():
    problem = pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    seen = []
    whole = pinn.solve(problem, KEY, steps=40, record_every=20, callback=lambda r, s: seen.append(r["step"]))
    assert whole.reason == "steps" and seen == [0, 20, 40]
    assert {"loss", "relative_l2", "damping", "gain", "seconds"} <= whole.history.keys()
    half = pinn.solve(problem, KEY, steps=20, record_every=20)
    rest = pinn.solve(problem, KEY, steps=20, record_every=20, state=half.state)
    assert eqx.tree_equal(whole.state, rest.state)
    early = pinn.solve(problem, KEY, steps=4000, tol=1e-3, record_every=20)
    assert early.reason == "tol" and early.history["relative_l2"][-1] <= 1e-3
    x = jnp.linspace(0, 1, 5)[:, None]
    assert early(x).shape == (5,) and early(x[0]).shape == ()
    assert pinn.solve(problem, KEY, seconds=1e-6, record_every=20).reason == "seconds"


def test_inverse_problem_finds_its_coefficient():
    problem = pinn.zoo("inverse-heat-1d", hidden=(16,), points=(300, 100))
    solution = pinn.solve(problem, KEY, steps=300, record_every=100)
    np.testing.assert_allclose(float(solution.unknowns["diffusivity"]), 0.3, rtol=1e-3)


def test_other_methods_in_the_same_loop():
    problem = pinn.zoo("poisson-1d", hidden=(8,), points=(20, 2))
    for name in ("lbfgs", "engd", "adam"):
        chosen = pinn.setting(name, problem)._asdict()
        history = pinn.solve(problem, KEY, steps=60, record_every=30, **chosen).history
        assert history["loss"][-1] < history["loss"][0], name
    with pytest.raises(ValueError, match="`name` must be one of"):
        pinn.setting("sgdd", problem)


def test_any_equinox_module_and_advice():
    network = pinn.Equinox(lambda key: eqx.nn.MLP(2, "scalar", 6, 1, jnp.tanh, key=key))
    problem = small_problem(network=network)
    params = problem.init(KEY)
    assert problem.counts(params) == (15, 25)
    assert problem.linearise(params, problem.draw(KEY)).jacobian.shape == (15, 25)
    assert "twice as many rows" in pinn.advice(problem)
    assert "enough" in pinn.advice(pinn.zoo("poisson-2d"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("poisson-1d", "poisson-5d", "heat-4d") else ())
        for name in pinn.NAMES
    ],
)
def test_zoo_solutions_solve_their_equations(name):
    """The exact solution in place of the network: every residual vanishes."""
    problem = pinn.zoo(name, hidden=(4,), points=None)
    assert problem.test is not None
    if problem.exact is None:
        return  # `test_reference_solutions` checks these
    truth = {"diffusivity": jnp.array(0.3)} if problem.unknowns else {}

    def residuals(key):
        batch = {block.name: jax.tree.map(lambda leaf: leaf[:5], block.draw(key)) for block in problem.blocks}
        return {
            block.name: jax.vmap(lambda x: block.residual(problem.exact, x, **truth))(batch[block.name])
            for block in problem.blocks
        }

    for block, values in jax.jit(residuals)(KEY).items():
        np.testing.assert_allclose(values, 0, atol=1e-10, err_msg=block)


def test_reference_solutions():
    """Burgers by Cole and Hopf's formula; Allen–Cahn by halving the step."""
    viscosity = 0.1 / np.pi
    points, values = burgers_grid(viscosity)
    chosen = np.flatnonzero((points[:, 0] > 0.2) & (np.abs(points[:, 1]) < 0.9))[::501]
    for t, x in points[chosen]:

        def weight(y):
            exponent = (1 + np.cos(np.pi * (x - y))) / (2 * np.pi * viscosity)
            return np.exp(-exponent - y**2 / (4 * viscosity * t))

        width = 12 * np.sqrt(2 * viscosity * t)
        top = quad(lambda y: np.sin(np.pi * (x - y)) * weight(y), -width, width, epsabs=1e-13, limit=200)[0]
        exact = -top / quad(weight, -width, width, epsabs=1e-13, limit=200)[0]
        found = values[np.flatnonzero((points == [t, x]).all(axis=1))[0]]
        assert abs(found - exact) < 1e-9
    coarse, fine = (allen_cahn_grid(0.01, 2.0, steps)[1] for steps in (2000, 4000))
    finest = allen_cahn_grid(0.01, 2.0)[1]
    assert np.abs(fine - finest).max() < 1e-6
    np.testing.assert_allclose(np.abs(coarse - finest).max() / np.abs(fine - finest).max(), 4, rtol=0.2)


class Wild(eqx.Module):
    """A network whose output is infinite wherever its one weight has fallen below a threshold."""

    def init(self, key):
        return jnp.array([1.0])

    def __call__(self, params, x):
        return jnp.where(params[0] > 0.5, params[0], jnp.inf) * (1 + x[0])


def test_a_diverging_step_is_refused_and_training_goes_on():
    """The minimum is beyond a wall of infinities: every step into it is refused, none is lost to NaN."""
    block = pinn.Block("all", lambda u, x: u(x) - 0.3, pinn.Box(0, 1), 10)
    solution = pinn.solve(pinn.PINN(Wild(), [block]), KEY, steps=40, record_every=20)
    assert 0.5 < float(solution.params["network"][0]) < 1
    assert solution.history["refused"][-1] > 0 and np.all(np.isfinite(solution.history["loss"]))


def test_errors_say_what_is_wrong():
    box = pinn.Box([0, 0], [1, 1])

    def problem(residual, **more):
        return pinn.PINN(pinn.MLP([2, 4, 1]), [pinn.Block("pde", residual, box, 10)], **more)

    with pytest.raises(ValueError, match=r"block 'pde' is NaN or infinite at .* x = \["):
        pinn.solve(problem(lambda u, x: u(x) + jnp.log(x[0] - 0.5)), KEY)
    with pytest.raises(ValueError, match="'pde' does not depend on the network"):
        pinn.solve(problem(lambda u, x: x[0] ** 2), KEY)
    with pytest.raises(ValueError, match=r"'pde' must be one real number, or a vector .* got shape \(2, 2\)"):
        problem(lambda u, x: jax.hessian(u)(x))
    with pytest.raises(ValueError, match="`exact` must have the shape of the network's output"):
        problem(lambda u, x: u(x), exact=lambda x: x)
    with pytest.raises(ValueError, match="the box is empty"):
        pinn.Box([0, 1], [1, 1])
    with pytest.raises(ValueError, match="the ball is empty"):
        pinn.Ball([0, 0], 0)
    with pytest.raises(ValueError, match="`rows` must not be empty"):
        pinn.Points(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="`points` is missing for block 'pde'"):
        pinn.Block("pde", lambda u, x: u(x), box)
    with pytest.raises(ValueError, match="`blocks` must hold at least one"):
        pinn.PINN(pinn.MLP([2, 4, 1]), [])
    with pytest.raises(ValueError, match="different names"):
        pinn.PINN(pinn.MLP([2, 4, 1]), [pinn.Block("a", lambda u, x: u(x), box, 3)] * 2)
    with pytest.raises(ValueError, match="`name` must be one of poisson-1d"):
        pinn.zoo("poisson-3d")
    with pytest.raises(ValueError, match="`points` must have 2 entries"):
        pinn.zoo("poisson-1d", points=(3,))
    with pytest.raises(ValueError, match="`seconds` must be above 0"):
        pinn.solve(problem(lambda u, x: u(x)), KEY, seconds=0)


def test_adam_on_a_problem_with_data():
    """`sg.run` and optax take a PINN like any other problem."""
    x = np.linspace(0, 1, 9)[:, None]
    block = pinn.Block("data", lambda u, row: u(row[0]) - row[1], pinn.Points((x, np.sin(x[:, 0]))), points=5)
    problem = pinn.PINN(pinn.MLP([1, 5, 1]), [block], exact=(x, np.sin(x[:, 0])))
    sampler, adam = pinn.Collocation(problem), optax.adam(1e-2)
    result = sg.run(
        problem, KEY, method=sg.SGD(), sampler=sampler, optimizer=adam, steps=200, record_every=100
    )
    assert result.history["relative_l2"][-1] < 0.5 * result.history["relative_l2"][0]


def test_tutorial_runs():
    path = Path(__file__).parents[1] / "tutorials" / "pinn.py"
    spec = importlib.util.spec_from_file_location("pinn_tutorial", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(steps=100).history["relative_l2"][-1] < 1e-3
