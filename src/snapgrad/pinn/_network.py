"""Networks: anything with `init(key)` and `network(params, x)`; a perceptron, and any equinox module."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import positive_int
from .._contracts import Params


class MLP(eqx.Module):
    """A perceptron: `sizes` are its inputs, hidden layers and outputs; one output makes a scalar function.

    ```python
    network = sg.pinn.MLP([2, 64, 1])
    ```
    """

    sizes: tuple[int, ...] = eqx.field(static=True)
    activation: Callable = eqx.field(static=True)

    def __init__(self, sizes: Any, activation: Callable = jnp.tanh):
        sizes = tuple(positive_int(f"sizes[{i}]", size) for i, size in enumerate(sizes))
        if len(sizes) < 2:
            raise ValueError(f"`sizes` must hold at least inputs and outputs, got {sizes}.")
        self.sizes, self.activation = sizes, activation

    def init(self, key: PRNGKeyArray) -> Params:
        """Glorot normal weights `[in, out]` and zero biases, one pair a layer."""
        layers = []
        for i, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            size = jnp.sqrt(2 / (fan_in + fan_out))
            weight = size * jax.random.normal(jax.random.fold_in(key, i), (fan_in, fan_out))
            layers.append({"W": weight, "b": jnp.zeros(fan_out)})
        return layers

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        for layer in params[:-1]:
            x = self.activation(x @ layer["W"] + layer["b"])
        out = x @ params[-1]["W"] + params[-1]["b"]
        return out[0] if self.sizes[-1] == 1 else out


class Equinox(eqx.Module):
    """A network from a function that makes an equinox module from a key.

    ```python
    network = sg.pinn.Equinox(lambda key: eqx.nn.MLP(2, "scalar", 32, 3, jnp.tanh, key=key))
    ```
    """

    make: Callable = eqx.field(static=True)

    def init(self, key: PRNGKeyArray) -> Params:
        """The module's floating-point arrays."""
        return eqx.filter(self.make(key), eqx.is_inexact_array)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The module at one point."""
        # What is not trained does not depend on the key: structure, sizes, activations.
        rest = eqx.filter_eval_shape(self.make, jax.random.key(0))
        static = eqx.filter(rest, lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct))
        return eqx.combine(params, static)(x)
