"""What cannot be written is refused before anything is, and the error says which record it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from oncelog._native.batch import EncodedBatches, Encoder, RecordColumns
from oncelog.base.errors import InvalidTimestampError, RecordBatchTooLargeError, RecordTooLargeError
from oncelog.segment import batch
from oncelog.segment.batch import Attributes, Codec, ControlType

from . import oracle
from .readers import READERS

INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("column", "wrong", "says"),
    [
        ("values", "text", "value is bytes, not str"),
        ("values", 5, "value is bytes, not int"),
        ("values", [1, 2], "value is bytes, not list"),
        ("values", (), "value is bytes, not tuple"),
        ("values", {1}, "value is bytes, not set"),
        ("values", 1.5, "value is bytes, not float"),
        ("values", object(), "value is bytes, not object"),
        ("keys", "text", "key is bytes, not str"),
        ("keys", True, "key is bytes, not"),
        ("headers", [("h", "text")], "header value is bytes, not str"),
        ("headers", [(None, b"v")], "header key is a str, not NoneType"),
        ("headers", [(5, b"v")], "header key is a str, not int"),
        ("timestamps", "soon", "int"),
        ("timestamps", None, "int"),
    ],
)
def test_a_value_of_a_wrong_type_is_a_type_error(column: str, wrong: Any, says: str) -> None:
    """Goal: text and numbers are not turned into bytes by guesswork, in any column.
    Method: one wrong item behind good ones, far enough that earlier blocks are already encoded."""
    count = 1500
    columns: dict[str, Any] = {
        "values": [b"v"] * count,
        "keys": [b"k"] * count,
        "headers": [[("h", b"x")]] * count,
        "timestamps": [7] * count,
    }
    columns[column] = [*columns[column][:-1], wrong]
    with pytest.raises((TypeError, ValueError), match=says):
        batch.encode(columns.pop("values"), **columns)


def test_header_pairs_that_are_no_pairs_are_refused() -> None:
    for wrong in ([("h",)], [("h", b"1", b"2")], [5], "h", 5, {"h": b"v"}):
        with pytest.raises((TypeError, ValueError)):
            batch.encode([b"v"], headers=[wrong])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["keys", "headers", "timestamps"])
@pytest.mark.parametrize("count", [0, 2, 4])
def test_columns_of_another_length_are_refused(name: str, count: int) -> None:
    items: dict[str, list[Any]] = {"keys": [b"k"], "headers": [[]], "timestamps": [1]}
    columns: dict[str, Any] = {name: items[name] * count}
    with pytest.raises(ValueError, match=f"3 values but {count} {name}"):
        batch.encode([b"v"] * 3, **columns)


def test_a_string_is_no_sequence_of_values() -> None:
    """Goal: a value given where a list of values belongs is not taken for its letters."""
    with pytest.raises(TypeError, match="not int"):
        batch.encode(b"value")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not str"):
        batch.encode("value")  # type: ignore[arg-type]


@pytest.mark.parametrize("stamp", [-2, -(2**63)])
def test_a_timestamp_before_1970_is_refused_with_its_record(stamp: int) -> None:
    """Goal: Kafka knows -1 (none) and what is not negative; the error counts records as given.
    Method: the bad one lies behind the first block and behind closed batches; lists and Arrow."""
    stamps = [5] * 2000
    stamps[1234] = stamp
    table = pa.table({"value": [b"v"] * 2000, "timestamp": pa.array(stamps, pa.int64())})
    for chunks in (table, pa.Table.from_batches(table.to_batches(max_chunksize=700))):
        with pytest.raises(InvalidTimestampError, match="record 1234") as caught:
            batch.encode_arrow(chunks, batch_size=500)
        assert (caught.value.record, caught.value.position) == (1234, -1)
    with pytest.raises(InvalidTimestampError, match="record 1234"):
        batch.encode([b"v"] * 2000, timestamps=stamps, batch_size=500)


def test_a_timestamp_too_far_from_the_first_is_refused() -> None:
    """Goal: a delta that does not fit 64 bits is an error, not another timestamp.
    Method: the largest timestamp in a batch that began with none."""
    with pytest.raises(InvalidTimestampError, match="too far"):
        batch.encode([b"a", b"b"], timestamps=[-1, INT64_MAX])
    data = batch.encode([b"a", b"b"], timestamps=[-1, INT64_MAX - 1])
    assert [row.timestamp for row in READERS["records"](data)] == [-1, INT64_MAX - 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("base_offset", -1), ("base_offset", 2**63), ("base_offset", INT64_MAX)),
        *(("batch_size", 0), ("batch_size", -5), ("producer_epoch", 2**15)),
        *(("base_sequence", 2**31), ("partition_leader_epoch", 2**31)),
        *(("producer_id", 2**63), ("timestamp_ms", 2**63)),
    ],
)
def test_a_header_field_that_does_not_fit_is_refused(field: str, value: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        batch.encode([b"v"], **{field: value})  # type: ignore[arg-type]


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="acks"):
        batch.encode([b"v"], acks=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="brotli"):
        batch.encode([b"v"], compression="brotli")


def test_codec_bits_and_a_compress_function_go_together() -> None:
    """Goal: no batch says gzip and is not."""
    with pytest.raises(ValueError, match="together"):
        Encoder(attributes=int(Codec.GZIP))
    with pytest.raises(ValueError, match="together"):
        Encoder(compress=bytes)
    with pytest.raises(ValueError, match="one_batch"):
        Encoder(last_offset_delta=5)


@pytest.mark.parametrize("kind", [ControlType.LEADER_CHANGE, ControlType.UNKNOWN])
def test_only_commit_and_abort_end_a_transaction(kind: ControlType) -> None:
    with pytest.raises(ValueError, match="ABORT or COMMIT"):
        batch.encode_marker(
            kind, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (None, None, (ControlType.UNKNOWN, -1, -1)),
        (b"", b"", (ControlType.UNKNOWN, -1, -1)),
        (b"\0\0\0", b"\0\0\0\0\0\7", (ControlType.UNKNOWN, -1, -1)),
        (b"\0\1\0\0", b"\0\0\0\0\0\7", (ControlType.ABORT, 1, 7)),
        (b"\0\0\0\1", b"\0\0\0\0\0\7more", (ControlType.COMMIT, 0, 7)),
        (b"\0\0\0\1", b"\0\0\0\0\7", (ControlType.COMMIT, 0, -1)),
        (b"\0\0\0\1", None, (ControlType.COMMIT, 0, -1)),
        (b"\0\0\0\2", b"\0\0\0\0\0\7", (ControlType.LEADER_CHANGE, 0, -1)),
        (b"\0\0\0\6", b"", (ControlType.KRAFT_VOTERS, 0, -1)),
        (b"\0\0\0\x63", b"", (ControlType.UNKNOWN, 0, -1)),
        (b"\0\0\xff\xff", b"", (ControlType.UNKNOWN, 0, -1)),
    ],
)
def test_control_records_are_named_or_unknown(
    key: bytes | None, value: bytes | None, says: tuple[ControlType, int, int]
) -> None:
    """Goal: types of a newer Kafka are skipped, not errors; only markers have a coordinator epoch."""
    assert batch.control_record(key, value) == says


def test_restamp_cannot_change_the_codec() -> None:
    """Goal: the codec bits say how the records lie there; a header cannot make it so.
    Method: other codec bits are refused and nothing is changed; the same ones pass."""
    data = bytearray(batch.encode([b"v"], compression="gzip"))
    before = bytes(data)
    for attributes in (0, 2, 0x10):
        with pytest.raises(ValueError, match="codec"):
            batch.restamp(data, attributes=attributes, base_offset=9)
        assert data == before
    batch.restamp(data, attributes=Codec.GZIP | Attributes.TRANSACTIONAL)
    assert batch.scan(data)["crc_ok"].tolist() == [1]


def test_a_restamp_that_does_not_fit_changes_nothing() -> None:
    data = bytearray(batch.encode([b"v"]))
    before = bytes(data)
    for field, value in (("base_offset", 2**63), ("producer_epoch", 2**15), ("max_timestamp", "x")):
        with pytest.raises((OverflowError, TypeError)):
            batch.restamp(data, producer_id=5, **{field: value})  # type: ignore[arg-type]
        assert data == before


# ---------------------------------------------------------------- the encoder itself


def test_several_adds_are_one_stream_of_records() -> None:
    """Goal: lists and Arrow data may be mixed, batches fill across calls.
    Method: compare with one call."""
    values = [b"%d" % i for i in range(1700)]
    expected = bytes(batch.encode(values, batch_size=700))
    encoder = Encoder(batch_bytes=700)
    sizes = []
    for start in range(0, 1700, 100):
        part = values[start : start + 100]
        if start % 200:
            encoder.add(None, part)
        else:
            encoder.add_arrow(pa.table({"value": part}))
        sizes.append(encoder.nbytes)
    assert bytes(encoder.finish()) == expected
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(expected)


def test_a_finished_encoder_says_so() -> None:
    encoder = Encoder()
    encoder.add(None, [b"v"])
    encoder.finish()
    for again in (lambda: encoder.add(None, [b"v"]), encoder.finish):
        with pytest.raises(ValueError, match="finished"):
            again()


def test_a_refused_record_leaves_no_batch_behind() -> None:
    """Goal: an encoder that refused its first record has nothing to hand over, not an empty batch.
    Method: a bad timestamp, a bad offset, a null header name; then finish."""
    for bad in (
        {"timestamps": [-2]},
        {"offsets": [-1]},
        {"offsets": [2**32]},
        {"offsets": [-(2**63)]},
    ):
        encoder = Encoder()
        with pytest.raises((ValueError, InvalidTimestampError)):
            encoder.add(None, [b"v"], **bad)  # type: ignore[arg-type]
        assert len(encoder.finish()) == 0
    encoder = Encoder()
    encoder.add(None, [b"kept"])
    with pytest.raises(InvalidTimestampError):
        encoder.add(None, [b"v"], timestamps=[-2])
    encoder.add(None, [b"kept, too"])
    assert [row.value for row in READERS["records"](encoder.finish())] == [b"kept", b"kept, too"]


def test_a_failing_codec_loses_nothing_that_was_added() -> None:
    """Goal: an error in a compress function leaves the encoder as it was before the call.
    Method: fail once at the first closing, then go on."""
    failures = iter([True, False, False, False])

    def compress(records: memoryview) -> bytes:
        if next(failures):
            raise OSError("out of luck")
        return oracle.zstd_raw(bytes(records))

    encoder = Encoder(attributes=int(Codec.ZSTD), compress=compress)
    encoder.add(None, [b"one", b"two"])
    with pytest.raises(OSError, match="luck"):
        encoder.finish()
    data = encoder.finish()
    assert [row.value for row in READERS["records"](data)] == [b"one", b"two"]


def test_offsets_must_rise_and_stay_near_the_base() -> None:
    """Goal: a batch holds offsets that rise, from its base to less than 2^31 above it.
    Method: gaps pass; repeats, steps back and far jumps are refused."""
    encoder = Encoder(base_offset=100, one_batch=True, last_offset_delta=2**31 - 1)
    encoder.add(None, [b"a", b"b", b"c"], offsets=[100, 105, 100 + 2**31 - 1])
    data = encoder.finish()
    assert [row.offset for row in READERS["contiguous"](data)] == [100, 105, 100 + 2**31 - 1]
    for offsets in ([100, 100], [101, 100], [99, 100], [100, 100 + 2**31], [-(2**63), 0]):
        encoder = Encoder(base_offset=100, one_batch=True)
        with pytest.raises(ValueError, match="offsets must rise"):
            encoder.add(None, [b"a", b"b"], offsets=offsets)


def test_no_batch_ends_before_its_records_do() -> None:
    """Goal: a last offset delta that is given covers all records, so that readers take the batch.
    Method: one that is too small, at the edge and just below; a negative one."""
    for delta in (4, 0):
        encoder = Encoder(base_offset=100, one_batch=True, last_offset_delta=delta)
        encoder.add(None, [b"a", b"b"], offsets=[100, 105])
        with pytest.raises(ValueError, match="offsets pass the batch's last"):
            encoder.finish()
    encoder = Encoder(base_offset=100, one_batch=True, last_offset_delta=5)
    encoder.add(None, [b"a", b"b"], offsets=[100, 105])
    assert len(READERS["views"](encoder.finish())) == 2
    with pytest.raises(ValueError, match="negative"):
        Encoder(one_batch=True, last_offset_delta=-1)


def test_one_batch_does_not_split() -> None:
    encoder = Encoder(one_batch=True, batch_bytes=200)
    with pytest.raises((RecordTooLargeError, RecordBatchTooLargeError), match="size limit"):
        encoder.add(None, [b"v" * 100] * 3)
    assert Encoder(one_batch=True).finish().batch_count == 1


def test_numpy_timestamps_of_any_layout_are_read() -> None:
    """Goal: strided, read-only, narrow and unsigned arrays are timestamps, too."""
    expected = bytes(batch.encode([b"v"] * 4, timestamps=[1, 3, 5, 7]))
    strided = np.arange(1, 9, dtype=np.int64)[::2]
    frozen = strided.copy()
    frozen.flags.writeable = False
    for stamps in (strided, frozen, strided.astype(np.int32), strided.astype(">i8"), (1, 3, 5, 7)):
        assert bytes(batch.encode([b"v"] * 4, timestamps=stamps)) == expected
    with pytest.raises(ValueError, match="timestamps"):
        batch.encode([b"v"] * 4, timestamps=strided.reshape(2, 2))


def test_header_names_may_be_bytes() -> None:
    """Goal: names that came out of another log as bytes go in again as they are."""
    data = batch.encode([b"v"], headers=[[(b"\xff raw", b"x")]])  # type: ignore[list-item]
    assert oracle.parse(bytes(data))[0].records[0].headers == ((b"\xff raw", b"x"),)


def test_columns_and_batches_cannot_be_made_out_of_nothing() -> None:
    """Goal: objects that only the library can fill are not there empty, to crash later."""
    for kind in (RecordColumns, EncodedBatches):
        with pytest.raises(TypeError, match=kind.__name__):
            kind()


def test_records_are_plain_values() -> None:
    """Goal: a Record compares, hashes, prints and pickles as its fields."""
    import copy
    import pickle

    (record,) = batch.records(
        batch.encode([b"v"], keys=[b"k"], headers=[[("h", None)]], timestamp_ms=7, base_offset=3),
        topic="orders",
        partition=2,
    )
    twin = batch.Record(
        topic="orders",
        partition=2,
        offset=3,
        timestamp=7,
        key=b"k",
        value=b"v",
        headers=[("h", None)],
    )
    assert record == twin
    assert hash(record) == hash(twin)
    assert pickle.loads(pickle.dumps(record)) == record == copy.copy(record)  # noqa: S301
    assert "topic='orders', partition=2, offset=3" in repr(record)
    other = batch.Record(offset=3, timestamp=7, key=b"k", value=b"v")
    assert record != other
    assert "topic" not in repr(other)
    assert record != object()
    with pytest.raises(AttributeError):
        record.offset = 4  # type: ignore[misc]
