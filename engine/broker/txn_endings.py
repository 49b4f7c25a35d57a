"""How transactions end: the decision, the markers that follow from it, and the word that all are written.

Duty         carries a decision out, from whoever made it; answers calls that end a transaction, several at a time.
Concurrency  any thread. No lock is held during an fdatasync or while markers are written: the move that is under way
             answers everybody else CONCURRENT_TRANSACTIONS.
Crash        a decision that was logged is carried out at the next load; what was not logged has not happened.

Calls that end transactions at the same time wait for the device together: first for all data, then for all decisions.
A call that fails, fails alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..base.errors import (
    CoordinatorNotAvailableError,
    KafkaStorageError,
    OncelogError,
)
from .producer_ids import ProducerIdentity
from .txn_markers import Completion, sync_data
from .txn_metadata import DECIDED, NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..segment.names import TopicPartition
    from .producer_ids import ProducerIds
    from .txn_markers import MarkerQueue, Markers
    from .txn_metadata import TransactionMetadata, Transition
    from .txn_states import TransactionStates

logger = logging.getLogger("oncelog.broker")


class Ending:
    """A call that ends a transaction: what is asked, how far it has come, and an identity or an error at last."""

    __slots__ = (
        "committed",
        "decision_end",
        "error",
        "identity",
        "is_answered",
        "metadata",
        "producer_epoch",
        "producer_id",
        "transactional_id",
        "transition",
        "version",
    )

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        version: int,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.committed = committed
        self.version = version
        self.metadata: TransactionMetadata | None = None
        self.transition: Transition | None = None  # once the move has begun
        self.decision_end = -1  # the offset after the decision, once it is logged
        self.identity: ProducerIdentity | None = None
        self.error: Exception | None = None
        self.is_answered = False  # last: then one of the two above is there

    @property
    def move(self) -> tuple[TransactionMetadata, Transition]:
        """Whose state changes, and how; for a call that was let through."""
        assert self.metadata is not None
        assert self.transition is not None
        return self.metadata, self.transition

    def fail(self, error: Exception) -> None:
        self.error = error
        self.is_answered = True

    def give_up(self) -> None:
        """Who was about it was interrupted: whoever asks again finds out how far it came."""
        self.fail(
            CoordinatorNotAvailableError(
                f"transactional id {self.transactional_id!r}: its end was interrupted"
            )
        )

    def answer(self) -> ProducerIdentity:
        if not self.is_answered:  # who was to give it up was interrupted, too
            self.give_up()
        if self.error is not None:
            raise self.error
        assert self.identity is not None
        return self.identity


class TransactionEndings:
    """The part of a coordinator that ends transactions."""

    def __init__(
        self,
        states: TransactionStates,
        producer_ids: ProducerIds,
        markers: Markers,
        queue: MarkerQueue,
        now_ms: Callable[[], int],
    ) -> None:
        self._states = states
        self._producer_ids = producer_ids
        self._markers = markers
        self._now_ms = now_ms
        self._queue = queue
        # Producer ids whose open transaction was kept for another holder: they may not add to it any more.
        self.kept: set[int] = set()

    def end_together(self, endings: list[Ending]) -> None:
        """Ends transactions and answers each call; those that wait for the device do so at the same time."""
        markers, log = self._markers, self._states.log
        try:
            begun = self._each(self._prepare_ending, endings)
            if len(begun) > 1:
                markers.sync_together(_data_of(begun), {})
            decided = self._each(self._log_decision, begun)
            if len(decided) > 1:
                markers.sync_together((), log.unsynced(map(_decision_of, decided)))
            self._each(self._carry_out_ending, decided)
        except BaseException:
            # A person interrupts: all who wait hear that it is not known how far it came.
            for ending in endings:
                if not ending.is_answered:
                    self._rescue(ending.metadata, ending.transition)
                    ending.give_up()
            raise

    def _each(self, step: Callable[[Ending], None], endings: list[Ending]) -> list[Ending]:
        """Takes a step with each; returns those that are not answered by it."""
        left = []
        for ending in endings:
            try:
                step(ending)
            except Exception as error:  # it belongs to one caller, the others go on  # noqa: BLE001
                self._rescue(ending.metadata, ending.transition)
                ending.fail(error)
            if not ending.is_answered:
                left.append(ending)
        return left

    def _prepare_ending(self, ending: Ending) -> None:
        metadata = ending.metadata = self._states.need(ending.transactional_id)
        with metadata.lock:
            if not metadata.may_end(
                ending.producer_id,
                ending.producer_epoch,
                committed=ending.committed,
                version=ending.version,
            ):
                ending.identity = ProducerIdentity(*metadata.holder)
                ending.is_answered = True
                return
            ending.transition = metadata.prepare_end(
                self._now_ms(),
                committed=ending.committed,
                version=ending.version,
                new_producer_id=self._id_for_end(metadata, ending.version),
            )

    def _log_decision(self, ending: Ending) -> None:
        """The data is on the device before the decision that makes it count is written."""
        metadata, transition = ending.move
        if ending.committed:
            sync_data(self._markers, metadata.transactional_id, transition.value.partitions)
        try:
            ending.decision_end = self._states.append(metadata, transition.value)
        except BaseException as error:
            self._states.cancel_move(metadata, transition, error)
            raise

    def _carry_out_ending(self, ending: Ending) -> None:
        """Once the decision is on the device, nothing changes it."""
        metadata, transition = ending.move
        try:
            self._states.log.sync(metadata.state_partition, ending.decision_end)
        except BaseException as error:
            self._states.cancel_move(metadata, transition, error)
            raise
        self._follow(metadata, transition)
        value = transition.value
        if value.next_producer_id != NO_PRODUCER_ID:
            ending.identity = ProducerIdentity(
                value.next_producer_id, value.next_producer_epoch + 1
            )
        else:
            ending.identity = ProducerIdentity(value.producer_id, value.producer_epoch)
        ending.is_answered = True

    def _id_for_end(self, metadata: TransactionMetadata, version: int) -> int:
        if version >= 2 and metadata.needs_new_producer_id:
            return self._next_producer_id()
        return NO_PRODUCER_ID

    def _next_producer_id(self) -> int:
        try:
            return self._producer_ids.next()
        except KafkaStorageError as error:
            raise CoordinatorNotAvailableError(f"no producer id can be taken: {error}") from error

    def _carry_out(self, metadata: TransactionMetadata, transition: Transition) -> bool:
        """Logs a decision and does what follows from it; False if markers have to wait."""
        self._states.log_move(metadata, transition, is_synced=True)
        return self._follow(metadata, transition)

    def _follow(self, metadata: TransactionMetadata, transition: Transition) -> bool:
        """What follows from a decision that is logged; False if markers have to wait."""
        with metadata.lock:
            metadata.complete(transition)
            completion = Completion(metadata, metadata.prepare_complete(self._now_ms()))
        return self._finish(completion)

    def _rescue(self, metadata: TransactionMetadata | None, transition: Transition | None) -> None:
        """A move was cut short, by an error or by a person: what is not known to be logged is undone, and a decision
        that is goes on with the markers that are tried again. Else nobody could ever use the id again."""
        if transition is None or metadata is None:
            return
        with metadata.lock:
            metadata.cancel(transition)
            if metadata.value is transition.value and metadata.state in DECIDED:
                following = metadata.pending or metadata.prepare_complete(self._now_ms())
                self._queue.put(Completion(metadata, following))

    def _finish(self, completion: Completion) -> bool:
        """Writes markers, then that it is complete. Whatever is left to do goes into the queue."""
        metadata, transition = completion.metadata, completion.transition
        producer_id, is_done, stuck = metadata.value.producer_id, False, self._queue.stuck
        try:
            if completion.write(self._markers, self._states.log.leader_epoch, stuck):
                self._complete(metadata, transition)
                is_done = True
                if stuck.names:
                    stuck.clear(self._states.directory_of(metadata))
        except OncelogError as error:
            sentence = "%r cannot be completed yet: %s"
            stuck.note(self._states.directory_of(metadata), sentence, metadata, error)
        finally:
            if is_done:
                # Under one lock, or the next transaction of the same producer could be taken off the tables.
                with metadata.lock:
                    self._states.open.pop(producer_id, None)
                    self.kept.discard(producer_id)
                    metadata.complete(transition)
                if completion.has_waited:
                    logger.info("%r had to wait", metadata)
                else:
                    logger.debug("%r", metadata)
            else:
                self._queue.put(completion)
        return is_done

    def _complete(self, metadata: TransactionMetadata, transition: Transition) -> None:
        """Logs that all markers are written.

        Version 1 has one epoch for all transactions of a holder, so that nobody could tell, after a power failure,
        which of them a partition has open: there, nothing of the next one is written before this one is durable.
        """
        if metadata.value.client_transaction_version >= 2:
            self._states.append(metadata, transition.value)
            return
        sync_data(self._markers, metadata.transactional_id, metadata.value.partitions)
        end = self._states.append(metadata, transition.value)
        self._states.log.sync(metadata.state_partition, end)


def _data_of(endings: Iterable[Ending]) -> set[TopicPartition]:
    """The partitions whose data has to be on the device before a decision about it."""
    committed = (ending.move[1].value for ending in endings if ending.committed)
    return {key for value in committed for key in value.partitions}


def _decision_of(ending: Ending) -> tuple[int, int]:
    """Where a decision is in the log of transactions: its partition, and the offset after it."""
    return ending.move[0].state_partition, ending.decision_end
