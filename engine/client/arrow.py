"""Decoded columns as pyarrow record batches, without a copy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .._native.batch import Place, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .._native.batch import RecordColumns

# The types that the rest of the room speaks of.
Schema = pa.Schema
RecordBatch = pa.RecordBatch


class _Schema:
    """Hands the native schema to pyarrow."""

    def __init__(self, views: bool) -> None:
        self._views = views

    def __arrow_c_schema__(self) -> object:
        return arrow_schema(self._views)


@functools.cache
def record_schema(views: bool = False) -> pa.Schema:
    """Columns of decoded records: offset, timestamp, timestamp_type, key, value, headers."""
    return pa.schema(_Schema(views))


def record_batch(columns: RecordColumns) -> pa.RecordBatch:
    """The columns as a pyarrow record batch.

    ``pa.record_batch(columns)`` gives the same; this keeps the schema, whose import costs as much as the
    decoding of some hundred records.
    """
    return pa.RecordBatch._import_from_c(
        columns._arrow_array_address(), record_schema(columns.views)
    )


@functools.cache
def full_schema(views: bool = False, producer: bool = False) -> pa.Schema:
    """Columns of everything that is read: topic and partition, then those of the records, then of their producer."""
    columns = [*record_schema(views), *(_PRODUCER_FIELDS if producer else ())]
    names = [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
    ]
    return pa.schema([*names, *columns])


_place = functools.lru_cache(maxsize=64)(Place)
_PRODUCER_FIELDS = (
    pa.field("producer_id", pa.int64(), nullable=False),
    pa.field("producer_epoch", pa.int16(), nullable=False),
    pa.field("sequence", pa.int32(), nullable=False),
    pa.field("is_transactional", pa.bool_(), nullable=False),
)
_TRANSACTIONAL = 0x10  # an attribute of batches


def full_batch(columns: RecordColumns, topic: str, partition: int) -> pa.RecordBatch:
    """The columns with their topic and partition in front, whose rows are all alike and shared by all batches."""
    address = columns._arrow_array_address(_place(topic, partition))
    return pa.RecordBatch._import_from_c(address, full_schema(columns.views))


def with_producer(
    batch: pa.RecordBatch, rows: NDArray[np.void], offsets: NDArray[np.int64]
) -> pa.RecordBatch:
    """A full batch with what the headers say of the producer of each record: -1 where it had no id.

    ``rows`` are headers in the order of their offsets, among them those of the records' batches.
    """
    header = rows[np.searchsorted(rows["base_offset"], offsets, side="right") - 1]
    first = header["base_sequence"].astype(np.int64)
    # A record's sequence number follows from its place in the batch; after 2^31 - 1 comes 0.
    numbers = np.where(first < 0, -1, (first + offsets - header["base_offset"]) & 0x7FFFFFFF)
    arrays = [
        *batch.columns,
        pa.array(np.ascontiguousarray(header["producer_id"])),
        pa.array(np.ascontiguousarray(header["producer_epoch"])),
        pa.array(numbers.astype(np.int32)),
        pa.array((header["attributes"] & _TRANSACTIONAL) != 0),
    ]
    views = batch.schema.field("value").type == pa.binary_view()
    return pa.RecordBatch.from_arrays(arrays, schema=full_schema(views, True))


@functools.cache
def empty_batch(views: bool = False) -> pa.RecordBatch:
    """No rows, with the columns of everything that is read."""
    schema = full_schema(views)
    # Not pa.array([]): to look whether a list is one of its series, pyarrow loads all of pandas.
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def stream(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], requested_schema: object = None
) -> object:
    """An Arrow stream of record batches, made as they are drawn."""
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    return reader.__arrow_c_stream__(requested_schema)


# ---------------------------------------------------------------- what producers send

_RECORD_COLUMNS = ("key", "value", "timestamp", "headers")
# What a record may take beyond Arrow's own bytes: a slice that is a little too long would be two batches.
_ROW_BYTES = 10


def incoming(data: object) -> Iterator[pa.RecordBatch]:
    """The record batches of anything that offers Arrow data."""
    if isinstance(data, pa.Table):  # as a stream it would be taken apart and put together again
        yield from data.to_batches()
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    elif hasattr(data, "__arrow_c_array__"):
        yield pa.record_batch(data)
    else:
        raise TypeError(
            f"{type(data).__name__} offers no Arrow data: pass a table with the columns key and value, "
            "such as a pyarrow.Table or a DataFrame"
        )


def partition_column(batch: pa.RecordBatch, null: int = -1) -> NDArray[np.int64] | None:
    """The partitions that rows ask for, ``null`` where they leave it open; None without such a column."""
    index = batch.schema.get_field_index("partition")
    if index < 0 or pa.types.is_null(batch.schema.field(index).type):
        return None
    column = batch.column(index)
    if not pa.types.is_integer(column.type):
        raise TypeError(f"column 'partition': must be an integer, not {column.type}")
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(null)
    found: NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def lacks_keys(batch: pa.RecordBatch) -> bool:
    """Whether some row has no key."""
    index = batch.schema.get_field_index("key")
    return index < 0 or bool(batch.column(index).null_count)


def by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The rows of each topic that the column ``topic`` names, in their order; None where it is null."""
    column = batch.column("topic")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode("encode")
    numbers = column.indices.to_numpy(zero_copy_only=False)
    for number, topic in enumerate(column.dictionary.to_pylist()):
        rows = np.flatnonzero(numbers == number)
        if len(rows):
            yield topic, batch if len(rows) == batch.num_rows else batch.take(rows)


def split(
    batch: pa.RecordBatch, partitions: NDArray[np.int32] | int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition, in their order; one number is that of all."""
    if isinstance(partitions, int):
        yield partitions, batch
        return
    first = int(partitions[0])
    if (partitions == first).all():
        yield first, batch
        return
    names = [name for name in _RECORD_COLUMNS if name in batch.schema.names]
    rows = batch.select(names).take(_in_order(partitions))
    for partition, run in _runs(partitions):
        yield partition, rows.slice(run.start, len(run))


def _in_order(partitions: NDArray[np.int32]) -> NDArray[np.int64]:
    """The numbers of rows, partition by partition."""
    # Sorting of 16-bit numbers counts instead of comparing.
    small = partitions.astype(np.uint16) if int(partitions.max()) < 1 << 16 else partitions
    return np.argsort(small, kind="stable")


def _runs(partitions: NDArray[np.int32]) -> Iterator[tuple[int, range]]:
    """Where the rows of each partition lie, once they are in order."""
    start = 0
    for partition, count in enumerate(np.bincount(partitions).tolist()):
        if count:
            yield partition, range(start, start + count)
        start += count


def chosen(partitions: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The numbers of the rows of each partition, in their order."""
    order = _in_order(partitions)
    for partition, run in _runs(partitions):
        yield partition, order[run.start : run.stop]


def is_plain(batch: pa.RecordBatch) -> bool:
    """Whether rows have keys and values alone, so that an encoder may choose among them by number."""
    return not {"timestamp", "headers"}.intersection(batch.schema.names)


def pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in slices of about ``bytes_max`` bytes of encoded records each."""
    count = rows_within(batch, bytes_max)
    for start in range(0, batch.num_rows, count):
        yield batch.slice(start, count)


def rows_within(batch: pa.RecordBatch, bytes_max: int) -> int:
    """How many rows make about so many bytes of encoded records; one at least."""
    per_row = batch.nbytes / max(batch.num_rows, 1) + _ROW_BYTES
    return max(int(bytes_max / per_row), 1)
