"""A producer's identity and its transactions: who it is, what it may do next, and what an error means for it.

Duty         the state machine of a transactional producer, and the calls to the coordinator that move it on. Without a
             transactional id only the identity is left: the id and epoch that make repeated batches harmless.
Concurrency  begin, commit and the like are for one thread at a time, as in Kafka. Errors of batches arrive from any
             thread, so every change of state happens under the lock.
Crash        nothing here survives; a new producer with the same transactional id fences this one and cleans up.

An init, commit or abort that ran out of time may still have happened. So the state stays, and only the same call may
go on with it: a commit that was perhaps carried out must never be followed by an abort.
"""

from __future__ import annotations

import enum
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

from ..base.clock import monotonic_of
from ..base.errors import (
    ClosedError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IllegalStateError,
    InvalidConfigError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    NotCoordinatorError,
    OncelogError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionCoordinatorFencedError,
)
from .committing import offsets_given
from .group_member import ConsumerGroupMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..segment.names import TopicPartition

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

_FENCED: Final = (ProducerFencedError, InvalidProducerEpochError)
RETRY_S: Final = 0.02  # the coordinator is busy for moments, not for seconds
EPOCH_MAX: Final = 2**15 - 1
# The coordinator is there, or will be in a moment: the same call again is all it takes.
_AGAIN: Final = (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
# Another producer has taken over, or none could ever start like this.
_FATAL: Final = (
    InvalidProducerEpochError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    TransactionCoordinatorFencedError,
)


class State(enum.Enum):
    """Where a transactional producer stands."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "in a prepared transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that failed"
    FATAL_ERROR = "broken"


# What has to be called next, for a person who called something else.
_NEXT: Final = {
    State.UNINITIALIZED: "call init_transactions() first, or use the producer in a with statement",
    State.INITIALIZING: "init_transactions() has not finished: call it again",
    State.READY: "call begin_transaction() first, or use `with producer.transaction()`",
    State.IN_TRANSACTION: "commit or abort the open transaction first",
    State.PREPARED: "end the prepared transaction first: commit, abort or complete_transaction()",
    State.COMMITTING: "commit_transaction() has not finished: call it again",
    State.ABORTING: "abort_transaction() has not finished: call it again",
    State.ABORTABLE_ERROR: "call abort_transaction(), then begin a new transaction",
    State.FATAL_ERROR: "close this producer and open a new one",
}


class Identity(NamedTuple):
    """Who a producer is to the log; -1 before it has asked."""

    producer_id: int
    producer_epoch: int


class PreparedTransaction(NamedTuple):
    """What an outside coordinator keeps of a prepared transaction; its text can be read back with parse()."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """The transaction that str() wrote down."""
        producer_id, colon, epoch = text.partition(":")
        if not colon or not producer_id.isdecimal() or not epoch.isdecimal():
            raise ValueError(f"{text!r} is not a prepared transaction: expected id:epoch")
        return cls(int(producer_id), int(epoch))


NOBODY: Final = Identity(-1, -1)


class TransactionManager:
    """Holds the identity and the state; the Sender asks it before and after each batch."""

    def __init__(
        self,
        broker: Any,
        options: Mapping[str, Any],
        log: logging.LoggerAdapter[logging.Logger],
        *,
        transaction_version: int = 2,
        on_change: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._log = log
        self._on_change = on_change
        self._monotonic_s = monotonic_of(broker.now_ms)
        self.max_block_s: float = options["max.block.ms"] / 1000
        self._timeout_ms: int = options["transaction.timeout.ms"]
        self._is_two_phase: bool = options["transaction.two.phase.commit.enable"]
        self._is_idempotent: bool = options["enable.idempotence"]
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self._partitions: set[TopicPartition] = set()
        self._groups: set[str] = set()  # that a transaction of version 1 has offsets of
        self._is_known_to_coordinator = False  # there may be something for it to end
        self._needs_new_epoch = False
        self.transactional_id: str | None = options["transactional.id"]
        self.is_transactional = self.transactional_id is not None
        self.transaction_version = transaction_version
        self.identity = NOBODY
        self.prepared: PreparedTransaction | None = None
        self.state = State.UNINITIALIZED
        self.is_open = not self.is_transactional  # whether records are welcome
        self.error: Exception | None = (
            None  # the first of this transaction, or of all that followed
        )

    # ------------------------------------------------------------ state

    def _change(self, state: State) -> None:
        if state is self.state:
            return
        if self._log.logger.isEnabledFor(logging.DEBUG):
            self._log.debug("%s -> %s", self.state.name, state.name)
        self.state = state
        self.is_open = (
            state is State.IN_TRANSACTION
            if self.is_transactional
            else state is not State.FATAL_ERROR
        )
        self._on_change()

    def wrong_order(self, what: str) -> OncelogError:
        """The sentence for a call that does not fit the state.

        Who was fenced is told so by whatever it calls, as with Kafka: its sender may have heard of it first.
        """
        if self.state is State.FATAL_ERROR and isinstance(self.error, _FENCED):
            return type(self.error)(f"{what}: {self.error.args[0]}")
        if not self.is_transactional:
            return IllegalStateError(f"{what}: this producer has no transactional_id; give it one")
        error = IllegalStateError(
            f"{what}: the producer is {self.state.value}"
            + (f" ({self.error})" if self.error is not None else "")
            + f"; {_NEXT[self.state]}"
        )
        error.__cause__ = self.error
        return error

    def _need(self, what: str, *states: State) -> None:
        if not self.is_transactional or self.state not in states:
            raise self.wrong_order(what)

    def gate(self) -> None:
        """Raises unless a record may be sent now."""
        if self.is_transactional and self.state is not State.IN_TRANSACTION:
            raise self.wrong_order("cannot send")
        if self.state is State.FATAL_ERROR:
            if isinstance(self.error, _FENCED):
                raise self.wrong_order("cannot send")
            error = IllegalStateError(f"cannot send: the producer is broken ({self.error})")
            raise error from self.error

    # ------------------------------------------------------------ calls to the coordinator

    def _insist(
        self,
        call: Callable[Arguments, Answer],
        what: str,
        *args: Arguments.args,
        **more: Arguments.kwargs,
    ) -> Answer:
        """The answer to a call that is repeated while the coordinator is busy, up to max.block.ms."""
        deadline: float | None = None
        while True:
            try:
                return call(*args, **more)
            except _AGAIN as error:
                if isinstance(error, NotCoordinatorError):
                    self._broker.find_coordinator(self.transactional_id)
                now = self._monotonic_s()
                deadline = now + self.max_block_s if deadline is None else deadline
                if now >= deadline:
                    raise RequestTimedOutError(
                        f"{what}: no answer within max.block.ms ({error})"
                    ) from error
            if self._stopped.wait(RETRY_S):
                raise ClosedError(f"{what}: the producer was closed meanwhile")

    def stop(self) -> None:
        """Ends every wait for the coordinator."""
        self._stopped.set()

    def init(self, *, keep_prepared: bool = False) -> None:
        """Takes the transactional id: fences older holders, ends what they left open unless it is kept."""
        self._need("cannot initialize", State.UNINITIALIZED, State.INITIALIZING)
        if keep_prepared and not self._is_two_phase:
            raise InvalidConfigError(
                "a prepared transaction is kept only with transaction_two_phase_commit_enable=True"
            )
        self._change(State.INITIALIZING)
        self._take_identity(NOBODY, keep_prepared=keep_prepared)

    def _take_identity(self, current: Identity, *, keep_prepared: bool = False) -> None:
        """INITIALIZING to READY: asks for an id, or for the next epoch of ``current``."""
        try:
            found = self._insist(
                lambda: self._call_init(current, keep_prepared=keep_prepared), "cannot initialize"
            )
        except OncelogError as error:
            if not _may_go_on(error):
                self.break_down(error)
            raise
        self.identity = Identity(found.producer_id, found.producer_epoch)
        self._forget_transaction()
        self._log.info(
            "producer id %d, epoch %d", self.identity.producer_id, self.identity.producer_epoch
        )
        if keep_prepared and found.ongoing_producer_id >= 0:
            self.prepared = PreparedTransaction(
                found.ongoing_producer_id, found.ongoing_producer_epoch
            )
            self._is_known_to_coordinator = True
            self._change(State.PREPARED)
        else:
            self._change(State.READY)

    def _call_init(self, current: Identity, *, keep_prepared: bool = False) -> Any:
        # The extra arguments are for two-phase commit alone: others' brokers need not know them.
        extra = {"enable_two_phase_commit": True, "keep_prepared": keep_prepared}
        return self._broker.init_producer_id(
            self.transactional_id,
            self._timeout_ms,
            producer_id=current.producer_id,
            producer_epoch=current.producer_epoch,
            **(extra if self._is_two_phase else {}),
        )

    def _forget_transaction(self) -> None:
        self._partitions.clear()
        self._groups.clear()
        self._is_known_to_coordinator = self._needs_new_epoch = False
        self.prepared = self.error = None

    def begin(self) -> None:
        """A local matter: the coordinator hears of the transaction with its first partition."""
        self._need("cannot begin a transaction", State.READY)
        self._change(State.IN_TRANSACTION)

    def commit(self, flush: Callable[[], None]) -> None:
        """Ends the transaction so that all of it is seen. ``flush`` sends what waits and returns when it is done."""
        self._need("cannot commit", State.IN_TRANSACTION, State.PREPARED, State.COMMITTING)
        self._change(State.COMMITTING)
        flush()
        if self.error is not None:  # a batch failed; its error came in while we waited
            raise self.error
        self._end(committed=True)

    def abort(self, drop: Callable[[], None]) -> None:
        """Ends the transaction so that nothing of it is seen. ``drop`` forgets what is unsent and waits for the rest."""
        self._need(
            "cannot abort",
            State.IN_TRANSACTION,
            State.PREPARED,
            State.ABORTABLE_ERROR,
            State.ABORTING,
        )
        self._change(State.ABORTING)
        drop()
        if isinstance(self.error, InvalidProducerIdMappingError):
            self._is_known_to_coordinator = (
                False  # it has forgotten us, and with us the transaction
            )
            self._needs_new_epoch = True
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        """COMMITTING or ABORTING to READY."""
        if self._is_known_to_coordinator:
            what = "cannot commit" if committed else "cannot abort"
            try:
                found = self._insist(self._call_end, what, committed=committed)
            except InvalidTxnStateError as error:
                # The broker has ended it the other way, and kept the next epoch: there is nothing to abort either.
                fenced = ProducerFencedError(
                    f"{what}: {error.args[0]}; the transaction has most likely timed out"
                )
                self.break_down(fenced)
                raise fenced from error
            except OncelogError as error:
                self._end_failed(error)
                raise
            self.identity = Identity(found.producer_id, found.producer_epoch)
            self._is_known_to_coordinator = False
        if (self._needs_new_epoch and self.transaction_version < 2) or self._has_lost_its_id():
            # Whether a batch of this epoch is still on its way cannot be known: only a new epoch refuses it.
            self._change(State.INITIALIZING)
            self._take_identity(self.identity)
            return
        self._forget_transaction()
        self._change(State.READY)

    def _has_lost_its_id(self) -> bool:
        return isinstance(self.error, InvalidProducerIdMappingError)

    def _call_end(self, *, committed: bool) -> Any:
        return self._broker.end_txn(
            self.transactional_id,
            *self.identity,
            committed=committed,
            transaction_version=self.transaction_version,
        )

    def _end_failed(self, error: OncelogError) -> None:
        if _may_go_on(error):
            return  # the same call goes on with it
        has_lost_id = isinstance(error, InvalidProducerIdMappingError)
        if not has_lost_id and not error.txn_requires_abort:
            self.break_down(error)
            return
        self._needs_new_epoch = True
        self.error = error
        self._change(State.ABORTABLE_ERROR)

    def break_down(self, error: Exception) -> None:
        """FATAL_ERROR: this producer can do nothing any more; the first error stays the one that is told."""
        with self._lock:
            if self.state is not State.FATAL_ERROR:
                self.error = error
                self._log.error("the producer is broken: %s", error)
                self._change(State.FATAL_ERROR)

    # ------------------------------------------------------------ two phases

    def prepare(self, flush: Callable[[], None]) -> PreparedTransaction:
        """Leaves the transaction as it is for an outside coordinator to end, whatever happens to this process."""
        if not self._is_two_phase:
            raise InvalidConfigError(
                "prepare_transaction() needs transaction_two_phase_commit_enable=True"
            )
        self._need("cannot prepare", State.IN_TRANSACTION)
        self._change(State.PREPARED)
        flush()
        if self.error is not None:
            raise self.error
        self._insist(
            lambda: self._broker.prepare_txn(self.transactional_id, *self.identity),
            "cannot prepare",
        )
        self.prepared = PreparedTransaction(*self.identity)
        return self.prepared

    # ------------------------------------------------------------ offsets

    def send_offsets(self, offsets: Mapping[Any, Any], group: Any) -> None:
        """Adds a group's offsets to the transaction: they count if and only if it is committed.

        ``group`` is what a consumer's group_metadata() gave, so that a member that is none any more is refused, or
        the id of a group, whose members are then not asked about.
        """
        self._need("cannot send offsets", State.IN_TRANSACTION)
        who = ConsumerGroupMetadata(group) if isinstance(group, str) else group
        commits = offsets_given(offsets)
        if not commits:
            return
        try:
            self._add_group(who.group_id)
            answers = self._insist(
                lambda: self._broker.txn_offset_commit(
                    self.transactional_id,
                    who.group_id,
                    *self.identity,
                    offsets=commits,
                    member_id=who.member_id,
                    generation_id=who.generation_id,
                    group_instance_id=who.group_instance_id,
                    transaction_version=self.transaction_version,
                ),
                "cannot send offsets",
            )
            for refusal in answers.values():
                if refusal is not None:
                    raise refusal
        except OncelogError as error:
            self._is_known_to_coordinator |= error.took_effect is not False
            self.batch_failed(error, is_certain=error.took_effect is False)
            raise

    def _add_group(self, group_id: str) -> None:
        """In version 1 the coordinator hears of each group once in a transaction; in version 2 from the commit."""
        if self.transaction_version < 2 and group_id not in self._groups:
            self._insist(
                lambda: self._broker.add_offsets_to_txn(
                    self.transactional_id, *self.identity, group_id, transaction_version=1
                ),
                "cannot send offsets",
            )
            self._groups.add(group_id)
        self._is_known_to_coordinator = True

    # ------------------------------------------------------------ batches

    def need_identity(self) -> Identity:
        """Who the next batch is from; an idempotent producer asks when it first has something to send."""
        if self.identity is NOBODY and self._is_idempotent and not self.is_transactional:
            with self._lock:
                if self.identity is NOBODY:
                    found = self._broker.init_producer_id(None, self._timeout_ms)
                    self.identity = Identity(found.producer_id, found.producer_epoch)
        return self.identity

    def refusal(self) -> Exception | None:
        """Why a batch that waits cannot be sent any more, if so."""
        if self.state in (State.FATAL_ERROR, State.ABORTABLE_ERROR):
            return self.error
        return None

    def join(self, key: TopicPartition) -> None:
        """Before a batch: the partition belongs to the transaction, if the coordinator has to be told."""
        if self.transaction_version >= 2:
            self._is_known_to_coordinator = True
        elif key not in self._partitions:
            self._broker.add_partitions_to_txn(
                self.transactional_id, *self.identity, [key], transaction_version=1
            )
            self._partitions.add(key)
            self._is_known_to_coordinator = True

    def batch_sent(self, key: TopicPartition) -> None:
        """After a batch of a transaction is in the log."""
        self._partitions.add(key)

    def pause_s(self, error: OncelogError) -> float | None:
        """How soon a batch may be sent again that met this error; None: as any other."""
        if isinstance(error, NotCoordinatorError):
            self._broker.find_coordinator(self.transactional_id)
        return RETRY_S if isinstance(error, _AGAIN) else None

    def recover(self, error: OncelogError) -> bool:
        """Whether a new identity lets the refused batch be sent again, as if nothing had happened."""
        if not self.is_transactional:
            if self._is_idempotent and isinstance(error, OutOfOrderSequenceError):
                self.bump_epoch()
                return True
            return False
        if isinstance(error, InvalidProducerIdMappingError) and not self._partitions:
            # The id had expired before this transaction wrote anything: nothing can be lost by starting over.
            with self._lock:
                found = self._call_init(self.identity)
                self.identity = Identity(found.producer_id, found.producer_epoch)
            self._log.info("the coordinator had forgotten the id; it is known again")
            return True
        return False

    def bump_epoch(self) -> None:
        """Starts the sequences of a producer without transactions over, so that the log accepts its next batch."""
        with self._lock:
            producer_id, epoch = self.identity
            if epoch >= EPOCH_MAX:
                self.identity = NOBODY
            else:
                self.identity = Identity(producer_id, epoch + 1)
            self._log.info("sequences start over with epoch %d", epoch + 1)

    def batch_failed(self, error: Exception, *, is_certain: bool) -> None:
        """A batch is given up. ``is_certain``: it is known not to be in the log."""
        if isinstance(error, _FATAL):
            self.break_down(error)
            return
        if not self.is_transactional:
            if self._is_idempotent and not is_certain:
                # Its sequence may or may not be taken: with the next epoch neither matters.
                self.bump_epoch()
            return
        with self._lock:
            self._needs_new_epoch |= not is_certain or isinstance(error, OutOfOrderSequenceError)
            if self.state in (State.IN_TRANSACTION, State.COMMITTING, State.PREPARED):
                self.error = error
                self._log.warning("the transaction has to be aborted: %s", error)
                self._change(State.ABORTABLE_ERROR)


def _may_go_on(error: OncelogError) -> bool:
    """Whether the same call, made again, can still succeed."""
    return error.retriable or (error.took_effect is None and not isinstance(error, _FATAL))
