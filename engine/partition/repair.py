"""What recovery would do to a directory if it believed no checkpoint, and doing it.

Every batch is proven from the first segment on. The first bad one ends its log; indexes, transaction indexes and
producer snapshots are made anew. Planning works it out in memory and leaves the files as they are, with the same code
that carries it out.

A log is cut where it is bad even if sound batches follow: offsets must not have holes that nobody wrote down. How many
those are is part of the plan, so that whoever decides knows what it costs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ..base.disk import list_files, map_file
from ..base.errors import BatchError, OncelogError
from ..segment.batch import scan_prefix
from ..segment.names import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX, parse_file
from .data_directory import DataDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..base.disk import Disk
    from ..segment.names import TopicPartition
    from .partition import Partition

DERIVED = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
_LENGTH = struct.Struct(">i")
_LENGTH_AT, _PREFIX_BYTES = 8, 12  # of a batch: where its length stands, and what it does not count


class Cut(NamedTuple):
    """A log that ends earlier than its files do."""

    file: str
    position: int
    bytes: int  # that go, in this file and in all behind it
    sound_batches: int  # among them
    why: str


class Repair(NamedTuple):
    """One partition, as it will be or is now."""

    key: TopicPartition
    log_end_offset: int
    cut: Cut | None
    rebuilt: tuple[str, ...]  # derived files that are other than they were

    @property
    def is_needed(self) -> bool:
        return self.cut is not None or bool(self.rebuilt)


def repair(
    path: str,
    disk: Disk | None,
    *,
    now_ms: Callable[[], int],
    damaged: frozenset[str] = frozenset(),
) -> Iterator[Repair]:
    """Recovers all partitions, on disk or, without one, in memory.

    ``damaged`` are the files that a proof of the directory has found fault with, as it names them.
    """
    before = DataDirectory(path, now_ms=now_ms)
    sizes = {key: _logs(before.directory(key)) for key in before.partitions}
    plans: dict[TopicPartition, Cut | None] = {}
    if disk is not None:  # what goes can be counted only as long as it is there
        planned = DataDirectory(path, now_ms=now_ms, trusts_nothing=True)
        plans = {key: _cut(planned.get(key), sizes[key]) for key in planned.partitions}
    data = DataDirectory(path, disk, now_ms=now_ms, trusts_nothing=True)
    try:
        for key in data.partitions:
            partition = data.get(key)
            cut = plans[key] if disk is not None else _cut(partition, sizes[key])
            rebuilt = sorted(
                file
                for file in damaged
                if file.endswith(DERIVED)
                and (file.startswith(f"{key.directory}/") or "/" not in file)
            )
            yield Repair(key, partition.log_end_offset, cut, tuple(rebuilt))
    except BaseException:
        data.abandon()
        raise
    data.close()


def _logs(directory: str) -> dict[int, int]:
    """Base offsets and sizes of the segments that are there."""
    found = {}
    for name, size in list_files(directory, sized=LOG).items():
        parsed = parse_file(name)
        if parsed is not None and parsed[1] == LOG:
            found[parsed[0]] = size
    return found


def _cut(partition: Partition, sizes: dict[int, int]) -> Cut | None:
    """What recovery, done in memory, has left out. Zeros at the end of the last segment are no damage, and stay."""
    kept = {segment.base_offset: segment for segment in partition.log.segments}
    shorter = [
        base
        for base, segment in kept.items()
        if partition.damage and segment.size < sizes.get(base, 0)
    ]
    gone = [base for base in sizes if base not in kept]
    if not shorter and not gone:
        return None
    why = _reason(partition.damage[0]) if partition.damage else "nothing lies above the log start"
    total = sum(sizes.values()) - sum(segment.size for segment in kept.values())
    first = min([*shorter, *gone])
    position = kept[first].size if first in kept else 0
    directory = partition.directory
    sound = sum(
        _sound_behind(f"{directory}/{base:020d}{LOG}", kept[base].size if base in kept else 0)
        for base in sorted({*shorter, *gone})
    )
    return Cut(f"{directory}/{first:020d}{LOG}", position, total, sound, why)


def _reason(damage: OncelogError) -> str:
    """What is wrong, without the place, which the cut names itself, and without what a reader would be told to do."""
    return damage.what if isinstance(damage, BatchError) else str(damage)


def _sound_behind(file: str, position: int) -> int:
    """Sound batches of a file from a position on; a bad one is stepped over by its length, if that leads anywhere."""
    view = memoryview(map_file(file))
    count = 0
    while position + _PREFIX_BYTES <= len(view):
        rows, end, _ = scan_prefix(view, position, bytes_max=8 << 20)
        count += len(rows)
        if end > position:
            position = end
            continue
        (length,) = _LENGTH.unpack_from(view, position + _LENGTH_AT)
        if length <= 0:
            break
        position += _PREFIX_BYTES + length
    return count
