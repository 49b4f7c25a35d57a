from typing import Any, Final, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oncelog.base.errors import BatchError
from oncelog.base.rows import ABORTED_DTYPE as ABORTED_DTYPE
from oncelog.base.rows import HEADER_DTYPE as HEADER_DTYPE

def scan_column(
    values: Any, *, check_crc: bool = True
) -> tuple[
    NDArray[np.void], NDArray[np.int64], NDArray[np.int64], tuple[BatchError, int] | None
]: ...
def crc_ok_column(values: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]: ...

@final
class AbortedIndex:
    def __new__(
        cls,
        partitions: Any,
        stable: ArrayLike | None,
        places: ArrayLike,
        aborted: NDArray[np.void],
    ) -> Self: ...
    partitions: Final[tuple[tuple[str, int], ...]]
    is_complete: Final[bool]
    def __len__(self) -> int: ...
    def last_stable_offset(self, topic: str, partition: int) -> int | None: ...
    def places(self, topics: Any, partitions: Any) -> NDArray[np.int32]: ...
    def visible(
        self, places: ArrayLike, offsets: Any, producer_ids: Any, attributes: Any
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]: ...
