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
import os
from typing import TYPE_CHECKING, NamedTuple

from .._native.crew import GroupCommit
from .._native.process import forks
from .._native.segment import Batches, PartitionTail, stamp
from ..base.errors import (
    ClosedError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from ..log.swap import to_swap
from .admission import (
    CLIENT,
    COORDINATOR,
    NO_TIMESTAMP,
    REPLICATION,
    Origin,
    PartitionOptions,
    admit,
    check_order,
    replicated,
    rules_of,
)
from .group_commit import Unsynced, unsynced_from
from .opening import OpenedPartition
from .producer_state import ActiveProducer, active_producers
from .published import Bounds
from .reading import Fetched, Isolation, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from .._native.published import Slot
    from ..base.disk import Disk
    from ..segment.names import TopicPartition
    from ..segment.segment import Segment
    from .producer_state import ProducerState

__all__ = [
    "ActiveProducer",
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


class Partition(OpenedPartition, PartitionTail):
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
        take_slot: Callable[[Bounds], Slot] | None = None,
    ) -> None:
        self.key = key
        self.directory = directory
        self._take_options(options)
        self.damage: list[OncelogError] = []  # what recovery found and cut
        self._disk = disk
        self._forks = forks
        self._born = forks()
        self._opened_ms = now_ms
        self._save_recovery_point = save_recovery_point
        self._offline: BaseException | None = None
        self.is_closed = False
        self._is_deleted = False
        self._writable_in = -1 if disk is None else self._born
        self.watchers = ()
        if disk is not None:
            self._commits = GroupCommit(self._sync_logs)
        self._take_slot = take_slot  # once the state is loaded
        try:
            self._open(now_ms, recovery_point, log_start_offset, is_clean=is_clean)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise KafkaStorageError(f"{directory}: {error}") from error

    # ------------------------------------------------------------ state

    @functools.cached_property
    def _commits(self) -> GroupCommit:
        """How far the log is on the device, for a mere reader, who is seldom asked."""
        return GroupCommit(self._sync_logs)

    def _take_state(self) -> None:
        """The state is complete: from here on the last stable offset is published with every write."""
        first_open, end = self.producers.table.first_open_offset, self.log_end_offset
        self._stable = end if first_open is None else first_open
        self._state_loaded = True
        self._marked_end = min(self._marked_end, end)
        self._commits.fall(end)
        self._commits.rise(min(self.recovery_point, end))
        with contextlib.suppress(
            KafkaStorageError
        ):  # of a slot: who writes must have one, who reads need not
            self._show_all()
        for watcher in self.watchers:
            watcher()

    def _show_durable(self) -> None:
        """After a sync: shows readers in other processes what a power failure leaves."""
        if self._slot is not None and self.options.is_synced_on_roll:
            self._slot.show_durable(self.published_end_offset, self._stable, self.log_end_offset)

    def _show_all(self) -> None:
        """After a change that is more than an append, of offsets or of files."""
        if not self._state_loaded:
            return  # of a partition that nothing was written to, the files alone speak
        end = self.log_end_offset
        bounds = Bounds(self.log_start_offset, self.published_end_offset, self._stable, end)
        if self._slot is not None:
            self._slot.reset(*bounds[:4])
        elif self._take_slot is not None:
            self._slot = self._take_slot(bounds)

    def need_state(self) -> ProducerState:
        """The producers up to the log's end, read when they are first needed."""
        if not self._state_loaded:
            with self.lock:
                if not self._state_loaded:
                    self._load_state(self._proven_end())
                    self._take_state()
        return self.producers

    # ------------------------------------------------------------ offsets

    @property
    def log_end_offset(self) -> int:
        log, start = self.log, self.log_start_offset
        if not log.segments:
            return start
        return max(self._proven_end() if self._disk is None else log.end_offset, start)

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

    @property
    def durable_end_offset(self) -> int:
        """Everything below is on the device."""
        self.need_state()
        return self._commits.end

    @property
    def published_end_offset(self) -> int:
        """How far a reader in another process may see: nothing that the promised durability could lose.

        In "fsync" durability that is what is on the device, and markers right behind it.
        """
        if not self.options.is_synced_on_roll:
            return self.log_end_offset
        return max(self._commits.end, self._marked_end)

    def transaction_of(self, producer_id: int) -> tuple[int, int] | None:
        """(producer epoch, first offset) of a producer's open transaction here, None if it has none."""
        return self.need_state().table.transaction_of(producer_id)

    def active_producers(self) -> list[ActiveProducer]:
        """All producers that are known here, by id."""
        with self.lock:
            rows = self.need_state().table.snapshot()
        return active_producers(rows)

    # ------------------------------------------------------------ writing

    def reconfigure(self, options: PartitionOptions) -> None:
        """Other options, from the next append on; the active segment keeps the indexes that it has."""
        with self.lock:
            self._check_writable()
            if options.is_synced_on_roll and not self.options.is_synced_on_roll:
                self._sync()  # what readers were shown must not be taken back
            self._take_options(options)
            self.log.options = options.log

    def _take_options(self, options: PartitionOptions) -> None:
        self.options = options
        self._is_durable = options.is_synced_on_roll
        self._flush_messages = options.log.flush_messages
        self._client_rules, self._coordinator_rules = rules_of(options)

    def append_as_leader(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = CLIENT,
        bumps_epoch: bool = True,
    ) -> Appended:
        """Admits batches in a writable buffer: judges them, stamps offsets and epoch outside the checksum, writes.

        A client appends one batch, a coordinator several. ``bumps_epoch``: the producers bump their epoch with
        every transaction (transaction version 2).
        """
        rules = None
        if origin is CLIENT:
            rules = self._client_rules
        elif origin is COORDINATOR:
            rules = self._coordinator_rules
        batches = None if rules is None else rules.check(data, now_ms)
        log_append_time_ms = NO_TIMESTAMP
        if batches is None:
            data, batches, log_append_time_ms = admit(data, self.options, origin, now_ms)
        base_offset = -1
        if origin is not REPLICATION:
            base_offset = self._append_one(
                data, batches, leader_epoch, origin is CLIENT, bumps_epoch
            )
        if base_offset < 0:
            with self.lock:
                self._check_writable()
                state = self.need_state()
                base_offset = state.next_offset  # the log's end, once the state is loaded
                if origin is not REPLICATION:
                    judged = state.table.judge(batches, origin is CLIENT, bumps_epoch)
                    if judged is not None:
                        repeated = state.repeated(judged, batches)
                        return self._repeated(repeated, batches, log_append_time_ms)
                stamp(data, batches, base_offset, leader_epoch)
                try:
                    if leader_epoch != self.epochs.latest:
                        self.epochs.assign(leader_epoch, base_offset)
                    self._write(state, data, batches, now_ms)
                except OSError as error:
                    raise KafkaStorageError(f"{self.directory}: {error}") from error
        # Past the constructor of a named tuple, which would take as long as all checks together.
        return tuple.__new__(
            Appended, (base_offset, batches.next_offset - 1, log_append_time_ms, False)
        )

    def append_as_follower(
        self, data: Buffer, *, now_ms: int, leader_epoch: int | None = None
    ) -> int:
        """Appends batches that a leader has stamped; returns the offset after the last.

        A cut tail is left out, and so is everything from the first batch on that has a newer epoch than the
        leader who was asked.
        """
        rows, end = replicated(data, leader_epoch)
        if not len(rows):
            return self.log_end_offset
        with self.lock:
            self._check_writable()
            check_order(rows, self.log_end_offset)
            try:
                self.epochs.note(rows)
                self._write(self.need_state(), memoryview(data)[:end], Batches(rows), now_ms)
            except OSError as failure:
                raise KafkaStorageError(f"{self.directory}: {failure}") from failure
            return self.log_end_offset

    def _repeated(self, base_offset: int, batch: Batches, log_append_time_ms: int) -> Appended:
        """The answer to a batch that is already here, with the stamp that it got then."""
        if log_append_time_ms >= 0:
            for segment in self.log.from_offset(base_offset)[:1]:
                for rows in segment.rows(segment.position_of(base_offset)):
                    log_append_time_ms = int(rows["max_timestamp"][0])
                    break
        last_offset = base_offset + batch.last_offset_delta
        return Appended(base_offset, last_offset, log_append_time_ms, is_duplicate=True)

    def _write(self, state: ProducerState, data: Buffer, batches: Batches, now_ms: int) -> None:
        """Writes stamped batches and what follows from them; after an error nothing of it counts."""
        log = self.log
        if self._slot is None:
            self._show_all()
        if log.must_roll(batches, now_ms):
            self._roll(batches.base_offset, now_ms)
        try:
            log.append(data, batches, state.aborts_of(batches) if batches.has_abort else None)
            self._publish(batches, state.add(batches))
        except OSError:
            raise  # nothing was counted
        except BaseException:
            self._doubt()
            raise
        if batches.next_offset - self.recovery_point >= self._flush_messages:
            self._sync()

    def _doubt(self) -> None:
        """A write was interrupted anywhere: the log is asked how far it came."""
        self.log.forget_end()
        self._state_loaded = False

    def _roll(self, base_offset: int, now_ms: int) -> None:
        self.producers.next_offset = base_offset
        self.producers.take_snapshot()
        if self.options.is_synced_on_roll:
            self.log.active.trim()  # for good: zeros before another segment would end the log
            self._sync()
        self.log.roll(now_ms, base_offset)
        self._show_all()
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
        if self._writable_in == forks():
            return
        if self._is_deleted:  # whoever found it just before its topic went hears what all others do
            raise UnknownTopicOrPartitionError(f"{self.key.directory} was deleted")
        if self.is_closed:
            raise ClosedError(f"{self.key.directory} is closed")
        if self._disk is None:
            raise ClosedError(f"{self.key.directory} was opened to be read alone")
        if self._offline is not None:
            raise KafkaStorageError(f"{self.key.directory} is offline after: {self._offline}")
        raise ClosedError(f"{self.key.directory} was opened before this process was forked off")

    def _set_closed(self) -> None:
        self.is_closed, self._writable_in = True, -1

    # ------------------------------------------------------------ keeping

    @property
    def is_offline(self) -> bool:
        """A sync has failed: nothing more is written until the directory is opened again."""
        return self._offline is not None

    @contextlib.contextmanager
    def _going_offline(self) -> Iterator[None]:
        """Whatever fails in here is not tried again: what the kernel has dropped cannot be written once more."""
        try:
            yield
        except (KafkaStorageError, OSError) as error:
            self._go_offline(error)
            if isinstance(error, OSError):
                raise KafkaStorageError(f"{self.directory}: {error}") from error
            raise

    def _go_offline(self, error: KafkaStorageError | OSError) -> None:
        self._offline, self._writable_in = error, -1

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
        self._commits.rise(end)
        self._show_durable()

    def start_writing(self) -> None:
        """Has the device begin with what was written, so that a sync has less to wait for. A failure takes the partition
        offline as that of a sync does: the device may say only once what it has lost."""
        with self.lock:
            self._check_writable()
            with self._going_offline():
                self.log.active.start_writing()

    @property
    def is_synced(self) -> bool:
        """Whether everything is on the device that was written by now."""
        return self._state_loaded and self._commits.end >= self.producers.next_offset

    def sync_to(self, offset: int) -> None:
        """Returns when everything below an offset is on the device; one sync serves all who wait, and appends go
        on meanwhile. A failed one takes the partition offline and is not tried again: all who wait get its error.
        """
        if self._commits.end < offset and not self._sync_alone(offset):
            self._check_writable()
            self._commits.reach(offset)
            if self.options.is_synced_on_roll:
                with self.lock:
                    self._show_durable()

    def _sync_logs(self, offset: int) -> int:
        """Syncs what was written, and that alone; returns how far that goes. Without the lock but for a moment."""
        try:
            end = self._sync_last(offset)
        except OSError:
            with self._going_offline():  # entered only here: that takes as long as all the rest
                raise
        if end < 0:
            end = self._sync_all(offset)
        with self.lock:
            # A device says once what it has lost: perhaps to somebody who synced under the lock meanwhile.
            if self._offline is not None:
                self._check_writable()
        return end

    def _sync_all(self, offset: int) -> int:
        """The same where there are new files and names, or another disk than the real one."""
        unsynced = self._unsynced(offset)
        assert self._disk is not None
        try:
            unsynced.write(self._disk, self.directory)
        except (KafkaStorageError, OSError):
            with self._going_offline():
                raise
        finally:
            unsynced.close(self._disk)
        return unsynced.end

    def _unsynced(self, offset: int) -> Unsynced:
        """What has to reach the device, so that everything below an offset is there."""
        with self.lock:
            if self._writable_in != forks():
                self._check_writable()
            state = self.producers if self._state_loaded else self.need_state()
            end = state.next_offset
            if end < offset:
                raise OffsetOutOfRangeError(f"{self.key.directory} ends at {end}, below {offset}")
            try:
                return unsynced_from(self.log, self._commits.end, end)
            except OSError as error:
                raise KafkaStorageError(f"{self.directory}: {error}") from error

    def end_sync(self, end: int, error: int, needs_names: bool) -> None:
        """What ``begin_sync`` gave is on the device, or the device has answered with an error: then the partition is
        offline."""
        try:
            if error:
                raise OSError(error, os.strerror(error))
            if needs_names:
                assert self._disk is not None
                self._disk.sync_directory(self.directory)
        except (KafkaStorageError, OSError) as failure:
            self._go_offline(failure)
            return
        self._finish_sync(end)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Removes batches from an offset on, and what is known of them."""
        with self.lock:
            self._check_writable()
            if offset >= self.log_end_offset:
                return
            self.recovery_point = min(self.recovery_point, offset)
            self._commits.fall(offset)
            start, self.log_start_offset = self.log_start_offset, min(self.log_start_offset, offset)
            try:
                self._save_recovery_point()
            except KafkaStorageError:
                self.log_start_offset = start
                raise
            if self._slot is not None:  # readers in other processes first
                end, stable = min(offset, self.published_end_offset), min(offset, self._stable)
                self._slot.reset(self.log_start_offset, end, stable, end)
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
            if not 0 <= before <= self.high_watermark:
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
                self._remember_start(segments[len(gone)].base_offset)
                self.log.remove(gone)
                self.producers.remove_snapshots(below=self.log.start_offset)
            self.log_start_offset = max(self.log_start_offset, self.log.start_offset)
            self.epochs.truncate_from_start(self.log_start_offset)
        except OSError as error:
            raise KafkaStorageError(f"{self.directory}: {error}") from error
        finally:
            self._show_all()
        return len(gone)

    def _remember_start(self, offset: int) -> None:
        """Where the log will start is on the device before anything below is removed: a power failure may bring back
        some of the files and not others, and nobody may read across the hole."""
        self.log_start_offset = max(self.log_start_offset, offset)
        if self.log_start_offset > self.log.start_offset:
            self._save_recovery_point()

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
            self._show_all()

    def close(self) -> None:
        """Writes what a clean stop promises: trimmed indexes, a snapshot at the end, everything on disk.

        The files are given up in any case; after an error, or offline, the next opening recovers.
        """
        with self.lock:
            if self.is_closed:
                return
            self._set_closed()
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
                for watcher in self.watchers:  # nothing more will come
                    watcher()

    def remove_from(self, rename: Callable[[], None]) -> None:
        """Gives the partition up, to be removed; ``rename`` takes its files out of sight. Readers that have it open
        in this process go on with what is mapped; those that wait are woken, as nothing more will come."""
        with self.lock:
            if not self.is_offline or self.is_closed or self._born != forks():
                self._check_writable()
            with self._going_offline():
                for segment in self.log.segments:
                    if segment.disk is not None:  # by an attempt that failed later
                        segment.detach()
                rename()
            self._is_deleted = True
            self._set_closed()
            # It is another's next: a sync under way must not write it.
            self._slot = self._take_slot = None
            for watcher in self.watchers:
                watcher()

    def abandon(self) -> None:
        """Closes the files without a word, as a crash would; the next opening recovers."""
        with self.lock:
            if not self.is_closed:
                self._set_closed()
                self._give_up()

    def _give_up(self) -> None:
        """Closes every file without writing to it."""
        for segment in self.log.segments:
            with contextlib.suppress(OSError, OncelogError):
                segment.give_up()
