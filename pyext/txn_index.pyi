from typing import Final, Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from oncelog.base.rows import ABORTED_DTYPE as ABORTED_DTYPE

ENTRY_DTYPE: Final[np.dtype[np.void]]

@final
class TxnIndex:
    base_offset: Final[int]
    file: Final[str]
    def __new__(cls, entries: Buffer = b"", base_offset: int = 0, file: str = "") -> Self: ...
    def __len__(self) -> int: ...
    def extend(self, entries: Buffer) -> None: ...
    def entries(self) -> NDArray[np.void]: ...
    def collect_aborted_txns(
        self, fetch_offset: int, upper_bound: int
    ) -> tuple[NDArray[np.void], NDArray[np.int64], bool]: ...
