import numpy as np
from numpy.typing import NDArray

from oncelog.base.rows import ABORTED_DTYPE as ABORTED_DTYPE
from oncelog.base.rows import HEADER_DTYPE as HEADER_DTYPE

def visible_batches(rows: NDArray[np.void], aborted: NDArray[np.void]) -> NDArray[np.bool_]: ...
