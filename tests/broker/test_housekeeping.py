"""What the broker does by itself, at Kafka's intervals, driven by a clock that is moved by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.base.errors import TransactionalIdNotFoundError
from oncelog.broker.broker import Broker
from oncelog.broker.topics import NewTopic
from oncelog.partition.data_directory import DataDirectory
from oncelog.segment.batch import encode

from .brokers import ORDERS, ManualClock, VerbProducer, crashed, opened, plain, values_of

if TYPE_CHECKING:
    from pathlib import Path

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def test_a_tick_tells_when_the_next_job_is_due_and_does_nothing_before(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as broker:
        due = broker.tick()
        assert 0 < due <= 1000
        assert broker.tick() == due
        clock.advance(due)
        assert broker.tick() > 0


def test_a_clock_that_is_set_back_does_not_stop_the_jobs(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, topics={"orders": 1}, clock=clock) as broker:
        broker.tick()
        clock.advance(-DAY)
        assert broker.tick() <= 1000
        producer = VerbProducer(broker, "teller", transaction_timeout_ms=1000)
        producer.send(ORDERS, b"v")
        clock.advance(12_000)
        broker.tick()
        assert broker.partition(ORDERS).last_stable_offset == 2


def test_retention_removes_old_segments(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as broker:
        broker.create_topics(
            [NewTopic("orders", 1, config={"retention.ms": HOUR, "segment.ms": 1000})]
        )
        for value in (b"a", b"b", b"c"):
            broker.produce(ORDERS, plain(broker, value))
            clock.advance(40 * MINUTE)
        broker.tick()
        assert values_of(broker) == [b"c"]


def test_a_compacted_topic_keeps_the_newest_value_of_each_key(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as broker:
        config = {
            "cleanup.policy": "compact",
            "segment.ms": 1000,
            "min.cleanable.dirty.ratio": 0.01,
        }
        broker.create_topics([NewTopic("orders", 1, config=config)])
        for number in range(30):
            batch = encode([b"%d" % number], keys=[b"%d" % (number % 3)], timestamp_ms=clock())
            broker.produce(ORDERS, memoryview(batch))
            clock.advance(2000)
        assert broker.compact()
        assert len(values_of(broker)) <= 4
        assert values_of(broker)[-1] == b"29"


def test_unused_transactional_ids_and_silent_producers_are_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, topics={"orders": 1}, clock=clock) as broker:
        producer = VerbProducer(broker, "teller")
        producer.send(ORDERS, b"v")
        producer.commit()
        assert broker.describe_producers(ORDERS)
        clock.advance(2 * DAY)
        broker.tick()
        assert not broker.describe_producers(ORDERS)
        assert not isinstance(broker.describe_transactions(["teller"])["teller"], Exception)
        clock.advance(8 * DAY)
        broker.tick()
        answer = broker.describe_transactions(["teller"])["teller"]
        assert isinstance(answer, TransactionalIdNotFoundError)
    with opened(tmp_path, clock=clock) as broker:
        answer = broker.describe_transactions(["teller"])["teller"]
        assert isinstance(answer, TransactionalIdNotFoundError)


def test_checkpoints_leave_little_to_recover_after_a_crash(tmp_path: Path) -> None:
    clock = ManualClock()
    broker = Broker(tmp_path, now_ms=clock)
    broker.create_topics([NewTopic("orders", 1, config={"segment.ms": 1000})])
    for number in range(5):
        broker.produce(ORDERS, plain(broker, b"%d" % number))
        clock.advance(2000)
    assert broker.partition(ORDERS).recovery_point == 0
    clock.advance(MINUTE)
    broker.tick()
    crashed(broker)
    reader = DataDirectory(tmp_path, now_ms=clock)
    assert reader._recovery_points[ORDERS] >= 4
    reader.close()
