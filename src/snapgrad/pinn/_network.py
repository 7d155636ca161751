"""Networks: anything with `init(key)` and `network(params, x)`; a perceptron, equinox and flax modules."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int
from .._contracts import Params

FULL_PRECISION = jax.default_matmul_precision("highest")
"""Else NVIDIA cards round the factors of a product in float32 to three digits: too few for derivatives."""
FIRST_FREQUENCY = 2.0
"""Typical wave number of the first layer of a sine network, for inputs of size one."""
ACTIVATIONS: dict[str, Callable] = {
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "gelu": jax.nn.gelu,
    "swish": jax.nn.swish,
    "softplus": jax.nn.softplus,
    "sigmoid": jax.nn.sigmoid,
}
"""The activations that `sg.pinn.MLP` knows by name; all of them are smooth."""


class Network(Protocol):
    """What the library takes for a network: anything with `init(key)` that is called as `network(params, x)`.

    `init` returns random parameters, any pytree of floating-point arrays. A call returns what the network
    says at one point x, an array of its coordinates: one number, or an array of outputs. It must be smooth in
    x as far as the equation takes derivatives.

    ```python
    class Gaussians(eqx.Module):                # a sum of bumps
        count: int

        def init(self, key):
            return {"at": jax.random.uniform(key, (self.count, 2)), "height": jnp.zeros(self.count)}

        def __call__(self, params, x):
            return jnp.exp(-4 * jnp.sum((x[None] - params["at"]) ** 2, axis=1)) @ params["height"]

    problem = sg.pinn.PINN(Gaussians(20), sg.pinn.zoo("poisson-2d").blocks)
    ```
    """

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters."""
        ...

    def __call__(self, params: Params, x: Any, /) -> Any:
        """Returns the output at one point."""
        ...


class MLP(eqx.Module):
    """A multilayer perceptron, fully connected layers with an activation between them.

    **Arguments:**

    - `sizes`: the number of inputs, the width of each hidden layer, and the number of outputs. With one
      output the network is a scalar function of a point, otherwise a vector-valued one.
    - `activation`: applied between layers; a function, or a name out of `tanh`, `sin`, `gelu`, `swish`,
      `softplus`, `sigmoid`. It must be smooth where a PDE takes derivatives, which rules out `relu` for
      second-order equations. `sin` is often the most accurate, and starts from weights of its own.

    ```python
    network = sg.pinn.MLP([2, 64, 1], activation="sin")
    params = network.init(jax.random.key(0))
    network(params, jnp.zeros(2))              # one number
    ```
    """

    sizes: tuple[int, ...] = eqx.field(static=True)
    activation: Callable = eqx.field(static=True)

    def __init__(self, sizes: Given[Sequence[int], ""], activation: Callable | str = "tanh"):
        sizes = tuple(positive_int(f"sizes[{i}]", size) for i, size in enumerate(sizes))
        if len(sizes) < 2:
            raise ValueError(f"`sizes` must hold at least inputs and outputs, got {sizes}.")
        found = ACTIVATIONS.get(activation) if isinstance(activation, str) else activation
        if not callable(found):
            raise ValueError(
                f"`activation` must be a function or one of {', '.join(ACTIVATIONS)}; got {activation!r}."
            )
        self.sizes, self.activation = sizes, found

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters: weights `[in, out]` and biases, one pair per layer.

        Weights are Glorot normal and biases zero. Sine layers have random phases and weights that keep the
        mean square of values and of slopes from layer to layer.
        """
        layers = []
        last = len(self.sizes) - 2
        for i, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            ours = jax.random.fold_in(key, i)
            scale, bias = jnp.sqrt(2 / (fan_in + fan_out)), jnp.zeros(fan_out)
            if self.activation is jnp.sin and i < last:
                # A sine of random phase has mean square ½, and so has its slope: 2/fan_in keeps both.
                scale = FIRST_FREQUENCY if i == 0 else jnp.sqrt(2 / fan_in)
                phases = jax.random.uniform(jax.random.fold_in(ours, 1), (fan_out,))
                bias = np.pi * (2 * phases - 1)
            layers.append({"W": scale * jax.random.normal(ours, (fan_in, fan_out)), "b": bias})
        return layers

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        for layer in params[:-1]:
            x = self.activation(x @ layer["W"] + layer["b"])
        out = x @ params[-1]["W"] + params[-1]["b"]
        return out[0] if self.sizes[-1] == 1 else out


class Equinox(eqx.Module):
    """A network for `sg.pinn.PINN` that is an equinox module of your own.

    **Arguments:**

    - `make`: a function of a random key that returns the module; it is called as `module(x)` at one point.
      All its floating-point arrays are trained.

    ```python
    network = sg.pinn.Equinox(lambda key: eqx.nn.MLP(2, 1, width_size=32, depth=3, key=key))
    problem = sg.pinn.PINN(network, sg.pinn.zoo("poisson-2d").blocks)
    ```
    """

    make: Callable = eqx.field(static=True)

    def init(self, key: PRNGKeyArray) -> Params:
        """Makes the module and returns its floating-point arrays, which are what is trained."""
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
        """Returns the module's initial variables; `ValueError` if some of them are not parameters."""
        variables = self.module.init(key, jnp.zeros(self.inputs))
        if set(variables) != {"params"}:
            raise ValueError(
                f"`module` must hold parameters and nothing else, got collections {', '.join(variables)}."
            )
        return variables["params"]

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The module at one point."""
        return self.module.apply({"params": params}, x)


class NetworkError(ValueError):
    """A network fails at a point; the innermost one of several wrapped networks says so."""


def check_network(network: Any, name: str = "network") -> Any:
    """The network itself, or `TypeError` if it has not the shape of one."""
    if not (callable(network) and callable(getattr(network, "init", None))):
        raise TypeError(
            f"`{name}` must have `init(key)` and be called as network(params, x), as sg.pinn.MLP is; "
            f"got {type(network).__name__}. Wrap modules of equinox and flax in sg.pinn.Equinox and "
            f"sg.pinn.Flax."
        )
    return network


def is_linear(network: Any) -> bool:
    """Whether a network says of itself that it is linear in its parameters."""
    return bool(getattr(network, "linear", False))


@FULL_PRECISION
def evaluate(network: Any, params: Params, x: Any, inside: str = "") -> Any:
    """A network at one point; an output of shape `(1,)` counts as one number.

    `inside` is for error messages: what the network is wrapped in.
    """
    try:
        out = network(params, x)
    except NetworkError:
        raise
    except Exception as error:
        shape = jax.tree.map(jnp.shape, x)
        raise NetworkError(
            f"`network`{inside and f' inside {inside}'} fails at a point of shape {shape}; does it take that "
            f"many inputs? {type(error).__name__}: {error}"
        ) from error
    return jnp.reshape(out, ()) if getattr(out, "shape", None) == (1,) else out
