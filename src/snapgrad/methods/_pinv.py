"""The one operation that every method shares: the regularised pseudoinverse of an operator."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .._checks import one_of
from .._contracts import AbstractJacobian, Params
from ..linalg import SOLVERS, Solver, gram, pinv_solve, psd_eigh, psd_solve
from ..operators import RealPairs, from_pairs, to_pairs


def pinv_apply(
    jacobian: AbstractJacobian,
    vector: Float[Array, " k"],
    damping: Float[Array, ""],
    solver: Solver = "auto",
) -> Params:
    """Returns J^{+(λ)} u = Jᵀ(JJᵀ + λI)⁺u = (JᵀJ + λI)⁺Jᵀu, from whichever of the two systems is smaller.

    Complex parameters count as pairs of real ones; the result has the structure and types of the parameters.

    **Arguments:**

    - `jacobian`: the operator J, such as `sg.jacobian` or `sg.DenseJacobian` gives.
    - `vector`: u, one number per row of J.
    - `damping`: the regularisation λ ≥ 0, as an array.
    - `solver`: as for `sg.SNG`, save `"cg"`: that is `sg.linalg.cg_solve`, which also says how far it came.

    ```python
    jac = sg.DenseJacobian(jax.random.normal(jax.random.key(0), (6, 4)))
    x = sg.methods.pinv_apply(jac, jnp.ones(6), jnp.asarray(1e-3))                         # [4]
    ```
    """
    one_of("solver", solver, SOLVERS)
    k, n = jacobian.shape
    if solver != "qr" and k <= n:
        return jacobian.rmv(psd_solve(jacobian.gram(), vector, damping, solver))
    rows = RealPairs(jacobian)
    gradient, unravel = ravel_pytree(rows.rmv(vector))
    if solver == "qr":
        solution = pinv_solve(rows.dense(), vector, damping).astype(gradient.dtype)
    else:
        solution = psd_solve(gram(rows.dense().T), gradient, damping, solver)
    return from_pairs(unravel(solution))


@jax.default_matmul_precision("highest")
def inverse_fisher_apply(
    jacobian: AbstractJacobian, gradient: Params, damping: Float[Array, ""], solver: Solver = "auto"
) -> Params:
    """Returns (JᵀJ + λI)⁺ g for any g, without an n × n matrix where k ≤ n.

    With JJᵀ = V diag(w) Vᵀ, g splits into its part in the row space, where the inverse is 1/(w + λ),
    and the rest, where it is 1/λ (and 0 at λ = 0). Splitting avoids the cancellation of Woodbury's
    formula for small λ. Complex parameters count as pairs of real ones.

    **Arguments:**

    - `jacobian`: the operator J.
    - `gradient`: g, shaped like the parameters.
    - `damping`: the regularisation λ ≥ 0, as an array.
    - `solver`: as for `sg.SNG`; used only where k > n.

    ```python
    jac = sg.DenseJacobian(jax.random.normal(jax.random.key(0), (6, 4)))
    x = sg.methods.inverse_fisher_apply(jac, jnp.ones(4), jnp.asarray(1e-3))               # [4]
    ```
    """
    rows = RealPairs(jacobian)
    k, n = rows.shape
    pairs = to_pairs(gradient)
    g, unravel = ravel_pytree(pairs)
    if k > n:
        return from_pairs(unravel(psd_solve(gram(rows.dense().T), g, damping, solver)))
    w, V, keep = psd_eigh(rows.gram())
    lam = damping.astype(w.dtype)

    def coefficients(vector: Params) -> Float[Array, " k"]:
        return jnp.where(keep, V.T @ rows.mv(vector) / jnp.where(keep, w, 1), 0)

    def combine(values: Float[Array, " k"]) -> Float[Array, " n"]:
        return ravel_pytree(rows.rmv(V @ values))[0]

    c = coefficients(pairs)
    rest = g - combine(c)
    correction = coefficients(unravel(rest))  # projecting twice leaves nothing but rounding
    c, rest = c + correction, rest - combine(correction)
    inside = combine(jnp.where(keep, c / jnp.where(keep, w + lam, 1), 0))
    outside = jnp.where(lam > 0, rest / jnp.where(lam > 0, lam, 1), 0)
    return from_pairs(unravel(inside + outside))
