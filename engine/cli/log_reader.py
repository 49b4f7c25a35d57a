"""A file of record batches, read window by window: headers, what they add up to, and what is wrong.

Memory does not grow with the file: headers are scanned a window at a time and records decoded a batch
at a time. A wrong checksum is remembered and passed over, because the framing still holds; a header
that cannot be one ends the reading, because nobody knows where the next batch starts.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import numpy as np

from ..base import disk
from ..base.errors import BatchError, CorruptRecordError, TruncatedBatchError
from ..base.rows import Row
from ..segment import batch
from ..segment.batch import Attributes, Codec, ControlType
from .output import plural

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Rows = NDArray[np.void]

WINDOW_BYTES: Final = 16 << 20
# What is wrong is told in full this many times; then it is counted.
TOLD_MAX: Final = 10
# Stands for the type of a control batch whose record compaction has removed.
EMPTIED: Final = "EMPTIED"
# Plain numbers: an operation on an enum's member costs a microsecond, and every row has several.
CODEC_MASK: Final = int(Attributes.CODEC_MASK)
LOG_APPEND_TIME: Final = int(Attributes.LOG_APPEND_TIME)
TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
CONTROL: Final = int(Attributes.CONTROL)
DELETE_HORIZON: Final = int(Attributes.DELETE_HORIZON)


class LogRequest(NamedTuple):
    """What to show of a file."""

    records: bool
    values: bool
    from_offset: int
    to_offset: int
    shown_max: int | None  # 0: all; None: all, or what suits a person at a terminal
    check_crc: bool


class Batch(Row):
    """One row of a scan as Python values."""

    __slots__ = ()

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return self.sequence(self.last_offset)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def delete_horizon(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def codec(self) -> str:
        return codec_name(self.attributes & CODEC_MASK)

    @property
    def control(self) -> str:
        """The type of a control batch; compaction may have left nothing that tells it."""
        return control_name(self.control_type) if self.record_count else EMPTIED

    def sequence(self, offset: int) -> int:
        """The sequence number of a record, -1 without idempotence."""
        if self.base_sequence < 0:
            return self.base_sequence
        return batch.sequence_after(self.base_sequence, offset - self.base_offset)


assert Batch._fields == batch.HEADER_DTYPE.names


@functools.cache
def control_name(number: int) -> str:
    """The name of a control record's type."""
    return ControlType(number).name


def batches_of(rows: Rows) -> Iterator[Batch]:
    """The rows of a scan, one by one."""
    return map(Batch._make, rows.tolist())


@functools.cache
def codec_name(number: int) -> str:
    """The codec's name as Kafka's options spell it."""
    return Codec(number).name.lower() if number in set(Codec) else f"unknown-{number}"


def _last_offsets(rows: Rows) -> NDArray[np.int64]:
    offsets: NDArray[np.int64] = rows["base_offset"] + rows["last_offset_delta"]
    return offsets


def _counted(numbers: NDArray[np.int16]) -> Iterator[tuple[int, int]]:
    found, counts = np.unique(numbers, return_counts=True)
    return zip(found.tolist(), counts.tolist(), strict=True)


@dataclass
class Summary:
    """What the batches that were read add up to."""

    crc_checked: bool
    batches: int = 0
    records: int = 0
    bytes: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    missing_offsets: int = 0
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    codecs: Counter[str] = field(default_factory=Counter)
    transactional: int = 0
    control: Counter[str] = field(default_factory=Counter)

    def add(self, rows: Rows) -> None:
        """Counts a window of batches in."""
        bases, lasts, attributes = rows["base_offset"], _last_offsets(rows), rows["attributes"]
        if self.first_offset is None or self.last_offset is None:
            self.first_offset = int(bases[0])
            self.last_offset = self.first_offset - 1
        between = bases - np.concatenate([[self.last_offset], lasts[:-1]]) - 1
        inside = rows["last_offset_delta"].astype(np.int64) + 1 - rows["record_count"]
        self.missing_offsets += int(between[between > 0].sum()) + int(inside[inside > 0].sum())
        self.last_offset = int(lasts[-1])
        self.batches += len(rows)
        self.records += int(rows["record_count"].sum(dtype=np.int64))
        self.bytes += int(rows["size"].sum())
        self._add_times(rows)
        for number, count in _counted(attributes & CODEC_MASK):
            self.codecs[codec_name(number)] += count
        self.transactional += int(np.count_nonzero(attributes & TRANSACTIONAL))
        control = rows[(attributes & CONTROL) != 0]
        is_emptied = control["record_count"] == 0
        if is_emptied.any():
            self.control[EMPTIED] += int(np.count_nonzero(is_emptied))
        for number, count in _counted(control["control_type"][~is_emptied]):
            self.control[control_name(number)] += count

    def _add_times(self, rows: Rows) -> None:
        # The base is the first record's time, unless compaction put its horizon there or the log its stamp.
        replaced = LOG_APPEND_TIME | DELETE_HORIZON
        is_base = (rows["attributes"] & replaced) == 0
        times = np.concatenate([rows["max_timestamp"], rows["base_timestamp"][is_base]])
        times = times[times >= 0]
        if len(times):
            low, high = int(times.min()), int(times.max())
            self.min_timestamp = low if self.min_timestamp is None else min(self.min_timestamp, low)
            self.max_timestamp = (
                high if self.max_timestamp is None else max(self.max_timestamp, high)
            )


