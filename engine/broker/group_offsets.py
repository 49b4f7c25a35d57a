"""Committed offsets: the partitions of ``__consumer_offsets``, and what they say at this moment.

File         the partitions of __consumer_offsets, through a StateLog; layout in group_records.py
Duty         append commits, plain and transactional; keep the table of what counts; read everything again at start
Concurrency  one lock per partition, around an append and its effect; below a group's and a transaction's lock, above
             the partition's own. Waiting for the device happens outside of it.
Crash        the table is a replay: a commit reaches it by the same batch, and through the same code, as at the next
             start. Markers, which others write, are read from the log.
Fails        with what the partition raises; a failed append has left no trace. A partition that cannot be read makes
             the groups in it unavailable, and no others.

A transactional commit waits in the log and in the table until its producer's marker. Which of two commits counts is
decided by their place in the log alone, never by when a thread got round to the table.
"""

from __future__ import annotations

import logging
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from .._native.batch import Encoder
from .._native.offsets import CommittedOffset, OffsetTable
from ..base.errors import (
    CoordinatorNotAvailableError,
    CorruptRecordError,
    InvalidCommitOffsetSizeError,
    OncelogError,
    RecordTooLargeError,
)
from ..partition.partition import Isolation, Origin
from ..segment.batch import Attributes
from ..segment.compression import decompressor
from ..segment.names import TopicPartition
from .group_records import (
    NO_TOPIC_ID,
    GroupKey,
    OffsetKey,
    check_group_id,
    decode_key,
    decode_offset_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .._native.offsets import TopicOffsets
    from .state_log import StateLog, StateRecord

logger = logging.getLogger("oncelog.broker")

TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
COORDINATOR: Final = Origin.COORDINATOR
GROUPS_REMEMBERED: Final = 4096
_decompress: Final = decompressor()

Topics = dict[str, dict[int, CommittedOffset]]


def _decode_other(
    key: bytes, value: bytes | None, record_offset: int
) -> tuple[str, str, int, CommittedOffset | None]:
    """An offset in a form that Kafka 4 reads but does not write; raises for one that is damaged."""
    found = decode_key(key)
    assert isinstance(found, OffsetKey)  # the table asks for no other type
    if value is None:
        return *found, None
    read = decode_offset_value(value)
    topic_id = b"" if read.topic_id == NO_TOPIC_ID else read.topic_id
    return *found, CommittedOffset(*read[:5], topic_id, record_offset=record_offset)


class OffsetsPartition:
    """One partition of ``__consumer_offsets``."""

    def __init__(self, state: StateLog, number: int, now_ms: Callable[[], int]) -> None:
        self.lock = threading.Lock()
        self.table = OffsetTable(_decode_other)
        self.number = number
        self._state = state
        self._now_ms = now_ms
        self._applied = 0  # the table holds everything below this offset
        self._failure: OncelogError | None = None

    def load(self) -> list[StateRecord]:
        """Reads the log; returns the records that are about groups. A failure is kept for whoever comes."""
        with self.lock:
            try:
                return self._catch_up()
            except OncelogError as error:
                self.fail(error)
                return []

    def fail(self, error: OncelogError) -> None:
        """Keeps everybody away from a partition that cannot be read or understood."""
        logger.error("%s-%d cannot be read: %s", self._state.topic, self.number, error)
        self._failure = error

    def check(self) -> None:
        """Raises if this partition could not be read."""
        if self._failure is not None:
            raise CoordinatorNotAvailableError(
                f"{self._state.topic}-{self.number} cannot be read: {self._failure}"
            ) from self._failure

    def end_transaction(self, producer_id: int, offset: int, *, committed: bool) -> None:
        """A marker lies at an offset of the log; -1: somewhere."""
        with self.lock:
            if self._failure is not None:
                return
            if offset == self._applied:
                self.table.end(producer_id, committed)
                self._applied = offset + 1
            else:  # others have written before it, or after it, and the order of the log decides
                self._catch_up()

    def _catch_up(self) -> list[StateRecord]:
        log = self._state.log(self.number)
        start = max(self._applied, log.log_start_offset)
        end = log.log_end_offset
        others: list[StateRecord] = []
        for window in log.windows(start, end, Isolation.LOG_END):
            others += self.table.apply(
                window.segment.view(),
                window.rows["position"],
                start_offset=start,
                decompress=_decompress,
                file=f"{self._state.topic}-{self.number}",
            )
        self._applied = end
        return others

    def write(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        producer_id: int = -1,
        producer_epoch: int = -1,
        *,
        bumps_epoch: bool = True,
    ) -> int:
        """Appends records as one batch, of a transaction if there is a producer; returns the offset after it."""
        if self._failure is not None:
            self.check()
        now_ms = self._now_ms()
        encoder = Encoder(
            one_batch=True,
            timestamp_ms=now_ms,
            attributes=TRANSACTIONAL if producer_id >= 0 else 0,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=0 if producer_id >= 0 else -1,
        )
        encoder.add(keys, values)
        batch = encoder.finish()
        log, leader_epoch = self._state.log(self.number), self._state.leader_epoch
        with self.lock:
            base_offset = log.append_small(batch, leader_epoch, now_ms, bumps_epoch)
            if base_offset < 0:
                base_offset = log.append_as_leader(
                    batch,
                    leader_epoch=leader_epoch,
                    now_ms=now_ms,
                    origin=COORDINATOR,
                    bumps_epoch=bumps_epoch,
                ).base_offset
            last_offset = base_offset + len(keys) - 1
            if base_offset == self._applied and self.table.apply_one(batch, base_offset):
                self._applied = last_offset + 1
            else:  # a marker came in between, or the log has stored other bytes
                self._catch_up()
        return last_offset + 1


class GroupOffsets:
    """The committed offsets of all groups. Callers hold the lock of the group that they change."""

    def __init__(self, state: StateLog, now_ms: Callable[[], int]) -> None:
        self._state = state
        self._partitions = [
            OffsetsPartition(state, number, now_ms) for number in range(state.partition_count)
        ]
        # The hash is over every character, and each request asks several times.
        self._of = lru_cache(maxsize=GROUPS_REMEMBERED)(self._find)

    def load(self) -> Iterator[tuple[GroupKey, bytes | None]]:
        """Reads all partitions that are there; the records about groups come back in the order of each log."""
        for number in sorted(self._state.existing()):
            partition = self._partitions[number]
            for key, value in partition.load():
                try:
                    found = decode_key(key)
                except CorruptRecordError as error:
                    partition.fail(error)
                    continue
                if isinstance(found, GroupKey):
                    yield found, value

    def _find(self, group_id: str) -> OffsetsPartition:
        check_group_id(group_id, may_be_empty=True)
        return self._partitions[self._state.partition_for(group_id)]

    def fail(self, group_id: str, error: OncelogError) -> None:
        """A record of a group could not be understood: whatever lies in its partition is not to be trusted."""
        self._of(group_id).fail(error)

    def check(self, group_id: str) -> None:
        """Raises for an id that cannot be, and if what is known of a group could not be read."""
        self._of(group_id).check()

    # ------------------------------------------------------------ writing

    def commit(
        self,
        group_id: str,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        producer_id: int = -1,
        producer_epoch: int = -1,
        *,
        bumps_epoch: bool = True,
    ) -> int:
        """Writes offsets, all or none; returns what to wait for with ``sync``."""
        try:
            return self._of(group_id).write(
                keys, values, producer_id, producer_epoch, bumps_epoch=bumps_epoch
            )
        except RecordTooLargeError as error:
            raise InvalidCommitOffsetSizeError(
                f"{len(keys)} offsets of group {group_id!r} do not fit into one batch: {error.what}"
            ) from error

    def write(self, group_id: str, records: Iterable[StateRecord]) -> int:
        """Writes records that need not take effect at once: tombstones, or a group; returns what to wait for."""
        partition = self._of(group_id)
        partition.check()
        end = 0
        for batch in self._state.batches(partition.number, records):
            end = partition.write([key for key, _ in batch], [value for _, value in batch])
        return end

    def sync(self, group_id: str, offset: int) -> None:
        """Returns when everything up to there is on the device, where durability asks for that."""
        if self._state.is_synced:
            self._state.sync(self._of(group_id).number, offset)

    def end_transaction(
        self, number: int, producer_id: int, offset: int, *, committed: bool
    ) -> None:
        """A marker was written to a partition of ``__consumer_offsets``."""
        self._partitions[number].end_transaction(producer_id, offset, committed=committed)

    # ------------------------------------------------------------ reading

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The offset that counts, whatever may be about to replace it."""
        topics = self._of(group_id).table.groups.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        return partitions.get(partition) if partitions is not None else None

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction is about to commit this offset."""
        place = self._of(group_id)
        if group_id not in place.table.open:
            return False
        with place.lock:
            return place.table.is_pending(group_id, topic, partition)

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether any open transaction is about to commit offsets of this group."""
        return group_id in self._of(group_id).table.open

    def of_group(self, group_id: str) -> Topics:
        """All that a group has committed."""
        place = self._of(group_id)
        with place.lock:
            return _copied(place.table.groups.get(group_id, {}))

    def pending_of_group(self, group_id: str) -> set[TopicPartition]:
        """All that open transactions are about to commit for a group."""
        place = self._of(group_id)
        found: set[TopicPartition] = set()
        with place.lock:
            for producer_id in place.table.open.get(group_id, ()):
                for topic, partitions in place.table.pending[producer_id][group_id].items():
                    found.update(TopicPartition(topic, number) for number in partitions)
        return found

    def has_group(self, group_id: str) -> bool:
        """Whether anything is, or is about to be, committed for a group."""
        table = self._of(group_id).table
        return group_id in table.groups or group_id in table.open

    def groups(self) -> list[str]:
        """Every group that something is, or is about to be, committed for."""
        found: set[str] = set()
        for place in self._partitions:
            with place.lock:
                found.update(place.table.groups, place.table.open)
        return sorted(found)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Every group with an offset of a topic, pending ones among them."""
        found: set[str] = set()
        for place in self._partitions:
            with place.lock:
                for tables in (place.table.groups, *place.table.pending.values()):
                    found.update(group for group, topics in tables.items() if topic in topics)
        return sorted(found)


def _copied(topics: Mapping[str, TopicOffsets]) -> Topics:
    return {topic: dict(partitions.items()) for topic, partitions in topics.items()}
