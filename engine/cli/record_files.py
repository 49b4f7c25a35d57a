"""Files of records, as Arrow batches: lines of text or JSON, CSV, Arrow and Parquet in, Arrow and Parquet out.

Lines, CSV, Arrow and Parquet are handled column by column, without a Python object per record; a JSON document is one
anyway. Columns are those that ``send_arrow`` takes: key, value, timestamp, partition, headers.
"""

from __future__ import annotations

import base64
import json
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .._native.records import viewed_bytes
from .output import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK_BYTES: Final = 4 << 20
ROWS: Final = 1 << 16  # of a batch of a file
TAKEN: Final = ("key", "value", "timestamp", "partition", "headers")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
VIEWS: Final = pa.binary_view()
LINE_END: Final = ord("\n")
CARRIAGE: Final = ord("\r")
SUFFIXES: Final = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}


class Shape(NamedTuple):
    """How lines and columns become records."""

    key_separator: bytes | None = None
    parses_headers: bool = False
    null_marker: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    key_column: str = "key"
    value_column: str = "value"


def form_of(path: Path) -> str:
    """What a file holds, as its name tells."""
    return SUFFIXES.get(path.suffix.lower(), "lines")


def file_batches(path: Path, form: str, shape: Shape) -> Iterator[pa.RecordBatch]:
    """The records of a file."""
    name = click.format_filename(path)
    try:
        if form in ("lines", "json"):
            with path.open("rb") as stream:
                yield from stream_batches(stream, form, shape, name)
            return
        for batch in _columns(path, form, shape):
            yield _taken(batch, shape, name)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        raise Misuse(
            f"{name} cannot be read as {form}: {str(error).splitlines()[0].rstrip('.')}."
        ) from error


def stream_batches(
    stream: IO[bytes], form: str, shape: Shape, name: str
) -> Iterator[pa.RecordBatch]:
    """The records of lines, as they come: what is there is not kept waiting for more."""
    rest = b""
    line = 0
    read: Any = getattr(stream, "read1", stream.read)
    while chunk := read(CHUNK_BYTES):
        data = rest + chunk if rest else chunk
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if end:
            batch = _lines(data[:end], form, shape, name, line)
            line += batch.num_rows
            yield batch
    if rest:
        yield _lines(rest + b"\n", form, shape, name, line)


def open_writer(form: str, path: Path, schema: pa.Schema) -> Any:
    """A file to write batches to, with ``write_batch`` and ``close``."""
    if form == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetWriter(path, schema)
    return pa.ipc.new_file(str(path), schema)


# ---------------------------------------------------------------- lines


def _lines(data: bytes, form: str, shape: Shape, name: str, before: int) -> pa.RecordBatch:
    values = _split_lines(data)
    if form == "json":
        return _from_json(values, shape, name, before)
    columns: dict[str, pa.Array] = {}
    if shape.parses_headers:
        headers, values = _cut(values, b"\t", name, before, "headers")
        columns["headers"] = _parsed_headers(headers, name)
    if shape.key_separator:
        columns["key"], values = _cut(values, shape.key_separator, name, before, "key")
    columns["value"] = values
    if shape.null_marker is not None:
        for column in ("key", "value"):
            if column in columns:
                columns[column] = _with_nulls(columns[column], shape.null_marker)
    return _completed(columns, shape)


