"""The verbs of transactions: what producers, the coordinator and administrators ask of a broker."""

from __future__ import annotations

import abc
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from .._native.syncing import sync_partitions
from ..base.errors import InvalidRequestError, OncelogError
from ..partition.partition import Origin
from ..segment.batch import ControlType, encode_marker
from .answers import Node, ProducerDescription
from .topics import CONSUMER_OFFSETS
from .txn_endings import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .._native.crew import Crew
    from ..partition.partition import Partition
    from ..segment.names import TopicPartition
    from .answers import TxnMarker
    from .group_coordinator import GroupCoordinator
    from .producer_ids import ProducerIdentity
    from .txn_coordinator import TransactionCoordinator
    from .txn_states import TransactionDescription, TransactionListing

logger = logging.getLogger("oncelog.broker")

EPOCH_MAX: Final = 2**15 - 1


class TransactionVerbs(abc.ABC):
    """The part of a broker that is about transactions; also what the coordinator needs of it (txn_markers.Markers)."""

    config: Mapping[str, Any]
    groups: GroupCoordinator
    is_synced: bool
    leader_epoch: int
    node_id: int
    now_ms: Callable[[], int]
    transactions: TransactionCoordinator
    crew: Crew

    @abc.abstractmethod
    def partition(self, key: TopicPartition) -> Partition: ...

    @abc.abstractmethod
    def check_open(self) -> None: ...

    @abc.abstractmethod
    def existing(self) -> list[TopicPartition]:
        """The partitions of all topics that are known, internal ones among them."""

    def find_coordinator(self, key: str) -> Node:  # noqa: ARG002
        """Who coordinates a transactional id or a group: in one process, this broker."""
        return Node(self.node_id, "", -1)

    def init_producer_id(
        self,
        transactional_id: str | None,
        transaction_timeout_ms: int = 60_000,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        enable_two_phase_commit: bool = False,
        keep_prepared: bool = False,
    ) -> ProducerIdentity:
        """A producer's id and epoch. With a transactional id, older holders of it are fenced."""
        self.check_open()
        if enable_two_phase_commit and not self.config["transaction.two.phase.commit.enable"]:
            raise InvalidRequestError(
                "two-phase commit is off: open with config transaction.two.phase.commit.enable=true"
            )
        return self.transactions.init_producer_id(
            transactional_id,
            transaction_timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            enable_two_phase_commit=enable_two_phase_commit,
            keep_prepared=keep_prepared,
        )

    def add_partitions_to_txn(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        verify_only: bool = False,
        transaction_version: int = 1,
    ) -> None:
        """Says which partitions a transaction is about to write to. All must be there, or none is added."""
        keys = list(partitions)
        for key in keys:
            self.partition(key)
        self.transactions.add_partitions_to_txn(
            transactional_id,
            producer_id,
            producer_epoch,
            keys,
            verify_only=verify_only,
            transaction_version=transaction_version,
        )

    def add_offsets_to_txn(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
        *,
        transaction_version: int = 1,
    ) -> None:
        """Says that a transaction is about to commit offsets of a group."""
        self.check_open()
        self.transactions.add_partitions_to_txn(
            transactional_id,
            producer_id,
            producer_epoch,
            [self.groups.offsets_partition(group_id)],
            transaction_version=transaction_version,
        )

    def end_txn(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        transaction_version: int = 2,
    ) -> ProducerIdentity:
        """Ends a transaction; when it returns, readers see its records, or never will."""
        self.check_open()
        ending = Ending(
            *(transactional_id, producer_id, producer_epoch),
            committed=committed,
            version=transaction_version,
        )
        if self.is_synced:
            self.crew.call(ending, self.transactions.end_together)
        else:
            self.transactions.end_together([ending])
        return ending.answer()

    def prepare_txn(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """The first phase of two: an open transaction is as durable as a committed one would be."""
        self.check_open()
        self.transactions.prepare_txn(transactional_id, producer_id, producer_epoch)

    def complete_transaction(self, transactional_id: str, *, commit: bool) -> None:
        """Ends a prepared transaction: one that its producer declared ready, for an outside coordinator to decide."""
        self.check_open()
        self.transactions.complete_transaction(transactional_id, committed=commit)

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
        """Ends a producer's transaction on one partition, for the coordinator."""
        now_ms, partition = self.now_ms(), self.partition(key)
        bumps_epoch = transaction_version >= 2
        offset = -1
        if committed:
            offset = partition.append_commit(
                *(producer_id, producer_epoch, coordinator_epoch),
                *(self.leader_epoch, now_ms, bumps_epoch),
            )
        if offset < 0:
            marker = encode_marker(
                ControlType.COMMIT if committed else ControlType.ABORT,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp_ms=now_ms,
            )
            offset = partition.append_as_leader(
                memoryview(marker),
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=Origin.COORDINATOR,
                bumps_epoch=bumps_epoch,
            ).base_offset
        if key.topic == CONSUMER_OFFSETS:
            self.groups.on_txn_marker(
                key.partition, producer_id, committed=committed, offset=offset
            )

    def pass_by(self, keys: Iterable[TopicPartition]) -> None:
        """Returns when no append is under way any more that began before the call."""
        for key in keys:
            with contextlib.suppress(OncelogError), self.partition(key).lock:
                pass  # what can no longer be found takes no append either

    def sync(self, keys: Iterable[TopicPartition]) -> None:
        """Returns when everything in some partitions is on the device, where durability asks for it."""
        if self.is_synced:
            for key in keys:
                partition = self.partition(key)
                if not partition.is_synced:
                    partition.sync_to(partition.log_end_offset)

    def sync_together(self, keys: Iterable[TopicPartition], ends: Mapping[Partition, int]) -> None:
        """Brings partitions to the device at the same time, as far as that goes."""
        if self.is_synced:
            wanted = dict(ends)
            for key in keys:
                with contextlib.suppress(OncelogError):  # sync() says so
                    partition = self.partition(key)
                    wanted[partition] = partition.log_end_offset
            sync_partitions(wanted)

    def write_txn_markers(
        self, markers: Iterable[TxnMarker]
    ) -> dict[tuple[int, TopicPartition], OncelogError | None]:
        """Ends transactions on single partitions, whatever the coordinator knows: the way out of one that hangs."""
        answers: dict[tuple[int, TopicPartition], OncelogError | None] = {}
        for marker in markers:
            for key in marker.partitions:
                try:
                    self.write_marker(
                        key,
                        marker.producer_id,
                        marker.producer_epoch,
                        committed=marker.committed,
                        coordinator_epoch=marker.coordinator_epoch,
                        transaction_version=marker.transaction_version,
                    )
                    answers[marker.producer_id, key] = None
                except OncelogError as error:
                    answers[marker.producer_id, key] = error
        return answers

    def describe_producers(self, key: TopicPartition) -> list[ProducerDescription]:
        """The producers that a partition remembers, those with an open transaction among them."""
        return [
            ProducerDescription(
                row.producer_id,
                row.producer_epoch,
                row.last_sequence,
                row.last_timestamp,
                row.coordinator_epoch,
                row.current_txn_first_offset,
            )
            for row in self.partition(key).active_producers()
        ]

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | OncelogError]:
        answers: dict[str, TransactionDescription | OncelogError] = {}
        for name in transactional_ids:
            try:
                answers[name] = self.transactions.describe_transaction(name)
            except OncelogError as error:
                answers[name] = error
        return answers

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        duration_ms_min: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        return self.transactions.list_transactions(
            states=states,
            producer_ids=producer_ids,
            duration_ms_min=duration_ms_min,
            id_pattern=id_pattern,
        )

    def _end_unknown_transactions(self) -> None:
        """Ends what the logs have open and the coordinator has not, or no reader would get past it.

        Markers are not synced: a power failure may take one and leave the word that all are written, so what was
        decided is looked up. Where nothing was, nothing was promised, and the transaction is aborted.
        """
        hanging = [
            (key, row)
            for key in self.existing()
            for row in self.partition(key).active_producers()
            if row.current_txn_first_offset >= 0
            and not self.transactions.claims(key, row.producer_id, row.producer_epoch)
        ]
        decisions = self.transactions.decisions([row.producer_id for _, row in hanging])
        for key, row in hanging:
            decision = decisions.get((row.producer_id, row.producer_epoch, key))
            logger.warning(
                "%s: the transaction of producer %d at offset %d, which no coordinator knows, is %s",
                key.directory,
                row.producer_id,
                row.current_txn_first_offset,
                "committed, as was decided" if decision else "aborted",
            )
            self.write_marker(
                key,
                row.producer_id,
                min(row.producer_epoch + 1, EPOCH_MAX),
                committed=bool(decision),
                coordinator_epoch=max(self.leader_epoch, row.coordinator_epoch),
                transaction_version=1,
            )
