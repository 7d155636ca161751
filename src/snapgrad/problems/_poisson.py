"""The discrete periodic Poisson problem with a small ResNet."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from .._checks import positive_int
from .._contracts import AbstractProblem, Linearisation, Params
from ..operators import DenseJacobian
from ._work import Work


class DiscretePoisson(AbstractProblem):
    """−Δv = b on m points of a circle, v given by a periodic tanh ResNet of five layers.

    L(v) = ½vᵀHv − vᵀb with H the discrete negative Laplacian and b = Hv*,
    v* = sin 2x + 2 cos 3x + sin 5x. H annihilates constants, so errors are measured after removing means.

    **Arguments:**

    - `num_rows`: the number of grid points m.
    - `width`: the number of neurons per layer.
    - `first_bias`: with b₁ (and m = 100, width 50) there are 7,851 parameters, as the paper's formulas
      say; without it 7,801, the number that the paper states.

    ```python
    problem = sg.problems.DiscretePoisson(num_rows=6, width=4)
    params = problem.init(jax.random.key(0))
    lin = problem.linearise(params, jnp.arange(3))             # residual and Jacobian at three points
    ```
    """

    num_rows: int = eqx.field(static=True, default=100)
    width: int = eqx.field(static=True, default=50)
    first_bias: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if positive_int("num_rows", self.num_rows) < 3:
            raise ValueError(f"`num_rows` must be at least 3 for a periodic stencil, got {self.num_rows}.")
        positive_int("width", self.width)

    @property
    def grid(self) -> Float[Array, " m"]:
        """The points x_i = 2πi/m for i = 1 … m."""
        return 2 * jnp.pi * jnp.arange(1, self.num_rows + 1) / self.num_rows

    @property
    def solution(self) -> Float[Array, " m"]:
        """The exact solution v* at the points."""
        x = self.grid
        return jnp.sin(2 * x) + 2 * jnp.cos(3 * x) + jnp.sin(5 * x)

    @property
    def rhs(self) -> Float[Array, " m"]:
        """The right-hand side b = Hv* at the points."""
        rows = jnp.arange(self.num_rows)
        return self._laplacian(lambda i: self.solution[i], rows)

    def _laplacian(self, v, rows: Int[Array, " k"]) -> Float[Array, " k"]:
        """(Hv)_S from v at S and its neighbours alone."""
        h, m = 2 * jnp.pi / self.num_rows, self.num_rows
        return (2 * v(rows) - v((rows - 1) % m) - v((rows + 1) % m)) / h**2

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns LeCun normal weights and zero biases: a list of `{"W": [out, in], "b": [out]}`."""
        sizes = [2, *[self.width] * 4, 1]
        weight = jax.nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        layers = []
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            W = weight(jax.random.fold_in(key, layer), (fan_out, fan_in))
            has_bias = self.first_bias or layer > 0
            layers.append({"W": W, "b": jnp.zeros(fan_out)} if has_bias else {"W": W})
        return layers

    def network(self, params: Params, row: Int[Array, ""]) -> Scalar:
        """Evaluates the network at one point, v_θ[i]: a tanh layer on (cos x, sin x), three residual tanh
        layers, a linear one.
        """
        x = self.grid[row]
        first, *middle, last = params
        y = first["W"] @ jnp.stack([jnp.cos(x), jnp.sin(x)])
        y = jnp.tanh(y + first["b"] if "b" in first else y)
        for layer in middle:
            y = y + jnp.tanh(layer["W"] @ y + layer["b"])
        return (last["W"] @ y + last["b"])[0]

    def values(self, params: Params) -> Float[Array, " m"]:
        """Evaluates the network at all points."""
        return jax.vmap(self.network, (None, 0))(params, jnp.arange(self.num_rows))

    def linearise(self, params: Params, batch: Int[Array, " k"]) -> Linearisation:
        """Returns r_S = (Hv − b)_S, from v at S and its neighbours only, and J_S by automatic
        differentiation.
        """
        rows = jax.vmap(jax.grad(self.network), (None, 0))(params, batch)
        after = jax.tree_util.Partial(_residual_after, self, params, batch)
        residual, jac = self.residual(params, batch), DenseJacobian(rows)
        return Linearisation(residual, jac, after, Work(residual, jac, after))

    def residual(self, params: Params, batch: Int[Array, " k"]) -> Float[Array, " k"]:
        """Returns r_S = (Hv − b)_S at the points S."""
        values = jax.vmap(self.network, (None, 0))
        return self._laplacian(lambda rows: values(params, rows), batch) - self.rhs[batch]

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """Returns `relative_error`: ‖v − v*‖/‖v*‖ after removing the means."""
        v, target = self.values(params), self.solution
        error = (v - v.mean()) - (target - target.mean())
        return {"relative_error": jnp.linalg.norm(error) / jnp.linalg.norm(target - target.mean())}

    def loss(self, params: Params) -> Scalar:
        """Returns the loss ½vᵀHv − vᵀb at the points."""
        v = self.values(params)
        rows = jnp.arange(self.num_rows)
        return v @ self._laplacian(lambda i: v[i], rows) / 2 - v @ self.rhs


def _residual_after(
    problem: DiscretePoisson, params: Params, batch: Int[Array, " k"], step: Params
) -> Float[Array, " k"]:
    return problem.residual(jax.tree.map(lambda p, s: p - s.astype(p.dtype), params, step), batch)
