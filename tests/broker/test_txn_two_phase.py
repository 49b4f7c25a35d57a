"""Two-phase commit: a transaction that was prepared waits for an outside coordinator, over restarts and for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import InvalidRequestError, InvalidTxnStateError, ProducerFencedError
from oncelog.broker.txn_metadata import COMPLETE_COMMIT, NEVER_MS, ONGOING
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
