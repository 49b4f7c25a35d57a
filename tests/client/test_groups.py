"""Groups: members share partitions, groups do not share with each other, and who goes leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
import threading
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

import oncelog
from oncelog.base.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    IllegalStateError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    InvalidTopicError,
    OncelogError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    WakeupError,
)
from oncelog.broker.group_protocol import decode_subscription
from oncelog.client.group_member import ConsumerGroupMetadata
from oncelog.segment.names import TopicPartition
from oncelog.testing import ManualClock

from .group_parts import die, fill, generation, member, settle, shares

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.client.client import Log
    from oncelog.client.consumer import Consumer

SESSION_MS = 45_000
POLL_INTERVAL_MS = 300_000
VALUES = [b"%d" % number for number in range(60)]
COOPERATIVE = ["cooperative-sticky"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with oncelog.open(tmp_path, clock=clock) as log:
        log.create_topic("payments", partitions=4)
        yield log


def keys(*numbers: int, topic: str = "payments") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


# ---------------------------------------------------------------- who reads what


def test_two_groups_each_see_everything(log: Log) -> None:
    fill(log, "payments", VALUES)
    for group_id in ("audit", "mail"):
        reader = member(log, ["payments"], group_id)
        assert sorted(settle(reader)) == sorted(VALUES)  # type: ignore[type-var]


def test_two_members_of_a_group_share_the_partitions_and_each_record_goes_to_one(log: Log) -> None:
    first, second = member(log, ["payments"]), member(log, ["payments"])
    settle(first, second)
    assert sorted(shares(first, second)) == [[0, 1], [2, 3]]
    fill(log, "payments", VALUES)
    read = settle(first, second)
    assert sorted(read) == sorted(VALUES)  # type: ignore[type-var]


def test_members_beyond_the_partitions_stay_idle_and_step_in_when_one_goes(log: Log) -> None:
    members = [member(log, ["payments"]) for _ in range(6)]
    settle(*members)
    assert sorted(shares(*members)) == [[], [], [0], [1], [2], [3]]
    next(one for one in members if one.assignment()).close()
    rest = [one for one in members if not one._is_closed]
    settle(*rest)
    assert sorted(shares(*rest)) == [[], [0], [1], [2], [3]]


def test_the_partitions_of_a_leaver_go_to_the_rest_which_go_on_where_it_has_committed(
    log: Log,
) -> None:
    stays, leaves = member(log, ["payments"]), member(log, ["payments"])
    settle(stays, leaves)
    fill(log, "payments", VALUES)
    read = [record.value for record in stays.poll()] + [record.value for record in leaves.poll()]
    leaves.close()
    assert settle(stays) == []
    assert shares(stays) == [[0, 1, 2, 3]]
    assert sorted(read) == sorted(VALUES)  # type: ignore[type-var]


def test_the_partitions_of_a_dead_member_go_to_the_rest_when_its_session_is_over(
    log: Log, clock: ManualClock
) -> None:
    """Goal: nobody has to call anything for it, and what the dead did not commit is read again."""
    stays = member(log, ["payments"])
    dies = member(log, ["payments"], enable_auto_commit=False)
    settle(stays, dies)
    fill(log, "payments", VALUES)
    stays.poll()
    lost = [record.value for record in dies.poll()]
    die(dies)
    clock.advance(SESSION_MS - 1)
    assert len(stays.assignment()) == 2
    clock.advance(1)
    assert sorted(settle(stays)) == sorted(lost)  # type: ignore[type-var]
    assert shares(stays) == [[0, 1, 2, 3]]
    with pytest.raises(UnknownMemberIdError, match="has no member"):
        dies.commit()


def test_heartbeats_keep_a_member_that_is_at_work(log: Log, clock: ManualClock) -> None:
    works, other = member(log, ["payments"]), member(log, ["payments"])
    settle(works, other)
    for _ in range(9):
        clock.advance(30_000)  # 270 s, six sessions
    works.commit()
    assert settle(works, other) == []
    assert generation(works) == 2


def test_a_member_that_polls_too_late_leaves_and_comes_back_with_the_next_poll(
    log: Log, clock: ManualClock
) -> None:
    late, other = member(log, ["payments"]), member(log, ["payments"])
    lost: list[TopicPartition] = []
    late.subscribe(["payments"], on_lost=lost.extend)
    settle(late, other)
    for _ in range(11):
        other.poll()
        clock.advance(POLL_INTERVAL_MS // 10)
    settle(other)
    assert shares(other) == [[0, 1, 2, 3]]
    settle(late, other)
    assert sorted(map(len, shares(late, other))) == [2, 2]
    assert len(lost) == 2


def test_a_consumer_that_was_dropped_without_being_closed_leaves(log: Log) -> None:
    stays, dropped = member(log, ["payments"]), member(log, ["payments"])
    settle(stays, dropped)
    log._given.discard(dropped)
    del dropped
    gc.collect()
    while len(stays.assignment()) == 2:
        assert stays.poll(timeout_ms=20) == []
    settle(stays)
    assert shares(stays) == [[0, 1, 2, 3]]


def test_members_of_a_process_that_was_killed_are_not_waited_for(
    log: Log, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Goal: who lived in the process that had the directory cannot come back, so its heirs need not wait for a
    session to end; a static member can.
    Method: open a copy of the directory, as a kill would leave it."""
    fill(log, "payments", VALUES)
    settle(member(log, ["payments"]), member(log, ["payments"], group_instance_id="static"))
    left = tmp_path_factory.mktemp("left") / "data"
    shutil.copytree(tmp_path, left, ignore=shutil.ignore_patterns(".lock"))
    with oncelog.open(left, clock=ManualClock()) as reopened:
        first = member(reopened, ["payments"], group_instance_id="static")
        settle(first, member(reopened, ["payments"]))
        assert len(first.assignment()) == 2


