"""Bad input is a typed error that names file, position, offset and record: never a crash, a hang, an
over-read, or a record that nobody wrote.

All of it is read from memory that ends in an untouchable page, and by all three readers.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING, Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import (
    BatchError,
    CorruptRecordError,
    InvalidRecordError,
    RecordBatchTooLargeError,
    TruncatedBatchError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from oncelog.segment import batch
from oncelog.segment.batch import Codec, ControlType

from ..native.memory_probe import MIB, run
from . import oracle
from .fence import fenced
from .oracle import OracleBatch, OracleError, OracleRecord, varint
from .readers import READERS, Reader, Row, rows_of_oracle

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

FILE = "orders-0/00000000000000000900.log"
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]

INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)

# A sound batch stands before each bad one, so that a position or an offset of 0 is a wrong answer.
GOOD = bytes(
    oracle.build([OracleRecord(900 + i, 5000 + i, b"good", b"first %d" % i) for i in range(3)])
)
BASE = 1000
AT = len(GOOD)


def encoded(**options: Any) -> bytes:
    return bytes(
        batch.encode(
            [b"value of record one", None, b"", b"x" * 40],
            keys=[b"k", b"", None, b"key four"],
            timestamps=[7000, 7000, 6999, 800000],
            headers=[[("trace", b"abc"), ("trace", None)], None, [("", b"")], []],
            **{"base_offset": BASE, "partition_leader_epoch": 3, "producer_id": 77}
            | {"producer_epoch": 5, "base_sequence": 11}
            | options,
        )
    )


SAMPLES = {
    "plain": bytes(batch.encode([b"v1", b"v2"], base_offset=BASE, timestamp_ms=7000)),
    "headers": encoded(),
    "transactional, log append time": encoded(transactional=True, log_append_time_ms=9000),
    **{codec.name.lower(): encoded(compression=codec) for codec in CODECS},
    "marker": bytes(
        batch.encode_marker(
            ControlType.ABORT,
            producer_id=77,
            producer_epoch=5,
            coordinator_epoch=9,
            timestamp_ms=7000,
            base_offset=BASE,
        )
    ),
    "emptied": bytes(OracleBatch(base_offset=BASE, last_offset_delta=4, producer_id=3)),
}


def check_place(error: BatchError, *, position: int, base_offset: int, record: int = -1) -> None:
    """The error knows its place, and says so in words."""
    assert (error.file, error.position) == (FILE, position)
    assert (error.base_offset, error.record) == (base_offset, record)
    said = str(error)
    assert FILE in said
    assert f"position {position}" in said
    assert ("base offset" in said) == (base_offset >= 0)
    assert ("record " in said.partition("(")[2].partition(")")[0]) == (record >= 0)
    if record >= 0:
        assert f"record {record} of the batch" in said


def check_refused(
    bad: bytes,
    kind: type[BatchError],
    *,
    what: str = "",
    record: int = -1,
    base_offset: int = BASE,
    **options: Any,
) -> None:
    """Every reader refuses the bytes with that error, and at that place behind the good batch."""
    data = fenced(GOOD + bad)
    rows = np.zeros(2, batch.HEADER_DTYPE)
    rows["position"] = 0, AT
    for name, read in READERS.items():
        with pytest.raises(BatchError) as caught:
            read(data, rows, file=FILE, **options)
        assert type(caught.value) is kind, f"{name}: {caught.value!r}"
        assert what in caught.value.what, name
        check_place(caught.value, position=AT, base_offset=base_offset, record=record)
    # What lies before the damage is given out, one record at a time.
    before = batch.records(data, rows, file=FILE, **options)
    assert [next(before).offset for _ in range(3)] == [900, 901, 902]
    with pytest.raises(kind):
        next(before)


# ---------------------------------------------------------------- truncation


@pytest.mark.parametrize("sample", SAMPLES)
def test_truncation_at_every_byte_is_found_and_placed(sample: str) -> None:
    """Goal: a batch cut anywhere is a TruncatedBatchError at its position, and what precedes it reads.
    Method: cut after each byte, in memory that ends there; scan, scan_prefix, all readers."""
    whole = SAMPLES[sample]
    rows = batch.scan(GOOD + whole)
    for size in range(len(whole)):
        data = fenced(GOOD + whole[:size])
        known = BASE if size >= 17 else -1
        found, end, error = batch.scan_prefix(data, file=FILE)
        assert (len(found), end) == (1, AT)
        assert found[0] == rows[0]
        if size == 0:
            assert error is None
            assert len(batch.scan(data)) == 1
        else:
            assert type(error) is TruncatedBatchError, size
            check_place(error, position=AT, base_offset=known)
            with pytest.raises(TruncatedBatchError) as caught:
                batch.scan(data, file=FILE)
            check_place(caught.value, position=AT, base_offset=known)
        for read in READERS.values():
            with pytest.raises(TruncatedBatchError) as caught:
                read(data, rows, include_control=True, file=FILE)
            check_place(caught.value, position=AT, base_offset=known)
            assert len(read(data, found)) == 3


# ---------------------------------------------------------------- flips

FLIPS = (0x01, 0x20, 0x80, 0xFF)


def flipped(data: bytes, at: int, bits: int) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


def refusal(read: Reader, data: memoryview, rows: NDArray[np.void]) -> BatchError | None:
    """The error that a reader has with the bytes, None if it takes them."""
    try:
        read(data, rows, file=FILE)
    except BatchError as error:
        return error
    return None


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_flip_from_the_checksum_on_is_found(sample: str) -> None:
    """Goal: no changed byte behind the leading 17 reaches a reader, whatever the byte means: a batch
    is not trusted to be a control batch, or to lie out of range, before its checksum holds.
    Method: flip several bits of each byte, one byte at a time; scan says so, all readers refuse."""
    whole = SAMPLES[sample]
    rows = batch.scan(GOOD + whole)
    for at in range(17, len(whole)):
        for bits in FLIPS:
            data = fenced(GOOD + flipped(whole, at, bits))
            assert batch.scan(data)["crc_ok"].tolist() == [1, 0], at
            found, end, error = batch.scan_prefix(data, file=FILE)
            assert (len(found), end, type(error)) == (1, AT, CorruptRecordError)
            assert error is not None
            check_place(error, position=AT, base_offset=BASE)
            for name, read in READERS.items():
                caught = refusal(read, data, rows)
                assert type(caught) is CorruptRecordError, f"{name}: byte {at} ^ {bits:#x}"
                assert "checksum" in caught.what
                check_place(caught, position=AT, base_offset=BASE)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_flip_in_the_base_offset_moves_the_records(sample: str) -> None:
    """Goal: the blind spot of the format, shown: base offset lies outside the checksum, so that a
    broker can assign it. What cannot be an offset is refused; all else just moves the batch, and only
    the log, which knows what comes before and after, can tell.
    Method: flip each bit of the field."""
    whole = SAMPLES[sample]
    (truth,) = oracle.parse(whole)
    for at in range(8):
        for bit in range(8):
            bad = flipped(whole, at, 1 << bit)
            (moved,) = struct.unpack_from(">q", bad)
            data = fenced(bad)
            rows = batch.scan(data)
            assert rows["crc_ok"].tolist() == [1]
            assert rows["base_offset"].tolist() == [moved]
            for read in READERS.values():
                if moved < 0:
                    with pytest.raises(CorruptRecordError, match="base offset is negative"):
                        read(data, include_control=True)
                    continue
                expected = [
                    row._replace(offset=row.offset - BASE + moved)
                    for row in rows_of_oracle([truth], control=True)
                ]
                assert read(data, include_control=True) == expected


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_flip_in_the_leader_epoch_changes_nothing_else(sample: str) -> None:
    """Goal: the other blind spot: the partition leader epoch, which the log assigns, too.
    Method: flip each bit; the row of the scan differs in that field alone, the records in nothing."""
    whole = SAMPLES[sample]
    (row,) = batch.scan(whole)
    for at in range(12, 16):
        for bit in range(8):
            data = fenced(flipped(whole, at, 1 << bit))
            (other,) = batch.scan(data)
            differing = [name for name in other.dtype.names or () if row[name] != other[name]]
            assert differing == ["partition_leader_epoch"]
            for read in READERS.values():
                assert read(data) == read(whole)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_flip_in_the_length_is_always_found(sample: str) -> None:
    """Goal: the length lies outside the checksum but cannot lie: it decides which bytes are summed.
    Method: flip each bit, with a sound batch behind; too short and too long are named, the rest fails
    its checksum; always at this batch's position."""
    whole = SAMPLES[sample]
    after = bytes(oracle.build([OracleRecord(2000, 1, None, b"z" * 3000)]))
    rows = batch.scan(GOOD + whole)
    for at in range(8, 12):
        for bit in range(8):
            bad = flipped(whole, at, 1 << bit)
            (length,) = struct.unpack_from(">i", bad, 8)
            data = fenced(GOOD + bad + after)
            kind, what = CorruptRecordError, "checksum"
            if length < 49:
                what = "smaller than a batch header"
            elif length + 12 > len(bad + after):
                kind, what = TruncatedBatchError, "end inside the batch"
            found, end, error = batch.scan_prefix(data)
            assert (len(found), end, type(error)) == (1, AT, kind)
            for read in READERS.values():
                with pytest.raises(kind, match=what) as caught:
                    read(data, rows, include_control=True, file=FILE)
                check_place(caught.value, position=AT, base_offset=BASE)


