"""From ranges of offsets to tasks, and what a task does: one stretch of one partition, cut where batches begin."""

from __future__ import annotations

import logging
import math
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

import oncelog
from oncelog import errors

from .bad_records import note_bad_records
from .columns import Columns
from .offsets import lost, name_of
from .workers import spare_what_is_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from oncelog import Damage, LogDirectory

    from .source_options import Key, SourceOptions

logger = logging.getLogger("oncelog.spark")
# What one Arrow batch on its way to Spark holds: enough to forget what each costs, which is about a millisecond in
# Python, and little enough for the memory of a task to be small and for its pages to be used again (csrc/decode.c).
BATCH_BYTES: Final = 2 << 20
# So much more than a task should read is no reason for another one, which costs 40 ms before its first row: cut in two,
# a partition that is a little too large would make two small tasks.
SLACK: Final = 1.25


@dataclass
class Split(InputPartition):
    """Offsets of one partition for one task."""

    topic: str
    partition: int
    start: int
    end: int


def plan(
    log: LogDirectory, ranges: Mapping[Key, tuple[int, int]], options: SourceOptions
) -> list[Split]:
    """Tasks of about one size for ranges of offsets; those that are empty have none."""
    ranges = {key: (start, end) for key, (start, end) in ranges.items() if start < end}
    sizes = {key: log.range_bytes(*key, *each) for key, each in ranges.items()}
    total = max(sum(sizes.values()), 1)
    found: list[Split] = []
    for key, (start, end) in sorted(ranges.items()):
        pieces = max(
            math.ceil(sizes[key] / (options.bytes_per_partition_max * SLACK)),
            round(options.partitions_min * sizes[key] / total),
            -(-(end - start) // (options.records_per_partition_max or end - start)),
        )
        starts = log.split(*key, start, end, pieces)
        ends = [*starts[1:], end]
        found.extend(Split(*key, *each) for each in zip(starts, ends, strict=True))
    return found


def open_log(path: str) -> LogDirectory:
    """The directory, wherever this runs: on the driver, or in a task on an executor."""
    if not Path(path).is_dir():
        raise FileNotFoundError(
            f"{socket.gethostname()} sees no directory {path}. Driver and executors all read the files themselves: "
            "give a path that every one of them has, such as one on a shared file system"
        )
    return oncelog.open(path, read_only=True)


class _Task:
    """What one task reads. An object of its own, as it starts over where files went away under it."""

    def __init__(self, split: Split, options: SourceOptions, schema: StructType) -> None:
        self._split = split
        self._options = options
        self._columns = Columns(schema, split.topic, split.partition)
        self._key = split.topic, split.partition
        self._start = split.start  # what was read so far lies below
        self._skipped: list[Damage] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches()
        finally:  # also where Spark has seen enough, or the rest cannot be read
            self._report()
            spare_what_is_loaded()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while self._start < self._split.end:
            with open_log(self._options.path) as log:
                try:
                    yield from self._read(log)
                    break
                except errors.OffsetOutOfRangeError:
                    # Retention may have taken the next segment just now: then there is a new first offset.
                    first = log.bounds(*self._key)[0]
                    if self._options.fails_on_data_loss or first <= self._start:
                        raise

    def _report(self) -> None:
        """Says what was left out, where a person will look for it."""
        if not self._skipped:
            return
        logger.warning(
            "%s: %s damaged places of %s bytes in all were left out, as mode is permissive",
            name_of(self._key),
            len(self._skipped),
            sum(damage.size for damage in self._skipped),
        )
        if self._options.bad_records_path is not None:
            span = self._split.start, self._split.end
            note_bad_records(self._options.bad_records_path, self._key, span, self._skipped)

    def _read(self, log: LogDirectory) -> Iterator[pa.RecordBatch]:
        options, split = self._options, self._split
        self._check(log)
        batches = log.read(
            *self._key,
            self._start,
            split.end,
            isolation_level=options.isolation_level,
            producer=self._columns.needs_producer,
            bytes_max=BATCH_BYTES,
            on_damage=self._skip if options.is_permissive else None,
        ).to_batches()
        is_first = True
        for batch in batches:
            if is_first:
                self._check(log)  # the segments are mapped now, and stay whatever retention does
                is_first = False
            yield self._columns.of(batch)
            self._start = batch.column("offset")[-1].as_py() + 1

    def _check(self, log: LogDirectory) -> None:
        """What the driver has planned must be here."""
        split, level = self._split, self._options.isolation_level
        first, end = log.bounds(*self._key, isolation_level=level)
        if end < split.end:
            raise errors.KafkaStorageError(
                f"{socket.gethostname()} sees {name_of(self._key)} of {self._options.path} up to {end} at {level}, "
                f"and the driver saw it up to {split.end}. Both must look at the same files"
            )
        if first > self._start:
            end = min(first, split.end)
            lost(
                self._options,
                f"offsets {self._start} to {end - 1} of {name_of(self._key)} are gone",
            )
            self._start = end

    def _skip(self, damage: Damage) -> None:
        self._skipped.append(damage)
        logger.warning(
            "left out %s bytes at position %s of %s: %s",
            damage.size,
            damage.position,
            damage.file,
            damage.reason,
        )


def read_split(
    split: Split, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The records of a split as Spark takes them."""
    return _Task(split, options, schema).batches()
