"""Closed forms under squared volume sampling: D and α, for any m, k and λ."""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from ..linalg import esp_ratios, log_esp
from ._spectrum import Spectrum

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


def _eigenvalues(
    sigma: Float[np.ndarray, " e"], num_rows: int, k: int, lam: float
) -> tuple[Float[np.ndarray, " e_plus_1"], int, Float[np.ndarray, " e_plus_1"]]:
    """The arguments of `esp_ratios` and `log_esp`: values, degree, multiplicities."""
    return np.append(sigma**2 + lam, lam), k, np.append(np.ones(len(sigma)), float(num_rows - len(sigma)))