def test_a_magic_that_is_not_two_is_named() -> None:
    """Goal: the magic lies outside the checksum, but every other value is refused.
    Method: all 255 of them; 0 and 1 are the old formats, which have an error of their own."""
    for magic in range(256):
        if magic == 2:
            continue
        bad = SAMPLES["plain"][:16] + bytes([magic]) + SAMPLES["plain"][17:]
        if magic < 2:
            check_refused(bad, UnsupportedForMessageFormatError, what="format 0 or 1")
        else:
            check_refused(bad, CorruptRecordError, what="magic")


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("value", [b"", b"a value of some length, so that all sizes are met" * 4])
def test_old_messages_are_called_old(magic: int, value: bytes) -> None:
    """Goal: a message set from before Kafka 0.11 gets an error that says what to do, also where a
    message is shorter than a batch header could be.
    Method: a true message of magic 0 and of magic 1."""
    body = bytes([magic, 0]) + (struct.pack(">q", 7000) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    bad = struct.pack(">qi", BASE, len(body)) + body
    check_refused(bad, UnsupportedForMessageFormatError, what="format 0 or 1")
    with pytest.raises(UnsupportedForMessageFormatError, match=r"old format.*Kafka 3"):
        batch.scan(fenced(bad))


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("length", [0, -1, 1, 12, 48, INT32_MIN, -(2**24)])
def test_a_length_below_the_header_is_refused(length: int) -> None:
    """Goal: zero-length and negative batch sizes neither loop nor crash.
    Method: set the length of an otherwise sound batch."""
    bad = bytes(oracle.parse(SAMPLES["plain"])[0].replace(length=length))
    check_refused(bad, CorruptRecordError, what="smaller than a batch header")
    _, end, error = batch.scan_prefix(fenced(GOOD + bad + GOOD))
    assert (end, type(error)) == (AT, CorruptRecordError)


@pytest.mark.parametrize("length", [INT32_MAX, 2**24, len(SAMPLES["plain"]) - 12 + 1])
def test_a_length_beyond_the_end_is_a_truncation(length: int) -> None:
    bad = bytes(oracle.parse(SAMPLES["plain"])[0].replace(length=length))
    check_refused(bad, TruncatedBatchError)


def test_zeros_are_not_batches() -> None:
    """Goal: a preallocated or zeroed tail ends a scan at once.
    Method: zero bytes of several sizes behind a sound batch."""
    for size in (1, 16, 17, 60, 61, 4096):
        rows, end, error = batch.scan_prefix(fenced(GOOD + bytes(size)), file=FILE)
        assert (len(rows), end) == (1, AT)
        assert isinstance(error, BatchError)
        assert error.position == AT


# ---------------------------------------------------------------- records that lie

LONG = OracleRecord(BASE + 50, 7000, b"long", b"l" * 100)


def raw(
    *,
    length: bytes | None = None,
    timestamp: bytes = varint(0),
    offset: bytes = varint(1),
    key: bytes = varint(3) + b"key",
    value: bytes = varint(5) + b"value",
    headers: bytes = varint(0),
    tail: bytes = b"",
) -> bytes:
    """A record from its parts; each may lie."""
    body = b"\0" + timestamp + offset + key + value + headers + tail
    return (varint(len(body)) if length is None else length) + body


SIZE = len(raw()) - 1
TOO_LONG = b"\x80\x80\x80\x80\x80\x01"
OVERLONG = b"\xff\xff\xff\xff\xff\x00"
ENDLESS = b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"
HEADER = varint(1) + b"h" + varint(1) + b"v"

# What the record says → the word that the error must contain.
LIES: dict[str, tuple[bytes, str]] = {
    "record length beyond the batch": (raw(length=varint(SIZE + 1000)), "record length"),
    "record length of 2 GiB": (raw(length=varint(INT32_MAX)), "record length"),
    "record length -1": (raw(length=varint(-1)), "record"),
    "record length very negative": (raw(length=varint(INT32_MIN)), "record"),
    "record length zero": (raw(length=varint(0)), "record"),
    "record length of 6 bytes": (raw(length=TOO_LONG), "record length"),
    "record length of 6 bytes, all ones": (raw(length=OVERLONG), "record length"),
    "record length one too low": (raw(length=varint(SIZE - 1)), "header count"),
    "record length cuts the value": (raw(length=varint(SIZE - 4)), "value"),
    "record length cuts the key": (raw(length=varint(5)), "key"),
    "record length holds one byte": (raw(length=varint(1)), ""),
    "record length one too high": (raw(length=varint(SIZE + 1)), "record length"),
    "bytes behind the headers": (raw(tail=b"\0\0"), "disagrees"),
    "timestamp delta of 11 bytes": (raw(timestamp=ENDLESS), "timestamp delta"),
    "timestamp delta never ends": (
        varint(12) + b"\0" + b"\x80" * 11,
        "timestamp delta",
    ),
    "timestamp delta runs out of the record": (varint(3) + b"\0\x80\x80", ""),
    "offset delta of 6 bytes": (raw(offset=TOO_LONG), "offset delta"),
    "offset delta runs out of the record": (varint(3) + b"\0\0\x80", ""),
    "offset delta repeated": (raw(offset=varint(0)), "offset deltas"),
    "offset delta negative": (raw(offset=varint(-1)), "offset deltas"),
    "offset delta very negative": (raw(offset=varint(INT32_MIN)), "offset deltas"),
    "offset delta beyond the last": (raw(offset=varint(100)), "offset deltas"),
    "offset delta of 2^31 - 1": (raw(offset=varint(INT32_MAX)), "offset deltas"),
    "key length of 6 bytes": (raw(key=TOO_LONG), "key length"),
    "key beyond the record": (raw(key=varint(SIZE) + b"key"), "key"),
    "key of 2 GiB": (raw(key=varint(INT32_MAX) + b"key"), "key"),
    "key length -2": (raw(key=varint(-2)), "key length is negative"),
    "key length very negative": (raw(key=varint(INT32_MIN)), "key length is negative"),
    "value length of 6 bytes": (raw(value=TOO_LONG), "value length"),
    "value beyond the record": (raw(value=varint(8) + b"value"), "value"),
    "value of 2 GiB": (raw(value=varint(INT32_MAX) + b"value"), "value"),
    "value length -2": (raw(value=varint(-2)), "value length is negative"),
    "value length very negative": (raw(value=varint(INT32_MIN)), "value length is negative"),
    "value length missing": (
        varint(7) + b"\0\0\x02" + varint(3) + b"key",
        "value length",
    ),
    "value length cut": (varint(8) + b"\0\0\x02" + varint(3) + b"key\x80", "value length"),
    "header count of 6 bytes": (raw(headers=TOO_LONG), "header count"),
    "header count missing": (raw(headers=b""), "header count"),
    "header count negative": (raw(headers=varint(-1)), "header count is negative"),
    "header count of 2^31 - 1": (raw(headers=varint(INT32_MAX)), "headers"),
    "header count one too high": (raw(headers=varint(2) + HEADER), "header"),
    "header count too high with room": (raw(headers=varint(2) + HEADER + b"\0"), "header"),
    "header count one too low": (raw(headers=varint(1) + HEADER * 2), "disagrees"),
    "header key null": (raw(headers=varint(1) + varint(-1) + varint(-1)), "header key is null"),
    "header key length -2": (raw(headers=varint(1) + varint(-2) + varint(-1)), "header key"),
    "header key of 6 bytes": (raw(headers=varint(1) + TOO_LONG), "header key"),
    "header key beyond the record": (raw(headers=varint(1) + varint(9) + b"h"), "header key"),
    "header key of 2 GiB": (raw(headers=varint(1) + varint(INT32_MAX) + b"h"), "header key"),
    "header value missing": (raw(headers=varint(1) + varint(1) + b"h"), "header value"),
    "header value length -2": (
        raw(headers=varint(1) + varint(1) + b"h" + varint(-2)),
        "header value",
    ),
    "header value of 6 bytes": (
        raw(headers=varint(1) + varint(1) + b"h" + TOO_LONG),
        "header value",
    ),
    "header value beyond the record": (
        raw(headers=varint(1) + varint(1) + b"h" + varint(2) + b"v"),
        "header value",
    ),
    "header value of 2 GiB": (
        raw(headers=varint(1) + varint(1) + b"h" + varint(INT32_MAX) + b"v"),
        "header value",
    ),
    "second header null": (raw(headers=varint(2) + HEADER + varint(-1) + b"\0"), "header key"),
}


def forged(records: list[bytes], **fields: int) -> OracleBatch:
    """A batch of raw records with a right checksum."""
    known = {
        "base_offset": BASE,
        "base_timestamp": 7000,
        "max_timestamp": 7000,
        "last_offset_delta": 50,
        "record_count": len(records),
    }
    return OracleBatch(payload=b"".join(records)).replace(**(known | fields))


FIRST = raw(offset=varint(0))
LAST = oracle.payload_of([LONG], base_offset=BASE, base_timestamp=7000)


def compressed(codec: Codec, payload: bytes) -> bytes:
    """The payload as somebody else would compress it: other libraries, or by hand."""
    match codec:
        case Codec.GZIP:
            return gzip.compress(payload)
        case Codec.SNAPPY:
            return oracle.snappy_literals(payload)
        case Codec.LZ4:
            packed: bytes = lz4.frame.compress(payload)
            return packed
        case Codec.ZSTD:
            return oracle.zstd_raw(payload)
    return payload


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_lies_is_an_invalid_record(lie: str, codec: Codec) -> None:
    """Goal: lengths, varints and counts that lie are refused although the checksum is right.
    Method: the bad record in the middle, where many bytes follow (the quick path), and at the end,
    where none do (the careful one); plain, and inside each codec."""
    bad, what = LIES[lie]
    for records in ([FIRST, bad, LAST], [FIRST, bad]):
        one = forged(records, attributes=codec)
        with pytest.raises(OracleError):
            oracle.parse_one(bytes(one.replace(payload=compressed(codec, one.payload))))
        if codec == Codec.NONE:
            check_refused(bytes(one), InvalidRecordError, record=1)
        else:
            packed = one.replace(payload=compressed(codec, one.payload))
            check_refused(bytes(packed), InvalidRecordError, record=1)
    if codec == Codec.NONE:
        with pytest.raises(InvalidRecordError) as caught:
            list(batch.records(bytes(forged([FIRST, bad, LAST]))))
        # Some lies swallow the bytes that follow and are found a field later.
        assert what in caught.value.what


# ---------------------------------------------------------------- large batches, proven as they are decoded

LARGE = {
    "of one shape": [OracleRecord(BASE + i, 7000 + i, b"key", b"v" * 100) for i in range(1500)],
    "sent together": [OracleRecord(BASE + i, 7000, None, b"v" * 100) for i in range(1500)],
    "of many shapes": [
        OracleRecord(BASE + i, 7000, None, b"v" * (i % 190), ((b"h", b"x"),) if i % 7 == 0 else ())
        for i in range(1500)
    ],
}


@pytest.mark.parametrize("sample", LARGE)
def test_a_large_batch_is_what_was_written(sample: str) -> None:
    """Goal: no record of a batch that is proven while it is decoded is lost or changed, at any offset one starts at."""
    data = fenced(GOOD + bytes(large := oracle.build(LARGE[sample])))
    assert len(bytes(large)) > 2 * 65536
    expected = rows_of_oracle([large])
    for read in READERS.values():
        assert read(data, batch.scan(data)[1:]) == expected
        for start in (BASE + 1, BASE + 700, BASE + 1499):
            assert read(data, batch.scan(data)[1:], start_offset=start) == expected[start - BASE :]


@pytest.mark.parametrize("sample", LARGE)
def test_a_flip_in_a_large_batch_is_a_wrong_checksum_whatever_it_seems_to_be(sample: str) -> None:
    """Goal: what seems to be a bad record, a count that lies or a batch to be hidden is told as what it is.
    Method: each byte of the header and of the first and last records, and some of all runs between."""
    whole = bytes(oracle.build(LARGE[sample]))
    places = [*range(17, 400), *range(400, len(whole), 1021), *range(len(whole) - 300, len(whole))]
    rows = batch.scan(GOOD + whole)
    for at in places:
        data = fenced(GOOD + flipped(whole, at, 0x81 if at % 2 else 0x20))
        for name, read in READERS.items():
            caught = refusal(read, data, rows)
            assert type(caught) is CorruptRecordError, f"{name}: byte {at}"
            check_place(caught, position=AT, base_offset=BASE)


@pytest.mark.parametrize("index", [1, 700, 1499])
def test_a_record_that_lies_in_a_large_batch_is_named(index: int) -> None:
    """Goal: where the checksum is right, the record is what is wrong, wherever it lies."""
    records = [raw(offset=varint(i), value=varint(100) + b"v" * 100) for i in range(1500)]
    records[index] = raw(offset=varint(index), value=varint(101) + b"v" * 100)
    check_refused(bytes(forged(records, last_offset_delta=1499)), InvalidRecordError, record=index)


@given(
    groups=st.lists(
        st.tuples(
            st.integers(1, 200),  # records
            st.sampled_from([-9000, -1, 0, 1, 63, 64, 9000]),  # from the group before: milliseconds
            st.sampled_from([0, 0, 1, 64, 9000]),  # offsets that are left out
        ),
        min_size=1,
        max_size=8,
    ),
    odd=st.sets(st.integers(0, 1600), max_size=3),
    key=st.sampled_from([None, b"", b"key", b"a key past the head"]),
)
def test_groups_that_were_sent_together_are_what_was_written(
    groups: list[tuple[int, int, int]], odd: set[int], key: bytes | None
) -> None:
    """Goal: records that seem to be a step behind each other and are not are read as what they are.
    Method: groups with times and offsets of their own, and some records with another time."""
    offset, timestamp = BASE, 7000
    written: list[OracleRecord] = []
    for count, later, gap in groups:
        offset, timestamp = offset + gap, timestamp + later
        for _ in range(count):
            stamp = timestamp + (len(written) in odd)
            written.append(OracleRecord(offset, stamp, key, b"value %010d" % offset))
            offset += 1
    data = fenced(GOOD + bytes(one := oracle.build(written)))
    expected = rows_of_oracle([one])
    for read in READERS.values():
        assert read(data, batch.scan(data)[1:]) == expected


@pytest.mark.parametrize("index", [2, 3, 9, 63, 64, 65, 99, 127, 128, 129, 147, 148])
@pytest.mark.parametrize(
    "lie",
    [
        {"value": varint(101) + b"v" * 100},
        {"key": varint(4) + b"key"},
        {"headers": varint(1)},
        {"offset": varint(1)},
        {"offset": varint(200)},
        {"offset": varint(-64)},
    ],
    ids=str,
)
def test_a_record_that_lies_among_others_in_step_is_named(
    index: int, lie: dict[str, bytes]
) -> None:
    """Goal: no record passes for the next step of those before it that is not."""
    parts = {"value": varint(100) + b"v" * 100}
    records = [raw(**parts, offset=varint(i)) for i in range(150)]
    records[index] = raw(**({"offset": varint(index)} | parts | lie))
    check_refused(bytes(forged(records, last_offset_delta=149)), InvalidRecordError, record=index)


def test_a_varint_cut_off_at_the_end_of_the_batch_is_refused() -> None:
    """Goal: the last byte says "more follows" and nothing does.
    Method: end the payload inside each kind of varint, in memory that ends there."""
    for tail in (b"\x80", b"\xff\xff", b"\x80" * 5, b"\x80" * 9):
        padded = tail.ljust(7, b"\x80")
        check_refused(bytes(forged([FIRST, padded])), InvalidRecordError, record=1)


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("count", [0, 1, 3, 4, 1000, INT32_MAX])
def test_a_record_count_that_lies_is_refused(codec: Codec, count: int) -> None:
    """Goal: more or fewer records than the count says are an error, plain and with each codec, and a
    count of two thousand millions allocates nothing.
    Method: two records under other counts."""
    one = forged([FIRST, LAST], attributes=codec, record_count=count)
    packed = one.replace(payload=compressed(codec, one.payload))
    data = fenced(GOOD + bytes(packed))
    for read in READERS.values():
        with pytest.raises(InvalidRecordError) as caught:
            read(data, file=FILE)
        assert (caught.value.position, caught.value.base_offset) == (AT, BASE)
        assert "record" in caught.value.what
    if count < 2:
        check_refused(bytes(packed), InvalidRecordError, what="left over")


@pytest.mark.parametrize("count", [-1, -2, INT32_MIN])
def test_a_negative_record_count_is_refused(count: int) -> None:
    bad = bytes(forged([FIRST, LAST], record_count=count))
    check_refused(bad, CorruptRecordError, what="record count is negative")


@pytest.mark.parametrize("delta", [-1, -2, -BASE - 1, INT32_MIN])
def test_a_negative_last_offset_delta_is_refused(delta: int) -> None:
    """Goal: such a batch is not mistaken for one that ends before the range.
    Method: deltas that take the last offset below the base, and below zero."""
    bad = bytes(forged([FIRST, LAST], last_offset_delta=delta))
    check_refused(bad, CorruptRecordError, what="last offset delta is negative")


@pytest.mark.parametrize("delta", [0, 1, 49])
def test_records_beyond_the_last_offset_delta_are_refused(delta: int) -> None:
    bad = bytes(forged([FIRST, LAST], last_offset_delta=delta))
    check_refused(bad, InvalidRecordError, what="offset deltas", record=1)


@pytest.mark.parametrize("base", [-1, -BASE, -(2**63)])
def test_a_negative_base_offset_is_refused(base: int) -> None:
    bad = bytes(forged([FIRST, LAST], base_offset=base))
    data = fenced(GOOD + bad)
    for read in READERS.values():
        with pytest.raises(CorruptRecordError, match="base offset is negative") as caught:
            read(data, file=FILE)
        assert (caught.value.file, caught.value.position) == (FILE, AT)


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 50), (2**63 - 51, 50), (2**63 - 1, 0)])
def test_offsets_past_the_largest_are_refused(base: int, delta: int) -> None:
    """Goal: no offset wraps to a negative one, and no batch hides behind the end of all ranges.
    Method: a base offset from which the last offset, or the one after it, does not fit."""
    records = [FIRST, LAST] if delta else [FIRST]
    bad = bytes(forged(records, base_offset=base, last_offset_delta=delta))
    check_refused(bad, CorruptRecordError, what="2^63", base_offset=base)


