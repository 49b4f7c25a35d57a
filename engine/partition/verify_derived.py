"""What is derived from a log, held against the log: indexes, transaction index, snapshots, leader epochs.

Each check takes the sound batches window by window, so that memory does not grow with the log. Equality is asked for
where Kafka's files are determined by the log; where they are not, only what a lookup relies on:

offset index  how dense it is depends on index.interval.bytes and on how batches were appended together, so each entry
              must lead to a batch from which its offset is found
time index    the same; and a segment that is no longer written ends with its largest timestamp
txn index     equal, as long as nothing was compacted away. Compaction removes the records of aborted transactions
              first and their entry a round later, so an entry may be left without records, and then its marker must
              be there; records of an aborted transaction without an entry are damage at any time
snapshots     equal, but producers may have expired; where compaction has removed batches, only bounds are left
epochs        the epoch that covers an offset is that of its batch
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from .._native.batch import scan_prefix
from .._native.sequence import ProducerTable
from .._native.txn_index import TxnIndex
from ..base.disk import exists, map_file, read_file
from ..base.errors import BatchError, CorruptFileError
from ..base.rows import ABORTED_DTYPE
from ..log.checkpoint import LEADER_EPOCH, EpochEntry, read_epochs
from ..segment.batch import Attributes, ControlType
from ..segment.names import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX
from .producer_snapshot import decode_snapshot
from .verify_report import Finding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .verify import PartitionCheck

    Rows = NDArray[np.void]

OFFSET_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
SNAPSHOT_ADVICE: Final = "Remove it: an older snapshot and the log behind it say the same"
NO_EPOCH: Final = -1  # of batches that no leader has stamped
EPOCH_ADVICE: Final = (
    "With the broker stopped, remove it and .kafka_cleanshutdown: recovery finds the epochs in the batches that it "
    "reads again"
)


def last_offsets(rows: Rows) -> NDArray[np.int64]:
    """The last offset of each batch."""
    offsets: NDArray[np.int64] = rows["base_offset"] + rows["last_offset_delta"]
    return offsets


class IndexCheck(abc.ABC):
    """Entries of a fixed size that rise; the subclass holds them against the batches."""

    suffix: ClassVar[str]
    dtype: ClassVar[np.dtype[np.void]]

    def __init__(
        self, partition: PartitionCheck, base_offset: int, advice: str, *, may_end_in_zeros: bool
    ) -> None:
        self.partition = partition
        self.base_offset = base_offset
        self.name = partition.name(base_offset, self.suffix)
        self._advice = advice
        self.slot = 0  # of the next entry to be held against the log
        self.entries = np.empty(0, self.dtype)
        self.is_missing = not partition.has(base_offset, self.suffix)
        self.is_unusable = self.is_missing  # nothing in it is worth a second look
        if not self.is_missing:
            self._load(may_end_in_zeros)

    def tell(self, what: str, slot: int) -> None:
        position = -1 if slot < 0 else slot * self.dtype.itemsize
        self.partition.report.add(Finding(self.name, what, self._advice, position))

    def _load(self, may_end_in_zeros: bool) -> None:
        data = memoryview(map_file(self.partition.path(self.base_offset, self.suffix)))
        width = self.dtype.itemsize
        if len(data) % width:
            self.tell(f"{len(data):,} bytes are not a multiple of {width}", len(data) // width)
            self.is_unusable = True
            return
        entries = np.frombuffer(data, self.dtype)
        used = np.flatnonzero(np.frombuffer(data, np.uint8))
        count = 0 if not len(used) else int(used[-1]) // width + 1
        zeros = len(entries) - count
        if zeros and may_end_in_zeros:
            self.partition.report.note(
                self.name,
                f"{zeros:,} zero entries behind {count:,}: space kept for a segment that is being written",
            )
        elif zeros and self.may_be_entry(zeros, count):
            count = len(entries)
        elif zeros:
            self.tell(
                f"the last {zeros:,} entries are zero, which a clean stop would have cut", count
            )
        self.entries = entries[:count]
        self._check_order()

    def may_be_entry(self, zeros: int, count: int) -> bool:  # noqa: ARG002
        """Whether trailing zeros can be a true entry."""
        return False

    def _check_order(self) -> None:
        bad = self.disorder()
        if bad.any():
            slot = int(bad.argmax())
            self.tell(f"entry {slot} does not rise above the one before it", slot)
            self.entries = self.entries[:slot]
            self.is_unusable = True

    @abc.abstractmethod
    def disorder(self) -> NDArray[np.bool_]:
        """Which entries break the order of their file."""

    def tell_missing(self, log_bytes: int) -> None:
        if self.is_missing and log_bytes and self.partition.has_neighbours:
            self.partition.report.add(Finding(self.name, "is missing", self._advice))

    def tell_rest(self, end: int, *, is_cut: bool) -> None:
        """Entries that lead past what the log holds."""
        rest = len(self.entries) - self.slot
        if rest and is_cut:
            self.partition.report.note(
                self.name, f"{rest:,} entries lead behind the damage in the log"
            )
        elif rest:
            self.tell(f"entry {self.slot} leads past the end of the log, {end}", self.slot)


class OffsetIndexCheck(IndexCheck):
    suffix = OFFSET_INDEX
    dtype = OFFSET_ENTRY

    def disorder(self) -> NDArray[np.bool_]:
        offsets, positions = self.entries["relative_offset"], self.entries["position"]
        bad = (offsets < 0) | (positions <= 0)
        bad[1:] |= (np.diff(offsets.astype(np.int64)) <= 0) | (
            np.diff(positions.astype(np.int64)) <= 0
        )
        return bad

    def window(self, rows: Rows) -> None:
        """Entries that lead into these batches must lead to the start of one, and to their offset."""
        entries = self.entries[self.slot :]
        reached = int(np.searchsorted(entries["position"], rows["position"][-1], "right"))
        entries = entries[:reached]
        offsets = entries["relative_offset"].astype(np.int64) + self.base_offset
        at = np.searchsorted(rows["position"], entries["position"], "right") - 1
        lasts = last_offsets(rows)
        is_start = rows["position"][at] == entries["position"]
        # Batches that were appended together may have one entry: the first one's position, the last one's offset.
        ends = np.searchsorted(lasts, offsets)
        is_end = (ends == len(lasts)) | (lasts[np.minimum(ends, len(lasts) - 1)] == offsets)
        bad = ~is_start | (lasts[at] > offsets) | ~is_end
        for index in np.flatnonzero(bad).tolist():
            place = int(entries["position"][index])
            found = f"the batch there ends with {int(lasts[at[index]])}"
            if not is_start[index]:
                found = "where no batch starts"
            slot = self.slot + index
            self.tell(
                f"entry {slot} leads offset {int(offsets[index])} to position {place}: {found}",
                slot,
            )
        self.slot += reached

    def finish(self, log_bytes: int, *, is_cut: bool) -> None:
        self.tell_missing(log_bytes)
        self.tell_rest(log_bytes, is_cut=is_cut)
        if len(self.entries) and self.slot == len(self.entries) and not is_cut:
            last = int(self.entries["relative_offset"][-1]) + self.base_offset
            if last >= self.partition.end_offset:
                what = f"entry {self.slot - 1} names offset {last}, but the segment ends before it"
                self.tell(what, self.slot - 1)


class TimeIndexCheck(IndexCheck):
    suffix = TIME_INDEX
    dtype = TIME_ENTRY

    def __init__(
        self,
        partition: PartitionCheck,
        base_offset: int,
        advice: str,
        *,
        may_end_in_zeros: bool,
        is_sealed: bool,
    ) -> None:
        self._is_sealed = is_sealed
        self._max_timestamp = -1
        self._end_offset = base_offset
        super().__init__(partition, base_offset, advice, may_end_in_zeros=may_end_in_zeros)

    def may_be_entry(self, zeros: int, count: int) -> bool:
        """A first batch with one record of time 0 has an entry of zeros."""
        return zeros == 1 and count == 0

    def disorder(self) -> NDArray[np.bool_]:
        times, offsets = self.entries["timestamp"], self.entries["relative_offset"]
        bad = offsets < 0
        bad[1:] |= (times[1:] <= times[:-1]) | (offsets[1:] < offsets[:-1])
        return bad

    def window(self, rows: Rows) -> None:
        """An entry's batch must hold its offset and be the first with its timestamp, the largest up to there."""
        lasts = last_offsets(rows)
        largest = np.maximum.accumulate(np.maximum(rows["max_timestamp"], self._max_timestamp))
        entries = self.entries[self.slot :]
        offsets = entries["relative_offset"].astype(np.int64) + self.base_offset
        reached = int(np.searchsorted(offsets, lasts[-1], "right"))
        entries, offsets = entries[:reached], offsets[:reached]
        at = np.searchsorted(lasts, offsets)
        before = np.concatenate(([self._max_timestamp], largest[:-1]))
        # Batches that the log stamped together have one time, and older brokers name the last of them.
        is_stamped = (rows["attributes"][at] & Attributes.LOG_APPEND_TIME) != 0
        is_first = (before[at] < entries["timestamp"]) | is_stamped
        is_first &= largest[at] == entries["timestamp"]
        bad = (rows["base_offset"][at] > offsets) | ~is_first
        for index in np.flatnonzero(bad).tolist():
            slot = self.slot + index
            self.tell(
                f"entry {slot} gives offset {int(offsets[index])} the timestamp "
                f"{int(entries['timestamp'][index])}, its batch has {int(rows['max_timestamp'][at[index]])} and the "
                f"largest before it is {int(before[at[index]])}",
                slot,
            )
        self.slot += reached
        self._max_timestamp = int(largest[-1])
        self._end_offset = int(lasts[-1]) + 1

    def finish(self, log_bytes: int, *, is_cut: bool) -> None:
        self.tell_missing(log_bytes)
        self.tell_rest(self._end_offset, is_cut=is_cut)
        if self.is_unusable or is_cut or not self._is_sealed or self._max_timestamp < 0:
            return
        last = int(self.entries["timestamp"][-1]) if len(self.entries) else -1
        if last < self._max_timestamp and self.slot == len(self.entries):
            self.tell(
                f"it ends with timestamp {last}, the segment's largest is {self._max_timestamp}",
                len(self.entries) - 1,
            )


