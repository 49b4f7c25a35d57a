"""Which log is cleaned next, how far, and what is remembered of it.

The first dirty offset of each log stands in the data directory's ``cleaner-offset-checkpoint``. The log with the
largest share of dirty bytes goes first, if it is dirty enough or has waited too long. A log that cannot be cleaned
because it is damaged is left alone from then on, and its error kept. One whose disk fails is left alone for a while,
so that the others have their turn.

The checkpoint may lag behind what is known here, where it cannot be written: cleaning again does no harm, and what is
not cleaned costs space and no record.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import (
    CleaningAbortedError,
    CorruptFileError,
    KafkaStorageError,
    OncelogError,
)
from ..log.checkpoint import CLEANER, read_offsets, write_offsets
from .cleaner import Cleaned, CleanerOptions, clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..base.disk import Disk
    from ..segment.names import TopicPartition
    from ..segment.segment import Segment
    from .partition import Partition

logger = logging.getLogger("oncelog.partition")

# A log whose disk failed is tried again after this long, then after twice as long, up to the longest.
RETRY_MS: Final = 15_000
RETRY_MS_MAX: Final = 3_600_000


@dataclass(frozen=True)
class CompactionOptions:
    """How a topic is compacted; names are those of Kafka's topic options. What may go must be said: no defaults."""

    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float


class Candidate(NamedTuple):
    """A compacted partition and its rules."""

    partition: Partition
    options: CompactionOptions


