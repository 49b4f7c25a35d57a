"""Members join, sync, stay and leave as in Kafka; time is moved by hand, and nobody waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    IllegalStateError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    KafkaStorageError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from oncelog.broker.group_answers import GroupDescription, GroupOptions
from oncelog.broker.group_metadata import GroupState
from oncelog.broker.group_offsets import OffsetsPartition
from oncelog.broker.group_records import GroupKey, decode_group_value, decode_key
from oncelog.broker.pending import Pending
from oncelog.segment.batch import records
from oncelog.segment.names import TopicPartition

from .brokers import ManualClock
from .groups import IN0, IN1, Stage, gather, stage, sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def made(tmp_path: Path, clock: ManualClock) -> Iterator[Stage]:
    with stage(tmp_path, clock) as built:
        yield built


def described(made: Stage, group_id: str = "g") -> GroupDescription:
    found = made.groups.describe_groups([group_id])[group_id]
    assert isinstance(found, GroupDescription), found
    return found


def state(made: Stage, group_id: str = "g") -> GroupState:
    return described(made, group_id).state


# ---------------------------------------------------------------- joining


def test_the_first_member_leads_a_generation_of_its_own_at_once(made: Stage) -> None:
    """Goal: embedded, nobody waits group.initial.rebalance.delay.ms for members that do not exist."""
    member = made.member(client_id="app")
    member.join()
    joined = member.joined()
    assert joined.is_leader
    assert joined.generation_id == 1
    assert joined.member_id.startswith("app-")
    assert joined.protocol_name == "range"
    assert [row.member_id for row in joined.members] == [joined.member_id]
    assert state(made) is GroupState.COMPLETING_REBALANCE
    answer = member.sync({member.member_id: [IN0, IN1]})
    assert member.assigned(answer) == (IN0, IN1)
    assert state(made) is GroupState.STABLE


def test_a_second_member_waits_until_the_first_has_joined_again(made: Stage) -> None:
    first, second = made.member(), made.member()
    gather(first)
    waiting = second.join()
    assert not waiting.done()
    assert state(made) is GroupState.PREPARING_REBALANCE
    with pytest.raises(RebalanceInProgressError):
        first.heartbeat()
    first.join()
    assert waiting.done()
    assert first.joined().generation_id == second.joined().generation_id == 2
    assert len(first.joined().members) == 2
    assert second.joined().members == (), "only the leader hears of the others"


def test_followers_get_their_assignment_when_the_leader_has_brought_it(made: Stage) -> None:
    first, second = made.member(), made.member()
    gather(first)
    second.join()
    first.join()
    first.joined()
    second.joined()
    waiting = second.sync()
    assert not waiting.done()
    with pytest.raises(IllegalStateError):
        waiting.result()
    answer = first.sync({first.member_id: [IN0], second.member_id: [IN1]})
    assert first.assigned(answer) == (IN0,)
    assert second.assigned(waiting) == (IN1,)
    assert second.assigned(second.sync()) == (IN1,), "a stable group answers at once"


def test_a_member_that_the_leader_left_out_gets_nothing(made: Stage) -> None:
    first, second = made.member(), made.member()
    gather(first)
    second.join()
    first.join()
    first.joined()
    second.joined()
    waiting = second.sync()
    first.sync({first.member_id: [IN0]})
    assert second.assigned(waiting) == ()


def test_an_empty_group_waits_for_members_where_it_is_told_to(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Goal: group.initial.rebalance.delay.ms; each newcomer prolongs it, at most to the rebalance timeout."""
    with stage(tmp_path, clock, options=GroupOptions(first_delay_ms=3000)) as made:
        first, second, third = (made.member(rebalance_timeout_ms=8000) for _ in range(3))
        first.join()
        clock.advance(2000)
        second.join()
        clock.advance(1000)
        made.groups.tick()
        assert first.pending is not None
        assert not first.pending.done(), "somebody came meanwhile"
        third.join()
        made.groups.tick()
        clock.advance(3000)
        made.groups.tick()
        assert not first.pending.done()
        clock.advance(3000)
        made.groups.tick()
        assert {member.joined().generation_id for member in (first, second, third)} == {1}


def test_a_member_without_id_is_given_one_to_join_with(made: Stage, clock: ManualClock) -> None:
    member = made.member(requires_known_member_id=True, session_timeout_ms=10_000)
    with pytest.raises(MemberIdRequiredError) as caught:
        member.join()
    assert caught.value.member_id
    member.member_id = caught.value.member_id
    member.join()
    assert member.joined().member_id == caught.value.member_id