class TxnIndexCheck:
    """The aborted transactions of a segment against its markers and a replay."""

    def __init__(
        self, partition: PartitionCheck, base_offset: int, advice: str, replay: Replay
    ) -> None:
        self._replay = replay
        self._partition = partition
        self._base_offset = base_offset
        self._name = partition.name(base_offset, TXN_INDEX)
        self._advice = advice
        self._markers: list[Rows] = []
        self._aborted: list[Rows] = [np.empty(0, ABORTED_DTYPE)]
        self._entries: Rows | None = np.empty(0, ABORTED_DTYPE)
        if partition.has(base_offset, TXN_INDEX):
            self._load(partition.path(base_offset, TXN_INDEX))

    def _load(self, path: str) -> None:
        try:
            found = TxnIndex(map_file(path), self._base_offset, path).entries()
        except BatchError as error:
            self._tell(error.what, error.position)
            self._entries = None
            return
        self._entries = np.empty(len(found), ABORTED_DTYPE)
        for field in ABORTED_DTYPE.names or ():
            self._entries[field] = found[field]

    def _tell(self, what: str, position: int = -1, offset: int = -1) -> None:
        self._partition.report.add(Finding(self._name, what, self._advice, position, offset))

    def window(self, rows: Rows, aborted: Rows) -> None:
        self._aborted.append(aborted)
        self._markers.append(rows[rows["control_type"] == ControlType.ABORT])

    def finish(self, *, is_exact: bool, is_cut: bool) -> None:
        if self._entries is None:
            return
        entries, aborted = self._entries, np.concatenate(self._aborted)
        self._check_spans(entries)
        if is_exact and np.array_equal(entries, aborted):
            return
        if is_cut:
            self._finish_cut(entries)
            entries = entries[entries["last_offset"] < self._partition.end_offset]
        markers = {
            (int(row["base_offset"]), int(row["producer_id"]))
            for rows in self._markers
            for row in rows
        }
        wanted = {int(row["last_offset"]): row for row in aborted}
        for slot, entry in enumerate(entries):
            marker = int(entry["last_offset"]), int(entry["producer_id"])
            if marker not in markers:
                self._tell(
                    f"entry {slot} names an ABORT marker of producer {marker[1]} at offset {marker[0]}, "
                    "which the log does not have",
                    slot * 34,
                    marker[0],
                )
                continue
            replayed = wanted.pop(marker[0], None)
            self._compare(slot, entry, replayed, is_exact=is_exact)
        if not self._partition.has(self._base_offset, TXN_INDEX):
            if any(is_exact or self._has_records(row) for row in wanted.values()):
                self._tell(
                    f"is missing, so {len(wanted):,} aborted transactions would be shown, the first with its "
                    f"marker at {min(wanted)}",
                    offset=min(wanted),
                )
            return
        for row in wanted.values():
            if is_exact or self._has_records(row):
                self._tell(
                    f"the transaction of producer {int(row['producer_id'])} from offset {int(row['first_offset'])}, "
                    f"aborted at {int(row['last_offset'])}, is not in it: its records would be shown",
                    offset=int(row["last_offset"]),
                )

    def _check_spans(self, entries: Rows) -> None:
        """What holds even where compaction has removed what a replay would need.

        A last stable offset says that everything before it has ended: no transaction that ends later begins there.
        And a producer's transaction begins after its last one has ended.
        """
        stable = np.concatenate(([self._replay.stable_offset], entries["last_stable_offset"]))
        stable = np.maximum.accumulate(stable)
        self._replay.stable_offset = int(stable[-1])
        for slot in np.flatnonzero(entries["first_offset"] < stable[:-1]).tolist():
            self._tell(
                f"entry {slot} begins at offset {int(entries['first_offset'][slot])}, before the last stable offset "
                f"{int(stable[slot])} of an earlier one",
                slot * 34,
                int(entries["last_offset"][slot]),
            )
        for slot, entry in enumerate(entries):
            ended = self._replay.marker_before(int(entry["producer_id"]), int(entry["last_offset"]))
            if int(entry["first_offset"]) <= ended:
                self._tell(
                    f"entry {slot} begins at offset {int(entry['first_offset'])}, but producer "
                    f"{int(entry['producer_id'])} ended a transaction at {ended}",
                    slot * 34,
                    int(entry["last_offset"]),
                )

    def _finish_cut(self, entries: Rows) -> None:
        behind = int(np.count_nonzero(entries["last_offset"] >= self._partition.end_offset))
        if behind:
            self._partition.report.note(
                self._name, f"{behind:,} entries lie behind the damage in the log"
            )

    def _compare(
        self, slot: int, entry: np.void, replayed: np.void | None, *, is_exact: bool
    ) -> None:
        offset = int(entry["last_offset"])
        if replayed is None:
            if is_exact:
                self._tell(
                    f"entry {slot} aborts a transaction that was not open", slot * 34, offset
                )
            return
        first, expected = int(entry["first_offset"]), int(replayed["first_offset"])
        stable, expected_stable = (
            int(entry["last_stable_offset"]),
            int(replayed["last_stable_offset"]),
        )
        # Compaction may have removed the transaction's first batch, or the marker of an earlier one.
        if first != expected if is_exact else self._has_records(replayed, first):
            self._tell(
                f"entry {slot} lets the transaction begin at offset {first}, in the log it begins at {expected}",
                slot * 34,
                offset,
            )
        if stable != expected_stable if is_exact else stable > offset + 1:
            self._tell(
                f"entry {slot} has the last stable offset {stable}, a replay gives {expected_stable}",
                slot * 34,
                offset,
            )

    def _has_records(self, row: np.void, end: int | None = None) -> bool:
        """Whether records of an aborted transaction are left below an offset, in this segment or an earlier one."""
        producer, end = int(row["producer_id"]), int(row["last_offset"]) if end is None else end
        ended = self._replay.marker_before(producer, int(row["last_offset"]))
        start = max(int(row["first_offset"]), ended + 1)
        if start >= end:
            return False
        for base in self._partition.bases_between(start, end):
            view = memoryview(map_file(self._partition.path(base, LOG)))
            rows, _, _ = scan_prefix(view, check_crc=False)
            is_data = (rows["attributes"] & (Attributes.CONTROL | Attributes.TRANSACTIONAL)) == int(
                Attributes.TRANSACTIONAL
            )
            mine = (
                is_data
                & (rows["producer_id"] == producer)
                & (rows["record_count"] > 0)
                & (rows["base_offset"] >= start)
                & (rows["base_offset"] < end)
            )
            if mine.any():
                return True
        return False


