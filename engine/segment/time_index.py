"""Time index: from a timestamp to the offset from which to look for it.

File    <base_offset>.timeindex
Writer  Segment.append, with every offset index entry; once more when the segment is sealed or closed
Reader  Segment.find_timestamp; retention, for the largest timestamp of a segment
Repair  rebuilt from the log

==  ====  =====  ===============  =================================================
at  size  type   field            invariant
==  ====  =====  ===============  =================================================
 0     8  int64  timestamp        the largest so far; rises, equal ones add nothing
 8     4  int32  relative_offset  last offset of the batch that has it - base offset
==  ====  =====  ===============  =================================================

Big-endian, no checksum; preallocated with zeros while its segment is written.
"""

from __future__ import annotations

import struct
from typing import Final

from .._native.segment import find_timestamp
from ..base.errors import CorruptFileError
from .index_file import IndexFile

ENTRY: Final = struct.Struct(">qi")


class TimeIndex(IndexFile):
    entry_bytes = ENTRY.size
    kept_slots = 1

    def entry(self, slot: int) -> tuple[int, int]:
        """(timestamp, offset) of one entry."""
        timestamp, relative = ENTRY.unpack(self[slot])
        return timestamp, self.base_offset + relative

    @property
    def last(self) -> tuple[int, int]:
        """The last entry; (-1, base offset) where there is none."""
        return self.entry(self.count - 1) if self.count else (-1, self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry at or below a timestamp; (-1, base offset) where there is none."""
        slot = find_timestamp(self._entries, self.count, timestamp)
        return self.entry(slot) if slot >= 0 else (-1, self.base_offset)

    def put(self, timestamp: int, offset: int) -> None:
        """Appends the entry that seals a segment, also into the last slot; one with the last timestamp adds nothing."""
        last_timestamp, last_offset = self.last
        if self.count and (offset < last_offset or timestamp < last_timestamp):
            raise CorruptFileError(
                f"timestamp {timestamp} at offset {offset} is below the last, {last_timestamp} at {last_offset}",
                file=self.path,
            )
        if timestamp > last_timestamp:
            self.append(self.pack(timestamp, offset), is_last=True)

    def pack(self, timestamp: int, offset: int) -> bytes:
        return ENTRY.pack(timestamp, offset - self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Forgets entries of this offset and above."""
        keep = self.count
        while keep and self.entry(keep - 1)[1] >= offset:
            keep -= 1
        self.shrink(keep)

    def check(self) -> None:
        if not self.count:
            return
        timestamp, offset = self.last
        if offset < self.base_offset:
            raise CorruptFileError("the last entry lies below the base offset", file=self.path)
        if self.count > 1 and timestamp <= self.entry(self.count - 2)[0]:
            raise CorruptFileError("the last timestamps do not rise", file=self.path)
