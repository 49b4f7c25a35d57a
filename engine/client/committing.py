"""Commits: how far a group has read, told to its coordinator by hand, by itself every few seconds, or in between.

A call is one try. The broker writes at once, so an asynchronous commit is in the log when it returns, and only its
callback comes later, in the consumer's thread as in Kafka. Where a commit has to be on the device, a thread of its own
waits for that; callbacks keep the order of their commits, and a synchronous commit or a close waits for all of them.
"""

from __future__ import annotations

import collections
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.errors import (
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidRequestError,
    OncelogError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from ..broker.group_answers import OffsetCommit
from ..segment.names import partition_key
from .group_member import ConsumerGroupMetadata, MemberState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future, ThreadPoolExecutor

    from ..broker.broker import Broker
    from ..segment.names import TopicPartition
    from .group_member import GroupMember
    from .subscription import Subscription

logger = logging.getLogger("oncelog.consumer")


class OffsetAndMetadata(OffsetCommit):
    """The offset to go on from, as it is committed: with the epoch of the last record read and a word of one's own."""

    __slots__ = ()


Offsets = dict["TopicPartition", OffsetAndMetadata]


class _Heard(NamedTuple):
    """An asynchronous commit whose callback is still to come; ``future``: the device has not answered yet."""

    callback: Callable[..., object] | None
    offsets: Offsets
    error: OncelogError | None
    future: Future[None] | None


# Called with what was committed, and None or why it was not.
Callback = "Callable[[Offsets, OncelogError | None], object]"


def offsets_given(offsets: Mapping[Any, Any]) -> Offsets:
    """Offsets by partition, as numbers or with what belongs to them."""
    found: Offsets = {}
    for partition, given in offsets.items():
        key = partition_key(partition)
        number = given[0] if isinstance(given, tuple) and given else given
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidRequestError(
                f"the offset of {key.directory} is a number from 0 on, not {given!r}"
            )
        found[key] = (
            OffsetAndMetadata(*given) if isinstance(given, tuple) else OffsetAndMetadata(given)
        )
    return found


class Committing:
    """The commits of one consumer, in its thread; a consumer without a group has none, and says so."""

    def __init__(
        self,
        broker: Broker,
        options: Mapping[str, Any],
        given: Iterable[str],
        member: GroupMember | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._member = member
        self._now_ms = now_ms
        self._interval_ms: int = options["auto.commit.interval.ms"]
        self._backoff_ms: int = options["retry.backoff.ms"]
        self._next_ms = now_ms() + self._interval_ms
        self._heard: collections.deque[_Heard] = collections.deque()
        self._waiter: ThreadPoolExecutor | None = None  # for the device
        self._fetch_at_ms = 0
        self.is_auto: bool = options["enable.auto.commit"]
        if member is None:
            names = {name.replace("_", ".") for name in given}
            if self.is_auto and "enable.auto.commit" in names:
                raise InvalidConfigError("enable.auto.commit needs a group.id to commit for")
            self.is_auto = False

    def need_member(self, what: str) -> GroupMember:
        if self._member is None:
            raise InvalidGroupIdError(
                f"{what} needs a group: give the consumer a group_id, or assign() partitions without one"
            )
        return self._member

    def committer(self, *, is_subscribed: bool) -> ConsumerGroupMetadata:
        """As whom to commit: as a member, or as nobody where partitions were assigned by hand."""
        member = self.need_member("committing offsets")
        if not is_subscribed:
            return member.nobody
        found = member.metadata
        if member.state is MemberState.STABLE:
            return found
        if member.state is MemberState.UNJOINED:
            raise UnknownMemberIdError(
                f"this consumer is no member of group {member.group_id!r} at the moment"
            )
        raise RebalanceInProgressError(f"group {member.group_id!r} is being rebalanced")

    # ------------------------------------------------------------ committing

    def commit(
        self,
        offsets: Offsets,
        *,
        is_subscribed: bool,
        defer: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """One try; raises the first thing that was refused. ``defer`` gets what there is to wait for."""
        if self._heard:
            if defer is None:
                self.settle()
            else:
                self.tell()
        who = self.committer(is_subscribed=is_subscribed)
        if not offsets:
            return
        try:
            answers = self._broker.offset_commit(
                who.group_id,
                offsets,
                member_id=who.member_id,
                generation_id=who.generation_id,
                group_instance_id=who.group_instance_id,
                defer=defer,
            )
        except OncelogError as error:
            if is_subscribed and self._member is not None:
                self._member.refused_commit(error, who)
            raise
        for refusal in answers.values():
            if refusal is not None:
                raise refusal

    def commit_async(
        self, offsets: Offsets, callback: Callable[..., object] | None, *, is_subscribed: bool
    ) -> None:
        """The same, without waiting for the device; what went wrong is told to the callback."""
        failure: OncelogError | None = None
        waits: list[Callable[[], None]] = []
        try:
            self.commit(offsets, is_subscribed=is_subscribed, defer=waits.append)
        except InvalidGroupIdError:
            raise
        except OncelogError as error:
            failure = error
            if callback is None:
                logger.warning("offsets were not committed: %s", error)
        future = self._wait_for(waits[0]) if waits and failure is None else None
        if callback is not None or future is not None:
            self._heard.append(_Heard(callback, offsets, failure, future))

    def _wait_for(self, wait: Callable[[], None]) -> Future[None]:
        if self._waiter is None:
            from concurrent.futures import ThreadPoolExecutor

            self._waiter = ThreadPoolExecutor(1, thread_name_prefix="oncelog-commit")
        return self._waiter.submit(wait)

    def tell(self) -> None:
        """Calls the callbacks of asynchronous commits whose outcome is known, in their order."""
        while self._heard and (self._heard[0].future is None or self._heard[0].future.done()):
            callback, offsets, error, future = self._heard.popleft()
            failed = None if future is None else future.exception()
            if isinstance(failed, OncelogError):
                error = failed
                if callback is None:
                    logger.warning("offsets may not be on the device: %s", error)
            elif failed is not None:
                raise failed
            if callback is not None:
                callback(offsets, error)

    def settle(self) -> None:
        """The same, after waiting for those that are not known yet."""
        while self._heard:
            future = self._heard[0].future
            if future is not None:
                future.exception()
            self.tell()

    def close(self) -> None:
        """Waits for what is under way, and tells of it."""
        try:
            self.settle()
        finally:
            if self._waiter is not None:
                self._waiter.shutdown()

    # ------------------------------------------------------------ by itself

    @property
    def is_due(self) -> bool:
        return self.is_auto and self._now_ms() >= self._next_ms

    def commit_by_itself(self, offsets: Offsets, *, is_subscribed: bool) -> None:
        """An automatic commit: what it cannot commit now it will next time."""
        self._next_ms = self._now_ms() + self._interval_ms
        try:
            self.commit(offsets, is_subscribed=is_subscribed)
        except OncelogError as error:
            if error.retriable:
                self._next_ms = self._now_ms() + self._backoff_ms
            logger.warning("offsets were not committed automatically: %s", error)

    # ------------------------------------------------------------ fetching

    def committed(
        self, keys: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What is committed; raises UnstableOffsetCommitError while a transaction may change it."""
        member = self.need_member("committed()")
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        answers = self._broker.offset_fetch(member.group_id, list(keys), require_stable=True)
        for key, value in answers.items():
            if isinstance(value, OncelogError):
                raise value
            found[key] = (
                None
                if value is None
                else OffsetAndMetadata(value.offset, value.leader_epoch, value.metadata)
            )
        return found

    def retry_in_ms(self, subscription: Subscription) -> int | None:
        """When to ask again for offsets that a transaction was about to change."""
        if subscription.held():
            return max(self._fetch_at_ms - self._now_ms(), 0)
        return None

    def back_off(self) -> None:
        """Asks for no committed offsets for a moment."""
        self._fetch_at_ms = self._now_ms() + self._backoff_ms

    def position(self, subscription: Subscription) -> None:
        """Partitions that wait for it start at what is committed, or else where the reset policy says.

        What an open transaction is about to commit is waited for, or two members would do the same work.
        """
        held = subscription.held()
        if not held or self._member is None or self._now_ms() < self._fetch_at_ms:
            return
        answers = self._broker.offset_fetch(
            self._member.group_id, [partition.key for partition in held], require_stable=True
        )
        for partition in held:
            value = answers[partition.key]
            if isinstance(value, OncelogError):
                if not value.retriable:
                    raise value
                self.back_off()
            elif value is None:
                partition.let_go()
            else:
                partition.seek(value.offset, value.leader_epoch)
