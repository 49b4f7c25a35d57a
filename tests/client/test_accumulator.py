"""Records enter a batch one by one and come out of it as one sound record batch."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.accumulator import (
    Accumulator,
    Alarm,
    Batch,
    Delivery,
    PartitionIntake,
    RecordMetadata,
    TopicIntake,
    Watch,
)
from oncelog.base.errors import InvalidTimestampError
from oncelog.segment.batch import Attributes, Codec, encode, records, scan
from oncelog.segment.compression import compressor

from .planned_broker import Heard

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = 1_700_000_000_000


class Nobody:
    def wait_for(self, batch: Batch, timeout_ms: int | None) -> None:
        raise AssertionError("nobody sends here")


class Collector(Accumulator):
    """An accumulator with one topic whose full batches are put aside."""

    def __init__(self, partitions: int = 1, bytes_max: int = 1 << 14, **options: Any) -> None:
        settings = {
            "record_bytes_max": 1 << 20,
            "buffer_bytes": 1 << 30,
            "is_eager": False,
            "ignores_keys": False,
            "rotates": False,
        }
        self._configure(lambda: NOW, **{**settings, **options})
        self.bytes_max = bytes_max
        self.queues = [PartitionIntake("t", number, Nobody()) for number in range(partitions)]
        self.sent_now: list[int] = []

    def _meet_topic(self, topic: str) -> TopicIntake:
        return TopicIntake(topic, self.queues)

    def _make_room(self, topic: TopicIntake, partition: PartitionIntake, count: int) -> None:
        self.close_batch(partition)
        size = max(self.bytes_max, count)
        assert self.take_bytes(size)
        if not self.open_batch(partition, self.bytes_max, size, 0):  # another thread was first
            self.give_bytes(size)

    def _send_now(self, partition: PartitionIntake) -> None:
        self.sent_now.append(partition.partition)

    def _refuse_size(self, count: int) -> None:
        raise ValueError(f"{count} bytes")

    def _refuse_partition(self, topic: TopicIntake, partition: int) -> None:
        raise LookupError(f"no {partition}")

    def closed(self, partition: int = 0) -> list[Batch]:
        self.close_batch(self.queues[partition])
        return list(self.queues[partition].waiting)


blobs = st.none() | st.binary(max_size=300)
header_lists = st.none() | st.lists(st.tuples(st.text(max_size=9), blobs), max_size=4)
many_records = st.lists(
    st.tuples(blobs, blobs, st.integers(0, 2**44), header_lists), min_size=1, max_size=60
)


@given(many_records, st.integers(128, 2000), st.sampled_from(list(Codec)))
def test_what_is_sent_is_what_is_decoded(
    given_records: list[tuple[Any, Any, int, Any]], bytes_max: int, codec: Codec
) -> None:
    """Goal: any mix of keys, values, times and headers survives, in order, split at the size limit.
    Method: seal every batch that filled up, decode all of them with checksums proven."""
    collector = Collector(bytes_max=bytes_max)
    deliveries = [
        collector.send("t", value, key, 0, timestamp, headers)
        for key, value, timestamp, headers in given_records
    ]
    found = []
    sequence = 0
    for batch in collector.closed():
        batch.seal(77, 3, sequence, int(codec), compressor(codec))
        sequence += batch.record_count
        (row,) = scan(batch)
        assert row["crc_ok"] == 1
        assert (row["producer_id"], row["producer_epoch"]) == (77, 3)
        assert row["record_count"] == batch.record_count
        assert row["attributes"] == codec
        if codec is Codec.NONE and batch.record_count > 1:
            assert len(batch) <= bytes_max
        found += list(records(bytes(batch)))
    assert [(one.key, one.value, one.timestamp, one.headers) for one in found] == [
        (key, value, timestamp, tuple(headers or ()))
        for key, value, timestamp, headers in given_records
    ]
    base = 500
    for batch in collector.closed():
        batch.complete(base, -1)
        base += batch.record_count
    assert [one.result().offset for one in deliveries] == list(range(500, 500 + len(deliveries)))
    assert [one.result().timestamp for one in deliveries] == [one[2] for one in given_records]


def test_a_batch_is_byte_for_byte_the_encoders() -> None:
    """Goal: the producer that takes records one by one writes what the one for whole columns writes."""
    collector = Collector()
    keys = [b"k%d" % number for number in range(50)]
    values = [b"v" * number for number in range(50)]
    for key, value in zip(keys, values, strict=True):
        collector.send("t", value, key, timestamp=NOW)
    (batch,) = collector.closed()
    batch.seal(5, 1, 40, int(Attributes.TRANSACTIONAL))
    expected = encode(
        values,
        keys=keys,
        timestamp_ms=NOW,
        transactional=True,
        producer_id=5,
        producer_epoch=1,
        base_sequence=40,
    )
    assert bytes(batch) == bytes(expected)


def test_sealing_again_changes_the_identity_and_nothing_else() -> None:
    collector = Collector()
    collector.send("t", b"v", b"k")
    (batch,) = collector.closed()
    batch.seal(1, 2, 3, 0)
    first = scan(batch)[0].copy()
    batch.seal(9, 8, 7, int(Attributes.TRANSACTIONAL))
    second = scan(batch)[0]
    assert second["crc_ok"] == 1
    assert (second["producer_id"], second["producer_epoch"], second["base_sequence"]) == (9, 8, 7)
    assert second["attributes"] == Attributes.TRANSACTIONAL
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 8, 7)
    for field in ("size", "record_count", "base_timestamp", "max_timestamp", "last_offset_delta"):
        assert first[field] == second[field]


def test_an_encoded_batch_waits_behind_what_was_sent_before() -> None:
    collector = Collector()
    collector.send("t", b"first")
    encoded = encode([b"second", b"third"], timestamp_ms=NOW)
    (batch,) = Batch.encoded(collector.queues[0], encoded, 0)
    collector.add_batch(batch)
    collector.send("t", b"fourth")
    found = []
    for sequence, batch in enumerate(collector.closed()):
        batch.seal(1, 0, sequence, 0)
        found += [record.value for record in records(bytes(batch))]
    assert found == [b"first", b"second", b"third", b"fourth"]


def test_memory_is_given_back_when_a_batch_is_done() -> None:
    collector = Collector(bytes_max=1000)
    before = collector.available_bytes
    delivery = collector.send("t", b"v")
    assert collector.available_bytes == before - 1000
    (batch,) = collector.closed()
    batch.seal(-1, -1, -1, 0)
    view = memoryview(batch)
    assert batch.complete(0, -1)
    assert not batch.complete(1, -1), "the first answer counts"
    assert bytes(view)[:8] == bytes(8), "a view outlives the answer"
    del view
    with pytest.raises(BufferError):
        memoryview(batch)
    assert delivery.result().offset == 0


def test_batches_linger_out_oldest_first() -> None:
    collector = Collector(partitions=3)
    for number, opened_ms in ((2, 10), (0, 20), (1, 30)):
        collector.take_bytes(500)
        collector.open_batch(collector.queues[number], 500, 500, opened_ms)
        collector.send("t", b"v", partition=number)
    assert collector.oldest_opened_ms() == 10
    assert collector.close_oldest(5) is None
    assert collector.close_oldest(25) is collector.queues[2]
    collector.close_batch(collector.queues[0])  # by another way: it is passed over
    assert collector.oldest_opened_ms() == 30
    assert collector.close_oldest(25) is None
    assert collector.close_oldest(30) is collector.queues[1]
    assert collector.close_oldest(2**62) is None
    assert collector.oldest_opened_ms() == -1
    assert len(collector.incomplete) == 3


def test_open_batches_can_be_dropped() -> None:
    collector = Collector(partitions=3)
    sent = [collector.send("t", b"v", partition=number) for number in range(3)]
    collector.close_batch(collector.queues[1])
    dropped = collector.drop_open()
    assert [batch.target.partition for batch in dropped] == [0, 2]
    assert collector.oldest_opened_ms() == -1
    for batch in dropped:
        batch.complete(-1, -1, ValueError("dropped"))
    assert [one.done() for one in sent] == [True, False, True]


def test_a_batch_without_records_is_not_sent() -> None:
    """Goal: a record that is refused by the encoder leaves nothing behind."""
    collector = Collector()
    before = collector.available_bytes
    with pytest.raises(ValueError, match="bytes"):
        collector.send("t", bytes(2 << 20))
    collector.take_bytes(100)
    collector.open_batch(collector.queues[0], 100, 100, 0)
    assert collector.close_batch(collector.queues[0]) is None
    assert collector.available_bytes == before
    assert collector.closed() == []


def test_the_gate_keeps_records_out() -> None:
    collector = Collector()

    def refuse() -> None:
        raise PermissionError("not now")

    collector.gate = refuse
    with pytest.raises(PermissionError):
        collector.send("t", b"v")
    collector.gate = None
    collector.send("t", b"v")
    assert collector.closed()[0].record_count == 1


def test_an_eager_accumulator_asks_to_send_every_record() -> None:
    collector = Collector(partitions=3, is_eager=True)
    for number in (2, 0, 1):
        collector.send("t", b"v", partition=number)
    assert collector.sent_now == [2, 0, 1]


def test_records_take_turns_where_they_should() -> None:
    collector = Collector(partitions=3, rotates=True)
    for number in range(7):
        collector.send("t", b"%d" % number, key=b"always the same")
    counts = [sum(batch.record_count for batch in collector.closed(n)) for n in range(3)]
    assert counts == [3, 2, 2]


def test_keys_can_be_ignored() -> None:
    collector = Collector(partitions=3, ignores_keys=True)
    for number in range(9):
        collector.send("t", b"v", key=b"%d" % number)
    assert [len(collector.closed(number)) for number in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"value": "text"}, "value must be bytes, not str: encode it first"),
        ({"value": b"v", "key": "text"}, "key must be bytes, not str: encode it first"),
        ({"value": 5}, "value must be bytes, not int"),
        ({"value": [1, 2]}, "value must be bytes, not list"),
        ({"value": b"v", "headers": [("h", "text")]}, "header value must be bytes, not str"),
        ({"value": b"v", "headers": [(b"h", b"v")]}, "a header key is a str, not bytes"),
        ({"value": b"v", "headers": ["h"]}, "headers are"),
        ({"value": b"v", "headers": [("a", b"b", b"c")]}, "headers are"),
        ({"topic": 5, "value": b"v"}, "a topic is a str, not int"),
    ],
)
def test_a_wrong_type_gets_one_clear_sentence(call: dict[str, Any], sentence: str) -> None:
    collector = Collector()
    with pytest.raises(TypeError, match=sentence):
        collector.send(**{"topic": "t", **call})
    assert collector.closed() == []


def test_anything_with_bytes_in_it_is_taken() -> None:
    collector = Collector()
    for value in (bytearray(b"a"), memoryview(b"b"), type("Blob", (bytes,), {})(b"c")):
        collector.send("t", value, headers={"h": value})
    (batch,) = collector.closed()
    batch.seal(-1, -1, -1, 0)
    found = [(one.value, one.headers) for one in records(bytes(batch))]
    assert found == [(one, (("h", one),)) for one in (b"a", b"b", b"c")]


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(InvalidTimestampError, match="-5 is negative"):
        Collector().send("t", b"v", timestamp=-5)


def test_a_partition_outside_the_topic_is_refused() -> None:
    for number in (-1, 3, 2**31 - 1):
        with pytest.raises(LookupError):
            Collector(partitions=3).send("t", b"v", partition=number)


def test_callbacks_are_given_out_once_and_in_order() -> None:
    collector, heard = Collector(), Heard()
    for _ in range(3):
        collector.send("t", b"v", on_delivery=heard)
    late = collector.send("t", b"v")
    (batch,) = collector.closed()
    batch.complete(10, -1)
    for delivery, callback in batch.take_callbacks():
        delivery.answer(callback)
    assert list(batch.take_callbacks()) == []
    late.add_callback(heard)
    assert heard.offsets == [10, 11, 12, 13]


def test_log_append_time_is_what_the_record_has_then() -> None:
    collector = Collector()
    delivery = collector.send("t", b"v", timestamp=5)
    collector.closed()[0].complete(0, 99)
    assert delivery.result().timestamp == 99


def test_an_error_reaches_every_record_of_the_batch() -> None:
    collector = Collector()
    deliveries = [collector.send("t", b"v") for _ in range(3)]
    problem = OSError("gone")
    collector.closed()[0].complete(-1, -1, problem)
    for delivery in deliveries:
        assert delivery.done()
        assert delivery.exception() is problem
        with pytest.raises(OSError, match="gone"):
            delivery.result()


def test_metadata_is_a_value() -> None:
    one = RecordMetadata("t", 1, 2, 3, 4, 5)
    assert one == RecordMetadata("t", 1, 2, 3, 4, 5) != RecordMetadata("t", 1, 2, 3)
    assert len({one, RecordMetadata("t", 1, 2, 3, 4, 5)}) == 1
    assert "offset=2" in repr(one)


def test_deliveries_leave_no_garbage() -> None:
    """Goal: deliveries are not tracked by the garbage collector, so they must not form cycles that last.
    Method: a callback that holds its own delivery, then the answer; nothing may be left alive."""
    collector = Collector()
    alive: list[Any] = []
    delivery = collector.send("t", b"v")
    delivery.add_callback(lambda *_: alive.append(delivery))
    batch = collector.closed()[0]
    batch.complete(0, -1)
    for one, callback in batch.take_callbacks():
        one.answer(callback)
    alive.clear()
    collector.queues[0].waiting.clear()
    collector.incomplete.clear()
    collector.opened.clear()
    del batch, one, callback
    delivery = None  # type: ignore[assignment]
    gc.collect()
    assert not [
        found
        for found in gc.get_objects()
        if isinstance(found, Batch) and found.target in collector.queues
    ]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns at every opportunity."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_many_threads_lose_nothing() -> None:
    collector = Collector(partitions=2, bytes_max=300)
    count, threads = 4000, 4
    start = threading.Barrier(threads)

    def send(name: int) -> None:
        start.wait()
        for number in range(count):
            collector.send("t", b"%d %d" % (name, number), partition=number % 2)

    workers = [threading.Thread(target=send, args=(name,)) for name in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found: list[bytes | None] = []
    for partition in range(2):
        for batch in collector.closed(partition):
            batch.seal(-1, -1, -1, 0)
            found += [record.value for record in records(bytes(batch))]
    assert len(found) == count * threads
    for name in range(threads):
        mine = [one for one in found if one is not None and one.startswith(b"%d " % name)]
        for parity in range(2):
            half = [int(one.split()[1]) for one in mine if int(one.split()[1]) % 2 == parity]
            assert half == sorted(half) == list(range(parity, count, 2))


def test_a_delivery_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError, match="send"):
        Delivery()


# ---------------------------------------------------------------- the alarm


def asleep(alarm: Alarm, due: float = float("inf")) -> threading.Thread:
    thread = threading.Thread(target=alarm.sleep, args=(0.0, due), daemon=True)
    thread.start()
    time.sleep(0.05)
    return thread


def test_an_alarm_that_was_rung_lets_nobody_fall_asleep() -> None:
    alarm = Alarm()
    alarm.ring()
    alarm.ring()
    alarm.sleep(0.0, float("inf"))
    sleeper = asleep(alarm)
    assert sleeper.is_alive(), "two rings before one sleep are one"
    alarm.ring()
    sleeper.join(10)
    assert not sleeper.is_alive()


def test_an_alarm_goes_off_at_its_time() -> None:
    alarm = Alarm()
    started = time.monotonic()
    alarm.sleep(100.0, 100.05)
    assert time.monotonic() - started >= 0.049
    alarm.sleep(100.0, 99.0)  # over already


def test_a_batch_that_is_opened_while_the_alarm_sleeps_sets_it_off_when_it_has_lingered() -> None:
    alarm, collector = Alarm(), Collector()
    collector.linger_with(alarm, 0.1)
    sleeper = asleep(alarm)
    started = time.monotonic()
    assert collector.open_batch(collector.queues[0], 1000, 0, 0)
    sleeper.join(10)
    assert not sleeper.is_alive()
    assert time.monotonic() - started >= 0.09


def test_a_batch_that_is_closed_in_time_wakes_nobody() -> None:
    alarm, collector = Alarm(), Collector()
    collector.linger_with(alarm, 0.5)
    sleeper = asleep(alarm)
    queue = collector.queues[0]
    for now_ms in range(0, 800, 20):
        collector.open_batch(queue, 1000, 0, now_ms)
        time.sleep(0.02)
        collector.close_batch(queue)
    time.sleep(0.1)
    assert sleeper.is_alive()
    alarm.ring()
    sleeper.join(10)
    assert not sleeper.is_alive()


def test_batches_that_are_sent_at_once_do_not_wake_the_sleeper_one_by_one() -> None:
    """Goal: of a producer that waits for each record, no record pays for a switch to another thread.
    Method: the sleeper shares a core with who sends, and comes second: each batch is closed before it has a look. The
    kernel counts how often it goes to sleep."""
    alarm, collector = Alarm(), Collector()
    collector.linger_with(alarm, 60.0)
    sleeper = asleep(alarm)
    assert sleeper.native_id is not None
    queue, cores = collector.queues[0], os.sched_getaffinity(0)
    try:
        for thread in (0, sleeper.native_id):
            os.sched_setaffinity(thread, {min(cores)})
        os.setpriority(os.PRIO_PROCESS, sleeper.native_id, 19)
        before = sleeps_of(sleeper)
        for now_ms in range(50):
            collector.open_batch(queue, 1000, 0, now_ms)
            collector.close_batch(queue)
            time.sleep(0.002)
        assert sleeps_of(sleeper) - before <= 5, "woken for the first, and for no other"
    finally:
        os.sched_setaffinity(0, cores)
        alarm.ring()
    sleeper.join(10)
    assert not sleeper.is_alive()


def sleeps_of(thread: threading.Thread) -> int:
    """How often a thread has given up its core by itself."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return next(
        int(line.split()[1])
        for line in status.splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


