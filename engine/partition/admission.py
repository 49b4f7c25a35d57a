"""What a leader demands of batches before it gives them offsets, and the only changes it makes to them.

Duty         the rules that need nothing but the batches and the topic's options; producers are judged elsewhere.
Concurrency  none: a call works on its arguments, so that appends are checked side by side, outside the lock.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .._native.segment import check_records
from ..base.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from ..base.rows import Row, rows_of
from ..log.log import LogOptions
from ..segment.batch import Attributes, Codec, decode, restamp, rewrite, scan
from ..segment.compression import decompressor

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

# Plain numbers: an operation on a flag enumeration costs more than the rest of the check.
CODEC_MASK: Final = int(Attributes.CODEC_MASK)
LOG_APPEND_TIME: Final = int(Attributes.LOG_APPEND_TIME)
TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
CONTROL: Final = int(Attributes.CONTROL)
NO_TIMESTAMP: Final = -1
TIME_MIN: Final = -(2**63)
TIME_MAX: Final = 2**63 - 1
DAY_MS: Final = 24 * 3600 * 1000
_decompress: Final = decompressor()


class Origin(enum.Enum):
    """Who wrote a batch; only a client's word is doubted."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class PartitionOptions(NamedTuple):
    """Rules of one partition; names are those of Kafka's topic options."""

    log: LogOptions = LogOptions()
    max_message_bytes: int = 1048588
    is_compacted: bool = False
    uses_log_append_time: bool = False
    timestamp_before_max_ms: int = TIME_MAX
    timestamp_after_max_ms: int = 3600 * 1000
    compression: Codec | None = None  # None keeps the producer's
    producer_id_expiration_ms: int = DAY_MS
    is_synced_on_roll: bool = False  # durability="fsync": no segment may survive one before it


class Admitted(NamedTuple):
    """Batches that may be stamped and written."""

    data: Buffer
    rows: NDArray[np.void]
    numbers: list[Row]
    log_append_time_ms: int  # -1: the producer's timestamps stay


def admit(data: Buffer, options: PartitionOptions, origin: Origin, now_ms: int) -> Admitted:
    """Batches as the topic wants them; raises for what a leader refuses before it looks at its own state."""
    rows = scan(data)
    numbers = rows_of(rows)
    if not numbers:
        raise InvalidRecordError("there is no batch to append")
    _check_sizes(numbers, options)
    if origin is Origin.CLIENT:
        _check_client(numbers)
    _check_records(data, rows, options, origin, now_ms)
    return _as_configured(data, rows, numbers, options, origin, now_ms)


def _check_sizes(numbers: list[Row], options: PartitionOptions) -> None:
    for row in numbers:
        if row.crc_ok == 0:
            raise CorruptRecordError("checksum does not match the batch", position=row.position)
        if row.size > options.max_message_bytes:
            raise RecordTooLargeError(
                f"the batch has {row.size} bytes, more than max.message.bytes = {options.max_message_bytes}",
                position=row.position,
            )


def _check_client(numbers: list[Row]) -> None:
    if len(numbers) > 1:
        raise InvalidRecordError(
            f"a client appends one batch at a time, not {len(numbers)}",
            position=numbers[1].position,
        )
    row = numbers[0]
    if row.attributes & CONTROL:
        raise InvalidRecordError("a client may not write control records", position=row.position)
    if row.record_count < 1 or row.record_count != row.last_offset_delta + 1:
        raise InvalidRecordError(
            f"{row.record_count} records for {row.last_offset_delta + 1} offsets",
            position=row.position,
        )
    if row.producer_id >= 0 and row.base_sequence < 0:
        raise InvalidRecordError("a producer id without a sequence number", position=row.position)
    if row.producer_id < 0 and row.attributes & TRANSACTIONAL:
        raise InvalidRecordError("a transaction without a producer id", position=row.position)


def _time_limits(options: PartitionOptions, origin: Origin, now_ms: int) -> tuple[int, int]:
    """The earliest and the latest timestamp that a record may have."""
    if origin is not Origin.CLIENT or options.uses_log_append_time:
        return TIME_MIN, TIME_MAX
    before, after = options.timestamp_before_max_ms, options.timestamp_after_max_ms
    earliest = now_ms - before if before < now_ms else TIME_MIN
    return earliest, min(now_ms + after, TIME_MAX)


def _check_records(
    data: Buffer, rows: NDArray[np.void], options: PartitionOptions, origin: Origin, now_ms: int
) -> None:
    """Proves every record; what a leader refuses is listed record by record, and the whole batch with it."""
    key_needed = options.is_compacted and origin is Origin.CLIENT
    earliest, latest = _time_limits(options, origin, now_ms)
    suspects = check_records(
        data,
        rows,
        key_needed=key_needed,
        timestamp_min=earliest,
        timestamp_max=latest,
        decompress=_decompress,
    )
    if not suspects:
        return
    without_key: set[int] = set()
    if key_needed:
        for _, indices in check_records(data, rows, key_needed=True, decompress=_decompress):
            without_key.update(indices)
    (columns,) = decode(data, create_time=True, check_crc=False, bytes_max=2**31 - 1)
    stamps = columns.timestamps
    outside = (stamps != NO_TIMESTAMP) & ((stamps < earliest) | (stamps > latest))
    late = np.flatnonzero(outside).tolist()
    bad = sorted(without_key.union(late))
    if not bad:
        return
    place = int(rows["position"][0])
    if late:
        raise InvalidTimestampError(
            "timestamps outside message.timestamp.before.max.ms and message.timestamp.after.max.ms"
            + (", and records without a key in a compacted topic" if without_key else ""),
            position=place,
            record=bad[0],
            records=bad,
        )
    raise InvalidRecordError(
        "records without a key in a compacted topic", position=place, record=bad[0], records=bad
    )


def _as_configured(
    data: Buffer,
    rows: NDArray[np.void],
    numbers: list[Row],
    options: PartitionOptions,
    origin: Origin,
    now_ms: int,
) -> Admitted:
    """The log's own stamp and codec, where the topic asks for them: the only re-encoding there is."""
    codec = options.compression
    if codec is not None and any(
        row.attributes & CODEC_MASK != codec for row in numbers if not row.attributes & CONTROL
    ):
        data = _recompressed(data, rows, numbers, codec)
        rows = scan(data, check_crc=False)
        numbers = rows_of(rows)
        _check_sizes(numbers, options)
    if not options.uses_log_append_time or origin is Origin.REPLICATION:
        return Admitted(data, rows, numbers, NO_TIMESTAMP)
    for row in numbers:
        restamp(
            data,
            row.position,
            attributes=row.attributes | LOG_APPEND_TIME,
            max_timestamp=now_ms,
        )
    rows = scan(data, check_crc=False)
    return Admitted(data, rows, rows_of(rows), now_ms)


def _recompressed(
    data: Buffer, rows: NDArray[np.void], numbers: list[Row], codec: Codec
) -> bytearray:
    whole = bytearray()
    for row, header in zip(numbers, rows, strict=True):
        part = memoryview(data)[row.position : row.position + row.size]
        if row.attributes & CONTROL:
            whole += part
            continue
        changed = header.copy()
        changed["attributes"] = (row.attributes & ~CODEC_MASK) | codec
        (columns,) = decode(part, create_time=True, bytes_max=2**31 - 1)
        whole += memoryview(rewrite(changed, columns, columns.offsets))
    return whole
