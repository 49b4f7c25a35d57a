"""One partition: the single writer that admits batches, and the reader's view of what is stable.

Duty         assigns offsets, judges producers, keeps transactions' ends, answers both isolation levels.
Concurrency  writers under ``lock``; readers take the log's segments and the published offsets once.
Crash        everything but the .log files is derived; opening replays what the last clean stop does not cover.
Fork         a child may read what its parent has open, but not write: it shares the files and not the lock.

Offsets: log start <= last stable offset <= high watermark = log end. A read_committed reader never gets an
offset at or above the last stable one, an aborted record or a control record.

A write that fails leaves no trace: nothing of it counts, and the next one may succeed. A sync that fails takes the
partition offline until it is opened again, since nobody can tell what the kernel has dropped.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from typing import TYPE_CHECKING, NamedTuple

from .._native.segment import stamp
from ..base.disk import forks
from ..base.errors import (
    ClosedError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    OncelogError,
    TruncatedBatchError,
    UnexpectedAppendOffsetError,
)
from ..log.log import Log
from ..log.swap import to_swap
from ..segment.batch import scan_prefix
from ..segment.segment import next_offset_of
from .aborted import AbortedTransactions
from .admission import CONTROL, TRANSACTIONAL, Admitted, Origin, PartitionOptions, admit
from .leader_epochs import LeaderEpochs
from .producer_state import ProducerState
from .reading import Fetched, Isolation, PartitionReader, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from ..base.disk import Disk
    from ..base.rows import Row
    from ..segment.names import TopicPartition
    from ..segment.segment import Segment

__all__ = [
    "Appended",
    "Fetched",
    "Isolation",
    "Origin",
    "Partition",
    "PartitionOptions",
    "Window",
]


class Appended(NamedTuple):
    """Where batches went; a repeated batch is answered with where it already was."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    is_duplicate: bool