def test_the_largest_offsets_are_read() -> None:
    """Goal: the bound above refuses no more than it must."""
    base = 2**63 - 52
    data = fenced(bytes(forged([FIRST, LAST], base_offset=base)))
    for read in READERS.values():
        assert [row.offset for row in read(data)] == [base, base + 50]


def test_timestamps_wrap_as_javas_do() -> None:
    """Goal: a delta that takes the timestamp past 2^63 has Java's answer, not undefined behaviour.
    Method: base timestamp and delta at both ends."""
    for base, delta in ((2**63 - 1, 1), (-(2**63), -1), (2**63 - 1, 2**63 - 1)):
        one = forged([raw(offset=varint(0), timestamp=varint(delta))], base_timestamp=base)
        for read in READERS.values():
            assert [row.timestamp for row in read(fenced(bytes(one)))] == [
                oracle.int64(base + delta)
            ]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_named(codec: int) -> None:
    bad = bytes(forged([FIRST, LAST], attributes=codec))
    check_refused(bad, UnsupportedCompressionTypeError, what="codec")
    # A scan does not look into batches: recovery of a log needs no codec.
    assert batch.scan(fenced(GOOD + bad))["crc_ok"].tolist() == [1, 1]


def test_unknown_attribute_bits_do_not_hide_records() -> None:
    """Goal: bits that Kafka has not defined yet are carried, not judged.
    Method: set all of them."""
    one = forged([FIRST, LAST], attributes=-(2**15) | 0x7F80)
    for read in READERS.values():
        assert read(bytes(one)) == rows_of_oracle([oracle.parse_one(bytes(one))])


