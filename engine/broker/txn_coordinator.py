"""The transaction coordinator: who holds a transactional id, which transactions are open, how each one ends.

Duty         Kafka's coordinator of versions 1 and 2, as a set of calls that answer at once
Concurrency  any thread. A transaction's lock comes before a partition's. No lock is held during an fdatasync or while
             markers are written: the move that is under way answers everybody else CONCURRENT_TRANSACTIONS.
Crash        the state is a replay of __transaction_state. A decision that was logged is carried out at the next load;
             what was not logged has not happened.
Durability   with "fsync" a call that gives out an epoch, or decides, returns when that is on the device: in version 2
             a commit costs one fdatasync per partition for its data and one for the decision. Markers and the last
             record follow from the decision and need none; nor does a partition that is added, as the decision names
             all. Version 1 syncs markers and last record as well, since its epoch does not tell transactions apart.

A call that ends a transaction logs the decision, writes the markers of all partitions that can be written, logs the
completion and answers; so a reader opened next sees the outcome. Where a marker must wait, the answer is the same, as
nothing can change the decision, and ``retry_markers`` does the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..base.errors import (
    ConcurrentTransactionsError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    OncelogError,
    TransactionAbortableError,
)
from .producer_ids import ProducerIdentity
from .txn_endings import Ending, TransactionEndings
from .txn_markers import Completion, MarkerQueue, Markers, sync_data
from .txn_metadata import (
    DEAD,
    NEVER_MS,
    NO_EPOCH,
    NO_PRODUCER_ID,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_EPOCH_FENCE,
    PREPARED,
    TransactionMetadata,
    Transition,
)
from .txn_states import TransactionDescription, TransactionListing, TransactionStates

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ..segment.names import TopicPartition
    from .producer_ids import ProducerIds
    from .state_log import StateLog

__all__ = [
    "CoordinatorOptions",
    "Markers",
    "ProducerIdentity",
    "TransactionCoordinator",
    "TransactionDescription",
    "TransactionListing",
]

logger = logging.getLogger("oncelog.broker")

Answer = TypeVar("Answer")


class CoordinatorOptions(NamedTuple):
    """Rules of the coordinator; names are those of Kafka's broker options.

    ``transaction_version`` is the feature of that name: how a transaction is ended that not its holder ends.
    """

    transaction_max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    transaction_version: int = 2

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> CoordinatorOptions:
        """The options among those of a broker, by Kafka's dotted names."""
        return cls(
            transaction_max_timeout_ms=config["transaction.max.timeout.ms"],
            transactional_id_expiration_ms=config["transactional.id.expiration.ms"],
        )


