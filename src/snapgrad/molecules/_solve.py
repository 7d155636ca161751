"""`sg.molecules.solve`: the ground state of a molecule in one call."""

import os
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray

from .._checks import Given, one_of
from .._contracts import Result
from ..methods import FisherSpring
from ..training import fit, with_options_of
from . import _hartree_fock
from ._evaluate import Evaluation, evaluate, verdict
from ._ferminet import FermiNet
from ._molecule import Molecule
from ._molecule import molecule as as_molecule
from ._problem import VMC
from ._psiformer import Psiformer

ANSAETZE = {"ferminet": FermiNet, "psiformer": Psiformer}
"""Wavefunctions by name."""
EVALUATION_STEPS = 400
"""How often all walkers are counted after training."""


class Sizes(NamedTuple):
    """How large a wavefunction is, and how much a step of training sees.

    - `width`, `layers`: the width and the number of the layers of its network.
    - `determinants`: how many determinants are summed.
    - `walkers`: how many configurations a step averages over.
    - `moves`: how often each walker moves between two steps.

    ```python
    sg.molecules.sizes("cpu") == sg.molecules.Sizes(32, 3, 4, 512, 10)
    ```
    """

    width: int
    layers: int
    determinants: int
    walkers: int
    moves: int


def sizes(backend: str) -> Sizes:
    """The sizes that `sg.molecules.solve` uses on a machine.

    **Arguments:**

    - `backend`: what JAX computes on, such as `jax.default_backend()`. `"cpu"` means a small wavefunction,
      and anything else a full one.

    **Returns:** a `sg.molecules.Sizes`.

    ```python
    sg.molecules.sizes("cpu").walkers
    ```
    """
    if backend == "cpu":
        return Sizes(width=32, layers=3, determinants=4, walkers=512, moves=10)
    return Sizes(width=256, layers=4, determinants=16, walkers=2048, moves=15)


class GroundState(Result):
    """What `sg.molecules.solve` returns: a `sg.Result` with an evaluation of the energy.

    - `evaluation`: the energy, its error bar and more, an `Evaluation`.
    - `verdict`: the same in words, and whether training has converged.
    - `problem`: the `VMC` that was trained; `problem.log_psi(params, x)` is log|ψ|.
    - `params`, `history`, `reason`, `rejected`, `state`: as in every `sg.Result`.

    ```python
    problem = sg.molecules.VMC(lambda p, x: -p * jnp.sum(jnp.linalg.norm(x, axis=-1)), "H",
                               params=jnp.array(0.8), walkers=16)
    found = sg.molecules.solve(problem, jax.random.key(0), steps=2)
    print(found.verdict, found.evaluation.energy)
    ```
    """

    problem: VMC
    evaluation: Evaluation

    @property
    def verdict(self) -> str:
        """How good the energy is, and whether training has converged, in words."""
        return verdict(self.problem.molecule, self.history, self.evaluation)


def problem_for(
    what: Given[str | os.PathLike[str] | Molecule | VMC, ""],
    ansatz: str = "ferminet",
    dtype: Given[DTypeLike, ""] = jnp.float32,
) -> VMC:
    """A `VMC` problem for a molecule, with a wavefunction and walkers that suit the machine.

    **Arguments:**

    - `what`: a `Molecule`, or what `sg.molecules.molecule` takes; a `VMC` is returned as it is.
    - `ansatz`: `"ferminet"` or `"psiformer"`.
    - `dtype`: the floating-point type of the parameters; float32 by default.

    **Returns:** a `sg.molecules.VMC`. `ValueError` for a molecule or an ansatz that it does not know.

    ```python
    sg.molecules.problem_for("LiH").walkers
    ```
    """
    if isinstance(what, VMC):
        return what
    kind = ANSAETZE[one_of("ansatz", ansatz, tuple(ANSAETZE))]
    width, layers, determinants, walkers, moves = sizes(jax.default_backend())
    net = kind(as_molecule(what), width=width, layers=layers, determinants=determinants, dtype=dtype)
    return VMC(net, walkers=walkers, moves=moves)


@with_options_of(fit)
def solve(
    what: Given[str | os.PathLike[str] | Molecule | VMC, ""],
    key: PRNGKeyArray,
    *,
    ansatz: str = "ferminet",
    pretrain: bool = False,
    **options: Any,
) -> GroundState:
    """The ground state of a molecule; nothing needs tuning.

    It trains a wavefunction whose size suits the machine, by `sg.methods.FisherSpring` in float32, and then
    evaluates its energy with frozen parameters.

    **Arguments:**

    - `what`: a `Molecule`, what `sg.molecules.molecule` takes (`"LiH"`, an .xyz file), or a `VMC`.
    - `key`: the randomness of weights and walkers.
    - `ansatz`: `"ferminet"` or `"psiformer"`.
    - `pretrain`: start from orbitals of Hartree–Fock (`sg.molecules.pretrain`, which needs PySCF) in place of
      those of the atoms. It is done again, to the same numbers, when a run goes on from a checkpoint.
    - `options`: those of `sg.fit`: when to stop (`steps`, `seconds`), `checkpoint` and `resume`, `progress`,
      `callback`, `mesh` for several devices, and `method`, `optimizer` in place of the defaults. Each process
      evaluates the energy at the end on its own.

    **Returns:** a `GroundState`. `ValueError` for a molecule that does not exist.

    ```python
    problem = sg.molecules.VMC(lambda p, x: -p * jnp.sum(jnp.linalg.norm(x, axis=-1)), "H",
                               params=jnp.array(0.8), walkers=16)
    found = sg.molecules.solve(problem, jax.random.key(0), steps=2)
    found.evaluation.energy, found.evaluation.error
    ```
    """
    problem = problem_for(what, ansatz)
    if pretrain:
        params = _hartree_fock.pretrain(problem.log_psi, key)
        problem = eqx.tree_at(lambda p: p.params, problem, params, is_leaf=lambda leaf: leaf is None)
    options.setdefault("method", FisherSpring())
    result = fit(problem, key, **options)
    found = evaluate(
        problem, result.params, jax.random.fold_in(key, 1), steps=EVALUATION_STEPS, state=result.state.sampler
    )
    return GroundState(**vars(result), problem=problem, evaluation=found)