def test_an_id_that_nobody_joins_with_expires(made: Stage, clock: ManualClock) -> None:
    member = made.member(requires_known_member_id=True, session_timeout_ms=10_000)
    with pytest.raises(MemberIdRequiredError) as caught:
        member.join()
    clock.advance(10_000)
    made.groups.tick()
    member.member_id = caught.value.member_id
    with pytest.raises(UnknownMemberIdError):
        member.join()


def test_a_rebalance_waits_for_an_id_that_was_given_out(made: Stage, clock: ManualClock) -> None:
    first = made.member()
    gather(first)
    late = made.member(requires_known_member_id=True, session_timeout_ms=10_000)
    with pytest.raises(MemberIdRequiredError):
        late.join()
    assert state(made) is GroupState.STABLE
    waiting = first.join()
    assert not waiting.done()
    clock.advance(10_000)
    made.groups.tick()
    assert waiting.done()


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, 0, -1])
def test_a_session_timeout_outside_of_the_limits_is_refused(made: Stage, timeout_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeoutError, match="6000"):
        made.member(session_timeout_ms=timeout_ms).join()
    assert made.groups.list_groups() == []


def test_joining_needs_a_group_id(made: Stage) -> None:
    with pytest.raises(InvalidGroupIdError):
        made.member("").join()


def test_an_unknown_member_cannot_join_under_an_id_of_its_own(made: Stage) -> None:
    member = made.member()
    member.member_id = "made up"
    with pytest.raises(UnknownMemberIdError):
        member.join()
    gather(made.member())
    with pytest.raises(UnknownMemberIdError):
        member.join()


def test_a_full_group_takes_nobody_in(tmp_path: Path) -> None:
    with stage(tmp_path, options=GroupOptions(size_max=2)) as made:
        first, second, third = (made.member() for _ in range(3))
        gather(first, second)
        with pytest.raises(GroupMaxSizeReachedError, match="may have 2 members"):
            third.join()
        first.heartbeat()
        first.leave()
        third.join()
        second.join()
        sync(second, third)
        assert len(described(made).members) == 2


# ---------------------------------------------------------------- protocols


def test_the_protocol_with_the_most_votes_among_those_that_all_know_wins(made: Stage) -> None:
    members = [
        made.member(protocols=("sticky", "range")),
        made.member(protocols=("range", "sticky")),
        made.member(protocols=("roundrobin", "range", "sticky")),
    ]
    gather(*members)
    assert described(made).protocol == "range"


def test_members_without_a_common_protocol_are_refused(made: Stage) -> None:
    gather(made.member(protocols=("range",)))
    with pytest.raises(InconsistentGroupProtocolError, match="range"):
        made.member(protocols=("sticky",)).join()
    with pytest.raises(InconsistentGroupProtocolError):
        made.member(protocol_type="connect").join()
    with pytest.raises(InconsistentGroupProtocolError):
        made.member("h", protocols=()).join()
    with pytest.raises(InconsistentGroupProtocolError):
        made.member("h", protocol_type="").join()


def test_an_empty_group_may_change_its_protocol(made: Stage) -> None:
    member = made.member(protocols=("range",))
    gather(member)
    member.leave()
    gather(made.member(protocols=("sticky",)))
    assert described(made).protocol == "sticky"


def test_a_sync_with_another_protocol_is_refused(made: Stage) -> None:
    member = made.member()
    member.join()
    member.joined()
    with pytest.raises(InconsistentGroupProtocolError):
        made.groups.sync_group("g", member.member_id, 1, protocol_type="connect")
    with pytest.raises(InconsistentGroupProtocolError):
        made.groups.sync_group("g", member.member_id, 1, protocol_name="sticky")


# ---------------------------------------------------------------- joining again


def test_a_follower_that_joins_again_unchanged_disturbs_nobody(made: Stage) -> None:
    leader, follower = made.member(), made.member()
    gather(leader, follower)
    answer = follower.join()
    assert answer.result().generation_id == 2
    assert state(made) is GroupState.STABLE


