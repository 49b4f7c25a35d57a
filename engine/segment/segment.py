"""One segment: a .log file and the indexes that point into it.

A segment is known by its name and size alone; its files are opened, mapped and checked when they are first
needed, so that a directory of thousands of sealed segments opens as fast as it can be listed. Readers see
the bytes below ``size``, which moves only after they are written; everything else is derived from them.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .._native.batch import scan_prefix
from .._native.segment import IndexState, SegmentTail, seek
from ..base.disk import file_size, map_descriptor, map_file, read_at, read_descriptor
from ..base.errors import (
    BatchError,
    CorruptFileError,
    CorruptRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    OncelogError,
)
from ..base.rows import ABORTED_DTYPE, HEADER_DTYPE
from .names import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, file_name
from .offset_index import OffsetIndex
from .time_index import TimeIndex
from .txn_index import TxnIndexFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .._native.segment import Batches
    from ..base.disk import Disk

# Headers are read in windows of this size, so that a walk over a large file holds few rows at a time.
WINDOW_BYTES: Final = 8 << 20
# New bytes of a file that grows are copied up to here, and mapped beyond.
COPIED_BYTES_MAX: Final = 1 << 16
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
NO_ENTRIES: Final = (b"", b"")


@dataclass(frozen=True)
class SegmentOptions:
    """How segments are written; names are those of Kafka's topic options."""

    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    # By how much a file that is written is made longer than its log; 0: it grows with it.
    bytes_ahead: int = 0


class Recovered(NamedTuple):
    """What a walk over a segment found: how far it is sound, and what ended it early."""

    size: int
    next_offset: int
    error: OncelogError | None


def next_offset_of(rows: NDArray[np.void]) -> int:
    """The offset after the last of some batches."""
    return int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + 1


