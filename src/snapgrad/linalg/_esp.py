"""Elementary symmetric polynomials p_k(q) = Σ_{|S|=k} ∏_{i∈S} q_i, for spectra of any size and spread.

By Cauchy's formula p_k is a contour integral of ∏(1 + q_i z) z^{−k−1}. On the circle |z| = c the factors
(1 + c q_i z)/(1 + c q_i) are the characteristic functions of independent coins with odds c q_i, so nothing
over- or underflows, and with c chosen so that k − ½ heads are expected, both p_k and the p_{k−1} of a
spectrum short of one entry are sums without cancellation. The midpoint rule is then exact to rounding
with a number of nodes that grows like √k.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._checks import Given, positive_int, real_array

_BLOCK = 2**18  # entries of a node-by-eigenvalue block held in memory at once
_BISECTIONS = 40  # any c is exact; a bracket of a few thousand shrinks far below what the nodes allow for


def log_esp(
    q: Given[ArrayLike, " m"], k: int, multiplicity: Given[ArrayLike, " m"] | None = None
) -> Float[Array, ""]:
    """Returns the logarithm of the elementary symmetric polynomial p_k(q), one number.

    It is −∞ if fewer than k entries are nonzero.

    **Arguments:**

    - `q`: non-negative numbers, such as the eigenvalues of JJᵀ + λI.
    - `k`: the degree, a Python integer.
    - `multiplicity`: how often each entry of `q` counts (default: once). The m − n eigenvalues of
      JJᵀ + λI that equal λ are then one entry.

    Its derivative with respect to `q` is `multiplicity * esp_ratios(q, k, multiplicity)`. `ValueError` if an
    entry of `q` is negative; where `q` is traced by JAX, NaN.

    ```python
    q = jnp.array([1.0, 2.0, 3.0, 4.0])
    jnp.exp(sg.linalg.log_esp(q, 2))                              # 1·2 + 1·3 + 1·4 + 2·3 + 2·4 + 3·4 = 35
    ```
    """
    q, weight = _checked(q, multiplicity)
    if not (isinstance(k, int | np.integer) and k == 0):
        positive_int("k", k)
    if k == 0:
        return jnp.zeros((), q.dtype)
    if multiplicity is None and k > q.shape[0]:
        return jnp.full((), -jnp.inf, q.dtype)
    return _log_esp(q, weight, jnp.asarray(k, q.dtype), _half_nodes(q, k, multiplicity))


def esp_ratios(
    q: Given[ArrayLike, " m"], k: int, multiplicity: Given[ArrayLike, " m"] | None = None
) -> Float[Array, " m"]:
    """Returns the ratios D_i = p_{k−1}(q without one entry q_i) / p_k(q), one for every i.

    The arguments are those of `sg.linalg.log_esp`: `q`, `k` and `multiplicity`. Under squared volume sampling
    with JJᵀ + λI = U diag(q) Uᵀ, these are the eigenvalues of the expected weight W̄ = U diag(D) Uᵀ, and q_i
    D_i those of the inclusion kernel; Σ q_i D_i = k, counting multiplicity. The relative accuracy is about
    1e-14 in float64. `ValueError` if fewer than k entries of `q` are nonzero.

    ```python
    q = jnp.array([1.0, 2.0, 3.0, 4.0])
    marginals = q * sg.linalg.esp_ratios(q, 2)                    # they add up to 2
    ```
    """
    values, weight = _checked(q, multiplicity)
    k = positive_int("k", k)
    rank = _rank(values, weight)
    wanted = "`k` must be at most the number of nonzero entries of `q`"
    if isinstance(rank, Tracer):
        values = eqx.error_if(values, rank < k, f"{wanted}.")
    elif int(rank) < k:
        raise ValueError(f"{wanted}, which is {int(rank)}; got {k}.")
    return _esp_ratios(values, weight, jnp.asarray(k, values.dtype), _half_nodes(values, k, multiplicity))


def log_esp_table(q: Float[Array, " m"], k: int) -> Float[Array, "k_plus_1 m_plus_1"]:
    """`[r, l]` = log p_r(q[l:]) for r ≤ k and l ≤ m: the suffix table from which subsets are drawn.

    By the recursion p_r(q[l:]) = p_r(q[l+1:]) + q_l p_{r−1}(q[l+1:]) on logarithms; all terms are positive.
    """
    empty = jnp.where(jnp.arange(k + 1) == 0, 0.0, -jnp.inf).astype(q.dtype)

    def step(suffix, log_q):
        taken = jnp.concatenate([jnp.full(1, -jnp.inf, q.dtype), suffix[:-1] + log_q])
        longer = jnp.logaddexp(suffix, taken)
        return longer, longer

    _, suffixes = jax.lax.scan(step, empty, jnp.log(q), reverse=True)
    return jnp.concatenate([suffixes, empty[None]]).T


def _checked(q: Any, multiplicity: Any) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    q = real_array("q", q, ndim=1)
    if isinstance(q, Tracer):
        q = jnp.where(q < 0, jnp.nan, q)
    elif bool(jnp.any(q < 0)):
        raise ValueError(f"`q` must not be negative, got a smallest entry of {float(q.min()):g}.")
    if multiplicity is None:
        return q, jnp.ones_like(q)
    weight = real_array("multiplicity", multiplicity, ndim=1, rows=q.shape[0]).astype(q.dtype)
    odd = (weight < 0) | (weight != jnp.round(weight))
    if not isinstance(odd, Tracer) and bool(jnp.any(odd)):
        raise ValueError(f"`multiplicity` must hold whole numbers of at least 0, got {weight}.")
    return q, weight


def _half_nodes(q: Float[Array, " m"], k: int, multiplicity: Any) -> int:
    """Half the nodes on the circle: nine standard deviations of the number of heads, or all degrees."""
    m = q.shape[0]
    if multiplicity is None:
        nodes = min(9 * math.sqrt(min(k, m - k + 1)) + 24, m + 1)
    else:
        nodes = 9 * math.sqrt(k) + 24
    return 8 * math.ceil(nodes / 16)  # rounded up, so that a sweep over k compiles few times


def _rank(q: Float[Array, " m"], weight: Float[Array, " m"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(q == 0, 0, weight))


@partial(jax.jit, static_argnames="half")
def _log_esp(
    q: Float[Array, " m"], weight: Float[Array, " m"], k: Float[Array, ""], half: int
) -> Float[Array, ""]:
    c = _tilt(q, weight, k)
    x = c * q
    large = x > 1
    log_small = jnp.log1p(jnp.where(large, 0, x))
    log_large = jnp.log(jnp.where(large, q, 1)) + jnp.log1p(1 / jnp.where(large, x, 1))
    # c^{−k} ∏(1 + c q) with the powers of c cancelled by hand where c q > 1.
    power = jnp.sum(jnp.where(large, weight, 0)) - k
    scale = power * jnp.log(c) + jnp.sum(weight * jnp.where(large, log_large, log_small))
    mean, _ = _circle_means(x, weight, k, half)
    return jnp.where(_rank(q, weight) < k, -jnp.inf, scale + jnp.log(mean))


@partial(jax.jit, static_argnames="half")
def _esp_ratios(
    q: Float[Array, " m"], weight: Float[Array, " m"], k: Float[Array, ""], half: int
) -> Float[Array, " m"]:
    c = _tilt(q, weight, k)
    mean, means_without = _circle_means(c * q, weight, k, half)
    return c * means_without / mean


def _tilt(q: Float[Array, " m"], weight: Float[Array, " m"], k: Float[Array, ""]) -> Float[Array, ""]:
    """The c with Σ cq/(1 + cq) = k − ½, by bisection on its logarithm."""
    positive = (q > 0) & (weight > 0)
    log_q = jnp.log(jnp.where(positive, q, 1))
    share = (k - 0.5) / jnp.maximum(_rank(q, weight), k)
    logit = jnp.log(share) - jnp.log1p(-share)
    low = logit - jnp.max(jnp.where(positive, log_q, -jnp.inf), initial=-jnp.inf)
    high = logit - jnp.min(jnp.where(positive, log_q, jnp.inf), initial=jnp.inf)

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        heads = jnp.sum(jnp.where(positive, weight * jax.nn.sigmoid(middle + log_q), 0))
        return jnp.where(heads < k - 0.5, middle, low), jnp.where(heads < k - 0.5, high, middle)

    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, jax.lax.stop_gradient((low, high)))
    # The integral does not depend on c, so neither does any derivative.
    return jax.lax.stop_gradient(jnp.exp((low + high) / 2))


def _circle_means(
    x: Float[Array, " m"], weight: Float[Array, " m"], k: Float[Array, ""], half: int
) -> tuple[Float[Array, ""], Float[Array, " m"]]:
    """Means over the circle of w = ∏((1 + xz)/(1 + x)) z^{−k} and of w z/(1 + x_i z)."""
    large = x > 1
    tails = 1 / (1 + x)
    heads = jnp.where(large, 1 / (1 + 1 / jnp.where(large, x, 1)), jnp.where(large, 0, x) * tails)
    minor = jnp.minimum(heads, tails)
    sign = jnp.where(large, -1.0, 1.0).astype(x.dtype)
    # A coin that mostly shows heads turns with z: its whole turn is cancelled against z^{−k} here.
    turns = jnp.sum(jnp.where(large, weight, 0)) - k

    def node(theta):
        sine, versine = jnp.sin(theta), 2 * jnp.sin(theta / 2) ** 2
        squared = -2 * heads * tails * versine
        modulus = jnp.sum(weight * jnp.log1p(squared)) / 2
        angles = sign * jnp.arctan2(minor * sine, 1 - minor * versine)
        phase = turns * theta + jnp.sum(weight * angles)
        real, imaginary = jnp.exp(modulus) * jnp.cos(phase), jnp.exp(modulus) * jnp.sin(phase)
        without = (real * (1 - tails * versine) - imaginary * tails * sine) / (1 + squared)
        return real, without

    blocks = -(-half * x.shape[0] // _BLOCK)
    rows = -(-half // blocks)
    half = blocks * rows
    thetas = jnp.asarray((np.arange(half) + 0.5) * (np.pi / half), x.dtype).reshape(blocks, rows)

    def block(sums, thetas):
        means = jax.tree.map(lambda terms: jnp.sum(terms, axis=0) / half, jax.vmap(node)(thetas))
        return jax.tree.map(jnp.add, sums, means), None

    start = (jnp.zeros((), x.dtype), jnp.zeros_like(x))
    (real, without), _ = jax.lax.scan(block, start, thetas)
    return real, tails * without
