"""A matrix seen through its compact SVD, the coordinates in which the theory is written."""

from typing import Any, Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._checks import positive_int, real_array, real_scalar
from ..linalg import rank_cutoff

Sampling: TypeAlias = Literal["svs", "uniform"]
"""`"svs"`: squared volume sampling SVS(J, k, λ); `"uniform"`: k distinct rows, all sets alike."""


class Spectrum(NamedTuple):
    """J = U Σ Vᵀ with rank e.

    - `rows`: U Σ, the rows of J in the basis V; every quantity of the theory lives in range(Jᵀ).
    - `tiny`: the relative cut-off below which a singular value counts as zero.
    """

    rows: Float[np.ndarray, "m e"]
    sigma: Float[np.ndarray, " e"]
    V: Float[np.ndarray, "n e"]
    tiny: float

    @property
    def num_rows(self) -> int:
        """The number m of rows."""
        return self.rows.shape[0]

    @property
    def rank(self) -> int:
        """The rank e."""
        return self.sigma.size

    @property
    def U(self) -> Float[np.ndarray, "m e"]:
        """The left singular vectors."""
        return self.rows / self.sigma


def spectrum(J: Any) -> Spectrum:
    """The compact SVD of J, in float64 whatever the precision of J; its precision sets the rank."""
    given = real_array("J", J, ndim=2)
    tiny = rank_cutoff(max(given.shape), given.dtype)
    matrix = np.asarray(given, np.float64)
    _, sigma, Vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(sigma > tiny * sigma[0]))
    if rank == 0:
        raise ValueError("`J` must have a row that is not zero, got a matrix of zeros.")
    V = Vt[:rank].T
    return Spectrum(matrix @ V, sigma[:rank], V, tiny)  # J V keeps small rows exact beside large ones


def check_sample(spec: Spectrum, sample_size: Any, damping: Any, sampling: Any = "svs") -> tuple[int, float]:
    """Checked k in 1 … m (1 … rank for SVS at λ = 0, which is undefined beyond) and λ ≥ 0."""
    damping = float(real_scalar("damping", damping, low=0))
    k = positive_int("sample_size", sample_size, most=spec.num_rows, most_name="the number of rows of `J`")
    if isinstance(sampling, str) and sampling not in ("svs", "uniform"):
        raise ValueError(f'`sampling` must be "svs" or "uniform", got {sampling!r}.')
    if sampling == "svs" and damping == 0 and k > spec.rank:
        raise ValueError(
            f"`sample_size` must be at most the rank of `J`, which is {spec.rank}, when `damping` is 0 "
            f"(every larger set of rows has zero volume); got {k}. Take a positive `damping`."
        )
    return k, damping


def psd_power(A: Float[np.ndarray, "e e"], power: float, tiny: float) -> Float[np.ndarray, "e e"]:
    """A to a power on its range, A positive semidefinite: −1 is the pseudoinverse."""
    w, Q = np.linalg.eigh((A + A.T) / 2)
    keep = w > tiny * w[-1]
    return (Q * np.where(keep, np.where(keep, w, 1.0) ** power, 0.0)) @ Q.T


def smallest_positive(A: Float[np.ndarray, "e e"], tiny: float) -> float:
    """λ⁺_min of a positive semidefinite matrix."""
    w = np.linalg.eigvalsh((A + A.T) / 2)
    return float(w[w > tiny * w[-1]][0])


def as_jax(A: np.ndarray) -> Any:
    """To JAX, in the precision JAX is set to."""
    return jnp.asarray(A)
