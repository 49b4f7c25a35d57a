"""Arrow data is encoded to the bytes that the same records give as Python sequences, whatever its
types, slices, chunks and containers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.batch import Encoder
from oncelog.client.arrow import record_batch
from oncelog.segment import batch
from oncelog.segment.batch import Codec

from .readers import READERS
from .strategies import Headers, blobs, header_lists, options

BINARY = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT = [pa.string(), pa.large_string(), pa.string_view()]
FIXED = [pa.binary(0), pa.binary(1), pa.binary(12), pa.binary(40)]
NULL = [pa.null()]

UNITS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}

texts = st.one_of(st.text(max_size=20), st.just("long enough to lie outside of a view"))


@st.composite
def columns(draw: st.DrawFn, count: int) -> tuple[pa.Array, list[bytes | None]]:
    """A column of keys or values, and the bytes it stands for."""
    kind = draw(st.sampled_from([*BINARY, *TEXT, *FIXED, *NULL]))
    elements: st.SearchStrategy[Any]
    if kind in NULL:
        elements = st.none()
    elif kind in TEXT:
        elements = texts
    elif kind in FIXED:
        elements = st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    else:
        elements = blobs
    nullable = draw(st.booleans())
    items = draw(
        st.lists(
            st.one_of(st.none(), elements) if nullable else elements,
            min_size=count,
            max_size=count,
        )
    )
    return pa.array(items, kind), [
        item.encode() if isinstance(item, str) else item for item in items
    ]


@st.composite
def stamps(draw: st.DrawFn, count: int, default: int) -> tuple[pa.Array, list[int]]:
    """A column of timestamps, and its milliseconds."""
    unit = draw(st.sampled_from([*UNITS, "int64", "null"]))
    if unit == "null":
        return pa.nulls(count), [default] * count
    multiply, divide = UNITS.get(unit, (1, 1))
    largest = 2**62 // multiply
    raw = draw(
        st.lists(
            st.one_of(st.none(), st.integers(0, largest), st.integers(0, 10**7)),
            min_size=count,
            max_size=count,
        )
    )
    zone = draw(st.sampled_from([None, "UTC", "Europe/Berlin"]))
    kind = pa.int64() if unit == "int64" else pa.timestamp(unit, zone)
    return pa.array(raw, kind), [
        default if item is None else item * multiply // divide for item in raw
    ]


@st.composite
def header_columns(draw: st.DrawFn, count: int) -> tuple[pa.Array, list[Headers]]:
    """A column of headers, and the pairs it stands for."""
    items = draw(st.lists(st.one_of(st.none(), header_lists), min_size=count, max_size=count))
    name = draw(st.sampled_from([*TEXT, *BINARY]))
    value = draw(st.sampled_from(BINARY))
    form = draw(st.sampled_from(["list", "large_list", "map", "reversed", "null"]))
    if form == "null":
        return pa.nulls(count), [()] * count
    if name in BINARY:
        items = [
            None if pairs is None else [(key.encode(), blob) for key, blob in pairs]
            for pairs in items
        ]
    if form == "map":
        array = pa.array(items, pa.map_(name, value))
    else:
        fields = [("key", name), ("value", value)]
        struct = pa.struct(fields[::-1] if form == "reversed" else fields)
        kind = pa.large_list(struct) if form == "large_list" else pa.list_(struct)
        array = pa.array(
            [
                None if pairs is None else [{"key": key, "value": blob} for key, blob in pairs]
                for pairs in items
            ],
            kind,
        )
    return array, [
        tuple((key.decode() if isinstance(key, bytes) else key, blob) for key, blob in pairs or ())
        for pairs in items
    ]


class StreamOnly:
    """Hides everything but the stream interface, as another library would."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def in_container(draw: st.DrawFn, arrays: dict[str, pa.Array], count: int) -> Any:
    """The columns in one of the shapes that offer Arrow data, sliced or chunked or both."""
    form = draw(
        st.sampled_from(["batch", "table", "reader", "struct", "chunked structs", "stream"])
    )
    before, after = draw(st.integers(0, count)), draw(st.integers(0, count))
    if draw(st.booleans()):  # all columns share one slice
        padded = [
            pa.concat_arrays([array.slice(0, before), array, array.slice(0, after)])
            for array in arrays.values()
        ]
        if form == "struct":
            return pa.StructArray.from_arrays(padded, list(arrays)).slice(before, count)
        whole = pa.RecordBatch.from_arrays(padded, list(arrays)).slice(before, count)
    else:  # each column has a slice of its own
        sliced = []
        for index, array in enumerate(arrays.values()):
            lead = min(before + index, count)
            sliced.append(pa.concat_arrays([array.slice(0, lead), array]).slice(lead))
        if form == "struct":
            return pa.StructArray.from_arrays(sliced, list(arrays))
        whole = pa.RecordBatch.from_arrays(sliced, list(arrays))
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    pieces = [
        whole.slice(start, end - start)
        for start, end in zip([0, *cuts], [*cuts, count], strict=True)
    ]
    table = pa.Table.from_batches(pieces, whole.schema)
    match form:
        case "batch":
            return whole
        case "table":
            return table
        case "reader":
            return pa.RecordBatchReader.from_batches(whole.schema, pieces)
        case "chunked structs":
            return pa.chunked_array([piece.to_struct_array() for piece in pieces])
        case _:
            return StreamOnly(table)


