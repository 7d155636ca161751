"""What takes a key and returns rows."""

from ._chain import DownUpChain as DownUpChain
from ._chain import SwapChain as SwapChain
from ._oversample import Pool as Pool
from ._squared_volume import AdaptiveSquaredVolume as AdaptiveSquaredVolume
from ._squared_volume import SquaredVolume as SquaredVolume
from ._uniform import AllRows as AllRows
from ._uniform import TwoBatches as TwoBatches
from ._uniform import Uniform as Uniform
