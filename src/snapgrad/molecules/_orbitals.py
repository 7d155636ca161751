"""What the wavefunctions share: smooth features, determinants of orbitals, and cusps that hold exactly.

Where two particles meet, the potential is infinite and ψ must have a certain slope (Kato's cusp), or the
local energy is infinite too. Networks here see only functions without a slope of their own at such points,
and a fixed factor supplies it. So the cusps hold for all parameters, and local energies have no heavy tails
from there.
"""

from functools import reduce
from operator import add, mul
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._contracts import Params
from ..linalg import slogdet
from ._molecule import Molecule
from ._shells import Orbital, orbitals, slater_exponent

FEATURES = 5
"""Numbers that say where an electron is as seen from a nucleus."""
PAIR_FEATURES = 4
"""Numbers that say where two electrons are to each other."""
TINY = 1e-20
"""Added to squared lengths: their roots then have derivatives at zero."""
FAR = 0.3
"""The part that the nuclei other than its own have in an outer orbital, to begin with."""


def lengths(vectors: Float[Array, "*s 3"]) -> Float[Array, "*s"]:
    """Lengths with finite derivatives, also at zero."""
    return jnp.sqrt(jnp.sum(vectors**2, axis=-1) + TINY)


def nuclear_features(
    x: Float[Array, "n 3"], molecule: Molecule
) -> tuple[Float[Array, "n f"], Float[Array, "n m"]]:
    """Features of each electron, and its distances from the nuclei."""
    nuclei = jnp.asarray(molecule.nuclei, x.dtype)
    charges = jnp.asarray(molecule.charges, x.dtype)[None]
    rays = x[:, None] - nuclei[None]
    r = lengths(rays)
    close = jnp.log1p((charges * r) ** 2) / 2
    parts = [rays * (jnp.log1p(r) / r)[..., None], (r**2 / (1 + r))[..., None], close[..., None]]
    return jnp.concatenate(parts, axis=-1).reshape(x.shape[0], -1), r


def pair_features(x: Float[Array, "n 3"]) -> tuple[Float[Array, "n n 4"], Float[Array, "n n"]]:
    """Features of each pair of electrons, and their distances."""
    gaps = x[:, None] - x[None]
    r = lengths(gaps)
    parts = [gaps * ((1 + r**2) ** -0.5)[..., None], jnp.log1p(r**2)[..., None]]
    return jnp.concatenate(parts, axis=-1), r


def cusps(
    params: Float[Array, " 2"],
    to_nuclei: Float[Array, "n m"],
    apart: Float[Array, "n n"],
    molecule: Molecule,
) -> Float[Array, ""]:
    """The logarithm of the factor that has the right slopes where particles meet.

    −Z at a nucleus, ½ between electrons of opposite spin and ¼ of the same; beyond that it is flat. How soon
    it is flat is trained for electrons; at nuclei it is such that an envelope of decay Z makes it exp(−Zr).
    """
    up = np.arange(molecule.electrons) < molecule.up
    pairs = np.triu(np.ones((molecule.electrons,) * 2), 1)
    same = pairs * (up[:, None] == up[None])
    total = jnp.sum(_nuclear(to_nuclei, molecule))
    for slope, chosen, size in ((0.25, same, params[0]), (0.5, pairs - same, params[1])):
        if chosen.any():
            total = total - slope * jnp.sum(
                jnp.asarray(chosen, apart.dtype) * size**2 / (jnp.abs(size) + apart)
            )
    return total


def _nuclear(to_nuclei: Float[Array, "n m"], molecule: Molecule) -> Float[Array, " n"]:
    """The logarithm of each electron's factor."""
    scaled = jnp.asarray(molecule.charges, to_nuclei.dtype)[None] * to_nuclei
    return -jnp.sum(scaled / (1 + scaled), axis=1)


def init_orbitals(
    key: PRNGKeyArray, molecule: Molecule, width: int, determinants: int, dtype: Any
) -> dict[str, Params]:
    """Weights with which every determinant is at first, but for some noise, one of Slater's orbitals."""
    spins = {}
    for i, (spin, chosen) in enumerate(zip(("up", "down"), orbitals(molecule), strict=True)):
        if chosen:
            spins[spin] = _init_spin(jax.random.fold_in(key, i), molecule, chosen, width, determinants, dtype)
    return spins


