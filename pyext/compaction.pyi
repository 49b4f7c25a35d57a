from collections.abc import Callable
from typing import Final, Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from oncelog.base.rows import HEADER_DTYPE as HEADER_DTYPE
from oncelog.base.rows import PRODUCER_DTYPE as PRODUCER_DTYPE

SLOT_BYTES: Final[int]

def key_hash(key: Buffer, seed: Buffer) -> bytes: ...

@final
class OffsetMap:
    slots: Final[int]
    capacity: Final[int]
    def __new__(cls, slots: int, capacity: int, seed: Buffer) -> Self: ...
    def __len__(self) -> int: ...
    def find(self, key: Buffer) -> int: ...
    def add(
        self,
        buffer: Buffer,
        rows: NDArray[np.void],
        visible: NDArray[np.bool_],
        *,
        start_offset: int = 0,
        decompress: Callable[[int, memoryview], Buffer] | None = None,
        file: str = "",
    ) -> int: ...

@final
class LogFilter:
    records_read: Final[int]
    records_kept: Final[int]
    def __new__(
        cls,
        offsets: OffsetMap,
        producers: NDArray[np.void],
        *,
        end_offset: int,
        last_end_offset: int,
        now_ms: int,
        horizon_ms: int,
    ) -> Self: ...
    def clean(
        self,
        buffer: Buffer,
        rows: NDArray[np.void],
        visible: NDArray[np.bool_],
        *,
        decompress: Callable[[int, memoryview], Buffer] | None = None,
        compress: Callable[[int, memoryview], Buffer] | None = None,
        file: str = "",
    ) -> bytes: ...
    def anchor(self) -> bytes: ...
    def take_markers(self) -> NDArray[np.int64]: ...
