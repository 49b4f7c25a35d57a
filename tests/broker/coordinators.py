"""The coordinator on a real directory, with markers that a test can watch and break."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oncelog.base.disk import Disk
from oncelog.broker.producer_ids import ProducerIds
from oncelog.broker.state_log import StateLog
from oncelog.broker.txn_coordinator import CoordinatorOptions, TransactionCoordinator
from oncelog.broker.txn_records import decode_key, decode_value
from oncelog.partition.data_directory import DataDirectory
from oncelog.segment.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from oncelog.base.errors import OncelogError
    from oncelog.broker.producer_ids import ProducerIdentity
    from oncelog.broker.txn_metadata import TransactionMetadata
    from oncelog.broker.txn_records import TransactionValue
    from oncelog.partition.partition import Partition

TOPIC = "__transaction_state"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
FIRST = TopicPartition("orders", 0)
SECOND = TopicPartition("orders", 1)
THIRD = TopicPartition("payments", 0)
START_MS = 1_794_787_200_000
TIMEOUT_MS = 60_000
COORDINATOR_EPOCH = 3


@dataclass
class Clock:
    now: int = START_MS

    def __call__(self) -> int:
        return self.now


@dataclass
class RecordedMarkers:
    """Takes markers instead of a broker; ``errors`` breaks a partition, ``during`` runs while a marker is written."""

    written: list[tuple[TopicPartition, int, int, bool, int, int]] = field(default_factory=list)
    synced: list[tuple[TopicPartition, ...]] = field(default_factory=list)
    errors: dict[TopicPartition, OncelogError] = field(default_factory=dict)
    sync_errors: dict[TopicPartition, OncelogError] = field(default_factory=dict)
    during: Any = None

    def write_marker(
        self,
        key: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> None:
        if self.during is not None:
            self.during()
        if key in self.errors:
            raise self.errors[key]
        self.written.append(
            (key, producer_id, producer_epoch, committed, coordinator_epoch, transaction_version)
        )

    def pass_by(self, keys: Iterable[TopicPartition]) -> None:
        """No append is ever under way here."""

    def sync_together(self, keys: Iterable[TopicPartition], ends: Mapping[Partition, int]) -> None:
        """Who needs it calls ``sync``."""

    def sync(self, keys: Iterable[TopicPartition]) -> None:
        keys = tuple(keys)
        for key in keys:
            if key in self.sync_errors:
                raise self.sync_errors[key]
        self.synced.append(keys)


class BreakableLog(StateLog):
    """A state log whose next appends or syncs fail with the errors that a test has planned."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.append_errors: list[OncelogError | None] = []
        self.sync_errors: list[OncelogError] = []
        self.appended: list[int] = []
        self.synced: list[int] = []
        self.during_append: Any = None

    def append(self, partition: int, records: Any) -> int:
        if self.append_errors:
            error = self.append_errors.pop(0)
            if error is not None:
                raise error
        if self.during_append is not None:
            self.during_append()
        end = super().append(partition, records)
        self.appended.append(len(records))
        return end

    def sync(self, partition: int, offset: int | None = None) -> None:
        if self.sync_errors:
            raise self.sync_errors.pop(0)
        self.synced.append(partition)
        super().sync(partition, offset)


class Bench:
    """One broker's worth of coordinator on a directory; ``restart`` is a new process on the same files."""

    def __init__(
        self,
        path: Path,
        *,
        is_synced: bool = False,
        options: CoordinatorOptions | None = None,
        partition_count: int = 50,
        loads: bool = True,
    ) -> None:
        self.path = path
        self.clock = Clock()
        self.markers = RecordedMarkers()
        self.options = options or CoordinatorOptions()
        self.is_synced = is_synced
        self.partition_count = partition_count
        self.next_block = 0
        self.leader_epoch = COORDINATOR_EPOCH
        self._start(loads=loads)

    def _start(self, *, loads: bool = True) -> None:
        self.data = DataDirectory(self.path, Disk(), now_ms=self.clock)
        self.log = BreakableLog(
            TOPIC,
            self.partition_count,
            self._open,
            self.existing,
            self.leader_epoch,
            self.clock,
            is_synced=self.is_synced,
        )
        self.coordinator = TransactionCoordinator(
            self.log, ProducerIds(self._take_block), self.markers, self.options, self.clock
        )
        if loads:
            self.coordinator.load()

    def _open(self, number: int) -> Partition:
        return self.data.create(TopicPartition(TOPIC, number), TOPIC_ID)

    def existing(self) -> list[int]:
        return [key.partition for key in self.data.partitions if key.topic == TOPIC]

    def _take_block(self) -> range:
        self.next_block += 1000
        return range(self.next_block - 1000, self.next_block)

    def close(self) -> None:
        self.data.close()

    def restart(self) -> TransactionCoordinator:
        """The next process on these files."""
        self.close()
        self.leader_epoch += 1
        self._start()
        return self.coordinator

    # ------------------------------------------------------------ looking inside

    def metadata(self, transactional_id: str = "t") -> TransactionMetadata:
        return self.coordinator._states.ids[transactional_id]

    def value(self, transactional_id: str = "t") -> TransactionValue:
        return self.metadata(transactional_id).value

    def states(self, transactional_id: str = "t") -> list[str]:
        """The states that the log holds of an id, from the first to the last."""
        number = self.log.partition_for(transactional_id)
        return [
            "tombstone" if value is None else decode_value(value).state.label
            for key, value in self.log.replay(number)
            if decode_key(key) == transactional_id
        ]

    # ------------------------------------------------------------ the usual steps

    def begin(
        self, transactional_id: str = "t", *keys: TopicPartition, version: int = 2
    ) -> ProducerIdentity:
        """Initializes an id and opens a transaction on some partitions (default: one)."""
        identity = self.coordinator.init_producer_id(transactional_id, TIMEOUT_MS)
        self.add(identity, *(keys or (FIRST,)), transactional_id=transactional_id, version=version)
        return identity

    def add(
        self,
        identity: ProducerIdentity,
        *keys: TopicPartition,
        transactional_id: str = "t",
        version: int = 2,
    ) -> None:
        self.coordinator.add_partitions_to_txn(
            transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            keys,
            transaction_version=version,
        )

    def end(
        self,
        identity: ProducerIdentity,
        *,
        committed: bool,
        transactional_id: str = "t",
        version: int = 2,
    ) -> ProducerIdentity:
        return self.coordinator.end_txn(
            transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            committed=committed,
            transaction_version=version,
        )

    @contextmanager
    def appending(
        self,
        identity: ProducerIdentity,
        key: TopicPartition,
        transactional_id: str = "t",
        version: int = 2,
    ) -> Iterator[None]:
        """A block that runs as what is given to the coordinator's append."""
        metadata = self.coordinator._states.need(transactional_id)
        with metadata.lock:
            self.coordinator._join(
                metadata, identity.producer_id, identity.producer_epoch, key, version
            )
            yield
