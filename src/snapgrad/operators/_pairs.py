"""Complex parameters as pairs of real ones, for solves in parameter space."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._contracts import AbstractJacobian, Params


class RealPairs(AbstractJacobian):
    """The same rows, with each complex leaf of the parameters given as a pair (Re, Im) of real ones.

    It is made of another Jacobian, `inner`. Trees without complex leaves stay as they are. Raveled, these
    pairs are in the order of the columns of `dense()`, so that a solve in parameter space is one with a real
    matrix.

    ```python
    log_psi = lambda p, x: jnp.sum(jnp.log(jnp.cosh(x @ p)))
    params, samples = jnp.ones((2, 3)) + 0.1j, jnp.linspace(-1, 1, 8).reshape(4, 2)
    rows = sg.operators.RealPairs(sg.jacobian(sg.realify(log_psi), params, samples))
    gradient, unravel = jax.flatten_util.ravel_pytree(rows.rmv(jnp.ones(8)))      # rows.dense().T @ u
    sg.operators.from_pairs(unravel(gradient))                                    # complex again
    ```
    """

    inner: AbstractJacobian

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold."""
        return self.inner.shape

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel J Jᵀ, one number for each two rows; pairs do not change it."""
        return self.inner.gram()

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the Jacobian with a tangent φ given in pairs; returns J φ, one number per row."""
        return self.inner.mv(from_pairs(tangent))

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed Jacobian with one number per row; returns Jᵀ u in pairs."""
        return to_pairs(self.inner.rmv(cotangent))

    def dense(self) -> Float[Array, "k n"]:
        """Returns J as a matrix; a leaf's real columns come before its imaginary ones, as in a pair."""
        return self.inner.dense()


class RealPair(tuple):
    """(Re, Im) of one leaf; a type of its own, so that no tuple of a model is taken for one."""

    __slots__ = ()


jax.tree_util.register_pytree_node(
    RealPair, lambda pair: (tuple(pair), None), lambda _, parts: RealPair(parts)
)


def to_pairs(params: Params) -> Params:
    """Returns the tree `params` with each complex leaf as a `RealPair` of its real and imaginary parts.

    ```python
    sg.operators.to_pairs({"a": jnp.array(1.0), "z": jnp.array(2 + 3j)})      # "z": (2.0, 3.0)
    ```
    """
    return jax.tree.map(lambda x: RealPair((x.real, x.imag)) if jnp.iscomplexobj(x) else x, params)


def from_pairs(pairs: Params) -> Params:
    """Undoes `to_pairs`: returns the tree `pairs` with each `RealPair` as one complex leaf.

    ```python
    sg.operators.from_pairs(sg.operators.to_pairs(jnp.array(2 + 3j)))          # 2 + 3j again
    ```
    """

    def join(x: Any) -> Array:
        return lax.complex(*x) if isinstance(x, RealPair) else x

    return jax.tree.map(join, pairs, is_leaf=lambda x: isinstance(x, RealPair))
