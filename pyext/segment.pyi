from collections.abc import Callable
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from oncelog._native.published import Slot
from oncelog._native.sequence import ProducerTable
from oncelog.base.disk import Disk
from oncelog.base.rows import HEADER_DTYPE as HEADER_DTYPE
from oncelog.broker.answers import Produced
from oncelog.segment.names import TopicPartition

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
    def prepare(
        self, batches: Batches, base_offset: int, position: int
    ) -> tuple[bytes, bytes] | None: ...
    def take(self) -> None: ...
    def allow(self, size_max: int, last_offset_max: int, timestamp_max: int) -> None: ...
    def has_room(self, batches: Batches, size: int) -> bool: ...
    def append_one(
        self,
        data: Buffer,
        batch: Batches,
        producers: object,
        next_offset: int,
        leader_epoch: int,
        is_client: bool,
        bumps_epoch: bool,
        write: Callable[[int, Buffer, int], object],
        descriptor: int,
        size: int,
        offsets: IndexTail | None = None,
        times: IndexTail | None = None,
        base_offset: int = 0,
    ) -> int: ...
    def last_time_entry(self) -> tuple[int, int] | None: ...
    def add(self, rows: NDArray[np.void] | Batches, base_offset: int) -> tuple[bytes, bytes]: ...

@final
class Batches:
    def __new__(cls, rows: NDArray[np.void]) -> Self: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def dtype(self) -> np.dtype[np.void]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def has_abort(self) -> bool: ...
    @property
    def are_markers(self) -> bool: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def producer_id(self) -> int: ...

@final
class Rules:
    def __new__(
        cls,
        size_max: int,
        is_client: bool,
        key_needed: bool,
        before_max_ms: int,
        after_max_ms: int,
    ) -> Self: ...
    def check(self, buffer: Buffer, now_ms: int) -> Batches | None: ...

def attributes_of(buffer: Buffer) -> int: ...
def check_one(
    buffer: Buffer,
    size_max: int,
    is_client: bool,
    key_needed: bool,
    timestamp_min: int,
    timestamp_max: int,
) -> Batches | None: ...
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
def stamp(buffer: Buffer, batches: Batches, next_offset: int, leader_epoch: int) -> None: ...

@final
class TailLock:
    def __new__(cls) -> Self: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

class IndexTail:
    count: int
    count_max: int
    _descriptor: int
    _entries: Buffer

class SegmentTail:
    base_offset: int
    size: int
    offset_index: Any
    time_index: Any
    disk: Disk | None
    state: IndexState | None
    _descriptor: int
    _torn_end: int
    _is_synced: bool

class LogTail:
    segments: tuple[Any, ...]
    known_end: int | None

class ProducersTail:
    table: ProducerTable
    next_offset: int

class PartitionTail:
    log: Any
    producers: Any
    @property
    def lock(self) -> TailLock: ...
    recovery_point: int
    watchers: tuple[Callable[[], None], ...]
    _flush_messages: int
    _client_rules: Rules | None
    _coordinator_rules: Rules | None
    _forks: Callable[[], int]
    _writable_in: int
    _state_loaded: bool
    _is_durable: bool
    _stable: int
    _marked_end: int
    _slot: Slot | None
    def append_in_transaction(
        self,
        data: Buffer,
        leader_epoch: int,
        now_ms: int,
        bumps_epoch: bool,
        answer: type[Produced],
    ) -> Produced | None: ...
    def append_small(
        self, data: Buffer, leader_epoch: int, now_ms: int, bumps_epoch: bool
    ) -> int: ...
    def append_record(
        self, key: bytes, value: bytes | None, leader_epoch: int, now_ms: int
    ) -> int: ...
    def append_commit(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
        bumps_epoch: bool,
    ) -> int: ...
    def _append_one(
        self,
        data: Buffer,
        batch: Batches,
        leader_epoch: int,
        is_client: bool,
        bumps_epoch: bool,
    ) -> int: ...
    def begin_sync(self, offset: int) -> tuple[int, list[int], bool] | None: ...
    def give_up_sync(self) -> None: ...
    def _sync_alone(self, offset: int) -> bool: ...
    def _finish_sync(self, end: int) -> bool: ...
    def _sync_last(self, offset: int) -> int: ...
    def _publish(self, batches: Batches, stable: int) -> None: ...

class BrokerTail:
    _open: dict[TopicPartition, Any]
    now_ms: Callable[[], int]
    leader_epoch: int
    is_synced: bool
    _own_topics: frozenset[str]
    _answer: type[Produced]
    _pending: Callable[[Any, int], object]
    def produce(
        self,
        key: TopicPartition,
        batch: Buffer,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        transaction_version: int = 2,
    ) -> Produced: ...
