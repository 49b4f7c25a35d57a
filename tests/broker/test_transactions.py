"""Whole transactions through the broker's verbs: what the checklist promises of exactly once, each by its name."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaStorageError,
    OncelogError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from oncelog.broker.answers import TxnMarker
from oncelog.broker.broker import Broker
from oncelog.segment.names import TopicPartition

from ..sim.txn_parts import take_offline
from .brokers import (
    COMMITTED,
    NOW,
    ORDERS,
    UNCOMMITTED,
    ManualClock,
    VerbProducer,
    crashed,
    create,
    opened,
    plain,
    values_of,
)

if TYPE_CHECKING:
    from pathlib import Path

PAYMENTS = TopicPartition("payments", 0)
BILLS = TopicPartition("payments", 1)
TOPICS = {"orders": 1, "payments": 2}
both = pytest.mark.parametrize("version", [1, 2])


def test_a_duplicate_sequence_is_acknowledged_once_with_its_first_offset(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer_id, *_ = broker.init_producer_id(None)
        first = broker.produce(
            ORDERS, plain(broker, b"a", b"b", producer_id=producer_id, sequence=0)
        )
        broker.produce(ORDERS, plain(broker, b"c", producer_id=producer_id, sequence=2))
        again = broker.produce(
            ORDERS, plain(broker, b"a", b"b", producer_id=producer_id, sequence=0)
        )
        assert (again.base_offset, again.is_duplicate) == (first.base_offset, True)
        assert values_of(broker) == [b"a", b"b", b"c"]


def test_a_gap_in_the_sequence_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer_id, *_ = broker.init_producer_id(None)
        broker.produce(ORDERS, plain(broker, b"a", producer_id=producer_id, sequence=0))
        with pytest.raises(OutOfOrderSequenceError):
            broker.produce(ORDERS, plain(broker, b"c", producer_id=producer_id, sequence=2))
        assert values_of(broker) == [b"a"]


@both
def test_committed_records_appear_together_over_partitions(tmp_path: Path, version: int) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller", version)
        for key in (ORDERS, PAYMENTS, BILLS):
            producer.send(key, b"v")
            assert values_of(broker, key) == []
            assert values_of(broker, key, UNCOMMITTED) == [b"v"]
        producer.commit()
        assert [values_of(broker, key) for key in (ORDERS, PAYMENTS, BILLS)] == [[b"v"]] * 3


@both
def test_an_abort_is_invisible_and_the_next_transaction_is_not(
    tmp_path: Path, version: int
) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller", version)
        producer.send(ORDERS, b"aborted")
        producer.abort()
        producer.send(ORDERS, b"kept")
        producer.commit()
        assert values_of(broker) == [b"kept"]
        assert values_of(broker, isolation=UNCOMMITTED) == [b"aborted", b"kept"]


@both
def test_an_open_transaction_holds_back_what_follows_it(tmp_path: Path, version: int) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        broker.produce(ORDERS, plain(broker, b"before"))
        producer = VerbProducer(broker, "teller", version)
        producer.send(ORDERS, b"open")
        broker.produce(ORDERS, plain(broker, b"after"))
        assert values_of(broker) == [b"before"]
        assert broker.list_offsets(ORDERS, -1, COMMITTED).offset == 1
        assert broker.list_offsets(ORDERS, -1, UNCOMMITTED).offset == 3
        producer.commit()
        assert values_of(broker) == [b"before", b"open", b"after"]
        assert broker.list_offsets(ORDERS, -1, COMMITTED).offset == 4


@both
def test_a_zombie_is_fenced(tmp_path: Path, version: int) -> None:
    """A second holder of the id ends the first one's transaction; every verb of the first fails from then on."""
    with opened(tmp_path, topics=TOPICS) as broker:
        zombie = VerbProducer(broker, "teller", version)
        zombie.send(ORDERS, b"zombie")
        heir = VerbProducer(broker, "teller", version)
        for use in (
            lambda: zombie.send(ORDERS, b"late"),
            lambda: zombie.send(PAYMENTS, b"late"),
            zombie.commit,
            zombie.abort,
        ):
            with pytest.raises((InvalidProducerEpochError, ProducerFencedError)):
                use()
        heir.send(ORDERS, b"heir")
        heir.commit()
        assert values_of(broker) == [b"heir"]
        assert values_of(broker, PAYMENTS) == []


