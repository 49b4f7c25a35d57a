"""Whatever order things come in: offsets are those of a model that fits a page, and a group keeps its promises."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from oncelog._native.offsets import CommittedOffset, OffsetTable
from oncelog.base.errors import (
    CorruptRecordError,
    GroupIdNotFoundError,
    OncelogError,
    UnsupportedVersionError,
)
from oncelog.broker.group_answers import OffsetCommit
from oncelog.broker.group_metadata import GroupMetadata, GroupState
from oncelog.broker.group_offsets import GroupOffsets, _decode_other
from oncelog.broker.group_records import (
    NO_TOPIC_ID,
    OffsetKey,
    OffsetValue,
    decode_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from oncelog.broker.pending import Pending
from oncelog.partition.partition import Isolation
from oncelog.segment.batch import decode, encode, scan
from oncelog.segment.names import TopicPartition

from .brokers import ManualClock
from .groups import OFFSETS, Stage, Transactional, stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GROUPS = ["g", "h", "other/group"]
KEYS = [TopicPartition(topic, number) for topic in ("in", "out") for number in (0, 1, 900)]
PRODUCERS = ["a", "b"]
GROUP, KEY, PRODUCER = st.sampled_from(GROUPS), st.sampled_from(KEYS), st.sampled_from(PRODUCERS)
OFFSET = st.integers(0, 2**50)

MEMBER = st.integers(0, 4)

Place = tuple[str, TopicPartition]


class OffsetMachine(RuleBasedStateMachine):
    """The model: the log as a list. An offset counts if it is plain, or its transaction has committed; the last wins."""

    def __init__(self) -> None:
        super().__init__()
        self.path = tempfile.mkdtemp()
        self.clock = ManualClock()
        self.stage = Stage(self.path, self.clock, partition_count=2)
        self.producers: dict[str, Transactional] = {}
        self.committed: dict[Place, tuple[int, int]] = {}  # place in the log, offset
        self.pending: dict[str, dict[Place, tuple[int, int]]] = {name: {} for name in PRODUCERS}
        self.length = 0

    def teardown(self) -> None:
        self.stage.close()
        shutil.rmtree(self.path)

    def _next(self) -> int:
        self.length += 1
        return self.length

    @rule(group=GROUP, offsets=st.dictionaries(KEY, OFFSET, min_size=1))
    def commit(self, group: str, offsets: dict[TopicPartition, int]) -> None:
        commits = {key: OffsetCommit(offset) for key, offset in offsets.items()}
        self.stage.groups.offset_commit(group, commits)
        for key, offset in offsets.items():
            self.committed[group, key] = (self._next(), offset)

    @rule(producer=PRODUCER, group=GROUP, key=KEY, offset=OFFSET)
    def commit_in_transaction(
        self, producer: str, group: str, key: TopicPartition, offset: int
    ) -> None:
        if producer not in self.producers:
            self.producers[producer] = self.stage.producer(producer)
        self.producers[producer].commit_offset(group, offset, key)
        self.pending[producer][group, key] = (self._next(), offset)

    @precondition(lambda self: any(self.pending.values()))
    @rule(producer=PRODUCER, committed=st.booleans())
    def end(self, producer: str, committed: bool) -> None:
        if not self.pending[producer]:
            return
        self.producers[producer].end(committed=committed)
        for place, entry in self.pending[producer].items():
            if committed and entry > self.committed.get(place, (0, 0)):
                self.committed[place] = entry
        self.pending[producer] = {}

    @rule(group=GROUP, keys=st.sets(KEY, min_size=1))
    def delete(self, group: str, keys: set[TopicPartition]) -> None:
        try:
            self.stage.groups.offset_delete(group, keys)
        except GroupIdNotFoundError:
            assert not any(place[0] == group for place in self._places())
        for key in keys:
            for table in (self.committed, *self.pending.values()):
                table.pop((group, key), None)

    @rule(group=GROUP)
    def delete_group(self, group: str) -> None:
        self.stage.groups.delete_groups([group])
        for table in (self.committed, *self.pending.values()):
            for place in [place for place in table if place[0] == group]:
                del table[place]

    @rule(topic=st.sampled_from(["in", "out"]))
    def delete_topic(self, topic: str) -> None:
        self.stage.groups.on_topic_deleted(topic)
        for table in (self.committed, *self.pending.values()):
            for place in [place for place in table if place[1].topic == topic]:
                del table[place]

    @rule()
    def restart(self) -> None:
        self.stage.close()
        self.stage = Stage(self.path, self.clock, partition_count=2)
        for producer in self.producers.values():
            producer.stage = self.stage

    def _places(self) -> set[Place]:
        found = set(self.committed)
        for table in self.pending.values():
            found.update(table)
        return found

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        for group in GROUPS:
            found = self.stage.groups.offset_fetch(group)
            assert {key: getattr(value, "offset", None) for key, value in found.items()} == {
                key: offset for (name, key), (_, offset) in self.committed.items() if name == group
            }
            stable = self.stage.groups.offset_fetch(group, KEYS, require_stable=True)
            unstable = {key for key, value in stable.items() if isinstance(value, Exception)}
            assert unstable == {
                key for table in self.pending.values() for name, key in table if name == group
            }

    @invariant()
    def groups_are_those_that_have_something(self) -> None:
        listed = {row.group_id for row in self.stage.groups.list_groups()}
        assert listed == {group for group, _ in self._places()}


TestOffsets = OffsetMachine.TestCase
TestOffsets.settings = settings(stateful_step_count=40, deadline=None)


class MembershipMachine(RuleBasedStateMachine):
    """Members that do anything at any time. Nobody's answer is lost, nobody leads who is not there, the counts that make
    joining quick are true, and time alone empties the group."""

    def __init__(self) -> None:
        super().__init__()
        self.path = tempfile.mkdtemp()
        self.clock = ManualClock()
        self.stage = Stage(self.path, self.clock, partition_count=1)
        self.members = [
            self.stage.member(
                client_id=str(number),
                group_instance_id=f"i{number}" if number < 2 else None,
                session_timeout_ms=10_000 + 1000 * number,
                rebalance_timeout_ms=20_000,
                protocols=("range", "sticky") if number % 2 else ("sticky", "range"),
            )
            for number in range(5)
        ]
        self.waiting: list[Pending[Any]] = []

    def teardown(self) -> None:
        """Goal: whatever was going on, time alone answers everybody."""
        for _ in range(40):
            self.clock.advance(20_000)
            self.stage.groups.tick()
        assert all(pending.done() for pending in self.waiting)
        assert all(row.state is GroupState.EMPTY for row in self.stage.groups.list_groups())
        self.stage.close()
        shutil.rmtree(self.path)

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            answer = call()
        except OncelogError:
            return
        if isinstance(answer, Pending):
            self.waiting.append(answer)

    @rule(number=MEMBER)
    def join(self, number: int) -> None:
        self._learn(number)
        self._try(self.members[number].join)

    def _learn(self, number: int) -> None:
        member = self.members[number]
        if member.pending is not None and member.pending.done():
            try:
                member.joined()
            except OncelogError:
                member.member_id = ""

    @rule(number=MEMBER)
    def sync(self, number: int) -> None:
        self._learn(number)
        self._try(lambda: self.members[number].sync({}))

    @rule(number=MEMBER)
    def heartbeat(self, number: int) -> None:
        self._try(self.members[number].heartbeat)

    @rule(number=MEMBER)
    def leave(self, number: int) -> None:
        self._learn(number)
        self._try(self.members[number].leave)

    @rule(number=MEMBER)
    def forget_who_one_is(self, number: int) -> None:
        self.members[number].member_id = ""

    @rule(ms=st.integers(1, 15_000))
    def let_time_pass(self, ms: int) -> None:
        self.clock.advance(ms)
        self.stage.groups.tick()

    @rule()
    def restart(self) -> None:
        self.stage.close()
        self.stage = Stage(self.path, self.clock, partition_count=1)
        for member in self.members:
            member.stage = self.stage

    @invariant()
    def the_group_is_sound(self) -> None:
        group = self.stage.groups._groups.get("g")
        if not isinstance(group, GroupMetadata):
            return
        members = group.members.values()
        assert group.joining == sum(member.joining is not None for member in members)
        names = Counter(name for member in members for name, _ in member.protocols)
        assert {name: count for name, count in group.known.items() if count} == names
        assert group.unsynced <= set(group.members)
        assert set(group.instances.values()) <= set(group.members)
        assert group.leader is None or group.leader in group.members
        if group.state is GroupState.EMPTY:
            assert not group.members
        else:
            assert group.members
            assert group.leader is not None
        if group.state is GroupState.STABLE:
            assert not any(member.is_waiting for member in members)
        if group.state is GroupState.PREPARING_REBALANCE:
            assert group.join_deadline_ms is not None
            assert not any(member.syncing is not None for member in members)
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert group.sync_deadline_ms is not None or not group.unsynced


TestMembership = MembershipMachine.TestCase
TestMembership.settings = settings(stateful_step_count=40, deadline=None)


# ---------------------------------------------------------------- two readers of one format


VALUES = st.builds(
    OffsetValue,
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.integers(-1, 2**62),
    st.just(-1),
    st.sampled_from([NO_TOPIC_ID, b"t" * 16]),
)


@given(
    st.sampled_from(GROUPS),
    st.integers(0, 2**31 - 1),
    VALUES,
    st.integers(0, 4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 300), st.integers(0, 255)), max_size=3),
    st.integers(0, 3),
)
def test_the_quick_reader_and_the_other_one_agree(
    group: str,
    partition: int,
    value: OffsetValue,
    version: int,
    flips: list[tuple[bool, int, int]],
    cut: int,
) -> None:
    """Goal: a record, sound or damaged, is read the same by the native table and by group_records, or refused by
    both; nothing is read past its end."""
    key, data = (
        bytearray(encode_offset_key(group, "in", partition)),
        bytearray(encode_offset_value(value, version)),
    )
    for in_key, at, byte in flips:
        target = key if in_key else data
        target[2 + at % (len(target) - 2)] = byte
    data = data[: len(data) - cut]
    table = OffsetTable(_decode_other)
    batch = encode([bytes(data)], keys=[bytes(key)], timestamp_ms=1, base_offset=7)
    expected: tuple[OffsetKey, OffsetValue] | None
    try:
        found = decode_key(bytes(key))
        assert isinstance(found, OffsetKey)
        expected = (found, decode_offset_value(bytes(data)))
    except (CorruptRecordError, UnsupportedVersionError):
        expected = None
    if expected is None:
        with pytest.raises((CorruptRecordError, UnsupportedVersionError)):
            table.apply(batch, [0])
        return
    assert table.apply(batch, [0]) == []
    (name, topic, number), told = expected
    row = table.groups[name][topic].get(number)
    topic_id = b"" if told.topic_id == NO_TOPIC_ID else told.topic_id
    assert row == CommittedOffset(*told[:5], topic_id)
    assert row is not None
    assert row.record_offset == 7
    assert list(table.groups[name][topic]) == [number]


# ---------------------------------------------------------------- speed


def test_many_offsets_load_in_linear_time_at_a_fifth_of_a_bare_decode(tmp_path: Path) -> None:
    """Goal: a start with very many committed offsets is bound by reading them.
    Method: 200 commits of 1,000 offsets, against decoding the same file into columns; and against half of them."""

    def fill(made: Stage, count: int) -> None:
        for number in range(count):
            group = f"group-{number}"
            rows = [
                (
                    encode_offset_key(group, "payments", n),
                    encode_offset_value(OffsetValue(n, 0, "", 5)),
                )
                for n in range(1000)
            ]
            made.state.append(0, rows)

    def timed_load(made: Stage) -> float:
        best = 1e9
        for _ in range(5):
            offsets = GroupOffsets(made.state, made.clock)
            start = time.thread_time()
            assert list(offsets.load()) == []
            best = min(best, time.thread_time() - start)
        return best

    with stage(tmp_path, partition_count=1, load=False) as made:
        fill(made, 100)
        half = timed_load(made)
        fill(made, 100)
        whole = timed_load(made)
        log = made.partition(TopicPartition(OFFSETS, 0))
        bare = 1e9
        for _ in range(5):
            start = time.thread_time()
            for window in log.windows(0, log.log_end_offset, Isolation.LOG_END):
                for _ in decode(window.segment.view(), window.rows):
                    pass
            bare = min(bare, time.thread_time() - start)
    assert bare / whole >= 0.2, f"bare {bare:.4f} s, load {whole:.4f} s"
    assert whole < 3.5 * half


ALIKE = st.builds(
    OffsetValue,
    st.integers(0, 2**62),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(["", "", "", "kept", "\N{SNOWMAN}"]),
    st.integers(-1, 2**62),
    st.sampled_from([-1, -1, -1, 5]),
    st.sampled_from([NO_TOPIC_ID, b"t" * 16, b"u" * 16]),
)
IN_A_ROW = st.tuples(
    st.sampled_from(["g", "g", "g", "h"]),
    st.sampled_from(["in", "in", "in", "on"]),
    st.one_of(st.integers(0, 5), st.sampled_from([17, 40, 2**31 - 1])),
    st.one_of(ALIKE, ALIKE, ALIKE, st.none()),
)


def _change(field: str, *values: Any) -> list[tuple[Any, int]]:
    """Runs of three that are alike but for one field of the value."""
    plain = OffsetValue(9, topic_id=b"t" * 16)
    changed = [plain._replace(**{field: value}) for value in values]
    return [(("g", "in", 3 * number, value), 3) for number, value in enumerate(changed)]


@example(_change("topic_id", b"t" * 16, b"u" * 16, NO_TOPIC_ID, b"t" * 16), 4)
@example(_change("metadata", "", "kept", ""), 4)
@example(_change("expire_ms", -1, 5, -1), 4)
@given(
    st.lists(st.tuples(IN_A_ROW, st.integers(1, 150)), max_size=8), st.sampled_from([4, 4, 3, 1])
)
def test_records_in_a_row_count_as_they_would_alone(
    runs: list[tuple[tuple[str, str, int, OffsetValue | None], int]], version: int
) -> None:
    """Goal: a record that differs from the one before in numbers alone takes a short way, and amounts to the same.
    Method: runs of such records, with others between them, against a dictionary of what each says."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    expected: dict[OffsetKey, CommittedOffset] = {}
    for (group, topic, first, value), length in runs:
        for step in range(length if first < 100 else 1):
            key, place = OffsetKey(group, topic, first + step), len(keys)
            keys.append(encode_offset_key(*key))
            if value is None:
                values.append(None)
                expected.pop(key, None)
                continue
            told = value._replace(offset=value.offset - step if value.offset > step else step)
            data = encode_offset_value(told, None if told.expire_ms != -1 else version)
            values.append(data)
            told = decode_offset_value(data)
            topic_id = b"" if told.topic_id == NO_TOPIC_ID else told.topic_id
            expected[key] = CommittedOffset(*told[:5], topic_id, record_offset=7 + place)
    table = OffsetTable(_decode_other)
    if keys:
        batches = encode(values, keys=keys, timestamp_ms=1, base_offset=7)
        assert table.apply(batches, scan(batches)["position"]) == []
    found = {
        OffsetKey(group, topic, number): row
        for group, topics in table.groups.items()
        for topic, rows in topics.items()
        for number, row in rows.items()
    }
    assert found == expected
    assert all(row.record_offset == expected[key].record_offset for key, row in found.items())
    assert sum(len(rows) for topics in table.groups.values() for rows in topics.values()) == len(
        found
    )