# ---------------------------------------------------------------- one watch for many alarms


def watching() -> Watch:
    watch = Watch()
    threading.Thread(target=watch.run, daemon=True).start()
    return watch


def test_a_watch_wakes_the_producer_whose_batch_has_lingered_and_no_other() -> None:
    watch = watching()
    pairs = [(Alarm(), Collector()) for _ in range(3)]
    for alarm, collector in pairs:
        watch.add(alarm, 0.0)
        collector.linger_with(alarm, 0.1)
    sleepers = [asleep(alarm) for alarm, _ in pairs]
    started = time.monotonic()
    for _, collector in pairs:
        assert collector.open_batch(collector.queues[0], 1000, 0, 0)
    for _, collector in (pairs[0], pairs[2]):
        collector.close_batch(collector.queues[0])
    sleepers[1].join(10)
    assert not sleepers[1].is_alive()
    assert time.monotonic() - started >= 0.09
    time.sleep(0.1)
    assert [sleeper.is_alive() for sleeper in sleepers] == [True, False, True]
    for alarm, _ in pairs:
        alarm.ring()
    for sleeper in sleepers:
        sleeper.join(10)
        assert not sleeper.is_alive()


def test_a_watch_learns_of_what_lingers_already() -> None:
    """Goal: an alarm is set before a watch has it, and the watch may look before anybody has told it the time."""
    for _ in range(5):
        watch, alarm, collector = watching(), Alarm(), Collector()
        collector.linger_with(alarm, 0.01)
        assert collector.open_batch(collector.queues[0], 1000, 0, 0)
        watch.add(alarm, 0.0)
        sleeper = threading.Thread(target=alarm.sleep, args=(0.0, float("inf")), daemon=True)
        sleeper.start()
        sleeper.join(10)
        assert not sleeper.is_alive()