# ---------------------------------------------------------------- static members


def test_a_static_member_restarts_without_a_rebalance(log: Log, clock: ManualClock) -> None:
    """Goal: the others keep their generation, and nobody is told anything."""
    told: list[str] = []
    other = log.consumer(group_id="g", group_instance_id="a")
    other.subscribe(
        ["payments"],
        on_assigned=lambda _: told.append("assigned"),
        on_revoked=lambda _: told.append("revoked"),
    )
    restarts = member(log, ["payments"], group_instance_id="b")
    settle(other, restarts)
    before, number = shares(restarts), generation(other)
    told.clear()
    restarts.close()
    clock.advance(SESSION_MS // 2)
    again = member(log, ["payments"], group_instance_id="b")
    settle(other, again)
    assert shares(again) == before
    assert (generation(other), told) == (number, [])


def test_a_static_member_that_does_not_come_back_loses_its_partitions_with_its_session(
    log: Log, clock: ManualClock
) -> None:
    other = member(log, ["payments"], group_instance_id="a")
    gone = member(log, ["payments"], group_instance_id="b")
    settle(other, gone)
    gone.close()
    settle(other)
    assert len(other.assignment()) == 2
    clock.advance(SESSION_MS)
    settle(other)
    assert shares(other) == [[0, 1, 2, 3]]


def test_the_older_of_two_with_one_instance_id_is_fenced(log: Log) -> None:
    old = member(log, ["payments"], group_instance_id="a")
    settle(old)
    new = member(log, ["payments"], group_instance_id="a")
    new.poll()
    for _ in range(2):  # or it would take the id back
        with pytest.raises(FencedInstanceIdError, match="instance 'a'"):
            old.poll()
    old.close()
    new.poll()
    assert len(new.assignment()) == 4


# ---------------------------------------------------------------- rebalances


def test_an_eager_rebalance_revokes_everything_and_a_cooperative_one_only_what_moves(
    log: Log,
) -> None:
    for number, (strategy, revoked) in enumerate([(["range"], 4), (COOPERATIVE, 2)]):
        taken: list[TopicPartition] = []
        group_id = f"g{number}"
        first = log.consumer(group_id=group_id, partition_assignment_strategy=strategy)
        first.subscribe(["payments"], on_revoked=taken.extend)
        settle(first)
        second = member(log, ["payments"], group_id, partition_assignment_strategy=strategy)
        settle(first, second)
        assert len(taken) == revoked
        assert sorted(map(len, shares(first, second))) == [2, 2]


def test_a_cooperative_member_reads_on_while_the_others_join(log: Log) -> None:
    """Goal: what stays is read in the middle of a rebalance that somebody holds up."""
    stays = member(log, ["payments"], partition_assignment_strategy=COOPERATIVE)
    slow = member(log, ["payments"], partition_assignment_strategy=COOPERATIVE)
    settle(stays, slow)
    joins = member(log, ["payments"], partition_assignment_strategy=COOPERATIVE)
    joins.poll()
    fill(log, "payments", VALUES)
    assert len(stays.poll()) == 30
    settle(stays, slow, joins)


def test_positions_and_pauses_of_what_stays_outlive_a_cooperative_rebalance(log: Log) -> None:
    first = member(
        log, ["payments"], partition_assignment_strategy=COOPERATIVE, enable_auto_commit=False
    )
    fill(log, "payments", VALUES)
    settle(first)
    first.pause()
    second = member(log, ["payments"], partition_assignment_strategy=COOPERATIVE)
    read = settle(first, second)
    assert first.paused() == first.assignment()
    assert len(read) == 30  # by the second, as nothing was committed; the first reads nothing twice


def test_what_is_revoked_can_still_be_committed_in_the_callback(log: Log) -> None:
    first = log.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    first.subscribe(["payments"], on_revoked=lambda _: first.commit())
    fill(log, "payments", VALUES)
    assert len(settle(first)) == 60
    assert settle(first, member(log, ["payments"])) == []


def test_a_callback_that_fails_is_raised_and_the_rebalance_goes_on(log: Log) -> None:
    def fails(_: list[TopicPartition]) -> None:
        raise ValueError("mine")

    first = log.consumer(group_id="g")
    first.subscribe(["payments"], on_revoked=fails)
    settle(first)
    second = member(log, ["payments"])
    second.poll()
    with pytest.raises(ValueError, match="mine"):
        first.poll()
    settle(first, second)
    assert sorted(shares(first, second)) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="mine"):
        first.close()
    settle(second)
    assert shares(second) == [[0, 1, 2, 3]]


