"""A producer puts records where they belong, in order, and tells what became of each."""

# ruff: noqa: SIM117 (what a block of the producer's holds is what is tested)

from __future__ import annotations

import itertools
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import (
    BufferExhaustedError,
    ClosedError,
    InvalidConfigError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from oncelog.broker.topics import NewTopic
from oncelog.client.partitioner import key_partition
from oncelog.client.producer import Producer, RecordRange
from oncelog.segment.batch import Codec, records, scan
from oncelog.segment.names import TopicPartition

from ..broker.brokers import NOW, UNCOMMITTED, opened, values_of
from .planned_broker import Heard, Pending, PlannedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.broker.broker import Broker

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with opened(tmp_path, topics={"orders": 1, "wide": 4}) as found:
        yield found


def headers_of(broker: Broker, key: TopicPartition = ORDERS) -> list[dict[str, int]]:
    """The batch headers of a partition."""
    partition = broker.partition(key)
    found: list[dict[str, int]] = []
    for window in partition.windows(0, 2**63 - 1, UNCOMMITTED):
        names = window.rows.dtype.names or ()
        found += [dict(zip(names, row, strict=True)) for row in window.rows.tolist()]
    return found


def records_of(broker: Broker, key: TopicPartition = ORDERS) -> list[Any]:
    partition = broker.partition(key)
    return [
        record
        for window in partition.windows(0, 2**63 - 1, UNCOMMITTED)
        for record in records(window.segment.view(), window.rows, visible=window.visible)
    ]


# ---------------------------------------------------------------- send


def test_a_record_lies_where_its_delivery_says(broker: Broker) -> None:
    with Producer(broker) as producer:
        producer.send("orders", b"before")
        delivery = producer.send(
            "orders", b"v", key=b"k", timestamp=NOW + 5, headers=[("h", b"1"), ("n", None)]
        )
        found = delivery.result()
    (_, record) = records_of(broker)
    assert (found.topic, found.partition, found.offset, found.timestamp) == (
        "orders",
        0,
        1,
        NOW + 5,
    )
    assert (found.serialized_key_size, found.serialized_value_size) == (1, 1)
    assert (record.offset, record.timestamp, record.key, record.value) == (1, NOW + 5, b"k", b"v")
    assert record.headers == (("h", b"1"), ("n", None))


def test_a_record_without_a_time_has_the_brokers(broker: Broker) -> None:
    with Producer(broker) as producer:
        assert producer.send("orders", b"v").result().timestamp == NOW


def test_log_append_time_is_reported(broker: Broker) -> None:
    broker.create_topics(
        [NewTopic("stamped", 1, config={"message.timestamp.type": "LogAppendTime"})]
    )
    with Producer(broker) as producer:
        assert producer.send("stamped", b"v", timestamp=NOW - 50).result().timestamp == NOW


def test_records_of_a_partition_keep_their_order(broker: Broker) -> None:
    with Producer(broker, batch_size=300) as producer:
        for number in range(1000):
            producer.send("orders", b"%d" % number)
    assert values_of(broker) == [b"%d" % number for number in range(1000)]
    batches = headers_of(broker)
    assert len(batches) > 20
    assert all(batch["size"] <= 300 for batch in batches)


def test_sequences_count_the_records_of_a_partition(broker: Broker) -> None:
    with Producer(broker, batch_size=200) as producer:
        for number in range(60):
            producer.send("wide", b"%d" % number, partition=number % 2)
    for partition in range(2):
        batches = headers_of(broker, TopicPartition("wide", partition))
        expected = 0
        for batch in batches:
            assert batch["base_sequence"] == expected
            assert batch["producer_id"] >= 0
            assert batch["producer_epoch"] == 0
            expected += batch["record_count"]
        assert expected == 30


def test_a_producer_without_idempotence_has_no_sequence(broker: Broker) -> None:
    with Producer(broker, enable_idempotence=False) as producer:
        producer.send("orders", b"v")
    (batch,) = headers_of(broker)
    assert (batch["producer_id"], batch["producer_epoch"], batch["base_sequence"]) == (-1, -1, -1)


def test_keys_choose_the_partition_as_java_does(broker: Broker) -> None:
    with Producer(broker) as producer:
        for number in range(100):
            key = b"key-%d" % number
            delivery = producer.send("wide", b"v", key=key)
            assert delivery.result().partition == key_partition(key, 4)


def test_records_without_a_key_stick_to_a_partition_for_a_batch(broker: Broker) -> None:
    """Goal: batches fill, and the partition changes with the batch.
    Method: send many; runs of one partition are as long as a batch, and all partitions are used."""
    with Producer(broker, batch_size=1000) as producer:
        places = [producer.send("wide", b"%04d" % n).result for n in range(5)]
        assert len({place().partition for place in places}) == 1
        deliveries = [producer.send("wide", b"x" * 50) for _ in range(2000)]
        producer.flush()
        partitions = [delivery.result().partition for delivery in deliveries]
    changes = sum(one != other for one, other in itertools.pairwise(partitions))
    assert set(partitions) == {0, 1, 2, 3}
    assert 80 < changes < 160


def test_partitions_that_were_added_are_found(broker: Broker) -> None:
    with Producer(broker) as producer:
        producer.send("orders", b"v").result()
        with pytest.raises(
            UnknownTopicOrPartitionError, match="orders has no partition 2, only 0 to 0"
        ):
            producer.send("orders", b"v", partition=2)
        broker.create_partitions({"orders": 3})
        assert producer.send("orders", b"v", partition=2).result().partition == 2


def test_partitions_can_take_turns(broker: Broker) -> None:
    with Producer(broker, partitioner_class="roundrobin") as producer:
        found = [producer.send("wide", b"v", key=b"k") for _ in range(8)]
        producer.flush()
        first = found[0].result().partition
        assert [one.result().partition for one in found] == [(first + n) % 4 for n in range(8)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(broker: Broker, codec: str) -> None:
    with Producer(broker, compression_type=codec) as producer:
        for _ in range(100):
            producer.send("orders", b"a" * 100)
    (batch,) = headers_of(broker)
    assert batch["attributes"] & 7 == Codec.of(codec)
    assert batch["size"] < 3000
    assert values_of(broker) == [b"a" * 100] * 100


def test_callbacks_hear_of_every_record_in_order(broker: Broker) -> None:
    heard = Heard()
    with Producer(broker, batch_size=200) as producer:
        for number in range(50):
            producer.send("orders", b"%d" % number, on_delivery=heard)
        producer.flush()
        assert heard.offsets == list(range(50)), "flush waits for callbacks"
        assert heard.errors == [None] * 50


def test_a_callback_may_send_and_flush(broker: Broker) -> None:
    """Goal: callbacks run outside of all locks.
    Method: one that sends to the same partition, flushes and waits; it must neither deadlock nor be lost."""
    with Producer(broker) as producer:
        done = threading.Event()

        def again(_error: Exception | None, _found: Any) -> None:
            other = producer.send("orders", b"from the callback")
            producer.flush()
            assert other.result(5000).offset == 1
            done.set()

        producer.send("orders", b"v", on_delivery=again)
        producer.flush()
        assert done.wait(10)
    assert values_of(broker) == [b"v", b"from the callback"]


def test_a_callback_that_fails_is_logged_and_hurts_nobody(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    with Producer(broker) as producer:
        producer.send("orders", b"a", on_delivery=lambda *_: 1 / 0)
        producer.send("orders", b"b", on_delivery=heard)
    assert heard.offsets == [1]
    assert "callback failed" in caplog.text


# ---------------------------------------------------------------- lingering, flush, close


def test_a_record_that_lingers_is_sent_by_itself(broker: Broker) -> None:
    with Producer(broker, linger_ms=20) as producer:
        heard = Heard()
        producer.send("orders", b"v", on_delivery=heard)
        assert values_of(broker) == []
        assert heard.called.wait(10)
        assert values_of(broker) == [b"v"]
        threading.Event().wait(0.1)
        heard.called.clear()
        producer.send("orders", b"w", on_delivery=heard)
        assert heard.called.wait(10), "also after the background had gone to sleep"


def test_a_result_that_is_asked_for_does_not_linger(broker: Broker) -> None:
    with Producer(broker, linger_ms=3_600_000) as producer:
        first, second = producer.send("orders", b"a"), producer.send("orders", b"b")
        assert not first.done()
        assert second.result(5000).offset == 1
        assert first.done()


def test_without_lingering_every_record_is_a_batch(broker: Broker) -> None:
    with Producer(broker, linger_ms=0) as producer:
        assert producer.send("orders", b"a").done()
        assert producer.send("orders", b"b").done()
    assert [batch["record_count"] for batch in headers_of(broker)] == [1, 1]


def test_flush_leaves_nothing_behind(broker: Broker) -> None:
    with Producer(broker, linger_ms=3_600_000) as producer:
        deliveries = [producer.send("wide", b"v", partition=number % 4) for number in range(40)]
        producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        producer.flush()
        assert producer.metrics()["buffer-available-bytes"] == 32 << 20


def test_close_sends_what_is_left(broker: Broker) -> None:
    producer = Producer(broker, linger_ms=3_600_000)
    delivery = producer.send("orders", b"v")
    producer.close()
    assert delivery.result().offset == 0
    producer.close()


def test_a_forced_close_drops_what_is_left(broker: Broker) -> None:
    producer = Producer(broker, linger_ms=3_600_000)
    heard = Heard()
    delivery = producer.send("orders", b"v", on_delivery=heard)
    producer.close(0)
    with pytest.raises(ClosedError, match="closed before the record was sent"):
        delivery.result()
    assert len(heard.errors) == 1
    assert isinstance(heard.errors[0], ClosedError)
    assert values_of(broker) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("orders", b"v"),
        lambda producer: producer.send_arrow("orders", pa.table({"value": [b"v"]})),
        lambda producer: producer.flush(),
        lambda producer: producer.begin_transaction(),
        lambda producer: producer.init_transactions(),
    ],
)
def test_a_closed_producer_says_so(broker: Broker, call: Any) -> None:
    producer = Producer(broker)
    producer.send("orders", b"v")
    producer.close()
    with pytest.raises(ClosedError, match="the producer is closed"):
        call(producer)


def test_threads_share_a_producer(broker: Broker) -> None:
    """Goal: any number of threads send, flush and wait; nothing is lost, nothing comes twice, order holds.
    Method: small batches, so that draining is contended."""
    count, threads = 1500, 6
    with Producer(broker, batch_size=256, linger_ms=1) as producer:

        def send(name: int) -> None:
            for number in range(count):
                delivery = producer.send("orders", b"%d %d" % (name, number))
                if number % 200 == 0:
                    assert delivery.result(20_000).offset >= 0
                if number % 333 == 0:
                    producer.flush()

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(send, name) for name in range(threads)]:
                done.result(60)
    found = [value.split() for value in values_of(broker) if value is not None]
    assert len(found) == count * threads
    for name in range(threads):
        assert [int(number) for who, number in found if int(who) == name] == list(range(count))


