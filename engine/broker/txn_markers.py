"""The markers that end a transaction on its partitions, and those that could not be written yet.

Duty         a decision that is in the log reaches every partition: at once where possible, else by retrying
Concurrency  any thread; whoever takes a completion out of the queue is the only one to work on it
Crash        the queue is derived: at start the coordinator finds the decisions that are not complete

A marker that is written twice is harmless, so nothing here needs to know what an earlier attempt has reached.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ..base.errors import (
    InvalidProducerEpochError,
    KafkaStorageError,
    OncelogError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
)
from .txn_metadata import PREPARE_COMMIT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ..partition.partition import Partition
    from ..segment.names import TopicPartition
    from .txn_metadata import TransactionMetadata, Transition

logger = logging.getLogger("oncelog.broker")


class Markers(Protocol):
    """What the coordinator needs of the broker."""

    def write_marker(
        self,
        key: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> None:
        """Appends a marker; UnknownTopicOrPartitionError says that the partition is gone for good."""

    def pass_by(self, keys: Iterable[TopicPartition]) -> None:
        """Returns when no append is under way any more that began before the call."""

    def sync(self, keys: Iterable[TopicPartition]) -> None:
        """Returns when the data of these partitions is on the device, where durability asks for that."""

    def sync_together(self, keys: Iterable[TopicPartition], ends: Mapping[Partition, int]) -> None:
        """Brings the data of partitions, and what else is named, to the device at the same time as far as that goes;
        ``sync`` says whether it is there."""


def sync_data(markers: Markers, transactional_id: str, keys: Collection[TopicPartition]) -> None:
    """The data is on the device before the decision that makes it count. A deleted topic has none."""
    try:
        try:
            markers.sync(keys)
        except UnknownTopicOrPartitionError:
            for key in keys:
                _sync_one(markers, key)
    except KafkaStorageError as error:
        raise TransactionAbortableError(
            f"transactional id {transactional_id!r}: its data cannot be made durable: {error}"
        ) from error


def _sync_one(markers: Markers, key: TopicPartition) -> None:
    try:
        markers.sync((key,))
    except UnknownTopicOrPartitionError:
        logger.info("%s is gone, there is nothing to make durable", key.directory)


class Completion:
    """A decision on its way to its partitions, and the move that follows when all have their marker."""

    __slots__ = ("has_waited", "metadata", "remaining", "transition")

    def __init__(self, metadata: TransactionMetadata, transition: Transition) -> None:
        self.metadata = metadata
        self.transition = transition
        self.remaining = metadata.value.partitions
        self.has_waited = False

    def write(self, markers: Markers, coordinator_epoch: int, stuck: Stuck) -> bool:
        """Writes the markers that are missing; True if none is any more."""
        value = self.metadata.value
        committed = value.state is PREPARE_COMMIT
        version = value.client_transaction_version or 1
        missing = []
        for key in self.remaining:
            try:
                markers.write_marker(
                    key,
                    value.producer_id,
                    value.producer_epoch,
                    committed=committed,
                    coordinator_epoch=coordinator_epoch,
                    transaction_version=version,
                )
            except UnknownTopicOrPartitionError:
                logger.info("%r: %s is gone and needs no marker", self.metadata, key.directory)
            except (InvalidProducerEpochError, TransactionCoordinatorFencedError) as error:
                # Somebody newer has ended the transaction there: trying again would never succeed.
                logger.warning("%r: %s has no use for it: %s", self.metadata, key.directory, error)
            except OncelogError as error:
                sentence = "%r: %s must wait: %s"
                stuck.note(key.directory, sentence, self.metadata, key.directory, error)
                missing.append(key)
            else:
                if stuck.names:
                    stuck.clear(key.directory)
        self.remaining = tuple(missing)
        return not missing


class Stuck:
    """Partitions that could not be written. Each is warned of once, however many transactions wait for it, and once
    more when it has been writable in between."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def note(self, name: str, sentence: str, *details: object) -> None:
        level = logging.DEBUG if name in self.names else logging.WARNING  # said once is enough
        self.names.add(name)
        logger.log(level, sentence, *details)

    def clear(self, name: str) -> None:
        if name in self.names:
            self.names.discard(name)
            logger.info("%s can be written again", name)


class MarkerQueue:
    """Completions that wait for their next attempt, by transactional id."""

    def __init__(self) -> None:
        self._waiting: dict[str, Completion] = {}
        self.stuck = Stuck()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, completion: Completion) -> None:
        completion.has_waited = True
        self._waiting[completion.metadata.transactional_id] = completion

    def take_all(self) -> list[Completion]:
        """What waits now. Each is taken by one caller; a dictionary's pop is the arbiter."""
        taken = (self._waiting.pop(name, None) for name in list(self._waiting))
        return [completion for completion in taken if completion is not None]
