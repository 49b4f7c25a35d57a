"""The administrator of transactions: which are open, whose they are, and the ways out of one that does not end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..base.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from ..broker.answers import ProducerDescription, TxnMarker
from ..broker.txn_metadata import NEVER_MS, ONGOING, PREPARED
from ..broker.txn_records import TransactionState
from ..segment.names import partition_key
from .admin_answers import HangingTransaction, PreparedListing
from .admin_arguments import answer_of, integer, keys_of, list_of, name_of, names_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..broker.broker import Broker
    from ..broker.producer_ids import ProducerIdentity
    from ..broker.txn_states import TransactionDescription, TransactionListing
    from ..segment.names import TopicPartition

STATES: Final = tuple(state.label for state in TransactionState)
FENCING_TIMEOUT_MS: Final = 1  # of an id that is taken only to shut others out


class TransactionAdmin:
    """The part of an administrator that is about transactions and producers."""

    _broker: Broker

    # ------------------------------------------------------------ looking

    def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, list[ProducerDescription] | OncelogError]:
        """The producers that partitions remember; ``current_txn_start_offset`` is -1 without an open transaction."""
        answers: dict[TopicPartition, list[ProducerDescription] | OncelogError] = {}
        for key in keys_of(partitions):
            try:
                answers[key] = self._broker.describe_producers(key)
            except OncelogError as error:
                answers[key] = error
        return answers

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms_min: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids that pass all filters: states by Kafka's names ("Ongoing", "Empty", ...), longer
        open than a duration, with an id that a regular expression matches as a whole."""
        wanted = names_of(states, "the state of a transaction")
        for name in wanted:
            if name not in STATES:
                raise InvalidRequestError(
                    f"there is no transaction state {name!r}, only {', '.join(STATES)}"
                )
        return self._broker.list_transactions(
            states=wanted,
            producer_ids=[
                integer(number, "a producer id") for number in list_of(producer_ids, "producer ids")
            ],
            duration_ms_min=integer(duration_ms_min, "duration_ms_min"),
            id_pattern=None if id_pattern is None else name_of(id_pattern, "id_pattern"),
        )

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | OncelogError]:
        """What is known of transactional ids."""
        return self._broker.describe_transactions(names_of(transactional_ids, "a transactional id"))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """What is known of a transactional id: its state, producer, timeout, start and partitions."""
        return answer_of(self.describe_transactions([transactional_id]), transactional_id)

    # ------------------------------------------------------------ transactions that hang

    def find_hanging(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        max_transaction_timeout_ms: int | None = None,
    ) -> list[HangingTransaction]:
        """Transactions that hold readers up and will not end by themselves: those that partitions have open and the
        coordinator does not know, and those that it has open for longer than the longest timeout (by default the
        broker's transaction.max.timeout.ms). A prepared one may take as long as it likes."""
        longest_ms = self._broker.config["transaction.max.timeout.ms"]
        if max_transaction_timeout_ms is not None:
            longest_ms = integer(
                max_transaction_timeout_ms, "max_transaction_timeout_ms", minimum=0
            )
        found = []
        for key in self._searched(topic, partition):
            try:
                rows = self._broker.describe_producers(key)
                for row in rows:
                    if row.current_txn_start_offset >= 0:
                        hanging = self._hanging(key, row, longest_ms)
                        if hanging is not None:
                            found.append(hanging)
            except UnknownTopicOrPartitionError:
                continue  # deleted a moment ago
        return found

    def _searched(self, topic: str | None, partition: int | None) -> list[TopicPartition]:
        if topic is None:
            if partition is not None:
                raise InvalidRequestError("which topic's partition? Give the topic, too")
            return self._broker.existing()
        if partition is not None:
            key = partition_key((topic, partition))
            self._broker.partition(key)
            return [key]
        self._broker.partition_count(name_of(topic, "the name of a topic"))
        return [key for key in self._broker.existing() if key.topic == topic]

    def _hanging(
        self, key: TopicPartition, row: ProducerDescription, longest_ms: int
    ) -> HangingTransaction | None:
        now_ms = self._broker.now_ms()
        owner = self._owner(key, row)
        transactional_id = None
        duration_ms = now_ms - row.last_timestamp
        if owner is not None:
            duration_ms = now_ms - owner.start_ms
            if owner.transaction_timeout_ms == NEVER_MS or duration_ms <= longest_ms:
                return None
            transactional_id = owner.transactional_id
        elif not self._is_open_still(key, row):
            return None  # it ended between the two looks
        return HangingTransaction(
            key,
            row.producer_id,
            row.producer_epoch,
            row.coordinator_epoch,
            row.current_txn_start_offset,
            row.last_timestamp,
            duration_ms,
            transactional_id,
        )

    def _owner(
        self, key: TopicPartition, row: ProducerDescription
    ) -> TransactionDescription | None:
        """The transaction of the coordinator whose end will reach a partition that has it open."""
        for listing in self._broker.list_transactions(producer_ids=[row.producer_id]):
            found = self._broker.describe_transactions([listing.transactional_id])
            for owner in found.values():
                if (
                    not isinstance(owner, OncelogError)
                    and (owner.state is ONGOING or owner.state in PREPARED)
                    and owner.producer_id == row.producer_id
                    # A decision bumps the epoch before its markers, which end whatever is older, too.
                    and owner.producer_epoch >= row.producer_epoch
                    and key in owner.partitions
                ):
                    return owner
        return None

    def _is_open_still(self, key: TopicPartition, row: ProducerDescription) -> bool:
        opened = self._broker.partition(key).transaction_of(row.producer_id)
        return opened == (row.producer_epoch, row.current_txn_start_offset)

    def abort_transaction(self, topic_partition: tuple[str, int], start_offset: int) -> None:
        """Ends a hanging transaction on one partition, given by the offset that it starts at, with an ABORT marker.

        One that the coordinator knows is refused, as it may be committed elsewhere.
        """
        key = partition_key(topic_partition)
        integer(start_offset, "the start offset", minimum=0)
        for row in self._broker.describe_producers(key):
            if row.current_txn_start_offset == start_offset:
                break
        else:
            raise InvalidTxnStateError(
                f"{key.directory} has no open transaction that starts at offset {start_offset}: find_hanging lists them"
            )
        owner = self._owner(key, row)
        if owner is not None:
            raise InvalidTxnStateError(
                f"the transaction at offset {start_offset} of {key.directory} belongs to transactional id "
                f"{owner.transactional_id!r}, whose coordinator will end it: use force_terminate_transaction, "
                "or complete_transaction if it is prepared"
            )
        marker = TxnMarker(
            row.producer_id,
            row.producer_epoch,
            committed=False,
            partitions=(key,),
            coordinator_epoch=max(row.coordinator_epoch, 0),
        )
        answer_of(self._broker.write_txn_markers([marker]), (row.producer_id, key))

    # ------------------------------------------------------------ shutting producers out

    def fence_producers(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, ProducerIdentity | OncelogError]:
        """Shuts out whoever holds transactional ids, and aborts their open transactions. Ids need not be known yet."""
        answers: dict[str, ProducerIdentity | OncelogError] = {}
        for name in names_of(transactional_ids, "a transactional id"):
            try:
                answers[name] = self._broker.init_producer_id(name, FENCING_TIMEOUT_MS)
            except OncelogError as error:
                answers[name] = error
        return answers

    def force_terminate_transaction(self, transactional_id: str) -> None:
        """Aborts the transaction of a known transactional id, a prepared one, too, and shuts its holder out."""
        self.describe_transaction(transactional_id)
        answer_of(self.fence_producers([transactional_id]), transactional_id)

    # ------------------------------------------------------------ two-phase commit

    def list_prepared_transactions(self) -> list[PreparedListing]:
        """Open transactions of producers with two-phase commit, by id: they wait for ``complete_transaction``."""
        listed = self._broker.list_transactions(states=[ONGOING.label])
        names = sorted(listing.transactional_id for listing in listed)
        return [
            PreparedListing(
                found.transactional_id,
                found.producer_id,
                found.producer_epoch,
                found.start_ms,
                found.partitions,
            )
            for found in self._broker.describe_transactions(names).values()
            if not isinstance(found, OncelogError)
            and found.state is ONGOING
            and found.transaction_timeout_ms == NEVER_MS
        ]

    def complete_transaction(self, transactional_id: str, *, commit: bool) -> None:
        """Commits or aborts a prepared transaction, and shuts its holder out."""
        self.describe_transaction(transactional_id)
        self._broker.complete_transaction(transactional_id, commit=commit)
