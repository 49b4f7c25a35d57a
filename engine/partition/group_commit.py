"""Group commit: all who wait for the device share one fdatasync at a time.

Duty         says what has to reach the device, so that a log is there up to an offset; whose turn it is to bring it there
             is GroupCommit's to say (pyext/crew.pyx).
Concurrency  any number of threads. No lock is held while the device works: appends go on.
Crash        nothing is kept: after opening, the recovery point is what is known to be there.

What a commit needs is the bytes of the .log files, and the names of those that are new. Indexes and snapshots are
derived, so that they wait for the next full sync, and with them the recovery point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
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
