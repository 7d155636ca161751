"""Solutions in files and pictures, and their derivatives."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import pinn

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def solution(line):
    return pinn.solve(line, KEY, steps=30)


def test_another_process_reads_the_same_numbers(solution, line, tmp_path):
    path = tmp_path / "folder" / "solution.snap"
    solution.save(path)
    where = np.linspace(0, 1, 7)[:, None]
    script = f"""
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
from snapgrad import pinn
solution = pinn.load({str(path)!r})
print(np.asarray(solution(np.linspace(0, 1, 7)[:, None])).tobytes().hex(), solution.reason)
"""
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert out.split() == [np.asarray(solution(where)).tobytes().hex(), "steps"]
    again = pinn.load(path, line)
    for name, values in solution.history.items():
        np.testing.assert_array_equal(again.history[name], values)
    for old, new in zip(jax.tree.leaves(solution.params), jax.tree.leaves(again.params), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)
    further = pinn.solve(line, KEY, steps=1, params=again.params)
    assert further.history["loss"][0] == solution.history["loss"][-1]


def test_files_that_do_not_fit_are_refused(solution, line, tmp_path):
    own = pinn.PINN(line.network, line.blocks)
    path = tmp_path / "own.snap"
    pinn.solve(own, KEY, steps=1).save(path)
    with pytest.raises(ValueError, match="`problem` must be given"):
        pinn.load(path)
    assert pinn.load(path, own).problem is own
    with pytest.raises(ValueError, match="does not fit"):
        pinn.load(path, pinn.zoo("poisson-1d", hidden=(9,), points=(30, 2)))
    sg.save(path, solution.params)
    with pytest.raises(ValueError, match="holds no solution"):
        pinn.load(path, line)
    with pytest.raises(FileNotFoundError):
        pinn.load(tmp_path / "nothing.snap")


def test_a_solution_is_a_function_to_differentiate(solution):
    """u ≈ sin(πx): its derivatives by the library's operators and by JAX itself."""
    x = jnp.array([0.3])
    value, gradient, laplacian = pinn.derivatives(solution, x)
    np.testing.assert_allclose(value, solution(x), rtol=1e-12)
    np.testing.assert_allclose(gradient, jax.grad(solution)(x), rtol=1e-10)
    np.testing.assert_allclose(laplacian, jax.hessian(solution)(x)[0, 0], rtol=1e-10)
    np.testing.assert_allclose(laplacian, -(np.pi**2) * np.sin(0.3 * np.pi), rtol=1e-2)


def image(figure, panel=0):
    return figure.axes[panel].collections[0].get_array()


def test_pictures_show_the_solution_where_it_is(solution, tmp_path):
    figure = solution.plot(tmp_path / "line.svg")
    assert (tmp_path / "line.svg").read_text().lstrip().startswith("<?xml")
    curve = figure.axes[0].lines[0]
    np.testing.assert_allclose(curve.get_ydata(), solution(curve.get_xdata()[:, None]), rtol=1e-12)
    assert len(figure.axes) == 2  # the error is known
    with pytest.raises(ValueError, match="`path` must end with"):
        solution.plot("picture.gif")

    ring = pinn.Ball([0, 0], 2) - pinn.Ball([0, 0], 1)
    for domain, names in ((ring, "xy"), (pinn.SpaceTime(pinn.Box(0, 1), 0, 2), "tx")):
        block = pinn.Block("interior", lambda u, x: u(x) - x[0], domain, 10)
        problem = pinn.PINN(pinn.MLP([2, 4, 1]), [block])
        params = problem.init(KEY)
        zero = jnp.zeros((), int)
        figure = pinn.Solution(params, {}, zero, zero, None, problem).plot()
        assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == tuple(names)
        values = image(figure).reshape(101, 101)
        grid = np.linspace(-2, 2, 101)
        radius = np.hypot(*np.meshgrid(grid, grid))
        outside = (radius > 2) | (radius <= 1) if domain is ring else np.zeros((101, 101), bool)
        np.testing.assert_array_equal(np.ma.getmaskarray(values)[~np.isclose(radius, 1)],
                                      outside[~np.isclose(radius, 1)])  # fmt: skip
        corner = np.asarray(domain.bounds()[0])
        if domain is not ring:
            np.testing.assert_allclose(values[0, 0], problem.u(params, corner), rtol=1e-12)
    data = pinn.PINN(
        pinn.MLP([1, 4, 1]), [pinn.Block("data", lambda u, x: u(x), pinn.Points(np.ones((3, 1))))]
    )
    with pytest.raises(ValueError, match="no domain to draw"):
        pinn.Solution(data.init(KEY), {}, zero, zero, None, data).plot()


def test_advice_speaks_of_features_slabs_and_peaks():
    circle = pinn.SpaceTime(pinn.Box([0], [6], periodic=True), 0, 2)
    blocks = [
        pinn.Block("interior", lambda u, x: u(x) - jnp.exp(-((x[1] - 3) ** 2) * 1e4), circle, 400),
        pinn.Block("initial", lambda u, x: u(x), circle.initial(), 10),
    ]
    plain = pinn.PINN(pinn.MLP([2, 4, 1]), blocks)
    for words in ("Coordinate 1 is periodic", "Coordinates reach 6", "over a time of 2", "march"):
        assert words in pinn.advice(plain)
    fitting = pinn.PINN(pinn.network(circle, hidden=(4,)), blocks)
    said = pinn.advice(fitting)
    assert "is periodic and" not in said and "saturate" not in said and "march" in said
    zeros = jax.tree.map(jnp.zeros_like, plain.init(KEY))
    zero = jnp.zeros((), int)
    assert "'interior' is largest in a few places" in pinn.advice(
        pinn.Solution(zeros, {}, zero, zero, None, plain)
    )
    inverse = pinn.zoo("inverse-heat-1d", hidden=(4,), points=(20, 10))
    assert "For diffusivity, solution.error_bars()" in pinn.advice(inverse)
    assert "march" not in pinn.advice(inverse)


def test_advice_tells_a_run_that_has_stalled(line):
    """By what the later half of its records adds to the earlier one."""
    zero, params = jnp.zeros((), int), line.init(KEY)

    def said(problem, params, losses):
        return pinn.advice(pinn.Solution(params, {"loss": np.array(losses)}, zero, zero, None, problem))

    still = [9.0, 1.0, 0.5, 0.5, 0.6, 0.5, 0.4, 0.5]
    assert "Training has stalled: the least loss was 5.0e-01 in its first half and 4.0e-01" in said(
        line, params, still
    )
    assert "march" not in said(line, params, still)
    assert "stalled" not in said(line, params, still[:6])  # too short to tell
    assert "stalled" not in said(line, params, [*still[:4], 0.4, 0.3, 0.2, 0.1])
    assert "stalled" not in said(line, params, [1e7 * still[0], *still[1:]])  # solved, and at rest
    evolving = pinn.zoo("heat-1d", hidden=(4,), points=(10, 4, 4))
    words = said(evolving, evolving.init(KEY), still)
    assert "Use slabs of time: sg.pinn.march(problem, key, slabs=10" in words
