"""What a producer makes of errors: it repeats what may be repeated, never writes twice, and tells the rest."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.clock import monotonic_s
from oncelog.base.errors import (
    ClosedError,
    CoordinatorNotAvailableError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownProducerIdError,
)
from oncelog.client.producer import Producer
from oncelog.client.sender import Sender
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from ..broker.brokers import UNCOMMITTED, opened, values_of
from .planned_broker import Heard, Pending, PlannedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = TopicPartition("orders", 0)
QUICK: dict[str, Any] = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PlannedBroker]:
    with opened(tmp_path, topics={"orders": 1, "wide": 4}) as found:
        yield PlannedBroker(found)


def producer_of(broker: PlannedBroker, **options: Any) -> Producer:
    return Producer(broker, **{**QUICK, **options})  # type: ignore[arg-type]


def batches_of(broker: PlannedBroker) -> list[tuple[int, int, int]]:
    """(epoch, base sequence, record count) of the batches in the log."""
    return [
        (int(row["producer_epoch"]), int(row["base_sequence"]), int(row["record_count"]))
        for window in broker.partition(ORDERS).windows(0, 2**63 - 1, UNCOMMITTED)
        for row in window.rows
    ]


@pytest.mark.parametrize(
    "error", [NotLeaderOrFollowerError("moved"), NotEnoughReplicasError("few")], ids=str
)
def test_a_passing_error_is_not_seen(broker: PlannedBroker, error: Exception) -> None:
    with producer_of(broker) as producer:
        broker.fail("produce", error, error, error)
        assert producer.send("orders", b"v").result(10_000).offset == 0
        assert producer.metrics()["record-retry-total"] == 3
    assert values_of(broker.broker) == [b"v"]


def test_an_answer_that_was_lost_does_not_write_twice(broker: PlannedBroker) -> None:
    """Goal: duplicate sequence acked once with its first offset.
    Method: the broker appends, its answer is lost, the producer repeats the very same batch."""
    with producer_of(broker) as producer:
        producer.send("orders", b"a").result()
        broker.fail(
            "produce", RequestTimedOutError("lost"), RequestTimedOutError("lost"), lost=True
        )
        assert producer.send("orders", b"b").result(10_000).offset == 1
        assert producer.send("orders", b"c").result().offset == 2
    assert values_of(broker.broker) == [b"a", b"b", b"c"]
    assert batches_of(broker) == [(0, 0, 1), (0, 1, 1), (0, 2, 1)]


def test_a_duplicate_that_the_log_no_longer_places_counts_as_written(broker: PlannedBroker) -> None:
    with producer_of(broker) as producer:
        broker.fail("produce", DuplicateSequenceError("seen"), lost=True)
        assert producer.send("orders", b"a").result(10_000).offset == -1
        assert producer.send("orders", b"b").result().offset == 1
    assert batches_of(broker) == [(0, 0, 1), (0, 1, 1)]


def test_later_records_wait_for_the_one_that_is_repeated(broker: PlannedBroker) -> None:
    """Goal: order per partition, also while a batch is repeated in the background."""
    with producer_of(broker, linger_ms=0, retry_backoff_ms=30) as producer:
        broker.fail("produce", NotEnoughReplicasError("few"))
        deliveries = [producer.send("orders", b"%d" % number) for number in range(20)]
        assert not deliveries[0].done()
        producer.flush()
        assert [one.result().offset for one in deliveries] == list(range(20))
    assert values_of(broker.broker) == [b"%d" % number for number in range(20)]


def test_the_background_repeats_what_nobody_waits_for(broker: PlannedBroker) -> None:
    with producer_of(broker, linger_ms=0) as producer:
        broker.fail("produce", *[NotEnoughReplicasError("few")] * 3)
        heard = Heard()
        producer.send("orders", b"v", on_delivery=heard)
        assert heard.called.wait(10)
    assert values_of(broker.broker) == [b"v"]


def test_a_batch_is_not_forgotten_by_a_background_that_is_quicker_than_who_leaves_it(
    broker: PlannedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: whoever leaves a batch to the background is done with its partition.
    Method: the background has its turn before the sender goes on. It once found the partition's lock taken then, and
    left the batch to the sender, who had left it to the background."""
    attend, work, worked = Sender._attend, Sender._work, threading.Event()

    def patiently(sender: Sender, due: float) -> None:
        attend(sender, due)
        if threading.current_thread() is threading.main_thread():
            assert worked.wait(10)

    def noted(sender: Sender) -> None:
        work(sender)
        worked.set()

    monkeypatch.setattr(Sender, "_attend", patiently)
    monkeypatch.setattr(Sender, "_work", noted)
    with producer_of(broker, linger_ms=0) as producer:
        broker.fail("produce", NotEnoughReplicasError("few"))
        heard = Heard()
        producer.send("orders", b"v", on_delivery=heard)
        assert worked.is_set()
        assert heard.called.wait(5)
    assert values_of(broker.broker) == [b"v"]


