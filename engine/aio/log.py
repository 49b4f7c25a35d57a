"""``oncelog.aio.open(path)``: an open log whose producers and consumers are used by the tasks of one event loop."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from ..base.clock import now_ms
from ..base.errors import IllegalStateError
from ..client.client import Log as BlockingLog
from .consumer import Consumer
from .producer import Producer
from .waiting import Pool

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from ..broker.answers import TopicDescription
    from ..client.admin import Admin
    from ..client.reader import Read


class Log:
    """An embedded broker for asyncio. One event loop uses it; threads beside it may use ``blocking``, the same log.

    What only looks or appends is done in the loop at once. What has to wait for the device, as making a topic or a
    commit with ``durability="fsync"`` does, is awaited, and waits in one of a few threads that all tasks share.
    """

    def __init__(self, opened: Callable[[], BlockingLog], *, is_owner: bool = True) -> None:
        self._opened = opened
        self._is_owner = is_owner
        self._log: BlockingLog | None = None
        self._pool = Pool()
        self._given: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"aio.Log({self._log!r})"

    @property
    def blocking(self) -> BlockingLog:
        """The log underneath."""
        if self._log is None:
            raise IllegalStateError(
                "the log is not open: use `async with oncelog.aio.open(path) as log`"
            )
        return self._log

    async def __aenter__(self) -> Log:
        if self._log is None:
            self._log = await self._pool.run(self._opened)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its producers and consumers, then the log: a clean stop. Closing twice is harmless."""
        for given in list(self._given):
            await given.close()
        if self._log is not None and self._is_owner:
            await self._pool.run(self._log.close)
        self._pool.close()

    # ------------------------------------------------------------ topics

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, object] | None = None,
        replication_factor: int = 1,
    ) -> TopicDescription:
        """Makes a topic; ``config`` takes Kafka's topic options."""
        return await self._pool.run(
            self.blocking.create_topic,
            name,
            partitions,
            config=config,
            replication_factor=replication_factor,
        )

    async def delete_topic(self, name: str) -> None:
        """Removes a topic and all its records."""
        await self._pool.run(self.blocking.delete_topic, name)

    def topics(self) -> dict[str, list[int]]:
        """Topics and their partitions, without the broker's own."""
        return self.blocking.topics()

    def admin(self) -> Admin:
        """The administrator. Its calls answer at once, but what changes topics waits for the device."""
        return self.blocking.admin()

    # ------------------------------------------------------------ records

    def producer(self, **options: Any) -> Producer:
        """A producer; keyword arguments are Kafka's producer options in snake case."""
        producer = Producer(self.blocking.broker, self._pool, **options)
        self._given.add(producer)
        return producer

    def consumer(self, **options: Any) -> Consumer:
        """A consumer; keyword arguments are Kafka's consumer options in snake case. Unlike Kafka's, it is
        read_committed unless told otherwise."""
        consumer = Consumer(self.blocking.consumer_broker, self._pool, **options)
        self._given.add(consumer)
        return consumer

    def read(self, topic: str, partition: int | None = None, **options: Any) -> Read:
        """Records that are there, as ``Log.read`` of the blocking log gives them; nothing in it waits."""
        return self.blocking.read(topic, partition, **options)

    async def complete_transaction(self, transactional_id: str, *, commit: bool) -> None:
        """Ends a prepared transaction, whoever prepared it and whenever: the second phase of a two-phase commit."""
        await self._pool.run(self.blocking.complete_transaction, transactional_id, commit=commit)


def open(
    path: str | os.PathLike[str],
    *,
    durability: str = "os",
    adopt: bool = False,
    config: Mapping[str, object] | None = None,
    clock: Callable[[], int] | None = None,
) -> Log:
    """A data directory for asyncio, with the options of ``oncelog.open``; opened by ``async with``."""
    return Log(
        functools.partial(
            BlockingLog,
            path,
            durability=durability,
            adopt=adopt,
            config=config,
            clock=clock or now_ms,
        )
    )


def over(log: BlockingLog) -> Log:
    """The asyncio side of a log that is open already, and that stays open when ``async with`` ends."""
    return Log(lambda: log, is_owner=False)
