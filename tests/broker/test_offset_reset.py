"""Offsets of inactive groups are reset as Kafka's tool does it: a plan first, clamped, exported and read in CSV."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import (
    GroupNotEmptyError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaStorageError,
    UnknownTopicOrPartitionError,
)
from oncelog.broker.group_answers import GroupOptions, OffsetCommit
from oncelog.broker.group_coordinator import GroupCoordinator
from oncelog.broker.offset_reset import (
    TO_CURRENT,
    TO_EARLIEST,
    TO_LATEST,
    ResetPlan,
    Target,
    by_duration,
    execute_reset,
    export_plan,
    from_file,
    parse_scope,
    plan_reset,
    shift_by,
    to_datetime,
    to_offset,
)
from oncelog.broker.state_log import StateLog
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from .brokers import NOW, ManualClock, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from oncelog.broker.answers import ListedOffset
    from oncelog.broker.broker import Broker

OFFSETS = "__consumer_offsets"
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Desk:
    """A broker with topics a (a-0: offsets 10 to 50, one record a second; a-1: 0 to 5) and b (empty), and its groups."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        self.broker = broker
        self.clock = clock
        state = StateLog(
            OFFSETS,
            50,
            lambda number: broker.partition(broker._internal(OFFSETS, number)),
            list,
            0,
            clock,
        )
        self.groups = GroupCoordinator(state, broker.transactions, GroupOptions(), clock)
        self.groups.load()
        for key, count in ((A0, 50), (A1, 5)):
            for number in range(count):
                batch = encode([b"%d" % number], timestamp_ms=NOW - 100_000 + 1000 * number)
                broker.produce(key, memoryview(batch))
        broker.delete_records(A0, 10)

    def commit(self, group_id: str, **offsets: int) -> None:
        keys = {name: TopicPartition(name[0], int(name[1:])) for name in offsets}
        self.groups.offset_commit(
            group_id, {keys[name]: OffsetCommit(offset) for name, offset in offsets.items()}
        )

    def plan(
        self, target: Target, *scope: str, group_ids: Sequence[str] = ("g",)
    ) -> dict[str, ResetPlan]:
        return plan_reset(
            self.groups,
            self.broker,
            group_ids,
            target,
            scope=parse_scope(scope) if scope else None,
            now_ms=self.clock,
        )

    def offsets(self, target: Target, *scope: str) -> dict[str, int]:
        plan = self.plan(target, *scope)["g"]
        assert plan.error is None
        assert plan.errors == {}
        return {f"{key.topic}{key.partition}": offset for key, offset in plan.offsets.items()}

    def committed(self, group_id: str = "g") -> dict[str, int]:
        found = self.groups.offset_fetch(group_id)
        return {
            f"{key.topic}{key.partition}": value.offset  # type: ignore[union-attr]
            for key, value in found.items()
        }


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    clock = ManualClock()
    with opened(tmp_path, topics={"a": 2, "b": 1}, clock=clock) as broker:
        yield Desk(broker, clock)


# ---------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (TO_EARLIEST, {"a0": 10, "a1": 0}),
        (TO_LATEST, {"a0": 50, "a1": 5}),
        (TO_CURRENT, {"a0": 30, "a1": 2}),
        (to_offset(20), {"a0": 20, "a1": 5}),
        (to_offset(0), {"a0": 10, "a1": 0}),
        (to_offset(2**62), {"a0": 50, "a1": 5}),
        (shift_by(1), {"a0": 31, "a1": 3}),
        (shift_by(-1), {"a0": 29, "a1": 1}),
        (shift_by(100), {"a0": 50, "a1": 5}),
        (shift_by(-100), {"a0": 10, "a1": 0}),
        (by_duration("PT70S"), {"a0": 30, "a1": 5}),
        (by_duration("PT1M39.5S"), {"a0": 10, "a1": 1}),
        (by_duration("P365D"), {"a0": 10, "a1": 0}),
        (by_duration("PT0S"), {"a0": 50, "a1": 5}),
        (to_datetime("2023-11-14T22:12:10.000Z"), {"a0": 30, "a1": 5}),
        (to_datetime("2023-11-14T22:12:10.000"), {"a0": 30, "a1": 5}),
        (to_datetime("2023-11-14T23:12:10.000+01:00"), {"a0": 30, "a1": 5}),
        (to_datetime("2023-11-14T17:12:10.000-05"), {"a0": 30, "a1": 5}),
        (to_datetime("2038-01-01T00:00:00.000"), {"a0": 50, "a1": 5}),
        (to_datetime("1969-01-01T00:00:00"), {"a0": 10, "a1": 0}),
    ],
)
def test_each_target_clamped_to_what_the_log_has(
    desk: Desk, target: Target, expected: dict[str, int]
) -> None:
    desk.commit("g", a0=30, a1=2)
    assert desk.offsets(target) == expected


