"""How fast does a producer take records?
Times    "python": send() of one bytes object after another to a topic with one partition, and flush(); "arrow":
         send_arrow() of the same records as a column, and flush(). Records are in the log when the clock stops.
Excludes opening the log, making the producer, making the records.
Anchor   confluent-kafka's produce() and flush() to its mock cluster, which keeps batches in memory, and aiokafka's
         send() and flush() to the same; write() of all values at once to a new file is the limit.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

import oncelog
from oncelog.segment.names import TopicPartition

from . import client_peers, stores
from .harness import Case, Contestant, Role, Scratch, Unit, random_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_benchmark.fixture import BenchmarkFixture

    from .client_peers import AioClients, Mock
    from .harness import Settings

TOPIC: Final = "events"
VALUE_BYTES: Final = 100
RECORDS: Final = 40_000  # the mock cluster keeps 5 MB of a partition


class Log:
    """An open log with one topic, and its directory."""

    def __init__(self, name: str, partitions: int = 1, **options: Any) -> None:
        self._scratch = Scratch(name)
        self._places = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.log = oncelog.open(self._scratch.path, **options)
        self.log.create_topic(TOPIC, partitions=partitions)
        weakref.finalize(self, self.log.close)  # before the directory goes, which was made before

    def end(self) -> int:
        """How many records were ever appended."""
        end: int = self.log.consumer().end_offsets([(TOPIC, 0)])[TopicPartition(TOPIC, 0)]
        return end

    def ends(self) -> dict[TopicPartition, int]:
        """Where each partition ends now."""
        found: dict[TopicPartition, int] = self.log.consumer().end_offsets(self._places)
        return found

    def values_since(self, ends: dict[TopicPartition, int]) -> list[bytes]:
        """What was committed after that, partition by partition, as a reader gets it."""
        return [
            value
            for (topic, number), start in ends.items()
            for batch in self.log.read(topic, number, start).to_batches()
            for value in batch["value"].to_pylist()
        ]


def revealing(log: Log, call: Callable[[], object]) -> Callable[[], list[bytes]]:
    """What a call puts into the log, read back: what its peers must have put somewhere, too."""

    def reveal() -> list[bytes]:
        ends = log.ends()
        call()
        return log.values_since(ends)

    return reveal


def values_of(settings: Settings, count: int) -> list[bytes]:
    rng = np.random.default_rng(settings.seed)
    return random_values(rng, 20 if settings.quick else count, VALUE_BYTES)


def sending(values: Sequence[bytes]) -> Contestant:
    log = Log("send")
    producer = log.log.producer()

    def call() -> None:
        send = producer.send
        for value in values:
            send(TOPIC, value)
        producer.flush()

    return Contestant("oncelog", Role.OURS, call, reveal=revealing(log, call))


def _arrow(values: Sequence[bytes]) -> Contestant:
    log = Log("send-arrow")
    producer = log.log.producer()
    table = pa.table({"value": pa.array(values, pa.binary())})

    def call() -> None:
        producer.send_arrow(TOPIC, table)
        producer.flush()

    return Contestant("oncelog", Role.OURS, call, reveal=revealing(log, call))


def cases(settings: Settings) -> Iterator[Case]:
    values = values_of(settings, RECORDS)

    def produce(mock: Mock | AioClients) -> Callable[[], None]:
        return lambda: mock.produce(values)

    def reveal(mock: Mock) -> Callable[[], object]:
        return mock.revealing(produce(mock), len(values))

    def reveal_aio(clients: AioClients) -> Callable[[], object]:
        shown = clients.mock.revealing(produce(clients), len(values))

        def both() -> list[bytes]:
            clients.produce(values[:1])  # starts the producer, outside what is read back
            return shown()

        return both

    for kind, ours in (("python", sending), ("arrow", _arrow)):
        yield Case(
            f"send.{kind}.100B",
            f"send {kind} values of 100 B, and flush",
            Unit.NS_PER_RECORD,
            len(values),
            [
                ours(values),
                client_peers.confluent(settings, produce, reveal=reveal),
                client_peers.aiokafka(settings, produce, reveal=reveal_aio),
                client_peers.kafka_python(settings),
                stores.bare_file(values, len(values), synced=False),
            ],
        )


def test_send(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
