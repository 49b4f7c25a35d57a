"""How fast does a producer take records?
Times    "python": send() of one bytes object after another to a topic with one partition, and flush(); "arrow":
         send_arrow() of the same records as a column, and flush(). Records are in the log when the clock stops.
Excludes opening the log, making the producer, making the records.
Anchor   confluent-kafka's produce() and flush() to its mock cluster, which keeps batches in memory.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

import oncelog
from oncelog.segment.names import TopicPartition

from . import client_peers
from .harness import Case, Contestant, Role, Scratch, Unit, random_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_benchmark.fixture import BenchmarkFixture

    from .client_peers import Mock
    from .harness import Settings

TOPIC: Final = "events"
VALUE_BYTES: Final = 100
RECORDS: Final = 50_000


class Log:
    """An open log with one topic, and its directory."""

    def __init__(self, name: str, partitions: int = 1, **options: Any) -> None:
        self._scratch = Scratch(name)
        self.log = oncelog.open(self._scratch.path, **options)
        self.log.create_topic(TOPIC, partitions=partitions)
        weakref.finalize(self, self.log.close)  # before the directory goes, which was made before

    def end(self) -> int:
        """How many records were ever appended."""
        end: int = self.log.consumer().end_offsets([(TOPIC, 0)])[TopicPartition(TOPIC, 0)]
        return end


def values_of(settings: Settings, count: int) -> list[bytes]:
    rng = np.random.default_rng(settings.seed)
    return random_values(rng, 20 if settings.quick else count, VALUE_BYTES)


def _python(values: Sequence[bytes]) -> Contestant:
    log = Log("send")
    producer = log.log.producer()

    def call() -> None:
        send = producer.send
        for value in values:
            send(TOPIC, value)
        producer.flush()

    def reveal() -> int:
        before = log.end()
        call()
        return log.end() - before

    return Contestant("oncelog", Role.OURS, call, reveal=reveal)


def _arrow(values: Sequence[bytes]) -> Contestant:
    log = Log("send-arrow")
    producer = log.log.producer()
    table = pa.table({"value": pa.array(values, pa.binary())})

    def call() -> None:
        producer.send_arrow(TOPIC, table)
        producer.flush()

    def reveal() -> int:
        before = log.end()
        call()
        return log.end() - before

    return Contestant("oncelog", Role.OURS, call, reveal=reveal)


def cases(settings: Settings) -> Iterator[Case]:
    values = values_of(settings, RECORDS)

    def produce(mock: Mock) -> Any:
        return lambda: mock.produce(values)

    for kind, ours in (("python", _python), ("arrow", _arrow)):
        yield Case(
            f"send.{kind}.100B",
            f"send {kind} values of 100 B, and flush",
            Unit.NS_PER_RECORD,
            len(values),
            [ours(values), client_peers.confluent(settings, produce)],
        )


def test_send(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
