"""Two-phase commit: a transaction that was prepared waits for an outside coordinator, over restarts and for ever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    KafkaStorageError,
    OncelogError,
    ProducerFencedError,
)
from oncelog.broker.txn_metadata import COMPLETE_COMMIT, NEVER_MS, ONGOING
from tests.broker.brokers import ORDERS, UNCOMMITTED, VerbProducer, opened, values_of
from tests.broker.coordinators import COORDINATOR_EPOCH, FIRST, SECOND, THIRD, TIMEOUT_MS, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.broker.producer_ids import ProducerIdentity


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data")
    yield bench
    bench.close()


def two_phase(bench: Bench, **options: Any) -> ProducerIdentity:
    return bench.coordinator.init_producer_id("t", 1, enable_two_phase_commit=True, **options)


def test_a_prepared_transaction_never_times_out(bench: Bench) -> None:
    bench.add(two_phase(bench), FIRST)
    assert bench.value().transaction_timeout_ms == NEVER_MS
    bench.clock.now += 10**12
    assert bench.coordinator.abort_timed_out() == 0
    assert bench.value().state is ONGOING


@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_transaction_survives_a_restart_and_is_completed_by_its_new_holder(
    bench: Bench, committed: bool
) -> None:
    old = two_phase(bench)
    bench.add(old, FIRST, SECOND)
    bench.coordinator.prepare_txn("t", old.producer_id, old.producer_epoch)
    bench.restart()
    new = two_phase(bench, keep_prepared=True)
    assert new == (0, 1, 0, 0)
    assert bench.markers.written == []
    for call in (
        lambda: bench.end(old, committed=not committed),
        lambda: bench.add(old, THIRD),
        lambda: bench.coordinator.prepare_txn("t", old.producer_id, old.producer_epoch),
    ):
        with pytest.raises(ProducerFencedError):
            call()
    bench.restart()
    assert bench.end(new, committed=committed)[:2] == (0, 2)
    assert bench.markers.written == [
        (FIRST, 0, 1, committed, COORDINATOR_EPOCH + 2, 2),
        (SECOND, 0, 1, committed, COORDINATOR_EPOCH + 2, 2),
    ]
    assert bench.end(new, committed=committed)[:2] == (0, 2)  # a retry


def test_without_a_prepared_transaction_there_is_nothing_to_keep(bench: Bench) -> None:
    assert two_phase(bench, keep_prepared=True) == (0, 0, -1, -1)
    assert two_phase(bench, keep_prepared=True) == (0, 1, -1, -1)


def test_a_holder_that_does_not_keep_aborts_the_prepared_transaction(bench: Bench) -> None:
    bench.add(two_phase(bench), FIRST)
    two_phase(bench, keep_prepared=True)
    assert two_phase(bench)[:2] == (0, 3)
    assert bench.markers.written == [(FIRST, 0, 1, False, COORDINATOR_EPOCH, 2)]


def test_an_outside_coordinator_completes_by_the_transactional_id_alone(bench: Bench) -> None:
    old = two_phase(bench)
    bench.add(old, FIRST)
    assert bench.coordinator.complete_transaction("t", committed=True)[:2] == (0, 1)
    assert bench.value().state is COMPLETE_COMMIT
    with pytest.raises(InvalidTxnStateError, match="CompleteCommit"):
        bench.coordinator.complete_transaction("t", committed=True)
    two_phase(bench)
    with pytest.raises(ProducerFencedError):
        bench.add(old, FIRST)


def test_a_transaction_that_may_time_out_is_not_prepared(bench: Bench) -> None:
    bench.begin()
    with pytest.raises(InvalidTxnStateError, match="no prepared transaction"):
        bench.coordinator.complete_transaction("t", committed=True)


def test_only_two_phase_commit_keeps_a_transaction(bench: Bench) -> None:
    with pytest.raises(InvalidRequestError):
        bench.coordinator.init_producer_id("t", TIMEOUT_MS, keep_prepared=True)


def test_an_append_that_was_under_way_lands_before_the_new_holder_is_named_or_not_at_all(
    tmp_path: Path,
) -> None:
    """Goal: what the new holder of a prepared transaction finds in it stays all of it.

    Method: the old holder's append stops right before it writes, while a new holder asks to keep the transaction.
    """
    config = {"transaction.two.phase.commit.enable": True}
    with opened(tmp_path, topics={"orders": 1}, config=config) as broker:
        zombie = VerbProducer(broker, "t", enable_two_phase_commit=True)
        zombie.send(ORDERS, b"first")
        partition = broker.partition(ORDERS)
        append, stopped, go_on = partition.append_as_leader, threading.Event(), threading.Event()

        def slow_append(*args: Any, **options: Any) -> Any:
            stopped.set()
            assert go_on.wait(10)
            return append(*args, **options)

        partition.append_as_leader = slow_append  # type: ignore[method-assign]
        refused: list[OncelogError] = []

        def send() -> None:
            try:
                zombie.send(ORDERS, b"late")
            except OncelogError as error:
                refused.append(error)

        sending = threading.Thread(target=send)
        sending.start()
        assert stopped.wait(10)
        found: list[list[bytes | None]] = []

        def keep() -> None:
            broker.init_producer_id("t", enable_two_phase_commit=True, keep_prepared=True)
            found.append(values_of(broker, ORDERS, UNCOMMITTED))

        keeping = threading.Thread(target=keep)
        keeping.start()
        keeping.join(0.3)
        go_on.set()
        sending.join(10)
        keeping.join(10)
        assert found == [values_of(broker, ORDERS, UNCOMMITTED)]
        partition.append_as_leader = append  # type: ignore[method-assign]
        with pytest.raises(ProducerFencedError):
            zombie.send(ORDERS, b"later")


def test_a_holder_whose_successor_could_not_be_logged_goes_on(bench: Bench) -> None:
    old = two_phase(bench)
    bench.add(old, FIRST)
    bench.log.append_errors = [KafkaStorageError("EIO")]
    with pytest.raises(OncelogError):
        two_phase(bench, keep_prepared=True)
    assert not bench.coordinator.kept
    bench.end(old, committed=True)
    assert bench.value().state is COMPLETE_COMMIT
