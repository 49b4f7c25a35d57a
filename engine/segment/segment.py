"""One segment: a .log file and the indexes that point into it.

A segment is known by its name and size alone; its files are opened, mapped and checked when they are first
needed, so that a directory of thousands of sealed segments opens as fast as it can be listed. Readers see
the bytes below ``size``, which moves only after they are written; everything else is derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .._native.batch import scan_prefix
from .._native.segment import IndexState, seek
from ..base.disk import map_descriptor, map_file
from ..base.errors import BatchError, CorruptFileError, CorruptRecordError, OncelogError
from ..base.rows import ABORTED_DTYPE
from .names import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, file_name
from .offset_index import OffsetIndex
from .time_index import TimeIndex
from .txn_index import TxnIndexFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from ..base.disk import Disk

# Headers are read in windows of this size, so that a walk over a large file holds few rows at a time.
WINDOW_BYTES: Final = 8 << 20
RELATIVE_OFFSET_MAX: Final = 2**31 - 1


@dataclass(frozen=True)
class SegmentOptions:
    """How segments are written; names are those of Kafka's topic options."""

    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096


class Recovered(NamedTuple):
    """What a walk over a segment found: how far it is sound, and what ended it early."""

    size: int
    next_offset: int
    error: OncelogError | None


def next_offset_of(rows: NDArray[np.void]) -> int:
    """The offset after the last of some batches."""
    return int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + 1


