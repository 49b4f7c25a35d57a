"""How fast does a read_committed reader get through a log?
Times    opened and mapped log to the last record: headers, aborted transactions, visibility, checksums, all fields of
         all visible records as Arrow record batches that are dropped one by one; "records": as Python objects.
Excludes opening the directory; the log lies in the cache of pages and its mapping is warm.
Anchor   aiokafka's read_committed iteration (its own filter, from memory); a sum over the same mapping is the limit.
"""

from __future__ import annotations

import importlib
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import oncelog

from . import floor, logs, peers
from .harness import Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from oncelog.client.directory import LogDirectory

    from .harness import Settings

# Small records are the hard case; a reader of large ones waits for memory alone.
VALUE_BYTES = {"100B": 100, "1KB": 1000}


def _drain_batches(log: LogDirectory, views: bool) -> None:
    for _ in log.read(logs.TOPIC, 0, views=views).to_batches():
        pass


def _drain_records(log: LogDirectory) -> None:
    for _ in log.read(logs.TOPIC, 0):
        pass


def _reveal_batches(log: LogDirectory, views: bool) -> tuple[int, ...]:
    """(records, sum of offsets, checksum of all values)"""
    count = total = crc = 0
    for batch in log.read(logs.TOPIC, 0, views=views).to_batches():
        count += batch.num_rows
        total += int(batch["offset"].to_numpy().sum())
        values = batch["value"].cast(pa.binary())
        _, offsets, data = values.buffers()
        first, last = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)[[0, -1]]
        crc = zlib.crc32(memoryview(data)[first:last], crc)
    return count, total, crc


def _reveal_records(records: Iterator[Any]) -> tuple[int, ...]:
    count = total = crc = 0
    for record in records:
        count += 1
        total += record.offset
        crc = zlib.crc32(record.value, crc)
    return count, total, crc


def _aiokafka(log: LogDirectory) -> Callable[[], Iterator[Any]]:
    """aiokafka's records of the whole log: the class its consumer hands a fetched partition to."""
    fetcher = importlib.import_module("aiokafka.consumer.fetcher")
    memory = importlib.import_module("aiokafka.record.memory_records")
    structs = importlib.import_module("aiokafka.structs")
    partition = log.partition(logs.TOPIC, 0)
    data = b"".join(segment.view() for segment in partition.log.segments)
    found = partition.aborted_transactions(0, partition.last_stable_offset)
    aborted = [(int(row["producer_id"]), int(row["first_offset"])) for row in found]
    place = structs.TopicPartition(logs.TOPIC, 0)

    def read() -> Iterator[Any]:
        records: Iterator[Any] = fetcher.PartitionRecords(
            place, memory.MemoryRecords(data), aborted, 0, None, None, True, fetcher.READ_COMMITTED
        )
        return records

    return read


def _peer(log: LogDirectory, settings: Settings) -> Contestant:
    # Says whether it is there, and with its Cython.
    (peer,) = peers.contestants(settings, lambda _: lambda: None, only=("aiokafka",))
    if peer.call is None:
        return peer
    read = _aiokafka(log)

    def call() -> None:
        for _ in read():
            pass

    return Contestant(
        peer.name, Role.PEER, call, reveal=lambda: _reveal_records(read()), version=peer.version
    )


def cases(settings: Settings) -> Iterator[Case]:
    for name, value_bytes in VALUE_BYTES.items():
        stored = logs.transactional_log(settings, value_bytes)
        log = oncelog.open(stored.path, read_only=True)
        views = [segment.view() for segment in log.partition(logs.TOPIC, 0).log.segments]
        size = f"{stored.size / (1 << 20):.0f} MiB, records of {name}"
        everything = [_peer(log, settings)]
        for kind, is_view in (("views", True), ("contiguous", False)):
            yield Case(
                f"fetch.{kind}.{name}",
                f"read_committed, {kind}, {size}",
                Unit.GB_PER_SECOND,
                stored.size,
                [
                    Contestant(
                        "oncelog",
                        Role.OURS,
                        lambda log=log, is_view=is_view: _drain_batches(log, is_view),  # type: ignore[misc]
                        reveal=lambda log=log, is_view=is_view: _reveal_batches(log, is_view),  # type: ignore[misc]
                    ),
                    *everything,
                    floor.sum_over(views, settings),
                ],
            )
        yield Case(
            f"fetch.records.{name}",
            f"read_committed, Python records, {size}",
            Unit.GB_PER_SECOND,
            stored.size,
            [
                Contestant(
                    "oncelog",
                    Role.OURS,
                    lambda log=log: _drain_records(log),  # type: ignore[misc]
                    reveal=lambda log=log: _reveal_records(iter(log.read(logs.TOPIC, 0))),  # type: ignore[misc]
                ),
                *everything,
                floor.sum_over(views, settings),
            ],
        )


def test_fetch(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
