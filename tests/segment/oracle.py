"""Record batches a second time, slowly: byte by byte, in Python, from Kafka's format alone.

It shares no code and no library with what it judges: even CRC-32C and snappy are written out here
(gzip, lz4 and zstd come from libraries, lz4 from another one than the decoder under test). It is
also how the tests forge batches: every length, count and checksum can be made to lie.
"""

from __future__ import annotations

import dataclasses
import gzip
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADER = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == 61

Header = tuple[bytes, bytes | None]


class OracleError(Exception):
    """The bytes break the format."""


# ---------------------------------------------------------------- CRC-32C


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# ---------------------------------------------------------------- varints


def varint(value: int) -> bytes:
    """Zigzag varint of any size; what fits 32 bits is the same as 32 and as 64 bits."""
    return unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """Reads forward and never past the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise OracleError(f"{size} bytes wanted, {self.left} left")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, bits: int = 32) -> int:
        raw = 0
        for index in range(5 if bits == 32 else 10):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                raw &= (1 << bits) - 1
                return raw >> 1 if raw & 1 == 0 else -(raw + 1 >> 1)
        raise OracleError("varint too long")

    def optional(self) -> bytes | None:
        size = self.varint()
        if size < -1:
            raise OracleError(f"length {size}")
        return None if size == -1 else self.take(size)


def int64(value: int) -> int:
    """The value as Java's long holds it."""
    return (value + 2**63) % 2**64 - 2**63


# ---------------------------------------------------------------- records


@dataclass(frozen=True)
class OracleRecord:
    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()


