"""What a caller may have to wait for. The core answers at once and hands out one of these; waiting is the edge's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..partition.partition import Partition


class PendingSync:
    """An append that is acknowledged once it is on the device; those who wait together share a sync."""

    __slots__ = ("_offset", "_partition")

    def __init__(self, partition: Partition, offset: int) -> None:
        self._partition = partition
        self._offset = offset

    def wait(self) -> None:
        """Returns when the append would survive a loss of power; raises if it may not."""
        self._partition.sync_to(self._offset)


class Watch:
    """Calls ``wake`` after every change of what readers of some partitions can see, until it is closed.

    ``wake`` runs in the writer's thread and under the partition's lock: it sets a flag and returns. Register,
    look once more, then wait; so no change is missed.
    """

    def __init__(self, partitions: Iterable[Partition], wake: Callable[[], None]) -> None:
        self._partitions = tuple(partitions)
        self._wake = wake
        for partition in self._partitions:
            with partition.lock:
                partition.watchers = (*partition.watchers, wake)

    def close(self) -> None:
        """Nothing is called any more; closing twice is harmless."""
        partitions, self._partitions = self._partitions, ()
        for partition in partitions:
            with partition.lock:
                rest = list(partition.watchers)
                if self._wake in rest:
                    rest.remove(self._wake)
                partition.watchers = tuple(rest)
