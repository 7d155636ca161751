"""α, β and γ as intervals, never as the norm of one estimated matrix.

The norm of an unbiased estimate of a matrix is biased upwards, at small k by an order of magnitude
with thousands of draws. So the draws are split into folds. The top eigenvector v of all folds but one
gives vᵀ X v ≤ ‖X‖ without bias on the fold left out: the low end. The norm of the mean is the high end.
Each is widened by the standard error over the folds, times 3.25.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from .._checks import Given, positive_int, real_scalar
from ..sampling import SquaredVolume, Uniform
from . import exact
from ._bounds import beta_range, gamma_range
from ._closed_forms import alpha_svs, ratios
from ._moments import FOLDS, SymmetricRows, Tilted, in_folds, projector, second_moment, squared_projector
from ._spectrum import Sampling, Spectrum, check_sample, psd_power, spectrum

ENUMERATE = 8_000  # sets of rows that are enumerated rather than drawn
_DENSE = 2_000  # up to so many rows, matrices for γ are formed: it is faster, and they are small
_CHUNK = 512  # draws per call of the sampler
_RESTARTS = 20  # of Lanczos on a matrix that is at hand: beyond, all of its eigenvalues are sooner had
_ERRORS = 3.25  # standard errors on either side: 99 % of Student's t over ten folds
_BUDGET = {"alpha": (2_000, 256_000), "beta": (2_000, 256_000), "gamma": (500, 32_000)}
"""Draws before the first look at the interval, and at most; those for γ cost O(mn) each."""


Kind: TypeAlias = Literal["alpha", "beta", "gamma"]


class Interval(NamedTuple):
    """A number known up to sampling error: `low` ≤ truth ≤ `high`, with an `estimate` between the two.

    All three are equal where the number is exact.

    How often that holds was measured against enumeration, on 12 × 5 matrices with one heavy row and columns
    that decay like i⁰, i⁻¹ and i⁻², for λ = 0 and 0.05. Under squared volume sampling with k = 2, 3 and 4 it
    held for 1074 of 1080 intervals of γ (500 draws each, 99.4 %) and for 1060 of 1080 of β (2000 draws,
    98.1 %). Two misses of β in three had the truth above `high`, because rare batches carry much of it.
    Under uniform sampling with k = 3 it held for 239 of 240 intervals of each of α, β and γ (99.6 %).

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    interval = sg.theory.gamma(J, sample_size=2)           # few enough sets to enumerate: a point
    interval.low, interval.estimate, interval.high, interval.relative_width
    ```
    """

    low: float
    estimate: float
    high: float

    @property
    def relative_width(self) -> float:
        """How wide the interval is beside the estimate, (high − low) / estimate."""
        return (self.high - self.low) / self.estimate if self.estimate else float("inf")


@overload
def alpha(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Literal["svs"] = "svs",
    key: PRNGKeyArray | None = None,
    num_samples: int | None = None,
    rtol: float = 0.05,
    progress: bool = False,
) -> float: ...
@overload
def alpha(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Literal["uniform"],
    key: PRNGKeyArray | None = None,
    num_samples: int | None = None,
    rtol: float = 0.05,
    progress: bool = False,
) -> Interval: ...
def alpha(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Sampling = "svs",
    key: PRNGKeyArray | None = None,
    num_samples: int | None = None,
    rtol: float = 0.05,
    progress: bool = False,
) -> float | Interval:
    """Returns α = λ⁺_min(P̄), the sketch-and-project rate E‖θ_t − θ*‖² ≤ (1 − α)ᵗ ‖θ₀ − θ*‖².

    Under squared volume sampling it is exact, from the singular values alone: min_i σ_i² D_i. Under uniform
    sampling it is an `Interval`.

    **Arguments:**

    - `J`: the matrix, `[m, n]`.
    - `sample_size`: k, the number of rows in a batch.
    - `damping`: the regularisation λ ≥ 0.
    - `sampling`: `"svs"` for squared volume sampling, or `"uniform"`.
    - `key`, `num_samples`, `rtol`, `progress`: for uniform sampling, as in `sg.theory.gamma`.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    sg.theory.alpha(J, sample_size=2)                      # a number
    sg.theory.alpha(J, sample_size=2, sampling="uniform")  # an Interval
    ```
    """
    if sampling == "svs":
        spec = spectrum(J)
        return alpha_svs(spec, *check_sample(spec, sample_size, damping))
    return _estimate(J, sample_size, damping, sampling, "alpha", key, num_samples, rtol, progress)


def gamma(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    key: PRNGKeyArray | None = None,
    sampling: Sampling = "svs",
    num_samples: int | None = None,
    rtol: float = 0.05,
    progress: bool = False,
    max_memory: float = 8e9,
) -> Interval:
    """Returns γ = ‖E[I_Sᵀ (J_S^{+(λ)})ᵀ W̃⁺ J_S^{+(λ)} I_S]‖ of Theorem 5.1, as an interval.

    **Arguments:**

    - `J`: the matrix, `[m, n]`.
    - `sample_size`: k, the number of rows in a batch.
    - `damping`: the regularisation λ ≥ 0.
    - `key`: a JAX random key for the draws; not needed where all sets can be enumerated, as for k ≤ 2 under
      SVS.
    - `sampling`: `"svs"` for squared volume sampling, or `"uniform"`.
    - `num_samples`: draw so many batches; each then stands for the m − k + 1 that differ in one row.
    - `rtol`: without `num_samples`, draw until the interval is narrower than `rtol` times the estimate,
      or the most draws are spent (32,000 for γ, 256,000 for β and α); the interval says which.
    - `progress`: show on the terminal how far it has come.
    - `max_memory`: do not store more bytes than this. A draw takes k − 1 rows of m numbers until, with many
      draws, all of ten m × m matrices are filled. Without `num_samples` there are no more draws than fit,
      and the interval is as wide as they leave it; where too few fit, `ValueError` says so at once.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    sg.theory.gamma(J, sample_size=2, key=jax.random.key(1))       # Interval(low, estimate, high)
    ```
    """
    return _estimate(J, sample_size, damping, sampling, "gamma", key, num_samples, rtol, progress, max_memory)


def beta(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    key: PRNGKeyArray | None = None,
    sampling: Sampling = "svs",
    num_samples: int | None = None,
    rtol: float = 0.05,
    progress: bool = False,
) -> Interval:
    """Returns β = ‖P̄^{-1/2} E[P P̄⁺ P] P̄^{-1/2}‖, the second moment that sets the accelerated rate √(α/β).

    It is an `Interval`. The arguments are those of `sg.theory.gamma`: `J`, `sample_size`, `damping`, `key`,
    `sampling`, `num_samples`, `rtol` and `progress`.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    sg.theory.beta(J, sample_size=2, key=jax.random.key(1))        # Interval(low, estimate, high)
    ```
    """
    return _estimate(J, sample_size, damping, sampling, "beta", key, num_samples, rtol, progress)


def _estimate(
    J: Given[ArrayLike, "m n"],
    sample_size: int,
    damping: float,
    sampling: Sampling,
    kind: Kind,
    key: PRNGKeyArray | None,
    num_samples: int | None,
    rtol: float,
    progress: bool,
    max_memory: float = math.inf,
) -> Interval:
    spec = spectrum(J)
    k, lam = check_sample(spec, sample_size, damping, sampling)
    rtol = float(real_scalar("rtol", rtol, low=0))
    first, most = _BUDGET[kind]
    if num_samples is not None:
        first = most = -(-positive_int("num_samples", num_samples) // FOLDS) * FOLDS  # equal folds
    m, less = spec.num_rows, 1 if sampling == "svs" else 0
    if math.comb(m, k - less) <= min(most, ENUMERATE):
        return _enumerated(J, spec, k, lam, sampling, kind)
    if key is None:
        raise ValueError(f"`key` must be given: {kind} for {k} of {m} rows needs random draws.")
    if most < 2 * FOLDS:
        raise ValueError(f"`num_samples` must be at least {2 * FOLDS} for an error bar, got {num_samples}.")

    if kind == "gamma":
        most = _affordable(m, k, first, most, max_memory)
    look = _Uniform(spec, k, lam, kind, key) if sampling == "uniform" else _Svs(J, spec, k, lam, kind, key)
    count = first
    with _bar(progress, f"{kind}, k = {k}") as show:
        while True:
            interval = look(count)
            show(count, interval)
            if count >= most or interval.relative_width <= rtol:
                return interval
            count = min(2 * count, most)


def _affordable(m: int, k: int, first: int, most: int, max_memory: float) -> int:
    """The largest number of draws, from `first` to `most`, whose rows of X fit into memory."""

    def memory(draws: int) -> float:
        rows = min(m, draws // FOLDS * (k - 1))
        return 8.0 * m * (FOLDS + 2) * rows  # the folds, and a fold being made from two others

    if memory(first) > max_memory:
        raise ValueError(
            f"`J` has {m} rows: gamma from {first} draws of {k} of them needs {memory(first) / 1e9:.3g} GB, "
            f"more than `max_memory`, which is {max_memory / 1e9:.3g} GB. Raise it, give fewer `num_samples` "
            f"or a part of the rows, or see `sg.theory.bounds`, which needs none of this."
        )
    if memory(most) <= max_memory:
        return most
    fits = int(max_memory / memory(FOLDS)) * FOLDS
    return max(first, fits)


def _enumerated(J: Any, spec: Spectrum, k: int, lam: float, sampling: Sampling, kind: Kind) -> Interval:
    """Exact: uniform sampling over all S, squared volume sampling over all S less one row."""
    if sampling == "uniform":
        value = getattr(exact.constants(J, sample_size=k, damping=lam, sampling="uniform"), kind)
        return Interval(value, value, value)
    sets = exact.all_subsets(spec.num_rows, k - 1)
    weights = exact.probabilities(spec, sets, lam, "svs")
    D = ratios(spec, k, lam).leading
    p = spec.sigma**2 * D
    X = second_moment(spec, 1 / D if kind == "gamma" else 1 / p, sets, lam, "svs", weights)
    Z = spec.rows / np.sqrt(p)
    value, _ = _top(_mean([_formed(X)]) if kind == "gamma" else Z.T @ (X @ Z))
    return Interval(value, value, value)


class _Svs:
    """`look(count)`: the interval from the first `count` draws under squared volume sampling."""

    def __init__(self, J: Any, spec: Spectrum, k: int, lam: float, kind: Kind, key: PRNGKeyArray):
        self.spec, self.lam, self.kind = spec, lam, kind
        self.known = (gamma_range if kind == "gamma" else beta_range)(spec, k, lam)
        self.D = ratios(spec, k, lam).leading
        self.tilted = Tilted(spec, k, lam) if kind == "beta" else None
        matrix = J if self.tilted is None else self.tilted.matrix
        self.draws = Draws(SquaredVolume.from_matrix(matrix, sample_size=k, damping=lam), key)
        self.folds: list[Any] = []
        self.count = 0

    def __call__(self, count: int) -> Interval:
        share = 1 - self.count / count
        for fold, sets in enumerate(in_folds(self.draws(self.count, count))):
            part = self._part(sets)
            if self.count == 0:
                self.folds.append(part)
            elif isinstance(part, SymmetricRows):
                self.folds[fold] = self.folds[fold].mixed(part, share)
            else:
                self.folds[fold] = (1 - share) * self.folds[fold] + share * part
        self.count = count
        return Interval(*(float(np.clip(x, *self.known)) for x in _largest(self.folds)))

    def _part(self, sets: Int[np.ndarray, "N k"]) -> Any:
        if self.tilted is None:
            return second_moment(self.spec, 1 / self.D, sets[:, :-1], self.lam, "svs")
        P_half = 1 / (self.spec.sigma * np.sqrt(self.D))
        return squared_projector(self.spec, P_half, sets, self.lam, self.tilted.tilt, self.tilted.log_scale)


class _Uniform:
    """`look(count)` under uniform sampling, where P̄ is an estimate too: from four times as many draws."""

    def __init__(self, spec: Spectrum, k: int, lam: float, kind: Kind, key: PRNGKeyArray):
        self.spec, self.lam, self.kind = spec, lam, kind
        keys = jax.random.split(key)
        self.draws, self.more = (Draws(Uniform(spec.num_rows, sample_size=k), key) for key in keys)

    def __call__(self, count: int) -> Interval:
        spec, lam = self.spec, self.lam
        if self.kind == "alpha":
            return _smallest([projector(spec, sets, lam) for sets in in_folds(self.draws(0, count))])
        projectors = np.stack([projector(spec, sets, lam) for sets in in_folds(self.more(0, 4 * count))])
        P_bar = projectors.mean(axis=0)
        parts = in_folds(self.draws(0, count))
        if self.kind == "gamma":
            M = psd_power(P_bar / np.outer(spec.sigma, spec.sigma), -1, spec.tiny)
            folds = [second_moment(spec, M, sets[:, :-1], lam, "uniform") for sets in parts]
            return _widen(_largest(folds), projectors, spec.tiny, power=1)
        P_half = psd_power(P_bar, -0.5, spec.tiny)
        folds = [squared_projector(spec, P_half, sets, lam, 0.0, 0.0) for sets in parts]
        return _widen(_largest(folds), projectors, spec.tiny, power=2)


def _largest(folds: Sequence[Any]) -> Interval:
    """‖E M‖ from the means of M over folds: [cross-validated, plug-in] and the error of both.

    Where the plug-in is too high by b, to second order in the noise, the cross-validated value is too low
    by b G/(G−1), with G folds; the estimate weighs the two so that this cancels.
    """
    G, folds = len(folds), [_formed(fold) for fold in folds]
    plug_in, start = _top(_mean(folds))
    cross = np.empty(G)
    for g in range(G):
        _, v = _top(_mean([fold for i, fold in enumerate(folds) if i != g]), start)
        cross[g] = v @ (folds[g] @ v)
    low = min(float(cross.mean()), plug_in)
    error = _ERRORS * float(np.std(cross, ddof=1)) / math.sqrt(G)
    return Interval(low - error, (G * plug_in + (G - 1) * low) / (2 * G - 1), plug_in + error)


def _mean(folds: Sequence[Any]) -> Any:
    """The mean of matrices: a matrix or, of matrices that are not formed, an operator."""
    if isinstance(folds[0], np.ndarray):
        return sum(folds) / len(folds)
    m = len(folds[0].diagonal)
    return LinearOperator(  # SciPy's own types do not know that the class makes another one of itself
        (m, m),  # pyright: ignore[reportCallIssue]
        matvec=lambda v: sum(fold @ v for fold in folds) / len(folds),  # pyright: ignore[reportCallIssue]
        dtype=float,  # pyright: ignore[reportCallIssue]
    )


def _formed(X: Any) -> Any:
    """A matrix that is small as an array."""
    return X.dense() if isinstance(X, SymmetricRows) and len(X.diagonal) <= _DENSE else X


def _smallest(folds: Sequence[Float[np.ndarray, "d d"]]) -> Interval:
    """λ_min(E M) of positive semidefinite M: as `_largest`, upside down."""
    low, estimate, high = _largest([-fold for fold in folds])
    return Interval(max(-high, 0.0), max(-estimate, 0.0), -low)


def _widen(interval: Interval, projectors: np.ndarray, tiny: float, power: int) -> Interval:
    """For P̄ known up to a factor 1 ± ε, in the order of forms: γ goes with its inverse, β with the square.

    Half the difference between the means of two halves of the draws is distributed as the error of all.
    """
    P_half = psd_power(projectors.mean(axis=0), -0.5, tiny)
    difference = (projectors[0::2].mean(axis=0) - projectors[1::2].mean(axis=0)) / 2
    eps = float(np.linalg.norm(P_half @ difference @ P_half, 2))
    high = interval.high / (1 - eps) ** power if eps < 1 else math.inf
    return Interval(interval.low / (1 + eps) ** power, interval.estimate, high)


def _top(A: Any, start: Float[np.ndarray, " d"] | None = None) -> tuple[float, Float[np.ndarray, " d"]]:
    """The largest eigenvalue and its vector, of a symmetric matrix or operator."""
    size = A.shape[0]
    if size < 200:
        w, Q = np.linalg.eigh(A)
        return float(w[-1]), Q[:, -1]
    start = np.ones(size) if start is None else start  # a fixed start: the same numbers every time
    # Where products are expensive, six digits do: sampling leaves two, and the error of a value is squared.
    tol: Any = 0 if isinstance(A, np.ndarray) else 1e-6
    restarts: Any = _RESTARTS if isinstance(A, np.ndarray) else None
    try:
        w, Q = eigsh(A, k=1, which="LA", v0=start, tol=tol, maxiter=restarts)
    except ArpackNoConvergence:  # a crowd of nearly equal eigenvalues, such as the smallest ones of P̄
        if not isinstance(A, np.ndarray):
            raise
        w, Q = eigh(A, subset_by_index=[size - 1, size - 1])
    return float(w[0]), Q[:, 0]


class Draws:
    """`draws(i, j)`: the i-th to (j−1)-th sets of rows of one endless sequence, rows in random order."""

    def __init__(self, sampler: SquaredVolume | Uniform, key: PRNGKeyArray):
        self.sampler, self.key = sampler, key

    def __call__(self, start: int, stop: int) -> Int[np.ndarray, "N k"]:
        first, last = start // _CHUNK, -(-stop // _CHUNK)
        rows = np.concatenate([self._chunk(index) for index in range(first, last)])
        return rows[start - first * _CHUNK : stop - first * _CHUNK]

    def _chunk(self, index: int) -> Int[np.ndarray, "N k"]:
        draw, shuffle = jax.random.split(jax.random.fold_in(self.key, index))
        rows = np.asarray(_sample(self.sampler, draw), np.int64)
        # Which row comes last must not depend on how the sampler found it.
        return np.random.default_rng(int(jax.random.bits(shuffle))).permuted(rows, axis=1)


@eqx.filter_jit
def _sample(sampler: SquaredVolume | Uniform, key: PRNGKeyArray) -> Int[Array, "N k"]:
    return sampler.sample(key, (_CHUNK,))


@contextmanager
def _bar(progress: bool, name: str) -> Iterator[Callable[[int, Interval], None]]:
    """A line that says how far the draws have come and how wide the interval still is."""
    if not progress:
        yield lambda count, interval: None
        return
    from rich.console import Console  # only a user who wants a bar pays for it
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda count, interval: bar.update(
            task, description=f"{name}: {count} draws, width {100 * interval.relative_width:.1f} %"
        )