class Findings:
    """What is wrong, and which offsets do not follow each other: a few in full, all of them counted."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.damage: list[BatchError] = []
        self.damage_count = 0
        self.gaps: list[tuple[int, int]] = []
        self.gap_count = 0

    def add(self, fault: BatchError) -> None:
        self.damage_count += 1
        if len(self.damage) < TOLD_MAX:
            self.damage.append(fault)

    def add_gap(self, last: int, following: int) -> None:
        self.gap_count += 1
        if len(self.gaps) < TOLD_MAX:
            self.gaps.append((last, following))

    def check(self, rows: Rows, previous_last: int | None, *, gaps: bool) -> None:
        """Judges batches by what their headers say: checksums, and offsets that do not rise."""
        for row in batches_of(rows[rows["crc_ok"] == 0]):
            self.add(self._fault(row, "checksum does not match the batch"))
        bases, lasts = rows["base_offset"], _last_offsets(rows)
        if previous_last is None:
            previous_last = int(bases[0]) - 1
        previous = np.concatenate([[previous_last], lasts[:-1]])
        # Base offsets lie outside the checksum: going back is the only sign of a flip in one.
        for index in np.flatnonzero((bases <= previous) | (lasts < bases)).tolist():
            (row,) = batches_of(rows[index : index + 1])
            self.add(
                self._fault(
                    row, f"offsets go back: {previous[index]} is followed by {row.base_offset}"
                )
            )
        if gaps:
            for index in np.flatnonzero(bases > previous + 1).tolist():
                self.add_gap(int(previous[index]), int(bases[index]))

    def _fault(self, row: Batch, what: str) -> BatchError:
        return CorruptRecordError(
            what, file=self.file, position=row.position, base_offset=row.base_offset
        )


class LogReader:
    """One mapped file: header rows a window at a time; sums up and judges what it passes."""

    def __init__(self, path: Path, request: LogRequest) -> None:
        self.file = click.format_filename(path)
        self.buffer = disk.map_file(path)
        self.request = request
        self.summary = Summary(crc_checked=request.check_crc)
        self.findings = Findings(self.file)
        self._last_record: int | None = None

    def __iter__(self) -> Iterator[Rows]:
        """Rows of the batches that hold wanted offsets, until a header cannot be read."""
        low, high = self.request.from_offset, self.request.to_offset
        for rows in self._windows():
            is_wanted = (_last_offsets(rows) >= low) & (rows["base_offset"] < high)
            wanted = self._proven(rows[is_wanted])
            if len(wanted):
                self.findings.check(wanted, self.summary.last_offset, gaps=not self.request.records)
                self.summary.add(wanted)
                yield wanted
            if rows["base_offset"][-1] >= high:
                return

    def _windows(self) -> Iterator[Rows]:
        view = memoryview(self.buffer)
        position, window_bytes = 0, WINDOW_BYTES
        while position < len(view):
            window_end = min(position + window_bytes, len(view))
            rows, end, fault = batch.scan_prefix(
                view[:window_end], position, check_crc=False, file=self.file
            )
            is_window_cut = isinstance(fault, TruncatedBatchError) and window_end < len(view)
            if len(rows):
                yield rows
                position, window_bytes = end, WINDOW_BYTES
            elif is_window_cut:
                window_bytes *= 8  # one batch is larger than the window
            if fault is not None and not is_window_cut:
                self.findings.add(_zeros_explained(fault, view[end:]))
                return

    def _proven(self, rows: Rows) -> Rows:
        """The same rows with their checksums verified, where that is asked for."""
        if not self.request.check_crc or not len(rows):
            return rows
        # The framing is known to hold up to here, so this cannot end half-way.
        end = int(rows["position"][-1] + rows["size"][-1])
        proven = batch.scan(memoryview(self.buffer)[:end], int(rows["position"][0]), file=self.file)
        return proven[np.isin(proven["position"], rows["position"])]

    def records(self, rows: Rows) -> Iterator[tuple[Batch, Iterator[batch.Record]]]:
        """Each batch with its records; one that cannot be decoded ends early, as a finding."""
        for index, header in enumerate(batches_of(rows)):
            yield header, self._records(rows[index : index + 1], header)

    def _records(self, row: Rows, header: Batch) -> Iterator[batch.Record]:
        if header.crc_ok == 0:
            return  # told already, and nothing in it can be believed
        try:
            for record in batch.records(
                self.buffer,
                row,
                start_offset=self.request.from_offset,
                end_offset=self.request.to_offset,
                check_crc=False,
                include_control=True,
                file=self.file,
            ):
                if self._last_record is not None and record.offset > self._last_record + 1:
                    self.findings.add_gap(self._last_record, record.offset)
                self._last_record = record.offset
                yield record
        except BatchError as fault:
            self.findings.add(fault)


def _zeros_explained(fault: BatchError, rest: memoryview) -> BatchError:
    """Zeros to the end are a batch of no format, but a file that grew and was never filled."""
    for start in range(0, len(rest), WINDOW_BYTES):
        if np.frombuffer(rest[start : start + WINDOW_BYTES], np.uint8).any():
            return fault
    return TruncatedBatchError(
        f"only zeros up to the end, {plural(len(rest), 'byte')}: space reserved ahead, or a write lost in a crash",
        file=fault.file,
        position=fault.position,
    )
