"""Symmetric sums of products, on the CPU's path and on those of a GPU, which run here as well."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad.linalg import _symmetric, gram, mirror, product, symmetric_sum

WIDTH = 12


def rows(size, dtype=np.float64, offset=0.0):
    return jnp.asarray(np.random.default_rng(0).normal(size=(size, WIDTH)) + offset, dtype)


@pytest.fixture(params=["cpu", "gpu"])
def backend(request, monkeypatch):
    """Either path, with blocks and products small enough to meet at these sizes."""
    monkeypatch.setattr(_symmetric, "on_gpu", lambda: request.param == "gpu")
    monkeypatch.setattr(_symmetric, "CPU_BLOCK", 4)
    monkeypatch.setattr(_symmetric, "SPLIT_BLOCK", 4)
    monkeypatch.setattr(_symmetric, "SYRK_WORK", 1)
    return request.param


@pytest.mark.parametrize("size", [1, 3, 9, 40])
def test_gram_is_the_product(backend, size):
    J = rows(size)
    np.testing.assert_allclose(gram(J), np.asarray(J) @ np.asarray(J).T, rtol=0, atol=1e-14 * WIDTH)


def test_half_of_the_work_is_left_out(backend):
    total = symmetric_sum(32, jnp.float64)
    kept = sum(strip.size for strip in total.strips)
    assert kept == (
        32**2 if backend == "gpu" else 32 * 36 // 2
    )  # a GPU leaves out half inside its own routine
    assert _symmetric.symmetric_share(32) == (0.5 if backend == "gpu" else 36 / 64)


def test_sums_of_pieces_and_of_points_with_several_rows(backend):
    J = rows(30)
    total = symmetric_sum(30, jnp.float64, multiple=5)
    assert all(edge % 5 == 0 for edge in total.edges)
    for piece in (J[:, :7], J[:, 7:]):
        total = total.add([piece[a:b] for a, b in total.blocks()])
    np.testing.assert_allclose(mirror(total.lower()), J @ J.T, rtol=0, atol=1e-14 * WIDTH)


def test_derivative_of_the_half(backend):
    J, V = rows(9), jnp.asarray(np.random.default_rng(1).normal(size=(9, 9)))
    found = jax.grad(lambda J: jnp.sum(V * gram(J)))(J)
    np.testing.assert_allclose(found, (V + V.T) @ J, rtol=0, atol=1e-13 * WIDTH)
    batch = jnp.stack([J, 2 * J])
    np.testing.assert_allclose(jax.vmap(gram)(batch)[1], 4 * gram(J), rtol=1e-14)


class TestFloat16Parts:
    """Three products of float16 parts against one of float32, both measured against float64."""

    @pytest.fixture(autouse=True)
    def gpu(self, monkeypatch):
        monkeypatch.setattr(_symmetric, "on_gpu", lambda: True)
        monkeypatch.setattr(_symmetric, "SPLIT_BLOCK", 8)

    @pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
    def test_as_accurate_as_float32(self, scale):
        J = rows(24, np.float32, offset=0.3) * np.float32(scale)
        J = J * jnp.logspace(-3, 3, 24, dtype=jnp.float32)[:, None]  # each row in units of its own
        exact = np.asarray(J, np.float64) @ np.asarray(J, np.float64).T
        size = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
        total = symmetric_sum(24, jnp.float32, split=True)
        assert len(total.strips) == 3
        blocks = total.add([J[a:b] for a, b in total.blocks()])
        for K in (mirror(blocks.lower()), product(J, J, split=True)):
            error = np.abs(np.asarray(K, np.float64) - exact) / size
            assert error.max() < 4e-7  # a few units of float32's rounding; float16 alone would give 1e-3

    def test_half_precision_alone_would_not_do(self):
        J = rows(24, np.float32)
        plain = jnp.matmul(J.astype(jnp.float16), J.T.astype(jnp.float16), preferred_element_type=jnp.float32)
        exact = np.asarray(J, np.float64) @ np.asarray(J, np.float64).T
        three = product(J, J, split=True)
        assert np.abs(three - exact).max() < np.abs(plain - exact).max() / 100

    def test_zero_and_non_finite_rows(self):
        J = rows(4, np.float32).at[1].set(0.0)
        np.testing.assert_array_equal(product(J, J, split=True)[1], 0)
        J = J.at[2, 3].set(jnp.nan)
        K = product(J, J, split=True)
        assert not jnp.isfinite(K[2]).any()
        assert jnp.isfinite(K[0, 1:2]).all()

    def test_float64_and_cpus_are_left_alone(self, monkeypatch):
        J = rows(6)
        np.testing.assert_array_equal(product(J, J, split=True), product(J, J))
        monkeypatch.setattr(_symmetric, "on_gpu", lambda: False)
        single = rows(6, np.float32)
        np.testing.assert_array_equal(product(single, single, split=True), product(single, single))
