"""Record batches (magic 2): the unit that producers build, logs store and consumers decode, unchanged.

Writer  encode() and its kin, in the producer; Kafka's clients likewise
Reader  scan() for headers, decode() for Arrow columns, records() for Python values
Repair  the checksum decides: a batch that fails it is damaged, and recovery cuts the log before it

==  ====  ======  ======================  =======================================================
at  size  type    field                   invariant
==  ====  ======  ======================  =======================================================
 0     8  int64   base_offset             assigned by the log; outside the checksum
 8     4  int32   batch_length            bytes after this field, >= 49; outside the checksum
12     4  int32   partition_leader_epoch  assigned by the log; outside the checksum
16     1  int8    magic                   2; outside the checksum
17     4  uint32  crc                     CRC-32C of everything after this field
21     2  int16   attributes              the flags below
23     4  int32   last_offset_delta       last offset - base offset; kept when records are compacted away
27     8  int64   base_timestamp          the first record's, or the delete horizon
35     8  int64   max_timestamp           the largest, or the log append time
43     8  int64   producer_id             -1 without idempotence
51     2  int16   producer_epoch          -1 without idempotence
53     4  int32   base_sequence           -1 without idempotence; after 2^31 - 1 comes 0
57     4  int32   record_count            0 in a batch that compaction has emptied
61                records                 compressed as one, if a codec is set
==  ====  ======  ======================  =======================================================

Attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon.

A record: length varint, attributes int8 (0), timestamp delta varlong, offset delta varint, key length
varint (-1 null), key, value length varint (-1 null), value, header count varint, then for each header key
length varint, key (UTF-8), value length varint (-1 null), value. Varints are zigzag; integers big-endian.

A control record: key int16 version 0 and int16 type; for ABORT and COMMIT the value is int16 version 0 and
int32 coordinator epoch. One to a batch, never compressed, sequence -1.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypedDict, Unpack

from .._native.batch import (
    HEADER_DTYPE,
    EncodedBatches,
    Encoder,
    RecordColumns,
    restamp,
    scan,
    scan_prefix,
)
from .._native.batch import decode as _decode
from .._native.records import Record, RecordIterator
from .compression import DECOMPRESSED_BYTES_MAX, Codec, compressor, decompressor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Buffer

__all__ = [
    "HEADER_DTYPE",
    "ArrowData",
    "Attributes",
    "BatchOptions",
    "Codec",
    "ControlRecord",
    "ControlType",
    "EncodedBatches",
    "Headers",
    "Record",
    "RecordColumns",
    "RecordIterator",
    "control_record",
    "decode",
    "encode",
    "encode_arrow",
    "encode_marker",
    "records",
    "restamp",
    "rewrite",
    "scan",
    "scan_prefix",
    "sequence_after",
]

HEADER_BYTES: Final = 61
# What one decoded chunk holds. Large enough to forget the cost of a call, small enough to stay in the
# second-level cache and in memory that the allocator hands out again: a fresh page costs more than
# decoding what goes into it.
DECODE_BYTES: Final = 1 << 20
SEQUENCE_MAX: Final = 2**31 - 1

Headers = Sequence[tuple[str, bytes | None]]


class ArrowArrayLike(Protocol):
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


class ArrowStreamLike(Protocol):
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


ArrowData = ArrowArrayLike | ArrowStreamLike


class Attributes(enum.IntFlag):
    """Flags of a batch; the codec lies in the three bits below them."""

    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40


MARKER_ATTRIBUTES: Final = int(Attributes.TRANSACTIONAL | Attributes.CONTROL)
MARKER_KEY: Final = struct.Struct(">hh")  # version, type
MARKER_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch


class ControlType(enum.IntEnum):
    """Types of control records. Only the first two occur in data partitions."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1

    @classmethod
    def _missing_(cls, value: object) -> ControlType:  # noqa: ARG003
        return cls.UNKNOWN


class ControlRecord(NamedTuple):
    """What a control record says; the coordinator epoch is a marker's, else -1."""

    type: ControlType
    version: int
    coordinator_epoch: int


class BatchOptions(TypedDict, total=False):
    """Header fields of the batches to build, and how to build them."""

    base_offset: int
    partition_leader_epoch: int
    compression: Codec | str
    compression_level: int | None
    transactional: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    batch_size: int  # bytes of a batch before compression; one record may exceed it
    timestamp_ms: int  # of records that bring none; -1 is Kafka's "no timestamp"
    log_append_time_ms: int | None  # the broker's stamp, which readers then see for every record
    delete_horizon_ms: int | None  # set by compaction


def _encoder(options: BatchOptions) -> Encoder:
    fields: dict[str, Any] = dict(options)
    codec = Codec.of(fields.pop("compression", Codec.NONE))
    compress = compressor(codec, fields.pop("compression_level", None))
    attributes = int(codec)
    if fields.pop("transactional", False):
        attributes |= Attributes.TRANSACTIONAL
    if (stamp := fields.pop("log_append_time_ms", None)) is not None:
        attributes |= Attributes.LOG_APPEND_TIME
        fields["max_timestamp"] = stamp
    if (horizon := fields.pop("delete_horizon_ms", None)) is not None:
        attributes |= Attributes.DELETE_HORIZON
        fields["base_timestamp"] = horizon
    fields["batch_bytes"] = fields.pop("batch_size", 1 << 14)
    return Encoder(attributes=attributes, compress=compress, **fields)


