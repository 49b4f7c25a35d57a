"""An open log: what ``oncelog.open(path)`` returns. It owns a broker and the threads that keep its house."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from ..base.clock import is_moved_by_hand, now_ms, when_moved
from ..base.errors import OncelogError
from ..broker.broker import Broker
from ..broker.topics import NewTopic
from ..segment.names import TopicPartition
from .admin import Admin
from .consumer import Consumer
from .directory import isolation_of
from .producer import Producer
from .reader import Read

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from ..base.disk import Disk
    from ..broker.answers import TopicDescription

logger = logging.getLogger("oncelog.client")

TICK_MS_MAX: Final = 1000  # how late a job may be that became due earlier than was foreseen
CATCH_UP_MAX: Final = 100  # of jobs that are due again at once


class Log:
    """An embedded broker: topics, producers, consumers and reads in one process, one writing process per directory.

    Any thread may use it. Closing it ends what it has given out: a producer or consumer of a closed log raises.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "os",
        adopt: bool = False,
        config: Mapping[str, object] | None = None,
        clock: Callable[[], int] = now_ms,
        _disk: Disk | None = None,
        _keeps_epoch: bool = False,
    ) -> None:
        self.broker = Broker(
            path,
            disk=_disk,
            now_ms=clock,
            config=config,
            durability=durability,
            adopt=adopt,
            keeps_epoch=_keeps_epoch,
        )
        self._given: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        if is_moved_by_hand(clock):
            when_moved(clock, self._catch_up)
        else:
            self._threads = [
                _started("oncelog-housekeeping", self._keep_house),
                _started("oncelog-cleaner", self._clean),
            ]

    @property
    def path(self) -> str:
        return self.broker.path

    @property
    def consumer_broker(self) -> Broker:
        """Whom consumers ask: the broker, unless a test stands in between."""
        return self.broker

    def __repr__(self) -> str:
        state = "closed" if self.broker.is_closed else f"{len(self.topics())} topics"
        return f"Log({self.path!r}, {state})"

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """A clean stop: producers send what is left, everything is on disk, nothing is left to recover. Closing twice
        is harmless."""
        for given in list(self._given):
            try:
                given.close()
            except OncelogError as error:
                logger.warning("%r could not be closed: %s", given, error)
        self._end_threads()
        self.broker.close()

    def _end_threads(self) -> None:
        self._stopping.set()
        self.broker.compactor.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # ------------------------------------------------------------ the house

    def _keep_house(self) -> None:
        wait_ms = 0
        while not self._stopping.wait(min(wait_ms, TICK_MS_MAX) / 1000):
            try:
                wait_ms = self.broker.tick()
            except Exception:
                if self.broker.is_closed:
                    return
                logger.exception("housekeeping failed, and will be tried again")
                wait_ms = TICK_MS_MAX

    def _catch_up(self) -> None:
        """The clock was moved by hand: does at once what the threads would have done meanwhile."""
        for _ in range(CATCH_UP_MAX):
            if self.broker.is_closed or self.broker.tick():
                break
        while not self.broker.is_closed and self.broker.config["log.cleaner.enable"]:
            if not self.broker.compact():
                break

    def _clean(self) -> None:
        if not self.broker.config["log.cleaner.enable"]:
            return
        while not self._stopping.wait(self.broker.config["log.cleaner.backoff.ms"] / 1000):
            try:
                while not self._stopping.is_set() and self.broker.compact():
                    pass
            except OncelogError as error:
                if self.broker.is_closed:
                    return
                logger.warning("cannot compact: %s", error)
            except Exception:
                logger.exception("compaction failed, and will be tried again")

    # ------------------------------------------------------------ topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, object] | None = None,
        replication_factor: int = 1,
    ) -> TopicDescription:
        """Makes a topic; ``config`` takes Kafka's topic options."""
        new = NewTopic(name, partitions, replication_factor, config)
        answer = self.broker.create_topics([new])[name]
        if isinstance(answer, OncelogError):
            raise answer
        return answer

    def delete_topic(self, name: str) -> None:
        """Removes a topic and all its records."""
        error = self.broker.delete_topics([name])[name]
        if error is not None:
            raise error

    def topics(self) -> dict[str, list[int]]:
        """Topics and their partitions, without the broker's own."""
        return {
            name: [partition.partition for partition in topic.partitions]
            for name, topic in self.broker.describe_topics().items()
            if not isinstance(topic, OncelogError) and not topic.is_internal
        }

    def admin(self) -> Admin:
        """The administrator: topics, options, groups, offsets and transactions, to look at and to change."""
        return Admin(self.broker)

    # ------------------------------------------------------------ records

    def producer(self, **options: Any) -> Producer:
        """A producer; keyword arguments are Kafka's producer options in snake case."""
        producer = Producer(self.broker, **options)
        self._given.add(producer)
        return producer

    def consumer(self, **options: Any) -> Consumer:
        """A consumer; keyword arguments are Kafka's consumer options in snake case. Unlike Kafka's, it is
        read_committed unless told otherwise."""
        consumer = Consumer(self.consumer_broker, **options)
        self._given.add(consumer)
        return consumer

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: int = 0,
        end: int | None = None,
        *,
        isolation_level: str = "read_committed",
        views: bool = False,
    ) -> Read:
        """Records of a partition (None: of all, one after another) with offsets from ``start`` up to ``end``.

        With ``views`` keys and values point into the mapped files where batches are not compressed.
        """
        numbers = self.broker.partitions_of(topic) if partition is None else [partition]
        partitions = [self.broker.partition(TopicPartition(topic, number)) for number in numbers]
        return Read(partitions, start, end, isolation_of(isolation_level), views=views)

    def complete_transaction(self, transactional_id: str, *, commit: bool) -> None:
        """Ends a prepared transaction, whoever prepared it and whenever: the second phase of a two-phase commit."""
        self.admin().complete_transaction(transactional_id, commit=commit)


def _started(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
