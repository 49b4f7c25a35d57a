"""Transactions of a producer: all or nothing, one owner of an id, and no call in a wrong order goes unnoticed."""

# ruff: noqa: PT012, SIM117 (what a transaction's block holds is what is tested)

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from oncelog._native.offsets import CommittedOffset
from oncelog.base.errors import (
    ClosedError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IllegalGenerationError,
    IllegalStateError,
    InvalidConfigError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    KafkaStorageError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OncelogError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimedOutError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from oncelog.client.committing import OffsetAndMetadata
from oncelog.client.group_member import ConsumerGroupMetadata
from oncelog.client.producer import PreparedTransaction, Producer
from oncelog.client.transaction_manager import State
from oncelog.segment.names import TopicPartition

from ..broker.brokers import UNCOMMITTED, ManualClock, opened, values_of
from .planned_broker import PlannedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = TopicPartition("orders", 0)
QUICK: dict[str, Any] = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20}
TWO_PHASE = {"transaction.two.phase.commit.enable": True}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PlannedBroker]:
    with opened(tmp_path, topics={"orders": 1, "wide": 4}, config=TWO_PHASE) as found:
        yield PlannedBroker(found)


@pytest.fixture(params=[2, 1], ids=["V2", "V1"])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


def producer_of(broker: PlannedBroker, version: int = 2, **options: Any) -> Producer:
    given = {"transactional_id": "teller", **QUICK, **options}
    return Producer(broker, _transaction_version=version, **given)  # type: ignore[arg-type]


def ready(broker: PlannedBroker, version: int = 2, **options: Any) -> Producer:
    producer = producer_of(broker, version, **options)
    producer.init_transactions()
    return producer


class RollbackError(Exception):
    """What a block raises to be rolled back."""


# ---------------------------------------------------------------- what readers see


def test_a_transaction_over_partitions_is_seen_whole(broker: PlannedBroker, version: int) -> None:
    with producer_of(broker, version) as producer:
        with producer.transaction():
            for partition in range(4):
                producer.send("wide", b"%d" % partition, partition=partition)
            producer.flush()
            for partition in range(4):
                assert values_of(broker.broker, TopicPartition("wide", partition)) == []
        for partition in range(4):
            key = TopicPartition("wide", partition)
            assert values_of(broker.broker, key) == [b"%d" % partition]


def test_an_aborted_transaction_is_never_seen(broker: PlannedBroker, version: int) -> None:
    with producer_of(broker, version) as producer:
        with pytest.raises(RollbackError), producer.transaction():
            producer.send("orders", b"gone").result()
            unsent = producer.send("orders", b"unsent")
            raise RollbackError
        with producer.transaction():
            producer.send("orders", b"kept")
    assert values_of(broker.broker) == [b"kept"]
    assert values_of(broker.broker, ORDERS, UNCOMMITTED) == [b"gone", b"kept"]
    with pytest.raises(TransactionAbortedError, match="aborted before the record was sent"):
        unsent.result()


def test_many_transactions_follow_each_other(broker: PlannedBroker, version: int) -> None:
    expected = []
    with producer_of(broker, version) as producer:
        for number in range(60):
            producer.begin_transaction()
            for part in range(number % 4):
                producer.send("orders", b"%d-%d" % (number, part))
            if number % 3:
                producer.commit_transaction()
                expected += [b"%d-%d" % (number, part) for part in range(number % 4)]
            else:
                producer.abort_transaction()
            assert producer.state is State.READY
    assert values_of(broker.broker) == expected


def test_arrow_rows_belong_to_the_transaction(broker: PlannedBroker) -> None:
    table = pa.table({"value": [b"a", b"b"]})
    with producer_of(broker) as producer:
        with pytest.raises(RollbackError), producer.transaction():
            producer.send_arrow("orders", table)
            raise RollbackError
        with producer.transaction():
            producer.send("orders", b"0")
            producer.send_arrow("orders", table)
    assert values_of(broker.broker) == [b"0", b"a", b"b"]


def test_commit_does_not_linger(broker: PlannedBroker) -> None:
    with producer_of(broker, linger_ms=3_600_000) as producer:
        with producer.transaction():
            delivery = producer.send("orders", b"v")
        assert delivery.done()