def test_another_partition_does_not_wait(broker: PlannedBroker) -> None:
    with producer_of(
        broker, linger_ms=0, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000
    ) as producer:
        broker.fail("produce", NotEnoughReplicasError("few"))
        stuck = producer.send("wide", b"v", partition=0)
        assert producer.send("wide", b"v", partition=1).result(5000).offset == 0
        assert not stuck.done()
        producer.close(0)
    with pytest.raises(ClosedError):
        stuck.result()


def test_a_record_is_given_up_after_the_delivery_timeout(broker: PlannedBroker) -> None:
    options = {"delivery_timeout_ms": 150, "request_timeout_ms": 100, "linger_ms": 10}
    with producer_of(broker, **options) as producer:
        broker.fail("produce", *[NotEnoughReplicasError("few")] * 1000)
        start = monotonic_s()
        with pytest.raises(RequestTimedOutError, match=r"delivery\.timeout\.ms"):
            producer.send("orders", b"v").result()
        assert 0.1 < monotonic_s() - start < 5
        broker._plans["produce"].clear()
        assert producer.send("orders", b"w").result().offset == 0


def test_retries_are_counted(broker: PlannedBroker) -> None:
    with producer_of(broker, retries=2, enable_idempotence=False) as producer:
        broker.fail("produce", *[NotEnoughReplicasError("few")] * 3)
        with pytest.raises(NotEnoughReplicasError):
            producer.send("orders", b"v").result(10_000)
        assert broker.count("produce") == 3


def test_an_error_that_stays_fails_its_batch_and_no_other(broker: PlannedBroker) -> None:
    with producer_of(broker, linger_ms=0) as producer:
        producer.send("orders", b"a")
        broker.fail("produce", RecordTooLargeError("large"))
        refused = producer.send("orders", b"b")
        after = producer.send("orders", b"c")
        with pytest.raises(RecordTooLargeError):
            refused.result()
        assert after.result().offset == 1
        assert producer.metrics()["record-error-total"] == 1
    assert batches_of(broker) == [(0, 0, 1), (0, 1, 1)], "no sequence is lost with a refused batch"


def test_a_batch_that_may_be_written_takes_its_sequence_with_it(broker: PlannedBroker) -> None:
    """Goal: after an error with unknown effect, the next batch must not be taken for a repetition.
    Method: a disk error after the append; the next batch goes out with a new epoch, and both are in the log."""
    with producer_of(broker, linger_ms=0) as producer:
        producer.send("orders", b"a")
        broker.fail("produce", KafkaStorageError("broken"), lost=True)
        with pytest.raises(KafkaStorageError):
            producer.send("orders", b"b").result()
        producer.send("orders", b"c").result()
    assert values_of(broker.broker) == [b"a", b"b", b"c"]
    assert batches_of(broker) == [(0, 0, 1), (0, 1, 1), (1, 0, 1)]


@pytest.mark.parametrize("kind", [OutOfOrderSequenceError, UnknownProducerIdError])
def test_a_log_that_has_forgotten_the_producer_starts_over(
    broker: PlannedBroker, kind: type[Exception]
) -> None:
    """Goal: KIP-360 without transactions: bump the epoch, reset the sequences, lose nothing."""
    with producer_of(broker, linger_ms=0) as producer:
        producer.send("orders", b"a")
        producer.send("orders", b"b")
        broker.fail("produce", kind("forgotten"))
        assert producer.send("orders", b"c").result(10_000).offset == 2
        producer.send("orders", b"d")
        producer.send("wide", b"e", partition=0)
    assert batches_of(broker) == [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]


