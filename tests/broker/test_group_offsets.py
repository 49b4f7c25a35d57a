"""Offsets are committed by whoever owns them, transactional ones at the marker, and forgotten when their time is up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from oncelog._native.offsets import CommittedOffset, OffsetTable
from oncelog.base.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    OncelogError,
    ProducerFencedError,
    RebalanceInProgressError,
    TransactionAbortableError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from oncelog.broker.group_answers import GroupOptions, OffsetCommit
from oncelog.broker.group_metadata import GroupState
from oncelog.broker.group_records import OffsetValue, encode_offset_key, encode_offset_value
from oncelog.partition.admission import Origin
from oncelog.segment.batch import Attributes, ControlType, encode, encode_marker, records, scan
from oncelog.segment.names import TopicPartition

from .brokers import ManualClock
from .groups import IN0, IN1, OFFSETS, Stage, gather, stage, sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNSTABLE = UnstableOffsetCommitError
DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def made(tmp_path: Path, clock: ManualClock) -> Iterator[Stage]:
    with stage(tmp_path, clock) as built:
        yield built


# ---------------------------------------------------------------- pending and stable


def test_a_pending_offset_is_invisible_and_makes_its_partition_unstable(made: Stage) -> None:
    made.commit("g", 5)
    made.producer().commit_offset("g", 9)
    assert made.committed("g") == 5
    assert made.committed("g", require_stable=True) is UNSTABLE
    assert made.committed("g", IN1, require_stable=True) is None


def test_a_partition_is_unstable_even_if_nothing_was_committed_before(made: Stage) -> None:
    made.producer().commit_offset("g", 9)
    assert made.committed("g") is None
    assert made.committed("g", require_stable=True) is UNSTABLE
    assert made.groups.offset_fetch("g") == {}


def test_the_commit_marker_makes_it_count_and_the_abort_marker_drops_it(made: Stage) -> None:
    producer = made.producer()
    producer.commit_offset("g", 9)
    producer.end(committed=True)
    assert made.committed("g", require_stable=True) == 9
    producer.commit_offset("g", 12)
    producer.end(committed=False)
    assert made.committed("g", require_stable=True) == 9


def test_a_plain_commit_later_in_the_log_wins_at_the_marker(made: Stage) -> None:
    producer = made.producer()
    producer.commit_offset("g", 9)
    made.commit("g", 3)
    producer.end(committed=True)
    assert made.committed("g") == 3
    producer.commit_offset("g", 15)
    producer.end(committed=True)
    assert made.committed("g") == 15


def test_two_transactions_may_be_open_over_one_partition(made: Stage) -> None:
    first, second = made.producer("a"), made.producer("b")
    first.commit_offset("g", 10)
    second.commit_offset("g", 20)
    second.end(committed=True)
    assert made.committed("g") == 20
    assert made.committed("g", require_stable=True) is UNSTABLE
    first.end(committed=True)
    assert made.committed("g", require_stable=True) == 20, "10 lies before 20 in the log"


def test_the_last_commit_of_a_transaction_counts(made: Stage) -> None:
    producer = made.producer()
    for offset in (1, 2, 3):
        producer.commit_offset("g", offset)
    producer.end(committed=True)
    assert made.committed("g") == 3


def test_one_transaction_commits_for_several_groups(made: Stage) -> None:
    producer = made.producer()
    for name in "abcdef":
        producer.commit_offset(name, 7)
    producer.end(committed=True)
    assert [made.committed(name) for name in "abcdef"] == [7] * 6


def test_a_transactional_commit_is_a_transactional_batch_of_its_producer(made: Stage) -> None:
    producer = made.producer()
    producer.commit_offset("g", 9)
    log = made.log_of("g")
    rows = scan(log.log.active.view())
    assert rows[-1]["attributes"] & Attributes.TRANSACTIONAL
    assert rows[-1]["producer_id"] == producer.producer_id
    assert rows[-1]["producer_epoch"] == producer.epoch
    assert log.transaction_of(producer.producer_id) is not None
    assert log.last_stable_offset == 0


# ---------------------------------------------------------------- who may commit in a transaction


def test_an_unknown_group_has_no_generation(made: Stage) -> None:
    with pytest.raises(IllegalGenerationError):
        made.producer().commit_offset("g", 1, generation_id=3, member_id="m")
    assert made.groups.list_groups() == []


def test_an_unknown_member_and_a_wrong_generation_are_refused(made: Stage) -> None:
    member = made.member()
    gather(member)
    producer = made.producer()
    who = member.identity
    with pytest.raises(UnknownMemberIdError):
        producer.commit_offset("g", 1, **{**who, "member_id": "stranger"})
    with pytest.raises(IllegalGenerationError):
        producer.commit_offset("g", 1, **{**who, "generation_id": member.generation - 1})
    assert made.committed("g", require_stable=True) is None, "nothing was written"
    assert producer.commit_offset("g", 1, **who) is None


def test_a_zombie_member_is_refused_after_the_rebalance_that_left_it_out(
    made: Stage, clock: ManualClock
) -> None:
    zombie, heir = made.member(), made.member()
    gather(zombie, heir)
    clock.advance(40_000)
    heir.heartbeat()
    clock.advance(6_000)
    made.groups.tick()
    heir.join()
    sync(heir)
    producer = made.producer()
    with pytest.raises(UnknownMemberIdError):
        producer.commit_offset("g", 5, **zombie.identity)
    assert producer.commit_offset("g", 5, **heir.identity) is None


def test_a_fenced_static_instance_is_refused(made: Stage) -> None:
    old = made.member(group_instance_id="i")
    gather(old)
    new = made.member(group_instance_id="i")
    new.join()
    new.joined()
    with pytest.raises(OncelogError, match="instance 'i'") as caught:
        made.producer().commit_offset("g", 1, **old.identity)
    assert caught.value.code == 82
    with pytest.raises(UnknownMemberIdError):
        made.producer().commit_offset("g", 1, **{**new.identity, "group_instance_id": "other"})


def test_a_producer_without_group_metadata_may_commit_into_a_group_with_members(
    made: Stage,
) -> None:
    """Goal: clients before KIP-447 name neither member nor generation; Kafka lets them, in a transaction."""
    gather(made.member())
    assert made.producer().commit_offset("g", 1) is None
    with pytest.raises(UnknownMemberIdError):
        made.commit("g", 1)


def test_producer_id_and_epoch_must_be_those_of_the_open_transaction(made: Stage) -> None:
    old = made.producer("t")
    old.commit_offset("g", 1)
    old.end(committed=True)
    new = made.producer("t")
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        old.commit_offset("g", 2)
    stranger = made.producer("u")
    stranger.transactional_id = "t"
    with pytest.raises(InvalidProducerIdMappingError):
        stranger.commit_offset("g", 2)
    assert made.committed("g", require_stable=True) == 1
    new.commit_offset("g", 3)
    new.end(committed=True)
    assert made.committed("g") == 3


def test_a_version_1_producer_adds_the_offsets_partition_first(made: Stage) -> None:
    producer = made.producer()
    with pytest.raises((TransactionAbortableError, OncelogError)):
        producer.commit_offset("g", 1, transaction_version=1)
    assert made.committed("g", require_stable=True) is None
    made.transactions.add_partitions_to_txn(
        "t", producer.producer_id, producer.epoch, [made.groups.offsets_partition("g")]
    )
    assert producer.commit_offset("g", 1, transaction_version=1) is None
    assert made.committed("g", require_stable=True) is UNSTABLE


def test_offsets_join_their_transaction_by_themselves_in_version_2(made: Stage) -> None:
    producer = made.producer()
    producer.commit_offset("g", 1)
    described = made.transactions.describe_transaction("t")
    assert made.groups.offsets_partition("g") in described.partitions


# ---------------------------------------------------------------- plain commits


def test_a_commit_without_generation_makes_a_simple_group_and_overwrites(made: Stage) -> None:
    assert made.commit("g", 5) is None
    assert made.commit("g", 3) is None
    assert made.committed("g") == 3
    assert made.groups.list_groups()[0][1:3] == ("", GroupState.EMPTY)


def test_an_unknown_group_with_a_generation_is_not_made(made: Stage) -> None:
    with pytest.raises(GroupIdNotFoundError):
        made.commit("g", 5, generation_id=1, member_id="m")
    assert made.groups.list_groups() == []


def test_a_standalone_commit_into_a_group_with_members_is_refused(made: Stage) -> None:
    member = made.member()
    gather(member)
    with pytest.raises(UnknownMemberIdError, match="1 members"):
        made.commit("g", 5)
    assert made.commit("g", 5, **member.identity) is None
    member.leave()
    assert made.commit("g", 2) is None
    assert made.committed("g") == 2


def test_a_group_between_join_and_sync_takes_no_commits(made: Stage) -> None:
    member = made.member()
    member.join()
    member.joined()
    with pytest.raises(RebalanceInProgressError):
        made.commit("g", 5, **member.identity)


def test_a_group_that_is_being_gathered_takes_commits_of_its_last_generation(made: Stage) -> None:
    first = made.member()
    gather(first)
    second = made.member()
    second.join()
    assert made.commit("g", 5, **first.identity) is None


def test_a_dead_group_is_not_available(made: Stage) -> None:
    member = made.member()
    gather(member)
    group = made.groups._groups.need("g")
    member.leave()
    made.groups.delete_groups(["g"])
    with pytest.raises(CoordinatorNotAvailableError):
        group.check_commit("", -1, None)


def test_metadata_that_is_too_long_is_refused_for_its_partition_only(made: Stage) -> None:
    answers = made.groups.offset_commit(
        "g", {IN0: OffsetCommit(1, metadata="x" * 4097), IN1: OffsetCommit(2, metadata="x" * 4096)}
    )
    assert isinstance(answers[IN0], OffsetMetadataTooLargeError)
    assert answers[IN1] is None
    assert made.committed("g") is None
    found = made.groups.offset_fetch("g")[IN1]
    assert isinstance(found, CommittedOffset)
    assert len(found.metadata) == 4096
    answer = made.groups.txn_offset_commit(
        "t", "g", 1, 0, offsets={IN0: OffsetCommit(1, metadata="x" * 4097)}
    )
    assert isinstance(answer[IN0], OffsetMetadataTooLargeError)


@pytest.mark.parametrize(
    ("key", "commit"),
    [
        (IN0, OffsetCommit(-1)),
        (IN0, OffsetCommit(2**63)),
        (IN0, OffsetCommit(1, leader_epoch=2**31)),
        (TopicPartition("in", -1), OffsetCommit(1)),
        (TopicPartition("in", 2**31), OffsetCommit(1)),
        (TopicPartition("in", 2**70), OffsetCommit(1)),
        (TopicPartition("half \ud800", 0), OffsetCommit(1)),
        (TopicPartition("x" * 40_000, 0), OffsetCommit(1)),
        (IN0, OffsetCommit(1, metadata="half \ud800")),
    ],
)
def test_an_impossible_offset_is_refused_for_its_partition_only(
    made: Stage, key: TopicPartition, commit: OffsetCommit
) -> None:
    answers = made.groups.offset_commit("g", {key: commit, IN1: OffsetCommit(4)})
    assert isinstance(answers[key], InvalidRequestError)
    assert made.committed("g", IN1) == 4


def test_a_commit_too_large_for_one_batch_is_refused_whole(tmp_path: Path) -> None:
    with stage(tmp_path, max_message_bytes=2000) as made:
        offsets = {TopicPartition("in", n): OffsetCommit(n) for n in range(100)}
        with pytest.raises(InvalidCommitOffsetSizeError, match="100 offsets"):
            made.groups.offset_commit("g", offsets)
        assert made.groups.offset_fetch("g") == {}
        assert made.groups.list_groups() == []


def test_offsets_have_the_leader_epoch_metadata_and_time_of_the_commit(
    made: Stage, clock: ManualClock
) -> None:
    made.groups.offset_commit("g", {IN0: OffsetCommit(7, 3, "mine")})
    found = made.groups.offset_fetch("g", [IN0])[IN0]
    assert found == CommittedOffset(7, 3, "mine", clock.now_ms)


def test_far_away_partitions_are_kept_like_any_other(made: Stage) -> None:
    keys = [TopicPartition("in", n) for n in (0, 5, 100_000, 2**31 - 1, 40, 17)]
    made.groups.offset_commit("g", {key: OffsetCommit(key.partition) for key in keys})
    assert set(made.groups.offset_fetch("g")) == set(keys)
    made.groups.offset_delete("g", keys[2:4])
    assert set(made.groups.offset_fetch("g")) == {*keys[:2], *keys[4:]}


@pytest.mark.parametrize("group_id", ["../up", "a/b\\c", "\x00\n", "ünïcödé ☃", "x" * 3000])
def test_odd_group_ids_are_just_names(made: Stage, tmp_path: Path, group_id: str) -> None:
    made.commit(group_id, 1)
    made.producer().commit_offset(group_id, 2)
    assert made.committed(group_id) == 1
    folders = {path.name.rpartition("-")[0] for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {OFFSETS, "__transaction_state"}


@pytest.mark.parametrize("group_id", ["x" * 40_000, "\ud800"])
def test_impossible_group_ids_are_refused(made: Stage, group_id: str) -> None:
    with pytest.raises(InvalidGroupIdError):
        made.commit(group_id, 1)
    with pytest.raises(InvalidGroupIdError):
        made.groups.find_coordinator("")


# ---------------------------------------------------------------- deleting


def test_deleting_offsets_removes_committed_and_pending_ones(made: Stage, tmp_path: Path) -> None:
    made.commit("g", 5)
    made.commit("g", 6, IN1)
    producer = made.producer()
    producer.commit_offset("g", 9)
    other = TopicPartition("other", 3)
    producer.commit_offset("g", 8, other)
    assert made.groups.offset_delete("g", [IN0, other]) == {IN0: None, other: None}
    assert made.committed("g", require_stable=True) is None
    producer.end(committed=True)
    assert set(made.groups.offset_fetch("g")) == {IN1}


def test_deleting_an_offset_that_is_not_there_writes_nothing(made: Stage) -> None:
    made.commit("g", 5)
    end = made.log_of("g").log_end_offset
    assert made.groups.offset_delete("g", [IN1]) == {IN1: None}
    assert made.log_of("g").log_end_offset == end
    with pytest.raises(GroupIdNotFoundError):
        made.groups.offset_delete("unknown", [IN0])


def test_offsets_of_a_topic_that_members_read_are_not_deleted(made: Stage) -> None:
    gather(member := made.member())
    other = TopicPartition("other", 0)
    made.groups.offset_commit(
        "g", {IN0: OffsetCommit(1), other: OffsetCommit(2)}, **member.identity
    )
    answers = made.groups.offset_delete("g", [IN0, other])
    assert isinstance(answers[IN0], GroupSubscribedToTopicError)
    assert answers[other] is None
    assert set(made.groups.offset_fetch("g")) == {IN0}


def test_offsets_of_a_group_that_are_no_consumers_need_it_empty(made: Stage) -> None:
    gather(member := made.member(protocol_type="connect"))
    made.commit("g", 1, **member.identity)
    with pytest.raises(GroupNotEmptyError):
        made.groups.offset_delete("g", [IN0])


def test_deleting_a_group_removes_it_and_all_its_offsets(made: Stage) -> None:
    member = made.member()
    gather(member)
    made.commit("g", 5, **member.identity)
    made.producer().commit_offset("g", 9, IN1, **member.identity)
    answer = made.groups.delete_groups(["g", "unknown"])
    assert isinstance(answer["g"], GroupNotEmptyError)
    assert isinstance(answer["unknown"], GroupIdNotFoundError)
    member.leave()
    assert made.groups.delete_groups(["g"]) == {"g": None}
    assert made.groups.offset_fetch("g") == {}
    assert made.committed("g", IN1, require_stable=True) is None
    assert isinstance(made.groups.describe_groups(["g"])["g"], GroupIdNotFoundError)


def test_the_librarys_own_groups_stay(made: Stage, clock: ManualClock) -> None:
    made.commit("__oncelog_sink", 5)
    clock.advance(100 * WEEK_MS)
    made.groups.expire_offsets()
    assert isinstance(made.groups.delete_groups(["__oncelog_sink"])["__oncelog_sink"], OncelogError)
    with pytest.raises(InvalidGroupIdError):
        made.groups.offset_delete("__oncelog_sink", [IN0])
    assert made.committed("__oncelog_sink") == 5


def test_a_deleted_topic_takes_its_offsets_along(made: Stage) -> None:
    other = TopicPartition("other", 0)
    for name in "abc":
        made.commit(name, 1)
        made.commit(name, 2, other)
    producer = made.producer()
    producer.commit_offset("d", 4)
    assert made.groups.on_topic_deleted("in") == 4
    producer.end(committed=True)
    for name in "abc":
        assert set(made.groups.offset_fetch(name)) == {other}
    assert made.groups.offset_fetch("d") == {}
    assert made.groups.on_topic_deleted("in") == 0


def test_offsets_of_a_topic_that_was_made_anew_are_not_returned(tmp_path: Path) -> None:
    ids = {"in": b"a" * 16}
    with stage(tmp_path, topic_ids=ids) as made:
        made.commit("g", 5)
        assert made.committed("g") == 5
        ids["in"] = b"b" * 16
        assert made.committed("g") is None
        assert made.groups.offset_fetch("g") == {}
        made.commit("g", 1)
        assert made.committed("g") == 1


# ---------------------------------------------------------------- expiry


def test_offsets_of_a_simple_group_expire_after_their_last_commit(
    made: Stage, clock: ManualClock
) -> None:
    made.commit("g", 5)
    clock.advance(WEEK_MS - 1)
    made.commit("g", 6, IN1)
    assert made.groups.expire_offsets() == 0
    clock.advance(1)
    assert made.groups.expire_offsets() == 1
    assert set(made.groups.offset_fetch("g")) == {IN1}
    clock.advance(WEEK_MS)
    assert made.groups.expire_offsets() == 1
    assert made.groups.list_groups() == []


def test_offsets_of_a_group_expire_from_when_it_became_empty(
    made: Stage, clock: ManualClock
) -> None:
    member = made.member(session_timeout_ms=1_800_000)
    gather(member)
    made.commit("g", 5, **member.identity)
    for _ in range(400):
        clock.advance(1_700_000)
        member.heartbeat()
    assert made.groups.expire_offsets() == 0, "members that read the topic keep its offsets"
    member.leave()
    clock.advance(WEEK_MS - 1)
    assert made.groups.expire_offsets() == 0
    clock.advance(1)
    assert made.groups.expire_offsets() == 1
    assert made.groups.list_groups() == []


def test_topics_that_no_member_reads_any_more_expire_in_a_stable_group(
    made: Stage, clock: ManualClock
) -> None:
    member = made.member(session_timeout_ms=1_800_000)
    gather(member)
    other = TopicPartition("other", 0)
    made.groups.offset_commit(
        "g", {IN0: OffsetCommit(1), other: OffsetCommit(2)}, **member.identity
    )
    for _ in range(400):
        clock.advance(1_700_000)
        member.heartbeat()
    assert made.groups.expire_offsets() == 1
    assert set(made.groups.offset_fetch("g")) == {IN0}


def test_pending_offsets_keep_a_group_and_its_offsets(made: Stage, clock: ManualClock) -> None:
    made.commit("g", 5)
    made.commit("g", 6, IN1)
    producer = made.producer()
    producer.commit_offset("g", 9)
    producer.commit_offset("h", 9)
    clock.advance(2 * WEEK_MS)
    assert made.groups.expire_offsets() == 1
    assert set(made.groups.offset_fetch("g")) == {IN0}
    assert {row.group_id for row in made.groups.list_groups()} == {"g", "h"}


def test_an_expiry_that_the_commit_asked_for_counts(made: Stage, clock: ManualClock) -> None:
    made.commit("g", 5, retention_time_ms=1000)
    clock.advance(999)
    assert made.groups.expire_offsets() == 0
    clock.advance(1)
    assert made.groups.expire_offsets() == 1


def test_an_empty_group_without_offsets_is_forgotten(made: Stage) -> None:
    member = made.member()
    gather(member)
    assert made.groups.expire_offsets() == 0
    assert len(made.groups.list_groups()) == 1
    member.leave()
    made.groups.expire_offsets()
    assert made.groups.list_groups() == []
    assert [record.value for record in records(made.log_of("g").log.active.view())][-1] is None


# ---------------------------------------------------------------- the rest


def test_nothing_is_served_before_the_log_was_read(tmp_path: Path) -> None:
    with stage(tmp_path, load=False) as made:
        for call in (
            lambda: made.commit("g", 1),
            lambda: made.committed("g"),
            lambda: made.member().join(),
            lambda: made.groups.find_coordinator("g"),
        ):
            with pytest.raises(CoordinatorNotAvailableError):
                call()


def test_a_marker_to_a_partition_that_is_not_ours_is_refused(made: Stage) -> None:
    with pytest.raises(NotCoordinatorError):
        made.groups.on_txn_marker(50, 1, committed=True)


def test_a_marker_counts_at_its_place_in_the_log_whoever_is_told_of_it_when(made: Stage) -> None:
    """Goal: the coordinator is told of a marker late, or not where it lies, and still reads the log's order."""
    producer = made.producer()
    producer.commit_offset("g", 9)
    key = made.groups.offsets_partition("g")
    marker = encode_marker(
        ControlType.COMMIT,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch + 1,
        coordinator_epoch=0,
        timestamp_ms=1,
    )
    made.partition(key).append_as_leader(
        memoryview(marker), leader_epoch=0, now_ms=1, origin=Origin.COORDINATOR
    )
    assert made.committed("g", require_stable=True) is UNSTABLE
    made.commit("g", 4, IN1)
    assert made.committed("g", require_stable=True) == 9, "a later write has found the marker"
    made.groups.on_txn_marker(key.partition, producer.producer_id, committed=True)
    assert made.committed("g", require_stable=True) == 9


