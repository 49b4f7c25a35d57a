"""One transactional id: its state, and every move it may make. No log, no clock, no waiting.

Duty         a move has two halves. ``prepare_*`` checks it and answers with a Transition, the value to be logged;
             ``complete`` takes that value over once it is in the log, ``cancel`` drops it where that failed.
Concurrency  callers hold ``lock`` around each half, not in between: there, ``pending`` keeps everybody else out.
Crash        ``value`` is what the log's last record says; only ``last_producer_epoch`` is lost, as in Kafka.
Fails        an illegal move raises and changes nothing.

Epochs. Each new holder of the id gets a higher one, which shuts out the older. 32766 is the last that a producer gets;
32767 is left for fencing it. Then a new producer id begins at 0. In version 2 every end of a transaction bumps the
epoch, too, so that a delayed request of an earlier transaction cannot touch a later one; in version 1 it can, as in
Kafka (KAFKA-17754).

A prepared transaction that was kept stays Ongoing under the identity that wrote it, while its new holder's identity
is the *next* one: only the holder may end it, nobody may add to it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import (
    ConcurrentTransactionsError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from .txn_records import TransactionState, TransactionValue, encode_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..segment.names import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_MAX: Final = 2**15 - 1
EPOCH_LAST: Final = EPOCH_MAX - 1  # the last one that a producer may use
NEVER_MS: Final = 2**31 - 1  # the timeout of two-phase commit

# Plain names: an attribute of an enumeration costs more than the rest of a check.
EMPTY: Final = TransactionState.EMPTY
ONGOING: Final = TransactionState.ONGOING
PREPARE_COMMIT: Final = TransactionState.PREPARE_COMMIT
PREPARE_ABORT: Final = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT: Final = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT: Final = TransactionState.COMPLETE_ABORT
DEAD: Final = TransactionState.DEAD
PREPARE_EPOCH_FENCE: Final = TransactionState.PREPARE_EPOCH_FENCE

DECIDED: Final = frozenset((PREPARE_COMMIT, PREPARE_ABORT))
IDLE: Final = frozenset((EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT))
PREPARED: Final = frozenset((PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE))
# An abort of nothing, from a state without a transaction, exists in version 2 alone.
LEGAL: Final = {
    EMPTY: frozenset((EMPTY, ONGOING, PREPARE_ABORT, DEAD)),
    ONGOING: frozenset((ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE)),
    PREPARE_EPOCH_FENCE: frozenset((PREPARE_ABORT,)),
    PREPARE_COMMIT: frozenset((COMPLETE_COMMIT,)),
    PREPARE_ABORT: frozenset((COMPLETE_ABORT,)),
    COMPLETE_COMMIT: frozenset((EMPTY, ONGOING, PREPARE_ABORT, DEAD)),
    COMPLETE_ABORT: frozenset((EMPTY, ONGOING, PREPARE_ABORT, DEAD)),
    DEAD: frozenset(),
}


class Transition(NamedTuple):
    """A move that was begun: what the log is to say, and the epoch before, which it has no room for."""

    value: TransactionValue
    last_producer_epoch: int


class TransactionMetadata:
    """The state of one transactional id. ``partitions`` are those of ``value``, for quick lookups."""

    __slots__ = (
        "key",
        "last_producer_epoch",
        "lock",
        "partitions",
        "pending",
        "state_partition",
        "transactional_id",
        "value",
    )

    def __init__(
        self, transactional_id: str, value: TransactionValue, *, state_partition: int = 0
    ) -> None:
        self.transactional_id = transactional_id
        self.key = encode_key(transactional_id)
        self.state_partition = state_partition
        self.lock = threading.Lock()
        self.value = value
        self.last_producer_epoch = NO_EPOCH
        self.partitions: dict[TopicPartition, None] = dict.fromkeys(value.partitions)
        self.pending: Transition | None = None

    @classmethod
    def new(
        cls,
        transactional_id: str,
        producer_id: int,
        timeout_ms: int,
        now_ms: int,
        *,
        state_partition: int = 0,
    ) -> TransactionMetadata:
        """An id that nobody has used: its first epoch, 0, comes with the first move."""
        value = TransactionValue(producer_id, NO_EPOCH, timeout_ms, EMPTY, (), now_ms)
        return cls(transactional_id, value, state_partition=state_partition)

    def __repr__(self) -> str:
        pending = f" -> {self.pending.value.state.label}" if self.pending else ""
        return (
            f"<{self.transactional_id!r} {self.value.state.label}{pending},"
            f" producer {self.value.producer_id} epoch {self.value.producer_epoch}>"
        )

    @property
    def state(self) -> TransactionState:
        return self.value.state

    @property
    def is_kept(self) -> bool:
        """A prepared transaction waits for the holder after the one that wrote it."""
        return self.value.next_producer_epoch >= 0

    @property
    def holder(self) -> tuple[int, int]:
        """The producer id and epoch whose requests count."""
        value = self.value
        if value.next_producer_epoch >= 0:
            return value.next_producer_id, value.next_producer_epoch
        return value.producer_id, value.producer_epoch

    @property
    def needs_new_producer_id(self) -> bool:
        """The epoch cannot be bumped for another producer, and no next identity is there yet."""
        value = self.value
        return value.producer_epoch >= EPOCH_LAST and value.next_producer_epoch < 0

    # ------------------------------------------------------------ may this request?

    def check_add(self, producer_id: int, producer_epoch: int) -> None:
        """Raises unless this producer may add to its transaction, or begin one."""
        self._check_not_pending()
        value = self.value
        is_kept = value.next_producer_epoch >= 0
        if is_kept and (producer_id, producer_epoch) == self.holder:
            raise InvalidTxnStateError(
                f"{self._name()} has a prepared transaction, which must be completed first"
            )
        if value.producer_id != producer_id or value.state is DEAD:
            raise self._other_id(producer_id)
        if value.producer_epoch != producer_epoch or is_kept:
            raise self._fenced(producer_epoch)
        if value.state in PREPARED:
            raise self._concurrent()

    def may_end(
        self, producer_id: int, producer_epoch: int, *, committed: bool, version: int
    ) -> bool:
        """Whether a request to end the transaction has something to do; False: it did so before. Raises if refused."""
        if self.value.next_producer_epoch >= 0 and self.value.state is ONGOING:
            self._check_not_pending()
            self._check_holder(producer_id, producer_epoch)
            return True
        if version >= 2:
            return self._may_end_2(producer_id, producer_epoch, committed=committed)
        return self._may_end_1(producer_id, producer_epoch, committed=committed)

    def _may_end_1(self, producer_id: int, producer_epoch: int, *, committed: bool) -> bool:
        """Version 1: the epoch stays, so a repeated request is known by its outcome alone."""
        value = self.value
        if value.producer_id != producer_id or value.state is DEAD:
            raise self._other_id(producer_id)
        if value.producer_epoch != producer_epoch:
            raise self._fenced(producer_epoch)
        self._check_not_pending()
        if value.state is ONGOING:
            return True
        if value.state is (COMPLETE_COMMIT if committed else COMPLETE_ABORT):
            return False
        if value.state is (PREPARE_COMMIT if committed else PREPARE_ABORT):
            raise self._concurrent()
        raise self._wrong_end(committed=committed)

    def _may_end_2(self, producer_id: int, producer_epoch: int, *, committed: bool) -> bool:
        """Version 2: a request of the epoch before repeats the last one, of this epoch it is the next one."""
        self._check_not_pending()
        value = self.value
        is_next_id = (
            value.previous_producer_id == producer_id != value.producer_id
            and producer_epoch == EPOCH_LAST
            and value.producer_epoch == 0
        )
        if (value.producer_id != producer_id and not is_next_id) or value.state is DEAD:
            raise self._other_id(producer_id)
        is_repeated = is_next_id or value.producer_epoch == producer_epoch + 1
        is_current = not is_next_id and value.producer_epoch == producer_epoch
        state = value.state
        if state in PREPARED:
            if not is_repeated:
                raise self._fenced(producer_epoch)
            if state is not (PREPARE_COMMIT if committed else PREPARE_ABORT):
                raise self._wrong_end(committed=committed)
            raise self._concurrent()
        if not is_current and (state in (EMPTY, ONGOING) or not is_repeated):
            raise self._fenced(producer_epoch)
        if state is ONGOING:
            return True
        if is_current:
            if committed:
                raise self._wrong_end(committed=committed)
            return True  # an abort of nothing, which bumps the epoch all the same
        if state is (COMPLETE_COMMIT if committed else COMPLETE_ABORT):
            return False
        raise self._wrong_end(committed=committed)

    def check_init(self, producer_id: int, producer_epoch: int) -> None:
        """Raises unless the id may be initialized now; -1 and -1 is a producer that claims nothing.

        One that claims to hold the id already must be the holder, or repeat the call that made the holder. A stale
        claim is refused before it can abort the holder's transaction.
        """
        self._check_not_pending()
        value = self.value
        if producer_id != NO_PRODUCER_ID and value.producer_epoch != NO_EPOCH:
            holder_id, holder_epoch = self.holder
            is_rotated = producer_id == value.previous_producer_id and producer_epoch >= EPOCH_LAST
            if producer_id != holder_id and not is_rotated:
                raise self._fenced(producer_epoch)
            if value.state is ONGOING and producer_epoch != holder_epoch:
                raise self._fenced(producer_epoch)
        if value.state in PREPARED:
            raise self._concurrent()

    def _check_not_pending(self) -> None:
        if self.pending is not None:
            raise self._concurrent()

    def _check_holder(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != self.holder:
            if producer_id not in (self.value.producer_id, self.value.next_producer_id):
                raise self._other_id(producer_id)
            raise self._fenced(producer_epoch)

    def _name(self) -> str:
        return f"transactional id {self.transactional_id!r}"

    def _concurrent(self) -> ConcurrentTransactionsError:
        state = self.pending.value.state if self.pending is not None else self.value.state
        return ConcurrentTransactionsError(f"{self._name()} is on its way to {state.label}")

    def _other_id(self, producer_id: int) -> InvalidProducerIdMappingError:
        return InvalidProducerIdMappingError(
            f"{self._name()} has producer id {self.holder[0]}, not {producer_id}"
        )

    def _fenced(self, producer_epoch: int) -> ProducerFencedError:
        holder_id, holder_epoch = self.holder
        return ProducerFencedError(
            f"{self._name()} is held by producer {holder_id} with epoch {holder_epoch}, not {producer_epoch}"
        )

    def _wrong_end(self, *, committed: bool) -> InvalidTxnStateError:
        wish = "commit" if committed else "abort"
        return InvalidTxnStateError(
            f"{self._name()} is {self.value.state.label}: there is nothing to {wish}"
        )

    # ------------------------------------------------------------ moves

    def _prepare(self, value: TransactionValue, last_producer_epoch: int) -> Transition:
        if self.pending is not None:
            raise IllegalStateError(
                f"{self!r} cannot also go to {value.state.label}: complete or cancel the move first"
            )
        if value.state not in LEGAL[self.value.state]:
            raise IllegalStateError(f"{self!r} cannot go to {value.state.label}")
        if value.producer_id < 0 or (value.producer_epoch < 0 and value.state is not DEAD):
            raise IllegalStateError(
                f"{self!r} cannot get producer {value.producer_id} with epoch {value.producer_epoch}"
            )
        self.pending = Transition(value, last_producer_epoch)
        return self.pending

    def prepare_init(
        self, timeout_ms: int, now_ms: int, *, expected_epoch: int = NO_EPOCH
    ) -> Transition:
        """A new holder of the same producer id: the next epoch.

        A holder that names its epoch keeps the right to repeat the call; one that names the epoch before has
        repeated it, and gets what the first call gave.
        """
        value = self.value
        current = value.producer_epoch
        epoch, last = current + 1, NO_EPOCH
        if expected_epoch != NO_EPOCH:
            last = current
            if current not in (NO_EPOCH, expected_epoch):
                if expected_epoch != self.last_producer_epoch:
                    raise self._fenced(expected_epoch)
                epoch, last = current, self.last_producer_epoch
        if epoch > EPOCH_LAST:
            raise IllegalStateError(f"{self!r} has no epoch left: it needs a new producer id")
        return self._prepare(self._emptied(value.producer_id, epoch, timeout_ms, now_ms), last)

    def prepare_rotation(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keeps_epoch: bool = False
    ) -> Transition:
        """A new holder when all epochs are used: a new producer id at epoch 0. ``keeps_epoch``: the holder named its
        epoch, and may repeat the call."""
        last = self.value.producer_epoch if keeps_epoch else NO_EPOCH
        return self._prepare(self._emptied(producer_id, 0, timeout_ms, now_ms), last)

    def _emptied(
        self, producer_id: int, epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionValue:
        value = self.value
        return TransactionValue(
            producer_id,
            epoch,
            timeout_ms,
            EMPTY,
            (),
            now_ms,
            -1,
            value.producer_id,
            NO_PRODUCER_ID,
            value.client_transaction_version,
        )

    def prepare_add(
        self, keys: Iterable[TopicPartition], now_ms: int, *, version: int
    ) -> Transition:
        """More partitions; the first ones begin the transaction."""
        value = self.value
        return self._prepare(
            TransactionValue(
                value.producer_id,
                value.producer_epoch,
                value.transaction_timeout_ms,
                ONGOING,
                tuple(dict.fromkeys((*self.partitions, *keys))),
                now_ms,
                value.start_ms if value.state is ONGOING else now_ms,
                value.producer_id,
                NO_PRODUCER_ID,
                _recorded(version),
            ),
            self.last_producer_epoch,
        )

    def prepare_keep(self, timeout_ms: int, now_ms: int, *, new_producer_id: int) -> Transition:
        """A new holder for a prepared transaction, which goes on. ``new_producer_id`` is used when epochs run out;
        there must be one left to end the transaction with."""
        value = self.value
        if value.state is not ONGOING:
            raise IllegalStateError(f"{self!r} has no prepared transaction to keep")
        next_id, next_epoch = self.holder
        next_epoch += 1
        if next_epoch >= EPOCH_LAST:
            next_id, next_epoch = new_producer_id, 0
        return self._prepare(
            value._replace(
                transaction_timeout_ms=timeout_ms,
                last_update_ms=now_ms,
                previous_producer_id=value.producer_id,
                next_producer_id=next_id,
                next_producer_epoch=next_epoch,
            ),
            self.last_producer_epoch,
        )

    @property
    def must_rotate_to_keep(self) -> bool:
        """Whether ``prepare_keep`` will use the new producer id."""
        return self.holder[1] + 1 >= EPOCH_LAST

    def prepare_end(
        self,
        now_ms: int,
        *,
        committed: bool,
        version: int,
        new_producer_id: int = NO_PRODUCER_ID,
        is_fence: bool = False,
    ) -> Transition:
        """The decision. In version 2 it bumps the epoch, and brings the next producer id where epochs are used up.

        ``is_fence``: not the holder ends it, but somebody who shuts the holder out; this bumps the epoch in version
        1, too. Nothing is bumped before the decision is logged, so a failed attempt costs no epoch.
        """
        value = self.value
        epoch, last = value.producer_epoch, self.last_producer_epoch
        next_id, next_epoch = value.next_producer_id, value.next_producer_epoch
        is_kept = next_epoch >= 0
        bumps_epoch = version >= 2 or is_kept
        if bumps_epoch:
            last = next_epoch if is_kept else epoch
            if not is_kept:
                next_id = new_producer_id if epoch >= EPOCH_LAST else NO_PRODUCER_ID
            if epoch >= EPOCH_LAST and next_id == NO_PRODUCER_ID:
                raise IllegalStateError(f"{self!r} has no epoch left: it needs a new producer id")
        elif is_fence:
            last = NO_EPOCH
        elif value.state in IDLE:
            raise IllegalStateError(f"{self!r} has no transaction, and version 1 aborts no other")
        if bumps_epoch or is_fence:
            epoch = min(epoch + 1, EPOCH_MAX)
        return self._prepare(
            TransactionValue(
                value.producer_id,
                epoch,
                value.transaction_timeout_ms,
                PREPARE_COMMIT if committed else PREPARE_ABORT,
                value.partitions,
                now_ms,
                now_ms if value.state in IDLE else value.start_ms,
                value.producer_id,
                next_id,
                2 if bumps_epoch else 0,
                next_epoch,
            ),
            last,
        )

    def prepare_complete(self, now_ms: int) -> Transition:
        """All markers are written. A next identity takes over: one epoch above that of its holder, which was -1 for
        an id that nobody has seen."""
        value = self.value
        producer_id, epoch = value.producer_id, value.producer_epoch
        if value.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = value.next_producer_id, value.next_producer_epoch + 1
        return self._prepare(
            TransactionValue(
                producer_id,
                epoch,
                value.transaction_timeout_ms,
                COMPLETE_COMMIT if value.state is PREPARE_COMMIT else COMPLETE_ABORT,
                (),
                now_ms,
                value.start_ms,
                value.producer_id,
                NO_PRODUCER_ID,
                value.client_transaction_version,
            ),
            self.last_producer_epoch,
        )

    def prepare_dead(self) -> Transition:
        """The id is to be forgotten."""
        return self._prepare(self.value._replace(state=DEAD, partitions=()), NO_EPOCH)

    def complete(self, transition: Transition) -> None:
        """The log has the value: from now on it counts."""
        if self.pending is not transition:
            raise IllegalStateError(
                f"{self!r} did not prepare the move to {transition.value.state.label}"
            )
        value, last_epoch = transition
        partitions = self.partitions
        if value.partitions is not self.value.partitions:
            partitions = dict.fromkeys(value.partitions)
        # In this order and without a call: interrupted in between, the move is as good as cancelled.
        self.pending = None
        self.value, self.last_producer_epoch, self.partitions = value, last_epoch, partitions

    def cancel(self, transition: Transition) -> None:
        """The log does not have the value: as if nothing had been asked."""
        if self.pending is transition:
            self.pending = None

    def lacks(self, keys: Collection[TopicPartition]) -> bool:
        """Whether any of some partitions is not in the open transaction."""
        partitions = self.partitions
        return self.value.state is not ONGOING or not all(key in partitions for key in keys)


def _recorded(version: int) -> int:
    """The client's version as Kafka records it: 2, or 0 for all before."""
    return 2 if version >= 2 else 0
