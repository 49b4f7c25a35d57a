"""Short words for tests of groups: coordinators on real partitions, members that speak in verbs, a clock moved by hand."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncelog.base.disk import Disk
from oncelog.base.errors import OncelogError
from oncelog.broker.group_answers import GroupOptions, OffsetCommit
from oncelog.broker.group_coordinator import GroupCoordinator
from oncelog.broker.group_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from oncelog.broker.producer_ids import ProducerIds
from oncelog.broker.state_log import StateLog
from oncelog.broker.txn_coordinator import CoordinatorOptions, TransactionCoordinator
from oncelog.partition.admission import Origin
from oncelog.partition.data_directory import DataDirectory
from oncelog.partition.partition import PartitionOptions
from oncelog.segment.batch import ControlType, encode_marker
from oncelog.segment.names import TopicPartition

from .brokers import ManualClock

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from oncelog.broker.group_metadata import JoinedGroup
    from oncelog.broker.pending import Pending
    from oncelog.partition.partition import Partition

OFFSETS = "__consumer_offsets"
STATE = "__transaction_state"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_blocks = itertools.count(1000, 1000)  # of producer ids, also after a restart
IN0, IN1 = TopicPartition("in", 0), TopicPartition("in", 1)


class Stage:
    """A group coordinator and a transaction coordinator over one directory, without a broker around them."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: ManualClock,
        *,
        options: GroupOptions | None = None,
        partition_count: int = 50,
        topic_ids: dict[str, bytes] | None = None,
        load: bool = True,
        max_message_bytes: int = 1 << 20,
    ) -> None:
        self.clock = clock
        self.topic_ids = {} if topic_ids is None else topic_ids
        self.max_message_bytes = max_message_bytes
        self.directory = DataDirectory(
            path, Disk(), now_ms=clock, options_of=lambda _: self.partition_options
        )
        self.state = self._state_log(OFFSETS, partition_count)
        self.transactions = TransactionCoordinator(
            self._state_log(STATE, 50), ProducerIds(self._block), self, CoordinatorOptions(), clock
        )
        self.groups = GroupCoordinator(
            self.state,
            self.transactions,
            options or GroupOptions(),
            clock,
            topic_id_of=self.topic_ids.get,
        )
        if load:
            self.groups.load()
            self.transactions.load()

    @property
    def partition_options(self) -> PartitionOptions:
        return PartitionOptions(is_compacted=True, max_message_bytes=self.max_message_bytes)

    def _block(self) -> range:
        first = next(_blocks)
        return range(first, first + 1000)

    def _state_log(self, topic: str, count: int) -> StateLog:
        return StateLog(
            topic,
            count,
            lambda number: self.partition(TopicPartition(topic, number)),
            lambda: [key.partition for key in self.directory.partitions if key.topic == topic],
            0,
            self.clock,
        )

    def partition(self, key: TopicPartition) -> Partition:
        if key in self.directory:
            return self.directory.get(key)
        return self.directory.create(key, TOPIC_ID)

    def pass_by(self, keys: Iterable[TopicPartition]) -> None:
        """No append is ever under way here."""

    def write_marker(
        self,
        key: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> None:
        marker = encode_marker(
            ControlType.COMMIT if committed else ControlType.ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self.clock(),
        )
        appended = self.partition(key).append_as_leader(
            memoryview(marker),
            leader_epoch=0,
            now_ms=self.clock(),
            origin=Origin.COORDINATOR,
            bumps_epoch=transaction_version >= 2,
        )
        if key.topic == OFFSETS:
            self.groups.on_txn_marker(
                key.partition, producer_id, committed=committed, offset=appended.base_offset
            )

    def sync_together(self, keys: Iterable[TopicPartition], ends: Mapping[Partition, int]) -> None:
        """Who needs it calls ``sync``."""

    def sync(self, keys: Iterable[TopicPartition]) -> None:
        """Nothing here outlives the test."""

    def log_of(self, group_id: str) -> Partition:
        return self.partition(self.groups.offsets_partition(group_id))

    # ------------------------------------------------------------ words

    def commit(
        self, group_id: str, offset: int, key: TopicPartition = IN0, **who: Any
    ) -> OncelogError | None:
        return self.groups.offset_commit(group_id, {key: OffsetCommit(offset)}, **who)[key]

    def committed(
        self, group_id: str, key: TopicPartition = IN0, *, require_stable: bool = False
    ) -> int | type[OncelogError] | None:
        found = self.groups.offset_fetch(group_id, [key], require_stable=require_stable)[key]
        if isinstance(found, OncelogError):
            return type(found)
        return None if found is None else found.offset

    def producer(self, transactional_id: str = "t") -> Transactional:
        return Transactional(self, transactional_id)

    def member(self, group_id: str = "g", **options: Any) -> Member:
        return Member(self, group_id, **options)

    def close(self) -> None:
        self.groups.close()
        self.directory.close()


@contextmanager
def stage(
    path: str | os.PathLike[str], clock: ManualClock | None = None, **options: Any
) -> Iterator[Stage]:
    made = Stage(path, clock or ManualClock(), **options)
    try:
        yield made
    finally:
        made.close()


class Transactional:
    """A transactional producer that does nothing but commit offsets."""

    def __init__(self, made: Stage, transactional_id: str) -> None:
        self.stage = made
        self.transactional_id = transactional_id
        self.producer_id, self.epoch, *_ = made.transactions.init_producer_id(
            transactional_id, 60_000
        )

    def commit_offset(
        self, group_id: str, offset: int, key: TopicPartition = IN0, **who: Any
    ) -> OncelogError | None:
        answers = self.stage.groups.txn_offset_commit(
            self.transactional_id,
            group_id,
            self.producer_id,
            self.epoch,
            offsets={key: OffsetCommit(offset)},
            **who,
        )
        return answers[key]

    def end(self, *, committed: bool) -> None:
        self.producer_id, self.epoch, *_ = self.stage.transactions.end_txn(
            self.transactional_id, self.producer_id, self.epoch, committed=committed
        )


class Member:
    """A member of a group, in verbs."""

    def __init__(
        self,
        made: Stage,
        group_id: str,
        *,
        topics: Sequence[str] = ("in",),
        protocols: Sequence[str] = ("range",),
        **options: Any,
    ) -> None:
        self.stage = made
        self.group_id = group_id
        self.member_id = ""
        self.generation = -1
        self.options = options
        self.pending: Pending[JoinedGroup] | None = None
        data = encode_subscription(Subscription(tuple(topics)))
        self.protocols = [(name, data) for name in protocols]

    def join(self) -> Pending[JoinedGroup]:
        self.pending = self.stage.groups.join_group(
            self.group_id, self.member_id, protocols=self.protocols, **self.options
        )
        return self.pending

    def joined(self) -> JoinedGroup:
        assert self.pending is not None
        answer = self.pending.result()
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "member_id": self.member_id,
            "generation_id": self.generation,
            "group_instance_id": self.options.get("group_instance_id"),
        }

    def sync(self, assignments: dict[str, list[TopicPartition]] | None = None) -> Any:
        made = {
            name: encode_assignment(Assignment(tuple(keys)))
            for name, keys in (assignments or {}).items()
        }
        return self.stage.groups.sync_group(
            self.group_id,
            self.member_id,
            self.generation,
            made,
            group_instance_id=self.options.get("group_instance_id"),
        )

    def assigned(self, pending: Any) -> tuple[TopicPartition, ...]:
        return decode_assignment(pending.result().assignment).partitions

    def heartbeat(self) -> None:
        self.stage.groups.heartbeat(
            self.group_id,
            self.member_id,
            self.generation,
            group_instance_id=self.options.get("group_instance_id"),
        )

    def leave(self) -> OncelogError | None:
        return self.stage.groups.leave_group(self.group_id, [(self.member_id, None)])[0]


def gather(*members: Member) -> None:
    """Brings members into one generation and syncs it, the leader giving ``in-<n>`` to the n-th."""
    for count, member in enumerate(members):
        member.join()
        for earlier in members[:count]:
            earlier.joined()
            earlier.join()
    sync(*members)


def sync(*members: Member) -> None:
    """Syncs members that have all joined the same generation."""
    leader = next(member for member in members if member.joined().is_leader)
    for member in members:
        member.joined()
    plan = {member.member_id: [TopicPartition("in", n)] for n, member in enumerate(members)}
    for member in members:
        if member is not leader:
            member.sync()
    leader.sync(plan)
