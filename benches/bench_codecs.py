"""What do compressed batches cost?
Times    Arrow columns to compressed batches, and back to columns, checksum included; default levels.
Excludes nothing of the codec. Values are short JSON events, which shrink about threefold.
Anchor   aiokafka with cramjam; the codec's library alone, on the same records, as the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oncelog._native.batch import RecordColumns, decode
from oncelog.segment import batch as segment_batch
from oncelog.segment.compression import Codec, compressor, decompressor

from . import peers
from .bench_decode import rows_of
from .bench_encode import batch_bytes_of, encode_arrow
from .harness import MAIN, Case, Contestant, Role, Unit, text_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture
    from typing_extensions import Buffer

    from .harness import Records, Settings

CODEC_ALONE = "codec alone"


def _encode_case(codec: Codec, records: Records, settings: Settings) -> Case:
    size = batch_bytes_of(records)
    plain = bytes(encode_arrow(records, size))[segment_batch.HEADER_BYTES :]
    compress = compressor(codec)
    assert compress is not None
    positions = np.zeros(1, np.int64)

    def call() -> Buffer:
        return segment_batch.encode_arrow(records.arrow, batch_size=size, compression=codec)

    def rows(data: Buffer) -> object:
        # Codecs may pack the same records differently: what comes out again is compared.
        return rows_of(decode(data, positions, decompress=decompressor()))

    return Case(
        f"codec.encode.{codec.name.lower()}",
        f"encode Arrow, {codec.name.lower()}, {MAIN}",
        Unit.NS_PER_RECORD,
        records.count,
        [
            Contestant("oncelog", Role.OURS, call, reveal=lambda: rows(call())),
            *peers.contestants(
                settings,
                lambda peer: lambda: peer.encode(records, codec),
                lambda peer: lambda: rows(peer.encode(records, codec)[0]),
                codec=codec,
                only=("aiokafka",),
            ),
            Contestant(CODEC_ALONE, Role.LIMIT, lambda: compress(plain)),
        ],
    )


def _decode_case(codec: Codec, records: Records, settings: Settings) -> Case:
    size = batch_bytes_of(records)
    made = segment_batch.encode_arrow(records.arrow, batch_size=size, compression=codec)
    data, positions, unpack = bytes(made), np.zeros(1, np.int64), decompressor()
    packed = data[segment_batch.HEADER_BYTES :]

    def call() -> RecordColumns:
        return decode(data, positions, decompress=unpack)

    return Case(
        f"codec.decode.{codec.name.lower()}",
        f"decode to columns, {codec.name.lower()}, {MAIN}",
        Unit.NS_PER_RECORD,
        records.count,
        [
            Contestant("oncelog", Role.OURS, call, reveal=lambda: rows_of(call())),
            *peers.contestants(
                settings,
                lambda peer: lambda: peer.touch(data),
                lambda peer: lambda: peer.rows(data),
                codec=codec,
                only=("aiokafka",),
            ),
            Contestant(CODEC_ALONE, Role.LIMIT, lambda: unpack(codec, packed)),
        ],
    )


def cases(settings: Settings) -> Iterator[Case]:
    records = settings.records(MAIN, text_values)
    kinds: list[Callable[[Codec, Records, Settings], Case]] = [_encode_case, _decode_case]
    for kind in kinds:
        for codec in Codec:
            if codec is not Codec.NONE:
                yield kind(codec, records, settings)


def test_codec(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
