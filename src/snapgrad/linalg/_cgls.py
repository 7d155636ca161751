"""Damped least squares from factors that need only be near: conjugate gradients on the rows themselves."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._factorise import AbstractFactors


@jax.default_matmul_precision("highest")
def cgls(
    A: Float[Array, "m n"],
    b: Float[Array, " m"],
    damping: Float[Array, ""] | float,
    factors: AbstractFactors,
    max_steps: int = 10,
) -> Float[Array, " n"]:
    """The x that minimises ‖Ax − b‖² + λ‖x‖², by conjugate gradients preconditioned with factors.

    With factors of AᵀA + λI one step refines what rounding has spoilt, and no more are taken. With those of
    AᵀA + λ'I for a larger λ', which Cholesky bears where λ is lost in the rounding of AᵀA, t steps do for any
    λ down to about λ'/t²: residuals are those of A, which has the square root of the condition of AᵀA.

    **Arguments:**

    - `A`, `b`: the rows and their right-hand side.
    - `damping`: the regularisation λ ≥ 0.
    - `factors`: the factors of AᵀA + λ'I, from `sg.linalg.factorise`.
    - `max_steps`: it stops after so many steps, or once the error, as the factors measure it, has fallen by
      the square root of the rounding error.

    **Returns:** x; it is not finite if the factors or the right-hand side are not.

    ```python
    A = jax.random.normal(jax.random.key(0), (6, 4))
    factors = sg.linalg.factorise(A.T @ A, damping=1e-2)
    x = sg.linalg.cgls(A, jnp.ones(6), damping=1e-6, factors=factors)
    ```
    """
    lam = jnp.asarray(damping).astype(A.dtype)

    def gradient(x: Array, r: Array) -> tuple[Array, Array]:
        s = A.T @ r - lam * x
        z = factors.solve(s)
        return z, s @ z

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        x, r, p, size, count = state
        q = A @ p
        curvature = q @ q + lam * (p @ p)
        along = size / jnp.where(curvature == 0, 1, curvature)
        x, r = x + along * p, r - along * q
        z, after = gradient(x, r)
        return x, r, z + after / jnp.where(size == 0, 1, size) * p, after, count + 1

    start = jnp.zeros(A.shape[1], A.dtype)
    z, size = gradient(start, b)
    goal = jnp.finfo(A.dtype).eps * size

    def unfinished(state: tuple[Array, ...]) -> Array:
        return (state[3] > goal) & (state[4] < max_steps)

    first = step((start, b, z, size, jnp.zeros((), int)))  # taken also where nothing is finite, to show it
    return jax.lax.while_loop(unfinished, step, first)[0]
