"""Codecs of record batches: the only importer of codec libraries.

Kafka compresses the records of a batch, never its header. Each codec has one framing that Java writes and
that we write, too; readers take whatever the other clients produce.

==  ======  =====================================================================================
 0  none
 1  gzip    one gzip member
 2  snappy  xerial's stream: magic, two int32 versions, then blocks of int32 size + snappy of 32 KiB;
            librdkafka writes one bare snappy block instead, which is read as well
 3  lz4     LZ4 frame of independent 64 KiB blocks (Java's reader refuses linked ones), no checksums
 4  zstd    one zstd frame
==  ======  =====================================================================================

Decompression trusts nothing: output grows step by step up to a limit, so a small batch that claims or
unfolds into gigabytes ends in a RecordBatchTooLargeError after at most ``limit`` bytes.
"""

from __future__ import annotations

import enum
import functools
import struct
import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from ..base.errors import CorruptRecordError, RecordBatchTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from typing_extensions import Buffer

# A batch of Kafka's default maximum (1 MiB compressed) would have to shrink 256-fold to meet this.
DECOMPRESSED_BYTES_MAX: Final = 256 << 20

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 << 10
# Snappy's densest element is three bytes that repeat 64: a claim beyond that ratio is a lie.
_SNAPPY_RATIO_MAX: Final = 22
_FIRST_OUTPUT_BYTES: Final = 64 << 10


