"""What an administrator asks with and is answered with, where the broker's own answers do not say enough.

The broker's are handed on as they are: TopicDescription, ListedOffset, ProducerDescription, GroupListing,
TransactionListing, TransactionDescription, ResetPlan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..segment.names import TopicPartition


class TopicListing(NamedTuple):
    """A topic in a list."""

    name: str
    topic_id: str
    is_internal: bool


class ConfigResource(NamedTuple):
    """What options belong to: a topic by its name, or the broker (whose name is its node id, or empty)."""

    kind: str
    name: str = ""


class ConfigEntry(NamedTuple):
    """An option's value, as Python's and as Kafka's text, and who set it.

    ``source``: "topic" or "broker" where it was altered, "open" where it was given to oncelog.open, else "default".
    One that is read only can be given to oncelog.open alone.
    """

    name: str
    value: Any
    text: str | None
    source: str
    is_read_only: bool
    doc: str

    @property
    def is_default(self) -> bool:
        return self.source == "default"


class DeletedRecords(NamedTuple):
    """The first offset that is left."""

    low_watermark: int


class ReplicaInfo(NamedTuple):
    """How large a partition is: the bytes of its segments, without indexes, as Kafka counts."""

    size: int
    offset_lag: int = 0
    is_future: bool = False


class LogDirDescription(NamedTuple):
    """A data directory and what is in it."""

    path: str
    replicas: Mapping[TopicPartition, ReplicaInfo]

    @property
    def size(self) -> int:
        return sum(replica.size for replica in self.replicas.values())


class GroupMemberDescription(NamedTuple):
    """A member of a group; topics and assignment are known while the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]


class GroupLag(NamedTuple):
    """How far a group is behind on one partition.

    ``end_offset`` is the last stable offset: what nobody can read yet, nobody is behind of. None stands for what is
    not there: a commit, a topic that was deleted, a member that reads the partition.
    """

    committed_offset: int | None
    end_offset: int | None
    lag: int | None
    member_id: str | None


class ConsumerGroupDescription(NamedTuple):
    """A group with its members and how far behind it is."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    partition_assignor: str
    generation: int
    leader: str | None
    members: tuple[GroupMemberDescription, ...]
    lags: Mapping[TopicPartition, GroupLag]

    @property
    def lag(self) -> int:
        """Of all partitions with a commit."""
        return sum(entry.lag or 0 for entry in self.lags.values())


class HangingTransaction(NamedTuple):
    """A transaction that a partition has open and that will not end by itself.

    Without a transactional id nobody knows it any more, and ``abort_transaction`` ends it. With one, its coordinator
    does, and it is overdue: ``force_terminate_transaction`` ends it.
    """

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    duration_ms: int
    transactional_id: str | None


class PreparedListing(NamedTuple):
    """An open transaction whose end is left to an outside coordinator."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]
