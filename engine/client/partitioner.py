"""Which partition a record goes to, if its sender does not say.

A key decides by Java's murmur2, so that all clients agree; records without one stick to a partition until a batch is
full, so that batches fill. The choice per record is native (`pyext/accumulator.pyx`); here is the choice per batch.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from .._native.accumulator import key_partition, key_partitions, murmur2
from ..base.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .._native.accumulator import PartitionIntake, TopicIntake

__all__ = ["Partitioner", "key_partition", "key_partitions", "murmur2"]


class Partitioner:
    """Chooses the next partition for records without a key. Any thread may ask.

    A partition that is slow has batches waiting. Of two partitions drawn by chance the one with the shorter queue is
    taken: that evens out load nearly as well as looking at all of them, and costs the same for a thousand.
    """

    def __init__(self, options: Mapping[str, Any], seed: int | None = None) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._is_adaptive: bool = options["partitioner.adaptive.partitioning.enable"]
        self._avoid_after_ms: int = options["partitioner.availability.timeout.ms"]
        self.rotates = options["partitioner.class"] == "roundrobin"
        self.ignores_keys: bool = options["partitioner.ignore.keys"]

    def next_sticky(self, topic: TopicIntake, current: int | None = None) -> int:
        """A partition to stick to, another one than ``current`` where there is a choice."""
        count = len(topic.partitions)
        if count == 1:
            return 0
        first = self._draw(count, current)
        if not self._is_adaptive:
            return first
        second = self._draw(count, current)
        return min(first, second, key=lambda number: self._load(topic.partitions[number]))

    def _draw(self, count: int, current: int | None) -> int:
        if current is None:
            return self._random.randrange(count)
        drawn = self._random.randrange(count - 1)
        return drawn + (drawn >= current)

    def _load(self, partition: PartitionIntake) -> tuple[bool, int]:
        """What speaks against a partition: that it keeps batches waiting for long, and how many."""
        waiting = partition.waiting
        is_stuck = False
        if self._avoid_after_ms and waiting:
            is_stuck = monotonic_s() * 1000 - waiting[0].opened_ms > self._avoid_after_ms
        return is_stuck, len(waiting)
