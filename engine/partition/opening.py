"""Opening a partition: its segments, what a crash has left, and the state up to its end.

A log that was stopped cleanly is taken at its word, unless its end cannot be proven. Any other is recovered: proven
from the recovery point on, and ended before the first bad batch. A reader that may change nothing gets the same
result, in memory.
"""

from __future__ import annotations

import abc
import functools
from typing import TYPE_CHECKING

from ..base.errors import BatchError
from ..log.log import Log
from .aborted import AbortedTransactions
from .leader_epochs import LeaderEpochs
from .producer_state import ProducerState
from .reading import PartitionReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .._native.segment import TailLock
    from ..base.errors import OncelogError
    from .admission import PartitionOptions


class OpenedPartition(PartitionReader):
    """The opening half of a partition; everything here happens before anybody else has it, or under its lock."""

    directory: str
    options: PartitionOptions
    lock: TailLock
    damage: list[OncelogError]
    producers: ProducerState
    recovery_point: int
    _opened_ms: int

    @abc.abstractmethod
    def _take_state(self) -> None:
        """The state is complete."""

    @abc.abstractmethod
    def _sync(self) -> None:
        """Returns when everything is on the device."""

    def _open(
        self, now_ms: int, recovery_point: int | None, log_start_offset: int, *, is_clean: bool
    ) -> None:
        self.log = Log(self.directory, self.options.log, self._disk)
        self.producers = ProducerState(self.log)
        self.aborted = AbortedTransactions(self.log, self.lock)
        self.log_start_offset = max(log_start_offset, self.log.start_offset)
        self.recovery_point = recovery_point or 0
        if is_clean and self._disk is not None:
            is_clean = not self._is_rotten()
        if not self.log.segments:
            self._start_at(self.log_start_offset, now_ms)
        elif not is_clean:
            self._recover(now_ms)
        elif self.log.start_offset < self.log_start_offset > self.log.end_offset:
            self._start_over(now_ms)
        if self._disk is not None:
            self.epochs  # noqa: B018 (a writer mends their file now)

    @functools.cached_property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs, read when they are first needed: of most partitions that are opened to be read, never.

        Who has the lock does not come here: a writer has read them at opening, and recovery reads them first of all.
        """
        with self.lock:
            self.log_end_offset  # noqa: B018 (where it has to be recovered, so are they)
            found = self._known_epochs
            if found is None:
                found = LeaderEpochs(self.directory, self._disk)
                self._mend(found, is_clean=True)
            return found

    @property
    def _known_epochs(self) -> LeaderEpochs | None:
        return self.__dict__.get("epochs")

    def _is_rotten(self) -> bool:
        """Whether the log's end cannot be proven, although it was stopped cleanly: then it is recovered as well."""
        try:
            return not self.log.end_offset >= 0
        except BatchError:
            return True

    def _proven_end(self) -> int:
        """Where the log ends. A mere reader looks when it first has to know: most partitions of a directory are never
        asked. Where the end of a clean log is rotten, it shows what recovery would keep."""
        try:
            return self.log.end_offset
        except BatchError:
            if self._disk is not None or self.damage:
                raise
            with self.lock:
                if not self.damage:
                    self._recover(self._opened_ms)
            return self.log.end_offset

    def _has_epochs(self) -> bool:
        """Whether the first batch says that there should be leader epochs."""
        for segment in self.log.segments[:1]:
            rows = segment.first_row(0)
            return bool(len(rows) and rows["partition_leader_epoch"][0] >= 0)
        return False

    def _start_at(self, offset: int, now_ms: int) -> None:
        """An empty log."""
        if self._disk is not None:
            self.log.start_at(offset, now_ms)
        self.producers.next_offset = offset
        self._take_state()

    def _start_over(self, now_ms: int) -> None:
        """What is left lies wholly below the log start: nothing of it counts."""
        if self._disk is None:
            self.log.segments = ()
            self.epochs.clear()
            self.producers = ProducerState(self.log)
            self._start_at(self.log_start_offset, now_ms)
            return
        self.log.restart_at(self.log_start_offset, now_ms)
        self.producers.restart_at(self.log_start_offset)
        self.epochs.clear()
        self._take_state()

    def _recover(self, now_ms: int) -> None:
        """Proves everything from the recovery point on; the first bad batch ends the log.

        Later segments go before the damaged one is cut, so that a crash in between cannot leave a hole.
        """
        epochs = self._known_epochs or LeaderEpochs(self.directory, self._disk)
        suspects = self.log.from_offset(self.recovery_point)
        start = suspects[0].base_offset
        self._load_state(start)
        if self._disk is not None:
            self.producers.remove_snapshots(above=start)
        for index, segment in enumerate(suspects):
            later = suspects[index + 1 :]
            if self._disk is not None and index:
                self.producers.take_snapshot()
            found = segment.recover(
                functools.partial(self._replay, epochs),
                before_cut=functools.partial(self.log.remove, later),
                is_last=not later,
            )
            self.producers.next_offset = max(self.producers.next_offset, found.next_offset)
            if found.error is not None:
                self.damage.append(found.error)
                break
            if later and self._disk is not None:
                self.producers.next_offset = later[0].base_offset
                segment.seal()
        self.recovery_point = min(self.recovery_point, self.log.end_offset)
        self._take_state()
        self._mend(epochs, is_clean=False)
        self.epochs = epochs  # only now: others may read them
        if self.log.end_offset < self.log_start_offset:
            self._start_over(now_ms)
        elif self._disk is not None:
            self.producers.take_snapshot()
        if self._disk is not None and self.options.is_synced_on_roll:
            self._sync()  # nothing that is shown may be lost

    def _replay(self, epochs: LeaderEpochs, rows: NDArray[np.void]) -> NDArray[np.void]:
        epochs.note(rows)
        return self.producers.replay(rows)

    def _mend(self, epochs: LeaderEpochs, *, is_clean: bool) -> None:
        """Leader epochs are there if batches have any, and lie between the log's start and its end, whatever the file
        says."""
        if epochs.is_damaged or (not epochs.entries and self._has_epochs()):
            epochs.rebuild(rows for segment in self.log.segments for rows in segment.rows())
        entries = epochs.entries
        if not entries:
            return
        if not is_clean or entries[-1].start_offset >= self.recovery_point:
            epochs.truncate_from_end(self.log_end_offset)
        epochs.truncate_from_start(self.log_start_offset)

    def _load_state(self, offset: int) -> None:
        """The producers up to an offset. Those silent for too long are dropped, but not for a mere reader."""
        expired = self._opened_ms - self.options.producer_id_expiration_ms + 1
        self.producers.load(offset, expired_before_ms=None if self._disk is None else expired)
        self.producers.catch_up(offset)
