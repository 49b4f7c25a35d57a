"""Offset index: from an offset to a place in the log from which to look for it.

File    <base_offset>.index, one entry for about every index.interval.bytes (4,096) of log
Writer  Segment.append
Reader  Segment.position_of
Repair  rebuilt from the log

==  ====  =====  ===============  ================================================
at  size  type   field            invariant
==  ====  =====  ===============  ================================================
 0     4  int32  relative_offset  last offset of the batch - base offset; rises
 4     4  int32  position         of that batch in the log; rises
==  ====  =====  ===============  ================================================

Big-endian, no checksum; preallocated with zeros while its segment is written.
"""

from __future__ import annotations

import struct
from typing import Final

from .._native.segment import find_offset, find_position
from ..base.errors import CorruptFileError
from .index_file import IndexFile

ENTRY: Final = struct.Struct(">ii")


class OffsetIndex(IndexFile):
    entry_bytes = ENTRY.size

    def entry(self, slot: int) -> tuple[int, int]:
        """(offset, position) of one entry."""
        relative, position = ENTRY.unpack(self[slot])
        return self.base_offset + relative, position

    @property
    def last_offset(self) -> int:
        return self.entry(self.count - 1)[0] if self.count else self.base_offset

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last entry at or below an offset; (base offset, 0) where there is none."""
        slot = find_offset(self._entries, self.count, offset - self.base_offset)
        return self.entry(slot) if slot >= 0 else (self.base_offset, 0)

    def upper_bound(self, position: int, size: int) -> tuple[int, int] | None:
        """The first entry at or past ``position + size``: where a fetch of that size surely ends."""
        slot = find_position(self._entries, self.count, position + size - 1) + 1
        return self.entry(slot) if slot < self.count else None

    def append(self, entries: bytes, *, is_last: bool = False) -> None:
        """Writes whole entries after the last, whose offsets rise above it."""
        if entries and self.count:
            offset = self.base_offset + int(ENTRY.unpack_from(entries)[0])
            if offset <= self.last_offset:
                raise CorruptFileError(
                    f"offset {offset} does not rise above the last, {self.last_offset}",
                    file=self.path,
                )
        super().append(entries, is_last=is_last)

    def truncate_to(self, offset: int) -> None:
        """Forgets entries of this offset and above."""
        self.shrink(find_offset(self._entries, self.count, offset - self.base_offset - 1) + 1)

    def check(self) -> None:
        if self.count and ENTRY.unpack(self[self.count - 1])[0] < 0:
            raise CorruptFileError("the last entry lies below the base offset", file=self.path)
        if self.count > 1:
            before, last = self.entry(self.count - 2), self.entry(self.count - 1)
            if last[0] <= before[0] or last[1] <= before[1]:
                raise CorruptFileError("the last entries do not rise", file=self.path)
