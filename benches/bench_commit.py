"""What does an exactly-once commit cost?
Times    "one": begin, send one record of 100 B, commit. "threads": the same from 16 producers with a partition each, all
         commits counted. "many": one producer's commits in a log with 100,000 transactional ids and 1,000 partitions.
Excludes opening, initialising the producers.
Anchor   for "threads" the commits of one producer, and bare threads with a file and an fdatasync each; for "many" the
         same commits in a log with ten ids and ten partitions.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from .bench_send import TOPIC, Log
from .harness import Case, Contestant, Role, Scratch, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from oncelog.client.producer import Producer

    from .harness import Settings

VALUE: Final = b"x" * 100
THREADS: Final = 16
ONE_THREAD: Final = "one thread"
BARE: Final = "bare fdatasync, 16 threads"
TEN: Final = "ten ids and partitions"


def _producer(log: Log, name: str) -> Producer:
    producer: Producer = log.log.producer(transactional_id=name)
    producer.init_transactions()
    return producer


def _commits(producer: Producer, partition: int, count: int) -> int:
    for _ in range(count):
        producer.begin_transaction()
        producer.send(TOPIC, VALUE, partition=partition)
        producer.commit_transaction()
    return count


def _one(durability: str, count: int) -> Contestant:
    log = Log("txn", durability=durability)
    producer = _producer(log, "teller")

    def call(log: Log = log) -> int:
        return _commits(producer, 0, count)

    return Contestant("oncelog", Role.OURS, call, reveal=call)


def in_threads(calls: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _threads(count: int) -> list[Contestant]:
    """Sixteen producers, then one, doing as many commits in total."""
    log = Log("txn-threads", THREADS, durability="fsync")
    producers = [_producer(log, f"teller-{number}") for number in range(THREADS)]

    def together(log: Log = log) -> int:
        in_threads(
            [
                lambda number=number, producer=producer: _commits(
                    producer, number, count // THREADS
                )  # type: ignore[misc]
                for number, producer in enumerate(producers)
            ]
        )
        return count

    def alone(log: Log = log) -> int:
        return _commits(producers[0], 0, count)

    scratch = Scratch("fdatasync")
    files = [
        os.open(scratch.path / str(number), os.O_RDWR | os.O_CREAT) for number in range(THREADS)
    ]

    def write(descriptor: int) -> None:
        for _ in range(count // THREADS):
            os.write(descriptor, VALUE)
            os.fdatasync(descriptor)

    def bare(scratch: Scratch = scratch) -> int:
        in_threads([lambda file=file: write(file) for file in files])  # type: ignore[misc]
        return count

    return [
        Contestant("oncelog", Role.OURS, together, reveal=together),
        Contestant(ONE_THREAD, Role.PEER, alone, reveal=alone),
        Contestant(BARE, Role.LIMIT, bare, reveal=bare),
    ]


def _many(ids: int, partitions: int, count: int) -> Callable[[], int]:
    log = Log("txn-many", partitions)
    for number in range(ids):
        log.log.broker.init_producer_id(f"id-{number}", 60_000)
    producer = _producer(log, "teller")
    for partition in range(partitions):  # all are open, as in a process that has used them
        log.log.broker.list_offsets((TOPIC, partition), -1)

    def call(log: Log = log) -> int:
        return _commits(producer, partitions // 2, count)

    return call


def cases(settings: Settings) -> Iterator[Case]:
    for durability, rounds in (("os", 500), ("fsync", 32)):
        count = 2 if settings.quick else rounds
        yield Case(
            f"commit.{durability}.one",
            f"transactions of one record, durability {durability}",
            Unit.NS_PER_RECORD,
            count,
            [_one(durability, count)],
        )
    count = THREADS * (1 if settings.quick else 16)
    yield Case(
        "commit.fsync.threads",
        "transactions of 16 threads, durability fsync",
        Unit.NS_PER_RECORD,
        count,
        _threads(count),
    )
    count, ids, partitions = (2, 20, 12) if settings.quick else (500, 100_000, 1_000)
    many, few = _many(ids, partitions, count), _many(10, 10, count)
    yield Case(
        "commit.os.many",
        f"transactions among {ids:,} ids and {partitions:,} partitions",
        Unit.NS_PER_RECORD,
        count,
        [
            Contestant("oncelog", Role.OURS, many, reveal=many),
            Contestant(TEN, Role.LIMIT, few, reveal=few),
        ],
    )


def test_commit(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
