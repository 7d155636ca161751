"""snapgrad: sketch-and-project natural gradients in JAX."""

from . import linalg as linalg
from ._contracts import AbstractJacobian as AbstractJacobian
from ._contracts import AbstractMethod as AbstractMethod
from ._contracts import AbstractProblem as AbstractProblem
from ._contracts import AbstractSampler as AbstractSampler
from ._contracts import Linearisation as Linearisation
from ._contracts import Pair as Pair
from .jacobian import DenseJacobian as DenseJacobian

__version__ = "0.1.0"
