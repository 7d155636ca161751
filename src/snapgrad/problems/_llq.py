"""Linear least-quadratics: v = Jθ, L(v) = ½vᵀHv − vᵀb."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from .._checks import Given, one_of, real_array, real_scalar
from .._contracts import AbstractProblem, Linearisation
from ..linalg import pinv_solve
from ..operators import DenseJacobian
from ._ensembles import gaussian_matrix, linear_hessian, singular_values, spectrum_matrix, wishart_hessian
from ._work import Work


class LeastQuadratics(AbstractProblem):
    """Minimise ½vᵀHv − vᵀb over v = Jθ; with H = I it is linear least squares.

    A linearisation on k rows costs O(kn): HJ is formed once, here.

    **Arguments:**

    - `jacobian`: the matrix J, `[m, n]`.
    - `hessian`: the matrix H, `[m, m]`, symmetric positive definite; None for the identity.
    - `rhs`: the right-hand side b, `[m]`. Or else
    - `solution`: the solution θ*, from which b = HJθ* is made, so that the problem is consistent.

    Either way `problem.solution` is the minimiser in range(Jᵀ). `ValueError` if both or neither of `rhs` and
    `solution` are given, if shapes do not fit, or if H is not symmetric positive definite.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    problem = sg.problems.LeastQuadratics(J, rhs=jnp.ones(6))
    float(problem.loss(problem.solution))                      # the least value
    ```
    """

    jacobian: Float[Array, "m n"]
    hessian: Float[Array, "m m"] | None
    hessian_jacobian: Float[Array, "m n"]
    rhs: Float[Array, " m"]
    solution: Float[Array, " n"]

    def __init__(
        self,
        jacobian: Given[ArrayLike, "m n"],
        hessian: Given[ArrayLike, "m m"] | None = None,
        *,
        rhs: Given[ArrayLike, " m"] | None = None,
        solution: Given[ArrayLike, " n"] | None = None,
    ):
        J = real_array("jacobian", jacobian, ndim=2)
        m, n = J.shape
        H = None if hessian is None else _positive_definite("hessian", hessian, m).astype(J.dtype)
        if (rhs is None) == (solution is None):
            raise ValueError("give either `rhs` or `solution`, and not both.")
        self.jacobian, self.hessian = J, H
        self.hessian_jacobian = J if H is None else H @ J
        if rhs is None:
            theta = real_array("solution", solution, ndim=1, rows=n).astype(J.dtype)
            self.solution = pinv_solve(J, J @ theta, 0.0)  # its part in range(Jᵀ)
            self.rhs = self.hessian_jacobian @ self.solution
        else:
            self.rhs = real_array("rhs", rhs, ndim=1, rows=m).astype(J.dtype)
            # With H = LLᵀ the loss is ½‖LᵀJθ − L⁻¹b‖² up to a constant.
            L = jnp.eye(m, dtype=J.dtype) if H is None else jnp.linalg.cholesky(H)
            self.solution = pinv_solve(
                L.T @ J, jax.scipy.linalg.solve_triangular(L, self.rhs, lower=True), 0.0
            )

    @property
    def num_rows(self) -> int:
        """The number m of rows of J."""
        return self.jacobian.shape[0]

    def init(self, key: PRNGKeyArray) -> Float[Array, " n"]:
        """Returns θ₀ = 0, which is in range(Jᵀ)."""
        del key
        return jnp.zeros_like(self.solution)

    def linearise(self, params: Float[Array, " n"], batch: Int[Array, " k"]) -> Linearisation:
        """Returns r_S = (HJθ − b)_S and J_S, and how r_S is after a trial step.

        With H the rows are coupled, and what a step does to the loss is known along it alone.
        """
        rows = self.hessian_jacobian[batch]
        residual = rows @ params - self.rhs[batch]
        after = jax.tree_util.Partial(_residual_after, rows, residual)
        jac = DenseJacobian(self.jacobian[batch])
        return Linearisation(
            residual, jac, after, None if self.hessian is None else Work(residual, jac, after)
        )

    def metrics(self, params: Float[Array, " n"]) -> dict[str, Scalar]:
        """Returns `relative_error`: ‖θ − θ*‖/‖θ*‖."""
        error = jnp.linalg.norm(params - self.solution)
        return {"relative_error": error / jnp.linalg.norm(self.solution)}

    def loss(self, params: Float[Array, " n"]) -> Scalar:
        """Returns the loss ½vᵀHv − vᵀb at v = Jθ, which is zero at θ = 0."""
        v = self.jacobian @ params
        return v @ (self.hessian_jacobian @ params) / 2 - v @ self.rhs


def _residual_after(
    rows: Float[Array, "k n"], residual: Float[Array, " k"], step: Float[Array, " n"]
) -> Float[Array, " k"]:
    return residual - rows @ step


def _positive_definite(name: str, value: Any, size: int) -> Float[Array, "m m"]:
    H = real_array(name, value, ndim=2, rows=size)
    if H.shape != (size, size):
        raise ValueError(f"`{name}` must have shape {(size, size)} to match `jacobian`, got {H.shape}.")
    if not isinstance(H, Tracer):
        H_np = np.asarray(H)
        if not np.allclose(H_np, H_np.T, rtol=0, atol=1e-5 * np.abs(H_np).max()):
            raise ValueError(f"`{name}` must be symmetric, got one that is not.")
        if not np.isfinite(np.asarray(jnp.linalg.cholesky(H))).all():
            raise ValueError(f"`{name}` must be positive definite, got one that is not.")
    return H


def _make(key: PRNGKeyArray, J: Float[Array, "m n"], hessian: str, noise: Any) -> LeastQuadratics:
    key_h, key_t, key_n = jax.random.split(key, 3)
    m, n = J.shape
    H = {"identity": lambda: None, "wishart": lambda: wishart_hessian(key_h, m)}.get(
        hessian, lambda: linear_hessian(key_h, m)
    )()
    problem = LeastQuadratics(J, H, solution=jax.random.normal(key_t, (n,), dtype=J.dtype))
    if isinstance(noise, int | float) and noise == 0:
        return problem
    noise = real_scalar("noise", noise, low=0)
    perturbation = jax.random.normal(key_n, (m,), dtype=J.dtype)
    scale = noise * jnp.linalg.norm(problem.rhs) / jnp.linalg.norm(perturbation)
    return LeastQuadratics(J, H, rhs=problem.rhs + scale * perturbation)


Hessian = Literal["identity", "wishart", "linear"]
_HESSIANS = ("identity", "wishart", "linear")


def gaussian_llq(
    key: PRNGKeyArray,
    num_rows: int = 1000,
    num_params: int = 100,
    *,
    inflation: float = 1.0,
    hessian: Hessian = "wishart",
    noise: Given[ArrayLike, ""] = 0.0,
) -> LeastQuadratics:
    """A random problem: J with normal entries, scaled to ‖J‖ = 1, and a normal θ*.

    **Arguments:**

    - `key`: a JAX random key; the same key gives the same result.
    - `num_rows`: m, the number of rows of J.
    - `num_params`: n, the number of parameters.
    - `inflation`: the first row of J is multiplied by this before scaling.
    - `hessian`: `"wishart"` (LLᵀ/‖LLᵀ‖), `"linear"` (κ = 100) or `"identity"`.
    - `noise`: ‖perturbation of b‖/‖b‖; above 0 the problem is inconsistent.

    **Returns:** a `LeastQuadratics`.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    problem.jacobian.shape, problem.solution.shape             # (6, 4), (4,)
    ```
    """
    one_of("hessian", hessian, _HESSIANS)
    key_j, key_rest = jax.random.split(key)
    return _make(key_rest, gaussian_matrix(key_j, num_rows, num_params, inflation), hessian, noise)


def spectrum_llq(
    key: PRNGKeyArray,
    spectrum: str,
    num_rows: int = 1000,
    num_params: int = 100,
    *,
    hessian: Hessian = "wishart",
    noise: Given[ArrayLike, ""] = 0.0,
) -> LeastQuadratics:
    """A random problem: J = Q₁DQ₂ with given singular values D and random Q₁ and Q₂, and a normal θ*.

    **Arguments:**

    - `key`: a JAX random key; the same key gives the same result.
    - `spectrum`: the name of D, as for `singular_values`: `"flat"`, `"power:1"`, `"exp:0.1"`.
    - `num_rows`: m, the number of rows of J.
    - `num_params`: n ≤ m, the number of parameters.
    - `hessian`, `noise`: as for `gaussian_llq`.

    **Returns:** a `LeastQuadratics`.

    ```python
    problem = sg.problems.spectrum_llq(jax.random.key(0), "power:1", 6, 4)
    ```
    """
    one_of("hessian", hessian, _HESSIANS)
    key_j, key_rest = jax.random.split(key)
    J = spectrum_matrix(key_j, singular_values(spectrum, num_params), num_rows)
    return _make(key_rest, J, hessian, noise)