def test_a_callback_cannot_poll(log: Log) -> None:
    consumer = log.consumer(group_id="g")
    consumer.subscribe(["payments"], on_assigned=lambda _: consumer.poll())
    with pytest.raises(IllegalStateError, match="callback of a rebalance"):
        consumer.poll()


def test_a_rebalance_can_be_asked_for(log: Log) -> None:
    consumer = member(log, ["payments"])
    settle(consumer)
    consumer.enforce_rebalance("because")
    settle(consumer)
    assert generation(consumer) == 2


def test_topics_that_change_in_the_middle_of_a_rebalance_are_not_read_any_more(log: Log) -> None:
    """Goal: an answer to the question of before is not acted upon."""
    log.create_topic("orders")
    fill(log, "payments", VALUES)
    first = member(log, ["payments"])
    assert len(settle(first)) == 60
    second = member(log, ["payments"])
    second.poll()
    fill(log, "payments", VALUES)
    second.subscribe(["orders"])
    first.poll()
    assert second.poll() == []
    settle(first, second)
    assert second.assignment() == set(keys(0, topic="orders"))


def test_other_topics_take_effect_with_the_next_poll(log: Log) -> None:
    log.create_topic("orders", partitions=2)
    consumer = member(log, ["payments"])
    settle(consumer)
    consumer.subscribe(["orders"])
    settle(consumer)
    assert consumer.assignment() == set(keys(0, 1, topic="orders"))
    assert consumer.subscription() == {"orders"}
    consumer.unsubscribe()
    assert (consumer.assignment(), consumer.subscription()) == (set(), set())


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_every_assignor_gives_every_partition_to_one_member(log: Log, strategy: str) -> None:
    members = [
        member(log, ["payments"], partition_assignment_strategy=[strategy]) for _ in range(3)
    ]
    settle(*members)
    assert sorted(chain(*shares(*members))) == [0, 1, 2, 3]
    members.pop().close()
    settle(*members)
    assert [len(share) for share in shares(*members)] == [2, 2]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_rack_is_told_to_the_group_and_changes_nothing(log: Log, assignor: str) -> None:
    """Goal: client.rack stands in the subscription as Kafka's consumers write it, null where there is none; the one
    broker has no rack, so that members with racks share as those without do."""
    told, counts = {}, {}
    for group, racks in (("plain", ("", "")), ("racked", ("here", "there"))):
        members = [
            member(
                log, ["payments"], group, client_rack=rack, partition_assignment_strategy=[assignor]
            )
            for rack in racks
        ]
        settle(*members)
        counts[group] = sorted(len(one.assignment()) for one in members)
        described = log.broker.describe_groups([group])[group]
        assert not isinstance(described, OncelogError)
        told[group] = {decode_subscription(one.metadata).rack for one in described.members}
    assert told == {"plain": {None}, "racked": {"here", "there"}}
    assert counts["racked"] == counts["plain"] == [2, 2]


