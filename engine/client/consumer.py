"""The consumer: records of partitions that it chose or that its group gave it, at the pace of whoever polls.

Waiting happens here and nowhere below. A poll that finds nothing waits until a writer wakes it, whose append or
marker may have moved what it can see, or until its group has news, and looks around once a second for what wakes
nobody, such as a deletion.
"""

from __future__ import annotations

import collections
import queue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from .._native.process import forks
from ..base.clock import monotonic_of, when_moved
from ..base.config import CONSUMER, read_options
from ..base.errors import (
    ClosedError,
    IllegalStateError,
    InvalidRequestError,
    OncelogError,
    WakeupError,
)
from ..segment.names import partition_key
from .committing import OffsetAndMetadata
from .consumer_figures import Polls, fetching_figures
from .directory import isolation_of
from .group_calls import GroupCalls
from .group_member import ConsumerGroupMetadata
from .offset_reset import EARLIEST, LATEST, OffsetReset
from .subscription import Subscription
from .turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from .._native.records import Record
    from ..broker.broker import Broker
    from ..segment.names import TopicPartition
    from .arrow import RecordBatch
    from .fetching import AssignedPartition
    from .subscription import Pair

__all__ = ["Consumer", "ConsumerGroupMetadata", "OffsetAndMetadata", "OffsetAndTimestamp"]

LOOK_AROUND_S: Final = 1.0
Found = TypeVar("Found")