class Codec(enum.IntEnum):
    """Compression codecs by their number in a batch's attributes; names as Kafka's options spell them."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, codec: Codec | int | str) -> Codec:
        """The codec of that number or (lower-case) name."""
        if isinstance(codec, str):
            names = {member.name.lower(): member for member in cls}
            if codec not in names:
                raise ValueError(f"no codec {codec!r}: choose one of {', '.join(names)}")
            return names[codec]
        return cls(codec)


# Lowest, highest and default level of compression.<codec>.level; snappy has none.
LEVELS: Final = {Codec.GZIP: (1, 9, -1), Codec.LZ4: (1, 17, 9), Codec.ZSTD: (-131072, 22, 3)}
LEVEL_OPTIONS: Final = {
    Codec.GZIP: "compression.gzip.level",
    Codec.LZ4: "compression.lz4.level",
    Codec.ZSTD: "compression.zstd.level",
}
# gzip's -1 leaves the choice to zlib.
_ZLIB_CHOOSES: Final = (Codec.GZIP, -1)
_ZLIB_LEVEL: Final = 6


def compressor(
    codec: Codec | int | str, level: int | None = None
) -> Callable[[Buffer], Buffer] | None:
    """A function that compresses the records of one batch; None for ``none``."""
    codec = Codec.of(codec)
    if codec not in LEVELS:
        if level is not None:
            raise ValueError(f"{codec.name.lower()} has no compression level")
    else:
        lowest, highest, default = LEVELS[codec]
        if level is not None and level != default and not lowest <= level <= highest:
            name = codec.name.lower()
            raise ValueError(
                f"{name} level {level} is out of range: {lowest} to {highest}, default {default}"
            )
    match codec:
        case Codec.NONE:
            return None
        case Codec.SNAPPY:
            return _compress_snappy
        case Codec.LZ4:
            return functools.partial(_compress_lz4, level=_lz4_level(level))
        case Codec.GZIP | Codec.ZSTD:
            # Arrow's own defaults are others than Kafka's.
            level = LEVELS[codec][2] if level is None else level
            library = _arrow_codec(codec, _ZLIB_LEVEL if (codec, level) == _ZLIB_CHOOSES else level)
            compress: Callable[[Buffer], Buffer] = library.compress
            return compress


def decompressor(limit: int = DECOMPRESSED_BYTES_MAX) -> Callable[[int, Buffer], Buffer]:
    """A function (codec number, payload) → records, which produces at most ``limit`` bytes."""
    return functools.partial(decompress, limit=limit)


def decompress(codec: int, payload: Buffer, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """The records in a compressed payload."""
    try:
        if codec == Codec.SNAPPY:
            return _decompress_snappy(memoryview(payload), limit)
        return _decompress_stream(Codec(codec), payload, limit)
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        reason = (
            str(error).strip().splitlines()[0].rstrip(".")
            if str(error).strip()
            else "no reason given"
        )
        raise CorruptRecordError(
            f"{Codec(codec).name.lower()} data cannot be decompressed: {reason}"
        ) from error


def _too_large(limit: int) -> RecordBatchTooLargeError:
    return RecordBatchTooLargeError(
        f"the batch decompresses to more than the limit of {limit} bytes"
    )


_THREAD: Final = threading.local()


def _arrow_codec(codec: Codec, level: int | None) -> pa.Codec:
    """The library's codec, one a thread: gzip's keeps its state between calls, and the GIL is released in them."""
    made: dict[tuple[Codec, int | None], pa.Codec] = _THREAD.__dict__.setdefault("codecs", {})
    if (codec, level) not in made:
        import pyarrow as pa

        made[codec, level] = pa.Codec(codec.name.lower(), compression_level=level)
    return made[codec, level]


def _compress_arrow(records: Buffer, *, codec: Codec, level: int | None) -> Buffer:
    packed: Buffer = _arrow_codec(codec, level).compress(records)
    return packed


def _decompress_stream(codec: Codec, payload: Buffer, limit: int) -> Buffer:
    import pyarrow as pa

    source = pa.py_buffer(payload)
    output = np.empty(min(max(_FIRST_OUTPUT_BYTES, 4 * source.size), limit + 1), np.uint8)
    filled = 0
    with pa.CompressedInputStream(pa.BufferReader(source), codec.name.lower()) as stream:
        while True:
            got = stream.readinto(output.data[filled:])
            if got == 0:
                return output.data[:filled]
            filled += got
            if filled > limit:
                raise _too_large(limit)
            if filled == output.size:
                output.resize(min(4 * output.size, limit + 1), refcheck=False)


# ---------------------------------------------------------------- lz4


def _lz4_level(level: int | None) -> int:
    """python-lz4's level for Kafka's: its default means the fast compressor, all others the high one."""
    if level is None or level == LEVELS[Codec.LZ4][2]:
        return 0
    return min(max(level, 3), 12)


def _compress_lz4(records: Buffer, *, level: int) -> Buffer:
    import lz4.frame

    packed: bytes = lz4.frame.compress(
        records,
        compression_level=level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return packed


# ---------------------------------------------------------------- snappy


def _compress_snappy(records: Buffer) -> Buffer:
    codec = _arrow_codec(Codec.SNAPPY, None)
    view = memoryview(records)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = codec.compress(view[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_snappy(payload: memoryview, limit: int) -> Buffer:
    blocks = _xerial_blocks(payload) if _is_xerial(payload) else [payload]
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > limit:
        raise _too_large(limit)
    codec = _arrow_codec(Codec.SNAPPY, None)
    if len(blocks) == 1:
        only: Buffer = codec.decompress(blocks[0], decompressed_size=sizes[0])
        return only
    output = np.empty(sum(sizes), np.uint8)
    at = 0
    for block, size in zip(blocks, sizes, strict=True):
        output[at : at + size] = np.frombuffer(
            codec.decompress(block, decompressed_size=size), np.uint8
        )
        at += size
    return output.data


def _is_xerial(payload: memoryview) -> bool:
    return bytes(payload[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _xerial_blocks(payload: memoryview) -> list[memoryview]:
    blocks = []
    at = len(_XERIAL_HEADER)
    while at < len(payload):
        if _is_xerial(payload[at:]):  # streams may be joined
            at += len(_XERIAL_HEADER)
            continue
        if at + 4 > len(payload):
            raise ValueError("a block size is cut off")
        (size,) = struct.unpack_from(">i", payload, at)
        at += 4
        if not 0 <= size <= len(payload) - at:
            raise ValueError(f"a block claims {size} bytes where {len(payload) - at} are left")
        blocks.append(payload[at : at + size])
        at += size
    return blocks


def _snappy_size(block: memoryview) -> int:
    """The decompressed size that a snappy block declares, if it can be true."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > len(block) * _SNAPPY_RATIO_MAX:
                raise ValueError(f"a block of {len(block)} bytes claims to hold {size}")
            return size
    raise ValueError("a block does not start with its size")