class Segment(SegmentTail):
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
        self.disk = disk
        stem = f"{directory}/{file_name(base_offset, '')}"
        self.offset_index: OffsetIndex = OffsetIndex(f"{stem}{OFFSET_INDEX}{suffix}", base_offset)
        self.time_index: TimeIndex = TimeIndex(f"{stem}{TIME_INDEX}{suffix}", base_offset)
        self.txn_index = TxnIndexFile(f"{stem}{TXN_INDEX}{suffix}", base_offset)
        self._indexed = False
        self._descriptor = -1
        self._mapping: Buffer = b""
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = None  # of a segment that does not grow
        self.file_end = 0  # up to where the file was made long ahead; 0: it ends with the log
        self._is_synced = True
        self._files = threading.RLock()  # held while files are opened, replaced or given up

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)!r}, {self.size} bytes)"

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, suffix)}{self.suffix}"

    # ------------------------------------------------------------ reading

    def view(self) -> memoryview:
        """The bytes below ``size``, mapped; what was handed out stays valid whatever becomes of the file."""
        size, mapping = self.size, memoryview(self._mapping)
        if len(mapping) < size:
            with self._files:
                size = self.size
                try:
                    self._mapping = (
                        map_descriptor(self._descriptor, size)
                        if self._descriptor >= 0
                        else map_file(self.path(LOG))
                        if self.disk is not None
                        else self.txn_index.pin_with(self.path(LOG))
                    )
                except FileNotFoundError:
                    raise OffsetOutOfRangeError(
                        f"{self.path(LOG)} was removed since it was listed"
                    ) from None
                mapping = memoryview(self._mapping)
            if len(mapping) < size:
                raise CorruptRecordError(
                    f"the file is shorter than its {size} bytes", file=self.path(LOG)
                )
        return mapping[:size]

    def view_from(self, position: int) -> tuple[Buffer, int]:
        """Bytes from a position on at least, and the position where they start: mapped, and so the file's start.

        Where only a few were written since the last mapping they are copied: a follower of the log would otherwise
        have the whole file mapped anew for each batch.
        """
        if len(memoryview(self._mapping)) < self.size <= position + COPIED_BYTES_MAX:
            with self._files:
                size = self.size
                if self._descriptor >= 0 and position < size:
                    return read_descriptor(self._descriptor, position, size - position), position
        return self.view(), 0

    def rows(
        self, position: int = 0, *, check_crc: bool = False, bytes_max: int | None = None
    ) -> Iterator[NDArray[np.void]]:
        """Header rows from a batch's start on, window by window; raises where a batch is damaged.

        A base offset lies outside the checksum; that offsets rise is all there is to tell a wrong one.
        """
        view, next_offset = self.view(), self.base_offset
        while position < len(view):
            rows, position, error = self._sound_rows(
                view, position, next_offset, check_crc=check_crc, bytes_max=bytes_max
            )
            if len(rows):
                next_offset = next_offset_of(rows)
                yield rows
            if error is not None:
                raise error

    def _sound_rows(
        self,
        view: memoryview,
        position: int,
        next_offset: int,
        *,
        check_crc: bool,
        bytes_max: int | None = None,
    ) -> tuple[NDArray[np.void], int, OncelogError | None]:
        """One window of rows as far as they are sound and in order, where they end, and what is wrong there."""
        window = WINDOW_BYTES if bytes_max is None else bytes_max
        rows, end, error = scan_prefix(
            view, position, bytes_max=window, check_crc=check_crc, file=self.path(LOG)
        )
        in_order = self._count_in_order(rows, next_offset)
        if in_order == len(rows):
            return rows, end, error
        end = int(rows["position"][in_order])
        wrong = CorruptRecordError(
            "the base offset does not follow the batch before it",
            file=self.path(LOG),
            position=end,
            base_offset=int(rows["base_offset"][in_order]),
        )
        return rows[:in_order], end, wrong

    def position_of(self, offset: int) -> int:
        """Where the first batch starts whose last offset is at least this; ``size`` if there is none."""
        position = self._start_for(offset)
        return seek(self.view(), position, offset, file=self.path(LOG))

    def _start_for(self, offset: int) -> int:
        """Where a search for an offset may start: what the index says, if the batch there bears it out."""
        self.need_indexes()
        named, position = self.offset_index.lookup(offset)
        if self.state is not None and position >= self.size:
            return self.size  # the entry of a batch that does not count yet
        if position and self._last_offset_at(position) != named:
            position = self.offset_index.lookup(offset)[1] if self._mend_indexes() else 0
        return position

    def _mend_indexes(self) -> bool:
        """Makes indexes anew that the log does not bear out, but not under the hands of a writer."""
        if self.state is not None:
            return False
        self.rebuild_indexes()
        return True

    def first_row(self, position: int) -> NDArray[np.void]:
        """The header of the batch that starts at a position, or nothing."""
        view = self.view()
        if not 0 <= position < len(view):
            return np.empty(0, HEADER_DTYPE)
        return scan_prefix(view[position:], bytes_max=1, check_crc=False)[0]

    def _last_offset_at(self, position: int) -> int:
        """The last offset of the batch that starts at a position; -1 if none does."""
        rows = self.first_row(position)
        return next_offset_of(rows) - 1 if len(rows) else -1

    def position_of_timestamp(self, timestamp: int, start_offset: int) -> int:
        """Where the first batch starts that may hold a record of that time or later, from an offset on."""
        self.need_indexes()
        entry = self.time_index.lookup(timestamp)
        if not self._is_in_log(entry):
            mended = self._mend_indexes()
            entry = self.time_index.lookup(timestamp) if mended else (-1, self.base_offset)
        position = self.position_of(max(entry[1], start_offset))
        return seek(self.view(), position, timestamp, by_timestamp=True, file=self.path(LOG))

    def next_offset(self) -> int:
        """The offset after the last batch, which is proven: where a log goes on hangs on it. The base offset, if
        the segment is empty."""
        end = self.base_offset
        start = self._start_for(self.base_offset + RELATIVE_OFFSET_MAX)
        last = -1
        for rows in self.rows(start):
            end, last = next_offset_of(rows), int(rows["position"][-1])
        if last >= 0:
            _, _, error = scan_prefix(self.view(), last, file=self.path(LOG))
            if error is not None:
                raise error
        return end

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 if it is empty."""
        state = self.state
        if state is not None:
            return state.max_timestamp
        if self._max_timestamp is None:
            self._max_timestamp = self._max_timestamp_entry()[0]
        return self._max_timestamp

    def _max_timestamp_entry(self) -> tuple[int, int]:
        """(timestamp, last offset of its batch); the time index, and what lies behind its last entry."""
        self.need_indexes()
        timestamp, offset = self.time_index.last
        if not self._is_in_log((timestamp, offset)):
            mended = self._mend_indexes()
            timestamp, offset = self.time_index.last if mended else (-1, self.base_offset)
        for rows in self.rows(self.position_of(offset)):
            newest = int(rows["max_timestamp"].argmax())
            if int(rows["max_timestamp"][newest]) > timestamp:
                timestamp = int(rows["max_timestamp"][newest])
                offset = next_offset_of(rows[newest : newest + 1]) - 1
        return timestamp, offset

    def _is_in_log(self, entry: tuple[int, int]) -> bool:
        """Whether the batch that a time index entry names has that timestamp."""
        timestamp, offset = entry
        if entry == (-1, self.base_offset):
            return True  # not an entry: the index has none so early
        rows = self.first_row(self.position_of(offset))
        return bool(
            timestamp >= 0
            and len(rows)
            and rows["base_offset"][0] <= offset
            and rows["max_timestamp"][0] == timestamp
        )

    @property
    def first_timestamp(self) -> int | None:
        """The first batch's largest timestamp, from which the age of a segment is counted."""
        if self._first_timestamp is None:
            rows = self.first_row(0)
            self._first_timestamp = int(rows["max_timestamp"][0]) if len(rows) else None
        return self._first_timestamp

    # ------------------------------------------------------------ indexes

    def need_indexes(self) -> None:
        """Loads the indexes, or makes them anew where they cannot be believed."""
        if not self._indexed:
            with self._files:
                self._load_indexes()

    def _load_indexes(self) -> None:
        if self._indexed:
            return  # another thread was faster
        try:
            self.offset_index.load()
            self.time_index.load()
            self._check_last_entry()
            self._indexed = True
        except (CorruptFileError, FileNotFoundError):
            self.rebuild_indexes()

    def _check_last_entry(self) -> None:
        """The last offset entry must name the batch it points at; others are checked when they are used."""
        if not self.offset_index.count:
            return
        offset, position = self.offset_index.entry(self.offset_index.count - 1)
        if self._last_offset_at(position) != offset:
            raise CorruptFileError(
                f"the last entry points offset {offset} to position {position}, where it is not",
                file=self.offset_index.path,
            )

    def rebuild_indexes(self) -> None:
        """Makes the offset and time index anew from the log, as far as it is sound."""
        state = IndexState(self.options.index_interval_bytes)
        parts: list[tuple[bytes, bytes]] = []
        with self._files:
            with contextlib.suppress(BatchError):  # whoever reads that far will meet it
                parts.extend(state.add(rows, self.base_offset) for rows in self.rows())
            try:
                self._take_indexes(state, parts)
                self.seal()  # whoever writes resumes it
            except OSError as error:
                raise KafkaStorageError(f"{self.path(OFFSET_INDEX)}: {error}") from error

    def _take_indexes(self, state: IndexState, parts: list[tuple[bytes, bytes]]) -> None:
        """Entries that were made anew, into the files, or into memory where nothing may be changed."""
        self._indexed = False
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

    def recover(
        self,
        replay: Callable[[NDArray[np.void]], NDArray[np.void]],
        *,
        before_cut: Callable[[], None] = lambda: None,
        is_last: bool = False,
    ) -> Recovered:
        """Proves every batch, keeps what lies before the first bad one, and makes all derived files anew.

        ``replay`` takes rows into account and returns the transactions that they abort; ``before_cut`` is
        called where the segment ends early, before any file is changed. Where nothing may be changed, the same
        result is held in memory and the files stay as they are. That the last segment of a log ends in zeros is no
        damage: it was written, and its file was longer than its log.
        """
        view = self.view()
        state = IndexState(self.options.index_interval_bytes)
        parts: list[tuple[bytes, bytes]] = []
        aborted = [np.empty(0, ABORTED_DTYPE)]
        position, next_offset = 0, self.base_offset
        error: OncelogError | None = None
        while position < len(view) and error is None:
            rows, position, error = self._sound_rows(view, position, next_offset, check_crc=True)
            if len(rows):
                aborted.append(replay(rows))
                parts.append(state.add(rows, self.base_offset))
                next_offset = next_offset_of(rows)
        is_ahead = error is not None and is_last and self._is_zero_from(position)
        if is_ahead:
            error = None
        if error is not None:
            before_cut()
        with self._files:
            if is_ahead:
                self._end_at(position)
            else:
                self._cut(position)
            self._take_indexes(state, parts)
            self._is_synced = False  # the process that wrote these bytes may not have seen to it
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

    def _is_zero_from(self, position: int) -> bool:
        """Whether only zeros follow. They are read, not mapped: where this process may change nothing, the next writer
        may cut them off meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            while position < self.size:
                part = read_at(self.path(LOG), position, WINDOW_BYTES)
                if part.strip(b"\0"):
                    return False
                position = position + len(part) if part else self.size
        return True

    def _end_at(self, size: int) -> None:
        """Ends the log at a position, and leaves the file as it is."""
        self.size = size
        self._mapping = memoryview(self._mapping)[:size]
        if self.disk is not None and self._descriptor < 0:
            self._descriptor = self.disk.open(self.path(LOG))  # whoever seals it will trim it

    def _cut(self, size: int) -> None:
        """Ends the log at a position; the file itself only where it may be changed."""
        if size == self.size:
            return
        self.size = size
        self._mapping = memoryview(self._mapping)[:size]
        if self.disk is None:
            return
        self.file_end = 0
        if self._descriptor >= 0:
            self.disk.close(self._descriptor)
            self._descriptor = -1
        self.disk.shorten(self.path(LOG), size)
        self._mapping = b""

    # ------------------------------------------------------------ writing

    def create(self) -> None:
        """Makes the empty files of a new segment."""
        assert self.disk is not None
        self._is_synced = False
        self._descriptor = self.disk.open(self.path(LOG))
        self._take_indexes(IndexState(self.options.index_interval_bytes), [])

    def resume(self) -> None:
        """Makes a segment that was closed ready to grow."""
        if self.state is not None:
            return
        assert self.disk is not None
        with self._files:
            timestamp, offset = self._max_timestamp_entry()
            position = self._start_for(self.base_offset + RELATIVE_OFFSET_MAX)
            state = IndexState(self.options.index_interval_bytes)
            state.resume(timestamp, offset, self.time_index.last[0], self.size - position)
            for index in (self.offset_index, self.time_index):
                index.open(self.disk, self.options.segment_index_bytes, keep=index.count)
            self.state = state  # equal to what a rebuild has just made, if there was one

    @property
    def is_full(self) -> bool:
        """No room in an index for another entry."""
        offsets, times = self.offset_index, self.time_index
        return offsets.count >= offsets.count_max or times.count >= times.count_max

    def append(
        self, data: Buffer, batches: Batches, aborted: NDArray[np.void] | None = None
    ) -> bool:
        """Writes batches at the end, and what they add to the indexes; whether they add anything.

        Nothing counts until all of it is written: after an error the segment is as before, and the next
        append first wipes out what was left behind. Positions of the rows become those in the file.
        """
        disk, state = self.disk, self.state
        assert disk is not None
        assert state is not None
        if batches.next_offset > self.base_offset + RELATIVE_OFFSET_MAX + 1:
            raise OffsetOutOfRangeError(
                f"offset {batches.next_offset - 1} is too far above base offset {self.base_offset}"
            )
        if self._descriptor < 0:
            self._descriptor = disk.open(self.path(LOG))
        if self._torn_end:
            self._wipe_torn()
        start = self.size
        end = start + batches.nbytes
        if end > self.file_end and self.options.bytes_ahead:
            self._reach_ahead(end)
        entries = state.prepare(batches, self.base_offset, start)
        self._is_synced = False
        try:
            disk.write(self._descriptor, data, start)
            if entries is not None or aborted is not None:
                self._add_entries(entries or NO_ENTRIES, aborted)
        except BaseException:
            self._torn_end = end
            raise
        if not start:
            self._first_timestamp = batches.first_timestamp
        state.take()
        self.size = end
        return entries is not None

    def _reach_ahead(self, end: int) -> None:
        """Makes the file longer than an append needs, with zeros that take no room on the device.

        A sync after an append within the file's size writes the append alone. Where the file grows, its size goes
        through the file system's journal as well, at every sync.
        """
        assert self.disk is not None
        size = file_size(self._descriptor)  # that of a file that was recovered may do
        if size < end:
            options = self.options
            size = max(end, min(end + options.bytes_ahead, options.segment_bytes))
            self.disk.truncate(self._descriptor, size)
        self.file_end = size

    def trim(self) -> None:
        """Ends the file where the log does."""
        if self._descriptor >= 0 and file_size(self._descriptor) > self.size:
            assert self.disk is not None
            self._is_synced = False
            self.disk.truncate(self._descriptor, self.size)
        self.file_end = self._torn_end = 0

    def _add_entries(self, entries: tuple[bytes, bytes], aborted: NDArray[np.void] | None) -> None:
        """Entries of one append: all of them, or none. Of several that do not fit the last are left out: searches
        start earlier."""
        assert self.disk is not None
        offsets, times = entries
        index, clock = self.offset_index, self.time_index
        counts = index.count, clock.count
        try:
            index.append(offsets[: max(index.capacity - index.count, 0) * index.entry_bytes])
            # The last slot of a time index is for the entry that seals it.
            clock.append(times[: max(clock.capacity - 1 - clock.count, 0) * clock.entry_bytes])
            if aborted is not None:
                self.txn_index.append(self.disk, aborted)
        except BaseException:
            index.count, clock.count = counts
            raise

    def _wipe_torn(self) -> None:
        """Zeros over what a failed append has left: after a crash it would count as written.

        The file keeps its size, since a reader in another process may have mapped it.
        """
        assert self.disk is not None
        end = min(self._torn_end, file_size(self._descriptor))
        if end > self.size:
            self.disk.write(self._descriptor, bytes(end - self.size), self.size)
        self._torn_end = 0

    def truncate_to(self, offset: int) -> None:
        """Removes every batch that holds an offset at or above this one."""
        assert self.disk is not None
        with self._files:
            position = self.position_of(offset)
            for index in (self.offset_index, self.time_index):
                index.close()
            self._indexed = False
            self.state = None
            self._cut(position)
            self._first_timestamp = self._max_timestamp = None
            self._torn_end = 0  # gone with the old file
            self._is_synced = False
            self.txn_index.truncate_to(self.disk, offset)
            self.rebuild_indexes()

    def seal(self) -> None:
        """Completes the time index and trims all files: the segment will not grow again, unless it is resumed."""
        if self.state is None:
            return
        assert self.disk is not None
        self._is_synced = False
        self.trim()
        state = self.state.copy()
        last = state.last_time_entry()
        if last is not None:
            self.time_index.put(*last)
            self.state = state  # the entry is written: another try adds none
        self.offset_index.trim()
        self.time_index.trim()
        self.txn_index.trim()
        self._max_timestamp = self.state.max_timestamp
        self.state = None

    def sync(self) -> None:
        """Returns when everything written is on the device, the log before what points into it."""
        if self._is_synced:
            return
        assert self.disk is not None
        if self._descriptor < 0:
            self._descriptor = self.disk.open(self.path(LOG))
        self.disk.sync(self._descriptor)
        self.offset_index.sync()
        self.time_index.sync()
        self.txn_index.sync()
        self._is_synced = True
        if self.state is None:
            self._release()

    def start_writing(self) -> None:
        """Has the device begin with the .log; whoever needs it there still has to sync it."""
        if self.disk is not None and self._descriptor >= 0:
            self.disk.start_writing(self._descriptor)

    def unsynced_log(self) -> int | None:
        """A descriptor of one's own for the .log, where bytes of it may not be on the device; None where all are.

        Whoever syncs it needs no lock meanwhile: the segment may grow, be sealed, cut or removed.
        """
        if self._is_synced:
            return None
        assert self.disk is not None
        if self._descriptor >= 0:
            return self.disk.duplicate(self._descriptor)
        return self.disk.open(self.path(LOG))

    def _release(self) -> None:
        """Gives up the descriptors of files that will not grow; the mappings stay."""
        assert self.disk is not None
        with self._files:
            if self._descriptor >= 0:
                self.disk.close(self._descriptor)
                self._descriptor = -1
            self.offset_index.release()
            self.time_index.release()
            self.txn_index.release()

    def detach(self) -> None:
        """Gives up files that are going to be removed. Readers that have the segment go on with the mappings."""
        assert self.disk is not None
        with self._files:
            disk, self.disk = self.disk, None  # from now on nothing here may touch a file
            with contextlib.suppress(OSError, OncelogError):
                self.view()
                self.need_indexes()
                len(self.txn_index)
            self.state = None
            self.disk = disk
            try:
                self._release()
            finally:
                self.disk = None

    def close(self) -> None:
        """Gives up the files; a segment that was written is sealed, and its file ends where the log does."""
        with self._files:
            if self.disk is not None:
                self.seal()
                if self._descriptor >= 0:
                    self.disk.close(self._descriptor)
                    self._descriptor = -1
            self.offset_index.close()
            self.time_index.close()
            self.txn_index.close()
            self._indexed = False
            self._mapping = b""

    def give_up(self) -> None:
        """Closes the files as they are: nothing more is written to them, by a forked child for one."""
        with self._files:
            if self.disk is not None:
                self.state = None
                self.txn_index.drop()
                self._release()
            self.close()

    def files(self) -> list[str]:
        """Paths of all files the segment may have."""
        return [self.path(suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)]