def test_unreadable_control_records_are_skipped_and_marked() -> None:
    """Goal: a control batch whose key is no control key hides from readers like any other, and the
    scan says that it could not be read.
    Method: null, short and negative keys, a record that ends too early, a compressed payload."""
    keys = [varint(-1), varint(3) + b"\0\0\0", varint(4) + b"\0\0\xff\xff", varint(99) + b"\0"]
    payloads = [raw(offset=varint(0), key=key) for key in keys]
    payloads += [b"", b"\x80", varint(50), varint(-5), varint(1) + b"\0"]
    for payload in payloads:
        one = OracleBatch(payload=payload, record_count=1, attributes=0x30, base_offset=BASE)
        data = fenced(GOOD + bytes(one))
        assert batch.scan(data)["control_type"].tolist() == [-1, -2]
        assert batch.scan(data)["coordinator_epoch"].tolist() == [-1, -1]
        for read in READERS.values():
            assert len(read(data)) == 3
    packed = OracleBatch(payload=gzip.compress(b"x"), record_count=1, attributes=0x31)
    assert batch.scan(fenced(bytes(packed)))["control_type"].tolist() == [-2]


def test_a_marker_without_an_epoch_has_none() -> None:
    """Goal: a COMMIT whose value is missing or short is a COMMIT still, with no coordinator epoch."""
    for value in (varint(-1), varint(5) + b"\0\0\0\0\1", b"\x80"):
        payload = raw(offset=varint(0), key=varint(4) + b"\0\0\0\1", value=value)
        one = OracleBatch(payload=payload, record_count=1, attributes=0x30)
        (row,) = batch.scan(fenced(bytes(one)))
        assert (row["control_type"], row["coordinator_epoch"]) == (1, -1)