def test_members_without_a_common_assignor_are_refused(log: Log) -> None:
    settle(member(log, ["payments"], partition_assignment_strategy=["range"]))
    other = member(log, ["payments"], partition_assignment_strategy=["sticky"])
    with pytest.raises(InconsistentGroupProtocolError, match="the member knows"):
        other.poll()


# ---------------------------------------------------------------- topics that come and go


def test_a_pattern_takes_in_topics_that_come_later_and_never_internal_ones(
    log: Log, clock: ManualClock
) -> None:
    consumer = log.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(pattern=re.compile("p.*|__.*"))
    settle(consumer)
    assert consumer.subscription() == {"payments"}
    log.create_topic("pensions")
    log.create_topic("bonds")
    log.create_topic("xp")  # the whole name counts
    fill(log, "pensions", [b"v"])
    clock.advance(1000)
    assert settle(consumer) == [b"v"]
    assert consumer.subscription() == {"payments", "pensions"}


def test_partitions_that_are_added_are_shared_out(log: Log, clock: ManualClock) -> None:
    first, second = member(log, ["payments"]), member(log, ["payments"])
    settle(first, second)
    log.broker.create_partitions({"payments": 6})
    clock.advance(1000)
    settle(first, second)
    assert sorted(chain(*shares(first, second))) == [0, 1, 2, 3, 4, 5]


def test_a_topic_may_be_subscribed_to_before_it_is_there_and_be_deleted_again(
    log: Log, clock: ManualClock
) -> None:
    consumer = member(log, ["later", "payments"])
    settle(consumer)
    log.create_topic("later")
    fill(log, "later", [b"v"])
    clock.advance(1000)
    assert settle(consumer) == [b"v"]
    log.delete_topic("later")
    fill(log, "payments", VALUES)
    assert len(settle(consumer)) == 60
    clock.advance(1000)
    settle(consumer)
    assert consumer.assignment() == set(keys(0, 1, 2, 3))


# ---------------------------------------------------------------- subscribe and assign


def test_assign_needs_no_group_and_subscribe_does(log: Log) -> None:
    consumer = log.consumer(auto_offset_reset="earliest")
    for call in (
        lambda: consumer.subscribe(["payments"]),
        lambda: consumer.subscribe(pattern="p.*"),
        consumer.commit,
        lambda: consumer.committed(keys(0)),
        consumer.group_metadata,
        consumer.enforce_rebalance,
        consumer.commit_async,
        consumer.seek_to_committed,
    ):
        with pytest.raises(InvalidGroupIdError, match="give the consumer a group_id"):
            call()
    consumer.assign(keys(0))
    fill(log, "payments", [b"v"])
    assert [record.value for record in consumer.poll()] == [b"v"]


def test_subscribe_and_assign_on_one_consumer_are_refused(log: Log) -> None:
    consumer = member(log, ["payments"])
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        consumer.assign(keys(0))
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        consumer.subscribe(pattern="p.*")
    consumer.unsubscribe()
    consumer.assign(keys(0))
    with pytest.raises(IllegalStateError, match="assigned partitions by hand"):
        consumer.subscribe(["payments"])


