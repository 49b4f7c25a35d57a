"""Where a range of offsets can be cut, so that several readers share it: at batches, in pieces of about one size.

Only lists of segments and offset indexes are looked at, and the header of each batch that a piece starts with. An
index is no proof, so a place counts only where the log has a batch that bears it out; where it has none, or where the
index is too coarse, pieces are larger than was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..segment.segment import Segment
    from .reading import PartitionReader


def range_bytes(reader: PartitionReader, start: int, end: int) -> int:
    """Bytes of the batches that hold offsets of [start, end), to the precision of an index."""
    return sum(last - first for _, first, last in _stretches(reader, start, end))


def split_offsets(reader: PartitionReader, start: int, end: int, pieces: int) -> list[int]:
    """The offsets that up to so many pieces of [start, end) begin with, each the first of a batch; ``start`` is one."""
    found = [start]
    stretches = list(_stretches(reader, start, end))
    total = sum(last - first for _, first, last in stretches)
    if pieces < 2 or not total:
        return found
    before, cut = 0, 1  # bytes of the stretches so far; the number of the next cut
    for segment, first, last in stretches:
        while cut < pieces:
            target = first + total * cut // pieces - before
            if target >= last:
                break
            offset = _batch_at(segment, max(target, first))
            if offset is None:
                break  # the next segment begins with a batch
            if found[-1] < offset < end:
                found.append(offset)
            cut += 1
        before += last - first
    return found


def _stretches(reader: PartitionReader, start: int, end: int) -> Iterator[tuple[Segment, int, int]]:
    """Segments with offsets of [start, end), and from which position to which they hold them."""
    if start >= end:
        return
    for segment in reader.log.from_offset(start):
        if segment.base_offset >= end:
            return
        segment.need_indexes()
        index = segment.offset_index
        first = index.lookup(start)[1]
        last = segment.size if end > index.last_offset else index.lookup(end)[1]
        if first < last:
            yield segment, first, last


def _batch_at(segment: Segment, position: int) -> int | None:
    """The base offset of the first batch at or past a position that an index names; None where it names none."""
    if not position:
        rows = segment.first_row(0)
        return int(rows["base_offset"][0]) if len(rows) else None
    entry = segment.offset_index.upper_bound(position, 0)
    if entry is None:
        return None
    rows = segment.first_row(entry[1])
    if not len(rows) or int(rows["base_offset"][0] + rows["last_offset_delta"][0]) != entry[0]:
        return None
    return int(rows["base_offset"][0])