class OffsetAndTimestamp(NamedTuple):
    """The first record at a time or later."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class Consumer(GroupCalls):
    """Reads the partitions that ``assign`` names, or those that the group gives it for what ``subscribe`` names.

    Keyword arguments are Kafka's options in snake case. With a ``group_id`` it starts at what the group has committed.

    Unlike Kafka's consumers it is read_committed unless told otherwise. One thread uses it at a time, as with
    Kafka's: another one is refused. ``wakeup`` alone may come from any thread, or from a signal handler.

    ``fetch_min_bytes`` holds records back until so many bytes of log can be read, or ``fetch_max_wait_ms`` have
    passed since the first of them was found; records of a batch that was begun are never held back.
    """

    def __init__(self, broker: Broker, *, _ready: Any = None, **options: object) -> None:
        chosen = read_options(CONSUMER, options)
        self._broker = broker
        self._born = forks()
        self._is_closed = False
        self._is_woken = False
        self._turn = Turn(self._check_usable)
        self._alarm: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._isolation = isolation_of(chosen["isolation.level"])
        self._records_max: int = chosen["max.poll.records"]
        self._bytes_min: int = chosen["fetch.min.bytes"]
        self._wait_s: float = chosen["fetch.max.wait.ms"] / 1000
        self._held_since: float | None = None  # when records were first held back
        self._monotonic_s = monotonic_of(broker.now_ms)
        self._polls = Polls(self._monotonic_s)
        self._pending: collections.deque[Record] = collections.deque()  # of an iteration
        self._empty_batch: Callable[[bool], RecordBatch] | None = (
            None  # None: pyarrow is not loaded
        )
        self.client_id: str = chosen["client.id"]
        self._subscription = Subscription(
            broker,
            self._isolation,
            OffsetReset.of(chosen["auto.offset.reset"]),
            max(min(chosen["max.partition.fetch.bytes"], chosen["fetch.max.bytes"]), 1),
            check_crc=chosen["check.crcs"],
            ready=_ready,
        )
        when_moved(broker.now_ms, self._subscription.interrupt)
        self._creates_topics = chosen["allow.auto.create.topics"] and broker.creates_topics
        self._set_group(chosen, options)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._subscription)} partitions"
        return f"Consumer({self._isolation.value}, {state})"

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._committing.is_auto = False  # what was handed out may not have been worked on
        self.close()

    def close(self) -> None:
        """Commits, where that happens by itself, leaves the group and gives up the partitions.

        A static member does not leave: its partitions wait for its return until its session is over. Leaving a
        ``with`` block by an exception does not commit. Closing twice is harmless.
        """
        if self._is_closed or self._born != forks():  # a child has nothing to give up
            self._is_closed = True
            return
        with self._turn:
            try:
                self.before_revoking()
                self._committing.close()
            finally:
                try:
                    self._leave("the consumer is closed")
                finally:
                    self._is_closed = True
                    self._pending.clear()
                    self._subscription.close()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClosedError("this consumer is closed")
        if self._born != forks():
            raise ClosedError("this consumer was made before this process was forked off")

    def wakeup(self) -> None:
        """Ends the poll that waits, or the next one, with a WakeupError; from any thread."""
        self._is_woken = True
        self._alarm.put(None)
        self._subscription.interrupt()

    # ------------------------------------------------------------ assignment

    def assign(self, partitions: Iterable[Pair]) -> None:
        """Reads exactly these partitions from now on; those that stay keep their position."""
        with self._turn:
            keys = dict.fromkeys(partition_key(given) for given in partitions)
            if not keys:
                self.unsubscribe()
                return
            if self._is_subscribed:
                raise IllegalStateError(
                    "this consumer is subscribed to topics: unsubscribe() before assign(), or use two consumers"
                )
            self.before_revoking()
            if self._creates_topics:
                for topic in {key.topic for key in keys}:
                    self._broker.meet_topic(topic)
            self._subscription.assign(keys, held=self._member is not None)
            self.assignment_changed()

    def unassign(self) -> None:
        """Reads nothing any more; the same as ``assign([])`` and ``unsubscribe()``."""
        self.unsubscribe()

    def assignment(self) -> set[TopicPartition]:
        with self._turn:
            return self._subscription.keys

    def pause(self, partitions: Iterable[Pair] | None = None) -> None:
        """Polls return nothing of these partitions (default: of all) until they are resumed."""
        with self._turn:
            for partition in self._subscription.some(partitions):
                self._take_back(partition)
                partition.is_paused = True

    def resume(self, partitions: Iterable[Pair] | None = None) -> None:
        with self._turn:
            for partition in self._subscription.some(partitions):
                partition.is_paused = False
                partition.wake()

    def paused(self) -> set[TopicPartition]:
        with self._turn:
            return {partition.key for partition in self._subscription if partition.is_paused}

    # ------------------------------------------------------------ polling

    def poll(self, timeout_ms: float | None = 0, max_records: int | None = None) -> list[Record]:
        """The next records, ``max_records`` at most (default: max.poll.records); none when the time is over.

        Waits up to ``timeout_ms`` where there are none, with None as long as it takes. The position moves past
        aborted records, markers and gaps also when nothing is returned. A batch that cannot be read raises once all
        records before it were returned, and again each time, until ``seek`` leaves it out.
        """
        with self._turn:
            count = self._records_max if max_records is None else max_records
            if count < 1:
                raise InvalidRequestError(f"max_records is at least 1, not {count}")
            self._polls.note()
            if self._pending:
                return [self._pending.popleft() for _ in range(min(count, len(self._pending)))]
            return self._found(lambda: self._take_records(count), timeout_ms) or []

    def poll_arrow(
        self,
        timeout_ms: float | None = 0,
        *,
        views: bool = False,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> RecordBatch:
        """The next records of one partition as a pyarrow.RecordBatch; one without rows when the time is over.

        Partitions take turns. About a megabyte is decoded at a time, whatever max.poll.records says;
        ``max_records`` and ``max_bytes`` make it less. With ``views`` keys and values point into the mapped files
        where batches are not compressed, and nothing is copied. Waiting and errors are those of ``poll``.

        The first call loads pyarrow, unless the program has; that counts as waiting.
        """
        with self._turn:
            for name, limit in (("max_records", max_records), ("max_bytes", max_bytes)):
                if limit is not None and limit < 1:
                    raise InvalidRequestError(f"{name} is at least 1, not {limit}")
            self._polls.note()
            if self._empty_batch is None:
                timeout_ms = self._load_arrow(timeout_ms)
            if self._pending:
                for partition in self._subscription:
                    self._take_back(partition)
            batch = self._found(
                lambda: self._take_columns(views, max_records, max_bytes), timeout_ms
            )
            assert self._empty_batch is not None
            return self._empty_batch(views) if batch is None else batch

    def _load_arrow(self, timeout_ms: float | None) -> float | None:
        """For whoever asks for it first, as who polls records needs no pyarrow; returns the time that is left."""
        began = self._monotonic_s()
        from .arrow import empty_batch

        self._empty_batch = empty_batch
        if timeout_ms is None:
            return None
        return max(timeout_ms - (self._monotonic_s() - began) * 1000, 0)

    def __iter__(self) -> Iterator[Record]:
        """Record after record, waiting for more without end. Positions are those of the records handed out."""
        while True:
            while self._pending:
                yield self._pending.popleft()
            self._pending.extend(self.poll(timeout_ms=None))

    def _take_records(self, count: int) -> list[Record] | None:
        """Records of the partitions that have some, in turn. An error waits until there is nothing else to return."""
        taken: list[Record] = []
        while len(taken) < count:
            partition = self._subscription.next_ready()
            if partition is None:
                break
            try:
                part = partition.take_records(count - len(taken))
            except OncelogError as error:
                if self._is_gone(partition, error):
                    continue
                partition.wake()
                if not taken:
                    raise
                break
            taken = taken + part if taken else part
        return taken or None

    def _take_columns(
        self, views: bool, record_count: int | None, bytes_max: int | None
    ) -> RecordBatch | None:
        """Records of the next partition that has some."""
        while (partition := self._subscription.next_ready()) is not None:
            try:
                batch = partition.take_columns(
                    views=views, record_count=record_count, bytes_max=bytes_max
                )
            except OncelogError as error:
                if self._is_gone(partition, error):
                    continue
                partition.wake()
                raise
            if batch is not None:
                return batch
        return None

    # ------------------------------------------------------------ waiting

    def _found(self, take: Callable[[], Found | None], timeout_ms: float | None) -> Found | None:
        """What ``take`` finds, at once or as soon as there is something to find; None when the time is over."""
        if self._is_woken:
            self._raise_wakeup()
        if not len(self._subscription) and not self._is_subscribed:
            raise IllegalStateError(
                "there is nothing to poll: subscribe() to topics, or assign() partitions, first"
            )
        if self._bytes_min > 1:
            take = self._holding_back(take)
        if self._member is None:
            return self._awaited(take, timeout_ms)
        self._member.begin_poll()
        try:
            self._committing.tell()
            if self._committing.is_due:
                self.before_revoking()
            return self._awaited(take, timeout_ms)
        finally:
            self._member.end_poll()

    def _awaited(self, take: Callable[[], Found | None], timeout_ms: float | None) -> Found | None:
        self._go_on()
        found = take()
        if found is not None:
            return found
        end = None if timeout_ms is None else self._monotonic_s() + timeout_ms / 1000
        while True:
            self._subscription.look()
            found = take()
            while found is None and self._is_awaited(end):
                self._go_on()
                found = take()
            if found is not None or (end is not None and self._monotonic_s() >= end):
                return found
            self._go_on()

    def _is_awaited(self, end: float | None) -> bool:
        """Waits until something may be found; False when it is time to look around, or over."""
        left = self._look_s()
        if end is not None:
            left = min(left, end - self._monotonic_s())
        is_awaited = left > 0 and self._subscription.wait(left)
        if self._is_woken:
            self._raise_wakeup()
        return is_awaited

    def _look_s(self) -> float:
        """How soon there may be something to do that wakes nobody."""
        left = LOOK_AROUND_S
        if self._held_since is not None:
            left = min(left, self._held_since + self._wait_s - self._monotonic_s())
        due_ms = self._group_due_ms()
        return left if due_ms is None else min(left, due_ms / 1000)

    def _raise_wakeup(self) -> None:
        self._is_woken = False
        while not self._alarm.empty():
            self._alarm.get_nowait()
        raise WakeupError("wakeup() was called")

    def _holding_back(self, take: Callable[[], Found | None]) -> Callable[[], Found | None]:
        """The same, but nothing as long as fewer than fetch.min.bytes are there and fetch.max.wait.ms are not over."""

        def take_enough() -> Found | None:
            while self._subscription.next_ready() is not None:
                pass  # they are looked at all together, and queued again below
            if not self._is_enough():
                return None
            self._held_since = None
            self._subscription.look()
            return take()

        return take_enough

    def _is_enough(self) -> bool:
        size = 0
        for partition in self._subscription:
            try:
                waiting = partition.waiting_bytes()
            except OncelogError:
                return True  # which the poll will raise
            if waiting is None:
                return True
            size += waiting
        if size >= self._bytes_min:
            return True
        if not size:
            self._held_since = None
            return False
        now = self._monotonic_s()
        if self._held_since is None:
            self._held_since = now
        return now - self._held_since >= self._wait_s

    # ------------------------------------------------------------ positions

    def _first_pending(self, key: TopicPartition) -> int | None:
        """The offset of the first record that an iteration has polled but not handed out yet."""
        for record in self._pending:
            if _key_of(record) == key:
                return record.offset
        return None

    def _take_back(self, partition: AssignedPartition) -> None:
        """Records that an iteration has not handed out yet are as if they had not been polled."""
        first = self._first_pending(partition.key)
        if first is not None:
            partition.seek(first)
            self._pending = collections.deque(
                record for record in self._pending if _key_of(record) != partition.key
            )

    def _position(self, partition: AssignedPartition) -> int:
        first = self._first_pending(partition.key)
        if first is not None:
            return first
        if partition.is_held:
            committed = self._insist(lambda: self._committing.committed([partition.key]))
            offset = committed[partition.key]
            if offset is None:
                partition.let_go()
            else:
                partition.seek(offset.offset, offset.leader_epoch)
        return partition.position

    def position(self, partition: Pair) -> int:
        """The offset of the next record. Where there is none yet, what is committed or auto.offset.reset finds one."""
        with self._turn:
            return self._position(self._subscription.need(partition_key(partition)))

    def position_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions of all partitions that have been read or sought, to be sent into a transaction."""
        with self._turn:
            found = {}
            for partition in self._subscription:
                if partition.has_position:
                    offset = self._position(partition)
                    found[partition.key] = OffsetAndMetadata(offset, partition.leader_epoch(offset))
            return found

    def seek(self, partition: Pair, offset: int | OffsetAndMetadata) -> None:
        """Goes on at an offset. Whether the log has it is seen at the next poll, and with a leader epoch, whether the
        records before it are still those that were read."""
        with self._turn:
            assigned = self._subscription.need(partition_key(partition))
            target = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            number, epoch = target.offset, target.leader_epoch
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise InvalidRequestError(f"an offset is a number from 0 on, not {offset!r}")
            self._take_back(assigned)
            assigned.seek(number, epoch)

    def seek_to_beginning(self, partitions: Iterable[Pair] | None = None) -> None:
        """Goes on at the first offset of these partitions (default: of all)."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, partitions: Iterable[Pair] | None = None) -> None:
        """Goes on behind the last offset that can be seen now: at read_committed, the last stable one."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: Iterable[Pair] | None, end: int) -> None:
        with self._turn:
            for partition in self._subscription.some(partitions):
                self._take_back(partition)
                partition.seek(
                    self._broker.list_offsets(partition.key, end, self._isolation).offset
                )

    def lag(self, partition: Pair) -> int:
        """How many offsets are ahead that can be seen: last stable offset, or high watermark, - position."""
        with self._turn:
            assigned = self._subscription.need(partition_key(partition))
            return max(assigned.end_offset - self._position(assigned), 0)

    def lead(self, partition: Pair) -> int:
        """How many offsets lie behind: position - log start. Retention takes what falls to 0."""
        with self._turn:
            assigned = self._subscription.need(partition_key(partition))
            return max(self._position(assigned) - assigned.partition.log_start_offset, 0)

    # ------------------------------------------------------------ offsets of any partition

    def beginning_offsets(self, partitions: Iterable[Pair]) -> dict[TopicPartition, int]:
        """The first offset of partitions, assigned or not."""
        return self._listed(partitions, EARLIEST)

    def end_offsets(self, partitions: Iterable[Pair]) -> dict[TopicPartition, int]:
        """The offset behind the last one that can be seen: last stable offset, or high watermark."""
        return self._listed(partitions, LATEST)

    def _listed(self, partitions: Iterable[Pair], end: int) -> dict[TopicPartition, int]:
        with self._turn:
            keys = [partition_key(given) for given in partitions]
            return {
                key: self._broker.list_offsets(key, end, self._isolation).offset for key in keys
            }

    def offsets_for_times(
        self, timestamps: Mapping[Pair, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at a time (in ms since 1970) or later; None where there is none yet."""
        with self._turn:
            found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
            for given, timestamp in timestamps.items():
                key = partition_key(given)
                if timestamp < 0:
                    raise InvalidRequestError(
                        f"the time for {key.directory} is {timestamp}, but milliseconds since 1970 are 0 or more"
                    )
                listed = self._broker.list_offsets(key, timestamp, self._isolation)
                found[key] = OffsetAndTimestamp(*listed) if listed.offset >= 0 else None
            return found

    # ------------------------------------------------------------ figures

    def metrics(self) -> dict[str, dict[str, float]]:
        """Figures by Kafka's names, in Kafka's groups; those of a partition in a group with its name at the end."""
        with self._turn:
            distances = {
                partition.key: (self.lag(partition.key), self.lead(partition.key))
                for partition in self._subscription
                if partition.has_position
            }
            groups = {
                "consumer-metrics": self._polls.metrics(),
                **fetching_figures(self._subscription.consumed(), distances),
            }
            if self._member is not None:
                groups["consumer-coordinator-metrics"] = {
                    "assigned-partitions": len(self._subscription),
                    "rebalance-total": self._member.rebalances,
                }
            return groups


def _key_of(record: Record) -> Pair:
    assert record.topic is not None
    return record.topic, record.partition
