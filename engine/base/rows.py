"""Row types that native code fills and Python reads: numpy dtypes over C structs.

Each native module asserts that its struct has the size of the dtype it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A batch header, as a scan finds it; struct ol_header.
HEADER_DTYPE: Final = np.dtype(
    [
        ("position", np.int64),  # of the batch in the scanned bytes
        ("size", np.int64),  # of the whole batch
        ("base_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("last_offset_delta", np.int32),
        ("record_count", np.int32),
        ("base_sequence", np.int32),
        ("partition_leader_epoch", np.int32),
        ("crc", np.uint32),
        ("coordinator_epoch", np.int32),  # of an ABORT or COMMIT marker, else -1
        ("attributes", np.int16),
        ("producer_epoch", np.int16),
        ("control_type", np.int16),  # -1 a data batch, -2 an unreadable control batch
        ("magic", np.int8),
        ("crc_ok", np.int8),  # 1 yes, 0 no, -1 not checked
    ]
)

# An aborted transaction; struct ol_aborted. Its last offset is the marker's, -1 where unknown.
ABORTED_DTYPE: Final = np.dtype(
    [
        ("producer_id", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("last_stable_offset", np.int64),
    ]
)

# A producer as a snapshot keeps it: only its last batch, -1 where there is none.
PRODUCER_DTYPE: Final = np.dtype(
    [
        ("producer_id", np.int64),
        ("producer_epoch", np.int16),
        ("last_sequence", np.int32),
        ("last_offset", np.int64),
        ("offset_delta", np.int32),
        ("timestamp", np.int64),
        ("coordinator_epoch", np.int32),
        ("current_txn_first_offset", np.int64),
    ]
)


class Row(NamedTuple):
    """A header row as Python numbers: one call takes them all out of the array."""

    position: int
    size: int
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    last_offset_delta: int
    record_count: int
    base_sequence: int
    partition_leader_epoch: int
    crc: int
    coordinator_epoch: int
    attributes: int
    producer_epoch: int
    control_type: int
    magic: int
    crc_ok: int


assert Row._fields == HEADER_DTYPE.names


def rows_of(rows: NDArray[np.void]) -> list[Row]:
    return [Row._make(row) for row in rows.tolist()]
