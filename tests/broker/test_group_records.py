"""Records of groups are Kafka's bytes: what a real broker wrote is read and written again without a difference."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.offset_records import offset_records
from oncelog.base.errors import CorruptRecordError, InvalidGroupIdError, UnsupportedVersionError
from oncelog.broker import group_records
from oncelog.broker.group_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    decode_topics,
    encode_assignment,
    encode_subscription,
)
from oncelog.broker.group_records import (
    NO_TOPIC_ID,
    ConsumerGroupValue,
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    RecordType,
    check_group_id,
    decode_consumer_group,
    decode_consumer_member,
    decode_current_assignment,
    decode_group_value,
    decode_key,
    decode_offset_value,
    decode_target_epoch,
    encode_consumer_group,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from oncelog.segment.batch import records
from oncelog.segment.names import TopicPartition
from tests.golden_cases import GOLDEN, expected

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
LOGS = sorted((GOLDEN / "txn-offsets" / "data").glob("__consumer_offsets-*/*.log"))


def golden() -> list[tuple[bytes, bytes | None, dict[str, Any]]]:
    """Key, value and Kafka's own reading of every record of the fixture."""
    found = []
    for path in LOGS:
        decoded = expected("txn-offsets")["partitions"][path.parent.name]["decoded"]
        told = {row["offset"]: row for row in decoded}
        for record in records(path.read_bytes()):
            assert record.key is not None
            found.append((record.key, record.value, told[record.offset]))
    return found


def test_the_fixture_has_every_kind_of_record() -> None:
    kinds = {int.from_bytes(key[:2]) for key, _, _ in golden()}
    assert kinds == {1, 2, 3, 5, 6, 7, 8}


def test_what_kafka_wrote_is_read_as_kafka_reads_it() -> None:
    for key, value, told in golden():
        found = decode_key(key)
        data = told["key"]["data"]
        if isinstance(found, OffsetKey):
            assert found == (data["group"], data["topic"], data["partition"])
            if value is not None:
                says = told["value"]["data"]
                read = decode_offset_value(value)
                assert read[:4] == (
                    *(says["offset"], says["leaderEpoch"]),
                    *(says["metadata"], says["commitTimestamp"]),
                )
                assert (read.topic_id != NO_TOPIC_ID) == ("topicId" in says)
            continue
        assert isinstance(found, GroupKey)
        assert found.kind == int(told["key"]["type"])
        assert found.group == data.get("group", data.get("groupId"))
        assert found.member == data.get("memberId", "")
        assert value is not None
        _check_group_value(found.kind, value, told["value"]["data"])


def _check_group_value(kind: RecordType, value: bytes, says: dict[str, Any]) -> None:
    if kind is RecordType.GROUP:
        read = decode_group_value(value)
        assert read[:5] == (
            *(says["protocolType"], says["generation"], says["protocol"]),
            *(says["leader"], says["currentStateTimestamp"]),
        )
        assert [member.member_id for member in read.members] == [
            member["memberId"] for member in says["members"]
        ]
        for member, told in zip(read.members, says["members"], strict=True):
            assert decode_topics(member.subscription) == tuple(told["subscription"]["topics"])
            assert decode_assignment(member.assignment).partitions == tuple(
                TopicPartition(row["topic"], number)
                for row in told["assignment"]["assignedPartitions"]
                for number in row["partitions"]
            )
    elif kind is RecordType.CONSUMER_GROUP:
        assert decode_consumer_group(value) == (says["epoch"], says["metadataHash"])
    elif kind is RecordType.TARGET_ASSIGNMENT:
        assert decode_target_epoch(value) == says["assignmentEpoch"]
    elif kind is RecordType.CONSUMER_GROUP_MEMBER:
        member_value = decode_consumer_member(value)
        assert member_value.topics == tuple(says["subscribedTopicNames"])
        assert member_value.client_id == says["clientId"]
        assert member_value.rebalance_timeout_ms == says["rebalanceTimeoutMs"]
    elif kind is RecordType.CURRENT_ASSIGNMENT_MEMBER:
        current = decode_current_assignment(value)
        assert current[:3] == (says["memberEpoch"], says["previousMemberEpoch"], says["state"])
        assert [numbers for _, numbers in current.assigned] == [
            tuple(row["partitions"]) for row in says["assignedPartitions"]
        ]