@given(data=st.data(), chosen=options())
def test_arrow_and_sequences_give_the_same_bytes(
    data: st.DataObject, chosen: dict[str, Any]
) -> None:
    """Goal: every accepted type of key, value, timestamp and headers; nulls; slices whose offset is
    not 0, also inside lists; tables of several chunks; every container.
    Method: encode the same records both ways and compare bytes."""
    count = data.draw(st.integers(0, 30))
    value_array, values = data.draw(columns(count))
    arrays = {"value": value_array}
    keys = timestamps = headers = None
    if data.draw(st.booleans()):
        arrays["key"], keys = data.draw(columns(count))
    if data.draw(st.booleans()):
        arrays["timestamp"], timestamps = data.draw(stamps(count, chosen["timestamp_ms"]))
    if data.draw(st.booleans()):
        arrays["headers"], headers = data.draw(header_columns(count))
    if data.draw(st.booleans()):
        arrays["partition"] = pa.array([3] * count, pa.int32())  # not ours to look at
    names = data.draw(st.permutations(list(arrays)))
    container = data.draw(
        st.composite(
            lambda draw: in_container(draw, {name: arrays[name] for name in names}, count)
        )()
    )
    encoded = batch.encode_arrow(container, **chosen)
    expected = batch.encode(values, keys=keys, timestamps=timestamps, headers=headers, **chosen)
    assert bytes(encoded) == bytes(expected)
    assert (encoded.batch_count, encoded.record_count) == (expected.batch_count, count)