def test_what_is_current_stays_and_is_the_end_where_nothing_is_committed(desk: Desk) -> None:
    desk.commit("g", a0=3)
    assert desk.offsets(TO_CURRENT, "a", "b") == {"a0": 3, "a1": 5, "b0": 0}


def test_nothing_can_be_shifted_that_is_not_committed(desk: Desk) -> None:
    desk.commit("g", a0=30)
    plan = desk.plan(shift_by(1), "a")["g"]
    assert isinstance(plan.errors[A1], InvalidRequestError)
    with pytest.raises(InvalidRequestError, match="a-1"):
        execute_reset(desk.groups, {"g": plan})
    assert desk.committed() == {"a0": 30}


# ---------------------------------------------------------------- scopes


def test_scopes(desk: Desk) -> None:
    desk.commit("g", a0=30, b0=0)
    assert desk.offsets(TO_LATEST) == {"a0": 50, "b0": 0}
    assert desk.offsets(TO_LATEST, "a") == {"a0": 50, "a1": 5}
    assert desk.offsets(TO_LATEST, "a:1") == {"a1": 5}
    assert desk.offsets(TO_LATEST, "a:0,1", "b") == {"a0": 50, "a1": 5, "b0": 0}


def test_a_plan_changes_nothing_until_it_is_executed(desk: Desk) -> None:
    desk.commit("g", a0=30)
    plans = desk.plan(TO_EARLIEST)
    assert desk.committed() == {"a0": 30}
    assert execute_reset(desk.groups, plans) == {"g": {A0: 10}}
    assert desk.committed() == {"a0": 10}


def test_an_unknown_group_gets_offsets_of_named_topics_and_nothing_of_all(desk: Desk) -> None:
    assert desk.plan(TO_EARLIEST) == {"g": ResetPlan("g", {}, {})}
    execute_reset(desk.groups, desk.plan(TO_EARLIEST))
    assert desk.groups.list_groups() == []
    execute_reset(desk.groups, desk.plan(TO_EARLIEST, "a"))
    assert desk.committed() == {"a0": 10, "a1": 0}


def test_several_groups_at_once(desk: Desk) -> None:
    desk.commit("g", a0=30)
    desk.commit("h", a0=31, a1=1)
    execute_reset(desk.groups, desk.plan(shift_by(2), group_ids=["g", "h"]))
    assert (desk.committed("g"), desk.committed("h")) == ({"a0": 32}, {"a0": 33, "a1": 3})


# ---------------------------------------------------------------- refused


def test_an_active_group_is_refused_and_others_are_not_touched(desk: Desk) -> None:
    desk.commit("h", a0=31)
    joined = desk.groups.join_group("g", protocols=[("range", b"")]).result()
    plans = desk.plan(TO_EARLIEST, "a", group_ids=["h", "g"])
    assert plans["h"].offsets == {A0: 10, A1: 0}
    with pytest.raises(GroupNotEmptyError, match="only be reset if group 'g' is inactive"):
        execute_reset(desk.groups, plans)
    assert desk.committed("h") == {"a0": 31}
    desk.groups.leave_group("g", [(joined.member_id, None)])
    execute_reset(desk.groups, desk.plan(TO_EARLIEST, "a"))
    assert desk.committed() == {"a0": 10, "a1": 0}


