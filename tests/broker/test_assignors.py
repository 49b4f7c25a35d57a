"""Assignors give every partition to one member that reads it, evenly, and the sticky ones move no more than they must."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import InvalidConfigError
from oncelog.broker.assignors import (
    ASSIGNORS,
    Members,
    MemberSubscription,
    Partitions,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
    assignor,
)
from oncelog.broker.group_protocol import decode_sticky_data, encode_sticky_data
from oncelog.segment.names import TopicPartition


def keys(*names: str) -> list[TopicPartition]:
    """``a0 b1`` as partitions."""
    return [TopicPartition(name[0], int(name[1:])) for name in names]


def members(**topics: str) -> Members:
    """Members by the letters of the topics that they read."""
    return {name: MemberSubscription(tuple(letters)) for name, letters in topics.items()}


def having(given_members: Members, assignment: Partitions, generation: int = 1) -> Members:
    """The same members after a generation with that assignment."""
    return {
        name: member._replace(owned=tuple(assignment.get(name, ())), generation=generation)
        for name, member in given_members.items()
    }


def moved(before: Partitions, after: Partitions) -> set[TopicPartition]:
    """Partitions that somebody had and that somebody else has now."""
    owner = {key: name for name, owned in before.items() for key in owned}
    return {
        key for name, owned in after.items() for key in owned if key in owner and owner[key] != name
    }


# ---------------------------------------------------------------- as in Kafka's documentation


def test_range_splits_each_topic_by_itself() -> None:
    assert assign_range(members(x="ab", y="ab"), {"a": 3, "b": 3}) == {
        "x": keys("a0", "a1", "b0", "b1"),
        "y": keys("a2", "b2"),
    }


def test_round_robin_deals_out_all_topics_in_turn() -> None:
    assert assign_round_robin(members(x="ab", y="ab"), {"a": 3, "b": 3}) == {
        "x": keys("a0", "a2", "b1"),
        "y": keys("a1", "b0", "b2"),
    }


def test_round_robin_passes_over_members_that_do_not_read_a_topic() -> None:
    found = assign_round_robin(members(x="a", y="ab", z="abc"), {"a": 1, "b": 2, "c": 3})
    assert found == {"x": keys("a0"), "y": keys("b0"), "z": keys("b1", "c0", "c1", "c2")}


def test_sticky_balances_where_round_robin_cannot() -> None:
    found = assign_sticky(members(x="a", y="ab", z="abc"), {"a": 1, "b": 2, "c": 3})
    assert found == {"x": keys("a0"), "y": keys("b0", "b1"), "z": keys("c0", "c1", "c2")}


def test_sticky_deals_out_like_round_robin_at_first() -> None:
    found = assign_sticky(members(x="abcd", y="abcd", z="abcd"), dict.fromkeys("abcd", 2))
    assert found == {
        "x": keys("a0", "b1", "d0"),
        "y": keys("a1", "c0", "d1"),
        "z": keys("b0", "c1"),
    }


def test_sticky_gives_a_leavers_partitions_to_the_rest_and_moves_nothing_else() -> None:
    three = members(x="abcd", y="abcd", z="abcd")
    counts = dict.fromkeys("abcd", 2)
    before = assign_sticky(three, counts)
    two = {name: member for name, member in having(three, before).items() if name != "y"}
    after = assign_sticky(two, counts)
    assert set(before["x"]) < set(after["x"])
    assert set(before["z"]) < set(after["z"])
    assert sorted(len(owned) for owned in after.values()) == [4, 4]


def test_static_members_keep_their_place_whatever_their_ids() -> None:
    for assign in (assign_range, assign_round_robin):
        one = {
            "z": MemberSubscription(("a",), instance_id="1"),
            "b": MemberSubscription(("a",)),
            "y": MemberSubscription(("a",), instance_id="2"),
        }
        assert assign(one, {"a": 3}) == {"z": keys("a0"), "y": keys("a1"), "b": keys("a2")}


def test_the_later_generation_owns_what_two_claim() -> None:
    both = {
        "x": MemberSubscription(("a",), tuple(keys("a0", "a1")), 4),
        "y": MemberSubscription(("a",), tuple(keys("a0", "a1")), 5),
        "z": MemberSubscription(("a",)),
    }
    found = assign_sticky(both, {"a": 3})
    assert found["y"][0] in keys("a0", "a1")
    assert sorted(len(owned) for owned in found.values()) == [1, 1, 1]


def test_what_two_claim_in_one_generation_is_nobodys_in_the_cooperative_protocol() -> None:
    """Goal: both believe to own it; until both have heard that they do not, nobody may read it."""
    both = {
        "x": MemberSubscription(("a",), tuple(keys("a0", "a1")), 5),
        "y": MemberSubscription(("a",), tuple(keys("a0", "a2")), 5),
    }
    found = assign_cooperative_sticky(both, {"a": 3})
    assert {key for owned in found.values() for key in owned} == set(keys("a1", "a2"))


def test_cooperative_withholds_what_moves_and_nothing_else() -> None:
    one = members(x="a")
    before = assign_cooperative_sticky(one, {"a": 4})
    two = {**having(one, before), **members(y="a")}
    first = assign_cooperative_sticky(two, {"a": 4})
    assert first == {"x": keys("a0", "a1"), "y": []}
    second = assign_cooperative_sticky(having(two, first, 2), {"a": 4})
    assert second == {"x": keys("a0", "a1"), "y": keys("a2", "a3")}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_edges(name: str) -> None:
    assign = ASSIGNORS[name]
    assert assign({}, {"a": 3}) == {}
    assert assign(members(x="a"), {}) == {"x": []}
    assert assign(members(x="", y="a"), {"a": 2}) == {"x": [], "y": keys("a0", "a1")}
    assert assign(members(x="ab"), {"a": 1, "c": 5}) == {"x": keys("a0")}
    crowd = assign(members(x="a", y="a", z="a"), {"a": 1})
    assert sorted(len(owned) for owned in crowd.values()) == [0, 0, 1]
    gone = {"x": MemberSubscription(("a",), tuple(keys("b0", "a7")), 3)}
    assert assign(gone, {"a": 1}) == {"x": keys("a0")}


def test_an_unknown_assignor_is_named() -> None:
    assert assignor("range") is assign_range
    with pytest.raises(InvalidConfigError, match="cooperative-sticky"):
        assignor("best")


# ---------------------------------------------------------------- for all


COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)
NAMES = st.sampled_from([f"m{n}" for n in range(9)])
ALIKE = st.builds(
    lambda names, topics: {name: MemberSubscription(tuple(sorted(topics))) for name in names},
    st.sets(NAMES, min_size=1),
    st.sets(st.sampled_from("abcdefg"), min_size=1),
)
DIFFERENT = st.dictionaries(
    NAMES,
    st.sets(st.sampled_from("abcdefg")).map(
        lambda topics: MemberSubscription(tuple(sorted(topics)))
    ),
    min_size=1,
)


def check_complete(given_members: Members, counts: dict[str, int], found: Partitions) -> None:
    """Every partition that somebody reads has one owner, who reads it."""
    assert set(found) == set(given_members)
    wanted = {topic for member in given_members.values() for topic in member.topics}
    everything = [
        TopicPartition(topic, number) for topic in counts for number in range(counts[topic])
    ]
    given_out = Counter(key for owned in found.values() for key in owned)
    assert given_out == Counter(key for key in everything if key.topic in wanted)
    for name, owned in found.items():
        assert {key.topic for key in owned} <= set(given_members[name].topics)


def check_balanced(given_members: Members, found: Partitions) -> None:
    """Nobody has two more than another that could read one of its partitions."""
    for name, owned in found.items():
        for topic in {key.topic for key in owned}:
            for other, member in given_members.items():
                if topic in member.topics:
                    assert len(owned) <= len(found[other]) + 1, (name, other)


@given(
    st.one_of(ALIKE, DIFFERENT),
    COUNTS,
    st.sampled_from(["range", "roundrobin", "sticky", "cooperative-sticky"]),
)
def test_every_partition_has_one_owner_who_reads_it(
    given_members: Members, counts: dict[str, int], name: str
) -> None:
    check_complete(given_members, counts, ASSIGNORS[name](given_members, counts))


@given(st.one_of(ALIKE, DIFFERENT), COUNTS)
def test_sticky_is_balanced(given_members: Members, counts: dict[str, int]) -> None:
    check_balanced(given_members, assign_sticky(given_members, counts))


@given(ALIKE, COUNTS)
def test_range_and_round_robin_are_even_where_all_read_the_same(
    given_members: Members, counts: dict[str, int]
) -> None:
    sizes = {len(owned) for owned in assign_round_robin(given_members, counts).values()}
    assert max(sizes) - min(sizes) <= 1
    for owned in assign_range(given_members, counts).values():
        for topic, count in Counter(key.topic for key in owned).items():
            assert count - counts[topic] // len(given_members) in (0, 1)


@given(st.one_of(ALIKE, DIFFERENT), COUNTS)
def test_sticky_moves_nothing_when_nothing_has_changed(
    given_members: Members, counts: dict[str, int]
) -> None:
    before = assign_sticky(given_members, counts)
    after = assign_sticky(having(given_members, before), counts)
    assert moved(before, after) == set()
    check_complete(given_members, counts, after)


@given(st.one_of(ALIKE, DIFFERENT), COUNTS, st.data())
def test_sticky_keeps_what_the_rest_has_when_a_member_leaves(
    given_members: Members, counts: dict[str, int], data: st.DataObject
) -> None:
    """Goal: a leaver frees partitions; where all read the same, nothing else moves."""
    before = assign_sticky(given_members, counts)
    leaver = data.draw(st.sampled_from(sorted(given_members)))
    rest = {name: row for name, row in having(given_members, before).items() if name != leaver}
    after = assign_sticky(rest, counts)
    check_complete(rest, counts, after)
    check_balanced(rest, after)
    if rest and len({row.topics for row in rest.values()}) == 1:
        assert moved({name: before[name] for name in rest}, after) == set()


@given(ALIKE, COUNTS)
def test_sticky_moves_only_to_the_newcomer_and_only_its_share(
    given_members: Members, counts: dict[str, int]
) -> None:
    before = assign_sticky(given_members, counts)
    topics = next(iter(given_members.values())).topics
    more = {**having(given_members, before), "new": MemberSubscription(topics)}
    after = assign_sticky(more, counts)
    assert moved(before, after) == set(after["new"])
    check_balanced(more, after)


@given(st.one_of(ALIKE, DIFFERENT), st.one_of(ALIKE, DIFFERENT), COUNTS, COUNTS)
def test_cooperative_never_gives_away_what_somebody_still_has(
    first: Members, second: Members, counts: dict[str, int], later: dict[str, int]
) -> None:
    """Goal: whatever changes, a partition is taken up only after its owner gave it up, and the assignment is complete
    after one more round where all read the same, and after few where they do not."""
    before = assign_cooperative_sticky(first, counts)
    now = {
        name: member._replace(
            owned=tuple(before.get(name, ())), generation=1 if name in before else -1
        )
        for name, member in second.items()
    }
    is_alike = len({member.topics for member in second.values()}) == 1
    for generation in range(2, 4 if is_alike else 8):
        found = assign_cooperative_sticky(now, later)
        owner = {key: name for name in now for key in now[name].owned}
        eager = assign_sticky(now, later)
        for name, owned in found.items():
            assert all(owner.get(key, name) == name for key in owned)
            assert set(owned) <= set(eager[name])
        if {name: set(owned) for name, owned in found.items()} == {
            name: set(owned) for name, owned in eager.items()
        }:
            break
        now = having(second, found, generation)
    check_complete(second, later, found)
    check_balanced(second, found)


@given(
    st.lists(st.builds(TopicPartition, st.text("ab", max_size=3), st.integers(0, 99))),
    st.integers(-1, 2**31 - 1),
)
def test_what_a_sticky_member_had_survives_its_user_data(
    owned: list[TopicPartition], generation: int
) -> None:
    owned = sorted(set(owned))
    data = encode_sticky_data(owned, generation)
    assert decode_sticky_data(data) == (tuple(owned), generation)
    assert decode_sticky_data(data[:-4]) == (tuple(owned), -1)


@given(st.binary(max_size=40))
def test_any_other_user_data_is_no_claim(data: bytes) -> None:
    partitions, generation = decode_sticky_data(data)
    assert isinstance(partitions, tuple)
    assert isinstance(generation, int)


# ---------------------------------------------------------------- growth


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("is_alike", [True, False])
def test_assigning_grows_like_sorting(name: str, is_alike: bool) -> None:
    """Goal: 100 members over 1,000 partitions, then four times of both, from scratch and after a change.
    Method: the time of this thread alone, best of five, must stay below that for 16 times the pairs of a member and a
    partition; sorting takes about five times as long."""
    topics = [f"t{n}" for n in range(10)]

    def run(member_count: int, partition_count: int) -> float:
        counts = dict.fromkeys(topics, partition_count // len(topics))
        made = {
            f"m{n:04d}": MemberSubscription(tuple(topics if is_alike or n % 2 else topics[:5]))
            for n in range(member_count)
        }
        best = 1e9
        for _ in range(5):
            start = time.thread_time()
            before = ASSIGNORS[name](made, counts)
            rest = having(made, before)
            rest.pop("m0001")
            ASSIGNORS[name](rest, counts)
            best = min(best, time.thread_time() - start)
        return best

    small, large = run(100, 1000), run(400, 4000)
    assert large < 12 * small, (small, large)
