"""Time slabs: what is cut, what is joined, and that neither interruption nor leftovers change a march."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import pinn

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
