"""Housekeeping leaves partitions closed that nobody has opened, while nothing of them is due."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.disk import list_files
from oncelog.broker.topic_options import compaction_options, retention_options
from oncelog.broker.topics import ConfigChange, NewTopic
from oncelog.partition import unopened
from oncelog.partition.compaction import Candidate
from oncelog.partition.retention import apply_retention
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from .brokers import ManualClock, opened, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.broker.broker import Broker

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
PARTITIONS = 12


def keys(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def write(broker: Broker, key: TopicPartition, *values: bytes, timestamp_ms: int) -> None:
    batch = encode(list(values), keys=[b"k"] * len(values), timestamp_ms=timestamp_ms)
    broker.produce(key, memoryview(batch))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def written(tmp_path: Path, clock: ManualClock) -> Path:
    """Topics that are deleted from, and compacted, of which each partition has a sealed segment and an active one."""
    with opened(tmp_path, clock=clock) as broker:
        config = {"segment.ms": 1000, "retention.ms": DAY}
        compacted = {"segment.ms": 1000, "cleanup.policy": "compact"}
        broker.create_topics(
            [
                NewTopic("aging", PARTITIONS, config=config),
                NewTopic("compacted", PARTITIONS, config=compacted),
            ]
        )
        for topic in ("aging", "compacted"):
            for key in keys(topic):
                write(broker, key, b"old", b"older", timestamp_ms=clock())
                clock.advance(2000)
                write(broker, key, b"new", timestamp_ms=clock())
        while broker.compact():
            pass
    return tmp_path


def test_housekeeping_opens_nothing_while_nothing_is_due(
    written: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a directory of many partitions costs what is used of it. Method: hours of jobs, and count the looks."""
    looks: list[str] = []

    def counted(directory: str, **options: Any) -> dict[str, int]:
        looks.append(directory)
        return list_files(directory, **options)

    monkeypatch.setattr(unopened, "list_files", counted)
    with opened(written, clock=clock) as broker:
        before = len(broker.opened())
        for _ in range(12):
            clock.advance(5 * MINUTE)
            broker.tick()
            assert not broker.compact()
        assert len(broker.opened()) == before == 0
        assert len(looks) == len(set(looks)) == 2 * PARTITIONS  # each once, not each time anew


def test_what_is_due_is_done_though_nobody_has_opened_it(written: Path, clock: ManualClock) -> None:
    with opened(written, clock=clock) as broker:
        key = keys("aging")[3]
        write(broker, key, b"fresh", timestamp_ms=clock() + HOUR)
        clock.advance(DAY + HOUR // 2)
        broker.tick()
        assert {p.key.topic for p in broker.opened()} == {"aging"}
        assert values_of(broker, key) == [b"fresh"]
        assert values_of(broker, keys("aging")[4]) == []


def test_a_new_limit_counts_for_what_nobody_has_opened(written: Path, clock: ManualClock) -> None:
    with opened(written, clock=clock) as broker:
        clock.advance(5 * MINUTE)
        broker.tick()
        assert not broker.opened()
        broker.incremental_alter_configs({"aging": [ConfigChange("retention.bytes", "set", 1)]})
        clock.advance(5 * MINUTE)
        broker.tick()
        assert len(broker.opened()) == PARTITIONS
        broker.incremental_alter_configs(
            {"compacted": [ConfigChange("max.compaction.lag.ms", "set", 1)]}
        )
        broker.compact()
        assert len(broker.opened()) == PARTITIONS  # nothing is dirty, whatever the lag


def test_dirt_that_a_stop_left_behind_is_cleaned(tmp_path: Path, clock: ManualClock) -> None:
    key = TopicPartition("compacted", 0)
    with opened(tmp_path, clock=clock) as broker:
        config = {"segment.ms": 1000, "cleanup.policy": "compact"}
        broker.create_topics([NewTopic("compacted", 1, config=config)])
        for number in range(5):
            write(broker, key, b"%d" % number, timestamp_ms=clock())
            clock.advance(2000)
    with opened(tmp_path, clock=clock) as broker:
        assert broker.compact()
        assert values_of(broker, key) == [b"3", b"4"]


def test_after_a_crash_everything_is_looked_into(written: Path, clock: ManualClock) -> None:
    with opened(written, clock=clock) as broker:
        broker.abandon()
    with opened(written, clock=clock) as broker:
        clock.advance(5 * MINUTE)
        broker.tick()
        assert len(broker.opened()) >= PARTITIONS


@pytest.mark.parametrize("seed", range(12))
def test_a_partition_is_left_closed_only_if_opening_it_would_find_nothing(
    tmp_path: Path, clock: ManualClock, seed: int
) -> None:
    """Goal: nothing is kept for ever. Method: random logs, options and times; what says no is opened, and proven."""
    choose = random.Random(seed)
    key = TopicPartition("any", 0)
    with opened(tmp_path, clock=clock) as broker:
        config = {"segment.ms": 1000, "cleanup.policy": "compact,delete", "retention.ms": -1}
        broker.create_topics([NewTopic("any", 1, config=config)])
        for _ in range(choose.randint(0, 8)):
            size = choose.choice((1, 500))
            write(broker, key, bytes(size), timestamp_ms=clock() + choose.randint(-DAY, HOUR))
            clock.advance(choose.choice((0, 2000)))
        if choose.random() < 0.5:
            broker.compact_now()
        if choose.random() < 0.3:
            broker.partition(key).delete_records(
                choose.randint(0, broker.partition(key).log_end_offset)
            )
    for _ in range(20):
        clock.advance(choose.choice((0, MINUTE, HOUR)))
        config = {
            "cleanup.policy": choose.choice((("delete",), ("compact",), ("compact", "delete"), ())),
            "retention.ms": choose.choice((-1, 0, HOUR, DAY)),
            "retention.bytes": choose.choice((-1, 0, 600, 2000)),
            "delete.retention.ms": 0,
            "min.compaction.lag.ms": 0,
            "max.compaction.lag.ms": choose.choice((2**63 - 1, HOUR)),
            "min.cleanable.dirty.ratio": choose.choice((0.0, 0.5, 0.9)),
        }
        with opened(tmp_path, clock=clock) as broker:
            seen = broker._data.unopened(key)
            assert seen is not None
            kept, compacted = retention_options(config), compaction_options(config)
            first_dirty = broker.compactor.checkpointed(key)
            may_expire = seen.may_expire(kept, clock())
            may_be_dirty = compacted is not None and seen.may_be_dirty(first_dirty, compacted)
            partition = broker.partition(key)
            if compacted is not None and not may_be_dirty:
                candidate = Candidate(partition, compacted)
                assert broker.compactor.filthiest([candidate], clock()) is None
            if not may_expire:
                assert apply_retention(partition, kept, clock()) == 0
