"""Leader epochs of a partition: which leader wrote from which offset on.

An epoch enters with the first batch written under it; both numbers rise. The file is rewritten whole, by the
rules of the class: entries that contradict a new one are removed.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from ..base.errors import CorruptFileError
from ..log.checkpoint import LEADER_EPOCH, EpochEntry, read_epochs, write_epochs

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from ..base.disk import Disk

UNDEFINED = (-1, -1)


class LeaderEpochs:
    """(epoch, start offset) pairs, rising, and their file."""

    def __init__(self, directory: str, disk: Disk | None) -> None:
        self._path = f"{directory}/{LEADER_EPOCH}"
        self._disk = disk
        self.is_damaged = False
        self.entries: list[EpochEntry] = []
        try:
            self._take(read_epochs(self._path))
        except CorruptFileError:
            self._take([])
            self.is_damaged = True  # recovery finds them in the batches again

    def _take(self, entries: list[EpochEntry]) -> None:
        self.entries = entries
        self.latest = entries[-1].epoch if entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Notes that a leader epoch starts here; entries that cannot be true beside it go."""
        last = self.entries[-1] if self.entries else None
        if epoch < 0 or (
            last is not None and last.epoch == epoch and last.start_offset <= start_offset
        ):
            return
        self._store(_with(self.entries, EpochEntry(epoch, start_offset)))

    def note(self, rows: NDArray[np.void]) -> None:
        """Takes the epochs of batches that are in the log into account."""
        epochs = rows["partition_leader_epoch"]
        if len(epochs) == 0 or int(epochs[-1]) == int(epochs[0]) == self.latest:
            return
        entries = self.entries
        for epoch, offset in zip(epochs.tolist(), rows["base_offset"].tolist(), strict=True):
            if epoch > (entries[-1].epoch if entries else -1):
                entries = _with(entries, EpochEntry(epoch, offset))
        self._store(entries)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch under which an offset was written; -1 where it is not known."""
        index = bisect.bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[index - 1].epoch if index else -1

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(epoch, end offset) that a follower compares with its own; (-1, -1) where nothing is known."""
        if not self.entries or epoch < 0 or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, log_end
        index = bisect.bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        if index == 0:
            return epoch, self.entries[0].start_offset
        return self.entries[index - 1].epoch, self.entries[index].start_offset

    def truncate_from_end(self, offset: int) -> None:
        """Forgets epochs that start at this offset or above."""
        self._store([entry for entry in self.entries if entry.start_offset < offset])

    def truncate_from_start(self, offset: int) -> None:
        """Moves the epoch that holds a new log start to it, and forgets those before."""
        earlier = [entry for entry in self.entries if entry.start_offset <= offset]
        if earlier and earlier[-1].start_offset < offset:
            later = self.entries[len(earlier) :]
            self._store([EpochEntry(earlier[-1].epoch, offset), *later])
        elif len(earlier) > 1:
            self._store(self.entries[len(earlier) - 1 :])

    def _store(self, entries: list[EpochEntry]) -> None:
        """Counts only once it is written: after an error the next call tries again."""
        if entries == self.entries:
            return
        if self._disk is not None:
            write_epochs(self._disk, self._path, entries)
        self._take(entries)

    def rebuild(self, rows: Iterable[NDArray[np.void]]) -> None:
        """Finds the epochs in the batches, where the file cannot be believed."""
        for window in rows:
            self.note(window)
        self.is_damaged = False

    def clear(self) -> None:
        """Forgets all of them: the log starts anew."""
        self._store([])


def _with(entries: list[EpochEntry], added: EpochEntry) -> list[EpochEntry]:
    """Entries and one more, without those that cannot be true beside it."""
    kept = [
        entry
        for entry in entries
        if entry.epoch < added.epoch and entry.start_offset < added.start_offset
    ]
    return [*kept, added]
