"""Codecs: what we write is framed as Java frames it, what we read is what any client frames."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import zlib

import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import CorruptRecordError
from oncelog.segment import batch
from oncelog.segment.batch import Codec
from oncelog.segment.compression import LEVELS, compressor, decompress, decompressor

from . import oracle
from .readers import READERS

COMPRESSED = [codec for codec in Codec if codec != Codec.NONE]
TEXT = b"".join(b"%d, a line that repeats itself %d;" % (i, i * i) for i in range(6000))

payloads = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda part, times: part * times, st.binary(max_size=50), st.integers(0, 4000)),
)


def compress(codec: Codec | str, data: bytes, level: int | None = None) -> bytes:
    function = compressor(codec, level)
    assert function is not None
    return bytes(function(data))


def test_numbers_and_names_are_kafkas() -> None:
    assert {codec.name.lower(): codec.value for codec in Codec} == {
        "none": 0,
        "gzip": 1,
        "snappy": 2,
        "lz4": 3,
        "zstd": 4,
    }
    assert Codec.of("zstd") is Codec.of(4) is Codec.of(Codec.ZSTD) is Codec.ZSTD
    with pytest.raises(ValueError, match=r"'ZSTD'.*none, gzip, snappy, lz4, zstd"):
        Codec.of("ZSTD")
    with pytest.raises(ValueError, match="5"):
        Codec.of(5)
    assert compressor("none") is None


@given(data=payloads, codec=st.sampled_from(COMPRESSED))
def test_what_is_compressed_is_decompressed(data: bytes, codec: Codec) -> None:
    """Goal: each codec's two ways are inverse, and another implementation reads what we write.
    Method: ours, then the oracle's codecs, which are other libraries or written out by hand."""
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed)) == data
    assert bytes(decompressor()(codec, packed)) == data
    assert oracle.decompress(codec, packed) == data


@given(data=payloads)
def test_snappy_is_written_in_xerials_framing(data: bytes) -> None:
    """Goal: Java's reader insists on xerial's stream: magic, versions 1 and 1, blocks of 32 KiB.
    Method: take the stream apart by hand."""
    packed = compress(Codec.SNAPPY, data)
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    at, blocks = 16, []
    while at < len(packed):
        (size,) = struct.unpack_from(">i", packed, at)
        blocks.append(oracle.snappy_block(packed[at + 4 : at + 4 + size]))
        at += 4 + size
    assert at == len(packed)
    assert b"".join(blocks) == data
    assert all(len(block) == 32 << 10 for block in blocks[:-1])
    assert all(0 < len(block) <= 32 << 10 for block in blocks)


@given(data=payloads)
def test_snappy_is_read_with_and_without_framing(data: bytes) -> None:
    """Goal: librdkafka writes one bare block, others join streams or choose other block sizes.
    Method: a bare block, blocks of odd sizes, two streams behind each other."""
    assert bytes(decompress(2, oracle.snappy_literals(data))) == data
    assert bytes(decompress(2, pa.Codec("snappy").compress(data, asbytes=True))) == data
    odd = oracle.XERIAL + b"".join(
        struct.pack(">i", len(block)) + block
        for start in range(0, len(data), 1000)
        for block in [oracle.snappy_literals(data[start : start + 1000])]
    )
    assert bytes(decompress(2, odd)) == data
    assert bytes(decompress(2, odd + odd)) == data + data
    assert bytes(decompress(2, odd + compress("snappy", data) + odd)) == data * 3


