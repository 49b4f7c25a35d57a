"""Records that are sent and waited for one by one: the short way does what the long way does, and leaves it in time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import KafkaStorageError, NotEnoughReplicasError, RecordTooLargeError
from oncelog.broker.waiting import PendingSync
from oncelog.client.producer import Producer
from oncelog.client.sender import Sender
from oncelog.segment.names import TopicPartition

from ..broker.brokers import UNCOMMITTED, opened, values_of
from .planned_broker import Heard, PlannedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = TopicPartition("orders", 0)
FOREVER_MS = 3_600_000  # nothing is sent because its time is over


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PlannedBroker]:
    with opened(tmp_path, topics={"orders": 1}) as found:
        yield PlannedBroker(found)


def producer_of(broker: PlannedBroker, **options: Any) -> Producer:
    """A producer that has sent a record: what comes now may go the short way."""
    producer = Producer(broker, **{"linger_ms": FOREVER_MS, "retry_backoff_ms": 5, **options})  # type: ignore[arg-type]
    producer.send("orders", b"first").result()
    return producer


def rows_of(broker: PlannedBroker) -> list[Any]:
    return [
        row
        for window in broker.partition(ORDERS).windows(0, 2**63 - 1, UNCOMMITTED)
        for row in window.rows[["base_offset", "base_sequence", "producer_epoch"]].tolist()
    ]


@pytest.mark.parametrize("linger_ms", [0, FOREVER_MS])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_both_ways_leave_the_same(
    tmp_path: Path, linger_ms: int, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: answers, callbacks, figures and the log do not tell which way records took.
    Method: the same records, with the short way barred for the second producer."""
    seen = []
    for is_direct in (True, False):
        with opened(tmp_path / str(is_direct), topics={"orders": 1}, durability=durability) as real:
            broker, heard = PlannedBroker(real), Heard()
            producer = producer_of(broker, linger_ms=linger_ms)
            producer._sender._is_direct = is_direct
            drained: list[object] = []
            drain = Sender._drain

            def noted(
                sender: Sender,
                *rest: Any,
                _drained: Any = drained,
                _drain: Any = drain,
                **options: Any,
            ) -> None:
                _drained.append(rest)
                _drain(sender, *rest, **options)

            monkeypatch.setattr(Sender, "_drain", noted)
            found = [
                producer.send("orders", b"v%d" % number, key=b"k", on_delivery=heard).result()
                for number in range(5)
            ]
            monkeypatch.setattr(Sender, "_drain", drain)
            leaves_it = durability == "fsync" and not linger_ms  # nobody waits for the device yet
            assert bool(drained) == (not is_direct or leaves_it)
            figures = producer.metrics()
            producer.close()
            places = [(one.offset, one.serialized_value_size) for one in found]
            seen.append((places, heard.offsets, heard.errors, figures, rows_of(broker)))
    assert seen[0] == seen[1]
    assert [offset for offset, _ in seen[0][0]] == [1, 2, 3, 4, 5]


def test_a_sync_that_fails_or_is_interrupted_on_the_short_way_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, topics={"orders": 1}, durability="fsync") as real:
        heard = Heard()
        with producer_of(PlannedBroker(real)) as producer:
            producer.send("orders", b"u").result()
            wait, plans = PendingSync.wait, [KeyboardInterrupt()]

            def planned(pending: PendingSync) -> None:
                if plans:
                    raise plans.pop()
                wait(pending)

            monkeypatch.setattr(PendingSync, "wait", planned)
            delivery = producer.send("orders", b"v", on_delivery=heard)
            with pytest.raises(KeyboardInterrupt):
                delivery.result()
            assert delivery.result(10_000).offset == 2
            monkeypatch.setattr(PendingSync, "wait", _fails)
            with pytest.raises(KafkaStorageError, match="gone"):
                producer.send("orders", b"w", on_delivery=heard).result(10_000)
            monkeypatch.undo()
            assert producer.metrics()["record-error-total"] == 1
            assert producer.send("orders", b"x", on_delivery=heard).result(10_000).offset == 4
    assert heard.offsets == [2, 4]
    assert [type(error) for error in heard.errors] == [type(None), KafkaStorageError, type(None)]


def _fails(pending: PendingSync) -> None:
    raise KafkaStorageError(f"gone: {pending}")


def test_what_is_refused_on_the_short_way_is_sent_again(broker: PlannedBroker) -> None:
    with producer_of(broker) as producer:
        broker.fail("produce", NotEnoughReplicasError("few"), NotEnoughReplicasError("few"))
        assert producer.send("orders", b"v").result(10_000).offset == 1
        assert producer.metrics()["record-retry-total"] == 2
        broker.fail("produce", RecordTooLargeError("large"))
        with pytest.raises(RecordTooLargeError):
            producer.send("orders", b"w").result(10_000)
        broker.fail("produce", ValueError("a bug"))
        with pytest.raises(ValueError, match="a bug"):
            producer.send("orders", b"x").result(10_000)
        assert producer.send("orders", b"y").result(10_000).offset == 2
        assert producer.metrics()["record-error-total"] == 2
    assert values_of(broker.broker) == [b"first", b"v", b"y"]


