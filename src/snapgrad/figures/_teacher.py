"""A network that is to become another one, from nearby."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from .._contracts import AbstractProblem, Linearisation, Params
from ..operators import linearise


class Teacher(AbstractProblem):
    """A network is to become another one from nearby: nonlinear least squares in its last, linear phase."""

    sizes: tuple[int, ...] = eqx.field(static=True)
    points: Float[Array, "m d"]
    goal: Params
    start: Params
    first: Float[Array, ""]  # the norm of the residual there

    def __init__(self, key: PRNGKeyArray, sizes: tuple[int, ...], num_rows: int):
        keys = jax.random.split(key, 3)
        self.sizes = sizes
        self.points = jax.random.uniform(keys[0], (num_rows, sizes[0]), minval=-1, maxval=1)
        shapes = list(pairwise(sizes))
        self.goal = [
            (jax.random.normal(k, (a, b)) / a**0.5, jax.random.normal(jax.random.fold_in(k, 1), (b,)) / 2)
            for k, (a, b) in zip(jax.random.split(keys[1], len(shapes)), shapes, strict=True)
        ]
        leaves, tree = jax.tree.flatten(self.goal)
        moves = jax.random.split(keys[2], len(leaves))
        near = [x + 1e-4 * jax.random.normal(k, x.shape) for x, k in zip(leaves, moves, strict=True)]
        self.start = jax.tree.unflatten(tree, near)
        self.first = jnp.linalg.norm(self._residuals(self.start))

    @property
    def num_rows(self) -> int:
        """The number of points."""
        return self.points.shape[0]

    def init(self, key: PRNGKeyArray) -> Params:
        """Near the goal."""
        del key
        return self.start

    def linearise(self, params: Params, batch: Int[Array, " k"]) -> Linearisation:
        """As least squares."""
        return linearise(self._residual, params, self.points[batch])

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """`relative_error`: the norm of the residual over that at the start."""
        return {"relative_error": jnp.linalg.norm(self._residuals(params)) / self.first}

    def _value(self, params: Params, x: Float[Array, " d"]) -> Scalar:
        for W, b in params[:-1]:
            x = jnp.tanh(x @ W + b)
        return (x @ params[-1][0] + params[-1][1])[0]

    def _residual(self, params: Params, x: Float[Array, " d"]) -> Scalar:
        return self._value(params, x) - self._value(self.goal, x)

    def _residuals(self, params: Params) -> Float[Array, " m"]:
        return jax.vmap(self._residual, (None, 0))(params, self.points)
