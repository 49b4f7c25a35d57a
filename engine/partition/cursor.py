"""Where one reader has come in a partition, so that going on from there costs no search.

``PartitionReader.windows`` looks an offset up and walks to an end; whoever follows a log comes back for a little more
each time, and keeps one of these instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from .._native.batch import scan_prefix, span
from ..base.errors import CorruptRecordError
from ..segment.names import LOG
from ..segment.segment import RELATIVE_OFFSET_MAX
from .admission import CONTROL, TRANSACTIONAL
from .reading import Isolation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from ..segment.segment import Segment
    from .reading import PartitionReader

OFFSET_MAX: Final = 2**63 - 2


class Reached(NamedTuple):
    """Batches that a reader has reached: their rows, the bytes these point into, and which of them may be seen."""

    view: Buffer
    rows: NDArray[np.void]
    visible: NDArray[np.bool_] | None  # None: all of them
    size: int  # bytes of all batches
    base_offset: int  # of the first batch
    end_offset: int  # records from here on are not to be seen yet
    file: str
    position: int  # in the file, of the view's first byte


class Cursor:
    """A place between two batches of one partition. Not for two threads at once; the writer may be any other.

    ``offset`` is where the next window starts. Every offset below it that the isolation level shows has been in a
    window, or will never hold a record. A segment that was replaced, removed or cut since is looked up anew.
    """

    def __init__(self, reader: PartitionReader, offset: int, isolation: Isolation) -> None:
        self.offset = offset
        self._reader = reader
        self._isolation = isolation
        self._truncations = reader.log.truncations
        # Of the segments only one is held: the space of others that are removed is free at once.
        self._segment: Segment | None = None
        self._index = 0  # of the segment in the log, when it was last there
        self._position = 0  # in the segment
        self._file = ""  # its path
        self._lowest = 0  # offset that a batch here may have

    @property
    def is_cut(self) -> bool:
        """The log was shortened since: what was read may not be what is there now."""
        return self._truncations != self._reader.log.truncations

    def next_window(self, bytes_max: int) -> Reached | None:
        """Batches of about so many bytes, one at least, as far as the isolation level allows; None: no more yet."""
        end = self._reader.upper_bound(self._isolation)
        if self.offset >= end:
            return None
        segments = self._here()
        while len(segments) > 1 and segments[0].size <= self._position:
            segments = segments[1:]
            self._enter(segments[0], self._index + 1, 0)
        if not segments or segments[0].size <= self._position or segments[0].base_offset >= end:
            self.offset = end  # the offsets up to there are decided, and there is nothing
            return None
        view, start, rows = self._rows(segments, bytes_max)
        if not len(rows):
            return None  # cut off at this moment
        found = span(rows, 0, OFFSET_MAX)
        if found[3] > end:
            rows = rows[: int((rows["base_offset"] < end).sum())]
            if not len(rows):
                self.offset = end
                return None
            found = span(rows, 0, OFFSET_MAX)
        visible = None
        if self._isolation is Isolation.READ_COMMITTED and found[4] & (TRANSACTIONAL | CONTROL):
            visible = self._reader._visible(rows, end, self._isolation, segments)
        if found[3] <= end:
            self.offset = self._lowest = found[3]
            self._position = found[1] + start
        else:  # an end within the last batch, as a log start may be: it is needed once more
            self.offset, self._lowest = end, int(rows["base_offset"][-1])
            self._position = int(rows["position"][-1]) + start
        size = found[1] - found[0]
        return Reached(view, rows, visible, size, found[2], self.offset, self._file, start)

    def _rows(
        self, segments: tuple[Segment, ...], bytes_max: int
    ) -> tuple[Buffer, int, NDArray[np.void]]:
        """(bytes, position of the first of them, rows) from here on; raises where the first batch is damaged."""
        segment = segments[0]
        highest = segment.base_offset + RELATIVE_OFFSET_MAX
        if len(segments) > 1:
            highest = min(highest, segments[1].base_offset - 1)
        view, start = segment.view_from(self._position)
        rows, _, error = scan_prefix(
            view, self._position - start, bytes_max=bytes_max, check_crc=False, file=self._file
        )
        if error is None and (not len(rows) or span(rows, self._lowest, highest)[5]):
            return view, start, rows
        # Something is wrong: the segment tells what and where, after all that is sound before it.
        rows = next(segment.rows(self._position, bytes_max=bytes_max), rows[:0])
        if not len(rows):
            return view, start, rows
        self._reader._check_reach(rows, segments[:2])
        if int(rows["base_offset"][0]) < self._lowest:
            raise CorruptRecordError(
                "the base offset does not follow the batch before it",
                file=self._file,
                position=self._position,
                base_offset=int(rows["base_offset"][0]),
            )
        return segment.view(), 0, rows

    def _here(self) -> tuple[Segment, ...]:
        """The segment that goes on at the offset, and all after it."""
        log, own = self._reader.log, self._segment
        segments = log.segments
        if own is not None and not self.is_cut:
            if self._index < len(segments) and segments[self._index] is own:
                return segments[self._index :]
            found = log.from_offset(own.base_offset)
            if found and found[0] is own:
                self._index = len(log.segments) - len(found)
                return found
        self._truncations = log.truncations
        found = log.from_offset(self.offset)
        if found:
            self._enter(found[0], len(segments) - len(found), found[0].position_of(self.offset))
        return found

    def _enter(self, segment: Segment, index: int, position: int) -> None:
        self._segment, self._index, self._position = segment, index, position
        self._file, self._lowest = segment.path(LOG), segment.base_offset
