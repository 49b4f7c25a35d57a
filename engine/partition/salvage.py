"""Reading past damage: what is sound before a bad batch and after it, and a word about each that is left out.

A batch whose header makes sense but whose bytes do not is stepped over by its length. Where the header itself is lost,
reading goes on at the next batch that the offset index names and the log bears out, or else with the next segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from .._native.abort_filter import visible_batches
from ..base.errors import BatchError, CorruptRecordError
from ..base.rows import ABORTED_DTYPE
from ..segment.batch import DECODE_BYTES, decode, records
from ..segment.names import LOG
from ..segment.segment import next_offset_of
from .reading import Isolation, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from .._native.batch import RecordColumns
    from .._native.records import Record
    from ..segment.segment import Segment
    from .reading import PartitionReader

Item = TypeVar("Item")


class Damage(NamedTuple):
    """Bytes of a log that were left out of a read, and why."""

    file: str
    position: int
    size: int
    reason: str


def salvaged_windows(
    reader: PartitionReader,
    start: int,
    end: int,
    isolation: Isolation,
    on_damage: Callable[[Damage], None],
) -> Iterator[Window]:
    """As ``PartitionReader.windows``, but around damage instead of up to it."""
    end = min(end, reader.upper_bound(isolation))
    segments = reader.log.from_offset(start)
    for index, segment in enumerate(segments):
        if segment.base_offset >= end:
            return
        later = segments[index + 1 :]
        bound = later[0].base_offset if later else reader.log_end_offset
        for rows in _sound_rows(segment, start, bound, on_damage):
            wanted = rows[rows["base_offset"] < end]
            if len(wanted):
                visible = _visible(reader, wanted, end, isolation, segments[index:])
                yield Window(segment, wanted, visible)
            if len(wanted) < len(rows):
                return


def _sound_rows(
    segment: Segment, start: int, bound: int, on_damage: Callable[[Damage], None]
) -> Iterator[NDArray[np.void]]:
    """Rows of a segment from an offset on, below the next segment's; damage is told and stepped over."""
    segment.need_indexes()
    position = segment.offset_index.lookup(start)[1]
    if not len(segment.first_row(position)):
        position = 0
    while position < segment.size:
        try:
            for rows in segment.rows(position):
                ends = rows["base_offset"] + rows["last_offset_delta"]
                beyond = ends >= bound
                kept = rows[: int(beyond.argmax())] if beyond.any() else rows
                if len(kept):
                    position = int(kept["position"][-1] + kept["size"][-1])
                    wanted = kept[ends[: len(kept)] >= start]
                    start = max(start, next_offset_of(kept))
                    yield wanted
                if len(kept) < len(rows):
                    what = f"the base offset lies beyond the segment's end, {bound}"
                    raise CorruptRecordError(what, position=position)
            return
        except BatchError as error:
            bad = max(error.position, position)
            position = _next_sound(segment, bad, start)
            on_damage(Damage(segment.path(LOG), bad, position - bad, error.what))


def _next_sound(segment: Segment, bad: int, start: int) -> int:
    """Where a batch starts behind a bad one."""
    rows = segment.first_row(bad)
    if len(rows) and bad + int(rows["size"][0]) <= segment.size:
        after = segment.first_row(bad + int(rows["size"][0]))
        if len(after) and int(after["base_offset"][0]) >= start:
            return bad + int(rows["size"][0])
    index, position = segment.offset_index, bad
    while (entry := index.upper_bound(position + 1, 0)) is not None:
        rows = segment.first_row(entry[1])
        if len(rows) and next_offset_of(rows) - 1 == entry[0]:
            return entry[1]
        position = entry[1]
    return segment.size


def _visible(
    reader: PartitionReader,
    rows: NDArray[np.void],
    end: int,
    isolation: Isolation,
    segments: tuple[Segment, ...],
) -> NDArray[np.bool_] | None:
    """Which batches may be seen. Where the log is too damaged to bear the transaction indexes out, they are believed:
    they are all that is left."""
    try:
        return reader._visible(rows, end, isolation, segments)
    except CorruptRecordError:
        first, last = int(rows["base_offset"][0]), min(end, next_offset_of(rows))
        parts = [np.empty(0, ABORTED_DTYPE)]
        for segment in segments:
            found, _, is_complete = segment.txn_index.collect(first, last)
            parts.append(found)
            if is_complete:
                break
        return visible_batches(rows, np.concatenate(parts))


def salvaged_columns(
    window: Window,
    start: int,
    end: int,
    on_damage: Callable[[Damage], None],
    *,
    views: bool = False,
    bytes_max: int = DECODE_BYTES,
) -> Iterator[RecordColumns]:
    """The decoded batches of a window that are sound."""

    def attempt(
        rows: NDArray[np.void], visible: NDArray[np.bool_] | None, start: int
    ) -> Iterator[RecordColumns]:
        return decode(
            window.segment.view(),
            rows,
            visible=visible,
            start_offset=start,
            end_offset=end,
            views=views,
            bytes_max=bytes_max,
            file=window.segment.path(LOG),
        )

    return _around(window, start, on_damage, attempt, lambda columns: int(columns.offsets[-1]))


def salvaged_records(
    window: Window,
    start: int,
    end: int,
    on_damage: Callable[[Damage], None],
    *,
    topic: str,
    partition: int,
) -> Iterator[Record]:
    """The records of a window whose batches are sound."""

    def attempt(
        rows: NDArray[np.void], visible: NDArray[np.bool_] | None, start: int
    ) -> Iterator[Record]:
        return records(
            window.segment.view(),
            rows,
            visible=visible,
            start_offset=start,
            end_offset=end,
            file=window.segment.path(LOG),
            topic=topic,
            partition=partition,
        )

    return _around(window, start, on_damage, attempt, lambda record: record.offset)


def _around(
    window: Window,
    start: int,
    on_damage: Callable[[Damage], None],
    attempt: Callable[[NDArray[np.void], NDArray[np.bool_] | None, int], Iterator[Item]],
    last_offset: Callable[[Item], int],
) -> Iterator[Item]:
    """What attempts to read a window give, each without the bad batch that ended the one before."""
    rows, visible = window.rows, window.visible
    while len(rows):
        try:
            for item in attempt(rows, visible, start):
                yield item
                start = max(start, last_offset(item) + 1)
            return
        except BatchError as error:
            bad = int(np.searchsorted(rows["position"], error.position))
            if bad >= len(rows) or int(rows["position"][bad]) != error.position:
                raise
            size = int(rows["size"][bad])
            on_damage(Damage(window.segment.path(LOG), error.position, size, error.what))
        # What lies before the bad batch and was not given out yet, and then what lies behind it.
        keep = np.arange(len(rows)) != bad
        rows = rows[keep]
        visible = None if visible is None else visible[keep]
