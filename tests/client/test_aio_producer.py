"""Tasks that write: many share a producer, acknowledgements are awaited, and what is cancelled is resumed."""

# A record that nobody waits for is sent all the same.
# mypy: disable-error-code="unused-awaitable"

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import oncelog.aio
from oncelog.base.errors import (
    BufferExhaustedError,
    ClosedError,
    ConcurrentTransactionsError,
    IllegalStateError,
    KafkaStorageError,
    NotCoordinatorError,
    OncelogError,
    ProducerFencedError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from oncelog.client.transaction_manager import State
from oncelog.testing import ScratchLog

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

LIMIT_S = 30  # of a test that hangs


@pytest.fixture(params=["os", "fsync"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScratchLog]:
    with ScratchLog(tmp_path, durability=request.param) as log:
        log.create_topic("orders")
        yield log


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, LIMIT_S)

    asyncio.run(limited())


def values(log: ScratchLog) -> list[bytes | None]:
    return [record.value for record in log.read("orders")]


def test_a_record_is_sent_and_its_place_awaited(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared, shared.producer() as producer:
            delivery = await producer.send("orders", b"a", key=b"k", headers=[("h", b"1")])
            found = await delivery
            assert (found.topic, found.partition, found.offset) == ("orders", 0, 0)
            assert delivery.done()
            assert await delivery == found, "it may be awaited again"

    run(work())


def test_what_many_tasks_send_goes_out_together(log: ScratchLog) -> None:
    """Goal: a task for each record does not mean a batch for each record, nor a thread.
    Method: a thousand tasks of which each waits for its own record; count batches and threads."""

    async def work() -> None:
        async with oncelog.aio.over(log) as shared, shared.producer(linger_ms=60_000) as producer:

            async def one(number: int) -> int:
                delivery = await producer.send("orders", b"%d" % number)
                return (await delivery).offset

            before = threading.active_count()
            offsets = await asyncio.gather(*(one(number) for number in range(1000)))
            assert offsets == list(range(1000))
            assert producer.metrics()["batch-total"] < 50
            assert threading.active_count() <= before + 2  # the producer's own, and one for syncs

    run(work())


def test_a_large_number_of_records_arrives_whole(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared, shared.producer() as producer:
            deliveries = [await producer.send("orders", b"%d" % n) for n in range(50_000)]
            await producer.flush()
            assert all(delivery.done() for delivery in deliveries)

    run(work())
    assert values(log) == [b"%d" % number for number in range(50_000)]


def test_columns_are_sent(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared, shared.producer() as producer:
            table = pa.table({"value": [b"a", b"b", b"c"]})
            (found,) = await (await producer.send_arrow("orders", table))
            assert (found.base_offset, found.last_offset, found.record_count) == (0, 2, 3)

    run(work())


def test_an_error_is_raised_where_the_delivery_is_awaited(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared, shared.producer(retries=0) as producer:
            log.faults.next("produce", KafkaStorageError("full"))
            delivery = await producer.send("orders", b"a")
            with pytest.raises(KafkaStorageError, match="full"):
                await delivery
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send("nowhere", b"a")

    run(work())


def test_retries_do_not_stop_the_loop(log: ScratchLog) -> None:
    """Goal: while the broker fails, other tasks run.
    Method: a ticker that counts meanwhile."""

    async def work() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        async with (
            oncelog.aio.over(log) as shared,
            shared.producer(retry_backoff_ms=50, linger_ms=0) as producer,
        ):
            log.faults.next("produce", RequestTimedOutError, times=3)
            ticker = asyncio.create_task(tick())
            delivery = await producer.send("orders", b"late")
            await producer.flush()
            assert (await delivery).offset == 0
            ticker.cancel()
        assert ticks > 5

    run(work())
    assert values(log) == [b"late"]


def test_send_waits_for_room_in_the_loop(log: ScratchLog) -> None:
    """Goal: a full buffer holds the sender back, not the loop.
    Method: the broker refuses until another task lets it go on."""

    async def work() -> None:
        options: dict[str, Any] = {
            "buffer_memory": 8192,
            "batch_size": 4096,
            "retry_backoff_ms": 10,
        }
        async with oncelog.aio.over(log) as shared, shared.producer(**options) as producer:
            log.faults.next("produce", NotCoordinatorError, times=1_000_000)
            sent: list[oncelog.aio.Delivery] = []

            async def fill() -> None:
                while len(sent) < 20:
                    sent.append(await producer.send("orders", b"%04d" % len(sent) * 500))

            filling = asyncio.create_task(fill())
            await asyncio.sleep(0.1)
            assert not filling.done()
            assert len(sent) < 20
            log.faults.clear()
            await filling
            assert [(await delivery).offset for delivery in sent] == list(range(20))

    run(work())


def test_send_gives_up_when_no_room_comes(log: ScratchLog) -> None:
    async def work() -> None:
        options = {"buffer_memory": 4096, "batch_size": 4096, "max_block_ms": 50}
        async with oncelog.aio.over(log) as shared:
            producer = shared.producer(**options)
            log.faults.next("produce", NotCoordinatorError, times=1_000_000)
            await producer.send("orders", b"a")
            with pytest.raises(BufferExhaustedError):
                await producer.send("orders", b"b" * 3000)
            with pytest.raises(RequestTimedOutError):
                await producer.flush(timeout_ms=20)
            await producer.close(0)

    run(work())


# ---------------------------------------------------------------- transactions


def test_a_transaction_commits_or_aborts_with_its_block(log: ScratchLog) -> None:
    async def work() -> None:
        async with (
            oncelog.aio.over(log) as shared,
            shared.producer(transactional_id="t") as producer,
        ):
            async with producer.transaction():
                await producer.send("orders", b"committed")
            assert values(log) == [b"committed"]

            async def fail() -> None:
                async with producer.transaction():
                    await producer.send("orders", b"aborted")
                    await producer.flush()
                    raise ValueError("no")

            with pytest.raises(ValueError, match="no"):
                await fail()
            assert producer.state is State.READY
        assert values(log) == [b"committed"]

    run(work())


def test_tasks_may_share_a_transaction(log: ScratchLog) -> None:
    async def work() -> None:
        async with (
            oncelog.aio.over(log) as shared,
            shared.producer(transactional_id="t") as producer,
            producer.transaction(),
        ):
            await asyncio.gather(*(producer.send("orders", b"%d" % n) for n in range(100)))

    run(work())
    assert len(values(log)) == 100


def test_a_block_that_is_cancelled_aborts(log: ScratchLog) -> None:
    async def work() -> None:
        async with (
            oncelog.aio.over(log) as shared,
            shared.producer(transactional_id="t") as producer,
        ):

            async def block() -> None:
                async with producer.transaction():
                    await (await producer.send("orders", b"never"))
                    await asyncio.sleep(LIMIT_S)

            task = asyncio.create_task(block())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert producer.state is State.READY
            async with producer.transaction():
                await producer.send("orders", b"next")
        assert values(log) == [b"next"]

    run(work())


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_cancelled_commit_is_resumed_by_the_same_call(log: ScratchLog, turns: int) -> None:
    """Goal: whenever the cancellation comes, the same call completes the commit, once.
    Method: cancel after a number of turns of the loop; where it was too late, there is nothing to resume."""

    async def work() -> None:
        async with (
            oncelog.aio.over(log) as shared,
            shared.producer(transactional_id="t") as producer,
        ):
            await producer.begin_transaction()
            await producer.send("orders", b"once")
            commit = asyncio.create_task(producer.commit_transaction())
            for _ in range(turns):
                await asyncio.sleep(0)
            if commit.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await commit
                await producer.commit_transaction()
            assert values(log) == [b"once"]
            async with producer.transaction():
                await producer.send("orders", b"twice")
        assert values(log) == [b"once", b"twice"]

    run(work())


def test_a_busy_coordinator_is_waited_for_in_the_loop(log: ScratchLog) -> None:
    async def work() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        async with (
            oncelog.aio.over(log) as shared,
            shared.producer(transactional_id="t") as producer,
        ):
            ticker = asyncio.create_task(tick())
            async with producer.transaction():
                await producer.send("orders", b"a")
                log.faults.next("end_txn", ConcurrentTransactionsError, times=4)
            ticker.cancel()
        assert ticks > 5

    run(work())
    assert values(log) == [b"a"]


def test_a_coordinator_that_stays_busy_is_given_up_and_the_call_resumed(log: ScratchLog) -> None:
    async def work() -> None:
        async with (
            oncelog.aio.over(log) as shared,
            shared.producer(transactional_id="t", max_block_ms=50) as producer,
        ):
            await producer.begin_transaction()
            await producer.send("orders", b"a")
            log.faults.next("end_txn", ConcurrentTransactionsError, times=1_000_000)
            with pytest.raises(RequestTimedOutError):
                await producer.commit_transaction()
            with pytest.raises(IllegalStateError, match="call it again"):
                await producer.abort_transaction()
            log.faults.clear()
            await producer.commit_transaction()

    run(work())
    assert values(log) == [b"a"]


def test_a_fenced_producer_is_closed_by_its_block(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            old = shared.producer(transactional_id="t")
            await old.init_transactions()

            async def overtaken() -> None:
                async with old.transaction():
                    await old.send("orders", b"zombie")
                    await old.flush()
                    async with shared.producer(transactional_id="t") as new, new.transaction():
                        await new.send("orders", b"heir")

            with pytest.raises(ProducerFencedError):
                await overtaken()
            with pytest.raises(OncelogError):
                await old.begin_transaction()

    run(work())
    assert values(log) == [b"heir"]


def test_two_phases(tmp_path: Path) -> None:
    async def work() -> None:
        config = {"transaction.two.phase.commit.enable": True}
        async with oncelog.aio.open(tmp_path, config=config) as log:
            await log.create_topic("orders")
            producer = log.producer(transactional_id="t", transaction_two_phase_commit_enable=True)
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("orders", b"prepared")
            await producer.prepare_transaction()
            await producer.close()
        async with oncelog.aio.open(tmp_path, config=config) as log:
            await log.complete_transaction("t", commit=True)
            assert [record.value for record in log.read("orders")] == [b"prepared"]

    run(work())


def test_close_sends_what_lingers_and_aborts_what_is_open(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            plain = shared.producer(linger_ms=60_000)
            delivery = await plain.send("orders", b"lingers")
            transactional = shared.producer(transactional_id="t")
            await transactional.init_transactions()
            await transactional.begin_transaction()
            await transactional.send("orders", b"open")
        assert delivery.done()
        with pytest.raises(ClosedError):
            await plain.send("orders", b"after")
        with pytest.raises(ClosedError):
            await plain.flush()
        await plain.close()

    run(work())
    assert values(log) == [b"lingers"]
    assert "Ongoing" not in {row.state.label for row in log.broker.list_transactions()}


def test_a_killed_log_ends_its_tasks(log: ScratchLog) -> None:
    async def work() -> None:
        async with oncelog.aio.over(log) as shared:
            # It lingers: sent in the background, it would fail there, and the commit would tell of that.
            producer = shared.producer(transactional_id="t", linger_ms=60_000)
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("orders", b"lost")
            log.kill()
            with pytest.raises(ClosedError):
                await producer.commit_transaction()
            await producer.close()
        log.reopen()

    run(work())
    assert values(log) == []
