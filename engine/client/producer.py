"""The embedded producer: records in, batches out, alone or in transactions."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from .._native.accumulator import Accumulator, Batch, Delivery, RecordMetadata, TopicIntake
from .._native.batch import Encoder
from ..base import clock
from ..base.config import PRODUCER, read_options
from ..base.errors import (
    ClosedError,
    OncelogError,
    RecordTooLargeError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)
from .partitioner import Partitioner, key_partitions
from .sender import PartitionQueue, Sender
from .transaction_manager import PreparedTransaction, State, TransactionManager

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .._native.accumulator import PartitionIntake
    from .._native.batch import EncodedBatches
    from ..broker.broker import Broker
    from ..partition.partition import Partition
    from ..segment.batch import ArrowData
    from .arrow import RecordBatch

__all__ = [
    "ArrowDelivery",
    "Delivery",
    "PreparedTransaction",
    "Producer",
    "RecordMetadata",
    "RecordRange",
    "Transaction",
]

logger = logging.getLogger("oncelog.client")

SPARE_BYTES_MAX: Final = 4 << 20  # of encoded rows whose memory is kept for the next
BATCH_BYTES_MIN: Final = 128  # room for the header of a batch and one small record
_NUMBERS: Final = itertools.count(1)


class RecordRange(NamedTuple):
    """Records that lie one behind the other in a partition; offsets are -1 where only the fact is known."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    record_count: int


class ArrowDelivery:
    """What becomes of the rows of one send_arrow()."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        """Whether it is known what became of all rows."""
        return all(batch.is_done for batch in self._batches)

    def result(self, timeout_ms: int | None = None) -> list[RecordRange]:
        """Where the rows lie: ranges of offsets by partition, in order; waits, and raises what went wrong."""
        error = self.exception(timeout_ms)
        if error is not None:
            raise error
        ranges: dict[tuple[str, int], list[RecordRange]] = {}
        for batch in self._batches:
            found = ranges.setdefault((batch.target.topic, batch.target.partition), [])
            last = found[-1] if found else None
            base, count = batch.base_offset, batch.record_count
            if last is not None and (
                last.last_offset + 1 == base or base == last.base_offset == -1
            ):
                base, count = last.base_offset, last.record_count + count
                found.pop()
            end = -1 if base < 0 else base + count - 1
            found.append(RecordRange(batch.target.topic, batch.target.partition, base, end, count))
        return [one for partition in sorted(ranges) for one in ranges[partition]]

    def exception(self, timeout_ms: int | None = None) -> Exception | None:
        """The first thing that went wrong, or None; waits like result()."""
        deadline = None if timeout_ms is None else clock.monotonic_s() + timeout_ms / 1000
        for batch in self._batches:
            if not batch.is_done:
                left = None if deadline is None else int((deadline - clock.monotonic_s()) * 1000)
                batch.target.owner.wait_for(batch, left)
            if batch.error is not None:
                return batch.error
        return None


class Transaction:
    """The open transaction of a producer, as ``with producer.transaction()`` gives it."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send_offsets(self, offsets: Mapping[Any, Any], group_metadata: Any) -> None:
        """Commits a group's offsets with the transaction: both are seen, or neither."""
        self._producer.send_offsets_to_transaction(offsets, group_metadata)