class Partition(PartitionReader):
    """A partition's log, opened for writing (with a disk) or for reading alone (without).

    ``save_recovery_point`` is called before a truncation: what is on disk must not promise more than is there.
    """

    def __init__(
        self,
        key: TopicPartition,
        directory: str,
        options: PartitionOptions,
        disk: Disk | None,
        *,
        now_ms: int,
        recovery_point: int | None = None,
        is_clean: bool = True,
        log_start_offset: int = 0,
        save_recovery_point: Callable[[], None] = lambda: None,
    ) -> None:
        self.key = key
        self.directory = directory
        self.options = options
        self.lock = threading.RLock()
        self.damage: list[OncelogError] = []  # what recovery found and cut
        self._disk = disk
        self._born = forks()
        self._opened_ms = now_ms
        self._save_recovery_point = save_recovery_point
        self._offline: BaseException | None = None
        self._is_closed = False
        self._state_loaded = False
        self._stable = 0  # published after each write, once the state is loaded
        try:
            self._open(now_ms, recovery_point, log_start_offset, is_clean=is_clean)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise KafkaStorageError(f"{directory}: {error}") from error

    # ------------------------------------------------------------ opening

    def _open(
        self, now_ms: int, recovery_point: int | None, log_start_offset: int, *, is_clean: bool
    ) -> None:
        self.log = Log(self.directory, self.options.log, self._disk)
        self.epochs = LeaderEpochs(self.directory, self._disk)
        self.producers = ProducerState(self.log)
        self.aborted = AbortedTransactions(self.log, self.lock)
        self.log_start_offset = max(log_start_offset, self.log.start_offset)
        self.recovery_point = recovery_point or 0
        if not self.log.segments:
            self._start_at(self.log_start_offset, now_ms)
        elif not is_clean:
            self._recover(now_ms)
        elif self.log.start_offset < self.log_start_offset > self.log.end_offset:
            self._start_over(now_ms)
        if self.epochs.is_damaged or (not self.epochs.entries and self._has_epochs()):
            self.epochs.rebuild(rows for segment in self.log.segments for rows in segment.rows())
        self._fit_epochs(is_clean=is_clean)

    def _has_epochs(self) -> bool:
        """Whether the first batch says that there should be leader epochs."""
        for segment in self.log.segments[:1]:
            rows = segment.first_row(0)
            return bool(len(rows) and rows["partition_leader_epoch"][0] >= 0)
        return False

    def _start_at(self, offset: int, now_ms: int) -> None:
        """An empty log."""
        if self._disk is not None:
            self.log.start_at(offset, now_ms)
        self.producers.next_offset = offset
        self._take_state()

    def _start_over(self, now_ms: int) -> None:
        """What is left lies wholly below the log start: nothing of it counts."""
        if self._disk is None:
            self.log.segments = ()
            self.epochs.clear()
            self.producers = ProducerState(self.log)
            self._start_at(self.log_start_offset, now_ms)
            return
        self.log.restart_at(self.log_start_offset, now_ms)
        self.producers.restart_at(self.log_start_offset)
        self.epochs.clear()
        self._take_state()

    def _recover(self, now_ms: int) -> None:
        """Proves everything from the recovery point on; the first bad batch ends the log.

        Later segments go before the damaged one is cut, so that a crash in between cannot leave a hole.
        """
        suspects = self.log.from_offset(self.recovery_point)
        start = suspects[0].base_offset
        self._load_state(start)
        if self._disk is not None:
            self.producers.remove_snapshots(above=start)
        for index, segment in enumerate(suspects):
            later = suspects[index + 1 :]
            if self._disk is not None and index:
                self.producers.take_snapshot()
            found = segment.recover(
                self._replay_with_epochs, before_cut=functools.partial(self.log.remove, later)
            )
            self.producers.next_offset = max(self.producers.next_offset, found.next_offset)
            if found.error is not None:
                self.damage.append(found.error)
                break
            if later and self._disk is not None:
                self.producers.next_offset = later[0].base_offset
                segment.seal()
        self.recovery_point = min(self.recovery_point, self.log.end_offset)
        self._take_state()
        if self.log.end_offset < self.log_start_offset:
            self._start_over(now_ms)
        elif self._disk is not None:
            self.producers.take_snapshot()

    def _replay_with_epochs(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        self.epochs.note(rows)
        return self.producers.replay(rows)

    def _fit_epochs(self, *, is_clean: bool) -> None:
        """Leader epochs lie between the log's start and its end, whatever the file says."""
        entries = self.epochs.entries
        if not entries:
            return
        if not is_clean or entries[-1].start_offset >= self.recovery_point:
            self.epochs.truncate_from_end(self.log_end_offset)
        self.epochs.truncate_from_start(self.log_start_offset)

    def _load_state(self, offset: int) -> None:
        """The producers up to an offset. Those silent for too long are dropped, but not for a mere reader."""
        expired = self._opened_ms - self.options.producer_id_expiration_ms + 1
        self.producers.load(offset, expired_before_ms=None if self._disk is None else expired)
        self.producers.catch_up(offset)

    def _take_state(self) -> None:
        """The state is complete: from here on the last stable offset is published with every write."""
        self._publish()
        self._state_loaded = True

    def _publish(self) -> None:
        first_open = self.producers.table.first_open_offset
        self._stable = self.log_end_offset if first_open is None else first_open

    def need_state(self) -> ProducerState:
        """The producers up to the log's end, read when they are first needed."""
        if not self._state_loaded:
            with self.lock:
                if not self._state_loaded:
                    self._load_state(self.log.end_offset)
                    self._take_state()
        return self.producers

    # ------------------------------------------------------------ offsets

    @property
    def log_end_offset(self) -> int:
        if not self.log.segments:
            return self.log_start_offset
        return max(self.log.end_offset, self.log_start_offset)

    @property
    def high_watermark(self) -> int:
        """With one replica every written batch is replicated."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, else the high watermark."""
        if not self._state_loaded:
            self.need_state()
        return max(self._stable, self.log_start_offset)

    # ------------------------------------------------------------ writing

    def append_as_leader(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        bumps_epoch: bool = True,
    ) -> Appended:
        """Admits batches in a writable buffer: judges them, stamps offsets and epoch outside the checksum, writes.

        A client appends one batch, a coordinator several. ``bumps_epoch``: the producers bump their epoch with
        every transaction (transaction version 2).
        """
        admitted = admit(data, self.options, origin, now_ms)
        with self.lock:
            self._check_writable()
            duplicate = self._judge(admitted.numbers, origin, bumps_epoch=bumps_epoch)
            if duplicate is not None:
                return self._repeated(duplicate, admitted)
            base_offset = self.log_end_offset
            stamp(admitted.data, admitted.rows, base_offset, leader_epoch)
            try:
                self.epochs.assign(leader_epoch, base_offset)
                self._write(admitted.data, admitted.rows, now_ms)
            except OSError as error:
                raise KafkaStorageError(f"{self.directory}: {error}") from error
            return Appended(
                base_offset,
                self.log_end_offset - 1,
                admitted.log_append_time_ms,
                is_duplicate=False,
            )

    def append_as_follower(
        self, data: Buffer, *, now_ms: int, leader_epoch: int | None = None
    ) -> int:
        """Appends batches that a leader has stamped; returns the offset after the last.

        A cut tail is left out, and so is everything from the first batch on that has a newer epoch than the
        leader who was asked.
        """
        rows, end, error = scan_prefix(data)
        if error is not None and not isinstance(error, TruncatedBatchError):
            raise error
        if leader_epoch is not None:
            newer = rows["partition_leader_epoch"] > leader_epoch
            if newer.any():
                end = int(rows["position"][newer.argmax()])
                rows = rows[: int(newer.argmax())].copy()
        if not len(rows):
            return self.log_end_offset
        with self.lock:
            self._check_writable()
            ends = rows["base_offset"] + rows["last_offset_delta"] + 1
            if (
                int(rows["base_offset"][0]) < self.log_end_offset
                or (rows["base_offset"][1:] < ends[:-1]).any()
                or (rows["last_offset_delta"] < 0).any()
            ):
                raise UnexpectedAppendOffsetError(
                    f"batches from offset {int(rows['base_offset'][0])} do not follow {self.log_end_offset}"
                )
            try:
                self.epochs.note(rows)
                self._write(memoryview(data)[:end], rows, now_ms)
            except OSError as failure:
                raise KafkaStorageError(f"{self.directory}: {failure}") from failure
            return self.log_end_offset

    def _judge(self, numbers: list[Row], origin: Origin, *, bumps_epoch: bool) -> int | None:
        """The base offset of a batch that is already here; raises for one that does not fit."""
        if origin is Origin.REPLICATION:
            return None
        state = self.need_state()
        for row in numbers:
            if row.producer_id < 0:
                continue
            if row.attributes & CONTROL:
                state.check_marker(row, bumps_epoch=bumps_epoch)
                continue
            is_transactional = bool(row.attributes & TRANSACTIONAL)
            if origin is Origin.CLIENT:
                duplicate = state.duplicate_of(
                    row, known_from_start=bumps_epoch and is_transactional
                )
                if duplicate is not None:
                    return duplicate
            else:
                state.check_epoch(row)
            if not is_transactional:
                state.check_outside_transaction(row)
        return None

    def _repeated(self, base_offset: int, admitted: Admitted) -> Appended:
        """The answer to a batch that is already here, with the stamp that it got then."""
        stamped_ms = admitted.log_append_time_ms
        if stamped_ms >= 0:
            for segment in self.log.from_offset(base_offset)[:1]:
                for rows in segment.rows(segment.position_of(base_offset)):
                    stamped_ms = int(rows["max_timestamp"][0])
                    break
        last_offset = base_offset + admitted.numbers[0].last_offset_delta
        return Appended(base_offset, last_offset, stamped_ms, is_duplicate=True)

    def _write(self, data: Buffer, rows: NDArray[np.void], now_ms: int) -> None:
        """Writes stamped batches and what follows from them; after an error nothing of it counts."""
        state = self.need_state()
        size = memoryview(data).nbytes
        newest = int(rows["max_timestamp"][0] if len(rows) == 1 else rows["max_timestamp"].max())
        if self.log.must_roll(size, next_offset_of(rows) - 1, newest, now_ms):
            self._roll(int(rows["base_offset"][0]), now_ms)
        try:
            self.log.append(data, rows, state.aborts_of(rows))
            state.replay(rows)
            self._publish()
        except OSError:
            raise  # nothing was counted
        except BaseException:  # interrupted anywhere in between: ask the log how far it came
            self.log.forget_end()
            self._state_loaded = False
            raise

    def _roll(self, base_offset: int, now_ms: int) -> None:
        self.producers.next_offset = base_offset
        self.producers.take_snapshot()
        if self.options.is_synced_on_roll:
            self._sync()
        self.log.roll(now_ms, base_offset)
        with self._going_offline():
            self.log.sync_backlog()

    def roll(self, now_ms: int) -> None:
        """Starts a new segment at the log's end, unless the active one is empty."""
        with self.lock:
            self._check_writable()
            self.need_state()
            if self.log.active.size:
                try:
                    self._roll(self.log_end_offset, now_ms)
                except OSError as error:
                    raise KafkaStorageError(f"{self.directory}: {error}") from error

    def expire_producers(self, now_ms: int) -> list[int]:
        """Forgets producers that have been silent for too long; returns their ids."""
        with self.lock:
            self._check_writable()
            return self.need_state().expire(now_ms - self.options.producer_id_expiration_ms + 1)

    def _check_writable(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self.key.directory} is closed")
        if self._disk is None:
            raise ClosedError(f"{self.key.directory} was opened to be read alone")
        if self._offline is not None:
            raise KafkaStorageError(f"{self.key.directory} is offline after: {self._offline}")
        if self._born != forks():
            raise ClosedError(f"{self.key.directory} was opened before this process was forked off")

    # ------------------------------------------------------------ keeping

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_offline(self) -> bool:
        """A sync has failed: nothing more is written until the directory is opened again."""
        return self._offline is not None

    @contextlib.contextmanager
    def _going_offline(self) -> Iterator[None]:
        """Whatever fails in here is not tried again: what the kernel has dropped cannot be written once more."""
        try:
            yield
        except KafkaStorageError as error:
            self._offline = error
            raise
        except OSError as error:
            self._offline = error
            raise KafkaStorageError(f"{self.directory}: {error}") from error

    def sync(self) -> None:
        """Returns when all that was written is on the device, logs before what points into them. A failed sync
        takes the partition offline."""
        with self.lock:
            self._check_writable()
            self._sync()

    def _sync(self) -> None:
        end = self.log_end_offset
        with self._going_offline():
            self.producers.sync_snapshots()
            self.log.sync(self.recovery_point)
        self.recovery_point = end

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Removes batches from an offset on, and what is known of them."""
        with self.lock:
            self._check_writable()
            if offset >= self.log_end_offset:
                return
            self.recovery_point = min(self.recovery_point, offset)
            start, self.log_start_offset = self.log_start_offset, min(self.log_start_offset, offset)
            try:
                self._save_recovery_point()
            except KafkaStorageError:
                self.log_start_offset = start
                raise
            # Half of it done, only opening anew can tell where the log ends.
            with self._going_offline():
                self._state_loaded = False
                self.log.truncate_to(offset, now_ms)
                self.aborted.forget(from_offset=self.log.active.base_offset)
                if self.log.end_offset < self.log_start_offset:
                    self._start_over(now_ms)  # the start lay within a batch that had to go
                    return
                self.epochs.truncate_from_end(self.log.end_offset)
                self.producers.remove_snapshots(above=self.log.end_offset)
                self._load_state(self.log.end_offset)
            self._take_state()

    def delete_records(self, before: int) -> int:
        """Moves the log start; whole segments below it are removed. -1 means the high watermark. Returns the
        new start."""
        with self.lock:
            self._check_writable()
            before = self.high_watermark if before == -1 else before
            if before < 0 or before > self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"cannot delete up to {before}: the high watermark is {self.high_watermark}"
                )
            if before > self.log_start_offset:
                self.need_state()
                self.log_start_offset = before
                self.remove_segments_below(before)
            return self.log_start_offset

    def remove_segments_below(self, offset: int) -> int:
        """Drops segments that end at or below an offset, but never the active one."""
        segments = self.log.segments
        gone = tuple(
            segment
            for segment, following in itertools.pairwise(segments)
            if following.base_offset <= offset
        )
        try:
            if gone:
                self.need_state()
                self.log.remove(gone)
                self.producers.remove_snapshots(below=self.log.start_offset)
            self.log_start_offset = max(self.log_start_offset, self.log.start_offset)
            self.epochs.truncate_from_start(self.log_start_offset)
        except OSError as error:
            raise KafkaStorageError(f"{self.directory}: {error}") from error
        return len(gone)

    def replace_segments(self, cleaned: Segment, old: tuple[Segment, ...]) -> None:
        """Puts a cleaned segment in the place of others; readers that have those go on with them.

        What fails half way takes the partition offline: opening it again completes the swap.
        """
        with self.lock:
            self._check_writable()
            assert self._disk is not None
            to_swap(cleaned, self._disk)
            with self._going_offline():
                self.log.replace(cleaned, old)
                self.aborted.forget(from_offset=cleaned.base_offset)
                gone = {segment.base_offset for segment in old} - {cleaned.base_offset}
                self.producers.remove_snapshots(at=gone)

    def close(self) -> None:
        """Writes what a clean stop promises: trimmed indexes, a snapshot at the end, everything on disk.

        The files are given up in any case; after an error, or offline, the next opening recovers.
        """
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if self._disk is not None and self._offline is None and self._born == forks():
                    if self._state_loaded:
                        self.producers.take_snapshot()
                    self.log.seal()
                    self._sync()
            except OSError as error:
                raise KafkaStorageError(f"{self.directory}: {error}") from error
            finally:
                self._give_up()

    def _give_up(self) -> None:
        """Closes every file without writing to it."""
        for segment in self.log.segments:
            with contextlib.suppress(OSError, OncelogError):
                segment.give_up()
