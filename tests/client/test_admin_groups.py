"""The administrator of groups: members, assignments and lag are shown; offsets are moved for inactive groups alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    CorruptRecordError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from oncelog.broker.group_answers import OffsetCommit
from oncelog.client.admin import Admin, GroupLag
from oncelog.client.committing import OffsetAndMetadata
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from ..broker.brokers import NOW, ManualClock, VerbProducer, opened
from ..broker.groups import IN0, IN1, Member, gather

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.broker.broker import Broker

OTHER = TopicPartition("other", 0)
ODD_IDS = ("../../etc/passwd", "a b\n\x00c", "grüppe-\N{GRINNING FACE}", "/", "..", "x" * 5000)


class Desk:
    """A broker with topic ``in`` (in-0: offsets 10 to 50, one record a second; in-1: 0 to 5) and ``other`` (empty)."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        self.broker = broker
        self.clock = clock
        self.admin = Admin(broker)
        for key, count in ((IN0, 50), (IN1, 5)):
            for number in range(count):
                batch = encode([b"%d" % number], timestamp_ms=NOW - 100_000 + 1000 * number)
                broker.produce(key, memoryview(batch))
        broker.delete_records(IN0, 10)

    def commit(self, group_id: str, offsets: dict[TopicPartition, int]) -> None:
        self.broker.offset_commit(
            group_id, {key: OffsetCommit(offset) for key, offset in offsets.items()}
        )

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        found = self.admin.list_consumer_group_offsets(group_id)
        return {
            key: value.offset
            for key, value in found.items()
            if isinstance(value, OffsetAndMetadata)
        }

    def member(self, group_id: str = "g", **options: Any) -> Member:
        return Member(self.broker, group_id, **options)  # type: ignore[arg-type]  # it needs .groups


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    clock = ManualClock()
    with opened(tmp_path, topics={"in": 2, "other": 1}, clock=clock) as broker:
        yield Desk(broker, clock)


# ---------------------------------------------------------------- looking


def test_groups_are_listed_by_state_and_type(desk: Desk) -> None:
    desk.commit("idle", {IN0: 20})
    gather(desk.member("busy"))
    listed = desk.admin.list_consumer_groups()
    assert [(row.group_id, row.state.label, row.type) for row in listed] == [
        ("busy", "Stable", "classic"),
        ("idle", "Empty", "classic"),
    ]
    assert [row.group_id for row in desk.admin.list_consumer_groups(states=["stable"])] == ["busy"]
    assert desk.admin.list_consumer_groups(types=["consumer"]) == []
    with pytest.raises(InvalidRequestError, match="no group state 'Stabel', only Empty, Prep"):
        desk.admin.list_consumer_groups(states=["Stabel"])
    with pytest.raises(InvalidRequestError, match="no group type 'new', only classic, consumer"):
        desk.admin.list_consumer_groups(types=["new"])
    with pytest.raises(InvalidRequestError, match="give a list"):
        desk.admin.list_consumer_groups(states="Stable")


def test_a_group_is_described_with_members_assignments_and_lag(desk: Desk) -> None:
    first = desk.member(client_id="one", client_host="here")
    second = desk.member(group_instance_id="two")
    gather(first, second)
    commit = {IN0: OffsetCommit(20)}
    assert desk.broker.offset_commit("g", commit, **first.identity) == {IN0: None}
    group = desk.admin.describe_consumer_group("g")
    assert group[:7] == (
        "g",
        "classic",
        "Stable",
        "consumer",
        "range",
        first.generation,
        group.leader,
    )
    assert group.leader in (first.member_id, second.member_id)
    members = {member.member_id: member for member in group.members}
    assert members[first.member_id][1:] == (None, "one", "here", ("in",), (IN0,))
    assert members[second.member_id].group_instance_id == "two"
    assert members[second.member_id].assignment == (IN1,)
    assert group.lags == {
        IN0: GroupLag(20, 50, 30, first.member_id),
        IN1: GroupLag(None, 5, None, second.member_id),
    }
    assert group.lag == 30


