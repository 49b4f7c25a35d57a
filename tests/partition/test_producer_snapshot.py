"""Producer snapshots: Kafka's bytes, and no byte of them believed that is not what was written."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import CorruptFileError
from oncelog.base.rows import PRODUCER_DTYPE
from oncelog.partition.producer_snapshot import decode_snapshot, encode_snapshot

from ..segment.oracle import crc32c

if TYPE_CHECKING:
    from numpy.typing import NDArray

int64s, int32s, int16s = (st.integers(-(2**bits), 2**bits - 1) for bits in (63, 31, 15))
rows_of_any_kind = st.lists(
    st.tuples(int64s, int16s, int32s, int64s, int32s, int64s, int32s, int64s), max_size=8
)


def rows(values: list[tuple[int, ...]]) -> NDArray[np.void]:
    return np.array(values, PRODUCER_DTYPE)


WIDE = (
    0x0102030405060708,
    0x1112,
    0x21222324,
    0x3132333435363738,
    0x41424344,
    0x5152535455565758,
    0x61626364,
    0x7172737475767778,
)
TWO = rows([(1, 0, 4, 9, 4, 1000, -1, 5), (2, 7, -1, -1, 0, 2000, 3, -1)])


def test_every_field_stands_in_its_place() -> None:
    """Goal: version, checksum, count, then 46 big-endian bytes a producer; each field has a wide value of its own."""
    entry = b"".join(
        bytes(range(16 * field + 1, 16 * field + 1 + width))
        for field, width in enumerate((8, 2, 4, 8, 4, 8, 4, 8))
    )
    covered = struct.pack(">i", 1) + entry
    data = struct.pack(">hI", 1, crc32c(covered)) + covered
    assert len(data) == 56
    assert encode_snapshot(rows([WIDE])) == data
    assert decode_snapshot(data).tolist() == [WIDE]


@given(rows_of_any_kind)
def test_producers_survive_the_round_trip_in_their_order(values: list[tuple[int, ...]]) -> None:
    found = decode_snapshot(encode_snapshot(rows(values)))
    assert found.dtype == PRODUCER_DTYPE
    assert found.tolist() == values
    assert found.flags.writeable  # its own memory, in the machine's byte order


def test_no_producers_are_a_snapshot_too() -> None:
    data = encode_snapshot(rows([]))
    assert len(data) == 10
    assert len(decode_snapshot(data)) == 0


def test_every_flipped_bit_is_found() -> None:
    """Goal: version, checksum, count and entries: nothing is read that was not written."""
    data = encode_snapshot(TWO)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptFileError) as caught:
                decode_snapshot(bytes(damaged), "9.snapshot")
            assert caught.value.file == "9.snapshot"


def test_every_other_size_is_found() -> None:
    """Goal: cut anywhere, empty, or longer than its entries."""
    data = encode_snapshot(TWO)
    for size in range(len(data)):
        with pytest.raises(CorruptFileError):
            decode_snapshot(data[:size])
    for rest in (b"\0", bytes(46), data):
        with pytest.raises(CorruptFileError):
            decode_snapshot(data + rest)


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1, -(2**31)])
def test_a_count_that_lies_is_found_although_the_checksum_is_right(count: int) -> None:
    covered = struct.pack(">i", count) + encode_snapshot(TWO)[10:]
    with pytest.raises(CorruptFileError, match=f"cannot hold {count} producers"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(covered)) + covered)


@pytest.mark.parametrize("version", [0, 2, 256, -1])
def test_another_version_is_refused(version: int) -> None:
    """Goal: two bytes, both read; the checksum does not cover them."""
    data = struct.pack(">h", version) + encode_snapshot(TWO)[2:]
    with pytest.raises(CorruptFileError, match=f"version {version}"):
        decode_snapshot(data)
