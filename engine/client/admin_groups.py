"""The administrator of groups: who is in them, how far they have come, and where they go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..base.errors import (
    GroupIdNotFoundError,
    GroupNotEmptyError,
    InvalidRequestError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    OncelogError,
    UnknownMemberIdError,
)
from ..partition.partition import Isolation
from .admin_answers import ConsumerGroupDescription, GroupLag, GroupMemberDescription
from .admin_arguments import OFFSET_NAMES, answer_of, by_key, integer, keys_of, name_of, names_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .._native.offsets import CommittedOffset
    from ..broker.broker import Broker
    from ..broker.group_answers import (
        GroupDescription,
        GroupListing,
        MemberDescription,
        OffsetCommit,
    )
    from ..broker.offset_reset import ResetPlan
    from ..segment.names import TopicPartition
    from .committing import OffsetAndMetadata

LATEST: Final = OFFSET_NAMES["latest"]
EARLIEST: Final = OFFSET_NAMES["earliest"]


class GroupAdmin:
    """The part of an administrator that is about groups."""

    _broker: Broker

    # ------------------------------------------------------------ looking

    def list_consumer_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """All groups by id, or those in some states ("Stable", "Empty", ...) and of some types ("classic",
        "consumer": KIP-848)."""
        from ..broker.group_answers import CLASSIC, CONSUMER
        from ..broker.group_metadata import GroupState

        labels = [state.label for state in GroupState]
        return self._broker.list_groups(
            states=_chosen(states, labels, "state"),
            types=_chosen(types, (CLASSIC, CONSUMER), "type"),
        )

    def describe_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, ConsumerGroupDescription | OncelogError]:
        """Groups with members, assignments and lag."""
        names = names_of(group_ids, "a group id")
        answers: dict[str, ConsumerGroupDescription | OncelogError] = {}
        for group_id, found in self._broker.describe_groups(names).items():
            try:
                answers[group_id] = (
                    found if isinstance(found, OncelogError) else self._described(found)
                )
            except OncelogError as error:
                answers[group_id] = error
        return answers

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription:
        """A group with its members, assignments and lag."""
        return answer_of(self.describe_consumer_groups([group_id]), group_id)

    def _described(self, group: GroupDescription) -> ConsumerGroupDescription:
        members = tuple(_member(group, member) for member in group.members)
        readers = {key: member.member_id for member in members for key in member.assignment}
        committed = {
            key: found.offset
            for key, found in self._broker.offset_fetch(group.group_id).items()
            if found is not None and not isinstance(found, OncelogError)
        }
        lags = {
            key: self._lag(key, committed.get(key), readers.get(key))
            for key in sorted({*committed, *readers})
        }
        return ConsumerGroupDescription(
            group.group_id,
            group.type,
            group.state.label,
            group.protocol_type,
            group.protocol,
            group.generation,
            group.leader,
            members,
            lags,
        )

    def _lag(self, key: TopicPartition, committed: int | None, reader: str | None) -> GroupLag:
        try:
            end = self._broker.list_offsets(key, LATEST, Isolation.READ_COMMITTED).offset
        except OncelogError:  # the topic was deleted, or the partition is offline
            return GroupLag(committed, None, None, reader)
        lag = None if committed is None else max(end - committed, 0)
        return GroupLag(committed, end, lag, reader)

    # ------------------------------------------------------------ members

    def remove_members_from_consumer_group(
        self, group_id: str, group_instance_ids: Iterable[str] | None = None
    ) -> dict[str, OncelogError | None]:
        """Takes members out of a group: static ones by their instance ids, or with None all of them.

        The answer is by instance id, and by member id where there is none. A consumer that still runs joins again.
        """
        if group_instance_ids is None:
            group = self._need(group_id)
            rows = [(member.member_id, member.group_instance_id) for member in group.members]
            names = [instance or member for member, instance in rows]
        else:
            names = names_of(group_instance_ids, "a group instance id")
            self._need(group_id)
            rows = [("", name) for name in names]
        if not rows:
            return {}
        return dict(zip(names, self._broker.leave_group(group_id, rows), strict=True))

    def _need(self, group_id: str) -> GroupDescription:
        name_of(group_id, "a group id")
        return answer_of(self._broker.describe_groups([group_id]), group_id)

    # ------------------------------------------------------------ removing

    def delete_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, OncelogError | None]:
        """Removes groups without members, and all that they have committed."""
        return self._broker.delete_groups(names_of(group_ids, "a group id"))

    def delete_consumer_group(self, group_id: str) -> None:
        """Removes a group without members, and all that it has committed."""
        answer_of(self.delete_consumer_groups([group_id]), group_id)

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OncelogError | None]:
        """Forgets committed offsets of topics that no member reads; what was not committed counts as forgotten."""
        name_of(group_id, "a group id")
        return self._broker.offset_delete(group_id, keys_of(partitions))

    # ------------------------------------------------------------ offsets

    def list_consumer_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata | OncelogError | None]:
        """What a group has committed: all, or of some partitions, None where there is nothing.

        With ``require_stable`` an offset that an open transaction is about to commit is UnstableOffsetCommitError.
        """
        keys = None if partitions is None else keys_of(partitions)
        self._need(group_id)
        found = self._broker.offset_fetch(group_id, keys, require_stable=require_stable)
        return {key: _committed(value) for key, value in found.items()}

    def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> None:
        """Commits offsets for a group that nobody is in, all or none; a group that is not there is made.

        Each partition must exist, and have the offset or end at it.
        """
        commits = {
            key: _commit(offset)
            for key, offset in by_key(offsets, "partitions and offsets").items()
        }
        self._check_inactive(group_id)
        remark_max = self._broker.config["offset.metadata.max.bytes"]
        for key, commit in commits.items():
            if len(commit.metadata) > remark_max:
                raise OffsetMetadataTooLargeError(
                    f"{key.directory}: {len(commit.metadata)} characters of metadata, more than "
                    f"offset.metadata.max.bytes = {remark_max}"
                )
            start = self._broker.list_offsets(key, EARLIEST).offset
            end = self._broker.list_offsets(key, LATEST, Isolation.READ_UNCOMMITTED).offset
            if not start <= commit.offset <= end:
                raise OffsetOutOfRangeError(
                    f"{key.directory} has offsets {start} to {end}, not {commit.offset}"
                )
        if not commits:
            return
        try:
            answers = self._broker.offset_commit(group_id, commits)
        except UnknownMemberIdError as error:  # somebody joined a moment ago
            raise GroupNotEmptyError(*error.args) from error
        for refused in answers.values():
            if refused is not None:
                raise refused

    def _check_inactive(self, group_id: str) -> None:
        from ..broker.group_records import check_group_id
        from ..broker.group_registry import check_reserved

        check_group_id(name_of(group_id, "a group id"))
        check_reserved(group_id)
        try:
            group = self._need(group_id)
        except GroupIdNotFoundError:
            return
        if group.members:
            raise GroupNotEmptyError(
                f"group {group_id!r} has {len(group.members)} members, whose next commit would undo this"
            )

    # ------------------------------------------------------------ reset

    def plan_reset(
        self,
        group_ids: str | Sequence[str],
        *,
        topics: Iterable[str] | None = None,
        **target: Any,
    ) -> dict[str, ResetPlan]:
        """What a reset of groups without members would commit; nothing is written.

        ``topics`` are names, or ``"orders:0,2"`` for some partitions; None: all that each group has committed. One
        target: ``to="earliest"``, ``"latest"`` or ``"current"``, ``to_offset=``, ``shift_by=``,
        ``to_datetime="2026-11-16T18:00:00.000"``, ``by_duration="P1DT12H"``, or ``from_csv=`` with what
        ``export_reset`` gave. Offsets that a log does not have become its nearest. A plan may hold errors, by
        partition or for the group; it is then not carried out.
        """
        from ..broker.offset_reset import parse_scope, plan_reset
        from .reset_targets import target_of

        names = [group_ids] if isinstance(group_ids, str) else names_of(group_ids, "a group id")
        wanted = target_of(target, names, has_topics=topics is not None)
        scope = None if topics is None else parse_scope(names_of(topics, "a topic"))
        return plan_reset(
            self._broker.groups,
            self._broker,
            names,
            wanted,
            scope=scope,
            now_ms=self._broker.now_ms,
        )

    def execute_reset(
        self, plans: ResetPlan | Mapping[str, ResetPlan]
    ) -> dict[str, dict[TopicPartition, int]]:
        """Commits plans; raises before the first commit if any of them has an error. Returns what was committed."""
        from ..broker.offset_reset import execute_reset
        from .reset_targets import plans_of

        return execute_reset(self._broker.groups, plans_of(plans))

    def export_reset(
        self, plans: ResetPlan | Mapping[str, ResetPlan], *, names_groups: bool | None = None
    ) -> str:
        """Plans as the CSV lines of Kafka's tool, for ``from_csv``: ``[group,]topic,partition,offset``.

        The group stands in front where there are several plans, or as ``names_groups`` says: Kafka's tool leaves it
        out only for one group that was asked for by its name, not for the only one of all groups.
        """
        from ..broker.offset_reset import export_plan
        from .reset_targets import plans_of

        return export_plan(plans_of(plans), names_groups=names_groups)

    def reset_offsets(
        self, group_id: str, *, topics: Iterable[str] | None = None, **target: Any
    ) -> dict[TopicPartition, int]:
        """Plans and executes the reset of one group; arguments as for ``plan_reset``."""
        name_of(group_id, "a group id")
        return self.execute_reset(self.plan_reset(group_id, topics=topics, **target))[group_id]


def _chosen(given: Iterable[str], known: Sequence[str], what: str) -> list[str]:
    names = names_of(given, f"the {what} of a group")
    for name in names:
        if name.lower() not in {word.lower() for word in known}:
            raise InvalidRequestError(f"there is no group {what} {name!r}, only {', '.join(known)}")
    return names


def _member(group: GroupDescription, member: MemberDescription) -> GroupMemberDescription:
    """What a member brought and got is in bytes that consumers alone are known to speak."""
    from ..broker.group_protocol import PROTOCOL_TYPE, decode_assignment, decode_topics

    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    if group.protocol_type == PROTOCOL_TYPE:
        topics = decode_topics(member.metadata) if member.metadata else ()
        assignment = decode_assignment(member.assignment).partitions
    return GroupMemberDescription(*member[:4], topics, assignment)


def _committed(
    value: CommittedOffset | OncelogError | None,
) -> OffsetAndMetadata | OncelogError | None:
    from .committing import OffsetAndMetadata

    if value is None or isinstance(value, OncelogError):
        return value
    return OffsetAndMetadata(value.offset, value.leader_epoch, value.metadata)


def _commit(given: int | OffsetAndMetadata) -> OffsetCommit:
    from ..broker.group_answers import OffsetCommit
    from .committing import OffsetAndMetadata

    if not isinstance(given, OffsetAndMetadata):
        return OffsetCommit(integer(given, "an offset", minimum=0))
    return OffsetCommit(
        integer(given.offset, "an offset", minimum=0),
        integer(given.leader_epoch, "a leader epoch", minimum=-1),
        name_of(given.metadata, "the metadata of an offset"),
    )
