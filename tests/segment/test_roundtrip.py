"""Whatever is encoded is decoded as it was: by us, by the slow oracle, and by other clients."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.base.errors import BatchError
from oncelog.client.arrow import record_batch
from oncelog.segment import batch
from oncelog.segment.batch import Attributes, Codec, ControlType

from . import oracle
from .readers import READERS, Row, rows_of_arrow, rows_of_oracle
from .strategies import NOW, Records, codecs, options, oracle_batches, records

if TYPE_CHECKING:
    from .oracle import OracleBatch

HEADER_FIELDS = (
    *("base_offset", "partition_leader_epoch", "attributes", "last_offset_delta"),
    *("base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence"),
    *("record_count", "magic"),
)


def encode(given_records: Records, **chosen: Any) -> batch.EncodedBatches:
    return batch.encode(
        given_records.values,
        keys=given_records.keys,
        timestamps=given_records.timestamps,
        headers=given_records.headers,
        **chosen,
    )


def visible_rows(batches: list[OracleBatch]) -> list[Row]:
    """Rows of batches whose payload is not compressed yet."""
    return [
        row._replace(timestamp=one.max_timestamp) if one.is_log_append_time else row
        for one in batches
        for row in rows_of_oracle([one])
    ]


@given(given_records=records(), chosen=options(st.just(Codec.NONE)))
def test_plain_batches_are_the_oracles_to_the_byte(
    given_records: Records, chosen: dict[str, Any]
) -> None:
    """Goal: layout, splitting, flags, sequence wrap and checksum.
    Method: the slow encoder builds the same batches; bytes are compared."""
    encoded = encode(given_records, **chosen)
    truth = oracle_batches(given_records, chosen)
    assert bytes(encoded) == b"".join(map(bytes, truth))
    assert (encoded.batch_count, encoded.record_count) == (len(truth), len(given_records))
    assert len(encoded) == len(bytes(encoded))


@given(given_records=records(), chosen=options())
def test_every_reader_gives_back_what_was_encoded(
    given_records: Records, chosen: dict[str, Any]
) -> None:
    """Goal: records of every shape, under every codec, size, flag and producer.
    Method: encode, then scan and read in all three ways; the oracle reads it, too."""
    data = bytes(encode(given_records, **chosen))
    truth = oracle_batches(given_records, chosen)
    rows = batch.scan(data)
    for name in HEADER_FIELDS:
        assert rows[name].tolist() == [getattr(one, name) for one in truth], name
    assert (rows["crc_ok"] == 1).all()
    assert (rows["control_type"] == -1).all()
    expected = visible_rows(truth)
    for read in READERS.values():
        assert read(data) == expected
        assert read(data, rows, check_crc=False) == expected
    assert rows_of_oracle(oracle.parse(data)) == expected


@given(given_records=records(min_size=1), chosen=options())
def test_no_batch_of_two_records_exceeds_the_batch_size(
    given_records: Records, chosen: dict[str, Any]
) -> None:
    """Goal: a batch is within batch_size before compression unless a single record is not, and none
    is closed while the next record would fit.
    Method: sizes of the uncompressed batches; each with the first record of the next would not fit."""
    chosen = chosen | {"compression": Codec.NONE}
    data = bytes(encode(given_records, **chosen))
    sizes = batch.scan(data)["size"].tolist()
    counts = batch.scan(data)["record_count"].tolist()
    assert all(count >= 1 for count in counts)
    for size, count in zip(sizes, counts, strict=True):
        assert size <= chosen["batch_size"] or count == 1
    truth = oracle.parse(data)
    fixed = {}
    if "delete_horizon_ms" in chosen:
        fixed["base_timestamp"] = chosen["delete_horizon_ms"]
    stamps = iter(given_records.timestamps or [chosen["timestamp_ms"]] * len(given_records))
    restored = [
        [
            oracle.OracleRecord(r.offset, next(stamps), r.key, r.value, r.headers)
            for r in one.records
        ]
        for one in truth
    ]
    for one, following in itertools.pairwise(restored):
        joined = oracle.build([*one, following[0]], **fixed)
        assert len(bytes(joined)) > chosen["batch_size"]


@given(
    given_records=records(max_size=40),
    chosen=options(),
    start=st.integers(-2, 42),
    end=st.integers(-2, 42),
    seed=st.integers(0, 2**16),
)
def test_range_and_mask_select_what_a_model_selects(
    given_records: Records, chosen: dict[str, Any], start: int, end: int, seed: int
) -> None:
    """Goal: exactly the records in [start, end) of the visible batches.
    Method: filter all records in Python; ranges cut through batches and lie outside them."""
    data = bytes(encode(given_records, **chosen))
    rows = batch.scan(data)
    base = chosen["base_offset"]
    visible = np.random.default_rng(seed).random(len(rows)) < 0.7
    truth = oracle_batches(given_records, chosen)
    expected = [
        row
        for one, seen in zip(truth, visible, strict=True)
        if seen
        for row in visible_rows([one])
        if base + start <= row.offset < base + end
    ]
    for read in READERS.values():
        found = read(data, rows, visible=visible, start_offset=base + start, end_offset=base + end)
        assert found == expected
        assert (
            read(data, rows[visible], start_offset=base + start, end_offset=base + end) == expected
        )


@given(
    given_records=records(max_size=40),
    chosen=options(),
    bytes_max=st.sampled_from([1, 2, 50, 200, 1000, 2**31]),
    views=st.booleans(),
)
def test_chunks_are_the_whole_cut_between_batches(
    given_records: Records, chosen: dict[str, Any], bytes_max: int, views: bool
) -> None:
    """Goal: a chunk ends after the batch that reaches bytes_max, nothing is lost or repeated.
    Method: decode in small chunks and at once; count the payload bytes of each chunk's batches."""
    data = bytes(encode(given_records, **chosen))
    rows = batch.scan(data)
    whole = list(batch.decode(data, rows, views=views, bytes_max=2**40))
    chunks = list(batch.decode(data, rows, views=views, bytes_max=bytes_max))
    assert len(whole) == (1 if len(given_records) else 0)
    joined = [row for chunk in chunks for row in rows_of_arrow(record_batch(chunk))]
    assert joined == [row for one in whole for row in rows_of_arrow(record_batch(one))]
    assert sum(chunk.next_batch for chunk in chunks) == len(rows)
    at = 0
    for chunk in chunks:
        payloads = [
            len(oracle.decompress(one.codec, one.payload))
            for one in oracle.parse(data)[at : at + chunk.next_batch]
        ]
        assert sum(payloads[:-1]) < bytes_max
        at += chunk.next_batch
        if at < len(rows):
            assert sum(payloads) >= bytes_max