# ---------------------------------------------------------------- compressed payloads


def repacked(codec: Codec, payload: bytes, **fields: int) -> bytes:
    """Two sound records' batch with another payload, and a right checksum."""
    return bytes(forged([FIRST, LAST], attributes=codec, **fields).replace(payload=payload))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_what_others_compress_is_read(codec: Codec) -> None:
    """Goal: the forged batches below fail for their lies, not for how they are packed."""
    payload = compressed(codec, FIRST + LAST)
    for read in READERS.values():
        assert [row.offset for row in read(fenced(repacked(codec, payload)))] == [BASE, BASE + 50]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize(
    "garbage",
    [b"\0", b"\xff" * 100, bytes(range(256)), b"\0" * 64, FIRST + LAST],
    ids=["one byte", "ones", "all bytes", "zeros", "not compressed"],
)
def test_compressed_garbage_is_corrupt(codec: Codec, garbage: bytes) -> None:
    """Goal: a codec's complaint becomes our error, with its place.
    Method: bytes that are no compressed data under each codec."""
    data = fenced(GOOD + repacked(codec, garbage))
    for read in READERS.values():
        with pytest.raises((CorruptRecordError, InvalidRecordError)) as caught:
            read(data, file=FILE)
        check_place(caught.value, position=AT, base_offset=BASE)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_a_compressed_payload_cut_anywhere_is_refused(codec: Codec) -> None:
    """Goal: half a compressed stream never passes for the whole.
    Method: cut after each byte, length and checksum made right again; by us, and by others."""
    ours = encoded(compression=codec)[61:]
    for payload, count in ((ours, 4), (compressed(codec, FIRST + LAST), 2)):
        for size in range(1, len(payload)):
            bad = repacked(codec, payload[:size], record_count=count)
            data = fenced(GOOD + bad)
            for read in READERS.values():
                with pytest.raises((CorruptRecordError, InvalidRecordError)) as caught:
                    read(data, file=FILE)
                check_place(caught.value, position=AT, base_offset=BASE)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_all_readers_agree_on_a_damaged_compressed_payload(codec: Codec) -> None:
    """Goal: whatever a flipped bit inside compressed data does, no reader crashes, and none sees what
    another refuses.
    Method: flip each bit of the payload, checksum made right again; compare the three."""
    payload = encoded(compression=codec)[61:]
    refused = 0
    for at in range(len(payload)):
        for bit in range(8):
            bad = repacked(codec, flipped(payload, at, 1 << bit), record_count=4)
            answers: list[list[Row] | type[BaseException]] = []
            for read in READERS.values():
                try:
                    answers.append(read(fenced(bad), decompressed_bytes_max=1 << 20))
                except BatchError as error:
                    answers.append(type(error))
            assert answers[0] == answers[1] == answers[2]
            refused += isinstance(answers[0], type)
    assert refused > 0