def test_a_forked_child_is_told(broker: Broker) -> None:
    producer = Producer(broker)
    producer.send("orders", b"v").result()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            producer.send("orders", b"child")
        except ClosedError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert b"forked after the producer was opened" in pipe.read()
    producer.send("orders", b"parent").result()
    producer.close()
    assert values_of(broker) == [b"v", b"parent"]


# ---------------------------------------------------------------- limits and mistakes


def test_an_unknown_topic_is_named(broker: Broker) -> None:
    with Producer(broker) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
            producer.send("nowhere", b"v")
        broker.create_topics([NewTopic("nowhere", 1)])
        assert producer.send("nowhere", b"v").result().offset == 0


def test_a_deleted_topic_fails_its_records_and_no_others(broker: Broker) -> None:
    with Producer(broker, linger_ms=3_600_000) as producer:
        lost = producer.send("orders", b"v")
        kept = producer.send("wide", b"v")
        broker.delete_topics(["orders"])
        producer.flush()
        with pytest.raises(UnknownTopicOrPartitionError):
            lost.result()
        assert kept.result().offset == 0
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("orders", b"v")
        broker.create_topics([NewTopic("orders", 2)])
        assert producer.send("orders", b"v", partition=1).result().offset == 0


def test_a_record_larger_than_a_request_is_refused_at_once(broker: Broker) -> None:
    with Producer(broker, max_request_size=1000) as producer:
        with pytest.raises(RecordTooLargeError, match=r"more than max\.request\.size = 1000"):
            producer.send("orders", bytes(1000))
        assert producer.send("orders", bytes(800)).result().offset == 0
    with Producer(broker, buffer_memory=500, batch_size=100) as producer:
        with pytest.raises(RecordTooLargeError, match=r"more than buffer\.memory = 500"):
            producer.send("orders", bytes(500))


