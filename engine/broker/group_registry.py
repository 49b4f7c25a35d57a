"""The groups that there are: found by their ids, replayed at start, forgotten with all that they have committed.

Duty         which groups exist; deletion and expiry, of offsets and of groups, as tombstones
Concurrency  any thread. ``lock`` guards the table of groups and is taken inside a group's lock; whoever changes a group
             holds the group's own.
Crash        tombstones of offsets come before that of their group, so that a rest of them only makes a simple group
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ..base.errors import GroupIdNotFoundError, InvalidGroupIdError, OncelogError
from ..segment.names import TopicPartition
from .consumer_group import ConsumerGroup
from .group_metadata import GroupMetadata, GroupState
from .group_records import RecordType, decode_group_value, encode_group_key, encode_offset_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .._native.offsets import CommittedOffset
    from .group_answers import Group
    from .group_offsets import GroupOffsets
    from .group_records import GroupKey
    from .state_log import StateRecord

RESERVED_PREFIX: Final = "__oncelog"


def check_reserved(group_id: str) -> None:
    """Raises for a group that nobody may take anything out of."""
    if group_id.startswith(RESERVED_PREFIX):
        raise InvalidGroupIdError(f"group {group_id!r} is the library's own and stays")


def offset_tombstones(group_id: str, keys: Iterable[TopicPartition]) -> list[StateRecord]:
    """The records that remove committed offsets, and those that wait for the end of a transaction."""
    return [(encode_offset_key(group_id, *key), None) for key in sorted(keys)]


class GroupRegistry:
    """All groups of a broker."""

    def __init__(
        self, offsets: GroupOffsets, now_ms: Callable[[], int], *, retention_ms: int
    ) -> None:
        self._offsets = offsets
        self._now_ms = now_ms
        self._retention_ms = retention_ms
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}
        self._timed: set[str] = set()  # groups that have deadlines

    # ------------------------------------------------------------ finding

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def need(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None or self._is_bare(group):
            raise GroupIdNotFoundError(f"there is no group {group_id!r}")
        return group

    def _is_bare(self, group: Group) -> bool:
        """Whether nothing is in a group: its only commit failed or was aborted, or is being written."""
        return (
            isinstance(group, GroupMetadata)
            and group.is_simple
            and not self._offsets.has_group(group.group_id)
        )

    def values(self) -> list[Group]:
        """All groups, by their ids."""
        with self._lock:
            groups = [group for _, group in sorted(self._groups.items())]
        return [group for group in groups if not self._is_bare(group)]

    def register(self, group: Group) -> Group:
        """The group of that id: this one, unless another was quicker."""
        with self._lock:
            return self._groups.setdefault(group.group_id, group)

    def forget(self, group: Group) -> None:
        """Marks a group as dead, for whoever still holds it."""
        if isinstance(group, ConsumerGroup):
            group.is_dead = True
        else:
            group.state = GroupState.DEAD
        with self._lock:
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]
                self._timed.discard(group.group_id)

    def forget_bare(self, group: Group) -> None:
        """Forgets a group that was made for a commit that failed."""
        if self._is_bare(group):
            with group.lock:
                if self._is_bare(group):
                    self.forget(group)

    def watch(self, group_id: str) -> None:
        """A group has deadlines from now on."""
        with self._lock:
            self._timed.add(group_id)

    def unwatch(self, group_id: str) -> None:
        with self._lock:
            self._timed.discard(group_id)

    def watched(self) -> list[Group]:
        """The groups that have deadlines."""
        with self._lock:
            return [self._groups[name] for name in self._timed if name in self._groups]

    # ------------------------------------------------------------ start

    def load(self, consumer_session_timeout_ms: int) -> None:
        """Reads the log."""
        groups: dict[str, Group] = {}
        for key, value in self._offsets.load():
            try:
                self._replay(groups, key, value)
            except OncelogError as error:
                self._offsets.fail(key.group, error)
        now_ms = self._now_ms()
        for group_id, group in list(groups.items()):
            if isinstance(group, ConsumerGroup):
                group.deadline_ms = now_ms + consumer_session_timeout_ms
                if not group.has_record and not group.members:
                    del groups[group_id]
        for group_id in self._offsets.groups():
            groups.setdefault(group_id, GroupMetadata(group_id, now_ms))
        self._groups = groups
        self._timed = {name for name, group in groups.items() if group.next_deadline_ms is not None}

    def _replay(self, groups: dict[str, Group], key: GroupKey, value: bytes | None) -> None:
        group = groups.get(key.group)
        if key.kind is RecordType.GROUP:
            if value is not None:
                groups[key.group] = GroupMetadata.of(
                    key.group, decode_group_value(value), self._now_ms()
                )
            elif isinstance(group, GroupMetadata):
                del groups[key.group]
            return
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return  # what is left of a group that has become a classic one
            group = groups[key.group] = ConsumerGroup(key.group)
        group.replay(key, value)

    # ------------------------------------------------------------ deletion and expiry

    def delete(self, group: Group) -> None:
        """Writes the tombstones of a group and its offsets, pending ones among them."""
        keys = self._offsets.pending_of_group(group.group_id)
        for topic, numbers in self._offsets.of_group(group.group_id).items():
            keys.update(TopicPartition(topic, number) for number in numbers)
        records = offset_tombstones(group.group_id, keys)
        if isinstance(group, ConsumerGroup):
            records += group.tombstones()
        else:
            records.append((encode_group_key(RecordType.GROUP, group.group_id), None))
        self._offsets.write(group.group_id, records)
        self.forget(group)

    def on_topic_deleted(self, topic: str) -> int:
        """A topic is gone, and what groups have committed for it goes, too; returns how many offsets."""
        count = 0
        for group_id in self._offsets.groups_of_topic(topic):
            group = self._groups.get(group_id)
            if group is None or group_id.startswith(RESERVED_PREFIX):
                continue
            with group.locked():
                keys = {key for key in self._offsets.pending_of_group(group_id) if key[0] == topic}
                numbers = self._offsets.of_group(group_id).get(topic, {})
                keys.update(TopicPartition(topic, number) for number in numbers)
                if keys:
                    self._offsets.write(group_id, offset_tombstones(group_id, keys))
                    count += len(keys)
        return count

    def expire_offsets(self) -> int:
        """Forgets offsets whose retention has passed, and groups that have neither members nor offsets; returns how
        many offsets."""
        count = 0
        for group_id, group in list(self._groups.items()):
            if group_id.startswith(RESERVED_PREFIX):
                continue
            with group.locked():
                count += self._expire_offsets_of(group)
        return count

    def _expire_offsets_of(self, group: Group) -> int:
        now_ms = self._now_ms()
        doomed: list[TopicPartition] = []
        is_all = True
        for topic, partitions in self._offsets.of_group(group.group_id).items():
            for number, value in partitions.items():
                if self._is_expired(group, topic, value, now_ms) and not self._offsets.is_pending(
                    group.group_id, topic, number
                ):
                    doomed.append(TopicPartition(topic, number))
                else:
                    is_all = False
        has_joiners = isinstance(group, GroupMetadata) and bool(group.expected)
        is_open = self._offsets.has_open_transactions(group.group_id)
        if is_all and not is_open and not has_joiners and group.is_empty:
            self.delete(group)
            return len(doomed)
        if doomed:
            self._offsets.write(group.group_id, offset_tombstones(group.group_id, doomed))
        return len(doomed)

    def _is_expired(self, group: Group, topic: str, value: CommittedOffset, now_ms: int) -> bool:
        base_ms = group.expiry_base_ms(value.commit_ms)
        if base_ms is None or group.is_subscribed_to(topic):
            return False
        if value.expire_ms != -1:
            return now_ms >= value.expire_ms
        return now_ms - base_ms >= self._retention_ms
