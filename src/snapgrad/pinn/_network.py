"""Networks: anything with `init(key)` and `network(params, x)`; a perceptron, equinox and flax modules."""

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
    """A multilayer perceptron, fully connected layers with an activation between them.

    **Arguments:**

    - `sizes`: the number of inputs, the width of each hidden layer, and the number of outputs. With one
      output the network is a scalar function of a point, otherwise a vector-valued one.
    - `activation`: applied between layers. It must be smooth where a PDE takes derivatives, which rules out
      `relu` for second-order equations.

    ```python
    network = sg.pinn.MLP([2, 64, 1])
    params = network.init(jax.random.key(0))
    network(params, jnp.zeros(2))              # one number
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
        """Glorot normal weights `[in, out]` and zero biases, one pair per layer."""
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
    """A network from a function `make(key)` that returns an equinox module, called as `module(x)`.

    All floating-point arrays of the module are trained.

    ```python
    network = sg.pinn.Equinox(lambda key: eqx.nn.MLP(2, 1, width_size=32, depth=3, key=key))
    problem = sg.pinn.PINN(network, sg.pinn.zoo("poisson-2d").blocks)
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


class Flax(eqx.Module):
    """A network from a flax module (`flax.linen.Module`); flax itself is only needed to make the module.

    **Arguments:**

    - `module`: called as `module.apply(variables, x)` at one point `x`. All its variables are trained, so it
      must not keep any that are not, such as the running means of batch normalisation.
    - `inputs`: how many coordinates a point has.

    ```python
    from flax import linen as nn

    network = sg.pinn.Flax(nn.Sequential([nn.Dense(32), nn.tanh, nn.Dense(1)]), inputs=2)
    problem = sg.pinn.PINN(network, sg.pinn.zoo("poisson-2d").blocks)
    ```
    """

    module: Any = eqx.field(static=True)
    inputs: int = eqx.field(static=True)

    def __init__(self, module: Any, inputs: int):
        if not all(callable(getattr(module, name, None)) for name in ("init", "apply")):
            raise TypeError(
                f"`module` must have `init` and `apply` as a flax.linen.Module has, "
                f"got {type(module).__name__}."
            )
        self.module, self.inputs = module, positive_int("inputs", inputs)

    def init(self, key: PRNGKeyArray) -> Params:
        """The module's variables; `ValueError` if some of them are not parameters."""
        variables = self.module.init(key, jnp.zeros(self.inputs))
        if set(variables) != {"params"}:
            raise ValueError(
                f"`module` must hold parameters and nothing else, got collections {', '.join(variables)}."
            )
        return variables["params"]

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The module at one point."""
        return self.module.apply({"params": params}, x)


def evaluate(network: Any, params: Params, x: Any) -> Any:
    """A network at one point; an output of shape `(1,)` counts as one number."""
    try:
        out = network(params, x)
    except Exception as error:
        shape = jax.tree.map(jnp.shape, x)
        raise ValueError(
            f"`network` fails at a point of shape {shape}; does it take that many inputs? "
            f"{type(error).__name__}: {error}"
        ) from error
    return jnp.reshape(out, ()) if getattr(out, "shape", None) == (1,) else out
