"""Whatever fails, in whatever order: nothing acknowledged is lost, nothing comes twice, order holds.

Method: hypothesis draws what is sent and which calls fail, before or after the broker acted; then the log is
read and held against what the producer said.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    KafkaStorageError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OncelogError,
    RecordTooLargeError,
    RequestTimedOutError,
    TransactionAbortableError,
    UnknownProducerIdError,
)
from oncelog.client.producer import Producer
from oncelog.client.transaction_manager import State
from oncelog.segment.names import TopicPartition

from ..broker.brokers import COMMITTED, UNCOMMITTED, create, opened, values_of
from .planned_broker import PlannedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncelog.broker.broker import Broker

NUMBERS = itertools.count()
PARTITIONS = 2
# (error, whether the broker had acted). A log that knows a batch never calls it a gap, so those do not act.
PRODUCE_FAULTS: list[tuple[type[OncelogError], bool]] = [
    (NotEnoughReplicasError, False),
    (RequestTimedOutError, False),
    (RequestTimedOutError, True),
    (KafkaStorageError, False),
    (KafkaStorageError, True),
    (RecordTooLargeError, False),
]
END_FAULTS: list[tuple[type[OncelogError], bool]] = [
    (ConcurrentTransactionsError, False),
    (CoordinatorNotAvailableError, False),
    (NotCoordinatorError, False),
    (RequestTimedOutError, False),
    (RequestTimedOutError, True),
    (TransactionAbortableError, False),
]
QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with opened(tmp_path_factory.mktemp("log")) as broker:
        yield broker


def fresh(real: Broker) -> tuple[PlannedBroker, str]:
    """A topic of its own for each example: opening a broker would take most of the time. The one before is deleted, as
    hundreds of them would hold more files open than select() knows."""
    real.delete_topics([name for name in real.topics() if name.startswith("topic-")])
    topic = f"topic-{next(NUMBERS)}"
    create(real, {topic: PARTITIONS})
    return PlannedBroker(real), topic


def read(real: Broker, topic: str, isolation: Any = UNCOMMITTED) -> list[list[bytes | None]]:
    return [values_of(real, TopicPartition(topic, n), isolation) for n in range(PARTITIONS)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 5)),
        st.tuples(
            st.just("fail"), st.sampled_from([*PRODUCE_FAULTS, (UnknownProducerIdError, False)])
        ),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("result"), st.none()),
    ),
    max_size=25,
)


@given(steps, st.sampled_from([0, 3_600_000]), st.sampled_from([150, 16384]))
def test_a_producer_keeps_its_word(
    real: Broker, steps: list[tuple[str, Any]], linger_ms: int, batch_size: int
) -> None:
    broker, topic = fresh(real)
    options = {"linger_ms": linger_ms, "batch_size": batch_size, **QUICK}
    sent: list[list[tuple[bytes, Any]]] = [[] for _ in range(PARTITIONS)]
    count = 0
    with Producer(broker, **options) as producer:  # type: ignore[arg-type]
        for what, how in steps:
            if what == "send":
                for _ in range(how):
                    count += 1
                    partition, value = count % PARTITIONS, b"%d" % count
                    delivery = producer.send(topic, value, partition=partition)
                    sent[partition].append((value, delivery))
            elif what == "fail":
                kind, lost = how
                # A log that had already taken a batch does not call its producer unknown: nothing is sent whose
                # answer was lost, and none is planned to be.
                if kind is UnknownProducerIdError:
                    producer.flush()
                    if broker.has_plans("produce"):
                        continue
                broker.fail("produce", kind("planned"), lost=lost)
            elif what == "flush":
                producer.flush()
            elif count:
                sent[count % PARTITIONS][-1][1].exception(20_000)
    for partition, found in enumerate(read(real, topic)):
        acknowledged = [value for value, delivery in sent[partition] if not delivery.exception()]
        assert len(set(found)) == len(found), "nothing comes twice"
        assert [value for value in found if value in acknowledged] == acknowledged
        given_order = [value for value, _ in sent[partition] if value in found]
        assert found == given_order
        for value, delivery in sent[partition]:
            if not delivery.exception() and delivery.result().offset >= 0:
                assert found[delivery.result().offset] == value


def is_possible(faults: list[tuple[type[OncelogError], bool]]) -> bool:
    """A coordinator that has ended a transaction does not ask to abort it afterwards."""
    kinds = [kind for kind, _ in faults]
    ended = next((place for place, (_, lost) in enumerate(faults) if lost), len(faults))
    return TransactionAbortableError not in kinds[ended:]


transactions = st.lists(
    st.tuples(
        st.integers(0, 6),  # records
        st.booleans(),  # whether it is meant to be committed
        st.lists(st.sampled_from(PRODUCE_FAULTS), max_size=2),
        st.lists(st.sampled_from(END_FAULTS), max_size=2).filter(is_possible),
    ),
    max_size=6,
)


@pytest.mark.parametrize("version", [2, 1])
@given(transactions, st.sampled_from([0, 3_600_000]))
def test_a_transaction_is_all_or_nothing(
    real: Broker, version: int, transactions: list[tuple[int, bool, Any, Any]], linger_ms: int
) -> None:
    broker, topic = fresh(real)
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    options: dict[str, Any] = {"transactional_id": topic, "linger_ms": linger_ms, **QUICK}
    producer = Producer(broker, _transaction_version=version, **options)  # type: ignore[arg-type]
    producer.init_transactions()
    number = 0
    for records, wants_commit, produce_faults, end_faults in transactions:
        is_meant = wants_commit
        for kind, lost in produce_faults:
            broker.fail("produce", kind("planned"), lost=lost)
        for kind, lost in end_faults:
            broker.fail("end_txn", kind("planned"), lost=lost)
        producer.begin_transaction()
        values: list[tuple[int, bytes]] = []
        try:
            for _ in range(records):
                number += 1
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
                values.append((number % PARTITIONS, b"%d" % number))
        except OncelogError:
            is_meant = False  # a batch has failed, and the gate is closed
        if end(producer, committed=is_meant):
            for partition, value in values:
                expected[partition].append(value)
        broker._plans.clear()
    producer.close()
    assert read(real, topic, COMMITTED) == expected


def end(producer: Producer, *, committed: bool) -> bool:
    """Ends a transaction as a careful user does; whether it was committed."""
    for _ in range(20):
        try:
            if committed:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        except RequestTimedOutError:
            if producer.state is State.ABORTABLE_ERROR:
                committed = False
        except OncelogError:
            assert producer.state is State.ABORTABLE_ERROR, producer.state
            committed = False
        else:
            return committed
    raise AssertionError(f"no end: {producer.state}")
