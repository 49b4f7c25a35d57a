"""Compaction: the newest value of each key stays, aborted records go, and what readers and producers need stays.

One pass notes the last offset of each key in the dirty part of a log, then rewrites the log from its start, group
of segments by group of segments. What stays keeps its offsets, producer, epochs, timestamps and codec.

- Records of aborted transactions go at once. A marker goes when a pass has met no batch of its transaction any
  more and its delete horizon has passed, which the first such pass sets; a tombstone goes likewise.
- The last batch of every producer that is still known stays, if need be without records, and so does the last
  batch of the cleaned part. A group of which the last batch goes ends in an empty one without a producer, so that
  its segment still tells which offsets it stands for when a crash interrupts the swap.
- From the first offset that may not be cleaned on, batches are copied as they are.

Concurrency  one pass at a time and partition; readers and the writer go on, the lock is held for each swap alone.
Crash        before or after each group; segments are cleaned oldest first, so data always goes before its marker.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .._native.abort_filter import visible_batches
from .._native.compaction import SLOT_BYTES, LogFilter, OffsetMap
from .._native.segment import Batches
from ..base.errors import (
    CleaningAbortedError,
    ClosedError,
    KafkaStorageError,
    OncelogError,
    RecordBatchTooLargeError,
)
from ..log.swap import discard_cleaned, finish_cleaned, start_cleaned
from ..segment.batch import scan
from ..segment.compression import compressor, decompressor
from ..segment.names import LOG
from ..segment.segment import RELATIVE_OFFSET_MAX, next_offset_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from ..segment.segment import Segment, SegmentOptions
    from .partition import Partition

FILE_BYTES_MAX: Final = 2**31 - 1
# A horizon so far away that it never comes, and that timestamps still count from without overflow.
HORIZON_MAX_MS: Final = 2**62


@dataclass(frozen=True)
class CleanerOptions:
    """Limits of a cleaner; names are those of Kafka's broker options without ``log.cleaner.``."""

    dedupe_buffer_size: int = 128 << 20
    io_buffer_load_factor: float = 0.9


class Cleaned(NamedTuple):
    """What a pass did: the first offset that is still dirty, and sizes before and after."""

    end_offset: int
    bytes_before: int
    bytes_after: int
    records_read: int
    records_kept: int
    segments_before: int
    segments_after: int


class _Pass(NamedTuple):
    """What does not change during a pass."""

    partition: Partition
    aborted: NDArray[np.void]
    filter: LogFilter
    truncations: int  # of the log when the pass began
    check: Callable[[], None]


def clean(
    partition: Partition,
    *,
    first_dirty: int,
    end: int,
    delete_retention_ms: int,
    now_ms: int,
    options: CleanerOptions | None = None,
    check: Callable[[], None] = lambda: None,
) -> Cleaned:
    """Cleans a log below ``end``, with the keys from ``first_dirty`` on; ``check`` raises to stop it.

    Where the keys do not all fit the map, the pass ends early: the result tells where the next one goes on.
    """
    options = options or CleanerOptions()
    if partition.log.disk is None:
        raise ClosedError(f"{partition.key.directory} was opened to be read alone")
    truncations = partition.log.truncations
    with _told_apart(partition, truncations):
        with partition.lock:
            # An older value goes because of a newer one: that one must be on the device first.
            partition.sync()
            segments = partition.log.segments
            producers = partition.need_state().table.snapshot()
            end = min(end, partition.last_stable_offset, segments[-1].base_offset)
            first_dirty = min(first_dirty, end)
            cleanable = [segment for segment in segments[:-1] if segment.base_offset < end]
            if not cleanable:
                return Cleaned(end, 0, 0, 0, 0, 0, 0)
            upper = segments[len(cleanable)].base_offset
            aborted = _in_order(partition.aborted_transactions(segments[0].base_offset, upper))
        offsets, end_offset = _map_keys(cleanable, aborted, first_dirty, end, options, check)
        rules = LogFilter(
            offsets,
            producers,
            end_offset=end_offset,
            last_end_offset=end,
            now_ms=now_ms,
            horizon_ms=min(now_ms + max(delete_retention_ms, 0), HORIZON_MAX_MS),
        )
        run = _Pass(partition, aborted, rules, truncations, check)
        cleanable = [segment for segment in cleanable if segment.base_offset < end_offset]
        before = sum(segment.size for segment in cleanable)
        groups = group_segments(cleanable, partition.log.options.segment, upper)
        after = sum(_clean_group(run, group) for group in groups)
    return Cleaned(
        *(end_offset, before, after, rules.records_read, rules.records_kept),
        *(len(cleanable), len(groups)),
    )


