"""Decoded columns are pyarrow record batches of the schema that the design promises, without a copy."""

from __future__ import annotations

import pyarrow as pa
import pytest

from oncelog.client.arrow import record_batch, record_schema
from oncelog.segment import batch

VALUES = [b"short", None, b"", b"a value that is longer than twelve bytes"]
HEADERS = [[("h", b"1"), ("h", None)], [], [("größe", b"")], []]
DATA = bytes(
    batch.encode(
        VALUES,
        keys=VALUES[::-1],
        timestamps=[1, 2, -1, 2**40],
        headers=HEADERS,  # type: ignore[arg-type]
        base_offset=7,
    )
)


def promised(views: bool) -> pa.Schema:
    """Columns of everything read, but for topic and partition, which the reader knows."""
    data = pa.binary_view() if views else pa.binary()
    pair = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
            pa.field("timestamp_type", pa.int8(), nullable=False),
            pa.field("key", data),
            pa.field("value", data),
            pa.field("headers", pa.list_(pa.field("item", pair, nullable=False)), nullable=False),
        ]
    )


@pytest.mark.parametrize("views", [False, True])
def test_the_schema_is_the_promised_one(views: bool) -> None:
    """Goal: names, types, time zone and nullability, by every door."""
    (columns,) = batch.decode(DATA, views=views)
    assert record_schema(views).equals(promised(views), check_metadata=True)
    assert record_batch(columns).schema.equals(promised(views), check_metadata=True)
    assert pa.record_batch(columns).schema.equals(promised(views), check_metadata=True)
    assert pa.schema(columns).equals(promised(views), check_metadata=True)


@pytest.mark.parametrize("views", [False, True])
def test_both_doors_give_the_same_batch(views: bool) -> None:
    """Goal: the short way with a kept schema is the protocol's way.
    Method: compare them, several times from the same columns; check every buffer."""
    (columns,) = batch.decode(DATA, views=views)
    twins = [record_batch(columns), pa.record_batch(columns), record_batch(columns)]
    for twin in twins:
        twin.validate(full=True)
        assert twin.equals(twins[0])
    assert twins[0].to_pylist()[0]["headers"] == [
        {"key": "h", "value": b"1"},
        {"key": "h", "value": None},
    ]
    assert twins[0]["value"].to_pylist() == VALUES
    assert twins[0]["key"].to_pylist() == VALUES[::-1]
    assert twins[0]["offset"].to_pylist() == [7, 8, 9, 10]
    assert twins[0]["timestamp"].cast("int64").to_pylist() == [1, 2, -1, 2**40]
    assert twins[0]["value"].null_count == 1


def test_views_point_into_the_buffer() -> None:
    """Goal: no copy of plain batches.
    Method: change a byte of the buffer and see it change in the column; a copy does not."""
    value = b"a value that is longer than twelve bytes"
    data = bytearray(batch.encode([value]))
    (viewed,) = batch.decode(data, views=True)
    (copied,) = batch.decode(data)
    before = record_batch(viewed)["value"], record_batch(copied)["value"]
    data[data.index(b"longer")] = ord("L")
    assert before[0].to_pylist() == [value.replace(b"longer", b"Longer")]
    assert before[1].to_pylist() == [value]


@pytest.mark.parametrize("views", [False, True])
def test_other_arrow_consumers_take_the_columns(views: bool) -> None:
    """Goal: tables, streams and casts work on what was decoded.
    Method: concatenate chunks, cast views to contiguous, take and filter."""
    chunks = [record_batch(columns) for columns in batch.decode(DATA * 3, views=views, bytes_max=1)]
    assert len(chunks) == 3
    table = pa.Table.from_batches(chunks)
    assert table.num_rows == 12
    assert table["value"].cast(pa.large_binary()).to_pylist() == VALUES * 3
    assert table.slice(5, 3)["offset"].to_pylist() == [8, 9, 10]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert pa.ipc.open_stream(sink.getvalue()).read_all().equals(table)
