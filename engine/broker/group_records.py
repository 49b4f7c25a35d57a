"""Groups and their offsets: what the group coordinator knows, as records of a compacted topic.

File    the .log files of __consumer_offsets-<n>; n is the hash of the group id (base/java_hash.py)
Writer  the group coordinator: an offset at every commit, a group at every generation; no value: it is gone
Reader  the same, at start: of the records of one key the last counts, pending transactions apart
Repair  none of its own: a record is part of a batch, whose checksum decides

A key starts with its type, an int16 that Kafka calls a version; then classic strings and integers:

====  ===================================  ==============================================================
type  of                                   key; value
====  ===================================  ==============================================================
0, 1  a committed offset                   group, topic, partition int32; see below
2     a group of the classic protocol      group; see below
3     a group of KIP-848                   group; epoch int32, tag 0: metadata hash int64
4     its partitions, before Kafka 4.1     group; not needed
5     a member                             group, member; who it is and what it subscribes to
6     the group's assignment               group; epoch int32
7     a member's part of it                group, member; topic ids and partitions
8     what a member has                    group, member; epoch int32, epoch before int32, state int8, ...
16    a subscribed pattern                 group, pattern; not needed
====  ===================================  ==============================================================

A value starts with its version. An offset's, version 4 (up to 3 classic and without tags; 1 alone has an expiry):
offset int64, leader_epoch int32 (from 3 on), metadata string, commit_ms int64, expire_ms int64 (1 alone), tag 0:
topic id uuid. A group's, version 3 (4 is its flexible twin): protocol_type string, generation int32, protocol and
leader nullable strings, state_ms int64 (from 2 on), and of each member member_id, instance_id (nullable, from 3 on),
client_id, client_host, rebalance_timeout_ms int32 (from 1 on), session_timeout_ms int32, subscription and assignment
as bytes. The values of KIP-848 have version 0 and are flexible. Big-endian; strings are UTF-8.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import InvalidGroupIdError, UnsupportedVersionError
from ..base.fields import UUID_BYTES, FieldReader, compact_string, string, tagged_fields, uvarint

if TYPE_CHECKING:
    from collections.abc import Iterable

OFFSET_VERSION: Final = 4
OFFSET_EXPIRING_VERSION: Final = 1  # the only one with room for an expiry
OFFSET_VERSION_MAX: Final = 4
GROUP_VERSION: Final = 3
GROUP_VERSION_MAX: Final = 4
GROUP_ID_BYTES_MAX: Final = 2**15 - 1
NO_TOPIC_ID: Final = bytes(UUID_BYTES)

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_OFFSET: Final = struct.Struct(">hq")
_OFFSET_EPOCH: Final = struct.Struct(">hqi")
_KEY: Final = "the key of a group record"


class RecordType(enum.IntEnum):
    """What a record is about: the first two bytes of its key."""

    OFFSET_LEGACY = 0
    OFFSET = 1
    GROUP = 2
    CONSUMER_GROUP = 3
    CONSUMER_GROUP_PARTITIONS = 4
    CONSUMER_GROUP_MEMBER = 5
    TARGET_ASSIGNMENT = 6
    TARGET_ASSIGNMENT_MEMBER = 7
    CURRENT_ASSIGNMENT_MEMBER = 8
    CONSUMER_GROUP_PATTERN = 16


_OFFSETS: Final = (RecordType.OFFSET_LEGACY, RecordType.OFFSET)
_OF_MEMBERS: Final = (
    RecordType.CONSUMER_GROUP_MEMBER,
    RecordType.TARGET_ASSIGNMENT_MEMBER,
    RecordType.CURRENT_ASSIGNMENT_MEMBER,
    RecordType.CONSUMER_GROUP_PATTERN,
)
_TYPES: Final = {int(kind): kind for kind in RecordType}


class OffsetKey(NamedTuple):
    """A committed offset is kept per group, topic and partition."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Any other record. ``member`` is a member's id, or a pattern, and empty for records of the whole group."""

    kind: RecordType
    group: str
    member: str = ""


