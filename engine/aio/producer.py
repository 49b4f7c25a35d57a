"""The producer for asyncio: records go into batches at once, and tasks wait in the loop for what becomes of them.

Concurrency  tasks of one event loop; any number may send, a transaction is driven by one.
Waiting      for room, acknowledgements and a busy coordinator: in the loop. For the device, with durability "fsync": a
             commit in one of the log's shared threads, other acknowledgements in the producer's own.
Cancelled    a wait ends, the work does not: what is sent stays sent, and a commit is resumed by the same call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ..base.clock import monotonic_of
from ..base.config import PRODUCER, read_options
from ..base.errors import BufferExhaustedError, OncelogError, RequestTimedOutError
from ..client.producer import Producer as BlockingProducer
from ..client.transaction_manager import RETRY_S, State
from .waiting import Signal, finished

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Buffer

    from .._native import accumulator
    from .._native.accumulator import Batch, RecordMetadata
    from ..broker.broker import Broker
    from ..client import producer as blocking
    from ..client.producer import RecordRange
    from ..client.transaction_manager import PreparedTransaction
    from ..segment.batch import ArrowData
    from .waiting import Pool

    Headers = Sequence[tuple[str, Buffer | None]] | Mapping[str, Buffer | None]

R = TypeVar("R")

logger = logging.getLogger("oncelog.client")

# What a record may cost beside its key, value and the bytes of its headers; generous, and only looked at where memory
# is short.
RECORD_BYTES_OVERHEAD: Final = 256
HEADER_BYTES_OVERHEAD: Final = 64


class _Core(BlockingProducer):
    """The producer underneath: tells when a batch is done, and never waits for the coordinator."""

    def __init__(self, broker: Broker, on_done: Callable[[], None], **options: Any) -> None:
        self._on_done = on_done
        super().__init__(broker, **options)
        self._transactions.max_block_s = 0.0  # who waits for it is in the loop

    def complete(
        self,
        batch: Batch,
        base_offset: int,
        log_append_time_ms: int,
        error: Exception | None = None,
    ) -> bool:
        """A batch is done, and has given its memory back: what all wait for who wait here."""
        is_first = super().complete(batch, base_offset, log_append_time_ms, error)
        self._on_done()
        return is_first

    def push(self) -> None:
        """Sends what lingers, without waiting for it."""
        self._check_usable()
        self._sender.send_all()

    @property
    def first_error(self) -> Exception | None:
        return self._transactions.error


class _Running(NamedTuple):
    """A call in a thread."""

    name: str
    future: asyncio.Future[Any]


class Delivery:
    """What becomes of one record; ``await`` it for its RecordMetadata, or for what went wrong."""

    __slots__ = ("_delivery", "_producer")

    def __init__(self, delivery: accumulator.Delivery, producer: Producer) -> None:
        self._delivery = delivery
        self._producer = producer

    def __repr__(self) -> str:
        return f"aio.{self._delivery!r}"

    def done(self) -> bool:
        """Whether it is known what became of the record."""
        return self._delivery.done()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._delivery.done():
            yield from self._producer._answer_to(self._delivery).__await__()
        return self._delivery.result()


class ArrowDelivery:
    """What becomes of the rows of one send_arrow(); ``await`` it for a list of RecordRange."""

    def __init__(self, delivery: blocking.ArrowDelivery, producer: Producer) -> None:
        self._delivery = delivery
        self._producer = producer

    def done(self) -> bool:
        """Whether it is known what became of all rows."""
        return self._delivery.done()

    def __await__(self) -> Generator[Any, None, list[RecordRange]]:
        yield from self._producer._wait_until(self._delivery.done, None).__await__()
        return self._delivery.result()


class Transaction:
    """The open transaction of a producer, as ``async with producer.transaction()`` gives it."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def send_offsets(self, offsets: Mapping[Any, Any], group_metadata: Any) -> None:
        """Commits a group's offsets with the transaction: both are seen, or neither."""
        await self._producer.send_offsets_to_transaction(offsets, group_metadata)