def test_a_batch_with_bare_snappy_is_read() -> None:
    """Goal: what librdkafka produces is readable as a batch, not only as a payload."""
    one = oracle.build([oracle.OracleRecord(i, 5, b"k", b"v" * 100) for i in range(50)])
    bare = one.replace(payload=oracle.snappy_literals(one.payload), attributes=2)
    for read in READERS.values():
        assert [row.value for row in read(bytes(bare))] == [b"v" * 100] * 50


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 200_000])
@pytest.mark.parametrize("level", [None, 9, 1, 12, 17])
def test_lz4_frames_are_those_javas_reader_takes(size: int, level: int | None) -> None:
    """Goal: Kafka's Java reader knows version 1, independent blocks of 64 KiB at most, no dictionary;
    it writes neither content size nor checksums.
    Method: read the frame header's flags, and walk the blocks."""
    data = (TEXT * 4)[:size]
    packed = compress(Codec.LZ4, data, level)
    assert packed[:4] == bytes.fromhex("04224d18")
    flags, descriptor = packed[4], packed[5]
    assert flags >> 6 == 1
    assert flags & 0b0010_0000, "blocks are independent"
    assert not flags & 0b0001_0000, "no block checksums"
    assert not flags & 0b0000_1000, "no content size"
    assert not flags & 0b0000_0100, "no content checksum"
    assert not flags & 0b0000_0001, "no dictionary"
    assert descriptor == 4 << 4, "blocks of 64 KiB"
    at, blocks = 7, 0
    while (head := struct.unpack_from("<I", packed, at)[0]) != 0:
        assert head & 0x7FFFFFFF <= 65536
        at += 4 + (head & 0x7FFFFFFF)
        blocks += 1
    assert at + 4 == len(packed)
    assert blocks == -(-size // 65536)
    assert lz4.frame.decompress(packed) == data


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("checksums", [False, True])
def test_lz4_frames_of_others_are_read(linked: bool, checksums: bool) -> None:
    """Goal: C clients link blocks and add checksums and sizes; frames may be joined.
    Method: frames of those kinds."""
    packed = lz4.frame.compress(
        TEXT, block_linked=linked, content_checksum=checksums, block_checksum=checksums
    )
    assert bytes(decompress(3, packed)) == TEXT
    assert bytes(decompress(3, packed + compress("lz4", b"more"))) == TEXT + b"more"


def test_lz4_checksums_of_others_are_checked() -> None:
    packed = bytearray(lz4.frame.compress(TEXT, content_checksum=True))
    packed[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="lz4"):
        decompress(3, packed)


def test_gzip_is_one_member_and_reads_many() -> None:
    """Goal: any zlib reads ours as one member; members of others are joined, as RFC 1952 says.
    Method: Python's zlib on ours; two members, with a name and a comment field, on ours."""
    packed = compress("gzip", TEXT)
    inflate = zlib.decompressobj(wbits=31)
    assert inflate.decompress(packed) == TEXT
    assert inflate.eof
    assert inflate.unused_data == b""
    assert bytes(decompress(1, gzip.compress(b"one ") + gzip.compress(b"two"))) == b"one two"
    named = b"\x1f\x8b\x08\x08" + bytes(6) + b"name\0" + gzip.compress(TEXT)[10:]
    assert bytes(decompress(1, named)) == TEXT


def test_zstd_frames_of_others_are_read() -> None:
    """Goal: frames without a content size, of raw blocks, joined, with checksums."""
    assert bytes(decompress(4, oracle.zstd_raw(TEXT))) == TEXT
    assert bytes(decompress(4, oracle.zstd_raw(b"one ") + oracle.zstd_raw(b"two"))) == b"one two"
    assert bytes(decompress(4, oracle.zstd_raw(b""))) == b""


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("junk", [b"j", b"\0", b"junk" * 10, b"\0" * 20])
def test_bytes_behind_the_stream_are_refused(codec: Codec, junk: bytes) -> None:
    """Goal: nothing hides behind the compressed records."""
    with pytest.raises(CorruptRecordError, match=codec.name.lower()):
        decompress(codec, compress(codec, TEXT) + junk)


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name.lower())
def test_every_level_is_written_and_read(codec: Codec) -> None:
    """Goal: Kafka's levels, from the lowest to the highest.
    Method: each one for narrow ranges, the edges for zstd's."""
    if codec == Codec.SNAPPY:
        assert codec not in LEVELS
        return
    lowest, highest, default = LEVELS[codec]
    for level in {lowest, lowest + 1, -5, -1, 0, *range(1, 23), highest, default}:
        if level == default or lowest <= level <= highest:
            assert oracle.decompress(codec, compress(codec, TEXT, level)) == TEXT


