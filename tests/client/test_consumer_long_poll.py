"""A poll that finds nothing waits, without turning in circles, and misses nothing that comes meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from oncelog.base.errors import ClosedError, UnknownTopicOrPartitionError, WakeupError
from oncelog.client import consumer as consumer_module
from oncelog.client.consumer import Consumer
from oncelog.segment.names import TopicPartition

from ..partition.logs import ABORT, COMMIT, Writer, options, values
from .local_broker import LocalBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ORDERS = TopicPartition("orders", 0)
LONG_MS = 30_000  # never reached where a wake-up arrives


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with contextlib.closing(LocalBroker(tmp_path, options(segment_bytes=1 << 16))) as broker:
        yield broker


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def consumer_of(broker: LocalBroker, *keys: tuple[str, int], **rest: Any) -> Consumer:
    rest.setdefault("auto_offset_reset", "earliest")
    consumer = Consumer(broker, **rest)
    consumer.assign(keys or [ORDERS])
    return consumer


TRIES = 6  # others' work may delay a thread at any moment, but not each time


@pytest.fixture
def no_look_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes away the look around once a second, behind which a lost wake-up could hide."""
    monkeypatch.setattr(consumer_module, "LOOK_AROUND_S", 3600.0)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.monotonic()
    result = call()
    return result, time.monotonic() - start


# ---------------------------------------------------------------- the time


@pytest.mark.parametrize("timeout_ms", [0, 1, 50, 1300])
def test_an_empty_poll_takes_as_long_as_it_was_told(broker: LocalBroker, timeout_ms: int) -> None:
    """Goal: never shorter, and not longer than a scheduler's slack; also beyond the second at which it looks around.
    Method: until one of some polls was as quick as it should be, since a busy machine delays now this, now that."""
    broker.create("orders")
    consumer = consumer_of(broker)
    for poll in (consumer.poll, consumer.poll_arrow):
        for _ in range(TRIES):
            found, took = timed(lambda poll=poll: poll(timeout_ms))  # type: ignore[misc]
            assert len(found) == 0
            assert isinstance(found, (list, pa.RecordBatch))  # which is loaded by now
            assert took >= timeout_ms / 1000
            if took < timeout_ms / 1000 + 0.25:
                break
        else:
            pytest.fail(f"{TRIES} polls took longer than {timeout_ms} ms, the last {took:.2f} s")


SLOW_IMPORT = """
import importlib.abc, sys, time
from tests.client.local_broker import LocalBroker
from oncelog.client.consumer import Consumer

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pyarrow":
            time.sleep(0.5)

sys.meta_path.insert(0, Slow())
broker = LocalBroker(sys.argv[1])
broker.create("orders")
consumer = Consumer(broker)
consumer.assign([("orders", 0)])
consumer.poll(10)
assert "pyarrow" not in sys.modules
start = time.monotonic()
assert len(consumer.poll_arrow(2500)) == 0
print(time.monotonic() - start)
assert "pandas" not in sys.modules
"""


def test_loading_pyarrow_counts_as_waiting_and_pandas_is_not_loaded(tmp_path: Path) -> None:
    """Goal: the first poll_arrow of a process ends in time, though it loads pyarrow, which a poll of records spares.
    pandas, which pyarrow loads for a mere empty list, would take longer than that.
    Method: a process in which looking for pyarrow takes half a second more; again if a busy machine got in between."""
    for number in range(TRIES):
        done = subprocess.run(
            [sys.executable, "-c", SLOW_IMPORT, str(tmp_path / str(number))],
            capture_output=True,
            text=True,
            check=True,
        )
        took = float(done.stdout)
        assert took >= 2.5
        if took < 2.9:
            break
    else:
        pytest.fail(f"{TRIES} first polls took longer than 2.5 s, the last {took:.2f} s")


def test_an_empty_poll_costs_no_processor_time(broker: LocalBroker) -> None:
    """Goal: it sleeps, also where an open transaction holds something back."""
    partition = broker.create("orders")
    Writer(partition, 1).send([b"open"], transactional=True)
    consumer = consumer_of(broker)
    consumer.poll()
    start = time.thread_time()
    assert consumer.poll(800) == []
    assert time.thread_time() - start < 0.08


def test_a_member_without_partitions_waits_as_well(broker: LocalBroker) -> None:
    consumer = Consumer(broker, group_id="g")
    consumer.subscribe(["nothing-yet"])
    found, took = timed(lambda: consumer.poll(60))
    assert found == []
    assert took >= 0.06


# ---------------------------------------------------------------- what wakes


def test_new_data_wakes_a_poll(broker: LocalBroker, pool: ThreadPoolExecutor) -> None:
    writer = Writer(broker.create("orders"))
    consumer = consumer_of(broker)
    for poll in (consumer.poll, consumer.poll_arrow):
        waiting = pool.submit(timed, lambda poll=poll: poll(LONG_MS))  # type: ignore[misc]
        time.sleep(0.05)
        writer.send([b"v"])
        found, took = waiting.result()
        assert len(found) == 1
        assert took < LONG_MS / 1000


