"""Failures come as planned: to the call that was meant, before it takes effect or after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    KafkaStorageError,
    NotCoordinatorError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
)
from oncelog.testing import ScratchLog
from oncelog.testing.faults import VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ScratchLog]:
    with ScratchLog(tmp_path) as log:
        log.create_topic("orders", partitions=2)
        yield log


def values(log: ScratchLog, **options: Any) -> list[bytes | None]:
    return [record.value for record in log.read("orders", **options)]


def test_the_next_end_txn_fails_and_the_producer_tries_again(log: ScratchLog) -> None:
    with log.producer(transactional_id="t") as producer, producer.transaction():
        producer.send("orders", b"once")
        log.faults.next("end_txn", NotCoordinatorError("moved"))
    assert [(verb, type(error)) for verb, error in log.faults.happened] == [
        ("end_txn", NotCoordinatorError)
    ]
    assert values(log) == [b"once"]


def test_a_lost_answer_does_not_double_a_record(log: ScratchLog) -> None:
    """Goal: ``after`` carries the call out.
    Method: the record is there before the producer tries again, and once only after."""
    with log.producer(linger_ms=0, retry_backoff_ms=10) as producer:
        log.faults.next("produce", RequestTimedOutError, after=True)
        delivery = producer.send("orders", b"once", partition=0)
        assert values(log) == [b"once"]
        assert delivery.result().offset == 0
    assert values(log) == [b"once"]


def test_before_is_without_effect(log: ScratchLog) -> None:
    with log.producer(linger_ms=0, retries=0) as producer:
        log.faults.next("produce", KafkaStorageError)
        with pytest.raises(KafkaStorageError):
            producer.send("orders", b"never").result()
    assert values(log) == []


def test_a_failure_happens_as_often_as_planned(log: ScratchLog) -> None:
    log.faults.next("create_topics", KafkaStorageError("disk"), times=3)
    raised = []
    for _ in range(3):
        with pytest.raises(KafkaStorageError) as info:
            log.create_topic("other")
        raised.append(info.value)
    log.create_topic("other")
    assert len(set(map(id, raised))) == 3, "each one is raised once"


def test_plans_for_one_verb_wait_in_line(log: ScratchLog) -> None:
    log.faults.next("create_topics", KafkaStorageError)
    log.faults.next("create_topics", TopicAlreadyExistsError)
    assert log.faults.planned == {"create_topics": 2}
    for kind in (KafkaStorageError, TopicAlreadyExistsError):
        with pytest.raises(kind):
            log.create_topic("other")
    assert log.faults.planned == {}


def test_a_condition_chooses_the_call(log: ScratchLog) -> None:
    log.faults.next(
        "produce", OutOfOrderSequenceError, when=lambda key, *_, **__: key.partition == 1
    )
    with log.producer(linger_ms=0, enable_idempotence=False, retries=0) as producer:
        assert producer.send("orders", b"a", partition=0).exception() is None
        assert isinstance(
            producer.send("orders", b"b", partition=1).exception(), OutOfOrderSequenceError
        )


def test_a_consumers_look_is_a_fetch(log: ScratchLog) -> None:
    with log.producer() as producer:
        producer.send("orders", b"a", partition=0).result()
    consumer = log.consumer(auto_offset_reset="earliest")
    log.faults.next("fetch", KafkaStorageError("unreadable"))
    consumer.assign([("orders", 0)])
    with pytest.raises(KafkaStorageError, match="unreadable"):
        consumer.poll()
    assert [record.value for record in consumer.poll(1000)] == [b"a"]


def test_a_fenced_producer_can_be_had_without_another(log: ScratchLog) -> None:
    producer = log.producer(transactional_id="t")
    producer.init_transactions()
    log.faults.next("end_txn", ProducerFencedError)
    with pytest.raises(ProducerFencedError), producer.transaction():
        producer.send("orders", b"a")
    assert producer.state.value == "broken"


def test_what_is_cleared_does_not_happen(log: ScratchLog) -> None:
    log.faults.next("create_topics", KafkaStorageError)
    log.faults.clear()
    log.create_topic("other")


@pytest.mark.parametrize("verb", ["endtxn", "end_transaction", "tick", "_lock", "path"])
def test_a_verb_that_nobody_calls_is_refused(log: ScratchLog, verb: str) -> None:
    """Goal: a plan that could never happen does not look like a test that passes."""
    with pytest.raises(ValueError, match=verb):
        log.faults.next(verb, KafkaStorageError)


def test_a_misspelled_verb_gets_a_hint(log: ScratchLog) -> None:
    with pytest.raises(ValueError, match="did you mean 'end_txn'"):
        log.faults.next("end_tnx", KafkaStorageError)


def test_no_times_is_refused(log: ScratchLog) -> None:
    with pytest.raises(ValueError, match="once or more often"):
        log.faults.next("end_txn", KafkaStorageError, times=0)


def test_every_request_of_the_protocol_can_fail() -> None:
    assert {
        *("produce", "fetch", "list_offsets", "create_topics", "delete_topics", "delete_records"),
        *("init_producer_id", "add_partitions_to_txn", "add_offsets_to_txn", "end_txn"),
        *("txn_offset_commit", "offset_commit", "offset_fetch", "join_group", "sync_group"),
        *("heartbeat", "leave_group", "find_coordinator", "describe_groups", "list_groups"),
    } <= VERBS