def snappy_claim(size: int, block: bytes = b"\x00a") -> bytes:
    return oracle.unsigned_varint(size) + block


@pytest.mark.parametrize(
    "payload",
    [
        snappy_claim(2**32 - 1),
        snappy_claim(2**31 - 1),
        snappy_claim(200_000_000),
        snappy_claim(2),
        snappy_claim(0),
        b"\xff\xff\xff\xff\xff\x01",
        b"\x80",
        oracle.XERIAL + struct.pack(">i", 100) + oracle.snappy_literals(FIRST + LAST),
        oracle.XERIAL + struct.pack(">i", -1) + oracle.snappy_literals(FIRST + LAST),
        oracle.XERIAL + struct.pack(">i", INT32_MAX) + oracle.snappy_literals(FIRST + LAST),
        oracle.XERIAL + struct.pack(">i", 0) + oracle.snappy_literals(FIRST + LAST),
        oracle.XERIAL + struct.pack(">i", 10) + oracle.snappy_literals(FIRST + LAST),
        oracle.XERIAL + b"\0\0\0",
        oracle.XERIAL,
        oracle.XERIAL[:8],
        oracle.XERIAL[:12],
        oracle.XERIAL + struct.pack(">i", 6) + snappy_claim(2**28),
    ],
)
def test_snappy_sizes_that_lie_are_refused(payload: bytes) -> None:
    """Goal: neither a block's declared size nor xerial's block size is believed.
    Method: too large, too small, negative, cut off, and streams without blocks."""
    data = fenced(GOOD + repacked(Codec.SNAPPY, payload))
    for read in READERS.values():
        with pytest.raises((CorruptRecordError, InvalidRecordError)) as caught:
            read(data, file=FILE)
        check_place(caught.value, position=AT, base_offset=BASE)


