"""How fast do records become a record batch?
Times    from Arrow columns, or lists of bytes, to whole batches with header and checksum in new memory.
Excludes making the columns and the lists. Peers are called once a record, which is their interface.
Anchor   aiokafka's Cython builder; the C floor writes the same bytes into memory that it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog._native.batch import Encoder
from oncelog.segment import batch as segment_batch

from . import floor, peers
from .harness import MAIN, SHAPES, Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture
    from typing_extensions import Buffer

    from .harness import Records, Settings


def batch_bytes_of(records: Records) -> int:
    """The size of one batch of the shape, so that ours splits where the peers are split."""
    encoder = Encoder()
    encoder.add_arrow(records.arrow.slice(0, records.shape.records))
    return len(encoder.finish())


def encode_arrow(records: Records, batch_bytes: int) -> Buffer:
    encoder = Encoder(batch_bytes=batch_bytes)
    encoder.add_arrow(records.arrow)
    return encoder.finish()


def encode_lists(records: Records, batch_bytes: int) -> Buffer:
    encoder = Encoder(batch_bytes=batch_bytes)
    headers = records.headers if records.shape.headers else None
    encoder.add(records.keys, records.values, records.timestamps, headers)
    return encoder.finish()


def encode_engine(records: Records, batch_bytes: int) -> Buffer:
    return segment_batch.encode_arrow(records.arrow, batch_size=batch_bytes)


def _case(
    name: str,
    title: str,
    records: Records,
    ours: Callable[[Records, int], Buffer],
    settings: Settings,
) -> Case:
    size = batch_bytes_of(records)
    per_batch = records.shape.records
    # Record by record in pure Python, a hundred batches take longer than all other cases together.
    only = ("aiokafka",) if records.shape.batches > 1 else ()
    return Case(
        name,
        title,
        Unit.NS_PER_RECORD,
        records.count,
        [
            Contestant(
                "oncelog",
                Role.OURS,
                lambda: ours(records, size),
                reveal=lambda: bytes(ours(records, size)),
            ),
            *peers.contestants(
                settings,
                lambda peer: lambda: peer.encode(records),
                lambda peer: lambda: peers.rebased(peer.encode(records), per_batch),
                only=only,
            ),
            floor.contestant(floor.encode(records), settings),
            floor.memcpy(records.shape.batches * size, settings),
        ],
    )


def cases(settings: Settings) -> Iterator[Case]:
    for shape in SHAPES:
        records = settings.records(shape)
        title = f"encode Arrow, {shape}"
        yield _case(f"encode.arrow.{shape.name}", title, records, encode_arrow, settings)
    for shape in SHAPES:
        records = settings.records(shape)
        title = f"encode Python bytes, {shape}"
        yield _case(f"encode.python.{shape.name}", title, records, encode_lists, settings)
    records = settings.records(MAIN)
    title = f"encode Arrow, engine, {MAIN}"
    yield _case(f"encode.engine.{MAIN.name}", title, records, encode_engine, settings)


def test_encode(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
