"""What does an exactly-once commit cost?
Times    "one": begin, send one record of 100 B, commit, one after another. "threads": the same from 2, 4, 8 and 16
         producers with a partition and a thread each, all commits counted. "many": one producer's commits in a log with
         100,000 transactional ids and 1,000 partitions. "syncs": how often a commit waits for the device, counted.
         "os": what is committed survives the process; "fsync": a loss of power.
Excludes opening, initialising the producers; threads are started inside the clock.
Anchor   for "threads" the same commits by one of the producers, and bare threads with a file each and a write() or
         fdatasync() for each record; as a durable commit waits for two files, also with two of them: what threads of Python
         make of a device if a commit itself took no time (and "alone": one such thread). For "many" the same commits in a
         log with ten ids and ten partitions.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final

from oncelog.base.disk import Disk
from oncelog.client import client

from .bench_send import TOPIC, Log, revealing
from .harness import Case, Contestant, Role, Scratch, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from oncelog.client.producer import Producer

    from .harness import Settings

VALUE: Final = b"x" * 100
THREADS: Final = (2, 4, 8, 16)
MOST: Final = max(THREADS)
COMMITS: Final = {"os": 512, "fsync": 256}  # of one round, by all threads together
ONE_THREAD: Final = "one thread"
TEN: Final = "ten ids and partitions"
ONE_SYNC: Final = "one fdatasync"
TWO_SYNCS: Final = "two bare fdatasyncs"


def producer_of(log: Log, name: str) -> Producer:
    producer: Producer = log.log.producer(transactional_id=name)
    producer.init_transactions()
    return producer


def commits(producer: Producer, partition: int, count: int) -> int:
    for _ in range(count):
        producer.begin_transaction()
        producer.send(TOPIC, VALUE, partition=partition)
        producer.commit_transaction()
    return count


def in_threads(calls: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Tellers:
    """Producers with a partition each in one log, and bare files beside them."""

    def __init__(self, durability: str) -> None:
        self._log = Log("txn", MOST, durability=durability)
        self._producers = [producer_of(self._log, f"teller-{number}") for number in range(MOST)]
        self._is_synced = durability == "fsync"
        self._scratch = Scratch("bare")
        self._files, self._decisions = (
            [self._open(f"{name}-{number}") for number in range(MOST)]
            for name in ("data", "decisions")
        )

    def _open(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._scratch.path / name, flags)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def commit(self, threads: int, count: int) -> None:
        if threads == 1:
            commits(self._producers[0], 0, count)
            return
        in_threads(
            [
                functools.partial(commits, self._producers[number], number, count // threads)
                for number in range(threads)
            ]
        )

    def _write(self, descriptors: tuple[int, ...], count: int) -> None:
        for _ in range(count):
            for descriptor in descriptors:
                os.write(descriptor, VALUE)
                if self._is_synced:
                    os.fdatasync(descriptor)

    def write(self, threads: int, count: int, *sets_of_files: list[int]) -> None:
        in_threads(
            [
                functools.partial(self._write, files, count // threads)
                for files in list(zip(*sets_of_files, strict=True))[:threads]
            ]
        )

    def contestants(self, threads: int, count: int) -> list[Contestant]:
        """Ours from so many threads, from one, and the bare device."""

        def written() -> list[bytes]:
            sizes = [os.fstat(file).st_size for file in self._files]
            bare()
            return [
                os.pread(file, len(VALUE), at)
                for file, start in zip(self._files, sizes, strict=True)
                for at in range(start, os.fstat(file).st_size, len(VALUE))
            ]

        ours = functools.partial(self.commit, threads, count)
        alone = functools.partial(self.commit, 1, count)
        bare = functools.partial(self.write, threads, count, self._files)
        name = f"bare {'fdatasync' if self._is_synced else 'write'}"
        many = f", {threads} threads" if threads > 1 else ""
        others = [Contestant(name + many, Role.LIMIT, bare, reveal=written)]
        if threads > 1:
            shown = revealing(self._log, alone)
            others.insert(0, Contestant(ONE_THREAD, Role.PEER, alone, reveal=shown))
        if threads == MOST and self._is_synced:
            both = self._files, self._decisions
            for number, who in ((threads, many), (1, " alone")):
                twice = functools.partial(self.write, number, count, *both)
                others.append(Contestant(TWO_SYNCS + who, Role.LIMIT, twice))
        return [Contestant("oncelog", Role.OURS, ours, reveal=revealing(self._log, ours)), *others]


def _with_threads(settings: Settings) -> Iterator[Case]:
    for durability, commits_of_a_round in COMMITS.items():
        count = MOST if settings.quick else commits_of_a_round
        tellers = _Tellers(durability)
        for threads in (1, *THREADS):
            # The case with most threads is the one that a target speaks of.
            many = "threads" if threads == MOST else f"threads.{threads}"
            who = f" of {threads} threads" if threads > 1 else ""
            yield Case(
                f"commit.{durability}.{'one' if threads == 1 else many}",
                f"transactions of one record{who}, durability {durability}",
                Unit.NS_PER_RECORD,
                count,
                tellers.contestants(threads, count),
            )


class _CountingDisk(Disk):
    syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        super().sync(descriptor)


def _syncs(count: int) -> Case:
    """How often a commit waits for the device: data and decision."""
    disk, scratch = _CountingDisk(), Scratch("syncs")
    log = client.Log(scratch.path, durability="fsync", _disk=disk)
    weakref.finalize(scratch, log.close)
    log.create_topic(TOPIC)
    producer = log.producer(transactional_id="teller")
    producer.init_transactions()
    commits(producer, 0, 1)  # makes what is made once

    def call(scratch: Scratch = scratch) -> float:
        before = disk.syncs
        commits(producer, 0, count)
        return (disk.syncs - before) / count

    return Case(
        "commit.fsync.syncs",
        "waits for the device in a transaction of one record",
        Unit.SYNCS,
        1,
        [
            Contestant("oncelog", Role.OURS, call, reveal=call),
            Contestant(ONE_SYNC, Role.LIMIT, lambda: 1.0),
        ],
    )


def commits_among(ids: int, partitions: int, count: int) -> Callable[[], int]:
    log = Log("txn-many", partitions)
    for number in range(ids):
        log.log.broker.init_producer_id(f"id-{number}", 60_000)
    producer = producer_of(log, "teller")
    for partition in range(partitions):  # all are open, as in a process that has used them
        log.log.broker.list_offsets((TOPIC, partition), -1)

    def call(log: Log = log) -> int:
        return commits(producer, partitions // 2, count)

    return call


def cases(settings: Settings) -> Iterator[Case]:
    yield from _with_threads(settings)
    yield _syncs(2 if settings.quick else 20)
    count, ids, partitions = (2, 20, 12) if settings.quick else (500, 100_000, 1_000)
    many, few = commits_among(ids, partitions, count), commits_among(10, 10, count)
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