def test_a_group_that_became_active_after_the_plan_is_refused(desk: Desk) -> None:
    desk.commit("g", a0=30)
    plans = desk.plan(TO_EARLIEST)
    desk.groups.join_group("g", protocols=[("range", b"")])
    with pytest.raises(GroupNotEmptyError):
        execute_reset(desk.groups, plans)
    assert desk.committed() == {"a0": 30}


@pytest.mark.parametrize("scope", ["a:7", "missing", "missing:0"])
def test_a_missing_partition_is_an_error_and_the_others_are_not_touched(
    desk: Desk, scope: str
) -> None:
    desk.commit("g", a0=30)
    plans = desk.plan(TO_EARLIEST, scope, "a:0")
    assert plans["g"].offsets == {A0: 10}
    assert len(plans["g"].errors) == 1
    with pytest.raises(UnknownTopicOrPartitionError):
        execute_reset(desk.groups, plans)
    assert desk.committed() == {"a0": 30}


def test_a_partition_that_cannot_be_asked_is_an_error_and_the_others_are_not_touched(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what Kafka's tool does about a partition without a leader; here, one whose disk does not answer."""
    desk.commit("g", a0=30, a1=2)
    ask = desk.broker.list_offsets

    def answer(key: TopicPartition, *rest: Any) -> ListedOffset:
        if key == A1:
            raise KafkaStorageError("a-1 cannot be read")
        return ask(key, *rest)

    monkeypatch.setattr(desk.broker, "list_offsets", answer)
    plans = desk.plan(TO_EARLIEST)
    assert plans["g"].offsets == {A0: 10}
    assert isinstance(plans["g"].errors[A1], KafkaStorageError)
    with pytest.raises(KafkaStorageError):
        execute_reset(desk.groups, plans)
    assert desk.committed() == {"a0": 30, "a1": 2}


def test_the_librarys_own_groups_and_no_groups_are_refused(desk: Desk) -> None:
    plan = desk.plan(TO_EARLIEST, "a", group_ids=["__oncelog_sink", "half \ud800"])
    assert all(isinstance(row.error, InvalidGroupIdError) for row in plan.values())
    with pytest.raises(InvalidRequestError, match="at least one group"):
        desk.plan(TO_EARLIEST, group_ids=[])


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2023-11-14", "2023-11-14 22:12:10", "2023-13-14T22:12:10.000", "2023-02-30T00:00:00.000",
     "2023-11-14T25:00:00.000", "2023-11-14T22:12:10.00", "2023-11-14T22:12:10.000+99:00", "٢٠٢٣-11-14T22:12:10"],
)  # fmt: skip
def test_a_bad_date_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        to_datetime(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "P1H", "PT1D", "P1Y", "P1M", "PT1.5H", "T1H", "PT-S"]
)
def test_a_bad_duration_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a duration like"):
        by_duration(text)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("P2D", 172_800_000),
        ("PT20.345S", 20_345),
        ("PT15M", 900_000),
        ("PT10H", 36_000_000),
        ("P2DT3H4M", 183_840_000),
        ("PT-6H3M", -21_420_000),
        ("-PT6H3M", -21_780_000),
        ("-PT-6H+3M", 21_420_000),
        ("pt1s", 1000),
        ("PT-1.5S", -1500),
    ],
)
def test_durations_are_javas(text: str, millis: int) -> None:
    """Goal: the examples of java.time.Duration.parse."""
    assert by_duration(text).value == millis


@pytest.mark.parametrize(
    "text", ["", "a/b", "a:", "a:x", "a:1,,2", "a:-1", "a:99999999999", "a:1:2", ":1"]
)
def test_a_bad_scope_is_refused(text: str) -> None:
    with pytest.raises((InvalidRequestError, InvalidTopicError)):
        parse_scope([text])


