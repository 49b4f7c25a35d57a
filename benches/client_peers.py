"""What people use today to talk to Kafka from Python: confluent-kafka, aiokafka, kafka-python.

Each is optional; a missing one is said, not fatal. They talk to the mock cluster that librdkafka brings along: a broker
in the same process that keeps batches in memory, without a disk or another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .harness import Contestant, Role, version_of
from .peers import NOT_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .harness import Settings

CONFLUENT: Final = "confluent-kafka"
AIOKAFKA: Final = "aiokafka"
KAFKA_PYTHON: Final = "kafka-python"
NO_MOCK: Final = "does not understand the mock cluster"
TOPIC: Final = "events"
FLUSH_SECONDS: Final = 60
NO_BROKER: Final = "no broker: make bench-kafka starts one"
BROKER: Final = "ONCELOG_BENCH_KAFKA"  # host:port of a real broker
STOP_SECONDS: Final = 5
PREPARED_ROUNDS: Final = 6  # of a client that must fetch ahead before each
AHEAD_BYTES: Final = 64 << 20


def absent(name: str, module: str, settings: Settings) -> Contestant | None:
    """The contestant that cannot take part, None if it can."""
    try:
        if name in settings.without:
            raise ImportError
        importlib.import_module(module)
    except ImportError:
        return Contestant(name, Role.PEER, missing=NOT_INSTALLED)
    return None


class Mock:
    """A mock cluster, or the broker at an address, with one topic, its producer, and a consumer that has fetched
    ahead."""

    def __init__(self, address: str | None = None) -> None:
        self._kafka: Any = importlib.import_module("confluent_kafka")
        where = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1}
        if address is not None:
            self._create(address)
            where = {"bootstrap.servers": address}
        self.producer = self._kafka.Producer(
            {
                **where,
                "queue.buffering.max.messages": 10_000_000,
                "log_level": 0,
            }
        )

    def _create(self, address: str) -> None:
        """Makes the topic, which a mock cluster does by itself."""
        admin: Any = importlib.import_module("confluent_kafka.admin")
        client = admin.AdminClient({"bootstrap.servers": address})
        if TOPIC not in client.list_topics(timeout=FLUSH_SECONDS).topics:
            (made,) = client.create_topics([admin.NewTopic(TOPIC, 1, 1)]).values()
            made.result(FLUSH_SECONDS)

    def produce(self, values: Sequence[bytes]) -> None:
        produce = self.producer.produce
        for value in values:
            produce(TOPIC, value, partition=0)
        if self.producer.flush(FLUSH_SECONDS):
            raise AssertionError("the mock cluster did not take everything")

    def partition(self, offset: int) -> Any:
        """The topic's one partition, at an offset."""
        return self._kafka.TopicPartition(TOPIC, 0, offset)

    @property
    def address(self) -> str:
        (broker,) = self.producer.list_topics(timeout=FLUSH_SECONDS).brokers.values()
        return f"{broker.host}:{broker.port}"

    def revealing(self, call: Callable[[], object], count: int) -> Callable[[], list[bytes]]:
        """The values that a call puts into the topic, read back."""

        def reveal() -> list[bytes]:
            self.produce([b"makes the topic"])
            consumer = self.consumer()
            end = consumer.get_watermark_offsets(self.partition(0), timeout=FLUSH_SECONDS)[1]
            call()
            consumer.seek(self.partition(end))
            found: list[bytes] = []
            while len(found) < count:
                messages = consumer.consume(count - len(found), timeout=FLUSH_SECONDS)
                if not messages:
                    break
                found += [message.value() for message in messages if message.offset() >= end]
            consumer.close()
            return found

        return reveal

    def consumer(self) -> Any:
        """A consumer at the start of the topic that fetches as much ahead as it may."""
        consumer = self._kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "bench",
                "enable.auto.commit": False,
                "queued.min.messages": 10_000_000,
                "queued.max.messages.kbytes": 2_000_000,
                "log_level": 0,
            }
        )
        consumer.assign([self.partition(0)])
        return consumer


Client = TypeVar("Client")


def _with(
    name: str,
    client: Client,
    call: Callable[[Client], Callable[[], object]],
    setup: Callable[[Client], Callable[[], object]] | None,
    reveal: Callable[[Client], Callable[[], object]] | None,
) -> Contestant:
    """A peer that works with a client of its own; one that needs a setup has few rounds."""
    return Contestant(
        name,
        Role.PEER,
        call(client),
        version=version_of(name),
        setup=None if setup is None else setup(client),
        rounds=None if setup is None else PREPARED_ROUNDS,
        reveal=None if reveal is None else reveal(client),
    )


