"""A clock that is moved by hand moves everything along: housekeeping at once, and all who wait."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import oncelog
from oncelog.base.errors import (
    BufferExhaustedError,
    ConcurrentTransactionsError,
    OncelogError,
    ProducerFencedError,
    RequestTimedOutError,
)
from oncelog.testing import ManualClock, ScratchLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.client.consumer import Consumer

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[ScratchLog]:
    with ScratchLog(tmp_path, clock=clock) as log:
        log.create_topic("orders")
        yield log


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def until_waiting() -> None:
    """Gives another thread the time to go to sleep; too little makes a test weaker, not wrong."""
    time.sleep(0.05)


def test_records_carry_the_time_of_the_clock(log: ScratchLog, clock: ManualClock) -> None:
    with log.producer(linger_ms=0) as producer:
        first = producer.send("orders", b"a").result().timestamp
        clock.advance(1234)
        assert producer.send("orders", b"b").result().timestamp == first + 1234
    assert first + 1234 == clock() == clock.now_ms


def test_a_transaction_runs_out_of_time_within_advance(log: ScratchLog, clock: ManualClock) -> None:
    """Goal: no thread has to be waited for.
    Method: no sleep between the move and the look."""
    producer = log.producer(transactional_id="t", transaction_timeout_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"late").result()
    clock.advance(59_999)
    assert [listing.state.label for listing in log.broker.list_transactions()] == ["Ongoing"]
    clock.advance(11_000)  # and the interval at which the broker looks
    assert [listing.state.label for listing in log.broker.list_transactions()] == ["CompleteAbort"]
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()


def test_retention_takes_what_has_become_old(log: ScratchLog, clock: ManualClock) -> None:
    log.create_topic("short", config={"retention.ms": HOUR_MS, "segment.ms": HOUR_MS})
    with log.producer(linger_ms=0) as producer:
        producer.send("short", b"old").result()
        clock.advance(2 * HOUR_MS)
        producer.send("short", b"new").result()
    clock.advance(HOUR_MS // 2)
    assert [record.value for record in log.read("short")] == [b"new"]


def test_compaction_happens_within_advance(log: ScratchLog, clock: ManualClock) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": 1000, "min.cleanable.dirty.ratio": 0.0}
    log.create_topic("latest", config=config)
    with log.producer(linger_ms=0) as producer:
        for value in (b"1", b"2", b"3"):
            producer.send("latest", value, key=b"k").result()
            clock.advance(2000)
    clock.advance(60_000)
    assert [record.value for record in log.read("latest")] == [b"2", b"3"]  # the last segment stays


def test_a_log_by_hand_has_no_threads(tmp_path: Path, clock: ManualClock) -> None:
    before = threading.active_count()
    with oncelog.open(tmp_path, clock=clock):
        assert threading.active_count() == before


@pytest.mark.parametrize("call", ["poll", "poll_arrow"])
def test_a_long_poll_ends_when_its_time_is_skipped(
    log: ScratchLog, clock: ManualClock, pool: ThreadPoolExecutor, call: str
) -> None:
    """Goal: a poll of an hour takes no hour.
    Method: it would run into the time-out of the future if it did."""
    consumer = log.consumer()
    consumer.assign([("orders", 0)])
    waiting = pool.submit(getattr(consumer, call), HOUR_MS)
    until_waiting()
    clock.advance(HOUR_MS // 2)
    until_waiting()
    assert not waiting.done()
    clock.advance(HOUR_MS // 2)
    assert len(waiting.result(20)) == 0


def test_real_time_counts_as_well(log: ScratchLog) -> None:
    """Goal: a test with one thread, which moves no clock, does not wait for itself."""
    consumer = log.consumer()
    consumer.assign([("orders", 0)])
    assert consumer.poll(timeout_ms=20) == []


def test_a_lingering_batch_goes_out_when_its_time_is_skipped(
    log: ScratchLog, clock: ManualClock
) -> None:
    with log.producer(linger_ms=HOUR_MS) as producer:
        sent = threading.Event()
        producer.send("orders", b"a", on_delivery=lambda *_: sent.set())
        assert not sent.wait(0.05)
        clock.advance(HOUR_MS)
        assert sent.wait(20)


def test_a_coordinator_that_stays_busy_is_given_up_when_max_block_is_skipped(
    log: ScratchLog, clock: ManualClock, pool: ThreadPoolExecutor
) -> None:
    log.faults.next("init_producer_id", ConcurrentTransactionsError, times=1_000_000)
    producer = log.producer(transactional_id="t", max_block_ms=HOUR_MS)
    waiting = pool.submit(producer.init_transactions)
    until_waiting()
    clock.advance(HOUR_MS)
    with pytest.raises(RequestTimedOutError, match=r"max\.block\.ms"):
        waiting.result(20)


def test_a_wait_for_memory_ends_when_max_block_is_skipped(
    log: ScratchLog, clock: ManualClock, pool: ThreadPoolExecutor
) -> None:
    """Method: the broker fails, so that what was sent keeps its memory."""
    log.faults.next("produce", RequestTimedOutError, times=1_000_000)
    producer = log.producer(
        buffer_memory=4096,
        batch_size=4096,
        linger_ms=0,
        max_block_ms=HOUR_MS,
        retry_backoff_ms=HOUR_MS,
        retry_backoff_max_ms=HOUR_MS,
        delivery_timeout_ms=4 * HOUR_MS,
    )
    producer.send("orders", b"a")
    waiting = pool.submit(producer.send, "orders", b"b")
    until_waiting()
    clock.advance(HOUR_MS)
    with pytest.raises(BufferExhaustedError):
        waiting.result(20)
    log.faults.clear()
    producer.close(0)


def joined(log: ScratchLog, count: int) -> list[Consumer]:
    """Members of one group that share two partitions, as far as these go."""
    log.create_topic("shared", partitions=2)
    members = [log.consumer(group_id="g", client_id=f"member{number}") for number in range(count)]
    for member in members:
        member.subscribe(["shared"])
    while sum(len(member.assignment()) for member in members) < 2 or not all(
        member.assignment() for member in members
    ):
        for member in members:
            member.poll(10)
    return members


def test_a_leap_does_not_throw_members_out_that_are_alive(
    log: ScratchLog, clock: ManualClock
) -> None:
    """Goal: a session time-out that is leapt over counts for the dead alone."""
    members = joined(log, 2)
    clock.advance(200_000)  # four sessions
    (group,) = log.broker.describe_groups(["g"]).values()
    assert not isinstance(group, OncelogError)
    assert len(group.members) == 2
    assert [len(member.assignment()) for member in members] == [1, 1]


def test_a_member_that_is_not_heard_dies_and_the_rest_take_over(
    log: ScratchLog, clock: ManualClock
) -> None:
    """Method: the heartbeats of one member get lost."""
    first, second = joined(log, 2)
    mute = first.group_metadata().member_id
    log.faults.next(
        "heartbeat",
        RequestTimedOutError,
        times=1_000_000,
        when=lambda _group, member_id, *_, **__: member_id == mute,
    )
    clock.advance(60_000)
    while len(second.assignment()) < 2:
        second.poll(10)
    log.faults.clear()


def test_a_log_that_was_opened_again_lives_by_the_same_clock(
    log: ScratchLog, clock: ManualClock
) -> None:
    """Goal: one life, one round of housekeeping for each move."""
    for _ in range(3):
        log.kill()
        log.reopen()
    ticks = []
    tick = log.broker.housekeeping.tick
    log.broker.housekeeping.tick = lambda: ticks.append(clock()) or tick()  # type: ignore[method-assign, func-returns-value]
    clock.advance(1)
    assert ticks == [clock()]


def test_time_does_not_move_back(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="not back"):
        clock.advance(-1)


def test_the_clock_keeps_nobody_alive(log: ScratchLog, clock: ManualClock) -> None:
    consumer = log.consumer()
    consumer.close()
    gone = weakref.ref(consumer)
    del consumer
    gc.collect()
    clock.advance(1)
    assert gone() is None
