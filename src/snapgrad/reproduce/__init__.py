"""The engine behind the figures: panels computed by workers, stored whole, drawn, judged and put on a page.

It knows no figure by name. Whoever calls it hands over the studies, and the function that loads one by its
name in another process.
"""

from ._engine import Plan as Plan
from ._engine import claimed as claimed
from ._engine import compute as compute
from ._engine import finish as finish
from ._engine import plan as plan
from ._engine import write_report as write_report
from ._metrics import as_records as as_records
from ._metrics import read_metrics as read_metrics
from ._metrics import write_metrics as write_metrics
from ._section import write_section as write_section
from ._store import FailedError as FailedError
from ._store import ResultsError as ResultsError
from ._store import claim_folder as claim_folder
from ._store import read_json as read_json
from ._store import settings_hash as settings_hash
from ._store import write_atomic as write_atomic
from ._store import write_json as write_json
from ._study import Arrays as Arrays
from ._study import Claim as Claim
from ._study import Data as Data
from ._study import Panel as Panel
from ._study import Size as Size
from ._study import Study as Study
from ._study import Tick as Tick
from ._workers import Event as Event
from ._workers import Load as Load
from ._workers import settle_environment as settle_environment
