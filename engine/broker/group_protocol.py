"""What consumers tell each other through the coordinator: subscriptions and assignments, in Kafka's bytes.

Writer  a consumer: its subscription when it joins, everybody's assignment if it leads
Reader  consumers of the same group, Kafka's among them; the coordinator looks at the topics alone

Both start with a version int16; a reader takes a newer one for the newest that it knows, as fields are only added.
Classic strings and arrays, big-endian.

Subscription: topics [string], user_data nullable bytes; from 1 on owned [topic string, partitions [int32]]; from 2 on
generation int32; from 3 on rack nullable string. Assignment: assigned [topic string, partitions [int32]], user_data
nullable bytes; all versions alike.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import CorruptRecordError, UnsupportedVersionError
from ..base.fields import FieldReader, string
from ..segment.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class Subscription(NamedTuple):
    """What a member asks for, and what it has from which generation."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None
    rack: str | None = None
    version: int = VERSION_MAX


class Assignment(NamedTuple):
    """What a member gets."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(value: Subscription) -> bytes:
    """The bytes of a subscription, in its version."""
    version = value.version
    _check_version(version)
    parts = [_INT16.pack(version), _INT32.pack(len(value.topics))]
    parts += [string(topic) for topic in value.topics]
    parts.append(_nullable(value.user_data))
    if version >= 1:
        parts.append(_encode_partitions(value.owned))
    if version >= 2:
        parts.append(_INT32.pack(value.generation))
    if version >= 3:
        parts.append(b"\xff\xff" if value.rack is None else string(value.rack))
    return b"".join(parts)


def decode_subscription(data: bytes) -> Subscription:
    """A subscription of any version; what a newer one has added is passed over."""
    reader = FieldReader(data, "a subscription")
    version = _version(reader)
    topics = _decode_topics(reader)
    user_data = _decode_nullable(reader)
    owned = _decode_partitions(reader) if version >= 1 else ()
    generation = reader.integer(4, "the generation") if version >= 2 else -1
    rack = reader.string("the rack", flexible=False) if version >= 3 else None
    return Subscription(topics, owned, generation, user_data, rack, version)


def decode_topics(data: bytes) -> tuple[str, ...]:
    """The topics of a subscription, which stand at the same place in every version."""
    reader = FieldReader(data, "a subscription")
    _version(reader)
    return _decode_topics(reader)


def encode_assignment(value: Assignment, version: int = VERSION_MAX) -> bytes:
    """The bytes of an assignment."""
    _check_version(version)
    return _INT16.pack(version) + _encode_partitions(value.partitions) + _nullable(value.user_data)


def decode_assignment(data: bytes) -> Assignment:
    """An assignment of any version; no bytes at all are what a member gets that the leader has left out."""
    if not data:
        return Assignment(())
    reader = FieldReader(data, "an assignment")
    _version(reader)
    return Assignment(_decode_partitions(reader), _decode_nullable(reader))


def _check_version(version: int) -> None:
    if not 0 <= version <= VERSION_MAX:
        raise UnsupportedVersionError(
            f"the consumer protocol of version {version} cannot be written, at most {VERSION_MAX}"
        )


def _version(reader: FieldReader) -> int:
    (version,) = reader.unpack(_INT16, "the version")
    if version < 0:
        raise reader.damage(f"there is no version {version}")
    return min(version, VERSION_MAX)


def _nullable(data: bytes | None) -> bytes:
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data


def _decode_nullable(reader: FieldReader) -> bytes | None:
    size = reader.count("the user data", 1, flexible=False)
    return None if size < 0 else reader.take(size, "the user data")


def _decode_topics(reader: FieldReader) -> tuple[str, ...]:
    count = reader.count("the topics", 2, flexible=False)
    return tuple(reader.required_string("a topic", flexible=False) for _ in range(count))


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Topic by topic, in the order in which they come."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        parts.append(string(topic))
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)


def _decode_partitions(reader: FieldReader) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for _ in range(reader.count("the topics", 6, flexible=False)):
        topic = reader.required_string("a topic", flexible=False)
        count = max(reader.count("the partitions", 4, flexible=False), 0)
        numbers = reader.unpack(struct.Struct(f">{count}i"), "the partitions")
        found += [TopicPartition(topic, number) for number in numbers]
    return tuple(found)


# ---------------------------------------------------------------- what sticky assignors add


def encode_sticky_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """What a member of the sticky assignor had, as its user data; the cooperative one has fields for it."""
    return _encode_partitions(partitions) + _INT32.pack(generation)


def decode_sticky_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """What a member had and in which generation; nothing, -1 for bytes that are no such data, as in Kafka."""
    if not data:
        return (), -1
    reader = FieldReader(data, "the user data of a sticky assignor")
    try:
        partitions = _decode_partitions(reader)
        return partitions, reader.integer(4, "the generation") if reader.left else -1
    except CorruptRecordError:
        return (), -1
