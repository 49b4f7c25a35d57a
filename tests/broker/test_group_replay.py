"""A coordinator is what its log says: replayed from a real broker's files, or from its own."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IllegalGenerationError,
    OncelogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from oncelog.broker.group_metadata import GroupState
from oncelog.broker.group_records import (
    GroupValue,
    OffsetValue,
    RecordType,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from oncelog.broker.group_registry import GroupRegistry
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition
from tests.golden_cases import GOLDEN, expected

from .brokers import NOW, ManualClock
from .groups import IN0, IN1, OFFSETS, Stage, gather, stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCUMENT = expected("txn-offsets")
# When the broker wrote the fixture, as commits carry its clock.
THEN = 1_794_796_087_900


def golden_stage(tmp_path: Path, clock: ManualClock) -> Stage:
    """Coordinators over the offsets and transactions of the fixture."""
    source = GOLDEN / "txn-offsets" / "data"
    for folder in source.glob("__*_*-*"):
        if not folder.name.startswith("__cluster"):
            shutil.copytree(folder, tmp_path / folder.name)
    return Stage(tmp_path, clock, load=False)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(THEN)


@pytest.fixture
def replayed(tmp_path: Path, clock: ManualClock) -> Iterator[Stage]:
    made = golden_stage(tmp_path, clock)
    made.groups.load()
    yield made
    made.close()


def test_a_real_brokers_offsets_are_what_it_said_they_are(replayed: Stage) -> None:
    for group_id, offsets in DOCUMENT["committedOffsets"].items():
        found = replayed.groups.offset_fetch(group_id)
        seen = {}
        for key, value in found.items():
            assert not isinstance(value, OncelogError)
            assert value is not None
            epoch = None if value.leader_epoch == -1 else value.leader_epoch
            seen[f"{key.topic}-{key.partition}"] = {
                "offset": value.offset,
                "leaderEpoch": epoch,
                "metadata": value.metadata,
            }
        assert seen == offsets


def test_its_groups_are_listed_with_type_and_state(replayed: Stage) -> None:
    listed = {row.group_id: row for row in replayed.groups.list_groups()}
    assert set(listed) == {"g-classic", "g-consumer", "g-simple"}
    assert listed["g-classic"][1:] == ("consumer", GroupState.STABLE, "classic")
    assert listed["g-consumer"][1:] == ("consumer", GroupState.STABLE, "consumer")
    assert listed["g-simple"][1:] == ("", GroupState.EMPTY, "classic")
    described = replayed.groups.describe_groups(["g-classic", "g-consumer"])
    classic, consumer = described["g-classic"], described["g-consumer"]
    assert not isinstance(classic, OncelogError)
    assert not isinstance(consumer, OncelogError)
    assert (classic.generation, classic.protocol, len(classic.members)) == (1, "range", 1)
    assert (consumer.generation, len(consumer.members)) == (2, 1)
    assert consumer.members[0].client_id == "consumer-g-consumer-2"


def test_transactions_that_the_broker_left_open_keep_their_offsets_unstable(
    replayed: Stage,
) -> None:
    """Goal: both groups have an open transaction over in-1 that began after the last commit of it."""
    for group_id in ("g-classic", "g-consumer"):
        assert replayed.committed(group_id, IN1) == 9
        assert isinstance(replayed.committed(group_id, IN1, require_stable=True), type)
        assert replayed.committed(group_id, IN0, require_stable=True) == 40


@pytest.mark.parametrize(("committed", "offset"), [(True, 16), (False, 9)])
def test_the_end_of_a_transaction_that_the_broker_left_open_decides(
    replayed: Stage, committed: bool, offset: int
) -> None:
    replayed.write_marker(
        TopicPartition(OFFSETS, 18),
        producer_id=1,
        producer_epoch=8,
        committed=committed,
        coordinator_epoch=0,
        transaction_version=2,
    )
    assert replayed.committed("g-classic", IN1, require_stable=True) == offset
    assert isinstance(replayed.committed("g-consumer", IN1, require_stable=True), type)


def test_members_of_a_real_broker_are_gone_when_they_do_not_show_up(
    replayed: Stage, clock: ManualClock, tmp_path: Path
) -> None:
    """Goal: the classic member's session, and that of the newer protocol, end by time alone; the offsets stay, and
    the log says so at the next start."""
    clock.advance(45_001)
    replayed.groups.tick()
    states = {row.group_id: row.state for row in replayed.groups.list_groups()}
    assert set(states.values()) == {GroupState.EMPTY}
    assert replayed.commit("g-consumer", 50) is None
    replayed.close()
    again = Stage(tmp_path, clock, load=False)
    again.groups.load()
    assert {row.group_id: row.state for row in again.groups.list_groups()} == states
    described = again.groups.describe_groups(["g-consumer"])["g-consumer"]
    assert not isinstance(described, OncelogError)
    assert described.generation == 3
    assert again.committed("g-consumer") == 50
    again.close()


def test_members_of_the_newer_protocol_commit_under_their_epoch(replayed: Stage) -> None:
    """Goal: a commit must name a member and its epoch; a stale epoch is the older protocol's illegal generation in a
    transaction."""
    described = replayed.groups.describe_groups(["g-consumer"])["g-consumer"]
    assert not isinstance(described, OncelogError)
    member_id = described.members[0].member_id
    assert replayed.commit("g-consumer", 41, member_id=member_id, generation_id=2) is None
    with pytest.raises(StaleMemberEpochError):
        replayed.commit("g-consumer", 42, member_id=member_id, generation_id=1)
    strangers: list[dict[str, Any]] = [{}, {"member_id": "stranger", "generation_id": 2}]
    for who in strangers:
        with pytest.raises(UnknownMemberIdError):
            replayed.commit("g-consumer", 42, **who)
    replayed.transactions.load()
    producer = replayed.producer("new")
    with pytest.raises(IllegalGenerationError):
        producer.commit_offset("g-consumer", 43, member_id=member_id, generation_id=1)
    with pytest.raises(UnknownMemberIdError):
        producer.commit_offset("g-consumer", 43, member_id="stranger", generation_id=2)
    assert producer.commit_offset("g-consumer", 44, member_id=member_id, generation_id=2) is None
    assert producer.commit_offset("g-consumer", 45) is None, "before KIP-447 nobody said who he was"
    producer.end(committed=True)
    assert replayed.committed("g-consumer") == 45


def test_a_classic_member_may_join_a_newer_group_once_it_is_empty(
    replayed: Stage, clock: ManualClock, tmp_path: Path
) -> None:
    member = replayed.member("g-consumer")
    with pytest.raises(OncelogError, match="newer protocol"):
        member.join()
    clock.advance(45_001)
    replayed.groups.tick()
    gather(member)
    listed = {row.group_id: row.type for row in replayed.groups.list_groups()}
    assert listed["g-consumer"] == "classic"
    assert replayed.committed("g-consumer") == 40
    replayed.close()
    again = Stage(tmp_path, clock, load=False)
    again.groups.load()
    described = again.groups.describe_groups(["g-consumer"])["g-consumer"]
    assert not isinstance(described, OncelogError)
    assert (described.type, described.state) == ("classic", GroupState.STABLE)
    again.close()


# ---------------------------------------------------------------- our own log


def state_of(made: Stage) -> tuple[object, ...]:
    """All that anybody can learn of the groups."""
    names = [row.group_id for row in made.groups.list_groups()]
    return (
        made.groups.list_groups(),
        made.groups.describe_groups(names),
        {name: made.groups.offset_fetch(name) for name in names},
        {
            name: made.groups.offset_fetch(name, [IN0, IN1], require_stable=True).keys()
            for name in names
        },
        {
            (name, key): made.committed(name, key, require_stable=True)
            for name in names
            for key in (IN0, IN1)
        },
    )


def test_unload_and_load_give_the_same_state(tmp_path: Path) -> None:
    """Goal: members, generations, offsets, tombstones, and transactions that are open, ended and mixed."""
    clock = ManualClock()
    with stage(tmp_path, clock) as made:
        gather(made.member("team"), made.member("team", group_instance_id="static"))
        made.commit("simple", 3)
        made.commit("simple", 4, IN1)
        made.groups.offset_delete("simple", [IN1])
        first, second, third = (made.producer(name) for name in "abc")
        first.commit_offset("simple", 10)
        second.commit_offset("simple", 11, IN1)
        third.commit_offset("other", 12)
        made.commit("simple", 5)
        first.end(committed=True)
        third.end(committed=False)
        made.commit("doomed", 1)
        made.groups.delete_groups(["doomed"])
        made.commit("doomed", 2)
        before = state_of(made)
    with stage(tmp_path, clock) as made:
        assert state_of(made) == before
        assert made.committed("simple") == 5, "the plain commit lies later in the log"
        assert made.committed("doomed") == 2


def test_replay_of_markers_for_unknown_producers_is_a_no_op(tmp_path: Path) -> None:
    with stage(tmp_path, partition_count=1) as made:
        made.commit("g", 1)
        made.write_marker(
            TopicPartition(OFFSETS, 0),
            producer_id=77,
            producer_epoch=3,
            committed=True,
            coordinator_epoch=0,
            transaction_version=2,
        )
        assert made.committed("g") == 1
    with stage(tmp_path, partition_count=1) as made:
        assert made.committed("g", require_stable=True) == 1


def test_several_partitions_end_their_transactions_independently(tmp_path: Path) -> None:
    with stage(tmp_path) as made:
        assert made.groups.offsets_partition("a") != made.groups.offsets_partition("b")
        producer = made.producer()
        producer.commit_offset("a", 1)
        producer.commit_offset("b", 2)
        made.write_marker(
            made.groups.offsets_partition("a"),
            producer.producer_id,
            producer.epoch + 1,
            committed=True,
            coordinator_epoch=0,
            transaction_version=2,
        )
        assert made.committed("a", require_stable=True) == 1
        assert made.committed("b") is None
        assert isinstance(made.committed("b", require_stable=True), type)


def append(path: Path, rows: list[tuple[bytes, bytes | None]]) -> None:
    """Puts records into partition 0, whatever they are."""
    with stage(path, partition_count=1, load=False) as made:
        made.state.append(0, rows)


@pytest.mark.parametrize("version", range(4))
def test_offsets_of_older_kafkas_are_read(tmp_path: Path, version: int) -> None:
    value = encode_offset_value(OffsetValue(9, -1, "m", NOW, -1), version)
    key = encode_offset_key("g", "in", 0)
    append(tmp_path, [(b"\x00\x00" + key[2:] if version == 0 else key, value)])
    with stage(tmp_path, partition_count=1) as made:
        assert made.committed("g") == 9
        found = made.groups.offset_fetch("g")[IN0]
        assert not isinstance(found, OncelogError)
        assert found is not None
        assert found.metadata == "m"


def test_records_of_unknown_kinds_are_passed_over(tmp_path: Path) -> None:
    append(
        tmp_path,
        [
            (b"\x00\x63whatever", b"x"),
            (encode_offset_key("g", "in", 0), encode_offset_value(OffsetValue(4))),
        ],
    )
    with stage(tmp_path, partition_count=1) as made:
        assert made.committed("g") == 4


DAMAGED = {
    "newer offset": (encode_offset_key("g", "in", 0), b"\x00\x05" + bytes(30), "version 5"),
    "cut offset": (encode_offset_key("g", "in", 0), b"\x00\x04\x00", "damaged"),
    "cut key": (encode_offset_key("g", "in", 0)[:-2], b"\x00\x04", "damaged"),
    "short key": (b"\x00", b"", "damaged"),
    "not a text": (
        b"\x00\x01\x00\x01\xff\x00\x01a\x00\x00\x00\x00",
        encode_offset_value(OffsetValue(1)),
        "UTF-8",
    ),
    "newer group": (encode_group_key(RecordType.GROUP, "g"), b"\x00\x07", "version 7"),
    "cut group": (
        encode_group_key(RecordType.GROUP, "g"),
        encode_group_value(GroupValue("consumer", 1, "range", None, 5, ()))[:-1],
        "damaged",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_partition_that_cannot_be_read_makes_its_groups_unavailable(
    tmp_path: Path, name: str
) -> None:
    """Goal: no group silently starts over at the beginning, or at the end."""
    key, value, why = DAMAGED[name]
    append(tmp_path, [(key, value)])
    with stage(tmp_path, partition_count=1) as made:
        with pytest.raises(CoordinatorNotAvailableError, match=why):
            made.committed("g")
        with pytest.raises(CoordinatorNotAvailableError, match=why):
            made.commit("g", 1)


def test_while_the_log_is_read_everybody_is_asked_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(tmp_path, load=False) as made:

        def load(*_: object) -> None:
            for call in (
                lambda: made.commit("g", 1),
                lambda: made.producer().commit_offset("g", 1),
                lambda: made.committed("g"),
                made.groups.list_groups,
            ):
                with pytest.raises(CoordinatorLoadInProgressError):
                    call()

        with monkeypatch.context() as patched:
            patched.setattr(GroupRegistry, "load", load)
            made.groups.load()
        assert made.commit("g", 1) is None


def test_compressed_offsets_are_read(tmp_path: Path) -> None:
    rows = [
        (encode_offset_key("g", "in", n), encode_offset_value(OffsetValue(n))) for n in range(50)
    ]
    with stage(tmp_path, partition_count=1, load=False) as made:
        batch = encode(
            [value for _, value in rows],
            keys=[key for key, _ in rows],
            compression="lz4",
            timestamp_ms=NOW,
        )
        made.partition(TopicPartition(OFFSETS, 0)).append_as_leader(
            memoryview(batch), leader_epoch=0, now_ms=NOW
        )
        made.groups.load()
        assert made.committed("g", TopicPartition("in", 49)) == 49
        assert len(made.groups.offset_fetch("g")) == 50