class Replay:
    """The producers as a replay of the log knows them, and the snapshots that should say the same."""

    def __init__(self, partition: PartitionCheck, offsets: list[int]) -> None:
        self._partition = partition
        self._table = ProducerTable()
        self._sound = {
            offset: rows for offset in offsets if (rows := self._read(offset)) is not None
        }
        start = partition.end_offset
        self.is_exact = start == 0 or start in self._sound
        if start in self._sound:
            self._table.load(self._sound[start])
        self._pending = [offset for offset in sorted(self._sound) if offset > start]
        self.stable_offset = -1  # the largest in the transaction indexes so far
        self._markers: dict[int, list[NDArray[np.int64]]] = {}

    def _name(self, offset: int) -> str:
        return self._partition.name(offset, SNAPSHOT)

    def _tell(self, offset: int, what: str) -> None:
        self._partition.report.add(
            Finding(self._name(offset), what, SNAPSHOT_ADVICE, offset=offset)
        )

    def _read(self, offset: int) -> Rows | None:
        try:
            return decode_snapshot(read_file(self._partition.path(offset, SNAPSHOT)))
        except CorruptFileError as error:
            self._tell(offset, error.what)
            return None

    def window(self, rows: Rows) -> Rows:
        """Takes batches into account; returns the transactions they abort."""
        self._note_markers(rows)
        aborted = []
        while self._pending and self._pending[0] <= int(rows["base_offset"][-1]):
            offset = self._pending.pop(0)
            cut = int(np.searchsorted(rows["base_offset"], offset))
            if cut:
                aborted.append(self._table.replay(rows[:cut]))
                rows = rows[cut:]
            self._compare(offset)
        aborted.append(self._table.replay(rows))
        return np.concatenate(aborted)

    def _note_markers(self, rows: Rows) -> None:
        markers = rows[
            (rows["control_type"] == ControlType.ABORT)
            | (rows["control_type"] == ControlType.COMMIT)
        ]
        if not len(markers):
            return
        order = np.argsort(markers["producer_id"], kind="stable")
        producers, starts = np.unique(markers["producer_id"][order], return_index=True)
        for producer, offsets in zip(
            producers.tolist(), np.split(markers["base_offset"][order], starts[1:]), strict=True
        ):
            self._markers.setdefault(producer, []).append(offsets)

    def marker_before(self, producer_id: int, offset: int) -> int:
        """The last marker of a producer below an offset, -1 if there is none."""
        parts = self._markers.get(producer_id)
        if not parts:
            return -1
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        at = int(np.searchsorted(parts[0], offset))
        return int(parts[0][at - 1]) if at else -1

    def finish(self) -> None:
        end = self._partition.end_offset
        for offset in self._pending:
            if offset <= end:
                self._compare(offset)
            elif not self._partition.is_cut and self._partition.has_neighbours:
                self._tell(offset, f"it knows of offsets below {offset}, but the log ends at {end}")

    def _compare(self, offset: int) -> None:
        theirs, ours = self._sound[offset], self._table.snapshot()
        late = np.maximum(theirs["last_offset"], theirs["current_txn_first_offset"]) >= offset
        if late.any():
            producer = int(theirs["producer_id"][late.argmax()])
            self._tell(offset, f"producer {producer} is said to have written behind it")
        if not self.is_exact or self._partition.has_gaps:
            return
        _, left, right = np.intersect1d(
            theirs["producer_id"], ours["producer_id"], return_indices=True
        )
        for field in ours.dtype.names or ():
            said, found = theirs[field][left], ours[field][right]
            differs = said != found
            if field == "coordinator_epoch":
                differs &= said >= 0  # of a producer that expired and came back it is not known
            if not differs.any():
                continue
            index = int(differs.argmax())
            what = (
                f"producer {int(theirs['producer_id'][left[index]])} has {field} {int(said[index])}, "
                f"a replay gives {int(found[index])}"
            )
            if field == "timestamp":  # it tells when a producer expires, and nothing else
                self._partition.report.note(self._name(offset), what)
            else:
                self._tell(offset, what)
        strangers = np.setdiff1d(theirs["producer_id"], ours["producer_id"])
        if len(strangers):
            self._tell(offset, f"producer {int(strangers[0])} does not occur in the log")
        absent = ours[~np.isin(ours["producer_id"], theirs["producer_id"])]
        is_open = absent["current_txn_first_offset"] >= 0
        if is_open.any():
            producer = int(absent["producer_id"][is_open.argmax()])
            self._tell(offset, f"producer {producer} with its open transaction is not in it")
        elif len(absent):
            self._partition.report.note(
                self._name(offset), f"{len(absent):,} producers of the log are not in it: expired"
            )


