"""How well data determine the parameters that were fitted to them."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._contracts import Params
from ..linalg import rank_cutoff
from ..operators import from_pairs, to_pairs
from ._least_squares import LeastSquares

NUMBERS = 2**27
"""A covariance with more numbers than this (1 GiB in float64) is refused."""
UNSEEN = 1e-3
"""A parameter with a larger component than this along a direction that changes nothing is not determined."""


class Covariance(eqx.Module):
    """What `sg.covariance` returns.

    - `matrix`: the covariance of the parameters, in the order of `jax.flatten_util.ravel_pytree`.
    - `errors`: their standard errors, in the structure of the parameters.

    ```python
    x, y = jnp.arange(4.0), jnp.array([1.1, 2.9, 5.2, 6.8])
    line = lambda p, row: p["a"] * row[0] + p["b"] - row[1]
    result = sg.least_squares(line, {"a": 0.0, "b": 0.0}, (x, y))
    found = sg.covariance(line, result.params, (x, y))
    found.errors["a"], found.matrix[0, 1]
    ```
    """

    matrix: Float[Array, "n n"]
    errors: Params


def covariance(
    residual: Callable, params: Params, data: PyTree, *, absolute_sigma: bool = False
) -> Covariance:
    """The covariance of fitted parameters, s²(JᵀJ)⁻¹ with s² = ‖r‖²/(m − n), as SciPy's `curve_fit` gives it.

    m is the number of residuals and n that of the parameters. Parameters that the data do not determine have
    infinite variances, and a warning names them; the others keep theirs. Complex parameters count as pairs of
    real ones, real parts first.

    **Arguments:**

    - `residual`, `params`, `data`: as for `sg.least_squares`, with the parameters that it found.
    - `absolute_sigma`: whether residuals are in units of their standard deviation, so that s² = 1.

    **Returns:** a `Covariance`: its `matrix`, and standard `errors` shaped like the parameters. `ValueError`
    if a residual or its derivative is not finite there, or the matrix would not fit into memory.

    ```python
    t = jnp.linspace(0, 2, 30)
    decay = lambda p, row: p["a"] * jnp.exp(-p["rate"] * row[0]) - row[1]
    data = (t, 2.5 * jnp.exp(-1.3 * t) + 0.05 * jax.random.normal(jax.random.key(0), (30,)))
    result = sg.least_squares(decay, {"a": 1.0, "rate": 1.0}, data)
    sg.covariance(decay, result.params, data).errors               # {"a": 0.03, "rate": 0.03}, about
    ```
    """
    problem = LeastSquares(residual, data, params)
    fitted = problem.first
    pairs, unravel = ravel_pytree(to_pairs(fitted))
    n = pairs.size
    if n * max(n, problem.num_rows) > NUMBERS:
        raise ValueError(
            f"`params` has {n} numbers and `data` {problem.num_rows} rows: their covariance would not fit "
            f"into memory; hold parameters fixed by making them part of `residual`."
        )
    spectrum = _spectrum(problem, fitted)
    r, lengths, s, Vt = map(np.asarray, spectrum)
    if not all(np.all(np.isfinite(part)) for part in (r, s)):
        problem.check(fitted, jnp.arange(problem.num_rows))
        raise ValueError("`residual` has derivatives that are NaN or infinite at `params`.")
    m = r.size
    keep = s > rank_cutoff(max(m, n), s.dtype) * s.max(initial=0)
    root = Vt[keep].T / s[keep] / lengths[:, None]  # times its transpose: (JᵀJ)⁺
    matrix = root @ root.T * (1 if absolute_sigma else r @ r / max(m - n, 1))
    unseen = np.linalg.norm(Vt[~keep], axis=0) > UNSEEN
    if m <= n and not absolute_sigma:
        unseen[:] = True
    if np.any(unseen):
        _warn(m, n, np.flatnonzero(unseen), fitted)
        matrix[unseen], matrix[:, unseen] = np.inf, np.inf
    errors = jnp.asarray(np.sqrt(np.diagonal(matrix)), pairs.dtype)
    return Covariance(jnp.asarray(matrix), from_pairs(unravel(errors)))


@eqx.filter_jit
@jax.default_matmul_precision("highest")
def _spectrum(problem: LeastSquares, params: Params) -> tuple[Array, Array, Array, Array]:
    """r, the lengths of the columns of J, and singular values and right vectors of J with unit columns."""
    lin = problem.linearise(params, jnp.arange(problem.num_rows))
    J = lin.jacobian.dense()
    lengths = jnp.linalg.norm(J, axis=0)
    lengths = jnp.where(lengths > 0, lengths, 1)
    # Rows of zeros make V whole where there are fewer residuals than parameters.
    A = jnp.pad(J / lengths[None], ((0, max(0, J.shape[1] - J.shape[0])), (0, 0)))
    _, s, Vt = jnp.linalg.svd(A, full_matrices=False)
    return lin.residual, lengths, s, Vt


def _warn(m: int, n: int, unseen: np.ndarray, params: Any) -> None:
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(to_pairs(params)):
        names += [jax.tree_util.keystr(path)] * leaf.size
    listed = list(dict.fromkeys(f"params{names[i]}" for i in unseen))
    shown = ", ".join(listed[:5]) + (", …" if len(listed) > 5 else "")
    why = "no more residuals than parameters" if m <= n else "a change of them that the data do not see"
    warnings.warn(f"the data do not determine {shown}: there is {why} ({m} and {n}).", stacklevel=3)
