"""The transactions of a partition along its offsets: who wrote what, how it ended, and where.

Built from batch headers alone, as columns: a partition with millions of batches takes seconds, and no Python object
for any of them. Nothing is decoded, so records of a batch that compaction has emptied still count as its stretch.

A transaction begins with a producer's first transactional batch after its last marker, and ends with the next one.
Where compaction has taken the marker, what is left was committed: aborted records go before their marker does.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..segment.batch import Attributes, ControlType
from .reading import Isolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..segment.names import TopicPartition
    from .partition import Partition

    Numbers = NDArray[np.int64]


class Outcome(enum.IntEnum):
    """What became of records; a number, since columns hold it."""

    PLAIN = 0  # outside of any transaction
    COMMITTED = 1
    ABORTED = 2
    OPEN = 3

    @property
    def label(self) -> str:
        return self.name.lower()


# A transaction on this partition. Its last offset is its marker's, if it has one, else its last record's.
TRANSACTION_DTYPE: Final = np.dtype(
    [
        ("producer_id", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("marker_offset", np.int64),  # -1: none
        ("records", np.int64),
        ("batches", np.int64),
        ("first_timestamp", np.int64),
        ("last_timestamp", np.int64),  # of the marker, or of the last batch
        ("producer_epoch", np.int16),
        ("outcome", np.int8),
    ]
)

# Offsets without a gap in between that belong together: to a transaction, or to a producer without one.
RUN_DTYPE: Final = np.dtype(
    [
        ("producer_id", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("records", np.int64),
        ("transaction", np.int64),  # its row, -1: none
        ("outcome", np.int8),
    ]
)

# The end of a transaction that has no records here is a marker, too: its transaction is -1.
MARKER_DTYPE: Final = np.dtype(
    [
        ("producer_id", np.int64),
        ("offset", np.int64),
        ("transaction", np.int64),
        ("is_commit", np.bool_),
    ]
)

_COLUMNS: Final = ("base_offset", "producer_id", "max_timestamp", "last_offset_delta")
_MORE_COLUMNS: Final = ("record_count", "attributes", "producer_epoch", "control_type")


@dataclass(frozen=True)
class Timeline:
    """One partition: its bounds, and what lies between them as rows in the order of offsets."""

    key: TopicPartition
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    start_offset: int  # of what is shown, which may be less than there is
    end_offset: int
    transactions: NDArray[np.void]
    runs: NDArray[np.void]
    markers: NDArray[np.void]

    @property
    def producers(self) -> Numbers:
        """Everybody who wrote here, -1 for those without an id, in the order of their first appearance."""
        ids = np.concatenate((self.runs["producer_id"], self.markers["producer_id"]))
        firsts = np.concatenate((self.runs["first_offset"], self.markers["offset"]))
        if not len(ids):
            return np.empty(0, np.int64)
        unique, where = np.unique(ids, return_inverse=True)
        earliest = np.full(len(unique), np.iinfo(np.int64).max)
        np.minimum.at(earliest, where, firsts)
        found: Numbers = unique[np.argsort(earliest, kind="stable")]
        return found

    def between(self, start: int, end: int) -> Timeline:
        """What of it lies in [start, end); rows that reach in are kept whole."""
        transactions, runs, markers = self.transactions, self.runs, self.markers
        kept = (transactions["first_offset"] < end) & (transactions["last_offset"] >= start)
        place = np.where(kept, np.cumsum(kept) - 1, -1)
        runs = runs[(runs["first_offset"] < end) & (runs["last_offset"] >= start)].copy()
        markers = markers[(markers["offset"] < end) & (markers["offset"] >= start)].copy()
        for rows in (runs, markers):
            known = rows["transaction"] >= 0
            rows["transaction"][known] = place[rows["transaction"][known]]
        return Timeline(
            self.key,
            self.log_start_offset,
            self.last_stable_offset,
            self.high_watermark,
            max(start, self.log_start_offset),
            min(end, self.high_watermark),
            transactions[kept],
            runs,
            markers,
        )


def read_timeline(partition: Partition) -> Timeline:
    """The timeline of a partition as it is now."""
    start, end = partition.log_start_offset, partition.high_watermark
    stable = partition.last_stable_offset
    open_from = {
        row.producer_id: row.current_txn_first_offset
        for row in partition.active_producers()
        if row.current_txn_first_offset >= 0
    }
    columns = _columns(partition, start, end)
    base, producer = columns["base_offset"], columns["producer_id"]
    control = columns["control_type"]
    is_marker = (control == ControlType.ABORT) | (control == ControlType.COMMIT)
    is_transactional = (columns["attributes"] & int(Attributes.TRANSACTIONAL)) != 0
    is_data = control == -1
    owner = np.full(len(base), -1, np.int64)  # the transaction of each batch
    transactions = _transactions(
        columns, np.flatnonzero((is_data & is_transactional) | is_marker), owner, open_from
    )
    markers = np.empty(int(is_marker.sum()), MARKER_DTYPE)
    markers["producer_id"] = producer[is_marker]
    markers["offset"] = base[is_marker]
    markers["transaction"] = owner[is_marker]
    markers["is_commit"] = control[is_marker] == ControlType.COMMIT
    runs = _runs(columns, np.flatnonzero(is_data), owner, transactions)
    return Timeline(partition.key, start, stable, end, start, end, transactions, runs, markers)


def _columns(partition: Partition, start: int, end: int) -> dict[str, NDArray[Any]]:
    """The columns of all batches; rows as a scan fills them would take twice the memory."""
    names = (*_COLUMNS, *_MORE_COLUMNS)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for window in partition.windows(start, end, Isolation.LOG_END):
        for name in names:
            parts[name].append(window.rows[name].copy())
    return {
        name: np.concatenate(found) if found else np.empty(0, np.int64)
        for name, found in parts.items()
    }


def _transactions(
    columns: dict[str, NDArray[Any]],
    places: Numbers,
    owner: Numbers,
    open_from: dict[int, int],
) -> NDArray[np.void]:
    """Batches and markers into transactions: each producer's batches up to and with its next marker are one.

    ``owner`` gets, for each batch, the row of its transaction.
    """
    if not len(places):
        return np.empty(0, TRANSACTION_DTYPE)
    producer = columns["producer_id"][places]
    order = places[np.argsort(producer, kind="stable")]  # by producer, then by offset
    producer = columns["producer_id"][order]
    is_marker = columns["control_type"][order] != -1
    begins = np.ones(len(order), bool)
    begins[1:] = (producer[1:] != producer[:-1]) | is_marker[:-1]
    firsts = np.flatnonzero(begins)
    lasts = np.concatenate((firsts[1:], [len(order)])) - 1
    first, last = order[firsts], order[lasts]
    has_marker = is_marker[lasts]
    has_records = ~(has_marker & (firsts == lasts))  # else a marker alone

    rows = np.empty(len(firsts), TRANSACTION_DTYPE)
    rows["producer_id"] = producer[firsts]
    rows["producer_epoch"] = columns["producer_epoch"][first]
    rows["first_offset"] = columns["base_offset"][first]
    rows["last_offset"] = columns["base_offset"][last] + columns["last_offset_delta"][last]
    rows["marker_offset"] = np.where(has_marker, columns["base_offset"][last], -1)
    counts = np.where(is_marker, 0, columns["record_count"][order].astype(np.int64))
    rows["records"] = np.add.reduceat(counts, firsts)
    rows["batches"] = np.add.reduceat((~is_marker).astype(np.int64), firsts)
    rows["first_timestamp"] = columns["max_timestamp"][first]
    rows["last_timestamp"] = columns["max_timestamp"][last]
    is_commit = has_marker & (columns["control_type"][last] == ControlType.COMMIT)
    ids = np.array(list(open_from), np.int64)
    starts = np.array(list(open_from.values()), np.int64)
    is_open = ~has_marker & np.isin(rows["producer_id"], ids)
    if is_open.any():  # of a producer's transactions only what lies behind its open one's start
        at = np.argsort(ids)
        begun = starts[at][np.searchsorted(ids[at], rows["producer_id"][is_open])]
        is_open[is_open] = rows["last_offset"][is_open] >= begun
    rows["outcome"] = np.select(
        [is_open, has_marker & ~is_commit], [Outcome.OPEN, Outcome.ABORTED], Outcome.COMMITTED
    )

    by_offset = np.argsort(rows["first_offset"], kind="stable")
    by_offset = by_offset[has_records[by_offset]]
    number = np.full(len(rows), -1, np.int64)
    number[by_offset] = np.arange(len(by_offset))
    owner[order] = np.repeat(number, lasts - firsts + 1)
    found: NDArray[np.void] = rows[by_offset]
    return found


def _runs(
    columns: dict[str, NDArray[Any]],
    places: Numbers,
    owner: Numbers,
    transactions: NDArray[np.void],
) -> NDArray[np.void]:
    """Batches that follow each other without a gap and belong together, as one row."""
    if not len(places):
        return np.empty(0, RUN_DTYPE)
    base = columns["base_offset"][places]
    last = base + columns["last_offset_delta"][places]
    producer, owned = columns["producer_id"][places], owner[places]
    begins = np.ones(len(places), bool)
    begins[1:] = (
        (base[1:] != last[:-1] + 1) | (producer[1:] != producer[:-1]) | (owned[1:] != owned[:-1])
    )
    firsts = np.flatnonzero(begins)
    lasts = np.concatenate((firsts[1:], [len(places)])) - 1
    rows = np.empty(len(firsts), RUN_DTYPE)
    rows["producer_id"] = producer[firsts]
    rows["first_offset"], rows["last_offset"] = base[firsts], last[lasts]
    rows["records"] = np.add.reduceat(columns["record_count"][places].astype(np.int64), firsts)
    rows["transaction"] = owned[firsts]
    known = owned[firsts] >= 0
    rows["outcome"] = Outcome.PLAIN
    rows["outcome"][known] = transactions["outcome"][owned[firsts][known]]
    return rows
