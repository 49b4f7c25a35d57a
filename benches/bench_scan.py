"""How fast are the headers of a log read, as recovery and every fetch do?
Times    all header fields of 100 batches into one numpy array; with and without their checksums.
Excludes opening the file: the bytes are in the cache.
Anchor   the batches of aiokafka and kafka-python, of which nine fields are read; memcpy and the checksum alone as limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncelog._native.batch import scan
from oncelog._native.checksum import crc32c

from . import floor, peers
from .bench_encode import batch_bytes_of, encode_arrow
from .harness import SHAPES, Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

FIELDS = (
    *("base_offset", "last_offset_delta", "producer_id", "base_sequence", "attributes"),
    *("base_timestamp", "max_timestamp", "crc"),
)


def _rows(data: bytes, check_crc: bool) -> list[tuple[Any, ...]]:
    rows = scan(data, check_crc=check_crc)
    proven = (bool(ok == 1) if check_crc else None for ok in rows["crc_ok"])
    return [(*row, ok) for row, ok in zip(rows[list(FIELDS)].tolist(), proven, strict=True)]


def cases(settings: Settings) -> Iterator[Case]:
    (shape,) = (shape for shape in SHAPES if shape.batches > 1)
    records = settings.records(shape)
    data = bytes(encode_arrow(records, batch_bytes_of(records)))
    for check_crc in (False, True):
        crc = Contestant("checksum alone", Role.LIMIT, lambda: crc32c(data))
        yield Case(
            f"scan.{'crc' if check_crc else 'headers'}",
            f"scan headers{' + checksums' if check_crc else ''}, {shape}",
            Unit.GB_PER_SECOND,
            len(data),
            [
                Contestant(
                    "oncelog",
                    Role.OURS,
                    lambda check_crc=check_crc: scan(data, check_crc=check_crc),  # type: ignore[misc]
                    reveal=lambda check_crc=check_crc: _rows(data, check_crc),  # type: ignore[misc]
                ),
                *peers.contestants(
                    settings,
                    lambda peer, check_crc=check_crc: lambda: peer.headers(data, check_crc),  # type: ignore[misc]
                    lambda peer, check_crc=check_crc: lambda: peer.headers(data, check_crc),  # type: ignore[misc]
                ),
                *([crc] if check_crc else []),
                floor.memcpy(len(data), settings),
            ],
        )


def test_scan(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