@given(
    chosen=options(st.just(Codec.NONE)),
    count=st.integers(0, 3000),
    views=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_decoded_columns_encode_as_they_are(
    chosen: dict[str, Any], count: int, views: bool, seed: int
) -> None:
    """Goal: what decode gives, contiguous or as views, is Arrow data like any other: more records than
    one block, header lists that span blocks.
    Method: encode, decode, encode the columns themselves and the pyarrow batch of them."""
    random = np.random.default_rng(seed)
    values = [bytes(int(size)) for size in random.integers(0, 30, count)]
    headers = [[("h", b"x" * (i % 3))] * int(n) for i, n in enumerate(random.integers(0, 3, count))]
    fixed = {"delete_horizon_ms": None, "log_append_time_ms": None}
    before = bytes(batch.encode(values, keys=values, headers=headers, **(chosen | fixed)))
    for chunk in batch.decode(before, views=views, bytes_max=2**40):
        for again in (chunk, record_batch(chunk), pa.table(record_batch(chunk))):
            assert bytes(batch.encode_arrow(again, **(chosen | fixed))) == before


def test_a_sliced_struct_far_into_its_array_is_read_in_place() -> None:
    """Goal: an offset on the struct itself moves every child, and no child is read past its end.
    Method: a short slice at the end of a large array, whose children keep their whole length."""
    count = 100_000
    values = [b"%d" % i for i in range(count)]
    headers = [[("h", value)] for value in values]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    struct = pa.StructArray.from_arrays(
        [
            pa.array(values, pa.binary()),
            pa.array(values, pa.large_binary()),
            pa.array(range(count), pa.int64()),
            pa.array([[{"key": k, "value": v} for k, v in pairs] for pairs in headers], kind),
        ],
        ["value", "key", "timestamp", "headers"],
    )
    for start, length in (
        (count - 5, 5),
        (count - 1, 1),
        (count, 0),
        (50_000, 600),
        (1, count - 1),
    ):
        part = slice(start, start + length)
        expected = batch.encode(
            values[part],
            keys=values[part],
            timestamps=list(range(start, start + length)),
            headers=headers[part],
        )
        assert bytes(batch.encode_arrow(struct.slice(start, length))) == bytes(expected)


def table_of(**arrays: pa.Array) -> pa.Table:
    return pa.table(arrays)


VALUE = pa.array([b"v"], pa.binary())
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.mark.parametrize(
    ("arrays", "column", "advice"),
    [
        ({"value": pa.array(["a"]).dictionary_encode()}, "value", "binary"),
        ({"value": VALUE, "key": VALUE.dictionary_encode()}, "key", "binary"),
        ({"value": pa.array([1])}, "value", "binary"),
        ({"value": VALUE, "key": pa.array([1.5])}, "key", "binary"),
        ({"value": pa.array([[b"v"]])}, "value", "binary"),
        ({"key": VALUE}, "value", "missing"),
        ({"value": VALUE, "timestamp": pa.array([1], pa.int32())}, "timestamp", "int64"),
        ({"value": VALUE, "timestamp": pa.array(["x"])}, "timestamp", "int64"),
        ({"value": VALUE, "timestamp": pa.array([1], pa.duration("ms"))}, "timestamp", "int64"),
        ({"value": VALUE, "headers": VALUE}, "headers", "list<struct"),
        ({"value": VALUE, "headers": pa.array([[b"x"]])}, "headers", "list<struct"),
        ({"value": VALUE, "headers": pa.array([[{"key": "k"}]])}, "headers", "list<struct"),
        (
            {"value": VALUE, "headers": pa.array([[{"name": "k", "value": b"v"}]])},
            "headers",
            "list<struct",
        ),
        (
            {"value": VALUE, "headers": pa.array([[{"key": "k", "value": 5}]])},
            "headers",
            "list<struct",
        ),
        ({"value": VALUE, "headers": pa.array([[]], pa.list_(PAIR, 0))}, "headers", "list<struct"),
    ],
)
def test_a_type_that_cannot_be_encoded_is_named(
    arrays: dict[str, pa.Array], column: str, advice: str
) -> None:
    """Goal: the error names the column and says what it must be.
    Method: dictionaries, numbers, wrong lists, missing columns."""
    with pytest.raises(TypeError, match=f"'{column}'.*{advice}"):
        batch.encode_arrow(table_of(**arrays))


def test_what_is_no_record_batch_is_refused() -> None:
    for wrong in (5, b"bytes", [b"v"], None):
        with pytest.raises(TypeError, match="no Arrow data"):
            batch.encode_arrow(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="record batch or table"):
        batch.encode_arrow(VALUE)


def test_a_null_header_name_is_refused() -> None:
    """Goal: Kafka has no header without a name; neither a null name nor a null pair becomes one.
    Method: a null key, a null struct, and a null struct whose children still hold values."""
    kind = pa.list_(PAIR)
    hidden = pa.StructArray.from_arrays(
        [pa.array(["name"]), pa.array([b"value"])], fields=list(PAIR), mask=pa.array([True])
    )
    for headers in (
        pa.array([[{"key": None, "value": b"v"}]], kind),
        pa.array([[None]], kind),
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), hidden),
    ):
        with pytest.raises(ValueError, match="header"):
            batch.encode_arrow(table_of(value=VALUE, headers=headers))


def test_a_null_row_is_refused() -> None:
    """Goal: a struct array may hold null rows, a log cannot: nothing that hides below is written.
    Method: a null struct whose children still hold values; an array without nulls passes."""
    rows = pa.StructArray.from_arrays(
        [pa.array([b"a", b"b"])], ["value"], mask=pa.array([False, True])
    )
    with pytest.raises(TypeError, match="a row is null"):
        batch.encode_arrow(rows)
    assert [row.value for row in READERS["records"](batch.encode_arrow(rows[:1]))] == [b"a"]