def _init_spin(
    key: PRNGKeyArray, molecule: Molecule, chosen: list[Orbital], width: int, determinants: int, dtype: Any
) -> Params:
    nuclei, count = len(molecule.charges), len(chosen)
    decay, part = np.zeros((count, nuclei)), np.zeros((count, nuclei))
    bias, linear = np.zeros(count), np.zeros((FEATURES * nuclei, count))
    for j, orbital in enumerate(chosen):
        for atom, charge in enumerate(molecule.charges):
            outer = 1 if charge <= 2 else 2 if charge <= 10 else 3
            decay[j, atom] = slater_exponent(charge, charge, outer) / outer
        decay[j, orbital.nucleus] = orbital.decay
        part[j] = 0 if orbital.core else FAR
        part[j, orbital.nucleus] = 1
        if orbital.axis is None:
            bias[j] = 1
        else:
            linear[FEATURES * orbital.nucleus + orbital.axis, j] = 1

    def noisy(index: int, values: Float[np.ndarray, "*s"], size: float) -> Float[Array, "d *s"]:
        shape = (determinants, *values.shape)
        return size * jax.random.normal(jax.random.fold_in(key, index), shape, dtype) + jnp.asarray(
            np.broadcast_to(values, shape), dtype
        )

    scale = 0.3 * width**-0.5
    return {
        "w": scale * jax.random.normal(jax.random.fold_in(key, 0), (width, determinants * count), dtype),
        "linear": jnp.moveaxis(noisy(1, linear, 0.05), 0, 1).reshape(linear.shape[0], -1),
        "b": noisy(2, bias, 0.05).reshape(-1),
        "decay": noisy(3, decay, 0.0) * jnp.exp(noisy(5, np.zeros_like(decay), 0.05)),
        "part": noisy(4, part, 0.03),
    }


def orbital_matrices(
    params: dict[str, Params],
    h: Float[Array, "n w"],
    features: Float[Array, "n f"],
    to_nuclei: Float[Array, "n m"],
    molecule: Molecule,
) -> list[Float[Array, "d _ _"]]:
    """For each spin that has electrons, each determinant's orbitals (last axis) at each electron."""
    charges = jnp.asarray(molecule.charges, to_nuclei.dtype)[None]
    reach = to_nuclei**2 / (1 / charges + to_nuclei)  # no slope at the nucleus, the distance far away
    matrices = []
    for spin, rows in (("up", slice(0, molecule.up)), ("down", slice(molecule.up, None))):
        if spin not in params:
            continue
        p = params[spin]
        count = p["decay"].shape[1]
        values = h[rows] @ p["w"] + features[rows] @ p["linear"] + p["b"][None]
        falls = jnp.exp(-reach[rows][:, None, None, :] * jnp.abs(p["decay"])[None])
        envelope = jnp.sum(falls * p["part"][None], axis=-1)
        matrices.append(jnp.swapaxes(values.reshape(count, -1, count) * envelope, 0, 1))
    return matrices


def with_nuclear_cusps(
    matrices: list[Float[Array, "d _ _"]], to_nuclei: Float[Array, "n m"], molecule: Molecule
) -> list[Float[Array, "d _ _"]]:
    """Orbitals with the factor of each electron that has the right slopes at the nuclei."""
    factor = jnp.exp(_nuclear(to_nuclei, molecule))
    parts = [factor[: molecule.up], factor[molecule.up :]]
    return [matrix * part[None, :, None] for matrix, part in zip(matrices, parts, strict=False)]


def determinants(matrices: list[Float[Array, "d _ _"]]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sign and logarithm of Σ_d det(up)_d det(down)_d, without overflow and where some of them vanish."""
    found = [slogdet(matrix) for matrix in matrices]
    signs, logs = reduce(mul, [sign for sign, _ in found]), reduce(add, [log for _, log in found])
    most = jax.lax.stop_gradient(jnp.max(logs))
    most = jnp.where(jnp.isfinite(most), most, 0)
    total = jnp.sum(signs * jnp.exp(logs - most))
    return jnp.sign(total), most + jnp.log(jnp.abs(total))