def test_an_empty_transaction_does_not_bother_the_coordinator(
    broker: PlannedBroker, version: int
) -> None:
    with producer_of(broker, version) as producer:
        with producer.transaction():
            pass
        producer.begin_transaction()
        producer.abort_transaction()
        assert broker.count("end_txn") == 0


def test_begin_is_a_local_matter(broker: PlannedBroker) -> None:
    producer = ready(broker)
    broker.forget()
    producer.begin_transaction()
    assert broker.calls == []
    producer.close()


def test_the_epoch_of_the_end_is_taken_over(broker: PlannedBroker) -> None:
    """Goal: V2 bumps the epoch with every transaction, and sequences start over."""
    with producer_of(broker) as producer:
        for number in range(3):
            with producer.transaction():
                producer.send("orders", b"%d" % number)
    rows = [
        (int(row["producer_epoch"]), int(row["base_sequence"]))
        for window in broker.partition(ORDERS).windows(0, 2**63 - 1, UNCOMMITTED)
        for row in window.rows
        if row["control_type"] < 0
    ]
    epochs = [epoch for epoch, _ in rows]
    assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]
    assert [sequence for _, sequence in rows] == [0, 0, 0]


def test_a_v1_producer_keeps_epoch_and_sequence(broker: PlannedBroker) -> None:
    with producer_of(broker, 1) as producer:
        for number in range(3):
            with producer.transaction():
                producer.send("orders", b"%d" % number)
        assert broker.count("add_partitions_to_txn") == 3
    rows = [
        (int(row["producer_epoch"]), int(row["base_sequence"]))
        for window in broker.partition(ORDERS).windows(0, 2**63 - 1, UNCOMMITTED)
        for row in window.rows
        if row["control_type"] < 0
    ]
    assert rows == [(0, 0), (0, 1), (0, 2)]


def test_a_new_id_at_the_end_is_taken_over(broker: PlannedBroker) -> None:
    """Goal: an epoch that is used up brings a new producer id, and nothing is lost or repeated."""
    with producer_of(broker) as producer:
        real = broker.broker.end_txn

        def end_txn(*args: Any, **rest: Any) -> Any:
            real(*args, **rest)
            return broker.broker.init_producer_id("teller")

        with producer.transaction():
            producer.send("orders", b"a")
            broker.provide("end_txn", end_txn)
        broker.provide("end_txn", real)
        with producer.transaction():
            producer.send("orders", b"b")
    assert values_of(broker.broker) == [b"a", b"b"]


# ---------------------------------------------------------------- one owner


def test_a_second_producer_fences_the_first(broker: PlannedBroker, version: int) -> None:
    """Goal: zombie fenced. The old one can neither send nor commit, and what it left open is gone."""
    old = ready(broker, version)
    old.begin_transaction()
    old.send("orders", b"old").result()
    with producer_of(broker, version) as new:
        with new.transaction():
            new.send("orders", b"new")
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        old.commit_transaction()
    assert old.state is State.FATAL_ERROR
    for call in (old.begin_transaction, old.abort_transaction, old.commit_transaction):
        with pytest.raises((ProducerFencedError, InvalidProducerEpochError), match="cannot"):
            call()
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError), match="cannot send"):
        old.send("orders", b"again")
    old.close()
    assert values_of(broker.broker) == [b"new"]


def test_a_fenced_producer_commits_no_offsets(broker: PlannedBroker, version: int) -> None:
    """Goal: the first that a zombie does may be to send offsets; they are refused, and so is all that follows."""
    old = ready(broker, version)
    old.begin_transaction()
    with producer_of(broker, version) as new, new.transaction() as txn:
        new.send("orders", b"new")
        txn.send_offsets({ORDERS: 1}, "g")
    for _ in range(2):
        with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
            old.send_offsets_to_transaction({ORDERS: 9}, "g")
    assert old.state is State.FATAL_ERROR
    old.close()
    found = broker.broker.offset_fetch("g", [ORDERS], require_stable=True)[ORDERS]
    assert isinstance(found, CommittedOffset)
    assert found.offset == 1