def test_a_record_larger_than_its_topic_allows_fails_alone(broker: Broker) -> None:
    broker.create_topics([NewTopic("small", 1, config={"max.message.bytes": 300})])
    with Producer(broker) as producer:
        deliveries = [producer.send("small", bytes(size)) for size in (100, 100, 500, 100)]
        producer.flush()
        assert [one.exception() is None for one in deliveries] == [True, True, False, True]
        assert isinstance(deliveries[2].exception(), RecordTooLargeError)
        assert deliveries[3].result().offset == 2


def test_a_record_larger_than_a_batch_goes_alone(broker: Broker) -> None:
    with Producer(broker, batch_size=200) as producer:
        for size in (10, 5000, 10):
            producer.send("orders", bytes(size))
    assert [value and len(value) for value in values_of(broker)] == [10, 5000, 10]
    assert len(headers_of(broker)) == 3


def test_a_full_buffer_blocks_and_then_gives_up(broker: Broker) -> None:
    """Goal: back-pressure. Memory is in use until acknowledgements come; send waits, then says what to do.
    Method: acknowledgements that are held back by hand."""
    planned = PlannedBroker(broker)
    pending = Pending()
    planned.provide("produce", pending.produce)
    options = {"buffer_memory": 4096, "batch_size": 1024, "max_block_ms": 200}
    producer = Producer(planned, **options)  # type: ignore[arg-type]
    with pytest.raises(BufferExhaustedError, match=r"buffer\.memory"):
        [producer.send("orders", bytes(900)) for _ in range(100)]
    assert producer.metrics()["buffer-exhausted-total"] == 1
    assert producer.metrics()["buffer-available-bytes"] < 1024
    timer = threading.Timer(0.05, pending.released.set)
    timer.start()
    producer.send("orders", bytes(900)).result(10_000)
    timer.join()
    producer.close()
    assert producer.metrics()["buffer-available-bytes"] == 4096