@given(given_records=records(), chosen=options(), create_time=st.booleans())
def test_create_time_shows_the_producers_stamps(
    given_records: Records, chosen: dict[str, Any], create_time: bool
) -> None:
    """Goal: LogAppendTime is what readers see, and the producer's time is still there to be asked for.
    Method: stamp the log's time, decode with and without create_time."""
    chosen = chosen | {"log_append_time_ms": NOW + 77}
    data = bytes(encode(given_records, **chosen))
    given_stamps = given_records.timestamps or [chosen["timestamp_ms"]] * len(given_records)
    for views in (False, True):
        stamps: list[int] = []
        kinds: list[int] = []
        for chunk in batch.decode(data, create_time=create_time, views=views):
            stamps += chunk.timestamps.tolist()
            kinds += record_batch(chunk)["timestamp_type"].to_pylist()
        count = len(given_records)
        assert stamps == (given_stamps if create_time else [NOW + 77] * count)
        assert kinds == [0 if create_time else 1] * count


@given(given_records=records(min_size=1), chosen=options(), data=st.data())
def test_restamping_is_encoding_anew(
    given_records: Records, chosen: dict[str, Any], data: st.DataObject
) -> None:
    """Goal: the checksum that is derived from the old one is the one that is computed from all bytes.
    Method: change header fields of one batch in place; compare with the oracle's batch of those
    fields; the records stay the same bytes."""
    before = bytes(encode(given_records, **chosen))
    rows = batch.scan(before)
    index = data.draw(st.integers(0, len(rows) - 1))
    changes = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "base_offset": st.sampled_from([0, 5, 2**62]),
                "partition_leader_epoch": st.sampled_from([-1, 0, 2**31 - 1]),
                "max_timestamp": st.sampled_from([-1, 0, NOW + 999, 2**63 - 1]),
                "producer_id": st.sampled_from([-1, 0, 2**63 - 1]),
                "producer_epoch": st.sampled_from([-1, 0, 2**15 - 1]),
                "base_sequence": st.sampled_from([-1, 0, 2**31 - 1]),
                "attributes": st.sampled_from([0, 0x08, 0x10, 0x18, 0x50]),
            },
        )
    )
    if "attributes" in changes:
        changes["attributes"] |= int(rows[index]["attributes"]) & Attributes.CODEC_MASK
    after = bytearray(before)
    position = int(rows[index]["position"])
    batch.restamp(after, position, **changes)  # type: ignore[arg-type]
    truth = oracle.parse(before)[index].replace(**changes, crc=None)
    end = position + int(rows[index]["size"])
    assert bytes(after[position:end]) == bytes(truth)
    assert bytes(after[:position] + after[end:]) == before[:position] + before[end:]
    assert batch.scan(after)[index]["crc_ok"] == 1


