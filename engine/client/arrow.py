"""Decoded columns as pyarrow record batches, without a copy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .._native.batch import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

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
def full_schema(views: bool = False) -> pa.Schema:
    """Columns of everything that is read: topic and partition, then those of the records."""
    columns = record_schema(views)
    names = [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
    ]
    return pa.schema([*names, *columns])


@functools.lru_cache(maxsize=8)
def _place(topic: str, partition: int, room: int) -> tuple[pa.Array, pa.Array]:
    """The columns topic and partition, all rows alike; the topic's name is held once."""
    names = pa.array([topic])
    numbers = pa.array(np.full(room, partition, np.int32))
    return pa.DictionaryArray.from_arrays(np.zeros(room, np.int32), names, safe=False), numbers


def full_batch(columns: RecordColumns, topic: str, partition: int) -> pa.RecordBatch:
    """The columns with their topic and partition in front, which are cut from longer ones that are kept."""
    count = len(columns)
    place = _place(topic, partition, 1 << count.bit_length())
    arrays = [*(column.slice(0, count) for column in place), *record_batch(columns).columns]
    return pa.RecordBatch.from_arrays(arrays, schema=full_schema(columns.views))


def stream(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], requested_schema: object = None
) -> object:
    """An Arrow stream of record batches, made as they are drawn."""
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    return reader.__arrow_c_stream__(requested_schema)
