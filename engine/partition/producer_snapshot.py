"""Producer snapshot: what the partition knew of its producers at one offset.

File    <offset>.snapshot, offset being the first that it has not taken into account
Writer  ProducerState, at every roll and at a clean stop
Reader  ProducerState, at open: the newest sound one, then the batches behind it
Repair  a bad snapshot is passed over for an older one; the log is replayed from there

==  ====  ======  ========================  ===============================================
at  size  type    field                     invariant
==  ====  ======  ========================  ===============================================
 0     2  int16   version                   1
 2     4  uint32  crc                       CRC-32C of all that follows
 6     4  int32   count                     entries of 46 bytes follow
10     8  int64   producer_id               >= 0
18     2  int16   producer_epoch
20     4  int32   last_sequence             of the last batch; -1: none in this epoch
24     8  int64   last_offset               of the last batch; -1: none in this epoch
32     4  int32   offset_delta              last offset - first offset of the last batch
36     8  int64   timestamp                 of the last batch or marker
44     4  int32   coordinator_epoch         of the last marker; -1: none
48     8  int64   current_txn_first_offset  of the open transaction; -1: none
==  ====  ======  ========================  ===============================================

Big-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from .._native.checksum import crc32c
from ..base.errors import CorruptFileError
from ..base.rows import PRODUCER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEAD: Final = struct.Struct(">hIi")
VERSION: Final = 1
_CRC_FROM: Final = 6
ENTRY_DTYPE: Final = PRODUCER_DTYPE.newbyteorder(">")
assert ENTRY_DTYPE.itemsize == 46


def encode_snapshot(producers: NDArray[np.void]) -> bytes:
    """The bytes of a snapshot with these producers (PRODUCER_DTYPE)."""
    entries = producers.astype(ENTRY_DTYPE).tobytes()
    crc = crc32c(struct.pack(">i", len(producers)) + entries)
    return HEAD.pack(VERSION, crc, len(producers)) + entries


def decode_snapshot(data: bytes, file: str = "") -> NDArray[np.void]:
    """The producers in a snapshot; raises for one that is not what was written."""
    if len(data) < HEAD.size:
        raise CorruptFileError(
            f"a snapshot has at least {HEAD.size} bytes, not {len(data)}", file=file
        )
    version, crc, count = HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptFileError(f"unknown snapshot version {version}", file=file)
    if crc32c(memoryview(data)[_CRC_FROM:]) != crc:
        raise CorruptFileError("the checksum does not match the snapshot", file=file)
    if count < 0 or len(data) != HEAD.size + count * ENTRY_DTYPE.itemsize:
        raise CorruptFileError(f"{len(data)} bytes cannot hold {count} producers", file=file)
    return np.frombuffer(data, ENTRY_DTYPE, offset=HEAD.size).astype(PRODUCER_DTYPE)