BOMBS: dict[str, Callable[[int], bytes]] = {
    "gzip": lambda size: gzip.compress(bytes(size), 9),
    "lz4": lambda size: lz4.frame.compress(bytes(size)),
    "zstd": lambda size: pa.Codec("zstd").compress(bytes(size), asbytes=True),
    "snappy": lambda size: pa.Codec("snappy").compress(bytes(size), asbytes=True),
}


@pytest.mark.parametrize("codec", BOMBS)
def test_decompression_stops_at_the_limit(codec: str) -> None:
    """Goal: a small batch that unfolds into much is refused as too large; up to the limit it reads.
    Method: zeros of just more than the limit, and a sound batch of exactly the limit."""
    number = Codec.of(codec)
    check_refused(
        repacked(number, BOMBS[codec]((1 << 20) + 1)),
        RecordBatchTooLargeError,
        what="more than the limit of 1048576 bytes",
        decompressed_bytes_max=1 << 20,
    )
    sound = bytes(batch.encode([b"v" * 5000], compression=codec, batch_size=1 << 20))
    size = len(oracle.decompress(number, sound[61:]))
    for read in READERS.values():
        assert len(read(sound, decompressed_bytes_max=size)) == 1
        with pytest.raises(RecordBatchTooLargeError):
            read(sound, decompressed_bytes_max=size - 1)


def test_a_xerial_stream_of_many_bombs_stops_at_the_limit() -> None:
    """Goal: blocks within the limit do not add up past it."""
    block = pa.Codec("snappy").compress(bytes(1 << 19), asbytes=True)
    payload = oracle.XERIAL + (struct.pack(">i", len(block)) + block) * 3
    check_refused(
        repacked(Codec.SNAPPY, payload),
        RecordBatchTooLargeError,
        decompressed_bytes_max=1 << 20,
    )


@pytest.mark.usefixtures("honest_memory")
@pytest.mark.parametrize("codec", BOMBS)
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: str) -> None:
    """Goal: memory is bounded by decompressed_bytes_max, not by what the batch holds.
    Method: a fresh process decodes 256 MiB of zeros under a limit of 4 MiB and reports how far its
    peak memory rose."""
    program = f"""
        from oncelog.base.errors import RecordBatchTooLargeError
        from oncelog.segment import batch
        data = sys.stdin.buffer.read()
        warm = bytes(batch.encode([b"v" * 5000], compression={codec!r}))
        list(batch.decode(warm)), list(batch.records(warm))
        for read in (batch.decode, batch.records):
            with Peak() as peak:
                try:
                    list(read(data, decompressed_bytes_max=4 << 20))
                except RecordBatchTooLargeError:
                    print("refused")
            print(peak.bytes)
    """
    bomb = repacked(Codec.of(codec), BOMBS[codec](256 << 20))
    words = run(program, bomb)
    assert words[::2] == ["refused", "refused"]
    assert max(map(int, words[1::2])) < 8 * MIB


