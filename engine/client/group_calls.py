"""The calls of a consumer that are about its group: subscribing, committing, and what a poll does for it first."""

from __future__ import annotations

import abc
import collections
import contextlib
import queue
from typing import TYPE_CHECKING, Any, TypeVar

from ..base.errors import (
    IllegalStateError,
    OncelogError,
    RebalanceInProgressError,
    UnknownTopicOrPartitionError,
)
from ..segment.names import partition_key
from .committing import Committing, OffsetAndMetadata, offsets_given
from .group_assignment import Callbacks, GroupAssignment, Topics
from .group_member import ConsumerGroupMetadata, GroupMember
from .heartbeat import heartbeats_of

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping

    from .._native.records import Record
    from ..broker.broker import Broker
    from ..segment.names import TopicPartition
    from .fetching import AssignedPartition
    from .subscription import Pair, Subscription
    from .turn import Turn

Found = TypeVar("Found")


class GroupCalls(abc.ABC):
    """The part of a consumer that is about its group. Without a ``group_id`` there is none, and calls say so."""

    _broker: Broker
    _subscription: Subscription
    _turn: Turn
    _pending: collections.deque[Record]
    _alarm: queue.SimpleQueue[None]  # ends a pause
    _monotonic_s: Callable[[], float]
    _is_woken: bool

    @abc.abstractmethod
    def position_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]: ...

    @abc.abstractmethod
    def _raise_wakeup(self) -> None: ...

    @abc.abstractmethod
    def _take_back(self, partition: AssignedPartition) -> None: ...

    def _set_group(self, chosen: Mapping[str, Any], given: Mapping[str, object]) -> None:
        broker, monotonic_s = self._broker, self._monotonic_s
        self._backoff_s: float = chosen["retry.backoff.ms"] / 1000
        self._timeout_s: float = chosen["default.api.timeout.ms"] / 1000

        def now_ms() -> int:
            return int(monotonic_s() * 1000)

        self._member: GroupMember | None = None
        self._group: GroupAssignment | None = None
        if chosen["group.id"] is not None:
            heartbeats = heartbeats_of(broker)
            wake = self._subscription.interrupt
            self._member = GroupMember(broker, chosen, now_ms, wake, heartbeats.nudge)
            self._group = GroupAssignment(
                broker, chosen, self._subscription, self._member, heartbeats, now_ms
            )
        self._committing = Committing(broker, chosen, given, self._member, now_ms)

    def _leave(self, why: str) -> None:
        if self._group is not None:
            self._group.leave(why, self)

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: Callable[[list[TopicPartition]], object] | None = None,
        on_revoked: Callable[[list[TopicPartition]], object] | None = None,
        on_lost: Callable[[list[TopicPartition]], object] | None = None,
    ) -> None:
        """Shares the partitions of some topics, or of all whose whole name a pattern matches, with the group.

        Nothing happens before the next poll, which joins the group. Callbacks run inside a poll, or a close:
        ``on_assigned`` with what is new, ``on_revoked`` with what is about to go and can still be committed, and
        ``on_lost`` (default: on_revoked) with what others may have already. No topics at all: unsubscribes.
        """
        with self._turn:
            wanted = Topics.of(topics, pattern)
            if wanted == Topics():
                self.unsubscribe()
                return
            self._committing.need_member("subscribe()")
            assert self._group is not None
            if len(self._subscription) and not self._is_subscribed:
                raise IllegalStateError(
                    "this consumer was assigned partitions by hand: unsubscribe() before subscribe(), "
                    "or use two consumers"
                )
            self._group.subscribe(wanted, Callbacks(on_assigned, on_revoked, on_lost))

    def unsubscribe(self) -> None:
        """Leaves the group, or gives up what was assigned by hand. Nothing is committed."""
        with self._turn:
            self._leave("it unsubscribes")
            self._subscription.assign([])
            self._pending.clear()

    def subscription(self) -> set[str]:
        """The topics that are subscribed to; of a pattern those that match now."""
        with self._turn:
            return set() if self._group is None else set(self._group.topics)

    @property
    def _is_subscribed(self) -> bool:
        return self._group is not None and self._group.is_subscribed

    def enforce_rebalance(self, reason: str = "") -> None:
        """The next poll has the group share its partitions out anew."""
        with self._turn:
            self._committing.need_member("enforce_rebalance()").request_join(
                reason or "a rebalance is asked for"
            )

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this is to its group, for ``send_offsets``: the transaction then refuses a member that is none any more.

        Offsets are the transactions' from now on: automatic commits end, as they would count what is aborted.
        """
        with self._turn:
            member = self._committing.need_member("group_metadata()")
            self._committing.is_auto = False
            return member.known_as if self._is_subscribed else member.nobody

    def before_revoking(self) -> None:
        """For the group: partitions are about to go, and what was read of them is committed if that happens by
        itself."""
        if self._committing.is_auto and len(self._subscription):
            self._committing.commit_by_itself(
                self.position_offsets(), is_subscribed=self._is_subscribed
            )

    def assignment_changed(self) -> None:
        """For the group: what an iteration has polled of other partitions is not handed out any more."""
        keys = self._subscription.keys
        self._pending = collections.deque(
            record for record in self._pending if (record.topic, record.partition) in keys
        )

    # ------------------------------------------------------------ commits

    def commit(self, offsets: Mapping[Pair, int | OffsetAndMetadata] | None = None) -> None:
        """Commits how far the group has read: the positions, or these offsets of the next records to read.

        A member commits for its generation, and is refused when that is over. A consumer with assigned partitions
        commits as nobody, which a group that has members refuses.
        """
        with self._turn:
            chosen, is_subscribed = self._to_commit(offsets), self._is_subscribed
            self._insist(lambda: self._committing.commit(chosen, is_subscribed=is_subscribed))

    def commit_async(
        self,
        callback: Callable[[dict[TopicPartition, OffsetAndMetadata], OncelogError | None], object]
        | None = None,
        offsets: Mapping[Pair, int | OffsetAndMetadata] | None = None,
    ) -> None:
        """Commits without repeating it or raising; the callback hears of the outcome in the next poll, commit or
        close."""
        with self._turn:
            self._committing.commit_async(
                self._to_commit(offsets), callback, is_subscribed=self._is_subscribed
            )

    def _to_commit(
        self, offsets: Mapping[Pair, int | OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.position_offsets() if offsets is None else offsets_given(offsets)

    def committed(
        self, partitions: Iterable[Pair]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for partitions, None where it has nothing. Waits for an open transaction that
        is about to commit one of them, for default.api.timeout.ms at most."""
        with self._turn:
            keys = [partition_key(given) for given in partitions]
            return self._insist(lambda: self._committing.committed(keys))

    def seek_to_committed(self, partitions: Iterable[Pair] | None = None) -> None:
        """Goes back to what the group has committed of these partitions (default: of all): after a transaction was
        aborted, the same records come again. Where nothing is committed, it is to where it began."""
        with self._turn:
            self._committing.need_member("seek_to_committed()")
            for partition in self._subscription.some(partitions):
                self._take_back(partition)
                partition.hold()
                self._subscription.may_hold = True

    # ------------------------------------------------------------ within a poll

    def _go_on(self) -> None:
        """With the group, as far as that goes without waiting."""
        if self._group is not None:
            if self._group.is_subscribed:
                self._group.step(self)
            self._committing.position(self._subscription)

    def _group_due_ms(self) -> int | None:
        """When to go on with something of the group that no answer will announce."""
        if self._member is None:
            return None
        due = [self._member.retry_in_ms(), self._committing.retry_in_ms(self._subscription)]
        return min((ms for ms in due if ms is not None), default=None)

    def _is_gone(self, partition: AssignedPartition, error: OncelogError) -> bool:
        """A deleted topic of a group: a rebalance will take its partitions away, and nobody need be told."""
        if self._group is None or not self._is_subscribed:
            return False
        if not isinstance(error, UnknownTopicOrPartitionError):
            return False
        partition.hold()
        self._subscription.may_hold = True
        self._committing.back_off()
        self._group.look_soon()
        return True

    def _insist(self, call: Callable[[], Found]) -> Found:
        """The answer to a call that is repeated for a while where that may help."""
        end = self._monotonic_s() + self._timeout_s
        while True:
            try:
                return call()
            except OncelogError as error:
                is_for_poll = isinstance(error, RebalanceInProgressError)
                if not error.retriable or is_for_poll or self._monotonic_s() >= end:
                    raise
            with contextlib.suppress(queue.Empty):
                self._alarm.get(timeout=self._backoff_s)
            if self._is_woken:
                self._raise_wakeup()