def test_levels_are_kafkas() -> None:
    """Goal: compression.gzip.level, compression.lz4.level and compression.zstd.level mean what they mean
    in Kafka, defaults too: gzip leaves it to zlib, lz4's 9 is the fast compressor, zstd's is 3.
    Method: compare with the libraries at those levels."""
    assert {codec.name: levels for codec, levels in LEVELS.items()} == {
        "GZIP": (1, 9, -1),
        "LZ4": (1, 17, 9),
        "ZSTD": (-131072, 22, 3),
    }

    def gzip_body(level: int) -> bytes:
        return gzip.compress(TEXT, level)[10:]

    assert compress("gzip", TEXT)[10:] == gzip_body(6) == compress("gzip", TEXT, -1)[10:]
    assert compress("gzip", TEXT, 1)[10:] == gzip_body(1) != gzip_body(9)
    assert compress("gzip", TEXT, 9)[10:] == gzip_body(9) != gzip_body(6)
    for level in (-50, 1, 3, 9, 22):
        library = pa.Codec("zstd", compression_level=level)
        assert compress("zstd", TEXT, level) == library.compress(TEXT, asbytes=True)
    assert compress("zstd", TEXT) == compress("zstd", TEXT, 3) != compress("zstd", TEXT, 1)
    assert compress("lz4", TEXT) == compress("lz4", TEXT, 9) != compress("lz4", TEXT, 8)
    assert (
        len(compress("lz4", TEXT, 12)) < len(compress("lz4", TEXT, 3)) < len(compress("lz4", TEXT))
    )


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        *(("gzip", 0), ("gzip", 10), ("gzip", -2), ("lz4", 0), ("lz4", 18), ("lz4", -1)),
        *(("zstd", 23), ("zstd", -131073), ("snappy", 1), ("none", 1)),
    ],
)
def test_a_level_that_does_not_exist_is_refused(codec: str, level: int) -> None:
    """Goal: the error says which levels there are; also through encode()."""
    with pytest.raises(ValueError, match="level"):
        compressor(codec, level)
    with pytest.raises(ValueError, match="level"):
        batch.encode([b"v"], compression=codec, compression_level=level)


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name.lower())
def test_the_level_reaches_the_batch(codec: Codec) -> None:
    """Goal: encode() and rewrite() compress at the level that they are given."""
    values = [TEXT[i : i + 50] for i in range(0, len(TEXT), 50)]
    whole = {"compression": codec, "batch_size": 1 << 30}
    plain = bytes(batch.encode(values, batch_size=1 << 30))
    (row,) = batch.scan(bytes(batch.encode(values, **whole)))  # type: ignore[arg-type]
    (columns,) = batch.decode(plain)
    for level in [None] if codec == Codec.SNAPPY else [None, 1, LEVELS[codec][1]]:
        encoded = batch.encode(values, compression_level=level, **whole)  # type: ignore[arg-type]
        packed = compress(codec, plain[61:], level)
        assert bytes(encoded)[61:] == packed
        assert bytes(batch.rewrite(row, columns, columns.offsets, level=level))[61:] == packed


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name.lower())
def test_the_codecs_reason_is_in_the_error(codec: Codec) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        decompress(codec, b"\xfe\xdc\xba")
    assert f"{codec.name.lower()} data cannot be decompressed: " in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.__cause__ is not None


THREADS_AT_ONCE = """
import sys, threading
from oncelog.segment import batch

values = [bytes([i % 251]) * 100 for i in range(1000)]
wrong = []

def work(codec):
    for _ in range(10):
        encoded = batch.encode(values, compression=codec, batch_size=20_000)
        if [record.value for record in batch.records(encoded)] != values:
            wrong.append(codec)

for codec in ("gzip", "snappy", "lz4", "zstd"):
    threads = [threading.Thread(target=work, args=(codec,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
sys.exit(bool(wrong))
"""


def test_threads_may_compress_at_once() -> None:
    """Goal: a library's codec that keeps state between calls is never shared by two threads.
    Method: four threads a codec, in a process of their own, since sharing one crashed it."""
    done = subprocess.run([sys.executable, "-c", THREADS_AT_ONCE], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