def test_what_kafka_wrote_is_written_again_byte_for_byte() -> None:
    written = 0
    for key, value, _ in golden():
        found = decode_key(key)
        if isinstance(found, OffsetKey):
            assert encode_offset_key(*found) == key
            if value is not None:
                assert encode_offset_value(decode_offset_value(value)) == value
                written += 1
            continue
        assert found is not None
        assert encode_group_key(*found) == key
        if found.kind is RecordType.GROUP and value is not None:
            assert encode_group_value(decode_group_value(value)) == value
            for member in decode_group_value(value).members:
                assert encode_subscription(decode_subscription(member.subscription)) == (
                    member.subscription
                )
            written += 1
        if found.kind is RecordType.CONSUMER_GROUP and value is not None:
            assert encode_consumer_group(decode_consumer_group(value)) == value
            written += 1
    assert written >= 20


OFFSET_VALUES = st.builds(
    OffsetValue,
    LONG,
    INT,
    NAME,
    LONG,
    st.just(-1),
    st.one_of(st.just(NO_TOPIC_ID), st.binary(min_size=16, max_size=16)),
)


@given(OFFSET_VALUES, st.integers(0, 4))
def test_an_offset_survives_each_version_but_for_what_it_has_no_room_for(
    value: OffsetValue, version: int
) -> None:
    back = decode_offset_value(encode_offset_value(value, version))
    kept = value._replace(
        leader_epoch=value.leader_epoch if version >= 3 else -1,
        topic_id=value.topic_id if version >= 4 else NO_TOPIC_ID,
    )
    assert back == kept


@given(
    NAME,
    NAME,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.one_of(st.text(st.characters(codec="utf-8"), max_size=300), st.just("m" * 20_000)),
    LONG,
    st.one_of(st.just(-1), st.integers(0, 2**62)),
    st.one_of(st.none(), st.binary(min_size=16, max_size=16)),
)
def test_a_commit_writes_what_the_codec_would(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, commit_ms: int,
    expire_ms: int, topic_id: bytes | None,
) -> None:  # fmt: skip
    """Goal: the quick writer of commits and the readable one agree to the byte, with and without expiry and topic id."""
    offsets = {TopicPartition(topic, partition): (offset, epoch, metadata)}
    found = offset_records(group, offsets, commit_ms, expire_ms, 20_000, lambda _: topic_id)
    value = OffsetValue(offset, epoch, metadata, commit_ms, expire_ms, topic_id or NO_TOPIC_ID)
    key = encode_offset_key(group, topic, partition)
    if topic_id == NO_TOPIC_ID:  # no broker gives such an id, and a reader takes it for none
        return
    assert found == ([key], [encode_offset_value(value)], [])


def test_each_topic_of_a_commit_has_its_own_id() -> None:
    ids = {"a": b"a" * 16, "b": b"b" * 16, "c": None}
    offsets = {TopicPartition(name, n): (n, -1, "") for n in range(3) for name in "abc"}
    _, values, refused = offset_records("g", offsets, 5, -1, 9, ids.get)
    read = [decode_offset_value(value).topic_id for value in values if value is not None]
    assert read == [ids[key.topic] or NO_TOPIC_ID for key in offsets]
    assert refused == []


def test_an_offset_with_an_expiry_is_written_in_the_version_that_has_one() -> None:
    value = OffsetValue(7, -1, "m", 100, 200)
    data = encode_offset_value(value)
    assert data[:2] == b"\x00\x01"
    assert decode_offset_value(data) == value


MEMBERS = st.builds(
    MemberValue,
    NAME,
    st.none() | NAME,
    NAME,
    NAME,
    INT,
    INT,
    st.binary(max_size=200),
    st.binary(max_size=200),
)
GROUPS = st.builds(
    GroupValue,
    NAME,
    INT,
    st.none() | NAME,
    st.none() | NAME,
    LONG,
    st.lists(MEMBERS, max_size=4).map(tuple),
)


@given(GROUPS, st.integers(0, 4))
def test_a_group_survives_each_version_but_for_what_it_has_no_room_for(
    value: GroupValue, version: int
) -> None:
    back = decode_group_value(encode_group_value(value, version))
    kept = value._replace(
        state_ms=value.state_ms if version >= 2 else -1,
        members=tuple(
            member._replace(
                instance_id=member.instance_id if version >= 3 else None,
                rebalance_timeout_ms=member.rebalance_timeout_ms if version >= 1 else -1,
            )
            for member in value.members
        ),
    )
    assert back == kept


@given(NAME, NAME, INT)
def test_keys_survive(group: str, topic: str, partition: int) -> None:
    assert decode_key(encode_offset_key(group, topic, partition)) == (group, topic, partition)
    for kind in RecordType:
        if kind > RecordType.OFFSET:
            found = decode_key(encode_group_key(kind, group, topic))
            assert isinstance(found, GroupKey)
            assert (found.kind, found.group) == (kind, group)
            assert found.member in ("", topic)


@given(INT, LONG)
def test_the_epoch_of_a_consumer_group_survives(epoch: int, metadata_hash: int) -> None:
    value = ConsumerGroupValue(epoch, metadata_hash)
    assert decode_consumer_group(encode_consumer_group(value)) == value


