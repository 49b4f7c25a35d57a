"""The three ways to read records, as one: each gives plain rows, so that they can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.client.arrow import record_batch
from oncelog.segment import batch

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from .oracle import OracleBatch


class Row(NamedTuple):
    """One record as a consumer sees it; headers as (str, bytes or None)."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def rows_of_arrow(table: pa.RecordBatch | pa.Table) -> list[Row]:
    table.validate(full=True)
    columns = [
        table["offset"].to_pylist(),
        table["timestamp"].cast("int64").to_pylist(),
        table["timestamp_type"].to_pylist(),
        table["key"].to_pylist(),
        table["value"].to_pylist(),
        [
            tuple((header["key"], header["value"]) for header in headers)
            for headers in table["headers"].to_pylist()
        ],
    ]
    return [Row(*fields) for fields in zip(*columns, strict=True)]


def rows_of_records(records: Iterable[batch.Record]) -> list[Row]:
    return [
        Row(
            record.offset,
            record.timestamp,
            record.timestamp_type,
            record.key,
            record.value,
            record.headers,
        )
        for record in records
    ]


def rows_of_oracle(batches: Iterable[OracleBatch], *, control: bool = False) -> list[Row]:
    return [
        Row(
            record.offset,
            record.timestamp,
            int(one.is_log_append_time),
            record.key,
            record.value,
            tuple((name.decode(errors="replace"), value) for name, value in record.headers),
        )
        for one in batches
        if control or not one.is_control
        for record in one.records
    ]


def read_contiguous(buffer: Buffer, *args: Any, **options: Any) -> list[Row]:
    chunks = batch.decode(buffer, *args, **options)
    return [row for columns in chunks for row in rows_of_arrow(record_batch(columns))]


def read_views(buffer: Buffer, *args: Any, **options: Any) -> list[Row]:
    return read_contiguous(buffer, *args, views=True, **options)


def read_records(buffer: Buffer, *args: Any, **options: Any) -> list[Row]:
    return rows_of_records(batch.records(buffer, *args, **options))


Reader = Callable[..., list[Row]]
READERS: dict[str, Reader] = {
    "contiguous": read_contiguous,
    "views": read_views,
    "records": read_records,
}
