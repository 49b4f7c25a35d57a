"""The consumer for asyncio: the blocking one underneath finds records, and tasks wait for more in the loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..base.errors import IllegalStateError, OncelogError, RebalanceInProgressError
from ..client.consumer import LOOK_AROUND_S
from ..client.consumer import Consumer as BlockingConsumer
from .waiting import Signal, finished

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sized
    from types import TracebackType

    from .._native.records import Record
    from ..broker.broker import Broker
    from ..client.arrow import RecordBatch
    from .waiting import Pool

    Found = TypeVar("Found", bound=Sized)

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")


class _AnnouncingQueue(queue.SimpleQueue[Item]):
    """Tells when something is put into it."""

    def __init__(self, announce: Callable[[], None]) -> None:
        super().__init__()
        self._announce = announce

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self._announce()


class _Core(BlockingConsumer):
    """The consumer underneath. It is only ever asked for what is there; how long to wait it tells by itself."""

    @property
    def monotonic_s(self) -> Callable[[], float]:
        return self._monotonic_s

    def next_look_s(self) -> float:
        """How soon there may be something to do that nobody announces."""
        soon = [LOOK_AROUND_S]
        if self._held_since is not None:
            soon.append(self._held_since + self._wait_s - self._monotonic_s())
        if self._member is not None:
            due = (self._member.retry_in_ms(), self._committing.retry_in_ms(self._subscription))
            soon += [due_ms / 1000 for due_ms in due if due_ms is not None]
        return min(soon)

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        """For a ``with`` around a poll that waits in the loop: to its group a member is alive meanwhile."""
        if self._member is None:
            yield
            return
        self._member.begin_poll()
        try:
            yield
        finally:
            self._member.end_poll()

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    @property
    def backoff_s(self) -> float:
        return self._backoff_s

    def _insist(self, call: Callable[[], R]) -> R:
        return call()  # who tries again waits in the loop

    def check_woken(self) -> None:
        if self._is_woken:
            self._raise_wakeup()

    def leave_without_commit(self) -> None:
        """What was handed out may not have been worked on."""
        self._committing.is_auto = False

    def keep(self, records: list[Record]) -> None:
        """Records of an iteration: the position stays before those that were not handed out."""
        self._pending.extend(records)

    def next_kept(self) -> Record | None:
        return self._pending.popleft() if self._pending else None


def _at_once(
    method: Callable[Concatenate[BlockingConsumer, P], R],
) -> Callable[Concatenate[Consumer, P], R]:
    """A call that waits for nothing."""

    @functools.wraps(method)
    def call(self: Consumer, /, *args: P.args, **options: P.kwargs) -> R:
        return method(self._core, *args, **options)

    return call


def _awaited(
    method: Callable[Concatenate[BlockingConsumer, P], R],
) -> Callable[Concatenate[Consumer, P], Coroutine[Any, Any, R]]:
    """A call that may have to wait for the device."""

    @functools.wraps(method)
    async def call(self: Consumer, /, *args: P.args, **options: P.kwargs) -> R:
        return await self._run(functools.partial(method, self._core, *args, **options))

    return call


class Consumer:
    """Reads partitions for one task at a time. Options and methods are those of the blocking consumer.

    ``poll``, ``poll_arrow`` and ``async for`` wait in the event loop, however many consumers do so at once. What is
    cancelled while it waits has taken nothing: the next poll returns what it would have.
    """

    def __init__(self, broker: Broker, pool: Pool, **options: Any) -> None:
        self._signal = Signal(asyncio.get_running_loop())
        self._pool = pool
        self._is_synced = broker.is_synced
        self._core = _Core(broker, _ready=_AnnouncingQueue(self._signal.fire), **options)
        self._turn = asyncio.Lock()  # of calls in threads
        self._busy: asyncio.Future[Any] | None = None
        self._is_polled = False

    def __repr__(self) -> str:
        return f"aio.{self._core!r}"

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._core.leave_without_commit()
        await self.close()

    async def _run(self, call: Callable[[], R]) -> R:
        """The answer to a call that may wait for the device, repeated for a while where that may help."""
        end = self._core.monotonic_s() + self._core.timeout_s
        while True:
            try:
                return await self._run_once(call)
            except OncelogError as error:
                is_for_poll = isinstance(error, RebalanceInProgressError)
                if not error.retriable or is_for_poll or self._core.monotonic_s() >= end:
                    raise
            with self._signal.announced() as waiter:
                await waiter.wait(self._core.backoff_s)
            self._core.check_woken()

    async def _run_once(self, call: Callable[[], R]) -> R:
        if not self._is_synced:
            return call()
        async with self._turn:
            await self._idle()
            running = self._busy = self._pool.start(call)
            return await finished(running)

    async def _idle(self) -> None:
        """Returns when no thread has the consumer, as one may that a cancelled task has left at work."""
        if self._busy is not None and not self._busy.done():
            await asyncio.wait([self._busy])

    async def close(self) -> None:
        """Commits, where that happens by itself, leaves the group and gives up the partitions; a poll that waits
        raises. Leaving an ``async with`` block by an exception does not commit. Closing twice is harmless."""
        await self._run(self._core.close)
        self._signal.fire()

    # ------------------------------------------------------------ polling

    async def poll(
        self, timeout_ms: float | None = 0, max_records: int | None = None
    ) -> list[Record]:
        """The next records, ``max_records`` at most (default: max.poll.records); none when the time is over.

        Waits up to ``timeout_ms`` where there are none, with None as long as it takes.
        """
        return await self._found(lambda: self._core.poll(0, max_records), timeout_ms)

    async def poll_arrow(
        self,
        timeout_ms: float | None = 0,
        *,
        views: bool = False,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> RecordBatch:
        """The next records of one partition as a pyarrow.RecordBatch; one without rows when the time is over."""
        return await self._found(
            lambda: self._core.poll_arrow(
                0, views=views, max_records=max_records, max_bytes=max_bytes
            ),
            timeout_ms,
        )

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Record:
        """Record after record, waiting for more without end. Positions are those of the records handed out."""
        while True:
            record = self._core.next_kept()
            if record is not None:
                return record
            self._core.keep(await self.poll(timeout_ms=None))

    async def _found(self, look: Callable[[], Found], timeout_ms: float | None) -> Found:
        """What a look finds, at once or as soon as there is something.

        Between a look that has found something and the return nothing is awaited: so a cancellation comes before the
        records are taken, or not at all.
        """
        with self._polling(), self._core.polling():
            monotonic_s = self._core.monotonic_s
            end = None if timeout_ms is None else monotonic_s() + timeout_ms / 1000
            while True:
                await self._idle()
                with self._signal.announced() as waiter:
                    found = look()
                    if len(found):
                        return found
                    left = self._core.next_look_s()
                    if end is not None:
                        left = min(left, end - monotonic_s())
                        if end <= monotonic_s():
                            return found
                    await waiter.wait(left)

    @contextlib.contextmanager
    def _polling(self) -> Iterator[None]:
        if self._is_polled:
            raise IllegalStateError(
                "another task polls this consumer: give each task a consumer of its own"
            )
        self._is_polled = True
        try:
            yield
        finally:
            self._is_polled = False

    # ------------------------------------------------------------ what waits for the device, or for a transaction

    commit = _awaited(BlockingConsumer.commit)
    committed = _awaited(BlockingConsumer.committed)

    # ------------------------------------------------------------ what waits for nothing

    subscribe = _at_once(BlockingConsumer.subscribe)
    unsubscribe = _at_once(BlockingConsumer.unsubscribe)
    subscription = _at_once(BlockingConsumer.subscription)
    enforce_rebalance = _at_once(BlockingConsumer.enforce_rebalance)
    group_metadata = _at_once(BlockingConsumer.group_metadata)
    commit_async = _at_once(BlockingConsumer.commit_async)
    seek_to_committed = _at_once(BlockingConsumer.seek_to_committed)
    wakeup = _at_once(BlockingConsumer.wakeup)
    assign = _at_once(BlockingConsumer.assign)
    unassign = _at_once(BlockingConsumer.unassign)
    assignment = _at_once(BlockingConsumer.assignment)
    pause = _at_once(BlockingConsumer.pause)
    resume = _at_once(BlockingConsumer.resume)
    paused = _at_once(BlockingConsumer.paused)
    position = _at_once(BlockingConsumer.position)
    position_offsets = _at_once(BlockingConsumer.position_offsets)
    seek = _at_once(BlockingConsumer.seek)
    seek_to_beginning = _at_once(BlockingConsumer.seek_to_beginning)
    seek_to_end = _at_once(BlockingConsumer.seek_to_end)
    lag = _at_once(BlockingConsumer.lag)
    lead = _at_once(BlockingConsumer.lead)
    beginning_offsets = _at_once(BlockingConsumer.beginning_offsets)
    end_offsets = _at_once(BlockingConsumer.end_offsets)
    offsets_for_times = _at_once(BlockingConsumer.offsets_for_times)
    metrics = _at_once(BlockingConsumer.metrics)
