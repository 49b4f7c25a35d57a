"""What does one acknowledged append cost?
Times    "1": send() of one record and result(), one after another; "1000": send_arrow() of 1,000 and flush(). "os":
         acknowledged records survive the process. "fsync": they survive a loss of power.
Excludes opening, making the records.
Anchor   LMDB, SQLite (WAL) and RocksDB (WAL) with as many records in a transaction and the same durability: rising
         keys, appended. write() of as many values to the end of a file, and fdatasync(), is the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from .bench_send import TOPIC, Log, revealing, values_of
from .harness import Case, Contestant, Role, Unit
from .stores import bare_file, lmdb, rocksdb, sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

COUNTS: Final = {
    ("os", 1): 2_000,
    ("os", 1000): 50_000,
    ("fsync", 1): 50,
    ("fsync", 1000): 20_000,
}


def _ours(values: Sequence[bytes], durability: str, per_commit: int) -> Contestant:
    log = Log("ack", durability=durability)
    producer = log.log.producer()
    tables = [
        pa.table({"value": pa.array(values[first : first + per_commit], pa.binary())})
        for first in range(0, len(values), per_commit)
    ]

    def one_by_one() -> None:
        send = producer.send
        for value in values:
            send(TOPIC, value).result()

    def in_batches() -> None:
        for table in tables:
            producer.send_arrow(TOPIC, table)
            producer.flush()

    call = one_by_one if per_commit == 1 else in_batches

    return Contestant("oncelog", Role.OURS, call, reveal=revealing(log, call))


def cases(settings: Settings) -> Iterator[Case]:
    for (durability, per_commit), count in COUNTS.items():
        values = values_of(settings, count)
        synced = durability == "fsync"
        yield Case(
            f"ack.{durability}.{per_commit}",
            f"acknowledged appends of {per_commit:,}, durability {durability}",
            Unit.NS_PER_RECORD,
            len(values),
            [
                _ours(values, durability, per_commit),
                lmdb(settings, values, per_commit, synced=synced),
                sqlite(settings, values, per_commit, synced=synced),
                rocksdb(settings, values, per_commit, synced=synced),
                bare_file(values, per_commit, synced=synced),
            ],
        )


def test_ack(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
