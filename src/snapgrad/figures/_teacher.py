"""A network that is to become another one, from nearby."""

from itertools import pairwise

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from .._contracts import AbstractProblem, Linearisation, Params
from ..operators import DenseJacobian


class Teacher(AbstractProblem):
    """A tanh network is to become another one from nearby: nonlinear least squares in its last, linear phase.

    **Arguments:**

    - `sizes`: neurons of each layer, inputs and output included; the first layer's weights are `sharp` times
      larger than usual, so that the function has many features.
    - `num_rows`: points, uniform in [−1, 1]^d.
    """

    points: Float[Array, "m d"]
    goal: Params
    start: Params
    first: Float[Array, ""]  # the norm of the residual there

    def __init__(self, key: PRNGKeyArray, sizes: tuple[int, ...], num_rows: int, sharp: float):
        keys = jax.random.split(key, 3)
        self.points = jax.random.uniform(keys[0], (num_rows, sizes[0]), minval=-1, maxval=1)
        shapes = list(pairwise(sizes))
        self.goal = [
            (jax.random.normal(k, (a, b)) / a**0.5, jax.random.normal(jax.random.fold_in(k, 1), (b,)) / 2)
            for k, (a, b) in zip(jax.random.split(keys[1], len(shapes)), shapes, strict=True)
        ]
        self.goal[0] = jax.tree.map(lambda x: sharp * x, self.goal[0])
        leaves, tree = jax.tree.flatten(self.goal)
        moves = jax.random.split(keys[2], len(leaves))
        near = [x + 1e-4 * jax.random.normal(k, x.shape) for x, k in zip(leaves, moves, strict=True)]
        self.start = jax.tree.unflatten(tree, near)
        self.first = jnp.linalg.norm(self._residuals(self.start, self.points))

    @property
    def num_rows(self) -> int:
        """The number of points."""
        return self.points.shape[0]

    def init(self, key: PRNGKeyArray) -> Params:
        """Near the goal."""
        del key
        return self.start

    def linearise(self, params: Params, batch: Int[Array, " k"]) -> Linearisation:
        """As least squares; rows are stored, which compiles sooner than what larger networks need."""
        x = self.points[batch]
        rows = jax.vmap(jax.grad(self._residual), (None, 0))(params, x)
        after = jax.tree_util.Partial(_residual_after, self, params, x)
        return Linearisation(self._residuals(params, x), DenseJacobian(rows), after)

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """`relative_error`: the norm of the residual over that at the start."""
        return {"relative_error": jnp.linalg.norm(self._residuals(params, self.points)) / self.first}

    def _value(self, params: Params, x: Float[Array, " d"]) -> Scalar:
        for W, b in params[:-1]:
            x = jnp.tanh(x @ W + b)
        return (x @ params[-1][0] + params[-1][1])[0]

    def _residual(self, params: Params, x: Float[Array, " d"]) -> Scalar:
        return self._value(params, x) - self._value(self.goal, x)

    def _residuals(self, params: Params, points: Float[Array, "k d"]) -> Float[Array, " k"]:
        return jax.vmap(self._residual, (None, 0))(params, points)


def _residual_after(
    problem: Teacher, params: Params, points: Float[Array, "k d"], step: Params
) -> Float[Array, " k"]:
    return problem._residuals(jax.tree.map(jnp.subtract, params, step), points)