def test_subscribe_and_assign_mixed_in_one_group_read_apart_and_only_members_commit(
    log: Log,
) -> None:
    """Goal: a reader by hand takes nothing from the members, and cannot overwrite what they commit."""
    fill(log, "payments", VALUES)
    standalone = log.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    standalone.assign(keys(0))
    standalone.commit({("payments", 0): 3})
    assert standalone.poll()[0].offset == 3
    assert standalone.group_metadata() == ConsumerGroupMetadata("g")
    inside = member(log, ["payments"], enable_auto_commit=False)
    assert len(settle(inside)) == 57
    assert shares(inside) == [[0, 1, 2, 3]]
    with pytest.raises(UnknownMemberIdError, match="comes from none of them"):
        standalone.commit()
    inside.commit()
    inside.close()
    standalone.commit({("payments", 0): 1})
    assert standalone.committed(keys(0))[keys(0)[0]] == (1, -1, "")


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda one: one.subscribe("payments"), InvalidRequestError, "a list of topics"),
        (lambda one: one.subscribe(), InvalidRequestError, "or a pattern"),
        (lambda one: one.subscribe(["a"], pattern="b"), InvalidRequestError, "or a pattern"),
        (lambda one: one.subscribe([3]), InvalidRequestError, "a topic is a str"),
        (lambda one: one.subscribe(["a b"]), InvalidTopicError, "'a b'"),
        (lambda one: one.subscribe(pattern="("), InvalidRegularExpressionError, "position 0"),
        (lambda one: one.subscribe(pattern=3), InvalidRequestError, "a pattern is"),
        (lambda one: one.commit({("payments", 0): -1}), InvalidRequestError, "from 0 on"),
        (lambda one: one.commit({"payments": 1}), InvalidRequestError, "a partition is"),
    ],
)
def test_bad_arguments_are_named(log: Log, call: object, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        call(log.consumer(group_id="g"))  # type: ignore[operator]


def test_options_that_do_not_fit_are_named(log: Log) -> None:
    with pytest.raises(InvalidConfigError, match="needs a group"):
        log.consumer(enable_auto_commit=True)
    with pytest.raises(InvalidSessionTimeoutError, match="between"):
        member(log, ["payments"], session_timeout_ms=10).poll()
    with pytest.raises(InvalidGroupIdError):
        member(log, ["payments"], "").poll()


# ---------------------------------------------------------------- commits


def test_a_member_that_never_polled_cannot_commit(log: Log) -> None:
    consumer = member(log, ["payments"])
    with pytest.raises(UnknownMemberIdError, match="no member of group"):
        consumer.commit({("payments", 0): 1})


def test_a_commit_in_the_middle_of_a_rebalance_says_so(log: Log) -> None:
    first = member(log, ["payments"], enable_auto_commit=False)
    settle(first)
    second = member(log, ["payments"])
    second.poll()
    first.commit({("payments", 0): 1})  # before it has joined again, it is still its own
    first.poll()
    second.poll()
    first.enforce_rebalance()
    first.poll()
    with pytest.raises(RebalanceInProgressError, match="rebalanced"):
        first.commit({("payments", 0): 1})


def test_offsets_are_committed_by_themselves_every_few_seconds_and_at_close(
    log: Log, clock: ManualClock
) -> None:
    consumer = member(log, ["payments"])
    fill(log, "payments", VALUES)
    assert len(consumer.poll()) == 60
    asked = log.consumer(group_id="g")
    assert set(asked.committed(keys(0, 1)).values()) == {None}
    clock.advance(5000)
    consumer.poll()
    assert {offset.offset for offset in asked.committed(keys(0, 1)).values() if offset} == {15}
    fill(log, "payments", VALUES[:4])
    consumer.poll()
    consumer.close()
    assert {offset.offset for offset in asked.committed(keys(0, 1)).values() if offset} == {16}


def test_an_asynchronous_commit_tells_its_callback_in_the_next_call(log: Log) -> None:
    heard: list[tuple[object, object]] = []
    consumer = member(log, ["payments"], enable_auto_commit=False)
    consumer.poll()
    consumer.commit_async(lambda *told: heard.append(told), {("payments", 0): 7})
    assert heard == []
    consumer.poll()
    assert heard == [({keys(0)[0]: (7, -1, "")}, None)]
    consumer.unsubscribe()
    consumer.subscribe(["payments"])
    consumer.commit_async(lambda *told: heard.append(told))
    consumer.close()
    assert isinstance(heard[1][1], UnknownMemberIdError)


def test_asynchronous_commits_do_not_wait_for_the_device_and_are_told_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: with durability fsync, commit_async returns before the offset is durable, its callback comes after, and a
    close waits. Method: a device that answers when it is told to."""
    answers = threading.Event()
    heard: list[object] = []
    with oncelog.open(tmp_path / "durable", durability="fsync") as log:
        log.create_topic("payments")
        consumer = log.consumer(group_id="slow", enable_auto_commit=False)
        consumer.assign([("payments", 0)])
        consumer.commit({("payments", 0): 1})
        state = log.broker.groups._state
        sync = state.sync

        def slow(*what: Any) -> None:
            assert answers.wait(30)
            sync(*what)

        monkeypatch.setattr(state, "sync", slow)
        for offset in (2, 3):
            consumer.commit_async(
                lambda told, error: heard.append((told[keys(0)[0]].offset, error)),
                {("payments", 0): offset},
            )
        consumer.poll()
        assert heard == []
        answers.set()
        consumer.commit({("payments", 0): 4})
        assert heard == [(2, None), (3, None)]
        consumer.commit_async(lambda told, _: heard.append(len(told)), {("payments", 0): 5})
        consumer.close()
        assert heard[2:] == [1]


def test_metadata_is_kept_with_a_committed_offset(log: Log) -> None:
    consumer = log.consumer(group_id="g")
    consumer.commit({("payments", 1): (5, 2, "a word")})  # type: ignore[dict-item]
    assert consumer.committed(keys(1, 2)) == {keys(1)[0]: (5, 2, "a word"), keys(2)[0]: None}


def test_a_zombie_member_cannot_commit(log: Log, clock: ManualClock) -> None:
    zombie, heir = (member(log, ["payments"], enable_auto_commit=False) for _ in range(2))
    settle(zombie, heir)
    die(zombie)
    clock.advance(SESSION_MS)
    settle(heir)
    with pytest.raises((UnknownMemberIdError, IllegalGenerationError)):
        zombie.commit({("payments", 0): 9})
    assert heir.committed(keys(0)) == {keys(0)[0]: None}


# ---------------------------------------------------------------- threads


def test_a_poll_that_waits_takes_part_in_rebalances_at_once(tmp_path: Path) -> None:
    """Goal: a rebalance ends as soon as all have joined, however long polls wait, and nobody sleeps through it.
    Method: two threads whose polls wait for a minute; a third member comes and goes, in real time."""
    with oncelog.open(tmp_path) as log:
        log.create_topic("payments", partitions=4)
        met = [threading.Event(), threading.Event()]
        members = []

        def tell(number: int, _: object) -> None:
            met[number].set()

        for number in range(2):
            one = log.consumer(group_id="g", auto_offset_reset="earliest")
            one.subscribe(["payments"], on_assigned=partial(tell, number))
            members.append(one)

        def wait(one: Consumer) -> None:
            with contextlib.suppress(WakeupError):
                while True:
                    one.poll(timeout_ms=60_000)

        threads = [threading.Thread(target=wait, args=(one,)) for one in members]
        for thread, event in zip(threads, met, strict=True):
            thread.start()
            assert event.wait(5)
        for event in met:
            event.clear()
        third = member(log, ["payments"])
        for _ in range(3):
            third.poll(timeout_ms=200)
        assert len(third.assignment()) in (1, 2)
        assert all(event.wait(5) for event in met)
        third.close()
        for one in members:
            one.wakeup()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def test_closing_the_log_ends_a_poll_of_a_member(tmp_path: Path) -> None:
    log = oncelog.open(tmp_path)
    log.create_topic("payments")
    consumer = member(log, ["payments"])
    consumer.poll()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                consumer.poll(timeout_ms=500)
        except oncelog.errors.OncelogError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    log.close()
    thread.join(10)
    assert not thread.is_alive()
    assert raised
    consumer.close()
    consumer.close()
