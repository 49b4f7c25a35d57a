"""How tasks wait: for something that any thread may bring about, or for the disk.

The broker answers at once and never waits, so its calls run in the loop itself. Two kinds of waiting are left. What a
writer brings about fires a signal. What waits for the device goes to a few threads that all of a log's tasks share.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")

POOL_THREADS: Final = 4  # waits for one device are shared anyway


class Signal:
    """Wakes tasks. They announce themselves, look whether what they wait for has come, and then wait; so whoever
    brings it about after the look finds them announced, and no wake-up is missed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_armed = False
        self._waiters: set[asyncio.Future[bool]] = set()

    def fire(self) -> None:
        """Something may have come. From any thread, with locks held: neither waits nor fails."""
        if self._is_armed:
            self._is_armed = False  # whoever disarms it wakes all, so one call is enough for many
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for waiter in self._waiters:
            _settle(waiter, True)

    @contextlib.contextmanager
    def announced(self) -> Iterator[Waiter]:
        """For a ``with`` around a look and the wait that follows it."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiters.add(future)
        self._is_armed = True
        try:
            yield Waiter(self._loop, future)
        finally:
            self._waiters.discard(future)


class Waiter:
    """A task that has announced itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[bool]) -> None:
        self._loop = loop
        self._future = future

    async def wait(self, timeout_s: float | None) -> bool:
        """Returns when the signal is fired (True), or after a while (False)."""
        if timeout_s is None:
            return await self._future
        timer = self._loop.call_later(max(timeout_s, 0.0), _settle, self._future, False)
        try:
            return await self._future
        finally:
            timer.cancel()


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


class Pool:
    """The threads of one log that wait for the device. They are started when they are first needed."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="oncelog-aio")

    def start(
        self, call: Callable[P, R], /, *args: P.args, **options: P.kwargs
    ) -> asyncio.Future[R]:
        """Begins a call in a thread. It goes on when the task that waits for it is cancelled."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, functools.partial(call, *args, **options))
        future.add_done_callback(_heard)
        return future

    async def run(self, call: Callable[P, R], /, *args: P.args, **options: P.kwargs) -> R:
        """The answer of a call that may wait for the device."""
        return await finished(self.start(call, *args, **options))

    def close(self) -> None:
        self._threads.shutdown(wait=False)


async def finished(future: asyncio.Future[R]) -> R:
    """The result of a call in a thread, which a cancellation of this wait leaves alone."""
    await asyncio.wait([future])
    return future.result()


def _heard(future: asyncio.Future[Any]) -> None:
    """A failure that nobody waits for any more is no news: the next call meets the state it has left."""
    if not future.cancelled():
        future.exception()
