"""From a function, parameters and a batch to `gram`, `mv`, `rmv` and `dense`."""

from ._api import jacobian as jacobian
from ._dense import DenseJacobian as DenseJacobian
from ._realify import realify as realify
from ._structured import StructuredJacobian as StructuredJacobian
