"""The transaction coordinator: who holds an id, what may join a transaction, how it ends, what is answered."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    InvalidProducerIdMappingError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    OncelogError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from oncelog.broker.producer_ids import ProducerIdentity
from oncelog.broker.txn_coordinator import CoordinatorOptions
from oncelog.broker.txn_metadata import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_LAST,
    EPOCH_MAX,
    ONGOING,
)
from tests.broker.coordinators import (
    COORDINATOR_EPOCH,
    FIRST,
    SECOND,
    START_MS,
    THIRD,
    TIMEOUT_MS,
    Bench,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data")
    yield bench
    bench.close()


def at_epoch(bench: Bench, epoch: int) -> ProducerIdentity:
    """An initialized id whose holder has a certain epoch."""
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    metadata = bench.metadata()
    metadata.value = metadata.value._replace(producer_epoch=epoch)
    return ProducerIdentity(metadata.value.producer_id, epoch)


# ------------------------------------------------------------ init


def test_init_without_an_id_gives_a_fresh_producer_id_and_stores_nothing(bench: Bench) -> None:
    assert bench.coordinator.init_producer_id(None, TIMEOUT_MS) == (0, 0, -1, -1)
    assert bench.coordinator.init_producer_id(None, TIMEOUT_MS) == (1, 0, -1, -1)
    assert bench.existing() == []
    assert bench.coordinator.list_transactions() == []


def test_init_with_an_empty_id_is_an_invalid_request(bench: Bench) -> None:
    with pytest.raises(InvalidRequestError):
        bench.coordinator.init_producer_id("", TIMEOUT_MS)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_init_with_a_timeout_out_of_bounds_is_an_invalid_transaction_timeout(
    bench: Bench, timeout_ms: int
) -> None:
    with pytest.raises(InvalidTransactionTimeoutError, match="900000"):
        bench.coordinator.init_producer_id("t", timeout_ms)
    assert bench.coordinator.init_producer_id("t", 900_000).producer_epoch == 0


def test_nothing_is_answered_while_loading(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", loads=False)
    for call in (
        lambda: bench.coordinator.init_producer_id("t", TIMEOUT_MS),
        lambda: bench.coordinator.end_txn("t", 0, 0, committed=True),
        lambda: bench.coordinator.add_partitions_to_txn("t", 0, 0, [FIRST]),
        lambda: bench.coordinator.describe_transaction("t"),
        bench.coordinator.list_transactions,
    ):
        with pytest.raises(CoordinatorLoadInProgressError):
            call()
    bench.close()


def test_init_makes_the_internal_partition_and_logs_the_holder(bench: Bench) -> None:
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS) == (0, 0, -1, -1)
    assert bench.existing() == [bench.log.partition_for("t")]
    assert bench.states() == ["Empty"]


def test_each_init_shuts_out_the_holder_before(bench: Bench) -> None:
    old = bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    new = bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert (old.producer_id, old.producer_epoch) == (0, 0)
    assert (new.producer_id, new.producer_epoch) == (0, 1)
    with pytest.raises(ProducerFencedError):
        bench.add(old, FIRST)
    bench.add(new, FIRST)


def test_init_after_a_completed_transaction_bumps_the_epoch(bench: Bench) -> None:
    identity = bench.end(bench.begin(), committed=True)
    assert identity.producer_epoch == 1
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS).producer_epoch == 2


def test_init_with_an_open_transaction_aborts_it_with_a_fencing_bump_and_answers(
    bench: Bench,
) -> None:
    """Kafka answers CONCURRENT_TRANSACTIONS here and lets the client call again; the outcome is the same."""
    old = bench.begin("t", FIRST, SECOND)
    new = bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert (new.producer_id, new.producer_epoch) == (0, 2)
    assert bench.markers.written == [
        (FIRST, 0, 1, False, COORDINATOR_EPOCH, 2),
        (SECOND, 0, 1, False, COORDINATOR_EPOCH, 2),
    ]
    assert bench.states() == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort", "Empty"]
    with pytest.raises(ProducerFencedError):
        bench.end(old, committed=True)


def test_init_while_a_transaction_is_being_ended_must_wait(bench: Bench) -> None:
    identity = bench.begin()
    answers: list[OncelogError] = []

    def interrupt() -> None:
        with pytest.raises(ConcurrentTransactionsError) as raised:
            bench.coordinator.init_producer_id("t", TIMEOUT_MS)
        answers.append(raised.value)

    bench.markers.during = interrupt
    bench.end(identity, committed=True)
    assert len(answers) == 1


def test_init_twice_in_a_row_is_fine(bench: Bench) -> None:
    for epoch in range(5):
        assert bench.coordinator.init_producer_id("t", TIMEOUT_MS).producer_epoch == epoch


def test_init_at_the_last_epoch_gives_a_new_producer_id(bench: Bench) -> None:
    at_epoch(bench, EPOCH_LAST - 1)
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS)[:2] == (0, EPOCH_LAST)
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS)[:2] == (1, 0)
    assert bench.value().previous_producer_id == 0


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param(2, (1, 1), id="rotates-at-complete"),
        pytest.param(1, (1, 0), id="rotates-at-init"),
    ],
)
def test_init_with_an_open_transaction_at_the_last_epoch_does_not_increment_twice(
    tmp_path: Path, version: int, expected: tuple[int, int]
) -> None:
    bench = Bench(tmp_path / "data", options=CoordinatorOptions(transaction_version=version))
    identity = at_epoch(bench, EPOCH_LAST)
    bench.add(identity, FIRST)
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS)[:2] == expected
    assert bench.markers.written == [(FIRST, 0, EPOCH_MAX, False, COORDINATOR_EPOCH, version)]
    bench.close()


# ------------------------------------------------------------ init of a producer that names itself


def named(bench: Bench, producer_id: int, producer_epoch: int) -> tuple[int, int]:
    answer = bench.coordinator.init_producer_id(
        "t", TIMEOUT_MS, producer_id=producer_id, producer_epoch=producer_epoch
    )
    return answer[:2]


def test_an_id_that_is_given_while_nothing_is_known_gets_a_new_one(bench: Bench) -> None:
    assert named(bench, 77, 5) == (0, 0)


def test_the_current_epoch_is_bumped_and_its_retry_gets_the_same_answer(bench: Bench) -> None:
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert named(bench, 0, 0) == (0, 1)
    assert named(bench, 0, 0) == (0, 1)
    assert named(bench, 0, 1) == (0, 2)


def test_another_id_or_a_stale_epoch_is_fenced(bench: Bench) -> None:
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert named(bench, 0, 0) == (0, 1)
    assert named(bench, 0, 1) == (0, 2)
    for identity in ((9, 2), (0, 0), (0, 3), (9, EPOCH_LAST)):
        with pytest.raises(ProducerFencedError):
            named(bench, *identity)
    assert bench.value().producer_epoch == 2


def test_no_retry_counts_once_somebody_else_has_taken_over(bench: Bench) -> None:
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert named(bench, 0, 0) == (0, 1)
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    with pytest.raises(ProducerFencedError):
        named(bench, 0, 1)


def test_a_retry_after_the_rotation_gets_the_new_id_again(bench: Bench) -> None:
    at_epoch(bench, EPOCH_LAST)
    assert named(bench, 0, EPOCH_LAST) == (1, 0)
    assert named(bench, 0, EPOCH_LAST) == (1, 0)
    with pytest.raises(ProducerFencedError):
        named(bench, 0, EPOCH_LAST - 1)


def test_a_stale_claim_does_not_abort_the_holders_transaction(bench: Bench) -> None:
    """Kafka aborts first and fences the zombie when it calls again; here only the zombie is turned away."""
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    identity = bench.begin()
    with pytest.raises(ProducerFencedError):
        named(bench, 0, 0)
    assert bench.value().state is ONGOING
    bench.end(identity, committed=True)
    assert bench.value().state is COMPLETE_COMMIT


def test_the_holder_that_names_itself_in_an_open_transaction_aborts_it_and_goes_on(
    bench: Bench,
) -> None:
    identity = bench.begin()
    assert named(bench, identity.producer_id, identity.producer_epoch) == (0, 1)
    assert bench.markers.written == [(FIRST, 0, 1, False, COORDINATOR_EPOCH, 2)]
    assert bench.value().state is EMPTY


# ------------------------------------------------------------ partitions


def add(bench: Bench, transactional_id: str, producer_id: int, epoch: int) -> None:
    bench.coordinator.add_partitions_to_txn(
        transactional_id, producer_id, epoch, [SECOND], transaction_version=2
    )


def verify(bench: Bench, transactional_id: str, producer_id: int, epoch: int) -> None:
    bench.coordinator.add_partitions_to_txn(
        transactional_id, producer_id, epoch, [FIRST], verify_only=True
    )


def append(bench: Bench, transactional_id: str, producer_id: int, epoch: int) -> None:
    bench.coordinator.append(transactional_id, producer_id, epoch, SECOND, lambda: None)


@pytest.mark.parametrize("call", [add, verify, append])
def test_joining_a_transaction_is_refused_to_everybody_but_the_holder(
    bench: Bench, call: Callable[[Bench, str, int, int], None]
) -> None:
    with pytest.raises(InvalidProducerIdMappingError):
        call(bench, "t", 0, 0)  # nobody knows the id
    with pytest.raises(InvalidRequestError):
        call(bench, "", 0, 0)
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    bench.begin()
    with pytest.raises(InvalidProducerIdMappingError):
        call(bench, "t", 1, 1)
    for epoch in (0, 2):
        with pytest.raises(ProducerFencedError):
            call(bench, "t", 0, epoch)
    call(bench, "t", 0, 1)


@pytest.mark.parametrize("call", [add, verify, append])
@pytest.mark.parametrize("committed", [True, False])
def test_joining_a_transaction_that_is_being_ended_must_wait(
    bench: Bench, call: Callable[[Bench, str, int, int], None], committed: bool
) -> None:
    identity = bench.begin()
    refused: list[bool] = []

    def interrupt() -> None:
        for epoch in (0, 1):
            with pytest.raises(ConcurrentTransactionsError):
                call(bench, "t", 0, epoch)
        refused.append(True)

    bench.markers.during = interrupt
    bench.end(identity, committed=committed)
    assert refused == [True]


def test_partitions_are_logged_and_those_already_there_are_not_logged_again(bench: Bench) -> None:
    identity = bench.begin("t", FIRST)
    assert bench.states() == ["Empty", "Ongoing"]
    bench.add(identity, FIRST)
    assert bench.states() == ["Empty", "Ongoing"]
    bench.add(identity, FIRST, SECOND)
    assert bench.states() == ["Empty", "Ongoing", "Ongoing"]
    assert bench.value().partitions == (FIRST, SECOND)


def test_appending_adds_the_partition_once_and_holds_the_transaction(bench: Bench) -> None:
    identity = bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    for _ in range(3):
        with bench.appending(identity, FIRST):
            assert bench.metadata().lock.locked()
    assert not bench.metadata().lock.locked()
    assert bench.states() == ["Empty", "Ongoing"]


def test_an_end_waits_until_the_append_is_through(bench: Bench) -> None:
    """Goal: no batch lands behind the data that a decision speaks for. Method: end from another thread meanwhile."""
    identity = bench.begin()
    order: list[str] = []

    def end() -> None:
        bench.end(identity, committed=True)
        order.append("ended")

    thread = threading.Thread(target=end)
    with bench.appending(identity, FIRST):
        thread.start()
        thread.join(0.1)
        order.append("appended")
    thread.join()
    assert order == ["appended", "ended"]


def test_an_error_while_appending_gives_the_transaction_free(bench: Bench) -> None:
    identity = bench.begin()
    with (
        pytest.raises(ZeroDivisionError),
        bench.appending(identity, FIRST),
    ):
        raise ZeroDivisionError
    with pytest.raises(ProducerFencedError):
        bench.coordinator.append("t", 0, 9, FIRST, lambda: None)
    assert not bench.metadata().lock.locked()


def test_version_1_appends_only_to_what_was_added_before(bench: Bench) -> None:
    identity = bench.begin("t", FIRST, version=1)
    with bench.appending(identity, FIRST, version=1):
        pass
    with (
        pytest.raises(TransactionAbortableError, match="orders-1"),
        bench.appending(identity, SECOND, version=1),
    ):
        pass
    bench.end(identity, committed=True, version=1)
    with (
        pytest.raises(TransactionAbortableError),
        bench.appending(identity, FIRST, version=1),
    ):
        pass


def test_verification_tells_which_partitions_are_not_in_the_transaction(bench: Bench) -> None:
    identity = bench.begin("t", FIRST)
    with pytest.raises(TransactionAbortableError, match=r"^orders-1, payments-0: not in"):
        bench.coordinator.add_partitions_to_txn(
            "t",
            identity.producer_id,
            identity.producer_epoch,
            [FIRST, SECOND, THIRD],
            verify_only=True,
        )
    assert bench.value().partitions == (FIRST,)


def test_the_timer_starts_with_the_first_partition(bench: Bench) -> None:
    identity = bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert bench.coordinator.describe_transaction("t").start_ms == -1
    bench.clock.now += 5000
    bench.add(identity, FIRST)
    bench.clock.now += 5000
    bench.add(identity, SECOND)
    assert bench.coordinator.describe_transaction("t").start_ms == START_MS + 5000


# ------------------------------------------------------------ ends


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_an_end_logs_the_decision_writes_every_marker_and_completes(
    bench: Bench, committed: bool, version: int
) -> None:
    identity = bench.begin("t", FIRST, SECOND, THIRD, version=version)
    seen: list[list[str]] = []
    bench.markers.during = lambda: seen.append(bench.states())
    answer = bench.end(identity, committed=committed, version=version)
    kind = "Commit" if committed else "Abort"
    assert seen == [["Empty", "Ongoing", f"Prepare{kind}"]] * 3  # the decision comes first
    assert bench.states() == ["Empty", "Ongoing", f"Prepare{kind}", f"Complete{kind}"]
    epoch = 1 if version == 2 else 0
    assert answer == (0, epoch, -1, -1)
    assert bench.markers.written == [
        (key, 0, epoch, committed, COORDINATOR_EPOCH, version) for key in (FIRST, SECOND, THIRD)
    ]


def test_the_retry_of_an_end_is_answered_and_writes_nothing(bench: Bench) -> None:
    identity = bench.begin()
    first = bench.end(identity, committed=True)
    assert bench.end(identity, committed=True) == first
    with pytest.raises(InvalidTxnStateError):
        bench.end(identity, committed=False)
    assert len(bench.states()) == 4
    assert len(bench.markers.written) == 1


def test_version_1_repeats_an_end_by_its_outcome(bench: Bench) -> None:
    identity = bench.begin(version=1)
    assert bench.end(identity, committed=False, version=1) == identity
    assert bench.end(identity, committed=False, version=1) == identity
    with pytest.raises(InvalidTxnStateError):
        bench.end(identity, committed=True, version=1)
    assert len(bench.markers.written) == 1


def test_version_2_aborts_nothing_with_a_bump_and_without_a_marker(bench: Bench) -> None:
    identity = bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    after = bench.end(identity, committed=False)
    assert after[:2] == (0, 1)
    assert bench.end(after, committed=False)[:2] == (0, 2)
    assert bench.markers.written == []
    assert bench.states() == ["Empty"] + ["PrepareAbort", "CompleteAbort"] * 2
    with pytest.raises(InvalidTxnStateError):
        bench.end(ProducerIdentity(0, 2), committed=True)


def test_an_abort_straight_after_a_commit_is_fine(bench: Bench) -> None:
    identity = bench.end(bench.begin(), committed=True)
    assert bench.end(identity, committed=False)[:2] == (0, 2)
    assert bench.value().state is COMPLETE_ABORT


def test_an_end_of_an_id_that_nobody_knows_is_a_wrong_mapping(bench: Bench) -> None:
    with pytest.raises(InvalidProducerIdMappingError, match="'t'"):
        bench.coordinator.end_txn("t", 0, 0, committed=True)
    with pytest.raises(InvalidRequestError):
        bench.coordinator.end_txn("", 0, 0, committed=True)


def test_a_delayed_end_of_an_earlier_transaction_cannot_end_a_later_one(bench: Bench) -> None:
    first = bench.begin()
    second = bench.end(first, committed=True)
    third = bench.end(second, committed=False)
    bench.add(third, FIRST)
    for late in (first, second):
        for committed in (True, False):
            with pytest.raises(ProducerFencedError):
                bench.end(late, committed=committed)
    assert bench.value().state is ONGOING


def test_in_version_1_a_delayed_end_can_end_a_later_transaction_as_in_kafka(bench: Bench) -> None:
    """KAFKA-17754: the reason for version 2."""
    identity = bench.begin(version=1)
    bench.end(identity, committed=True, version=1)
    bench.add(identity, SECOND, version=1)
    bench.end(identity, committed=True, version=1)  # meant for the transaction before
    assert bench.value().state is COMPLETE_COMMIT


def test_an_epoch_that_runs_out_in_use_moves_on_to_a_new_producer_id(bench: Bench) -> None:
    identity = at_epoch(bench, EPOCH_LAST - 1)
    bench.add(identity, FIRST)
    identity = bench.end(identity, committed=True)
    assert identity[:2] == (0, EPOCH_LAST)
    bench.add(identity, FIRST)
    rotated = bench.end(identity, committed=True)
    assert rotated[:2] == (1, 0)
    assert bench.end(identity, committed=True) == rotated  # the answer was lost
    with pytest.raises(InvalidTxnStateError):
        bench.end(identity, committed=False)
    bench.add(rotated, FIRST)
    assert bench.end(rotated, committed=True)[:2] == (1, 1)
    assert [marker[1:3] for marker in bench.markers.written] == [
        (0, EPOCH_LAST),
        (0, EPOCH_MAX),
        (1, 1),
    ]


# ------------------------------------------------------------ looking


def test_describe_tells_what_is_known_of_an_id(bench: Bench) -> None:
    bench.begin("t", FIRST, THIRD)
    assert bench.coordinator.describe_transaction("t") == (
        "t",
        ONGOING,
        0,
        0,
        TIMEOUT_MS,
        START_MS,
        (FIRST, THIRD),
    )


def test_describe_of_an_unknown_or_expired_id_is_not_found(bench: Bench) -> None:
    with pytest.raises(TransactionalIdNotFoundError, match="'nobody'"):
        bench.coordinator.describe_transaction("nobody")
    with pytest.raises(InvalidRequestError):
        bench.coordinator.describe_transaction("")
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    bench.clock.now += bench.options.transactional_id_expiration_ms
    bench.coordinator.expire_ids()
    with pytest.raises(TransactionalIdNotFoundError):
        bench.coordinator.describe_transaction("t")


def test_list_filters_by_state_producer_id_duration_and_pattern(bench: Bench) -> None:
    bench.coordinator.init_producer_id("empty-1", TIMEOUT_MS)
    bench.begin("open-1")
    bench.clock.now += 1000
    bench.begin("open-2")
    bench.end(bench.begin("done-1"), committed=True, transactional_id="done-1")

    def names(**filters: Any) -> list[str]:
        return sorted(
            row.transactional_id for row in bench.coordinator.list_transactions(**filters)
        )

    assert names() == ["done-1", "empty-1", "open-1", "open-2"]
    assert names(states=["Ongoing"]) == ["open-1", "open-2"]
    assert names(states=["Empty", "CompleteCommit"]) == ["done-1", "empty-1"]
    assert names(states=["NoSuchState"]) == []
    assert names(states=["NoSuchState", "Empty"]) == ["empty-1"]
    assert names(producer_ids=[1, 3]) == ["done-1", "open-1"]
    assert names(states=["Ongoing"], duration_ms_min=999) == ["open-1"]
    assert names(states=["Ongoing"], duration_ms_min=1000) == []  # must be exceeded
    assert names(states=["Ongoing"], duration_ms_min=0) == ["open-1"]
    assert names(id_pattern=".*-1") == ["done-1", "empty-1", "open-1"]
    assert names(id_pattern="open") == []  # the whole id must match
    assert names(id_pattern="") == names()
    assert bench.coordinator.list_transactions(states=["Empty"]) == [("empty-1", 0, EMPTY)]


@pytest.mark.parametrize("pattern", ["(", "[a", "*x"])
def test_a_bad_pattern_is_an_invalid_regular_expression(bench: Bench, pattern: str) -> None:
    with pytest.raises(InvalidRegularExpressionError):
        bench.coordinator.list_transactions(id_pattern=pattern)


def test_the_open_transactions_are_known_by_producer_id(bench: Bench) -> None:
    identity = bench.begin()
    assert bench.coordinator.knows(identity.producer_id)
    assert not bench.coordinator.knows(99)
    bench.markers.during = lambda: seen.append(bench.coordinator.knows(identity.producer_id))
    seen: list[bool] = []
    bench.end(identity, committed=True)
    assert seen == [True]
    assert not bench.coordinator.knows(identity.producer_id)


def test_changes_of_state_are_logged_with_the_transactional_id(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "oncelog.broker"):
        bench.end(bench.begin("teller-1"), committed=True, transactional_id="teller-1")
    assert "<'teller-1' Empty, producer 0 epoch 0> is initialized" in caplog.text
    assert "<'teller-1' CompleteCommit, producer 0 epoch 1>" in caplog.text