def test_a_fenced_transaction_block_closes_the_producer_and_raises_the_first_error(
    broker: PlannedBroker,
) -> None:
    old = ready(broker)
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)) as caught:
        with old.transaction():
            old.send("orders", b"a").result()
            ready(broker).close()
            assert old.send("orders", b"b").exception() is not None
            broker.forget()
            old.send("orders", b"c")
    assert not isinstance(caught.value, IllegalStateError)
    assert broker.count("end_txn") == 0, "a fenced producer sends no abort"
    with pytest.raises(ClosedError):
        old.begin_transaction()
    assert values_of(broker.broker) == []


def test_close_aborts_an_open_transaction(broker: PlannedBroker) -> None:
    producer = ready(broker)
    producer.begin_transaction()
    producer.send("orders", b"v").result()
    producer.close()
    assert values_of(broker.broker) == []
    assert broker.partition(ORDERS).last_stable_offset == broker.partition(ORDERS).log_end_offset


def test_a_forced_close_leaves_the_transaction_to_its_timeout(broker: PlannedBroker) -> None:
    producer = ready(broker)
    producer.begin_transaction()
    producer.send("orders", b"v").result()
    broker.forget()
    producer.close(0)
    assert broker.count("end_txn") == 0
    assert broker.partition(ORDERS).last_stable_offset == 0


# ---------------------------------------------------------------- wrong order


def steps(producer: Producer) -> dict[str, Any]:
    return {
        "init": producer.init_transactions,
        "begin": producer.begin_transaction,
        "send": lambda: producer.send("orders", b"v"),
        "send_arrow": lambda: producer.send_arrow("orders", pa.table({"value": [b"v"]})),
        "offsets": lambda: producer.send_offsets_to_transaction({}, "group"),
        "commit": producer.commit_transaction,
        "abort": producer.abort_transaction,
        "prepare": producer.prepare_transaction,
        "complete": lambda: producer.complete_transaction("1:1"),
    }


@pytest.mark.parametrize(
    ("before", "wrong", "sentence"),
    [
        ([], "begin", "init_transactions"),
        ([], "send", "init_transactions"),
        ([], "commit", "init_transactions"),
        ([], "abort", "init_transactions"),
        (["init"], "init", "begin_transaction"),
        (["init"], "send", "begin_transaction"),
        (["init"], "send_arrow", "begin_transaction"),
        (["init"], "commit", "begin_transaction"),
        (["init"], "abort", "begin_transaction"),
        (["init"], "offsets", "begin_transaction"),
        (["init"], "prepare", "begin_transaction"),
        (["init"], "complete", "begin_transaction"),
        (["init", "begin"], "begin", "commit or abort the open"),
        (["init", "begin"], "init", "commit or abort the open"),
        (["init", "begin", "send", "commit"], "commit", "begin_transaction"),
        (["init", "begin", "send", "abort"], "abort", "begin_transaction"),
        (["init", "begin", "send", "prepare"], "send", "end the prepared transaction"),
        (["init", "begin", "send", "prepare"], "begin", "end the prepared transaction"),
    ],
)
def test_calls_in_a_wrong_order_get_a_sentence_that_helps(
    broker: PlannedBroker, before: list[str], wrong: str, sentence: str
) -> None:
    producer = producer_of(broker, transaction_two_phase_commit_enable=True)
    for name in before:
        steps(producer)[name]()
    with pytest.raises(IllegalStateError, match=sentence):
        steps(producer)[wrong]()
    producer.close(0)


@pytest.mark.parametrize("call", ["init", "begin", "commit", "abort", "offsets"])
def test_a_producer_without_an_id_has_no_transactions(broker: PlannedBroker, call: str) -> None:
    with Producer(broker) as producer:  # type: ignore[arg-type]
        with pytest.raises(IllegalStateError, match="no transactional_id"):
            steps(producer)[call]()


# ---------------------------------------------------------------- errors


