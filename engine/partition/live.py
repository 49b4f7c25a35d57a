"""A partition that another process is writing, as a reader sees it: never past what the writer has published.

Duty         lists the segments that go with the published offsets, and looks anew when it is asked to.
Concurrency  any thread reads; refresh() puts new segments and offsets in place of the old, and whoever reads goes on
             with those that it took.
Crash        of the writer: what was published is in the files, in whole batches.

Nothing is replayed: the last stable offset is published, and which transactions below it were aborted is in the
transaction indexes. Producers are worked out when somebody asks for them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ..base.disk import list_files
from ..base.errors import OffsetOutOfRangeError
from ..log.log import SIZED, Log
from ..log.swap import settled_view
from ..segment.following import FollowedSegment
from ..segment.names import LOG
from ..segment.segment import next_offset_of
from .aborted import AbortedTransactions
from .leader_epochs import LeaderEpochs
from .partition import Partition
from .producer_state import ProducerState
from .published import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._native.published import Slot
    from ..segment.names import TopicPartition
    from .admission import PartitionOptions
    from .reading import Fetched, Isolation, Window

TRIES: Final = 500  # of a listing whose files are renamed meanwhile
PAUSE_S: Final = 0.001


class LivePartition(Partition):
    """The reading half alone. ``owner`` tells whether the slot is still this partition's."""

    def __init__(
        self,
        key: TopicPartition,
        directory: str,
        options: PartitionOptions,
        slot: Slot,
        owner: int,
        *,
        now_ms: int,
    ) -> None:
        self.published = slot, owner
        self._bounds = Bounds(0, 0, 0, 0, -1)
        self._segments: tuple[FollowedSegment, ...] = ()
        super().__init__(key, directory, options, None, now_ms=now_ms)

    def _open(self, *_: object, **__: object) -> None:
        """Neither checkpoints nor the way the directory was last stopped matter: the writer knows better."""
        self.log = Log(self.directory, self.options.log, None)
        self.producers = ProducerState(self.log)
        self.aborted = AbortedTransactions(self.log, self.lock)
        self.epochs = LeaderEpochs(self.directory, None)
        self.log_start_offset = 0
        self.recovery_point = 0
        self._state_loaded = True  # all of it that a reader needs is published
        self.refresh()

    # ------------------------------------------------------------ looking anew

    def refresh(self, *, lists: bool = False) -> None:
        """Takes the offsets that are published now, and the segments that go with them.

        A partition that was deleted, or whose writer is gone, stays as it was seen last. ``lists`` even where
        nothing says that segments are others.
        """
        slot, owner = self.published
        with self.lock:
            for attempt in range(TRIES):
                if attempt >= TRIES // 10:  # the writer may have lost its processor half way
                    threading.Event().wait(PAUSE_S)
                found = slot.read(owner)
                if found is None and slot.owner == owner:
                    continue
                if found is None or (found == self._bounds and not lists):
                    return
                bounds = Bounds(*found)
                try:
                    segments = self._listed(bounds, lists=lists)
                except (FileNotFoundError, OffsetOutOfRangeError):
                    continue  # a segment went out of sight between the listing and its opening
                after = slot.read(owner)
                if after is not None and after[-1] == bounds.changes:
                    self._take(bounds, segments)
                    return
            raise OffsetOutOfRangeError(f"{self.directory} changes faster than it can be listed")

    def _listed(self, bounds: Bounds, *, lists: bool) -> tuple[FollowedSegment, ...]:
        """The segments up to the written end; those that have not changed are the same objects as before."""
        known = {segment.base_offset: segment for segment in self._segments}
        if lists or bounds.changes != self._bounds.changes:
            names = list_files(self.directory, sized=SIZED)
            found = settled_view(self.directory, self.options.log.segment, names, FollowedSegment)
            listed = [found[base] for base in sorted(found) if base <= bounds.written]
            if lists:
                known.clear()
        else:
            listed = list(self._segments)
        result: list[FollowedSegment] = []
        for segment in listed[:-1]:
            before = known.get(segment.base_offset)
            is_same = before is not None and before.size == segment.size
            result.append(before if is_same and before is not None else segment)
        for segment in listed[-1:]:
            last = FollowedSegment(self.directory, segment.base_offset, 0, segment.options)
            last.follow(bounds.written)
            result.append(last)
        return tuple(result)

    def _take(self, bounds: Bounds, segments: tuple[FollowedSegment, ...]) -> None:
        before = set(self._segments)
        changed = [segment.base_offset for segment in segments if segment not in before]
        self.aborted.forget(from_offset=min(changed, default=0))
        self._segments = segments
        self.log.follow(segments, bounds.written)
        self.log_start_offset = max(bounds.start, self.log.start_offset)
        if bounds.changes != self._bounds.changes:
            self.epochs = LeaderEpochs(self.directory, None)
        self._bounds = bounds

    # ------------------------------------------------------------ what is published

    @property
    def log_end_offset(self) -> int:
        return max(self._bounds.end, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        return max(min(self._bounds.stable, self._bounds.end), self.log_start_offset)

    @property
    def durable_end_offset(self) -> int:
        """Unknown to a reader: what it is shown is what its writer promises to keep."""
        return self.log_end_offset

    def need_state(self) -> ProducerState:
        """The producers up to the written end, replayed from the newest snapshot."""
        with self.lock:
            if self.producers.next_offset != self.log.end_offset:
                self.producers = ProducerState(self.log)
                self._load_state(self.log.end_offset)
            return self.producers

    # ------------------------------------------------------------ reading

    def windows(self, start: int, end: int, isolation: Isolation) -> Iterator[Window]:
        """As of any partition. Where a segment was replaced meanwhile, its successor is read; where it was deleted
        before anything was given out, what is left."""
        end = min(end, self.upper_bound(isolation))
        is_first = True
        while True:
            try:
                for window in super().windows(start, end, isolation):
                    yield window
                    is_first = False
                    start = next_offset_of(window.rows)
            except OffsetOutOfRangeError:
                before = {segment.path(LOG): segment.size for segment in self._segments}
                self.refresh(lists=True)
                if start < self.log_start_offset:
                    if not is_first:
                        raise
                    start = self.log_start_offset
                elif before == {segment.path(LOG): segment.size for segment in self._segments}:
                    raise  # not because of what has changed
            else:
                return

    def fetch(
        self, offset: int, bytes_max: int, isolation: Isolation, *, at_least_one: bool = True
    ) -> Fetched:
        try:
            return super().fetch(offset, bytes_max, isolation, at_least_one=at_least_one)
        except OffsetOutOfRangeError:
            self.refresh(lists=True)
            return super().fetch(offset, bytes_max, isolation, at_least_one=at_least_one)