class Segment:
    """A .log file and its indexes. One writer; readers in any thread below ``size``."""

    def __init__(
        self,
        directory: str,
        base_offset: int,
        size: int,
        options: SegmentOptions,
        disk: Disk | None = None,
        suffix: str = "",
    ) -> None:
        self.directory = directory
        self.suffix = suffix  # of files that wait to take the place of others
        self.base_offset = base_offset
        self.size = size
        self.options = options
        self.disk = disk  # None: this process may change nothing
        self.offset_index = OffsetIndex(self.path(OFFSET_INDEX), base_offset)
        self.time_index = TimeIndex(self.path(TIME_INDEX), base_offset)
        self.txn_index = TxnIndexFile(self.path(TXN_INDEX), base_offset)
        self.state: IndexState | None = None  # of a segment that is written
        self._indexed = False
        self._descriptor = -1
        self._mapping: Buffer = b""

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)!r}, {self.size} bytes)"

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, suffix)}{self.suffix}"

    # ------------------------------------------------------------ reading

    def view(self) -> memoryview:
        """The bytes below ``size``, mapped; what was handed out stays valid whatever becomes of the file."""
        size = self.size
        if len(memoryview(self._mapping)) < size:
            self._mapping = (
                map_descriptor(self._descriptor, size)
                if self._descriptor >= 0
                else map_file(self.path(LOG))
            )
            if len(memoryview(self._mapping)) < size:
                raise CorruptRecordError(
                    f"the file is shorter than its {size} bytes", file=self.path(LOG)
                )
        return memoryview(self._mapping)[:size]

    def rows(self, position: int = 0, *, check_crc: bool = False) -> Iterator[NDArray[np.void]]:
        """Header rows from a batch's start on, window by window; raises where a batch is damaged."""
        view = self.view()
        while position < len(view):
            rows, position, error = scan_prefix(
                view, position, bytes_max=WINDOW_BYTES, check_crc=check_crc, file=self.path(LOG)
            )
            if len(rows):
                yield rows
            if error is not None:
                raise error

    def position_of(self, offset: int) -> int:
        """Where the first batch starts whose last offset is at least this; ``size`` if there is none."""
        self.need_indexes()
        _, position = self.offset_index.lookup(offset)
        return seek(self.view(), min(position, self.size), offset, file=self.path(LOG))

    def position_of_timestamp(self, timestamp: int, start_offset: int) -> int:
        """Where the first batch starts that may hold a record of that time or later, from an offset on."""
        self.need_indexes()
        _, offset = self.time_index.lookup(timestamp)
        position = self.position_of(max(offset, start_offset))
        return seek(self.view(), position, timestamp, by_timestamp=True, file=self.path(LOG))

    def next_offset(self) -> int:
        """The offset after the last batch: the base offset, if the segment is empty."""
        self.need_indexes()
        _, position = self.offset_index.lookup(self.base_offset + RELATIVE_OFFSET_MAX)
        end = self.base_offset
        for rows in self.rows(min(position, self.size)):
            end = next_offset_of(rows)
        return end

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 if it is empty."""
        if self.state is not None:
            return self.state.max_timestamp
        return self._max_timestamp_entry()[0]

    def _max_timestamp_entry(self) -> tuple[int, int]:
        """(timestamp, last offset of its batch); the time index, and what lies behind its last entry."""
        self.need_indexes()
        timestamp, offset = self.time_index.last
        for rows in self.rows(self.position_of(offset)):
            newest = int(rows["max_timestamp"].argmax())
            if int(rows["max_timestamp"][newest]) > timestamp:
                timestamp = int(rows["max_timestamp"][newest])
                offset = next_offset_of(rows[newest : newest + 1]) - 1
        return timestamp, offset

    @property
    def first_timestamp(self) -> int | None:
        """The first batch's largest timestamp, from which the age of a segment is counted."""
        for rows in self.rows():
            return int(rows["max_timestamp"][0])
        return None

    # ------------------------------------------------------------ indexes

    def need_indexes(self) -> None:
        """Loads the indexes, or makes them anew where they cannot be believed."""
        if self._indexed:
            return
        try:
            self.offset_index.load()
            self.time_index.load()
            self._check_last_entry()
            self._indexed = True
        except (CorruptFileError, FileNotFoundError):
            self.rebuild_indexes()

    def _check_last_entry(self) -> None:
        """The last offset entry must name the batch it points at."""
        if not self.offset_index.count:
            return
        offset, position = self.offset_index.entry(self.offset_index.count - 1)
        found = -1
        if 0 <= position < self.size:
            try:
                found = next_offset_of(next(self.rows(position))[:1]) - 1
            except BatchError:
                found = -1
        if found != offset:
            raise CorruptFileError(
                f"the last entry points offset {offset} to position {position}, where it is not",
                file=self.offset_index.path,
            )

    def rebuild_indexes(self) -> None:
        """Makes the offset and time index anew from the log."""
        state = IndexState(self.options.index_interval_bytes)
        parts = [state.add(rows, self.base_offset) for rows in self.rows()]
        self._take_indexes(state, parts)

    def _take_indexes(self, state: IndexState, parts: list[tuple[bytes, bytes]]) -> None:
        """Entries that were made anew, into the files, or into memory where nothing may be changed."""
        for index, content in (
            (self.offset_index, b"".join(part for part, _ in parts)),
            (self.time_index, b"".join(part for _, part in parts)),
        ):
            index.close()
            if self.disk is None:
                index.hold(content)
            else:
                spare = index.entry_bytes  # for the entry that seals a time index
                index.open(self.disk, max(self.options.segment_index_bytes, len(content) + spare))
                index.append(content)
        self._indexed = True
        if self.disk is None:
            self._hold_last_time(state)
        else:
            self.state = state

    def _hold_last_time(self, state: IndexState) -> None:
        last = state.last_time_entry()
        if last is not None:
            self.time_index.hold(self.time_index.all() + self.time_index.pack(*last))

    # ------------------------------------------------------------ recovery

    def recover(self, replay: Callable[[NDArray[np.void]], NDArray[np.void]]) -> Recovered:
        """Proves every batch, keeps what lies before the first bad one, and makes all derived files anew.

        ``replay`` takes rows into account and returns the transactions that they abort. Where nothing may be
        changed, the same result is held in memory and the files stay as they are.
        """
        view = self.view()
        state = IndexState(self.options.index_interval_bytes)
        parts: list[tuple[bytes, bytes]] = []
        aborted = [np.empty(0, ABORTED_DTYPE)]
        position, next_offset = 0, self.base_offset
        error: OncelogError | None = None
        while position < len(view) and error is None:
            start = position
            rows, position, error = scan_prefix(
                view, start, bytes_max=WINDOW_BYTES, file=self.path(LOG)
            )
            in_order = self._count_in_order(rows, next_offset)
            if in_order < len(rows):
                position = int(rows["position"][in_order])
                error = CorruptRecordError(
                    "the base offset does not follow the batch before it",
                    file=self.path(LOG),
                    position=position,
                    base_offset=int(rows["base_offset"][in_order]),
                )
                rows = rows[:in_order]
            if len(rows):
                aborted.append(replay(rows))
                parts.append(state.add(rows, self.base_offset))
                next_offset = next_offset_of(rows)
        self._cut(position)
        self._take_indexes(state, parts)
        found = np.concatenate(aborted)
        if self.disk is None:
            self.txn_index.hold(found)
        else:
            self.txn_index.rewrite(self.disk, found)
        return Recovered(position, next_offset, error)

    def _count_in_order(self, rows: NDArray[np.void], next_offset: int) -> int:
        """How many rows have offsets that rise from the expected one and stay within reach of the base."""
        ends = rows["base_offset"] + rows["last_offset_delta"] + 1
        expected = np.concatenate(([next_offset], ends[:-1]))
        bad = (
            (rows["base_offset"] < expected)
            | (rows["last_offset_delta"] < 0)
            | (ends - 1 - self.base_offset > RELATIVE_OFFSET_MAX)
        )
        return int(bad.argmax()) if bad.any() else len(rows)

    def _cut(self, size: int) -> None:
        """Ends the log at a position; the file itself only where it may be changed."""
        if size == self.size:
            return
        self.size = size
        self._mapping = memoryview(self._mapping)[:size]
        if self.disk is None:
            return
        if self._descriptor >= 0:
            self.disk.close(self._descriptor)
            self._descriptor = -1
        self.disk.shorten(self.path(LOG), size)
        self._mapping = b""

    # ------------------------------------------------------------ writing

    def create(self) -> None:
        """Makes the empty files of a new segment."""
        assert self.disk is not None
        self._descriptor = self.disk.open(self.path(LOG))
        self._take_indexes(IndexState(self.options.index_interval_bytes), [])

    def resume(self) -> None:
        """Makes a segment that was closed ready to grow."""
        if self.state is not None:
            return
        assert self.disk is not None
        if not self._indexed:
            self.need_indexes()
        timestamp, offset = self._max_timestamp_entry()
        _, position = self.offset_index.lookup(self.base_offset + RELATIVE_OFFSET_MAX)
        state = IndexState(self.options.index_interval_bytes)
        state.resume(timestamp, offset, self.time_index.last[0], self.size - position)
        for index in (self.offset_index, self.time_index):
            index.open(self.disk, self.options.segment_index_bytes, keep=index.count)
        self.state = state  # equal to what a rebuild has just made, if there was one

    @property
    def is_full(self) -> bool:
        """No room in an index for another entry."""
        return self.offset_index.is_full or self.time_index.is_full

    def append(self, data: Buffer, rows: NDArray[np.void], aborted: NDArray[np.void]) -> None:
        """Writes batches at the end, and what they add to the indexes.

        Nothing counts until all of it is written: after an error the segment is as before, and the next
        append overwrites what was left behind. Positions of the rows become those in the file.
        """
        assert self.disk is not None
        assert self.state is not None
        if self._descriptor < 0:
            self._descriptor = self.disk.open(self.path(LOG))
        rows["position"] += self.size
        state = self.state.copy()
        counts = self.offset_index.count, self.time_index.count
        try:
            self.disk.write(self._descriptor, data, self.size)
            offsets, times = state.add(rows, self.base_offset)
            self.offset_index.append(offsets)
            self.time_index.append(times)
            self.txn_index.append(self.disk, aborted)
        except BaseException:
            self.offset_index.count, self.time_index.count = counts
            raise
        self.state = state
        self.size += len(memoryview(data))

    def truncate_to(self, offset: int) -> None:
        """Removes every batch that holds an offset at or above this one."""
        assert self.disk is not None
        position = self.position_of(offset)
        for index in (self.offset_index, self.time_index):
            index.close()
        self._indexed = False
        self.state = None
        self._cut(position)
        self.txn_index.truncate_to(self.disk, offset)
        self.rebuild_indexes()

    def seal(self) -> None:
        """Completes the time index and trims both: the segment will not grow again."""
        if self.state is None:
            return
        last = self.state.last_time_entry()
        if last is not None:
            self.time_index.put(*last)
        self.offset_index.trim()
        self.time_index.trim()
        self.state = None

    def sync(self) -> None:
        """Returns when everything written is on the device, the log before what points into it."""
        assert self.disk is not None
        if self._descriptor >= 0:
            self.disk.sync(self._descriptor)
        self.offset_index.sync()
        self.time_index.sync()
        self.txn_index.sync()

    def close(self) -> None:
        """Gives up the files; a segment that was written is sealed, and its file ends where the log does."""
        if self.disk is not None:
            self.seal()
            if self._descriptor >= 0:
                self.disk.truncate(self._descriptor, self.size)
                self.disk.close(self._descriptor)
                self._descriptor = -1
        self.offset_index.close()
        self.time_index.close()
        self.txn_index.close()
        self._indexed = False
        self._mapping = b""

    def files(self) -> list[str]:
        """Paths of all files the segment may have."""
        return [self.path(suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)]
