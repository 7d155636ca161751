"""Numbers about a method without running it: P̄, W̄, W̃, α, β, γ, bounds, rates and advice."""

from . import exact as exact
from ._bounds import Bounds as Bounds
from ._bounds import bounds as bounds
from ._enumeration import EnumeratedProblem as EnumeratedProblem
from ._enumeration import enumerate_problem as enumerate_problem
from ._estimate import Interval as Interval
from ._estimate import alpha as alpha
from ._estimate import beta as beta
from ._estimate import gamma as gamma
from ._expectations import MatrixEstimate as MatrixEstimate
from ._expectations import expected_projector as expected_projector
from ._expectations import expected_weight as expected_weight
from ._expectations import preconditioner as preconditioner
from ._rates import Rate as Rate
from ._rates import Statement as Statement
from ._rates import momentum as momentum
from ._rates import predicted_rate as predicted_rate
from ._rates import step_size as step_size
from ._spectrum import Sampling as Sampling
from ._table import TableRow as TableRow
from ._table import table as table
