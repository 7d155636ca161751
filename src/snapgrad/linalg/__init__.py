"""What sees only arrays: regularised pseudoinverses, symmetric polynomials, subsets, sketches."""

from ._cg import CGResult as CGResult
from ._cg import LowRank as LowRank
from ._cg import cg_solve as cg_solve
from ._cg import nystrom as nystrom
from ._cg import rp_cholesky as rp_cholesky
from ._esp import esp_ratios as esp_ratios
from ._esp import log_esp as log_esp
from ._esp import log_esp_table as log_esp_table
from ._sketch import AbstractSketch as AbstractSketch
from ._sketch import GaussianSketch as GaussianSketch
from ._sketch import HadamardSketch as HadamardSketch
from ._sketch import RowSketch as RowSketch
from ._sketch import SparseSignSketch as SparseSignSketch
from ._solve import SOLVERS as SOLVERS
from ._solve import Solver as Solver
from ._solve import gram as gram
from ._solve import pinv_solve as pinv_solve
from ._solve import psd_eigh as psd_eigh
from ._solve import psd_solve as psd_solve
from ._solve import rank_cutoff as rank_cutoff
from ._subsets import random_subset as random_subset