def test_commits_of_many_threads_all_count(made: Stage) -> None:
    """Goal: plain and transactional commits, and their markers, meet in one partition without losing any."""

    def work(number: int) -> None:
        producer = made.producer(f"t{number}")
        for offset in range(1, 31):
            made.commit("g", offset, TopicPartition("plain", number))
            producer.commit_offset("g", offset, TopicPartition("txn", number))
            producer.end(committed=offset % 3 != 0 or offset == 30)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = made.groups.offset_fetch("g", require_stable=True)
    assert {
        key: value.offset for key, value in found.items() if isinstance(value, CommittedOffset)
    } == {TopicPartition(topic, number): 30 for topic in ("plain", "txn") for number in range(6)}


def test_the_table_takes_batches_one_by_one_or_all_at_once() -> None:
    """Goal: whatever the split, the outcome is the same; a transaction may span windows."""

    def batch(offset: int, position: int, producer_id: int = -1) -> bytes:
        return bytes(
            memoryview(
                encode(
                    [encode_offset_value(OffsetValue(offset))],
                    keys=[encode_offset_key("g", "in", 0)],
                    timestamp_ms=1,
                    base_offset=position,
                    transactional=producer_id >= 0,
                    producer_id=producer_id,
                    producer_epoch=0 if producer_id >= 0 else -1,
                    base_sequence=0 if producer_id >= 0 else -1,
                )
            )
        )

    marker = bytes(
        memoryview(
            encode_marker(
                ControlType.COMMIT,
                producer_id=5,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=1,
                base_offset=3,
            )
        )
    )
    parts = [batch(1, 0), batch(2, 1, 5), batch(3, 2, 6), marker]
    whole = b"".join(parts)
    at_once, by_one = (
        OffsetTable(lambda *_: ("", "", 0, None)),
        OffsetTable(lambda *_: ("", "", 0, None)),
    )
    at_once.apply(whole, scan(whole)["position"])
    for part in parts:
        by_one.apply(part, [0])
    for table in (at_once, by_one):
        found = table.groups["g"]["in"].get(0)
        assert found is not None
        assert (found.offset, found.record_offset) == (2, 1)
        assert table.open == {"g": {6}}
        assert table.is_pending("g", "in", 0)


def test_the_options_are_the_brokers_but_for_the_first_delay() -> None:
    from oncelog.base.config import BROKER, read_options

    config = read_options(BROKER, {"group.max.size": 5})
    options = GroupOptions.of(config)
    assert (options.size_max, options.first_delay_ms) == (5, 0)
    assert options == GroupOptions(size_max=5)
    given = {"group_initial_rebalance_delay_ms": 3000}
    assert GroupOptions.of(read_options(BROKER, given), given).first_delay_ms == 3000
