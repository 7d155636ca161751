"""Rooms that see only arrays: regularised pseudoinverses, random subsets and sketches."""

from ._solve import Solver as Solver
from ._solve import gram as gram
from ._solve import pinv_solve as pinv_solve
from ._solve import psd_eigh as psd_eigh
from ._solve import psd_solve as psd_solve