def test_a_commit_wakes_a_poll_and_the_records_before_it_do_not(
    broker: LocalBroker, pool: ThreadPoolExecutor
) -> None:
    """Goal: what moves the last stable offset is what a read_committed reader waits for."""
    writer = Writer(broker.create("orders"), 1)
    consumer = consumer_of(broker)
    waiting = pool.submit(consumer.poll, LONG_MS)
    for _ in range(5):
        writer.send(values(2), transactional=True)
        time.sleep(0.01)
    assert not waiting.done()
    writer.end(COMMIT)
    assert len(waiting.result(timeout=LONG_MS / 2000)) == 10


def test_an_abort_lets_through_what_lay_behind_it(
    broker: LocalBroker, pool: ThreadPoolExecutor
) -> None:
    partition = broker.create("orders")
    slow, quick = Writer(partition, 1), Writer(partition)
    slow.send([b"doomed"], transactional=True)
    quick.send([b"kept"])
    consumer = consumer_of(broker)
    waiting = pool.submit(consumer.poll, LONG_MS)
    time.sleep(0.05)
    assert not waiting.done()
    slow.end(ABORT)
    assert [record.value for record in waiting.result(timeout=LONG_MS / 2000)] == [b"kept"]


def test_an_abort_of_everything_moves_the_position_and_the_poll_waits_on(
    broker: LocalBroker, pool: ThreadPoolExecutor
) -> None:
    partition = broker.create("orders")
    writer = Writer(partition, 1)
    consumer = consumer_of(broker)
    waiting = pool.submit(consumer.poll, LONG_MS)
    writer.send([b"doomed"], transactional=True)
    writer.end(ABORT)
    time.sleep(0.05)
    assert not waiting.done()
    Writer(partition).send([b"kept"])
    assert [record.offset for record in waiting.result(timeout=LONG_MS / 2000)] == [2]


def test_any_of_many_partitions_wakes_a_poll(broker: LocalBroker, pool: ThreadPoolExecutor) -> None:
    writers = [Writer(broker.create("orders", number)) for number in range(50)]
    consumer = consumer_of(broker, *(("orders", number) for number in range(50)))
    for number in (0, 49, 17):
        waiting = pool.submit(consumer.poll, LONG_MS)
        time.sleep(0.02)
        writers[number].send([b"v"])
        assert [record.partition for record in waiting.result(timeout=LONG_MS / 2000)] == [number]


def test_a_paused_partition_wakes_nobody(broker: LocalBroker) -> None:
    writer = Writer(broker.create("orders"))
    consumer = consumer_of(broker)
    consumer.poll()
    consumer.pause()
    threading.Timer(0.05, lambda: writer.send([b"v"])).start()
    assert consumer.poll(200) == []
    consumer.resume()
    assert len(consumer.poll(LONG_MS)) == 1


def test_wakeup_ends_the_poll_that_waits_or_else_the_next_one(
    broker: LocalBroker, pool: ThreadPoolExecutor
) -> None:
    """Goal: one wakeup, one error; nothing is lost by it."""
    writer = Writer(broker.create("orders"))
    consumer = consumer_of(broker)
    waiting = pool.submit(consumer.poll, LONG_MS)
    time.sleep(0.05)
    consumer.wakeup()
    with pytest.raises(WakeupError):
        waiting.result(timeout=LONG_MS / 2000)
    writer.send([b"v"])
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.poll_arrow(LONG_MS)
    assert [record.value for record in consumer.poll(LONG_MS)] == [b"v"]
    assert consumer.poll(20) == []


def test_a_topic_that_is_deleted_ends_the_wait_of_its_readers(
    broker: LocalBroker, pool: ThreadPoolExecutor
) -> None:
    broker.create("orders")
    consumer = consumer_of(broker)
    waiting = pool.submit(consumer.poll, LONG_MS)
    time.sleep(0.05)
    broker.delete(ORDERS)
    with pytest.raises((UnknownTopicOrPartitionError, ClosedError)):
        waiting.result(timeout=LONG_MS / 2000)


INTERRUPTED = """
import sys, threading, os, signal, time
from tests.client.local_broker import LocalBroker
from oncelog.client.consumer import Consumer
broker = LocalBroker(sys.argv[1])
broker.create("orders")
consumer = Consumer(broker)
consumer.assign([("orders", 0)])
print("polling", flush=True)
try:
    consumer.poll(None)
except KeyboardInterrupt:
    consumer.close()
    print("ended", flush=True)
"""


def test_ctrl_c_ends_a_poll_promptly(tmp_path: Path) -> None:
    """Goal: an interrupt in the main thread ends even a poll without a limit, and the consumer can be closed."""
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "polling\n"
        time.sleep(0.1)
        os.kill(child.pid, signal.SIGINT)
        assert child.communicate(timeout=60)[0] == "ended\n"
        assert child.returncode == 0
    finally:
        child.kill()


# ---------------------------------------------------------------- fetch.min.bytes


