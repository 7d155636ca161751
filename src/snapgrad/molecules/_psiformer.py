"""Psiformer: self-attention over electrons."""

import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int
from .._contracts import Params
from ._molecule import Molecule
from ._molecule import molecule as as_molecule
from ._orbitals import (
    FEATURES,
    cusps,
    determinants,
    init_orbitals,
    lengths,
    nuclear_features,
    orbital_matrices,
    with_nuclear_cusps,
)


class Psiformer(eqx.Module):
    """The Psiformer wavefunction: electrons attend to each other, and a sum of determinants follows.

    As in `sg.molecules.FermiNet` cusps are exact and orbitals start as Slater's.

    **Arguments:**

    - `molecule`: a `Molecule`, or what `sg.molecules.molecule` takes.
    - `width`, `layers`: how many features each electron has, and how many layers of attention there are.
    - `heads`: how many heads each layer has; they share the width evenly.
    - `determinants`: how many are summed.
    - `dtype`: the floating-point type of the parameters, and so of everything computed with them.

    ```python
    net = sg.molecules.Psiformer("LiH", width=8, layers=1, heads=2, determinants=2)
    params = net.init(jax.random.key(0))
    net(params, jax.random.normal(jax.random.key(1), (4, 3), jnp.float32))
    ```
    """

    molecule: Molecule = eqx.field(static=True)
    width: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    heads: int = eqx.field(static=True)
    determinants: int = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def __init__(
        self,
        molecule: Given[str | os.PathLike[str] | Molecule, ""],
        width: int = 256,
        layers: int = 4,
        heads: int = 4,
        determinants: int = 16,
        dtype: Given[DTypeLike, ""] = jnp.float32,
    ):
        self.molecule = as_molecule(molecule)
        self.width = positive_int("width", width)
        self.layers = positive_int("layers", layers)
        self.heads = positive_int("heads", heads)
        if self.width % self.heads:
            raise ValueError(f"`heads` must divide `width`, which is {width}; got {heads}.")
        self.determinants = positive_int("determinants", determinants)
        self.dtype = jnp.dtype(dtype)

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the layers, and orbitals by Slater's rules."""
        d = self.width

        def dense(key: PRNGKeyArray, inputs: int) -> Params:
            weight = inputs**-0.5 * jax.random.normal(key, (inputs, d), self.dtype)
            return {"w": weight, "b": jnp.zeros(d, self.dtype)}

        def block(key: PRNGKeyArray) -> Params:
            names = ("q", "k", "v", "o", "mlp")
            return {name: dense(k, d) for name, k in zip(names, jax.random.split(key, 5), strict=True)}

        keys = jax.random.split(key, self.layers + 2)
        return {
            "embed": dense(keys[0], FEATURES * len(self.molecule.charges) + 1),
            "blocks": [block(k) for k in keys[2:]],
            "orbitals": init_orbitals(keys[1], self.molecule, d, self.determinants, self.dtype),
            "cusp": jnp.ones(2, self.dtype),
        }

    def __call__(self, params: Params, x: Float[Array, "n 3"]) -> Float[Array, ""]:
        """log|ψ| of one configuration."""
        return self.sign_log(params, x)[1]

    def sign_log(self, params: Params, x: Float[Array, "n 3"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the sign of ψ and log|ψ| at one configuration of the electrons."""
        matrices, to_nuclei = self._matrices(params, x)
        sign, log = determinants(matrices)
        apart = lengths(x[:, None] - x[None])
        return sign, log + cusps(params["cusp"], to_nuclei, apart, self.molecule)

    def orbitals(self, params: Params, x: Float[Array, "n 3"]) -> list[Float[Array, "d _ _"]]:
        """Returns the orbitals inside the determinants: for each spin that has electrons an array
        [determinant, electron, orbital].
        """
        return with_nuclear_cusps(*self._matrices(params, x), self.molecule)

    def _matrices(
        self, params: Params, x: Float[Array, "n 3"]
    ) -> tuple[list[Float[Array, "d _ _"]], Float[Array, "n m"]]:
        """Orbitals without cusps, and distances from the nuclei."""
        features, to_nuclei = nuclear_features(x, self.molecule)
        spin = jnp.where(jnp.arange(x.shape[0]) < self.molecule.up, 1, -1).astype(x.dtype)
        h = _dense(params["embed"], jnp.concatenate([features, spin[:, None]], axis=-1))
        for p in params["blocks"]:
            h = h + self._attend(p, h)
            h = h + jnp.tanh(_dense(p["mlp"], h))
        return orbital_matrices(params["orbitals"], h, features, to_nuclei, self.molecule), to_nuclei

    def _attend(self, p: Params, h: Float[Array, "n d"]) -> Float[Array, "n d"]:
        n, d = h.shape
        size = d // self.heads
        q, k, v = (_dense(p[name], h).reshape(n, self.heads, size) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("ahc,bhc->hab", q, k) * size**-0.5, axis=-1)
        return _dense(p["o"], jnp.einsum("hab,bhc->ahc", weights, v).reshape(n, d))


def _dense(p: Params, x: Float[Array, "n a"]) -> Float[Array, "n b"]:
    return x @ p["w"] + p["b"][None]
