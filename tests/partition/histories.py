"""A partition that tests write to, batch by batch, with a clock of their own, and clean."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oncelog.base.disk import Disk
from oncelog.log.log import LogOptions
from oncelog.partition.cleaner import Cleaned, CleanerOptions, clean
from oncelog.partition.partition import Isolation, Origin, Partition, PartitionOptions
from oncelog.segment.batch import (
    HEADER_DTYPE,
    ControlType,
    encode,
    encode_marker,
    records,
)
from oncelog.segment.names import TopicPartition
from oncelog.segment.segment import SegmentOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

DAY_MS = 24 * 3600 * 1000
START_MS = 1_794_787_200_000
KEY = TopicPartition("compact", 0)
Pair = tuple[bytes | None, bytes | None]


class Seen(NamedTuple):
    """A record as a reader gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class History:
    """One compacted partition in a directory. Producers count their sequences by themselves."""

    def __init__(
        self,
        path: Path,
        *,
        disk: Disk | None = None,
        segment: SegmentOptions | None = None,
        options: PartitionOptions | None = None,
        is_clean: bool = True,
    ) -> None:
        self.path = path
        self.now_ms = START_MS
        self.first_dirty = 0
        self.disk = disk or Disk()
        self.segment = segment or SegmentOptions(index_interval_bytes=64)
        self.options = options or PartitionOptions(log=LogOptions(segment=self.segment))
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        path.mkdir(exist_ok=True)
        self.partition = self.open(is_clean=is_clean)

    def open(self, *, is_clean: bool = True, disk: Disk | None = None) -> Partition:
        partition = Partition(
            KEY,
            str(self.path),
            self.options,
            disk or self.disk,
            now_ms=self.now_ms,
            is_clean=is_clean,
        )
        self.partition = partition
        return partition

    def reopen(self, *, is_clean: bool = True) -> Partition:
        self.partition.close()
        return self.open(is_clean=is_clean)

    # ------------------------------------------------------------ writing

    def put(
        self,
        *pairs: Pair,
        producer: int = -1,
        transactional: bool = False,
        compression: str = "none",
        timestamps: Sequence[int] | None = None,
        leader_epoch: int = 0,
    ) -> int:
        """Appends one batch; returns its base offset."""
        epoch = self.epochs.setdefault(producer, 0) if producer >= 0 else -1
        sequence = self.sequences.setdefault(producer, 0) if producer >= 0 else -1
        data = encode(
            [value for _, value in pairs],
            keys=[key for key, _ in pairs],
            timestamps=timestamps or [self.now_ms + index for index in range(len(pairs))],
            compression=compression,
            transactional=transactional,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            batch_size=1 << 30,
        )
        done = self.partition.append_as_leader(
            bytearray(memoryview(data)),
            leader_epoch=leader_epoch,
            now_ms=self.now_ms,
            bumps_epoch=False,
        )
        if producer >= 0:
            self.sequences[producer] = sequence + len(pairs)
        return done.base_offset

    def txn(self, producer: int, *pairs: Pair, compression: str = "none") -> int:
        """Appends one batch of a producer's open transaction."""
        return self.put(*pairs, producer=producer, transactional=True, compression=compression)

    def end(self, producer: int, *, commit: bool, bump: bool = False) -> int:
        """Appends the marker that ends a transaction; ``bump``: with the next epoch, as transaction version 2."""
        if bump:
            self.epochs[producer] = self.epochs.get(producer, 0) + 1
            self.sequences[producer] = 0
        marker = encode_marker(
            ControlType.COMMIT if commit else ControlType.ABORT,
            producer_id=producer,
            producer_epoch=self.epochs.setdefault(producer, 0),
            coordinator_epoch=3,
            timestamp_ms=self.now_ms,
        )
        done = self.partition.append_as_leader(
            bytearray(memoryview(marker)),
            leader_epoch=0,
            now_ms=self.now_ms,
            origin=Origin.COORDINATOR,
            bumps_epoch=bump,
        )
        return done.base_offset

    def commit(self, producer: int, *, bump: bool = False) -> int:
        return self.end(producer, commit=True, bump=bump)

    def abort(self, producer: int, *, bump: bool = False) -> int:
        return self.end(producer, commit=False, bump=bump)

    def roll(self) -> None:
        self.partition.roll(self.now_ms)

    def clean(
        self,
        *,
        delete_retention_ms: int = DAY_MS,
        end: int = 2**63 - 1,
        options: CleanerOptions | None = None,
        roll: bool = True,
    ) -> Cleaned:
        """Rolls, and cleans everything that is not clean yet."""
        if roll:
            self.roll()
        done = clean(
            self.partition,
            first_dirty=self.first_dirty,
            end=end,
            delete_retention_ms=delete_retention_ms,
            now_ms=self.now_ms,
            options=options,
        )
        self.first_dirty = done.end_offset
        return done

    # ------------------------------------------------------------ reading

    def seen(self, isolation: Isolation = Isolation.READ_COMMITTED) -> list[Seen]:
        return seen(self.partition, isolation)

    def committed(self) -> list[tuple[int, bytes | None]]:
        """(offset, value) of what a read_committed reader gets."""
        return [(record.offset, record.value) for record in self.seen()]

    def offsets(self) -> list[int]:
        """Offsets of all data records, whoever may see them."""
        return [record.offset for record in self.seen(Isolation.READ_UNCOMMITTED)]

    def rows(self) -> NDArray[np.void]:
        """Headers of all batches, checksums proven."""
        parts = [rows for part in self.partition.log.segments for rows in part.rows(check_crc=True)]
        return np.concatenate([np.empty(0, HEADER_DTYPE), *parts])

    def markers(self) -> list[int]:
        """Offsets of the control batches that hold a marker."""
        rows = self.rows()
        return [int(at) for at in rows["base_offset"][rows["control_type"] >= 0]]

    def latest(self) -> dict[bytes | None, bytes | None]:
        """The value that a read_committed reader holds of each key in the end."""
        found = {record.key: record.value for record in self.seen()}
        return {key: value for key, value in found.items() if value is not None}

    def index_entries(self) -> list[tuple[int, int, int]]:
        """(producer, first, last offset) of all transaction indexes, as the files have them."""
        found = []
        for part in self.partition.log.segments:
            entries = part.txn_index.index.entries()
            found += [
                (int(row["producer_id"]), int(row["first_offset"]), int(row["last_offset"]))
                for row in entries
            ]
        return found

    def names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()}


def seen(partition: Partition, isolation: Isolation = Isolation.READ_COMMITTED) -> list[Seen]:
    """Everything that a reader gets from the log start on."""
    found = []
    start = partition.log_start_offset
    for window in partition.windows(start, 2**63 - 1, isolation):
        found += [
            Seen(record.offset, record.key, record.value, record.timestamp)
            for record in records(
                window.segment.view(), window.rows, visible=window.visible, start_offset=start
            )
        ]
    return found
