"""How fast do record batches become columns, or Python records?
Times    checksum, header, every field of every record into offset, timestamp, timestamp_type, key, value
         and headers, in new memory; peers iterate and look at the same fields.
Excludes finding the batches (bench_scan.py), except "through the engine". The bytes are in the cache.
Anchor   aiokafka's Cython iteration; the C floor fills the same columns in memory that it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from oncelog._native.batch import RecordColumns, decode
from oncelog._native.records import RecordIterator
from oncelog.client.arrow import record_batch
from oncelog.segment import batch as segment_batch

from . import floor, peers
from .bench_encode import batch_bytes_of, encode_arrow
from .harness import MAIN, SHAPES, Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Records, Settings


def rows_of(columns: RecordColumns) -> list[tuple[Any, ...]]:
    """Columns as the rows that every decoder must agree on."""
    table = pa.record_batch(columns)
    headers = [
        [(pair["key"], pair["value"]) for pair in pairs] for pairs in table["headers"].to_pylist()
    ]
    return list(
        zip(
            table["offset"].to_pylist(),
            table["timestamp"].cast(pa.int64()).to_pylist(),
            table["timestamp_type"].to_pylist(),
            table["key"].to_pylist(),
            table["value"].to_pylist(),
            headers,
            strict=True,
        )
    )


def rows_of_records(data: bytes, positions: NDArray[np.int64]) -> list[tuple[Any, ...]]:
    return [
        (one.offset, one.timestamp, one.timestamp_type, one.key, one.value, list(one.headers))
        for one in RecordIterator(data, positions)
    ]


def iterate(data: bytes, positions: NDArray[np.int64]) -> None:
    """As peers.touch: every field of every record is looked at."""
    for record in RecordIterator(data, positions):
        record.offset  # noqa: B018
        record.timestamp  # noqa: B018
        record.key  # noqa: B018
        record.value  # noqa: B018
        record.headers  # noqa: B018


class _Input:
    """Encoded batches and where each starts."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.batch_bytes = batch_bytes_of(records)
        self.data = bytes(encode_arrow(records, self.batch_bytes))
        self.positions = np.arange(records.shape.batches, dtype=np.int64) * self.batch_bytes


def _case(
    name: str,
    title: str,
    given: _Input,
    call: Callable[[], object],
    reveal: Callable[[], object],
    settings: Settings,
    *,
    views: bool = False,
) -> Case:
    records, data = given.records, given.data
    only = ("aiokafka",) if records.shape.batches > 1 else ()
    return Case(
        name,
        title,
        Unit.NS_PER_RECORD,
        records.count,
        [
            Contestant("oncelog", Role.OURS, call, reveal=reveal),
            *peers.contestants(
                settings,
                lambda peer: lambda: peer.touch(data),
                lambda peer: lambda: peer.rows(data),
                only=only,
            ),
            floor.contestant(floor.decode(data, records, views=views), settings),
            floor.memcpy(len(data), settings),
        ],
    )


def _columns(given: _Input, views: bool, settings: Settings) -> Case:
    def call() -> RecordColumns:
        return decode(given.data, given.positions, views=views)

    kind, form = ("views", "views") if views else ("arrow", "columns")
    shape = given.records.shape
    name, title = f"decode.{kind}.{shape.name}", f"decode to {form}, {shape}"
    return _case(name, title, given, call, lambda: rows_of(call()), settings, views=views)


def _pyarrow(given: _Input, views: bool, settings: Settings) -> Case:
    def call() -> Any:
        return record_batch(decode(given.data, given.positions, views=views))

    kind, form = ("pyarrow_views", "views") if views else ("pyarrow", "columns")
    shape = given.records.shape
    name, title = f"decode.{kind}.{shape.name}", f"decode to pyarrow {form}, {shape}"
    return _case(name, title, given, call, lambda: rows_of(call()), settings, views=views)


def cases(settings: Settings) -> Iterator[Case]:
    for views in (False, True):
        for shape in SHAPES:
            yield _columns(_Input(settings.records(shape)), views, settings)
    given = _Input(settings.records(MAIN))
    data, positions = given.data, given.positions
    for views in (False, True):
        yield _pyarrow(given, views, settings)
    yield _case(
        f"decode.engine.{MAIN.name}",
        f"scan and decode, engine, {MAIN}",
        given,
        lambda: list(segment_batch.decode(data)),
        lambda: [row for columns in segment_batch.decode(data) for row in rows_of(columns)],
        settings,
    )
    yield _case(
        f"decode.records.{MAIN.name}",
        f"decode to Python records, {MAIN}",
        given,
        lambda: iterate(data, positions),
        lambda: rows_of_records(data, positions),
        settings,
    )


def test_decode(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