def test_a_real_gap_is_refused_and_healed(broker: PlannedBroker) -> None:
    """Goal: the same with the log's own refusal: another wrote with our id, so that our sequence is no longer next."""
    with producer_of(broker, linger_ms=0) as producer:
        producer.send("orders", b"a").result()
        ours = producer._transactions.identity
        batch = encode(
            [b"x", b"y", b"z", b"u", b"v", b"w", b"q"],
            timestamp_ms=broker.now_ms(),
            producer_id=ours.producer_id,
            producer_epoch=ours.producer_epoch,
            base_sequence=1,
        )
        broker.broker.produce(ORDERS, memoryview(batch))
        producer.send("orders", b"b").result(10_000)
    assert values_of(broker.broker)[-1] == b"b"
    assert batches_of(broker)[-1] == (1, 0, 1)


def test_an_epoch_that_is_used_up_brings_a_new_id(broker: PlannedBroker) -> None:
    with producer_of(broker, linger_ms=0) as producer:
        producer.send("orders", b"a").result()
        manager = producer._transactions
        first = manager.identity.producer_id
        manager.identity = manager.identity._replace(producer_epoch=2**15 - 1)
        broker.fail("produce", OutOfOrderSequenceError("gap"))
        producer.send("orders", b"b").result(10_000)
        assert manager.identity.producer_id > first
        assert manager.identity.producer_epoch == 0


def test_a_fenced_producer_stops(broker: PlannedBroker) -> None:
    with producer_of(broker, linger_ms=0) as producer:
        broker.fail("produce", InvalidProducerEpochError("fenced"))
        first = producer.send("orders", b"a")
        with pytest.raises(InvalidProducerEpochError):
            first.result()
        with pytest.raises(InvalidProducerEpochError, match="cannot send: fenced"):
            producer.send("orders", b"b")
    assert values_of(broker.broker) == []


def test_a_failed_sync_is_told_and_the_sequence_is_left(broker: PlannedBroker) -> None:
    """Goal: in the log but not on the device is not acknowledged; what follows starts over."""
    real = broker.broker.produce
    pending = Pending(KafkaStorageError("the device failed"))
    pending.released.set()

    def produce(*args: Any, **rest: Any) -> Any:
        return real(*args, **rest)._replace(pending=pending)  # type: ignore[arg-type]

    broker.provide("produce", produce)
    with producer_of(broker) as producer:
        delivery = producer.send("orders", b"a")
        with pytest.raises(KafkaStorageError, match="device failed"):
            delivery.result()
        broker.provide("produce", real)
        producer.send("orders", b"b").result()
    assert batches_of(broker) == [(0, 0, 1), (1, 0, 1)]


def test_a_producer_id_that_cannot_be_had_yet_is_asked_for_again(broker: PlannedBroker) -> None:
    with producer_of(broker) as producer:
        broker.fail("init_producer_id", *[CoordinatorNotAvailableError("starting")] * 2)
        assert producer.send("orders", b"v").result(10_000).offset == 0


def test_a_bug_below_reaches_who_waits(broker: PlannedBroker) -> None:
    with producer_of(broker) as producer:
        broker.fail("produce", ZeroDivisionError("a bug"))
        with pytest.raises(ZeroDivisionError):
            producer.send("orders", b"v").result(10_000)
        assert producer.send("orders", b"w").result(10_000).offset == 0


def test_an_interrupt_keeps_the_record(broker: PlannedBroker) -> None:
    """Goal: Ctrl-C in the middle of an append neither loses the record nor writes it twice."""
    with producer_of(broker, linger_ms=3_600_000) as producer:
        delivery = producer.send("orders", b"v")
        broker.fail("produce", KeyboardInterrupt(), lost=True)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        assert not delivery.done()
        producer.flush()
        assert delivery.result().offset == 0
    assert values_of(broker.broker) == [b"v"]


def test_a_closed_broker_ends_the_producer_without_hanging(broker: PlannedBroker) -> None:
    producer = producer_of(broker, linger_ms=3_600_000)
    delivery = producer.send("orders", b"v")
    broker.broker.close()
    with pytest.raises(ClosedError):
        delivery.result(10_000)
    producer.close()