PARTITIONS = st.lists(st.builds(TopicPartition, NAME, INT), max_size=8).map(
    lambda keys: tuple(sorted(set(keys)))
)


@given(
    st.lists(NAME, max_size=4).map(tuple),
    PARTITIONS,
    INT,
    st.none() | st.binary(max_size=20),
    st.none() | NAME,
    st.integers(0, 3),
)
def test_a_subscription_survives_each_version(
    topics: tuple[str, ...],
    owned: tuple[TopicPartition, ...],
    generation: int,
    user_data: bytes | None,
    rack: str | None,
    version: int,
) -> None:
    value = Subscription(topics, owned, generation, user_data, rack, version)
    back = decode_subscription(encode_subscription(value))
    assert back == value._replace(
        owned=owned if version >= 1 else (),
        generation=generation if version >= 2 else -1,
        rack=rack if version >= 3 else None,
    )
    assert decode_topics(encode_subscription(value)) == topics
    assignment = Assignment(owned, user_data)
    assert decode_assignment(encode_assignment(assignment, version)) == assignment


def test_a_newer_subscription_is_read_as_far_as_it_is_known() -> None:
    data = encode_subscription(Subscription(("a",), (TopicPartition("a", 1),), 5))
    newer = struct.pack(">h", 9) + data[2:] + b"what a newer client adds"
    assert decode_subscription(newer).topics == ("a",)
    assert decode_subscription(newer).generation == 5


def test_no_bytes_are_no_assignment() -> None:
    assert decode_assignment(b"").partitions == ()


@pytest.mark.parametrize("kind", [9, 15, 17, 21, 1000, -1])
def test_a_key_of_an_unknown_type_is_passed_over(kind: int) -> None:
    assert decode_key(struct.pack(">h", kind) + b"whatever") is None


DECODERS: list[tuple[Callable[[bytes], object], str, int]] = [
    (decode_offset_value, "a committed offset", 5),
    (decode_group_value, "a group", 5),
    (decode_consumer_group, "the epoch of a consumer group", 1),
    (decode_target_epoch, "the assignment of a consumer group", 1),
    (decode_consumer_member, "a member of a consumer group", 1),
    (decode_current_assignment, "the partitions of a consumer group's member", 1),
]


@pytest.mark.parametrize(("decode", "name", "version"), DECODERS, ids=lambda part: str(part)[:30])
def test_a_newer_version_is_named(
    decode: Callable[[bytes], object], name: str, version: int
) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"{name} has version {version}"):
        decode(struct.pack(">h", version) + bytes(40))
    with pytest.raises(CorruptRecordError, match="no version -3"):
        decode(struct.pack(">h", -3) + bytes(40))


@given(st.binary(max_size=80), st.sampled_from([decode for decode, _, _ in DECODERS]))
def test_no_bytes_do_more_harm_than_an_error(
    data: bytes, decode: Callable[[bytes], object]
) -> None:
    for hostile in (data, struct.pack(">h", 0) + data, struct.pack(">h", 4) + data):
        try:
            decode(hostile)
            decode_key(hostile)
        except (CorruptRecordError, UnsupportedVersionError):
            pass


@given(GROUPS, st.integers(0, 4), st.data())
def test_every_cut_and_every_rest_is_noticed(
    value: GroupValue, version: int, draw: st.DataObject
) -> None:
    data = encode_group_value(value, version)
    cut = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(CorruptRecordError):
        decode_group_value(data[:cut])
    with pytest.raises(CorruptRecordError):
        decode_group_value(data + b"\x00")


@pytest.mark.parametrize("group_id", ["", "x" * 40_000, "half \ud800"])
def test_a_group_id_that_no_record_can_hold_is_refused(group_id: str) -> None:
    with pytest.raises(InvalidGroupIdError):
        check_group_id(group_id)


@pytest.mark.parametrize("group_id", ["../../etc", "a/b", "\x00", "naïve ☃", "x" * 32_767, " "])
def test_any_other_text_is_a_group_id(group_id: str) -> None:
    check_group_id(group_id)
    assert decode_key(encode_group_key(RecordType.GROUP, group_id)) == (2, group_id, "")


@pytest.mark.parametrize("version", [-1, 5])
def test_versions_that_do_not_exist_are_not_written(version: int) -> None:
    with pytest.raises(UnsupportedVersionError):
        encode_offset_value(OffsetValue(1), version)
    with pytest.raises(UnsupportedVersionError):
        group_records.encode_group_value(GroupValue("", 0, None, None, -1, ()), version)
    with pytest.raises(UnsupportedVersionError):
        encode_subscription(Subscription((), version=version))
