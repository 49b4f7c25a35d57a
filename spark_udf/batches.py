"""Raw record batches, for example of files read whole, as headers or as records.

A value holds one batch or many, one after another: spark.read.format("binaryFile") gives whole segments. Which
partition a value belongs to is told by the columns topic and partition, or by the folder in the column path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from oncelog import errors, kernels

from .columns import HEADER_FIELDS, PRODUCER_FIELDS, RECORD_FIELDS, Columns
from .visibility import index_of, shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

_FOLDER: Final = r"([A-Za-z0-9._-]+)-([0-9]+)/[^/]+$"
_CODECS: Final = pa.array(["none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7"])
# Types of control records; the third and fourth are of Kafka's own metadata log.
_CONTROL_TYPES: Final = {0: "ABORT", 1: "COMMIT"}
_LEVELS: Final = ("read_committed", "read_uncommitted")
_PREPARED: Final = ("batch", "topic", "partition", "file")
_NOWHERE: Final = ("", -1)  # the place of batches that nobody tells the partition of

HEADER_SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("file", StringType()),
        StructField("position", LongType()),
        StructField("size", LongType()),
        StructField("baseOffset", LongType()),
        StructField("lastOffset", LongType()),
        StructField("recordCount", IntegerType()),
        StructField("baseTimestamp", TimestampType()),
        StructField("maxTimestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("compression", StringType()),
        StructField("attributes", ShortType()),
        StructField("isTransactional", BooleanType()),
        StructField("isControl", BooleanType()),
        StructField("controlType", StringType()),
        StructField("producerId", LongType()),
        StructField("producerEpoch", ShortType()),
        StructField("baseSequence", IntegerType()),
        StructField("partitionLeaderEpoch", IntegerType()),
        StructField("coordinatorEpoch", IntegerType()),
        StructField("magic", ByteType()),
        StructField("crc", LongType()),
        StructField("crcOk", BooleanType()),
    ]
)
_ENDS_SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("producerId", LongType()),
        StructField("offset", LongType()),
        StructField("type", ShortType()),
    ]
)


# ---------------------------------------------------------------- what comes in


class _Rows(NamedTuple):
    """One Arrow batch of values, and where each came from."""

    values: pa.Array
    topics: pa.Array
    partitions: pa.Array
    files: pa.Array
    first: int  # number of the first row in its task

    def name(self, row: int) -> str:
        """What people call a row."""
        file = self.files[row].as_py()
        return f"row {self.first + row}" + (f", {file}" if file else "")

    def scan(self, *, shows_bad_crc: bool = False) -> kernels.BatchColumn:
        return kernels.scan_batches(self.values, name=self.name, shows_bad_crc=shows_bad_crc)

    def places(self) -> tuple[list[tuple[str, int]], NDArray[np.int64]]:
        """The partitions of the values, and which each belongs to."""
        keys = [
            _NOWHERE if topic is None or number is None else (topic, number)
            for topic, number in zip(
                self.topics.to_pylist(), self.partitions.to_pylist(), strict=True
            )
        ]
        known = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        return list(known), np.array([known[key] for key in keys], np.int64)


def _prepared(df: DataFrame, column: str | None) -> DataFrame:
    """The columns batch, topic, partition and file of whatever a caller has."""
    binary = [field.name for field in df.schema.fields if isinstance(field.dataType, BinaryType)]
    if column is None:
        if len(binary) != 1:
            found = ", ".join(binary) or "none"
            raise ValueError(
                f"say with column= which column holds the batches; binary ones: {found}"
            )
        column = binary[0]
    elif column not in binary:
        has = "is not binary" if column in df.columns else "is not there"
        raise ValueError(f"column {column!r} {has}; binary ones: {', '.join(binary) or 'none'}")
    file: Column = sql.lit(None).cast("string")
    topic, partition = file, sql.lit(None).cast("int")
    if "path" in df.columns:
        file = df["path"].cast("string")
        folder = sql.regexp_extract(file, _FOLDER, 1)
        topic = sql.when(folder != "", folder)
        partition = sql.when(folder != "", sql.regexp_extract(file, _FOLDER, 2).cast("int"))
    if "topic" in df.columns and "partition" in df.columns:
        topic, partition = df["topic"].cast("string"), df["partition"].cast("int")
    return df.select(
        df[column].alias("batch"),
        topic.alias("topic"),
        partition.alias("partition"),
        file.alias("file"),
    )


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Rows]:
    first = 0
    for batch in batches:
        values, topics, partitions, files = (batch.column(name) for name in _PREPARED)
        yield _Rows(values, topics, partitions, files, first)
        first += batch.num_rows


# ---------------------------------------------------------------- headers


def batch_headers(df: DataFrame, *, column: str | None = None) -> DataFrame:
    """The header of every batch of a column of raw batches, control batches included, as HEADER_SCHEMA has them.

    ``column`` may be left out where only one is binary. Checksums are computed, and a wrong one is shown (crcOk) and
    no error; bytes that are not batches are an error that names the row. Nulls have no batches.
    """

    def headers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(HEADER_SCHEMA, timezone="UTC")
        for rows in _rows(batches):
            found = rows.scan(shows_bad_crc=True)
            values = pa.array(found.values)
            place = [column.take(values) for column in (rows.topics, rows.partitions, rows.files)]
            arrays = [*place, *_header_arrays(found.headers)]
            cast = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(cast, schema=schema)

    return _prepared(df, column).mapInArrow(headers, HEADER_SCHEMA)


def _header_arrays(headers: NDArray[np.void]) -> list[pa.Array]:
    """Everything of HEADER_SCHEMA after file."""

    def plain(name: str) -> pa.Array:
        return pa.array(np.ascontiguousarray(headers[name]))

    def time(name: str) -> pa.Array:
        # Not every number that a damaged header can hold is a time that Spark can.
        numbers = np.ascontiguousarray(headers[name])
        limit = (2**63 - 1) // 1000
        return pa.array(
            numbers.astype("datetime64[ms]"),
            pa.timestamp("ms", "UTC"),
            mask=np.abs(numbers) > limit,
        )

    attributes = headers["attributes"]
    types = headers["control_type"]
    names = [_CONTROL_TYPES.get(kind, str(kind)) if kind != -1 else None for kind in range(-2, 128)]
    known = pa.array(np.clip(types.astype(np.int32), -2, 127) + 2)
    last = headers["base_offset"].view(np.int64) + headers["last_offset_delta"]
    return [
        plain("position"),
        plain("size"),
        plain("base_offset"),
        pa.array(last),
        plain("record_count"),
        time("base_timestamp"),
        time("max_timestamp"),
        pa.array(((attributes >> 3) & 1).astype(np.int32)),
        _CODECS.take(pa.array((attributes & 7).astype(np.int32))),
        plain("attributes"),
        pa.array((attributes & 0x10) != 0),
        pa.array((attributes & 0x20) != 0),
        pa.array(names, pa.string()).take(known),
        plain("producer_id"),
        plain("producer_epoch"),
        plain("base_sequence"),
        plain("partition_leader_epoch"),
        plain("coordinator_epoch"),
        plain("magic"),
        pa.array(headers["crc"].astype(np.int64)),
        pa.array(headers["crc_ok"] == 1),
    ]


# ---------------------------------------------------------------- records


def decode_batches(
    df: DataFrame,
    isolation_level: str = "read_committed",
    *,
    column: str | None = None,
    aborted: Any = None,
    producer: bool = False,
) -> DataFrame:
    """The records of a column of raw batches, with the columns of the source.

    Under read_committed it must be known what was aborted. ``aborted`` says so: the log directory of the batches, or
    what is_visible() takes. Without it the batches tell it by their own markers, which takes a pass over them before
    the first row comes, and all batches of a transaction must be among them; one without a marker counts as open.
    With ``producer`` the columns of producers follow, and attributes. A batch that is damaged is an error that names
    its row and position.
    """
    if isolation_level not in _LEVELS:
        raise ValueError(f"isolation_level is {' or '.join(_LEVELS)}, not {isolation_level!r}")
    prepared = _prepared(df, column)
    held = None
    is_strict = False
    if isolation_level == "read_committed":
        index = _index_of_batches(prepared) if aborted is None else index_of(aborted)
        is_strict = aborted is not None and index.is_complete
        held = shared(index)
    fields = [*RECORD_FIELDS, *HEADER_FIELDS]
    if producer:
        fields += [*PRODUCER_FIELDS, StructField("attributes", ShortType())]
    schema = StructType(fields)

    def records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        index = None if held is None else held.value
        for rows in _rows(batches):
            yield from _decoded(rows, schema, index, is_strict)

    return prepared.mapInArrow(records, schema)


def _decoded(
    rows: _Rows, schema: StructType, index: kernels.AbortedIndex | None, is_strict: bool
) -> Iterator[pa.RecordBatch]:
    found = rows.scan()
    partitions, places = rows.places()
    places = places[found.values]
    for number, key in enumerate(partitions):
        chosen = np.flatnonzero(places == number)
        if index is not None:
            chosen = chosen[_seen(rows, found, chosen, index, key, is_strict)]
        topic, partition = (None, None) if key == _NOWHERE else key
        make = Columns(StructType(schema.fields[:8]), topic, partition)  # type: ignore[arg-type]
        for columns, at in found.decode(chosen):
            batch = make.of(pa.record_batch(columns))
            if len(schema.fields) > 8:
                batch = _with_producer(batch, found.headers[at], schema)
            yield batch


def _seen(
    rows: _Rows,
    found: kernels.BatchColumn,
    chosen: NDArray[np.int64],
    index: kernels.AbortedIndex,
    key: tuple[str, int],
    is_strict: bool,
) -> NDArray[np.bool_]:
    """Which of one partition's batches a read_committed reader may see."""
    if is_strict and key not in index.partitions and len(chosen):
        name = rows.name(int(found.values[chosen[0]]))
        said = (
            "does not say its topic and partition"
            if key == _NOWHERE
            else f"is of {key[0]}-{key[1]}"
        )
        raise errors.UnknownTopicOrPartitionError(
            f"{name} {said}, and the directory of aborted transactions has no such partition; give the rows the "
            "columns topic and partition, or the path that they came from"
        )
    place = index.partitions.index(key) if key in index.partitions else -1
    headers = found.headers[chosen]
    mask, _ = index.visible(
        np.full(len(chosen), place, np.int32),
        *(
            np.ascontiguousarray(headers[name])
            for name in ("base_offset", "producer_id", "attributes")
        ),
    )
    return mask


