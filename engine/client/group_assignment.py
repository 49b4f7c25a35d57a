"""What a group gives to a consumer and takes away again, and whom to tell: the topics it asks for, and its callbacks.

Eager: before a rebalance everything is given up, and what comes is new. Cooperative: everything is kept, what the new
assignment leaves out is given up after it, and one more rebalance hands that on. Either way a partition is given up
after its owner has been told, so that it can still commit.

All of it happens inside the consumer's poll, in its thread.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ..base.errors import (
    IllegalStateError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from ..broker.topics import INTERNAL
from ..segment.names import TopicPartition, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..broker.broker import Broker
    from .group_member import GroupMember
    from .heartbeat import Heartbeats
    from .subscription import Subscription

logger = logging.getLogger("oncelog.consumer")

LOOK_AROUND_MS: Final = 1000  # new topics and partitions wake nobody


class Topics(NamedTuple):
    """What was subscribed to: names, or a pattern of names."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, topics: object, pattern: object) -> Topics:
        """From what subscribe() was given."""
        if (topics is None) == (pattern is None):
            raise InvalidRequestError("subscribe() takes a list of topics, or a pattern")
        if pattern is not None:
            return cls((), _compiled(pattern))
        if isinstance(topics, (str, bytes)):
            raise InvalidRequestError(f"subscribe() takes a list of topics, such as [{topics!r}]")
        names = list(topics)  # type: ignore[call-overload]  # what cannot be iterated says so itself
        for name in names:
            if not isinstance(name, str):
                raise InvalidRequestError(f"a topic is a str, not {name!r}")
            check_topic(name)
        return cls(tuple(dict.fromkeys(names)))