def _split_lines(data: bytes) -> pa.Array:
    """Lines as binary values, without their ends."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == LINE_END)
    kept = raw != LINE_END
    before = ends[ends > 0] - 1
    kept[before[raw[before] == CARRIAGE]] = False
    offsets = np.zeros(len(ends) + 1, np.int64)
    np.cumsum(np.add.reduceat(kept, np.r_[0, ends[:-1] + 1], dtype=np.int64), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw[kept])]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def _cut(
    values: pa.Array, separator: bytes, name: str, before: int, what: str
) -> tuple[pa.Array, pa.Array]:
    """What stands before the first separator of each line, and what behind it."""
    parts = pc.split_pattern(values, separator, max_splits=1)
    counts = pc.list_value_length(parts).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(counts < 2)
    if wrong.size:
        text = separator.decode(errors="replace").replace("\t", "\\t")
        raise Misuse(
            f"{name}, line {before + int(wrong[0]) + 1}: no {what} separator '{text}' in it."
        )
    flat = parts.flatten()
    return flat.take(pa.array(np.arange(0, len(flat), 2))), flat.take(
        pa.array(np.arange(1, len(flat), 2))
    )


def _parsed_headers(texts: pa.Array, name: str) -> pa.Array:
    """``name:value,name:value`` of each line; an empty text is none."""
    lists = pc.split_pattern(texts, b",")
    is_none = pc.equal(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int32)
    counts[is_none] = 0
    flat = lists.flatten()
    flat = flat.filter(pa.array(np.repeat(~is_none, np.where(is_none, 1, counts))))
    pairs = pc.split_pattern(flat, b":", max_splits=1)
    lengths = pc.list_value_length(pairs).to_numpy(zero_copy_only=False)
    if (lengths < 2).any():
        bad = flat[int(np.flatnonzero(lengths < 2)[0])].as_py().decode(errors="replace")
        raise Misuse(
            f"{name}: {bad!r} is no header; write name:value,name:value and a tab behind them."
        )
    both = pairs.flatten()
    names = both.take(pa.array(np.arange(0, len(both), 2))).cast(pa.string())
    values = both.take(pa.array(np.arange(1, len(both), 2)))
    fields = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), fields)


def _with_nulls(values: pa.Array, marker: bytes) -> pa.Array:
    return pc.if_else(pc.equal(values, pa.scalar(marker)), pa.scalar(None, pa.binary()), values)


def _completed(columns: dict[str, pa.Array], shape: Shape) -> pa.RecordBatch:
    """With the headers and the partition that were given for all."""
    count = len(columns["value"])
    if shape.headers and "headers" not in columns:
        one = [{"key": name, "value": value} for name, value in shape.headers]
        same = pa.array(one * 1, HEADERS.value_type)
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * len(one))
        repeated = same.take(pa.array(np.tile(np.arange(len(one)), count)))
        columns["headers"] = pa.ListArray.from_arrays(offsets, repeated)
    if shape.partition is not None:
        columns["partition"] = pa.array(np.full(count, shape.partition, np.int32))
    return pa.RecordBatch.from_pydict(columns)


# ---------------------------------------------------------------- JSON


def _from_json(values: pa.Array, shape: Shape, name: str, before: int) -> pa.RecordBatch:
    """Documents as ``oncelog consume --json`` prints them; other fields are left out."""
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(values.to_pylist()):
        if not text.strip():
            continue
        try:
            document = json.loads(text)
            if not isinstance(document, dict) or not {"value", "valueBase64"} & document.keys():
                raise ValueError('no object with a "value"')
            rows.append(_row(document))
        except json.JSONDecodeError as error:
            raise Misuse(
                f"{name}, line {before + number + 1}: no JSON, {error.msg.lower()} at character {error.pos + 1}."
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise Misuse(f"{name}, line {before + number + 1}: {error}.") from error
    columns = {
        "key": pa.array([row["key"] for row in rows], pa.binary()),
        "value": pa.array([row["value"] for row in rows], pa.binary()),
    }
    for column, kind in (
        ("timestamp", pa.int64()),
        ("partition", pa.int32()),
        ("headers", HEADERS),
    ):
        if any(row[column] is not None for row in rows):
            columns[column] = pa.array([row[column] for row in rows], kind)
    return _completed(columns, shape)


def _bytes(document: dict[str, Any], name: str) -> bytes | None:
    if f"{name}Base64" in document:
        return base64.b64decode(document[f"{name}Base64"])
    found = document.get(name)
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else json.dumps(found).encode()


def _row(document: dict[str, Any]) -> dict[str, Any]:
    headers = document.get("headers")
    return {
        "key": _bytes(document, "key"),
        "value": _bytes(document, "value"),
        "timestamp": document.get("timestamp"),
        "partition": document.get("partition"),
        "headers": None
        if not headers
        else [{"key": header["key"], "value": _bytes(header, "value")} for header in headers],
    }


# ---------------------------------------------------------------- columns


def _columns(path: Path, form: str, shape: Shape) -> Iterator[pa.RecordBatch]:
    if form == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path, memory_map=True) as file:
            yield from file.iter_batches(batch_size=ROWS)
    elif form == "csv":
        from pyarrow import csv

        kinds = {shape.key_column: pa.binary(), shape.value_column: pa.binary()}
        marker = [] if shape.null_marker is None else [shape.null_marker.decode()]
        convert = csv.ConvertOptions(
            column_types={**kinds, "timestamp": pa.int64(), "partition": pa.int32()},
            null_values=marker,
            strings_can_be_null=bool(marker),
        )
        with csv.open_csv(path, convert_options=convert) as reader:
            yield from reader
    else:
        with pa.memory_map(str(path)) as source:
            try:
                file = pa.ipc.open_file(source)
            except pa.ArrowInvalid:
                source.seek(0)
                yield from pa.ipc.open_stream(source)
                return
            for index in range(file.num_record_batches):
                yield file.get_batch(index)


def _taken(batch: pa.RecordBatch, shape: Shape, name: str) -> pa.RecordBatch:
    """The columns that a record has, under their names."""
    renamed = {shape.key_column: "key", shape.value_column: "value"}
    columns: dict[str, pa.Array] = {}
    for title, column in zip(batch.schema.names, batch.columns, strict=True):
        known = renamed.get(title, title)
        if known in TAKEN:
            columns[known] = column
    if "value" not in columns:
        raise Misuse(
            f"{name} has no column {shape.value_column!r}, only {', '.join(batch.schema.names)}: "
            "name one with --value-column."
        )
    return _completed(columns, shape)


def value_batch(values: list[bytes]) -> pa.RecordBatch:
    """Records that are nothing but values."""
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def value_bytes(batch: pa.RecordBatch) -> int:
    """How many bytes of keys and values are in a batch."""
    return sum(_content_bytes(batch.column(name)) for name in ("key", "value"))


def _content_bytes(column: pa.Array) -> int:
    if column.null_count == len(column):
        return 0
    if column.type == VIEWS:
        return viewed_bytes(column.buffers()[1], column.offset, len(column))
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)


def partitions_in(batch: pa.RecordBatch) -> int:
    """How many partitions the records of a batch ask for; 0 if they do not say."""
    if "partition" not in batch.schema.names:
        return 0
    largest = pc.max(batch.column("partition")).as_py()
    return 0 if largest is None else int(largest) + 1
