"""One group of the classic protocol: its members, its state, and what may be asked of it. No log, no clock.

Duty         who is a member, which protocol all know, who leads, which commits fit; the moves from one state to the
             next are in group_membership.py
Concurrency  callers hold ``lock``. Answers that others wait for are collected in ``answers`` and given once the lock
             is free again, so that a callback may call the broker.
Crash        members, generation and assignment are in the group's last record; who has joined or synced since is not,
             and joins again

States: Empty (no members; offsets may be there), PreparingRebalance (waiting for members to join),
CompletingRebalance (waiting for the leader's assignment), Stable, Dead (deleted, whoever still holds it asks anew).
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import (
    CoordinatorNotAvailableError,
    CorruptRecordError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from .group_protocol import PROTOCOL_TYPE, decode_topics
from .group_records import GroupValue, MemberValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from .pending import Pending

Protocols = tuple[tuple[str, bytes], ...]
NO_ASSIGNMENT: Final = b""
IN_PROCESS: Final = "in-process"  # the host of a member that lives and dies with its broker


class GroupState(enum.Enum):
    """The states of a group, by the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    # Of KIP-848 groups alone:
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"

    @property
    def label(self) -> str:
        return self.value


class JoinedMember(NamedTuple):
    """A member as the leader gets to know it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinedGroup(NamedTuple):
    """The answer to a join: a new generation. Only the leader is told the members, and assigns unless told to skip."""

    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False

    @property
    def is_leader(self) -> bool:
        return self.leader == self.member_id


class SyncedGroup(NamedTuple):
    """The answer to a sync: what the leader has assigned to this member."""

    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@dataclass(slots=True)
class Member:
    """A member, and the answers that it waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = NO_ASSIGNMENT
    is_new: bool = False  # it has not seen a generation yet
    session_deadline_ms: int = 0
    joining: Pending[JoinedGroup] | None = None
    syncing: Pending[SyncedGroup] | None = None
    on_change: Callable[[], None] | None = (
        None  # a member of this process need not be asked in vain
    )

    def metadata(self, protocol: str | None) -> bytes:
        """What it says under a protocol."""
        return dict(self.protocols).get(protocol or "", b"")

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None


