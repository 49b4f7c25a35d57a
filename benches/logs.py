"""Logs on disk, written by our own writer, that storage is measured on."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from oncelog.base.disk import Disk
from oncelog.log.log import LogOptions
from oncelog.partition.data_directory import DataDirectory
from oncelog.partition.partition import Origin, PartitionOptions
from oncelog.segment.batch import ControlType, encode_arrow, encode_marker
from oncelog.segment.names import TopicPartition
from oncelog.segment.segment import SegmentOptions

from .harness import FIRST_TIMESTAMP_MS, Scratch, random_values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog._native.batch import EncodedBatches

    from .harness import Settings

TOPIC: Final = "events"
KEY: Final = TopicPartition(TOPIC, 0)
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
BATCH_BYTES: Final = 1 << 14  # the default of Kafka's producers
PRODUCERS: Final = 4
BATCHES_PER_TRANSACTION: Final = 10
ABORT_EVERY: Final = 10
FIRST_ABORT: Final = 2
NOW_MS: Final = FIRST_TIMESTAMP_MS


def open_directory(path: Path, segment_bytes: int = 1 << 30) -> DataDirectory:
    """A directory to write to, with a clock that stands still."""
    options = PartitionOptions(log=LogOptions(segment=SegmentOptions(segment_bytes=segment_bytes)))
    return DataDirectory(path, Disk(), now_ms=lambda: NOW_MS, options_of=lambda _: options)


def record_batch(settings: Settings, value_bytes: int, count: int) -> Any:
    """Records as Arrow columns."""
    rng = np.random.default_rng(settings.seed)
    return pa.record_batch(
        {
            "key": pa.array(random_values(rng, count, 16), pa.binary()),
            "value": pa.array(random_values(rng, count, value_bytes), pa.binary()),
            "timestamp": pa.array([NOW_MS + index for index in range(count)], pa.timestamp("ms", "UTC")),
        }
    )  # fmt: skip


def one_mebibyte_batches(settings: Settings, value_bytes: int, count: int) -> list[EncodedBatches]:
    """Batches of an idempotent producer, each as close to 1 MiB as its records allow."""
    per_batch = (1 << 20) // (value_bytes + 16 + 16)
    records = record_batch(settings, value_bytes, per_batch)
    return [
        encode_arrow(
            records,
            producer_id=1,
            producer_epoch=0,
            base_sequence=number * per_batch,
            batch_size=1 << 20,
        )
        for number in range(count)
    ]


@dataclasses.dataclass(frozen=True)
class StoredLog:
    """A partition's log of transactions, stopped cleanly; every tenth transaction was aborted."""

    scratch: Scratch
    record_count: int  # all, control records left out
    committed_count: int

    @property
    def path(self) -> Path:
        return self.scratch.path

    @property
    def files(self) -> list[Path]:
        return sorted((self.path / KEY.directory).glob("*.log"))

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def _transactions(records: Any, turn: int) -> Iterator[tuple[EncodedBatches, Origin]]:
    """One transaction of each producer, batch by batch in turns; the epoch rises with each."""
    for number in range(BATCHES_PER_TRANSACTION):
        for producer in range(PRODUCERS):
            data = encode_arrow(
                records, producer_id=producer, producer_epoch=turn, transactional=True,
                base_sequence=number * len(records), batch_size=2 * BATCH_BYTES,
            )  # fmt: skip
            yield data, Origin.CLIENT
    kind = ControlType.ABORT if turn % ABORT_EVERY == FIRST_ABORT else ControlType.COMMIT
    for producer in range(PRODUCERS):
        marker = encode_marker(
            kind, producer_id=producer, producer_epoch=turn + 1, coordinator_epoch=0,
            timestamp_ms=NOW_MS,
        )  # fmt: skip
        yield marker, Origin.COORDINATOR


@functools.cache
def transactional_log(settings: Settings, value_bytes: int) -> StoredLog:
    """A log that many cases read; made once."""
    return write_log(settings, value_bytes)


def write_log(settings: Settings, value_bytes: int, segment_bytes: int = 1 << 30) -> StoredLog:
    """A log of the size that the settings say, written through the partition and closed."""
    scratch = Scratch("log")
    directory = open_directory(scratch.path, segment_bytes)
    partition = directory.create(KEY, TOPIC_ID)
    records = record_batch(settings, value_bytes, BATCH_BYTES // (value_bytes + 16 + 12))
    size = turn = 0
    counts = [0, 0]
    while size < settings.log_bytes:
        for data, origin in _transactions(records, turn):
            partition.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, origin=origin)
            size += len(data)
            if origin is Origin.CLIENT:
                counts[turn % ABORT_EVERY != FIRST_ABORT] += data.record_count
        turn += 1
    directory.close()
    return StoredLog(scratch, sum(counts), counts[1])
