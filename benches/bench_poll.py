"""How fast does a consumer give records?
Times    poll() of Python records at Kafka's max.poll.records (500) until all were given and every value was looked at;
         poll_arrow() of columns, copied or as views, until all were given. read_committed, checksums proven.
Excludes opening, assigning and seeking.
Anchor   confluent-kafka's consume(500) of messages that its client has fetched ahead, with .value() of each.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .bench_send import TOPIC, Log, values_of
from .client_peers import confluent
from .harness import Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .client_peers import Mock
    from .harness import Settings

RECORDS = 40_000  # the mock cluster keeps 5 MB of a partition
PER_POLL = 500
FETCH_AHEAD_SECONDS = 1.0


def _ours(log: Log, count: int, kind: str) -> Contestant:
    consumer = log.log.consumer(auto_offset_reset="earliest")
    consumer.assign([(TOPIC, 0)])

    def records() -> int:
        seen = 0
        while seen < count:
            for record in consumer.poll(timeout_ms=0):
                record.value  # noqa: B018
                seen += 1
        return seen

    def columns() -> int:
        seen = 0
        while seen < count:
            seen += consumer.poll_arrow(timeout_ms=0, views=kind == "views").num_rows
        return seen

    call: Callable[[], int] = records if kind == "records" else columns

    def reveal(log: Log = log) -> int:
        consumer.seek_to_beginning()
        return call()

    return Contestant("oncelog", Role.OURS, call, reveal=reveal, setup=consumer.seek_to_beginning)


def _prefetched(mock: Mock, values: list[bytes]) -> tuple[Callable[[], object], Callable[[], int]]:
    """(fetch ahead, then consume) of confluent-kafka."""
    mock.produce(values)
    consumer: Any = None

    def setup() -> None:
        nonlocal consumer
        if consumer is not None:
            consumer.close()
        consumer = mock.consumer()
        time.sleep(FETCH_AHEAD_SECONDS if len(values) > PER_POLL else 0.2)

    def call() -> int:
        seen = 0
        while seen < len(values):
            for message in consumer.consume(min(PER_POLL, len(values) - seen), timeout=10):
                message.value()
                seen += 1
        return seen

    return setup, call


def cases(settings: Settings) -> Iterator[Case]:
    values = values_of(settings, RECORDS)
    log = Log("poll")
    with log.log.producer() as producer:
        for value in values:
            producer.send(TOPIC, value)
    for kind in ("records", "arrow", "views"):
        jobs: dict[str, Any] = {}

        def setup(mock: Mock, jobs: dict[str, Any] = jobs) -> Callable[[], object]:
            if not jobs:
                jobs["setup"], jobs["call"] = _prefetched(mock, values)
            return jobs["setup"]  # type: ignore[no-any-return]

        def call(
            mock: Mock, jobs: dict[str, Any] = jobs, setup: Any = setup
        ) -> Callable[[], object]:
            setup(mock)
            return jobs["call"]  # type: ignore[no-any-return]

        yield Case(
            f"poll.{kind}.100B",
            f"poll {kind} of 100 B, read_committed",
            Unit.NS_PER_RECORD,
            len(values),
            [_ours(log, len(values), kind), confluent(settings, call, setup)],
        )


def test_poll(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
