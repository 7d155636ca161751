"""From a `Linearisation` and a state to a direction; and the linear solvers this comes from."""

from ._adaptive_spring import AdaptiveSpring as AdaptiveSpring
from ._adaptive_spring import AdaptiveSpringState as AdaptiveSpringState
from ._auto import Auto as Auto
from ._auto import AutoState as AutoState
from ._fisher_spring import FisherSpring as FisherSpring
from ._fisher_spring import FisherSpringState as FisherSpringState
from ._kaczmarz import Iterate as Iterate
from ._kaczmarz import KaczmarzState as KaczmarzState
from ._kaczmarz import accelerated_step as accelerated_step
from ._kaczmarz import kaczmarz as kaczmarz
from ._kaczmarz import kaczmarz_step as kaczmarz_step
from ._kaczmarz import nesterov_step as nesterov_step
from ._lbfgs import LBFGS as LBFGS
from ._lbfgs import LBFGSState as LBFGSState
from ._levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from ._levenberg_marquardt import LevenbergMarquardtState as LevenbergMarquardtState
from ._line_search import LineSearch as LineSearch
from ._line_search import LineSearchState as LineSearchState
from ._matrix_free import CGState as CGState
from ._pinv import inverse_fisher_apply as inverse_fisher_apply
from ._pinv import pinv_apply as pinv_apply
from ._sgd import SGD as SGD
from ._sng import SNG as SNG
from ._spring import Spring as Spring
from ._spring import SpringState as SpringState
from ._two_batch import TwoBatch as TwoBatch
