"""Short words for tests of the broker: a clock that is moved by hand, brokers, and producers at the level of verbs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncelog.broker.broker import Broker
from oncelog.broker.topics import NewTopic
from oncelog.partition.partition import Isolation
from oncelog.segment.batch import encode, records
from oncelog.segment.names import TopicPartition

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from oncelog.broker.answers import Produced

NOW = 1_700_000_000_000
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
ORDERS = TopicPartition("orders", 0)


class ManualClock:
    """Time stands still until it is moved."""

    def __init__(self, now_ms: int = NOW) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


def crashed(broker: Broker) -> None:
    """Ends a broker as a kill would: nothing more is written, the lock is gone."""
    broker._metadata.close()
    broker._data.abandon()


@contextmanager
def opened(
    path: str | os.PathLike[str],
    *,
    topics: dict[str, int] | None = None,
    clock: ManualClock | None = None,
    **options: Any,
) -> Iterator[Broker]:
    """A broker with some topics, closed at the end."""
    broker = Broker(path, now_ms=clock or ManualClock(), **options)
    try:
        create(broker, topics or {})
        yield broker
    finally:
        broker.close()


def create(broker: Broker, topics: dict[str, int]) -> None:
    """Makes the topics that are not there yet."""
    missing = [
        NewTopic(name, count) for name, count in topics.items() if name not in broker.topics()
    ]
    for answer in broker.create_topics(missing).values():
        if isinstance(answer, Exception):
            raise answer


class VerbProducer:
    """A transactional producer that speaks to the broker in verbs and can be told to misbehave."""

    def __init__(
        self, broker: Broker, transactional_id: str, version: int = 2, **options: Any
    ) -> None:
        self.broker = broker
        self.transactional_id = transactional_id
        self.version = version
        self.sequences: dict[TopicPartition, int] = {}
        self.producer_id, self.epoch, *_ = broker.init_producer_id(transactional_id, **options)

    def batch(
        self, key: TopicPartition, values: Sequence[bytes], sequence: int | None = None
    ) -> memoryview:
        encoded = encode(
            list(values),
            timestamp_ms=self.broker.now_ms(),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(key, 0) if sequence is None else sequence,
            transactional=True,
        )
        return memoryview(encoded)

    def send(self, key: TopicPartition, *values: bytes) -> Produced:
        if self.version == 1:
            self.broker.add_partitions_to_txn(
                self.transactional_id, self.producer_id, self.epoch, [key]
            )
        produced = self.broker.produce(
            key,
            self.batch(key, values),
            transactional_id=self.transactional_id,
            transaction_version=self.version,
        )
        self.sequences[key] = self.sequences.get(key, 0) + len(values)
        return produced

    def end(self, *, committed: bool) -> None:
        before = (self.producer_id, self.epoch)
        self.producer_id, self.epoch, *_ = self.broker.end_txn(
            self.transactional_id,
            self.producer_id,
            self.epoch,
            committed=committed,
            transaction_version=self.version,
        )
        if (self.producer_id, self.epoch) != before:
            self.sequences.clear()

    def commit(self) -> None:
        self.end(committed=True)

    def abort(self) -> None:
        self.end(committed=False)


def plain(broker: Broker, *values: bytes, producer_id: int = -1, sequence: int = -1) -> memoryview:
    """A batch outside of transactions."""
    return memoryview(
        encode(
            list(values),
            timestamp_ms=broker.now_ms(),
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=sequence,
        )
    )


def values_of(
    broker: Broker, key: TopicPartition = ORDERS, isolation: Isolation = COMMITTED
) -> list[bytes | None]:
    """Everything that a reader sees of a partition."""
    partition = broker.partition(key)
    found: list[bytes | None] = []
    for window in partition.windows(partition.log_start_offset, 2**63 - 1, isolation):
        found += [
            record.value
            for record in records(
                window.segment.view(),
                window.rows,
                visible=window.visible,
                start_offset=partition.log_start_offset,
                end_offset=partition.upper_bound(isolation),
            )
        ]
    return found
