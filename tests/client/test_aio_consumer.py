"""Tasks that read: they wait in the loop, are woken by what comes, and lose nothing when they are cancelled."""

# A record that nobody waits for is sent all the same.
# mypy: disable-error-code="unused-awaitable"

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import oncelog.aio
from oncelog.base.errors import ClosedError, IllegalStateError, KafkaStorageError, WakeupError
from oncelog.testing import ManualClock, ScratchLog

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from oncelog.client.client import Log

HOUR_MS = 3_600_000
LIMIT_S = 30  # of a test that hangs


@pytest.fixture(params=["os", "fsync"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScratchLog]:
    with ScratchLog(tmp_path, durability=request.param) as log:
        log.create_topic("orders", partitions=2)
        yield log


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, LIMIT_S)

    asyncio.run(limited())


def send(log: Log, *values: bytes, partition: int = 0) -> None:
    with log.producer() as producer:
        for value in values:
            producer.send("orders", value, partition=partition)


async def until_waiting() -> None:
    """Lets other tasks come to their waits."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_hundred_long_polls_wait_without_a_thread(log: ScratchLog) -> None:
    """Goal: waiting costs no thread, and all that wait are woken.
    Method: count threads while a hundred consumers wait; then one append ends all polls."""

    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            before = set(threading.enumerate())
            consumers = [shared.consumer(auto_offset_reset="earliest") for _ in range(100)]
            for consumer in consumers:
                consumer.assign([("orders", 0)])
            polls = [asyncio.create_task(consumer.poll(HOUR_MS)) for consumer in consumers]
            await until_waiting()
            assert not set(threading.enumerate()) - before
            assert not any(poll.done() for poll in polls)
            threading.Thread(target=send, args=(log, b"for all")).start()
            for records in await asyncio.gather(*polls):
                assert [record.value for record in records] == [b"for all"]

    run(work())


def test_a_poll_is_woken_when_a_commit_moves_the_last_stable_offset(log: ScratchLog) -> None:
    """Method: the records are there all the time; only the marker makes them visible."""

    async def work() -> None:
        async with (
            oncelog.aio.over(log) as shared,
            shared.producer(transactional_id="t") as producer,
        ):
            await producer.begin_transaction()
            await (await producer.send("orders", b"held back", partition=0))
            consumer = shared.consumer(auto_offset_reset="earliest")
            consumer.assign([("orders", 0)])
            poll = asyncio.create_task(consumer.poll_arrow(HOUR_MS))
            await until_waiting()
            assert not poll.done()
            await producer.commit_transaction()
            assert (await poll)["value"].to_pylist() == [b"held back"]

    run(work())


def test_a_poll_that_finds_nothing_takes_its_time_and_no_more(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared, shared.consumer() as consumer:
            consumer.assign([("orders", 0)])
            loop = asyncio.get_running_loop()
            for timeout_ms in (0, 60):
                start = loop.time()
                assert await consumer.poll(timeout_ms) == []
                assert loop.time() - start >= timeout_ms / 1000
            assert len(await consumer.poll_arrow()) == 0

    run(work())


@pytest.mark.parametrize("is_fired", [False, True], ids=["waiting", "woken"])
def test_a_cancelled_poll_has_taken_nothing(log: ScratchLog, is_fired: bool) -> None:
    """Goal: cancellation loses no record, also where it comes after the wake-up and before the task runs.
    Method: cancel in the very turn in which the record was appended."""

    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer(auto_offset_reset="earliest")
            consumer.assign([("orders", 0)])
            for number in range(20):
                poll = asyncio.create_task(consumer.poll(HOUR_MS))
                await until_waiting()
                send(log, b"%d" % number)
                if is_fired:
                    await asyncio.sleep(0)
                poll.cancel()
                found = []
                try:
                    found = await poll
                except asyncio.CancelledError:
                    found = await consumer.poll(1000)
                assert [record.value for record in found] == [b"%d" % number]

    run(work())


def test_wait_for_loses_nothing_either(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer(auto_offset_reset="earliest")
            consumer.assign([("orders", 0)])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(None), 0.02)
            send(log, b"a")
            assert [record.value for record in await consumer.poll(1000)] == [b"a"]

    run(work())


def test_async_for_hands_out_one_record_after_another(log: ScratchLog) -> None:
    """Goal: the position is that of the records handed out, not of those fetched."""

    async def work() -> None:
        send(log, *(b"%d" % number for number in range(10)))
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer(auto_offset_reset="earliest")
            consumer.assign([("orders", 0)])
            seen = []
            async for record in consumer:
                seen.append(record.value)
                if len(seen) == 4:
                    break
            assert consumer.position(("orders", 0)) == 4
            later = asyncio.create_task(anext(consumer))
            assert (await later).value == b"4"
            consumer.seek(("orders", 0), 9)
            assert (await anext(consumer)).value == b"9"
            last = asyncio.create_task(anext(consumer))
            await until_waiting()
            send(log, b"10")
            assert (await last).value == b"10"

    run(work())


def test_fetch_min_bytes_holds_back_for_its_time(log: ScratchLog) -> None:
    async def work() -> None:
        send(log, b"little")
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer(
                auto_offset_reset="earliest", fetch_min_bytes=10_000, fetch_max_wait_ms=80
            )
            consumer.assign([("orders", 0)])
            assert await consumer.poll(0) == []
            assert [record.value for record in await consumer.poll(5000)] == [b"little"]

    run(work())


def test_two_tasks_do_not_poll_one_consumer(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer()
            consumer.assign([("orders", 0)])
            poll = asyncio.create_task(consumer.poll(HOUR_MS))
            await until_waiting()
            with pytest.raises(IllegalStateError, match="another task"):
                await consumer.poll()
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
            assert await consumer.poll() == []

    run(work())


def test_wakeup_and_close_end_a_poll(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer()
            consumer.assign([("orders", 0)])
            poll = asyncio.create_task(consumer.poll(HOUR_MS))
            await until_waiting()
            consumer.wakeup()
            with pytest.raises(WakeupError):
                await poll
            poll = asyncio.create_task(consumer.poll(HOUR_MS))
            await until_waiting()
            await consumer.close()
            with pytest.raises(ClosedError):
                await poll
            with pytest.raises(ClosedError):
                await consumer.poll()
            with pytest.raises(ClosedError):
                consumer.assign([("orders", 0)])
            await consumer.close()

    run(work())


def test_a_failing_fetch_is_raised_by_the_poll(log: ScratchLog) -> None:
    async def work() -> None:
        send(log, b"a")
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer(auto_offset_reset="earliest")
            consumer.assign([("orders", 0)])
            log.faults.next("fetch", KafkaStorageError)
            with pytest.raises(KafkaStorageError):
                await consumer.poll(1000)
            assert len(await consumer.poll(1000)) == 1

    run(work())


def test_a_clock_that_is_moved_by_hand_ends_a_poll(tmp_path: Path) -> None:
    clock = ManualClock()

    async def work() -> None:
        async with oncelog.aio.open(tmp_path, clock=clock) as log:
            await log.create_topic("orders")
            consumer = log.consumer()
            consumer.assign([("orders", 0)])
            poll = asyncio.create_task(consumer.poll(HOUR_MS))
            await until_waiting()
            clock.advance(HOUR_MS)
            assert await poll == []

    run(work())


def test_a_log_that_was_not_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(IllegalStateError, match="async with"):
        oncelog.aio.open(tmp_path).topics()


# ---------------------------------------------------------------- groups


def test_a_group_commits_and_goes_on_where_it_was(log: ScratchLog) -> None:
    async def work() -> None:
        send(log, b"a", b"b", b"c")
        options = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with oncelog.aio.over(log) as shared:
            async with shared.consumer(**options) as first:
                first.subscribe(["orders"])
                found = await first.poll(10_000, max_records=2)
                assert [record.value for record in found] == [b"a", b"b"]
                await first.commit()
                committed = await first.committed([("orders", 0)])
                assert [at.offset for at in committed.values() if at is not None] == [2]
            async with shared.consumer(**options) as second:
                second.subscribe(["orders"])
                assert [record.value for record in await second.poll(10_000)] == [b"c"]

    run(work())


def test_two_members_share_what_they_read(log: ScratchLog) -> None:
    """Method: both wait in the same loop; a rebalance needs both of them to poll."""

    async def work() -> None:
        options = {"group_id": "g", "auto_offset_reset": "earliest"}
        async with oncelog.aio.over(log) as shared:
            members = [shared.consumer(**options) for _ in range(2)]
            for member in members:
                member.subscribe(["orders"])
            polls = [asyncio.create_task(member.poll(HOUR_MS)) for member in members]
            assigned = asyncio.Event()
            while not assigned.is_set():
                await asyncio.sleep(0.01)
                if [len(member.assignment()) for member in members] == [1, 1]:
                    assigned.set()
            for number in range(2):
                send(log, b"%d" % number, partition=number)
            values = [record.value for found in await asyncio.gather(*polls) for record in found]
            assert sorted(filter(None, values)) == [b"0", b"1"]

    run(work())


def test_offsets_are_committed_with_the_transaction(log: ScratchLog) -> None:
    """Goal: consume, transform, produce; an abort takes the offsets back with the records."""

    async def work() -> None:
        send(log, b"1", b"2")
        log.create_topic("results")
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer(
                group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
            )
            consumer.subscribe(["orders"])
            async with shared.producer(transactional_id="t") as producer:
                for fails in (True, False):
                    (record,) = await consumer.poll(10_000, max_records=1)
                    try:
                        async with producer.transaction() as transaction:
                            await producer.send("results", record.value)
                            await transaction.send_offsets(
                                consumer.position_offsets(), consumer.group_metadata()
                            )
                            if fails:
                                raise ValueError
                    except ValueError:
                        consumer.seek_to_committed()
            committed = await consumer.committed([("orders", 0)])
            assert [at.offset for at in committed.values() if at is not None] == [1]
        assert [record.value for record in log.read("results")] == [b"1"]

    run(work())


def test_a_cancelled_commit_leaves_the_consumer_usable(log: ScratchLog) -> None:
    async def work() -> None:
        send(log, b"a", b"b")
        async with oncelog.aio.over(log) as shared:
            consumer = shared.consumer(
                group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
            )
            consumer.assign([("orders", 0)])
            await consumer.poll(1000, max_records=1)
            commit = asyncio.create_task(consumer.commit())
            await asyncio.sleep(0)
            commit.cancel()
            assert [record.value for record in await consumer.poll(1000)] == [b"b"]
            await consumer.commit()
            committed = await consumer.committed([("orders", 0)])
            assert [at.offset for at in committed.values() if at is not None] == [2]

    run(work())


def test_threads_beside_the_loop_may_use_the_blocking_log(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            with ThreadPoolExecutor(1) as pool:
                await asyncio.get_running_loop().run_in_executor(
                    pool, send, shared.blocking, b"from a thread"
                )
        assert [record.value for record in log.read("orders")] == [b"from a thread"]

    run(work())
