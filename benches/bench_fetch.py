"""How fast does a read_committed reader get through a log?
Times    opened and mapped log to the last record: headers, aborted transactions, visibility, checksums, all fields of
         all visible records as Arrow record batches that are dropped one by one; "records": as Python objects. "cold":
         the same with nothing of the log in the cache of pages, so that every byte comes from the device.
Excludes opening the directory; but for "cold" the log lies in the cache of pages and its mapping is warm.
Anchor   the read_committed iteration of aiokafka and kafka-python (their own filters, from memory; of kafka-python a part
         of the log, scaled); a sum over the same mapping is the limit, for "cold" a read() of the same files.
"""

from __future__ import annotations

import importlib
import os
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

import oncelog

from . import floor, logs, peers
from .files import read_through
from .harness import Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from oncelog.client.directory import LogDirectory

    from .harness import Settings

# Small records are the hard case; a reader of large ones waits for memory alone.
VALUE_BYTES = {"100B": 100, "1KB": 1000}
PARTS = 64  # a peer that takes longer than anybody waits for reads one of them
PEER_ROUNDS = 3  # each takes seconds


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


def _kafka_python(log: LogDirectory, data: bytes, end: int) -> Callable[[], Iterator[Any]]:
    """kafka-python's records of the batches before an offset."""
    fetcher = importlib.import_module("kafka.consumer.fetcher")
    memory = importlib.import_module("kafka.record.memory_records")
    structs = importlib.import_module("kafka.structs")
    found = log.partition(logs.TOPIC, 0).aborted_transactions(0, end)
    aborted = [_Aborted(int(row["producer_id"]), int(row["first_offset"])) for row in found]
    place = structs.TopicPartition(logs.TOPIC, 0)

    def read() -> Iterator[Any]:
        records: Any = fetcher.Fetcher.PartitionRecords(
            0, place, memory.MemoryRecords(data), aborted_transactions=aborted,
            isolation_level=fetcher.IsolationLevel.READ_COMMITTED,
        )  # fmt: skip
        return iter(records.record_iterator)

    return read


class _Aborted(NamedTuple):
    """As kafka-python finds it in an answer."""

    producer_id: int
    first_offset: int


def _slow_peer(log: LogDirectory, settings: Settings) -> Contestant:
    """kafka-python on the first part of the log: as many records, and the same ones, as ours gives of it."""
    (peer,) = peers.contestants(settings, lambda _: lambda: None, only=("kafka-python",))
    if peer.call is None:
        return peer
    partition = log.partition(logs.TOPIC, 0)
    segment = partition.log.segments[0]
    rows = np.concatenate(list(segment.rows()))
    last = rows[(len(rows) - 1) // (1 if settings.quick else PARTS)]
    end, size = int(last["base_offset"]), int(last["position"])
    read = _kafka_python(log, bytes(segment.view()[:size]), end)
    share = size / sum(one.size for one in partition.log.segments)

    def call() -> None:
        for _ in read():
            pass

    def reveal() -> tuple[int, ...]:
        """What ours makes of the whole log, if both make the same of the part."""
        ours = _reveal_records(iter(log.read(logs.TOPIC, 0, end=end)))
        found = _reveal_records(read())
        return _reveal_batches(log, views=True) if found == ours else found

    return Contestant(
        peer.name, Role.PEER, call, reveal=reveal, loops=share, version=peer.version,
        rounds=PEER_ROUNDS,
    )  # fmt: skip


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
        peer.name, Role.PEER, call, reveal=lambda: _reveal_records(read()), version=peer.version,
        rounds=PEER_ROUNDS,
    )  # fmt: skip


class _ColdLog:
    """A log that no page of is in memory when a round begins."""

    def __init__(self, stored: logs.StoredLog) -> None:
        self._stored = stored
        self._log: LogDirectory | None = None

    def forget(self) -> None:
        """Pages that somebody has mapped stay, so nobody may."""
        if self._log is not None:
            self._log.close()
        for path in self._stored.files:
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._log = oncelog.open(self._stored.path, read_only=True)

    def drain(self) -> None:
        assert self._log is not None
        _drain_batches(self._log, views=True)

    def reveal(self) -> tuple[int, ...]:
        self.forget()
        assert self._log is not None
        return _reveal_batches(self._log, views=True)

    def read(self) -> None:
        read_through(self._stored.files)


def _cold(settings: Settings, name: str) -> Case:
    stored = logs.write_log(settings, VALUE_BYTES[name])  # its own: nobody else may map it
    log = _ColdLog(stored)
    return Case(
        f"fetch.cold.{name}",
        f"read_committed, views, cold cache, {stored.size / (1 << 20):.0f} MiB",
        Unit.GB_PER_SECOND,
        stored.size,
        [
            Contestant(
                "oncelog", Role.OURS, log.drain, reveal=log.reveal, setup=log.forget,
                rounds=settings.slow_rounds,
            ),
            Contestant(
                "read(), cold cache", Role.LIMIT, log.read, setup=log.forget,
                rounds=settings.slow_rounds,
            ),
        ],
    )  # fmt: skip


def cases(settings: Settings) -> Iterator[Case]:
    for name, value_bytes in VALUE_BYTES.items():
        stored = logs.transactional_log(settings, value_bytes)
        log = oncelog.open(stored.path, read_only=True)
        views = [segment.view() for segment in log.partition(logs.TOPIC, 0).log.segments]
        size = f"{stored.size / (1 << 20):.0f} MiB, records of {name}"
        everything = [_peer(log, settings), _slow_peer(log, settings)]
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
    yield _cold(settings, "1KB")


def test_fetch(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
