"""Group commit: all who wait for the device share one fdatasync at a time.

Duty         says up to where a log is on the device, and moves that on for whoever waits.
Concurrency  any number of threads. Whoever finds no sync under way does the next one, for all that was written by
             then; the others sleep, and find themselves covered, or one of them goes next. Neither this object's
             lock nor the partition's is held while the device works: appends go on.
Crash        nothing is kept: after opening, the recovery point is what is known to be there.

What a commit needs is the bytes of the .log files, and the names of those that are new. Indexes and snapshots are
derived, so that they wait for the next full sync, and with them the recovery point.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.disk import Disk
    from ..log.log import Log


class Unsynced(NamedTuple):
    """What has to reach the device, so that all below ``end`` is there. The descriptors are the holder's own."""

    end: int
    descriptors: list[int]
    needs_names: bool

    def write(self, disk: Disk, directory: str) -> None:
        """Returns when it is on the device. The segments may be rolled, cut or removed meanwhile."""
        for descriptor in self.descriptors:
            disk.sync(descriptor)
        if self.needs_names:
            disk.sync_directory(directory)

    def close(self, disk: Disk) -> None:
        for descriptor in self.descriptors:
            try:  # noqa: SIM105 (a commit is short, and a context manager is not)
                disk.close(descriptor)
            except OSError:
                pass


def unsynced_from(log: Log, durable_end: int, end: int) -> Unsynced:
    """What a log has above an offset that may not be on the device. Under the partition's lock.

    Where nothing of a segment was synced yet, its name may not be there either.
    """
    assert log.disk is not None
    last = log.segments[-1]
    if last.base_offset < durable_end:  # as nearly always
        descriptor = last.unsynced_log()
        return Unsynced(end, [] if descriptor is None else [descriptor], needs_names=False)
    found = Unsynced(end, [], needs_names=False)
    try:
        for segment in log.from_offset(durable_end):
            descriptor = segment.unsynced_log()
            if descriptor is not None:
                found.descriptors.append(descriptor)
                if segment.base_offset >= durable_end:
                    found = found._replace(needs_names=True)
    except BaseException:
        found.close(log.disk)
        raise
    return found


class GroupCommit:
    """How far a log is on the device, for threads that wait for it.

    ``sync(offset)`` syncs what there is and returns how far; it raises where an offset cannot be reached. A failure
    is that of the thread that met it; the next in turn calls ``sync`` as well, which knows of it.
    """

    def __init__(self, sync: Callable[[int], int]) -> None:
        self.end = 0
        self._sync = sync
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._waiting = 0
        self._syncer = 0  # the thread whose turn it is
        self._cuts = 0  # how often the end was taken back: a sync from before says nothing then
        self._cuts_before = 0  # when the turn was taken

    def reach(self, offset: int) -> None:
        """Returns when everything below an offset is on the device."""
        try:
            while self._is_next(offset):
                self.finish(self._sync(offset))
        finally:  # also where a person interrupts: the others would wait for ever
            self.give_up()

    def begin(self, offset: int) -> bool:
        """Takes the turn, if nobody has it and the offset is not covered; ``finish`` or ``give_up`` ends it."""
        with self._lock:
            if self._syncer or self.end >= offset:
                return False
            self._take()
            return True

    def finish(self, end: int) -> None:
        """Ends this thread's turn: what was there when it began is on the device up to an offset."""
        with self._lock:
            if self._cuts_before == self._cuts:
                self.end = max(self.end, end)
            self._pass_on()

    def give_up(self) -> None:
        """Ends this thread's turn, if it has it, with nothing to say."""
        if self._syncer == threading.get_ident():
            with self._lock:
                self._pass_on()

    def _take(self) -> None:
        self._cuts_before = self._cuts
        self._syncer = threading.get_ident()

    def _is_next(self, offset: int) -> bool:
        """Waits until the offset is covered, or it is this thread's turn to sync."""
        with self._lock:
            while self.end < offset:
                if not self._syncer:
                    self._take()
                    return True
                self._waiting += 1
                try:
                    self._turn.wait()
                finally:
                    self._waiting -= 1
            return False

    def _pass_on(self) -> None:
        self._syncer = 0
        if self._waiting:
            self._turn.notify_all()

    def rise(self, end: int) -> None:
        """Somebody else has seen to it that all below an offset is on the device."""
        with self._lock:
            self.end = max(self.end, end)
            self._turn.notify_all()

    def fall(self, end: int) -> None:
        """The log is cut at an offset."""
        with self._lock:
            self.end = min(self.end, end)
            self._cuts += 1