def _optional(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record_body(record: OracleRecord, *, base_offset: int, base_timestamp: int) -> bytes:
    """A record without its length."""
    parts = [
        b"\0",
        varint(record.timestamp - base_timestamp),
        varint(record.offset - base_offset),
        _optional(record.key),
        _optional(record.value),
        varint(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += (varint(len(name)), name, _optional(value))
    return b"".join(parts)


def with_length(body: bytes) -> bytes:
    return varint(len(body)) + body


def payload_of(records: Iterable[OracleRecord], *, base_offset: int, base_timestamp: int) -> bytes:
    return b"".join(
        with_length(record_body(record, base_offset=base_offset, base_timestamp=base_timestamp))
        for record in records
    )


# ---------------------------------------------------------------- batches


@dataclass(frozen=True)
class OracleBatch:
    """A batch as its fields; None where a field follows from the others."""

    payload: bytes = b""
    record_count: int = 0
    base_offset: int = 0
    partition_leader_epoch: int = -1
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = -1
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    magic: int = 2
    length: int | None = None
    crc: int | None = None
    records: tuple[OracleRecord, ...] = field(default=(), compare=False)

    def __bytes__(self) -> bytes:
        covered = HEADER.pack(
            self.base_offset,
            len(self.payload) + HEADER.size - 12 if self.length is None else self.length,
            self.partition_leader_epoch,
            self.magic,
            0,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        )
        crc = crc32c(covered[21:] + self.payload) if self.crc is None else self.crc
        return covered[:17] + struct.pack(">I", crc) + covered[21:] + self.payload

    def replace(self, **fields: object) -> OracleBatch:
        return dataclasses.replace(self, **fields)  # type: ignore[arg-type]

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & 8)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)


def build(records: Sequence[OracleRecord], **fields: int) -> OracleBatch:
    """A sound batch of records."""
    base_offset = fields.setdefault("base_offset", records[0].offset)
    base_timestamp = fields.setdefault("base_timestamp", records[0].timestamp)
    fields.setdefault("max_timestamp", max(record.timestamp for record in records))
    fields.setdefault("last_offset_delta", records[-1].offset - base_offset)
    payload = payload_of(records, base_offset=base_offset, base_timestamp=base_timestamp)
    sound = OracleBatch(payload, len(records), records=tuple(records))
    return sound.replace(**fields)


def build_split(
    records: Sequence[OracleRecord], *, batch_size: int, **fields: int
) -> list[OracleBatch]:
    """Sound batches of records, a new one begun where the next record would exceed the size."""
    batches: list[OracleBatch] = []
    open_records: list[OracleRecord] = []
    for record in records:
        if open_records and len(bytes(build([*open_records, record], **fields))) > batch_size:
            batches.append(build(open_records, **fields))
            open_records = []
        open_records.append(record)
    if open_records:
        batches.append(build(open_records, **fields))
    sequence = fields.get("base_sequence", -1)
    if sequence >= 0:
        for index, batch in enumerate(batches):
            batches[index] = batch.replace(base_sequence=sequence)
            sequence = (sequence + batch.record_count) % 2**31
    return batches


def parse(data: bytes) -> list[OracleBatch]:
    """All batches of a file, each proven sound."""
    batches = []
    at = 0
    while at < len(data):
        batch = parse_one(data[at:])
        batches.append(batch)
        at += HEADER.size + len(batch.payload)
    return batches


def parse_one(data: bytes) -> OracleBatch:
    """The batch at the start of the bytes, with its records."""
    if len(data) < HEADER.size:
        raise OracleError("the header is cut off")
    values = HEADER.unpack_from(data)
    length, magic, crc = values[1], values[3], values[4]
    if magic != 2:
        raise OracleError(f"magic {magic}")
    if length < HEADER.size - 12 or length + 12 > len(data):
        raise OracleError(f"length {length}")
    if crc32c(data[21 : 12 + length]) != crc:
        raise OracleError("checksum")
    batch = OracleBatch(
        payload=data[HEADER.size : 12 + length],
        base_offset=values[0],
        length=length,
        partition_leader_epoch=values[2],
        crc=crc,
        attributes=values[5],
        last_offset_delta=values[6],
        base_timestamp=values[7],
        max_timestamp=values[8],
        producer_id=values[9],
        producer_epoch=values[10],
        base_sequence=values[11],
        record_count=values[12],
    )
    return batch.replace(records=tuple(parse_records(batch)))


def parse_records(batch: OracleBatch) -> list[OracleRecord]:
    if batch.base_offset < 0 or batch.last_offset_delta < 0 or batch.record_count < 0:
        raise OracleError("a negative field")
    if batch.base_offset + batch.last_offset_delta >= 2**63 - 1:
        raise OracleError("offsets pass 2^63")
    cursor = Cursor(decompress(batch.codec, batch.payload) if batch.payload else b"")
    records = []
    last_delta = -1
    for _ in range(batch.record_count):
        body = Cursor(cursor.take(cursor.varint()))
        body.take(1)
        timestamp = int64(batch.base_timestamp + body.varint(64))
        delta = body.varint()
        if not last_delta < delta <= batch.last_offset_delta:
            raise OracleError(f"offset delta {delta} after {last_delta}")
        last_delta = delta
        key, value = body.optional(), body.optional()
        headers = []
        count = body.varint()
        if count < 0:
            raise OracleError("negative header count")
        for _ in range(count):
            if body.left == 0:
                raise OracleError("headers are missing")
            name = body.take(body.varint())
            headers.append((name, body.optional()))
        if body.left:
            raise OracleError("the record is longer than its fields")
        stamp = batch.max_timestamp if batch.is_log_append_time else timestamp
        records.append(OracleRecord(batch.base_offset + delta, stamp, key, value, tuple(headers)))
    if cursor.left:
        raise OracleError("bytes are left over")
    return records


# ---------------------------------------------------------------- codecs


def decompress(codec: int, payload: bytes) -> bytes:
    match codec:
        case 0:
            return payload
        case 1:
            return gzip.decompress(payload)
        case 2:
            return snappy_stream(payload)
        case 3:
            import lz4.frame

            unpacked: bytes = lz4.frame.decompress(payload)
            return unpacked
        case 4:
            import pyarrow as pa

            zstd: bytes = pa.CompressedInputStream(pa.BufferReader(payload), "zstd").read()
            return zstd
        case _:
            raise OracleError(f"codec {codec}")


XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def snappy_stream(payload: bytes) -> bytes:
    """xerial's stream, or a bare snappy block."""
    if not payload.startswith(XERIAL[:8]):
        return snappy_block(payload)
    cursor = Cursor(payload)
    cursor.take(16)
    out = b""
    while cursor.left:
        out += snappy_block(cursor.take(struct.unpack(">i", cursor.take(4))[0]))
    return out


def snappy_block(block: bytes) -> bytes:
    cursor = Cursor(block)
    size = shift = 0
    while True:
        byte = cursor.take(1)[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    out = bytearray()
    while cursor.left:
        tag = cursor.take(1)[0]
        kind, upper = tag & 3, tag >> 2
        if kind == 0:
            extra = max(0, upper - 59)
            count = int.from_bytes(cursor.take(extra), "little") if extra else upper
            out += cursor.take(count + 1)
            continue
        if kind == 1:
            count, offset = (upper & 7) + 4, (tag >> 5) << 8 | cursor.take(1)[0]
        else:
            count = upper + 1
            offset = int.from_bytes(cursor.take(2 if kind == 2 else 4), "little")
        if not 0 < offset <= len(out):
            raise OracleError("a snappy copy reaches before the start")
        for _ in range(count):
            out.append(out[-offset])
    if len(out) != size:
        raise OracleError("a snappy block of another size than it says")
    return bytes(out)


def snappy_literals(data: bytes) -> bytes:
    """A snappy block of nothing but literals."""
    out = bytearray(unsigned_varint(len(data)))
    for start in range(0, len(data), 60):
        part = data[start : start + 60]
        out.append(len(part) - 1 << 2)
        out += part
    return bytes(out)


def zstd_raw(data: bytes) -> bytes:
    """A zstd frame of raw blocks, with a window of 1 MiB and no content size."""
    out = bytearray(b"\x28\xb5\x2f\xfd" + bytes([0, 10 << 3]))
    blocks = [data[start : start + (128 << 10)] for start in range(0, len(data), 128 << 10)] or [
        b""
    ]
    for index, block in enumerate(blocks):
        last = index == len(blocks) - 1
        out += (len(block) << 3 | last).to_bytes(3, "little") + block
    return bytes(out)