def test_a_follower_with_another_subscription_or_the_leader_begin_a_rebalance(made: Stage) -> None:
    leader, follower = made.member(), made.member()
    gather(leader, follower)
    follower.protocols = [("range", made.member(topics=("other",)).protocols[0][1])]
    assert not follower.join().done()
    leader.join()
    sync(leader, follower)
    assert described(made).generation == 3
    assert not leader.join().done()
    follower.join()
    assert follower.joined().generation_id == 4


def test_a_lost_answer_to_a_join_is_given_again(made: Stage) -> None:
    """Goal: between join and sync, a member that joins once more with the same words hears the same."""
    leader, follower = made.member(), made.member()
    gather(leader)
    follower.join()
    leader.join()
    assert leader.joined() == leader.join().result()
    assert follower.joined() == follower.join().result()
    assert state(made) is GroupState.COMPLETING_REBALANCE


def test_a_change_between_join_and_sync_sends_everybody_back_to_join(made: Stage) -> None:
    leader, follower = made.member(), made.member()
    gather(leader)
    follower.join()
    leader.join()
    leader.joined()
    follower.joined()
    waiting = follower.sync()
    newcomer = made.member()
    newcomer.join()
    with pytest.raises(RebalanceInProgressError):
        waiting.result()
    with pytest.raises(RebalanceInProgressError):
        leader.sync({leader.member_id: [IN0]})


def test_whoever_does_not_join_again_in_time_is_out(made: Stage, clock: ManualClock) -> None:
    slow, quick = (made.member(rebalance_timeout_ms=20_000) for _ in range(2))
    gather(slow, quick)
    newcomer = made.member(rebalance_timeout_ms=20_000)
    newcomer.join()
    quick.join()
    clock.advance(20_000)
    made.groups.tick()
    assert newcomer.joined().generation_id == quick.joined().generation_id == 3
    with pytest.raises(UnknownMemberIdError):
        slow.heartbeat()
    assert newcomer.joined().is_leader != quick.joined().is_leader


def test_whoever_does_not_sync_in_time_is_out(made: Stage, clock: ManualClock) -> None:
    leader, silent = (made.member(rebalance_timeout_ms=20_000) for _ in range(2))
    gather(leader)
    silent.join()
    leader.join()
    leader.joined()
    silent.joined()
    leader.sync({leader.member_id: [IN0]})
    clock.advance(20_000)
    made.groups.tick()
    assert state(made) is GroupState.PREPARING_REBALANCE
    with pytest.raises(RebalanceInProgressError):
        leader.heartbeat()
    with pytest.raises(UnknownMemberIdError):
        silent.heartbeat()


# ---------------------------------------------------------------- staying


def test_heartbeats_and_commits_keep_a_session(made: Stage, clock: ManualClock) -> None:
    member = made.member(session_timeout_ms=10_000)
    gather(member)
    for _ in range(3):
        clock.advance(9_000)
        made.groups.tick()
        member.heartbeat()
        clock.advance(9_000)
        made.groups.tick()
        assert made.commit("g", 1, **member.identity) is None
    clock.advance(10_000)
    made.groups.tick()
    assert state(made) is GroupState.EMPTY
    with pytest.raises(UnknownMemberIdError):
        member.heartbeat()


def test_a_session_ends_without_any_call_of_its_member(made: Stage, clock: ManualClock) -> None:
    """Goal: tick says when to come back, and coming back then is enough."""
    dying, living = made.member(session_timeout_ms=10_000), made.member()
    gather(dying, living)
    clock.advance(9_500)
    assert made.groups.tick() == 500
    clock.advance(500)
    assert made.groups.tick() == 1000, "somebody may join in the meantime"
    with pytest.raises(RebalanceInProgressError):
        living.heartbeat()
    living.join()
    sync(living)
    assert len(described(made).members) == 1


def test_a_member_that_waits_for_us_does_not_expire(made: Stage, clock: ManualClock) -> None:
    first, second = (made.member(session_timeout_ms=10_000) for _ in range(2))
    gather(first, second)
    third = made.member(session_timeout_ms=10_000)
    third.join()
    first.join()
    for _ in range(4):
        clock.advance(6_000)
        made.groups.tick()
    assert first.joined().generation_id == 3, "second was silent and is out"
    assert third.joined().generation_id == 3


def test_a_new_member_that_waits_has_five_minutes(made: Stage, clock: ManualClock) -> None:
    first = made.member(rebalance_timeout_ms=1_000_000, session_timeout_ms=1_000_000)
    gather(first)
    newcomer = made.member(session_timeout_ms=10_000)
    waiting = newcomer.join()
    clock.advance(300_000)
    made.groups.tick()
    with pytest.raises(UnknownMemberIdError):
        waiting.result()


