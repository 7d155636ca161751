"""Error bars of what was found from noisy data."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._checks import Given, real_scalar
from .._contracts import Params
from ..linalg import rank_cutoff
from ._blocks import Block
from ._domains import Points
from ._problem import PINN

NUMBERS = 2**27
"""A Jacobian with more numbers than this (1 GiB in float64) is refused."""
ROWS_FOR_EACH_PARAMETER = 2
"""So many rows of physics stand for the whole domain."""
UNSEEN = 1e-3
"""A coefficient with more than this of a direction that changes nothing is not determined."""
UNSETTLED = 0.5
"""A coefficient that would still move by this many standard errors has not converged."""


class ErrorBars(eqx.Module):
    """How sure the solution of an inverse problem is: what `solution.error_bars()` returns.

    - `problem`, `params`: the `sg.pinn.PINN` that was solved, and the parameters that were found.
    - `errors`: the standard error of each unknown coefficient, `{name: error}`.
    - `intervals`: where each coefficient lies with probability `level`, `{name: (low, high)}`.
    - `bars(x)`: the standard error of u at a point `[d]`, or at each point of an array `[..., d]`.
    - `bars.field(name, x)`: the same for an unknown field.
    - `noise`: the standard deviation of the data, given or estimated, for each block of data.
    - `freedom`: the degrees of freedom of that estimate, infinite where it was given.
    - `undetermined`: coefficients that the data do not determine; their errors are infinite.
    - `root`: a matrix R, whose columns are changes of the parameters; their covariance is RRᵀ.

    ```python
    t = np.linspace(0, 2, 20)[:, None]
    value = np.exp(-1.3 * t[:, 0]) + 0.05 * np.random.default_rng(0).standard_normal(20)
    slope = lambda u, t: sg.pinn.directional(u, t, jnp.ones(1))
    problem = sg.pinn.PINN(
        sg.pinn.MLP([1, 6, 1]),
        [
            sg.pinn.Block("decay", lambda u, t, rate: slope(u, t) + rate * u(t), sg.pinn.Box(0, 2), 40),
            sg.pinn.Block("data", lambda u, t, value: u(t) - value, sg.pinn.Points(t, value=value)),
        ],
        unknowns={"rate": 1.0},
    )
    bars = sg.pinn.solve(problem, jax.random.key(0), steps=100).error_bars()
    bars.errors["rate"], bars.intervals["rate"], bars(t)
    ```
    """

    problem: PINN
    params: Params
    root: Float[Array, "n m"]
    noise: dict[str, Float[Array, ""]]
    undetermined: tuple[str, ...] = eqx.field(static=True)
    freedom: float = eqx.field(static=True)
    level: float = eqx.field(static=True)

    @property
    def errors(self) -> dict[str, Array]:
        """The standard error of each unknown coefficient, by name."""
        rows = np.linalg.norm(np.asarray(self.root), axis=1)
        found = {}
        for name, entries in _entries(self.params).items():
            error = np.inf if name in self.undetermined else rows[entries].reshape(self._unknowns[name].shape)
            found[name] = jnp.broadcast_to(jnp.asarray(error, float), self._unknowns[name].shape)
        return found

    @property
    def intervals(self) -> dict[str, tuple[Array, Array]]:
        """The interval in which each unknown coefficient lies with probability `level`, by name."""
        from scipy.stats import t  # takes seconds to import

        wide = float(t.ppf(0.5 + self.level / 2, self.freedom))
        errors = self.errors
        return {
            name: (value - wide * errors[name], value + wide * errors[name])
            for name, value in self._unknowns.items()
        }

    def __call__(self, x: Given[ArrayLike | Sequence[float], "*N d"]) -> Array:
        """The standard error of u at x."""
        return _spread(self, None, jnp.asarray(x))

    def field(self, name: str, x: Given[ArrayLike | Sequence[float], "*N d"]) -> Array:
        """Returns the standard error of an unknown field at x."""
        return _spread(self, name, jnp.asarray(x))

    @property
    def _unknowns(self) -> dict[str, Array]:
        return self.params["unknowns"]


@eqx.filter_jit
def _spread(bars: ErrorBars, field: str | None, x: Float[Array, "..."]) -> Array:
    """The standard deviation of u or of a field, to first order."""

    def function(params: Params) -> Array:
        return bars.problem.u(params, x) if field is None else bars.problem.field(field, params, x)

    _, unravel = ravel_pytree(bars.params)
    _, linear = jax.linearize(function, bars.params)
    changes = jax.lax.map(lambda change: linear(unravel(change)), bars.root.T)
    return jnp.sqrt(jnp.sum(changes**2, axis=0))


def error_bars(
    problem: PINN,
    params: Params,
    noise: float | Mapping[str, float] | None,
    data: str | Sequence[str] | None,
    level: float,
) -> ErrorBars:
    """See `Solution.error_bars`.

    With scaled rows J and residuals r, of which those of data carry noise Sε (S the scale of a row, ε of
    variance σ²), a minimum of ½‖r‖² moves by −J⁺Sε. So the covariance of the parameters is
    σ² (J⁺S)(J⁺S)ᵀ over the columns of data, whatever the weights; for a large weight of the physics it is
    that of Laplace's approximation under the constraint. The residuals of the data are S⁻¹(I − H)Sε with
    H = JJ⁺, which gives σ² where it is not known, and its degrees of freedom.
    """
    level = float(real_scalar("level", level, low=0, below=1))
    wide = _widened(problem, params)
    rows, size = wide.counts(params)
    if rows * size > NUMBERS:
        raise ValueError(
            f"`problem` has {size} parameters and needs {rows} rows for error bars: their Jacobian would not "
            f"fit into memory. Use a smaller network."
        )
    r, lengths, U, s, Vt = (np.asarray(part) for part in _spectrum(wide, params))
    if not (np.all(np.isfinite(r)) and np.all(np.isfinite(s))):
        raise ValueError("a residual or its derivative is NaN or infinite at the solution.")
    keep = s > rank_cutoff(max(rows, size), s.dtype) * s.max(initial=0)
    U, gain = U[:, keep], Vt[keep].T / s[keep] / lengths[:, None]  # gain times Uᵀ: J⁺
    blocks = _data_rows(wide, params, data)
    mine = np.concatenate([rows for rows, _ in blocks.values()])
    scales = np.concatenate([np.full(rows.size, scale) for rows, scale in blocks.values()])
    left = (np.eye(mine.size) - U[mine] @ U[mine].T) * scales / scales[:, None]
    sigma, freedom = _noise(noise, list(blocks), left, r[mine] / scales)
    deviations = np.concatenate([np.full(rows.size, sigma[name]) for name, (rows, _) in blocks.items()])
    root = gain @ (U[mine].T * (scales * deviations))
    if root.shape[1] > size:
        root = np.asarray(np.linalg.qr(root.T, mode="r")).T  # the same RRᵀ
    unseen = np.linalg.norm(Vt[~keep], axis=0) > UNSEEN
    bars = ErrorBars(
        problem,
        params,
        jnp.asarray(root),
        {name: jnp.asarray(value, r.dtype) for name, value in sigma.items()},
        tuple(name for name, entries in _entries(params).items() if np.any(unseen[entries])),
        freedom,
        level,
    )
    _warn(bars, gain @ (U.T @ r))
    return bars


def _widened(problem: PINN, params: Params) -> PINN:
    """The problem with all of its data, and so many points of physics that they stand for the domain."""
    rows, size = problem.counts(params)
    more = max(1.0, ROWS_FOR_EACH_PARAMETER * size / rows)

    def widen(block: Block) -> Block:
        domain = block.domain
        count = domain.count if isinstance(domain, Points) else math.ceil(more * block.points)
        return replace(block, points=count)

    return eqx.tree_at(lambda p: p.blocks, problem, tuple(widen(block) for block in problem.blocks))


@eqx.filter_jit
@jax.default_matmul_precision("highest")
def _spectrum(problem: PINN, params: Params) -> tuple[Array, Array, Array, Array, Array]:
    """r, the lengths of the columns of J, and the singular vectors and values of J with unit columns."""
    lin = problem.linearise(params, problem.draw(jax.random.key(4)))
    J = lin.jacobian.dense()
    lengths = jnp.linalg.norm(J, axis=0)
    lengths = jnp.where(lengths > 0, lengths, 1)
    U, s, Vt = jnp.linalg.svd(J / lengths[None], full_matrices=False)
    return lin.residual, lengths, U, s, Vt


def _data_rows(problem: PINN, params: Params, data: Any) -> dict[str, tuple[np.ndarray, float]]:
    """The rows of each block of data among all of them, and the factor by which they are scaled."""
    given = [block.name for block in problem.blocks if isinstance(block.domain, Points)]
    names = given if data is None else [data] if isinstance(data, str) else list(data)
    known = [block.name for block in problem.blocks]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"`data` must name blocks among {', '.join(known)}; got {unknown[0]!r}.")
    if not names:
        raise ValueError(
            "`data` must name the blocks that hold measured values: the problem has none on sg.pinn.Points."
        )
    shapes = problem.shapes(params)
    ends = np.cumsum([shapes[name].size for name in known])
    found = {}
    for block, end in zip(problem.blocks, ends, strict=True):
        if block.name in names:
            rows = np.arange(end - shapes[block.name].size, end)
            found[block.name] = rows, math.sqrt(float(block.weight) / block.points)
    if idle := [name for name, (_, scale) in found.items() if scale == 0]:
        raise ValueError(f"block {idle[0]!r} has weight 0: its data were not used.")
    return found


def _noise(
    noise: Any, names: list[str], left: Float[np.ndarray, "m m"], residual: Float[np.ndarray, " m"]
) -> tuple[dict[str, float], float]:
    """The standard deviation of each block of data, and the degrees of freedom of the estimate."""
    if noise is not None:
        given = dict(noise) if isinstance(noise, Mapping) else dict.fromkeys(names, noise)
        if set(given) != set(names):
            raise ValueError(f"`noise` must have one entry for each of {', '.join(names)}; got {noise!r}.")
        return {name: float(real_scalar("noise", given[name], low=0)) for name in names}, math.inf
    square = left.T @ left
    rest = np.trace(square)  # the expectation of ‖residual‖²/σ²
    if rest < 1:
        raise ValueError(
            "`noise` must be given: the network follows the data so closely that nothing is left to estimate "
            "it from. Or give the physics more weight, or use a smaller network."
        )
    # Satterthwaite: a χ² with the same mean and variance.
    return dict.fromkeys(names, math.sqrt(residual @ residual / rest)), float(rest**2 / np.sum(square**2))


def _entries(params: Params) -> dict[str, np.ndarray]:
    """Where each unknown is among all parameters in a row."""
    sizes = jax.tree.map(lambda leaf: leaf.size, params)
    ends = jax.tree.unflatten(jax.tree.structure(params), np.cumsum(jax.tree.leaves(sizes)).tolist())
    return {name: np.arange(end - sizes["unknowns"][name], end) for name, end in ends["unknowns"].items()}


def _warn(bars: "ErrorBars", shift: Float[np.ndarray, " n"]) -> None:
    """Where the data do not determine a coefficient, or training has not found it yet."""
    if bars.undetermined:
        names = ", ".join(bars.undetermined)
        warnings.warn(f"the data do not determine {names}: a change of it changes nothing.", stacklevel=4)
    for name, error in bars.errors.items():
        move = np.abs(shift[_entries(bars.params)[name]]).max()
        if move > UNSETTLED * float(jnp.max(error)):
            warnings.warn(
                f"training has not converged: one more step of Gauss and Newton would move {name} by "
                f"{move:.1e}, and its standard error is {float(jnp.max(error)):.1e}. Take more steps.",
                stacklevel=4,
            )