def test_a_whole_topic_covers_its_partitions() -> None:
    assert parse_scope(["a:1", "a:2,3", "b", "b:1", "c:1", "c"]) == {
        "a": (1, 2, 3),
        "b": None,
        "c": None,
    }


# ---------------------------------------------------------------- files


def test_one_group_is_exported_without_its_name_and_read_again(desk: Desk) -> None:
    desk.commit("g", a0=30, a1=2)
    text = export_plan(desk.plan(TO_CURRENT))
    assert text == "a,0,30\na,1,2\n"
    execute_reset(desk.groups, desk.plan(TO_EARLIEST))
    assert desk.committed() == {"a0": 10, "a1": 0}
    execute_reset(desk.groups, desk.plan(from_file(text, ["g"])))
    assert desk.committed() == {"a0": 30, "a1": 2}


def test_several_groups_are_exported_with_their_names_and_read_again(desk: Desk) -> None:
    names = ['odd, "name"', "h"]
    for name in names:
        desk.commit(name, a0=30)
    text = export_plan(desk.plan(TO_CURRENT, group_ids=names))
    assert text == '"odd, ""name""",a,0,30\nh,a,0,30\n'
    execute_reset(desk.groups, desk.plan(TO_LATEST, group_ids=names))
    execute_reset(desk.groups, desk.plan(from_file(text, names), group_ids=names))
    assert [desk.committed(name) for name in names] == [{"a0": 30}, {"a0": 30}]
    alone = desk.plan(from_file(text, ["h"]), group_ids=["h"])
    assert alone["h"].offsets == {A0: 30}, "a file with groups serves one of them, too"


def test_offsets_from_a_file_are_clamped_and_partitions_checked(desk: Desk) -> None:
    plan = desk.plan(from_file("a,0,5\na,1,99\nb,7,1\n", ["g"]))["g"]
    assert plan.offsets == {A0: 10, A1: 5}
    assert list(plan.errors) == [TopicPartition("b", 7)]


def test_a_file_without_a_groups_lines_is_refused(desk: Desk) -> None:
    target = from_file("h,a,0,5\n", ["g"])
    assert "no lines for group 'g'" in str(desk.plan(target)["g"].error)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,0\n", "line 1 has 2 columns"),
        ("a,0,5\na\n", "line 2 has 1 columns"),
        ("a,x,5\n", "'x' is no partition"),
        ("a,0,many\n", "'many' is no offset"),
        ("a,0,1.5\n", "'1.5' is no offset"),
        ("a,0,99999999999999999999\n", "is no offset"),
        ("a,4294967296,1\n", "is no partition"),
        ("g,a,0,5,6\n", "line 1 has 5 columns"),
        ('"a,0,5\n', "line 1 is no CSV"),
        ("a,٣,5", "is no partition"),
    ],
)
def test_a_malformed_file_is_refused_with_the_line(text: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        from_file(text, ["g"])


def test_several_groups_need_the_group_column() -> None:
    with pytest.raises(InvalidRequestError, match="group,topic,partition,offset are needed"):
        from_file("a,0,5\n", ["g", "h"])


@given(st.text(max_size=60))
def test_any_text_is_a_file_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidRequestError):
        from_file(text, ["g"])
    with contextlib.suppress(InvalidRequestError):
        by_duration(text)
    with contextlib.suppress(InvalidRequestError):
        to_datetime(text)


NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), min_size=1, max_size=9
)


@given(
    st.dictionaries(
        NAMES,
        st.dictionaries(
            st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 99)),
            st.integers(0, 2**40),
            min_size=1,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_plan_survives_its_export(plans: dict[str, dict[TopicPartition, int]]) -> None:
    text = export_plan({name: ResetPlan(name, offsets, {}) for name, offsets in plans.items()})
    assert from_file(text, list(plans)).lines == plans