def _in_order(aborted: NDArray[np.void]) -> NDArray[np.void]:
    """Aborted transactions in the order of their markers, with last stable offsets that can stand in one index.

    An index that was made anew from a compacted log knows a transaction by what is left of it, and so a later last
    stable offset than a neighbour's that remembers its first batch. The lower one is always safe: lookups end later.
    """
    ordered = aborted[np.argsort(aborted["last_offset"], kind="stable")]
    if len(ordered):
        following = np.append(ordered["first_offset"][1:], 2**63 - 1)
        stable = np.minimum(ordered["last_stable_offset"], following)
        ordered["last_stable_offset"] = np.minimum.accumulate(stable[::-1])[::-1]
    return ordered


# ---------------------------------------------------------------- the last offset of each key


def _map_keys(
    segments: Sequence[Segment],
    aborted: NDArray[np.void],
    first_dirty: int,
    end: int,
    options: CleanerOptions,
    check: Callable[[], None],
) -> tuple[OffsetMap, int]:
    """The map over [first_dirty, end), or as much of it as fits, and the offset up to which it speaks."""
    offsets = _new_map(options, end - first_dirty)
    done = first_dirty
    for segment, view, rows, visible in _batches(segments, aborted, check, start=first_dirty):
        wanted = int(np.searchsorted(rows["base_offset"], end))
        taken = offsets.add(
            view,
            rows[:wanted],
            visible[:wanted],
            start_offset=first_dirty,
            decompress=decompressor(),
            file=segment.path(LOG),
        )
        if taken:
            done = max(done, next_offset_of(rows[:taken]))
        if taken < wanted:
            if done == first_dirty:
                raise RecordBatchTooLargeError(
                    f"log.cleaner.dedupe.buffer.size = {options.dedupe_buffer_size} holds "
                    f"{offsets.capacity} keys, fewer than one batch has",
                    file=segment.path(LOG),
                    position=int(rows["position"][taken]),
                    base_offset=int(rows["base_offset"][taken]),
                )
            return offsets, done
        if wanted < len(rows):
            break
    return offsets, end


def _new_map(options: CleanerOptions, records_max: int) -> OffsetMap:
    """A map of the size that was allowed, or of what the records can fill."""
    slots = max(options.dedupe_buffer_size // SLOT_BYTES, 2)
    load = min(max(options.io_buffer_load_factor, 0.0), 1.0)
    slots = min(slots, max(int(max(records_max, 1) / max(load, 0.01)) + 2, 2))
    capacity = min(max(int(slots * load), 1), slots - 1)
    return OffsetMap(slots, capacity, os.urandom(16))


def _batches(
    segments: Sequence[Segment],
    aborted: NDArray[np.void],
    check: Callable[[], None],
    start: int = 0,
) -> Iterator[tuple[Segment, memoryview, NDArray[np.void], NDArray[np.bool_]]]:
    """Windows of proven batches from an offset on, with the bytes they lie in, and which of them a read_committed
    reader sees."""
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].base_offset <= start:
            continue
        view = segment.view()  # taken once: the log may be cut meanwhile
        for rows in segment.rows(segment.position_of(start), check_crc=True):
            check()
            inside = (aborted["last_offset"] >= rows["base_offset"][0]) & (
                aborted["first_offset"] < next_offset_of(rows)
            )
            yield segment, view, rows, visible_batches(rows, aborted[inside])


# ---------------------------------------------------------------- groups of segments