@pytest.mark.parametrize("change", [{"generation": 7}, {"generation": -1}])
def test_a_heartbeat_of_another_generation_is_refused(made: Stage, change: dict[str, int]) -> None:
    member = made.member()
    gather(member)
    member.generation = change["generation"]
    with pytest.raises(IllegalGenerationError):
        member.heartbeat()
    with pytest.raises(IllegalGenerationError):
        member.sync()


def test_unknown_groups_have_no_members(made: Stage) -> None:
    for call in (
        lambda: made.groups.heartbeat("g", "m", 1),
        lambda: made.groups.sync_group("g", "m", 1),
        lambda: made.groups.leave_group("g", [("m", None)]),
    ):
        with pytest.raises(UnknownMemberIdError):
            call()
    assert made.groups.list_groups() == []


# ---------------------------------------------------------------- leaving


def test_a_leavers_partitions_go_to_the_rest(made: Stage) -> None:
    leaver, stayer = made.member(), made.member()
    gather(leaver, stayer)
    assert leaver.leave() is None
    with pytest.raises(RebalanceInProgressError):
        stayer.heartbeat()
    stayer.join()
    assert stayer.joined().is_leader
    assert stayer.assigned(stayer.sync({stayer.member_id: [IN0, IN1]})) == (IN0, IN1)


def test_the_last_to_leave_leaves_an_empty_group(made: Stage) -> None:
    member = made.member()
    gather(member)
    member.leave()
    assert (state(made), described(made).generation) == (GroupState.EMPTY, 2)
    with pytest.raises(UnknownMemberIdError):
        made.groups.sync_group("g", member.member_id, 2)


def test_strangers_cannot_leave(made: Stage) -> None:
    member = made.member(group_instance_id="i")
    gather(member)
    answers = made.groups.leave_group(
        "g", [("stranger", None), ("", "unknown"), ("stranger", "i"), ("", None)]
    )
    assert [type(answer) for answer in answers] == [
        *(UnknownMemberIdError, UnknownMemberIdError),
        *(FencedInstanceIdError, UnknownMemberIdError),
    ]
    assert state(made) is GroupState.STABLE
    assert made.groups.leave_group("g", [("", "i")]) == [None]
    assert state(made) is GroupState.EMPTY


def test_a_member_that_leaves_while_it_waits_is_told(made: Stage) -> None:
    first, second = made.member(), made.member()
    gather(first)
    waiting = second.join()
    group = made.groups._groups.need("g")
    second_id = next(name for name in group.members if name != first.member_id)
    made.groups.leave_group("g", [(second_id, None)])
    with pytest.raises(UnknownMemberIdError):
        waiting.result()


def test_members_beyond_the_partitions_stay_idle(made: Stage) -> None:
    members = [made.member() for _ in range(4)]
    gather(*members)
    idle = members[3]
    idle.heartbeat()
    assert len(described(made).members) == 4


# ---------------------------------------------------------------- static members


def test_a_static_member_restarts_without_a_rebalance(made: Stage) -> None:
    leader, static = made.member(), made.member(group_instance_id="i")
    gather(leader, static)
    back = made.member(group_instance_id="i")
    joined = back.join().result()
    back.joined()
    assert joined.generation_id == 2
    assert joined.member_id != static.member_id
    assert back.assigned(back.sync()) == (IN1,)
    leader.heartbeat()
    assert state(made) is GroupState.STABLE
    with pytest.raises(FencedInstanceIdError):
        static.heartbeat()


def test_a_static_leader_is_back_as_leader_and_skips_the_assignment(made: Stage) -> None:
    static, other = made.member(group_instance_id="i"), made.member()
    gather(static, other)
    back = made.member(group_instance_id="i")
    joined = back.join().result()
    assert joined.is_leader
    assert joined.skip_assignment
    assert len(joined.members) == 2
    older = made.member(group_instance_id="i", supports_skipping_assignment=False)
    answer = older.join().result()
    assert not answer.is_leader
    assert answer.members == ()


def test_a_static_member_with_another_protocol_begins_a_rebalance(made: Stage) -> None:
    member = made.member(group_instance_id="i", protocols=("range", "sticky"))
    gather(member)
    back = made.member(group_instance_id="i", protocols=("sticky",))
    with pytest.raises(InconsistentGroupProtocolError):
        made.member(group_instance_id="i", protocols=("other",)).join()
    back.join()
    assert back.joined().protocol_name == "sticky"
    assert back.joined().generation_id == 2