def confluent(
    settings: Settings,
    call: Callable[[Mock], Callable[[], object]],
    setup: Callable[[Mock], Callable[[], object]] | None = None,
    reveal: Callable[[Mock], Callable[[], object]] | None = None,
    *,
    on_broker: bool = False,
) -> Contestant:
    """confluent-kafka on its mock cluster, or on the real broker that the environment names."""
    missing = absent(CONFLUENT, "confluent_kafka", settings)
    if missing is not None:
        return missing
    address = os.environ.get(BROKER) if on_broker else None
    if on_broker and not address:
        return Contestant(CONFLUENT, Role.PEER, missing=NO_BROKER)
    return _with(CONFLUENT, Mock(address), call, setup, reveal)


# ---------------------------------------------------------------- the other clients


class AioClients:
    """aiokafka's producer and consumer on a mock cluster; their loop runs while one of their calls does."""

    def __init__(self) -> None:
        self._kafka: Any = importlib.import_module("aiokafka")
        self.mock = Mock()
        self.loop = asyncio.new_event_loop()
        weakref.finalize(self, self.loop.close)  # after the clients, which are made later
        self._partition = self._kafka.TopicPartition(TOPIC, 0)
        self._consumer: Any = None
        self._producer: Any = None

    def _started(self, kind: str, **options: Any) -> Any:
        async def start() -> Any:
            made = getattr(self._kafka, kind)(bootstrap_servers=self.mock.address, **options)
            await made.start()
            return made

        made = self.loop.run_until_complete(start())
        weakref.finalize(self, _stop, self.loop, made)
        return made

    def produce(self, values: Sequence[bytes]) -> None:
        if self._producer is None:
            self.mock.produce([b"makes the topic"])
            self._producer = self._started("AIOKafkaProducer", acks=1)

        async def send() -> None:
            for value in values:
                await self._producer.send(TOPIC, value, partition=0)
            await self._producer.flush()

        self.loop.run_until_complete(send())

    def fetch_ahead(self, seconds: float) -> None:
        """Goes back to the start of the topic, and lets the client fetch for a while."""
        if self._consumer is None:
            self._consumer = self._started(
                "AIOKafkaConsumer",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                max_partition_fetch_bytes=AHEAD_BYTES,
                fetch_max_bytes=AHEAD_BYTES,
            )

        async def ahead() -> None:
            if not self._consumer.assignment():
                self._consumer.assign([self._partition])
            await self._consumer.seek_to_beginning(self._partition)
            await asyncio.sleep(seconds)

        self.loop.run_until_complete(ahead())

    def consume(self, count: int, per_poll: int) -> list[bytes]:
        """The values of so many records, each looked at."""

        async def take() -> list[bytes]:
            found: list[bytes] = []
            while len(found) < count:
                got = await self._consumer.getmany(timeout_ms=1000, max_records=per_poll)
                for records in got.values():
                    found += [record.value for record in records]
            return found

        return self.loop.run_until_complete(take())


def _stop(loop: asyncio.AbstractEventLoop, client: Any) -> None:
    """Ends a client, whose cluster may be gone before it."""
    with contextlib.suppress(Exception):
        loop.run_until_complete(asyncio.wait_for(client.stop(), STOP_SECONDS))


def aiokafka(
    settings: Settings,
    call: Callable[[AioClients], Callable[[], object]],
    setup: Callable[[AioClients], Callable[[], object]] | None = None,
    reveal: Callable[[AioClients], Callable[[], object]] | None = None,
) -> Contestant:
    """aiokafka on a mock cluster, which confluent-kafka brings along."""
    missing = absent(AIOKAFKA, "aiokafka", settings) or absent(
        CONFLUENT, "confluent_kafka", settings
    )
    if missing is not None:
        return Contestant(AIOKAFKA, Role.PEER, missing=missing.missing)
    return _with(AIOKAFKA, AioClients(), call, setup, reveal)


def kafka_python(settings: Settings) -> Contestant:
    """Named only: its metadata requests are not understood by the mock, and it waits for an answer in vain."""
    missing = absent(KAFKA_PYTHON, "kafka", settings)
    return missing or Contestant(
        KAFKA_PYTHON, Role.PEER, missing=NO_MOCK, version=version_of(KAFKA_PYTHON)
    )