def test_who_comes_meanwhile_is_sent_by_who_holds_the_lock(broker: PlannedBroker) -> None:
    """Goal: nobody waits for a batch that another thread found the partition locked for.
    Method: while the first record is being appended a second one is sent and closed, by a send that finds it full."""
    real = broker.broker
    producer = producer_of(broker, batch_size=0, linger_ms=0)
    late: list[Any] = []

    def produce(key: TopicPartition, batch: Any, **options: Any) -> Any:
        broker.provide("produce", real.produce)
        thread = threading.Thread(target=lambda: late.append(producer.send("orders", b"late")))
        thread.start()
        thread.join(10)
        assert late, "it left its batch to us"
        assert not late[0].done()
        return real.produce(key, batch, **options)

    broker.provide("produce", produce)
    assert producer.send("orders", b"early").result(10_000).offset == 1
    assert late[0].done()
    producer.close()
    assert values_of(real) == [b"first", b"early", b"late"]


def test_an_interrupt_on_the_short_way_leaves_the_batch_and_the_lock(broker: PlannedBroker) -> None:
    producer = producer_of(broker)
    real = broker.broker

    def interrupted(*_: Any, **__: Any) -> Any:
        broker.provide("produce", real.produce)
        raise KeyboardInterrupt

    broker.provide("produce", interrupted)
    delivery = producer.send("orders", b"v")
    with pytest.raises(KeyboardInterrupt):
        delivery.result()
    assert delivery.result(10_000).offset == 1
    assert producer.send("orders", b"w").result(10_000).offset == 2
    producer.close()
    assert values_of(real) == [b"first", b"v", b"w"]


def test_a_batch_is_not_opened_like_the_last_one_once_the_topic_has_changed(
    broker: PlannedBroker,
) -> None:
    """Goal: the smaller max.message.bytes and the new partition count for the very next batch."""
    real = broker.broker
    with producer_of(broker) as producer:
        (queue,) = producer.topic_intake("orders").partitions
        producer.send("orders", b"v").result()
        log = queue.log
        log.reconfigure(log.options._replace(max_message_bytes=200))
        producer.send("orders", b"v")
        assert queue.open_batch is not None
        assert queue.open_batch.reserved_bytes == 200
        producer.flush()
        answers = real.create_partitions({"orders": 3})
        assert not any(isinstance(answer, Exception) for answer in answers.values())
        producer.send("orders", b"v").result()
        assert len(producer.topic_intake("orders").partitions) == 3


def test_a_disk_error_on_the_short_way_is_told(broker: PlannedBroker) -> None:
    with producer_of(broker, retries=0) as producer:
        broker.fail("produce", KafkaStorageError("the disk is full"))
        with pytest.raises(KafkaStorageError):
            producer.send("orders", b"v").result(10_000)
        assert producer.send("orders", b"w").result(10_000).offset == 1


def test_a_batch_without_a_record_is_not_sent(tmp_path: Path) -> None:
    """Goal: a flush finds a batch that was opened for a record which was then refused."""
    with opened(tmp_path, topics={"orders": 1}) as real:
        broker = PlannedBroker(real)
        producer = producer_of(broker, linger_ms=FOREVER_MS)
        queue = producer.topic_intake("orders").partitions[0]
        assert producer.open_batch(queue, 1000, 0, 0)
        assert not producer._sender._flush_one()
        producer.flush()
        assert len(rows_of(broker)) == 1, "the first one alone"
        producer.close()


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_flush_of_a_transactions_one_batch_takes_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_direct: bool
) -> None:
    """Goal: a transaction of one batch is sent in one step, and leaves what it would have left otherwise."""
    drained: list[object] = []
    drain = Sender._drain

    def noted(sender: Sender, *rest: Any, **options: Any) -> None:
        drained.append(rest)
        drain(sender, *rest, **options)

    monkeypatch.setattr(Sender, "_drain", noted)
    with opened(tmp_path, topics={"orders": 1}) as real:
        broker, heard = PlannedBroker(real), Heard()
        producer = Producer(broker, transactional_id="teller", linger_ms=FOREVER_MS)  # type: ignore[arg-type]
        producer._sender._is_direct = is_direct
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            for _ in range(number + 1):
                producer.send("orders", b"v", on_delivery=heard)
            producer.commit_transaction()
        assert rows_of(broker) == [
            *((0, 0, 0), (1, -1, 1)),
            *((2, 0, 1), (4, -1, 2)),
            *((5, 0, 2), (8, -1, 3)),
        ]
        assert producer.metrics()["record-send-total"] == 6
        assert bool(drained) != is_direct
        producer.close()
