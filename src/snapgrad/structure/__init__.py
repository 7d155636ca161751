"""Finds the outer products in a traced gradient program, so that a kernel needs no Jacobian.

`make_plan` reads the gradient of one row and decides for each leaf of the parameters how its rows are kept;
`factors` holds what was kept and `contract` makes kernels of it; `compat` is the one place that knows how
JAX writes its programs down.
"""

from . import compat as compat
from . import contract as contract
from . import factors as factors
from ._plan import LeafPlan as LeafPlan
from ._plan import Plan as Plan
from ._plan import make_plan as make_plan
from ._trace import reverse_only as reverse_only
from .factors import Full as Full
from .factors import Leaf as Leaf
from .factors import Outer as Outer
