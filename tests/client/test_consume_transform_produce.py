"""Read, work, write: offsets are committed with the transaction, so that each record counts once in what comes out."""

# ruff: noqa: PT012 (what a transaction's block holds is what is tested)

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import oncelog
from oncelog.base.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    OncelogError,
    ProducerFencedError,
    UnknownMemberIdError,
)
from oncelog.segment.names import TopicPartition
from oncelog.testing import ManualClock

from .group_parts import die, fill, member, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncelog.client.client import Log
    from oncelog.client.consumer import Consumer
    from oncelog.client.producer import Producer

SESSION_MS = 45_000
TRANSACTION_MS = 60_000
SWEEP_MS = 10_000  # how often the broker looks for transactions that took too long
VALUES = [b"%d" % number for number in range(40)]
INPUT = [TopicPartition("in", number) for number in range(2)]


class MishapError(Exception):
    """Something went wrong in somebody's work."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with oncelog.open(tmp_path, clock=clock) as log:
        log.create_topic("in", partitions=2)
        log.create_topic("out", partitions=2)
        yield log


@pytest.fixture(params=[2, 1], ids=["V2", "V1"])
def producing(log: Log, request: pytest.FixtureRequest) -> Callable[[str], Producer]:
    def open_producer(name: str) -> Producer:
        options = {"_transaction_version": request.param, "transactional_id": name}
        producer = log.producer(**options)
        producer.init_transactions()
        return producer

    return open_producer


def copy(consumer: Consumer, producer: Producer, count: int, *, fails: bool = False) -> int:
    """One transaction; returns how many records it copied."""
    records = consumer.poll(max_records=count)
    if records:
        with producer.transaction() as txn:
            for record in records:
                producer.send("out", value=record.value, partition=record.partition)
            txn.send_offsets(consumer.position_offsets(), consumer.group_metadata())
            if fails:
                raise MishapError
    return len(records)


def output(log: Log) -> list[bytes]:
    return sorted(record.value or b"" for record in log.read("out"))


def offsets(log: Log) -> dict[TopicPartition, object]:
    found = log.consumer(group_id="g", default_api_timeout_ms=0).committed(INPUT)
    return {key: value.offset for key, value in found.items() if value is not None}


# ---------------------------------------------------------------- committed and aborted


def test_offsets_are_committed_with_the_transaction(
    log: Log, producing: Callable[[str], Producer]
) -> None:
    fill(log, "in", VALUES)
    consumer, producer = member(log, ["in"]), producing("t")
    assert copy(consumer, producer, 40) == 40
    assert output(log) == sorted(VALUES)
    assert offsets(log) == dict.fromkeys(INPUT, 20)


def test_offsets_of_an_open_transaction_are_seen_by_nobody_and_waited_for_by_heirs(
    log: Log, producing: Callable[[str], Producer]
) -> None:
    """Goal: until the transaction ends, neither the old nor the new offset is what an heir may start from."""
    fill(log, "in", VALUES)
    consumer, producer = member(log, ["in"]), producing("t")
    consumer.poll(max_records=30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(consumer.position_offsets(), consumer.group_metadata())
    assert log.broker.offset_fetch("g", INPUT) == dict.fromkeys(INPUT)
    with pytest.raises(OncelogError, match="an open transaction is about to commit"):
        offsets(log)
    heir = log.consumer(group_id="g", retry_backoff_ms=1, auto_offset_reset="earliest")
    heir.assign(INPUT)
    assert heir.poll(timeout_ms=20) == []
    producer.commit_transaction()
    found = heir.poll(timeout_ms=5000)
    while more := heir.poll():
        found += more
    assert len(found) == 10


def test_offsets_of_an_aborted_transaction_are_not_committed_and_its_records_come_again(
    log: Log, producing: Callable[[str], Producer]
) -> None:
    fill(log, "in", VALUES)
    consumer, producer = member(log, ["in"]), producing("t")
    copied = 0
    for turn in range(20):
        try:
            copied += copy(consumer, producer, 7, fails=turn % 2 == 0)
        except MishapError:
            consumer.seek_to_committed()
    assert copied == 40
    assert output(log) == sorted(VALUES)
    assert offsets(log) == dict.fromkeys(INPUT, 20)


def test_an_abort_before_anything_was_committed_goes_back_to_where_it_began(log: Log) -> None:
    """Goal: with auto.offset.reset=latest, too, which would otherwise leave out what was aborted."""
    fill(log, "in", VALUES[:2])
    consumer = log.consumer(group_id="g", auto_offset_reset="latest")
    consumer.subscribe(["in"])
    settle(consumer)
    fill(log, "in", VALUES[2:])
    with log.producer(transactional_id="t") as producer:
        with pytest.raises(MishapError):
            copy(consumer, producer, 10, fails=True)
        consumer.seek_to_committed()
        while copy(consumer, producer, 10):
            pass
    assert output(log) == sorted(VALUES[2:])


def test_automatic_commits_end_where_transactions_commit_offsets(
    log: Log, clock: ManualClock
) -> None:
    """Goal: a consumer with Kafka's defaults does not commit what a transaction has aborted."""
    fill(log, "in", VALUES)
    consumer = member(log, ["in"])
    with log.producer(transactional_id="t") as producer:
        with pytest.raises(MishapError):
            copy(consumer, producer, 10, fails=True)
        clock.advance(10_000)
        consumer.poll(max_records=1)
    consumer.close()
    assert offsets(log) == {}


