"""A segment of a log that another process is writing.

Its files may grow, be sealed, and be replaced or removed at any time. What is taken of them is taken at one moment,
and a mapping stays good whatever becomes of the names.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .._native.segment import seek
from ..base.disk import map_file
from ..base.errors import BatchError, OffsetOutOfRangeError
from .batch import scan_prefix
from .names import LOG
from .segment import WINDOW_BYTES, Segment, next_offset_of

if TYPE_CHECKING:
    from typing_extensions import Buffer


class FollowedSegment(Segment):
    """For readers alone: sealed and as long as it was listed, or followed as far as its writer says."""

    def view(self) -> memoryview:
        """The bytes below ``size``, mapped; raises where the file is no longer the one that was listed."""
        mapping: Buffer = self._mapping
        if len(memoryview(mapping)) < self.size:
            with self._files:
                try:
                    mapping = self.txn_index.pin_with(self.path(LOG))
                except FileNotFoundError:
                    mapping = b""
                if (
                    len(memoryview(mapping)) != self.size
                ):  # compaction puts others in the place of old ones
                    self.txn_index.close()
                    raise OffsetOutOfRangeError(
                        f"{self.path(LOG)} was removed or replaced since it was listed"
                    )
                self._mapping = mapping
        return memoryview(mapping)[: self.size]

    def follow(self, end_offset: int) -> None:
        """Takes the batches below an offset, all of which are in the files. What lies behind may be half written, and
        is left out."""
        with self._files:
            self._mapping = view = memoryview(map_file(self.path(LOG)))
            self.size = len(view)
            self.txn_index.pin_growing(end_offset)
            for index in (self.offset_index, self.time_index):
                index.hold(b"")
                with contextlib.suppress(FileNotFoundError):  # of a segment that is just being made
                    index.hold_growing()
                index.truncate_to(end_offset)
            self._indexed = True
            named, position = self.offset_index.lookup(end_offset)
            if position and self._last_offset_at(position) != named:
                self.offset_index.hold(b"")
                position = 0
            self._cut(self._end_of(view, position, end_offset))

    def _end_of(self, view: memoryview, position: int, end_offset: int) -> int:
        """Where the batches below an offset end, from a batch's start on."""
        if end_offset <= self.base_offset:
            return 0
        with contextlib.suppress(BatchError):
            # Not one byte further, where that can be: the file may be cut behind its last batch at any time, and the
            # pages of a mapping with it.
            position = seek(view, position, end_offset - 1)
            rows = self.first_row(position)
            if len(rows) and next_offset_of(rows) == end_offset:
                return position + int(rows["size"][0])
        while position < len(view):
            rows, position, error = scan_prefix(
                view, position, bytes_max=WINDOW_BYTES, check_crc=False
            )
            beyond = rows["base_offset"] >= end_offset
            if beyond.any():
                return int(rows["position"][beyond.argmax()])
            if error is not None:
                break
        return position
