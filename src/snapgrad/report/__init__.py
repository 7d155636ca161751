"""Files to figures, tables and one HTML page."""

from ._figures import BLUE as BLUE
from ._figures import GREEN as GREEN
from ._figures import GREY as GREY
from ._figures import INK as INK
from ._figures import ORANGE as ORANGE
from ._figures import PURPLE as PURPLE
from ._figures import STYLES as STYLES
from ._figures import Draw as Draw
from ._figures import as_bytes as as_bytes
from ._figures import figure as figure
from ._figures import inline as inline
from ._figures import palette as palette
from ._figures import render as render
from ._figures import standalone as standalone
from ._figures import ticks as ticks
from ._page import page as page
