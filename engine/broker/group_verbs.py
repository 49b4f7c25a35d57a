"""The verbs of groups: what consumers and administrators ask of a broker. The coordinator answers them."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from .._native.offsets import CommittedOffset
    from ..base.errors import OncelogError
    from ..segment.names import TopicPartition
    from .group_answers import GroupDescription, GroupListing, OffsetCommit
    from .group_coordinator import GroupCoordinator
    from .group_metadata import JoinedGroup, SyncedGroup
    from .pending import Pending


class GroupVerbs(abc.ABC):
    """The part of a broker that is about groups."""

    groups: GroupCoordinator

    @abc.abstractmethod
    def check_open(self) -> None: ...

    def join_group(
        self, group_id: str, member_id: str = "", **request: Any
    ) -> Pending[JoinedGroup]:
        """Joins a group; arguments as for GroupCoordinator.join_group."""
        self.check_open()
        return self.groups.join_group(group_id, member_id, **request)

    def sync_group(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        **request: Any,
    ) -> Pending[SyncedGroup]:
        """Asks for a member's assignment; the leader brings everybody's."""
        self.check_open()
        return self.groups.sync_group(group_id, member_id, generation_id, assignments, **request)

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        *,
        group_instance_id: str | None = None,
    ) -> None:
        """Says that a member is alive."""
        self.check_open()
        self.groups.heartbeat(
            group_id, member_id, generation_id, group_instance_id=group_instance_id
        )

    def leave_group(
        self, group_id: str, members: Iterable[tuple[str, str | None]]
    ) -> list[OncelogError | None]:
        """Takes members out of a group."""
        self.check_open()
        return self.groups.leave_group(group_id, members)

    def offset_commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        *,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
        retention_time_ms: int = -1,
        defer: Callable[[Callable[[], None]], object] | None = None,
    ) -> dict[TopicPartition, OncelogError | None]:
        """Commits offsets, as a member or into a group without members."""
        self.check_open()
        return self.groups.offset_commit(
            group_id,
            offsets,
            member_id=member_id,
            generation_id=generation_id,
            group_instance_id=group_instance_id,
            retention_time_ms=retention_time_ms,
            defer=defer,
        )

    def txn_offset_commit(
        self,
        transactional_id: str,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        offsets: Mapping[TopicPartition, OffsetCommit],
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
        transaction_version: int = 2,
    ) -> dict[TopicPartition, OncelogError | None]:
        """Commits offsets as part of a transaction: they count from its commit on."""
        self.check_open()
        return self.groups.txn_offset_commit(
            transactional_id,
            group_id,
            producer_id,
            producer_epoch,
            member_id,
            generation_id,
            group_instance_id,
            offsets,
            transaction_version=transaction_version,
        )

    def offset_fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, CommittedOffset | OncelogError | None]:
        """Committed offsets of a group."""
        self.check_open()
        return self.groups.offset_fetch(group_id, partitions, require_stable=require_stable)

    def offset_delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OncelogError | None]:
        """Forgets committed offsets."""
        self.check_open()
        return self.groups.offset_delete(group_id, partitions)

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupListing]:
        self.check_open()
        return self.groups.list_groups(states=states, types=types)

    def describe_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | OncelogError]:
        self.check_open()
        return self.groups.describe_groups(group_ids)

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, OncelogError | None]:
        """Removes groups without members, and all that they have committed."""
        self.check_open()
        return self.groups.delete_groups(group_ids)