@dataclass(slots=True)
class GroupMetadata:
    """A classic group. Without a protocol type it is a simple one: offsets that somebody commits without members."""

    group_id: str
    state_ms: int
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)  # instance id to member id
    expected: dict[str, int] = field(default_factory=dict)  # ids given out, until when
    unsynced: set[str] = field(default_factory=set)
    joining: int = 0  # members that wait for the answer to a join
    known: dict[str, int] = field(default_factory=dict)  # protocol to the members that know it
    topics: frozenset[str] | None = None  # that members subscribe to; None: not known
    has_new_member: bool = False  # since the delay of a first rebalance began
    join_deadline_ms: int | None = None
    first_delay: tuple[int, int] | None = (
        None  # of a first rebalance: its length, what is left after it
    )
    sync_deadline_ms: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    answers: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def locked(self) -> GroupMetadata:
        """To be used with ``with``: holds the lock, and afterwards gives the answers that became ready."""
        return self

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        ready = self.answers
        if ready:
            self.answers = []
        self.lock.release()
        for answer in ready:
            answer()

    # ------------------------------------------------------------ what it is

    @property
    def is_simple(self) -> bool:
        return self.protocol_type is None and not self.members and not self.expected

    @property
    def is_dead(self) -> bool:
        return self.state is GroupState.DEAD

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_of_consumers(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def has_all_joined(self) -> bool:
        return not self.expected and self.joining == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join again."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def next_deadline_ms(self) -> int | None:
        """When time alone changes something."""
        deadlines = [*self.expected.values()]
        deadlines += [member.session_deadline_ms for member in self.members.values()]
        deadlines += [at for at in (self.join_deadline_ms, self.sync_deadline_ms) if at is not None]
        return min(deadlines, default=None)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read a topic; consumers whose subscriptions cannot be read may read any."""
        return self.is_of_consumers if self.topics is None else topic in self.topics

    def value(self) -> GroupValue:
        """The group as a record."""
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            self.state_ms,
            tuple(
                MemberValue(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol),
                    member.assignment,
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def of(cls, group_id: str, value: GroupValue, now_ms: int) -> GroupMetadata:
        """The group that a record tells of. Its members have a whole session from now on to show up, except those who
        cannot, as they were of a process that is gone; a static one may come back as another."""
        group = cls(
            group_id,
            value.state_ms,
            GroupState.STABLE if value.members else GroupState.EMPTY,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol=value.protocol,
            leader=value.leader,
        )
        for row in value.members:
            protocols = ((value.protocol or "", row.subscription),)
            rebalance_ms = row.rebalance_timeout_ms
            if rebalance_ms == -1:  # before there was one, the session timeout was taken for it
                rebalance_ms = row.session_timeout_ms
            member = Member(
                *row[:4], rebalance_ms, row.session_timeout_ms, protocols, row.assignment
            )
            member.session_deadline_ms = now_ms + row.session_timeout_ms
            if row.client_host == IN_PROCESS and row.instance_id is None:
                member.session_deadline_ms = now_ms
            group.add(member, value.protocol_type)
        group.leader = value.leader
        group.topics = group.subscribed_topics()
        return group

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all members, None where that cannot be known."""
        if not self.is_of_consumers:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in decode_topics(member.metadata(self.protocol))
            )
        except CorruptRecordError:
            return None

    # ------------------------------------------------------------ members

    def add(self, member: Member, protocol_type: str) -> None:
        """Takes a member in; the first one sets what kind of group this is."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self.expected.pop(member.member_id, None)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def _count_protocols(self, member: Member, change: int) -> None:
        for name, _ in member.protocols:
            self.known[name] = self.known.get(name, 0) + change

    def change_protocols(self, member: Member, protocols: Protocols) -> None:
        """A member joins with other protocols, or says something else under them."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def await_join(self, member: Member, answer: Pending[JoinedGroup]) -> None:
        """A member waits for the next generation; a join of its own that waits already is superseded."""
        if member.joining is not None:
            superseded = RebalanceInProgressError(
                f"member {member.member_id!r} of group {self.group_id!r} has joined once more"
            )
            self.answer_join(member, error=superseded)
        member.joining = answer
        self.joining += 1

    def remove(self, member_id: str) -> Member | None:
        """Takes a member out; whatever it waits for, nobody answers it here."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            self.joining -= member.joining is not None
            if member.instance_id is not None:
                self.instances.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.expected.pop(member_id, None)
        self.unsynced.discard(member_id)
        return member

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """A static member is back under another id: it inherits everything, and the older self is fenced."""
        member = self.members[old_id]
        fenced = FencedInstanceIdError(
            f"instance {instance_id!r} of group {self.group_id!r} is member {new_id!r} now"
        )
        self.answer_join(member, error=fenced)
        self.answer_sync(member, error=fenced)
        # The order of members stays, as that is the order in which the leader hears of them.
        self.members = {
            new_id if member_id == old_id else member_id: other
            for member_id, other in self.members.items()
        }
        member.member_id = new_id
        self.instances[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        self.unsynced.discard(old_id)
        return member

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is one who has joined again; false if nobody has."""
        if self.leader is None:
            return False
        if self.members[self.leader].joining is not None:
            return True
        joined = [name for name, member in self.members.items() if member.joining is not None]
        if joined:
            self.leader = joined[0]
        return bool(joined)

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raises unless this is a member, and the one that has its instance id."""
        if instance_id is not None:
            holder = self.instances.get(instance_id)
            if holder is not None and holder != member_id:
                raise FencedInstanceIdError(
                    f"instance {instance_id!r} of group {self.group_id!r} is member {holder!r}, not {member_id!r}"
                )
            if holder is None:
                raise UnknownMemberIdError(
                    f"group {self.group_id!r} has no instance {instance_id!r}"
                )
        if member_id not in self.members:
            raise UnknownMemberIdError(f"group {self.group_id!r} has no member {member_id!r}")

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGenerationError(
                f"group {self.group_id!r} is in generation {self.generation}, not {generation}"
            )

    def check_alive(self) -> None:
        if self.is_dead:
            raise CoordinatorNotAvailableError(f"group {self.group_id!r} was deleted meanwhile")

    # ------------------------------------------------------------ protocols

    def supports(self, protocol_type: str, names: set[str]) -> bool:
        """Whether a member with these protocols fits the others."""
        if self.is_empty:
            return bool(protocol_type) and bool(names)
        return self.protocol_type == protocol_type and bool(names & self.common_protocols())

    def common_protocols(self) -> set[str]:
        """The protocols that all members know."""
        count = len(self.members)
        return {name for name, knowing in self.known.items() if knowing == count}

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all know; the most votes win."""
        common = self.common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    # ------------------------------------------------------------ states

    def move_to(self, state: GroupState, now_ms: int) -> None:
        self.previous_state, self.state, self.state_ms = self.state, state, now_ms

    def next_generation(self, now_ms: int) -> None:
        """Those who have joined are the members from now on."""
        self.generation = 0 if self.generation == 2**31 - 1 else self.generation + 1
        self.unsynced.clear()
        self.protocol = self.select_protocol() if self.members else None
        self.topics = self.subscribed_topics()
        self.move_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)

    def joined(self, member_id: str, *, skip_assignment: bool = False) -> JoinedGroup:
        """The present generation as the answer to a member's join."""
        members: tuple[JoinedMember, ...] = ()
        if member_id == self.leader:
            members = tuple(
                JoinedMember(row.member_id, row.instance_id, row.metadata(self.protocol))
                for row in self.members.values()
            )
        return JoinedGroup(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            member_id,
            members,
            skip_assignment,
        )

    def tell(self, member: Member) -> None:
        """Lets a member that can be told know that its next heartbeat has news."""
        if member.on_change is not None:
            self.answers.append(member.on_change)

    def answer_join(
        self, member: Member, answer: JoinedGroup | None = None, error: Exception | None = None
    ) -> None:
        """Answers the join that a member waits for, if it does."""
        if member.joining is not None:
            self.answers.append(partial(member.joining.complete, answer, error))
            member.joining = None
            self.joining -= 1

    def answer_sync(
        self, member: Member, answer: SyncedGroup | None = None, error: Exception | None = None
    ) -> bool:
        """Answers the sync that a member waits for, if it does."""
        if member.syncing is None:
            return False
        self.answers.append(partial(member.syncing.complete, answer, error))
        member.syncing = None
        return True

    # ------------------------------------------------------------ offsets

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Raises for a commit of somebody who does not own what it commits."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # nobody else is there
        self.check_alive()
        if generation >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            self.check_generation(generation)
        elif not is_transactional:
            raise UnknownMemberIdError(
                f"group {self.group_id!r} has {len(self.members)} members, and the commit comes from none of them"
            )
        if not is_transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgressError(f"group {self.group_id!r} is being rebalanced")

    def check_delete(self) -> None:
        """Raises unless the group may be deleted."""
        self.check_exists()
        if not self.is_empty:
            raise GroupNotEmptyError(f"group {self.group_id!r} has {len(self.members)} members")

    def check_delete_offsets(self) -> None:
        """Raises unless offsets may be deleted; which topics are safe is known for consumers alone."""
        self.check_exists()
        if not self.is_empty and not self.is_of_consumers:
            raise GroupNotEmptyError(f"group {self.group_id!r} has {len(self.members)} members")

    def check_exists(self) -> None:
        if self.is_dead:
            raise GroupIdNotFoundError(f"there is no group {self.group_id!r}")

    def expiry_base_ms(self, commit_ms: int) -> int | None:
        """From when on the retention of an offset counts; None: it stays, as members are there.

        Of an empty group from when it became empty; of offsets without members, or of topics that no member reads any
        more, from the commit.
        """
        if self.protocol_type is None:
            return commit_ms
        if self.is_empty:
            return self.state_ms if self.state_ms >= 0 else commit_ms
        if self.is_of_consumers and self.topics is not None and self.state is GroupState.STABLE:
            return commit_ms
        return None
