"""The group coordinator: who is in a group, and what the group has committed.

File         ``__consumer_offsets``, through group_offsets.py
Duty         the requests of groups as methods, named as in Kafka's protocol
Concurrency  any thread. Lock order: a group's, a transaction's, that of a partition of committed offsets, the broker's,
             a partition's. Whoever calls from inside the broker's lock must not call in here.
Waiting      none: joins and syncs that wait for other members answer with a Pending
Crash        groups and offsets are a replay of the log; see group_membership.py for what is lost
Fails        a request for a group whose part of the log cannot be read raises CoordinatorNotAvailableError

Group ids starting with ``__oncelog`` are the library's own: their offsets neither expire nor can be deleted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ..base.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    NotCoordinatorError,
    OncelogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from ..segment.names import TopicPartition
from .consumer_group import ConsumerGroup
from .group_answers import CONSUMER, GroupListing, commit_records, described, type_of
from .group_membership import JoinRequest, Membership
from .group_metadata import GroupMetadata
from .group_offsets import GroupOffsets
from .group_records import RecordType, check_group_id, encode_group_key, encode_group_value
from .group_registry import GroupRegistry, check_reserved, offset_tombstones

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from .._native.offsets import CommittedOffset
    from .group_answers import CommitRecords, Group, GroupDescription, GroupOptions, OffsetCommit
    from .group_metadata import JoinedGroup, SyncedGroup
    from .pending import Pending
    from .state_log import StateLog
    from .txn_coordinator import TransactionCoordinator

logger = logging.getLogger("oncelog.broker")

IDLE_MS: Final = 1000  # until the next tick at most, as a member may join meanwhile
RETRY_MS: Final = 60_000  # of what could not be written


class GroupCoordinator:
    """All groups of a broker. ``load`` comes first."""

    def __init__(
        self,
        state: StateLog,
        transactions: TransactionCoordinator | None,
        options: GroupOptions,
        now_ms: Callable[[], int],
        *,
        topic_id_of: Callable[[str], bytes | None] = lambda _: None,
        topic_name_of: Callable[[bytes], str | None] = lambda _: None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        self._state = state
        self._transactions = transactions
        self._options = options
        self._now_ms = now_ms
        self._topic_id_of = topic_id_of
        self._topic_name_of = topic_name_of
        self._offsets = GroupOffsets(state, now_ms)
        extra = {} if new_id is None else {"new_id": new_id}
        self._membership = Membership(
            now_ms,
            self._store,
            size_max=options.size_max,
            first_delay_ms=options.first_delay_ms,
            **extra,
        )
        self._groups = GroupRegistry(self._offsets, now_ms, retention_ms=options.retention_ms)
        self._is_loading = False
        self._is_loaded = False

    # ------------------------------------------------------------ start

    def load(self) -> None:
        """Reads the log. Members that it tells of have a session's time to show up."""
        self._is_loading = True
        try:
            self._groups.load(self._options.consumer_session_timeout_ms)
        finally:
            self._is_loading = False
        for group in self._groups.values():
            if isinstance(group, GroupMetadata):
                with group.locked():
                    self._membership.shrink(group)
        self._is_loaded = True
        self.tick()  # some cannot show up any more

    def close(self) -> None:
        """Whoever waits for a group is told that nobody coordinates it any more."""
        self._is_loaded = False
        gone = CoordinatorNotAvailableError("the log was closed")
        for group in self._groups.values():
            if isinstance(group, GroupMetadata):
                with group.locked():
                    for member in group.members.values():
                        group.answer_join(member, error=gone)
                        group.answer_sync(member, error=gone)

    # ------------------------------------------------------------ finding groups

    def offsets_partition(self, group_id: str) -> TopicPartition:
        """The partition that holds a group's offsets; a transaction adds it before it commits offsets there."""
        return TopicPartition(self._state.topic, self._state.partition_for(group_id))

    def find_coordinator(self, group_id: str) -> TopicPartition:
        """The same, after a look at whether groups are served at all."""
        self._check(group_id)
        return self.offsets_partition(group_id)

    def _check_started(self) -> None:
        if not self._is_loaded:
            if self._is_loading:
                raise CoordinatorLoadInProgressError("committed offsets are being read")
            raise CoordinatorNotAvailableError("the group coordinator has not been started")

    def _check(self, group_id: str, *, may_be_empty: bool = False) -> None:
        if not self._is_loaded:
            self._check_started()
        if not group_id and not may_be_empty:
            check_group_id(group_id)
        self._offsets.check(group_id)

    def _member_group(self, group_id: str) -> GroupMetadata:
        """The group that a member belongs to; a group that is not there has no members."""
        self._check(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(f"there is no group {group_id!r}")
        if isinstance(group, ConsumerGroup):
            raise UnknownMemberIdError(f"group {group_id!r} is one of the newer protocol (KIP-848)")
        return group

    def _store(self, group: GroupMetadata) -> None:
        key = encode_group_key(RecordType.GROUP, group.group_id)
        self._offsets.write(group.group_id, [(key, encode_group_value(group.value()))])

    # ------------------------------------------------------------ members

    def join_group(
        self,
        group_id: str,
        member_id: str = "",
        *,
        protocols: Sequence[tuple[str, bytes]],
        protocol_type: str = CONSUMER,
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        client_id: str = "",
        client_host: str = "",
        requires_known_member_id: bool = False,
        supports_skipping_assignment: bool = True,
        on_change: Callable[[], None] | None = None,
    ) -> Pending[JoinedGroup]:
        """Joins, with no member id at first; the answer is there when all members have joined, or their time is up.

        With ``requires_known_member_id`` a first join is refused with MemberIdRequiredError, which has the id to join
        with, so that a client that never hears of its id leaves no member behind. ``on_change`` is called, by any thread
        and without a lock, when the next heartbeat has something to say: a rebalance, or that the member is out.
        """
        self._check(group_id)
        options = self._options
        if (
            not options.session_timeout_min_ms
            <= session_timeout_ms
            <= options.session_timeout_max_ms
        ):
            raise InvalidSessionTimeoutError(
                f"a session timeout of {session_timeout_ms} ms is not between {options.session_timeout_min_ms} "
                f"and {options.session_timeout_max_ms}"
            )
        request = JoinRequest(
            member_id,
            group_instance_id,
            client_id,
            client_host,
            session_timeout_ms,
            rebalance_timeout_ms,
            protocol_type,
            tuple((name, bytes(metadata)) for name, metadata in protocols),
            requires_known_member_id,
            supports_skipping_assignment,
            on_change,
        )
        group = self._joinable(group_id, is_new_member=not member_id)
        self._groups.watch(group_id)
        with group.locked():
            return self._membership.join(group, request)

    def _joinable(self, group_id: str, *, is_new_member: bool) -> GroupMetadata:
        """The group to join, made if need be; a KIP-848 group that is empty becomes a classic one."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            with group.lock:
                if not group.is_empty:
                    raise InconsistentGroupProtocolError(
                        f"group {group_id!r} has members of the newer protocol (KIP-848)"
                    )
                if not group.is_dead:
                    self._offsets.write(group_id, group.tombstones())
                    self._groups.forget(group)
            group = None
        if group is not None:
            return group
        if not is_new_member:
            raise UnknownMemberIdError(f"there is no group {group_id!r}")
        made = GroupMetadata(group_id, self._now_ms())
        with made.lock:
            found = self._groups.register(made)
            if found is made:
                try:
                    self._store(made)
                except BaseException:
                    self._groups.forget(made)
                    raise
        return found if isinstance(found, GroupMetadata) else self._member_group(group_id)

    def sync_group(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Pending[SyncedGroup]:
        """Asks for a member's assignment; the leader brings everybody's, and the others get their answer with it."""
        group = self._member_group(group_id)
        with group.locked():
            return self._membership.sync(
                group,
                member_id,
                generation_id,
                group_instance_id,
                assignments or {},
                protocol_type=protocol_type,
                protocol_name=protocol_name,
            )

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        *,
        group_instance_id: str | None = None,
    ) -> None:
        """Says that a member is alive; raises RebalanceInProgressError when it has to join again."""
        group = self._member_group(group_id)
        with group.locked():
            self._membership.heartbeat(group, member_id, generation_id, group_instance_id)

    def leave_group(
        self, group_id: str, members: Iterable[tuple[str, str | None]]
    ) -> list[OncelogError | None]:
        """Takes members out, given as (member id, instance id or None), or by the instance id alone with an empty
        member id; for each None, or why it was not done."""
        group = self._member_group(group_id)
        with group.locked():
            return self._membership.leave(group, members)

    # ------------------------------------------------------------ committing

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
        """Commits offsets: as a member, or as nobody into a group without members. For each None, or why not.

        Where durability asks for it, returns when they are on the device; or hands that wait to ``defer``, for somebody
        else to make.
        """
        self._check(group_id, may_be_empty=True)
        prepared = self._records(group_id, offsets, retention_time_ms)
        who = (member_id, generation_id, group_instance_id)
        while (end := self._commit(group_id, prepared, who)) is None:
            pass
        if self._state.is_synced:
            if defer is None:
                self._offsets.sync(group_id, end)
            else:
                defer(lambda: self._offsets.sync(group_id, end))
        return prepared[0]

    def _commit(
        self, group_id: str, prepared: CommitRecords, who: tuple[str, int, str | None]
    ) -> int | None:
        """Returns what to wait for; None if the group was deleted at the last moment: there is another one to commit
        into, or none."""
        _, keys, values = prepared
        group = self._committed_to(group_id, who[1])
        end = 0
        try:
            with group.locked():
                if group.is_dead:
                    return None
                group.check_commit(*who)
                if who[0] and isinstance(group, GroupMetadata):
                    self._membership.extend_session(group, who[0])
                if keys:
                    end = self._offsets.commit(group_id, keys, values)
        finally:
            if not end:  # nothing was written, and the group may have been made for this
                self._groups.forget_bare(group)
        return end

    def txn_offset_commit(
        self,
        transactional_id: str,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
        offsets: Mapping[TopicPartition, OffsetCommit] | None = None,
        *,
        transaction_version: int = 2,
    ) -> dict[TopicPartition, OncelogError | None]:
        """Commits offsets as part of a transaction: they count from its commit on, and never if it aborts.

        The producer id and epoch must be those of the open transaction, member and generation those of the group, so
        that neither a zombie producer nor a zombie consumer gets through (KIP-447). Version 2 adds the group's
        partition to the transaction, version 1 wants it added before.
        """
        self._check(group_id)
        prepared = self._records(group_id, offsets or {}, -1)
        try:
            group = self._committed_to(group_id, generation_id)
        except GroupIdNotFoundError as error:
            raise IllegalGenerationError(
                f"there is no group {group_id!r}, of which generation {generation_id} could be"
            ) from error
        try:
            with group.locked():
                try:
                    group.check_commit(
                        member_id, generation_id, group_instance_id, is_transactional=True
                    )
                except StaleMemberEpochError as error:  # the older protocol's word for it
                    raise IllegalGenerationError(*error.args) from error
                if prepared[1]:
                    identity = (producer_id, producer_epoch)
                    self._append(
                        transactional_id, identity, group_id, prepared, transaction_version
                    )
        finally:
            self._groups.forget_bare(group)
        return prepared[0]

    def _append(
        self,
        transactional_id: str,
        identity: tuple[int, int],
        group_id: str,
        prepared: CommitRecords,
        version: int,
    ) -> None:
        def append() -> None:
            self._offsets.commit(group_id, *prepared[1:], *identity, bumps_epoch=version >= 2)

        if self._transactions is None:
            append()
        else:
            key = self.offsets_partition(group_id)
            self._transactions.append(
                transactional_id, *identity, key, append, transaction_version=version
            )

    def _committed_to(self, group_id: str, generation_id: int) -> Group:
        """The group to commit into. Who commits without a generation makes a simple group."""
        group = self._groups.get(group_id)
        if group is not None:
            return group
        if generation_id >= 0:
            raise GroupIdNotFoundError(f"there is no group {group_id!r}")
        return self._groups.register(GroupMetadata(group_id, self._now_ms()))

    def _records(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        retention_time_ms: int,
    ) -> CommitRecords:
        """For each partition None, or why it is refused; and what to write."""
        return commit_records(
            group_id,
            offsets,
            self._now_ms(),
            retention_time_ms,
            self._options.metadata_bytes_max,
            self._topic_id_of,
        )

    def on_txn_marker(
        self, number: int, producer_id: int = -1, *, committed: bool = False, offset: int = -1
    ) -> None:
        """After a marker was written to a partition of the offsets' topic, at an offset if that is known."""
        if not 0 <= number < self._state.partition_count:
            raise NotCoordinatorError(f"there is no {self._state.topic}-{number}")
        if self._is_loaded:
            self._offsets.end_transaction(number, producer_id, offset, committed=committed)

    # ------------------------------------------------------------ fetching

    def offset_fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, CommittedOffset | OncelogError | None]:
        """Committed offsets: of some partitions, None where nothing is committed, or all there are.

        With ``require_stable`` a partition whose offset an open transaction may still change has
        UnstableOffsetCommitError instead.
        """
        self._check(group_id, may_be_empty=True)
        found: dict[TopicPartition, CommittedOffset | OncelogError | None] = {}
        if partitions is None:
            for topic, numbers in self._offsets.of_group(group_id).items():
                for number in numbers:
                    key = TopicPartition(topic, number)
                    value = self._fetched(group_id, key, require_stable=require_stable)
                    if value is not None:
                        found[key] = value
            return found
        for key in partitions:
            found[key] = self._fetched(group_id, key, require_stable=require_stable)
        return found

    def _fetched(
        self, group_id: str, key: TopicPartition, *, require_stable: bool
    ) -> CommittedOffset | OncelogError | None:
        if require_stable and self._offsets.is_pending(group_id, *key):
            return UnstableOffsetCommitError(
                f"an open transaction is about to commit the offset of {key[0]}-{key[1]} for group {group_id!r}"
            )
        found = self._offsets.get(group_id, *key)
        if found is None or not found.topic_id:
            return found
        topic_id = self._topic_id_of(key[0])
        return found if topic_id is None or topic_id == found.topic_id else None

    # ------------------------------------------------------------ groups as a whole

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupListing]:
        """All groups, or those in some states and of some types (classic, consumer)."""
        self._check_started()
        wanted_states = {name.lower() for name in states}
        wanted_types = {name.lower() for name in types}
        found = []
        for group in self._groups.values():
            listing = GroupListing(
                group.group_id, group.protocol_type or "", group.state, type_of(group)
            )
            if wanted_states and listing.state.label.lower() not in wanted_states:
                continue
            if wanted_types and listing.type not in wanted_types:
                continue
            found.append(listing)
        return found

    def describe_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | OncelogError]:
        """Groups with their members; a group that is not there is GroupIdNotFoundError."""
        answers: dict[str, GroupDescription | OncelogError] = {}
        for group_id in group_ids:
            try:
                self._check(group_id, may_be_empty=True)
                group = self._groups.need(group_id)
                with group.locked():
                    group.check_exists()
                    answers[group_id] = described(group, self._topic_name_of)
            except OncelogError as error:
                answers[group_id] = error
        return answers

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, OncelogError | None]:
        """Removes groups without members, and all that they have committed."""
        answers: dict[str, OncelogError | None] = {}
        for group_id in group_ids:
            try:
                self._check(group_id, may_be_empty=True)
                check_reserved(group_id)
                group = self._groups.need(group_id)
                with group.locked():
                    group.check_delete()
                    self._groups.delete(group)
                answers[group_id] = None
            except OncelogError as error:
                answers[group_id] = error
        return answers

    def offset_delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OncelogError | None]:
        """Forgets committed offsets, of topics that no member reads; for each None, or why not."""
        self._check(group_id, may_be_empty=True)
        check_reserved(group_id)
        group = self._groups.need(group_id)
        answers: dict[TopicPartition, OncelogError | None] = {}
        with group.locked():
            group.check_delete_offsets()
            doomed = []
            for key in partitions:
                answers[key] = None
                if group.is_subscribed_to(key[0]):
                    answers[key] = GroupSubscribedToTopicError(
                        f"members of group {group_id!r} read topic {key[0]!r}"
                    )
                elif self._offsets.get(group_id, *key) or self._offsets.is_pending(group_id, *key):
                    doomed.append(key)
            if doomed:
                self._offsets.write(group_id, offset_tombstones(group_id, doomed))
        return answers

    # ------------------------------------------------------------ time

    def tick(self) -> int:
        """Ends sessions and rebalances whose time is up; returns the milliseconds until the next is."""
        if not self._is_loaded:
            return IDLE_MS
        next_ms = self._now_ms() + IDLE_MS
        for group in self._groups.watched():
            with group.locked():
                self._expire(group)
                deadline_ms = group.next_deadline_ms
                if deadline_ms is None:
                    self._groups.unwatch(group.group_id)
                else:
                    next_ms = min(next_ms, deadline_ms)
        return max(next_ms - self._now_ms(), 0)

    def expire_offsets(self) -> int:
        """Forgets offsets whose retention has passed, and groups that are left with nothing; returns how many
        offsets."""
        return self._groups.expire_offsets() if self._is_loaded else 0

    def on_topic_deleted(self, topic: str) -> int:
        """A topic is gone, and what groups have committed for it goes, too; returns how many offsets. Not to be
        called inside the broker's lock."""
        return self._groups.on_topic_deleted(topic) if self._is_loaded else 0

    def _expire(self, group: Group) -> None:
        now_ms = self._now_ms()
        deadline_ms = group.next_deadline_ms
        if deadline_ms is None or deadline_ms > now_ms:
            return
        if isinstance(group, GroupMetadata):
            self._membership.expire(group)
            return
        try:
            self._offsets.write(group.group_id, group.member_tombstones())
        except OncelogError as error:
            logger.warning("cannot write that group %r is empty: %s", group.group_id, error)
            group.deadline_ms = now_ms + RETRY_MS
            return
        group.forget_members()