@both
def test_a_transaction_that_takes_too_long_is_aborted_by_housekeeping(
    tmp_path: Path, version: int
) -> None:
    clock = ManualClock()
    with opened(tmp_path, topics=TOPICS, clock=clock) as broker:
        producer = VerbProducer(broker, "teller", version, transaction_timeout_ms=5000)
        producer.send(ORDERS, b"slow")
        clock.advance(4000)
        broker.tick()
        assert values_of(broker, isolation=UNCOMMITTED) == [b"slow"]
        assert broker.partition(ORDERS).last_stable_offset == 0
        clock.advance(11_000)
        broker.tick()
        assert broker.partition(ORDERS).last_stable_offset == 2
        with pytest.raises((InvalidProducerEpochError, ProducerFencedError, InvalidTxnStateError)):
            producer.commit()
        with pytest.raises((InvalidProducerEpochError, ProducerFencedError)):
            producer.send(ORDERS, b"late")
        again = VerbProducer(broker, "teller", version)
        again.send(ORDERS, b"kept")
        again.commit()
        assert values_of(broker) == [b"kept"]


@both
def test_an_open_transaction_outlives_a_restart_until_its_time_is_up(
    tmp_path: Path, version: int
) -> None:
    clock = ManualClock()
    with opened(tmp_path, topics=TOPICS, clock=clock) as broker:
        producer = VerbProducer(broker, "teller", version)
        producer.send(ORDERS, b"a")
    with opened(tmp_path, clock=clock) as broker:
        assert values_of(broker) == []
        producer.broker = broker
        producer.send(ORDERS, b"b")
        producer.commit()
        assert values_of(broker) == [b"a", b"b"]
        producer.send(ORDERS, b"c")
    clock.advance(100_000)
    with opened(tmp_path, clock=clock) as broker:
        clock.advance(10_000)
        broker.tick()
        assert values_of(broker) == [b"a", b"b"]
        assert (
            broker.partition(ORDERS).last_stable_offset == broker.partition(ORDERS).high_watermark
        )


