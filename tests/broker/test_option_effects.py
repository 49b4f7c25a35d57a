"""Options do what their names say: when a log is forced to the device, how hard a codec tries, what may be deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    InvalidTopicError,
    OncelogError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from oncelog.broker.topics import ConfigChange, NewTopic
from oncelog.client.consumer import Consumer
from oncelog.client.producer import Producer
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from .brokers import ORDERS, ManualClock, opened, plain, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.broker.broker import Broker

HOUR = 3_600_000
TEXT = b"".join(b"%d bottles stand on shelf %d; " % (n * n % 97, n % 13) for n in range(3000))


def create(broker: Broker, **config: Any) -> None:
    options = {name.replace("_", "."): value for name, value in config.items()}
    answer = broker.create_topics([NewTopic("orders", 1, config=options)])["orders"]
    assert not isinstance(answer, OncelogError), answer


# ------------------------------------------------------------ flush.messages, flush.ms


def test_a_log_is_forced_to_the_device_after_so_many_messages(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        create(broker, flush_messages=3)
        partition = broker.partition(ORDERS)
        ends = []
        for values in ([b"a"], [b"b"], [b"c"], [b"d"], [b"e", b"f", b"g"]):
            broker.produce(ORDERS, plain(broker, *values))
            ends.append(partition.recovery_point)
        assert ends == [0, 0, 3, 3, 7]
        assert partition.durable_end_offset == 7
        broker.incremental_alter_configs({"orders": [ConfigChange("flush.messages", "set", 1)]})
        broker.produce(ORDERS, plain(broker, b"h"))
        assert partition.recovery_point == 8


def test_a_log_is_forced_to_the_device_when_its_records_are_so_old(tmp_path: Path) -> None:
    """Goal: flush.ms holds by itself, without log.flush.scheduler.interval.ms; a topic without it is left alone."""
    clock = ManualClock()
    with opened(tmp_path, topics={"other": 1}, clock=clock) as broker:
        create(broker, flush_ms=5000)
        other = TopicPartition("other", 0)
        clock.advance(HOUR)
        broker.tick()
        for key in (ORDERS, other):
            broker.produce(key, plain(broker, b"v"))
        seen = []
        for _ in range(8):
            clock.advance(1000)
            broker.tick()
            seen.append(broker.partition(ORDERS).recovery_point)
        assert seen[0] == 0
        assert 1 in seen[4:7]
        assert broker.partition(other).recovery_point == 0


def test_the_brokers_flush_options_are_the_defaults_of_topics(tmp_path: Path) -> None:
    with opened(
        tmp_path, config={"log.flush.interval.messages": 2}, topics={"orders": 1}
    ) as broker:
        broker.produce(ORDERS, plain(broker, b"a", b"b"))
        assert broker.partition(ORDERS).recovery_point == 2


# ------------------------------------------------------------ compression levels


@pytest.mark.parametrize(
    ("codec", "low", "high"), [("gzip", 1, 9), ("zstd", 1, 19), ("lz4", 9, 12)]
)
def test_a_broker_that_recompresses_uses_the_topics_level(
    tmp_path: Path, codec: str, low: int, high: int
) -> None:
    sizes = []
    for level in (low, high):
        with opened(tmp_path / str(level)) as broker:
            create(broker, **{"compression_type": codec, f"compression_{codec}_level": level})
            broker.produce(ORDERS, memoryview(encode([TEXT], timestamp_ms=broker.now_ms())))
            sizes.append(broker.partition(ORDERS).log.size)
            assert values_of(broker) == [TEXT]
    assert sizes[1] < sizes[0]


# ------------------------------------------------------------ topics


def test_a_topic_that_is_not_there_is_made_where_that_was_asked_for(tmp_path: Path) -> None:
    config = {"auto.create.topics.enable": True, "num.partitions": 3}
    with opened(tmp_path, config=config) as broker:
        with Producer(broker) as producer:
            producer.send("orders", b"v").result()
        assert broker.partition_count("orders") == 3
        with Consumer(broker) as consumer:
            consumer.assign([("bills", 2)])
        assert broker.partition_count("bills") == 3
        with Consumer(broker, group_id="g") as consumer:
            consumer.subscribe(["notes"])
            for _ in range(5):
                consumer.poll()
            assert consumer.assignment() == {("notes", 0), ("notes", 1), ("notes", 2)}
            consumer.unsubscribe()
            consumer.subscribe(pattern="p.*")
            consumer.poll()
        assert broker.topics() == ["__consumer_offsets", "bills", "notes", "orders"]
        with Producer(broker) as producer, pytest.raises(InvalidTopicError):
            producer.send("no topic", b"v")


def test_a_consumer_that_may_not_make_topics_makes_none(tmp_path: Path) -> None:
    with opened(tmp_path, config={"auto.create.topics.enable": True}) as broker:
        with Consumer(broker, group_id="g", allow_auto_create_topics=False) as consumer:
            with pytest.raises(UnknownTopicOrPartitionError):
                consumer.assign([("bills", 0)])
            consumer.subscribe(["notes"])
            consumer.poll()
        assert not {"bills", "notes"} & set(broker.topics())


@pytest.mark.parametrize("config", [{}, {"auto.create.topics.enable": False}])
def test_a_mistyped_topic_is_an_error_otherwise(tmp_path: Path, config: dict[str, Any]) -> None:
    with opened(tmp_path, config=config) as broker:
        with Producer(broker) as producer, pytest.raises(UnknownTopicOrPartitionError):
            producer.send("oders", b"v")
        with Consumer(broker) as consumer, pytest.raises(UnknownTopicOrPartitionError):
            consumer.assign([("oders", 0)])
        assert broker.topics() == []


def test_topics_stay_where_they_are_not_to_be_deleted(tmp_path: Path) -> None:
    with opened(tmp_path, config={"delete.topic.enable": False}, topics={"orders": 1}) as broker:
        answers = broker.delete_topics(["orders", "nothing"])
        assert {type(answer) for answer in answers.values()} == {TopicDeletionDisabledError}
        assert broker.topics() == ["orders"]


def test_the_controllers_log_is_no_topic_to_be_made(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        answer = broker.create_topics([NewTopic("__cluster_metadata", 1)])["__cluster_metadata"]
        assert isinstance(answer, InvalidTopicError)


# ------------------------------------------------------------ limits and times


def test_no_fetch_returns_more_than_the_broker_allows(tmp_path: Path) -> None:
    with opened(tmp_path, config={"fetch.max.bytes": 1024}, topics={"orders": 1}) as broker:
        for _ in range(10):
            broker.produce(ORDERS, plain(broker, bytes(300)))
        fetched = broker.fetch(ORDERS, 0, bytes_max=1 << 20)
        assert 0 < len(fetched.records) <= 1024


def test_the_cleaner_has_the_memory_that_the_broker_gives_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock, config={"log.cleaner.dedupe.buffer.size": 48}) as broker:
        create(broker, cleanup_policy="compact", segment_ms=1000)
        for number in range(30):
            key = b"%d" % number
            batch = encode(
                [b"v"] * 3, keys=[key + b"a", key + b"b", key + b"c"], timestamp_ms=clock()
            )
            broker.produce(ORDERS, memoryview(batch))
            clock.advance(2000)
        assert not broker.compact()
        assert "log.cleaner.dedupe.buffer.size = 48" in str(broker.compactor.uncleanable[ORDERS])


def test_the_first_retention_waits_for_the_initial_delay_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock, config={"log.initial.task.delay.ms": 20_000}) as broker:
        create(broker, retention_ms=1000)
        broker.produce(ORDERS, plain(broker, b"v"))
        clock.advance(19_999)
        broker.tick()
        assert values_of(broker) == [b"v"]
        clock.advance(1)
        broker.tick()
        assert values_of(broker) == []


def test_a_topic_without_a_cleanup_policy_keeps_all_and_hinders_no_other(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as broker:
        config = {"cleanup.policy": "", "retention.ms": 1000}
        broker.create_topics([NewTopic("kept", 1, config=config)])
        create(broker, retention_ms=1000)
        kept = TopicPartition("kept", 0)
        for key in (kept, ORDERS):
            broker.produce(key, plain(broker, b"v"))
        clock.advance(HOUR)
        broker.tick()
        assert values_of(broker, kept) == [b"v"]
        assert values_of(broker) == []
