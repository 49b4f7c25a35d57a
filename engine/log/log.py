"""The segments of one partition, in order: append, roll, read, truncate, remove.

Duty         keeps bytes and finds them; what they mean is the partition's business.
Concurrency  one writer, which the partition sees to; readers take ``segments`` once and work on that tuple.
Crash        a segment's files are derived from its .log; names change in steps that loading completes.
"""

from __future__ import annotations

import bisect
import contextlib
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .._native.segment import LogTail
from ..base.disk import exists, list_files
from ..base.errors import OffsetOutOfRangeError, RecordBatchTooLargeError
from ..segment.names import CLEANED, DELETED, LOG, SNAPSHOT, SWAP, file_name, parse_file
from ..segment.segment import RELATIVE_OFFSET_MAX, Segment, SegmentOptions
from .swap import put_in_place, settle, settled_view

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .._native.segment import Batches
    from ..base.disk import Disk

LEFTOVER: Final = ".tmp"  # of a file that was being replaced
SIZED: Final = (LOG, LOG + SWAP)  # files whose sizes loading looks at
# Sealed segments whose descriptors are kept for the next sync; past that the oldest is synced at each roll.
UNSYNCED_MAX: Final = 16


NEVER: Final = 2**63 - 1


@dataclass(frozen=True)
class LogOptions:
    """How a log rolls, and when it is forced to the device beside what durability asks for; names are those of Kafka's topic options."""

    segment: SegmentOptions = field(default_factory=SegmentOptions)
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    flush_messages: int = NEVER
    flush_ms: int = NEVER

    def jitter_ms_of(self, base_offset: int, directory: str) -> int:
        """How much earlier than segment.ms a segment rolls: spread over logs and segments, the same each time."""
        limit = min(self.segment_jitter_ms, self.segment_ms)
        return zlib.crc32(f"{directory}/{base_offset}".encode()) % limit if limit > 0 else 0