class TransactionCoordinator(TransactionEndings):
    """All transactional ids of one broker."""

    def __init__(
        self,
        state: StateLog,
        producer_ids: ProducerIds,
        markers: Markers,
        options: CoordinatorOptions,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(TransactionStates(state), producer_ids, markers, MarkerQueue(), now_ms)
        self.options = options

    def load(self, settle: Callable[[], None] = lambda: None) -> None:
        """Replays the log. Decisions are carried out, open transactions stay open until they end or time out.

        ``settle`` is called in between: what is left open of an older transaction has to end first, as a marker ends
        whatever its producer has open.
        """
        self._states.load()
        self.kept = {at for at, metadata in self._states.open.items() if metadata.is_kept}
        settle()
        for metadata in list(self._states.open.values()):
            if metadata.state in PREPARED:
                self._resume(metadata)

    def _resume(self, metadata: TransactionMetadata) -> None:
        logger.info("%r is carried out", metadata)
        if metadata.state is not PREPARE_EPOCH_FENCE:
            with metadata.lock:
                transition = metadata.prepare_complete(self._now_ms())
            self._finish(Completion(metadata, transition))
            return
        try:  # a state that Kafka has a number for and does not log
            with metadata.lock:
                transition = self._prepare_fence(metadata)
            self._carry_out(metadata, transition)
        except OncelogError as error:
            logger.warning("%r could not be carried out: %s", metadata, error)

    # ------------------------------------------------------------ who holds an id

    def init_producer_id(
        self,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_EPOCH,
        enable_two_phase_commit: bool = False,
        keep_prepared: bool = False,
    ) -> ProducerIdentity:
        """A producer's identity; older holders of the transactional id are shut out, their transaction is aborted.

        A producer that names its id and epoch goes on as the same holder. ``keep_prepared``: an open transaction is
        not aborted but kept, for the new holder to end it; ``ongoing_*`` of the answer say whose it was.
        """
        if transactional_id is None:
            return ProducerIdentity(self._next_producer_id(), 0)
        timeout_ms = self._check_init(
            transactional_id,
            transaction_timeout_ms,
            enable_two_phase_commit=enable_two_phase_commit,
            keep_prepared=keep_prepared,
        )
        while True:
            metadata = self._states.ids.get(transactional_id) or self._create(
                transactional_id, timeout_ms
            )
            transition = None
            try:
                with metadata.lock:
                    if metadata.state is DEAD:
                        continue  # it expired a moment ago, and a new one takes its place
                    metadata.check_init(producer_id, producer_epoch)
                    claim = (producer_id, producer_epoch)
                    transition = self._prepare_init(
                        metadata, timeout_ms, *claim, keep_prepared=keep_prepared
                    )
                if transition.value.state is not PREPARE_ABORT:
                    return self._hand_out(metadata, transition)
                is_complete = self._carry_out(metadata, transition)
            except BaseException:
                self._rescue(metadata, transition)
                raise
            if not is_complete:
                raise ConcurrentTransactionsError(
                    f"transactional id {transactional_id!r}: its last transaction is being aborted"
                )

    def _check_init(
        self,
        transactional_id: str,
        timeout_ms: int,
        *,
        enable_two_phase_commit: bool,
        keep_prepared: bool,
    ) -> int:
        """The timeout that will count."""
        if not transactional_id:
            raise InvalidRequestError("a transactional id has at least one character")
        if enable_two_phase_commit:
            return NEVER_MS
        if keep_prepared:
            raise InvalidRequestError("only with two-phase commit is a prepared transaction kept")
        longest = self.options.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest:
            raise InvalidTransactionTimeoutError(
                f"transaction.timeout.ms is between 1 and transaction.max.timeout.ms = {longest}, not {timeout_ms}"
            )
        return timeout_ms

    def _create(self, transactional_id: str, timeout_ms: int) -> TransactionMetadata:
        """A new id. Of two threads that meet here one wins, and a producer id is lost."""
        self._states.check_readable(transactional_id)
        metadata = TransactionMetadata.new(
            transactional_id,
            self._next_producer_id(),
            timeout_ms,
            self._now_ms(),
            state_partition=self._states.log.partition_for(transactional_id),
        )
        return self._states.add(metadata)

    def _prepare_init(
        self,
        metadata: TransactionMetadata,
        timeout_ms: int,
        producer_id: int,
        producer_epoch: int,
        *,
        keep_prepared: bool,
    ) -> Transition:
        now_ms = self._now_ms()
        if metadata.state is ONGOING:
            if not keep_prepared:
                return self._prepare_fence(metadata)
            new_id = self._next_producer_id() if metadata.must_rotate_to_keep else NO_PRODUCER_ID
            return metadata.prepare_keep(timeout_ms, now_ms, new_producer_id=new_id)
        is_named = producer_id != NO_PRODUCER_ID
        expected = producer_epoch if is_named else NO_EPOCH
        if metadata.needs_new_producer_id and expected in (NO_EPOCH, metadata.value.producer_epoch):
            return metadata.prepare_rotation(
                self._next_producer_id(), timeout_ms, now_ms, keeps_epoch=is_named
            )
        return metadata.prepare_init(timeout_ms, now_ms, expected_epoch=expected)

    def _hand_out(self, metadata: TransactionMetadata, transition: Transition) -> ProducerIdentity:
        """Logs who the new holder is, then says so."""
        value = transition.value
        try:
            if value.state is ONGOING:
                # Appends look at this under their partition's lock: after the next line none is on its way any more.
                self.kept.add(value.producer_id)
                self._markers.pass_by(value.partitions)
            self._states.log_move(metadata, transition, is_synced=True)
            with metadata.lock:
                metadata.complete(transition)
                identity = ProducerIdentity(*metadata.holder)
        except BaseException:
            if not metadata.is_kept:
                self.kept.discard(value.producer_id)
            raise
        logger.info("%r is initialized", metadata)
        if value.state is ONGOING:
            return identity._replace(
                ongoing_producer_id=value.producer_id, ongoing_producer_epoch=value.producer_epoch
            )
        return identity

    # ------------------------------------------------------------ partitions

    def add_partitions_to_txn(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool = False,
        transaction_version: int = 1,
    ) -> None:
        """Adds partitions to the open transaction, or begins one. ``verify_only`` asks whether they are in it."""
        metadata = self._states.need(transactional_id)
        with metadata.lock:
            metadata.check_add(producer_id, producer_epoch)
            if metadata.lacks(partitions):
                if verify_only:
                    raise self._not_in_transaction(metadata, partitions)
                self._add(metadata, partitions, transaction_version)

    def append(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        key: TopicPartition,
        append: Callable[[], Answer],
        *,
        transaction_version: int = 2,
    ) -> Answer:
        """Calls ``append``, during which the transaction stays as it is, with a partition in it.

        Version 2 adds the partition where it is missing, version 1 refuses. What is called must not ask the
        coordinator about the same id.
        """
        metadata = self._states.ids.get(transactional_id) or self._states.need(transactional_id)
        with metadata.lock:
            self._join(metadata, producer_id, producer_epoch, key, transaction_version)
            return append()

    def _join(
        self,
        metadata: TransactionMetadata,
        producer_id: int,
        producer_epoch: int,
        key: TopicPartition,
        version: int,
    ) -> None:
        """Under the lock: the partition is in the producer's open transaction when it returns."""
        value = metadata.value
        if (
            metadata.pending is None
            and value.producer_id == producer_id
            and value.producer_epoch == producer_epoch
            and value.next_producer_epoch < 0
            and value.state is ONGOING
            and key in metadata.partitions
        ):
            return  # every batch of a transaction but the first on its partition
        metadata.check_add(producer_id, producer_epoch)
        if version < 2:
            raise self._not_in_transaction(metadata, (key,))
        self._add(metadata, (key,), version)

    def _add(
        self, metadata: TransactionMetadata, keys: Collection[TopicPartition], version: int
    ) -> None:
        """Under the lock, which is held through the append: no move begins before this one is through."""
        transition = metadata.prepare_add(keys, self._now_ms(), version=version)
        try:
            self._states.append(metadata, transition.value)
            self._states.open[metadata.value.producer_id] = (
                metadata  # first: nothing open may be missed
            )
            metadata.complete(transition)
        except BaseException as error:
            self._states.cancel_move(metadata, transition, error)
            raise

    @staticmethod
    def _not_in_transaction(
        metadata: TransactionMetadata, keys: Collection[TopicPartition]
    ) -> TransactionAbortableError:
        names = ", ".join(key.directory for key in keys if key not in metadata.partitions)
        return TransactionAbortableError(
            f"{names}: not in the transaction of transactional id {metadata.transactional_id!r}"
        )

    # ------------------------------------------------------------ ends

    def prepare_txn(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Returns when an open transaction would survive what durability promises to survive, though not ended.

        This is the first phase of two; the transaction stays Ongoing, and with two-phase commit never times out.
        """
        metadata = self._states.need(transactional_id)
        with metadata.lock:
            metadata.check_add(producer_id, producer_epoch)
            keys = metadata.value.partitions
        sync_data(self._markers, metadata.transactional_id, keys)
        self._states.log.sync(metadata.state_partition)

    def end_txn(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        transaction_version: int = 2,
    ) -> ProducerIdentity:
        """Ends a transaction and answers with the identity for the next one, which version 2 bumps."""
        ending = Ending(
            *(transactional_id, producer_id, producer_epoch),
            committed=committed,
            version=transaction_version,
        )
        self.end_together([ending])
        return ending.answer()

    def complete_transaction(self, transactional_id: str, *, committed: bool) -> ProducerIdentity:
        """The second phase of two: ends a prepared transaction, whoever holds it, and shuts the holder out."""
        metadata = self._states.need(transactional_id)
        with metadata.lock:
            value = metadata.value
            if value.state is not ONGOING or value.transaction_timeout_ms != NEVER_MS:
                raise InvalidTxnStateError(
                    f"transactional id {transactional_id!r} has no prepared transaction,"
                    f" its state is {value.state.label}"
                )
            holder = metadata.holder
        return self.end_txn(transactional_id, *holder, committed=committed)

    def _prepare_fence(self, metadata: TransactionMetadata) -> Transition:
        """Aborts an open transaction against its holder."""
        version = self.options.transaction_version
        return metadata.prepare_end(
            self._now_ms(),
            committed=False,
            version=version,
            new_producer_id=self._id_for_end(metadata, version),
            is_fence=True,
        )

    # ------------------------------------------------------------ housekeeping

    def abort_timed_out(self) -> int:
        """Aborts transactions that are open for longer than their timeout; returns how many."""
        now_ms, count = self._now_ms(), 0
        for metadata in list(self._states.open.values()):
            if not _is_timed_out(metadata, now_ms):
                continue
            try:
                with metadata.lock:
                    if not _is_timed_out(metadata, now_ms):
                        continue
                    transition = self._prepare_fence(metadata)
                self._carry_out(metadata, transition)
            except OncelogError as error:
                logger.warning("%r timed out and could not be aborted: %s", metadata, error)
                continue
            logger.info("%r: its transaction timed out and is aborted", metadata)
            count += 1
        return count

    def retry_markers(self) -> int:
        """Tries the markers again that could not be written; returns how many transactions are complete now."""
        return sum(map(self._finish, self._queue.take_all()))

    def expire_ids(self) -> int:
        """Forgets ids that nobody has used for long; returns how many."""
        return self._states.expire(self._now_ms() - self.options.transactional_id_expiration_ms)

    # ------------------------------------------------------------ looking

    def knows(self, producer_id: int) -> bool:
        """Whether a transaction of this producer is open, or decided and not complete."""
        return producer_id in self._states.open

    def claims(self, key: TopicPartition, producer_id: int, producer_epoch: int) -> bool:
        """Whether the end of a known transaction will reach a partition that has it open.

        That a partition was added is not synced. Where a power failure took this and left the data, it is added
        again.
        """
        metadata = self._states.open.get(producer_id)
        if metadata is None:
            return False
        with metadata.lock:
            value = metadata.value
            has_bumped = value.state in PREPARED and value.client_transaction_version >= 2
            if value.producer_epoch != producer_epoch + has_bumped:
                return False  # an older transaction
            if key not in metadata.partitions:
                if value.state is not ONGOING:
                    return False
                self._add(metadata, (key,), value.client_transaction_version)
            return True

    def decisions(
        self, producer_ids: Collection[int]
    ) -> dict[tuple[int, int, TopicPartition], bool]:
        """How transactions of some producers were decided, by producer id, the epoch of their records, and
        partition: True is a commit. Found in the log, where a decision stays until its markers are durable."""
        return self._states.decisions(frozenset(producer_ids)) if producer_ids else {}

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """What is known of one id; of a kept transaction, who wrote it."""
        return self._states.describe(transactional_id)

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms_min: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids that pass all filters. States by Kafka's names, where one that does not exist matches
        none; a duration must be exceeded; a pattern must match the whole id."""
        return self._states.matching(
            self._now_ms(), states, producer_ids, duration_ms_min, id_pattern
        )


def _is_timed_out(metadata: TransactionMetadata, now_ms: int) -> bool:
    value = metadata.value
    return (
        value.state is ONGOING
        and metadata.pending is None
        and value.transaction_timeout_ms != NEVER_MS
        and value.start_ms + value.transaction_timeout_ms < now_ms
    )