def test_fetch_min_bytes_holds_records_back_until_there_are_enough(
    broker: LocalBroker, pool: ThreadPoolExecutor
) -> None:
    writer = Writer(broker.create("orders"))
    consumer = consumer_of(broker, fetch_min_bytes=1000, fetch_max_wait_ms=LONG_MS)
    waiting = pool.submit(consumer.poll, LONG_MS)
    for _ in range(3):
        writer.send(values(1, size=200))
        time.sleep(0.03)
    assert not waiting.done()
    writer.send(values(3, size=200))
    assert len(waiting.result(timeout=LONG_MS / 2000)) == 6


@pytest.mark.parametrize("timeout_ms", [0, 10, LONG_MS])
def test_fetch_max_wait_ms_ends_the_holding_back(broker: LocalBroker, timeout_ms: int) -> None:
    """Goal: counted from the first record that was held back, over as many polls as it takes."""
    writer = Writer(broker.create("orders"))
    consumer = consumer_of(broker, fetch_min_bytes=1000, fetch_max_wait_ms=200)
    assert consumer.poll() == []
    writer.send([b"v"])
    start = time.monotonic()
    while not (found := consumer.poll(timeout_ms)):
        assert time.monotonic() - start < LONG_MS / 1000
    assert [record.value for record in found] == [b"v"]
    assert 0.2 <= time.monotonic() - start < LONG_MS / 1000


def test_the_rest_of_a_batch_is_not_held_back(broker: LocalBroker) -> None:
    writer = Writer(broker.create("orders"))
    consumer = consumer_of(broker, fetch_min_bytes=500, fetch_max_wait_ms=LONG_MS)
    writer.send(values(6, size=200))
    assert [len(consumer.poll(max_records=4)) for _ in range(2)] == [4, 2]


# ---------------------------------------------------------------- no lost wake-up


@pytest.mark.usefixtures("no_look_around")
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_no_wake_up_is_ever_lost(broker: LocalBroker, pool: ThreadPoolExecutor, level: str) -> None:
    """Goal: a consumer that waits without a limit gets every record, though each is written only when it may be
    falling asleep; were one wake-up lost, nothing would find the record, as nobody looks around here.
    Method: ping-pong: the writer waits until a record was received, pauses for a random moment, writes the next."""
    partition = broker.create("orders")
    writer, chance = Writer(partition, 1), random.Random(1)
    received, stop, rounds = threading.Semaphore(0), time.monotonic() + 3, 0

    def follow() -> list[bytes | None]:
        consumer = consumer_of(broker, isolation_level=level)
        seen: list[bytes | None] = []
        while not seen or seen[-1] != b"end":
            got = consumer.poll(4 * LONG_MS)
            if not got:
                return seen
            seen += [record.value for record in got]
            received.release()
        return seen

    following = pool.submit(follow)
    while time.monotonic() < stop:
        if chance.random() < 0.5:
            time.sleep(chance.random() / 2000)
        writer.send([str(rounds).encode()], transactional=True)
        writer.end(COMMIT)
        assert received.acquire(timeout=LONG_MS / 1000), "a wake-up was lost"
        rounds += 1
        while received.acquire(blocking=False):
            pass
    writer.send([b"end"], transactional=True)
    writer.end(COMMIT)
    assert following.result(timeout=LONG_MS / 1000) == [
        *(str(n).encode() for n in range(rounds)),
        b"end",
    ]
    assert rounds > 10


def test_many_writers_and_consumers_on_many_partitions_lose_nothing(
    broker: LocalBroker, pool: ThreadPoolExecutor
) -> None:
    """Goal: every consumer sees every record of every partition once and in order, aborted ones never.
    Method: four writers of transactions, two consumers by each way of reading, all at once for two seconds."""
    keys = [TopicPartition("orders", number) for number in range(4)]
    partitions = [broker.create(*key) for key in keys]
    stop = time.monotonic() + 2
    kept: list[list[int]] = [[] for _ in keys]
    finished = threading.Event()

    def write(number: int) -> None:
        writer, chance = Writer(partitions[number], 1), random.Random(number)
        while time.monotonic() < stop:
            done = writer.send(values(1 + chance.randrange(5)), transactional=True)
            if chance.random() < 0.5:
                writer.end(COMMIT)
                kept[number] += range(done.base_offset, done.last_offset + 1)
            else:
                writer.end(ABORT)

    def follow(by_arrow: bool) -> list[list[int]]:
        consumer = consumer_of(broker, *keys, max_poll_records=7)
        seen: list[list[int]] = [[] for _ in keys]
        while True:
            is_last = finished.is_set() or time.monotonic() > stop + 60
            if by_arrow:
                batch = consumer.poll_arrow(100, max_records=7)
                rows = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
                got = list(rows)
            else:
                got = [(record.partition, record.offset) for record in consumer.poll(100)]
            for number, offset in got:
                seen[number].append(offset)
            if is_last and not got:
                return seen

    following = [pool.submit(follow, by_arrow) for by_arrow in (False, True) * 2]
    for writing in [pool.submit(write, number) for number in range(4)]:
        writing.result(timeout=60)
    finished.set()
    for result in following:
        assert result.result(timeout=60) == kept
    assert all(kept)