def test_a_result_that_does_not_come_in_time_is_an_error(broker: Broker) -> None:
    planned = PlannedBroker(broker)
    pending = Pending()
    planned.provide("produce", pending.produce)
    producer = Producer(planned)  # type: ignore[arg-type]
    delivery = producer.send("orders", b"v")
    waiting = threading.Thread(target=producer.flush)
    waiting.start()
    assert pending.asked.wait(10)
    with pytest.raises(RequestTimedOutError, match="orders-0: not acknowledged within 50 ms"):
        delivery.result(50)
    pending.released.set()
    waiting.join()
    assert delivery.result().offset == 0
    producer.close()


def test_at_most_five_batches_of_a_partition_are_under_way(broker: Broker) -> None:
    planned = PlannedBroker(broker)
    pending = Pending()
    planned.provide("produce", pending.produce)
    producer = Producer(planned, linger_ms=0)  # type: ignore[arg-type]
    deliveries = [producer.send("orders", b"v") for _ in range(12)]
    assert planned.count("produce") == 5
    pending.released.set()
    producer.flush()
    assert planned.count("produce") == 12
    assert all(delivery.done() for delivery in deliveries)
    producer.close()


def test_all_partitions_are_appended_before_any_is_waited_for(broker: Broker) -> None:
    """Goal: one slow device costs one wait, not one for each partition."""
    planned = PlannedBroker(broker)
    pendings: list[Pending] = []

    def produce(*_args: Any, **_options: Any) -> Any:
        pendings.append(Pending())
        return pendings[-1].produce()

    planned.provide("produce", produce)
    producer = Producer(planned, linger_ms=3_600_000)  # type: ignore[arg-type]
    for partition in range(4):
        producer.send("wide", b"v", partition=partition)
    flushing = threading.Thread(target=producer.flush)
    flushing.start()
    while not any(pending.asked.is_set() for pending in list(pendings)):
        threading.Event().wait(0.001)
    assert len(pendings) == 4
    for pending in pendings:
        pending.released.set()
    flushing.join()
    producer.close()


def test_fsync_acknowledges_what_is_on_the_device(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}, durability="fsync") as broker:
        with Producer(broker, batch_size=500) as producer:
            deliveries = [producer.send("orders", bytes(100)) for _ in range(100)]
            assert deliveries[50].result().offset == 50
            assert broker.partition(ORDERS).durable_end_offset > 50
            producer.flush()
            assert broker.partition(ORDERS).durable_end_offset == 100


