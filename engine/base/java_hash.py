"""Java's hash of a text: it decides which partition of an internal topic holds a name's state.

Kafka places a transactional id, or a group, by this hash, so a directory can only be shared with it
if ours is the same to the bit.
"""

from __future__ import annotations

import struct
from typing import Final

INT_MIN: Final = -(2**31)
_INT_MASK: Final = 2**32 - 1
_FACTOR: Final = 31


def java_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 units, so a character beyond the first plane counts as two."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        value = value * _FACTOR + unit & _INT_MASK
    return value - 2**32 if value >= 2**31 else value


def partition_of(text: str, partition_count: int) -> int:
    """The partition of an internal topic that holds the state of ``text``.

    The smallest int has no positive twin; Kafka counts it as 0.
    """
    value = java_hash(text)
    return 0 if value == INT_MIN else abs(value) % partition_count