def group_segments(
    segments: Sequence[Segment], options: SegmentOptions, end: int
) -> list[tuple[Segment, ...]]:
    """Neighbours that fit one segment: in bytes, in entries of both indexes, in the span of offsets.

    ``end`` bounds the offsets of the last of them. An empty segment fits any group: it adds no offsets.
    """
    groups: list[list[Segment]] = []
    sizes = (0, 0, 0)
    limits = (options.segment_bytes, options.segment_index_bytes, options.segment_index_bytes)
    for index, segment in enumerate(segments):
        segment.need_indexes()
        added = (
            segment.size,
            segment.offset_index.count * segment.offset_index.entry_bytes,
            segment.time_index.count * segment.time_index.entry_bytes,
        )
        following = segments[index + 1].base_offset if index + 1 < len(segments) else end
        fits = groups and all(
            size + more <= limit for size, more, limit in zip(sizes, added, limits, strict=True)
        )
        if fits and (
            segment.size == 0 or following - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        ):
            groups[-1].append(segment)
            sizes = (sizes[0] + added[0], sizes[1] + added[1], sizes[2] + added[2])
        else:
            groups.append([segment])
            sizes = added
    return [tuple(group) for group in groups]


def _clean_group(run: _Pass, group: tuple[Segment, ...]) -> int:
    """Replaces a group by one cleaned segment; returns its size. After an error the group is as before."""
    partition = run.partition
    disk = partition.log.disk
    assert disk is not None
    cleaned: Segment | None = None
    try:
        cleaned = start_cleaned(
            partition.directory, group[0].base_offset, partition.log.options.segment, disk
        )
        _fill(run, group, cleaned)
        finish_cleaned(cleaned)
        with partition.lock:
            run.check()
            _check_unchanged(run, group)
            partition.replace_segments(cleaned, group)
    except BaseException:
        if cleaned is not None:
            discard_cleaned(cleaned, disk)
        raise
    return cleaned.size


@contextlib.contextmanager
def _told_apart(partition: Partition, truncations: int) -> Iterator[None]:
    """What fails because the partition was closed, removed or truncated is no fault of the log or the disk."""
    try:
        yield
    except (OSError, OncelogError) as error:
        if partition.is_closed or partition.log.truncations != truncations:
            raise CleaningAbortedError(
                f"{partition.key.directory} was closed or truncated while it was cleaned"
            ) from error
        if isinstance(error, OSError):
            raise KafkaStorageError(f"{partition.directory}: {error}") from error
        raise


def _check_unchanged(run: _Pass, group: tuple[Segment, ...]) -> None:
    """What was read must still be what the log holds."""
    log = run.partition.log
    current = set(map(id, log.segments))
    if log.truncations != run.truncations or any(id(segment) not in current for segment in group):
        raise CleaningAbortedError(
            f"{run.partition.key.directory} was truncated or cut while it was cleaned"
        )


def _fill(run: _Pass, group: Sequence[Segment], cleaned: Segment) -> None:
    """Writes what stays of a group into its cleaned segment."""
    for segment, view, rows, visible in _batches(group, run.aborted, run.check):
        data = run.filter.clean(
            view,
            rows,
            visible,
            decompress=decompressor(),
            compress=_compress,
            file=segment.path(LOG),
        )
        _append(run, cleaned, data)
    _append(run, cleaned, run.filter.anchor())


def _append(run: _Pass, cleaned: Segment, data: bytes) -> None:
    if not data:
        return
    if cleaned.size + len(data) > FILE_BYTES_MAX:
        raise OncelogError(f"{cleaned.path(LOG)} would outgrow {FILE_BYTES_MAX} bytes")
    markers = run.filter.take_markers()
    needed = run.aborted[np.isin(run.aborted["last_offset"], markers)]
    cleaned.append(data, Batches(scan(data, check_crc=False)), needed)


@functools.cache
def _codec(codec: int) -> Callable[[Buffer], Buffer]:
    compress = compressor(codec)
    assert compress is not None, "a batch without a codec is not compressed"
    return compress


def _compress(codec: int, records: memoryview) -> Buffer:
    return _codec(codec)(records)
