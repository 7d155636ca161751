"""Complex outputs as pairs of real rows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Realified(eqx.Module):
    """`x ↦ (Re f, Im f)` on a last axis of size two; made by `sg.realify`."""

    fn: Callable
    holomorphic: bool = eqx.field(static=True, default=False)

    def __call__(self, params: Any, x: Any) -> Float[Array, "... 2"]:
        """The two real outputs at one point."""
        out = self.fn(params, x)
        return jnp.stack([jnp.real(out), jnp.imag(out)], axis=-1)


def realify(value: Any, *, holomorphic: bool = False) -> Any:
    """Makes two real rows of each complex one, (Re, Im) next to each other; returns what it is given, made
    real.

    **Arguments:**

    - `value`: a function `fn(params, x)`, which becomes one with an extra last axis of size two, so that
      `sg.jacobian` gives 2k real rows; or an array of k complex numbers (local energies, a residual), which
      becomes the 2k real ones that belong to these rows.
    - `holomorphic`: states that the function is holomorphic in its parameters. If all of them are complex,
      one backward pass then serves both rows.

    ```python
    log_psi = lambda p, x: jnp.sum(jnp.log(jnp.cosh(x @ p)))
    params, samples = jnp.ones((2, 3)) + 0.1j, jnp.linspace(-1, 1, 8).reshape(4, 2)
    jac = sg.jacobian(sg.realify(log_psi), params, samples)
    energies = jnp.array([1.0 + 0.5j, 2.0, 0.5j, -1.0])
    lin = sg.Linearisation(residual=sg.realify(energies - energies.mean()), jacobian=jac.centre())
    ```
    """
    if callable(value):
        return Realified(value, holomorphic)
    if not isinstance(value, jax.Array) and not hasattr(value, "dtype"):
        raise TypeError(f"`value` must be a function or an array, got {type(value).__name__}.")
    return jnp.stack([jnp.real(value), jnp.imag(value)], axis=-1).reshape(-1)