@given(
    given_records=records(min_size=1),
    chosen=options(),
    at=st.integers(0, 10_000),
    bits=st.integers(1, 255),
)
def test_restamping_does_not_heal_damage(
    given_records: Records, chosen: dict[str, Any], at: int, bits: int
) -> None:
    """Goal: records that were damaged before the restamp fail their checksum after it.
    Method: flip a byte of the payload, restamp every field, scan; flip it back, scan again."""
    data = bytearray(encode(given_records, **(chosen | {"batch_size": 2**31 - 1})))
    place = 61 + at % (len(data) - 61)
    data[place] ^= bits
    batch.restamp(data, base_offset=5, max_timestamp=9, producer_id=8, producer_epoch=7)
    assert batch.scan(data)["crc_ok"].tolist() == [0]
    data[place] ^= bits
    assert batch.scan(data)["crc_ok"].tolist() == [1]


@given(given_records=records(min_size=1), chosen=options(), data=st.data())
def test_rewriting_keeps_what_compaction_keeps(
    given_records: Records, chosen: dict[str, Any], data: st.DataObject
) -> None:
    """Goal: some records of a batch under its old header: offsets with gaps, last offset, producer,
    sequence, timestamps and flags stay, down to a batch with no records.
    Method: keep an arbitrary subset, rewrite, and let the oracle read it."""
    chosen = chosen | {"batch_size": 2**31 - 1}
    before = bytes(encode(given_records, **chosen))
    (row,) = batch.scan(before)
    (columns,) = batch.decode(before, create_time=True)
    keep = data.draw(
        st.lists(st.booleans(), min_size=len(given_records), max_size=len(given_records))
    )
    arrow = record_batch(columns).filter(keep)
    after = batch.rewrite(row, arrow if any(keep) else None, columns.offsets[np.array(keep)])
    (old,), (new,) = oracle.parse(before), oracle.parse(bytes(after))
    assert new.records == tuple(
        record for record, kept in zip(old.records, keep, strict=True) if kept
    )
    assert (after.batch_count, after.record_count, new.record_count) == (1, sum(keep), sum(keep))
    for name in HEADER_FIELDS[:-2]:
        assert getattr(new, name) == getattr(old, name), name
    if not any(keep):
        assert len(after) == 61