class EpochCheck:
    """leader-epoch-checkpoint against the epochs in the batches."""

    def __init__(self, partition: PartitionCheck) -> None:
        self._partition = partition
        self._name = f"{partition.prefix}{LEADER_EPOCH}"
        self._entries: list[EpochEntry] = []
        path = f"{partition.directory}/{LEADER_EPOCH}"
        self._is_usable = exists(path)
        self._has_epochs = False
        if self._is_usable:
            try:
                self._entries = read_epochs(path)
            except CorruptFileError as error:
                partition.report.add(Finding(self._name, error.what, EPOCH_ADVICE))
                self._is_usable = False
        self._epochs = np.array([entry.epoch for entry in self._entries], np.int64)
        self._starts = np.array([entry.start_offset for entry in self._entries], np.int64)

    def window(self, rows: Rows) -> None:
        epochs = rows["partition_leader_epoch"]
        self._has_epochs |= bool((epochs != NO_EPOCH).any())
        if not self._is_usable or not len(self._entries):
            return
        at = np.searchsorted(self._starts, rows["base_offset"], "right") - 1
        # Batches before the first entry lie below the log's start.
        is_below = (at < 0) & (rows["base_offset"] < self._partition.log_start_offset)
        differs = (epochs != NO_EPOCH) & ~is_below & ((at < 0) | (self._epochs[at] != epochs))
        if differs.any():
            index = int(differs.argmax())
            offset = int(rows["base_offset"][index])
            self._partition.report.add(
                Finding(
                    self._name,
                    f"offset {offset} is said to be of {self._said(int(at[index]))}, "
                    f"its batch is of epoch {int(epochs[index])}",
                    EPOCH_ADVICE,
                    offset=offset,
                )
            )
            self._is_usable = False  # the rest would say the same

    def _said(self, slot: int) -> str:
        return "no epoch" if slot < 0 else f"epoch {int(self._epochs[slot])}"

    def finish(self) -> None:
        end = self._partition.end_offset
        if not self._is_usable:
            return
        late = [entry for entry in self._entries if entry.start_offset > end]
        if late and not self._partition.is_cut and self._partition.has_neighbours:
            self._partition.report.add(
                Finding(
                    self._name,
                    f"epoch {late[0].epoch} is said to start at {late[0].start_offset}, but the log ends at {end}",
                    EPOCH_ADVICE,
                    offset=late[0].start_offset,
                )
            )
        if not self._entries and self._has_epochs and self._partition.has_neighbours:
            what = "names no epoch, though the batches do"
            self._partition.report.add(Finding(self._name, what, EPOCH_ADVICE))
