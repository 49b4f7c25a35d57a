"""How fast does a consumer give records?
Times    poll() of Python records at Kafka's max.poll.records (500) until all were given and every value was looked at;
         poll_arrow() of columns, copied or as views, until all were given. read_committed, checksums proven.
         Ours seeks to the beginning inside the clock, and does so several times in a round, as short cases do: once is
         over before a processor is awake that slept while the peers fetched ahead.
Excludes opening and assigning.
Anchor   confluent-kafka's consume(500) of messages that its client has fetched ahead, with .value() of each; aiokafka's
         getmany(500) of the same; a memcpy of the values is the limit.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from . import client_peers, floor
from .bench_send import TOPIC, Log, values_of
from .harness import Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .client_peers import AioClients, Mock
    from .harness import Settings

RECORDS = 40_000  # the mock cluster keeps 5 MB of a partition
PER_POLL = 500
FETCH_AHEAD_SECONDS = 0.6


def polling(log: Log, count: int, kind: str) -> Contestant:
    consumer = log.log.consumer(auto_offset_reset="earliest")
    consumer.assign([(TOPIC, 0)])

    def records() -> int:
        consumer.seek_to_beginning()
        seen = 0
        while seen < count:
            for record in consumer.poll(timeout_ms=0):
                record.value  # noqa: B018
                seen += 1
        return seen

    def columns() -> int:
        consumer.seek_to_beginning()
        seen = 0
        while seen < count:
            seen += consumer.poll_arrow(timeout_ms=0, views=kind == "views").num_rows
        return seen

    def reveal(log: Log = log) -> list[bytes]:
        consumer.seek_to_beginning()
        found: list[bytes] = []
        while len(found) < count:
            if kind == "records":
                found += [record.value for record in consumer.poll(timeout_ms=0)]
            else:
                columns = consumer.poll_arrow(timeout_ms=0, views=kind == "views")
                found += columns["value"].to_pylist()
        return found

    call: Callable[[], int] = records if kind == "records" else columns
    return Contestant("oncelog", Role.OURS, call, reveal=reveal)


class _Prefetched:
    """confluent-kafka's consumer of a topic that holds the values, all of them fetched ahead of every round."""

    def __init__(self, mock: Mock, values: list[bytes]) -> None:
        mock.produce(values)
        self._mock, self._values = mock, values
        self._consumer: Any = None

    def setup(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._mock.consumer()
        time.sleep(_ahead_seconds(self._values))

    def _messages(self) -> Iterator[list[Any]]:
        seen = 0
        while seen < len(self._values):
            messages = self._consumer.consume(min(PER_POLL, len(self._values) - seen), timeout=10)
            seen += len(messages)
            yield messages

    def call(self) -> None:
        for messages in self._messages():
            for message in messages:
                message.value()

    def reveal(self) -> list[bytes]:
        self.setup()
        return [message.value() for messages in self._messages() for message in messages]


def _ahead_seconds(values: list[bytes]) -> float:
    return FETCH_AHEAD_SECONDS if len(values) > PER_POLL else 0.2


def _confluent(settings: Settings, values: list[bytes]) -> Contestant:
    @functools.cache
    def topic(mock: Mock) -> _Prefetched:
        return _Prefetched(mock, values)

    return client_peers.confluent(
        settings,
        lambda mock: topic(mock).call,
        lambda mock: topic(mock).setup,
        lambda mock: topic(mock).reveal,
    )


def _aiokafka(settings: Settings, values: list[bytes]) -> Contestant:
    count, seconds = len(values), _ahead_seconds(values)

    def setup(clients: AioClients) -> Callable[[], object]:
        clients.mock.produce(values)
        return lambda: clients.fetch_ahead(seconds)

    def reveal(clients: AioClients) -> Callable[[], object]:
        def both() -> list[bytes]:
            clients.fetch_ahead(seconds)
            return clients.consume(count, PER_POLL)

        return both

    return client_peers.aiokafka(
        settings, lambda clients: lambda: clients.consume(count, PER_POLL), setup, reveal
    )


def cases(settings: Settings) -> Iterator[Case]:
    values = values_of(settings, RECORDS)
    log = Log("poll")
    with log.log.producer() as producer:
        for value in values:
            producer.send(TOPIC, value)
    for kind in ("records", "arrow", "views"):
        yield Case(
            f"poll.{kind}.100B",
            f"poll {kind} of 100 B, read_committed",
            Unit.NS_PER_RECORD,
            len(values),
            [
                polling(log, len(values), kind),
                _confluent(settings, values),
                _aiokafka(settings, values),
                client_peers.kafka_python(settings),
                floor.memcpy(sum(map(len, values)), settings),
            ],
        )


def test_poll(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