class Cleanable(NamedTuple):
    """What could be cleaned of a log: offsets [first_dirty, end), and how dirty it is."""

    candidate: Candidate
    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class Compactor:
    """The cleaning of one data directory. Any thread may ask it to stop; each log is cleaned by one at a time."""

    def __init__(self, path: str, disk: Disk, options: CleanerOptions | None = None) -> None:
        self._path = f"{path}/{CLEANER}"
        self._disk = disk
        self._options = options or CleanerOptions()
        self._changed = threading.Condition(threading.RLock())
        self._running: set[TopicPartition] = set()
        self._paused: dict[TopicPartition, int] = {}
        self._postponed: dict[TopicPartition, tuple[int, int]] = {}  # since when, and for how long
        self._is_checkpoint_stale = False
        self._is_stopped = False
        self.uncleanable: dict[TopicPartition, OncelogError] = {}
        try:
            self._first_dirty = read_offsets(self._path)
        except CorruptFileError:
            self._first_dirty = {}  # everything is dirty: cleaning again does no harm

    # ------------------------------------------------------------ the checkpoint

    def first_dirty(self, partition: Partition) -> int:
        """The offset from which on a log is dirty; one that cannot be is reset to the log's start."""
        with self._changed:
            known = self._first_dirty.get(partition.key)
            start = partition.log_start_offset
            if known is not None and start <= known <= partition.log_end_offset:
                return known
            if known is not None:
                self._store({**self._first_dirty, partition.key: start})
            return start

    def checkpointed(self, key: TopicPartition) -> int | None:
        """The first dirty offset that the checkpoint has of a log, for who has not opened it."""
        return self._first_dirty.get(key)

    def _store(self, offsets: dict[TopicPartition, int]) -> None:
        """Replaces the checkpoint; one that cannot be written is written with the next change, or choice."""
        self._first_dirty = offsets
        was_stale, self._is_checkpoint_stale = self._is_checkpoint_stale, True
        try:
            write_offsets(self._disk, self._path, offsets)
        except OSError as error:
            if not was_stale:
                logger.warning(
                    "%s cannot be written, and will be tried again: %s", self._path, error
                )
            return
        self._is_checkpoint_stale = False
        if was_stale:
            logger.info("%s is written again", self._path)

    def truncated(self, key: TopicPartition, offset: int) -> None:
        """A log was cut at an offset: what is written there from now on is dirty."""
        with self._changed:
            if self._first_dirty.get(key, 0) > offset:
                self._store({**self._first_dirty, key: offset})

    def forget(self, key: TopicPartition) -> None:
        """A partition is gone."""
        with self._changed:
            self.uncleanable.pop(key, None)
            self._postponed.pop(key, None)
            if key in self._first_dirty:
                self._store({at: known for at, known in self._first_dirty.items() if at != key})

    # ------------------------------------------------------------ choosing

    def cleanable(self, candidate: Candidate, now_ms: int) -> Cleanable:
        """How far a log may be cleaned: not the active segment, nothing undecided, nothing too young."""
        partition, options = candidate
        with partition.lock:
            segments = partition.log.segments
            first_dirty = self.first_dirty(partition)
            dirty = [
                segment
                for segment, following in itertools.pairwise(segments)
                if following.base_offset > first_dirty
            ]
            end = min(partition.last_stable_offset, segments[-1].base_offset)
            if options.min_compaction_lag_ms > 0:
                young = now_ms - options.min_compaction_lag_ms
                end = min([end, *_starts(s for s in dirty if s.max_timestamp > young)])
            end = max(end, first_dirty)
            first_uncleanable = _segment_of(segments, end).base_offset
            return Cleanable(
                candidate,
                first_dirty,
                end,
                sum(segment.size for segment in segments if segment.base_offset < first_dirty),
                sum(segment.size for segment in dirty if segment.base_offset < first_uncleanable),
                self._is_overdue(dirty, options, now_ms),
            )

    @staticmethod
    def _is_overdue(dirty: Iterable[Segment], options: CompactionOptions, now_ms: int) -> bool:
        """Whether something dirty has waited longer than max.compaction.lag.ms."""
        starts = [segment.first_timestamp for segment in dirty]
        oldest = min((start for start in starts if start is not None and start > 0), default=now_ms)
        return oldest < now_ms - max(options.max_compaction_lag_ms, 0)

    def filthiest(self, candidates: Iterable[Candidate], now_ms: int) -> Cleanable | None:
        """The log to clean next, None if all are clean enough. One whose state cannot be read is left alone."""
        with self._changed:
            if self._is_checkpoint_stale:
                self._store(self._first_dirty)
        found = []
        for candidate in candidates:
            partition = candidate.partition
            if self._must_wait(partition, now_ms):
                continue
            try:
                found.append(self.cleanable(candidate, now_ms))
            except OncelogError as error:
                self._failed(partition, error, now_ms)
        due = [
            log
            for log in found
            if (log.is_overdue and log.dirty_bytes)
            or log.dirty_ratio > log.candidate.options.min_cleanable_dirty_ratio
        ]
        return max(due, key=lambda log: log.dirty_ratio, default=None)

    def _must_wait(self, partition: Partition, now_ms: int) -> bool:
        """Whether it is not a log's turn, however dirty it is."""
        key = partition.key
        with self._changed:
            if partition.is_offline or key in self.uncleanable or key in self._running:
                return True
            since_ms, pause_ms = self._postponed.get(key, (0, 0))
            return bool(self._paused.get(key)) or since_ms <= now_ms < since_ms + pause_ms

    def _failed(self, partition: Partition, error: OncelogError, now_ms: int) -> None:
        """A log cannot be cleaned: for now, if it is the disk, else for good. The others go on."""
        key = partition.key
        with self._changed:
            if partition.is_closed:
                return  # deleted meanwhile: one of the same name starts afresh
            if not isinstance(error, KafkaStorageError):
                self.uncleanable[key] = error
                logger.warning("%s cannot be cleaned, and is left alone: %s", key.directory, error)
                return
            _, pause_ms = self._postponed.get(key, (0, 0))
            self._postponed[key] = (now_ms, min(max(2 * pause_ms, RETRY_MS), RETRY_MS_MAX))
            level = logging.DEBUG if pause_ms else logging.WARNING  # said once is enough
            logger.log(level, "%s cannot be cleaned for now: %s", key.directory, error)

    # ------------------------------------------------------------ cleaning

    def clean(self, log: Cleanable, now_ms: int) -> Cleaned | None:
        """Cleans one log and remembers how far it came; None if it was stopped or proved uncleanable.

        Raises a KafkaStorageError where the disk fails: then the log is as before, and chosen again after a while.
        """
        partition, options = log.candidate
        key = partition.key
        with self._changed:
            if self._is_stopped or self._paused.get(key) or key in self._running:
                return None
            self._running.add(key)
        try:
            done = clean(
                partition,
                first_dirty=log.first_dirty,
                end=log.end,
                delete_retention_ms=options.delete_retention_ms,
                now_ms=now_ms,
                options=self._options,
                check=lambda: self._check_running(key),
            )
            with self._changed:
                self._check_running(key)
                self._postponed.pop(key, None)
                self._store({**self._first_dirty, key: done.end_offset})
        except CleaningAbortedError:
            return None
        except OncelogError as error:
            self._failed(partition, error, now_ms)
            if isinstance(error, KafkaStorageError):
                raise
            return None
        else:
            return done
        finally:
            with self._changed:
                self._running.discard(key)
                self._changed.notify_all()

    def stop(self) -> None:
        """The directory is about to be closed: cleaning that is under way stops, and none begins."""
        with self._changed:
            self._is_stopped = True
            self._changed.wait_for(lambda: not self._running)

    def _check_running(self, key: TopicPartition) -> None:
        with self._changed:
            if self._is_stopped or self._paused.get(key):
                raise CleaningAbortedError(f"the cleaning of {key.directory} was stopped")

    @contextlib.contextmanager
    def paused(self, key: TopicPartition) -> Iterator[None]:
        """While a partition is truncated or removed: cleaning that is under way stops, and none begins.

        Entered without the partition's lock, which a pass needs to come to its end.
        """
        with self._changed:
            self._paused[key] = self._paused.get(key, 0) + 1
            self._changed.wait_for(lambda: key not in self._running)
        try:
            yield
        finally:
            with self._changed:
                self._paused[key] -= 1
                if not self._paused[key]:
                    del self._paused[key]


def _starts(segments: Iterable[Segment]) -> list[int]:
    return [segment.base_offset for segment in segments]


def _segment_of(segments: tuple[Segment, ...], offset: int) -> Segment:
    """The segment that holds an offset, or the last one."""
    return next(
        (
            segment
            for segment, following in itertools.pairwise(segments)
            if following.base_offset > offset
        ),
        segments[-1],
    )