def test_a_static_member_that_is_away_stays_until_its_session_ends(
    made: Stage, clock: ManualClock
) -> None:
    away = made.member(group_instance_id="i", session_timeout_ms=60_000)
    leader = made.member(session_timeout_ms=60_000)
    gather(leader, away)
    newcomer = made.member(rebalance_timeout_ms=5_000)
    newcomer.join()
    for member in (leader,):
        member.join()
    clock.advance(300_000 - 250_000)
    made.groups.tick()
    assert newcomer.pending is not None
    assert not newcomer.pending.done(), (
        "the rebalance waits for the static member's rebalance timeout"
    )
    clock.advance(10_000)
    made.groups.tick()
    assert newcomer.pending.done(), "its session has ended"
    assert len(described(made).members) == 2


def test_a_fenced_twin_that_waits_is_told_at_once(made: Stage) -> None:
    leader, static = made.member(), made.member(group_instance_id="i")
    gather(leader)
    waiting = static.join()
    twin = made.member(group_instance_id="i")
    twin.join()
    with pytest.raises(FencedInstanceIdError):
        waiting.result()
    leader.join()
    assert twin.joined().generation_id == 2
    waiting_sync = twin.sync()
    third = made.member(group_instance_id="i")
    third.join()
    with pytest.raises(FencedInstanceIdError):
        waiting_sync.result()


# ---------------------------------------------------------------- records


def group_records_of(made: Stage, group_id: str = "g") -> list[Any]:
    found: list[Any] = []
    for record in records(made.log_of(group_id).log.active.view()):
        assert record.key is not None
        key = decode_key(record.key)
        if isinstance(key, GroupKey) and key.group == group_id:
            found.append(None if record.value is None else decode_group_value(record.value))
    return found


def test_a_group_is_written_when_it_is_made_assigned_and_empty(made: Stage) -> None:
    """Goal: the same records at the same moments as Kafka's; the first is how a real broker begins, too."""
    member = made.member(client_id="c", client_host="/host", group_instance_id="i")
    gather(member)
    made.groups.leave_group("g", [("", "i")])
    made.groups.delete_groups(["g"])
    first, assigned, empty, gone = group_records_of(made)
    assert first[:4] == ("", 0, None, None)
    assert assigned[:4] == ("consumer", 1, "range", member.member_id)
    assert assigned.members[0][:6] == (member.member_id, "i", "c", "/host", 300_000, 45_000)
    assert assigned.members[0].assignment
    assert (empty.generation, empty.members, empty.leader) == (2, (), None)
    assert gone is None


