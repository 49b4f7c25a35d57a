"""The segments of one partition, in order: append, roll, read, truncate, remove.

Duty         keeps bytes and finds them; what they mean is the partition's business.
Concurrency  one writer, which the partition sees to; readers take ``segments`` once and work on that tuple.
Crash        a segment's files are derived from its .log; names change in steps that loading completes.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..base.disk import exists, list_files
from ..base.errors import OffsetOutOfRangeError
from ..segment.names import CLEANED, DELETED, LOG, SNAPSHOT, SWAP, file_name, parse_file
from ..segment.segment import RELATIVE_OFFSET_MAX, Segment, SegmentOptions, next_offset_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from ..base.disk import Disk

LEFTOVER: Final = ".tmp"  # of a file that was being replaced


@dataclass(frozen=True)
class LogOptions:
    """How a log rolls; names are those of Kafka's topic options."""

    segment: SegmentOptions = field(default_factory=SegmentOptions)
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0


class Log:
    """Ordered segments of one directory; the last one is active."""

    def __init__(self, directory: str, options: LogOptions, disk: Disk | None = None) -> None:
        self.directory = directory
        self.options = options
        self.disk = disk  # None: this process may change nothing
        self.segments: tuple[Segment, ...] = ()
        self._end_offset: int | None = None
        self._active_since_ms: int | None = None
        self._load()

    # ------------------------------------------------------------ loading

    def _load(self) -> None:
        sizes = list_files(self.directory)
        swapped = self._swapped(sizes)
        found = {}
        for name, size in sizes.items():
            parsed = parse_file(name)
            if parsed and parsed[1] == LOG:
                found[parsed[0]] = Segment(
                    self.directory, parsed[0], size, self.options.segment, self.disk
                )
        if swapped:
            start = min(segment.base_offset for segment in swapped)
            end = max(segment.next_offset() for segment in swapped)
            for base_offset in [base for base in found if start <= base < end]:
                replaced = found.pop(base_offset)
                self._remove_files(replaced)
            for segment in swapped:
                found[segment.base_offset] = self._swap_in(segment)
        if self.disk is not None:
            self._remove_leftovers(sizes, set(found))
        self.segments = tuple(found[base] for base in sorted(found))

    def _swapped(self, sizes: dict[str, int]) -> list[Segment]:
        """Cleaned segments that were about to take their place when the process died.

        While any .cleaned file is left, the new segments were not complete and the old ones still count.
        """
        if any(name.endswith(CLEANED) for name in sizes):
            return []
        swapped = []
        for name, size in sizes.items():
            parsed = parse_file(name.removesuffix(SWAP)) if name.endswith(SWAP) else None
            if parsed and parsed[1] == LOG:
                swapped.append(
                    Segment(self.directory, parsed[0], size, self.options.segment, self.disk, SWAP)
                )
        return swapped

    def _swap_in(self, segment: Segment) -> Segment:
        if self.disk is None:
            return segment
        segment.close()
        for path in segment.files():
            if exists(path):
                self.disk.rename(path, path.removesuffix(SWAP))
        self.disk.sync_directory(self.directory)
        return Segment(
            self.directory, segment.base_offset, segment.size, self.options.segment, self.disk
        )

    def _remove_leftovers(self, sizes: dict[str, int], bases: set[int]) -> None:
        assert self.disk is not None
        for name in sizes:
            parsed = parse_file(name)
            is_orphan = (
                parsed is not None and parsed[1] not in (LOG, SNAPSHOT) and parsed[0] not in bases
            )
            if is_orphan or name.endswith((DELETED, CLEANED, SWAP, LEFTOVER)):
                self.disk.remove(f"{self.directory}/{name}")

    def _remove_files(self, segment: Segment) -> None:
        """Takes a segment's files away: out of sight first, so that a crash leaves all of it or none."""
        segment.close()
        if self.disk is None:
            return
        paths = [path for path in segment.files() if exists(path)]
        for path in paths:
            self.disk.rename(path, path + DELETED)
        for path in paths:
            self.disk.remove(path + DELETED)

    # ------------------------------------------------------------ reading

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        if self._end_offset is None:
            self._end_offset = self.active.next_offset() if self.segments else 0
        return self._end_offset

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segment that holds an offset, or would, and all after it."""
        segments = self.segments
        index = bisect.bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        return segments[max(index, 0) :]

    # ------------------------------------------------------------ writing

    def start_at(self, offset: int, now_ms: int) -> None:
        """Makes the first segment of an empty log."""
        self.segments = (self._new_segment(offset),)
        self._end_offset = offset
        self._active_since_ms = now_ms

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.directory, base_offset, 0, self.options.segment, self.disk)
        for path in segment.files():  # an empty one of the same base is replaced
            assert self.disk is not None
            self.disk.remove(path)
        segment.create()
        return segment

    def append(self, data: Buffer, rows: NDArray[np.void], aborted: NDArray[np.void]) -> None:
        """Writes stamped batches at the end of the active segment."""
        segment = self.active
        segment.resume()
        segment.append(data, rows, aborted)
        self._end_offset = next_offset_of(rows)

    def must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether batches of this size, end and time belong into a new segment."""
        segment, options = self.active, self.options
        if segment.size == 0:
            return last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        segment.resume()
        return (
            segment.size + size > options.segment.segment_bytes
            or segment.is_full
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or self._age_ms(max_timestamp, now_ms) > options.segment_ms - options.segment_jitter_ms
        )

    def _age_ms(self, max_timestamp: int, now_ms: int) -> int:
        """Kafka counts a segment's age in its records' time where they have one."""
        first = self.active.first_timestamp
        if first is not None and first >= 0:
            return max_timestamp - first
        if self._active_since_ms is None:
            self._active_since_ms = now_ms
        return now_ms - self._active_since_ms

    def roll(self, now_ms: int) -> Segment:
        """Seals the active segment and starts a new one at the log's end."""
        base_offset = self.end_offset
        if base_offset < self.active.base_offset:
            raise OffsetOutOfRangeError(
                f"cannot roll to {base_offset}, below the active segment's {self.active.base_offset}"
            )
        if base_offset == self.active.base_offset and self.active.size == 0:
            return self.active
        self.active.resume()
        segment = self._new_segment(base_offset)
        self.active.seal()
        self.segments = (*self.segments, segment)
        self._active_since_ms = now_ms
        return segment

    def remove(self, gone: tuple[Segment, ...]) -> None:
        """Drops whole segments; readers that have them mapped keep what they see."""
        self.segments = tuple(segment for segment in self.segments if segment not in gone)
        for segment in gone:
            self._remove_files(segment)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Removes every batch that holds this offset or one above."""
        if offset >= self.end_offset:
            return
        gone = tuple(segment for segment in self.segments if segment.base_offset >= offset)
        if len(gone) == len(self.segments):
            self.remove(gone)
            self.start_at(offset, now_ms)
            return
        self.remove(gone)
        self.active.truncate_to(offset)
        self._end_offset = None

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Empties the log and goes on at an offset."""
        self.remove(self.segments)
        self.start_at(offset, now_ms)

    def sync(self, from_offset: int) -> None:
        """Returns when everything from an offset on is on the device."""
        assert self.disk is not None
        for segment in self.from_offset(from_offset):
            segment.sync()

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT)}"

    def snapshots(self) -> list[int]:
        """Offsets of the producer snapshots in the directory, rising."""
        parsed = (parse_file(name) for name in list_files(self.directory))
        return sorted(found[0] for found in parsed if found and found[1] == SNAPSHOT)
