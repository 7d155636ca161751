"""The local energy: kinetic energy by one forward pass, and Coulomb's potential."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._contracts import Params
from ..pinn import derivatives
from ._molecule import Molecule


def coulomb(molecule: Molecule) -> Callable[[Float[Array, "n 3"]], Float[Array, ""]]:
    """Coulomb's potential of the electrons and nuclei of a molecule, in hartree.

    **Arguments:**

    - `molecule`: a `sg.molecules.Molecule`. Its nuclei stay where they are, and their repulsion is part of
      the potential.

    **Returns:** a function of one configuration x, `[electrons, 3]` in bohr. It is infinite where two
    particles are at the same place.

    ```python
    potential = sg.molecules.coulomb(sg.molecules.molecule("H"))
    potential(jnp.array([[2.0, 0.0, 0.0]]))                         # -1/2
    ```
    """
    count, repulsion = molecule.electrons, molecule.repulsion

    def potential(x: Float[Array, "n 3"]) -> Float[Array, ""]:
        nuclei = jnp.asarray(molecule.nuclei, x.dtype)
        charges = jnp.asarray(molecule.charges, x.dtype)[None]
        to_nuclei = jnp.linalg.norm(x[:, None] - nuclei[None], axis=-1)
        total = jnp.asarray(repulsion, x.dtype) - jnp.sum(charges / to_nuclei)
        first, second = np.triu_indices(count, 1)
        if len(first):
            total = total + jnp.sum(1 / jnp.linalg.norm(x[first] - x[second], axis=-1))
        return total

    return potential


def local_energy(
    log_psi: Callable, params: Params, x: Float[Array, "n 3"], potential: Callable
) -> Float[Array, ""]:
    """The local energy Hψ/ψ at one configuration of the electrons, −½(Δ log|ψ| + |∇ log|ψ||²) + V.

    **Arguments:**

    - `log_psi`: `log_psi(params, x)`, the logarithm of |ψ| of one configuration.
    - `params`, `x`: the arguments of `log_psi`: its parameters, and the places of the electrons,
      `[electrons, 3]` in bohr.
    - `potential`: the function V of x, such as `sg.molecules.coulomb(molecule)`.

    **Returns:** one number, in hartree. It is not finite where ψ vanishes or V is infinite.

    ```python
    hydrogen = sg.molecules.coulomb(sg.molecules.molecule("H"))
    x = jnp.array([[0.3, 0.4, 0.5]])
    sg.molecules.local_energy(lambda p, x: -jnp.linalg.norm(x), (), x, hydrogen)               # -1/2
    ```
    """
    found = derivatives(lambda flat: log_psi(params, flat.reshape(x.shape)), x.reshape(-1))
    energy = -(found.laplacian + jnp.sum(found.gradient**2)) / 2 + potential(x)
    return jnp.where(jnp.isfinite(found.value), energy, jnp.nan)


@jax.default_matmul_precision("highest")  # on NVIDIA cards JAX's own is good to three digits
def local_energies(
    log_psi: Callable, params: Params, x: Float[Array, "k n 3"], potential: Callable, block: int
) -> Float[Array, " k"]:
    """The local energies of many configurations, `block` of them at a time."""
    one: Any = lambda place: local_energy(log_psi, params, place, potential)  # noqa: E731
    if block >= x.shape[0]:
        return jax.vmap(one)(x)
    return jax.lax.map(one, x, batch_size=block)
