"""Short words for tests of partitions: open one, write like a client or a coordinator, read everything back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oncelog.base.disk import Disk
from oncelog.log.log import LogOptions
from oncelog.partition.data_directory import DataDirectory
from oncelog.partition.partition import Appended, Isolation, Origin, Partition, PartitionOptions
from oncelog.segment.batch import ControlType, EncodedBatches, encode, encode_marker, records
from oncelog.segment.names import TopicPartition
from oncelog.segment.segment import SegmentOptions

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

KEY = TopicPartition("orders", 0)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
NOW = 1_700_000_000_000
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT


def options(
    segment_bytes: int = 1 << 20,
    index_bytes: int = 1 << 12,
    interval: int = 256,
    *,
    segment_ms: int = 7 * 24 * 3600 * 1000,
    jitter_ms: int = 0,
    ahead: int = 0,
    **rest: Any,
) -> PartitionOptions:
    segment = SegmentOptions(segment_bytes, index_bytes, interval, ahead)
    return PartitionOptions(LogOptions(segment, segment_ms, jitter_ms), **rest)


def open_directory(
    path: str | os.PathLike[str],
    using: PartitionOptions | None = None,
    *,
    disk: Disk | None = None,
    read_only: bool = False,
    now_ms: int = NOW,
) -> DataDirectory:
    chosen = options() if using is None else using
    return DataDirectory(
        path,
        None if read_only else disk or Disk(),
        now_ms=lambda: now_ms,
        options_of=lambda _: chosen,
    )


def open_partition(
    path: str | os.PathLike[str], using: PartitionOptions | None = None, **rest: Any
) -> tuple[DataDirectory, Partition]:
    directory = open_directory(path, using, **rest)
    if rest.get("read_only"):
        return directory, directory.get(KEY)
    return directory, directory.create(KEY, TOPIC_ID)


def values(count: int, name: str = "v", size: int = 0) -> list[bytes]:
    return [f"{name}{index}".encode().ljust(size, b".") for index in range(count)]


@dataclass
class Writer:
    """A producer as a client has it: its id, epoch and next sequence. Plain if the id is -1."""

    partition: Partition
    producer_id: int = -1
    epoch: int = 0
    sequence: int = 0
    now_ms: int = NOW

    def batch(
        self, what: list[bytes], *, transactional: bool = False, **rest: Any
    ) -> EncodedBatches:
        if self.producer_id >= 0:
            rest = {
                "producer_id": self.producer_id,
                "producer_epoch": self.epoch,
                "base_sequence": self.sequence,
                **rest,
            }
        return encode(
            what,
            keys=rest.pop("keys", [b"k"] * len(what)),
            transactional=transactional,
            timestamp_ms=rest.pop("timestamp_ms", self.now_ms),
            batch_size=rest.pop("batch_size", 1 << 20),
            **rest,
        )

    def send(
        self,
        what: list[bytes],
        *,
        transactional: bool = False,
        leader_epoch: int = 0,
        origin: Origin = Origin.CLIENT,
        bumps_epoch: bool = True,
        **rest: Any,
    ) -> Appended:
        done = self.partition.append_as_leader(
            self.batch(what, transactional=transactional, **rest),
            leader_epoch=leader_epoch,
            now_ms=self.now_ms,
            origin=origin,
            bumps_epoch=bumps_epoch,
        )
        if not done.is_duplicate:
            self.sequence = (self.sequence + len(what)) % 2**31
        return done

    def end(
        self, kind: ControlType, *, bumps_epoch: bool = True, coordinator_epoch: int = 0
    ) -> Appended:
        """The coordinator's marker; with a bumped epoch the sequence starts anew."""
        epoch = self.epoch + 1 if bumps_epoch else self.epoch
        marker = encode_marker(
            kind,
            producer_id=self.producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self.now_ms,
        )
        done = self.partition.append_as_leader(
            marker,
            leader_epoch=0,
            now_ms=self.now_ms,
            origin=Origin.COORDINATOR,
            bumps_epoch=bumps_epoch,
        )
        self.epoch = epoch
        if bumps_epoch:
            self.sequence = 0
        return done

    def on(self, partition: Partition) -> Writer:
        """The same producer, after its partition was opened again."""
        return replace(self, partition=partition)


def read(
    partition: Partition, isolation: Isolation = COMMITTED, start: int = 0, end: int = 2**62
) -> list[tuple[int, bytes | None]]:
    """(offset, value) of all records that a reader may see."""
    return list(_read(partition, isolation, start, end))


def _read(
    partition: Partition, isolation: Isolation, start: int, end: int
) -> Iterator[tuple[int, bytes | None]]:
    start = max(start, partition.log_start_offset)
    end = min(end, partition.upper_bound(isolation))
    for window in partition.windows(start, end, isolation):
        for record in records(
            window.segment.view(),
            window.rows,
            visible=window.visible,
            start_offset=start,
            end_offset=end,
        ):
            yield record.offset, record.value


def contents(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Every file below a directory, by name: to see that nothing was changed."""
    from pathlib import Path

    root = Path(path)
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }
