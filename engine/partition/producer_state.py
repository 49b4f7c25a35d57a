"""What a partition knows of its producers, and the snapshots that save replaying the whole log.

Rebuilt by replay: the newest sound snapshot at or below an offset, then the batches from there on. The rules
are those of Kafka's leader; a replica or a recovery takes what the log holds without judging it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .._native.segment import ProducersTail
from .._native.sequence import FENCED, OLD_COORDINATOR, OUT_OF_ORDER, ProducerTable
from ..base.disk import read_file
from ..base.errors import (
    CorruptFileError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from ..base.rows import HEADER_DTYPE, PRODUCER_DTYPE, rows_of
from ..segment.batch import Attributes, ControlType
from ..segment.segment import next_offset_of
from .producer_snapshot import decode_snapshot, encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from .._native.segment import Batches
    from ..base.errors import OncelogError
    from ..base.rows import Row
    from ..log.log import Log

ABORT: Final = int(ControlType.ABORT)
CONTROL: Final = int(Attributes.CONTROL)


class ActiveProducer(NamedTuple):
    """What a partition knows of a producer; -1 where it knows nothing."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def active_producers(rows: NDArray[np.void]) -> list[ActiveProducer]:
    """The producers in a table's snapshot, as Python's."""
    columns = ("producer_id", "producer_epoch", "last_sequence", "timestamp")
    names = (*columns, "coordinator_epoch", "current_txn_first_offset")
    return [
        ActiveProducer(*row) for row in zip(*(rows[name].tolist() for name in names), strict=True)
    ]


class ProducerState(ProducersTail):
    """The producers of one log up to ``next_offset``. Under the partition's lock."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.table = ProducerTable()
        self.next_offset = 0
        self._snapshot_offset = -1
        self._unsynced: list[int] = []  # offsets of snapshots that may not be on the device yet

    # ------------------------------------------------------------ rebuilding

    def load(self, offset: int, *, expired_before_ms: int | None = None) -> None:
        """Takes the newest sound snapshot at or below an offset; batches from there on are still to be replayed.

        Producers that have been silent for too long are left out, unless they have an open transaction. A
        snapshot below the first segment is of no use: what lies between is gone.
        """
        self.table = ProducerTable()
        self.next_offset = self._log.start_offset
        self._snapshot_offset = -1
        start = self._log.start_offset
        for candidate in reversed([at for at in self._log.snapshots() if start <= at <= offset]):
            path = self._log.snapshot_path(candidate)
            try:
                producers = decode_snapshot(read_file(path), path)
            except (CorruptFileError, FileNotFoundError):
                continue
            self.table.load(producers)
            if expired_before_ms is not None:
                self.table.expire(expired_before_ms)
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
            for rows in segment.rows(segment.position_of(start), check_crc=True):
                wanted = rows[rows["base_offset"] < offset]
                if len(wanted):
                    self.replay(wanted)
        self.next_offset = max(self.next_offset, offset)

    def replay(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        """Takes batches that are in the log into account; returns the transactions they abort."""
        aborted = self.table.replay(rows)
        self.next_offset = next_offset_of(rows)
        return aborted

    def add(self, batches: Batches) -> int:
        """Takes batches into account that were just written; returns the last stable offset."""
        self.next_offset = end = batches.next_offset
        return self.table.add(batches, end)

    # ------------------------------------------------------------ judging

    def repeated(self, judged: tuple[int, int], batches: Batches) -> int:
        """The base offset of the batch that a client repeats; raises for one that does not fit, as the table has
        judged it."""
        verdict, index = judged
        if verdict >= 0:
            return verdict
        raise self._refusal(
            verdict, rows_of(np.frombuffer(memoryview(batches), HEADER_DTYPE))[index]
        )

    def _refusal(self, verdict: int, row: Row) -> OncelogError:
        """The error that tells a producer or a coordinator what is wrong with its batch."""
        producer, epoch, sequence = row.producer_id, row.producer_epoch, row.base_sequence
        known = self.table.get(producer)
        known_epoch = -1 if known is None else int(known["producer_epoch"])
        if verdict == FENCED and row.attributes & CONTROL:
            return InvalidProducerEpochError(
                f"a marker for producer {producer} has epoch {epoch}, but epoch {known_epoch} is known"
            )
        if verdict == FENCED:
            return InvalidProducerEpochError(
                f"producer {producer} sends with epoch {epoch}, but epoch {known_epoch} is known"
            )
        if verdict == OUT_OF_ORDER:
            if known is None:
                expectation = "but nothing is known of it, so 0 is expected"
            elif known_epoch != epoch:
                expectation = "but a new epoch starts at 0"
            else:
                expectation = f"but {(int(known['last_sequence']) + 1) % 2**31} is expected"
            return OutOfOrderSequenceError(
                f"producer {producer} sends sequence {sequence} in epoch {epoch}, {expectation}"
            )
        if verdict == OLD_COORDINATOR:
            assert known is not None
            return TransactionCoordinatorFencedError(
                f"a marker for producer {producer} comes from coordinator epoch "
                f"{row.coordinator_epoch}, but {int(known['coordinator_epoch'])} is known"
            )
        return InvalidTxnStateError(
            f"producer {producer} has an open transaction and sends a batch outside of it"
        )

    def aborts_of(self, batches: Batches) -> NDArray[np.void] | None:
        """The transactions that markers among batches to be written will end as aborted; nothing changes yet."""
        if len(batches) == 1:
            if batches.producer_id < 0:
                return None
            return self.table.would_abort(batches.producer_id, batches.base_offset)
        # A marker may end a transaction that begins in the same append: play it through beside the table.
        involved = {producer for producer, _ in self.table.open_transactions()}
        involved.update(np.frombuffer(memoryview(batches), HEADER_DTYPE)["producer_id"].tolist())
        known = [row for row in map(self.table.get, sorted(involved)) if row is not None]
        trial = ProducerTable()
        if known:
            trial.load(np.array(known, PRODUCER_DTYPE))
        return trial.replay(batches)

    # ------------------------------------------------------------ snapshots

    def take_snapshot(self) -> None:
        """Writes what is known at this offset, unless that was written already.

        It is synced before the recovery point passes it; until then nobody trusts it after a crash.
        """
        disk = self._log.disk
        assert disk is not None
        offset = self.next_offset
        if offset > self._snapshot_offset:
            path = self._log.snapshot_path(offset)
            self._log.note_name()
            disk.replace(path, encode_snapshot(self.table.snapshot()), sync=False)
            self._snapshot_offset = offset
            self._unsynced.append(offset)

    def sync_snapshots(self) -> None:
        """Returns when every snapshot that was taken is on the device."""
        disk = self._log.disk
        assert disk is not None
        while self._unsynced:
            disk.sync_file(self._log.snapshot_path(self._unsynced[0]))
            self._unsynced.pop(0)

    def restart_at(self, offset: int) -> None:
        """Forgets everything: the log goes on at an offset with nothing before it."""
        self.remove_snapshots(below=2**63 - 1)
        self.table = ProducerTable()
        self.next_offset = offset
        self._snapshot_offset = -1

    def remove_snapshots(
        self, *, below: int = 0, above: int | None = None, at: Collection[int] = ()
    ) -> None:
        """Removes snapshots below one offset, above another, and at some."""
        disk = self._log.disk
        assert disk is not None
        for offset in self._log.snapshots():
            if offset < below or (above is not None and offset > above) or offset in at:
                if offset in self._unsynced:
                    self._unsynced.remove(offset)
                disk.remove(self._log.snapshot_path(offset))
        if above is not None and self._snapshot_offset > above:
            self._snapshot_offset = -1

    def expire(self, older_than_ms: int) -> list[int]:
        """Forgets producers that have been silent since; one with an open transaction stays."""
        return self.table.expire(older_than_ms)