def test_a_record_that_is_waited_for_costs_one_sync_and_no_other_thread(tmp_path: Path) -> None:
    """Goal: who waits for the device waits alone: a second thread would double the time of a small disk's sync.
    Method: the syncs of one record after another are counted, with the threads that they were made in."""
    threads: list[str] = []

    class Device(Disk):
        def sync(self, descriptor: int) -> None:
            threads.append(threading.current_thread().name)

    with opened(tmp_path, topics={"orders": 1}, durability="fsync", disk=Device()) as broker:
        with Producer(broker) as producer:
            producer.send("orders", b"first").result()
            threads.clear()
            for number in range(1, 50):
                assert producer.send("orders", b"v").result().offset == number
            assert threads == [threading.current_thread().name] * 49
            for _ in range(3):
                producer.send("orders", b"v")
                producer.flush()
            assert threads == [threading.current_thread().name] * 52


def test_who_is_interrupted_while_waiting_leaves_the_rest_to_the_background(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}, durability="fsync") as broker:
        planned = PlannedBroker(broker)
        with Producer(planned) as producer:  # type: ignore[arg-type]
            interrupts, settled = iter([KeyboardInterrupt()]), threading.Event()

            class Interrupted(Pending):
                def wait(self) -> None:
                    for interrupt in interrupts:
                        raise interrupt
                    settled.set()

            planned.provide(
                "produce",
                lambda key, batch, **options: broker.produce(key, batch, **options)._replace(
                    pending=Interrupted()  # type: ignore[arg-type]
                ),
            )
            delivery = producer.send("orders", b"v")
            with pytest.raises(KeyboardInterrupt):
                delivery.result()
            assert settled.wait(10)
            assert delivery.result(10_000).offset == 0


def test_acks_0_does_not_wait(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}, durability="fsync") as broker:
        with Producer(broker, acks=0, linger_ms=0) as producer:
            assert producer.send("orders", b"v").done()
            assert broker.partition(ORDERS).durable_end_offset == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"acks": 1, "enable_idempotence": True}, "acks"),
        ({"transactional_id": "t", "enable_idempotence": False}, "transactional.id"),
        ({"transactional_id": "t", "acks": "0"}, "acks"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "max.in.flight"),
        ({"lingerms": 5}, r"no option 'lingerms'.* linger\.ms"),
        ({"linger_ms": -1}, "linger.ms must be"),
        ({"group_id": "g"}, "is a consumer's option"),
    ],
)
def test_options_that_cannot_be_are_refused(
    broker: Broker, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidConfigError, match=sentence):
        Producer(broker, **options)


def test_metrics_count(broker: Broker) -> None:
    with Producer(broker, batch_size=200) as producer:
        for _ in range(10):
            producer.send("orders", bytes(50))
        producer.flush()
        metrics = producer.metrics()
    assert metrics["record-send-total"] == 10
    assert metrics["batch-total"] == len(headers_of(broker))
    assert metrics["byte-total"] == sum(batch["size"] for batch in headers_of(broker))
    assert metrics["record-error-total"] == metrics["record-retry-total"] == 0


def test_log_lines_say_whose_they_are(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "oncelog.client"):
        with Producer(broker, client_id="till-3", transactional_id="teller") as producer:
            with producer.transaction():
                producer.send("orders", b"v")
    assert "[till-3, transactional id teller] READY -> IN_TRANSACTION" in caplog.text
    assert "producer id" in caplog.text


# ---------------------------------------------------------------- Arrow