def test_two_transactions_of_one_id_do_not_mix_over_many_rounds(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller")
        kept = []
        for number in range(60):
            value = str(number).encode()
            producer.send(ORDERS, value)
            if number % 3:
                producer.commit()
                kept.append(value)
            else:
                producer.abort()
        assert values_of(broker) == kept


def test_the_epoch_runs_out_and_a_new_producer_id_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller")
        producer.send(ORDERS, b"before")
        producer.commit()
        known = broker.transactions._states.need("teller")
        producer.epoch = 32765
        known.value = known.value._replace(producer_epoch=producer.epoch)
        first = producer.producer_id
        for value in (b"a", b"b", b"c"):
            producer.send(ORDERS, value)
            producer.commit()
        assert producer.producer_id != first
        assert values_of(broker) == [b"before", b"a", b"b", b"c"]


@both
def test_ending_nothing_and_ending_twice(tmp_path: Path, version: int) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller", version)
        with pytest.raises(InvalidTxnStateError):
            producer.commit()
        producer.send(ORDERS, b"v")
        identity = (producer.producer_id, producer.epoch)
        producer.commit()
        broker.end_txn("teller", *identity, committed=True, transaction_version=version)
        with pytest.raises(InvalidTxnStateError):
            broker.end_txn("teller", *identity, committed=False, transaction_version=version)
        assert values_of(broker) == [b"v"]


def test_unknown_ids_and_bad_requests_are_refused_by_kafka_s_codes(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller")
        with pytest.raises(InvalidProducerIdMappingError):
            broker.end_txn("nobody", 5, 0, committed=True)
        with pytest.raises(InvalidProducerIdMappingError):
            broker.add_partitions_to_txn("teller", producer.producer_id + 1, 0, [ORDERS])
        with pytest.raises(InvalidTransactionTimeoutError):
            broker.init_producer_id("teller", 0)
        with pytest.raises(InvalidTransactionTimeoutError):
            broker.init_producer_id("teller", 900_001)
        with pytest.raises(InvalidRequestError):
            broker.init_producer_id("")
        with pytest.raises(InvalidTxnStateError, match="without a transactional id"):
            broker.produce(ORDERS, producer.batch(ORDERS, [b"v"]))
        assert isinstance(
            broker.describe_transactions(["nobody"])["nobody"], TransactionalIdNotFoundError
        )


def test_a_version_1_batch_to_a_partition_outside_its_transaction_is_refused(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller", 1)
        with pytest.raises(OncelogError):
            broker.produce(
                ORDERS,
                producer.batch(ORDERS, [b"v"]),
                transactional_id="teller",
                transaction_version=1,
            )
        assert values_of(broker, isolation=UNCOMMITTED) == []


def test_a_marker_to_an_unavailable_partition_arrives_later(tmp_path: Path) -> None:
    """The decision stands; readers of the other partition see it at once, those of this one when it is back."""
    clock = ManualClock()
    with opened(tmp_path, topics=TOPICS, clock=clock) as broker:
        producer = VerbProducer(broker, "teller")
        producer.send(ORDERS, b"o")
        producer.send(PAYMENTS, b"p")
        bring_back = take_offline(broker.partition(PAYMENTS))
        producer.commit()
        assert values_of(broker) == [b"o"]
        assert values_of(broker, PAYMENTS) == []
        with pytest.raises(ConcurrentTransactionsError):
            producer.send(ORDERS, b"too soon")
        bring_back()
        clock.advance(2000)
        broker.tick()
        assert values_of(broker, PAYMENTS) == [b"p"]
        producer.send(ORDERS, b"next")
        producer.commit()
        assert values_of(broker) == [b"o", b"next"]


def test_a_repeated_marker_is_harmless(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller", 1)
        producer.send(ORDERS, b"v")
        producer.commit()
        marker = TxnMarker(
            producer.producer_id, producer.epoch, True, (ORDERS,), broker.leader_epoch
        )
        assert broker.write_txn_markers([marker]) == {(producer.producer_id, ORDERS): None}
        producer.send(ORDERS, b"w")
        producer.commit()
        assert values_of(broker) == [b"v", b"w"]


def test_a_hanging_transaction_is_found_and_ended_by_hand(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller", 1)
        producer.send(ORDERS, b"hangs")
        (found,) = broker.describe_producers(ORDERS)
        assert found.current_txn_start_offset == 0
        marker = TxnMarker(
            found.producer_id, found.producer_epoch, False, (ORDERS,), broker.leader_epoch
        )
        assert set(broker.write_txn_markers([marker]).values()) == {None}
        assert broker.partition(ORDERS).last_stable_offset == 2
        (found,) = broker.describe_producers(ORDERS)
        assert found.current_txn_start_offset == -1


class _Crash(BaseException):
    """What stands for a kill at a point in the coordinator."""


@both
@pytest.mark.parametrize("committed", [True, False])
def test_the_coordinator_restarted_before_prepare_at_every_marker_and_before_complete(
    tmp_path: Path, version: int, committed: bool
) -> None:
    """Goal: an end that was cut off anywhere is either decided, and completed at the next opening, or not.

    Method: crash at the n-th append of the end (PREPARE, three markers, COMPLETE), open again, look; without a
    decision the end is asked for again, and must succeed.
    """
    for step in itertools.count():
        path = tmp_path / str(step)
        clock = ManualClock()
        broker = Broker(path, now_ms=clock)
        create(broker, TOPICS)
        producer = VerbProducer(broker, "teller", version)
        keys = (ORDERS, PAYMENTS, BILLS)
        for key in keys:
            producer.send(key, b"v")
        left = [step]

        def count(append: object, left: list[int] = left) -> object:
            def counted(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    raise _Crash
                answer = append(*args, **kwargs)  # type: ignore[operator]
                left[0] += answer == -1  # a short way that was not taken: another follows
                return answer

            return counted

        for partition in broker.opened():
            for way in ("append_record", "append_commit", "append_as_leader"):
                setattr(partition, way, count(getattr(partition, way)))
        try:
            producer.end(committed=committed)
            finished = True
        except _Crash:
            finished = False
        crashed(broker)
        with opened(path, clock=clock) as again:
            producer.broker = again
            if step == 0:
                assert values_of(again) == []
                assert again.partition(ORDERS).last_stable_offset == 0
                producer.end(committed=committed)
            expected = [b"v"] if committed else []
            assert [values_of(again, key) for key in keys] == [expected] * 3
            for key in keys:
                partition = again.partition(key)
                assert partition.last_stable_offset == partition.high_watermark
            heir = VerbProducer(again, "teller", version)
            heir.send(ORDERS, b"next")
            heir.commit()
            assert values_of(again) == [*expected, b"next"]
        if finished:
            break
    assert step == 5


def test_a_transaction_of_which_no_coordinator_knows_is_aborted_at_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss of power may take the coordinator's record and leave the data: its LSO must not hang for ever."""
    broker = Broker(tmp_path, now_ms=ManualClock())
    create(broker, TOPICS)
    producer = VerbProducer(broker, "teller")
    producer.send(ORDERS, b"orphan")
    crashed(broker)
    for log in tmp_path.glob("__transaction_state-*/*.log"):
        log.write_bytes(b"")
    with caplog.at_level("WARNING"), opened(tmp_path) as again:
        partition = again.partition(ORDERS)
        assert partition.last_stable_offset == partition.high_watermark == 2
        assert values_of(again) == []
    assert "no coordinator knows" in caplog.text


def test_producer_ids_are_never_given_twice_over_restarts(tmp_path: Path) -> None:
    seen: set[int] = set()
    for _ in range(4):
        with opened(tmp_path) as broker:
            ids = {broker.init_producer_id(None).producer_id for _ in range(700)}
        assert len(ids) == 700
        assert not ids & seen
        seen |= ids


def test_a_prepared_transaction_outlives_time_outs_and_restarts_and_is_ended_from_outside(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    config = {"transaction.two.phase.commit.enable": True}
    with opened(tmp_path, topics=TOPICS, clock=clock, config=config) as broker:
        producer = VerbProducer(broker, "teller", enable_two_phase_commit=True)
        producer.send(ORDERS, b"v")
    clock.advance(10**10)
    with opened(tmp_path, clock=clock, config=config) as broker:
        clock.advance(20_000)
        broker.tick()
        assert values_of(broker) == []
        assert [
            found.transactional_id for found in broker.list_transactions(states=["Ongoing"])
        ] == ["teller"]
        broker.complete_transaction("teller", commit=True)
        assert values_of(broker) == [b"v"]
        with pytest.raises(InvalidTxnStateError, match="no prepared"):
            broker.complete_transaction("teller", commit=True)


def test_two_phase_commit_must_be_switched_on(tmp_path: Path) -> None:
    with opened(tmp_path) as broker, pytest.raises(InvalidRequestError, match="two-phase"):
        broker.init_producer_id("teller", enable_two_phase_commit=True)


@pytest.mark.parametrize(("version", "count"), [(2, 2), (1, 4)])
def test_a_durable_commit_on_one_partition_needs_as_many_syncs_as_is_promised(
    tmp_path: Path, version: int, count: int
) -> None:
    """Goal: docs/GUARANTEES.md says what a commit costs, and why version 1 cannot do with two."""

    class Counting(Disk):
        syncs = 0

        def sync(self, descriptor: int) -> None:
            self.syncs += 1
            super().sync(descriptor)

    disk = Counting()
    with opened(tmp_path, topics=TOPICS, disk=disk, durability="fsync") as broker:
        producer = VerbProducer(broker, "teller", version)
        producer.send(ORDERS, b"a")
        producer.commit()
        for _ in range(5):
            before = disk.syncs
            producer.send(ORDERS, b"b")
            producer.commit()
            assert disk.syncs - before == count


def test_storage_errors_of_the_state_log_leave_the_transaction_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        producer = VerbProducer(broker, "teller")
        producer.send(ORDERS, b"v")
        states = [p for p in broker.opened() if p.key.topic == "__transaction_state"]
        back = [take_offline(partition) for partition in states]
        with pytest.raises(OncelogError) as caught:
            producer.commit()
        assert caught.value.retriable or isinstance(caught.value, KafkaStorageError)
        for bring_back in back:
            bring_back()
        producer.commit()
        assert values_of(broker) == [b"v"]


def test_times_in_the_tests_are_the_manual_clock_s(tmp_path: Path) -> None:
    with opened(tmp_path, topics=TOPICS) as broker:
        broker.produce(ORDERS, plain(broker, b"v"))
        assert broker.list_offsets(ORDERS, -3).timestamp == NOW
