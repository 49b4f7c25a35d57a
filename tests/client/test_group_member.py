"""A member of a group by itself: no thread but the test's, no clock but the test's, and errors as planned."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.config import CONSUMER, read_options
from oncelog.base.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from oncelog.client.consumer import Consumer
from oncelog.client.group_member import GroupMember, MemberState
from oncelog.client.heartbeat import Heartbeats, heartbeats_of
from oncelog.segment.names import TopicPartition

from ..broker.brokers import opened
from .planned_broker import PlannedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = [TopicPartition("orders", number) for number in range(4)]


class Stage:
    """A broker, a clock, and members that note when they are woken or nudged."""

    def __init__(self, broker: PlannedBroker) -> None:
        self.broker = broker
        self.now_ms = 1000
        self.woken = 0
        self.nudged: list[GroupMember] = []

    def wake(self) -> None:
        self.woken += 1

    def member(self, **options: Any) -> GroupMember:
        chosen = read_options(CONSUMER, {"group_id": "g", **options})
        return GroupMember(self.broker, chosen, lambda: self.now_ms, self.wake, self.nudged.append)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with opened(tmp_path, topics={"orders": 4}) as broker:
        yield Stage(PlannedBroker(broker))


def state_of(member: GroupMember) -> MemberState:
    """As a call, since what a type checker knows of an attribute outlives the calls that change it."""
    return member.state


def joined(member: GroupMember) -> list[TopicPartition]:
    member.join(["orders"], [])
    member.advance()
    return list(member.take_assignment() or ())


def test_a_member_goes_through_its_states(stage: Stage) -> None:
    first, second = stage.member(), stage.member()
    assert state_of(first) is MemberState.UNJOINED
    assert joined(first) == ORDERS
    assert (state_of(first), first.generation) == (MemberState.STABLE, 1)
    second.join(["orders"], [])
    assert state_of(second) is MemberState.JOINING
    assert stage.nudged  # the first one, which nobody polls
    first.advance()
    assert first.needs_join
    first.join(["orders"], [])
    second.advance()
    assert state_of(second) in (MemberState.SYNCING, MemberState.STABLE)
    first.advance()
    second.advance()
    shares = [one.take_assignment() or () for one in (first, second)]
    assert sorted(shares[0] + shares[1]) == ORDERS
    assert first.generation == second.generation == 2


def test_a_rebalance_goes_on_in_the_background_while_nobody_polls(stage: Stage) -> None:
    """Goal: others need not wait for the next poll of a member that has joined already, not even of the leader."""
    leader, other = stage.member(), stage.member()
    joined(leader)
    other.join(["orders"], [])
    leader.advance()
    leader.join(["orders"], [])
    assert state_of(leader) is MemberState.JOINING
    stage.nudged.clear()
    leader.beat()  # what the thread of heartbeats does when it is nudged
    assert state_of(leader) is MemberState.STABLE
    other.beat()
    assert state_of(other) is MemberState.STABLE
    assert leader.take_assignment() is not None


def test_an_answer_that_comes_while_it_is_polled_wakes_the_poll(stage: Stage) -> None:
    first, second = stage.member(), stage.member()
    joined(first)
    stage.nudged.clear()
    first.begin_poll()
    second.join(["orders"], [])
    assert (stage.woken, stage.nudged) == (1, [])
    first.end_poll()
    assert stage.nudged == [first]  # the poll was over before it was dealt with


def test_a_coordinator_that_is_away_is_asked_again_after_a_while(stage: Stage) -> None:
    member = stage.member(retry_backoff_ms=50)
    stage.broker.fail("join_group", CoordinatorNotAvailableError("no"))
    member.join(["orders"], [])
    member.advance()
    assert (state_of(member), member.retry_in_ms()) == (MemberState.JOINING, 50)
    stage.now_ms += 50
    member.advance()
    assert state_of(member) is MemberState.STABLE
    assert member.retry_in_ms() is None


@pytest.mark.parametrize("verb", ["join_group", "sync_group"])
def test_a_member_that_is_not_known_starts_over_without_what_it_had(
    stage: Stage, verb: str
) -> None:
    member = stage.member()
    joined(member)
    before = member.known_as
    stage.broker.fail(verb, UnknownMemberIdError("who?"))
    member.join(["orders"], ORDERS)
    member.advance()
    assert (state_of(member), member.member_id) == (MemberState.UNJOINED, "")
    assert member.needs_join
    assert not member.generation_holds
    assert (
        member.known_as == before
    )  # so that its transactions are refused, and not taken for nobody's


def test_a_sync_in_a_group_that_rebalances_again_joins_at_once(stage: Stage) -> None:
    member = stage.member()
    stage.broker.fail("sync_group", RebalanceInProgressError("once more"))
    assert joined(member) == ORDERS
    assert stage.broker.count("sync_group") == 2


def test_an_old_generation_keeps_its_member_id(stage: Stage) -> None:
    member = stage.member()
    joined(member)
    name = member.member_id
    stage.broker.fail("heartbeat", IllegalGenerationError("old"))
    member.beat()
    assert (state_of(member), member.member_id) == (MemberState.UNJOINED, name)
    assert joined(member) == ORDERS


def test_what_only_the_user_can_mend_is_raised_by_the_next_poll(stage: Stage) -> None:
    member = stage.member()
    stage.broker.fail("join_group", GroupMaxSizeReachedError("full"))
    member.join(["orders"], [])
    with pytest.raises(GroupMaxSizeReachedError):
        member.advance()
    assert joined(member) == ORDERS  # and tried again by the one after it


def test_a_fenced_instance_stays_fenced(stage: Stage) -> None:
    member = stage.member(group_instance_id="i")
    joined(member)
    stage.broker.fail("heartbeat", FencedInstanceIdError("taken"))
    member.beat()
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError):
            member.advance()


def test_silence_of_the_broker_changes_nothing(stage: Stage) -> None:
    member = stage.member()
    joined(member)
    stage.broker.fail("heartbeat", CoordinatorNotAvailableError("no"))
    assert member.beat()
    assert state_of(member) is MemberState.STABLE
    assert not member.needs_join


def test_a_poll_that_goes_on_keeps_a_member_in_however_long_it_takes(stage: Stage) -> None:
    member = stage.member(max_poll_interval_ms=100)
    joined(member)
    member.begin_poll()
    stage.now_ms += 1000
    assert member.beat()
    member.end_poll()
    stage.now_ms += 100
    assert member.beat()
    stage.now_ms += 1
    assert not member.beat()
    assert stage.broker.count("leave_group") == 1


def test_leaving_is_harmless_whatever_the_broker_says(stage: Stage) -> None:
    member = stage.member()
    joined(member)
    stage.broker.fail("leave_group", UnknownMemberIdError("gone"))
    member.leave("it wants to")
    member.leave("it wants to, once more")
    assert stage.broker.count("leave_group") == 1


# ---------------------------------------------------------------- heartbeats


def test_one_thread_serves_all_members_and_ends_with_the_last(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 4}) as broker:
        consumers = [
            Consumer(broker, group_id=f"g{number}", heartbeat_interval_ms=5) for number in range(3)
        ]
        for consumer in consumers:
            consumer.subscribe(["orders"])
            consumer.poll()
        heartbeats = heartbeats_of(broker)
        thread = heartbeats._thread
        assert thread is not None
        assert [one.name for one in threading.enumerate()].count("oncelog-heartbeats") == 1
        for consumer in consumers:
            consumer.close()
        thread.join(5)
        assert not thread.is_alive()
        consumer = Consumer(broker, group_id="g")
        consumer.subscribe(["orders"])
        consumer.poll()  # and starts again
        assert heartbeats._thread is not None
        consumer.close()


def test_a_heartbeat_is_sent_in_time(stage: Stage) -> None:
    heartbeats = Heartbeats()
    member = stage.member(heartbeat_interval_ms=1)
    joined(member)
    owner = Stage(stage.broker)
    heartbeats.add(member, owner)
    for _ in range(1000):
        if stage.broker.count("heartbeat") >= 3:
            break
        threading.Event().wait(0.005)
    assert stage.broker.count("heartbeat") >= 3
    del owner
    gc.collect()
    for _ in range(1000):
        if stage.broker.count("leave_group"):
            break
        threading.Event().wait(0.005)
    assert stage.broker.count("leave_group") == 1
