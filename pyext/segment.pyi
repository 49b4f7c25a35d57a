from collections.abc import Callable
from typing import Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from oncelog.base.rows import HEADER_DTYPE as HEADER_DTYPE

def find_offset(entries: Buffer, count: int, relative_offset: int) -> int: ...
def find_position(entries: Buffer, count: int, position: int) -> int: ...
def find_timestamp(entries: Buffer, count: int, timestamp: int) -> int: ...
def seek(
    buffer: Buffer, position: int, target: int, *, by_timestamp: bool = False, file: str = ""
) -> int: ...

@final
class IndexState:
    def __new__(cls, interval_bytes: int = 4096) -> Self: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def indexed_timestamp(self) -> int: ...
    def resume(
        self,
        max_timestamp: int,
        max_timestamp_offset: int,
        indexed_timestamp: int,
        bytes_since_entry: int,
    ) -> None: ...
    def copy(self) -> IndexState: ...
    def last_time_entry(self) -> tuple[int, int] | None: ...
    def add(self, rows: NDArray[np.void], base_offset: int) -> tuple[bytes, bytes]: ...

def check_records(
    buffer: Buffer,
    rows: NDArray[np.void],
    *,
    key_needed: bool = False,
    timestamp_min: int = ...,
    timestamp_max: int = ...,
    decompress: Callable[[int, memoryview], Buffer] | None = None,
    file: str = "",
) -> list[tuple[int, list[int]]]: ...
def stamp(buffer: Buffer, rows: NDArray[np.void], next_offset: int, leader_epoch: int) -> None: ...
