"""What people use today to put records somewhere and get them back: Kafka's C client, LMDB, SQLite.

Each is optional; a missing one is said, not fatal. confluent-kafka talks to the mock cluster that librdkafka
brings along: a broker in the same process that keeps batches in memory, without a disk or another machine.
"""

from __future__ import annotations

import importlib
import itertools
import os
from typing import TYPE_CHECKING, Any, Final

from .harness import Contestant, Role, Scratch, version_of
from .peers import NOT_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .harness import Settings

CONFLUENT: Final = "confluent-kafka"
LMDB: Final = "LMDB"
SQLITE: Final = "SQLite"
TOPIC: Final = "events"
FLUSH_SECONDS: Final = 60
NO_BROKER: Final = "no broker: make bench-kafka starts one"
BROKER: Final = "ONCELOG_BENCH_KAFKA"  # host:port of a real broker
MAP_BYTES: Final = 4 << 30


def _missing(name: str, module: str, settings: Settings) -> Contestant | None:
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

    def consumer(self) -> Any:
        """A consumer at the start of the topic that fetches as much ahead as it may."""
        (broker,) = self.producer.list_topics(timeout=FLUSH_SECONDS).brokers.values()
        consumer = self._kafka.Consumer(
            {
                "bootstrap.servers": f"{broker.host}:{broker.port}",
                "group.id": "bench",
                "enable.auto.commit": False,
                "queued.min.messages": 10_000_000,
                "queued.max.messages.kbytes": 2_000_000,
                "log_level": 0,
            }
        )
        consumer.assign([self.partition(0)])
        return consumer


def confluent(
    settings: Settings,
    call: Callable[[Mock], Callable[[], object]],
    setup: Callable[[Mock], Callable[[], object]] | None = None,
    *,
    on_broker: bool = False,
) -> Contestant:
    """confluent-kafka on its mock cluster, or on the real broker that the environment names."""
    missing = _missing(CONFLUENT, "confluent_kafka", settings)
    if missing is not None:
        return missing
    address = os.environ.get(BROKER) if on_broker else None
    if on_broker and not address:
        return Contestant(CONFLUENT, Role.PEER, missing=NO_BROKER)
    mock = Mock(address)
    return Contestant(
        CONFLUENT,
        Role.PEER,
        call(mock),
        version=version_of(CONFLUENT),
        setup=None if setup is None else setup(mock),
    )


def lmdb(
    settings: Settings, values: Sequence[bytes], per_commit: int, *, synced: bool
) -> Contestant:
    """LMDB with rising keys, appended: what its users do for a queue."""
    missing = _missing(LMDB, "lmdb", settings)
    if missing is not None:
        return missing
    scratch = Scratch("lmdb")
    environment: Any = importlib.import_module("lmdb").open(
        str(scratch.path), map_size=MAP_BYTES, sync=synced, metasync=synced
    )
    numbers = itertools.count()

    def call(scratch: Scratch = scratch) -> None:
        for first in range(0, len(values), per_commit):
            with environment.begin(write=True) as transaction:
                transaction.cursor().putmulti(
                    [
                        (next(numbers).to_bytes(8, "big"), value)
                        for value in values[first : first + per_commit]
                    ],
                    append=True,
                )

    return Contestant(LMDB, Role.PEER, call, version=version_of("lmdb"))


def sqlite(
    settings: Settings, values: Sequence[bytes], per_commit: int, *, synced: bool
) -> Contestant:
    """SQLite in WAL mode, the rowid for an offset."""
    if SQLITE in settings.without:
        return Contestant(SQLITE, Role.PEER, missing=NOT_INSTALLED)
    import sqlite3

    scratch = Scratch("sqlite")
    database = sqlite3.connect(scratch.path / "log.db", isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute(f"pragma synchronous = {'full' if synced else 'off'}")
    database.execute("create table log (number integer primary key, value blob)")

    def call(scratch: Scratch = scratch) -> None:
        for first in range(0, len(values), per_commit):
            rows = [(value,) for value in values[first : first + per_commit]]
            database.execute("begin")
            database.executemany("insert into log (value) values (?)", rows)
            database.execute("commit")

    return Contestant(SQLITE, Role.PEER, call, version=sqlite3.sqlite_version)
