"""From a function, parameters and a batch to `gram`, `mv`, `rmv` and `dense`."""

from ._dense import DenseJacobian as DenseJacobian
from ._jacobian import jacobian as jacobian
from ._linearise import linearise as linearise
from ._pairs import RealPairs as RealPairs
from ._pairs import from_pairs as from_pairs
from ._pairs import to_pairs as to_pairs
from ._realify import realify as realify
from ._restrict import restrict as restrict
from ._rows import AbstractRows as AbstractRows
from ._rows import CentredJacobian as CentredJacobian
from ._rows import CombinedJacobian as CombinedJacobian
from ._rows import RestrictedJacobian as RestrictedJacobian
from ._rows import ScaledJacobian as ScaledJacobian
from ._rows import rows_mesh as rows_mesh
from ._sharded import ShardedJacobian as ShardedJacobian
from ._stacked import StackedJacobian as StackedJacobian
from ._stacked import stack as stack
from ._structured import StructuredJacobian as StructuredJacobian