def test_a_watch_says_again_what_its_producer_has_not_sent() -> None:
    watch, alarm, collector = watching(), Alarm(), Collector()
    watch.add(alarm, 0.0)
    collector.linger_with(alarm, 0.01)
    assert collector.open_batch(collector.queues[0], 1000, 0, 0)
    for _ in range(3):
        sleeper = threading.Thread(target=alarm.sleep, args=(1.0, float("inf")), daemon=True)
        sleeper.start()
        sleeper.join(10)
        assert not sleeper.is_alive(), "it is open still"


def test_an_hour_of_lingering_beside_it_keeps_no_batch_waiting_and_costs_no_wakes() -> None:
    """Goal: a watch looks at each producer's own time. Method: the kernel counts how often the watch goes to sleep."""
    watch = Watch()
    looker = threading.Thread(target=watch.run, daemon=True)
    looker.start()
    patient, hasty = (Alarm(), Collector()), (Alarm(), Collector())
    for (alarm, collector), linger_s in ((patient, 3600.0), (hasty, 0.5)):
        watch.add(alarm, 0.0)
        collector.linger_with(alarm, linger_s)
    assert patient[1].open_batch(patient[1].queues[0], 1000, 0, 0)
    queue, sleeper = hasty[1].queues[0], asleep(hasty[0])
    hasty[1].open_batch(queue, 1000, 0, 1)
    hasty[1].close_batch(queue)
    time.sleep(0.02)
    before = sleeps_of(looker)
    for now_ms in range(2, 52):
        hasty[1].open_batch(queue, 1000, 0, now_ms)
        hasty[1].close_batch(queue)
    assert sleeps_of(looker) - before <= 5
    hasty[1].open_batch(queue, 1000, 0, 100)
    sleeper.join(10)
    assert not sleeper.is_alive()


def test_a_producer_that_has_left_is_watched_no_more() -> None:
    watch, alarm, collector = watching(), Alarm(), Collector()
    watch.add(alarm, 0.0)
    collector.linger_with(alarm, 0.01)
    watch.remove(alarm)
    watch.remove(alarm)
    sleeper = asleep(alarm)
    assert collector.open_batch(collector.queues[0], 1000, 0, 0)
    time.sleep(0.05)
    assert sleeper.is_alive()
    alarm.ring()
    sleeper.join(10)
    assert not sleeper.is_alive()
