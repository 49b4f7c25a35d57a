"""CRC-32C: every kernel of this CPU computes the polynomial's remainder, whatever size and alignment."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.checksum import crc32c, crc32c_combine, crc32c_kernels, crc32c_with

from ..segment import oracle

KERNELS = crc32c_kernels()
DATA = random.Random(3720).randbytes((1 << 16) + 1000)

# RFC 3720, appendix B.4; the first is the check value of every CRC catalogue.
VECTORS = {
    b"123456789": 0xE3069283,
    b"": 0,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    bytes.fromhex(
        "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
        "0200000000000000"
    ): 0xD9963A56,
}


def bit_by_bit(data: bytes, crc: int = 0) -> int:
    """The definition: one bit at a time, reflected, inverted at both ends."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            low = (crc ^ byte >> bit) & 1
            crc = crc >> 1 ^ (0x82F63B78 if low else 0)
    return crc ^ 0xFFFFFFFF


def prefixes(data: bytes) -> list[int]:
    """The CRC of every prefix, each from the one before."""
    sums = [0]
    for byte in data:
        sums.append(oracle.crc32c(bytes([byte]), sums[-1]))
    return sums


def test_the_portable_kernel_is_always_there_and_the_best_comes_first() -> None:
    assert KERNELS[-1] == "portable"
    assert len(set(KERNELS)) == len(KERNELS)
    assert set(KERNELS) <= {"avx512", "sse42", "armv8", "portable"}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.hex()[:18] or "empty")
def test_known_vectors(vector: bytes) -> None:
    """Goal: the CRC that Kafka, iSCSI and ext4 mean."""
    assert bit_by_bit(vector) == VECTORS[vector] == oracle.crc32c(vector)
    assert crc32c(vector) == VECTORS[vector]
    for kernel in KERNELS:
        assert crc32c_with(kernel, vector) == VECTORS[vector]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_size_and_alignment_agrees_with_the_definition(kernel: str) -> None:
    """Goal: no seam between the loops of a kernel: words, three streams, folds, tails.
    Method: all sizes to 1100 at all alignments of a word, against prefix sums of the oracle."""
    assert oracle.crc32c(DATA[:200]) == bit_by_bit(DATA[:200])
    view = memoryview(DATA)
    for start in range(8):
        sums = prefixes(DATA[start : start + 1100])
        for size in range(1101):
            assert crc32c_with(kernel, view[start : start + size]) == sums[size], (start, size)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sizes_around_the_blocks_agree_with_the_definition(kernel: str) -> None:
    """Goal: the edges of the long loops, and several rounds of each.
    Method: sizes a few bytes around multiples of every block that a kernel has."""
    sums = prefixes(DATA)
    view = memoryview(DATA)
    edges = [64, 256, 384, 768, 1024, 3072, 3072 + 384, 6144, 9216, 16384, 32768, 65536]
    edges += [64 + 32768, 64 + 32768 + 256, 64 + 65536, 64 + 65536 + 256, len(DATA)]
    for edge in edges:
        for size in range(max(0, edge - 9), min(len(DATA), edge + 9) + 1):
            assert crc32c_with(kernel, view[:size]) == sums[size], size
    for start in range(1, 65):
        assert crc32c_with(kernel, view[start:]) == crc32c_with("portable", view[start:])


@pytest.mark.parametrize("kernel", KERNELS)
@given(data=st.binary(max_size=3000), cut=st.integers(0, 3000), before=st.integers(0, 2**32 - 1))
def test_a_running_sum_goes_on_where_it_stopped(
    kernel: str, data: bytes, cut: int, before: int
) -> None:
    """Goal: the sum of parts, one after another, is the sum of the whole, from any start."""
    head, tail = data[:cut], data[cut:]
    assert crc32c_with(kernel, tail, crc32c_with(kernel, head)) == oracle.crc32c(data)
    assert crc32c_with(kernel, data, before) == oracle.crc32c(data, before) == crc32c(data, before)


@given(a=st.binary(max_size=500), b=st.binary(max_size=500), c=st.binary(max_size=500))
def test_combining_is_concatenation(a: bytes, b: bytes, c: bytes) -> None:
    """Goal: the sum of A and B joined, from their sums alone; in any grouping."""
    ab = crc32c_combine(crc32c(a), crc32c(b), len(b))
    assert ab == oracle.crc32c(a + b)
    bc = crc32c_combine(crc32c(b), crc32c(c), len(c))
    assert crc32c_combine(ab, crc32c(c), len(c)) == crc32c(a + b + c)
    assert crc32c_combine(crc32c(a), bc, len(b) + len(c)) == crc32c(a + b + c)


@pytest.mark.parametrize("power", [0, 1, 16, 20, 31, 32, 40, 62])
def test_combining_reaches_sizes_that_no_memory_holds(power: int) -> None:
    """Goal: sizes of 64 bits.
    Method: double a run of zeros until it is that long, and compare with one step per bit."""
    zeros, size = crc32c(b"\0"), 1
    for _ in range(power):
        zeros = crc32c_combine(zeros, zeros, size)
        size *= 2
    if size <= 1 << 20:
        assert zeros == crc32c(bytes(size))
    # (A, zeros, zeros) joined from the left and from the right.
    left = crc32c_combine(crc32c_combine(crc32c(b"A"), zeros, size), zeros, size)
    assert left == crc32c_combine(crc32c(b"A"), crc32c_combine(zeros, zeros, size), 2 * size)


@pytest.mark.parametrize("size", [0, 5, 1 << 16, (1 << 16) + 3])
def test_any_buffer_is_summed(size: int) -> None:
    """Goal: bytes, bytearray, memoryview and arrays, below and above the size where the GIL goes."""
    data = DATA[: size // 2] * 3
    expected = crc32c_with("portable", data)
    array: Any = np.frombuffer(data, np.uint8)
    for buffer in (data, bytearray(data), memoryview(data), array):
        assert crc32c(buffer) == expected


def test_wrong_arguments_are_refused() -> None:
    for wrong in ("text", 5, None):
        with pytest.raises(TypeError):
            crc32c(wrong)  # type: ignore[arg-type]
    with pytest.raises((BufferError, ValueError)):
        crc32c(memoryview(DATA)[::2])
    with pytest.raises(ValueError, match=r"'neon'.*portable"):
        crc32c_with("neon", b"")
    for crc in (-1, 2**32):
        with pytest.raises(OverflowError):
            crc32c(b"", crc)
