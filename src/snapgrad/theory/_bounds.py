"""What the paper proves about α, β, γ and D without computing them."""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from .._checks import Given
from ._closed_forms import alpha_svs, ratios
from ._spectrum import Spectrum, check_sample, spectrum


class Bounds(NamedTuple):
    """Bounds under squared volume sampling, but for `gamma_uniform`; `None` where a statement does not apply.

    - `alpha_low`: Appendix B's bound, with λ and the maximum over ℓ = 0, …, k−1; `alpha_low_simple` takes
      ℓ = k−1 alone.
    - `beta_low`, `beta_high`: 1, or rank/k at λ = 0; and 1/α.
    - `gamma_low`: the larger of λ_max(P̄) and ‖J‖_F² / (‖J‖_F² + mλ), from tr(X(JJᵀ + λI)) = ‖J‖_F².
    - `gamma_high`: max D / min D, the step of Proposition 5.3's proof that any sampling law allows.
    - `gamma_orthonormal`: item 1, γ = 1/(1+λ) if JJᵀ = I; under uniform sampling as well.
    - `gamma_single_row`: item 2, γ ≤ 1 if k = 1.
    - `gamma_all_rows`: item 3, γ ≤ 1 if k = m; under any sampling.
    - `gamma_uniform`: item 4, γ ≤ 1 + (k/λ) max_i ‖J_i‖² under uniform sampling, if λ > 0.
    - `preconditioner_low`, `preconditioner_high`: 1/tr(JJᵀ + λI) ≤ λ_min(D) (Corollary C.2) and
      λ_max(D) ≤ 1/λ (proof of Theorem 4.2), over range(Jᵀ).
    - `update_high`: c in E‖J_S^{+(λ)} r_S‖² ≤ c ‖r‖². Lemma D.1 has 1/λ; 1/(4λ) holds, because
      σ/(σ² + λ) ≤ 1/(2√λ).

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    sg.theory.bounds(J, sample_size=2)._asdict()
    ```
    """

    alpha_low: float
    alpha_low_simple: float
    beta_low: float
    beta_high: float
    gamma_low: float
    gamma_high: float
    gamma_orthonormal: float | None
    gamma_single_row: float | None
    gamma_all_rows: float | None
    gamma_uniform: float | None
    preconditioner_low: float
    preconditioner_high: float | None
    update_high: float | None


def bounds(J: Given[ArrayLike, "m n"], *, sample_size: int, damping: float = 0.0) -> Bounds:
    """All bounds that hold for a matrix, from its singular values and row norms alone.

    **Arguments:**

    - `J`: the matrix, `[m, n]`.
    - `sample_size`: k, the number of rows in a batch.
    - `damping`: the regularisation λ ≥ 0.

    **Returns:** a `sg.theory.Bounds`.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    bounds = sg.theory.bounds(J, sample_size=2)
    bounds.alpha_low, bounds.gamma_high
    ```
    """
    spec = spectrum(J)
    k, lam = check_sample(spec, sample_size, damping)
    m = spec.num_rows
    alphas = _alpha_bounds(spec, k, lam)
    beta_low, beta_high = beta_range(spec, k, lam)
    gamma_low, gamma_high = gamma_range(spec, k, lam)
    largest_row = float(np.max(np.sum(spec.rows**2, axis=1)))
    orthonormal = spec.rank == m and bool(np.all(np.abs(spec.sigma - 1) <= spec.tiny))
    return Bounds(
        alpha_low=float(alphas.max()),
        alpha_low_simple=float(alphas[-1]),
        beta_low=beta_low,
        beta_high=beta_high,
        gamma_low=gamma_low,
        gamma_high=gamma_high,
        gamma_orthonormal=1 / (1 + lam) if orthonormal else None,
        gamma_single_row=1.0 if k == 1 else None,
        gamma_all_rows=1.0 if k == m else None,
        gamma_uniform=1 + k / lam * largest_row if lam > 0 else None,
        preconditioner_low=1 / (float(np.sum(spec.sigma**2)) + m * lam),
        preconditioner_high=1 / lam if lam > 0 else None,
        update_high=1 / (4 * lam) if lam > 0 else None,
    )


def beta_range(spec: Spectrum, k: int, lam: float) -> tuple[float, float]:
    """1 ≤ β ≤ 1/α, and rank/k ≤ β at λ = 0, where every P(S) has trace k."""
    return max(1.0, spec.rank / k if lam == 0 else 1.0), 1 / alpha_svs(spec, k, lam)


def gamma_range(spec: Spectrum, k: int, lam: float) -> tuple[float, float]:
    """max(λ_max(P̄), ‖J‖_F² / (‖J‖_F² + mλ)) ≤ γ ≤ max D / min_{i≤e} D_i, the latter 1 for k = 1 and k = m."""
    D = ratios(spec, k, lam)
    square, m = float(np.sum(spec.sigma**2)), spec.num_rows
    low = max(float(np.max(spec.sigma**2 * D.leading)), square / (square + m * lam))
    if k in (1, m):
        return low, 1.0
    largest = max(float(D.leading.max()), D.trailing if spec.rank < m else 0.0)
    return low, largest / float(D.leading.min())


def _alpha_bounds(spec: Spectrum, k: int, lam: float) -> np.ndarray:
    """(σ_e²/q_e) (k−ℓ) / (k−ℓ + Σ_{i>ℓ} q_i/q_e) for each ℓ < k, where q lacks its own entry q_e.

    With q_e in the sum this is Appendix B's (k−ℓ) / (k−ℓ−1 + Σ_{i>ℓ} q_i/q_e).
    """
    last = spec.sigma[-1] ** 2 + lam
    others = np.append(spec.sigma[:-1] ** 2 + lam, np.full(spec.num_rows - spec.rank, lam))
    tails = np.append(np.cumsum(others[::-1])[::-1], 0.0)[:k]  # Σ_{i>ℓ} for ℓ = 0, …, k−1
    left = k - np.arange(k)
    return spec.sigma[-1] ** 2 * left / (left * last + tails)
