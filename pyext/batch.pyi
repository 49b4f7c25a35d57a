from collections.abc import Callable, Sequence
from typing import Any, Final, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer

from oncelog.base.errors import BatchError
from oncelog.base.rows import HEADER_DTYPE as HEADER_DTYPE

def scan(
    buffer: Buffer, position: int = 0, *, check_crc: bool = True, file: str = ""
) -> NDArray[np.void]: ...
def scan_prefix(
    buffer: Buffer,
    position: int = 0,
    *,
    bytes_max: int = -1,
    check_crc: bool = True,
    file: str = "",
) -> tuple[NDArray[np.void], int, BatchError | None]: ...
def span(
    rows: NDArray[np.void], lowest: int, highest: int
) -> tuple[int, int, int, int, int, bool]: ...
def restamp(
    buffer: Buffer,
    position: int = 0,
    *,
    base_offset: int | None = None,
    partition_leader_epoch: int | None = None,
    attributes: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    base_sequence: int | None = None,
    file: str = "",
) -> None: ...
def decode(
    buffer: Buffer,
    positions: ArrayLike,
    *,
    visible: ArrayLike | None = None,
    start_offset: int = 0,
    end_offset: int = 9223372036854775807,
    views: bool = False,
    check_crc: bool = True,
    include_control: bool = False,
    create_time: bool = False,
    bytes_max: int = 1073741824,
    decompress: Callable[[int, memoryview], Buffer] | None = None,
    file: str = "",
) -> RecordColumns: ...
def arrow_schema(views: bool = False) -> Any: ...

@final
class EncodedBatches:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    batch_count: Final[int]
    record_count: Final[int]
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def is_shared(self) -> bool: ...
    def proof(self) -> object: ...

@final
class Encoder:
    def __new__(
        cls,
        *,
        base_offset: int = 0,
        partition_leader_epoch: int = -1,
        attributes: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        timestamp_ms: int = -1,
        batch_bytes: int = 2147483647,
        one_batch: bool = False,
        base_timestamp: int | None = None,
        max_timestamp: int | None = None,
        last_offset_delta: int | None = None,
        compress: Callable[[memoryview], Buffer] | None = None,
        reuse: EncodedBatches | None = None,
    ) -> Self: ...
    @property
    def nbytes(self) -> int: ...
    def add(
        self,
        keys: Sequence[Buffer | None] | None,
        values: Sequence[Buffer | None],
        timestamps: ArrayLike | None = None,
        headers: Sequence[Sequence[tuple[str, bytes | None]] | None] | None = None,
        offsets: ArrayLike | None = None,
    ) -> None: ...
    def add_chosen(self, data: object, rows: NDArray[np.int64]) -> None: ...
    def add_arrow(self, data: object, offsets: ArrayLike | None = None) -> None: ...
    def finish(self) -> EncodedBatches: ...

@final
class Place:
    topic: Final[bytes]
    partition: Final[int]
    def __new__(cls, topic: str, partition: int) -> Self: ...

@final
class RecordColumns:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    views: Final[bool]
    next_batch: Final[int]
    @property
    def data_bytes(self) -> int: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    def offset_at(self, row: int) -> int: ...
    @property
    def timestamps(self) -> NDArray[np.int64]: ...
    def __len__(self) -> int: ...
    def _arrow_array_address(self, place: Place | None = None) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
