"""Time slabs: what is cut, what is joined, and that neither interruption nor leftovers change a march."""

import subprocess
import sys
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import pinn
from snapgrad.pinn import study

KEY = jax.random.key(0)
SPACE = pinn.Box([0], [1])
DOMAIN = pinn.SpaceTime(SPACE, 0, 1)
OPTIONS = {"slabs": 3, "steps": 180, "record_every": 30}


def decay(x):
    """u_t = −2u with u = 1 + x at first."""
    return jnp.exp(-2 * x[0]) * (1 + x[1])


BLOCKS = [
    pinn.Block("interior", lambda u, x: pinn.gradient(u, x)[0] + 2 * u(x), DOMAIN, 40),
    pinn.Block("initial", lambda u, x: u(x) - 1 - x[1], DOMAIN.initial(), 10),
]
PROBLEM = pinn.PINN(pinn.MLP([2, 6, 1]), BLOCKS, decay)


@pytest.fixture(scope="module")
def marched():
    return pinn.march(PROBLEM, KEY, **OPTIONS)


def grid(count):
    axes = np.meshgrid(np.linspace(0, 1, count), np.linspace(0, 1, 4), indexing="ij")
    return jnp.asarray(np.stack(axes, axis=-1))


def same_bytes(one, other):
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in leaves)


def test_slabs_follow_the_solution(marched):
    """Later slabs know nothing of the initial condition but what the slabs before have handed on."""
    x = grid(12)
    exact = jax.vmap(decay)(x.reshape(-1, 2)).reshape(12, 4)
    assert np.max(np.abs(marched(x) - exact)) < 1e-3
    assert marched.relative_l2 < 1e-3 and len(marched.slabs) == 3
    np.testing.assert_allclose(marched.times, [0, 1 / 3, 2 / 3, 1])
    one = pinn.march(PROBLEM, KEY, slabs=[0, 1], steps=20)
    np.testing.assert_allclose(one.relative_l2, one.slabs[0].history["relative_l2"][-1], rtol=1e-12)


def test_every_time_is_answered_by_its_slab(marched):
    points = jnp.array([[0.0, 0.2], [1 / 3, 0.2], [0.5, 0.2], [2 / 3, 0.2], [1.0, 0.2]])
    owners = [0, 1, 1, 2, 2]
    expected = [marched.slabs[i](x) for i, x in zip(owners, points, strict=True)]
    np.testing.assert_allclose(marched(points), expected, rtol=1e-14)
    slope = jax.vmap(jax.grad(marched))(points)
    expected = [jax.grad(marched.slabs[i])(x) for i, x in zip(owners, points, strict=True)]
    np.testing.assert_allclose(slope, expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda x: marched(x))(points), marched(points), rtol=1e-13)


def test_history_counts_from_the_first_slab(marched):
    assert marched.history["step"].tolist() == [0, 30, 60, 60, 90, 120, 120, 150, 180]
    assert marched.history["slab"].tolist() == [0.0] * 3 + [1.0] * 3 + [2.0] * 3
    assert np.all(np.diff(marched.history["seconds"]) >= 0)
    assert marched.reason.tolist() == ["steps"] * 3 and marched.rejected.shape == (3,)


def test_an_initial_block_asks_for_what_the_slab_before_says():
    """Values and velocities, whatever the first ones were."""

    def residual(u, x):
        return jnp.stack([u(x) - jnp.sin(x[1]), pinn.gradient(u, x)[0] - 3.0])

    problem = pinn.PINN(pinn.MLP([2, 3, 1]), [BLOCKS[0], pinn.Block("first", residual, DOMAIN.initial(), 5)])
    marched = pinn.march(problem, KEY, slabs=2, steps=2, method=sg.SGD(), optimizer=1e-3)
    first, second = marched.slabs
    batch = second.problem.draw(jax.random.key(1))
    np.testing.assert_array_equal(batch["first"][:, 0], 0.5)
    found = second.problem.residuals(second.params, batch)["first"]
    expected = jax.vmap(lambda x: residual(second, x) - residual(first, x))(batch["first"])
    np.testing.assert_allclose(found, expected, atol=1e-13)
    assert marched.relative_l2 is None and np.max(np.abs(found)) > 1e-6


