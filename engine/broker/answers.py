"""What the broker's verbs answer with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..segment.names import TopicPartition
    from .waiting import PendingSync


class Produced(NamedTuple):
    """Where a batch went. ``pending`` is what an acknowledgement has to wait for, if anything."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    is_duplicate: bool
    pending: PendingSync | None


class ListedOffset(NamedTuple):
    """An offset and its record's timestamp; -1 where there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


class PartitionDescription(NamedTuple):
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int


class TopicDescription(NamedTuple):
    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


class ConfigValue(NamedTuple):
    """An option's value and who set it: the topic, the broker, or nobody."""

    value: Any
    source: str


class Node(NamedTuple):
    node_id: int
    host: str
    port: int


class TxnMarker(NamedTuple):
    """The end of a producer's transaction on some partitions."""

    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: tuple[TopicPartition, ...]
    coordinator_epoch: int = 0
    transaction_version: int = 1


class ProducerDescription(NamedTuple):
    """A producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int