def test_a_failed_batch_fails_the_commit_and_allows_the_abort(
    broker: PlannedBroker, version: int
) -> None:
    producer = ready(broker, version)
    producer.begin_transaction()
    producer.send("orders", b"a").result()
    broker.fail("produce", RecordTooLargeError("too large"))
    failed = producer.send("orders", b"b")
    with pytest.raises(RecordTooLargeError):
        producer.commit_transaction()
    assert failed.done()
    assert producer.state is State.ABORTABLE_ERROR
    with pytest.raises(IllegalStateError, match=r"too large.*abort_transaction"):
        producer.send("orders", b"c")
    with pytest.raises(IllegalStateError, match="abort_transaction"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", b"d")
    producer.close()
    assert values_of(broker.broker) == [b"d"]


def test_a_record_that_is_too_large_fails_the_transaction(broker: PlannedBroker) -> None:
    """Goal: who overlooks the error of a send cannot commit without the record."""
    producer = ready(broker)
    producer.begin_transaction()
    with pytest.raises(RecordTooLargeError):
        producer.send("orders", bytes(2 << 20))
    with pytest.raises(IllegalStateError, match="failed"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.close()


def test_a_transaction_block_whose_commit_fails_is_aborted(broker: PlannedBroker) -> None:
    producer = ready(broker)
    with pytest.raises(KafkaStorageError), producer.transaction():
        producer.send("orders", b"a").result()
        broker.fail("produce", KafkaStorageError("disk"))
        producer.send("orders", b"b")
    assert producer.state is State.READY
    with producer.transaction():
        producer.send("orders", b"c")
    producer.close()
    assert values_of(broker.broker) == [b"c"]


def test_an_abortable_error_of_the_commit_allows_the_abort(broker: PlannedBroker) -> None:
    producer = ready(broker)
    producer.begin_transaction()
    producer.send("orders", b"a")
    broker.fail("end_txn", TransactionAbortableError("no"))
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert producer.state is State.READY
    producer.close()
    assert values_of(broker.broker) == []


@pytest.mark.parametrize("verb", ["init_producer_id", "end_txn"])
@pytest.mark.parametrize(
    "error",
    [
        CoordinatorNotAvailableError("starting"),
        CoordinatorLoadInProgressError("loading"),
        ConcurrentTransactionsError("busy"),
        NotCoordinatorError("moved"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_busy_coordinator_is_asked_again(
    broker: PlannedBroker, verb: str, error: OncelogError
) -> None:
    broker.fail(verb, error, error)
    with producer_of(broker) as producer:
        with producer.transaction():
            producer.send("orders", b"v")
    assert values_of(broker.broker) == [b"v"]
    assert broker.count(verb) == 3
    is_moved = isinstance(error, NotCoordinatorError)
    assert broker.count("find_coordinator") == (2 if is_moved else 0)


def test_a_busy_coordinator_delays_the_first_batch(broker: PlannedBroker, version: int) -> None:
    verb = "produce" if version == 2 else "add_partitions_to_txn"
    with producer_of(broker, version) as producer:
        broker.fail(verb, ConcurrentTransactionsError("busy"), ConcurrentTransactionsError("busy"))
        with producer.transaction():
            producer.send("orders", b"v")
    assert values_of(broker.broker) == [b"v"]


@pytest.mark.parametrize(
    "error",
    [InvalidTransactionTimeoutError("too long"), InvalidProducerEpochError("old")],
    ids=lambda error: type(error).__name__,
)
def test_an_init_that_can_never_succeed_stops_the_producer(
    broker: PlannedBroker, error: OncelogError
) -> None:
    producer = producer_of(broker)
    broker.fail("init_producer_id", error)
    with pytest.raises(type(error)):
        producer.init_transactions()
    with pytest.raises((IllegalStateError, type(error)), match="open a new one"):
        producer.init_transactions()
    producer.close()


def test_a_commit_after_the_timeout_says_that_the_producer_is_fenced(
    broker: PlannedBroker, version: int
) -> None:
    """Goal: the error's flags say what is so: nothing can be aborted any more, the producer is done."""
    producer = ready(broker, version, transaction_timeout_ms=1000)
    producer.begin_transaction()
    producer.send("orders", b"late").result()
    clock = broker.broker.now_ms
    assert isinstance(clock, ManualClock)
    clock.advance(1001)
    assert broker.broker.transactions.abort_timed_out() == 1
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)) as caught:
        producer.commit_transaction()
    assert caught.value.fatal
    assert not caught.value.txn_requires_abort
    with pytest.raises(type(caught.value)):
        producer.abort_transaction()
    producer.close()
    assert values_of(broker.broker) == []


def test_a_fenced_producer_is_told_so_also_when_its_sender_heard_of_it_first(
    broker: PlannedBroker, version: int
) -> None:
    """Method: a batch is refused in the background, and nobody looks at its delivery before the commit."""
    old = ready(broker, version)
    old.begin_transaction()
    old.send("orders", b"old").result()
    with producer_of(broker, version):
        assert old.send("orders", b"late").exception() is not None
        assert old.state is State.FATAL_ERROR
        with pytest.raises((ProducerFencedError, InvalidProducerEpochError)) as caught:
            old.commit_transaction()
        assert caught.value.fatal
    old.close()


def test_a_timeout_beyond_the_brokers_is_refused(broker: PlannedBroker) -> None:
    producer = producer_of(broker, transaction_timeout_ms=2**31 - 1)
    with pytest.raises(InvalidTransactionTimeoutError):
        producer.init_transactions()
    producer.close()


def test_an_init_that_ran_out_of_time_is_resumed(broker: PlannedBroker) -> None:
    producer = producer_of(broker, max_block_ms=60)
    broker.fail("init_producer_id", *[ConcurrentTransactionsError("busy")] * 50)
    with pytest.raises(RequestTimedOutError, match=r"max\.block\.ms"):
        producer.init_transactions()
    assert producer.state is State.INITIALIZING
    with pytest.raises(IllegalStateError, match=r"init_transactions\(\) has not finished"):
        producer.begin_transaction()
    broker._plans["init_producer_id"].clear()
    producer.init_transactions()
    producer.begin_transaction()
    producer.close()


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_an_end_that_ran_out_of_time_is_resumed_by_the_same_call(
    broker: PlannedBroker, version: int, committed: bool, lost: bool
) -> None:
    """Goal: nobody knows whether the first call took effect, so the other one must be refused.
    Method: the answer is lost, before or after the coordinator acted."""
    producer = ready(broker, version)
    producer.begin_transaction()
    producer.send("orders", b"v")
    same, other = producer.commit_transaction, producer.abort_transaction
    if not committed:
        producer.flush()
        same, other = other, same
    broker.fail("end_txn", RequestTimedOutError("lost"), lost=lost)
    with pytest.raises(RequestTimedOutError):
        same()
    with pytest.raises(IllegalStateError, match="has not finished: call it again"):
        other()
    with pytest.raises(IllegalStateError, match="has not finished"):
        producer.send("orders", b"w")
    same()
    assert producer.state is State.READY
    with producer.transaction():
        producer.send("orders", b"next")
    producer.close()
    assert values_of(broker.broker) == ([b"v"] if committed else []) + [b"next"]


def test_a_produce_answer_that_was_lost_stays_in_the_transaction(
    broker: PlannedBroker, version: int
) -> None:
    with producer_of(broker, version) as producer:
        broker.fail("produce", RequestTimedOutError("lost"), lost=True)
        with producer.transaction():
            producer.send("orders", b"v")
    assert values_of(broker.broker) == [b"v"]


@pytest.mark.parametrize("error", [OutOfOrderSequenceError("gap"), KafkaStorageError("disk")])
def test_an_unknown_effect_needs_a_new_epoch(
    broker: PlannedBroker, version: int, error: OncelogError
) -> None:
    """Goal: a V1 producer that cannot know whether its batch is on its way starts over with a bumped epoch;
    V2 gets one with every end."""
    with producer_of(broker, version) as producer:
        before = producer._transactions.identity
        with pytest.raises(type(error)), producer.transaction():
            producer.send("orders", b"a").result()
            broker.fail("produce", error, lost=isinstance(error, KafkaStorageError))
            producer.send("orders", b"b")
        after = producer._transactions.identity
        assert after.producer_epoch > before.producer_epoch
        with producer.transaction():
            producer.send("orders", b"c")
    assert values_of(broker.broker) == [b"c"]
    assert broker.count("init_producer_id") == (2 if version == 1 else 1)


def test_an_id_that_was_forgotten_is_taken_again(broker: PlannedBroker) -> None:
    """Goal: InvalidPidMapping before anything was written: init again by itself, and nobody notices."""
    with producer_of(broker) as producer:
        broker.fail("produce", InvalidProducerIdMappingError("expired"))
        with producer.transaction():
            producer.send("orders", b"v")
    assert values_of(broker.broker) == [b"v"]
    assert broker.count("init_producer_id") == 2


def test_an_id_that_was_forgotten_in_mid_transaction_costs_the_transaction(
    broker: PlannedBroker, version: int
) -> None:
    with producer_of(broker, version) as producer:
        with pytest.raises(InvalidProducerIdMappingError), producer.transaction():
            producer.send("orders", b"a").result()
            broker.fail("end_txn", InvalidProducerIdMappingError("expired"))
        assert producer.state is State.READY
        assert broker.count("init_producer_id") == 2
        with producer.transaction():
            producer.send("orders", b"b")
    assert values_of(broker.broker) == [b"b"]


def test_an_abort_drops_what_could_not_be_sent(broker: PlannedBroker) -> None:
    producer = ready(broker, linger_ms=0, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    producer.begin_transaction()
    broker.fail("produce", NotEnoughReplicasError("few"))
    stuck = producer.send("orders", b"stuck")
    behind = producer.send("orders", b"behind")
    producer.abort_transaction()
    for delivery in (stuck, behind):
        with pytest.raises(TransactionAbortedError):
            delivery.result()
    with producer.transaction():
        producer.send("orders", b"next")
    producer.close()
    assert values_of(broker.broker, ORDERS, UNCOMMITTED) == [b"next"]


def test_a_transaction_whose_first_batch_is_refused_can_be_aborted(
    broker: PlannedBroker, version: int
) -> None:
    """Goal: the coordinator may not know of the transaction at all; the abort goes through all the same."""
    with producer_of(broker, version) as producer:
        for _ in range(2):
            with pytest.raises(RecordTooLargeError), producer.transaction():
                broker.fail("produce", RecordTooLargeError("too large"))
                producer.send("orders", b"v")
            with producer.transaction():
                producer.send("orders", b"w")
    assert values_of(broker.broker) == [b"w", b"w"]


def test_a_block_hears_of_an_earlier_failure_itself(broker: PlannedBroker) -> None:
    """Goal: the error that is raised is the one that happened, not the refusal that followed from it."""
    with producer_of(broker) as producer:
        with pytest.raises(KafkaStorageError), producer.transaction():
            broker.fail("produce", KafkaStorageError("disk"))
            assert producer.send("orders", b"a").exception() is not None
            producer.send("orders", b"b")
        with pytest.raises(KafkaStorageError), producer.transaction():
            broker.fail("produce", KafkaStorageError("disk"))
            assert producer.send("orders", b"a").exception() is not None
        with pytest.raises(RollbackError), producer.transaction():
            broker.fail("produce", KafkaStorageError("disk"))
            assert producer.send("orders", b"a").exception() is not None
            raise RollbackError


def test_a_block_may_abort_by_itself(broker: PlannedBroker) -> None:
    with producer_of(broker) as producer:
        with producer.transaction():
            producer.send("orders", b"v")
            producer.abort_transaction()
    assert values_of(broker.broker) == []


def test_an_end_that_races_with_the_background_neither_loses_nor_leaks(
    broker: PlannedBroker, version: int
) -> None:
    """Goal: a batch that lingers out while its transaction is ended belongs to that transaction or to none.
    Method: lingering of one millisecond, ends at all moments around it."""
    expected = []
    with producer_of(broker, version, linger_ms=1) as producer:
        for number in range(150):
            producer.begin_transaction()
            producer.send("orders", b"%d" % number)
            threading.Event().wait((number % 15) / 10_000)
            if number % 3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected.append(b"%d" % number)
    assert values_of(broker.broker) == expected


# ---------------------------------------------------------------- offsets and two phases


def test_offsets_go_to_the_transaction(broker: PlannedBroker, version: int) -> None:
    """Goal: they are committed with it, and the coordinator hears of a group once in a transaction, in version 1."""
    with producer_of(broker, version) as producer:
        for offset in (5, 7):
            with producer.transaction() as txn:
                producer.send("orders", b"v")
                txn.send_offsets({ORDERS: offset - 1}, "g")
                txn.send_offsets({ORDERS: OffsetAndMetadata(offset, -1, "half way")}, "g")
                assert broker.broker.offset_fetch("g", [ORDERS])[ORDERS] is None or offset == 7
        found = broker.broker.offset_fetch("g", [ORDERS])[ORDERS]
        assert isinstance(found, CommittedOffset)
        assert (found.offset, found.metadata) == (7, "half way")
    assert broker.count("add_offsets_to_txn") == (2 if version == 1 else 0)


def test_offsets_that_are_refused_fail_the_transaction(broker: PlannedBroker, version: int) -> None:
    group = ConsumerGroupMetadata("g", 3, "nobody")
    with producer_of(broker, version) as producer:
        with pytest.raises(IllegalGenerationError) as refused, producer.transaction() as txn:
            producer.send("orders", b"v")
            txn.send_offsets({ORDERS: 1}, group)
        assert refused.value.txn_requires_abort
        assert producer.state is State.READY
    assert values_of(broker.broker) == []


def test_an_offset_of_the_wrong_kind_is_refused_and_harms_nothing(broker: PlannedBroker) -> None:
    with producer_of(broker) as producer, producer.transaction() as txn:
        producer.send("orders", b"v")
        with pytest.raises(InvalidRequestError, match="a number from 0 on"):
            txn.send_offsets({ORDERS: "5"}, "g")
        with pytest.raises(InvalidRequestError, match="a partition is"):
            txn.send_offsets({"orders": 5}, "g")
        txn.send_offsets({}, "g")
    assert values_of(broker.broker) == [b"v"]


def test_a_prepared_transaction_is_text_that_can_be_kept() -> None:
    prepared = PreparedTransaction(7, 3)
    assert str(prepared) == "7:3"
    assert PreparedTransaction.parse("7:3") == prepared
    for text in ("", "7", "7:", "a:3", "7:3:1", "-1:-1"):
        with pytest.raises(ValueError, match="prepared transaction"):
            PreparedTransaction.parse(text)


@pytest.mark.parametrize("matches", [True, False])
def test_a_prepared_transaction_is_completed_as_decided(
    broker: PlannedBroker, matches: bool
) -> None:
    producer = ready(broker, transaction_two_phase_commit_enable=True)
    producer.begin_transaction()
    producer.send("orders", b"v")
    prepared = producer.prepare_transaction()
    assert values_of(broker.broker, ORDERS, UNCOMMITTED) == [b"v"]
    assert values_of(broker.broker) == []
    producer.complete_transaction(str(prepared) if matches else PreparedTransaction(999, 0))
    assert values_of(broker.broker) == ([b"v"] if matches else [])
    producer.close()


def test_a_prepared_transaction_outlives_its_producer(broker: PlannedBroker) -> None:
    producer = ready(broker, transaction_two_phase_commit_enable=True)
    producer.begin_transaction()
    producer.send("orders", b"v")
    prepared = producer.prepare_transaction()
    producer.close()
    assert values_of(broker.broker) == []
    after = producer_of(broker, transaction_two_phase_commit_enable=True)
    after.init_transactions(keep_prepared=True)
    assert after.state is State.PREPARED
    after.complete_transaction(prepared)
    assert values_of(broker.broker) == [b"v"]
    with after.transaction():
        after.send("orders", b"w")
    after.close()
    assert values_of(broker.broker) == [b"v", b"w"]


def test_two_phases_have_to_be_asked_for(broker: PlannedBroker) -> None:
    with producer_of(broker) as producer:
        producer.begin_transaction()
        with pytest.raises(InvalidConfigError, match="two_phase"):
            producer.prepare_transaction()
    with pytest.raises(InvalidConfigError, match="two_phase"):
        producer_of(broker).init_transactions(keep_prepared=True)
