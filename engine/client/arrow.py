"""Decoded columns as pyarrow record batches, without a copy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pyarrow as pa

from .._native.batch import arrow_schema

if TYPE_CHECKING:
    from .._native.batch import RecordColumns


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
