"""What do groups cost?
Times    "commit": synchronous commits of one offset, back to back. "rebalance": who reads what, for 100 members and
         1,000 partitions. "load": a million committed offsets, 1,000 to a batch, read again at start.
Excludes opening, writing the offsets.
Anchor   for "commit" as many bare write() as the limit, and confluent-kafka on the mock cluster in the same process, which keeps offsets in memory, for
         "commit.broker" on the real one that ONCELOG_BENCH_KAFKA names (make bench-kafka starts it); for "rebalance"
         the same with a tenth of the partitions, ten times; for "load" a decode of the same bytes into columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncelog.broker.assignors import ASSIGNORS, MemberSubscription
from oncelog.broker.group_answers import GroupOptions, OffsetCommit
from oncelog.broker.group_coordinator import GroupCoordinator
from oncelog.broker.topics import CONSUMER_OFFSETS
from oncelog.segment.batch import decode
from oncelog.segment.names import TopicPartition

from .bench_send import TOPIC, Log
from .client_peers import FLUSH_SECONDS, Mock, confluent
from .harness import Case, Contestant, Role, Unit
from .stores import bare_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

COMMITS: Final = 50
COMMIT_BYTES: Final = 120
WARM_UP: Final = (
    5_000  # a broker that has just started is several times as slow: Java compiles as it goes
)
OFFSETS: Final = 1_000_000
PER_COMMIT: Final = 1_000
TENTH: Final = "a tenth, ten times"
DECODE: Final = "decode alone"


def _commits(count: int) -> Contestant:
    log = Log("groups")
    consumer = log.log.consumer(group_id="g", enable_auto_commit=False)
    consumer.assign([(TOPIC, 0)])
    place = TopicPartition(TOPIC, 0)
    offsets = {place: 1}

    def call(log: Log = log) -> None:
        for _ in range(count):
            consumer.commit(offsets)

    def reveal() -> int:
        call()
        found = consumer.committed([place])[place]
        assert found is not None
        return int(found.offset)

    return Contestant("oncelog", Role.OURS, call, reveal=reveal)


def _write(count: int) -> Contestant:
    """As many write() to the end of a file, each of about the bytes that a commit of one offset takes in the log."""
    return bare_file([b"x" * COMMIT_BYTES] * count, 1, synced=False, is_compared=False)


def _confluent_commits(settings: Settings, count: int, *, on_broker: bool) -> Contestant:
    """The same by Kafka's C client, as a group without members, after its coordinator was found."""

    def commits(mock: Mock) -> Callable[[], object]:
        mock.produce([b"value"])
        consumer = mock.consumer()
        consumer.poll(FLUSH_SECONDS)
        offsets = [mock.partition(1)]
        for _ in range(WARM_UP if on_broker and not settings.quick else 0):
            consumer.commit(offsets=offsets, asynchronous=False)

        def call(mock: Mock = mock) -> None:  # whose producer is the cluster, as long as it lives
            for _ in range(count):
                consumer.commit(offsets=offsets, asynchronous=False)

        made.append((consumer, call))
        return call

    def reveal(mock: Mock) -> Callable[[], int]:
        ((consumer, call),) = made

        def committed() -> int:
            call()
            (found,) = consumer.committed([mock.partition(0)], timeout=FLUSH_SECONDS)
            return int(found.offset)

        return committed

    made: list[tuple[Any, Callable[[], object]]] = []
    return confluent(settings, commits, reveal=reveal, on_broker=on_broker)


def _members(count: int) -> dict[str, MemberSubscription]:
    return {f"member-{number:05d}": MemberSubscription((TOPIC,)) for number in range(count)}


def _rebalance(name: str, members: int, partitions: int) -> list[Contestant]:
    assign = ASSIGNORS[name]
    all_of, few = _members(members), _members(max(members // 10, 1))

    def whole() -> int:
        return sum(len(given) for given in assign(all_of, {TOPIC: partitions}).values())

    def parts() -> int:
        return sum(
            len(given)
            for _ in range(10)
            for given in assign(few, {TOPIC: partitions // 10}).values()
        )

    return [
        Contestant("oncelog", Role.OURS, whole, reveal=whole),
        Contestant(TENTH, Role.LIMIT, parts, reveal=parts),
    ]


def _load(count: int) -> list[Contestant]:
    """The offsets' topic read again by the coordinator, and its bytes by the decoder."""
    log = Log("offsets")
    groups = log.log.broker.groups
    per_commit = min(PER_COMMIT, count)
    for first in range(0, count, per_commit):
        offsets = {
            TopicPartition(TOPIC, number): OffsetCommit(number)
            for number in range(first, first + per_commit)
        }
        groups.offset_commit("g", offsets)
    key = TopicPartition(CONSUMER_OFFSETS, groups.offsets_partition("g").partition)
    partition = log.log.broker.partition(key)

    broker = log.log.broker

    def load() -> GroupCoordinator:
        state = broker._state_log(CONSUMER_OFFSETS)
        fresh = GroupCoordinator(state, broker.transactions, GroupOptions(), broker.now_ms)
        fresh.load()
        (found,) = fresh.offset_fetch("g", [TopicPartition(TOPIC, count - 1)]).values()
        assert found is not None
        return fresh

    def read(log: Log = log) -> int:
        return sum(
            len(columns)
            for segment in partition.log.segments
            for rows in segment.rows()
            for columns in decode(segment.view(), rows)
        )

    return [
        Contestant("oncelog", Role.OURS, load, reveal=lambda: len(load().offset_fetch("g"))),
        Contestant(DECODE, Role.LIMIT, read, reveal=read),
    ]


def cases(settings: Settings) -> Iterator[Case]:
    count = 2 if settings.quick else COMMITS
    for name, on_broker in (("groups.commit", False), ("groups.commit.broker", True)):
        yield Case(
            name,
            f"synchronous commits of one offset, {'real broker' if on_broker else 'mock'}",
            Unit.NS_PER_RECORD,
            count,
            [
                _commits(count),
                _confluent_commits(settings, count, on_broker=on_broker),
                _write(count),
            ],
        )
    members, partitions = (10, 100) if settings.quick else (100, 1_000)
    for name in ("range", "cooperative-sticky"):
        yield Case(
            f"groups.rebalance.{name}",
            f"{name} assignment of {partitions:,} partitions to {members} members",
            Unit.NS_PER_RECORD,
            partitions,
            _rebalance(name, members, partitions),
        )
    offsets = 100 if settings.quick else OFFSETS
    yield Case(
        "groups.load",
        f"load {offsets:,} committed offsets",
        Unit.NS_PER_RECORD,
        offsets,
        _load(offsets),
    )


def test_groups(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
