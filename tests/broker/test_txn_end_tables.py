"""What a request to end a transaction is answered, for both generations: state by epoch by outcome.

The rows are those of the tables in Kafka's TransactionCoordinator, with the words of its comment: *retry* is the
epoch before the current one, *current* the same.
"""

from __future__ import annotations

import pytest

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    OncelogError,
    ProducerFencedError,
)
from oncelog.broker.txn_metadata import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    EPOCH_LAST,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TransactionMetadata,
)
from oncelog.broker.txn_records import TransactionState, TransactionValue

DO, DONE = True, False  # there is something to do; it was done before
PF, ITS = ProducerFencedError, InvalidTxnStateError
CT, IPM = ConcurrentTransactionsError, InvalidProducerIdMappingError
Answer = bool | type[OncelogError]

# state: (abort retry, abort current, abort higher, commit retry, commit current, commit higher)
VERSION_1: dict[TransactionState, tuple[Answer, ...]] = {
    EMPTY: (PF, ITS, PF, PF, ITS, PF),
    ONGOING: (PF, DO, PF, PF, DO, PF),
    PREPARE_COMMIT: (PF, ITS, PF, PF, CT, PF),
    PREPARE_ABORT: (PF, CT, PF, PF, ITS, PF),
    COMPLETE_COMMIT: (PF, ITS, PF, PF, DONE, PF),
    COMPLETE_ABORT: (PF, DONE, PF, PF, ITS, PF),
    DEAD: (IPM, IPM, IPM, IPM, IPM, IPM),
}
VERSION_2: dict[TransactionState, tuple[Answer, ...]] = {
    EMPTY: (PF, DO, PF, PF, ITS, PF),
    ONGOING: (PF, DO, PF, PF, DO, PF),
    PREPARE_COMMIT: (ITS, PF, PF, CT, PF, PF),
    PREPARE_ABORT: (CT, PF, PF, ITS, PF, PF),
    COMPLETE_COMMIT: (ITS, DO, PF, DONE, ITS, PF),
    COMPLETE_ABORT: (DONE, DO, PF, ITS, ITS, PF),
    DEAD: (IPM, IPM, IPM, IPM, IPM, IPM),
}
CASES = [
    pytest.param(
        version,
        state,
        epoch,
        committed,
        answers[3 * committed + column],
        id=f"v{version}-{state.label}-{'commit' if committed else 'abort'}-{name}",
    )
    for version, table in ((1, VERSION_1), (2, VERSION_2))
    for state, answers in table.items()
    for committed in (False, True)
    for column, (name, epoch) in enumerate((("retry", 4), ("current", 5), ("higher", 6)))
]


def metadata(state: TransactionState, epoch: int = 5, producer_id: int = 7) -> TransactionMetadata:
    value = TransactionValue(
        producer_id, epoch, 60_000, state, (), 200, 100, previous_producer_id=7
    )
    return TransactionMetadata("t", value)


@pytest.mark.parametrize(("version", "state", "epoch", "committed", "answer"), CASES)
def test_an_end_is_answered_as_kafka_answers_it(
    version: int, state: TransactionState, epoch: int, committed: bool, answer: Answer
) -> None:
    subject = metadata(state)
    if isinstance(answer, bool):
        assert subject.may_end(7, epoch, committed=committed, version=version) is answer
    else:
        with pytest.raises(answer) as raised:
            subject.may_end(7, epoch, committed=committed, version=version)
        assert raised.type is answer
    assert subject.pending is None


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("state", list(VERSION_2), ids=lambda state: state.label)
def test_another_producer_id_is_a_wrong_mapping_in_every_state(
    state: TransactionState, committed: bool, version: int
) -> None:
    with pytest.raises(InvalidProducerIdMappingError):
        metadata(state).may_end(8, 5, committed=committed, version=version)


@pytest.mark.parametrize("committed", [True, False])
def test_the_retry_over_a_new_producer_id_is_done_or_contradicts(committed: bool) -> None:
    """The request was made as (7, 32766); the answer, (8, 0), was lost."""
    subject = metadata(COMPLETE_COMMIT if committed else COMPLETE_ABORT, 0, producer_id=8)
    assert subject.may_end(7, EPOCH_LAST, committed=committed, version=2) is DONE
    with pytest.raises(InvalidTxnStateError):
        subject.may_end(7, EPOCH_LAST, committed=not committed, version=2)


@pytest.mark.parametrize("epoch", [0, 5, EPOCH_LAST - 1])
def test_only_the_last_epoch_of_the_former_producer_id_counts_as_a_retry(epoch: int) -> None:
    subject = metadata(COMPLETE_COMMIT, 0, producer_id=8)
    with pytest.raises(InvalidProducerIdMappingError):
        subject.may_end(7, epoch, committed=True, version=2)


def test_the_former_producer_id_is_no_retry_once_its_successor_has_begun() -> None:
    with pytest.raises(ProducerFencedError):
        metadata(ONGOING, 0, producer_id=8).may_end(7, EPOCH_LAST, committed=True, version=2)
    with pytest.raises(InvalidProducerIdMappingError):
        metadata(ONGOING, 1, producer_id=8).may_end(7, EPOCH_LAST, committed=True, version=2)