def test_a_timestamp_that_does_not_fit_milliseconds_is_refused() -> None:
    stamps_s = pa.array([2**62], pa.timestamp("s"))
    with pytest.raises(ValueError, match="timestamp"):
        batch.encode_arrow(table_of(value=VALUE, timestamp=stamps_s))


def test_a_stream_that_fails_is_an_error_and_leaves_nothing_behind() -> None:
    """Goal: an error in the producer of a stream arrives with its text.
    Method: a reader that fails at its second batch."""
    schema = pa.schema([("value", pa.binary())])

    def batches() -> Any:
        yield pa.record_batch({"value": VALUE})
        raise OSError("the disk is on fire")

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    with pytest.raises(ValueError, match="the disk is on fire"):
        batch.encode_arrow(reader)


def test_offsets_for_fewer_rows_than_there_are_are_refused() -> None:
    table = table_of(value=pa.array([b"v"] * 5))
    for given_offsets in ([0, 1, 2, 3], []):
        encoder = Encoder(one_batch=True, last_offset_delta=9)
        with pytest.raises(ValueError, match="offsets"):
            encoder.add_arrow(table, given_offsets)


def test_no_python_object_is_made_per_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the Arrow path allocates per block, not per record.
    Method: count blocks that Python's allocator hands out for 100 and for 100 000 records."""
    import sys

    def blocks(count: int) -> int:
        table = table_of(
            value=pa.array([b"v" * 20] * count),
            key=pa.array([b"k"] * count),
            timestamp=pa.array([1] * count),
            headers=pa.array([[{"key": "h", "value": b"x"}]] * count, pa.list_(PAIR)),
        ).combine_chunks()
        encoder = Encoder(batch_bytes=2**30)
        before = sys.getallocatedblocks()
        encoder.add_arrow(table)
        return sys.getallocatedblocks() - before

    blocks(100)
    assert abs(blocks(100_000) - blocks(100)) < 50


@given(st.data())
def test_chosen_rows_are_encoded_as_if_they_had_been_taken(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    keys, _ = data.draw(columns(count))
    values, _ = data.draw(columns(count))
    cut = data.draw(st.integers(0, count - 1))
    given_rows = pa.record_batch({"key": keys, "value": values}).slice(cut)
    numbers = data.draw(st.lists(st.integers(0, given_rows.num_rows - 1), max_size=60))
    limit = data.draw(st.sampled_from([100, 2_000]))
    chosen, taken = (Encoder(timestamp_ms=7, batch_bytes=limit) for _ in range(2))
    chosen.add_chosen(given_rows, np.array(numbers, np.int64))
    for number in numbers:  # one by one: not all types can be taken
        taken.add_arrow(given_rows.slice(number, 1))
    assert bytes(chosen.finish()) == bytes(taken.finish())


def test_rows_that_are_not_there_or_have_more_than_keys_and_values_are_not_chosen() -> None:
    plain = pa.record_batch({"value": [b"a", b"b"]})
    for wrong in (-1, 2, 2**62):
        with pytest.raises(IndexError, match=f"row {wrong} was chosen of 2"):
            Encoder().add_chosen(plain, np.array([0, wrong]))
    stamped = pa.record_batch({"value": [b"a"], "timestamp": pa.array([1], pa.timestamp("ms"))})
    with pytest.raises(TypeError, match="take them first"):
        Encoder().add_chosen(stamped, np.array([0]))


def test_memory_of_batches_is_used_again_unless_somebody_looks_at_it() -> None:
    encoder = Encoder(timestamp_ms=7)
    encoder.add(None, [b"x" * 100_000])
    old = encoder.finish()
    with memoryview(old):
        with pytest.raises(BufferError, match="somebody looks at"):
            Encoder(reuse=old)
        assert len(old) > 100_000
    wanted, again = Encoder(timestamp_ms=8), Encoder(timestamp_ms=8, reuse=old)
    assert (len(old), old.batch_count, old.record_count, bytes(old)) == (0, 0, 0, b"")
    for each in (wanted, again):
        each.add(None, [b"y"])
        assert each.nbytes < 1000
    assert bytes(again.finish()) == bytes(wanted.finish())
