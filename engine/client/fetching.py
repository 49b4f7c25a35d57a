"""One partition that a consumer was given: its position, and what was found in the log but not handed out yet.

Nothing here waits. A partition that may have something to read puts itself into the consumer's queue: the broker's
watch does so from the writer's thread, so that a poll looks at those alone, however many it was given.

Batches are found a window at a time, and stay with the partition until all their records are handed out: as Python
records by an iterator that goes on where it was, or as decoded columns that are cut where they have to be.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Final

import numpy as np

from .._native.batch import decode
from ..base.errors import (
    BatchError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    OncelogError,
)
from ..partition.cursor import Cursor
from ..segment.batch import DECODE_BYTES, records
from ..segment.compression import decompressor
from .reader import VIEWED_BYTES

if TYPE_CHECKING:
    from queue import SimpleQueue

    from numpy.typing import NDArray

    from .._native.batch import RecordColumns
    from .._native.records import Record, RecordIterator
    from ..broker.broker import Broker
    from ..broker.waiting import Watch
    from ..partition.cursor import Reached
    from ..partition.partition import Isolation, Partition
    from ..segment.names import TopicPartition
    from .arrow import RecordBatch
    from .offset_reset import OffsetReset

logger = logging.getLogger("oncelog.consumer")

# Windows without a single record to show, aborted all of them, that one look passes by before others get their turn.
HIDDEN_WINDOWS_MAX: Final = 64


class _Found:
    """A window of batches, and how far it has been read."""

    __slots__ = ("columns", "given", "iterator", "row", "rows", "visible", "window")

    def __init__(self, window: Reached) -> None:
        self.window = window
        self.rows = window.rows
        self.visible = window.visible
        self.row = 0  # the next to be decoded into columns
        self.iterator: RecordIterator | None = None
        self.columns: tuple[RecordColumns, RecordBatch] | None = None
        self.given = 0  # rows of the columns that were handed out

    def row_of(self, offset: int) -> int:
        """The first batch that reaches an offset."""
        last_offsets = self.rows["base_offset"] + self.rows["last_offset_delta"]
        return int(np.searchsorted(last_offsets, offset))

    def is_hidden_from(self, row: int) -> bool:
        """No batch from a row on may be seen."""
        if row == len(self.rows):
            return True
        return self.visible is not None and not self.visible[row:].any()


def _epoch_at(rows: NDArray[np.void], offset: int) -> int:
    """The leader epoch of the last batch that starts at or below an offset."""
    row = int(np.searchsorted(rows["base_offset"], offset, side="right")) - 1
    return int(rows["partition_leader_epoch"][max(row, 0)])


class _Wake:
    """What a log calls when there is more to read. A consumer that nobody closed is let go all the same."""

    __slots__ = ("_target", "watch")

    def __init__(self, target: AssignedPartition) -> None:
        self._target = weakref.ref(target)
        self.watch: Watch | None = None

    def __call__(self) -> None:
        target = self._target()
        if target is not None:
            target.wake()
        elif self.watch is not None:
            self.watch.close()


class AssignedPartition:
    """A partition of a consumer's assignment. One thread uses it; ``wake`` alone may be called from any."""

    def __init__(
        self,
        key: TopicPartition,
        broker: Broker,
        ready: SimpleQueue[AssignedPartition | None],
        isolation: Isolation,
        reset: OffsetReset,
        bytes_max: int,
        *,
        check_crc: bool = True,
        is_held: bool = False,
    ) -> None:
        self.key = key
        self.isolation = isolation
        self.is_paused = False
        self.is_held = is_held  # what its group has committed is not known yet
        self.record_count = 0  # handed out so far
        self.byte_count = 0  # of the log, passed so far
        self._position = -1
        self._began = -1  # where the reset policy has found the first position
        self._unchecked_epoch = -1  # of the record before the position, as far as the caller knows
        self._broker = broker
        self._ready = ready
        self._reset_policy = reset
        self._bytes_max = bytes_max
        self._check_crc = check_crc
        self._is_queued = False
        self._cursor: Cursor | None = None
        self._found: _Found | None = None
        self._last: NDArray[np.void] | None = None  # rows, the one before the position among them
        self.partition: Partition = broker.partition(key)
        self._watch = self._watched()
        self.wake()

    def _watched(self) -> Watch:
        wake = _Wake(self)
        wake.watch = self._broker.watch([self.key], wake)
        return wake.watch

    def wake(self) -> None:
        """There may be something to read. Called in the writer's thread: neither waits nor fails."""
        if not self._is_queued:
            self._is_queued = True
            self._ready.put(self)

    def taken_up(self) -> None:
        """The queue has handed it out: whatever comes from now on puts it there again."""
        self._is_queued = False

    def close(self) -> None:
        self._watch.close()
        self._drop()
        self.is_paused = True  # it may still be in the queue

    # ------------------------------------------------------------ position

    @property
    def position(self) -> int:
        """The offset of the next record to be handed out; found by the reset policy where there is none yet."""
        if self._position < 0:
            self._check()
        return self._position

    @property
    def has_position(self) -> bool:
        return self._position >= 0

    def leader_epoch(self, position: int) -> int:
        """The epoch of the last batch that was read before a position; -1 where nothing was."""
        if position < 1:
            return -1
        for rows in (None if self._found is None else self._found.rows, self._last):
            if rows is not None and int(rows["base_offset"][0]) < position:
                return _epoch_at(rows, position - 1)
        return -1

    @property
    def end_offset(self) -> int:
        """How far this consumer's isolation level reaches."""
        return self.partition.upper_bound(self.isolation)

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Goes on at an offset; what was found and not handed out is dropped.

        With the leader epoch of the record before it, as a committed offset has it, a log that was cut meanwhile is
        noticed.
        """
        self._drop()
        self._last = None
        self._position = offset
        self._unchecked_epoch = leader_epoch
        self.is_held = False
        self.wake()

    def hold(self) -> None:
        """Has no position until what is committed is known."""
        self._drop()
        self._last = None
        self._position = self._unchecked_epoch = -1
        self.is_held = True

    def let_go(self) -> None:
        """Nothing is committed: starts where it began, which is for the reset policy to find the first time."""
        self.is_held = False
        if self._began >= 0:
            self.seek(self._began)
        self.wake()

    def _drop(self) -> None:
        self._cursor = self._found = None

    def look(self) -> None:
        """Queues itself if there is anything to do: something to read, no position yet, or a log that has changed."""
        if self.is_paused or self.is_held:
            return
        partition = self.partition
        if (
            self._found is not None
            or self._position < self.end_offset
            or self._position > partition.log_end_offset
            or partition.is_closed
        ):
            self.wake()

    def _check(self) -> None:
        """Sees whether the log still has the position: it may have been deleted, made anew, or cut at either end."""
        partition = self._broker.partition(self.key)
        if partition is not self.partition:
            self._take_over(partition)
        elif self._position < 0:
            self._reset(NoOffsetForPartitionError(f"{self.key.directory} has no position yet"))
        else:
            if self._unchecked_epoch >= 0:
                self._check_truncation(self._unchecked_epoch)
            elif self._cursor is not None and self._cursor.is_cut:
                self._check_truncation(self.leader_epoch(self._position))
            start, end = partition.log_start_offset, partition.log_end_offset
            if not start <= self._position <= end:
                self._reset(
                    OffsetOutOfRangeError(
                        f"{self.key.directory} has offsets {start} to {end}, "
                        f"and the position is {self._position}"
                    )
                )

    def _take_over(self, partition: Partition) -> None:
        """The topic was deleted and made anew: a position in the old one says nothing about this one."""
        self._watch.close()
        self.partition = partition
        self._watch = self._watched()
        self._reset(
            OffsetOutOfRangeError(
                f"{self.key.directory} was deleted and made anew, and the position, {self._position}, "
                f"is one of the old topic"
            )
        )

    def _check_truncation(self, epoch: int) -> None:
        """The log may have been cut: is what lies below the position still what was read?"""
        self._drop()
        if epoch < 0:
            return
        self._unchecked_epoch = -1
        end = self.partition.log_end_offset
        known_epoch, diverging = self.partition.epochs.end_offset_for(epoch, end)
        if known_epoch < 0 or diverging >= self._position:
            return
        error = LogTruncationError(
            f"{self.key.directory} was cut below the position, {self._position}: "
            f"from offset {diverging} on it may hold other records than were read",
            offset=diverging,
        )
        if self._reset_policy.is_none:
            self._unchecked_epoch = epoch  # and again, until there is another position
            raise error
        logger.info("%s: %s", self.key.directory, error)
        self.seek(diverging)

    def _reset(self, error: OncelogError) -> None:
        """A new position by the policy; raises where there is none."""
        offset = self._reset_policy.offset(self._broker, self.key, self.isolation)
        if offset is None:
            raise error
        if self._position >= 0:
            logger.info(
                "%s: %s; going on at %d (%s)",
                self.key.directory,
                error.args[0],
                offset,
                self._reset_policy.name,
            )
        if self._began < 0:
            self._began = offset
        self.seek(offset)

    # ------------------------------------------------------------ windows

    def _has_window(self) -> bool:
        """Whether batches are at hand, those left over or the next ones. The position passes what holds no records."""
        found, partition = self._found, self.partition
        if found is not None:
            assert self._cursor is not None
            if (
                self._position >= partition.log_start_offset
                and not self._cursor.is_cut
                and not partition.is_closed
            ):
                return True
            self._last, self._found = found.rows, None
        self._check()
        cursor = self._cursor
        if cursor is None or cursor.offset != self._position:
            cursor = self._cursor = Cursor(self.partition, self._position, self.isolation)
        try:
            window = cursor.next_window(self._bytes_max)
        except BatchError as error:
            raise self._unreadable(error) from error
        if window is None:
            self._position = cursor.offset
            return False
        self._found = _Found(window)
        return True

    def _finish(self, found: _Found) -> None:
        """Everything of a window was handed out, or is not to be seen."""
        self._position = max(self._position, found.window.end_offset)
        self.byte_count += found.window.size
        self._last, self._found = found.rows, None
        found.iterator = found.columns = None

    def waiting_bytes(self) -> int | None:
        """Bytes of the log that could be read now, as far as one window goes; None: some were handed out already."""
        if self.is_paused or self.is_held or (self._found is None and not self._has_window()):
            return 0
        assert self._found is not None
        window = self._found.window
        if self._position > window.base_offset:
            return None
        self._drop()  # the next look may find more
        return window.size

    def _unreadable(self, error: BatchError) -> BatchError:
        """The same error, with the partition and offset that a consumer knows, and where to go on."""
        place = f"{self.key.directory} cannot be read from offset {self._position} on"
        after = -1
        found = self._found
        if found is not None:
            row = int(np.searchsorted(found.rows["position"], error.position))
            if row < len(found.rows):
                after = (
                    int(found.rows["base_offset"][row] + found.rows["last_offset_delta"][row]) + 1
                )
        hint = f"; seek to {after} to leave it out" if after > self._position else ""
        return type(error)(
            f"{place}: {error.what}{hint}",
            file=error.file,
            position=error.position + (found.window.position if found else 0),
            base_offset=error.base_offset,
            record=error.record,
            records=error.records,
        )

    # ------------------------------------------------------------ records

    def take_records(self, count: int) -> list[Record]:
        """The next records, ``count`` at most. What cannot be read raises once all before it is handed out."""
        taken: list[Record] = []
        try:
            for _ in range(HIDDEN_WINDOWS_MAX):
                if not self._has_window():
                    return taken
                part = self._from_window(count - len(taken))
                taken = taken + part if taken else part
                if len(taken) >= count:
                    break
        except OncelogError:
            if not taken:
                raise
        self.wake()
        return taken

    def _from_window(self, count: int) -> list[Record]:
        found = self._found
        assert found is not None
        iterator = found.iterator
        if iterator is None:
            iterator = found.iterator = self._iterator(found)
        try:
            taken = iterator.take(count)
        except BatchError as error:
            found.iterator = None
            raise self._unreadable(error) from error
        if taken:
            self._position = taken[-1].offset + 1
            self.record_count += len(taken)
        if iterator.is_done:
            self._finish(found)
        return taken

    def _iterator(self, found: _Found) -> RecordIterator:
        row = self._start(found)
        return records(
            found.window.view,
            found.rows[row:] if row else found.rows,
            visible=None if found.visible is None else found.visible[row:],
            start_offset=self._position,
            end_offset=found.window.end_offset,
            check_crc=self._check_crc,
            file=found.window.file,
            topic=self.key.topic,
            partition=self.key.partition,
        )

    def _start(self, found: _Found) -> int:
        """The row that the position lies in, wherever records or columns have left it."""
        found.columns = found.iterator = None
        is_first = self._position <= found.window.base_offset
        found.row = 0 if is_first else found.row_of(self._position)
        return found.row

    # ------------------------------------------------------------ columns

    def take_columns(
        self, *, views: bool, record_count: int | None, bytes_max: int | None
    ) -> RecordBatch | None:
        """The next records as one record batch; None: there are none now."""
        limit = VIEWED_BYTES if views else DECODE_BYTES
        limit = limit if bytes_max is None else min(limit, bytes_max)
        for _ in range(HIDDEN_WINDOWS_MAX):
            if not self._has_window():
                return None
            found = self._found
            assert found is not None
            columns = found.columns
            if columns is None or columns[0].views is not views:
                columns = self._decoded(found, views=views, bytes_max=limit)
            if columns is not None:
                self.wake()
                return self._cut(found, columns, record_count)
            self._finish(found)
        self.wake()
        return None

    def _decoded(
        self, found: _Found, *, views: bool, bytes_max: int
    ) -> tuple[RecordColumns, RecordBatch] | None:
        """The next columns of a window that have any rows; None at its end."""
        if found.iterator is not None or found.columns is not None:
            self._start(found)
        while found.row < len(found.rows):
            columns = self._decode(found, len(found.rows), views=views, bytes_max=bytes_max)
            found.row += columns.next_batch
            if len(columns):
                found.given = 0
                from .arrow import full_batch  # here, as who polls records needs no pyarrow

                found.columns = columns, full_batch(columns, *self.key)
                return found.columns
        return None

    def _decode(self, found: _Found, stop: int, *, views: bool, bytes_max: int) -> RecordColumns:
        """Columns of the rows up to one; where a batch cannot be read, of those before it."""
        rows = slice(found.row, stop)
        try:
            return decode(
                found.window.view,
                found.rows["position"][rows],
                visible=None if found.visible is None else found.visible[rows],
                start_offset=self._position,
                end_offset=found.window.end_offset,
                views=views,
                check_crc=self._check_crc,
                bytes_max=bytes_max,
                decompress=decompressor(),
                file=found.window.file,
            )
        except BatchError as error:
            bad = int(np.searchsorted(found.rows["position"], error.position))
            if not found.row < bad < stop:
                raise self._unreadable(error) from error
        return self._decode(found, bad, views=views, bytes_max=bytes_max)

    def _cut(
        self, found: _Found, columns: tuple[RecordColumns, RecordBatch], record_count: int | None
    ) -> RecordBatch:
        """The next rows of decoded columns, as many as are wanted."""
        decoded, batch = columns
        total, start = len(decoded), found.given
        left = total - start
        count = left if record_count is None else min(record_count, left)
        found.given += count
        self.record_count += count
        self._position = decoded.offset_at(found.given - 1) + 1
        if found.given == total:
            found.columns = None
            if found.is_hidden_from(found.row) and self._is_sound(found):
                self._finish(found)
        return batch if count == total else batch.slice(start, count)

    def _is_sound(self, found: _Found) -> bool:
        """Whether the rest of a window, none of which is to be seen, is proven; if not, the next take tells why."""
        left = len(found.rows) - found.row
        try:
            return (
                not left
                or left
                == self._decode(
                    found, len(found.rows), views=False, bytes_max=DECODE_BYTES
                ).next_batch
            )
        except BatchError:
            return False
