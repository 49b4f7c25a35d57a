"""What a consumer was given to read: partitions, their positions, and which of them may have something new.

Every partition that may have something to read is in one queue, put there by whoever writes to it, by a seek or by a
resume, and again behind all others after each turn: so no partition starves another, and a poll costs no more for
those that are silent. A poll that finds nothing waits on the same queue, and so cannot miss what came before it did.
"""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING

from ..base.errors import IllegalStateError
from ..segment.names import partition_key
from .fetching import AssignedPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ..broker.broker import Broker
    from ..partition.partition import Isolation
    from ..segment.names import TopicPartition
    from .offset_reset import OffsetReset

    Pair = tuple[str, int]  # a TopicPartition, or as good as one
    ReadyQueue = queue.SimpleQueue[AssignedPartition | None]


class Subscription:
    """The assigned partitions of one consumer. One thread uses it; only ``interrupt`` may come from another."""

    def __init__(
        self,
        broker: Broker,
        isolation: Isolation,
        reset: OffsetReset,
        bytes_max: int,
        *,
        check_crc: bool,
        ready: ReadyQueue | None = None,
    ) -> None:
        self._broker = broker
        self._isolation = isolation
        self._reset = reset
        self._bytes_max = bytes_max
        self._check_crc = check_crc
        self._consumed = (0, 0)  # of partitions that were given up
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self.may_hold = False  # there may be partitions that wait for what is committed
        self._ready: ReadyQueue = queue.SimpleQueue() if ready is None else ready

    def __iter__(self) -> Iterator[AssignedPartition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def keys(self) -> set[TopicPartition]:
        return set(self._partitions)

    def assign(self, keys: Collection[TopicPartition], *, held: bool = False) -> None:
        """Takes exactly these partitions. Those that stay keep their position; on an error nothing changes.

        New ones that are ``held`` are not read before they are sought, or let go.
        """
        fresh: dict[TopicPartition, AssignedPartition] = {}
        try:
            for key in keys:
                if key not in self._partitions and key not in fresh:
                    fresh[key] = self._assigned(key, held=held)
        except BaseException:
            for partition in fresh.values():
                partition.close()
            raise
        for key, partition in self._partitions.items():
            if key not in keys:
                self._give_up(partition)
        self._partitions = {key: self._partitions.get(key) or fresh[key] for key in keys}
        self.may_hold |= held and bool(fresh)

    def _assigned(self, key: TopicPartition, *, held: bool) -> AssignedPartition:
        return AssignedPartition(
            key,
            self._broker,
            self._ready,
            self._isolation,
            self._reset,
            self._bytes_max,
            check_crc=self._check_crc,
            is_held=held,
        )

    def held(self) -> list[AssignedPartition]:
        """The partitions that wait for what is committed."""
        found = [partition for partition in self if partition.is_held] if self.may_hold else []
        self.may_hold = bool(found)
        return found

    def need(self, key: TopicPartition) -> AssignedPartition:
        partition = self._partitions.get(key)
        if partition is None:
            raise IllegalStateError(
                f"{key.directory} is not assigned to this consumer: assign() it, or poll() until the group does"
            )
        return partition

    def some(self, keys: Iterable[object] | None) -> list[AssignedPartition]:
        """The partitions that are named, or all where none are."""
        if keys is None:
            return list(self)
        return [self.need(partition_key(key)) for key in keys]

    # ------------------------------------------------------------ who is next

    def next_ready(self) -> AssignedPartition | None:
        """The partition whose turn it is; None: nobody has anything to read."""
        ready = self._ready
        while not ready.empty():
            partition = ready.get_nowait()
            if partition is not None:
                partition.taken_up()
                if not (partition.is_paused or partition.is_held):
                    return partition
        return None

    def look(self) -> None:
        """Queues every partition with something to do. Most that happens to a log wakes its readers, not all.

        An interrupt may have struck between a partition's note that it is queued and the queue itself. Where that is
        empty nobody is in it, whatever they believe.
        """
        is_empty = self._ready.empty()
        for partition in self:
            if is_empty:
                partition.taken_up()
            partition.look()

    def wait(self, timeout_s: float) -> bool:
        """Returns once somebody may have something to read (True), or after a while (False)."""
        with contextlib.suppress(queue.Empty):
            partition = self._ready.get(timeout=timeout_s)
            if partition is not None:
                partition.taken_up()
                partition.wake()
            return True
        return False

    def interrupt(self) -> None:
        """Ends a wait, from any thread or a signal handler."""
        self._ready.put(None)

    def _give_up(self, partition: AssignedPartition) -> None:
        records, size = self._consumed
        self._consumed = records + partition.record_count, size + partition.byte_count
        partition.close()

    def consumed(self) -> tuple[int, int]:
        """Records handed out, and bytes of log they lay in."""
        records, size = self._consumed
        for partition in self:
            records, size = records + partition.record_count, size + partition.byte_count
        return records, size

    def close(self) -> None:
        for partition in self:
            partition.close()
        self._partitions = {}