def test_slabs_cover_the_points_and_the_known_values():
    x = np.asarray(grid(7)).reshape(-1, 2)
    known = pinn.PINN(pinn.MLP([2, 3, 1]), BLOCKS, (x, np.asarray(jax.vmap(decay)(x))))
    marched = pinn.march(known, KEY, slabs=2, steps=2, method=sg.SGD(), optimizer=1e-3)
    for slab, (start, end) in zip(marched.slabs, ((0.0, 0.5), (0.5, 1.0)), strict=True):
        points, values = slab.problem.test
        owned = x[(x[:, 0] >= start) & ((x[:, 0] < end) | (end == 1.0))]
        np.testing.assert_array_equal(np.unique(points, axis=0), np.unique(owned, axis=0))
        np.testing.assert_allclose(values, jax.vmap(decay)(points))
        drawn = slab.problem.draw(KEY)["interior"][:, 0]
        assert start <= drawn.min() < start + 0.05 and end - 0.05 < drawn.max() <= end
    error = marched(x) - known.test[1]
    np.testing.assert_allclose(
        marched.relative_l2, jnp.linalg.norm(error) / jnp.linalg.norm(known.test[1]), rtol=1e-12
    )


def test_a_network_that_holds_its_initial_condition():
    """The problem of each slab by a function: u = (start of the slab) + (t − start) · N."""

    class Hard(eqx.Module):
        inner: pinn.Shifted
        lift: object

        def init(self, key):
            return self.inner.init(key)

        def __call__(self, params, x):
            begin = jnp.concatenate([self.inner.start[None], x[1:]])
            return self.lift(begin) + (x[0] - self.inner.start) * self.inner(params, x)

    def make(start, end, before):
        lift = before if before is not None else jax.tree_util.Partial(lambda x: 1 + x[1])
        network = Hard(pinn.Shifted(pinn.MLP([2, 6, 1]), start), lift)
        return pinn.PINN(
            network,
            [pinn.Block("interior", BLOCKS[0].residual, pinn.SpaceTime(SPACE, start, end), 40)],
            decay,
        )

    marched = pinn.march(make, KEY, slabs=[0, 0.4, 1], steps=120)
    assert marched.relative_l2 < 1e-3
    edge = jnp.array([0.4, 0.3])
    np.testing.assert_allclose(marched.slabs[0](edge), marched.slabs[1](edge), rtol=1e-13)
    with pytest.raises(ValueError, match="`slabs` must be the times between slabs"):
        pinn.march(make, KEY, slabs=2)


def test_what_a_slab_leaves_over_goes_to_the_next():
    steps = []
    tol = 1e-2
    marched = pinn.march(PROBLEM, KEY, slabs=3, steps=90, tol=tol, record_every=5)
    for slab in marched.slabs:
        steps.append(int(slab.history["step"][-1]))
    assert marched.slabs[0].reason == "tol" and steps[0] < 30
    left = 90
    for i, slab in enumerate(marched.slabs):
        assert slab.reason == "tol" or steps[i] == left // (3 - i)
        left -= steps[i]


def test_interrupted_in_the_second_slab_and_resumed_to_the_same_bytes(marched, tmp_path):
    def stop(record, state):
        if record["slab"] == 1 and record["step"] == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pinn.march(PROBLEM, KEY, checkpoint=tmp_path, callback=stop, **OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slab-000", "slab-001"]
    seen = []
    resumed = pinn.march(
        PROBLEM,
        KEY,
        checkpoint=tmp_path,
        callback=lambda r, s: seen.append((r["slab"], r["step"])),
        **OPTIONS,
    )
    assert seen == [(1, 30), (1, 60), (2, 0), (2, 30), (2, 60)]
    assert same_bytes(resumed.state, marched.state)
    np.testing.assert_array_equal(resumed.history["relative_l2"], marched.history["relative_l2"])
    with pytest.raises(ValueError, match="belongs to a run with another problem"):
        pinn.march(PROBLEM, KEY, checkpoint=tmp_path, **{**OPTIONS, "slabs": 4})


def test_a_callback_ends_the_march():
    marched = pinn.march(PROBLEM, KEY, callback=lambda r, s: r["slab"] == 1, **OPTIONS)
    assert marched.reason.tolist() == ["steps", "callback"]
    np.testing.assert_allclose(marched.times, [0, 1 / 3, 2 / 3])
    assert marched.relative_l2 < 1  # of the times that it has reached
    assert marched.suspect is None  # though the second slab knows nothing


def test_later_slabs_share_one_program(marched):
    """They differ in numbers alone, so that nothing is compiled for the third that the second had not."""
    second, third = (slab.problem for slab in marched.slabs[1:])
    assert jax.tree.structure(second) == jax.tree.structure(third)
    shapes = jax.tree.map(jnp.shape, (second, third))
    assert shapes[0] == shapes[1]


def test_samplers_are_made_for_each_slab():
    marched = pinn.march(
        PROBLEM, KEY, slabs=2, steps=4, sampler=lambda p: pinn.Collocation(p, refresh_every=None)
    )
    points, *_ = marched.slabs[1].state.sampler
    assert points["interior"][:, 0].min() >= 0.5


LATE = pinn.Block("end", lambda u, x: u(x), pinn.SpaceTime(SPACE, 1, 1), 5)
STILL = pinn.Block("still", lambda u, x: u(x), pinn.Box([0, 0], [1, 1]), 5)
SHORT = pinn.Block("short", lambda u, x: u(x), pinn.SpaceTime(SPACE, 0, 0.5), 5)


@pytest.mark.parametrize(
    ("blocks", "options", "message"),
    [
        ([*BLOCKS, LATE], {}, "block 'end' must hold at the start"),
        ([*BLOCKS, STILL], {}, "block 'still' must be on a sg.pinn.SpaceTime"),
        ([*BLOCKS, SHORT], {}, "from one start to one end"),
        (BLOCKS[:1], {}, r"`problem` must have a block on domain.initial\(\)"),
        (BLOCKS, {"slabs": 0}, "`slabs`"),
        (BLOCKS, {"slabs": [0.0, 0.5, 0.5, 1.0]}, "increasing times"),
        (BLOCKS, {"slabs": [0.0, 2.0]}, "`slabs` must go from 0.0 to 1.0"),
        (BLOCKS, {"steps": 2}, "`steps` must be at least 1 for each of 8 slabs"),
        (BLOCKS, {"state": ()}, "`state` belongs to one slab"),
    ],
)
def test_what_cannot_be_cut_is_refused(blocks, options, message):
    with pytest.raises(ValueError, match=message):
        pinn.march(pinn.PINN(pinn.MLP([2, 3, 1]), blocks), KEY, **options)


def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match=r"`problem` must be a sg.pinn.PINN, or a function"):
        pinn.march(3, KEY)
    with pytest.raises(TypeError, match="`sampler` must be a function"):
        pinn.march(PROBLEM, KEY, sampler=pinn.Collocation(PROBLEM))
    unknown = pinn.PINN(
        pinn.MLP([2, 3, 1]),
        [
            pinn.Block("all", lambda u, x, c: u(x) - c, DOMAIN, 5),
            pinn.Block("first", lambda u, x, c: u(x), DOMAIN.initial(), 5),
        ],
        unknowns={"c": 1.0},
    )
    with pytest.raises(ValueError, match="must not have unknowns"):
        pinn.march(unknown, KEY)


