"""NetKet's wavefunctions, Hamiltonians and samplers, with snapgrad's directions.

Importing this room imports NetKet, which turns JAX's float64 on.
"""

try:
    import netket as _netket  # noqa: F401
except ImportError as error:
    raise ImportError("snapgrad.netket needs NetKet: pip install 'snapgrad[netket]'.") from error

from ._driver import VMC as VMC
from ._local import chunk_size_for as chunk_size_for
from ._log_psi import LiftedJacobian as LiftedJacobian
from ._log_psi import linearise as linearise
from ._subselect import Selection as Selection
from ._subselect import select as select
