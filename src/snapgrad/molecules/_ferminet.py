"""FermiNet: streams of electrons and of pairs of them, each layer fed with means over the spins."""

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
    PAIR_FEATURES,
    cusps,
    determinants,
    init_orbitals,
    nuclear_features,
    orbital_matrices,
    pair_features,
    with_nuclear_cusps,
)


class FermiNet(eqx.Module):
    """The FermiNet wavefunction, a sum of determinants of orbitals that see all electrons.

    Differences to the original: the cusps where particles meet are exact for all parameters; the orbitals
    start as Slater's atomic ones, so that training needs no Hartree–Fock; the weights for a layer's means are
    apart from those for the electron itself, and act once for each spin instead of once for each electron.

    **Arguments:**

    - `molecule`: a `Molecule`, or what `sg.molecules.molecule` takes.
    - `width`: how many features each electron has.
    - `pair_width`: how many each pair of electrons has; default a sixteenth of `width`, and at least 4.
    - `layers`: how many layers the network has.
    - `determinants`: how many are summed.
    - `dtype`: the floating-point type of the parameters, and so of everything computed with them.

    `net(params, x)` is log|ψ| of one configuration x, [electrons, 3], those with spin up first;
    `net.sign_log(params, x)` has the sign as well, and `net.orbitals(params, x)` are the matrices of the
    determinants, for each spin an array [determinants, electrons, orbitals].

    ```python
    net = sg.molecules.FermiNet("LiH", width=8, pair_width=4, layers=2, determinants=2)
    params = net.init(jax.random.key(0))
    net(params, jax.random.normal(jax.random.key(1), (4, 3), jnp.float32))
    ```
    """

    molecule: Molecule = eqx.field(static=True)
    width: int = eqx.field(static=True)
    pair_width: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    determinants: int = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def __init__(
        self,
        molecule: Given[str | os.PathLike[str] | Molecule, ""],
        width: int = 256,
        pair_width: int | None = None,
        layers: int = 4,
        determinants: int = 16,
        dtype: Given[DTypeLike, ""] = jnp.float32,
    ):
        self.molecule = as_molecule(molecule)
        self.width = positive_int("width", width)
        self.pair_width = positive_int(
            "pair_width", max(4, width // 16) if pair_width is None else pair_width
        )
        self.layers = positive_int("layers", layers)
        self.determinants = positive_int("determinants", determinants)
        self.dtype = jnp.dtype(dtype)

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the layers, and orbitals by Slater's rules."""
        one, two = FEATURES * len(self.molecule.charges), PAIR_FEATURES
        spins = 2 if self.molecule.down else 1
        layers = []
        for i in range(self.layers):
            keys = jax.random.split(jax.random.fold_in(key, i), 4)
            fan_in = one + spins * (one + two)
            layer = {
                "own": _normal(keys[0], (one, self.width), fan_in, self.dtype),
                "mean": _normal(keys[1], (spins * one, self.width), fan_in, self.dtype),
                "pairs": _normal(keys[2], (spins * two, self.width), fan_in, self.dtype),
                "b": jnp.zeros(self.width, self.dtype),
            }
            if i < self.layers - 1:
                layer["two"] = _normal(keys[3], (two, self.pair_width), two, self.dtype)
                layer["two_b"] = jnp.zeros(self.pair_width, self.dtype)
            layers.append(layer)
            one, two = self.width, self.pair_width
        last = jax.random.fold_in(key, self.layers)
        return {
            "layers": layers,
            "orbitals": init_orbitals(last, self.molecule, self.width, self.determinants, self.dtype),
            "cusp": jnp.ones(2, self.dtype),
        }

    def __call__(self, params: Params, x: Float[Array, "n 3"]) -> Float[Array, ""]:
        """log|ψ| of one configuration."""
        return self.sign_log(params, x)[1]

    def sign_log(self, params: Params, x: Float[Array, "n 3"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the sign of ψ and log|ψ| at one configuration of the electrons."""
        matrices, to_nuclei, apart = self._matrices(params, x)
        sign, log = determinants(matrices)
        return sign, log + cusps(params["cusp"], to_nuclei, apart, self.molecule)

    def orbitals(self, params: Params, x: Float[Array, "n 3"]) -> list[Float[Array, "d _ _"]]:
        """Returns the orbitals inside the determinants: for each spin that has electrons an array
        [determinant, electron, orbital].
        """
        matrices, to_nuclei, _ = self._matrices(params, x)
        return with_nuclear_cusps(matrices, to_nuclei, self.molecule)

    def _matrices(
        self, params: Params, x: Float[Array, "n 3"]
    ) -> tuple[list[Float[Array, "d _ _"]], Float[Array, "n m"], Float[Array, "n n"]]:
        """Orbitals without cusps, and the distances that these depend on."""
        features, to_nuclei = nuclear_features(x, self.molecule)
        pair, apart = pair_features(x)
        h, up = features, self.molecule.up
        spins = [slice(0, up), slice(up, None)][: 2 if self.molecule.down else 1]
        for p in params["layers"]:
            mean = jnp.concatenate([jnp.mean(h[spin], axis=0) for spin in spins])
            near = jnp.concatenate([jnp.mean(pair[:, spin], axis=1) for spin in spins], axis=-1)
            new = jnp.tanh(h @ p["own"] + near @ p["pairs"] + (mean @ p["mean"] + p["b"])[None])
            h = h + new if h.shape == new.shape else new
            if "two" in p:
                new = jnp.tanh(pair @ p["two"] + p["two_b"][None, None])
                pair = pair + new if pair.shape == new.shape else new
        return orbital_matrices(params["orbitals"], h, features, to_nuclei, self.molecule), to_nuclei, apart


def _normal(key: PRNGKeyArray, shape: tuple[int, int], fan_in: int, dtype: Any) -> Float[Array, "a b"]:
    return fan_in**-0.5 * jax.random.normal(key, shape, dtype)
