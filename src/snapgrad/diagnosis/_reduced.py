"""The pool as a linear problem in the coordinates of its row space."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ..linalg import rank_cutoff
from ._drawn import Drawn, Looker

NOISE = {"float64": 1e-6, "float32": 1e-3}
"""A larger part of the residual outside the range of J than this is not rounding."""
LEAST_SQUARES = 1e-3
"""A derivative of the residual that is this near to J is J; float32 leaves no more."""


class System(NamedTuple):
    """The pool as a linear problem in the coordinates of its row space: r = A e + r*, J = R Vᵀ.

    - `rows`: R, orthogonal columns, the square roots of the kernel's eigenvalues long.
    - `action`: A = ∂r/∂θ V, which is R for least squares; `error`: e = Vᵀ(θ − θ*); `noise`: r*.
    - `values`: the eigenvalues of the kernel, largest first.
    - `curvature`: the smallest and largest eigenvalue of H on the range of J, (1, 1) for least squares.
    - `full`: whether every parameter is determined, so that errors are those of parameters.
    - `outputs`: rows of each point; `rounding`: what part of the residual outside the range of J is nothing.
    """

    rows: Float[np.ndarray, "p e"]
    action: Float[np.ndarray, "p e"]
    error: Float[np.ndarray, " e"]
    noise: Float[np.ndarray, " p"]
    values: Float[np.ndarray, " e"]
    curvature: tuple[float, float]
    full: bool
    outputs: int
    rounding: float

    @property
    def inconsistency(self) -> float:
        """‖r*‖/‖r‖: the part of the residual that no parameters remove."""
        whole = np.linalg.norm(self.action @ self.error + self.noise)
        return float(np.linalg.norm(self.noise) / whole) if whole else 0.0

    @property
    def noisy(self) -> bool:
        """Whether the residual has a part outside the range of J, rounding aside."""
        return self.inconsistency > self.rounding

    @property
    def points(self) -> int:
        """Points of the pool, each with `outputs` rows."""
        return len(self.rows) // self.outputs

    def batch(self, rng: np.random.Generator, points: int) -> Int[np.ndarray, " k"]:
        """The rows of some points, drawn without replacement."""
        chosen = rng.choice(self.points, points, replace=False)
        return (chosen[:, None] * self.outputs + np.arange(self.outputs)).ravel()


def system(drawn: Drawn, looker: Looker) -> System:
    """The pool as a `System`."""
    if not drawn.residual.any():
        raise ValueError("the residual is zero on every row of the pool: nothing is left to train.")
    w, U = np.linalg.eigh(drawn.kernel)
    keep = w > _cutoff(w, drawn.dtype)
    if not keep.any():
        raise ValueError("no row of the pool depends on any parameter: the Jacobian is zero.")
    w, U = w[keep][::-1], U[:, keep][:, ::-1]
    R = U * np.sqrt(w)
    A, curvature = R, (1.0, 1.0)
    if drawn.mismatch is not None and drawn.mismatch > LEAST_SQUARES:
        A = looker.action(U / np.sqrt(w))
    B = U.T @ A  # UᵀHU Σ
    if A is not R:
        H = np.linalg.eigvalsh((B / np.sqrt(w) + (B / np.sqrt(w)).T) / 2)
        largest = float(np.linalg.norm(A / np.sqrt(w), 2))
        curvature = max(float(H[0]), 0.0), largest
    error = U.T @ drawn.residual / np.sqrt(w) if A is R else np.linalg.lstsq(B, U.T @ drawn.residual)[0]
    return System(
        rows=R,
        action=A,
        error=error,
        noise=drawn.residual - A @ error,
        values=w,
        curvature=curvature,
        full=len(w) == drawn.num_params,
        outputs=drawn.outputs,
        rounding=NOISE.get(drawn.dtype, 1e-3),
    )


def _cutoff(w: Float[np.ndarray, " p"], dtype: str) -> float:
    """Below which eigenvalues are rounding: in low precision, what negative ones show of it."""
    if dtype == "float64":
        return rank_cutoff(len(w), jnp.dtype(dtype)) * float(w[-1])
    return max(float(jnp.finfo(dtype).eps) * float(w[-1]), -4 * float(w[0]))