def test_lag_ends_at_the_last_stable_offset(desk: Desk) -> None:
    desk.commit("g", {IN0: 45})
    producer = VerbProducer(desk.broker, "t")
    producer.send(IN0, b"a", b"b")
    assert desk.admin.describe_consumer_group("g").lags == {IN0: GroupLag(45, 50, 5, None)}
    producer.commit()
    assert desk.admin.describe_consumer_group("g").lags == {IN0: GroupLag(45, 53, 8, None)}


def test_a_group_in_the_midst_of_a_rebalance_has_members_without_assignments(desk: Desk) -> None:
    gather(first := desk.member())
    desk.member().join()
    group = desk.admin.describe_consumer_group("g")
    assert group.state == "PreparingRebalance"
    assert first.member_id in {member.member_id for member in group.members}
    assert {member.assignment for member in group.members} == {()}


def test_lag_of_a_partition_that_is_not_there_is_not_known(desk: Desk) -> None:
    gone = TopicPartition("in", 7)
    desk.commit("g", {gone: 3, IN1: 5})
    assert desk.admin.describe_consumer_group("g").lags == {
        IN1: GroupLag(5, 5, 0, None),
        gone: GroupLag(3, None, None, None),
    }


def test_members_of_another_protocol_are_shown_without_their_bytes(desk: Desk) -> None:
    worker = desk.member("connect", protocol_type="connect")
    worker.join()
    worker.joined()
    desk.broker.sync_group("connect", worker.member_id, worker.generation, {worker.member_id: b"?"})
    group = desk.admin.describe_consumer_group("connect")
    assert group.protocol_type == "connect"
    assert (group.members[0].topics, group.members[0].assignment) == ((), ())


def test_an_assignment_that_is_damaged_is_an_error_of_its_group_alone(desk: Desk) -> None:
    member = desk.member("odd")
    member.join()
    member.joined()
    desk.broker.sync_group("odd", member.member_id, member.generation, {member.member_id: b"\0"})
    gather(desk.member("good"))
    answers = desk.admin.describe_consumer_groups(["odd", "good"])
    assert isinstance(answers["odd"], CorruptRecordError)
    assert answers["good"].state == "Stable"  # type: ignore[union-attr]


def test_an_unknown_group_is_said_to_be_unknown(desk: Desk) -> None:
    admin = desk.admin
    desk.commit("known", {IN0: 20})
    answers = admin.describe_consumer_groups(["known", "unknown"])
    assert answers["known"].lag == 30  # type: ignore[union-attr]
    assert isinstance(answers["unknown"], GroupIdNotFoundError)
    for call in (
        lambda: admin.describe_consumer_group("unknown"),
        lambda: admin.delete_consumer_group("unknown"),
        lambda: admin.list_consumer_group_offsets("unknown"),
        lambda: admin.delete_consumer_group_offsets("unknown", [IN0]),
        lambda: admin.remove_members_from_consumer_group("unknown"),
        lambda: admin.remove_members_from_consumer_group("unknown", ["i"]),
    ):
        with pytest.raises(GroupIdNotFoundError, match="there is no group 'unknown'"):
            call()
    assert [row.group_id for row in admin.list_consumer_groups()] == ["known"]


# ---------------------------------------------------------------- members and removal


def test_members_are_removed_by_instance_id_or_all(desk: Desk) -> None:
    first, second = desk.member(group_instance_id="one"), desk.member()
    gather(first, second)
    answers = desk.admin.remove_members_from_consumer_group("g", ["one", "three"])
    assert answers["one"] is None
    assert isinstance(answers["three"], UnknownMemberIdError)
    assert [row.member_id for row in desk.admin.describe_consumer_group("g").members] == [
        second.member_id
    ]
    assert desk.admin.remove_members_from_consumer_group("g") == {second.member_id: None}
    assert desk.admin.describe_consumer_group("g").state == "Empty"
    assert desk.admin.remove_members_from_consumer_group("g") == {}