# ---------------------------------------------------------------- any bytes at all


@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(["set", "cut", "put"])
        ),
        min_size=1,
        max_size=6,
    ),
    which=st.sampled_from(["plain", "headers", "marker"]),
)
def test_readers_and_oracle_agree_on_any_damage(
    edits: list[tuple[int, int, str]], which: str
) -> None:
    """Goal: what the slow reader accepts is read to the same records, what it refuses is refused.
    Method: change, drop and insert bytes behind the length, then make length and checksum right."""
    body = bytearray(SAMPLES[which])
    for at, byte, how in edits:
        place = 21 + at % max(1, len(body) - 21)
        if how == "set" and place < len(body):
            body[place] = byte
        elif how == "put":
            body.insert(place, byte)
        elif len(body) > 61:
            del body[place]
    body[22] &= 0xF8  # other codecs have their own tests
    struct.pack_into(">i", body, 8, len(body) - 12)
    struct.pack_into(">I", body, 17, oracle.crc32c(bytes(body[21:])))
    data = bytes(body)
    try:
        truth = rows_of_oracle([oracle.parse_one(data)], control=True)
    except OracleError:
        for read in READERS.values():
            with pytest.raises(BatchError):
                read(fenced(data), include_control=True)
    else:
        for read in READERS.values():
            assert read(fenced(data), include_control=True) == truth


@given(data=st.binary(max_size=300), magic=st.booleans())
def test_random_bytes_never_pass(data: bytes, magic: bool) -> None:
    """Goal: noise is an error with a position, for a scan and for readers.
    Method: random bytes, half of them with a magic of 2."""
    if magic and len(data) > 16:
        data = data[:16] + b"\2" + data[17:]
    memory = fenced(data)
    rows, end, error = batch.scan_prefix(memory)
    assert 0 <= end <= len(data)
    assert len(rows) == 0 or rows["size"].sum() == end
    assert (error is None) == (end == len(data))
    if error is not None:
        assert error.position == end
    at_start = np.zeros(1, batch.HEADER_DTYPE)
    for read in READERS.values():
        with pytest.raises(BatchError):
            read(memory, at_start)


# ---------------------------------------------------------------- callers who are wrong


def test_a_wrong_position_is_refused() -> None:
    """Goal: positions that hold no batch are an error, before the start and past the end included."""
    data = fenced(GOOD + SAMPLES["plain"])
    rows = batch.scan(data)
    for position in (-1, -(2**63), len(data) + 1, 2**62):
        rows["position"] = 0, position
        for read in READERS.values():
            with pytest.raises(ValueError, match="position"):
                read(data, rows)
    for position in (1, AT - 1, len(data), len(data) - 1):
        rows["position"] = 0, position
        for read in READERS.values():
            with pytest.raises(BatchError) as caught:
                read(data, rows)
            assert caught.value.position == position
    for position in (-1, len(data) + 1):
        with pytest.raises(ValueError, match="position"):
            batch.scan(data, position)
        with pytest.raises(ValueError, match="position"):
            batch.scan_prefix(data, position)
        with pytest.raises(ValueError, match="position"):
            batch.restamp(bytearray(data), position)
    assert len(batch.scan(data, len(data))) == 0
    assert batch.scan(data, AT)["position"].tolist() == [AT]


def test_a_mask_of_another_length_is_refused() -> None:
    data = GOOD + SAMPLES["plain"]
    for size in (0, 1, 3):
        for read in READERS.values():
            with pytest.raises(ValueError, match=f"2 batches but a mask of {size}"):
                read(data, visible=np.ones(size, np.bool_))


@pytest.mark.parametrize("bytes_max", [0, -1])
def test_a_chunk_of_no_bytes_is_refused(bytes_max: int) -> None:
    """Goal: a chunk size that can never be met is an error, not an endless loop."""
    for views in (False, True):
        with pytest.raises(ValueError, match="bytes_max"):
            list(batch.decode(GOOD, bytes_max=bytes_max, views=views))


def test_what_is_no_buffer_is_a_type_error() -> None:
    for wrong in ("text", 5, None, [1, 2]):
        for read in READERS.values():
            with pytest.raises(TypeError):
                read(wrong)
        with pytest.raises(TypeError):
            batch.scan(wrong)  # type: ignore[arg-type]
    with pytest.raises((BufferError, ValueError)):
        batch.scan(memoryview(GOOD)[::2])
    with pytest.raises(BufferError):
        batch.restamp(GOOD, base_offset=1)


def test_a_compressed_batch_without_a_codec_function_says_so() -> None:
    from oncelog._native.batch import decode

    with pytest.raises(ValueError, match="decompress"):
        decode(SAMPLES["gzip"], [0])


def test_an_error_of_a_codec_function_passes_through() -> None:
    """Goal: what is not about the bytes (here: a bug) is not dressed up as damage."""
    from oncelog._native.batch import decode

    def broken(codec: int, payload: memoryview) -> bytes:
        raise KeyError(codec)

    with pytest.raises(KeyError):
        decode(SAMPLES["gzip"], [0], decompress=broken)


def test_a_reader_goes_on_after_an_error_with_the_same_error() -> None:
    """Goal: an iterator that has failed does not skip the damage when asked again."""
    iterator = batch.records(GOOD + flipped(SAMPLES["plain"], 70, 1))
    assert len([next(iterator) for _ in range(3)]) == 3
    for _ in range(3):
        with pytest.raises(CorruptRecordError) as caught:
            next(iterator)
        assert caught.value.position == AT