class Producer(Accumulator):
    """Writes records to a broker. Keyword arguments are Kafka's producer options in snake case.

    ``send`` is inherited: it is native, and no Python frame stands between a caller and the open batch. Any number
    of threads may send; a transaction is driven by one. Leaving a ``with`` block closes the producer, and entering one
    takes its transactional id. Acknowledged records survive what the log was opened for; all others may be lost.
    """

    def __init__(self, broker: Broker, *, _transaction_version: int = 2, **options: Any) -> None:
        self._options = read_options(PRODUCER, options)
        self._broker = broker
        transactional_id = self._options["transactional.id"]
        client_id = self._options["client.id"] or (
            f"producer-{transactional_id}" if transactional_id else f"producer-{next(_NUMBERS)}"
        )
        self.client_id: str = client_id
        self._log = _ClientLog(logger, {"client": client_id, "transactional_id": transactional_id})
        self._partitioner = Partitioner(self._options)
        self._transactions = TransactionManager(
            broker,
            self._options,
            self._log,
            transaction_version=_transaction_version,
            on_change=self._set_gate,
        )
        self._batch_bytes = max(self._options["batch.size"], BATCH_BYTES_MIN)
        self._buffer_bytes: int = self._options["buffer.memory"]
        self._request_bytes: int = self._options["max.request.size"]
        self._configure(
            broker.now_ms,
            record_bytes_max=min(self._request_bytes, self._buffer_bytes),
            buffer_bytes=self._buffer_bytes,
            is_eager=self._options["linger.ms"] == 0 or self._options["batch.size"] == 0,
            ignores_keys=self._partitioner.ignores_keys,
            rotates=self._partitioner.rotates,
            monotonic_s=clock.monotonic_of(broker.now_ms),
            partition_counts=broker.partition_counts,
        )
        self._sender = Sender(broker, self, self._transactions, self._options, self._log)
        # Where the rows of the next send_arrow() are encoded; of several threads each finds one, or makes its own.
        self._spares: deque[EncodedBatches] = deque(maxlen=1)
        self._refusal: OncelogError | None = None
        self._is_initialized_by_block = False
        self._set_gate()
        _LIVE.add(self)

    def __repr__(self) -> str:
        state = self._transactions.state.value if self.transactional_id else "idempotent"
        return f"Producer({self.client_id!r}, {'closed' if self._refusal else state})"

    @property
    def transactional_id(self) -> str | None:
        return self._transactions.transactional_id

    @property
    def state(self) -> State:
        """Where a transactional producer stands."""
        return self._transactions.state

    # ------------------------------------------------------------ what the accumulator asks

    def _set_gate(self) -> None:
        is_open = self._refusal is None and self._transactions.is_open
        self.gate = None if is_open else self._keep_out

    def _keep_out(self) -> None:
        """Raises what forbids to send, if something still does."""
        self._check_usable()
        self._transactions.gate()

    def _check_usable(self) -> None:
        if self._refusal is not None:
            # A new one each time: an exception that is raised twice would collect tracebacks.
            raise type(self._refusal)(*self._refusal.args)

    def _meet_topic(self, topic: str) -> TopicIntake:
        count = self._broker.meet_topic(topic)
        intake = TopicIntake(topic, self._queues(topic, range(count)))
        intake.stick_to(self._partitioner.next_sticky(intake))
        return intake

    def _queues(self, topic: str, numbers: range) -> list[PartitionQueue]:
        return [PartitionQueue(topic, number, self._sender) for number in numbers]

    def _grow(self, topic: TopicIntake) -> None:
        """Partitions that were added meanwhile; asked for with every batch, since it costs next to nothing."""
        known = len(topic.partitions)
        count = self._broker.partition_count(topic.topic)
        if count > known:
            topic.grow(self._queues(topic.topic, range(known, count)))

    def _make_room(self, topic: TopicIntake, partition: PartitionIntake, count: int) -> None:
        assert isinstance(partition, PartitionQueue)
        if partition.open_batch is not None:  # it is full
            self.close_batch(partition)
            self._sender.dispatch(partition)
            if topic.sticky == partition.partition and len(topic.partitions) > 1:
                if not self._partitioner.rotates:
                    topic.stick_to(self._partitioner.next_sticky(topic, topic.sticky))
                return  # the record may go elsewhere now
        if self._broker.partition_count(topic.topic) > len(topic.partitions):
            self._grow(topic)
        log = partition.log
        if log is None or log.is_closed:
            log = self._log_of(partition)
        limit, options = self._batch_bytes, log.options
        if options.max_message_bytes < limit:
            limit = self._topic_bytes(partition)
        if count > limit:
            reserved = count
        elif limit > self._buffer_bytes:
            reserved = max(self._buffer_bytes, count)
        else:
            reserved = limit
            partition.open_alike(options, limit)
        self._sender.open_batch(partition, limit, reserved)

    def _log_of(self, partition: PartitionQueue) -> Partition:
        """Where a partition's batches go, whose options tell how large they may be; its own key is found fastest."""
        log = partition.log = self._broker.partition(partition.key)
        partition.key = log.key
        return log

    def _topic_bytes(self, partition: PartitionQueue) -> int:
        limit: int = self._log_of(partition).options.max_message_bytes
        return max(limit, BATCH_BYTES_MIN)

    def _send_now(self, partition: PartitionIntake) -> None:
        assert isinstance(partition, PartitionQueue)
        self.close_batch(partition)
        self._sender.dispatch(partition)

    def _refuse_size(self, count: int) -> None:
        name = "max.request.size" if count > self._request_bytes else "buffer.memory"
        limit = min(self._request_bytes, self._buffer_bytes)
        error = RecordTooLargeError(
            f"the record takes up to {count} bytes, more than {name} = {limit}"
        )
        self._transactions.batch_failed(error, is_certain=True)
        raise error

    def _refuse_partition(self, topic: TopicIntake, partition: int) -> None:
        self._grow(topic)
        if not 0 <= partition < len(topic.partitions):
            raise UnknownTopicOrPartitionError(
                f"{topic.topic} has no partition {partition}, only 0 to {len(topic.partitions) - 1}"
            )

    # ------------------------------------------------------------ Arrow

    def send_arrow(self, topic: str, data: ArrowData) -> ArrowDelivery:
        """Sends the rows of anything with Arrow data (``__arrow_c_stream__`` or ``__arrow_c_array__``).

        Columns by name: ``value``; optional ``key``, ``timestamp``, ``partition``, ``headers``. Rows go out in large
        batches, each partition's in their order and behind what was sent to it before. The result() of what is
        returned is a list of RecordRange. An error half way leaves the rows before it sent, unless a transaction
        is aborted.
        """
        from . import arrow

        if self.gate is not None:
            self._keep_out()
        intake = self.topic_intake(topic)
        self._grow(intake)
        batches: list[Batch] = []
        for rows in arrow.incoming(data):
            if not rows.num_rows:
                continue
            for partition, part in arrow.split(rows, self._partitions_of(intake, rows)):
                queue = intake.partitions[partition]
                assert isinstance(queue, PartitionQueue)
                limit = min(self._request_bytes, self._topic_bytes(queue))
                for piece in arrow.pieces(part, limit):
                    self._send_rows(queue, piece, limit, batches)
        return ArrowDelivery(batches)

    def _partitions_of(self, intake: TopicIntake, rows: RecordBatch) -> NDArray[np.int32] | int:
        """Where each row goes: where it says, else by its key, else to one partition for all, which is one number."""
        from . import arrow

        count = len(intake.partitions)
        sticky = self._partitioner.next_sticky(intake, intake.sticky)
        intake.stick_to(sticky)
        asked = arrow.partition_column(rows)
        if count == 1 or self._partitioner.ignores_keys:
            if asked is None:
                return sticky
            found = np.full(rows.num_rows, sticky, np.int32)
        else:
            found = key_partitions(rows, count, sticky)
        if asked is not None:
            wrong = asked[(asked >= count) | (asked < -1)]
            if wrong.size:
                self._refuse_partition(intake, int(wrong[0]))
            found[asked >= 0] = asked[asked >= 0]
        return found

    def _send_rows(
        self, queue: PartitionQueue, rows: RecordBatch, limit: int, sent: list[Batch]
    ) -> None:
        try:
            spare: EncodedBatches | None = self._spares.pop()
        except IndexError:
            spare = None
        encoder = Encoder(
            attributes=self._sender.attributes,
            compress=self._sender.compress,
            timestamp_ms=self._broker.now_ms(),
            batch_bytes=limit,
            reuse=None if spare is None or spare.is_shared else spare,
        )
        encoder.add_arrow(rows)
        encoded = encoder.finish()
        self._send_batches(queue, encoded, sent)
        if len(encoded) <= SPARE_BYTES_MAX:
            self._spares.append(encoded)

    def send_encoded(self, topic: str, partition: int, batches: Buffer) -> ArrowDelivery:
        """Sends record batches that were encoded elsewhere, in a writable buffer that is left to the producer.

        Each gets the producer's identity and its place in the sequence. That changes the header alone: the checksum
        is derived from the old one, so whatever was damaged on the way here is refused by the log.
        """
        if self.gate is not None:
            self._keep_out()
        intake = self.topic_intake(topic)
        if not 0 <= partition < len(intake.partitions):
            self._refuse_partition(intake, partition)
        queue = intake.partitions[partition]
        assert isinstance(queue, PartitionQueue)
        sent: list[Batch] = []
        self._send_batches(queue, batches, sent)
        return ArrowDelivery(sent)

    def _send_batches(self, queue: PartitionQueue, encoded: Buffer, sent: list[Batch]) -> None:
        size_max = min(self._request_bytes, self._buffer_bytes)
        for batch in Batch.encoded(queue, encoded, int(self._sender.monotonic_s() * 1000)):
            size = len(batch)
            if size > size_max:
                self._refuse_size(size)
            self._sender.reserve(size)
            if self.gate is not None:
                self.give_bytes(size)
                self._keep_out()
            self.add_batch(batch)
            sent.append(batch)
        self._sender.dispatch(queue)

    # ------------------------------------------------------------ flush and close

    def flush(self, timeout_ms: int | None = None) -> None:
        """Sends what lingers, and returns when everything sent before is done; errors are in the Deliveries."""
        self._check_usable()
        self._sender.flush(timeout_ms)

    def close(self, timeout_ms: int | None = None) -> None:
        """Sends what is left, waits for it, and ends. A transaction that is open is aborted.

        With ``timeout_ms`` what is unsent by then is dropped with a ClosedError; 0 drops it at once, and leaves
        an open transaction to its timeout. Closing twice is harmless.
        """
        if self._refusal is not None:
            return
        is_forced = timeout_ms is not None and timeout_ms <= 0
        try:
            if not is_forced and self._transactions.state is not State.FATAL_ERROR:
                self._finish(timeout_ms)
        finally:
            self._refusal = ClosedError(f"{self.client_id}: the producer is closed")
            self._set_gate()
            self._transactions.stop()
            dropped = ClosedError(f"{self.client_id}: closed before the record was sent")
            self._sender.drop(dropped, self.partitions())
            self._sender.stop()
            self._spares.clear()
            _LIVE.discard(self)
            self._log.info("closed")

    def _finish(self, timeout_ms: int | None) -> None:
        """What a close that is not forced does first."""
        if self._transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            self._log.info("the open transaction is aborted by close")
            try:
                self.abort_transaction()
            except OncelogError as error:
                self._log.warning("cannot abort on close: %s", error)
        else:
            try:
                self._sender.flush(timeout_ms)
            except OncelogError as error:
                self._log.warning("records are dropped by close: %s", error)

    def _disown(self) -> None:
        """In a child process: the log, its lock and our threads are the parent's."""
        self._refusal = ClosedError(
            f"{self.client_id}: the process was forked after the producer was opened; open a new one in the child"
        )
        self.gate = self._keep_out

    def __enter__(self) -> Producer:
        if self.transactional_id is not None and self._transactions.state is State.UNINITIALIZED:
            self.init_transactions()
            self._is_initialized_by_block = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ transactions

    def init_transactions(self, *, keep_prepared: bool = False) -> None:
        """Takes the transactional id: older holders are fenced, what they left open is aborted.

        ``keep_prepared`` leaves a prepared transaction as it is, to be ended by complete_transaction(). Entering a
        ``with`` block has taken the id already; a first call inside of it changes nothing.
        """
        self._check_usable()
        if self._is_initialized_by_block and not keep_prepared:
            self._is_initialized_by_block = False
            return
        self._transactions.init(keep_prepared=keep_prepared)

    def begin_transaction(self) -> None:
        """Begins a transaction; the coordinator's clock starts with the first record."""
        self._check_usable()
        self._is_initialized_by_block = False
        self._transactions.begin()

    def commit_transaction(self) -> None:
        """Sends what is left and ends the transaction: readers see all of it when this returns.

        After a time-out call it again: whether the commit took effect is not known before it succeeds.
        """
        self._check_usable()
        self._transactions.commit(self._flush_transaction)

    def abort_transaction(self) -> None:
        """Drops what is unsent and ends the transaction: nobody who reads committed data ever sees it."""
        self._check_usable()
        self._transactions.abort(self._drop_transaction)

    def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group_metadata: Any) -> None:
        """Commits a group's offsets with the transaction: both are seen, or neither."""
        self._check_usable()
        self._transactions.send_offsets(offsets, group_metadata)

    def prepare_transaction(self) -> PreparedTransaction:
        """The first phase for an outside coordinator: everything is as durable as a commit, and no time-out ends it.

        Keep what is returned (its str() will do) where the decision is kept, then commit, abort, or after a restart
        complete_transaction().
        """
        self._check_usable()
        return self._transactions.prepare(self._flush_transaction)

    def complete_transaction(self, prepared: PreparedTransaction | str) -> None:
        """Ends a prepared transaction: commits it if it is the one named, else aborts it."""
        self._check_usable()
        manager = self._transactions
        if manager.state is not State.PREPARED:
            raise manager.wrong_order("cannot complete a transaction")
        wanted = PreparedTransaction.parse(prepared) if isinstance(prepared, str) else prepared
        if wanted == manager.prepared:
            self.commit_transaction()
        else:
            self.abort_transaction()

    def _flush_transaction(self) -> None:
        self._sender.flush(self._options["max.block.ms"])

    def _drop_transaction(self) -> None:
        error = TransactionAbortedError("the transaction was aborted before the record was sent")
        self._sender.drop(error, self.partitions())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction that commits at the end of the block, and aborts if the block raises.

        A block may also abort or prepare the transaction itself. After a fatal error nothing can be aborted: the
        producer is closed, and the first error is raised.
        """
        self.begin_transaction()
        try:
            yield Transaction(self)
            if self._transactions.state not in (State.READY, State.PREPARED):
                self.commit_transaction()
        except BaseException as error:
            self._abandon(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        """Ends a transaction whose block, or commit, has raised ``error``."""
        manager = self._transactions
        first = manager.error
        if manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            try:
                self.abort_transaction()
            except OncelogError as another:
                self._log.warning("cannot abort: %s", another)
        if manager.state is State.FATAL_ERROR:
            self.close(0)
        if first is not None and error.__cause__ is first:
            raise first from None  # what was raised only pointed at it

    # ------------------------------------------------------------ metrics

    def metrics(self) -> dict[str, float]:
        """Counts since the producer was opened, by Kafka's names."""
        sender = self._sender
        batches = max(self.batch_count, 1)
        return {
            "record-send-total": self.sent_records,
            "record-queued-total": self.record_count,
            "record-error-total": sender.error_count,
            "record-retry-total": sender.retry_count,
            "byte-total": self.sent_bytes,
            "batch-total": self.batch_count,
            "batch-size-avg": self.sent_bytes / batches,
            "records-per-request-avg": self.sent_records / batches,
            "requests-in-flight": len(self.incomplete),
            "buffer-total-bytes": self._buffer_bytes,
            "buffer-available-bytes": self.available_bytes,
            "buffer-exhausted-total": sender.exhausted_count,
        }


class _ClientLog(logging.LoggerAdapter[logging.Logger]):
    """Says whose line it is."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra: Any = self.extra
        name = extra["client"]
        if extra["transactional_id"]:
            name += f", transactional id {extra['transactional_id']}"
        return f"[{name}] {msg}", kwargs


_LIVE: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork() -> None:
    for producer in list(_LIVE):
        producer._disown()


os.register_at_fork(after_in_child=_after_fork)
