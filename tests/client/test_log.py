"""The open log itself: what it gives out, its house, and people's mistakes, each answered in one clear sentence."""

from __future__ import annotations

import shutil
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest

import oncelog
from oncelog.base.errors import (
    ClosedError,
    IllegalStateError,
    InvalidConfigError,
    InvalidRequestError,
    OncelogError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from oncelog.segment.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncelog.client.client import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with oncelog.open(tmp_path / "data") as opened:
        opened.create_topic("orders", partitions=2)
        yield opened


def test_closing_the_log_sends_what_lingers_and_closes_what_it_gave(tmp_path: Path) -> None:
    log = oncelog.open(tmp_path)
    log.create_topic("orders")
    producer = log.producer(linger_ms=60_000)
    consumer = log.consumer()
    delivery = producer.send("orders", b"v")
    log.close()
    assert delivery.result().offset == 0
    for use in (lambda: producer.send("orders", b"w"), consumer.poll):
        with pytest.raises(ClosedError):
            use()
    with oncelog.open(tmp_path) as again:
        assert [record.value for record in again.read("orders")] == [b"v"]


def test_closing_is_idempotent_from_several_threads_and_leaves_no_thread_behind(
    tmp_path: Path,
) -> None:
    before = threading.active_count()
    log = oncelog.open(tmp_path)
    threads = [threading.Thread(target=log.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    log.close()
    assert threading.active_count() == before


def test_closing_the_log_ends_a_poll_that_waits_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: nobody looks around by itself, so that only the close can end the wait."""
    monkeypatch.setattr("oncelog.client.consumer.LOOK_AROUND_S", 600.0)
    log = oncelog.open(tmp_path)
    log.create_topic("orders")
    consumer = log.consumer()
    consumer.assign([("orders", 0)])
    ended: list[object] = []

    def poll() -> None:
        try:
            consumer.poll(timeout_ms=60_000)
        except ClosedError as error:
            ended.append(error)

    waiting = threading.Thread(target=poll)
    waiting.start()
    time.sleep(0.2)
    log.close()
    waiting.join(20)
    assert len(ended) == 1


def test_the_long_verbs_work_inside_a_block_that_has_initialized_already(log: Log) -> None:
    with log.producer(transactional_id="teller") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v")
        producer.commit_transaction()
        with pytest.raises(IllegalStateError):
            producer.init_transactions()
    assert [record.value for record in log.read("orders")] == [b"v"]


def test_an_idle_log_aborts_a_transaction_whose_time_is_up(tmp_path: Path) -> None:
    """Nobody calls anything: the log's own thread does it."""
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with oncelog.open(tmp_path, config=config) as log:
        log.create_topic("orders")
        producer = log.producer(transactional_id="teller", transaction_timeout_ms=200)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v").result()
        partition = log.broker.partition(TopicPartition("orders", 0))
        deadline = time.monotonic() + 20
        while partition.last_stable_offset == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert partition.last_stable_offset == 2
        with pytest.raises(OncelogError):
            producer.commit_transaction()


MISTAKES: list[tuple[Callable[[Log], Any], type[Exception], str]] = [
    (lambda log: log.producer(linger=5), InvalidConfigError, "linger.ms"),
    (lambda log: log.consumer(isolation_level="dirty"), InvalidConfigError, "read_committed"),
    (
        lambda log: log.producer(transactional_id="t", enable_idempotence=False),
        InvalidConfigError,
        "idempotence",
    ),
    (lambda log: log.producer().send("nothing", b"v"), UnknownTopicOrPartitionError, "orders"),
    (lambda log: log.producer().send("orders", "text"), TypeError, "bytes"),  # type: ignore[arg-type]
    (lambda log: log.producer().send("orders", b"v", key="k"), TypeError, "bytes"),  # type: ignore[arg-type]
    (
        lambda log: log.producer().send("orders", bytes(2 << 20)),
        RecordTooLargeError,
        "max.request.size",
    ),
    (
        lambda log: log.producer().send("orders", b"v", partition=7),
        UnknownTopicOrPartitionError,
        "partition 7",
    ),
    (
        lambda log: log.producer(transactional_id="t").send("orders", b"v"),
        IllegalStateError,
        "init_transactions",
    ),
    (lambda log: log.consumer().poll(), IllegalStateError, "assign"),
    (
        lambda log: log.consumer().assign([("nothing", 0)]),
        UnknownTopicOrPartitionError,
        "nothing",
    ),
    (lambda log: log.read("nothing"), UnknownTopicOrPartitionError, "orders"),
    (lambda log: log.read("orders", isolation_level="dirty"), ValueError, "read_committed"),
    (lambda log: log.create_topic("orders"), OncelogError, "already"),
    (
        lambda log: log.create_topic("a", config={"retentoin.ms": 1}),
        InvalidConfigError,
        "retention.ms",
    ),
    (lambda log: log.create_topic("a", replication_factor=3), OncelogError, "one replica"),
    (lambda log: log.delete_topic("nothing"), UnknownTopicOrPartitionError, "nothing"),
    (lambda log: oncelog.open(log.path), OncelogError, "already open in this process"),
    (
        lambda log: oncelog.open(log.path + "/../x", durability="hope"),  # type: ignore[call-overload]
        InvalidConfigError,
        "fsync",
    ),
    (
        lambda log: log.complete_transaction("nobody", commit=True),
        OncelogError,
        "nobody",
    ),
    (
        lambda log: log.broker.init_producer_id("t", enable_two_phase_commit=True),
        InvalidRequestError,
        "two-phase",
    ),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_gets_one_clear_sentence(log: Log, number: int) -> None:
    mistake, kind, words = MISTAKES[number]
    with pytest.raises(kind) as caught:
        mistake(log)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_read_only_log_offers_nothing_that_writes(tmp_path: Path) -> None:
    oncelog.open(tmp_path).close()
    with oncelog.open(tmp_path, read_only=True) as reader:
        for name in ("producer", "create_topic", "delete_topic"):
            assert not hasattr(reader, name)


def test_a_prepared_transaction_is_as_durable_as_a_committed_one(tmp_path: Path) -> None:
    """With durability fsync an outside coordinator may decide once prepare has returned: data and the word that the
    transaction is open must then survive a loss of power."""
    config = {"transaction.two.phase.commit.enable": True}
    with oncelog.open(tmp_path, durability="fsync", config=config) as log:
        log.create_topic("orders")
        producer = log.producer(transactional_id="teller", transaction_two_phase_commit_enable=True)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v")
        producer.prepare_transaction()
        written = [one for one in log.broker.opened() if one.log_end_offset]
        assert {one.key.topic for one in written} == {"orders", "__transaction_state"}
        for one in written:
            assert one.durable_end_offset == one.log_end_offset
        producer.commit_transaction()


def test_a_read_of_all_partitions_takes_those_that_are_here(tmp_path: Path) -> None:
    """A directory that was one broker's among several lacks partitions of its topics."""
    with oncelog.open(tmp_path) as log:
        log.create_topic("orders", partitions=3)
        with log.producer() as producer:
            for number in range(3):
                producer.send("orders", b"%d" % number, partition=number)
    (tmp_path / "oncelog.metadata").unlink()
    shutil.rmtree(tmp_path / "orders-1")
    with oncelog.open(tmp_path, adopt=True) as log:
        assert [record.value for record in log.read("orders")] == [b"0", b"2"]


def test_a_transactional_id_may_be_any_str(tmp_path: Path) -> None:
    """Goal: an id from an enumeration or a path's own kind of str is taken for what it is."""

    class Teller(StrEnum):
        FIRST = "teller-1"

    with oncelog.open(tmp_path / "log") as log:
        log.create_topic("accounts")
        producer = log.producer(transactional_id=Teller.FIRST)
        with producer, producer.transaction():
            producer.send("accounts", b"-10")
        assert [record.value for record in log.read("accounts")] == [b"-10"]