def test_groups_without_members_are_deleted_with_their_offsets(desk: Desk) -> None:
    desk.commit("idle", {IN0: 20})
    gather(desk.member("busy"))
    answers = desk.admin.delete_consumer_groups(["idle", "busy", "unknown"])
    assert answers["idle"] is None
    assert isinstance(answers["busy"], GroupNotEmptyError)
    assert isinstance(answers["unknown"], GroupIdNotFoundError)
    assert [row.group_id for row in desk.admin.list_consumer_groups()] == ["busy"]
    desk.commit("idle", {IN1: 2})
    assert desk.committed("idle") == {IN1: 2}
    desk.admin.delete_consumer_group("idle")
    with pytest.raises(InvalidRequestError, match=r"give a list of names: \['busy'\]"):
        desk.admin.delete_consumer_groups("busy")


def test_offsets_are_deleted_unless_a_member_reads_the_topic(desk: Desk) -> None:
    gather(member := desk.member())
    desk.broker.offset_commit(
        "g", {IN0: OffsetCommit(20), OTHER: OffsetCommit(0)}, **member.identity
    )
    answers = desk.admin.delete_consumer_group_offsets("g", [IN0, OTHER, ("other", 5)])
    assert isinstance(answers[IN0], GroupSubscribedToTopicError)
    assert [answers[OTHER], answers[TopicPartition("other", 5)]] == [None, None]
    assert desk.committed("g") == {IN0: 20}


# ---------------------------------------------------------------- offsets


def test_committed_offsets_are_listed(desk: Desk) -> None:
    desk.broker.offset_commit("g", {IN0: OffsetCommit(20, 3, "note")})
    assert desk.admin.list_consumer_group_offsets("g") == {IN0: OffsetAndMetadata(20, 3, "note")}
    assert desk.admin.list_consumer_group_offsets("g", [("in", 1), IN0]) == {
        IN1: None,
        IN0: OffsetAndMetadata(20, 3, "note"),
    }


def test_an_offset_in_an_open_transaction_is_unstable_when_stable_ones_are_wanted(
    desk: Desk,
) -> None:
    desk.commit("g", {IN0: 20})
    producer = VerbProducer(desk.broker, "t")
    desk.broker.txn_offset_commit(
        "t", "g", producer.producer_id, producer.epoch, offsets={IN0: OffsetCommit(30)}
    )
    assert desk.committed("g") == {IN0: 20}
    unstable = desk.admin.list_consumer_group_offsets("g", require_stable=True)[IN0]
    assert isinstance(unstable, UnstableOffsetCommitError)
    producer.commit()
    assert desk.committed("g") == {IN0: 30}


def test_offsets_of_an_inactive_group_are_altered_and_a_new_group_is_made(desk: Desk) -> None:
    desk.admin.alter_consumer_group_offsets(
        "new", {("in", 0): 10, IN1: OffsetAndMetadata(5, 2, "x")}
    )
    assert desk.admin.list_consumer_group_offsets("new") == {
        IN0: OffsetAndMetadata(10),
        IN1: OffsetAndMetadata(5, 2, "x"),
    }
    desk.admin.alter_consumer_group_offsets("new", {IN0: 50})
    assert desk.committed("new") == {IN0: 50, IN1: 5}
    desk.admin.alter_consumer_group_offsets("nothing", {})
    assert [row.group_id for row in desk.admin.list_consumer_groups()] == ["new"]


def test_altering_offsets_is_all_or_none(desk: Desk) -> None:
    """Goal: one bad partition, offset or remark, and nothing is committed."""
    desk.commit("g", {IN0: 20})
    alter: Any = desk.admin.alter_consumer_group_offsets
    for wrong, error, sentence in (
        ({IN1: 6}, OffsetOutOfRangeError, "in-1 has offsets 0 to 5, not 6"),
        ({IN0: 9}, OffsetOutOfRangeError, "in-0 has offsets 10 to 50, not 9"),
        ({("in", 2): 0}, UnknownTopicOrPartitionError, "partitions 0 to 1, not 2"),
        ({("no", 0): 0}, UnknownTopicOrPartitionError, "no topic 'no'"),
        ({IN1: -1}, InvalidRequestError, "an offset is at least 0, not -1"),
        ({IN1: "5"}, InvalidRequestError, "an offset is an integer, not '5'"),
        ({IN1: OffsetAndMetadata(5, -2)}, InvalidRequestError, "leader epoch is at least -1"),
        ({"in": 5}, InvalidRequestError, "a partition is"),
    ):
        with pytest.raises(error, match=sentence):
            alter("g", {TopicPartition("in", 0): 30, **wrong})  # type: ignore[misc]
    with pytest.raises(InvalidRequestError, match="give a dict of partitions"):
        alter("g", [IN0])
    assert desk.committed("g") == {IN0: 20}


