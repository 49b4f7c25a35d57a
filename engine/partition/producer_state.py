"""What a partition knows of its producers, and the snapshots that save replaying the whole log.

Rebuilt by replay: the newest sound snapshot at or below an offset, then the batches from there on. The rules
are those of Kafka's leader; a replica or a recovery takes what the log holds without judging it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._native.sequence import FENCED, OUT_OF_ORDER, ProducerTable
from ..base.disk import read_file
from ..base.errors import (
    CorruptFileError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from ..segment.segment import next_offset_of
from .producer_snapshot import decode_snapshot, encode_snapshot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..log.log import Log


class ProducerState:
    """The producers of one log up to ``next_offset``. Under the partition's lock."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.table = ProducerTable()
        self.next_offset = 0
        self._snapshot_offset = -1

    # ------------------------------------------------------------ rebuilding

    def load(self, offset: int) -> None:
        """Takes the newest sound snapshot at or below an offset; batches from there on are still to be replayed."""
        self.table = ProducerTable()
        self.next_offset = self._log.start_offset
        self._snapshot_offset = -1
        for candidate in reversed([at for at in self._log.snapshots() if at <= offset]):
            path = self._log.snapshot_path(candidate)
            try:
                producers = decode_snapshot(read_file(path), path)
            except (CorruptFileError, FileNotFoundError):
                continue
            self.table.load(producers)
            self.next_offset = self._snapshot_offset = candidate
            return

    def catch_up(self, offset: int) -> None:
        """Replays the log's batches from where the state stands up to an offset."""
        if self.next_offset >= offset:
            return
        for segment in self._log.from_offset(self.next_offset):
            if segment.base_offset >= offset:
                break
            start = max(self.next_offset, segment.base_offset)
            for rows in segment.rows(segment.position_of(start)):
                wanted = rows[rows["base_offset"] < offset]
                if len(wanted):
                    self.replay(wanted)
        self.next_offset = max(self.next_offset, offset)

    def replay(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        """Takes batches that are in the log into account; returns the transactions they abort."""
        aborted = self.table.replay(rows)
        self.next_offset = next_offset_of(rows)
        return aborted

    # ------------------------------------------------------------ judging

    def duplicate_of(self, row: np.void, *, known_from_start: bool = False) -> int | None:
        """The base offset of the batch that this one repeats, None if it is new; raises if it does not fit."""
        producer, epoch = int(row["producer_id"]), int(row["producer_epoch"])
        sequence = int(row["base_sequence"])
        verdict = self.table.check(
            producer, epoch, sequence, int(row["record_count"]), known_from_start
        )
        if verdict >= 0:
            return verdict
        if verdict == FENCED:
            raise InvalidProducerEpochError(
                f"producer {producer} sends with epoch {epoch}, but epoch {self._epoch(producer)} is known"
            )
        if verdict == OUT_OF_ORDER:
            raise OutOfOrderSequenceError(
                f"producer {producer} sends sequence {sequence} in epoch {epoch}, {self._expectation(producer, epoch)}"
            )
        return None

    def _epoch(self, producer: int) -> int:
        known = self.table.get(producer)
        return -1 if known is None else int(known["producer_epoch"])

    def _expectation(self, producer: int, epoch: int) -> str:
        known = self.table.get(producer)
        if known is None:
            return "but nothing is known of it, so 0 is expected"
        if int(known["producer_epoch"]) != epoch:
            return "but a new epoch starts at 0"
        return f"but {(int(known['last_sequence']) + 1) % 2**31} is expected"

    def check_transaction(self, row: np.void, *, is_transactional: bool) -> None:
        """A producer with an open transaction writes nothing outside of it."""
        known = self.table.get(int(row["producer_id"]))
        if (
            known is not None
            and int(known["current_txn_first_offset"]) >= 0
            and not is_transactional
        ):
            raise InvalidTxnStateError(
                f"producer {int(row['producer_id'])} has an open transaction and sends a batch outside of it"
            )

    def check_marker(self, row: np.void, *, bumps_epoch: bool) -> None:
        """A marker of an old producer epoch or an old coordinator comes from one that was replaced.

        Where every transaction bumps the epoch, its marker's must be above the known one; the same marker
        again, with nothing open, is harmless.
        """
        producer = int(row["producer_id"])
        known = self.table.get(producer)
        if known is None:
            return
        epoch, known_epoch = int(row["producer_epoch"]), int(known["producer_epoch"])
        is_open = int(known["current_txn_first_offset"]) >= 0
        if epoch < known_epoch or (bumps_epoch and epoch == known_epoch and is_open):
            raise InvalidProducerEpochError(
                f"a marker for producer {producer} has epoch {epoch}, but epoch {known_epoch} is known"
            )
        if int(row["coordinator_epoch"]) < int(known["coordinator_epoch"]):
            raise TransactionCoordinatorFencedError(
                f"a marker for producer {producer} comes from coordinator epoch "
                f"{int(row['coordinator_epoch'])}, but {int(known['coordinator_epoch'])} is known"
            )

    # ------------------------------------------------------------ snapshots

    def take_snapshot(self) -> None:
        """Writes what is known at this offset, unless that was written already."""
        disk = self._log.disk
        assert disk is not None
        if self.next_offset > self._snapshot_offset:
            disk.replace(
                self._log.snapshot_path(self.next_offset), encode_snapshot(self.table.snapshot())
            )
            self._snapshot_offset = self.next_offset

    def remove_snapshots(self, *, below: int = 0, above: int | None = None) -> None:
        """Removes snapshots below one offset and above another."""
        disk = self._log.disk
        assert disk is not None
        for offset in self._log.snapshots():
            if offset < below or (above is not None and offset > above):
                disk.remove(self._log.snapshot_path(offset))
        if above is not None and self._snapshot_offset > above:
            self._snapshot_offset = -1

    def remove_stray_snapshots(self) -> None:
        """Keeps one snapshot for each segment and the newest, which a clean stop may have left past them."""
        disk = self._log.disk
        assert disk is not None
        kept = {segment.base_offset for segment in self._log.segments}
        for offset in self._log.snapshots()[:-1]:
            if offset not in kept:
                disk.remove(self._log.snapshot_path(offset))

    def expire(self, older_than_ms: int) -> list[int]:
        """Forgets producers that have been silent since; one with an open transaction stays."""
        return self.table.expire(older_than_ms)
