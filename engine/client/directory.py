"""A data directory that is read and left as it is: ours, or one that a Kafka broker wrote.

Any number of processes may read, beside one that writes. Of a directory that is being written a reader sees what
its writer has published, and each call looks anew. One that was stopped cleanly is taken at its word; any other
shows what recovery would keep, worked out in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.clock import now_ms
from ..base.errors import UnknownTopicOrPartitionError
from ..partition.data_directory import DataDirectory
from ..partition.partition import Isolation
from ..partition.splitting import range_bytes, split_offsets
from ..segment.names import TopicPartition
from .reader import Read

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import TracebackType

    from ..partition.partition import Partition
    from ..partition.salvage import Damage
    from .directory_admin import DirectoryAdmin


def isolation_of(name: str) -> Isolation:
    """The isolation level of a consumer's option."""
    levels = (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED)
    for level in levels:
        if level.value == name:
            return level
    raise ValueError(f"isolation_level is 'read_committed' or 'read_uncommitted', not {name!r}")


class LogDirectory:
    """Topics and records of a directory that is only read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._data = DataDirectory(path, now_ms=now_ms)

    @property
    def path(self) -> str:
        return self._data.path

    def __enter__(self) -> LogDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LogDirectory({self.path!r}, {len(self._data.partitions)} partitions)"

    def close(self) -> None:
        """Gives up the files; what was read stays valid."""
        self._data.close()

    def admin(self) -> DirectoryAdmin:
        """The administrator, who only looks: topics, options, groups, offsets, transactions, as of now."""
        from .directory_admin import (
            DirectoryAdmin,  # it takes a broker, which who only reads needs not
        )

        return DirectoryAdmin(self._data)

    def topics(self) -> dict[str, list[int]]:
        """Topics and their partitions, sorted."""
        self._data.refresh()
        return self._topics()

    def _topics(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for key in self._data.partitions:
            found.setdefault(key.topic, []).append(key.partition)
        return found

    def _partitions_of(self, topic: str) -> list[int]:
        partitions = self._topics().get(topic)
        if partitions is None:
            known = ", ".join(self._topics())
            others = f"only {known}" if known else "and no other"
            raise UnknownTopicOrPartitionError(f"{self.path} has no topic {topic!r}, {others}")
        return partitions

    def partition(self, topic: str, partition: int) -> Partition:
        """One partition as it is now: its offsets, its aborted transactions, its producers."""
        self._data.refresh()
        return self._partition(topic, partition)

    def _partition(self, topic: str, partition: int) -> Partition:
        key = TopicPartition(topic, partition)
        if key not in self._data:
            known = self._partitions_of(topic)
            here = (
                f"{known[0]} to {known[-1]}"
                if len(known) > 2 and len(known) == known[-1] - known[0] + 1
                else ", ".join(map(str, known))  # of one broker among several
            )
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has partitions {here}, not {partition}"
            )
        return self._data.get(key)

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: int = 0,
        end: int | None = None,
        *,
        isolation_level: str = "read_committed",
        views: bool = False,
        producer: bool = False,
        bytes_max: int | None = None,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Read:
        """Records of a partition (None: of all, one after another) with offsets from ``start`` up to ``end``.

        Unlike Kafka's consumers, readers are read_committed unless told otherwise. With ``views`` keys and values
        point into the mapped files where batches are not compressed; with ``producer`` Arrow batches tell the
        producer of each record; they hold about ``bytes_max`` bytes each. A damaged batch is an error that names its
        file and position, or, with ``on_damage``, is left out and told to it.
        """
        self._data.refresh()
        numbers = self._partitions_of(topic) if partition is None else [partition]
        partitions = [self._partition(topic, number) for number in numbers]
        return Read(
            partitions,
            start,
            end,
            isolation_of(isolation_level),
            views=views,
            producer=producer,
            bytes_max=bytes_max,
            on_damage=on_damage,
        )

    # ------------------------------------------------------------ planning a read

    def bounds(
        self, topic: str, partition: int, *, isolation_level: str = "read_committed"
    ) -> tuple[int, int]:
        """The first offset of a partition, and the one after the last that an isolation level shows."""
        found = self.partition(topic, partition)
        return found.log_start_offset, found.upper_bound(isolation_of(isolation_level))

    def offset_for_timestamp(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        *,
        isolation_level: str = "read_committed",
    ) -> int | None:
        """The offset of the first record at that time or later; None if there is none to be seen."""
        reader = self.partition(topic, partition)
        found = reader.offset_for_timestamp(timestamp_ms, isolation_of(isolation_level))
        return None if found is None else found[1]

    def range_bytes(self, topic: str, partition: int, start: int, end: int) -> int:
        """About how many bytes the batches of [start, end) take, without reading them."""
        return range_bytes(self.partition(topic, partition), start, end)

    def split(self, topic: str, partition: int, start: int, end: int, pieces: int) -> list[int]:
        """Offsets, each the first of a batch, that cut [start, end) into up to so many pieces of about one size.

        The first is ``start``. Only indexes are looked at, so that a small range may come in fewer pieces.
        """
        return split_offsets(self.partition(topic, partition), start, end, pieces)
