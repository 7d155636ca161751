"""Electrons in atoms and molecules: neural wavefunctions, trained by natural gradients on their energy."""

from ._evaluate import Evaluation as Evaluation
from ._evaluate import blocking as blocking
from ._evaluate import evaluate as evaluate
from ._evaluate import verdict as verdict
from ._ferminet import FermiNet as FermiNet
from ._hamiltonian import coulomb as coulomb
from ._hamiltonian import local_energy as local_energy
from ._hartree_fock import hartree_fock as hartree_fock
from ._hartree_fock import pretrain as pretrain
from ._molecule import ENERGIES as ENERGIES
from ._molecule import NAMES as NAMES
from ._molecule import Molecule as Molecule
from ._molecule import molecule as molecule
from ._problem import VMC as VMC
from ._psiformer import Psiformer as Psiformer
from ._sampler import Metropolis as Metropolis
from ._sampler import Walkers as Walkers
from ._sampler import starting_positions as starting_positions
from ._solve import GroundState as GroundState
from ._solve import Sizes as Sizes
from ._solve import problem_for as problem_for
from ._solve import sizes as sizes
from ._solve import solve as solve
