"""P̄, W̄ and W̃: closed forms under squared volume sampling, means of draws under uniform sampling."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, overload

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._checks import Given, positive_int
from ..sampling import Uniform
from . import exact
from ._closed_forms import ratios
from ._estimate import ENUMERATE, Draws
from ._moments import FOLDS, in_folds, projector
from ._spectrum import Sampling, Spectrum, as_jax, check_sample, spectrum


class MatrixEstimate(NamedTuple):
    """A matrix of expectations, known up to sampling error.

    - `mean`: the matrix.
    - `standard_error`: that of each entry, zero where the matrix is exact.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    mean, standard_error = sg.theory.expected_projector(J, sample_size=2, sampling="uniform")
    ```
    """

    mean: Float[Array, "d d"]
    standard_error: Float[Array, "d d"]


@overload
def expected_projector(
    J: Given[ArrayLike, "m n"], *, sample_size: int, damping: float = 0.0, sampling: Literal["svs"] = "svs"
) -> Float[Array, "n n"]: ...
@overload
def expected_projector(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Literal["uniform"],
    key: PRNGKeyArray | None = None,
    num_samples: int = 10_000,
) -> MatrixEstimate: ...
def expected_projector(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Sampling = "svs",
    key: PRNGKeyArray | None = None,
    num_samples: int = 10_000,
) -> Float[Array, "n n"] | MatrixEstimate:
    """Returns P̄ = E[J_S^{+(λ)} J_S], which is V Σ D Σ Vᵀ under squared volume sampling (Lemma F.3).

    **Arguments:**

    - `J`: the matrix, `[m, n]`.
    - `sample_size`: k, the number of rows in a batch.
    - `damping`: the regularisation λ ≥ 0.
    - `sampling`: `"svs"` for squared volume sampling, for which the result is an exact matrix, or
      `"uniform"`, for which it is a `MatrixEstimate`, exact where there are few enough sets to enumerate.
    - `key`, `num_samples`: the randomness and the number of the draws under uniform sampling.

    It is built from D, which is right at λ = 0 too, when some sets of k rows are dependent and W̄ is not
    U D Uᵀ (see `sg.theory.expected_weight`).

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    P = sg.theory.expected_projector(J, sample_size=2)                   # [4, 4]
    ```
    """
    spec = spectrum(J)
    k, lam = check_sample(spec, sample_size, damping, sampling)
    if sampling == "svs":
        return as_jax((spec.V * (spec.sigma**2 * ratios(spec, k, lam).leading)) @ spec.V.T)
    return _uniform(spec, k, key, num_samples, lambda sets: spec.V @ projector(spec, sets, lam) @ spec.V.T)


@overload
def preconditioner(
    J: Given[ArrayLike, "m n"], *, sample_size: int, damping: float = 0.0, sampling: Literal["svs"] = "svs"
) -> Float[Array, "n n"]: ...
@overload
def preconditioner(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Literal["uniform"],
    key: PRNGKeyArray | None = None,
    num_samples: int = 10_000,
) -> MatrixEstimate: ...
def preconditioner(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Sampling = "svs",
    key: PRNGKeyArray | None = None,
    num_samples: int = 10_000,
) -> Float[Array, "n n"] | MatrixEstimate:
    """Returns W̃ = (JᵀJ)^{-1/2} P̄ (JᵀJ)^{-1/2}, which is V D Vᵀ under squared volume sampling (Corollary C.2).

    There the expected direction is E[J_S^{+(λ)} r_S] = W̃ Jᵀ r (Lemma 4.1). The arguments are those of
    `sg.theory.expected_projector`: `J`, `sample_size`, `damping`, `sampling`, `key` and `num_samples`.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    W = sg.theory.preconditioner(J, sample_size=2)                       # [4, 4]
    ```
    """
    spec = spectrum(J)
    k, lam = check_sample(spec, sample_size, damping, sampling)
    if sampling == "svs":
        return as_jax((spec.V * ratios(spec, k, lam).leading) @ spec.V.T)
    scaled = spec.V / spec.sigma
    return _uniform(spec, k, key, num_samples, lambda sets: scaled @ projector(spec, sets, lam) @ scaled.T)


@overload
def expected_weight(
    J: Given[ArrayLike, "m n"], *, sample_size: int, damping: float = 0.0, sampling: Literal["svs"] = "svs"
) -> Float[Array, "m m"]: ...
@overload
def expected_weight(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Literal["uniform"],
    key: PRNGKeyArray | None = None,
    num_samples: int = 10_000,
) -> MatrixEstimate: ...
def expected_weight(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Sampling = "svs",
    key: PRNGKeyArray | None = None,
    num_samples: int = 10_000,
) -> Float[Array, "m m"] | MatrixEstimate:
    """Returns W̄ = E[I_Sᵀ (J_S J_Sᵀ + λI)⁺ I_S], which is U D Uᵀ under squared volume sampling (Lemma C.1).

    At λ = 0 the lemma needs every set of k rows to be independent. Where some are dependent (a zero row, two
    equal rows) U D Uᵀ still counts them through their adjugates, although they are never drawn, and so
    exceeds the expectation; Jᵀ U D Uᵀ is right nevertheless, and with it P̄, W̃ and Lemma 4.1. The arguments
    are those of `sg.theory.expected_projector`: `J`, `sample_size`, `damping`, `sampling`, `key` and
    `num_samples`.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    W = sg.theory.expected_weight(J, sample_size=2)                      # [20, 20]
    ```
    """
    spec = spectrum(J)
    k, lam = check_sample(spec, sample_size, damping, sampling)
    if sampling == "svs":
        D, U = ratios(spec, k, lam), spec.U
        return as_jax((U * (D.leading - D.trailing)) @ U.T + D.trailing * np.eye(spec.num_rows))
    return _uniform(spec, k, key, num_samples, lambda sets: exact.weight(spec, sets, None, lam))


def _uniform(
    spec: Spectrum,
    k: int,
    key: PRNGKeyArray | None,
    num_samples: int,
    mean: Callable[[Int[np.ndarray, "N k"]], Float[np.ndarray, "d d"]],
) -> MatrixEstimate:
    """The mean over all sets of k rows, or over draws in folds."""
    count = positive_int("num_samples", num_samples)
    if math.comb(spec.num_rows, k) <= min(count, ENUMERATE):
        value = mean(exact.all_subsets(spec.num_rows, k))
        return MatrixEstimate(as_jax(value), as_jax(np.zeros_like(value)))
    if key is None:
        raise ValueError(f"`key` must be given: {k} of {spec.num_rows} rows need random draws.")
    draws = Draws(Uniform(spec.num_rows, sample_size=k), key)(0, -(-count // FOLDS) * FOLDS)
    folds = np.stack([mean(sets) for sets in in_folds(draws)])
    return MatrixEstimate(as_jax(folds.mean(axis=0)), as_jax(folds.std(axis=0, ddof=1) / math.sqrt(FOLDS)))
