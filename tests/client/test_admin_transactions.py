"""The administrator of transactions: open, hanging and prepared ones are found, and each has its way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    InvalidProducerEpochError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTxnStateError,
    OncelogError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from oncelog.broker.group_answers import OffsetCommit
from oncelog.broker.group_records import OffsetValue, encode_offset_key, encode_offset_value
from oncelog.client.admin import Admin, HangingTransaction, PreparedListing
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from ..broker.brokers import NOW, ORDERS, ManualClock, VerbProducer, opened, plain, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.broker.broker import Broker

SIDE = TopicPartition("side", 0)
TWO_PHASE = {"transaction.two.phase.commit.enable": True}
MINUTE_MS = 60_000


class Desk:
    """A broker with topics orders and side, and its administrator."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        self.broker = broker
        self.clock = clock
        self.admin = Admin(broker)

    def hang(
        self,
        key: TopicPartition,
        producer_id: int = 4242,
        epoch: int = 7,
        record: tuple[bytes, bytes] = (b"key", b"hanging"),
    ) -> int:
        """Opens a transaction that no coordinator has heard of, as a late write of a dead producer did before Kafka
        verified them; returns where it starts."""
        batch = encode(
            [record[1]],
            keys=[record[0]],
            timestamp_ms=self.clock(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        partition = self.broker.partition(key)
        return partition.append_as_leader(
            memoryview(batch), leader_epoch=self.broker.leader_epoch, now_ms=self.clock()
        ).base_offset

    def prepare(self, transactional_id: str, *keys: TopicPartition) -> VerbProducer:
        producer = VerbProducer(self.broker, transactional_id, enable_two_phase_commit=True)
        for key in keys:
            producer.send(key, b"prepared")
        return producer


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    clock = ManualClock()
    topics = {"orders": 1, "side": 1}
    with opened(tmp_path, topics=topics, clock=clock, config=TWO_PHASE) as broker:
        yield Desk(broker, clock)


# ---------------------------------------------------------------- looking


def test_producers_of_a_partition_are_described(desk: Desk) -> None:
    producer = VerbProducer(desk.broker, "t")
    desk.broker.produce(ORDERS, plain(desk.broker, b"a"))
    producer.send(ORDERS, b"b", b"c")
    answers = desk.admin.describe_producers([ORDERS, SIDE, ("no", 0)])
    (row,) = answers[ORDERS]  # type: ignore[misc]
    assert row == (producer.producer_id, producer.epoch, 1, NOW, -1, 1)
    assert answers[SIDE] == []
    assert isinstance(answers[TopicPartition("no", 0)], UnknownTopicOrPartitionError)
    producer.commit()
    (row,) = desk.admin.describe_producers([ORDERS])[ORDERS]  # type: ignore[misc]
    assert (row.current_txn_start_offset, row.coordinator_epoch) == (-1, desk.broker.leader_epoch)


def test_transactions_are_listed_by_state_producer_duration_and_pattern(desk: Desk) -> None:
    admin = desk.admin
    idle, busy = VerbProducer(desk.broker, "idle"), VerbProducer(desk.broker, "busy-1")
    busy.send(ORDERS, b"a")
    desk.clock.advance(5000)

    def names(**filters: Any) -> list[str]:
        return [row.transactional_id for row in admin.list_transactions(**filters)]

    assert names() == ["idle", "busy-1"]
    assert names(states=["Ongoing"]) == ["busy-1"]
    assert names(states=["Ongoing", "Empty"]) == ["idle", "busy-1"]
    assert names(producer_ids=[idle.producer_id]) == ["idle"]
    assert names(states=["Ongoing"], duration_ms_min=4999) == ["busy-1"]
    assert names(states=["Ongoing"], duration_ms_min=5000) == []
    assert names(id_pattern="busy-.*") == ["busy-1"]
    assert names(id_pattern="busy") == []
    for filters, sentence in (
        ({"states": ["ongoing"]}, "no transaction state 'ongoing', only Empty, Ongoing"),
        ({"states": "Ongoing"}, "give a list"),
        ({"producer_ids": ["1"]}, "a producer id is an integer, not '1'"),
        ({"producer_ids": 1}, "give a list of producer ids"),
        ({"duration_ms_min": "1"}, "duration_ms_min is an integer"),
        ({"id_pattern": b"busy"}, "id_pattern is a text"),
    ):
        with pytest.raises(InvalidRequestError, match=sentence):
            names(**filters)
    with pytest.raises(InvalidRegularExpressionError, match=r"'\('"):
        names(id_pattern="(")


def test_a_transaction_is_described(desk: Desk) -> None:
    producer = VerbProducer(desk.broker, "t", transaction_timeout_ms=9000)
    producer.send(ORDERS, b"a")
    producer.send(SIDE, b"b")
    found = desk.admin.describe_transaction("t")
    assert found[:1] + found[2:6] == ("t", producer.producer_id, producer.epoch, 9000, NOW)
    assert found.state.label == "Ongoing"
    assert set(found.partitions) == {ORDERS, SIDE}
    answers = desk.admin.describe_transactions(["t", "unknown"])
    assert answers["t"] == found
    assert isinstance(answers["unknown"], TransactionalIdNotFoundError)
    with pytest.raises(TransactionalIdNotFoundError, match="'unknown' is not known"):
        desk.admin.describe_transaction("unknown")


# ---------------------------------------------------------------- transactions that hang


def test_a_hanging_transaction_is_found_and_aborted_and_readers_go_on(desk: Desk) -> None:
    """Goal: KIP-664. What is open on a partition and known to nobody holds readers up until an administrator ends it."""
    desk.broker.produce(ORDERS, plain(desk.broker, b"before"))
    start = desk.hang(ORDERS)
    desk.broker.produce(ORDERS, plain(desk.broker, b"after"))
    desk.clock.advance(MINUTE_MS)
    assert values_of(desk.broker) == [b"before"]
    expected = HangingTransaction(ORDERS, 4242, 7, -1, start, NOW, MINUTE_MS, None)
    assert desk.admin.find_hanging() == [expected]
    desk.admin.abort_transaction(ORDERS, start)
    assert values_of(desk.broker) == [b"before", b"after"]
    assert desk.admin.find_hanging() == []
    (row,) = desk.broker.describe_producers(ORDERS)
    assert (row.producer_epoch, row.coordinator_epoch) == (7, 0)


def test_the_marker_has_the_coordinator_epoch_that_the_partition_knows(desk: Desk) -> None:
    """Goal: a marker of an older coordinator would be refused. Method: a transaction of epoch 3 ended before."""
    partition = desk.broker.partition(ORDERS)
    desk.hang(ORDERS, epoch=7)
    desk.broker.write_marker(
        ORDERS, 4242, 7, committed=True, coordinator_epoch=3, transaction_version=1
    )
    start = partition.log_end_offset
    desk.hang(ORDERS, epoch=8)
    desk.admin.abort_transaction(("orders", 0), start)
    assert [row.coordinator_epoch for row in desk.broker.describe_producers(ORDERS)] == [3]
    assert values_of(desk.broker) == [b"hanging"]


def test_open_transactions_that_their_coordinator_knows_do_not_hang(desk: Desk) -> None:
    producer = VerbProducer(desk.broker, "t")
    producer.send(ORDERS, b"a")
    desk.prepare("prepared", SIDE)
    desk.clock.advance(14 * MINUTE_MS)
    assert desk.admin.find_hanging() == []
    desk.clock.advance(10 * MINUTE_MS)
    (found,) = desk.admin.find_hanging()
    assert (found.topic_partition, found.transactional_id) == (ORDERS, "t")
    assert found.duration_ms == 24 * MINUTE_MS
    desk.admin.force_terminate_transaction("t")
    assert desk.admin.find_hanging() == []


def test_the_search_is_narrowed_to_a_topic_a_partition_or_an_age(desk: Desk) -> None:
    admin = desk.admin
    desk.hang(ORDERS)
    desk.hang(SIDE)
    VerbProducer(desk.broker, "t").send(ORDERS, b"a")
    desk.clock.advance(5000)

    def places(**arguments: Any) -> list[tuple[TopicPartition, str | None]]:
        return [(row[0], row.transactional_id) for row in admin.find_hanging(**arguments)]

    assert places() == [(ORDERS, None), (SIDE, None)]
    assert places(topic="side") == places(topic="side", partition=0) == [(SIDE, None)]
    found = places(max_transaction_timeout_ms=4999)
    assert sorted(found, key=str) == [(ORDERS, "t"), (ORDERS, None), (SIDE, None)]
    assert places(max_transaction_timeout_ms=5000) == places()
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'no'"):
        places(topic="no")
    with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 0, not 1"):
        places(topic="side", partition=1)
    with pytest.raises(InvalidRequestError, match="which topic's partition"):
        places(partition=0)
    with pytest.raises(InvalidRequestError, match="max_transaction_timeout_ms is an integer"):
        places(max_transaction_timeout_ms="15")


def test_a_transaction_that_ends_between_two_looks_does_not_hang(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the transaction commits after its partition was looked at and before its coordinator is."""
    producer = VerbProducer(desk.broker, "t")
    producer.send(ORDERS, b"a")
    list_transactions = desk.broker.list_transactions

    def ending(**filters: Any) -> Any:
        monkeypatch.undo()
        producer.commit()
        return list_transactions(**filters)

    monkeypatch.setattr(desk.broker, "list_transactions", ending)
    assert desk.admin.find_hanging() == []
    assert values_of(desk.broker) == [b"a"]


def test_hanging_offsets_of_a_group_are_found_and_aborted(desk: Desk) -> None:
    """Goal: the partitions of committed offsets are partitions, too."""
    desk.broker.offset_commit("g", {ORDERS: OffsetCommit(0)})
    key = desk.broker.groups.offsets_partition("g")
    offset = encode_offset_key("g", *ORDERS), encode_offset_value(OffsetValue(5))
    start = desk.hang(key, record=offset)
    (found,) = desk.admin.find_hanging()
    assert (found.topic_partition, found.start_offset) == (key, start)
    desk.admin.abort_transaction(key, start)
    assert desk.admin.find_hanging() == []
    assert desk.admin.list_consumer_group_offsets("g")[ORDERS].offset == 0  # type: ignore[union-attr]


def test_only_what_hangs_is_aborted(desk: Desk) -> None:
    """Goal: no marker is written where there is nothing to end, or where the coordinator will decide."""
    producer = VerbProducer(desk.broker, "t")
    producer.send(ORDERS, b"a")
    end = desk.broker.partition(ORDERS).log_end_offset
    abort: Any = desk.admin.abort_transaction
    for arguments, error, sentence in (
        ((ORDERS, 5), InvalidTxnStateError, "orders-0 has no open transaction .* offset 5"),
        ((SIDE, 0), InvalidTxnStateError, "side-0 has no open transaction"),
        ((ORDERS, 0), InvalidTxnStateError, "belongs to transactional id 't'.*force_terminate"),
        ((("no", 0), 0), UnknownTopicOrPartitionError, "no topic 'no'"),
        (("orders", 0), InvalidRequestError, "a partition is"),
        ((ORDERS, "0"), InvalidRequestError, "the start offset is an integer, not '0'"),
        ((ORDERS, -1), InvalidRequestError, "the start offset is at least 0"),
    ):
        with pytest.raises(error, match=sentence):
            abort(*arguments)
    assert desk.broker.partition(ORDERS).log_end_offset == end
    producer.commit()
    assert values_of(desk.broker) == [b"a"]


# ---------------------------------------------------------------- shutting producers out


def test_producers_are_fenced_and_their_transactions_aborted(desk: Desk) -> None:
    producer = VerbProducer(desk.broker, "t")
    producer.send(ORDERS, b"a")
    answers = desk.admin.fence_producers(["t", "new", ""])
    assert answers["t"][1] > producer.epoch  # type: ignore[index]
    assert not isinstance(answers["new"], OncelogError)
    assert isinstance(answers[""], InvalidRequestError)
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        producer.commit()
    assert values_of(desk.broker) == []
    with pytest.raises(InvalidRequestError, match="give a list"):
        desk.admin.fence_producers("t")


def test_a_transaction_is_terminated_by_its_id_if_that_is_known(desk: Desk) -> None:
    producer = desk.prepare("two-phase", ORDERS)
    with pytest.raises(TransactionalIdNotFoundError, match="'two-fase' is not known"):
        desk.admin.force_terminate_transaction("two-fase")
    assert [row.transactional_id for row in desk.admin.list_transactions()] == ["two-phase"]
    desk.admin.force_terminate_transaction("two-phase")
    assert desk.admin.list_prepared_transactions() == []
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        producer.commit()
    assert values_of(desk.broker) == []


# ---------------------------------------------------------------- two-phase commit


@pytest.mark.parametrize("commit", [True, False])
def test_prepared_transactions_are_listed_and_completed(desk: Desk, commit: bool) -> None:
    producer = desk.prepare("b", ORDERS, SIDE)
    desk.prepare("a", SIDE)
    VerbProducer(desk.broker, "plain").send(ORDERS, b"open")
    first, second = desk.admin.list_prepared_transactions()
    assert first.transactional_id == "a"
    assert second == PreparedListing("b", producer.producer_id, producer.epoch, NOW, (ORDERS, SIDE))
    desk.admin.complete_transaction("b", commit=commit)
    desk.admin.complete_transaction("a", commit=not commit)
    assert desk.admin.list_prepared_transactions() == []
    assert values_of(desk.broker, SIDE) == [b"prepared"]
    assert values_of(desk.broker) == ([b"prepared"] if commit else [])


def test_what_is_not_prepared_is_not_completed(desk: Desk) -> None:
    producer = VerbProducer(desk.broker, "plain")
    producer.send(ORDERS, b"open")
    with pytest.raises(InvalidTxnStateError, match=r"'plain' has no prepared transaction.*Ongoing"):
        desk.admin.complete_transaction("plain", commit=True)
    with pytest.raises(TransactionalIdNotFoundError, match="'unknown' is not known"):
        desk.admin.complete_transaction("unknown", commit=True)
    any_: Any = desk.admin
    with pytest.raises(InvalidRequestError, match="a transactional id is a text"):
        any_.complete_transaction(None, commit=True)
    producer.commit()
    assert values_of(desk.broker) == [b"open"]
