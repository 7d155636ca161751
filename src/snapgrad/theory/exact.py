"""P̄, W̄, W̃, X, α, β and γ by enumerating every set of k rows: exact, for small m and any sampling law."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .._checks import Given
from ._spectrum import Sampling, Spectrum, as_jax, check_sample, psd_power, smallest_positive, spectrum

_BLOCK = 4096  # subsets at a time, so that memory does not grow with their number


@runtime_checkable
class HasLogProb(Protocol):
    """Any law over sets of rows: `log_prob(rows)` is the logarithm of p(S) for one set of k rows.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    law = sg.sampling.SquaredVolume.from_matrix(J, sample_size=2)
    sg.theory.exact.constants(J, sample_size=2, sampling=law).gamma
    ```
    """

    def log_prob(self, rows: Any) -> Any:
        """Returns log p(S) of a set of rows."""
        ...


class Constants(NamedTuple):
    """Everything the theory asks of a sampling law; `sg.theory.exact.constants` computes it.

    - `subsets`, `probabilities`: every S with |S| = k, and p(S).
    - `expected_projector`: P̄ = E[J_S^{+(λ)} J_S].
    - `expected_weight`: W̄ = E[I_Sᵀ (J_S J_Sᵀ + λI)⁺ I_S].
    - `preconditioner`: W̃ = (JᵀJ)^{-1/2} P̄ (JᵀJ)^{-1/2}.
    - `second_moment`: X = E[I_Sᵀ (J_S^{+(λ)})ᵀ W̃⁺ J_S^{+(λ)} I_S].
    - `alpha`: λ⁺_min(P̄); `beta`: ‖P̄^{-1/2} E[P P̄⁺ P] P̄^{-1/2}‖; `gamma`: ‖X‖.

    ```python
    c = sg.theory.exact.constants(np.eye(3), sample_size=2)
    c.alpha, c.subsets.shape                                   # 2/3, (3, 2)
    ```
    """

    subsets: Int[Array, "N k"]
    probabilities: Float[Array, " N"]
    expected_projector: Float[Array, "n n"]
    expected_weight: Float[Array, "m m"]
    preconditioner: Float[Array, "n n"]
    second_moment: Float[Array, "m m"]
    alpha: float
    beta: float
    gamma: float


def constants(
    J: Given[ArrayLike, "m n"],
    *,
    sample_size: int,
    damping: float = 0.0,
    sampling: Sampling | HasLogProb = "svs",
    max_subsets: int = 2_000_000,
) -> Constants:
    """Returns the constants of a sampling law over the rows of J, by enumeration of all C(m, k) subsets.

    `ValueError` where there are more than `max_subsets`.

    **Arguments:**

    - `J`: the matrix, `[m, n]`.
    - `sample_size`: k, the number of rows in a batch.
    - `damping`: the regularisation λ ≥ 0.
    - `sampling`: `"svs"`, `"uniform"`, or any object with a `log_prob(rows)`.
    - `max_subsets`: refuse to enumerate more than this.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    c = sg.theory.exact.constants(J, sample_size=3, damping=0.1, sampling="uniform")
    c.alpha, c.beta, c.gamma
    ```
    """
    spec = spectrum(J)
    k, lam = check_sample(spec, sample_size, damping, sampling)
    total = math.comb(spec.num_rows, k)
    if total > max_subsets:
        raise ValueError(
            f"`sample_size` = {k} of {spec.num_rows} rows makes {total} subsets, more than `max_subsets`, "
            f"which is {max_subsets}. `sg.theory.gamma` and `sg.theory.beta` estimate instead."
        )
    subsets = all_subsets(spec.num_rows, k)
    p = probabilities(spec, subsets, lam, sampling)

    Z, sigma, V, tiny = spec.rows, spec.sigma, spec.V, spec.tiny
    e, m = spec.rank, spec.num_rows
    P_bar = np.zeros((e, e))
    for S, weight_S, F, _ in _solved(spec, subsets, p, lam):
        P_bar += np.einsum("s,sek,skf->ef", weight_S, F, Z[S], optimize=True)

    W_tilde = P_bar / np.outer(sigma, sigma)
    W_pinv, P_pinv, P_half = (
        psd_power(W_tilde, -1, tiny),
        psd_power(P_bar, -1, tiny),
        psd_power(P_bar, -0.5, tiny),
    )
    X, PPP = np.zeros((m, m)), np.zeros((e, e))
    for S, weight_S, F, _ in _solved(spec, subsets, p, lam):
        _scatter(X, S, weight_S, np.swapaxes(F, 1, 2) @ (W_pinv @ F))
        inner = F @ (Z[S] @ (P_pinv @ F))
        PPP += np.einsum("s,sek,skf->ef", weight_S, inner, Z[S], optimize=True)

    return Constants(
        subsets=as_jax(subsets),
        probabilities=as_jax(p),
        expected_projector=as_jax(V @ P_bar @ V.T),
        expected_weight=as_jax(weight(spec, subsets, p, lam)),
        preconditioner=as_jax(V @ W_tilde @ V.T),
        second_moment=as_jax(X),
        alpha=smallest_positive(P_bar, tiny),
        beta=float(np.linalg.norm(P_half @ PPP @ P_half, 2)),
        gamma=float(np.linalg.norm(X, 2)),
    )


def all_subsets(m: int, k: int) -> Int[np.ndarray, "N k"]:
    """Every set of k of m rows, in lexicographic order."""
    flat = itertools.chain.from_iterable(itertools.combinations(range(m), k))
    total = math.comb(m, k)
    return np.fromiter(flat, np.int64, total * k).reshape(total, k)


def probabilities(
    spec: Spectrum, subsets: Int[np.ndarray, "N k"], lam: float, sampling: Sampling | HasLogProb
) -> Float[np.ndarray, " N"]:
    """p(S) over all subsets; for SVS ∝ det(J_S J_Sᵀ + λI), zero exactly where the volume vanishes."""
    if isinstance(sampling, str) and sampling == "uniform":
        return np.full(len(subsets), 1 / len(subsets))
    if isinstance(sampling, str):
        log_volume = np.concatenate([_log_volume(spec, S, lam) for S in _blocks(subsets)])
        volume = np.exp(log_volume - log_volume.max())
        return volume / volume.sum()
    p = np.exp(np.asarray(jax.vmap(sampling.log_prob)(jnp.asarray(subsets)), np.float64))
    if not abs(p.sum() - 1) < 1e-5:
        raise ValueError(
            f"`sampling` must be a law over sets of {subsets.shape[1]} rows whose probabilities sum to 1; "
            f"those of {type(sampling).__name__} sum to {p.sum():.6g}."
        )
    return p / p.sum()


def weight(
    spec: Spectrum, subsets: Int[np.ndarray, "N k"], p: Float[np.ndarray, " N"] | None, lam: float
) -> Float[np.ndarray, "m m"]:
    """Σ_S p(S) I_Sᵀ (J_S J_Sᵀ + λI)⁺ I_S; the plain mean without `p`."""
    p = np.full(len(subsets), 1 / len(subsets)) if p is None else p
    out = np.zeros((spec.num_rows, spec.num_rows))
    for S, weight_S, _, inverse in _solved(spec, subsets, p, lam):
        _scatter(out, S, weight_S, inverse)
    return out


def singular_values(
    spec: Spectrum, S: Int[np.ndarray, "N k"], lam: float
) -> tuple[
    Float[np.ndarray, "N k k"], Float[np.ndarray, "N k"], Float[np.ndarray, "N k f"], Float[np.ndarray, "N k"]
]:
    """The SVD of each J_S with all k left vectors, and s² + λ with its numerical zeros at λ = 0 exact."""
    k = S.shape[1]
    rows = spec.rows[S]
    missing = np.zeros((*rows.shape[:2], max(0, k - spec.rank)))
    rows = np.concatenate([rows, missing], axis=2)  # then there are k singular values
    u, s, vt = np.linalg.svd(rows, full_matrices=False)
    s = np.where(s > spec.tiny * s[:, :1], s, 0.0) if lam == 0 else s
    return u, s, vt, s**2 + lam


def _log_volume(spec: Spectrum, S: Int[np.ndarray, "N k"], lam: float) -> Float[np.ndarray, " N"]:
    q = singular_values(spec, S, lam)[-1]
    return np.where(q > 0, np.log(np.where(q > 0, q, 1.0)), -np.inf).sum(axis=1)


def _solved(
    spec: Spectrum, subsets: Int[np.ndarray, "N k"], p: Float[np.ndarray, " N"], lam: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """In blocks: S, p(S), J_S^{+(λ)} in the basis V, (J_S J_Sᵀ + λI)⁺."""
    for S, weight in zip(_blocks(subsets), _blocks(p), strict=True):
        u, s, vt, q = singular_values(spec, S, lam)
        inverse = np.where(q > 0, 1 / np.where(q > 0, q, 1.0), 0.0)
        F = np.swapaxes(vt[:, :, : spec.rank], 1, 2) @ ((s * inverse)[:, :, None] * np.swapaxes(u, 1, 2))
        yield S, weight, F, (u * inverse[:, None, :]) @ np.swapaxes(u, 1, 2)


def _blocks(x: np.ndarray) -> Iterator[np.ndarray]:
    return (x[i : i + _BLOCK] for i in range(0, len(x), _BLOCK))


def _scatter(out: np.ndarray, S: np.ndarray, weight: np.ndarray, blocks: np.ndarray) -> None:
    """Adds Σ_S p(S) I_Sᵀ B_S I_S."""
    np.add.at(out, (S[:, :, None], S[:, None, :]), weight[:, None, None] * blocks)