def _with_producer(
    batch: pa.RecordBatch, headers: NDArray[np.void], schema: StructType
) -> pa.RecordBatch:
    """What the headers say of each record's producer; each header stands for as many rows as it has records."""
    each = np.repeat(np.arange(len(headers)), headers["record_count"])
    mine = headers[each]
    first = mine["base_sequence"].astype(np.int64)
    behind = batch.column("offset").to_numpy() - mine["base_offset"]
    sequence = np.where(first < 0, -1, (first + behind) & 0x7FFFFFFF).astype(np.int32)
    arrays = [
        *batch.columns,
        pa.array(np.ascontiguousarray(mine["producer_id"])),
        pa.array(np.ascontiguousarray(mine["producer_epoch"])),
        pa.array(sequence),
        pa.array((mine["attributes"] & 0x10) != 0),
        pa.array(np.ascontiguousarray(mine["attributes"])),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=to_arrow_schema(schema, timezone="UTC"))


def _index_of_batches(prepared: DataFrame) -> kernels.AbortedIndex:
    """What was aborted, from the batches' own markers: tasks find ends of transactions, the driver pairs them."""

    def ends(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(_ENDS_SCHEMA)
        for rows in _rows(batches):
            found = rows.scan()
            partitions, places = rows.places()
            places = places[found.values]
            for number, (topic, partition) in enumerate(partitions):
                mine = kernels.transaction_ends(found.headers[places == number])
                count = len(mine.offsets)
                place = [
                    pa.repeat(pa.scalar(topic), count),
                    pa.repeat(pa.scalar(partition, pa.int32()), count),
                ]
                yield pa.RecordBatch.from_arrays([*place, *map(pa.array, mine)], schema=schema)

    table = prepared.mapInArrow(ends, _ENDS_SCHEMA).toArrow()
    keys = list(zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True))
    partitions = list(dict.fromkeys(keys))
    numbers = {key: number for number, key in enumerate(partitions)}
    places = np.array([numbers[key] for key in keys], np.int64)
    found = kernels.Ends(*(table[name].to_numpy() for name in ("producerId", "offset", "type")))
    return kernels.index_of_ends(partitions, places, found)
