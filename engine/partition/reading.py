"""What readers ask of a partition: batches, fetches, aborted transactions, offsets by time.

Nothing here changes anything but indexes that turn out to be wrong, and nothing waits for the writer: a reader takes
the segments and the bound of its isolation level once, and goes on with those.
"""

from __future__ import annotations

import abc
import enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._native.abort_filter import visible_batches
from ..base.errors import CorruptRecordError, OffsetOutOfRangeError
from ..base.rows import ABORTED_DTYPE
from ..segment.batch import decode, scan, scan_prefix
from ..segment.names import LOG
from ..segment.segment import next_offset_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ..base.disk import Disk
    from ..log.log import Log
    from ..segment.names import TopicPartition
    from ..segment.segment import Segment
    from .aborted import AbortedTransactions


class Isolation(enum.Enum):
    """How far a reader may see."""

    LOG_END = "log_end"
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Window(NamedTuple):
    """Batches of one segment that a reader has reached, and which of them it may see."""

    segment: Segment
    rows: NDArray[np.void]
    visible: NDArray[np.bool_] | None


class Fetched(NamedTuple):
    """Raw batches from an offset on, and what a consumer needs to filter them."""

    records: memoryview
    aborted: NDArray[np.void] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class PartitionReader(abc.ABC):
    """The reading half of a partition."""

    key: TopicPartition
    log: Log
    log_start_offset: int
    aborted: AbortedTransactions
    _disk: Disk | None

    @property
    @abc.abstractmethod
    def log_end_offset(self) -> int: ...

    @property
    @abc.abstractmethod
    def high_watermark(self) -> int: ...

    @property
    @abc.abstractmethod
    def last_stable_offset(self) -> int: ...

    def upper_bound(self, isolation: Isolation) -> int:
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def _check_start(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{self.key.directory} has offsets {self.log_start_offset} to {self.log_end_offset}, not {offset}"
            )

    def windows(self, start: int, end: int, isolation: Isolation) -> Iterator[Window]:
        """Batches of [start, end) as far as the isolation level allows, a window of rows at a time."""
        end = min(end, self.upper_bound(isolation))
        segments = self.log.from_offset(start)
        for index, segment in enumerate(segments):
            if segment.base_offset >= end:
                return
            for rows in segment.rows(segment.position_of(start)):
                self._check_reach(rows, segments[index : index + 2])
                wanted = rows[rows["base_offset"] < end]
                if len(wanted):
                    visible = self._visible(wanted, end, isolation, segments[index:])
                    yield Window(segment, wanted, visible)
                if len(wanted) < len(rows) or next_offset_of(rows) >= end:
                    return

    def _check_reach(self, rows: NDArray[np.void], segments: tuple[Segment, ...]) -> None:
        """Offsets of a segment end where the next begins; a base offset beyond that was damaged.

        Of a segment that grows meanwhile nobody can tell.
        """
        if len(segments) > 1:
            bound = segments[1].base_offset
        elif self._disk is None:
            bound = self.log.end_offset
        else:
            return
        if next_offset_of(rows) > bound:
            at = int((rows["base_offset"] >= bound).argmax())
            raise CorruptRecordError(
                f"the base offset lies beyond the segment's end, {bound}",
                file=segments[0].path(LOG),
                position=int(rows["position"][at]),
                base_offset=int(rows["base_offset"][at]),
            )

    def _visible(
        self,
        rows: NDArray[np.void],
        end: int,
        isolation: Isolation,
        segments: tuple[Segment, ...],
    ) -> NDArray[np.bool_] | None:
        if isolation is not Isolation.READ_COMMITTED:
            return None
        start, end = int(rows["base_offset"][0]), min(end, next_offset_of(rows))
        aborted = self.aborted.between(start, end, segments)
        if self.aborted.missing(segments[0], rows, aborted):
            aborted = self.aborted.between(start, end, segments)
        return visible_batches(rows, aborted)

    def fetch(
        self, offset: int, bytes_max: int, isolation: Isolation, *, at_least_one: bool = True
    ) -> Fetched:
        """Whole batches from the one that holds an offset on, as bytes."""
        self._check_start(offset)
        high_watermark, stable = self.high_watermark, self.last_stable_offset
        end = stable if isolation is Isolation.READ_COMMITTED else high_watermark
        records, segments = memoryview(b""), self.log.from_offset(offset)
        if offset < end:
            records = self._slice(segments, offset, end, bytes_max, at_least_one=at_least_one)
        aborted = None
        if isolation is Isolation.READ_COMMITTED:
            aborted = np.empty(0, ABORTED_DTYPE)
            if len(records):
                rows = scan(records, check_crc=False)
                aborted = self.aborted_transactions(offset, next_offset_of(rows), segments)
        return Fetched(records, aborted, high_watermark, stable, self.log_start_offset)

    @staticmethod
    def _slice(
        segments: tuple[Segment, ...], offset: int, end: int, bytes_max: int, *, at_least_one: bool
    ) -> memoryview:
        for segment in segments:
            position = segment.position_of(offset)
            view = segment.view()
            if position >= len(view):
                continue
            rows, _, _ = scan_prefix(view, position, bytes_max=max(bytes_max, 1), check_crc=False)
            rows = rows[rows["base_offset"] < end]
            fits = rows["position"] + rows["size"] - position <= bytes_max
            count = int(fits.argmin()) if not fits.all() else len(rows)
            if not count and at_least_one and len(rows):
                count = 1
            if not count:
                return memoryview(b"")
            return view[position : int(rows["position"][count - 1] + rows["size"][count - 1])]
        return memoryview(b"")

    def aborted_transactions(
        self, fetch_offset: int, upper_bound: int, segments: tuple[Segment, ...] | None = None
    ) -> NDArray[np.void]:
        """Transactions with data in [fetch_offset, upper_bound) that were aborted, in the order of their markers."""
        return self.aborted.between(fetch_offset, upper_bound, segments)

    def offset_for_timestamp(
        self, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at that time or later; None if there is none to be seen."""
        end = self.upper_bound(isolation)
        for segment in self.log.from_offset(self.log_start_offset):
            if segment.size == 0 or segment.max_timestamp < timestamp:
                continue
            position = segment.position_of_timestamp(timestamp, self.log_start_offset)
            for rows in segment.rows(position):
                for columns in decode(
                    segment.view(),
                    rows[rows["max_timestamp"] >= timestamp],
                    start_offset=self.log_start_offset,
                    end_offset=end,
                    include_control=True,
                    file=segment.path(LOG),
                ):
                    late_enough = columns.timestamps >= timestamp
                    if late_enough.any():
                        first = int(late_enough.argmax())
                        return int(columns.timestamps[first]), int(columns.offsets[first])
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with the largest timestamp; None for an empty log."""
        best = max(
            (segment.max_timestamp for segment in self.log.segments if segment.size), default=-1
        )
        return self.offset_for_timestamp(best) if best >= 0 else None