@given(
    kind=st.sampled_from([ControlType.ABORT, ControlType.COMMIT]),
    producer_id=st.sampled_from([0, 2**63 - 1]),
    producer_epoch=st.sampled_from([0, 2**15 - 1]),
    coordinator_epoch=st.sampled_from([-1, 0, 2**31 - 1]),
    timestamp=st.sampled_from([0, NOW, 2**62]),
    base_offset=st.sampled_from([0, 17, 2**62 - 1]),
    leader_epoch=st.sampled_from([-1, 0, 9]),
)
def test_a_marker_says_what_it_was_told(
    kind: ControlType,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int,
    leader_epoch: int,
) -> None:
    """Goal: the control batch that ends a transaction, as Kafka writes it: 78 bytes, one record.
    Method: the oracle builds the same; scan and control_record read it back."""
    data = bytes(
        batch.encode_marker(
            kind,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=timestamp,
            base_offset=base_offset,
            partition_leader_epoch=leader_epoch,
        )
    )
    key = (0).to_bytes(2) + int(kind).to_bytes(2)
    value = (0).to_bytes(2) + coordinator_epoch.to_bytes(4, signed=True)
    truth = oracle.build(
        [oracle.OracleRecord(base_offset, timestamp, key, value)],
        attributes=0x30,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        partition_leader_epoch=leader_epoch,
    )
    assert data == bytes(truth)
    assert len(data) == 78
    (row,) = batch.scan(data)
    assert (row["control_type"], row["coordinator_epoch"]) == (kind, coordinator_epoch)
    (record,) = batch.records(data, include_control=True)
    assert batch.control_record(record.key, record.value) == (kind, 0, coordinator_epoch)
    for read in READERS.values():
        assert read(data) == []


@given(base=st.integers(0, 2**31 - 1), count=st.integers(-(2**31), 2**31))
def test_sequences_wrap_at_the_largest_int(base: int, count: int) -> None:
    """Goal: after 2147483647 comes 0, and before 0 comes 2147483647.
    Method: there and back again; one step at the edges."""
    there = batch.sequence_after(base, count)
    assert 0 <= there < 2**31
    assert batch.sequence_after(there, -count) == base
    assert batch.sequence_after(2**31 - 1, 1) == 0
    assert batch.sequence_after(0, -1) == 2**31 - 1


@given(wrong=st.binary(min_size=1, max_size=12))
@example(wrong=b"ok")
@example(wrong=b"\xf0\x9f\x98")
@example(wrong=b"\xed\xa0\x80x")
@example(wrong=b"\xc0\xaf")
def test_header_names_that_are_no_text_are_shown_repaired(wrong: bytes) -> None:
    """Goal: Kafka does not check that a header name is UTF-8, Arrow insists: each malformed part is
    one U+FFFD, in columns as in Python.
    Method: names of random bytes; Python's own "replace" decides."""
    one = oracle.build([oracle.OracleRecord(0, 1, None, b"v", ((wrong, b"h"), (b"plain", None)))])
    shown = wrong.decode(errors="replace")
    for read in READERS.values():
        assert read(bytes(one))[0].headers == ((shown, b"h"), ("plain", None))


@given(given_records=records(), chosen=options())
def test_sequences_and_buffers_of_any_kind_encode_alike(
    given_records: Records, chosen: dict[str, Any]
) -> None:
    """Goal: lists, tuples, numpy timestamps, bytearrays and memoryviews give the same bytes.
    Method: encode each form, in one call and in several."""
    expected = bytes(encode(given_records, **chosen))
    stamps = None if given_records.timestamps is None else np.array(given_records.timestamps, "i8")
    assert expected == bytes(
        batch.encode(
            tuple(None if value is None else bytearray(value) for value in given_records.values),
            keys=None
            if given_records.keys is None
            else [None if key is None else memoryview(key) for key in given_records.keys],
            timestamps=stamps,
            headers=None
            if given_records.headers is None
            else [list(pairs) or None for pairs in given_records.headers],
            **chosen,
        )
    )


