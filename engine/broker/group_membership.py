"""The classic protocol: how members join, sync, stay and leave, and what time does to them.

Duty         the moves of one group from state to state. The group's members and rules are in group_metadata.py.
Concurrency  callers hold the group's lock.
Waiting      none: a join or sync that has to wait for other members answers with a Pending; later calls, or ``expire``
             when a deadline has passed, complete it.
Crash        a generation is written when its leader has assigned, and when a group became empty. One in between is
             lost, and its members join again.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    MemberIdRequiredError,
    OncelogError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from .group_metadata import NO_ASSIGNMENT, GroupState, JoinedGroup, Member, SyncedGroup
from .pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .group_metadata import GroupMetadata, Protocols

logger = logging.getLogger("oncelog.broker")

# A member that joins for the first time may wait that long for the others, however short its session is.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000

EMPTY: Final = GroupState.EMPTY
PREPARING: Final = GroupState.PREPARING_REBALANCE
COMPLETING: Final = GroupState.COMPLETING_REBALANCE
STABLE: Final = GroupState.STABLE
ACTIVE: Final = (COMPLETING, STABLE)


class JoinRequest(NamedTuple):
    """What a member says when it joins."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool
    supports_skipping_assignment: bool
    on_change: Callable[[], None] | None = None


class Membership:
    """The moves. ``store`` writes a group's record, before anybody is told what is in it."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        store: Callable[[GroupMetadata], None],
        *,
        size_max: int,
        first_delay_ms: int,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._now_ms = now_ms
        self._store = store
        self._size_max = size_max
        self._first_delay_ms = first_delay_ms
        self._new_id = new_id

    # ------------------------------------------------------------ joining

    def join(self, group: GroupMetadata, request: JoinRequest) -> Pending[JoinedGroup]:
        """A member asks for the next generation, or for the present one if nothing has changed."""
        group.check_alive()
        if not self._has_room(group, request.member_id):
            group.remove(request.member_id)
            self._maybe_complete(group)  # nobody need wait for it any more
            raise GroupMaxSizeReachedError(
                f"group {group.group_id!r} may have {self._size_max} members and has {len(group.members)}"
            )
        names = {name for name, _ in request.protocols}
        if not group.supports(request.protocol_type, names):
            raise InconsistentGroupProtocolError(
                f"group {group.group_id!r} uses {sorted(group.common_protocols())} of type {group.protocol_type!r}, "
                f"the member knows {sorted(names)} of type {request.protocol_type!r}"
            )
        if not request.member_id:
            return self._join_new(group, request)
        if request.member_id in group.expected:
            if request.instance_id is not None:
                raise InvalidRequestError(
                    f"member {request.member_id!r} was asked to join again, without an instance id"
                )
            return self._add(group, request, request.member_id)
        group.check_member(request.member_id, request.instance_id)
        return self._join_again(group, request)

    def _has_room(self, group: GroupMetadata, member_id: str) -> bool:
        """Members that are there stay; of those that join at once, the first ones get the room."""
        if group.state is PREPARING:
            member = group.members.get(member_id)
            is_in = member is not None and member.joining is not None
            return is_in or group.joining < self._size_max
        if group.state in ACTIVE:
            return member_id in group.members or len(group.members) < self._size_max
        return True

    def _join_new(self, group: GroupMetadata, request: JoinRequest) -> Pending[JoinedGroup]:
        member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if request.instance_id is not None:
            old_id = group.instances.get(request.instance_id)
            if old_id is not None:
                return self._replace_static(group, request, old_id, member_id)
        elif request.requires_known_member_id:
            group.expected[member_id] = self._now_ms() + request.session_timeout_ms
            raise MemberIdRequiredError(
                f"group {group.group_id!r} expects the member as {member_id!r}", member_id=member_id
            )
        return self._add(group, request, member_id)

    def _add(
        self, group: GroupMetadata, request: JoinRequest, member_id: str
    ) -> Pending[JoinedGroup]:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
            session_deadline_ms=self._now_ms() + NEW_MEMBER_JOIN_TIMEOUT_MS,
            on_change=request.on_change,
        )
        if group.state is PREPARING and group.previous_state is EMPTY:
            group.has_new_member = True
        answer: Pending[JoinedGroup] = Pending()
        group.add(member, request.protocol_type)
        group.await_join(member, answer)
        self._rebalance_or_complete(group)
        return answer

    def _join_again(self, group: GroupMetadata, request: JoinRequest) -> Pending[JoinedGroup]:
        """A member that the group has: only a change, or the leader's wish, begins a new generation."""
        member = group.members[request.member_id]
        is_same = member.protocols == request.protocols
        is_leader = group.leader == member.member_id
        if group.state is EMPTY:
            raise UnknownMemberIdError(f"group {group.group_id!r} is empty")
        if group.state is PREPARING or not is_same or (group.state is STABLE and is_leader):
            return self._update(group, request, member)
        answer: Pending[JoinedGroup] = Pending()
        joined = group.joined(member.member_id)
        if group.state is STABLE:
            joined = joined._replace(members=())
        answer.complete(joined)
        return answer

    def _update(
        self, group: GroupMetadata, request: JoinRequest, member: Member
    ) -> Pending[JoinedGroup]:
        answer: Pending[JoinedGroup] = Pending()
        self._take_over(group, request, member)
        group.await_join(member, answer)
        self._rebalance_or_complete(group)
        return answer

    @staticmethod
    def _take_over(group: GroupMetadata, request: JoinRequest, member: Member) -> None:
        group.change_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.on_change = request.on_change

    def _replace_static(
        self, group: GroupMetadata, request: JoinRequest, old_id: str, new_id: str
    ) -> Pending[JoinedGroup]:
        """A static member is back: a stable group stays as it is, unless the choice of the protocol changes."""
        before = group.members[old_id]
        was = (before.protocols, before.rebalance_timeout_ms, before.session_timeout_ms)
        leader = group.leader
        group.tell(before)
        member = group.replace_static(request.instance_id or "", old_id, new_id)
        self._take_over(group, request, member)
        self._extend(member)
        answer: Pending[JoinedGroup] = Pending()
        if group.state is STABLE and group.select_protocol() == group.protocol:
            try:
                self._store(group)
            except OncelogError:
                group.change_protocols(member, was[0])
                _, member.rebalance_timeout_ms, member.session_timeout_ms = was
                group.replace_static(request.instance_id or "", new_id, old_id)
                raise
            if request.supports_skipping_assignment:
                answer.complete(group.joined(new_id, skip_assignment=group.leader == new_id))
            else:  # the old leader's id keeps the new one from assigning
                answer.complete(group.joined(new_id)._replace(members=(), leader=leader))
            return answer
        group.await_join(member, answer)
        if group.state is PREPARING:
            self._maybe_complete(group)
        else:
            self._prepare(group)
        return answer

    # ------------------------------------------------------------ rebalancing

    def _rebalance_or_complete(self, group: GroupMetadata) -> None:
        if group.state in (EMPTY, COMPLETING, STABLE):
            self._prepare(group)
        else:
            self._maybe_complete(group)

    def _prepare(self, group: GroupMetadata) -> None:
        """Begins to gather members; those that wait for an assignment have to join again."""
        if group.state is COMPLETING:
            self._refuse_assignment(
                group, RebalanceInProgressError(f"group {group.group_id!r} is being rebalanced")
            )
        group.unsynced.clear()
        group.sync_deadline_ms = None
        is_first = group.state is EMPTY
        now_ms = self._now_ms()
        group.move_to(PREPARING, now_ms)
        for member in group.members.values():
            if member.joining is None:
                group.tell(member)
        if is_first:
            delay_ms = self._first_delay_ms
            group.has_new_member = False
            group.first_delay = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            group.join_deadline_ms = now_ms + delay_ms
            if delay_ms <= 0:
                self._end_first_delay(group)
        elif group.has_all_joined:
            self._complete_join(group)
        else:
            group.join_deadline_ms = now_ms + group.rebalance_timeout_ms

    def _end_first_delay(self, group: GroupMetadata) -> None:
        """An empty group has waited for its first members; whoever came meanwhile makes it wait once more."""
        delay_ms, left_ms = group.first_delay or (0, 0)
        if group.has_new_member and left_ms > 0:
            group.has_new_member = False
            next_ms = min(self._first_delay_ms, left_ms)
            group.first_delay = (next_ms, max(left_ms - delay_ms, 0))
            group.join_deadline_ms = self._now_ms() + next_ms
        else:
            self._complete_join(group)

    def _maybe_complete(self, group: GroupMetadata) -> None:
        """Completes a rebalance when all have joined, except a first one, whose delay decides."""
        if group.state is PREPARING and group.previous_state is not EMPTY and group.has_all_joined:
            self._complete_join(group)

    def _complete_join(self, group: GroupMetadata) -> None:
        """Whoever has joined by now is in; static members stay in even if they have not."""
        now_ms = self._now_ms()
        group.join_deadline_ms = group.first_delay = None
        for member in list(group.members.values()):
            if member.joining is None and member.instance_id is None:
                group.remove(member.member_id)
        if not group.elect_joined_leader() and group.members:
            group.join_deadline_ms = now_ms + group.rebalance_timeout_ms
            return
        group.next_generation(now_ms)
        if group.state is EMPTY:
            self._store_empty(group)
            return
        for member in group.members.values():
            if member.joining is not None:
                group.answer_join(member, group.joined(member.member_id))
            self._extend(member)
            member.is_new = False
        group.unsynced.update(group.members)
        group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms

    def _store_empty(self, group: GroupMetadata) -> None:
        try:
            self._store(group)
        except OncelogError as error:
            logger.warning("cannot write that group %r is empty: %s", group.group_id, error)

    # ------------------------------------------------------------ syncing

    def sync(
        self,
        group: GroupMetadata,
        member_id: str,
        generation: int,
        instance_id: str | None,
        assignments: Mapping[str, bytes],
        *,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Pending[SyncedGroup]:
        """A member asks for its assignment; the leader brings everybody's."""
        group.check_alive()
        group.check_member(member_id, instance_id)
        group.check_generation(generation)
        for mine, theirs in (
            (protocol_type, group.protocol_type),
            (protocol_name, group.protocol),
        ):
            if mine is not None and theirs is not None and mine != theirs:
                raise InconsistentGroupProtocolError(
                    f"group {group.group_id!r} uses {theirs!r}, not {mine!r}"
                )
        if group.state is PREPARING:
            raise RebalanceInProgressError(f"group {group.group_id!r} is being rebalanced")
        if group.state is EMPTY:
            raise UnknownMemberIdError(f"group {group.group_id!r} is empty")
        group.unsynced.discard(member_id)
        if not group.unsynced:
            group.sync_deadline_ms = None
        answer: Pending[SyncedGroup] = Pending()
        member = group.members[member_id]
        if group.state is STABLE:
            answer.complete(SyncedGroup(group.protocol_type, group.protocol, member.assignment))
            return answer
        if member.syncing is not None:
            again = RebalanceInProgressError(f"member {member_id!r} has asked once more")
            group.answer_sync(member, error=again)
        member.syncing = answer
        if member_id == group.leader:
            self._assign(group, assignments)
        return answer

    def _assign(self, group: GroupMetadata, assignments: Mapping[str, bytes]) -> None:
        """The leader has assigned: once that is written, everybody is told."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
        before = (group.state, group.previous_state, group.state_ms)
        group.move_to(STABLE, self._now_ms())
        try:
            self._store(group)
        except OncelogError as error:
            group.state, group.previous_state, group.state_ms = before
            self._refuse_assignment(group, error)
            self._prepare(group)
            return
        for member in group.members.values():
            told = SyncedGroup(group.protocol_type, group.protocol, member.assignment)
            if group.answer_sync(member, told):
                self._extend(member)

    def _refuse_assignment(self, group: GroupMetadata, error: OncelogError) -> None:
        for member in group.members.values():
            member.assignment = NO_ASSIGNMENT
            if group.answer_sync(member, error=error):
                self._extend(member)

    # ------------------------------------------------------------ staying and leaving

    def _extend(self, member: Member) -> None:
        member.session_deadline_ms = self._now_ms() + member.session_timeout_ms

    def heartbeat(
        self, group: GroupMetadata, member_id: str, generation: int, instance_id: str | None
    ) -> None:
        """A member is alive; raises where it has to join again."""
        group.check_alive()
        group.check_member(member_id, instance_id)
        group.check_generation(generation)
        if group.state is EMPTY:
            raise UnknownMemberIdError(f"group {group.group_id!r} is empty")
        self._extend(group.members[member_id])
        if group.state is PREPARING:
            raise RebalanceInProgressError(f"group {group.group_id!r} is being rebalanced")

    def extend_session(self, group: GroupMetadata, member_id: str) -> None:
        """A commit shows that a member is alive, as a heartbeat does."""
        member = group.members.get(member_id)
        if member is not None and group.state in (STABLE, PREPARING):
            self._extend(member)

    def leave(
        self, group: GroupMetadata, leaving: Iterable[tuple[str, str | None]]
    ) -> list[OncelogError | None]:
        """Members go, given by member id, or by instance id alone; for each None, or why it was not taken out."""
        group.check_alive()
        answers: list[OncelogError | None] = []
        for member_id, instance_id in leaving:
            try:
                self._leave(group, member_id, instance_id)
                answers.append(None)
            except (UnknownMemberIdError, FencedInstanceIdError) as error:
                answers.append(error)
        if None in answers:
            if group.state in ACTIVE:
                self._prepare(group)
            else:
                self._maybe_complete(group)
        return answers

    @staticmethod
    def _leave(group: GroupMetadata, member_id: str, instance_id: str | None) -> None:
        if not member_id:
            found = group.instances.get(instance_id) if instance_id is not None else None
            if found is None:
                raise UnknownMemberIdError(
                    f"group {group.group_id!r} has no instance {instance_id!r}"
                )
            member_id = found
        elif member_id in group.expected:
            group.remove(member_id)
            return
        else:
            group.check_member(member_id, instance_id)
        _dismiss(group, member_id)

    # ------------------------------------------------------------ time

    def expire(self, group: GroupMetadata) -> int:
        """Does what deadlines ask for; returns how many members it has removed."""
        now_ms = self._now_ms()
        removed = 0
        for member_id, deadline_ms in list(group.expected.items()):
            if deadline_ms <= now_ms:
                group.remove(member_id)
                self._after_removal(group)
        for member in list(group.members.values()):
            if member.session_deadline_ms > now_ms or member.member_id not in group.members:
                continue
            if member.is_waiting and not member.is_new:
                continue  # it waits for us, not we for it; its session goes on with the answer
            _dismiss(group, member.member_id)
            removed += 1
            self._after_removal(group)
        if group.join_deadline_ms is not None and group.join_deadline_ms <= now_ms:
            before = len(group.members)
            if group.first_delay is not None:
                self._end_first_delay(group)
            else:
                self._complete_join(group)
            removed += before - len(group.members)
        if group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms:
            removed += self._expire_sync(group)
        return removed

    def _after_removal(self, group: GroupMetadata) -> None:
        if group.state in ACTIVE:
            self._prepare(group)
        elif group.state is PREPARING and group.has_all_joined:
            self._complete_join(group)

    def _expire_sync(self, group: GroupMetadata) -> int:
        """Members that have not asked for their assignment are gone."""
        group.sync_deadline_ms = None
        silent = list(group.unsynced)
        if group.state not in ACTIVE or not silent:
            return 0
        for member_id in silent:
            _dismiss(group, member_id)
        self._prepare(group)
        return len(silent)

    def shrink(self, group: GroupMetadata) -> None:
        """A group that was loaded with more members than it may have rebalances, and the last ones lose."""
        if group.state is STABLE and len(group.members) > self._size_max:
            self._prepare(group)


def _dismiss(group: GroupMetadata, member_id: str) -> None:
    """Takes a member out and tells it so, if it waits."""
    member = group.members[member_id]
    gone = UnknownMemberIdError(f"member {member_id!r} was taken out of group {group.group_id!r}")
    group.answer_join(member, error=gone)
    group.answer_sync(member, error=gone)
    group.tell(member)
    group.remove(member_id)
