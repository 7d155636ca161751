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
from ._contracts import Result as Result
from .linalg import CG as CG
from .methods import SGD as SGD
from .methods import SNG as SNG
from .methods import AdaptiveSpring as AdaptiveSpring
from .methods import Auto as Auto
from .methods import LevenbergMarquardt as LevenbergMarquardt
from .methods import Spring as Spring
from .methods import TwoBatch as TwoBatch
from .methods import kaczmarz as kaczmarz
from .operators import DenseJacobian as DenseJacobian
from .operators import jacobian as jacobian
from .operators import linearise as linearise
from .operators import realify as realify
from .operators import stack as stack
from .problems import LeastSquares as LeastSquares
from .training import as_optax as as_optax
from .training import fit as fit
from .training import least_squares as least_squares
from .training import load as load
from .training import run as run
from .training import save as save

__version__ = "0.1.0"