# ---------------------------------------------------------------- other clients


def peer_codecs(name: str) -> list[Codec]:
    """The codecs that a peer can use here: kafka-python looks for a library for each."""
    if name.startswith("aiokafka"):
        return list(Codec)
    codecs = pytest.importorskip("kafka.codec")
    return [
        codec
        for codec in Codec
        if codec is Codec.NONE or getattr(codecs, f"has_{codec.name.lower()}")()
    ]


def peer_rows(peer: Any, data: bytes) -> list[tuple[Any, ...]]:
    """What MemoryRecords of aiokafka or kafka-python reads."""
    rows = []
    memory = peer.MemoryRecords(data)
    while (one := memory.next_batch()) is not None:
        assert one.validate_crc()
        rows += [
            (
                *(record.offset, record.timestamp, record.timestamp_type),
                *(record.key, record.value, tuple(record.headers)),
            )
            for record in one
        ]
    return rows


@pytest.mark.parametrize("name", ["aiokafka.record.memory_records", "kafka.record.memory_records"])
def test_other_clients_read_what_we_write(name: str) -> None:
    """Goal: aiokafka and kafka-python, with their own codecs, see the same records.
    Method: they read batches of every codec that hypothesis draws."""
    peer = pytest.importorskip(name)

    @given(given_records=records(min_size=1), chosen=options(st.sampled_from(peer_codecs(name))))
    def check(given_records: Records, chosen: dict[str, Any]) -> None:
        chosen.pop("delete_horizon_ms", None)  # unknown to them: they would show other timestamps
        data = bytes(encode(given_records, **chosen))
        truth = visible_rows(oracle_batches(given_records, chosen))
        assert peer_rows(peer, data) == [
            (row.offset, row.timestamp, row.timestamp_type, row.key, row.value, row.headers)
            for row in truth
        ]

    check()


@pytest.mark.parametrize(
    "name", ["aiokafka.record.default_records", "kafka.record.default_records"]
)
@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_we_read_what_other_clients_write(name: str, codec: Codec) -> None:
    """Goal: batches of aiokafka and kafka-python, byte by byte of their own making.
    Method: their builders write records with every kind of null; all readers see them."""
    peer = pytest.importorskip(name)
    if codec not in peer_codecs(name):
        pytest.skip(f"{name} has no library for {codec.name.lower()} here")
    builder = peer.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=77,
        producer_epoch=3,
        base_sequence=11,
        batch_size=1 << 20,
    )
    rows = [
        Row(0, NOW, 0, b"key", b"value", (("h", b"1"), ("h", b""))),
        Row(1, NOW - 5, 0, None, b"x" * 500, ()),
        Row(2, NOW + 9, 0, b"", None, (("größe", b"2"),)),
        Row(3, NOW, 0, b"k" * 70, b"", ()),
    ]
    for row in rows:
        builder.append(
            row.offset,
            timestamp=row.timestamp,
            key=row.key,
            value=row.value,
            headers=list(row.headers),
        )
    data = bytes(builder.build())
    (header,) = batch.scan(data)
    assert header["crc_ok"] == 1
    assert int(header["attributes"]) == codec | Attributes.TRANSACTIONAL
    assert (header["producer_id"], header["producer_epoch"], header["base_sequence"]) == (77, 3, 11)
    for read in READERS.values():
        assert read(data) == rows


def test_encoded_batches_are_a_buffer() -> None:
    """Goal: what was built goes to a file, a socket or numpy without a copy of ours.
    Method: write it, wrap it, restamp it in place."""
    encoded = batch.encode([b"v"] * 3, timestamp_ms=NOW)
    sink = io.BytesIO()
    sink.write(encoded)
    assert sink.getvalue() == bytes(encoded) == bytes(memoryview(encoded))
    array = np.frombuffer(memoryview(encoded), np.uint8)
    batch.restamp(encoded, base_offset=40)
    assert array[7] == 40
    assert [row.offset for row in READERS["records"](encoded)] == [40, 41, 42]
    assert "batches=1, records=3" in repr(encoded)


