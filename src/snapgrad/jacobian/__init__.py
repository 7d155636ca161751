"""From a function, parameters and a batch to `gram`, `mv`, `rmv` and `dense`."""

from ._dense import DenseJacobian as DenseJacobian
