"""A broker whose partitions a test writes to itself, batch by batch, with a clock and segment sizes of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.base.errors import OncelogError
from oncelog.broker.broker import Broker
from oncelog.broker.topics import NewTopic
from oncelog.segment.names import TopicPartition

from ..partition.logs import NOW, options

if TYPE_CHECKING:
    import os

    from oncelog.partition.partition import Partition, PartitionOptions


class LocalBroker(Broker):
    def __init__(self, path: str | os.PathLike[str], using: PartitionOptions | None = None) -> None:
        self.time_ms = NOW
        self.using = using or options()
        super().__init__(path, now_ms=lambda: self.time_ms)

    def create(self, topic: str, partition: int = 0) -> Partition:
        """A partition, with its topic where that is new. Its segments may be smaller than a topic's option allows."""
        if topic not in self.topics():
            answer = self.create_topics([NewTopic(topic, partition + 1, 1, None)])[topic]
            assert not isinstance(answer, OncelogError)
        elif partition >= self.partition_count(topic):
            assert self.create_partitions({topic: partition + 1}) == {topic: None}
        found = self.partition(TopicPartition(topic, partition))
        found.reconfigure(self.using)
        return found

    def take_in(self, partition: Partition) -> None:
        """Serves a partition that was made elsewhere."""
        self._open[partition.key] = partition

    def delete(self, key: TopicPartition) -> None:
        assert self.delete_topics([key.topic]) == {key.topic: None}