@given(codec=codecs)
def test_no_records_are_no_batches(codec: Codec) -> None:
    encoded = batch.encode([], compression=codec)
    assert (len(encoded), encoded.batch_count, encoded.record_count) == (0, 0, 0)
    assert bytes(encoded) == b""
    assert len(batch.scan(encoded)) == 0
    for read in READERS.values():
        assert read(b"") == []


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("null", ["key", "value", "both", "none"])
def test_long_runs_of_one_shape_keep_their_nulls(null: str, views: bool) -> None:
    """Goal: records that are read by comparison with the one before have their nulls marked a whole run at a time.
    Method: runs whose ends lie anywhere within a byte of the bitmap, broken by records of another size."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for length in (3, 1, 8, 17, 64, 5, 200, 7, 130):
        keys += [None if null in ("key", "both") else b"k%04d" % number for number in range(length)]
        values += [None if null in ("value", "both") else b"v" * 20] * length
        keys.append(b"another")
        values.append(b"odd" * length)
    encoded = batch.encode(values, keys=keys, timestamps=[NOW] * len(values))
    parts = [
        record_batch(columns)
        for columns in batch.decode(memoryview(encoded), batch.scan(encoded), views=views)
    ]
    assert [key for part in parts for key in part.column("key").to_pylist()] == keys
    assert [value for part in parts for value in part.column("value").to_pylist()] == values
    for part in parts:
        part.validate(full=True)
        for name, given_column in (("key", keys), ("value", values)):
            assert part.column(name).null_count == given_column.count(None)


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("key_size", [None, 0, 9])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 65, 100, 5000, 20_000])
def test_runs_of_one_size_are_copied_whole_and_no_further(
    size: int, key_size: int | None, views: bool
) -> None:
    """Goal: values that are copied in words of 16 bytes have their own bytes, up to the last record of a batch.
    Method: sizes around the words, more records than are copied at a time, every value another."""
    count = max(3, 40_000 // (size + 10))
    values = [bytes((number + at) % 251 for at in range(size)) for number in range(count)]
    keys: list[bytes | None] = [None] * count
    if key_size is not None:
        keys = [(b"%09d" % number)[:key_size] for number in range(count)]
    timestamps = [NOW + number for number in range(count)]
    encoded = batch.encode(values, keys=keys, timestamps=timestamps, batch_size=1 << 20)
    (columns,) = batch.decode(memoryview(encoded), batch.scan(encoded), views=views)
    part = record_batch(columns)
    part.validate(full=True)
    assert part.column("value").to_pylist() == values
    assert part.column("key").to_pylist() == keys
    assert part.column("offset").to_pylist() == list(range(count))


@pytest.mark.parametrize("views", [False, True])
def test_a_record_that_is_wrong_far_within_a_run_is_named(views: bool) -> None:
    """Goal: a run that is proven in pieces ends at the record that is not sound, in whichever piece it lies.
    Method: the last byte of a record, its count of headers, says that there is one."""
    count = 1000
    encoded = bytes(batch.encode([b"v" * 100] * count, timestamp_ms=NOW, batch_size=1 << 20))
    rows = batch.scan(encoded)
    ends = [61]
    for _ in range(count):  # a length of two bytes, zigzag, and as many bytes
        low, high = encoded[ends[-1] : ends[-1] + 2]
        ends.append(ends[-1] + 2 + ((low & 0x7F | high << 7) >> 1))
    assert ends[-1] == len(encoded)
    for record in (2, 137, 138, 139, 500, count - 1):
        broken = bytearray(encoded)
        broken[ends[record + 1] - 1] = 2
        with pytest.raises(BatchError) as caught:
            list(batch.decode(memoryview(broken), rows, views=views, check_crc=False))
        assert caught.value.record == record
