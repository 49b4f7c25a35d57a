"""The aborted transactions that a read_committed reader must know of, from the segments' transaction indexes.

An entry is checked against the log before its first use: its marker must be there, and its first offset must start
a transactional batch of its producer. Where that does not hold, the segment's index is made anew: the log wins.

A marker lies in the segment that was being written when its transaction was aborted, however far behind the data. So
all later segments would have to be asked, at every read; what is remembered of the sealed ones is the lowest offset at
which any of their aborted transactions began, and a read ends its search where that lies above its own end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from ..base.errors import CorruptRecordError, KafkaStorageError
from ..base.rows import ABORTED_DTYPE
from ..segment.batch import scan_prefix
from ..segment.names import LOG
from .admission import TRANSACTIONAL
from .producer_state import ABORT, ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .._native.segment import TailLock
    from ..log.log import Log
    from ..segment.segment import Segment

NEVER: Final = 2**63 - 1  # where nothing was aborted, nothing began


class AbortedTransactions:
    """Lookups over all segments of a log, from any thread. The writer's lock is held while an index is made anew."""

    def __init__(self, log: Log, lock: TailLock) -> None:
        self._log = log
        self._lock = lock
        self._checked: dict[int, set[int]] = {}  # entries that the log bears out, by segment
        self._rebuilt: set[int] = set()  # segments whose index was made from the log just now
        # Of a list of segments: where the first aborted transaction of its last 0, 1, 2, ... sealed ones began. The
        # lock is for who fills it or throws it away; it is replaced whole, so that readers need none.
        self._first_of_last: tuple[tuple[Segment, ...], list[int]] = ((), [])
        self._filling = threading.Lock()

    def forget(self, *, from_offset: int = 0) -> None:
        """Segments from an offset on have changed."""
        self._forget_firsts()
        for known in [base for base in self._checked if base >= from_offset]:
            del self._checked[known]
        self._rebuilt = {base for base in self._rebuilt if base < from_offset}

    def between(
        self, fetch_offset: int, upper_bound: int, segments: tuple[Segment, ...] | None = None
    ) -> NDArray[np.void]:
        """Transactions with data in [fetch_offset, upper_bound) that were aborted, in the order of their markers.

        A reader names the segments whose bytes it has, from the one that holds the first offset on: once a log
        is compacted, the indexes of its new segments do not speak of what was removed from the old.
        """
        parts = []
        for segment in self._worth_asking(
            segments or self._log.from_offset(fetch_offset), upper_bound
        ):
            found, is_complete = self._of_segment(segment, fetch_offset, upper_bound)
            if len(found):
                parts.append(found)
            if is_complete:
                break
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, ABORTED_DTYPE)

    def _worth_asking(self, segments: tuple[Segment, ...], upper_bound: int) -> Iterator[Segment]:
        """The first of the segments, those behind it that may hold markers of what began below a bound, and the last,
        which may be growing."""
        firsts = self._firsts(segments) if len(segments) > 2 else None
        last = len(segments) - 1
        for number, segment in enumerate(segments):
            if firsts is not None and 0 < number < last and firsts[last - number] >= upper_bound:
                yield segments[last]
                return
            yield segment

    def _firsts(self, segments: tuple[Segment, ...]) -> list[int] | None:
        """At ``n``: where the first aborted transaction of the last ``n`` sealed segments began. None for segments that
        have been replaced since the reader took them: the log's own do not speak for them."""
        current = self._log.segments
        if segments != current[-len(segments) :]:
            return None
        known, firsts = self._first_of_last
        if known is current and len(firsts) >= len(segments):
            return firsts
        with self._filling:
            known, firsts = self._first_of_last
            firsts = list(firsts) if known is current else [NEVER]
            while len(firsts) < len(segments):
                firsts.append(min(firsts[-1], _first_of(current[-1 - len(firsts)])))
            self._first_of_last = current, firsts
        return firsts

    def _forget_firsts(self) -> None:
        with self._filling:
            self._first_of_last = (), []

    def missing(self, segment: Segment, rows: NDArray[np.void], aborted: NDArray[np.void]) -> bool:
        """Whether batches of a segment hold an ABORT marker that no entry stands for, and the index is to blame.

        A marker of a transaction without data has none by right; that is found out once, by making the index anew.
        """
        markers = rows["base_offset"][rows["control_type"] == ABORT]
        if not len(markers) or np.isin(markers, aborted["last_offset"]).all():
            return False
        if segment.base_offset in self._rebuilt or segment not in self._log.segments:
            return False
        before = segment.txn_index.index.entries().tobytes()
        self.rebuild(segment)
        return segment.txn_index.index.entries().tobytes() != before

    def _of_segment(
        self, segment: Segment, fetch_offset: int, upper_bound: int
    ) -> tuple[NDArray[np.void], bool]:
        try:
            found, indices, is_complete = segment.txn_index.collect(fetch_offset, upper_bound)
            if not len(found):
                return found, is_complete
            checked = self._checked.setdefault(segment.base_offset, set())
            fresh = [
                (slot, row)
                for slot, row in zip(indices.tolist(), found, strict=True)
                if slot not in checked
            ]
            if segment.base_offset in self._rebuilt or all(
                self._is_in_log(segment, row) for _, row in fresh
            ):
                checked.update(slot for slot, _ in fresh)
                return found, is_complete
        except CorruptRecordError as error:
            if error.file == segment.path(LOG):
                raise  # not the index but the log itself
        self.rebuild(segment)
        found, _, is_complete = segment.txn_index.collect(fetch_offset, upper_bound)
        return found, is_complete

    def _is_in_log(self, segment: Segment, row: np.void) -> bool:
        """Whether the log holds the marker that an entry names, and the batch that its transaction began with."""
        producer, first = int(row["producer_id"]), int(row["first_offset"])
        marker = _batch_at(segment, int(row["last_offset"]), check_crc=True)
        if (
            marker is None
            or marker["base_offset"] != row["last_offset"]
            or marker["producer_id"] != producer
            or marker["control_type"] != ABORT
        ):
            return False
        if first < self._log.start_offset:
            return True  # it began in a segment that is gone
        begin = _batch_at(self._log.from_offset(first)[0], first)
        if begin is None or int(begin["base_offset"]) > first:
            return True  # compaction has removed the batch it began with
        return (
            int(begin["base_offset"]) == first
            and int(begin["producer_id"]) == producer
            and bool(int(begin["attributes"]) & TRANSACTIONAL)
        )

    def rebuild(self, segment: Segment) -> None:
        """Makes a segment's transaction index anew."""
        with self._lock:
            state = ProducerState(self._log)
            state.load(segment.base_offset)
            state.catch_up(segment.base_offset)
            replayed = (state.replay(rows) for rows in segment.rows(check_crc=True))
            parts = [np.empty(0, ABORTED_DTYPE), *replayed]
            self._checked.pop(segment.base_offset, None)
            if segment.disk is None:
                segment.txn_index.hold(np.concatenate(parts))
            else:
                try:
                    segment.txn_index.rewrite(segment.disk, np.concatenate(parts))
                except OSError as error:
                    raise KafkaStorageError(f"{segment.txn_index.path}: {error}") from error
            self._forget_firsts()
            self._rebuilt.add(segment.base_offset)


def _first_of(segment: Segment) -> int:
    """Where the first of the transactions began that a segment's index knows of."""
    try:
        index = segment.txn_index.index
    except CorruptRecordError:
        return 0  # to be asked, and made anew, whatever is looked for
    return int(index.entries()["first_offset"].min()) if len(index) else NEVER


def _batch_at(segment: Segment, offset: int, *, check_crc: bool = False) -> np.void | None:
    """The header of the batch that holds an offset, or of the next one; raises if it is damaged."""
    position = segment.position_of(offset)
    if position >= segment.size:
        return None
    rows, _, error = scan_prefix(
        segment.view(), position, bytes_max=1, check_crc=check_crc, file=segment.path(LOG)
    )
    if error is not None and not len(rows):
        raise error
    return rows[0] if len(rows) else None
