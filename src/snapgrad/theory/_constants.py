"""Closed forms under squared volume sampling: D, P̄, W̄, W̃ and α, for any m, k and λ."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ..linalg import esp_ratios, log_esp
from ._spectrum import Spectrum, as_jax, check_sample, spectrum

_esp_ratios = partial(jax.jit, static_argnums=1)(esp_ratios)
_log_esp = partial(jax.jit, static_argnums=1)(log_esp)


class Ratios(NamedTuple):
    """Lemma C.1's D_i = p_{k−1}(q₋ᵢ) / p_k(q): `leading` for i ≤ e, `trailing` for each i > e."""

    leading: Float[np.ndarray, " e"]
    trailing: float


def ratios(spec: Spectrum, k: int, lam: float) -> Ratios:
    """D for q = (σ₁² + λ, …, σ_e² + λ, λ, …, λ); the m − e eigenvalues λ are one entry with a power."""
    D = np.asarray(_esp_ratios(*_eigenvalues(spec.sigma, spec.num_rows, k, lam)), np.float64)
    return Ratios(D[:-1], float(D[-1]))


def log_esp_ratio(spec: Spectrum, k: int, lam: float) -> float:
    """The logarithm of p_{k−1}(q) / p_k(q)."""
    return log_esp_of(spec.sigma, spec.num_rows, k - 1, lam) - log_esp_of(spec.sigma, spec.num_rows, k, lam)


def log_esp_of(sigma: Float[np.ndarray, " e"], num_rows: int, k: int, lam: float) -> float:
    """The logarithm of p_k of the eigenvalues of JJᵀ + λI, for J with these singular values."""
    return float(_log_esp(*_eigenvalues(sigma, num_rows, k, lam)))


def alpha_svs(spec: Spectrum, k: int, lam: float) -> float:
    """α = min_i σ_i² D_i over i ≤ e (Lemma F.3)."""
    return float(np.min(spec.sigma**2 * ratios(spec, k, lam).leading))


def expected_projector(J: Any, *, sample_size: int, damping: float = 0.0) -> Float[Array, "n n"]:
    """P̄ = E[J_S^{+(λ)} J_S] = V Σ D Σ Vᵀ under squared volume sampling (Lemma F.3).

    Built from D, which is right at λ = 0 too, when some sets of k rows are dependent and W̄ is not
    U D Uᵀ (see `expected_weight`).

    ```python
    P = sg.theory.expected_projector(J, sample_size=10, damping=1e-3)    # [n, n]
    ```
    """
    spec = spectrum(J)
    D = ratios(spec, *check_sample(spec, sample_size, damping)).leading
    return as_jax((spec.V * (spec.sigma**2 * D)) @ spec.V.T)


def preconditioner(J: Any, *, sample_size: int, damping: float = 0.0) -> Float[Array, "n n"]:
    """W̃ = (JᵀJ)^{-1/2} P̄ (JᵀJ)^{-1/2} = V D Vᵀ under squared volume sampling (Corollary C.2).

    The expected direction is E[J_S^{+(λ)} r_S] = W̃ Jᵀ r (Lemma 4.1).
    """
    spec = spectrum(J)
    D = ratios(spec, *check_sample(spec, sample_size, damping)).leading
    return as_jax((spec.V * D) @ spec.V.T)


def expected_weight(J: Any, *, sample_size: int, damping: float = 0.0) -> Float[Array, "m m"]:
    """W̄ = E[I_Sᵀ (J_S J_Sᵀ + λI)⁺ I_S] = U D Uᵀ under squared volume sampling (Lemma C.1).

    At λ = 0 the lemma needs every set of k rows to be independent. Where some are dependent (a zero row,
    two equal rows) U D Uᵀ still counts them through their adjugates, although they are never drawn, and
    so exceeds the expectation; Jᵀ U D Uᵀ is right nevertheless, and with it P̄, W̃ and Lemma 4.1.
    """
    spec = spectrum(J)
    D = ratios(spec, *check_sample(spec, sample_size, damping))
    U = spec.U
    return as_jax((U * (D.leading - D.trailing)) @ U.T + D.trailing * np.eye(spec.num_rows))


def _eigenvalues(
    sigma: Float[np.ndarray, " e"], num_rows: int, k: int, lam: float
) -> tuple[Float[np.ndarray, " e_plus_1"], int, Float[np.ndarray, " e_plus_1"]]:
    """The arguments of `esp_ratios` and `log_esp`: values, degree, multiplicities."""
    return np.append(sigma**2 + lam, lam), k, np.append(np.ones(len(sigma)), float(num_rows - len(sigma)))