def test_rows_become_records(broker: Broker) -> None:
    table = pa.table(
        {
            "key": pa.array([b"a", None, b"c"]),
            "value": pa.array([b"1", b"2", None]),
            "timestamp": pa.array([NOW, NOW + 1, NOW + 2], pa.timestamp("ms", "UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}], [], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    with Producer(broker) as producer:
        assert producer.send_arrow("orders", table).result() == [RecordRange("orders", 0, 0, 2, 3)]
    found = [(one.key, one.value, one.timestamp, one.headers) for one in records_of(broker)]
    assert found == [
        (b"a", b"1", NOW, (("h", b"x"),)),
        (None, b"2", NOW + 1, ()),
        (b"c", None, NOW + 2, ()),
    ]


def test_rows_go_where_they_say_or_where_their_key_belongs(broker: Broker) -> None:
    keys = [b"key-%d" % number for number in range(500)]
    asked = [number % 4 if number % 3 == 0 else None for number in range(500)]
    table = pa.table({"value": keys, "key": keys, "partition": pa.array(asked, pa.int32())})
    with Producer(broker) as producer:
        ranges = producer.send_arrow("wide", table).result()
    assert sum(one.record_count for one in ranges) == 500
    for partition in range(4):
        expected = [
            key
            for key, number in zip(keys, asked, strict=True)
            if (key_partition(key, 4) if number is None else number) == partition
        ]
        assert values_of(broker, TopicPartition("wide", partition)) == expected


def test_rows_keep_their_place_among_single_records(broker: Broker) -> None:
    with Producer(broker, linger_ms=3_600_000) as producer:
        producer.send("orders", b"first")
        producer.send_arrow("orders", pa.table({"value": [b"second", b"third"]}))
        producer.send("orders", b"fourth")
    assert values_of(broker) == [b"first", b"second", b"third", b"fourth"]
    expected = 0
    for batch in headers_of(broker):
        assert batch["base_sequence"] == expected
        expected += batch["record_count"]


def test_many_rows_fill_large_batches(broker: Broker) -> None:
    rows = pa.table({"value": pa.array([bytes(100)] * 30_000)})
    with Producer(broker) as producer:
        delivery = producer.send_arrow("orders", rows)
        assert delivery.done()
        assert delivery.result() == [RecordRange("orders", 0, 0, 29_999, 30_000)]
    batches = headers_of(broker)
    assert 3 <= len(batches) <= 5
    assert all(batch["size"] <= 1 << 20 for batch in batches)
    assert batches[0]["producer_id"] >= 0


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_rows_are_compressed_like_records(broker: Broker, codec: str) -> None:
    with Producer(broker, compression_type=codec) as producer:
        producer.send_arrow("orders", pa.table({"value": [b"a" * 100] * 100}))
    (batch,) = headers_of(broker)
    assert batch["attributes"] & 7 == Codec.of(codec)
    assert values_of(broker) == [b"a" * 100] * 100


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"value": [b"v"]}),
        pa.record_batch({"value": [b"v"]}),
        pa.RecordBatchReader.from_batches(
            pa.schema({"value": pa.binary()}), [pa.record_batch({"value": [b"v"]})]
        ),
        pa.table({"value": pa.chunked_array([[], [b"v"], []], pa.binary())}),
    ],
    ids=["table", "batch", "reader", "chunks"],
)
def test_anything_with_arrow_data_is_taken(broker: Broker, data: Any) -> None:
    with Producer(broker) as producer:
        producer.send_arrow("orders", data)
    assert values_of(broker) == [b"v"]


@pytest.mark.parametrize(
    ("data", "error", "sentence"),
    [
        ([b"v"], TypeError, "list offers no Arrow data"),
        (pa.table({"key": [b"k"]}), TypeError, "'value'.*missing"),
        (pa.table({"value": [5]}), TypeError, "'value'"),
        (pa.table({"value": [b"v"], "partition": ["a"]}), TypeError, "'partition'.*integer"),
        (
            pa.table({"value": [b"v"], "partition": [9]}),
            UnknownTopicOrPartitionError,
            "no partition 9",
        ),
        (
            pa.table({"value": [b"v"], "partition": [-7]}),
            UnknownTopicOrPartitionError,
            "no partition -7",
        ),
        (pa.table({"value": [bytes(2 << 20)]}), RecordTooLargeError, "max.request.size"),
    ],
)
def test_rows_that_cannot_be_sent_are_refused(
    broker: Broker, data: Any, error: type[Exception], sentence: str
) -> None:
    with Producer(broker) as producer:
        with pytest.raises(error, match=sentence):
            producer.send_arrow("orders", data)
    assert values_of(broker) == []


def test_no_rows_are_no_records(broker: Broker) -> None:
    with Producer(broker) as producer:
        delivery = producer.send_arrow("orders", pa.table({"value": pa.array([], pa.binary())}))
        assert delivery.done()
        assert delivery.result() == []


def test_batches_are_sound_for_any_reader(broker: Broker) -> None:
    """Goal: what lies in the log carries right checksums, whoever built it."""
    with Producer(broker, compression_type="zstd", batch_size=400) as producer:
        for number in range(50):
            producer.send("orders", b"%d" % number, headers={"n": b"%d" % number})
        producer.send_arrow("orders", pa.table({"value": [b"a", b"b"]}))
    partition = broker.partition(ORDERS)
    for window in partition.windows(0, 2**63 - 1, UNCOMMITTED):
        assert scan(window.segment.view())["crc_ok"].all()