def test_a_generation_that_cannot_be_written_is_not_told_to_anybody(
    made: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = made.member(), made.member()
    gather(leader)
    follower.join()
    leader.join()
    leader.joined()
    follower.joined()
    waiting = follower.sync()

    def fail(*_: object, **__: object) -> int:
        raise KafkaStorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(OffsetsPartition, "write", fail)
        answer = leader.sync({follower.member_id: [IN0]})
    for pending in (answer, waiting):
        with pytest.raises(KafkaStorageError):
            pending.result()
    assert state(made) is GroupState.PREPARING_REBALANCE
    leader.join()
    follower.join()
    sync(leader, follower)
    assert state(made) is GroupState.STABLE


def test_a_group_that_cannot_be_written_is_not_made(
    made: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise KafkaStorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(OffsetsPartition, "write", fail)
        with pytest.raises(KafkaStorageError):
            made.member().join()
        with pytest.raises(KafkaStorageError):
            made.commit("h", 1)
    assert made.groups.list_groups() == []
    gather(made.member())


def test_a_group_that_is_loaded_over_its_size_sheds_members(
    tmp_path: Path, clock: ManualClock
) -> None:
    with stage(tmp_path, clock) as made:
        members = [made.member() for _ in range(3)]
        gather(*members)
    with stage(tmp_path, clock, options=GroupOptions(size_max=2)) as made:
        assert state(made) is GroupState.PREPARING_REBALANCE
        for member in members:
            member.stage = made
        members[0].join()
        members[1].join()
        with pytest.raises(GroupMaxSizeReachedError):
            members[2].join()
        assert {member.joined().generation_id for member in members[:2]} == {4}


def test_loaded_members_go_on_in_their_generation(tmp_path: Path, clock: ManualClock) -> None:
    with stage(tmp_path, clock) as made:
        members = [made.member(), made.member()]
        gather(*members)
    clock.advance(3_600_000)
    with stage(tmp_path, clock) as made:
        for member in members:
            member.stage = made
            member.heartbeat()
        assert members[1].assigned(members[1].sync()) == (IN1,)
        assert made.commit("g", 8, **members[0].identity) is None
        clock.advance(44_999)
        made.groups.tick()
        members[0].heartbeat()
        clock.advance(1)
        made.groups.tick()
        with pytest.raises(RebalanceInProgressError):
            members[0].heartbeat()


# ---------------------------------------------------------------- tools


def test_groups_are_listed_by_state_and_type(made: Stage) -> None:
    gather(made.member("busy"))
    made.commit("simple", 1)
    empty = made.member("empty")
    gather(empty)
    empty.leave()
    assert [row.group_id for row in made.groups.list_groups()] == ["busy", "empty", "simple"]
    assert [row.group_id for row in made.groups.list_groups(states=["stable"])] == ["busy"]
    assert [row.group_id for row in made.groups.list_groups(states=["Empty"])] == [
        "empty",
        "simple",
    ]
    assert made.groups.list_groups(types=["consumer"]) == []
    assert len(made.groups.list_groups(types=["Classic"])) == 3


def test_a_description_has_what_members_said_once_the_group_is_stable(made: Stage) -> None:
    member = made.member(client_id="c")
    member.join()
    member.joined()
    assert described(made).members[0].metadata == b""
    member.sync({member.member_id: [IN0]})
    found = described(made)
    assert (found.protocol, found.generation, found.leader) == ("range", 1, member.member_id)
    assert found.members[0].metadata
    assert found.members[0].assignment
    assert isinstance(made.groups.describe_groups(["x"])["x"], GroupIdNotFoundError)


# ---------------------------------------------------------------- waiting


def test_callbacks_run_outside_of_the_locks(made: Stage) -> None:
    """Goal: a client may call the coordinator from the callback that answers it."""
    first, second = made.member(), made.member()
    gather(first)
    waiting = second.join()
    seen: list[GroupState] = []
    waiting.add_done_callback(lambda _: seen.append(state(made)))
    waiting.add_done_callback(lambda _: seen.append(state(made)) if second.joined() else None)
    first.join()
    assert seen == [GroupState.COMPLETING_REBALANCE] * 2
    waiting.add_done_callback(lambda _: seen.append(GroupState.DEAD))
    assert seen[-1] is GroupState.DEAD, "an answer that is there is given at once"


def test_a_callback_that_fails_keeps_nobody_from_his_answer(
    made: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = (made.member() for _ in range(3))
    gather(first)

    def fail(_: object) -> None:
        raise ValueError("a mistake of the caller's")

    second.join().add_done_callback(fail)
    waiting = third.join()
    first.join()
    assert waiting.done()
    assert "a mistake of the caller's" in caplog.text


def test_only_the_first_answer_counts() -> None:
    pending: Pending[int] = Pending()
    assert not pending.done()
    pending.complete(1)
    pending.complete(2)
    pending.complete(error=ValueError("late"))
    assert pending.result() == 1


def test_closing_tells_everybody_who_waits(tmp_path: Path, clock: ManualClock) -> None:
    made = Stage(tmp_path, clock)
    first, second = made.member(), made.member()
    gather(first)
    waiting = second.join()
    made.close()
    with pytest.raises(CoordinatorNotAvailableError):
        waiting.result()
    with pytest.raises(CoordinatorNotAvailableError):
        made.committed("g")


def test_many_members_join_in_time_that_does_not_explode(made: Stage) -> None:
    """Goal: 400 members in one rebalance; each looks at the group once, not at every other member."""
    members = [made.member() for _ in range(400)]
    members[0].join()
    members[0].joined()
    for member in members[1:]:
        member.join()
    members[0].join()
    answers = [member.joined() for member in members]
    assert {answer.generation_id for answer in answers} == {2}
    plan = {member.member_id: [TopicPartition("in", n)] for n, member in enumerate(members)}
    waiting = [member.sync() for member in members if not member.joined().is_leader]
    leader = next(member for member in members if member.joined().is_leader)
    leader.sync(plan)
    assert all(pending.done() for pending in waiting)
