"""What knows an equation, a data set or a random matrix ensemble."""

from ._covariance import Covariance as Covariance
from ._covariance import covariance as covariance
from ._ensembles import gaussian_matrix as gaussian_matrix
from ._ensembles import linear_hessian as linear_hessian
from ._ensembles import singular_values as singular_values
from ._ensembles import spectrum_matrix as spectrum_matrix
from ._ensembles import wishart_hessian as wishart_hessian
from ._least_squares import LeastSquares as LeastSquares
from ._llq import LeastQuadratics as LeastQuadratics
from ._llq import gaussian_llq as gaussian_llq
from ._llq import spectrum_llq as spectrum_llq
from ._loss import LossProblem as LossProblem
from ._poisson import DiscretePoisson as DiscretePoisson
