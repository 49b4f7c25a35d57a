"""The columns of the source: as Spark's Kafka source has them, made of a log's Arrow columns without a loop.

Spark takes Arrow batches as they are where their types are exactly those it would make itself; so keys and values are
handed over untouched, and what differs (times in microseconds, plain text for the topic) is made column by column.
A schema that names fewer columns is the way to read fewer: Spark does not tell a Python source which ones a query uses.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .source_options import SourceOptions

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
RECORD_FIELDS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
HEADER_FIELDS: Final = (StructField("headers", _HEADERS),)
PRODUCER_FIELDS: Final = (
    StructField("producerId", LongType()),
    StructField("producerEpoch", ShortType()),
    StructField("sequence", IntegerType()),
    StructField("isTransactional", BooleanType()),
)
_ALL: Final = {field.name: field for field in (*RECORD_FIELDS, *HEADER_FIELDS, *PRODUCER_FIELDS)}
_PRODUCER_NAMES: Final = frozenset(field.name for field in PRODUCER_FIELDS)


def spark_schema(options: SourceOptions) -> StructType:
    """The columns that options ask for."""
    fields = list(RECORD_FIELDS)
    if options.has_headers:
        fields.extend(HEADER_FIELDS)
    if options.has_producer:
        fields.extend(PRODUCER_FIELDS)
    return StructType(fields)


def checked_schema(schema: StructType) -> StructType:
    """A schema as somebody gave it, if it consists of columns that there are."""
    for field in schema.fields:
        known = _ALL.get(field.name)
        if known is None:
            raise ValueError(f"there is no column {field.name!r}, only {', '.join(_ALL)}")
        if field.dataType != known.dataType:
            raise ValueError(
                f"column {field.name} is {known.dataType.simpleString()}, not {field.dataType.simpleString()}"
            )
    if not schema.fields:
        raise ValueError(f"the schema names no column; there are {', '.join(_ALL)}")
    # Whether a column may be null is ours to say.
    return StructType([_ALL[field.name] for field in schema.fields])


class Columns:
    """Makes Spark's columns of a partition's Arrow batches."""

    def __init__(self, schema: StructType, topic: str, partition: int) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._makers = [_MAKERS[name] for name in self._schema.names]
        self._place = topic, partition
        self.needs_producer = not _PRODUCER_NAMES.isdisjoint(self._schema.names)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [make(batch, self._place) for make in self._makers]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@functools.lru_cache(maxsize=8)
def _repeated(value: pa.Scalar, room: int) -> pa.Array:
    return pa.repeat(value, room)


def _all_alike(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """A column of one value, cut from a longer one that is kept."""
    return _repeated(pa.scalar(value, kind), 1 << count.bit_length()).slice(0, count)


def _microseconds(batch: pa.RecordBatch, place: tuple[str, int]) -> pa.Array:
    times = batch.column("timestamp")
    try:
        return times.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        numbers = times.cast(pa.int64())
        wide = pc.greater(pc.abs(numbers), (2**63 - 1) // 1000)
        row = pc.index(wide, True).as_py()
        raise ValueError(
            f"{place[0]}-{place[1]} offset {batch.column('offset')[row].as_py()}: the timestamp "
            f"{numbers[row].as_py()} ms is beyond what Spark's timestamps hold; read without the column "
            "timestamp, by a schema that leaves it out"
        ) from None


def _headers(batch: pa.RecordBatch, _: tuple[str, int]) -> pa.Array:
    """Spark's Kafka source gives null where a record has no headers."""
    lists = batch.column("headers")
    pairs = lists.values
    kind = to_arrow_schema(StructType([*HEADER_FIELDS])).field(0).type
    values = pa.StructArray.from_arrays(
        [pairs.field(0), pairs.field(1)], fields=list(kind.value_type)
    )
    empty = pc.equal(lists.value_lengths(), 0)
    return pa.ListArray.from_arrays(lists.offsets, values, type=kind, mask=empty)


def _plain(name: str) -> Callable[[pa.RecordBatch, tuple[str, int]], pa.Array]:
    return lambda batch, _: batch.column(name)


_MAKERS: Final[dict[str, Callable[[pa.RecordBatch, tuple[str, int]], pa.Array]]] = {
    "key": _plain("key"),
    "value": _plain("value"),
    "topic": lambda batch, place: _all_alike(place[0], pa.string(), batch.num_rows),
    "partition": lambda batch, place: _all_alike(place[1], pa.int32(), batch.num_rows),
    "offset": _plain("offset"),
    "timestamp": _microseconds,
    "timestampType": lambda batch, _: batch.column("timestamp_type").cast(pa.int32()),
    "headers": _headers,
    "producerId": _plain("producer_id"),
    "producerEpoch": _plain("producer_epoch"),
    "sequence": _plain("sequence"),
    "isTransactional": _plain("is_transactional"),
}
