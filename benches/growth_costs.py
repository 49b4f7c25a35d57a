"""What is measured as it grows: records, their size, partitions, producers, aborted transactions, segments,
transactional ids, open transactions, threads.

Every preparation looks once at what its call makes, before the clock starts: a call that does nothing is fast.
"""

from __future__ import annotations

import collections
import time
import weakref
from typing import TYPE_CHECKING, Final

import numpy as np

import oncelog
from oncelog._native.sequence import ACCEPT, ProducerTable
from oncelog._native.txn_index import TxnIndex
from oncelog.partition.partition import Origin
from oncelog.partition.producer_snapshot import decode_snapshot, encode_snapshot
from oncelog.partition.reading import Isolation
from oncelog.segment.batch import ControlType, encode, encode_arrow, encode_marker

from . import logs
from .bench_append import FreshPartition
from .bench_commit import commits, commits_among, in_threads, producer_of
from .bench_open import Opened
from .bench_poll import polling
from .bench_send import TOPIC, Log, sending
from .bench_sequence import table_of
from .bench_txn_index import HITS, STEP, entries_of
from .growth_curve import FLAT, LINEAR, Growth
from .harness import Contestant, Role, Scratch, random_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncelog._native.batch import EncodedBatches
    from oncelog.partition.data_directory import DataDirectory
    from oncelog.partition.partition import Partition

    from .harness import Settings

VALUE_BYTES: Final = 100
FEW: Final = 10  # of what must be there and does not grow


def _measured(
    call: Callable[[], object], loops: int = 1, setup: Callable[[], object] | None = None
) -> Contestant:
    return Contestant("oncelog", Role.OURS, call, loops=loops, setup=setup)


def _values(settings: Settings, count: int) -> list[bytes]:
    return random_values(np.random.default_rng(settings.seed), count, VALUE_BYTES)


# ---------------------------------------------------------------- records


def _send(settings: Settings, records: int) -> Contestant:
    values = _values(settings, records)
    one = sending(values)
    assert one.reveal is not None
    assert one.reveal() == values
    return one


def _poll(settings: Settings, records: int) -> Contestant:
    log = Log("growth-poll")
    with log.log.producer() as producer:
        for value in _values(settings, records):
            producer.send(TOPIC, value)
    one = polling(log, records, "records")
    assert one.function()() == records
    return one


RECORDS_PER_BATCH: Final = 4


def _append(settings: Settings, value_bytes: int) -> Contestant:
    count = 2 if settings.quick else 32
    records = logs.record_batch(settings, value_bytes, RECORDS_PER_BATCH)
    batches = [
        encode_arrow(
            records, producer_id=1, producer_epoch=0, base_sequence=number * RECORDS_PER_BATCH,
            batch_size=1 << 20,
        )
        for number in range(count)
    ]  # fmt: skip
    partition = FreshPartition(batches)
    assert partition.reveal() == count * RECORDS_PER_BATCH
    return _measured(partition.append, count * RECORDS_PER_BATCH, partition.make)


# ---------------------------------------------------------------- partitions and segments


def _open_partitions(settings: Settings, partitions: int) -> Contestant:
    opened = Opened(partitions)
    assert opened.open_to_ends() == partitions * 10
    return _measured(opened.open_to_ends)


class _Partition:
    """A partition of its own, open to write, whose producers write batches of one record."""

    def __init__(self, name: str, segment_bytes: int = 1 << 30) -> None:
        self.scratch = Scratch(name)
        self.directory: DataDirectory = logs.open_directory(self.scratch.path, segment_bytes)
        self.partition: Partition = self.directory.create(logs.KEY, logs.TOPIC_ID)
        # Who is done with it waits for no device, and leaves no descriptor open.
        weakref.finalize(self, self.directory.abandon)

    def append(self, data: EncodedBatches, origin: Origin = Origin.CLIENT) -> None:
        self.partition.append_as_leader(data, leader_epoch=0, now_ms=logs.NOW_MS, origin=origin)


def _batch(producer: int, epoch: int) -> EncodedBatches:
    return encode([b"x" * VALUE_BYTES], producer_id=producer, producer_epoch=epoch, base_sequence=0,
                  transactional=True, timestamp_ms=logs.NOW_MS)  # fmt: skip


