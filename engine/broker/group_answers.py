"""What the group coordinator is told and answers: its options, and groups as tools see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .._native.offset_records import offset_records
from ..base.errors import InvalidRequestError, OffsetMetadataTooLargeError
from ..segment.names import PARTITION_MAX, TopicPartition
from .consumer_group import ConsumerGroup, ConsumerMember
from .group_metadata import GroupMetadata, GroupState
from .group_protocol import Assignment, Subscription, encode_assignment, encode_subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ..base.errors import OncelogError

FIRST_DELAY: Final = "group.initial.rebalance.delay.ms"
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"

Group = GroupMetadata | ConsumerGroup


class GroupOptions(NamedTuple):
    """The broker's options that are about groups; names are Kafka's.

    The delay before a first rebalance gathers the members of a cluster that starts. An embedded broker's members start
    one by one in one process, and a delay would only make each first subscribe wait: it is 0 unless it is given.
    """

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    size_max: int = INT_MAX
    first_delay_ms: int = 0
    metadata_bytes_max: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    consumer_session_timeout_ms: int = 45_000

    @classmethod
    def of(cls, config: Mapping[str, Any], given: Collection[str] = ()) -> GroupOptions:
        """From all options of a broker, and the names of those that somebody has set."""
        names = {name.replace("_", ".") for name in given}
        return cls(
            config["group.min.session.timeout.ms"],
            config["group.max.session.timeout.ms"],
            config["group.max.size"],
            config[FIRST_DELAY] if FIRST_DELAY in names else 0,
            config["offset.metadata.max.bytes"],
            config["offsets.retention.minutes"] * 60_000,
        )


class OffsetCommit(NamedTuple):
    """An offset to be committed: the next record that the group is to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def _commit_problem(
    key: TopicPartition, commit: OffsetCommit, metadata_bytes_max: int
) -> OncelogError:
    """Why an offset cannot be committed."""
    topic, partition = key
    if len(commit.metadata) > metadata_bytes_max:
        return OffsetMetadataTooLargeError(
            f"{topic}-{partition}: {len(commit.metadata)} characters of metadata, more than "
            f"offset.metadata.max.bytes = {metadata_bytes_max}"
        )
    if not (0 <= commit.offset <= LONG_MAX and -1 <= commit.leader_epoch <= INT_MAX):
        return InvalidRequestError(
            f"{topic}-{partition}: no offset {commit.offset} with leader epoch {commit.leader_epoch}"
        )
    if not 0 <= partition <= PARTITION_MAX:
        return InvalidRequestError(f"{topic!r} has no partition {partition}")
    return InvalidRequestError(
        f"{topic!r}-{partition} with metadata {commit.metadata[:40]!r}: no text that a record can hold, as it has half "
        "a surrogate pair or too many bytes"
    )


class MemberDescription(NamedTuple):
    """A member as tools see it; metadata and assignment are known in a stable group.

    Of a consumer they are the bytes of group_protocol.py, for a member of a KIP-848 group, too.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


class GroupDescription(NamedTuple):
    """A group as tools see it; the generation of a KIP-848 group is its epoch."""

    group_id: str
    type: str
    state: GroupState
    protocol_type: str
    protocol: str
    generation: int
    leader: str | None
    members: tuple[MemberDescription, ...]


class GroupListing(NamedTuple):
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: GroupState
    type: str


def type_of(group: Group) -> str:
    """Kafka's word for the protocol that a group uses."""
    return CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC


def described(group: Group, topic_name_of: Callable[[bytes], str | None]) -> GroupDescription:
    """A group with its members. Those of KIP-848 know topics by their ids: of a topic that is gone nothing is shown."""
    if isinstance(group, ConsumerGroup):
        rows = tuple(
            MemberDescription(
                member.member_id,
                member.value.instance_id,
                member.value.client_id,
                member.value.client_host,
                encode_subscription(Subscription(member.value.topics)),
                encode_assignment(Assignment(_partitions(member, topic_name_of))),
            )
            for member in group.members.values()
            if member.value is not None
        )
        return GroupDescription(
            group.group_id, CONSUMER, group.state, CONSUMER, "", group.epoch, None, rows
        )
    is_stable = group.state is GroupState.STABLE
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol) if is_stable else b"",
            member.assignment if is_stable else b"",
        )
        for member in group.members.values()
    )
    return GroupDescription(
        group.group_id,
        CLASSIC,
        group.state,
        group.protocol_type or "",
        (group.protocol or "") if is_stable else "",
        group.generation,
        group.leader,
        members,
    )


def _partitions(
    member: ConsumerMember, topic_name_of: Callable[[bytes], str | None]
) -> tuple[TopicPartition, ...]:
    named = ((topic_name_of(topic_id), numbers) for topic_id, numbers in member.assigned)
    return tuple(
        sorted(
            TopicPartition(name, number) for name, numbers in named if name for number in numbers
        )
    )


# Of a commit: for each partition None, or why it is refused; the keys and the values of the records.
CommitRecords = tuple[
    "dict[TopicPartition, OncelogError | None]", list[bytes], "list[bytes | None]"
]


def commit_records(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetCommit],
    now_ms: int,
    retention_time_ms: int,
    metadata_bytes_max: int,
    topic_id_of: Callable[[str], bytes | None],
) -> CommitRecords:
    """What a commit writes, and whom it refuses."""
    expire_ms = -1 if retention_time_ms < 0 else now_ms + retention_time_ms
    keys, values, refused = offset_records(
        group_id, offsets, now_ms, expire_ms, metadata_bytes_max, topic_id_of
    )
    answers: dict[TopicPartition, OncelogError | None] = dict.fromkeys(offsets)
    for key in refused:
        answers[key] = _commit_problem(key, offsets[key], metadata_bytes_max)
    return answers, keys, values
