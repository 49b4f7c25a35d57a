"""An internal topic whose records are somebody's state: a coordinator writes each change, and replays them at start.

File         the partitions of one internal topic, e.g. __transaction_state; the coordinator owns their meaning
Duty         which partition holds a key; append one batch; bring it to the device; read everything again
Concurrency  any thread; a partition serializes its own appends, and syncs are shared by all who wait
Crash        a batch is there whole or not at all; without ``sync`` it survives the process, with it power loss
Fails        with what the partition raises; a failed append has left no trace

A partition is made when something is first written to it. Reading never makes one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from .._native.batch import Encoder
from ..base.java_hash import partition_of
from ..partition.partition import Isolation, Origin
from ..segment.batch import HEADER_BYTES, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..partition.partition import Partition

logger = logging.getLogger("oncelog.broker")

# Of a record beside its key and value: lengths and deltas, each a varint of at most five bytes, and two single bytes.
RECORD_OVERHEAD: Final = 32

StateRecord = tuple[bytes, bytes | None]


class StateLog:
    """One internal topic. ``leader_epoch`` is also the epoch of the coordinator that stands on it."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        open_partition: Callable[[int], Partition],
        existing: Callable[[], Iterable[int]],
        leader_epoch: int,
        now_ms: Callable[[], int],
        *,
        is_synced: bool = False,
    ) -> None:
        self.topic = topic
        self.partition_count = partition_count
        self.leader_epoch = leader_epoch
        self.is_synced = is_synced
        self.existing = existing
        self._open_partition = open_partition
        self._now_ms = now_ms
        self._open: dict[int, Partition] = {}

    def partition_for(self, key: str) -> int:
        """The partition that holds the state of a name: Kafka's hash, so that Kafka finds it, too."""
        return partition_of(key, self.partition_count)

    def _partition(self, number: int) -> Partition:
        partition = self._open.get(number)
        if partition is None or partition.is_closed:
            partition = self._open[number] = self._open_partition(number)
        return partition

    def log(self, partition: int) -> Partition:
        """A partition itself, for a coordinator that writes or reads in its own way."""
        return self._partition(partition)

    def append(self, partition: int, records: Sequence[StateRecord]) -> int:
        """Writes records as one plain batch; returns the offset after the last. A null value removes its key."""
        now_ms, log = self._now_ms(), self._partition(partition)
        if len(records) == 1:
            end = log.append_record(*records[0], self.leader_epoch, now_ms)
            if end >= 0:
                return end
        keys, values = zip(*records, strict=True)
        encoder = Encoder(one_batch=True, timestamp_ms=now_ms)
        encoder.add(keys, values)
        appended = log.append_as_leader(
            memoryview(encoder.finish()),
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            origin=Origin.COORDINATOR,
        )
        return appended.last_offset + 1

    def batches(
        self, partition: int, records: Iterable[StateRecord]
    ) -> Iterator[list[StateRecord]]:
        """The records in groups that each fit into one batch of the topic's max.message.bytes."""
        bytes_max = self._partition(partition).options.max_message_bytes
        group: list[StateRecord] = []
        size = HEADER_BYTES
        for record in records:
            needed = RECORD_OVERHEAD + len(record[0]) + len(record[1] or b"")
            if group and size + needed > bytes_max:
                yield group
                group, size = [], HEADER_BYTES
            group.append(record)
            size += needed
        if group:
            yield group

    def sync(self, partition: int, offset: int | None = None) -> None:
        """Returns when everything below an offset, or all that was written, is on the device, where durability asks
        for that."""
        if self.is_synced:
            log = self._partition(partition)
            log.sync_to(log.log_end_offset if offset is None else offset)

    def unsynced(self, ends: Iterable[tuple[int, int]]) -> dict[Partition, int]:
        """How far partitions have to be synced, so that all below some offsets is on the device."""
        found: dict[Partition, int] = {}
        for number, end in ends:
            log = self._partition(number)
            found[log] = max(end, found.get(log, 0))
        return found

    def replay(self, partition: int) -> Iterator[StateRecord]:
        """All records of a partition that is there, from the oldest on; of one key the last counts."""
        log = self._partition(partition)
        for error in log.damage:
            logger.warning("%s-%d was cut when it was opened: %s", self.topic, partition, error)
        start, end = log.log_start_offset, log.log_end_offset
        for window in log.windows(start, end, Isolation.LOG_END):
            for record in records(window.segment.view(), window.rows, start_offset=start):
                if record.key is not None:
                    yield record.key, record.value