def _marker(kind: ControlType, producer: int, epoch: int) -> EncodedBatches:
    return encode_marker(kind, producer_id=producer, producer_epoch=epoch, coordinator_epoch=0,
                         timestamp_ms=logs.NOW_MS)  # fmt: skip


def _segments(count: int) -> _Partition:
    """Every segment holds one batch of ten records."""
    data = encode([b"x" * VALUE_BYTES] * FEW, timestamp_ms=logs.NOW_MS)
    made = _Partition("growth-segments", segment_bytes=len(data))
    for _ in range(count):
        made.append(data)
    assert len(made.partition.log.segments) == count
    return made


def _read_segments(settings: Settings, segments: int) -> Contestant:
    made = _segments(segments)
    rng = np.random.default_rng(settings.seed)
    offsets = (rng.permutation(64) * segments // 64 * FEW + FEW // 2).tolist()
    fetch = made.partition.fetch

    def read(made: _Partition = made) -> int:
        return sum(len(fetch(offset, 1, Isolation.READ_COMMITTED).records) for offset in offsets)

    assert read() == len(offsets) * made.partition.log.segments[0].size
    return _measured(read, len(offsets))


def _open_segments(settings: Settings, segments: int) -> Contestant:
    made = _segments(segments)
    made.directory.close()

    def look(made: _Partition = made) -> int:
        with oncelog.open(made.scratch.path, read_only=True) as log:
            return log.partition(logs.TOPIC, 0).log_end_offset

    assert look() == segments * FEW
    return _measured(look)


# ---------------------------------------------------------------- producers


def _ids(settings: Settings, count: int) -> list[int]:
    rng = np.random.default_rng(settings.seed)
    found: list[int] = rng.choice(10 * count, count, replace=False).tolist()
    return found


def _check_sequences(settings: Settings, producers: int) -> Contestant:
    ids = _ids(settings, producers)
    table = table_of(ids)
    asked = np.random.default_rng(settings.seed + 1).choice(ids, 2_000).tolist()

    def judge() -> None:
        check = table.check
        for producer in asked:
            check(producer, 0, 10, 10)

    assert all(table.check(producer, 0, 10, 10) == ACCEPT for producer in asked)
    return _measured(judge, len(asked))


def _load_producers(settings: Settings, producers: int) -> Contestant:
    data = encode_snapshot(table_of(_ids(settings, producers)).snapshot())

    def load() -> int:
        table = ProducerTable()
        table.load(decode_snapshot(data))
        return len(table)

    assert load() == producers
    return _measured(load)


# ---------------------------------------------------------------- aborted transactions


def _find_aborted(settings: Settings, aborted: int) -> Contestant:
    data = entries_of(aborted, one_is_long=True)
    index = TxnIndex(data)
    start = aborted * 9 // 10 * STEP + 1  # most readers are near the end
    end = start + (HITS - 1) * STEP - STEP // 2
    found = index.collect_aborted_txns(start, end)[1]
    assert len(found) == HITS or settings.quick
    names = {"collect": index.collect_aborted_txns, "start": start, "end": end}
    return Contestant("oncelog", Role.OURS, "collect(start, end)", names)


def _read_aborted(settings: Settings, aborted: int) -> Contestant:
    """All transactions are open at the same time, then all are aborted; one record behind them is seen."""
    made = _Partition("growth-aborted")
    for producer in range(aborted):
        made.append(_batch(producer, 0))
    for producer in range(aborted):
        made.append(_marker(ControlType.ABORT, producer, 1), Origin.COORDINATOR)
    made.append(encode([b"seen"], timestamp_ms=logs.NOW_MS))
    made.directory.close()
    log = oncelog.open(made.scratch.path, read_only=True)

    def read(made: _Partition = made) -> int:
        return sum(batch.num_rows for batch in log.read(logs.TOPIC, 0).to_batches())

    assert read() == 1
    return _measured(read)


# ---------------------------------------------------------------- transactions


class _OpenTransactions:
    """Each producer has one transaction open; the oldest ends and its producer begins another, in turns."""

    def __init__(self, count: int, turns: int) -> None:
        self._made = _Partition("growth-open")
        self._turns = turns
        self._epochs = [0] * count
        self._queue = collections.deque(range(count))
        self._steps: list[tuple[EncodedBatches, EncodedBatches]] = []
        for producer in range(count):
            self._made.append(_batch(producer, 0))

    def encode(self) -> None:
        """What a round appends; the epoch rises with every transaction."""
        self._steps = []
        for _ in range(self._turns):
            producer = self._queue[0]
            self._queue.rotate(-1)
            self._epochs[producer] = epoch = self._epochs[producer] + 1
            self._steps.append(
                (_marker(ControlType.COMMIT, producer, epoch), _batch(producer, epoch))
            )

    def end_and_begin(self) -> int:
        append = self._made.append
        for marker, batch in self._steps:
            append(marker, Origin.COORDINATOR)
            append(batch)
        return self._made.partition.last_stable_offset


def _end_transactions(settings: Settings, count: int) -> Contestant:
    turns = 2 if settings.quick else 200
    transactions = _OpenTransactions(count, turns)
    transactions.encode()
    # The oldest that is left began ``turns`` batches later, or in this round.
    end = transactions.end_and_begin()
    assert end == (turns if turns < count else count + 2 * (turns - count) + 1)
    return _measured(transactions.end_and_begin, turns, transactions.encode)


def _commit_among_partitions(settings: Settings, partitions: int) -> Contestant:
    count = 2 if settings.quick else 50
    call = commits_among(FEW, partitions, count)
    assert call() == count
    return _measured(call, count)


def _commit_among_ids(settings: Settings, ids: int) -> Contestant:
    count = 2 if settings.quick else 50
    call = commits_among(ids, FEW, count)
    assert call() == count
    return _measured(call, count)


class _Ids:
    """A log that knows many transactional ids, stopped cleanly."""

    def __init__(self, count: int) -> None:
        self._scratch = Scratch("growth-ids")
        self._logs: list[oncelog.Log] = []  # the one that is open
        weakref.finalize(self, _close_all, self._logs)  # before the directory goes
        self._logs.append(oncelog.open(self._scratch.path))
        for number in range(count):
            self._logs[0].broker.init_producer_id(f"id-{number}", 60_000)
        self.close()

    def open(self) -> int:
        self._logs.append(oncelog.open(self._scratch.path))
        return len(self._logs[0].admin().list_transactions())

    def close(self) -> None:
        _close_all(self._logs)


def _close_all(opened: list[oncelog.Log]) -> None:
    while opened:
        opened.pop().close()


def _load_ids(settings: Settings, ids: int) -> Contestant:
    made = _Ids(ids)
    assert made.open() == ids
    return _measured(made.open, setup=made.close)


def _commit_in_threads(durability: str, total: int) -> Callable[[Settings, int], Contestant]:
    def prepare(settings: Settings, threads: int) -> Contestant:
        count = 1 if settings.quick else total // threads
        log = Log("growth-threads", threads, durability=durability)
        producers = [producer_of(log, f"teller-{number}") for number in range(threads)]

        def work(number: int) -> None:
            done[number] = commits(producers[number], number, count)

        done = [0] * threads

        def together(log: Log = log) -> int:
            in_threads([lambda number=number: work(number) for number in range(threads)])  # type: ignore[misc]
            return sum(done)

        assert together() == count * threads
        return _measured(together, count * threads)

    return prepare


# ---------------------------------------------------------------- the promises


def _steps(first: int, count: int, factor: int = 4) -> tuple[int, ...]:
    return tuple(first * factor**step for step in range(count))


# A table that is looked up in random order leaves one cache after another, which is the machine's growth and not ours.
RANDOM_MARGIN: Final = 0.4
# Waiting is on the wall's clock, where neighbours show: four times the commits a second from sixteen threads is a target
# of the suite (commit.fsync.threads); that threads never make a commit dearer is promised here.
WALL_MARGIN: Final = 0.5

GROWTHS: Final = (
    Growth(
        "records.send", "send() records",
        "send() of values of 100 B, one after another, and flush(), until all are in the log.",
        "records", "s", _steps(1_000, 5), _send, LINEAR, clock=time.process_time,
    ),
    Growth(
        "records.poll", "poll() records",
        "poll() of a partition with so many records, read_committed, until each value was looked at.",
        "records", "s", _steps(1_000, 5), _poll, LINEAR, clock=time.process_time,
    ),
    Growth(
        "record_size.append", "append large records",
        "Appending batches of 4 records to a new partition, checksums and records proven: a fixed part and one for "
        "each byte.",
        "bytes of a value", "s/record", _steps(200, 6), _append, LINEAR,
    ),
    Growth(
        "partitions.open", "open many partitions",
        "Opening a directory that was stopped cleanly to read, until the end of each partition's log is known.",
        "partitions", "s", _steps(8, 4), _open_partitions, LINEAR,
    ),
    Growth(
        "partitions.commit", "commit among partitions",
        "A transaction of one record in one partition, begin to commit, while so many partitions are open.",
        "partitions", "s/commit", _steps(8, 4), _commit_among_partitions, clock=time.process_time,
    ),
    Growth(
        "producers.check", "judge a batch among producers",
        "The verdict on the next batch of a producer, asked in random order from a table of so many.",
        "producers", "s/batch", _steps(250, 5), _check_sequences, margin=RANDOM_MARGIN,
    ),
    Growth(
        "producers.load", "load a snapshot of producers",
        "Producers read from the bytes of a snapshot into the table that judges their batches.",
        "producers", "s", _steps(250, 5), _load_producers, LINEAR, RANDOM_MARGIN,
    ),
    Growth(
        "aborted.lookup", "find 10 aborted transactions",
        "The 10 aborted transactions of a fetch near the end of an index with so many entries, one of them as long as "
        "the log.",
        "entries of the index", "s/lookup", _steps(100, 5, 10), _find_aborted,
    ),
    Growth(
        "aborted.read", "read past aborted transactions",
        "Reading a log, read_committed, in which so many transactions were open at the same time and all were aborted.",
        "aborted transactions", "s", _steps(50, 5), _read_aborted, LINEAR,
    ),
    Growth(
        "segments.read", "fetch among segments",
        "A fetch of one batch at an offset anywhere in a log of so many segments.",
        "segments", "s/fetch", _steps(4, 5), _read_segments,
    ),
    Growth(
        "segments.open", "open many segments",
        "Opening one partition that was stopped cleanly to read, until the end of its log is known.",
        "segments", "s", _steps(4, 5), _open_segments, LINEAR,
    ),
    Growth(
        "transactional_ids.commit", "commit among transactional ids",
        "A transaction of one record, begin to commit, in a log that knows so many transactional ids.",
        "transactional ids", "s/commit", _steps(50, 5), _commit_among_ids, clock=time.process_time,
    ),
    Growth(
        "transactional_ids.load", "load transactional ids",
        "Opening a log that was stopped cleanly to write, until all its transactional ids are known and listed.",
        "transactional ids", "s", _steps(100, 5), _load_ids, LINEAR, clock=time.process_time,
    ),
    Growth(
        "open_transactions.end", "end one of many open transactions",
        "The oldest of so many open transactions of a partition ends and another begins: marker, batch, new last "
        "stable offset.",
        "open transactions", "s/transaction", _steps(50, 5), _end_transactions,
    ),
    Growth(
        "threads.os", "commit from threads, os",
        "Transactions of one record from so many threads with a partition each, durability os: the wall clock over all their commits.",
        "threads", "s/commit", _steps(1, 5, 2), _commit_in_threads("os", 256), FLAT, WALL_MARGIN,
        clock=time.perf_counter,
    ),
    Growth(
        "threads.fsync", "commit from threads, fsync",
        "The same with durability fsync: threads that commit at the same time share their fdatasync, so that a commit "
        "costs less.",
        "threads", "s/commit", _steps(1, 5, 2), _commit_in_threads("fsync", 128), -0.5, WALL_MARGIN,
        clock=time.perf_counter,
    ),
)  # fmt: skip
