"""A group of Kafka's newer protocol (KIP-848), as a real broker left it in ``__consumer_offsets``.

Duty         show it, keep its offsets readable, and let it run empty: its members speak a protocol that is not spoken
             here, so none of them can be alive for longer than a session after the log was opened
Concurrency  callers hold ``lock``
Crash        everything is in the group's records
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..base.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from .group_metadata import GroupState
from .group_protocol import PROTOCOL_TYPE
from .group_records import (
    ConsumerGroupValue,
    ConsumerMemberValue,
    GroupKey,
    RecordType,
    decode_consumer_group,
    decode_consumer_member,
    decode_current_assignment,
    decode_target_epoch,
    encode_consumer_group,
    encode_group_key,
)

if TYPE_CHECKING:
    from .state_log import StateRecord

MEMBER_IS_STABLE: Final = 0  # of the states of a member: it has what it should have


@dataclass(slots=True)
class ConsumerMember:
    """A member as far as its records tell."""

    member_id: str
    value: ConsumerMemberValue | None = None
    epoch: int = -1
    previous_epoch: int = -1
    state: int = MEMBER_IS_STABLE
    has_target: bool = False
    assigned: tuple[
        tuple[bytes, tuple[int, ...]], ...
    ] = ()  # what it reads: topic ids and partitions


@dataclass(slots=True)
class ConsumerGroup:
    """A group of KIP-848."""

    group_id: str
    epoch: int = 0
    target_epoch: int = 0
    metadata_hash: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    others: set[bytes] = field(
        default_factory=set
    )  # keys of further records, to be removed with it
    deadline_ms: int = 0  # by when its members are taken for gone
    is_dead: bool = False
    has_record: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def locked(self) -> threading.Lock:
        """To be used with ``with``."""
        return self.lock

    # ------------------------------------------------------------ replay

    def replay(self, key: GroupKey, value: bytes | None) -> None:
        """Takes one of its records over."""
        kind = key.kind
        if kind is RecordType.CONSUMER_GROUP:
            self.has_record = value is not None
            if value is not None:
                self.epoch, self.metadata_hash = decode_consumer_group(value)
        elif kind is RecordType.TARGET_ASSIGNMENT:
            self.target_epoch = 0 if value is None else decode_target_epoch(value)
            self._remember(key, is_there=value is not None)
        elif kind is RecordType.CONSUMER_GROUP_MEMBER:
            if value is None:
                self.members.pop(key.member, None)
            else:
                self._member(key.member).value = decode_consumer_member(value)
        elif kind is RecordType.CURRENT_ASSIGNMENT_MEMBER:
            self._replay_current(key.member, value)
        elif kind is RecordType.TARGET_ASSIGNMENT_MEMBER:
            if value is not None or key.member in self.members:
                self._member(key.member).has_target = value is not None
        else:
            self._remember(key, is_there=value is not None)

    def _replay_current(self, member_id: str, value: bytes | None) -> None:
        if value is None:
            if member_id in self.members:
                self.members[member_id].epoch = -1
                self.members[member_id].assigned = ()
            return
        current = decode_current_assignment(value)
        member = self._member(member_id)
        member.epoch, member.previous_epoch, member.state, member.assigned = current[:4]

    def _member(self, member_id: str) -> ConsumerMember:
        return self.members.setdefault(member_id, ConsumerMember(member_id))

    def _remember(self, key: GroupKey, *, is_there: bool) -> None:
        data = encode_group_key(*key)
        if is_there:
            self.others.add(data)
        else:
            self.others.discard(data)

    # ------------------------------------------------------------ what it is

    @property
    def protocol_type(self) -> str:
        return PROTOCOL_TYPE

    @property
    def generation(self) -> int:
        return self.epoch

    @property
    def state(self) -> GroupState:
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        for member in self.members.values():
            if member.epoch != self.target_epoch or member.state != MEMBER_IS_STABLE:
                return GroupState.RECONCILING
        return GroupState.STABLE

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms if self.members else None

    def is_subscribed_to(self, topic: str) -> bool:
        return any(
            member.value is not None and topic in member.value.topics
            for member in self.members.values()
        )

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
        self.check_alive()
        is_anonymous = is_transactional and not member_id and instance_id is None
        if generation < 0 and (self.is_empty or is_anonymous):
            return
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError(f"group {self.group_id!r} has no member {member_id!r}")
        if generation != member.epoch:
            raise StaleMemberEpochError(
                f"member {member_id!r} of group {self.group_id!r} has epoch {member.epoch}, not {generation}"
            )

    def check_alive(self) -> None:
        if self.is_dead:
            raise CoordinatorNotAvailableError(f"group {self.group_id!r} was deleted meanwhile")

    def check_exists(self) -> None:
        if self.is_dead:
            raise GroupIdNotFoundError(f"there is no group {self.group_id!r}")

    def check_delete(self) -> None:
        self.check_exists()
        if not self.is_empty:
            raise GroupNotEmptyError(f"group {self.group_id!r} has {len(self.members)} members")

    def check_delete_offsets(self) -> None:
        self.check_exists()

    def expiry_base_ms(self, commit_ms: int) -> int | None:
        """From when on the retention of an offset counts: of this kind of group always the commit."""
        return commit_ms

    # ------------------------------------------------------------ the end

    def member_tombstones(self) -> list[StateRecord]:
        """What to write when its members are gone: the group goes on empty, under the next epoch."""
        records = self._member_keys()
        value = encode_consumer_group(ConsumerGroupValue(self.epoch + 1, self.metadata_hash))
        records.append((encode_group_key(RecordType.CONSUMER_GROUP, self.group_id), value))
        return records

    def forget_members(self) -> None:
        """After the tombstones are written."""
        self.members.clear()
        self.epoch += 1

    def tombstones(self) -> list[StateRecord]:
        """What removes the group from the log."""
        records = self._member_keys()
        records += [(key, None) for key in sorted(self.others)]
        records.append((encode_group_key(RecordType.CONSUMER_GROUP, self.group_id), None))
        return records

    def _member_keys(self) -> list[StateRecord]:
        kinds = (
            RecordType.CURRENT_ASSIGNMENT_MEMBER,
            RecordType.TARGET_ASSIGNMENT_MEMBER,
            RecordType.CONSUMER_GROUP_MEMBER,
        )
        return [
            (encode_group_key(kind, self.group_id, member_id), None)
            for member_id in self.members
            for kind in kinds
        ]