def test_a_remark_that_is_too_long_alters_nothing(desk: Desk) -> None:
    desk.commit("g", {IN0: 20})
    with pytest.raises(OffsetMetadataTooLargeError):
        desk.admin.alter_consumer_group_offsets(
            "g", {IN0: 30, IN1: OffsetAndMetadata(5, -1, "x" * 5000)}
        )
    assert desk.committed("g") == {IN0: 20}


def test_offsets_of_an_active_group_are_not_altered(desk: Desk) -> None:
    gather(member := desk.member())
    desk.broker.offset_commit("g", {IN0: OffsetCommit(20)}, **member.identity)
    with pytest.raises(GroupNotEmptyError, match="group 'g' has 1 members"):
        desk.admin.alter_consumer_group_offsets("g", {IN0: 30})
    assert desk.committed("g") == {IN0: 20}
    member.leave()
    desk.admin.alter_consumer_group_offsets("g", {IN0: 30})
    assert desk.committed("g") == {IN0: 30}


def test_a_member_that_joins_meanwhile_stops_the_alteration(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the look at the group and the commit are two steps; what comes in between is seen by the second.
    Method: a member joins while the offsets are being checked."""
    desk.commit("g", {IN0: 20})
    list_offsets = desk.broker.list_offsets

    def joining(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(desk.broker, "list_offsets", list_offsets)
        gather(desk.member())
        return list_offsets(*arguments, **options)

    monkeypatch.setattr(desk.broker, "list_offsets", joining)
    with pytest.raises(GroupNotEmptyError, match="has 1 members"):
        desk.admin.alter_consumer_group_offsets("g", {IN0: 30})
    assert desk.committed("g") == {IN0: 20}


# ---------------------------------------------------------------- group ids


@pytest.mark.parametrize("group_id", ODD_IDS, ids=range(len(ODD_IDS)))
def test_group_ids_with_odd_characters_work_and_never_become_a_path(
    desk: Desk, group_id: str, tmp_path: Path
) -> None:
    before = {path for path in tmp_path.parent.rglob("*") if "__consumer_offsets" not in str(path)}
    desk.admin.alter_consumer_group_offsets(group_id, {IN0: 20})
    assert desk.committed(group_id) == {IN0: 20}
    assert desk.admin.describe_consumer_group(group_id).lag == 30
    assert desk.admin.reset_offsets(group_id, to="latest") == {IN0: 50}
    desk.admin.delete_consumer_group(group_id)
    after = {path for path in tmp_path.parent.rglob("*") if "__consumer_offsets" not in str(path)}
    assert after == before


def test_group_ids_that_cannot_be_are_refused_with_a_sentence(desk: Desk) -> None:
    any_: Any = desk.admin
    for group_id, sentence in (
        ("", "the group id is empty"),
        ("\ud800", "half a surrogate pair"),
        ("x" * 40_000, "at most 32767 bytes"),
        ("__oncelog-own", "is the library's own and stays"),
    ):
        for call in (
            lambda name: any_.alter_consumer_group_offsets(name, {IN0: 20}),
            lambda name: any_.reset_offsets(name, to="latest", topics=["in"]),
        ):
            with pytest.raises(InvalidGroupIdError, match=sentence):
                call(group_id)  # type: ignore[no-untyped-call]
    with pytest.raises(InvalidRequestError, match="a group id is a text, not 5"):
        any_.alter_consumer_group_offsets(5, {IN0: 20})
    with pytest.raises(InvalidRequestError, match="a group id is a text, not None"):
        any_.reset_offsets(None, to="latest")
    assert desk.admin.list_consumer_groups() == []


# ---------------------------------------------------------------- reset


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"to": "earliest"}, 10),
        ({"to": "latest"}, 50),
        ({"to": "current"}, 20),
        ({"to_offset": 33}, 33),
        ({"to_offset": 3}, 10),
        ({"to_offset": 99}, 50),
        ({"shift_by": 4}, 24),
        ({"shift_by": -4}, 16),
        ({"shift_by": -400}, 10),
        ({"to_datetime": "2023-11-14T22:12:20.000"}, 40),
        ({"to_datetime": "2033-11-14T22:12:00.000"}, 50),
        ({"by_duration": "PT1M15S"}, 25),
        ({"by_duration": "P7D"}, 10),
        ({"from_csv": "in,0,17\n"}, 17),
        ({"from_csv": '"g",in,0,17\n'}, 17),
    ],
    ids=str,
)
def test_offsets_are_reset_to_every_target(
    desk: Desk, target: dict[str, Any], expected: int
) -> None:
    desk.commit("g", {IN0: 20})
    plans = desk.admin.plan_reset("g", **target)
    assert plans["g"].offsets == {IN0: expected}
    assert desk.committed("g") == {IN0: 20}
    assert desk.admin.reset_offsets("g", **target) == {IN0: expected}
    assert desk.committed("g") == {IN0: expected}


def test_a_reset_is_planned_exported_read_again_and_executed(desk: Desk) -> None:
    """Goal: the way of Kafka's tool for several groups, some topics and some partitions."""
    admin = desk.admin
    desk.commit("a", {IN0: 20, IN1: 1})
    desk.commit("b", {IN1: 2})
    plans = admin.plan_reset(["a", "b"], topics=["in:1", "other"], to="latest")
    text = admin.export_reset(plans)
    assert text == "a,in,1,5\na,other,0,0\nb,in,1,5\nb,other,0,0\n"
    assert admin.export_reset(plans["b"]) == "in,1,5\nother,0,0\n"
    again = admin.plan_reset(["a", "b"], from_csv=text)
    assert {name: plan.offsets for name, plan in again.items()} == {
        name: plan.offsets for name, plan in plans.items()
    }
    assert admin.execute_reset(again) == {
        "a": {IN1: 5, OTHER: 0},
        "b": {IN1: 5, OTHER: 0},
    }
    assert desk.committed("a") == {IN0: 20, IN1: 5, OTHER: 0}
    assert desk.committed("b") == {IN1: 5, OTHER: 0}
    assert admin.execute_reset(plans["b"]) == {"b": {IN1: 5, OTHER: 0}}


def test_a_group_that_is_not_there_gets_offsets_for_named_topics_alone(desk: Desk) -> None:
    assert desk.admin.reset_offsets("new", topics=["in"], to="earliest") == {IN0: 10, IN1: 0}
    plans = desk.admin.plan_reset("newer", to="earliest")
    assert plans["newer"] == ("newer", {}, {}, None)
    assert desk.admin.execute_reset(plans) == {"newer": {}}
    assert isinstance(desk.admin.describe_consumer_groups(["newer"])["newer"], GroupIdNotFoundError)
    desk.commit("g", {IN0: 20})
    desk.admin.delete_consumer_group_offsets("g", [IN0])
    plans = desk.admin.plan_reset(["new", "g"], to="latest")
    assert plans["new"].offsets == {IN0: 50, IN1: 5}


def test_an_active_group_is_not_reset(desk: Desk) -> None:
    gather(member := desk.member())
    desk.broker.offset_commit("g", {IN0: OffsetCommit(20)}, **member.identity)
    with pytest.raises(GroupNotEmptyError, match=r"only be reset if group 'g' is inactive.*Stable"):
        desk.admin.reset_offsets("g", to="earliest")
    assert desk.committed("g") == {IN0: 20}


def test_a_group_that_became_active_after_the_plan_is_not_reset_nor_are_others(desk: Desk) -> None:
    desk.commit("a", {IN0: 20})
    desk.commit("g", {IN0: 20})
    plans = desk.admin.plan_reset(["a", "g"], to="earliest")
    gather(desk.member())
    with pytest.raises(GroupNotEmptyError):
        desk.admin.execute_reset(plans)
    assert desk.committed("a") == desk.committed("g") == {IN0: 20}


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({}, InvalidRequestError, "one of to, to_offset, .*, not 0 of them"),
        ({"to": "latest", "to_offset": 5}, InvalidRequestError, "not 2 of them"),
        ({"until": 5}, InvalidRequestError, "not until"),
        ({"to": "newest"}, InvalidRequestError, "to is one of earliest, latest, current"),
        ({"to": []}, InvalidRequestError, "to is one of earliest, latest, current"),
        ({"to_offset": "5"}, InvalidRequestError, "to_offset is an integer, not '5'"),
        ({"to_offset": 2**63}, InvalidRequestError, "to_offset is at most"),
        ({"shift_by": 1.5}, InvalidRequestError, "shift_by is an integer, not 1.5"),
        ({"to_datetime": "yesterday"}, InvalidRequestError, "not a date and time like 2026"),
        ({"to_datetime": "2023-02-30T00:00:00.000"}, InvalidRequestError, "no date and time"),
        ({"to_datetime": 5}, InvalidRequestError, "to_datetime is a text, not 5"),
        ({"by_duration": "1 day"}, InvalidRequestError, "not a duration like P7D"),
        ({"by_duration": "PT"}, InvalidRequestError, "not a duration like P7D"),
        ({"by_duration": "P" + "9" * 5000 + "D"}, InvalidRequestError, "not a duration like P7D"),
        ({"from_csv": "in,0\n"}, InvalidRequestError, "line 1 has 2 columns"),
        ({"from_csv": "in,0,5\nin,one,5\n"}, InvalidRequestError, "line 2: 'one' is no partition"),
        ({"from_csv": "in,0,5\nin,1,\n"}, InvalidRequestError, "line 2: '' is no offset"),
        ({"from_csv": 'in,0,5\n"in,1,5\n'}, InvalidRequestError, "is no CSV"),
        ({"from_csv": "other-group,in,0,5\n"}, InvalidRequestError, "no lines for group 'g'"),
        ({"from_csv": "in,0,5\nin,7,5\n"}, UnknownTopicOrPartitionError, "0 to 1, not 7"),
        ({"from_csv": "in,0,5", "topics": ["in"]}, InvalidRequestError, "leave topics out"),
        ({"to": "latest", "topics": "in"}, InvalidRequestError, r"give a list of names: \['in'\]"),
        ({"to": "latest", "topics": ["in", "no"]}, UnknownTopicOrPartitionError, "'no'"),
        ({"to": "latest", "topics": ["in:0,7"]}, UnknownTopicOrPartitionError, "0 to 1, not 7"),
        ({"to": "latest", "topics": ["in:a"]}, InvalidRequestError, "'a' is no partition"),
        ({"to": "latest", "topics": ["in:" + "9" * 5000]}, InvalidRequestError, "no partition"),
        ({"to": "latest", "topics": ["a/b"]}, InvalidTopicError, "'a/b'"),
        ({"shift_by": 1, "topics": ["in"]}, InvalidRequestError, "committed no offset of in-1"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_reset_with_a_mistake_is_refused_with_a_sentence_and_commits_nothing(
    desk: Desk, arguments: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    desk.commit("g", {IN0: 20})
    with pytest.raises(error, match=sentence):
        desk.admin.reset_offsets("g", **arguments)
    assert desk.committed("g") == {IN0: 20}


def test_what_is_no_plan_is_refused(desk: Desk) -> None:
    any_: Any = desk.admin
    for call in (any_.execute_reset, any_.export_reset):
        for given in ("g", {"g": {IN0: 5}}, [desk.admin.plan_reset("g", to="latest")]):
            with pytest.raises(InvalidRequestError, match="give what plan_reset has answered"):
                call(given)
    with pytest.raises(InvalidRequestError, match="name at least one group"):
        any_.plan_reset([], to="latest")