def encode(
    values: Sequence[Buffer | None],
    *,
    keys: Sequence[Buffer | None] | None = None,
    timestamps: ArrayLike | None = None,
    headers: Sequence[Headers | None] | None = None,
    **options: Unpack[BatchOptions],
) -> EncodedBatches:
    """Batches of records given as Python sequences, split at ``batch_size`` (16 KiB, as Kafka's default)."""
    encoder = _encoder(options)
    encoder.add(keys, values, timestamps, headers)
    return encoder.finish()


def encode_arrow(data: ArrowData, **options: Unpack[BatchOptions]) -> EncodedBatches:
    """Batches of the rows of a table, record batch or stream; columns value, key, timestamp, headers.

    Keys, values and header values are binary, large_binary, binary_view or their string kin; timestamps of any
    unit or int64 milliseconds; headers list<struct<key: string, value: binary>>. Only value is required.
    """
    encoder = _encoder(options)
    encoder.add_arrow(data)
    return encoder.finish()


def encode_marker(
    kind: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> EncodedBatches:
    """The control batch that ends a transaction on one partition."""
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise ValueError(f"a transaction ends with ABORT or COMMIT, not {kind.name}")
    encoder = Encoder(
        one_batch=True,
        attributes=MARKER_ATTRIBUTES,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        timestamp_ms=timestamp_ms,
    )
    encoder.add([MARKER_KEY.pack(0, kind)], [MARKER_VALUE.pack(0, coordinator_epoch)])
    return encoder.finish()


def control_record(key: bytes | None, value: bytes | None) -> ControlRecord:
    """What a control record says; an unknown type is UNKNOWN, as readers must skip it."""
    if key is None or len(key) < 4:
        return ControlRecord(ControlType.UNKNOWN, -1, -1)
    version, number = struct.unpack_from(">hh", key)
    kind = ControlType(number)
    epoch = -1
    if kind in (ControlType.ABORT, ControlType.COMMIT) and value is not None and len(value) >= 6:
        (epoch,) = struct.unpack_from(">i", value, 2)
    return ControlRecord(kind, version, epoch)


def rewrite(
    header: np.void,
    data: ArrowData | None,
    offsets: ArrayLike | None = None,
    *,
    level: int | None = None,
) -> EncodedBatches:
    """One batch with the header fields of ``header`` (a row of a scan) and other records, or none.

    This is compaction's way to write: offsets keep their gaps, producer, timestamps and last offset stay.
    """
    attributes = int(header["attributes"])
    encoder = Encoder(
        one_batch=True,
        attributes=attributes,
        compress=compressor(attributes & Attributes.CODEC_MASK, level),
        reuse=None,
        **{
            name: int(header[name])
            for name in (
                "base_offset",
                "partition_leader_epoch",
                "producer_id",
                "producer_epoch",
                "base_sequence",
                "base_timestamp",
                "max_timestamp",
                "last_offset_delta",
            )
        },
    )
    if data is not None:
        encoder.add_arrow(data, offsets)
    return encoder.finish()


def _rows(buffer: Buffer, rows: NDArray[np.void] | None, file: str) -> NDArray[np.int64]:
    """Positions of the batches to read; each batch's checksum is proven when it is decoded."""
    rows = scan(buffer, check_crc=False, file=file) if rows is None else rows
    positions: NDArray[np.int64] = rows["position"]
    return positions


def decode(
    buffer: Buffer,
    rows: NDArray[np.void] | None = None,
    *,
    visible: NDArray[np.bool_] | None = None,
    start_offset: int = 0,
    end_offset: int = 2**63 - 1,
    views: bool = False,
    check_crc: bool = True,
    include_control: bool = False,
    create_time: bool = False,
    bytes_max: int = DECODE_BYTES,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    file: str = "",
) -> Iterator[RecordColumns]:
    """Records as Arrow columns, in chunks of whole batches of about ``bytes_max`` bytes.

    ``rows`` are those of a scan (default: all batches of the buffer), ``visible`` a mask over them. With
    ``views`` keys and values point into ``buffer``, which they keep alive, where a batch is not compressed;
    with ``create_time`` timestamps are the producer's, also where the log has stamped its own.
    """
    positions = _rows(buffer, rows, file)
    start = 0
    while start < len(positions):
        columns = _decode(
            buffer,
            positions[start:],
            visible=None if visible is None else visible[start:],
            start_offset=start_offset,
            end_offset=end_offset,
            views=views,
            check_crc=check_crc,
            include_control=include_control,
            create_time=create_time,
            bytes_max=bytes_max,
            decompress=decompressor(decompressed_bytes_max),
            file=file,
        )
        start += columns.next_batch
        if len(columns):
            yield columns
        del columns  # or two chunks would be held while the next one is decoded


def records(
    buffer: Buffer,
    rows: NDArray[np.void] | None = None,
    *,
    visible: NDArray[np.bool_] | None = None,
    start_offset: int = 0,
    end_offset: int = 2**63 - 1,
    check_crc: bool = True,
    include_control: bool = False,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    file: str = "",
    topic: str | None = None,
    partition: int = -1,
) -> RecordIterator:
    """Records as Python values, one by one; arguments as for decode()."""
    return RecordIterator(
        buffer,
        _rows(buffer, rows, file),
        visible=visible,
        start_offset=start_offset,
        end_offset=end_offset,
        check_crc=check_crc,
        include_control=include_control,
        decompress=decompressor(decompressed_bytes_max),
        file=file,
        topic=topic,
        partition=partition,
    )


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number ``count`` records later (or earlier); it wraps from 2^31 - 1 to 0."""
    return (sequence + count) % (SEQUENCE_MAX + 1)