class Producer:
    """Writes records for the tasks of one event loop. Keyword arguments are Kafka's producer options in snake case.

    ``async with`` takes the transactional id and closes the producer at the end.
    """

    def __init__(self, broker: Broker, pool: Pool, **options: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._signal = Signal(self._loop)
        self._pool = pool
        self._is_synced = broker.is_synced
        self._monotonic_s = monotonic_of(broker.now_ms)
        chosen = read_options(PRODUCER, options)
        self._max_block_s: float = chosen["max.block.ms"] / 1000
        self._batch_bytes: int = chosen["batch.size"]
        self._buffer_bytes: int = chosen["buffer.memory"]
        # As long as so much is free no record has to wait, whatever its size.
        self._comfort_bytes: int = self._batch_bytes + chosen["max.request.size"]
        self._core = _Core(broker, self._signal.fire, **options)
        self._turn = asyncio.Lock()  # of calls to the coordinator
        self._running: _Running | None = None
        self._is_pushed = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"aio.{self._core!r}"

    @property
    def transactional_id(self) -> str | None:
        return self._core.transactional_id

    @property
    def state(self) -> State:
        """Where a transactional producer stands."""
        return self._core.state

    def metrics(self) -> dict[str, float]:
        """Counts since the producer was opened, by Kafka's names."""
        return self._core.metrics()

    async def __aenter__(self) -> Producer:
        if self.transactional_id is not None and self.state is State.UNINITIALIZED:
            await self.init_transactions()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ records

    async def send(
        self,
        topic: str,
        value: Buffer | None = None,
        key: Buffer | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Puts a record into the open batch of its partition, and returns a Delivery.

        It returns at once, unless ``buffer_memory`` is used up: then it waits for room, up to ``max_block_ms``.
        ``await`` the Delivery for the record's place in the log. What many tasks wait for goes out together: batches
        are sent when the loop has run all of them, when they are full, or after ``linger_ms``.
        """
        if self._core.available_bytes < self._comfort_bytes:
            await self._wait_for_room(_size_of(value, key, headers))
        delivery = self._core.send(topic, value, key, partition, timestamp, headers)
        return Delivery(delivery, self)

    async def send_arrow(self, topic: str, data: ArrowData) -> ArrowDelivery:
        """Sends the rows of anything with Arrow data, as the blocking producer does; encoded in a shared thread."""
        delivery = await self._pool.run(self._core.send_arrow, topic, data)
        return ArrowDelivery(delivery, self)

    async def _wait_for_room(self, record_bytes: int) -> None:
        core = self._core
        count = min(max(self._batch_bytes, record_bytes), self._buffer_bytes)
        if core.available_bytes >= count:
            return
        core.push()  # what lingers has memory, too
        if not await self._wait_until(
            lambda: core.available_bytes >= count, self._max_block_s, is_pushed=True
        ):
            raise BufferExhaustedError(
                f"no {count} bytes of buffer.memory became free within max.block.ms"
            )

    async def _wait_until(
        self, is_so: Callable[[], bool], timeout_s: float | None, *, is_pushed: bool = False
    ) -> bool:
        """Waits for batches to be done until something is so; whether it is."""
        end = None if timeout_s is None else self._monotonic_s() + timeout_s
        while not is_so():
            if not is_pushed:
                self._core.push()
                is_pushed = True
            with self._signal.announced() as waiter:
                if is_so():
                    break
                left = None if end is None else end - self._monotonic_s()
                if left is not None and left <= 0:
                    return False
                await waiter.wait(left)
        return True

    async def _answer_to(self, delivery: accumulator.Delivery) -> None:
        """Returns when a record is done; its batch goes out once all tasks that can run have run."""
        if not self._is_pushed:
            self._is_pushed = True
            self._loop.call_soon(self._push)
        future: asyncio.Future[None] = self._loop.create_future()

        def tell(_error: Exception | None, _metadata: RecordMetadata | None) -> None:
            if threading.get_ident() == self._thread:
                _end(future)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                    self._loop.call_soon_threadsafe(_end, future)

        delivery.add_callback(tell)
        await future

    def _push(self) -> None:
        self._is_pushed = False
        with contextlib.suppress(OncelogError):  # closed meanwhile, which has answered everything
            self._core.push()

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Sends what lingers, and returns when everything sent before is done; errors are in the Deliveries."""
        self._core.push()
        batches = list(self._core.incomplete)
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        if not await self._wait_until(
            lambda: all(batch.is_done for batch in batches), timeout_s, is_pushed=True
        ):
            raise RequestTimedOutError(f"not everything was acknowledged within {timeout_ms} ms")

    async def close(self, timeout_ms: int | None = None) -> None:
        """Sends what is left, waits for it, and ends. A transaction that is open is aborted.

        With ``timeout_ms`` what is unsent by then is dropped with a ClosedError; 0 drops it at once, and leaves
        an open transaction to its timeout. Closing twice is harmless.
        """
        if self._is_closed:
            return
        try:
            if timeout_ms is None or timeout_ms > 0:
                await self._finish(timeout_ms)
        finally:
            self._is_closed = True
            await self._pool.run(self._core.close, 0)

    async def _finish(self, timeout_ms: int | None) -> None:
        """What a close that is not forced does first."""
        try:
            if self._running is not None:
                await asyncio.wait([self._running.future])
            if self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                await self.abort_transaction()
            elif self.state is not State.FATAL_ERROR:
                await self.flush(timeout_ms)
        except OncelogError as error:
            logger.warning("%r: closed in spite of: %s", self, error)

    # ------------------------------------------------------------ transactions

    async def _ask(self, name: str, call: Callable[[], R], *, is_flushed: bool = False) -> R:
        """Has the coordinator do something, one thing at a time; while it is busy the loop goes on, up to max.block.ms.

        What runs in a thread when a task is cancelled goes on. The same call, made again, gets its answer; any other
        comes after it, and finds the state that it has left.
        """
        async with self._turn:
            end = self._monotonic_s() + self._max_block_s
            while True:
                if is_flushed:
                    await self._flush_transaction(end - self._monotonic_s())
                try:
                    return await self._run(name, call)
                except RequestTimedOutError as error:
                    # With a cause, the coordinator was busy; it may also have waited for a batch that came late.
                    is_busy = error.__cause__ is not None or bool(self._core.incomplete)
                    if not is_busy or self._monotonic_s() >= end:
                        raise
                await asyncio.sleep(RETRY_S)

    async def _flush_transaction(self, timeout_s: float) -> None:
        """Sends what is left; raises why a batch was given up meanwhile."""
        before = self.state
        await self.flush(max(round(timeout_s * 1000), 0))
        error = self._core.first_error
        if self.state is not before and error is not None:
            raise error

    async def _run(self, name: str, call: Callable[[], R]) -> R:
        if not self._is_synced:
            return call()
        running = self._running
        if running is None or running.name != name:
            if running is not None:
                await asyncio.wait([running.future])
            running = self._running = _Running(name, self._pool.start(call))
        try:
            answer: R = await finished(running.future)
        finally:
            if running.future.done():
                self._running = None
        return answer

    async def init_transactions(self, *, keep_prepared: bool = False) -> None:
        """Takes the transactional id: older holders are fenced, what they left open is aborted.

        ``keep_prepared`` leaves a prepared transaction as it is, to be ended by complete_transaction().
        """
        await self._ask("init", lambda: self._core.init_transactions(keep_prepared=keep_prepared))

    async def begin_transaction(self) -> None:
        """Begins a transaction; the coordinator's clock starts with the first record."""
        async with self._turn:
            if self._running is not None:
                await asyncio.wait([self._running.future])
                self._running = None
            self._core.begin_transaction()

    async def commit_transaction(self) -> None:
        """Sends what is left and ends the transaction: readers see all of it when this returns.

        Cancelled or timed out, it is resumed by the same call: whether the commit took effect is not known before.
        """
        await self._ask("commit", self._core.commit_transaction, is_flushed=True)

    async def abort_transaction(self) -> None:
        """Drops what is unsent and ends the transaction: nobody who reads committed data ever sees it."""
        await self._ask("abort", self._core.abort_transaction)

    async def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group_metadata: Any
    ) -> None:
        """Commits a group's offsets with the transaction: both are seen, or neither."""
        await self._ask(
            "send offsets",
            lambda: self._core.send_offsets_to_transaction(offsets, group_metadata),
        )

    async def prepare_transaction(self) -> PreparedTransaction:
        """The first phase for an outside coordinator: everything is in the log, and no time-out ends it."""
        return await self._ask("prepare", self._core.prepare_transaction, is_flushed=True)

    async def complete_transaction(self, prepared: PreparedTransaction | str) -> None:
        """Ends a prepared transaction: commits it if it is the one named, else aborts it."""
        await self._ask("complete", lambda: self._core.complete_transaction(prepared))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction that commits at the end of the block, and aborts if the block raises or is cancelled.

        A block may also abort or prepare the transaction itself. After a fatal error nothing can be aborted: the
        producer is closed, and the first error is raised.
        """
        await self.begin_transaction()
        try:
            yield Transaction(self)
            if self.state not in (State.READY, State.PREPARED):
                await self.commit_transaction()
        except BaseException as error:
            await self._abandon(error)
            raise

    async def _abandon(self, error: BaseException) -> None:
        """Ends a transaction whose block, or commit, has raised ``error``."""
        first = self._core.first_error
        if self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            try:
                await self.abort_transaction()
            except OncelogError as another:
                logger.warning("%r: cannot abort: %s", self, another)
        if self.state is State.FATAL_ERROR:
            await self.close(0)
        if first is not None and error.__cause__ is first:
            raise first from None  # what was raised only pointed at it


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _size_of(value: Buffer | None, key: Buffer | None, headers: Headers | None) -> int:
    """How many bytes a record may take; where that cannot be told, send() will say why."""
    total = RECORD_BYTES_OVERHEAD
    for part in (value, key):
        with contextlib.suppress(TypeError):
            total += 0 if part is None else memoryview(part).nbytes
    if headers:
        pairs = headers.items() if hasattr(headers, "items") else headers
        for name, content in pairs:
            total += HEADER_BYTES_OVERHEAD + 4 * len(name)
            with contextlib.suppress(TypeError):
                total += 0 if content is None else memoryview(content).nbytes
    return total
