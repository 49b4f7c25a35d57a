"""One member of a group: how it joins, gets its partitions, stays and leaves. Nothing here waits or calls the user.

Duty         the client's side of Kafka's classic protocol, on the broker's verbs. What it owns, and whom to tell when
             that changes, is group_assignment.py's.
Concurrency  any thread. The consumer's thread begins a join and takes what was assigned; the rest goes on by itself
             as answers come, in the consumer's thread while it polls and in that of heartbeat.py while it does not.
             Lock order: the member's, then those of the broker. Callbacks of the broker take no lock.
Crash        nothing here survives; the group hears no more of the member and gives its partitions to others.

UNJOINED -> JOINING, waiting for the others -> SYNCING, waiting for the leader's assignment -> STABLE. A rebalance goes
back to JOINING with the same member id; whoever was thrown out, or polled too late, to UNJOINED without one.
"""

from __future__ import annotations

import enum
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..base.errors import (
    ClosedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    MemberIdRequiredError,
    OncelogError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from ..broker.assignors import MemberSubscription, assignor
from ..broker.group_metadata import IN_PROCESS
from ..broker.group_protocol import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    decode_assignment,
    decode_sticky_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_data,
    encode_subscription,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..broker.group_metadata import JoinedGroup, SyncedGroup
    from ..broker.pending import Pending
    from ..segment.names import TopicPartition

logger = logging.getLogger("oncelog.consumer")

NO_GENERATION: Final = -1
STICKY: Final = "sticky"
COOPERATIVE: Final = "cooperative-sticky"


class MemberState(enum.Enum):
    """Where a member stands."""

    UNJOINED = "not a member"
    JOINING = "joining"
    SYNCING = "waiting for its partitions"
    STABLE = "a member"


class ConsumerGroupMetadata(NamedTuple):
    """Who commits offsets: what a transaction needs to refuse those of a member that is none any more (KIP-447)."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None


class GroupMember:
    """A member. ``wake`` ends the wait of a poll; ``nudge`` asks whoever sends heartbeats to go on with it."""

    def __init__(
        self,
        broker: Any,
        options: Mapping[str, Any],
        now_ms: Callable[[], int],
        wake: Callable[[], None],
        nudge: Callable[[GroupMember], None] = lambda _: None,
    ) -> None:
        self.group_id: str = options["group.id"]
        self.instance_id: str | None = options["group.instance.id"]
        self.heartbeat_interval_ms: int = options["heartbeat.interval.ms"]
        self._strategies: tuple[str, ...] = options["partition.assignment.strategy"]
        self._session_timeout_ms: int = options["session.timeout.ms"]
        self._poll_interval_ms: int = options["max.poll.interval.ms"]
        self._backoff_ms: int = options["retry.backoff.ms"]
        self._client_id: str = options["client.id"] or f"consumer-{self.group_id}"
        self._rack: str | None = options["client.rack"] or None
        self._broker = broker
        self._now_ms = now_ms
        self._wake = wake
        self._nudge = nudge
        self._lock = threading.RLock()
        self._answer: Pending[JoinedGroup] | Pending[SyncedGroup] | None = None
        self._protocols: list[tuple[str, bytes]] = []
        self._assigned: tuple[TopicPartition, ...] | None = None  # to be taken by the consumer
        self._had: tuple[tuple[TopicPartition, ...], int] = ((), NO_GENERATION)
        self._error: OncelogError | None = None  # to be raised by the next poll
        self._retry_ms = 0  # not before then
        self._polled_ms = now_ms()
        self._polls = 0  # that are going on
        self._has_news = False  # says the broker; a heartbeat tells which
        self.state = MemberState.UNJOINED
        self.member_id = ""
        self.generation = NO_GENERATION
        self.needs_join = True
        self.known_as = ConsumerGroupMetadata(self.group_id, group_instance_id=self.instance_id)
        self.nobody = ConsumerGroupMetadata(self.group_id)  # who commits what was assigned by hand
        self.counts: dict[str, int] | None = None  # of a leader: partitions as it assigned them
        self.rebalances = 0

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions that stay are kept through a rebalance: if all assignors that it knows allow it."""
        return all(name == COOPERATIVE for name in self._strategies)

    @property
    def generation_holds(self) -> bool:
        """Whether it may still own what it was given last."""
        return self.generation != NO_GENERATION and bool(self.member_id)

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        with self._lock:
            return ConsumerGroupMetadata(
                self.group_id, self.generation, self.member_id, self.instance_id
            )

    # ------------------------------------------------------------ the consumer's thread

    def begin_poll(self) -> None:
        """The consumer polls: it counts as alive until the poll is over, and for max.poll.interval.ms after it."""
        self._polls += 1
        self._polled_ms = self._now_ms()

    def end_poll(self) -> None:
        self._polls -= 1
        self._polled_ms = self._now_ms()
        answer = self._answer
        if self._has_news or (answer is not None and answer.done()):
            self._nudge(
                self
            )  # it came too late for this poll, and nobody knows when the next one is

    def join(self, topics: Iterable[str], owned: Iterable[TopicPartition]) -> None:
        """Asks for the next generation, with what it wants and what it keeps."""
        with self._lock:
            kept = tuple(owned)
            self._protocols = [
                (name, self._subscription(name, tuple(topics), kept)) for name in self._strategies
            ]
            self._assigned = None
            self.needs_join = False
            self._ask_to_join()

    def _subscription(
        self, name: str, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]
    ) -> bytes:
        data = None
        if name == STICKY and self._had[1] != NO_GENERATION:
            data = encode_sticky_data(*self._had)
        return encode_subscription(Subscription(topics, owned, self.generation, data, self._rack))

    def take_assignment(self) -> tuple[TopicPartition, ...] | None:
        """What was assigned since the last time; None: nothing new.

        From now on the member is ``known_as`` who got it, even when it is thrown out: so that offsets of a transaction
        are those of a generation, and refused when that is over.
        """
        with self._lock:
            found, self._assigned = self._assigned, None
            if found is not None:
                self.known_as = self.metadata
            return found

    def request_join(self, why: str) -> None:
        """The next poll begins a rebalance, unless one is under way."""
        with self._lock:
            if not self.needs_join and self.state is MemberState.STABLE:
                logger.info("group %r: %s joins again: %s", self.group_id, self.member_id, why)
                self.needs_join = True

    def retry_in_ms(self) -> int | None:
        """How long to wait before the next step, where no answer will end the wait."""
        if self.state is MemberState.JOINING and self._answer is None:
            return max(self._retry_ms - self._now_ms(), 0)
        return None

    def advance(self) -> None:
        """Goes on as far as answers are there; raises what nobody but the user can mend."""
        with self._lock:
            self._go_on()
            if self._has_news:
                self._has_news = False
                self._beat()
            if self._error is not None:
                error = self._error
                if not isinstance(error, FencedInstanceIdError):  # or it would fence its heir next
                    self._error = None
                raise error

    def leave(self, why: str) -> None:
        """Gives up the membership. A static member is gone for itself alone: the group waits for its return."""
        with self._lock:
            if self.member_id and self.instance_id is None:
                logger.info("group %r: %s leaves: %s", self.group_id, self.member_id, why)
                try:
                    self._broker.leave_group(self.group_id, [(self.member_id, None)])
                except OncelogError as error:
                    logger.debug("group %r: cannot leave: %s", self.group_id, error)
            self._reset()
            self._error = None

    # ------------------------------------------------------------ heartbeats

    def beat(self) -> bool:
        """A sign of life, and with it what a poll has left undone. False: there is no member to keep alive."""
        with self._lock:
            if self.state is MemberState.UNJOINED:
                return False
            idle_ms = self._now_ms() - self._polled_ms
            if not self._polls and idle_ms > self._poll_interval_ms:
                logger.warning(
                    "group %r: %s has not polled for %d ms, longer than max.poll.interval.ms, and leaves; "
                    "poll more often, or take fewer records with max.poll.records",
                    self.group_id,
                    self.member_id,
                    idle_ms,
                )
                self.leave("max.poll.interval.ms has passed")
                return False
            self._go_on()
            if self.state is MemberState.STABLE:
                self._beat()
            if self.needs_join or self._assigned is not None or self._error is not None:
                self._wake()
            return True

    def _beat(self) -> None:
        if self.state is not MemberState.STABLE:
            return
        try:
            self._broker.heartbeat(
                self.group_id, self.member_id, self.generation, group_instance_id=self.instance_id
            )
        except RebalanceInProgressError:
            self.needs_join = True
        except OncelogError as error:
            self._refused(error)

    # ------------------------------------------------------------ answers

    def _answered(self, _: object) -> None:
        """In any thread, without a lock: whoever polls goes on, or else whoever sends heartbeats."""
        if self._polls:
            self._wake()
        else:
            self._nudge(self)

    def _changed(self) -> None:
        """The same, for what the broker tells unasked."""
        self._has_news = True
        self._answered(None)

    def _ask_to_join(self) -> None:
        self.state, self._answer = MemberState.JOINING, None
        try:
            self._answer = self._call_join()
        except OncelogError as error:
            self._refused(error)
        else:
            self._answer.add_done_callback(self._answered)

    def _call_join(self) -> Pending[JoinedGroup]:
        while True:
            try:
                answer: Pending[JoinedGroup] = self._broker.join_group(
                    self.group_id,
                    self.member_id,
                    protocols=self._protocols,
                    protocol_type=PROTOCOL_TYPE,
                    group_instance_id=self.instance_id,
                    session_timeout_ms=self._session_timeout_ms,
                    rebalance_timeout_ms=self._poll_interval_ms,
                    client_id=self._client_id,
                    client_host=IN_PROCESS,
                    requires_known_member_id=True,
                    on_change=self._changed,
                )
                return answer
            except MemberIdRequiredError as error:
                self.member_id = error.member_id

    def _go_on(self) -> None:
        while self.state in (MemberState.JOINING, MemberState.SYNCING):
            if self._answer is None:
                if self._now_ms() < self._retry_ms:
                    return
                self._ask_to_join()
            if self._answer is None or not self._answer.done():
                return
            answer: Pending[Any] = self._answer
            self._answer = None
            try:
                if self.state is MemberState.JOINING:
                    self._joined(answer.result())
                else:
                    self._synced(answer.result())
            except OncelogError as error:
                self._refused(error)

    def _joined(self, joined: JoinedGroup) -> None:
        self.member_id, self.generation = joined.member_id, joined.generation_id
        assignments: dict[str, bytes] = {}
        self.counts = None
        if joined.is_leader:
            assignments = self._assign(joined)
        self.state = MemberState.SYNCING
        answer: Pending[SyncedGroup] = self._broker.sync_group(
            self.group_id,
            self.member_id,
            self.generation,
            assignments,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
        )
        self._answer = answer
        answer.add_done_callback(self._answered)

    def _assign(self, joined: JoinedGroup) -> dict[str, bytes]:
        """Shares the partitions out among all members, and remembers by which counts."""
        members: dict[str, MemberSubscription] = {}
        for row in joined.members:
            asked = decode_subscription(row.metadata)
            owned, generation = asked.owned, asked.generation
            if joined.protocol_name == STICKY:  # it has revoked everything, and tells what it had
                owned, generation = decode_sticky_data(asked.user_data)
            members[row.member_id] = MemberSubscription(
                asked.topics, owned, generation, row.group_instance_id
            )
        self.counts = self.count({topic for member in members.values() for topic in member.topics})
        if joined.skip_assignment:
            return {}
        assigned = assignor(joined.protocol_name or "")(members, self.counts)
        return {
            member_id: encode_assignment(Assignment(tuple(keys)))
            for member_id, keys in assigned.items()
        }

    def count(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions topics have; 0 where there is no such topic."""
        counts = {}
        for topic in topics:
            try:
                counts[topic] = self._broker.partition_count(topic)
            except UnknownTopicOrPartitionError:
                counts[topic] = 0
        return counts

    def _synced(self, synced: SyncedGroup) -> None:
        self._assigned = decode_assignment(synced.assignment).partitions
        self._had = (self._assigned, self.generation)
        self.state = MemberState.STABLE
        self.rebalances += 1
        logger.info(
            "group %r: %s has %d partitions in generation %d",
            self.group_id,
            self.member_id,
            len(self._assigned),
            self.generation,
        )

    # ------------------------------------------------------------ refusals

    def _refused(self, error: OncelogError) -> None:
        """What an error of the broker means for the membership."""
        is_stable = self.state is MemberState.STABLE
        if isinstance(error, RebalanceInProgressError):
            if not is_stable:
                self._ask_to_join()
        elif isinstance(error, (UnknownMemberIdError, IllegalGenerationError)):
            logger.info("group %r: %s is out: %s", self.group_id, self.member_id, error)
            self._reset(keeps_id=isinstance(error, IllegalGenerationError))
        elif error.retriable and not isinstance(error, ClosedError):
            if not is_stable:  # a heartbeat is sent again anyway
                self.state, self._answer = MemberState.JOINING, None
                self._retry_ms = self._now_ms() + self._backoff_ms
        else:
            self._reset(keeps_id=not isinstance(error, FencedInstanceIdError))
            self._error = error

    def refused_commit(self, error: OncelogError, sent: ConsumerGroupMetadata) -> None:
        """A commit was refused: the same goes for a member that still is the one who committed."""
        with self._lock:
            if sent == self.metadata and sent.generation_id != NO_GENERATION:
                if isinstance(error, RebalanceInProgressError):
                    self.needs_join = True
                elif isinstance(
                    error, (UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError)
                ):
                    self._refused(error)

    def _reset(self, *, keeps_id: bool = False) -> None:
        """No member any more: what it had is lost, and the next poll joins anew."""
        if not keeps_id:
            self.member_id = ""
        self.generation = NO_GENERATION
        self.state, self._answer, self._assigned = MemberState.UNJOINED, None, None
        self.counts = None
        self.needs_join = True