# ------------------------------------------------------------------------- files, pictures, advice


def read_elsewhere(path, where):
    script = f"""
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
from snapgrad import pinn
marched = pinn.load({str(path)!r})
print(np.asarray(marched(np.array({where.tolist()!r}))).tobytes().hex())
"""
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    return out.strip()


@pytest.mark.parametrize(
    "name",
    ["heat-1d", pytest.param("burgers", marks=pytest.mark.slow)],  # a block at the start, an exact start
)
def test_another_process_reads_the_same_march(name, tmp_path):
    points = (40, 10, 10) if name == "heat-1d" else (40, 20)
    problem = pinn.zoo(name, hidden=(6,), points=points)
    found = pinn.march(problem, KEY, slabs=3, steps=15, record_every=5)
    path = tmp_path / "march.snap"
    found.save(path)
    where = np.asarray(grid(7)).reshape(-1, 2)
    assert read_elsewhere(path, where) == np.asarray(found(where)).tobytes().hex()
    again = pinn.load(path, problem)
    assert again.problem is problem and again.suspect is None and again.relative_l2 == found.relative_l2
    assert same_bytes(again.params, found.params) and again.reason.tolist() == found.reason.tolist()
    np.testing.assert_array_equal(again.times, found.times)
    for column, values in found.history.items():
        np.testing.assert_array_equal(again.history[column], values)
    for old, new in zip(found.slabs, again.slabs, strict=True):
        assert same_bytes(old.problem, new.problem)


def test_a_march_whose_slabs_keep_those_before_is_stored(tmp_path):
    held = pinn.Evolving(pinn.MLP([2, 4, 1]), DOMAIN, lambda x: 1 + x[1])
    problem = pinn.PINN(held, BLOCKS[:1])
    found = pinn.march(problem, KEY, slabs=3, steps=6)
    found.save(tmp_path / "own.snap")
    again = pinn.load(tmp_path / "own.snap", problem)
    assert same_bytes(again(grid(9)), found(grid(9)))


def test_a_march_by_a_function_and_one_that_was_stopped(tmp_path):
    def make(start, end, before):
        del before
        domain = pinn.SpaceTime(SPACE, start, end)
        blocks = [replace(BLOCKS[0], domain=domain), replace(BLOCKS[1], domain=domain.initial())]
        return pinn.PINN(pinn.Shifted(pinn.MLP([2, 4, 1]), start), blocks)

    path = tmp_path / "made.snap"
    made = pinn.march(make, KEY, slabs=[0, 0.5, 1], steps=4, method=sg.SGD(), optimizer=1e-3)
    made.save(path)
    again = pinn.load(path, make)
    assert same_bytes(again(grid(5)), made(grid(5))) and again.problem is None and again.relative_l2 is None
    with pytest.raises(ValueError, match="`problem` must be given"):
        pinn.load(path)
    stopped = pinn.march(PROBLEM, KEY, slabs=3, steps=6, callback=lambda r, s: r["slab"] == 1, record_every=1)
    stopped.save(path)
    again = pinn.load(path, PROBLEM)
    np.testing.assert_array_equal(again.times, stopped.times)
    assert same_bytes(again(grid(5)), stopped(grid(5))) and len(again.slabs) == 2


