"""From a function, parameters and a batch to `gram`, `mv`, `rmv` and `dense`."""

from ._blocks import CentredJacobian as CentredJacobian
from ._blocks import ScaledJacobian as ScaledJacobian
from ._blocks import StackedJacobian as StackedJacobian
from ._blocks import stack as stack
from ._dense import DenseJacobian as DenseJacobian
from ._jacobian import jacobian as jacobian
from ._linearise import linearise as linearise
from ._pairs import RealPairs as RealPairs
from ._pairs import from_pairs as from_pairs
from ._pairs import to_pairs as to_pairs
from ._realify import realify as realify
from ._sharded import ShardedJacobian as ShardedJacobian
from ._structured import StructuredJacobian as StructuredJacobian