def _compiled(pattern: object) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise InvalidRequestError(f"a pattern is a str or a compiled one, not {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRegularExpressionError(f"{pattern!r} is no pattern: {error}") from error


class Callbacks(NamedTuple):
    """What to call with a list of partitions: given, about to be taken, and taken already."""

    on_assigned: Callable[[list[TopicPartition]], object] | None = None
    on_revoked: Callable[[list[TopicPartition]], object] | None = None
    on_lost: Callable[[list[TopicPartition]], object] | None = None


class Owner(Protocol):
    """The consumer, which is handed in with each call so that nobody here holds on to it."""

    def before_revoking(self) -> None:
        """Partitions are about to go: the last chance to commit."""

    def assignment_changed(self) -> None:
        """It has other partitions now."""


class GroupAssignment:
    """The partitions that a consumer has through its group."""

    def __init__(
        self,
        broker: Broker,
        options: Mapping[str, Any],
        subscription: Subscription,
        member: GroupMember,
        heartbeats: Heartbeats,
        now_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._subscription = subscription
        self._member = member
        self._heartbeats = heartbeats
        self._now_ms = now_ms
        self._hides_internal: bool = options["exclude.internal.topics"]
        self._look_ms = min(options["metadata.max.age.ms"], LOOK_AROUND_MS)
        self._look_at_ms = 0
        self._creates_topics = options["allow.auto.create.topics"] and broker.creates_topics
        self._topics: Topics | None = None
        self._callbacks = Callbacks()
        self._joined: tuple[str, ...] | None = None  # the topics that the group knows of
        self._is_prepared = False
        self.is_telling = False

    @property
    def is_subscribed(self) -> bool:
        return self._topics is not None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are meant now."""
        if self._topics is None:
            return ()
        pattern = self._topics.pattern
        if pattern is None:
            return self._topics.names
        return tuple(
            name
            for name in self._broker.topics()
            if pattern.fullmatch(name) and not (self._hides_internal and name in INTERNAL)
        )

    def subscribe(self, topics: Topics, callbacks: Callbacks) -> None:
        """The next poll asks the group for these topics."""
        before = self._topics
        if before is not None and (before.pattern is None) != (topics.pattern is None):
            raise IllegalStateError(
                "this consumer is subscribed already, to topics or to a pattern: "
                "unsubscribe() before it changes from one to the other"
            )
        self._topics, self._callbacks = topics, callbacks
        self._look_at_ms = 0

    # ------------------------------------------------------------ within a poll

    def step(self, owner: Owner) -> None:
        """Goes on as far as it can without waiting."""
        if self.is_telling:
            raise IllegalStateError("poll() cannot be called by a callback of a rebalance")
        member = self._member
        while True:
            member.advance()
            assigned = member.take_assignment()
            if assigned is not None:
                self._adopt(assigned, owner)
                continue
            self._look()
            if not member.needs_join:
                return
            self._join(owner)

    def _look(self) -> None:
        """A pattern may match other topics, and a leader assigns anew when topics have other partitions. A topic that
        is named and not there is made, where that is allowed."""
        now_ms = self._now_ms()
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + self._look_ms
        if self._creates_topics and self._topics is not None:
            for name in self._topics.names:
                self._broker.meet_topic(name)
        member = self._member
        if self._joined is not None and set(self.topics) != set(self._joined):
            member.request_join("it reads other topics")
        counts = member.counts
        if counts is not None and member.count(counts) != counts:
            member.request_join("topics have other partitions")

    def look_soon(self) -> None:
        """Something is missing: the next step looks around."""
        self._look_at_ms = 0

    def _join(self, owner: Owner) -> None:
        member = self._member
        if not self._is_prepared or not member.generation_holds:
            self._is_prepared = True
            self._prepare(owner)
        self._joined = self.topics
        member.join(self._joined, sorted(self._subscription.keys))
        self._heartbeats.add(member, owner)

    def _prepare(self, owner: Owner) -> None:
        """Before a rebalance: what may be another's soon is given up, what is another's already is lost."""
        owned = self._subscription.keys
        if not self._member.generation_holds:
            self._drop(owned, self._callbacks.on_lost or self._callbacks.on_revoked, owner)
            return
        owner.before_revoking()
        if not self._member.is_cooperative:
            self._drop(owned, self._callbacks.on_revoked, owner)
        else:
            topics = set(self.topics)
            gone = {key for key in owned if key.topic not in topics}
            self._drop(gone, self._callbacks.on_revoked, owner)

    def _drop(
        self, keys: set[TopicPartition], told: Callable[..., object] | None, owner: Owner
    ) -> None:
        """Tells, then gives up; also when the callback fails, which the poll raises."""
        if not keys:
            return
        try:
            self._tell(told, sorted(keys))
        finally:
            self._subscription.assign(
                [one.key for one in self._subscription if one.key not in keys]
            )
            owner.assignment_changed()

    def _adopt(self, assigned: Iterable[TopicPartition], owner: Owner) -> None:
        """After a rebalance: takes what is new; in the cooperative way gives up what is not there any more."""
        wanted = dict.fromkeys(assigned)
        self._is_prepared = False
        self.look_soon()  # what is meant may have changed since it was asked for
        owned = self._subscription.keys
        revoked = owned.difference(wanted)
        try:
            if revoked:
                owner.before_revoking()
                self._drop(revoked, self._callbacks.on_revoked, owner)
                self._member.request_join("what it gave up can be handed on")
        finally:
            there = [key for key in wanted if self._is_there(key)]
            self._subscription.assign(there, held=True)
            owner.assignment_changed()
            self._tell(self._callbacks.on_assigned, sorted(set(there).difference(owned)))

    def _is_there(self, key: TopicPartition) -> bool:
        try:
            self._broker.partition(key)
        except UnknownTopicOrPartitionError:
            self.look_soon()
            return False
        return True

    def _tell(self, callback: Callable[..., object] | None, keys: list[TopicPartition]) -> None:
        if callback is not None:
            self.is_telling = True
            try:
                callback(keys)
            finally:
                self.is_telling = False

    # ------------------------------------------------------------ leaving

    def leave(self, why: str, owner: Owner) -> None:
        """Gives up everything and leaves the group; a callback that fails does not keep it there."""
        if self._topics is None:
            return
        callbacks, is_member = self._callbacks, self._member.generation_holds
        try:
            told = callbacks.on_revoked
            if not is_member and callbacks.on_lost is not None:
                told = callbacks.on_lost
            self._drop(self._subscription.keys, told, owner)
        finally:
            self._member.leave(why)
            self._heartbeats.remove(self._member)
            self._topics, self._joined, self._callbacks = None, None, Callbacks()
            self._is_prepared = False