class OffsetValue(NamedTuple):
    """A committed offset. ``expire_ms`` -1: it stays as long as the broker's retention says."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    topic_id: bytes = NO_TOPIC_ID


class MemberValue(NamedTuple):
    """A member of a classic group: ``subscription`` and ``assignment`` are its protocol's own bytes."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A generation of a classic group; without members: it is empty since ``state_ms``."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


class ConsumerGroupValue(NamedTuple):
    """The epoch of a KIP-848 group; the hash is over the topics that it knows."""

    epoch: int
    metadata_hash: int = 0


class ConsumerMemberValue(NamedTuple):
    """A member of a KIP-848 group."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None


class CurrentAssignment(NamedTuple):
    """Where a member of a KIP-848 group stands; partitions are (topic id, numbers)."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned: tuple[tuple[bytes, tuple[int, ...]], ...]
    pending_revocation: tuple[tuple[bytes, tuple[int, ...]], ...]


# ---------------------------------------------------------------- keys


def check_group_id(group_id: str, *, may_be_empty: bool = False) -> None:
    """Raises for a group id that cannot stand in a record. Any text that can is allowed: no path is made of it."""
    try:
        size = len(group_id.encode())
    except UnicodeEncodeError:
        raise InvalidGroupIdError(
            f"group id {group_id!r} has half a surrogate pair, which has no UTF-8"
        ) from None
    if size > GROUP_ID_BYTES_MAX:
        raise InvalidGroupIdError(f"a group id has at most {GROUP_ID_BYTES_MAX} bytes, not {size}")
    if not group_id and not may_be_empty:
        raise InvalidGroupIdError("the group id is empty")


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset."""
    return b"\x00\x01" + string(group) + string(topic) + _INT32.pack(partition)


def encode_group_key(kind: RecordType, group: str, member: str = "") -> bytes:
    """The key of any other record."""
    key = _INT16.pack(kind) + string(group)
    return key + string(member) if kind in _OF_MEMBERS else key


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """What a record is about; None for a type that this version does not know, which readers pass over."""
    reader = FieldReader(data, _KEY)
    (number,) = reader.unpack(_INT16, "the type")
    kind = _TYPES.get(number)
    if kind is None:
        return None
    group = reader.required_string("the group", flexible=False)
    key: OffsetKey | GroupKey
    if kind in _OFFSETS:
        topic = reader.required_string("the topic", flexible=False)
        key = OffsetKey(group, topic, *reader.unpack(_INT32, "the partition"))
    elif kind in _OF_MEMBERS:
        key = GroupKey(kind, group, reader.required_string("the member", flexible=False))
    else:
        key = GroupKey(kind, group)
    reader.finish()
    return key


def _version(reader: FieldReader, version_max: int) -> int:
    (version,) = reader.unpack(_INT16, "the version")
    if version > version_max:
        raise UnsupportedVersionError(
            f"{reader.what} has version {version}, and at most {version_max} can be read"
        )
    if version < 0:
        raise reader.damage(f"there is no version {version}")
    return version


# ---------------------------------------------------------------- offsets


def encode_offset_value(value: OffsetValue, version: int | None = None) -> bytes:
    """The bytes of a committed offset; by default in the version that Kafka 4 writes."""
    if version is None:
        version = OFFSET_VERSION if value.expire_ms == -1 else OFFSET_EXPIRING_VERSION
    if not 0 <= version <= OFFSET_VERSION_MAX:
        raise UnsupportedVersionError(f"a committed offset of version {version} cannot be written")
    if version >= 3:
        head = _OFFSET_EPOCH.pack(version, value.offset, value.leader_epoch)
    else:
        head = _OFFSET.pack(version, value.offset)
    if version < 4:
        expiry = _INT64.pack(value.expire_ms) if version == OFFSET_EXPIRING_VERSION else b""
        return head + string(value.metadata) + _INT64.pack(value.commit_ms) + expiry
    tags = [] if value.topic_id == NO_TOPIC_ID else [(0, value.topic_id)]
    return (
        head + compact_string(value.metadata) + _INT64.pack(value.commit_ms) + tagged_fields(tags)
    )


def decode_offset_value(data: bytes) -> OffsetValue:
    """A committed offset of any version."""
    reader = FieldReader(data, "a committed offset")
    version = _version(reader, OFFSET_VERSION_MAX)
    flexible = version >= 4
    (offset,) = reader.unpack(_INT64, "the offset")
    leader_epoch = reader.integer(4, "the leader epoch") if version >= 3 else -1
    metadata = reader.required_string("the metadata", flexible=flexible)
    commit_ms = reader.integer(8, "the time of the commit")
    expire_ms = reader.integer(8, "the expiry") if version == OFFSET_EXPIRING_VERSION else -1
    topic_id = reader.tagged_fields().get(0, NO_TOPIC_ID) if flexible else NO_TOPIC_ID
    if len(topic_id) != UUID_BYTES:
        raise reader.damage(f"a topic id has {len(topic_id)} bytes, not {UUID_BYTES}")
    reader.finish()
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id)


# ---------------------------------------------------------------- groups of the classic protocol


def _nullable(text: str | None, *, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    return compact_string(text) if flexible else string(text)


def _data(data: bytes, *, flexible: bool) -> bytes:
    return (uvarint(len(data) + 1) if flexible else _INT32.pack(len(data))) + data


def encode_group_value(value: GroupValue, version: int = GROUP_VERSION) -> bytes:
    """The bytes of a group; fields that a version has no room for are left out."""
    if not 0 <= version <= GROUP_VERSION_MAX:
        raise UnsupportedVersionError(f"a group of version {version} cannot be written")
    flexible = version >= 4
    count = len(value.members)
    parts = [
        _INT16.pack(version),
        _nullable(value.protocol_type, flexible=flexible),
        _INT32.pack(value.generation),
        _nullable(value.protocol, flexible=flexible),
        _nullable(value.leader, flexible=flexible),
        _INT64.pack(value.state_ms) if version >= 2 else b"",
        uvarint(count + 1) if flexible else _INT32.pack(count),
    ]
    for member in value.members:
        parts += [
            _nullable(member.member_id, flexible=flexible),
            _nullable(member.instance_id, flexible=flexible) if version >= 3 else b"",
            _nullable(member.client_id, flexible=flexible),
            _nullable(member.client_host, flexible=flexible),
            _INT32.pack(member.rebalance_timeout_ms) if version >= 1 else b"",
            _INT32.pack(member.session_timeout_ms),
            _data(member.subscription, flexible=flexible),
            _data(member.assignment, flexible=flexible),
            b"\x00" if flexible else b"",
        ]
    return b"".join(parts) + (b"\x00" if flexible else b"")


def decode_group_value(data: bytes) -> GroupValue:
    """A group of any version."""
    reader = FieldReader(data, "a group")
    version = _version(reader, GROUP_VERSION_MAX)
    flexible = version >= 4
    protocol_type = reader.required_string("the protocol type", flexible=flexible)
    generation = reader.integer(4, "the generation")
    protocol = reader.string("the protocol", flexible=flexible)
    leader = reader.string("the leader", flexible=flexible)
    state_ms = reader.integer(8, "the time of the state") if version >= 2 else -1
    count = reader.count("the members", 12, flexible=flexible)
    members = tuple(_decode_member(reader, version) for _ in range(count))
    if flexible:
        reader.tagged_fields()
    reader.finish()
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, members)


def _decode_member(reader: FieldReader, version: int) -> MemberValue:
    flexible = version >= 4
    member = MemberValue(
        reader.required_string("a member's id", flexible=flexible),
        reader.string("an instance id", flexible=flexible) if version >= 3 else None,
        reader.required_string("a client id", flexible=flexible),
        reader.required_string("a client host", flexible=flexible),
        reader.integer(4, "a rebalance timeout") if version >= 1 else -1,
        reader.integer(4, "a session timeout"),
        _decode_data(reader, "a subscription", flexible=flexible),
        _decode_data(reader, "an assignment", flexible=flexible),
    )
    if flexible:
        reader.tagged_fields()
    return member


def _decode_data(reader: FieldReader, field: str, *, flexible: bool) -> bytes:
    size = reader.count(field, 1, flexible=flexible)
    if size < 0:
        raise reader.damage(f"{field} is null")
    return reader.take(size, field)


# ---------------------------------------------------------------- groups of KIP-848


def encode_consumer_group(value: ConsumerGroupValue) -> bytes:
    """The epoch of a group."""
    tags = [] if value.metadata_hash == 0 else [(0, _INT64.pack(value.metadata_hash))]
    return _INT16.pack(0) + _INT32.pack(value.epoch) + tagged_fields(tags)


def decode_consumer_group(data: bytes) -> ConsumerGroupValue:
    """The epoch of a group."""
    reader = FieldReader(data, "the epoch of a consumer group")
    _version(reader, 0)
    epoch = reader.integer(4, "the epoch")
    tags = reader.tagged_fields()
    reader.finish()
    return ConsumerGroupValue(epoch, reader.tagged_integer(tags.get(0), 8, 0))


def decode_target_epoch(data: bytes) -> int:
    """The group epoch that the present assignment was made for."""
    reader = FieldReader(data, "the assignment of a consumer group")
    _version(reader, 0)
    epoch = reader.integer(4, "the epoch")
    reader.tagged_fields()
    reader.finish()
    return epoch


def decode_consumer_member(data: bytes) -> ConsumerMemberValue:
    """Who a member is, and what it subscribes to."""
    reader = FieldReader(data, "a member of a consumer group")
    _version(reader, 0)
    instance_id = reader.string("the instance id", flexible=True)
    rack_id = reader.string("the rack", flexible=True)
    client_id = reader.required_string("the client id", flexible=True)
    client_host = reader.required_string("the client host", flexible=True)
    count = reader.count("the topics", 1, flexible=True)
    topics = tuple(reader.required_string("a topic", flexible=True) for _ in range(count))
    pattern = reader.string("the pattern", flexible=True)
    rebalance_timeout_ms = reader.integer(4, "the rebalance timeout")
    assignor = reader.string("the assignor", flexible=True)
    reader.tagged_fields()
    reader.finish()
    return ConsumerMemberValue(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topics,
        pattern,
        rebalance_timeout_ms,
        assignor,
    )


def decode_current_assignment(data: bytes) -> CurrentAssignment:
    """What a member has, and what it still has to give up."""
    reader = FieldReader(data, "the partitions of a consumer group's member")
    _version(reader, 0)
    member_epoch = reader.integer(4, "the epoch")
    previous = reader.integer(4, "the epoch before")
    state = reader.integer(1, "the state")
    assigned = tuple(_decode_partitions(reader))
    pending = tuple(_decode_partitions(reader))
    reader.tagged_fields()
    reader.finish()
    return CurrentAssignment(member_epoch, previous, state, assigned, pending)


def _decode_partitions(reader: FieldReader) -> Iterable[tuple[bytes, tuple[int, ...]]]:
    # A topic has at least its id, the length of its partitions and its tags.
    for _ in range(reader.count("the topics", UUID_BYTES + 2, flexible=True)):
        topic_id = reader.take(UUID_BYTES, "a topic id")
        count = max(reader.count("the partitions", 4, flexible=True), 0)
        numbers = reader.unpack(struct.Struct(f">{count}i"), "the partitions")
        reader.tagged_fields()
        yield topic_id, numbers