class Log(LogTail):
    """Ordered segments of one directory; the last one is active."""

    def __init__(self, directory: str, options: LogOptions, disk: Disk | None = None) -> None:
        self.directory = directory
        self._options = options
        self.disk = disk  # None: this process may change nothing
        self.segments: tuple[Segment, ...] = ()
        self.truncations = (
            0  # how often the end was cut: whoever has read the log may have to start over
        )
        self._active_since_ms: int | None = None
        self._half_made: Segment | None = None  # by a roll that failed; its files must go
        self._names_synced = True
        self._load()

    # ------------------------------------------------------------ loading

    def _load(self) -> None:
        segments = self.options.segment
        if self.disk is None:
            names = list_files(self.directory, sized=SIZED)
            found = settled_view(self.directory, segments, names, Segment)
        else:
            names = list_files(self.directory, sized=SIZED)
            sizes = settle(self.directory, segments, names, self.disk)
            found = {}
            for name, size in sizes.items():
                parsed = parse_file(name)
                if parsed and parsed[1] == LOG:
                    found[parsed[0]] = Segment(self.directory, parsed[0], size, segments, self.disk)
            self._remove_leftovers(sizes, set(found))
        self.segments = tuple(found[base] for base in sorted(found))

    def _remove_leftovers(self, sizes: dict[str, int], bases: set[int]) -> None:
        """Removes what a crash has left half done, and files that belong to no segment.

        Snapshots stay that lie at a segment's start, and the newest if it lies past them all: a clean stop's.
        """
        assert self.disk is not None
        parsed_names = {name: parse_file(name) for name in sizes}
        taken = [found[0] for found in parsed_names.values() if found and found[1] == SNAPSHOT]
        newest = max(taken, default=-1)
        kept = bases | ({newest} if newest > max(bases, default=-1) else set())
        for name, parsed in parsed_names.items():
            is_orphan = parsed is not None and (
                parsed[0] not in (kept if parsed[1] == SNAPSHOT else bases)
            )
            if is_orphan or name.endswith((DELETED, CLEANED, SWAP, LEFTOVER)):
                self.disk.remove(f"{self.directory}/{name}")

    def _remove_files(self, segment: Segment) -> None:
        """Takes a segment's files away: out of sight first, so that a crash leaves all of it or none."""
        if self.disk is None:
            segment.close()
            return
        segment.detach()
        paths = [path for path in segment.files() if exists(path)]
        for path in paths:
            self.disk.rename(path, path + DELETED)
        for path in paths:
            self.disk.remove(path + DELETED)
        self._names_synced = False

    # ------------------------------------------------------------ reading

    @property
    def options(self) -> LogOptions:
        return self._options

    @options.setter
    def options(self, options: LogOptions) -> None:
        """Other rules, from the next append on."""
        self._options = options
        for segment in self.segments[-1:]:
            if segment.state is not None:
                segment.state.allow(-1, -1, -1)

    def follow(self, segments: tuple[Segment, ...], end_offset: int) -> None:
        """For a log that another process is writing: the segments that it has now, and where it ends."""
        self.known_end = end_offset
        self.segments = segments

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        if self.known_end is None:
            self.known_end = self.active.next_offset() if self.segments else 0
        return self.known_end

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segment that holds an offset, or would, and all after it."""
        segments = self.segments
        if segments and segments[-1].base_offset <= offset:  # as for all who follow the log's end
            return segments[-1:]
        index = bisect.bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        return segments[max(index, 0) :]

    # ------------------------------------------------------------ writing

    def start_at(self, offset: int, now_ms: int) -> None:
        """Makes the first segment of an empty log."""
        self._remove_half_made()
        self.segments = (self._new_segment(offset),)
        self.known_end = offset
        self._active_since_ms = now_ms

    def _new_segment(self, base_offset: int) -> Segment:
        assert self.disk is not None
        segment = Segment(self.directory, base_offset, 0, self.options.segment, self.disk)
        for path in segment.files():  # an empty one of the same base is replaced
            self.disk.remove(path)
        self._half_made = segment
        self._names_synced = False
        try:
            segment.create()
        except BaseException:
            with contextlib.suppress(OSError):
                self._remove_half_made()
            raise
        self._half_made = None
        return segment

    def _remove_half_made(self) -> None:
        """Removes the files of a segment that could not be made: left there, it would end the log too early."""
        if self._half_made is None:
            return
        assert self.disk is not None
        for path in self._half_made.files():
            self.disk.remove(path)
        self._half_made.detach()
        self._half_made = None

    def append(
        self, data: Buffer, batches: Batches, aborted: NDArray[np.void] | None = None
    ) -> None:
        """Writes stamped batches at the end of the active segment, and the transactions that they abort."""
        segment = self.segments[-1]
        if self._half_made is not None:
            self._remove_half_made()
        if segment.state is None:
            segment.resume()
        if aborted is not None:
            self._names_synced = False  # the first one makes the transaction index
        has_entries = segment.append(data, batches, aborted)
        self.known_end = batches.next_offset
        if has_entries and not segment.is_full:
            self._allow(segment)

    def must_roll(self, batches: Batches, now_ms: int) -> bool:
        """Whether batches belong into a new segment."""
        segment = self.segments[-1]
        state = segment.state
        if state is not None and state.has_room(batches, segment.size):
            return False
        if self._is_full(segment, batches, now_ms):
            return True
        self._allow(segment)
        return False

    def _allow(self, segment: Segment) -> None:
        """Says up to where this segment need not be asked for again, as long as its indexes have room.

        Not while the files of another are to be removed first: an append that is allowed does not look.
        """
        first, state = segment.first_timestamp, segment.state
        if self._half_made is None and state is not None and first is not None and first >= 0:
            bytes_max = self.options.segment.segment_bytes
            state.allow(
                # Where its file is made long ahead, whoever reaches the end of it has to make it longer.
                min(bytes_max, segment.file_end) if segment.options.bytes_ahead else bytes_max,
                segment.base_offset + RELATIVE_OFFSET_MAX,
                first + self._age_max_ms(segment),
            )

    def _is_full(self, segment: Segment, batches: Batches, now_ms: int) -> bool:
        """Whether a segment is too large, too old or too short of index entries for batches."""
        size, bytes_max = batches.nbytes, self.options.segment.segment_bytes
        if size > bytes_max:
            raise RecordBatchTooLargeError(
                f"{size} bytes do not fit into a segment of segment.bytes = {bytes_max}"
            )
        is_out_of_reach = batches.next_offset - 1 - segment.base_offset > RELATIVE_OFFSET_MAX
        if segment.size == 0:
            return is_out_of_reach
        if segment.state is None:
            segment.resume()
        return (
            is_out_of_reach
            or segment.size + size > bytes_max
            or segment.is_full
            or self._is_old(segment, batches.max_timestamp, now_ms)
        )

    def _is_old(self, segment: Segment, max_timestamp: int, now_ms: int) -> bool:
        """Kafka counts a segment's age in its records' time where they have one."""
        limit = self._age_max_ms(segment)
        first = segment.first_timestamp
        if first is not None and first >= 0:
            return max_timestamp - first > limit
        if self._active_since_ms is None:
            self._active_since_ms = now_ms
        return now_ms - self._active_since_ms > limit

    def _age_max_ms(self, segment: Segment) -> int:
        options = self.options
        if not options.segment_jitter_ms:
            return options.segment_ms
        return options.segment_ms - options.jitter_ms_of(segment.base_offset, self.directory)

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Seals the active segment and starts a new one, at the log's end unless an offset past it is given.

        After an error the log is as before: the sealed segment is resumed by the next append.
        """
        base_offset = self.end_offset if base_offset is None else base_offset
        if base_offset < max(self.end_offset, self.active.base_offset):
            raise OffsetOutOfRangeError(
                f"cannot roll to {base_offset}, below the log's end, {self.end_offset}"
            )
        if base_offset == self.active.base_offset and self.active.size == 0:
            return self.active
        if self.active.size == 0:
            self._replace_empty(base_offset)
        else:
            self.active.seal()
            self.segments = (*self.segments, self._new_segment(base_offset))
        self.known_end = base_offset
        self._active_since_ms = now_ms
        return self.active

    def _replace_empty(self, base_offset: int) -> None:
        """An empty active segment whose base lies too far below gives way to one that is within reach."""
        empty, fresh = self.active, self._new_segment(base_offset)
        self.segments = (*self.segments[:-1], fresh)
        self._remove_files(empty)

    def remove(self, gone: tuple[Segment, ...]) -> None:
        """Drops whole segments; readers that have them mapped keep what they see.

        Oldest first where they are the log's beginning, newest first otherwise: a crash in between leaves a
        log without a hole.
        """
        from_start = (
            bool(gone) and gone[0] is self.segments[0] and gone[-1] is not self.segments[-1]
        )
        self.segments = tuple(segment for segment in self.segments if segment not in gone)
        for segment in gone if from_start else reversed(gone):
            self._remove_files(segment)

    def replace(self, cleaned: Segment, old: tuple[Segment, ...]) -> Segment:
        """Puts a .swap segment in the place of others; readers that have those go on with them."""
        assert self.disk is not None
        fresh = put_in_place(
            self.directory, cleaned.base_offset, old, self.options.segment, self.disk
        )
        kept = [segment for segment in self.segments if segment not in old]
        self.segments = tuple(sorted([*kept, fresh], key=lambda segment: segment.base_offset))
        return fresh

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Removes every batch that holds this offset or one above."""
        if offset >= self.end_offset:
            return
        self.truncations += 1
        gone = tuple(segment for segment in self.segments if segment.base_offset >= offset)
        if len(gone) == len(self.segments):
            self.remove(gone)
            self.start_at(offset, now_ms)
            return
        self.remove(gone)
        self.active.truncate_to(offset)
        self.known_end = None
        self._names_synced = False

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Empties the log and goes on at an offset."""
        self.truncations += 1
        self.remove(self.segments)
        self.start_at(offset, now_ms)

    def sync(self, from_offset: int) -> None:
        """Returns when everything from an offset on is on the device, the names of the files included."""
        assert self.disk is not None
        for segment in self.from_offset(from_offset - 1):  # that one may have been sealed since
            segment.sync()
        if not self._names_synced:
            self.disk.sync_directory(self.directory)
            self._names_synced = True

    def forget_end(self) -> None:
        """The end is found in the active segment when it is next asked for."""
        self.known_end = None

    def note_name(self) -> None:
        """A file was made or renamed in the directory: the next sync includes it."""
        self._names_synced = False

    def sync_backlog(self) -> None:
        """Keeps the number of sealed segments that wait for a sync, and their descriptors, within bounds."""
        if len(self.segments) > UNSYNCED_MAX:
            self.segments[-1 - UNSYNCED_MAX].sync()

    def seal(self) -> None:
        """Trims all files to what they hold, as a clean stop leaves them."""
        self._remove_half_made()
        for segment in self.segments:
            segment.seal()

    def close(self) -> None:
        """Gives up all files, those of segments that cannot be closed as well."""
        errors = []
        for segment in self.segments:
            try:
                segment.close()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT)}"

    def snapshots(self) -> list[int]:
        """Offsets of the producer snapshots in the directory, rising."""
        parsed = (parse_file(name) for name in list_files(self.directory))
        return sorted(found[0] for found in parsed if found and found[1] == SNAPSHOT)