# ---------------------------------------------------------------- zombies and deaths


def test_the_offsets_of_a_zombie_member_are_refused(
    log: Log, clock: ManualClock, producing: Callable[[str], Producer]
) -> None:
    """Goal: a member that was thought dead cannot commit what its heir has done again (KIP-447).
    Method: it reads, sleeps through its session, and goes on with its transaction."""
    fill(log, "in", VALUES)
    zombie, producer = member(log, ["in"]), producing("zombie")
    records = zombie.poll()
    die(zombie)
    clock.advance(SESSION_MS)
    heir, other = member(log, ["in"]), producing("heir")
    while copy(heir, other, 40):
        pass
    with (
        pytest.raises((UnknownMemberIdError, IllegalGenerationError)) as refused,
        producer.transaction() as txn,
    ):
        for record in records:
            producer.send("out", value=record.value)
        txn.send_offsets(zombie.position_offsets(), zombie.group_metadata())
    assert refused.value.txn_requires_abort
    assert output(log) == sorted(VALUES)
    settle(zombie, heir)
    assert len(zombie.assignment()) == 1  # it is a member again, and may work
    producer.begin_transaction()
    producer.abort_transaction()


def test_the_offsets_of_an_old_generation_are_refused(log: Log) -> None:
    fill(log, "in", VALUES)
    first = member(log, ["in"])
    first.poll()
    before = first.group_metadata(), first.position_offsets()
    settle(first, member(log, ["in"]))
    with (
        log.producer(transactional_id="t") as producer,
        pytest.raises(IllegalGenerationError, match="generation 2, not 1"),
        producer.transaction() as txn,
    ):
        txn.send_offsets(before[1], before[0])


def test_the_offsets_of_a_fenced_instance_are_refused_and_the_producer_goes_on(log: Log) -> None:
    fill(log, "in", VALUES)
    old = member(log, ["in"], group_instance_id="i")
    old.poll()
    member(log, ["in"], group_instance_id="i").poll()
    with log.producer(transactional_id="t") as producer:
        with pytest.raises(FencedInstanceIdError), producer.transaction() as txn:
            txn.send_offsets(old.position_offsets(), old.group_metadata())
        with producer.transaction():
            producer.send("out", value=b"v")
    assert output(log) == [b"v"]


def test_a_member_dies_and_nothing_is_processed_twice_inside_a_transaction(
    log: Log, clock: ManualClock, producing: Callable[[str], Producer]
) -> None:
    """Goal: its partitions go to the rest, who do not begin before it is known what became of its transaction.
    Method: it dies when it has sent its offsets and not committed; its session ends before its transaction does."""
    dies, lives = member(log, ["in"]), member(log, ["in"], retry_backoff_ms=1)
    settle(dies, lives)
    fill(log, "in", VALUES)
    dying, living = producing("dying"), producing("living")
    records = dies.poll()
    dying.begin_transaction()
    for record in records:
        dying.send("out", value=record.value, partition=record.partition)
    dying.send_offsets_to_transaction(dies.position_offsets(), dies.group_metadata())
    dying.flush()
    die(dies)
    while copy(lives, living, 40):
        pass
    clock.advance(SESSION_MS)
    for _ in range(5):
        assert copy(lives, living, 40) == 0
    assert len(lives.assignment()) == 2
    assert len(output(log)) == 20
    clock.advance(TRANSACTION_MS - SESSION_MS + SWEEP_MS)
    for _ in range(500):
        if copy(lives, living, 40):
            break
        threading.Event().wait(0.01)
    assert output(log) == sorted(VALUES)
    with pytest.raises(ProducerFencedError):
        dying.commit_transaction()
    assert output(log) == sorted(VALUES)


def test_work_goes_on_after_the_log_was_opened_again(tmp_path: Path) -> None:
    """Goal: committed offsets and output agree after a restart in the middle."""
    for turn in range(4):
        with oncelog.open(tmp_path) as log:
            if turn == 0:
                log.create_topic("in", partitions=2)
                log.create_topic("out", partitions=2)
                fill(log, "in", VALUES)
            consumer, producer = member(log, ["in"]), log.producer(transactional_id="t")
            producer.init_transactions()
            copy(consumer, producer, 15)
            consumer.poll(max_records=3)  # and does nothing with them
    with oncelog.open(tmp_path) as log:
        assert output(log) == sorted(VALUES)