def test_marches_of_another_problem_are_refused(marched, tmp_path):
    path = tmp_path / "march.snap"
    marched.save(path)
    with pytest.raises(ValueError, match=r"does not fit .* shape \(2, 6\)|does not fit .*\(6, 2\)"):
        pinn.load(path, pinn.PINN(pinn.MLP([2, 5, 1]), BLOCKS))
    late = pinn.SpaceTime(SPACE, 0.5, 1)
    blocks = [replace(BLOCKS[0], domain=late), replace(BLOCKS[1], domain=late.initial())]
    with pytest.raises(ValueError, match="a march from t = 0 to 1"):
        pinn.load(path, pinn.PINN(pinn.MLP([2, 6, 1]), blocks))
    with pytest.raises(ValueError, match="a march from t = 0 to 1"):
        pinn.load(path, pinn.zoo("poisson-1d", hidden=(6,), points=(30, 2)))


def test_pictures_show_all_slabs(marched, tmp_path):
    figure = marched.plot(tmp_path / "march.png")
    assert (tmp_path / "march.png").read_bytes()[1:4] == b"PNG"
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("t", "x")
    values = np.asarray(figure.axes[0].collections[0].get_array()).reshape(101, 101)
    axes = np.meshgrid(np.linspace(0, 1, 101), np.linspace(0, 1, 101))
    where = np.stack(axes, axis=-1)
    np.testing.assert_allclose(values, marched(where), rtol=1e-12)
    error = np.asarray(figure.axes[1].collections[0].get_array()).reshape(101, 101)
    np.testing.assert_allclose(error, values - np.exp(-2 * axes[0]) * (1 + axes[1]), atol=1e-12)
    with pytest.raises(ValueError, match="`path` must end with"):
        marched.plot("picture.gif")


def test_advice_on_a_march_speaks_of_the_worst_slab(marched):
    said = pinn.advice(marched)
    losses = [slab.history["loss"][-1] for slab in marched.slabs]
    assert f"slab {np.argmax(losses) + 1} of 3" in said and "In each slab: 50 rows for 25 parameters" in said
    assert "diverged" not in said and "sg.pinn.march(problem" not in said


# -------------------------------------------------------------------------------------- divergence


class Jump(eqx.Module):
    """Residual of the decay, with a forcing from t = 2/3 on that is faster than points can follow."""

    def __call__(self, u, x):
        late = jnp.where(x[0] > 2 / 3, 1e3 * jnp.sin(1e4 * x[0] * (1 + x[1])), 0.0)
        return BLOCKS[0].residual(u, x) + late


def test_a_march_that_diverges_says_so(marched):
    assert marched.suspect is None
    blocks = [pinn.Block("interior", Jump(), DOMAIN, 40), BLOCKS[1]]
    with pytest.warns(
        UserWarning, match=r"diverged in slab 3 of 4.*from t = 0.5 on\. Give more slabs"
    ) as said:
        found = pinn.march(pinn.PINN(pinn.MLP([2, 6, 1]), blocks), KEY, slabs=4, steps=160)
    assert len([one for one in said if "diverged" in str(one.message)]) == 1
    assert found.suspect == 0.5
    advice = pinn.advice(found)
    assert "diverged: from t = 0.5 on" in advice
    assert "not to be trusted from t = 0.5 on" in study.line(
        {"step": 1.0, "seconds": 1.0, "loss": 1.0, "suspect": found.suspect}
    )


def test_a_loss_that_is_not_finite_is_suspect_at_once():
    """Residuals on points of the loss alone: training sees nothing of it."""
    seen = np.asarray(PROBLEM.loss_points["interior"])

    def residual(u, x):
        hit = jnp.any(jnp.all(jnp.abs(x[None] - seen) < 1e-12, axis=-1))
        return BLOCKS[0].residual(u, x) + jnp.where(hit, jnp.inf, 0.0)

    problem = pinn.PINN(
        pinn.MLP([2, 6, 1]), [replace(BLOCKS[0], residual=jax.tree_util.Partial(residual)), BLOCKS[1]]
    )
    with pytest.warns(UserWarning, match="diverged in slab 1 of 1: its loss is not finite"):
        assert pinn.march(problem, KEY, slabs=[0, 1], steps=2).suspect == 0.0
