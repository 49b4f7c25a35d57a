"""What a leader demands of batches before it gives them offsets, and the only changes it makes to them.

Duty         the rules that need nothing but the batches and the topic's options; producers are judged elsewhere.
Concurrency  none: a call works on its arguments, so that appends are checked side by side, outside the lock.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .._native.segment import Batches, Rules, check_one, check_records
from ..base.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    TruncatedBatchError,
    UnexpectedAppendOffsetError,
)
from ..base.rows import Row, rows_of
from ..log.log import LogOptions
from ..segment.batch import Attributes, Codec, decode, restamp, rewrite, scan, scan_prefix
from ..segment.compression import decompressor

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

# Plain names: an operation on a flag enumeration, or a look at its members, costs more than the check.
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


CLIENT: Final = Origin.CLIENT
COORDINATOR: Final = Origin.COORDINATOR
REPLICATION: Final = Origin.REPLICATION


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
    compression_level: int | None = None  # of batches that get another codec than their producer's


# Batches that may be stamped and written, their rows, and the log's own time for them; -1: the producer's stay.
Admitted = tuple["Buffer", Batches, int]


def rules_of(options: PartitionOptions) -> tuple[Rules | None, Rules | None]:
    """The rules for a client's batch and a coordinator's where it stays as it was made; None where a topic changes it.
    admit() has the same rules, and says what is wrong."""
    if options.compression or options.uses_log_append_time:
        return None, None
    size_max = options.max_message_bytes
    times = (options.timestamp_before_max_ms, options.timestamp_after_max_ms)
    return (
        Rules(size_max, True, options.is_compacted, *times),
        Rules(size_max, False, False, TIME_MAX, TIME_MAX),
    )


def admit(data: Buffer, options: PartitionOptions, origin: Origin, now_ms: int) -> Admitted:
    """Batches as the topic wants them; raises for what a leader refuses before it looks at its own state."""
    # Taken apart at once: the fields of a named tuple, one by one, take longer than the batch's checksum.
    _, bytes_max, is_compacted, uses_log_append_time, before_ms, after_ms, codec, _, _, _ = options
    is_client = origin is CLIENT
    key_needed, earliest, latest = False, TIME_MIN, TIME_MAX
    if is_client:
        key_needed = is_compacted
        if not uses_log_append_time:
            if before_ms < now_ms:
                earliest = now_ms - before_ms
            if after_ms < TIME_MAX - now_ms:
                latest = now_ms + after_ms
    if not codec and not uses_log_append_time:  # the codec is the producer's, or none
        # Nearly always one plain batch that all is well with: one call says so, and all else is looked at closely.
        only = check_one(data, bytes_max, is_client, key_needed, earliest, latest)
        if only is not None:
            return data, only, NO_TIMESTAMP
    rows = scan(data)
    numbers = rows_of(rows)
    if not numbers:
        raise InvalidRecordError("there is no batch to append")
    _check_sizes(numbers, options)
    if is_client:
        if len(numbers) > 1:
            raise InvalidRecordError(
                f"a client appends one batch at a time, not {len(numbers)}",
                position=numbers[1].position,
            )
        _check_client(numbers[0])
    _check_records(data, rows, key_needed=key_needed, earliest=earliest, latest=latest)
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


def _check_client(row: Row) -> None:
    """What makes a client's batch; check_one asks for the same."""
    if row.attributes & CONTROL:
        raise InvalidRecordError("a client may not write control records", position=row.position)
    if row.record_count < 1 or row.record_count != row.last_offset_delta + 1:
        raise InvalidRecordError(
            f"{row.record_count} records for {row.last_offset_delta + 1} offsets",
            position=row.position,
        )
    if row.producer_id < 0:
        if row.attributes & TRANSACTIONAL:
            raise InvalidRecordError("a transaction without a producer id", position=row.position)
    elif row.base_sequence < 0:
        raise InvalidRecordError("a producer id without a sequence number", position=row.position)


def _check_records(
    data: Buffer, rows: NDArray[np.void], *, key_needed: bool, earliest: int, latest: int
) -> None:
    """Proves every record; what a leader refuses is listed record by record, and the whole batch with it."""
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
        data = _recompressed(data, rows, numbers, codec, options.compression_level)
        rows = scan(data, check_crc=False)
        numbers = rows_of(rows)
        _check_sizes(numbers, options)
    if not options.uses_log_append_time or origin is REPLICATION:
        return data, Batches(rows), NO_TIMESTAMP
    for row in numbers:
        restamp(
            data,
            row.position,
            attributes=row.attributes | LOG_APPEND_TIME,
            max_timestamp=now_ms,
        )
    return data, Batches(scan(data, check_crc=False)), now_ms


def _recompressed(
    data: Buffer, rows: NDArray[np.void], numbers: list[Row], codec: Codec, level: int | None
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
        whole += memoryview(rewrite(changed, columns, columns.offsets, level=level))
    return whole


# ------------------------------------------------------------ from a leader


def replicated(data: Buffer, leader_epoch: int | None) -> tuple[NDArray[np.void], int]:
    """The whole batches that a leader has sent and where they end, up to the first that has a newer epoch than the
    leader who was asked."""
    rows, end, error = scan_prefix(data)
    if error is not None and not isinstance(error, TruncatedBatchError):
        raise error
    if leader_epoch is not None:
        newer = rows["partition_leader_epoch"] > leader_epoch
        if newer.any():
            end = int(rows["position"][newer.argmax()])
            rows = rows[: int(newer.argmax())].copy()
    return rows, end


def check_order(rows: NDArray[np.void], log_end_offset: int) -> None:
    """Batches follow the log's end, and each other."""
    ends = rows["base_offset"] + rows["last_offset_delta"] + 1
    if (
        int(rows["base_offset"][0]) < log_end_offset
        or (rows["base_offset"][1:] < ends[:-1]).any()
        or (rows["last_offset_delta"] < 0).any()
    ):
        raise UnexpectedAppendOffsetError(
            f"batches from offset {int(rows['base_offset'][0])} do not follow {log_end_offset}"
        )
