"""What sees only arrays: regularised pseudoinverses, symmetric polynomials, subsets, sketches."""

from ._cg import LowRank as LowRank
from ._cg import cg_solve as cg_solve
from ._cg import nystrom as nystrom
from ._cg import rp_cholesky as rp_cholesky
from ._esp import esp_ratios as esp_ratios
from ._esp import log_esp as log_esp
from ._factorise import SOLVERS as SOLVERS
from ._factorise import AbstractFactors as AbstractFactors
from ._factorise import Solver as Solver
from ._factorise import factorise as factorise
from ._gram import gram as gram
from ._gram import psd_eigh as psd_eigh
from ._gram import rank_cutoff as rank_cutoff
from ._select import pivoted_cholesky as pivoted_cholesky
from ._select import select_by_volume as select_by_volume
from ._select import select_vectors_by_volume as select_vectors_by_volume
from ._select import volume_sample as volume_sample
from ._select import volume_tables as volume_tables
from ._sketch import AbstractSketch as AbstractSketch
from ._sketch import GaussianSketch as GaussianSketch
from ._sketch import HadamardSketch as HadamardSketch
from ._sketch import RowSketch as RowSketch
from ._sketch import SparseSignSketch as SparseSignSketch
from ._solve import pinv_solve as pinv_solve
from ._solve import psd_solve as psd_solve
from ._subsets import random_subset as random_subset
