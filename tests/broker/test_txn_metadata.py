"""One transactional id: every move it may make, every one it may not, and what happens to epochs at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from oncelog.broker.txn_metadata import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    EPOCH_LAST,
    EPOCH_MAX,
    LEGAL,
    NEVER_MS,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    TransactionMetadata,
)
from oncelog.broker.txn_records import TransactionState, TransactionValue
from oncelog.segment.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW_MS = 1000
STATES = tuple(TransactionState)


def metadata(
    state: TransactionState = EMPTY, *, epoch: int = 5, **fields: Any
) -> TransactionMetadata:
    """An id in some state; producer 7, started at 100 where it has a transaction."""
    has_partitions = state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE)
    value = TransactionValue(
        7,
        epoch,
        60_000,
        state,
        (FIRST,) if has_partitions else (),
        200,
        -1 if state is EMPTY else 100,
    )
    return TransactionMetadata("t", value._replace(**fields))


# The move of each target state, by a call that would make it from wherever that is legal.
MOVES: dict[TransactionState, Callable[[TransactionMetadata], Any]] = {
    EMPTY: lambda m: m.prepare_init(60_000, NOW_MS),
    ONGOING: lambda m: m.prepare_add([SECOND], NOW_MS, version=2),
    PREPARE_COMMIT: lambda m: m.prepare_end(NOW_MS, committed=True, version=2),
    PREPARE_ABORT: lambda m: m.prepare_end(NOW_MS, committed=False, version=2),
    DEAD: lambda m: m.prepare_dead(),
}


@pytest.mark.parametrize("target", MOVES, ids=lambda state: state.label)
@pytest.mark.parametrize("source", STATES, ids=lambda state: state.label)
def test_only_the_legal_moves_are_made_and_others_change_nothing(
    source: TransactionState, target: TransactionState
) -> None:
    subject = metadata(source)
    before = subject.value
    if target in LEGAL[source]:
        transition = MOVES[target](subject)
        assert subject.value is before  # nothing counts before it is logged
        subject.complete(transition)
        assert subject.state is target
    else:
        with pytest.raises(IllegalStateError):
            MOVES[target](subject)
        assert subject.value is before
    assert subject.pending is None


@pytest.mark.parametrize("source", STATES, ids=lambda state: state.label)
def test_a_decision_completes_to_the_same_kind_and_nothing_else_completes(
    source: TransactionState,
) -> None:
    subject = metadata(source)
    if source in (PREPARE_COMMIT, PREPARE_ABORT):
        subject.complete(subject.prepare_complete(NOW_MS))
        assert subject.state is (COMPLETE_COMMIT if source is PREPARE_COMMIT else COMPLETE_ABORT)
        assert subject.partitions == {}
        assert subject.value.start_ms == 100
    else:
        with pytest.raises(IllegalStateError):
            subject.prepare_complete(NOW_MS)
        assert (subject.state, subject.pending) == (source, None)


def test_the_legal_moves_are_those_of_kafka() -> None:
    """From TransactionState.VALID_PREVIOUS_STATES of Kafka 4.3, turned around."""
    previous = {
        EMPTY: {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
        ONGOING: {ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
        PREPARE_COMMIT: {ONGOING},
        PREPARE_ABORT: {ONGOING, PREPARE_EPOCH_FENCE, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
        COMPLETE_COMMIT: {PREPARE_COMMIT},
        COMPLETE_ABORT: {PREPARE_ABORT},
        DEAD: {EMPTY, COMPLETE_ABORT, COMPLETE_COMMIT},
        PREPARE_EPOCH_FENCE: {ONGOING},
    }
    turned = {target: {source for source in STATES if target in LEGAL[source]} for target in STATES}
    assert turned == previous


def test_version_1_does_not_abort_where_there_is_no_transaction() -> None:
    subject = metadata(EMPTY)
    with pytest.raises(IllegalStateError, match="no transaction"):
        subject.prepare_end(NOW_MS, committed=False, version=1)
    assert subject.pending is None


def test_a_pending_move_keeps_every_other_out() -> None:
    subject = metadata(ONGOING)
    transition = subject.prepare_end(NOW_MS, committed=True, version=2)
    for move in MOVES.values():
        with pytest.raises(IllegalStateError):
            move(subject)
    with pytest.raises(ConcurrentTransactionsError, match="PrepareCommit"):
        subject.check_add(7, 5)
    with pytest.raises(ConcurrentTransactionsError):
        subject.check_init(-1, -1)
    with pytest.raises(ConcurrentTransactionsError):
        subject.may_end(7, 5, committed=True, version=2)
    with pytest.raises(ConcurrentTransactionsError):
        subject.may_end(7, 5, committed=True, version=1)
    subject.cancel(transition)
    assert subject.may_end(7, 5, committed=True, version=2)


def test_only_the_move_that_was_prepared_is_completed() -> None:
    subject = metadata(ONGOING)
    with pytest.raises(IllegalStateError):
        subject.complete(metadata(ONGOING).prepare_end(NOW_MS, committed=True, version=2))
    first = subject.prepare_end(NOW_MS, committed=True, version=2)
    subject.cancel(first)
    with pytest.raises(IllegalStateError):
        subject.complete(first)
    second = subject.prepare_end(NOW_MS, committed=False, version=2)
    subject.cancel(first)  # of a move that is no longer pending: no effect
    subject.complete(second)
    assert subject.state is PREPARE_ABORT


# ------------------------------------------------------------ epochs


def test_a_new_id_begins_with_epoch_0() -> None:
    subject = TransactionMetadata.new("t", 7, 60_000, 1)
    transition = subject.prepare_init(30_000, NOW_MS)
    assert transition.value == TransactionValue(7, 0, 30_000, EMPTY, (), NOW_MS, -1, 7)
    assert transition.last_producer_epoch == -1


def test_init_bumps_the_epoch_and_forgets_the_one_before() -> None:
    subject = metadata(COMPLETE_COMMIT, epoch=5)
    subject.complete(subject.prepare_init(30_000, NOW_MS))
    assert (subject.value.producer_epoch, subject.last_producer_epoch) == (6, -1)
    assert subject.value.transaction_timeout_ms == 30_000
    assert subject.value.start_ms == -1


def test_init_with_the_current_epoch_bumps_and_its_retry_does_not_bump_again() -> None:
    subject = metadata(COMPLETE_COMMIT, epoch=5)
    subject.complete(subject.prepare_init(60_000, NOW_MS, expected_epoch=5))
    assert (subject.value.producer_epoch, subject.last_producer_epoch) == (6, 5)
    subject.complete(subject.prepare_init(60_000, NOW_MS, expected_epoch=5))
    assert (subject.value.producer_epoch, subject.last_producer_epoch) == (6, 5)


@pytest.mark.parametrize("expected", [0, 4, 7, EPOCH_LAST])
def test_init_with_any_other_epoch_is_fenced(expected: int) -> None:
    subject = metadata(COMPLETE_COMMIT, epoch=5)
    with pytest.raises(ProducerFencedError):
        subject.prepare_init(60_000, NOW_MS, expected_epoch=expected)
    assert subject.pending is None


def test_the_epoch_is_not_bumped_past_the_last_one_that_a_producer_may_use() -> None:
    subject = metadata(COMPLETE_COMMIT, epoch=EPOCH_LAST - 1)
    subject.complete(subject.prepare_init(60_000, NOW_MS))
    assert subject.value.producer_epoch == EPOCH_LAST
    assert subject.needs_new_producer_id
    with pytest.raises(IllegalStateError, match="new producer id"):
        subject.prepare_init(60_000, NOW_MS)


def test_the_retry_of_an_init_that_reached_the_last_epoch_gets_it_again() -> None:
    subject = metadata(EMPTY, epoch=EPOCH_LAST - 1)
    subject.complete(subject.prepare_init(60_000, NOW_MS, expected_epoch=EPOCH_LAST - 1))
    subject.complete(subject.prepare_init(60_000, NOW_MS, expected_epoch=EPOCH_LAST - 1))
    assert subject.holder == (7, EPOCH_LAST)


@pytest.mark.parametrize("keeps_epoch", [True, False])
def test_an_exhausted_id_rotates_to_a_new_producer_id_and_keeps_the_old_one(
    keeps_epoch: bool,
) -> None:
    subject = metadata(COMPLETE_COMMIT, epoch=EPOCH_LAST)
    subject.complete(subject.prepare_rotation(8, 60_000, NOW_MS, keeps_epoch=keeps_epoch))
    assert subject.holder == (8, 0)
    assert subject.value.previous_producer_id == 7
    assert subject.last_producer_epoch == (EPOCH_LAST if keeps_epoch else -1)


@pytest.mark.parametrize("state", [ONGOING, PREPARE_COMMIT, PREPARE_ABORT])
def test_a_producer_id_is_not_rotated_while_a_transaction_is_open(state: TransactionState) -> None:
    subject = metadata(state, epoch=EPOCH_LAST)
    with pytest.raises(IllegalStateError):
        subject.prepare_rotation(8, 60_000, NOW_MS)
    assert subject.pending is None


def test_version_2_bumps_the_epoch_at_every_end() -> None:
    subject = metadata(ONGOING, epoch=5)
    transition = subject.prepare_end(NOW_MS, committed=True, version=2)
    assert transition.value.producer_epoch == 6
    assert transition.value.client_transaction_version == 2
    assert transition.last_producer_epoch == 5
    subject.complete(transition)
    subject.complete(subject.prepare_complete(NOW_MS))
    assert subject.holder == (7, 6)


def test_version_1_keeps_the_epoch_at_an_end() -> None:
    subject = metadata(ONGOING, epoch=5)
    subject.complete(subject.prepare_end(NOW_MS, committed=True, version=1))
    subject.complete(subject.prepare_complete(NOW_MS))
    assert subject.holder == (7, 5)
    assert subject.value.client_transaction_version == 0


@pytest.mark.parametrize("is_fence", [True, False])
def test_version_2_at_the_last_epoch_stores_the_next_producer_id_and_uses_it_from_complete_on(
    is_fence: bool,
) -> None:
    """The marker goes out with 32767, which no producer uses."""
    subject = metadata(ONGOING, epoch=EPOCH_LAST)
    subject.complete(
        subject.prepare_end(
            NOW_MS, committed=False, version=2, new_producer_id=8, is_fence=is_fence
        )
    )
    assert (subject.value.producer_id, subject.value.producer_epoch) == (7, EPOCH_MAX)
    assert subject.value.next_producer_id == 8
    assert subject.last_producer_epoch == EPOCH_LAST
    subject.complete(subject.prepare_complete(NOW_MS))
    assert (subject.value.producer_id, subject.value.producer_epoch) == (8, 0)
    assert (subject.value.previous_producer_id, subject.value.next_producer_id) == (7, -1)
    assert subject.last_producer_epoch == EPOCH_LAST


def test_an_end_at_the_last_epoch_needs_the_next_producer_id() -> None:
    subject = metadata(ONGOING, epoch=EPOCH_LAST)
    with pytest.raises(IllegalStateError, match="new producer id"):
        subject.prepare_end(NOW_MS, committed=True, version=2)
    assert subject.pending is None


def test_an_abort_at_the_highest_epoch_does_not_overflow() -> None:
    """32767 in an open transaction is a bug of somebody; it can still be aborted."""
    subject = metadata(ONGOING, epoch=EPOCH_MAX)
    subject.complete(subject.prepare_end(NOW_MS, committed=False, version=2, new_producer_id=8))
    assert subject.value.producer_epoch == EPOCH_MAX
    subject.complete(subject.prepare_complete(NOW_MS))
    assert subject.holder == (8, 0)


def test_a_fence_bumps_the_epoch_once_also_in_version_1() -> None:
    subject = metadata(ONGOING, epoch=EPOCH_LAST)
    subject.last_producer_epoch = 3
    subject.complete(subject.prepare_end(NOW_MS, committed=False, version=1, is_fence=True))
    assert subject.holder == (7, EPOCH_MAX)
    assert subject.last_producer_epoch == -1


def test_a_fence_that_was_not_logged_costs_no_epoch() -> None:
    for version in (1, 2):
        subject = metadata(ONGOING, epoch=5)
        for _ in range(3):
            transition = subject.prepare_end(
                NOW_MS, committed=False, version=version, is_fence=True
            )
            assert transition.value.producer_epoch == 6
            subject.cancel(transition)
        assert subject.holder == (7, 5)


def test_a_replayed_epoch_fence_goes_on_to_abort() -> None:
    subject = metadata(PREPARE_EPOCH_FENCE)
    subject.complete(subject.prepare_end(NOW_MS, committed=False, version=2, is_fence=True))
    assert subject.state is PREPARE_ABORT


# ------------------------------------------------------------ partitions and time


def test_the_first_partition_starts_the_transaction_and_later_ones_do_not_restart_it() -> None:
    subject = metadata(COMPLETE_COMMIT)
    subject.complete(subject.prepare_add([FIRST], 1000, version=2))
    subject.complete(subject.prepare_add([SECOND, FIRST], 2000, version=2))
    assert subject.value.start_ms == 1000
    assert subject.value.last_update_ms == 2000
    assert subject.value.partitions == (FIRST, SECOND)
    assert list(subject.partitions) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("source", "target"),
    [(source, target) for source in STATES for target in MOVES if target in LEGAL[source]],
    ids=lambda state: state.label,
)
def test_a_clock_that_goes_back_is_tolerated_in_every_move(
    source: TransactionState, target: TransactionState
) -> None:
    subject = metadata(source, last_update_ms=10 * NOW_MS)
    subject.complete(MOVES[target](subject))
    assert subject.state is target
    if target is not DEAD:
        assert subject.value.last_update_ms == NOW_MS


def test_an_abort_of_nothing_starts_when_it_is_made() -> None:
    subject = metadata(EMPTY)
    subject.complete(subject.prepare_end(NOW_MS, committed=False, version=2))
    assert (subject.value.start_ms, subject.value.partitions) == (NOW_MS, ())
    subject.complete(subject.prepare_complete(NOW_MS))
    assert subject.state is COMPLETE_ABORT


def test_lacks_tells_whether_a_partition_is_missing() -> None:
    subject = metadata(ONGOING)
    assert not subject.lacks([FIRST])
    assert not subject.lacks([])
    assert subject.lacks([FIRST, SECOND])
    assert metadata(COMPLETE_COMMIT).lacks([])


# ------------------------------------------------------------ prepared transactions that are kept


def kept(*, epoch: int = 5, new_producer_id: int = 8) -> TransactionMetadata:
    subject = metadata(ONGOING, epoch=epoch)
    subject.complete(subject.prepare_keep(NEVER_MS, NOW_MS, new_producer_id=new_producer_id))
    return subject


def test_a_kept_transaction_stays_open_under_its_writer_and_gets_a_new_holder() -> None:
    subject = kept()
    assert subject.state is ONGOING
    assert (subject.value.producer_id, subject.value.producer_epoch) == (7, 5)
    assert subject.holder == (7, 6)
    assert (subject.value.start_ms, subject.value.partitions) == (100, (FIRST,))


def test_keeping_again_shuts_out_the_holder_before() -> None:
    subject = kept()
    subject.complete(subject.prepare_keep(NEVER_MS, NOW_MS, new_producer_id=8))
    assert subject.holder == (7, 7)
    with pytest.raises(ProducerFencedError):
        subject.may_end(7, 6, committed=True, version=2)


def test_a_kept_transaction_is_ended_by_its_holder_alone_and_nobody_adds_to_it() -> None:
    subject = kept()
    with pytest.raises(ProducerFencedError):
        subject.may_end(7, 5, committed=True, version=2)
    with pytest.raises(ProducerFencedError):
        subject.check_add(7, 5)
    with pytest.raises(InvalidTxnStateError, match="completed first"):
        subject.check_add(7, 6)
    with pytest.raises(InvalidProducerIdMappingError):
        subject.may_end(99, 6, committed=True, version=2)
    for version in (1, 2):
        assert subject.may_end(7, 6, committed=True, version=version)


@pytest.mark.parametrize("version", [1, 2])
def test_a_kept_transaction_ends_above_its_writer_and_leaves_the_holder_one_epoch_on(
    version: int,
) -> None:
    """The marker's epoch must exceed that of the data; the holder gets its own epoch + 1, as after any end."""
    subject = kept()
    subject.complete(subject.prepare_keep(NEVER_MS, NOW_MS, new_producer_id=8))
    subject.complete(subject.prepare_end(NOW_MS, committed=True, version=version))
    assert (subject.value.producer_id, subject.value.producer_epoch) == (7, 6)
    subject.complete(subject.prepare_complete(NOW_MS))
    assert subject.holder == (7, 8)
    assert not subject.may_end(7, 7, committed=True, version=2)


@pytest.mark.parametrize("epoch", [EPOCH_LAST - 2, EPOCH_LAST - 1, EPOCH_LAST])
def test_a_kept_transaction_never_runs_out_of_epochs(epoch: int) -> None:
    subject = kept(epoch=epoch)
    if epoch == EPOCH_LAST - 2:
        assert subject.holder == (7, EPOCH_LAST - 1)
    else:
        assert subject.holder == (8, 0)
    holder_id, holder_epoch = subject.holder
    assert subject.may_end(holder_id, holder_epoch, committed=True, version=2)
    subject.complete(subject.prepare_end(NOW_MS, committed=True, version=2))
    assert (subject.value.producer_id, subject.value.producer_epoch) == (7, epoch + 1)
    subject.complete(subject.prepare_complete(NOW_MS))
    assert subject.holder == (holder_id, holder_epoch + 1)


def test_there_must_be_a_transaction_to_keep() -> None:
    subject = metadata(COMPLETE_COMMIT)
    with pytest.raises(IllegalStateError, match="no prepared transaction"):
        subject.prepare_keep(NEVER_MS, NOW_MS, new_producer_id=8)
    assert subject.pending is None
