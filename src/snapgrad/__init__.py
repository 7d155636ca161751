"""snapgrad: sketch-and-project natural gradients in JAX."""

from . import linalg as linalg
from . import methods as methods
from . import pinn as pinn
from . import problems as problems
from . import sampling as sampling
from . import theory as theory
from ._contracts import AbstractJacobian as AbstractJacobian
from ._contracts import AbstractMethod as AbstractMethod
from ._contracts import AbstractProblem as AbstractProblem
from ._contracts import AbstractSampler as AbstractSampler
from ._contracts import Linearisation as Linearisation
from ._contracts import Pair as Pair
from .jacobian import DenseJacobian as DenseJacobian
from .jacobian import jacobian as jacobian  # from here on the function, not the room
from .jacobian import linearise as linearise
from .jacobian import realify as realify
from .jacobian import stack as stack
from .methods import SGD as SGD
from .methods import SNG as SNG
from .methods import Auto as Auto
from .methods import Spring as Spring
from .methods import TwoBatch as TwoBatch
from .methods import as_optax as as_optax
from .methods import kaczmarz as kaczmarz
from .training import run as run

__version__ = "0.1.0"
